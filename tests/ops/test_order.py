"""Sorting and running combinations agree with NumPy and array-api-strict; derivatives with JAX."""

from __future__ import annotations

import array_api_strict as strict
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import weft as wf
from weft.core.common import dtypes
from weft.errors import ArgumentError, AxisError, DTypeError, ShapeError

RNG = np.random.default_rng(11)
REAL = [d for d in dtypes.ALL_DTYPES if not dtypes.is_complex(d)]
VALUES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, np.nan, np.inf, -np.inf])


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def slope(function):
    return jax.jit(jax.grad(function))


def curvature(function):
    return jax.jit(jax.hessian(function))


def sample(dtype, shape=(3, 4, 5)):
    if dtypes.is_complex(dtype):
        return (RNG.normal(size=shape) + 1j * RNG.normal(size=shape)).astype(dtype)
    return RNG.integers(0, 4, shape).astype(np.float32).astype(dtype)


def wide(x):
    return x.astype(np.float32) if dtypes.is_narrow(x.dtype) else x


def close(got, want, tolerance=1e-9):
    np.testing.assert_allclose(wide(got.numpy()), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_sorting_is_stable_in_both_directions(axis, dtype):
    x = sample(dtype)
    order = wf.argsort(wf.asarray(x), axis=axis).numpy()
    np.testing.assert_array_equal(order, np.argsort(wide(x), axis=axis, kind="stable"))
    key = -wide(x).astype(np.float64)
    down = wf.argsort(wf.asarray(x), axis=axis, descending=True).numpy()
    np.testing.assert_array_equal(down, np.argsort(key, axis=axis, kind="stable"))
    for descending, places in ((False, order), (True, down)):
        got = wf.sort(wf.asarray(x), axis=axis, descending=descending)
        assert got.dtype == dtype
        np.testing.assert_array_equal(wide(got.numpy()), np.take_along_axis(wide(x), places, axis))


@given(hnp.arrays(np.float64, st.integers(0, 9), elements=VALUES))
def test_nan_sorts_last_in_both_directions(x):
    up = wf.sort(wf.asarray(x)).numpy()
    down = wf.sort(wf.asarray(x), descending=True).numpy()
    np.testing.assert_array_equal(up, np.sort(x))
    kept = x[~np.isnan(x)]
    np.testing.assert_array_equal(down[: len(kept)], np.sort(kept)[::-1])
    assert np.isnan(down[len(kept) :]).all()
    order = wf.argsort(wf.asarray(x), descending=True).numpy()
    np.testing.assert_array_equal(x[order], down)


def test_complex_numbers_have_no_order():
    for name in ("sort", "argsort", "cummax", "cummin"):
        with pytest.raises(DTypeError, match=f"{name}: complex numbers have no order"):
            getattr(wf, name)(np.ones(2, complex))
    with pytest.raises(DTypeError, match="top_k: complex"):
        wf.top_k(np.ones(2, complex), 1)


def test_sort_moves_derivatives_with_the_elements():
    x = RNG.normal(size=(3, 5))
    weights = RNG.normal(size=(3, 5))
    for descending in (False, True):

        def loss(v, d=descending):
            return wf.sum(wf.sort(v, axis=0, descending=d) ** 3 * weights)

        def other(v, d=descending):
            return (jnp.sort(v, axis=0, descending=d) ** 3 * weights).sum()

        close(wf.grad(loss)(x), slope(other)(x))
        close(
            wf.grad(lambda v, f=loss: wf.sum(wf.grad(f)(v) * weights))(x),
            slope(lambda v, f=other: (slope(f)(v) * weights).sum())(x),
        )


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_top_k_gives_the_first_of_equal_elements(largest, dtype):
    x = sample(dtype)
    values, positions = wf.top_k(wf.asarray(x), 2, axis=1, largest=largest)
    key = wide(x).astype(np.float64) * (-1 if largest else 1)
    want = np.argsort(key, axis=1, kind="stable")[:, :2]
    np.testing.assert_array_equal(positions.numpy(), want)
    np.testing.assert_array_equal(wide(values.numpy()), np.take_along_axis(wide(x), want, 1))
    assert values.dtype == dtype


def test_top_k_counts_nan_as_largest_as_jax_does():
    x = np.array([1.0, np.nan, 3.0, 2.0])
    values, positions = wf.top_k(x, 3)
    want, places = jax.lax.top_k(x, 3)
    np.testing.assert_array_equal(values.numpy(), want)
    np.testing.assert_array_equal(positions.numpy(), places)
    np.testing.assert_array_equal(wf.top_k(x, 3, largest=False)[0].numpy(), [1.0, 2.0, 3.0])


def test_top_k_is_differentiable_and_checks_k():
    x = RNG.normal(size=(2, 6))
    got = wf.grad(lambda v: wf.sum(wf.top_k(v, 3)[0] ** 2))(x)
    close(got, slope(lambda v: (jax.lax.top_k(v, 3)[0] ** 2).sum())(x))
    assert wf.top_k(x, 0)[0].shape == (2, 0)
    with pytest.raises(ArgumentError, match="top_k: k is 7, but axis 1 has 6 elements"):
        wf.top_k(x, 7)


def test_partition_puts_the_kth_element_in_its_place():
    x = RNG.normal(size=(4, 7))
    np.testing.assert_array_equal(wf.partition(x, 3).numpy()[:, 3], np.sort(x)[:, 3])
    order = wf.argpartition(x, 3).numpy()
    np.testing.assert_array_equal(np.take_along_axis(x, order, -1)[:, 3], np.sort(x)[:, 3])
    flat = wf.partition(x, 11, axis=None).numpy()
    assert flat.shape == (x.size,) and flat[11] == np.sort(x, axis=None)[11]
    assert x.ravel()[wf.argpartition(x, 11, axis=None).numpy()][11] == flat[11]
    with pytest.raises(ArgumentError, match="partition: kth 7 is out of range"):
        wf.partition(x, 7)


@pytest.mark.parametrize("dtype", dtypes.ALL_DTYPES, ids=str)
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_running_sums_and_products_are_numpys(axis, dtype):
    x = sample(dtype, (3, 4))
    for name in ("cumsum", "cumprod"):
        got = getattr(wf, name)(wf.asarray(x), axis)
        assert got.dtype == dtypes.accumulation_dtype(dtype)
        want = getattr(np, name)(wide(x), axis)
        if dtypes.is_narrow(dtype):
            with np.errstate(over="ignore"):
                want = want.astype(dtype).astype(np.float32)
        close(got, want, 1e-5)


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_running_extrema_are_numpys(axis, dtype):
    x = sample(dtype, (3, 4))
    for name, function in (("cummax", np.maximum), ("cummin", np.minimum)):
        got = getattr(wf, name)(wf.asarray(x), axis)
        flat = wide(x).ravel() if axis is None else wide(x)
        want = function.accumulate(flat, axis=0 if axis is None else axis)
        assert got.dtype == dtype
        np.testing.assert_array_equal(wide(got.numpy()), want)


@given(hnp.arrays(np.float64, (2, 4), elements=VALUES))
def test_running_combinations_of_special_values_are_numpys(x):
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(wf.cummax(x, -1).numpy(), np.maximum.accumulate(x, -1))
        np.testing.assert_array_equal(wf.cumsum(x, -1).numpy(), np.cumsum(x, -1))
        np.testing.assert_allclose(
            wf.logcumsumexp(x, -1).numpy(), np.logaddexp.accumulate(x, -1), rtol=1e-12
        )


@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod"])
@pytest.mark.parametrize("dtype", ["int8", "uint16", "float64", "complex128"])
@pytest.mark.parametrize("initial", [False, True])
def test_cumulative_functions_are_the_standards(initial, dtype, name):
    x = RNG.integers(0, 3, (3, 4)).astype(dtype)
    for axis in (0, -1):
        got = getattr(wf, name)(x, axis=axis, include_initial=initial)
        want = getattr(strict, name)(strict.asarray(x), axis=axis, include_initial=initial)
        assert got.dtype == want.dtype._np_dtype
        np.testing.assert_array_equal(got.numpy(), np.asarray(want))
    row = getattr(wf, name)(x[0], include_initial=initial)
    assert row.shape == (4 + initial,)
    with pytest.raises(ShapeError, match=f"{name}: axis must be given for a tensor of 2 axes"):
        getattr(wf, name)(x)


def test_empty_axes_stay_empty():
    empty = np.zeros((2, 0))
    for name in ("cumsum", "cumprod", "cummax", "logcumsumexp", "sort", "argsort"):
        assert getattr(wf, name)(empty, axis=1).shape == (2, 0)
    assert wf.cumulative_prod(empty, axis=1, include_initial=True).tolist() == [[1.0], [1.0]]
    gradient = wf.grad(lambda v: wf.sum(wf.cumprod(v, axis=1)))(empty)
    assert gradient.shape == (2, 0)


RUNNING = {
    "cumsum": jax.lax.cumsum,
    "cumprod": jax.lax.cumprod,
    "cummax": jax.lax.cummax,
    "cummin": jax.lax.cummin,
    "logcumsumexp": jax.lax.cumlogsumexp,
}


@pytest.mark.parametrize("name", RUNNING)
def test_running_combinations_from_the_end_are_jaxs(name):
    x, step = RNG.normal(size=(2, 3, 4)), RNG.normal(size=(3, 4))
    weights = RNG.normal(size=(3, 4))

    def ours(v, axis=1):
        return getattr(wf, name)(v, axis, reverse=True)

    def theirs(v, axis=1):
        return RUNNING[name](v, axis, reverse=True)

    for axis in (0, 1, 2):
        close(ours(x, axis), theirs(x, axis))
    close(ours(x, None), theirs(x.ravel(), 0))
    close(ours(x[0, 0, 0], 0), x[0, 0, 0])
    close(wf.vmap(ours)(x), theirs(x, 2))
    close(wf.compile(ours)(x), theirs(x))
    close(wf.jvp(ours, (x[0],), (step,))[1], jax.jvp(theirs, (x[0],), (step,))[1])
    got = wf.compile(wf.grad(lambda v: wf.sum(ours(v) * weights)))(x[0])
    close(got, slope(lambda v: (theirs(v) * weights).sum())(x[0]))


def test_a_running_combination_refuses_an_axis_that_is_not_there_in_either_direction():
    with pytest.raises(AxisError, match="cummin: axis 2"):
        wf.cummin(np.ones((2, 2)), 2, reverse=True)
    with pytest.raises(DTypeError, match="cumsum: reverse must be True or False, got 'yes'"):
        wf.cumsum(np.ones(2), reverse="yes")


CHAINS = [
    np.array([2.0, -3.0, 0.5, 4.0]),
    np.array([2.0, 0.0, 0.5, 4.0]),
    np.array([0.0, 3.0, 0.0, 4.0]),
]


@pytest.mark.parametrize("x", CHAINS, ids=str)
@pytest.mark.slow
def test_cumprod_has_exact_first_and_second_derivatives_at_zeros(x):
    weights, step = RNG.normal(size=4), RNG.normal(size=4)

    def loss(v):
        return wf.sum(wf.cumprod(v) * weights)

    def other(v):
        return (jnp.cumprod(v) * weights).sum()

    close(wf.grad(loss)(x), slope(other)(x))
    close(wf.jvp(wf.cumprod, (x,), (step,))[1], jax.jvp(jnp.cumprod, (x,), (step,))[1])
    close(
        wf.grad(lambda v: wf.sum(wf.grad(loss)(v) * step))(x),
        curvature(other)(x) @ step,
    )


@pytest.mark.slow
def test_logcumsumexp_is_stable_and_differentiable():
    x = np.array([1000.0, -1000.0, 999.0, 1001.0])
    close(wf.logcumsumexp(x), jax.lax.cumlogsumexp(x))
    weights, step = RNG.normal(size=4), RNG.normal(size=4)

    def loss(v):
        return wf.sum(wf.logcumsumexp(v) * weights)

    def other(v):
        return (jax.lax.cumlogsumexp(v) * weights).sum()

    for point in (x, RNG.normal(size=4), np.array([-np.inf, 1.0, -np.inf, 0.5])):
        if np.isfinite(point).all():
            close(wf.grad(loss)(point), slope(other)(point))
            close(
                wf.grad(lambda v: wf.sum(wf.grad(loss)(v) * step))(point),
                curvature(other)(point) @ step,
                1e-7,
            )
        else:
            found = wf.grad(loss)(point).numpy()
            assert np.isfinite(found).all()
            assert found[0] == found[2] == 0


def test_a_running_maximum_gives_its_derivative_to_the_latest_holder():
    x = np.array([1.0, 3.0, 2.0, 3.0, 5.0])
    got = wf.grad(lambda v: wf.sum(wf.cummax(v) * np.array([1.0, 2.0, 4.0, 8.0, 16.0])))(x)
    np.testing.assert_array_equal(got.numpy(), [1.0, 6.0, 0.0, 8.0, 16.0])
    step = np.arange(5.0)
    np.testing.assert_array_equal(wf.jvp(wf.cummin, (x,), (step,))[1].numpy(), [0.0] * 5)


@pytest.mark.parametrize("dtype", ["bool", "int32", "uint8", "float32", "complex64"])
def test_diff_is_numpys(dtype):
    x = RNG.integers(0, 3, (3, 5)).astype(dtype)
    for axis in (0, -1):
        for n in (0, 1, 2):
            got = wf.diff(x, axis=axis, n=n)
            want = np.diff(x, n=n, axis=axis)
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got.numpy(), want)


def test_diff_joins_prepend_and_append_first():
    x = RNG.normal(size=(3, 5))
    end = RNG.normal(size=(3, 2))
    got = wf.diff(x, prepend=end, append=0)
    np.testing.assert_array_equal(got.numpy(), np.diff(x, prepend=end, append=0))
    close(
        wf.grad(lambda v: wf.sum(wf.diff(v, n=2) ** 2))(x),
        slope(lambda v: (jnp.diff(v, n=2) ** 2).sum())(x),
    )
    with pytest.raises(ArgumentError, match="diff: n must be at least 0"):
        wf.diff(x, n=-1)


def test_take_along_axis_is_numpys_and_checks_its_operands():
    x = RNG.normal(size=(3, 4))
    places = RNG.integers(-4, 4, (3, 2))
    got = wf.take_along_axis(x, places, axis=1)
    np.testing.assert_array_equal(got.numpy(), np.take_along_axis(x, places, 1))
    with pytest.raises(ShapeError, match="take_along_axis: indices have 1 axes, x has 2"):
        wf.take_along_axis(x, np.zeros(2, int))
    with pytest.raises(DTypeError, match="take_along_axis: indices must be integers"):
        wf.take_along_axis(x, x)


def test_axes_out_of_range_are_named():
    with pytest.raises(AxisError, match="sort: axis 2 is out of range for 1 axes"):
        wf.sort(np.ones(3), axis=2)
    with pytest.raises(AxisError, match="cumprod: axis -3"):
        wf.cumprod(np.ones((2, 2)), -3)


def test_order_functions_map_over_a_batch():
    x = RNG.normal(size=(3, 4, 5))
    for name in ("sort", "argsort", "cumsum", "cumprod", "cummax", "diff"):
        got = wf.vmap(lambda v, n=name: getattr(wf, n)(v, axis=0))(x)
        want = np.stack([getattr(wf, name)(row, axis=0).numpy() for row in x])
        np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("descending", [False, True])
def test_rows_of_tensors_with_many_axes_are_put_in_order(descending):
    flat = wf.asarray([3.0, 1.0, float("nan"), 2.0])
    x = wf.reshape(flat, (1,) * 35 + (2, 2))
    small = wf.reshape(flat, (2, 2))
    for function in (wf.sort, wf.argsort):
        expected = function(small, descending=descending).numpy()
        found = function(x, descending=descending)
        assert found.shape == x.shape
        np.testing.assert_array_equal(found.numpy().reshape(2, 2), expected)
    slope = wf.grad(lambda x: wf.sum(wf.sort(x, axis=-2)[..., 0, :]))(x)
    assert slope.numpy().ravel().tolist() == [1, 1, 0, 0]
    positions = wf.argsort(x)
    assert wf.take_along_axis(x, positions, axis=-1).shape == x.shape
    assert wf.complex(x, x).dtype == wf.complex64
