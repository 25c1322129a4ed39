"""Every special case the standard lists: elementwise functions, real and complex; reductions."""

import cmath
import math

import numpy as np
import pytest

import weft as wf
from tests.array_api.special_values import (
    BINARY,
    COMPARISONS,
    COMPLEX,
    PREDICATES,
    UNARY,
    lines,
    matches,
    samples,
    value_of,
)

REAL = (wf.float32, wf.float64)
SYMBOLS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/",
           "floor_divide": "//", "remainder": "%", "pow": "**"}  # fmt: skip
BOTH = pytest.mark.parametrize("dtype", REAL, ids=str)
BOTH_COMPLEX = pytest.mark.parametrize("dtype", (wf.complex64, wf.complex128), ids=str)


def named_values(result: str, operands: tuple[float, ...]) -> list[float]:
    """The values a result allows, given the operands."""
    first = operands[0]
    match result:
        case "x1":
            return [first]
        case "x2":
            return [operands[1]]
        case "|x1|":
            return [abs(first)]
        case "|x2|":
            return [abs(operands[1])]
        case "-|x1|":
            return [-abs(first)]
        case "product":
            return [first * operands[1]]
        case "even":
            return [math.copysign(float(round(first)), first)]
    return [value_of(text.lstrip("?")) for text in result.split("|")]


def check(name: str, dtype: np.dtype, operands: list[tuple[float, ...]], result: str) -> None:
    columns = [wf.asarray(list(column), dtype=dtype) for column in zip(*operands, strict=True)]
    out = getattr(wf, name)(*columns)
    assert out.dtype == dtype
    exact = [column.tolist() for column in columns]  # float32 rounds the samples
    for given, found in zip(zip(*exact, strict=True), out.tolist(), strict=True):
        if result == "step":
            expected = [float(np.nextafter(*np.asarray(given, dtype)))]
        else:
            expected = named_values(result, given)
        sign = not result.startswith("?")
        assert any(matches(found, e, sign=sign) for e in expected), f"{name}{given} = {found}"


@BOTH
@pytest.mark.parametrize("name", UNARY)
def test_a_real_function_of_one_operand_keeps_its_special_cases(name, dtype):
    for condition, result in lines(UNARY[name]):
        check(name, dtype, list(samples(condition)), result)


@BOTH
@pytest.mark.parametrize("name", BINARY)
def test_a_real_function_of_two_operands_keeps_its_special_cases(name, dtype):
    for condition, result in lines(BINARY[name]):
        check(name, dtype, list(samples(condition)), result)


@BOTH
@pytest.mark.parametrize("name", SYMBOLS)
def test_operators_keep_the_special_cases_of_their_functions(name, dtype):
    for condition, _ in lines(BINARY[name]):
        pairs = list(samples(condition))
        left, right = (wf.asarray(list(c), dtype=dtype) for c in zip(*pairs, strict=True))
        expected = getattr(wf, name)(left, right).numpy()
        updated = wf.asarray(left, copy=True)
        scope = {"x": updated, "y": right}
        exec(f"x {SYMBOLS[name]}= y", scope)
        found = eval(f"a {SYMBOLS[name]} b", {"a": left, "b": right})
        for out in (found, scope["x"]):
            np.testing.assert_array_equal(out.numpy(), expected)
            np.testing.assert_array_equal(np.signbit(out.numpy()), np.signbit(expected))


@BOTH
@pytest.mark.parametrize("name", PREDICATES)
def test_a_predicate_answers_special_values(name, dtype):
    for condition, expected in PREDICATES[name].items():
        values = [first for (first,) in samples([condition])]
        out = getattr(wf, name)(wf.asarray(values, dtype=dtype))
        assert out.dtype == wf.bool
        assert out.tolist() == [expected] * len(values), (condition, values)


@BOTH
def test_signbit_and_copysign_see_the_sign_of_nan(dtype):
    nans = wf.asarray(np.copysign(np.asarray([np.nan, np.nan], dtype), [1, -1]).astype(dtype))
    assert wf.signbit(nans).tolist() == [False, True]
    ones = wf.ones(2, dtype=dtype)
    assert wf.copysign(ones, nans).tolist() == [1.0, -1.0]
    assert wf.signbit(wf.copysign(nans, -ones)).tolist() == [True, True]
    assert wf.signbit(wf.copysign(nans, ones)).tolist() == [False, False]


@BOTH
@pytest.mark.parametrize("name", COMPARISONS)
def test_a_comparison_answers_special_values(name, dtype):
    for condition, expected in COMPARISONS[name].items():
        pairs = list(samples(condition.split()))
        left, right = (wf.asarray(list(c), dtype=dtype) for c in zip(*pairs, strict=True))
        assert getattr(wf, name)(left, right).tolist() == [expected] * len(pairs), condition


@BOTH
def test_clip_propagates_nan_from_every_operand(dtype):
    x = wf.asarray([wf.nan, 1.0, 1.0], dtype=dtype)
    low = wf.asarray([0.0, wf.nan, 0.0], dtype=dtype)
    high = wf.asarray([2.0, 2.0, wf.nan], dtype=dtype)
    assert wf.all(wf.isnan(wf.clip(x, low, high)))


def complex_expectation(result: str, b: float) -> tuple[tuple[float, bool], tuple[float, bool]]:
    """(value, whether its sign is fixed) of the real and the imaginary part."""
    if result.endswith("*cis"):
        size = value_of(result[:-4])
        turn = cmath.rect(1.0, b)
        # inf * 0 would be NaN: the sine of a nonzero number is never zero here.
        real = size * turn.real
        imag = size * turn.imag if turn.imag else turn.imag
        return (real, True), (imag, True)
    real, imag = ((value_of(text.lstrip("?")), not text.startswith("?")) for text in result.split())
    return real, imag


def check_complex(name: str, dtype: np.dtype, a: float, b: float, expected: object) -> None:
    z = np.zeros((), dtype)
    z.real, z.imag = a, b
    out = getattr(wf, name)(wf.asarray(z))
    assert out.dtype == dtype
    found = out.item()
    (real, real_sign), (imag, imag_sign) = expected
    fits = matches(found.real, real, sign=real_sign) and matches(found.imag, imag, sign=imag_sign)
    assert fits, f"{name}({a} + {b}j) = {found}, not {real} + {imag}j"


@BOTH_COMPLEX
@pytest.mark.parametrize("name", COMPLEX)
def test_a_complex_function_keeps_its_special_cases_in_both_half_planes(name, dtype):
    for condition, result in lines(COMPLEX[name]):
        for a, b in samples(condition):
            real, (imag, sign) = expected = complex_expectation(result, b)
            check_complex(name, dtype, a, b, expected)
            check_complex(name, dtype, a, -b, (real, (-imag, sign)))


@BOTH_COMPLEX
@pytest.mark.parametrize(
    ("name", "turned"),
    [("asin", "asinh"), ("atan", "atanh"), ("sin", "sinh"), ("tan", "tanh"), ("cos", "cosh")],
)
def test_a_circular_function_is_its_hyperbolic_one_turned(name, turned, dtype):
    for condition, result in lines(COMPLEX[turned]):
        for a, b in samples(condition):
            real, imag = complex_expectation(result, b)
            if name != "cos":
                real, imag = imag, (-real[0], real[1])
            check_complex(name, dtype, b, -a, (real, imag))


@BOTH_COMPLEX
@pytest.mark.parametrize(("name", "base"), [("log2", 2), ("log10", 10)])
def test_a_complex_logarithm_of_another_base_is_log_over_a_number(name, base, dtype):
    for condition, result in lines(COMPLEX["log"]):
        for a, b in samples(condition):
            (real, _), (imag, _) = complex_expectation(result, b)
            scale = math.log(base)
            check_complex(name, dtype, a, b, ((real / scale, True), (imag / scale, True)))


@BOTH_COMPLEX
def test_complex_abs_and_predicates_follow_their_parts(dtype):
    parts = [v for (v,) in samples(["any"])]
    grid = [(a, b) for a in parts for b in parts]
    z = np.zeros(len(grid), dtype)
    z.real, z.imag = zip(*grid, strict=True)
    tensor = wf.asarray(z)
    for (a, b), size, nan, inf, finite in zip(
        grid,
        wf.abs(tensor).tolist(),
        wf.isnan(tensor).tolist(),
        wf.isinf(tensor).tolist(),
        wf.isfinite(tensor).tolist(),
        strict=True,
    ):
        assert matches(size, math.hypot(a, b)), (a, b)
        assert nan == (math.isnan(a) or math.isnan(b))
        assert inf == (math.isinf(a) or math.isinf(b))
        assert finite == (math.isfinite(a) and math.isfinite(b))
    equal = wf.equal(tensor, tensor).tolist()
    assert equal == [not (math.isnan(a) or math.isnan(b)) for a, b in grid]


@BOTH_COMPLEX
def test_complex_addition_works_part_by_part(dtype):
    first, second = complex(-0.0, 0.0), complex(-0.0, -0.0)
    out = wf.add(wf.asarray(first, dtype=dtype), wf.asarray(second, dtype=dtype)).item()
    assert matches(out.real, -0.0)
    assert matches(out.imag, 0.0)


@BOTH_COMPLEX
def test_complex_rounding_works_part_by_part(dtype):
    z = wf.asarray([complex(0.5, wf.nan), complex(-wf.inf, 2.5)], dtype=dtype)
    first, second = wf.round(z).tolist()
    assert matches(first.real, 0.0)
    assert math.isnan(first.imag)
    assert matches(second.real, -wf.inf)
    assert second.imag == 2.0


@pytest.mark.parametrize("dtype", (*REAL, wf.complex64, wf.complex128), ids=str)
def test_reductions_of_nothing_give_their_neutral_element_or_nan(dtype):
    nothing = wf.zeros((2, 0), dtype=dtype)
    assert wf.sum(nothing, axis=1).tolist() == [0, 0]
    assert wf.prod(nothing, axis=1).tolist() == [1, 1]
    assert wf.all(wf.isnan(wf.mean(nothing, axis=1)))
    assert wf.linalg.trace(wf.zeros((0, 3), dtype=dtype)).item() == 0
    assert wf.all(nothing, axis=1).tolist() == [True, True]
    assert wf.any(nothing, axis=1).tolist() == [False, False]


@BOTH
def test_variance_with_too_few_elements_is_nan(dtype):
    x = wf.asarray([1.0, 2.0], dtype=dtype)
    for function in (wf.var, wf.std):
        assert wf.isnan(function(x, correction=2))
        assert wf.isnan(function(x, correction=3.5))
        assert wf.isnan(function(x[:0]))


@BOTH
@pytest.mark.parametrize("name", ["max", "min", "mean", "sum", "prod", "std", "var"])
def test_reductions_propagate_nan(name, dtype):
    x = wf.asarray([1.0, wf.nan, 3.0], dtype=dtype)
    assert wf.isnan(getattr(wf, name)(x))


@BOTH
def test_running_sums_and_products_meet_infinity_and_nan_in_order(dtype):
    x = wf.asarray([1.0, wf.inf, -wf.inf, 1.0], dtype=dtype)
    sums = wf.cumulative_sum(x).tolist()
    assert sums[:2] == [1.0, wf.inf]
    assert all(map(math.isnan, sums[2:]))
    assert wf.cumulative_prod(x).tolist() == [1.0, wf.inf, -wf.inf, -wf.inf]


@pytest.mark.parametrize("dtype", (wf.float64, wf.complex128), ids=str)
def test_slogdet_of_a_singular_matrix_is_zero_and_minus_infinity(dtype):
    sign, logabsdet = wf.linalg.slogdet(wf.zeros((2, 2), dtype=dtype))
    assert sign.item() == 0
    assert logabsdet.item() == -wf.inf


@pytest.mark.parametrize("value", [wf.nan, wf.inf, -wf.inf, 0.0, -0.0])
def test_the_truth_of_a_special_value_is_that_it_is_not_zero(value):
    assert bool(wf.asarray(value)) is (value != 0)
    assert bool(wf.asarray(complex(0.0, value))) is (value != 0)
