"""Reductions agree with NumPy on every dtype and special value, their derivatives with JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import weft as wf
from weft.core.common import dtypes
from weft.errors import ArgumentError, AxisError, DTypeError, ShapeError, WeftError

RNG = np.random.default_rng(7)
AXES = [None, 0, -1, (0, 2), (), (2, 1, 0)]


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def slope(function):
    return jax.jit(jax.grad(function))


def curvature(function):
    return jax.jit(jax.hessian(function))


def sample(dtype, shape=(2, 3, 4)):
    if dtypes.is_bool(dtype):
        return RNG.integers(0, 2, shape).astype(bool)
    if dtypes.is_integer(dtype):
        return RNG.integers(0, 5, shape).astype(dtype)
    if dtypes.is_complex(dtype):
        return (RNG.normal(size=shape) + 1j * RNG.normal(size=shape)).astype(dtype)
    return RNG.normal(size=shape).astype(dtype)


def close(got, want, dtype=None):
    got = got.numpy()
    tolerance = 1e-5
    if dtype is not None and dtypes.is_narrow(dtype):
        tolerance = {1: 0.3, 2: 0.02}[dtype.itemsize]
        got, want = got.astype(np.float32), np.asarray(want).astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    assert got.shape == np.shape(want)


@pytest.mark.parametrize("dtype", dtypes.ALL_DTYPES, ids=str)
@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("name", ["sum", "prod"])
def test_sums_and_products_are_numpys(name, axis, dtype):
    x = sample(dtype)
    wide = x.astype(np.float32) if dtypes.is_narrow(dtype) else x
    for keepdims in (False, True):
        got = getattr(wf, name)(wf.asarray(x), axis, keepdims)
        close(got, getattr(np, name)(wide, axis, keepdims=keepdims), dtype)
        assert got.dtype == dtypes.accumulation_dtype(dtype)


@pytest.mark.parametrize(
    "dtype", [d for d in dtypes.ALL_DTYPES if not dtypes.is_complex(d)], ids=str
)
@pytest.mark.parametrize("axis", AXES, ids=str)
def test_extrema_are_numpys_and_keep_the_dtype(axis, dtype):
    x = sample(dtype)
    wide = x.astype(np.float32) if dtypes.is_narrow(dtype) else x
    for name in ("max", "min", "amax", "amin"):
        for keepdims in (False, True):
            got = getattr(wf, name)(wf.asarray(x), axis=axis, keepdims=keepdims)
            assert got.dtype == dtype
            want = getattr(np, name)(wide, axis, keepdims=keepdims)
            np.testing.assert_array_equal(got.numpy().astype(wide.dtype), want)
    low, high = wf.minmax(x, axis)
    np.testing.assert_array_equal(low.numpy(), wf.min(x, axis).numpy())
    np.testing.assert_array_equal(high.numpy(), wf.max(x, axis).numpy())


@pytest.mark.parametrize("dtype", dtypes.ALL_DTYPES, ids=str)
@pytest.mark.parametrize("axis", AXES, ids=str)
def test_truth_and_counts_are_numpys(axis, dtype):
    x = sample(dtype)
    x[0, 0] = 0
    x[1, :, 1] = 0
    wide = x.astype(np.float32) if dtypes.is_narrow(dtype) else x
    for name in ("any", "all"):
        got = getattr(wf, name)(wf.asarray(x), axis=axis, keepdims=True)
        assert got.dtype == dtypes.bool_
        np.testing.assert_array_equal(got.numpy(), getattr(np, name)(wide, axis, keepdims=True))
    counted = wf.count_nonzero(wf.asarray(x), axis=axis)
    assert counted.dtype == dtypes.int64
    truth = (wide != 0).astype(np.int64)
    np.testing.assert_array_equal(counted.numpy(), truth.sum(axis))


@pytest.mark.parametrize(
    "dtype", [d for d in dtypes.ALL_DTYPES if not dtypes.is_complex(d)], ids=str
)
def test_positions_of_extrema_are_numpys(dtype):
    x = sample(dtype)
    wide = x.astype(np.float32) if dtypes.is_narrow(dtype) else x
    for name in ("argmax", "argmin"):
        for axis in (None, 0, 1, -1):
            for keepdims in (False, True):
                got = getattr(wf, name)(wf.asarray(x), axis=axis, keepdims=keepdims)
                want = getattr(np, name)(wide, axis, keepdims=keepdims)
                assert got.dtype == dtypes.int64
                np.testing.assert_array_equal(got.numpy(), want)


@given(
    hnp.arrays(
        np.float64,
        hnp.array_shapes(min_dims=1, max_dims=3, max_side=4),
        elements=st.sampled_from([0.0, -0.0, 1.5, -2.0, np.nan, np.inf, -np.inf]),
    )
)
def test_special_values_reduce_as_in_numpy(x):
    with np.errstate(all="ignore"):
        for name in ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin"):
            got = getattr(wf, name)(wf.asarray(x), axis=-1).numpy()
            np.testing.assert_array_equal(got, getattr(np, name)(x, axis=-1), err_msg=name)


def test_strided_operands_reduce_like_their_copies():
    x = RNG.normal(size=(5, 6))[::-1, ::2]
    close(wf.sum(wf.asarray(x), axis=0), x.sum(0))
    close(wf.prod(wf.asarray(x).T, axis=0), x.T.prod(0))
    assert wf.argmax(wf.asarray(x)).item() == x.argmax()


def test_nothing_sums_to_zero_multiplies_to_one_and_is_all_but_not_any():
    empty = np.zeros((0, 3))
    np.testing.assert_array_equal(wf.sum(empty, 0).numpy(), np.zeros(3))
    np.testing.assert_array_equal(wf.prod(empty, 0).numpy(), np.ones(3))
    assert not wf.any(empty).item()
    assert wf.all(empty).item()
    assert wf.count_nonzero(empty).item() == 0
    assert wf.sum(empty, 1).shape == (0,)
    assert wf.max(empty, 1).shape == (0,)


@pytest.mark.parametrize("name", ["max", "min"])
def test_extrema_of_nothing_are_an_error_that_names_the_axis(name):
    with pytest.raises(ShapeError, match=rf"{name}: axis 0 is empty and has no {name}imum"):
        getattr(wf, name)(np.zeros((0, 3)))
    with pytest.raises(ShapeError, match="nothing to search along"):
        getattr(wf, f"arg{name}")(np.zeros((0,)))


def test_mistakes_are_named():
    with pytest.raises(AxisError, match="sum: axis 2 is out of range for 2 axes"):
        wf.sum(np.ones((2, 2)), 2)
    with pytest.raises(AxisError, match="prod: an axis is given twice"):
        wf.prod(np.ones((2, 2)), (0, -2))
    with pytest.raises(DTypeError, match="max: complex numbers have no order"):
        wf.max(np.ones(2, complex))
    with pytest.raises(DTypeError, match="argmin: complex numbers have no order"):
        wf.argmin(np.ones(2, complex))
    with pytest.raises(DTypeError, match="sum: bool is not a number"):
        wf.sum(np.ones(2), dtype=bool)
    with pytest.raises(WeftError, match="argmax: axis"):
        wf.argmax(np.ones(()), axis=0)


def test_no_axes_convert_the_dtype_and_give_a_tensor_of_its_own():
    x = wf.asarray(np.array([1, 2], np.int8))
    assert wf.sum(x, ()).dtype == dtypes.int64
    scalar = wf.tensor(2.0)
    total = wf.sum(scalar)
    total += 1
    assert scalar.item() == 2.0


def test_dtype_is_where_the_sum_is_made():
    x = np.full(10, 100, np.int8)
    assert wf.sum(x, dtype="int8").item() == np.sum(x, dtype=np.int8)
    assert wf.sum(x, dtype="float64").item() == 1000.0
    assert wf.reduce_sum(x).item() == 1000


def test_narrow_floats_accumulate_in_single_precision():
    ones = np.ones(4096, dtypes.bfloat16)
    assert float(wf.sum(ones).item()) == 4096.0


def test_max_shares_the_derivative_among_equal_elements():
    x = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    for name in ("max", "min"):
        got = wf.grad(lambda v, n=name: wf.sum(getattr(wf, n)(v, 1) * np.array([1.0, 6.0])))(x)
        want = slope(lambda v, n=name: (getattr(jnp, n)(v, 1) * jnp.array([1.0, 6.0])).sum())(x)
        close(got, want)


PRODUCTS = [
    np.array([2.0, 3.0, -4.0, 0.5]),
    np.array([2.0, 0.0, -4.0, 0.5]),
    np.array([0.0, 3.0, 0.0, 0.5]),
    np.array([0.0, 0.0, 0.0]),
    np.array([5.0]),
]


@pytest.mark.parametrize("x", PRODUCTS, ids=str)
@pytest.mark.slow
def test_prod_has_exact_first_and_second_derivatives_at_zeros(x):
    close(wf.grad(wf.prod)(x), slope(jnp.prod)(x))
    step = np.cos(np.arange(len(x)))
    _, pushed = wf.jvp(wf.grad(wf.prod), (x,), (step,))
    close(pushed, curvature(jnp.prod)(x) @ step)
    twice = wf.grad(lambda v: wf.sum(wf.grad(wf.prod)(v) * step))(x)
    close(twice, curvature(jnp.prod)(x) @ step)


def test_prod_over_several_axes_differentiates_at_zeros():
    x = RNG.normal(size=(2, 3, 4))
    x[0, 1, 2] = x[1, 0, 3] = 0
    weights = RNG.normal(size=(3,))
    got = wf.grad(lambda v: wf.sum(wf.prod(v, (0, 2)) * weights))(x)
    close(got, slope(lambda v: (jnp.prod(v, (0, 2)) * weights).sum())(x))


def test_prod_of_complex_numbers_is_holomorphic():
    x = np.array([1 + 2j, 0.0, 3 - 1j])
    _, pullback = wf.vjp(wf.prod, x)
    _, want = jax.vjp(jnp.prod, x)
    close(pullback(np.asarray(1j))[0], want(jnp.asarray(1j))[0])


def test_reductions_map_over_a_batch():
    x = RNG.normal(size=(3, 4, 5))
    for name in ("sum", "prod", "max", "argmax", "any"):
        got = wf.vmap(lambda v, n=name: getattr(wf, n)(v, axis=0))(x)
        close(got, getattr(np, name)(x, axis=1))


MASK = np.array([[True, False, True, True], [False] * 4, [True] * 4])


@pytest.mark.parametrize("mask", [MASK, MASK[0], MASK[:, 1:2]], ids=["whole", "row", "column"])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "any", "all", "mean", "var", "std"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_masked_reductions_are_numpys(name, axis, keepdims, mask):
    x = np.random.default_rng(0).normal(size=(3, 4)).round(1)
    options = {"initial": 0.25} if name in ("sum", "prod", "max", "min") else {}
    want = getattr(np, name)(x, axis=axis, keepdims=keepdims, where=mask, **options)
    function = getattr(wf, name)
    for run in (function, getattr(wf.Tensor, name)):
        found = run(wf.asarray(x), axis=axis, keepdims=keepdims, where=wf.asarray(mask), **options)
        assert found.shape == np.shape(want)
        np.testing.assert_allclose(found.numpy(), want, rtol=1e-12)


def test_what_a_mask_leaves_out_has_no_influence_on_values_and_slopes():
    x, mask = wf.tensor([1.0, np.nan, 3.0, np.inf]), wf.tensor([True, False, True, False])
    assert wf.sum(x, where=mask).item() == 4 and wf.mean(x, where=mask).item() == 2
    assert wf.max(x, where=mask, initial=-np.inf).item() == 3
    assert wf.var(x, where=mask, correction=1).item() == 2
    for function, slope in ((wf.sum, [1, 0, 1, 0]), (wf.var, [-1, 0, 1, 0])):
        assert wf.grad(lambda x, f=function: f(x, where=mask))(x).tolist() == slope
    assert np.isnan(wf.mean(x, where=x > 9e9 * wf.inf).item())


def test_extrema_of_bools_begin_with_a_bool():
    for x in ([True, False], [False, False], [True, True]):
        for first in (True, False):
            assert wf.max(x, initial=first).item() is bool(np.max(x, initial=first))
            assert wf.min(x, initial=first).item() is bool(np.min(x, initial=first))


def test_initial_values_allow_empty_axes():
    x = wf.zeros((2, 0, 3))
    assert wf.max(x, axis=1, initial=5.0).tolist() == [[5] * 3] * 2
    assert wf.min(x, initial=5.0, keepdims=True).tolist() == [[[5]]]
    assert wf.sum(wf.tensor([1, 2], dtype="int8"), initial=3).dtype == np.int64


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: wf.max(wf.ones(2), where=[True, False]),
            ArgumentError,
            "max: where .*\n.*initial",
        ),
        (lambda: wf.sum(wf.ones(2), where=[1, 0]), DTypeError, "sum: where: expected a mask"),
        (
            lambda: wf.sum(wf.ones(2), where=wf.ones((3, 2)) > 0),
            ShapeError,
            "sum: where: a mask of",
        ),
        (lambda: wf.sum(wf.ones(2), where=wf.ones(3) > 0), ShapeError, "sum: "),
        (lambda: wf.sum([1, 2], initial=0.5), DTypeError, "sum: initial: .*float32.*int64"),
        (lambda: wf.prod(wf.ones(2), initial=2j), DTypeError, "prod: initial: .*complex64"),
        (lambda: wf.max([1, 2], initial=-wf.inf), DTypeError, "max: initial: .*float32.*int64"),
        (lambda: wf.min([[]], axis=1, initial=2j), DTypeError, "min: initial: .*complex64"),
        (lambda: wf.sum([1, 2], initial=[1, 2]), ShapeError, r"sum: initial .* shape \(2,\)"),
        (lambda: wf.max([], initial=[1.0]), ShapeError, r"max: initial .* shape \(1,\)"),
    ],
)
def test_masks_and_initial_values_that_do_not_fit_are_told(call, error, text):
    with pytest.raises(error, match=text):
        call()
