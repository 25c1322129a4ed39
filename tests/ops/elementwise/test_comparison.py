"""Comparisons, extrema and closeness: parity with NumPy, NaN, ties."""

import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf
from tests.elementwise_oracle import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    agrees_with_jax,
    agrees_with_numpy,
    same,
    values,
)

ORDER = ("less", "less_equal", "greater", "greater_equal")
EXTREMA = ("maximum", "minimum", "fmax", "fmin")


@pytest.mark.parametrize("dtype", ("bool", *INTEGERS, *FLOATS, *COMPLEX))
@pytest.mark.parametrize("name", ("equal", "not_equal", *ORDER))
def test_comparisons_agree_with_numpy(name, dtype):
    left, right = values(dtype, 1), values(dtype, 2)
    right[::4] = left[::4]
    if dtype in COMPLEX and name in ORDER:
        with pytest.raises(wf.errors.DTypeError, match=f"{name}: no meaning for {dtype}"):
            getattr(wf, name)(wf.asarray(left), wf.asarray(right))
    else:
        agrees_with_numpy(getattr(wf, name), getattr(np, name), left, right)


@pytest.mark.parametrize("dtype", (*INTEGERS, *FLOATS))
@pytest.mark.parametrize("name", EXTREMA)
def test_extrema_agree_with_numpy(name, dtype):
    left, right = values(dtype, 1), values(dtype, 2)
    right[::4] = left[::4]
    both_zero = (left == 0) & (right == 0)
    right[both_zero] = left[both_zero]
    agrees_with_numpy(getattr(wf, name), getattr(np, name), left, right)


@pytest.mark.parametrize("name", EXTREMA)
def test_derivatives_of_extrema_are_jaxs(name):
    x, y = np.array([1.0, 2, 3, -1]), np.array([2.0, 2, 1, -1])
    if name in ("maximum", "minimum"):
        agrees_with_jax(getattr(wf, name), getattr(jnp, name), x, y)
        agrees_with_jax(
            lambda v: getattr(wf, name)(v, 2.0), lambda v: getattr(jnp, name)(v, 2.0), x
        )
    else:
        x, y = np.array([1.0, 3, np.nan, 2]), np.array([2.0, 1, 2, np.nan])
        one = np.fmax(x, y) if name == "fmax" else np.fmin(x, y)
        _, pullback = wf.vjp(getattr(wf, name), x, y)
        for got, operand in zip(pullback(np.ones(4)), (x, y), strict=True):
            same(got, (operand == one).astype(float))


def test_ties_share_the_derivative_and_other_operands_get_none_of_an_infinity():
    _, pullback = wf.vjp(wf.maximum, np.array([1.0, 2.0]), np.array([1.0, 1.0]))
    left, right = pullback(np.array([2.0, np.inf]))
    same(left, np.array([1.0, np.inf]))
    same(right, np.array([1.0, 0.0]))


def test_extrema_of_bools_and_complex_numbers_raise():
    with pytest.raises(wf.errors.DTypeError, match="maximum: bool is not a number"):
        wf.maximum(wf.asarray([True]), wf.asarray([False]))
    with pytest.raises(wf.errors.DTypeError, match="minimum: no meaning for complex64"):
        wf.minimum(wf.asarray([1j]), 0)


@pytest.mark.parametrize("dtype", (*INTEGERS, *FLOATS))
@pytest.mark.parametrize("bounds", [(0, 2), (1, None), (None, 1), (2, 1)])
def test_clip_agrees_with_numpy(dtype, bounds):
    x = values(dtype)
    x[x == 0] = 1
    low, high = bounds
    agrees_with_numpy(lambda v: wf.clip(v, low, high), lambda v: np.clip(v, low, high), x)


def test_clip_takes_tensors_and_passes_nan_through():
    x = wf.asarray([[np.nan, 1.0, 5.0], [0.0, -9.0, 2.0]])
    got = wf.clip(x, wf.asarray([0.0, 2.0, np.nan]), max=wf.asarray([[3.0], [4.0]]))
    same(got, np.float32([[np.nan, 2, np.nan], [0, 2, np.nan]]))
    same(wf.clip(x), x.numpy())
    assert wf.clip(wf.asarray([1, 9]), max=3).dtype == np.int64


def test_a_bound_that_does_not_fit_the_dtype_raises():
    with pytest.raises(wf.errors.CastError, match="300 does not fit uint8"):
        wf.clip(wf.asarray(np.uint8([1])), 0, 300)


def test_derivatives_of_clip_are_jaxs_at_ties_too():
    x = np.array([-1.0, 0.0, 0.5, 1.0, 2.0])
    agrees_with_jax(lambda v: wf.clip(v, 0.0, 1.0), lambda v: jnp.clip(v, 0.0, 1.0), x)
    agrees_with_jax(wf.clip, jnp.clip, x, np.zeros(5), np.ones(5))


CLOSE = np.array([1.0, 1 + 1e-6, 0.0, np.inf, np.inf, -np.inf, np.nan, 1e-9, 5.0])
PARTS = np.array([1 + 2j, 1 + 2.0000001j, 5j, complex(np.nan, 1), complex(1, np.inf)])
OTHER = np.array([1.0, 1.0, 1e-9, np.inf, -np.inf, 1.0, np.nan, 0.0, 5.1])


@pytest.mark.parametrize("equal_nan", [False, True])
@pytest.mark.parametrize("tolerances", [{}, {"rtol": 0.1}, {"atol": 1.0}, {"rtol": 0, "atol": 0}])
def test_closeness_agrees_with_numpy(equal_nan, tolerances):
    for x, y in ((CLOSE, OTHER), (OTHER, CLOSE), (PARTS, PARTS[::-1])):
        with np.errstate(all="ignore"):
            want = np.isclose(x, y, equal_nan=equal_nan, **tolerances)
        same(wf.isclose(wf.asarray(x), wf.asarray(y), equal_nan=equal_nan, **tolerances), want)
        got = wf.allclose(wf.asarray(x), wf.asarray(y), equal_nan=equal_nan, **tolerances)
        assert bool(got) == want.all()


def test_close_integers_are_compared_without_wrapping_around():
    least, most = wf.asarray(np.int8([-128])), wf.asarray(np.int8([127]))
    assert not wf.isclose(least, most, atol=2).item()
    assert wf.isclose(wf.asarray(np.uint8([3])), wf.asarray(np.uint8([5])), atol=2).item()


def test_negative_tolerances_raise():
    with pytest.raises(wf.errors.ArgumentError, match="rtol must be at least 0"):
        wf.isclose(1.0, 1.0, rtol=-1)


def test_array_equal_asks_for_one_shape_and_equal_elements():
    x = wf.asarray([1.0, np.nan])
    assert wf.array_equal([1, 2], [1, 2])
    assert not wf.array_equal([1, 2], [1, 3])
    assert not wf.array_equal(wf.ones(2), wf.ones((1, 2)))
    assert not wf.array_equal(x, x)
    assert wf.array_equal(x, x, equal_nan=True)
    assert wf.array_equal(wf.zeros((0, 2)), wf.zeros((0, 2)))


def test_comparisons_of_empty_and_mixed_operands_work():
    same(wf.less(wf.asarray(np.int8([1])), 1.5), np.array([True]))
    same(wf.asarray([True]) == 1, np.array([True]))
    same(wf.equal(wf.zeros((0, 3)), 1), np.zeros((0, 3), bool))
    with pytest.raises(wf.errors.DTypeError, match="no integer dtype holds both"):
        wf.less(wf.asarray(np.uint64([1])), wf.asarray(np.int64([1])))


def test_comparisons_carry_no_derivative():
    def count(x):
        return (wf.where(x > 1, x, 0)).sum()

    same(wf.grad(count)(wf.asarray([0.5, 2.0])), np.float32([0, 1]))
