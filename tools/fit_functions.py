"""Fit the polynomials of `weft.ops.functions` and print the module that holds them.

    python tools/fit_functions.py > weft/ops/functions/coefficients.py

Each polynomial is the best one in the sense of Chebyshev: Remez' exchange algorithm in 40 digits,
on a fine grid of points that crowd toward the ends of the interval. The degree is the lowest whose
weighted error is below the target of its format.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import mpmath as mp
import numpy as np

mp.mp.dps = 40

Function = Callable[[mp.mpf], mp.mpf]
DENSITY = 24  # grid points per unknown
ROUNDS = 40


@dataclass(frozen=True)
class Fit:
    """One polynomial: what it stands for, where, and how well."""

    name: str
    meaning: str
    function: Function
    low: float
    high: float
    weight: Function
    bits: int  # the weighted error stays below 2**-bits


def grid(fit: Fit, count: int) -> list[mp.mpf]:
    """Points of the interval, dense near its ends, none where a formula divides by zero."""
    middle, half = (mp.mpf(fit.low) + fit.high) / 2, (mp.mpf(fit.high) - fit.low) / 2
    points = [middle - half * mp.cos(mp.pi * (i + mp.mpf(1) / 2) / count) for i in range(count)]
    return [x for x in points if abs(x) > mp.mpf(10) ** -9]


def polynomial(coefficients: list[mp.mpf], x: mp.mpf) -> mp.mpf:
    """The value at x; the constant comes first."""
    value = mp.mpf(0)
    for c in reversed(coefficients):
        value = value * x + c
    return value


def solve(
    points: list[mp.mpf], values: list[mp.mpf], weights: list[mp.mpf]
) -> tuple[list[mp.mpf], mp.mpf]:
    """The polynomial whose weighted error alternates between ±error on the points."""
    count = len(points)
    rows = [
        [*(x**j for j in range(count - 1)), (-1) ** i / w]
        for i, (x, w) in enumerate(zip(points, weights, strict=True))
    ]
    found = list(mp.lu_solve(mp.matrix(rows), mp.matrix(values)))
    return found[:-1], abs(found[-1])


def extrema(errors: list[mp.mpf], wanted: int) -> list[int]:
    """Positions of the largest errors of alternating sign."""
    peaks: list[int] = []
    for i, error in enumerate(errors):
        if peaks and (error > 0) == (errors[peaks[-1]] > 0):
            if abs(error) > abs(errors[peaks[-1]]):
                peaks[-1] = i
        else:
            peaks.append(i)
    while len(peaks) > wanted:
        drop_first = abs(errors[peaks[0]]) < abs(errors[peaks[-1]])
        peaks = peaks[1:] if drop_first else peaks[:-1]
    return peaks


def remez(fit: Fit, degree: int) -> tuple[list[mp.mpf], mp.mpf]:
    """The best polynomial of this degree on the grid, and its weighted error."""
    unknowns = degree + 2
    xs = grid(fit, DENSITY * unknowns)
    values, weights = [fit.function(x) for x in xs], [fit.weight(x) for x in xs]
    chosen = [int((i + 0.5) * len(xs) / unknowns) for i in range(unknowns)]
    for _ in range(ROUNDS):
        coefficients, level = solve(
            [xs[i] for i in chosen], [values[i] for i in chosen], [weights[i] for i in chosen]
        )
        errors = [
            (polynomial(coefficients, x) - v) * w
            for x, v, w in zip(xs, values, weights, strict=True)
        ]
        largest = max(map(abs, errors))
        peaks = extrema(errors, unknowns)
        if largest <= level * mp.mpf("1.01") or len(peaks) < unknowns:
            break
        chosen = peaks
    return coefficients, largest


def best(fit: Fit) -> list[mp.mpf]:
    """The polynomial of the lowest degree that reaches the target."""
    degree = 1
    coefficients, error = remez(fit, degree)
    while error > mp.mpf(2) ** -fit.bits:
        degree += 1
        coefficients, error = remez(fit, degree)
    bits = -mp.log(error, 2)
    print(f"{fit.name}: degree {degree}, 2**-{mp.nstr(bits, 4)}", file=sys.stderr)
    return coefficients


def one(x: mp.mpf) -> mp.mpf:
    """No weight."""
    return mp.mpf(1)


def erfinv_ratio(w: mp.mpf) -> mp.mpf:
    """erfinv(x) / x where w = -log(1 - x²)."""
    x = mp.sqrt(-mp.expm1(-w))
    return mp.erfinv(x) / x


def scaled_erfc(center: float) -> Function:
    """exp(x²) erfc(x) (1 + 2x) as a function of (x - center) / (x + center)."""

    def function(t: mp.mpf) -> mp.mpf:
        x = center * (1 + t) / (1 - t)
        return mp.exp(x * x) * mp.erfc(x) * (1 + 2 * x)

    return function


def share(name: str, meaning: str, function: Function, end: float, digits: float) -> Fit:
    """The fourth root r of a function that falls from 1 to 0, half of which is a share of 1.

    Errors of the share are weighed by the function to the power -`digits`.
    """
    return Fit(
        name, f"({meaning}^¼ - 1) / x", lambda x: (mp.root(function(x), 4) - 1) / x,
        0, end, lambda x: 2 * x * mp.root(function(x), 4) ** 3 / function(x) ** digits, 24,
    )  # fmt: skip


def tanh_rest(x: mp.mpf) -> mp.mpf:
    """1 - tanh(√(2/π) (x + 0.044715 x³))."""
    return 2 / (1 + mp.exp(mp.sqrt(8 / mp.pi) * (x + mp.mpf("0.044715") * x**3)))


def in_square(function: Function) -> Function:
    """A function of x as a function of z = x²."""
    return lambda z: function(mp.sqrt(z))


def elementary(width: int) -> Iterator[Fit]:
    """Exponentials, logarithms, circular and hyperbolic functions."""
    bits = 28 if width == 32 else 58
    half_log2 = 0.34658
    square = abs
    yield Fit(
        "EXP", "(exp(x) - 1 - x) / x²", lambda x: (mp.expm1(x) - x) / x**2,
        -half_log2, half_log2, abs, 26 if width == 32 else 55,
    )  # fmt: skip
    yield Fit("EXP2", "(2**x - 1) / x", lambda x: mp.expm1(x * mp.log(2)) / x, -0.5, 0.5, abs, bits)
    if width == 32:
        yield Fit(
            "SHORT_EXP2", "(2**x - 1) / x", lambda x: mp.expm1(x * mp.log(2)) / x,
            -0.5, 0.5, abs, 17,
        )  # fmt: skip
        yield Fit(
            "LOG", "(x - log(1 + x)) / x²", lambda x: (x - mp.log1p(x)) / x**2,
            -0.29291, 0.41423, abs, 27,
        )  # fmt: skip
    else:
        atanh = in_square(lambda s: (2 * mp.atanh(s) - 2 * s) / s**3)
        yield Fit("LOG", "(2 atanh(s) - 2s) / s³ of s²", atanh, 0, 0.02945, square, bits)
    yield Fit(
        "LOG_TAIL", "(2 atanh(s) / s - 2 - 2s²/3) / s⁴ of s²",
        in_square(lambda s: (2 * mp.atanh(s) - 2 * s - 2 * s**3 / 3) / s**5),
        0, 0.02945, lambda z: z**2, 40 if width == 32 else 72,
    )  # fmt: skip
    quarter = 0.617  # (π/4)², and a little more
    yield Fit(
        "SIN", "(sin(x) - x) / x³ of x²", in_square(lambda x: (mp.sin(x) - x) / x**3),
        0, quarter, square, bits,
    )  # fmt: skip
    yield Fit(
        "COS", "(cos(x) - 1 + x²/2) / x⁴ of x²",
        in_square(lambda x: (mp.cos(x) - 1 + x**2 / 2) / x**4),
        0, quarter, lambda z: z**2, bits,
    )  # fmt: skip
    yield Fit(
        "ASIN", "(asin(x) - x) / x³ of x²", in_square(lambda x: (mp.asin(x) - x) / x**3),
        0, 0.25, square, bits,
    )  # fmt: skip
    yield Fit(
        "ATAN", "(atan(x) - x) / x³ of x²", in_square(lambda x: (mp.atan(x) - x) / x**3),
        0, 0.1716, square, bits,
    )  # fmt: skip
    yield Fit("CBRT", "cbrt(x)", mp.cbrt, 0.7, 5.67, lambda x: 1 / mp.cbrt(x), 6)


def special(width: int) -> Iterator[Fit]:
    """Error functions, gamma functions."""
    narrow = width == 32
    bits = 27 if narrow else 57
    yield Fit(
        "ERF", "erf(x) / x - 1 of x²", in_square(lambda x: mp.erf(x) / x - 1),
        0, 1, one, bits,
    )  # fmt: skip
    if narrow:
        yield Fit(
            "ERF_ROOT", "(2 - 2 erfc(x)^½) / x - 1",
            lambda x: (2 - 2 * mp.sqrt(mp.erfc(x))) / x - 1,
            0, 4.02, lambda x: mp.sqrt(mp.erfc(x)) * x / mp.erf(x), 24,
        )  # fmt: skip
        yield share("NORMAL_SHARE", "erfc(x/√2)", lambda x: mp.erfc(x / mp.sqrt(2)), 5.42, 0)
        yield share("TANH_SHARE", "(1 - tanh(√(2/π) (x + 0.044715 x³)))", tanh_rest, 5.5, 0.3)
    else:
        yield Fit(
            "LOG_ERFC", "log(erfc(1 + x))", lambda x: mp.log(mp.erfc(1 + x)),
            0, 5, lambda x: mp.erfc(1 + x), bits,
        )  # fmt: skip
    end = 10.2 if narrow else 27.3
    yield Fit(
        "ERFC", "exp(x²) erfc(x) (1 + 2x) of (x - 4) / (x + 4)", scaled_erfc(4),
        -3.5 / 4.5, (end - 4) / (end + 4), one, bits,
    )  # fmt: skip
    ends = (5.0, 16.2) if narrow else (6.25, 16.0, 36.2)
    yield Fit(
        "ERFINV_CENTER", "erfinv(x) / x of -log(1 - x²) - 2.5", lambda v: erfinv_ratio(v + 2.5),
        -2.5, ends[0] - 2.5, one, bits,
    )  # fmt: skip
    centers = {"MIDDLE": 3, "TAIL": 5}
    for (part, center), (low, high) in zip(centers.items(), pairwise(ends), strict=False):
        yield Fit(
            f"ERFINV_{part}", f"erfinv(x) / x of sqrt(-log(1 - x²)) - {center}",
            lambda v, center=center: erfinv_ratio((v + center) ** 2),
            float(mp.sqrt(low)) - center, float(mp.sqrt(high)) - center, one, bits,
        )  # fmt: skip
    yield Fit("LGAMMA", "lgamma(2 + x) / x", lambda x: mp.loggamma(2 + x) / x, -0.5, 0.5, one, bits)
    yield Fit(
        "STIRLING", "(lgamma(x) - (x - ½) log(x) + x - ½ log(2π)) x of 1 / x²",
        in_square(
            lambda r: (mp.loggamma(1 / r) - (1 / r - 0.5) * mp.log(1 / r) + 1 / r
                       - mp.log(2 * mp.pi) / 2) / r
        ), 0, 1 / 72.0, one, bits - 3,
    )  # fmt: skip
    zero = mp.findroot(mp.digamma, 1.46)
    least = mp.loggamma(zero)
    yield Fit(
        "LGAMMA_VALLEY", "(lgamma(zero + x) - lgamma(zero)) / x², zero that of digamma",
        lambda x: (mp.loggamma(zero + x) - least) / x**2, -0.27, 0.25, lambda x: x**2, bits + 3,
    )  # fmt: skip
    yield Fit(
        "DIGAMMA", "digamma(x) / (x - zero) of x - 1.5",
        lambda v: mp.digamma(v + 1.5) / (v + 1.5 - zero), -0.5, 0.5, one, bits,
    )  # fmt: skip
    yield Fit(
        "DIGAMMA_SERIES", "(log(x) - 1 / (2x) - digamma(x)) x² of 1 / x²",
        in_square(lambda r: (mp.log(1 / r) - r / 2 - mp.digamma(1 / r)) / r**2),
        0, 1 / 25.0, lambda z: z, bits,
    )  # fmt: skip


def constants() -> dict[str, mp.mpf]:
    """Constants that the functions split into floats."""
    return {
        "LN2": mp.log(2),
        "TWO_THIRDS": mp.mpf(2) / 3,
        "LOG2_E": 1 / mp.log(2),
        "LOG10_E": 1 / mp.log(10),
        "LOG10_2": mp.log10(2),
        "PI": +mp.pi,
        "HALF_PI": mp.pi / 2,
        "LGAMMA_LEAST": mp.loggamma(mp.findroot(mp.digamma, 1.46)),
        "DIGAMMA_ZERO": mp.findroot(mp.digamma, 1.46),
    }


def rounded(value: mp.mpf, width: int) -> str:
    """The nearest number of the format, in the fewest digits that bring it back."""
    return str(np.float32(mp.nstr(value, 30))) if width == 32 else repr(float(value))


def lines(numbers: list[str]) -> Iterator[str]:
    """Numbers packed into lines of at most 100 columns."""
    line = "       "
    for number in numbers:
        if len(line) + len(number) + 2 > 100:
            yield line
            line = "       "
        line += f" {number},"
    yield line


def main() -> None:
    """Print the module of coefficients."""
    print('"""Coefficients of the polynomials, constant first, by name and width of the format.')
    print("\nMade by `tools/fit_functions.py`, which says how; not edited by hand.")
    print('"""\n\n# fmt: off')
    print("COEFFICIENTS: dict[tuple[str, int], tuple[float, ...]] = {")
    for width in (32, 64):
        for fit in (*elementary(width), *special(width)):
            print(f'    # {fit.meaning}\n    ("{fit.name}", {width}): (')
            print("\n".join(lines([rounded(c, width) for c in best(fit)])))
            print("    ),")
    print("}\n")
    print("# Constants to more digits than any format has.\nCONSTANTS = {")
    mp.mp.dps = 60
    for name, value in constants().items():
        print(f'    "{name}": "{mp.nstr(value, 55)}",')
    print("}\n")
    bits = 1280
    mp.mp.prec = bits + 64
    digits = f"{int(mp.floor(2 / mp.pi * mp.mpf(2) ** bits)):0{bits // 4}x}"
    print(f"# The first {bits} binary digits of 2/π after the point.\nTWO_OVER_PI = int(")
    for i in range(0, len(digits), 80):
        print(f'    "{digits[i : i + 80]}"')
    print("    , 16,\n)\n# fmt: on")


if __name__ == "__main__":
    main()
