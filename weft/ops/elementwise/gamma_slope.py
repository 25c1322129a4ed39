"""How the regularized incomplete gamma function P(a, x) changes with a, as numbers.

With D = xᵃ e⁻ˣ / Γ(a + 1) and L = ln x - ψ(a + 1), three ways are taken, each where nothing
cancels:

- few terms, where x is at most a or 1: ∂P/∂a = D Σ dₙ (L - Hₙ), with dₙ = xⁿ / ((a+1) … (a+n)) and
  Hₙ = 1/(a+1) + … + 1/(a+n);
- above a: -∂P/∂a = ∂Q/∂a = D ∫ (1 + a (L + s)) exp(a s - x (eˢ - 1)) ds over s from 0 to ∞, which
  is the integral of ln t - ψ(a) times the density over t = x eˢ;
- below a, for large a: the same with t = x e⁻ˢ.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from weft.core.common.lazy import LazyModule
from weft.core.common.types import Array

special = LazyModule("scipy.special")

_MANY_TERMS = 100.0  # the shape from which below it an integral takes the place of the sum
_LARGE = 20.0  # the shape from which on Stirling's series are exact
_SMALLEST = 1e-18  # of a sum: terms below it are left out
_REACH = 42.0  # integrands end where they are e⁻⁴² of what they begin with
_NODES = 64


def slope_by_shape(a: Array, x: Array) -> Array:
    """∂P/∂a in float64: NaN where P is, 0 where P is 0 or 1 whatever a is."""
    shape, place = np.broadcast_arrays(np.asarray(a, np.float64), np.asarray(x, np.float64))
    out = np.full(shape.shape, np.nan)
    same_end = (shape == place) & ((shape == 0) | np.isinf(shape))
    valid = (shape >= 0) & (place >= 0) & ~same_end
    ends = valid & ((place == 0) | np.isinf(place) | np.isinf(shape))
    out[ends] = 0
    inside = valid & ~ends
    few = inside & ((place <= 1) | ((place <= shape) & (shape < _MANY_TERMS)))
    above = inside & ~few & (place > shape)
    below = inside & ~few & ~above
    for where, rule in ((few, _by_terms), (above, _from_above), (below, _from_below)):
        if where.any():
            with np.errstate(all="ignore"):  # what is too large or too small ends as 0
                out[where] = rule(shape[where], place[where])
    return out


def _by_terms(a: Array, x: Array) -> Array:
    level = np.log(x) - special.digamma(a + 1)
    term, harmonic = np.ones_like(a), np.zeros_like(a)
    mass, total = term, level
    n = 0
    while (term > _SMALLEST * mass).any():
        n += 1
        term = term * (x / (a + n))
        harmonic = harmonic + 1 / (a + n)
        mass, total = mass + term, total + term * (level - harmonic)
    return np.asarray(_density(a, x) * total)


def _from_above(a: Array, x: Array) -> Array:
    away = x - a
    end = np.minimum(_REACH / away, np.sqrt(2 * _REACH / x))
    for _ in range(6):  # Newton's steps come down to where the exponent is -_REACH
        end = end - (away * end + x * _curve(end) - _REACH) / (away + x * np.expm1(end))
    s, weight = _nodes(end)
    exponent = -(away * s + x * _curve(s))
    total = (weight * (_level(a, x) + a * s) * np.exp(exponent)).sum(0)
    return np.asarray(-_density(a, x) * total)


def _from_below(a: Array, x: Array) -> Array:
    away = a - x
    end = np.sqrt(2 * _REACH / a)
    for _ in range(8):
        end = end - (away * end + x * _curve(-end) - _REACH) / (away - x * np.expm1(-end))
    s, weight = _nodes(end)
    exponent = -(away * s + x * _curve(-s))
    total = (weight * (_level(a, x) - a * s) * np.exp(exponent)).sum(0)
    return np.asarray(_density(a, x) * total)


def _curve(s: Array) -> Array:
    """eˢ - 1 - s."""
    near = np.abs(s) < 0.1
    small = np.where(near, s, 0)
    series = np.zeros_like(small)
    for k in range(12, 1, -1):
        series = (series + 1) * small / k
    return np.where(near, series * small, np.expm1(s) - s)


def _nodes(end: Array) -> tuple[Array, Array]:
    """Points from 0 to each end, along a new first axis, and what they weigh."""
    points, weights = _gauss()
    lead = (-1, *(1,) * end.ndim)
    return points.reshape(lead) * end, weights.reshape(lead) * end


@cache
def _gauss() -> tuple[Array, Array]:
    """Gauss' and Legendre's points and weights between 0 and 1."""
    points, weights = np.polynomial.legendre.leggauss(_NODES)
    return (points + 1) / 2, weights / 2


def _level(a: Array, x: Array) -> Array:
    """1 + a (ln x - ψ(a + 1)) = a (ln x - ψ(a)), which stays exact as a tends to 0 or grows."""
    small = 1 + a * (np.log(x) - special.digamma(a + 1))
    large = np.maximum(a, _LARGE)
    part = 1 / large / large
    rest = 0.5 + (1 / 12 - part * (1 / 120 - part * (1 / 252 - part / 240))) / large
    away = (x - large) / large
    logarithm = np.where(np.abs(away) < 0.5, np.log1p(np.maximum(away, -0.5)), np.log(x / large))
    return np.where(a < _LARGE, small, a * logarithm + rest)


def _density(a: Array, x: Array) -> Array:
    """xᵃ e⁻ˣ / Γ(a + 1), for large a by Stirling's series."""
    small = np.minimum(a, _LARGE)
    direct = np.exp(special.xlogy(small, x) - x - special.gammaln(small + 1))
    large = np.maximum(a, _LARGE)
    part = 1 / large / large
    rest = (1 / 12 - part * (1 / 360 - part * (1 / 1260 - part * (1 / 1680 - part / 1188)))) / large
    exponent = large * _log_minus(x, large) - rest
    scaled = np.exp(exponent) / (np.sqrt(2 * np.pi) * np.sqrt(large))
    return np.asarray(np.where(a < _LARGE, direct, scaled))


def _log_minus(x: Array, a: Array) -> Array:
    """ln(x / a) - (x / a - 1), by the series of atanh where it would cancel."""
    away = (x - a) / a
    near = np.abs(away) < 0.5
    small = np.where(near, away, 0)
    r = small / (2 + small)
    square = r * r
    series = np.zeros_like(r)
    for k in range(37, 1, -2):
        series = series * square + 1 / k
    return np.where(near, r * (2 * square * series - small), np.log(x / a) - away)
