"""Counts and histograms agree with NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft.errors import ArgumentError, DTypeError, ShapeError, WeftError

RNG = np.random.default_rng(17)


def test_bincount_is_numpys_and_differentiates_by_its_weights():
    x, weights = RNG.integers(0, 5, 12), RNG.normal(size=12)
    np.testing.assert_array_equal(wf.bincount(x).numpy(), np.bincount(x))
    np.testing.assert_array_equal(wf.bincount(x, minlength=9).numpy(), np.bincount(x, minlength=9))
    np.testing.assert_allclose(wf.bincount(x, weights).numpy(), np.bincount(x, weights))
    assert wf.bincount(np.zeros(0, int)).shape == (0,)
    assert wf.bincount(np.array([-1, 0, 2, 9]), length=3).tolist() == [1, 0, 1]
    slopes = np.arange(5.0)
    gradient = wf.grad(lambda w: wf.sum(wf.bincount(x, w, length=5) * slopes))(weights)
    np.testing.assert_allclose(gradient.numpy(), slopes[x])
    mapped = wf.vmap(lambda v: wf.bincount(v, length=5))(x.reshape(3, 4))
    assert mapped.tolist() == [np.bincount(r, minlength=5).tolist() for r in x.reshape(3, 4)]


def test_bincount_mistakes_are_named():
    with pytest.raises(ArgumentError, match=r"bincount: a number is negative \(-2\)"):
        wf.bincount(np.array([1, -2]))
    with pytest.raises(DTypeError, match="bincount: numbers must be integers, not float64"):
        wf.bincount(np.ones(3))
    with pytest.raises(ShapeError, match="bincount: weights of shape"):
        wf.bincount(np.ones(3, int), np.ones(2))


@pytest.mark.parametrize("bins", [1, 7, np.array([-1.0, -0.5, 0.0, 2.0])], ids=str)
@pytest.mark.parametrize("limits", [None, (-0.5, 1.5)])
def test_histograms_are_numpys(limits, bins):
    x, weights = RNG.normal(size=200), RNG.uniform(size=200)
    for density in (False, True):
        counts, edges = wf.histogram(x, bins, limits, density=density)
        want, places = np.histogram(x, bins, limits, density=density)
        np.testing.assert_allclose(edges.numpy(), places, rtol=1e-12)
        np.testing.assert_allclose(counts.numpy(), want)
    np.testing.assert_allclose(
        wf.histogram(x, bins, limits, weights=weights)[0].numpy(),
        np.histogram(x, bins, limits, weights=weights)[0],
    )
    np.testing.assert_allclose(
        wf.histogram_bin_edges(x, bins, limits).numpy(), np.histogram_bin_edges(x, bins, limits)
    )


def test_histograms_of_edge_cases():
    counts, edges = wf.histogram(np.array([2.0, 2.0]), 2)
    assert counts.tolist() == [0, 2]
    assert edges.tolist() == [1.5, 2.0, 2.5]
    assert wf.histogram(np.zeros(0), 3)[0].tolist() == [0, 0, 0]
    assert wf.histogram(np.array([0.0, 1.0, np.nan]), 2, (0, 1))[0].tolist() == [1, 1]
    assert wf.histogram(np.array([1, 2, 2, 5]), 2)[0].tolist() == [3, 1]
    with pytest.raises(ArgumentError, match="histogram: bins must be at least 1"):
        wf.histogram(np.ones(3), 0)
    with pytest.raises(ArgumentError, match="histogram: bins must be one of"):
        wf.histogram(np.ones(3), "even")
    for edges in ([2, 1], np.array([0.0, 2.0, 1.0])):
        with pytest.raises(ArgumentError, match="histogram: edges must rise"):
            wf.histogram(np.ones(3), edges)
    with pytest.raises(ArgumentError, match=r"histogram2d: edges must rise, got \[2, 1\]"):
        wf.histogram2d([1.0, 2.0], [1.0, 2.0], [[2, 1], [0, 1]])
    with pytest.raises(ArgumentError, match="histogram: the range is empty"):
        wf.histogram(np.ones(3), 2, (1, 0))


def test_two_dimensional_histograms_are_numpys():
    x, y = RNG.normal(size=100), RNG.normal(size=100)
    for bins in (4, (3, 5)):
        got = wf.histogram2d(x, y, bins, ((-1, 1), (-2, 1)))
        want = np.histogram2d(x, y, bins, ((-1, 1), (-2, 1)))
        for part, expected in zip(got, want, strict=True):
            np.testing.assert_allclose(part.numpy(), expected)


def test_densities_of_float64_points_have_all_their_digits():
    x, y = RNG.normal(size=100), RNG.normal(size=100)
    got = wf.histogram2d(x, y, 3, density=True)[0]
    np.testing.assert_allclose(got.numpy(), np.histogram2d(x, y, 3, density=True)[0], rtol=1e-12)


@pytest.mark.parametrize(
    "rule", ["auto", "doane", "fd", "rice", "scott", "sqrt", "stone", "sturges"]
)
@pytest.mark.parametrize("limits", [None, (-0.5, 1.5)])
def test_rules_for_the_number_of_bins_are_numpys(rule, limits):
    x = np.random.default_rng(3).gamma(2.0, size=200)
    for given in (x, (10 * x).astype(np.int32), np.zeros(0), np.ones(5)):
        counts, edges = wf.histogram(given, rule, limits)
        want, places = np.histogram(given, rule, limits)
        assert counts.tolist() == want.tolist()
        np.testing.assert_allclose(edges.numpy(), places, rtol=1e-6)


def test_rules_for_the_number_of_bins_need_numbers_to_look_at():
    with pytest.raises(ArgumentError, match="without weights"):
        wf.histogram(np.ones(3), "auto", weights=np.ones(3))
    with pytest.raises(ArgumentError, match="histogram: bins='fd'"):
        wf.histogram(np.array([0.0, np.inf]), "fd")
    with pytest.raises(WeftError, match="say how many bins there are"):
        wf.compile(lambda x: wf.histogram(x, "auto")[0])(wf.ones(4))
