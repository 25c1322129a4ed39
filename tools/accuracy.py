"""Measure how far `weft.ops.functions` is from the truth, and write docs/accuracy.md.

    python tools/accuracy.py

float16 and bfloat16 are measured at every number, float32 at samples of all exponents against
float64, float64 at samples against mpmath with 50 digits. An error is counted in units in the last
place (ULP) of the true result: a perfect rounding is at most half a unit off.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import mpmath as mp
import numpy as np
from scipy import special

from weft.ops.functions import NumpyScalars

Array = np.ndarray[Any, np.dtype[Any]]
PAGE = Path(__file__).parent.parent / "docs" / "accuracy.md"
DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
STRICT = {
    *("exp", "exp2", "expm1", "log", "log2", "log1p"),
    *("sin", "cos", "tan", "tanh", "sqrt", "rsqrt"),
}


@dataclass(frozen=True)
class Oracle:
    """The truth of one function: in float64 for narrow formats, in mpmath for float64."""

    double: Callable[..., Any]
    exact: Callable[..., Any]
    operands: int = 1
    # What the error is measured against where the result itself nearly vanishes, or nothing.
    floor: Callable[..., Any] | None = None
    limit: float = math.inf  # arguments beyond it behave as this one


def _exact_log_sigmoid(x: Any) -> Any:
    return -mp.log1p(mp.exp(-x)) if x > 0 else x - mp.log1p(mp.exp(max(x, -2000)))


def _exact_log_sum(base: int) -> Callable[[Any, Any], Any]:
    def function(x: Any, y: Any) -> Any:
        unit = mp.log(base) if base else mp.mpf(1)
        difference = max(-abs(x - y) * unit, mp.mpf(-4000))
        return max(x, y) + mp.log1p(mp.exp(difference)) / unit

    return function


def _exact_pow(x: Any, y: Any) -> Any:
    size = y * mp.log(abs(x))
    value = mp.exp(max(min(size, mp.mpf(2000)), mp.mpf(-2000)))
    if x > 0:
        return value
    if y != mp.floor(y):
        return mp.nan
    return -value if mp.floor(y / 2) * 2 != y else value


def _reflected(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """For x < 0 the size of the terms that cancel near a zero."""
    return lambda x: np.where(x < 0, 1 + np.abs(function(1 - x)), 0)


def _largest(x: Any, y: Any) -> Any:
    return np.maximum(np.abs(x), np.abs(y))


def _power(x: Array, y: Array) -> Array:
    """NumPy's power; any NaN to the power of 0 is 1, and 1 to that of any NaN."""
    return np.where((x == 1) | (y == 0), 1.0, np.power(x, y))


def _distance(x: Any, y: Any) -> Any:
    """As C has it: infinite if one of both is, even beside NaN."""
    return np.where(np.isinf(x) | np.isinf(y), np.inf, np.hypot(x, y))


def _odd_erfinv(x: Any) -> Any:
    return np.copysign(special.erfinv(x), x)


def _tanh_share(x: Any) -> Any:
    return special.expit(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))


def _exact_tanh_share(x: Any) -> Any:
    return 1 / (1 + mp.exp(-mp.sqrt(8 / mp.pi) * (x + mp.mpf(0.044715) * x**3)))


def _inverse_root(x: Any) -> Any:
    return 1 / np.sqrt(x)


ORACLES: dict[str, Oracle] = {
    "exp": Oracle(np.exp, mp.exp, limit=2000),
    "exp2": Oracle(np.exp2, lambda x: mp.mpf(2) ** x, limit=2000),
    "expm1": Oracle(np.expm1, mp.expm1, limit=2000),
    "log": Oracle(np.log, mp.log),
    "log2": Oracle(np.log2, lambda x: mp.log(x, 2)),
    "log10": Oracle(np.log10, mp.log10),
    "log1p": Oracle(np.log1p, mp.log1p),
    "sin": Oracle(np.sin, mp.sin),
    "cos": Oracle(np.cos, mp.cos),
    "tan": Oracle(np.tan, mp.tan),
    "asin": Oracle(np.arcsin, mp.asin),
    "acos": Oracle(np.arccos, mp.acos),
    "atan": Oracle(np.arctan, mp.atan),
    "sinh": Oracle(np.sinh, mp.sinh, limit=2000),
    "cosh": Oracle(np.cosh, mp.cosh, limit=2000),
    "tanh": Oracle(np.tanh, mp.tanh, limit=2000),
    "asinh": Oracle(np.arcsinh, mp.asinh),
    "acosh": Oracle(np.arccosh, mp.acosh),
    "atanh": Oracle(np.arctanh, mp.atanh),
    "sigmoid": Oracle(special.expit, lambda x: 1 / (1 + mp.exp(-x)), limit=2000),
    "log_sigmoid": Oracle(special.log_expit, _exact_log_sigmoid),
    "sqrt": Oracle(np.sqrt, mp.sqrt),
    "rsqrt": Oracle(_inverse_root, lambda x: 1 / mp.sqrt(x)),
    "cbrt": Oracle(np.cbrt, lambda x: mp.sign(x) * mp.cbrt(abs(x))),
    "erf": Oracle(special.erf, mp.erf, limit=60),
    "erfc": Oracle(special.erfc, mp.erfc, limit=60),
    "ndtr": Oracle(special.ndtr, mp.ncdf, limit=60),
    "normal_share": Oracle(special.ndtr, mp.ncdf, floor=lambda x: 0.5, limit=60),
    "tanh_share": Oracle(_tanh_share, _exact_tanh_share, floor=lambda x: 0.5, limit=60),
    "erfinv": Oracle(_odd_erfinv, mp.erfinv),
    "lgamma": Oracle(
        special.gammaln, lambda x: mp.re(mp.loggamma(x)), floor=_reflected(special.gammaln)
    ),
    "digamma": Oracle(special.digamma, mp.digamma, floor=_reflected(special.digamma)),
    "pow": Oracle(_power, _exact_pow, 2),
    "atan2": Oracle(np.arctan2, mp.atan2, 2),
    "hypot": Oracle(_distance, mp.hypot, 2),
    "logaddexp": Oracle(np.logaddexp, _exact_log_sum(0), 2, _largest),
    "logaddexp2": Oracle(np.logaddexp2, _exact_log_sum(2), 2, _largest),
}
# Where formulas change, or results overflow, vanish or turn.
SEAMS = (
    0.25, 2**0.5 - 1, 0.5, 0.55, 0.5**0.5, 1, 1.25, 2**0.5, 1.5, 2, 2**0.5 + 1, 2.5, 3, 4, 5, 6, 8,
    8.5, 10.2, 17, 19, 27.3, 37, 88.72284, 89.41599, 103.97208, 104, 126, 127, 128, 149, 150, 4096,
    2**14, 2**16, 2**20, 2**28, 709.782712893384, 710.4758600739439, 745.1332191019412, 1022, 1024,
    1074, 1075, 1.4616321449683622, math.pi / 4, 2.0**64,
)  # fmt: skip
SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, math.inf, -math.inf, math.nan)


def tolerance(name: str, dtype: np.dtype[Any]) -> float:
    """The error that weft promises to stay within, in ULP."""
    if dtype.itemsize == 2:
        return 1.0
    return 2.0 if name in STRICT else 4.0


def every(dtype: np.dtype[Any]) -> Array:
    """Every number of a format of 16 bits."""
    return np.arange(1 << 16, dtype=np.uint16).view(dtype)


def samples(dtype: np.dtype[Any], count: int, rng: np.random.Generator) -> Array:
    """Numbers of all exponents, of the usual sizes, around seams, and the special ones."""
    seams = np.array([*SEAMS, *(-x for x in SEAMS)], dtype)
    integer = np.dtype(f"i{dtype.itemsize}")
    offsets = rng.integers(-40, 41, (len(seams), max(count // 500, 4)))
    around = (seams.view(integer)[:, None] + offsets.astype(integer)).ravel().view(dtype)
    end = 110.0 if dtype.itemsize == 4 else 750.0
    turns = rng.integers(-(2**20), 2**20, count // 4) * (math.pi / 2)
    whole = rng.integers(-200, 200, count // 16) + rng.normal(size=count // 16) * 1e-3
    info = np.finfo(dtype)
    tiny = [info.smallest_subnormal, info.smallest_normal, info.max]
    parts = [
        SPECIAL, tiny, np.negative(tiny), turns, whole,
        rng.uniform(-1, 1, count // 2), rng.uniform(-10, 10, count // 2),
        rng.uniform(-end, end, count // 2),
        1 + rng.normal(size=count // 4) * 2.0 ** rng.uniform(-info.nmant, 0, count // 4),
    ]  # fmt: skip
    bits = rng.integers(0, 1 << 8 * dtype.itemsize, count, np.uint64)
    spread = bits.astype(f"u{dtype.itemsize}").view(dtype)
    return np.concatenate([*(np.asarray(p).astype(dtype) for p in parts), around, spread])


def pairs(name: str, dtype: np.dtype[Any], count: int, rng: np.random.Generator) -> list[Array]:
    """Two operands: unrelated, of like sizes, and all pairs of special numbers."""
    grid = np.array(np.meshgrid(SPECIAL, SPECIAL), dtype).reshape(2, -1)
    x, y = samples(dtype, count, rng), rng.permutation(samples(dtype, count, rng))[::-1]
    y = np.resize(y, x.shape)
    near = (rng.uniform(0.1, 10, x.shape) * x).astype(dtype)
    if name == "pow":  # so that results neither overflow nor vanish
        end = 155.0 if dtype.itemsize < 8 else 1080.0
        near = (rng.uniform(-end, end, x.shape) / np.log2(np.abs(x).astype(float))).astype(dtype)
    return [np.concatenate([grid[0], x, x]), np.concatenate([grid[1], y, near])]


def _units(size: Array, dtype: np.dtype[Any]) -> tuple[Array, float]:
    """The unit in the last place of numbers of this size, and the end of the format."""
    info = ml_dtypes.finfo(dtype)
    exponents = np.frexp(np.maximum(size, float(info.smallest_normal)))[1]
    return np.ldexp(1.0, exponents - 1 - info.nmant), 2.0 ** int(info.maxexp)


def narrow_errors(
    name: str, dtype: np.dtype[Any], operands: list[Array], found: Array | None = None
) -> Array:
    """Errors against float64: of our own instructions on NumPy arrays, or of what was found."""
    oracle = ORACLES[name]
    wide = [x.astype(np.float64) for x in operands]
    found = np.asarray(NumpyScalars.call(name, *operands)) if found is None else found
    got = found.astype(np.float64)
    want = np.asarray(oracle.double(*wide))
    size = np.abs(want)
    if oracle.floor is not None:
        size = np.fmax(size, np.where(np.isfinite(size), oracle.floor(*wide), size))
    unit, end = _units(np.where(size < np.inf, np.minimum(size, 1e300), 1.0), dtype)
    unit = np.minimum(unit, end * 2.0 ** -ml_dtypes.finfo(dtype).nmant / 2)
    error = np.abs(np.clip(got, -end, end) - np.clip(want, -end, end)) / unit
    wrong_sign = (got == 0) & (want == 0) & (np.signbit(got) != np.signbit(want))
    error = np.where(np.isnan(got) | np.isnan(want) | wrong_sign, np.inf, error)
    return np.where(np.isnan(got) & np.isnan(want), 0.0, error)


def _exact_error(oracle: Oracle, got: float, operands: list[float]) -> float:
    """The error of one float64 result at ordinary operands."""
    limit = oracle.limit
    limited = [mp.mpf(min(max(x, -limit), limit)) for x in operands]
    try:
        want = oracle.exact(*limited)
    except ValueError:  # outside the domain
        want = mp.nan
    if not isinstance(want, mp.mpf) or mp.isnan(want):
        return 0.0 if math.isnan(got) else math.inf
    if math.isnan(got):
        return math.inf
    end = mp.mpf(2) ** 1024
    given = mp.mpf(got) if math.isfinite(got) else mp.sign(got) * end
    size = abs(want)
    if oracle.floor is not None:
        size = max(size, mp.mpf(float(oracle.floor(*map(np.float64, operands)))))
    exponent = int(mp.frexp(min(size, end * 0.75))[1]) if size else -1074
    unit = mp.ldexp(1, max(exponent - 53, -1074))
    return float(abs(given - max(min(want, end), -end)) / unit)


def wide_errors(name: str, operands: list[Array]) -> Array:
    """Errors of float64 against mpmath; at zeros, infinities and NaN, against NumPy or SciPy."""
    oracle = ORACLES[name]
    easy = np.any([~np.isfinite(x) | (x == 0) for x in operands], axis=0)
    if name in ("lgamma", "digamma"):  # poles
        easy |= (operands[0] < 0) & (operands[0] == np.round(operands[0]))
    got = np.asarray(NumpyScalars.call(name, *operands))
    want = np.asarray(oracle.double(*operands))
    same = (np.abs(got - want) <= 4e-16 * np.abs(want)) | (got == want)
    same &= np.signbit(got) == np.signbit(want)
    same |= np.isnan(got) & np.isnan(want)
    errors = np.where(same, 0.0, np.inf)
    with mp.workdps(50):
        for i in np.flatnonzero(~easy):
            row = [float(x[i]) for x in operands]
            errors[i] = _exact_error(oracle, float(got[i]), row)
    return errors


@np.errstate(all="ignore")
def errors(
    name: str, dtype: np.dtype[Any], count: int, rng: np.random.Generator
) -> tuple[Array, list[Array]]:
    """Errors in ULP and the operands they belong to."""
    if ORACLES[name].operands == 2:
        operands = pairs(name, np.dtype(np.float32) if dtype.itemsize == 2 else dtype, count, rng)
        operands = [x.astype(dtype) for x in operands]
    else:
        operands = [every(dtype) if dtype.itemsize == 2 else samples(dtype, count, rng)]
    if name == "lgamma":  # SciPy alone calls this one negative
        operands = [x[x != -np.inf] for x in operands]
    found = wide_errors(name, operands) if dtype == np.float64 else None
    return narrow_errors(name, dtype, operands) if found is None else found, operands


def row(name: str, count: int, wide_count: int) -> str:
    """One function's line of the table."""
    cells = []
    for dtype in DTYPES.values():
        rng = np.random.default_rng(20)
        found, operands = errors(name, dtype, wide_count if dtype.itemsize == 8 else count, rng)
        worst = int(np.argmax(found))
        place = ", ".join(f"{float(x[worst]):.9g}" for x in operands)
        cells.append(f"{found[worst]:.2f} at {place}" if found[worst] > 0 else "0")
    return f"| `{name}` | {' | '.join(cells)} |"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=400_000, help="draws of float32")
    parser.add_argument("--wide-count", type=int, default=2000, help="draws of float64")
    options = parser.parse_args()
    lines = [*HEAD.splitlines(), ""]
    lines.append(f"| function | {' | '.join(DTYPES)} |\n|---|---|---|---|---|")
    for name in ORACLES:
        lines.append(row(name, options.count, options.wide_count))
        print(lines[-1], flush=True)
    PAGE.write_text("\n".join(lines) + "\n")


HEAD = """# Accuracy of functions

weft's own functions, written once in scalar instructions, in the arithmetic of their dtype
(float16 and bfloat16 in float32, rounded once). The table gives the largest error found, in units
in the last place (ULP) of the true result, and the operands where it was found; a correctly rounded
result is at most 0.5 off. `python tools/accuracy.py` makes this page.

- float16 and bfloat16: every number (pairs are sampled); the promise is 1 ULP.
- float32 against float64, and float64 against 50 digits of mpmath: samples of all exponents, dense
  around overflow, underflow, multiples of π/2 and the places where formulas change. The promise is
  2 ULP for exp, exp2, expm1, log, log2, log1p, sin, cos, tan, tanh, sqrt and rsqrt, 4 ULP for the
  rest.
- `lgamma` and `digamma` of negative numbers, and `logaddexp`, are sums of terms that may cancel:
  near their zeros the error is counted in units of the largest term.
- `normal_share` and `tanh_share`, by which `gelu` multiplies, have the digits of 1: below ½ the
  error is counted in units of ½.
- Results that overflow become infinite, denormal results are kept, and special values follow
  IEEE 754 and C.
"""

if __name__ == "__main__":
    main()
