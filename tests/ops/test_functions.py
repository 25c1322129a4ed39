"""weft's own functions of floats: as accurate as promised, in the closed set of instructions."""

from __future__ import annotations

import inspect
import math
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import mpmath as mp
import numpy as np
import pytest

from tools import accuracy, fit_functions
from weft.errors import UnsupportedDTypeError, UnsupportedError
from weft.ops.elementwise.elementary import BinaryFloatFunction, FloatFunction
from weft.ops.elementwise.special_functions import KernelFunction
from weft.ops.functions import NumpyScalars, expand
from weft.ops.functions.coefficients import COEFFICIENTS
from weft.ops.functions.expand import BIT_FUNCTIONS, COMPLEX_FUNCTIONS, FUNCTIONS
from weft.ops.scalars import Scalars

NAMES = sorted(accuracy.ORACLES)
UNARY = [name for name in NAMES if accuracy.ORACLES[name].operands == 1]
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
NARROW = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
COUNTS = {4: 20_000, 8: 60}
ODD = "sin tan asin atan sinh tanh asinh atanh cbrt erf erfinv expm1"
RISING = "exp exp2 expm1 log log2 log10 log1p atan sinh tanh asinh sigmoid log_sigmoid cbrt erf"


def call(name: str, *args: Any) -> Any:
    return NumpyScalars.call(name, *args)


def check(name: str, dtype: np.dtype[Any], seed: int) -> None:
    count = COUNTS.get(dtype.itemsize, 2000)
    found, operands = accuracy.errors(name, dtype, count, np.random.default_rng(seed))
    worst = int(np.argmax(found))
    assert found[worst] <= accuracy.tolerance(name, dtype), (
        f"{name}{tuple(x[worst] for x in operands)} is {found[worst]} ULP off"
    )


def neighbours(x: float, dtype: np.dtype[Any], count: int = 200) -> Any:
    integer = np.dtype(f"i{dtype.itemsize}")
    return (np.array(x, dtype).view(integer) + np.arange(-count, count + 1, dtype=integer)).view(
        dtype
    )


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_errors_stay_within_the_promise(name, dtype):
    check(name, dtype, 5)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_errors_stay_within_the_promise_at_fresh_samples(name, dtype, fresh_seed):
    check(name, dtype, fresh_seed)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_narrow_floats_are_within_one_unit_everywhere(name, dtype):
    check(name, dtype, 5)


def below(base: type) -> set[Any]:
    """All classes that inherit from this one."""
    return {cls for child in base.__subclasses__() for cls in {child} | below(child)}


def test_every_name_that_ops_call_can_be_expanded():
    classes = [FloatFunction, BinaryFloatFunction, KernelFunction]
    wanted = {
        re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()
        for base in classes
        for cls in below(base)
        if cls not in classes and cls.body is base.body and not cls.__name__.startswith("_")
    }
    for path in (Path(__file__).parents[2] / "weft" / "ops").rglob("*.py"):
        wanted |= set(re.findall(r's\.call\(\s*"(\w+)"', path.read_text()))
    assert len(wanted) > 25
    assert wanted <= FUNCTIONS.keys() | BIT_FUNCTIONS.keys() | COMPLEX_FUNCTIONS.keys()


class Recorder(NumpyScalars):
    """Notes the instructions used and the dtypes they gave."""

    def __init__(self) -> None:
        self.used: set[str] = set()
        self.dtypes: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if name in ("used", "dtypes") or name.startswith("__") or not callable(found):
            return found

        def instruction(*args: Any) -> Any:
            self.used.add(name)
            value = found(*args)
            self.dtypes.add(str(value.dtype))
            return value

        return instruction


@pytest.mark.parametrize("name", NAMES)
def test_float32_uses_the_closed_set_of_instructions_and_no_wide_value(name):
    s = Recorder()
    x = np.linspace(-3, 3, 7, dtype=np.float32)
    with np.errstate(all="ignore"):
        found = expand(s, name, *[x] * accuracy.ORACLES[name].operands)
    instructions = {n for n, _ in inspect.getmembers(Scalars, inspect.isfunction)}
    assert s.used and s.used <= instructions - {"call", "reduce", "complex", "real", "imag"}
    assert s.dtypes <= {"float32", "int32", "uint32", "bool"}
    assert found.dtype == np.float32


@pytest.mark.parametrize("name", ODD.split())
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_odd_functions_are_odd_bit_by_bit(name, dtype):
    x = np.abs(accuracy.samples(dtype, 2000, np.random.default_rng(6)))
    if name == "expm1":
        x = x[x < 1e-30]
    left, right = call(name, -x), -call(name, x)
    same = (left.view(np.uint8) == right.view(np.uint8)).reshape(-1, dtype.itemsize).all(1)
    assert np.all(same | np.isnan(right))


@pytest.mark.parametrize("name", RISING.split())
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_rising_functions_rise(name, dtype):
    x = np.sort(accuracy.samples(dtype, 20_000, np.random.default_rng(7)))
    y = call(name, x)
    y = y[np.abs(y) < 1e38]
    assert len(y) > 1000
    assert np.all(np.diff(y) >= -2 * np.spacing(np.abs(y[:-1])))


@pytest.mark.parametrize("name", ["exp", "exp2", "expm1", "sinh", "cosh"])
def test_float32_overflows_exactly_where_it_must(name):
    end = {"exp2": 128.0, "sinh": 89.41599, "cosh": 89.41599}.get(name, 88.72284)
    x = neighbours(end, FLOAT32)
    with np.errstate(over="ignore"):
        want = getattr(np, name)(x.astype(float)).astype(np.float32)
    assert 0 < np.isinf(want).sum() < len(x)
    assert np.array_equal(np.isinf(call(name, x)), np.isinf(want))


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("exp", 709.782712893384),
        ("expm1", 709.782712893384),
        ("exp2", np.nextafter(1024.0, 0)),
        ("sinh", 710.4758600739439),
        ("cosh", 710.4758600739439),
    ],
)
def test_float64_overflows_exactly_where_it_must(name, last):
    assert np.isfinite(call(name, np.float64(last)))
    assert call(name, np.nextafter(last, np.inf)) == np.inf


@pytest.mark.parametrize(("name", "end"), [("exp", -103.97208), ("exp2", -150.0)])
def test_float32_keeps_denormal_results_to_the_last(name, end):
    x = neighbours(end, FLOAT32)
    want = getattr(np, name)(x.astype(float)).astype(np.float32)
    assert 0 < (want == 0).sum() < len(x)
    assert np.array_equal(call(name, x) == 0, want == 0)


@pytest.mark.parametrize(("dtype", "end"), [(FLOAT32, -150.5), (FLOAT64, -1075.5)], ids=str)
@pytest.mark.parametrize("name", ["exp", "exp2"])
def test_powers_below_the_smallest_number_are_zero_however_far_below(name, dtype, end):
    end = end * math.log(2) if name == "exp" else end
    far = [*(k * end for k in (1, 1.01, 1.3, 1.69, 1.7, 2, 10)), -1e9, -3e38, -np.inf]
    found = call(name, np.array(far, dtype))
    assert not found.any()
    assert not np.signbit(found).any()


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_next_to_a_multiple_of_a_right_angle_keep_their_digits(name):
    hard = np.ldexp(6381956970095103.0, 797)  # closer to one than any other float64
    turns = np.random.default_rng(8).integers(1, 2**40, 300) * (math.pi / 2)
    x = np.concatenate([[hard], turns, np.ldexp(np.pi, np.arange(1, 1000, 7))])
    got = call(name, x)
    with mp.workdps(60):
        exact = [getattr(mp, name)(mp.mpf(v)) for v in x.tolist()]
        worst = max(abs((mp.mpf(g) - w) / w) for g, w in zip(got.tolist(), exact, strict=True))
    assert worst < 2.0**-52


def test_a_builder_may_skip_the_reduction_of_large_angles():
    class Skipping(NumpyScalars):
        skipped = 0

        def rarely(self, condition: Any, slow: Any, fast: Any) -> Any:
            if not np.any(condition):
                Skipping.skipped += 1
                return fast
            return tuple(np.where(condition, a, b) for a, b in zip(slow(), fast, strict=True))

    for scale in (1.0, 1e6):
        x = np.linspace(-scale, scale, 99, dtype=np.float32)
        assert np.array_equal(expand(Skipping(), "sin", x), call("sin", x))
    assert Skipping.skipped == 1


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, *NARROW], ids=str)
def test_functions_of_bits_are_exact(dtype):
    rng = np.random.default_rng(9)
    x, y = (rng.normal(size=500) * 2.0 ** rng.uniform(-30, 30, 500) for _ in range(2))
    with np.errstate(over="ignore"):
        x, y = (np.append(v, [0, -0.0, 1, np.inf, -np.inf, 0]).astype(dtype) for v in (x, y))
    integer = np.dtype(f"u{dtype.itemsize}")
    y[-2] = 1
    for name in ("copysign", "nextafter"):
        # Where they are equal the second is next, as in C; NumPy's float16 gives the first.
        want = np.where((name == "nextafter") & (x == y), y, getattr(np, name)(x, y))
        got = call(name, x, y)
        assert np.array_equal(got.view(integer), want.view(integer))
    assert np.isnan(call("nextafter", x[:1] * dtype.type(np.nan), y[:1]).astype(float))


@pytest.mark.parametrize("integer", [np.int8, np.int32, np.int64])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_ldexp_rounds_once(dtype, integer):
    rng = np.random.default_rng(10)
    x = accuracy.samples(dtype, 5000, rng)
    width = min(int(np.iinfo(integer).max), 5000)
    n = rng.integers(-width, width + 1, x.shape).astype(integer)
    with np.errstate(all="ignore"):
        want = np.ldexp(x, n.astype(np.int32))
    assert np.array_equal(call("ldexp", x, n), want, equal_nan=True)


def test_the_table_of_coefficients_is_what_the_fit_gives():
    (fit,) = [f for f in fit_functions.elementary(32) if f.name == "SIN"]
    fitted = [np.float32(fit_functions.rounded(c, 32)) for c in fit_functions.best(fit)]
    assert np.allclose(fitted, COEFFICIENTS["SIN", 32], rtol=1e-6)


def test_short_powers_of_two_have_the_digits_of_narrow_floats():
    x = np.linspace(-125, 127.5, 200_001).astype(np.float32)
    found = call("short_exp2", x)
    assert np.max(np.abs(found / np.exp2(x.astype(np.float64)) - 1)) < 2.0**-17
    whole = np.arange(-120, 120).astype(np.float32)
    np.testing.assert_array_equal(call("short_exp2", whole), np.exp2(whole))
    ends = np.array([0, -np.inf, -126, -1e30, np.inf, 129, np.nan], np.float32)
    expected = np.array([1, 0, 0, 0, np.inf, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(call("short_exp2", ends), expected)
    wide = np.linspace(-1000, 1000, 1001)
    np.testing.assert_array_equal(call("short_exp2", wide), call("exp2", wide))


def test_an_unknown_function_is_named_in_the_error():
    with pytest.raises(UnsupportedError, match="zeta: no kernel"):
        call("zeta", np.float32(1))


def test_complex_operands_are_refused_where_a_function_has_no_meaning_for_them():
    with pytest.raises(UnsupportedDTypeError, match="sin: operand 0: expected a real float"):
        call("sin", np.complex64(1))
