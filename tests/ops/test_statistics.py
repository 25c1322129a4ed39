"""Statistics agree with NumPy and SciPy; their derivatives with JAX."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import weft as wf
from tests.ops.statistics_beside_jax import close, drawn, slope
from weft.core.common import dtypes
from weft.errors import ArgumentError, DTypeError, ShapeError

RNG = np.random.default_rng(13)
sample = partial(drawn, RNG)
AXES = [None, 0, -1, (0, 2), ()]
VALUES = st.sampled_from([0.0, -0.0, 1.5, -2.0, 700.0, np.nan, np.inf, -np.inf])


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("dtype", dtypes.ALL_DTYPES, ids=str)
@pytest.mark.parametrize("axis", AXES, ids=str)
def test_moments_are_numpys(axis, dtype):
    x = sample(dtype)
    plain = x if dtypes.is_complex(dtype) else x.astype(np.float64)
    tolerance = {1: 0.15, 2: 1e-2}.get(dtype.itemsize, 1e-5)
    if not dtypes.is_inexact(dtype):
        tolerance = 1e-5
    result = dtype if dtypes.is_inexact(dtype) else dtypes.float32
    for keepdims in (False, True):
        mean = wf.mean(wf.asarray(x), axis, keepdims)
        assert mean.dtype == result
        close(mean, plain.mean(axis, keepdims=keepdims), tolerance)
        for name in ("var", "std"):
            found = getattr(wf, name)(wf.asarray(x), axis, keepdims)
            assert found.dtype == dtypes.real_of(result)
            close(found, getattr(np, name)(plain, axis, keepdims=keepdims), tolerance)


@pytest.mark.parametrize("correction", [0, 1, 0.5, 2])
def test_the_correction_is_taken_off_the_count(correction):
    x = RNG.normal(size=(3, 4))
    close(wf.var(x, axis=0, correction=correction), np.var(x, axis=0, correction=correction))
    close(wf.std(x, correction=correction), np.std(x, correction=correction))


@pytest.mark.parametrize("name", ["nansum", "nanprod", "nanmean", "nanvar", "nanstd"])
@pytest.mark.parametrize("axis", [None, 0, (0, 1)])
def test_what_skips_nan_takes_a_mask(name, axis):
    x, mask = RNG.normal(size=(4, 3, 2)), RNG.random((4, 3, 2)) < 0.7
    x[0, 0, 0], mask[:2] = np.nan, True  # of every column something is left
    wanted = getattr(np, name)(x, axis, where=mask)
    found = getattr(wf, name)(wf.tensor(x), axis, where=wf.tensor(mask))
    close(found, wanted)
    assert wf.nansum(wf.tensor([1, 2]), where=[True, False]).item() == 1
    with pytest.raises(DTypeError, match=f"{name}: where: expected a mask of bools"):
        getattr(wf, name)(x, where=[1.0, 2.0])


@pytest.mark.parametrize("function", [wf.var, wf.std, wf.nanvar, wf.nanstd])
def test_the_correction_may_be_a_tensor_and_carries_a_derivative(function):
    x, one = wf.tensor([1.0, 2.0, 6.0], dtype="float64"), wf.tensor(1.0, dtype="float64")
    f = lambda less: function(x, correction=less)  # noqa: E731
    assert f(one).item() == function(x, correction=1).item()
    assert wf.compile(f)(one).item() == f(one).item()
    close(wf.vmap(f)(wf.stack([one, one * 0])), [f(1).item(), f(0).item()])
    variance = 7.0  # 14 / (3 - 1), and 14 / (3 - c)² is its derivative
    slope_of_root = 3.5 / (2 * np.sqrt(variance))
    close(wf.grad(f)(one), 3.5 if "var" in function.__name__ else slope_of_root)


def test_a_variance_with_no_degree_of_freedom_is_nan():
    assert np.isnan(wf.var([1.0], correction=1).item())
    assert np.isnan(wf.mean(np.zeros(0)).item())
    assert wf.mean(np.zeros((0, 3)), axis=0).shape == (3,)


def test_the_mean_of_many_half_precision_numbers_does_not_overflow():
    x = np.full(1000, 1000.0, np.float16)
    assert wf.mean(x).item() == 1000.0
    assert wf.mean(x).dtype == dtypes.float16
    assert wf.var(x).item() == 0.0
    assert wf.mean(x, dtype="float32").dtype == dtypes.float32
    with pytest.raises(DTypeError, match="mean: the result is a float, not int32"):
        wf.mean(x, dtype="int32")


@pytest.mark.parametrize("name", ["mean", "var", "std"])
def test_moments_differentiate_twice(name):
    x, step = RNG.normal(size=(3, 4)), RNG.normal(size=(3, 4))

    def loss(v):
        return wf.sum(getattr(wf, name)(v, 1) ** 3)

    def other(v):
        return (getattr(jnp, name)(v, 1) ** 3).sum()

    close(wf.grad(loss)(x), slope(other)(x))
    close(
        wf.grad(lambda v: wf.sum(wf.grad(loss)(v) * step))(x),
        slope(lambda v: (slope(other)(v) * step).sum())(x),
    )


@given(hnp.arrays(np.float64, (3, 4), elements=VALUES))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_that_skip_nan_are_numpys(x):
    for name in ("nansum", "nanprod", "nanmax", "nanmin", "nanmean", "nanvar", "nanstd"):
        for axis in (None, 0, 1):
            got = getattr(wf, name)(wf.asarray(x), axis).numpy()
            want = getattr(np, name)(x, axis)
            np.testing.assert_allclose(got, want, rtol=1e-9, err_msg=name)


def test_functions_that_skip_nan_take_integers():
    x = np.array([[1, 2], [3, 5]], np.int16)
    assert wf.nansum(x).dtype == dtypes.int64
    assert wf.nanmax(x).dtype == dtypes.int16
    assert wf.nanmean(x).item() == 2.75


def test_extrema_skip_nan_in_every_float():
    for dtype in dtypes.FLOATING:
        x = np.array([[-3.0, np.nan, 2.0], [np.nan] * 3]).astype(dtype)
        for name, want in (("nanmax", 2.0), ("nanmin", -3.0)):
            got = getattr(wf, name)(x, 1)
            assert got.dtype == dtype
            np.testing.assert_array_equal(got.numpy().astype(np.float64), [want, np.nan])


@pytest.mark.parametrize("function", [wf.std, wf.nanstd])
def test_the_spread_of_equal_numbers_has_slope_0_and_spoils_no_other(function):
    x = wf.tensor([[2.0, 2.0, 2.0], [1.0, 2.0, 3.0]])
    for slopes in (wf.grad, wf.jacfwd):
        found = slopes(lambda x: wf.sum(function(x, axis=1)))(x).numpy()
        np.testing.assert_allclose(found, [[0, 0, 0], [-(6**-0.5), 0, 6**-0.5]], atol=1e-6)
    assert function(x, axis=1)[0].item() == 0


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("name", ["nansum", "nanprod", "nanmax", "nanmin"])
def test_reductions_without_nan_begin_with_a_number(name, axis):
    x = RNG.normal(size=(3, 4))
    x[0, 1] = x[2] = np.nan
    for mask in (True, x[0] < 0.5, np.zeros((3, 4), bool)):
        options = {"axis": axis, "initial": 0.25, "where": mask}
        close(getattr(wf, name)(x, **options), getattr(np, name)(x, **options))
    counts = np.array([[3, 1], [2, 9]])
    close(wf.nanmax(counts, axis, initial=5), np.nanmax(counts, axis, initial=5))
    with pytest.raises(ArgumentError, match="nanmax: where may leave nothing"):
        wf.nanmax(x, where=x > 0)


def test_spreads_without_nan_have_the_dtype_asked_for():
    x = np.array([1.0, np.nan, 3.1], "float32")
    for name in ("nanvar", "nanstd"):
        found = getattr(wf, name)(x, dtype="float64")
        assert found.dtype == wf.float64
        close(found, getattr(np, name)(x.astype("float64")))


def test_nan_elements_get_no_derivative():
    x = np.array([1.0, np.nan, 4.0])
    np.testing.assert_allclose(wf.grad(wf.nanmean)(x).numpy(), [0.5, 0.0, 0.5])
    np.testing.assert_allclose(wf.grad(wf.nansum)(x).numpy(), [1.0, 0.0, 1.0])
    np.testing.assert_allclose(wf.grad(wf.nanmax)(x).numpy(), [0.0, 0.0, 1.0])
    np.testing.assert_allclose(wf.grad(wf.nanvar)(x).numpy(), [-1.5, 0.0, 1.5])


METHODS = ["linear", "lower", "higher", "nearest", "midpoint"]
OTHERS = [
    "inverted_cdf",
    "averaged_inverted_cdf",
    "closest_observation",
    "interpolated_inverted_cdf",
    "hazen",
    "weibull",
    "median_unbiased",
    "normal_unbiased",
]


@pytest.mark.parametrize("method", METHODS + OTHERS)
@pytest.mark.parametrize("axis", AXES, ids=str)
def test_quantiles_are_numpys(axis, method):
    x = RNG.normal(size=(3, 4, 5))
    for q in (0, 0.3, 0.5, 1, [0.1, 0.9], [[0.0, 0.25], [0.5, 1.0]]):
        for keepdims in (False, True):
            got = wf.quantile(x, q, axis, keepdims, method=method)
            want = np.quantile(x, q, axis, keepdims=keepdims, method=method)
            close(got, want)
    close(wf.percentile(x, 35, axis, method=method), np.percentile(x, 35, axis, method=method))


@pytest.mark.parametrize("method", METHODS + OTHERS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_quantiles_treat_nan_as_numpy_does(method):
    x = RNG.normal(size=(4, 6))
    x[0, 2] = x[1, 0] = x[1, 5] = np.nan
    x[2] = np.nan
    for q in (0.2, [0.0, 0.5, 0.77]):
        close(wf.quantile(x, q, 1, method=method), np.quantile(x, q, 1, method=method))
        close(wf.nanquantile(x, q, 1, method=method), np.nanquantile(x, q, 1, method=method))
    close(wf.nanpercentile(x, 50, 0), np.nanpercentile(x, 50, 0))
    close(wf.median(x, 0), np.median(x, 0))
    close(wf.nanmedian(x, 1, True), np.nanmedian(x, 1, keepdims=True))


def test_the_nearest_element_of_a_half_is_the_even_one():
    x = np.array([10.0, 20.0, 30.0, 40.0])
    for q in (0.5, 1 / 6):
        assert wf.quantile(x, q, method="nearest").item() == np.quantile(x, q, method="nearest")


def test_medians_of_every_real_dtype_are_numpys():
    for dtype in dtypes.ALL_DTYPES:
        if not dtypes.is_complex(dtype):
            x = sample(dtype, (3, 4))
            close(wf.median(wf.asarray(x), 1), np.median(x.astype(np.float64), 1))
    with pytest.raises(DTypeError, match="median: complex numbers have no order"):
        wf.median(np.ones(2, complex))


def test_quantiles_next_to_infinity_are_not_nan():
    assert wf.quantile([1.0, np.inf], 0.0).item() == 1.0
    assert wf.quantile([1.0, np.inf], 0.7).item() == np.inf
    assert wf.quantile([np.inf, np.inf], 0.5).item() == np.inf
    for q in (0.2, 0.7):
        assert wf.quantile([-np.inf, 1.0], q).item() == -np.inf
        assert wf.nanquantile([-np.inf, np.nan, 1.0], q).item() == -np.inf
    assert wf.median([-np.inf, -np.inf]).item() == -np.inf


def test_quantiles_between_numbers_far_apart_do_not_overflow():
    ends = np.array([-3e38, 3e38], np.float32)
    for q in (0.25, 0.5, 0.9):
        want = np.quantile(ends.astype(float), q)
        assert wf.quantile(ends, q).item() == pytest.approx(want, rel=1e-6, abs=1e32)


def test_quantile_mistakes_are_named_and_computed_parts_out_of_range_are_nan():
    x = np.ones(3)
    with pytest.raises(ArgumentError, match="quantile: q must lie between 0 and 1"):
        wf.quantile(x, 1.5)
    with pytest.raises(ArgumentError, match="quantile: method must be one of 'linear'"):
        wf.quantile(x, 0.5, method="fast")
    with pytest.raises(ShapeError, match="median: nothing to choose from"):
        wf.median(np.zeros(0))
    assert np.isnan(wf.quantile(x, wf.asarray(-0.1)).item())


@pytest.mark.parametrize("method", METHODS)
def test_quantiles_differentiate_and_map_over_q(method):
    x = RNG.normal(size=(3, 7))
    parts = np.array([0.2, 0.55])
    got = wf.grad(lambda v: wf.sum(wf.quantile(v, parts, 1, method=method) ** 2))(x)
    want = slope(lambda v: (jnp.quantile(v, parts, 1, method=method) ** 2).sum())(x)
    close(got, want)
    mapped = wf.vmap(lambda q: wf.quantile(x, q, 1, method=method))(parts)
    close(mapped, np.quantile(x, parts, 1, method=method))


@pytest.mark.parametrize("method", OTHERS)
@pytest.mark.parametrize("n", [1, 2, 4, 5])
def test_quantiles_at_places_of_elements_are_numpys(n, method):
    x = RNG.normal(size=n)
    for q in np.linspace(0, 1, 2 * n + 1):
        close(wf.quantile(x, q, method=method), np.quantile(x, q, method=method))


WEIGHED = [
    ((3, 4, 5), None, (3, 4, 5)),
    ((3, 4, 5), 1, (4,)),
    ((3, 4, 5), (0, 2), (3, 5)),
    ((3, 4, 4), (2, 1), (4, 4)),
    ((4, 3), -1, (4, 3)),
]


@pytest.mark.parametrize(("shape", "axis", "sizes"), WEIGHED, ids=str)
def test_quantiles_with_weights_are_numpys(shape, axis, sizes):
    x, weights = RNG.normal(size=shape), RNG.integers(0, 4, sizes) + 0.25
    weights[..., 1] = 0
    kinds = {"method": "inverted_cdf", "weights": weights}
    for q in (0.0, 0.3, 1.0, [0.1, 0.5], [[0.2], [0.9]]):
        close(wf.quantile(x, q, axis, **kinds), np.quantile(x, q, axis, **kinds))
        close(
            wf.quantile(x, q, axis, True, **kinds), np.quantile(x, q, axis, keepdims=True, **kinds)
        )
    close(wf.percentile(x, 35, axis, **kinds), np.percentile(x, 35, axis, **kinds))
    found = wf.compile(lambda x, w: wf.quantile(x, 0.4, axis, method="inverted_cdf", weights=w))
    close(found(x, weights), np.quantile(x, 0.4, axis, **kinds))


def test_weights_of_0_at_the_beginning_are_no_part_and_nan_has_none():
    x = np.array([1.0, 2.0, np.nan, 3.0, 4.0])
    kinds = {"method": "inverted_cdf", "weights": [0, 0, 5, 1, 2]}
    for q in (0.0, 0.3, 0.34, 1.0):
        close(wf.nanquantile(x, q, **kinds), np.nanquantile(x, q, **kinds))
        close(wf.nanpercentile(x, 100 * q, **kinds), np.nanpercentile(x, 100 * q, **kinds))
    assert np.isnan(wf.quantile(x, 0.5, **kinds).item())
    for bad in ([0.0, 0.0], [1.0, np.inf], [-1.0, 2.0], [np.nan, 1.0]):
        found = wf.quantile(x[:2], 0.5, method="inverted_cdf", weights=wf.asarray(bad))
        assert np.isnan(found.item())


def test_weighted_quantiles_differentiate_and_map():
    x, weights = RNG.normal(size=(3, 7)), RNG.uniform(0.1, 1, (3, 7))

    def median(x, w):
        return wf.quantile(x, 0.5, method="inverted_cdf", weights=w)

    want = [
        np.quantile(a, 0.5, weights=w, method="inverted_cdf")
        for a, w in zip(x, weights, strict=True)
    ]
    close(wf.vmap(median)(x, weights), np.array(want))
    by_x, by_weights = wf.grad(lambda x, w: wf.sum(wf.vmap(median)(x, w)), (0, 1))(x, weights)
    np.testing.assert_array_equal(by_x.numpy(), x == np.array(want)[:, None])
    np.testing.assert_array_equal(by_weights.numpy(), 0)


def test_mistakes_in_weights_of_quantiles_are_named():
    x = np.ones((2, 3))
    with pytest.raises(ArgumentError, match="weights need the method 'inverted_cdf', got 'linear'"):
        wf.quantile(x, 0.5, weights=x)
    with pytest.raises(ArgumentError, match="percentile: weights must be 0 or more, got -1"):
        wf.percentile(x, 50, 0, method="inverted_cdf", weights=[1, -1])
    with pytest.raises(ShapeError, match=r"quantile: weights of shape \(2,\) fit neither"):
        wf.quantile(x, 0.5, 1, method="inverted_cdf", weights=[1, 2])


def test_weights_of_means_belong_to_the_axes_in_the_order_they_are_named_in():
    x, weights = RNG.normal(size=(2, 3, 3)), RNG.uniform(size=(3, 3))
    close(wf.average(x, (2, 1), weights), np.average(x, (2, 1), weights))


def test_ptp_and_weighted_means_are_numpys():
    x, weights = RNG.normal(size=(3, 4)), RNG.uniform(size=(3, 4))
    close(wf.ptp(x, 0), np.ptp(x, 0))
    close(wf.average(x), np.average(x))
    close(wf.average(x, 1, weights), np.average(x, 1, weights))
    close(wf.average(x, 1, weights[0]), np.average(x, 1, weights[0]))
    close(wf.average(x, weights=weights), np.average(x, weights=weights))
    close(
        wf.average(x, 0, weights[:, 0], keepdims=True),
        np.average(x, 0, weights[:, 0], keepdims=True),
    )
    with pytest.raises(ShapeError, match=r"average: weights of shape \(2,\)"):
        wf.average(x, 1, np.ones(2))


def test_covariances_are_numpys():
    x, y = RNG.normal(size=(3, 6)), RNG.normal(size=(2, 6))
    close(wf.cov(x), np.cov(x))
    close(wf.cov(x, y), np.cov(x, y))
    close(wf.cov(x.T, rowvar=False, correction=0), np.cov(x.T, rowvar=False, ddof=0))
    close(wf.cov(x[0]), np.cov(x[0]))
    often, much = RNG.integers(1, 4, 6), RNG.uniform(size=6)
    close(wf.cov(x, fweights=often), np.cov(x, fweights=often))
    close(wf.cov(x, aweights=much), np.cov(x, aweights=much))
    close(wf.cov(x, fweights=often, aweights=much), np.cov(x, fweights=often, aweights=much))
    z = x + 1j * RNG.normal(size=(3, 6))
    close(wf.cov(z), np.cov(z))
    close(wf.cov(z, fweights=often, aweights=much), np.cov(z, fweights=often, aweights=much))
    for bad in ({"fweights": often - 2}, {"aweights": -much}, {"fweights": often + 0.5}):
        with pytest.raises(ArgumentError, match=f"cov: {next(iter(bad))} must"):
            wf.cov(x, **bad)
    close(wf.corrcoef(x), np.corrcoef(x))
    close(wf.corrcoef(x, y), np.corrcoef(x, y))
    close(wf.corrcoef(z), np.corrcoef(z))
    close(wf.grad(lambda v: wf.sum(wf.cov(v) ** 2))(x), slope(lambda v: (jnp.cov(v) ** 2).sum())(x))
    with np.errstate(all="ignore"), pytest.warns(RuntimeWarning, match="Degrees of freedom"):
        for less in (4, 5, 9):
            close(wf.cov(x, ddof=less), np.cov(x, ddof=less))
    assert wf.cov(x[:0]).shape == wf.corrcoef(x[:0]).shape == (0, 0)
    with pytest.raises(ShapeError, match="cov: expected at most 2 axes"):
        wf.cov(np.ones((2, 2, 2)))
