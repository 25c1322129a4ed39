"""Sums of exponentials agree with SciPy, with factors and signs with JAX; derivatives with JAX."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import weft as wf
from tests.ops.statistics_beside_jax import close, drawn, slope
from weft.core.common import dtypes
from weft.errors import DTypeError, ShapeError
from weft.testing import check_grads

RNG = np.random.default_rng(17)
sample = partial(drawn, RNG)
VALUES = st.sampled_from([0.0, -0.0, 1.5, -2.0, 700.0, np.nan, np.inf, -np.inf])


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@given(hnp.arrays(np.float64, (3, 4), elements=VALUES))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_logsumexp_is_scipys_on_special_values(x):
    for axis in (None, 0, (0, 1)):
        got = wf.logsumexp(x, axis).numpy()
        np.testing.assert_allclose(got, scipy.special.logsumexp(x, axis), rtol=1e-12)


def test_logsumexp_of_nothing_is_minus_infinity():
    assert wf.logsumexp(np.zeros(0)).item() == -np.inf
    assert wf.logsumexp(np.zeros((2, 0)), 1, True).tolist() == [[-np.inf], [-np.inf]]
    assert wf.logsumexp(np.zeros((0, 2)), 1).shape == (0,)
    assert wf.logsumexp(np.float16(3)).dtype == dtypes.float16
    close(wf.logsumexp(np.array([1j, 2.0])), scipy.special.logsumexp(np.array([1j, 2.0])))


def test_logsumexp_differentiates_twice_and_gives_zero_where_everything_is_minus_infinity():
    x, step = RNG.normal(size=(3, 4)) * 300, RNG.normal(size=(3, 4))

    def loss(v):
        return wf.sum(wf.logsumexp(v, 1) ** 2)

    def other(v):
        return (jax.nn.logsumexp(v, 1) ** 2).sum()

    for point in (x, x / 300):
        close(wf.grad(loss)(point), slope(other)(point))
        close(
            wf.grad(lambda v: wf.sum(wf.grad(loss)(v) * step))(point),
            slope(lambda v: (slope(other)(v) * step).sum())(point),
        )
    gone = np.full((2, 3), -np.inf)
    np.testing.assert_array_equal(wf.grad(lambda v: wf.sum(wf.logsumexp(v, 1)))(gone).numpy(), 0)


FACTORS = st.sampled_from([0.0, 1.0, -1.0, 0.5, -3.0])


THEIRS = jax.jit(jax.nn.logsumexp, static_argnames=("axis", "return_sign"))


@given(
    hnp.arrays(np.float64, (3, 4), elements=VALUES),
    hnp.arrays(np.float64, (3, 4), elements=FACTORS),
)
def test_logsumexp_with_factors_is_jaxs_on_special_values(x, b):
    for axis in (None, 0, (0, 1)):
        want = THEIRS(x, axis, b=b, return_sign=True)
        for got, other in zip(wf.logsumexp(x, axis, b=b, return_sign=True), want, strict=True):
            np.testing.assert_allclose(got.numpy(), other, rtol=1e-12, atol=1e-12)
        want = THEIRS(x, axis, b=b)
        np.testing.assert_allclose(wf.logsumexp(x, axis, b=b).numpy(), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["float64", "complex128"])
def test_logsumexp_gives_signs_as_scipy_does(kind):
    x, b = sample(np.dtype(kind), (3, 4)), RNG.normal(size=(3, 1))
    for keepdims in (False, True):
        for factors in (None, b):
            options = {"axis": 1, "keepdims": keepdims, "return_sign": True, "b": factors}
            found = wf.logsumexp(x, **options)
            for got, want in zip(found, scipy.special.logsumexp(x, **options), strict=True):
                assert got.dtype == want.dtype
                close(got, want)
    size, sign = wf.logsumexp(np.zeros((2, 0), kind), 1, return_sign=True)
    assert size.tolist() == [-np.inf, -np.inf]
    np.testing.assert_array_equal(sign.numpy(), [0, 0])
    assert wf.logsumexp(np.float32(1), b=np.float64(2)).dtype == dtypes.float64


def test_logsumexp_with_factors_maps_compiles_and_has_jaxs_derivatives():
    x, b, step = (RNG.normal(size=(3, 4)) for _ in range(3))

    def ours(x, b):
        return wf.logsumexp(x, -1, b=b, return_sign=True)[0]

    def theirs(x, b):
        return jax.nn.logsumexp(x, -1, b=b, return_sign=True)[0]

    close(wf.compile(wf.vmap(ours))(x, b), theirs(x, b))
    close(wf.jvp(ours, (x, b), (step, -step))[1], jax.jvp(theirs, (x, b), (step, -step))[1])
    wants = jax.jit(jax.grad(lambda *v: theirs(*v).sum(), (0, 1)))(x, b)
    for got, want in zip(wf.grad(lambda *v: wf.sum(ours(*v)), (0, 1))(x, b), wants, strict=True):
        close(got, want)


def test_a_factor_of_0_leaves_out_what_would_overflow_and_keeps_its_derivative():
    x, b = np.array([1.0, 2.0, 5000.0]), np.array([1.0, 0.0, 0.0])
    assert wf.logsumexp(x, b=b).item() == 1.0
    got = wf.grad(lambda b: wf.logsumexp(x[:2], b=b))(b[:2])
    np.testing.assert_allclose(got.numpy(), np.exp([0.0, 1.0]), rtol=1e-12)
    by_x = wf.grad(lambda x: wf.logsumexp(x, b=b))(x)
    np.testing.assert_array_equal(by_x.numpy(), [1, 0, 0])


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_is_scipys_and_differentiates_twice(name):
    x, step = RNG.normal(size=(3, 4)) * 3, RNG.normal(size=(3, 4))
    weights = RNG.normal(size=(3, 4))
    for axis in (-1, 0, (0, 1)):
        close(getattr(wf, name)(x, axis), getattr(scipy.special, name)(x, axis))

    def loss(v):
        return wf.sum(getattr(wf, name)(v) ** 2 * weights)

    def other(v):
        return (getattr(jax.nn, name)(v) ** 2 * weights).sum()

    close(wf.grad(loss)(x), slope(other)(x))
    close(
        wf.grad(lambda v: wf.sum(wf.grad(loss)(v) * step))(x),
        slope(lambda v: (slope(other)(v) * step).sum())(x),
    )
    close(
        wf.jvp(getattr(wf, name), (x,), (step,))[1],
        jax.jvp(getattr(jax.nn, name), (x,), (step,))[1],
    )


def test_softmax_neither_overflows_nor_lets_masked_elements_count():
    x = np.array([1e4, -np.inf, 1e4 - 1])
    close(wf.softmax(x), jax.nn.softmax(x))
    weights = np.array([1.0, 2.0, 3.0])
    got = wf.grad(lambda v: wf.sum(wf.softmax(v) * weights))(x)
    close(got, slope(lambda v: (jax.nn.softmax(v) * weights).sum())(x))
    assert np.isnan(wf.softmax(np.full(3, -np.inf)).numpy()).all()
    assert wf.softmax(np.zeros((2, 0))).shape == (2, 0)
    assert wf.log_softmax(np.array([0.0, -2000.0])).tolist() == [0.0, -2000.0]


@pytest.mark.parametrize("axis", [-1, 0, (0, 1)], ids=str)
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_what_a_mask_leaves_out_of_a_softmax_does_not_count(name, axis):
    x, mask = RNG.normal(size=(4, 5)), RNG.uniform(size=(4, 5)) < 0.6
    mask[1], mask[:, 1] = False, False
    x[0, 1], x[1, 1], x[2, 1] = np.nan, np.inf, -np.inf  # none of them is seen
    ours, theirs = getattr(wf, name), getattr(scipy.special, name)
    with np.errstate(all="ignore"):
        want = np.nan_to_num(theirs(np.where(mask, x, -np.inf), axis), nan=-np.inf, neginf=-np.inf)
    if name == "softmax":
        want = np.where(mask, want, 0)
    close(ours(x, axis, where=mask), want)
    close(wf.compile(lambda x, m: ours(x, axis, where=m))(wf.asarray(x), wf.asarray(mask)), want)

    def loss(v):
        found = ours(v, axis, where=mask)
        return wf.sum(wf.where(found == -np.inf, 0, found) ** 2)

    check_grads(loss, (np.where(mask, x, 7.0),))
    assert (np.isfinite(wf.grad(loss)(x).numpy())).all()
    np.testing.assert_array_equal(wf.grad(loss)(x).numpy()[~mask], 0)


def test_masks_of_a_softmax_broadcast_keep_dtypes_and_are_bools():
    x = wf.ones((2, 3), dtype=wf.bfloat16)
    found = wf.softmax(x, where=np.array([True, False, True]))
    assert found.dtype == wf.bfloat16 and found.tolist() == [[0.5, 0.0, 0.5]] * 2
    assert wf.log_softmax(x, where=[[True], [False]], dtype=wf.float64).dtype == wf.float64
    with wf.debug_nans():  # a row without elements takes none on the way
        assert wf.softmax(x, where=[[True], [False]])[1].tolist() == [0.0] * 3
    with pytest.raises(DTypeError, match="softmax: where: expected a mask of bools"):
        wf.softmax(x, where=x)
    with pytest.raises(ShapeError, match="log_softmax: where: a mask of shape"):
        wf.log_softmax(x, where=np.ones((4, 2, 3), bool))
    assert wf.softmax(np.ones(3, dtypes.bfloat16)).dtype == dtypes.bfloat16
    assert wf.softmax(np.arange(3)).dtype == dtypes.float32
    with pytest.raises(DTypeError, match="softmax: complex numbers have no order"):
        wf.softmax(np.ones(2, complex))
