"""Counts: Poisson, binomial, multinomial and geometric integers.

They are computed in float64, so that large parameters keep every digit. Means below 10 invert the
distribution; others use Hörmann's transformed rejection (1993) with a fixed number of candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, lgamma, pi
from math import log as ln
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.types import Array, DType, Shape
from weft.core.tensor.convert import known, wrap
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ops import reduction
from weft.ops.creation import arange, zeros
from weft.ops.elementwise.arithmetic import where
from weft.ops.elementwise.comparison import maximum, minimum
from weft.ops.elementwise.complex_parts import abs as magnitude
from weft.ops.elementwise.elementary import exp, log, log1p, sqrt
from weft.ops.elementwise.rounding import floor
from weft.ops.families import broadcast, cast
from weft.ops.order import cumsum
from weft.ops.random.continuous import (
    draw_shape,
    open_uniform,
    parameter,
    parameters,
    require,
    unit_uniform,
)
from weft.ops.random.gamma import first_accepted
from weft.ops.random.state import as_key, streams
from weft.ops.view.join import concat, stack
from weft.ops.view.reshape import expand_dims, reshape

_REAL = dtypes.float64
_SMALL = 10.0  # means below are inverted: a count of 48 or more has probability below 2e-17
_LONGEST = 48
# A candidate is refused with probability at most 0.3, so all of them with at most 4e-11; then the
# first stands, put into range.
_CANDIDATES = 20
_TABLE = 16  # below, ln(n!) less Stirling's main term is looked up


def count_dtype(op: str, dtype: Any) -> DType:
    """The dtype of counts: int64 unless asked otherwise; floats may hold counts too."""
    found = dtypes.int64 if dtype is None else dtypes.as_dtype(dtype, op=op)
    if not (dtypes.is_integer(found) or dtypes.is_floating(found)):
        raise DTypeError(f"{op}: counts are integers or floats, got {dtypes.name_of(found)}")
    return found


def _sides(mean: Callable[..., Array], *given: Any) -> tuple[bool, bool]:
    """Whether there may be means below 10, and others: both unless the parameters are known."""
    arrays = [known(value) for value in given]
    if any(array is None for array in arrays):
        return True, True
    large = mean(*(np.asarray(array, np.float64) for array in arrays)) >= _SMALL
    return not large.all() or not large.size, bool(large.any())


def _by_mean(
    mean: Tensor,
    sides: tuple[bool, bool],
    small: Callable[[], Tensor],
    large: Callable[[], Tensor],
) -> Tensor:
    """Each element by the method that suits its mean; a method nobody needs is not run."""
    if not sides[1]:
        return small()
    if not sides[0]:
        return large()
    return where(mean < _SMALL, small(), large())


def _inverted(
    key: Tensor, shape: Shape, start: Tensor, ratios: Callable[[Tensor], Tensor]
) -> Tensor:
    """The count at which a distribution passes a uniform draw: ln p(0), then ln p(j)/p(j-1)."""
    steps = arange(1, _LONGEST, dtype=_REAL, device=key.device)
    logs = cumsum(concat([expand_dims(start, -1), ratios(steps)], axis=-1), axis=-1)
    reached = expand_dims(unit_uniform(key, shape, _REAL), -1) >= cumsum(exp(logs), axis=-1)
    return reduction.sum(cast(reached, _REAL), axis=-1)


def _deviance(x: Tensor, mean: Tensor) -> Tensor:
    """x ln(x/mean) + mean - x, without cancellation where x is near the mean (Loader, 2000)."""
    gap = x - mean
    v = gap / (x + mean)
    square, series = v * v, 1 / 17 + 0 * v
    for odd in range(15, 1, -2):
        series = series * square + 1 / odd
    near = gap * v + 2 * x * v * square * series
    return where(magnitude(v) < 0.1, near, x * log(x / mean) - gap)


def _stirling(n: Tensor) -> Tensor:
    """ln(n!) less ln √(2πn) (n/e)^n, for n from 1 on."""
    values = [lgamma(k + 1) - (k + 0.5) * ln(k) + k - 0.5 * ln(2 * pi) for k in range(1, _TABLE)]
    table = wrap(np.array([0.0, *values]), n.device)
    place = minimum(maximum(n, 0), _TABLE - 1)
    square = 1 / (n * n)
    series = (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680))) / n
    return where(n < _TABLE, table[cast(place, dtypes.int64)], series)


def _candidates(
    key: Tensor, shape: Shape, a: Tensor, b: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    """Hörmann's candidates, and ln of the height of a uniform point under the hat at each."""
    places, heights = streams(key, 2)
    shape = (*shape, _CANDIDATES)
    u = open_uniform(places, shape, _REAL) - 0.5
    margin = 0.5 - magnitude(u)
    count = floor((2 * a / margin + b) * u + c)
    height = log(open_uniform(heights, shape, _REAL)) - log(a / (margin * margin) + b)
    return count, height


def _poisson(key: Tensor, shape: Shape, rate: Tensor, sides: tuple[bool, bool]) -> Tensor:
    near, far = streams(key, 2)

    def small() -> Tensor:
        return _inverted(near, shape, -rate, lambda j: log(expand_dims(rate, -1) / j))

    def large() -> Tensor:
        mean = expand_dims(maximum(rate, _SMALL), -1)
        b = 0.931 + 2.53 * sqrt(mean)
        a = -0.059 + 0.02483 * b
        count, height = _candidates(far, shape, a, b, mean + 0.43)
        positive = maximum(count, 1)
        density = -_deviance(positive, mean) - _stirling(positive) - 0.5 * log(2 * pi * positive)
        density = where(count == 0, -mean, density)
        fits = height + log(1.1239 + 1.1328 / (b - 3.4)) <= density
        return first_accepted(maximum(count, 0), fits & (count >= 0))

    return where(rate >= 0, _by_mean(rate, sides, small, large), -1)


def _binomial(key: Tensor, shape: Shape, n: Tensor, p: Tensor, sides: tuple[bool, bool]) -> Tensor:
    near, far = streams(key, 2)
    rare = where(p > 0.5, 1 - p, p)
    mean = n * rare

    def small() -> Tensor:
        top, odds = expand_dims(n, -1), expand_dims(rare / (1 - rare), -1)
        start = n * log1p(-rare)
        found = _inverted(near, shape, start, lambda j: log(maximum(top - j + 1, 0) / j * odds))
        return minimum(found, n)

    def large() -> Tensor:
        fits = mean >= _SMALL
        safe = (where(fits, n, 4 * _SMALL), where(fits, rare, 0.25))
        return _transformed_binomial(far, shape, *(expand_dims(x, -1) for x in safe))

    drawn = _by_mean(mean, sides, small, large)
    valid = (n >= 0) & (p >= 0) & (p <= 1)
    return where(valid, where(p > 0.5, n - drawn, drawn), -1)


def _transformed_binomial(key: Tensor, shape: Shape, n: Tensor, p: Tensor) -> Tensor:
    """Counts for n·p of at least 10 and p of at most ½, from candidates along the last axis."""
    spread = sqrt(n * p * (1 - p))
    b = 1.15 + 2.53 * spread
    a = -0.0873 + 0.0248 * b + 0.01 * p
    count, height = _candidates(key, shape, a, b, n * p + 0.5)
    inside = maximum(minimum(count, n), 0)
    mode = floor((n + 1) * p)
    against = _log_binomial(inside, n, p) - _log_binomial(mode, n, p)
    fits = height + log((2.83 + 5.1 / b) * spread) <= against
    return first_accepted(inside, fits & (count == inside))


def _log_binomial(k: Tensor, n: Tensor, p: Tensor) -> Tensor:
    """ln of the binomial probability of k (Loader's saddle-point form; the ends apart)."""
    rest = n - k
    one, other = maximum(k, 1), maximum(rest, 1)
    inner = _stirling(n) - _stirling(one) - _stirling(other)
    inner = inner - _deviance(one, n * p) - _deviance(other, n * (1 - p))
    inner = inner + 0.5 * log(n / (2 * pi * one * other))
    ends = where(k == 0, n * log1p(-p), n * log(p))
    return where((k == 0) | (rest == 0), ends, inner)


def poisson(key: Any, lam: Any, shape: Any = None, dtype: Any = None) -> Tensor:
    """Poisson counts of mean lam, int64 unless asked otherwise.

    A parameter out of range gives -1 where its value cannot be read, inside vmap for instance.
    """
    found, target = as_key("poisson", key), count_dtype("poisson", dtype)
    sizes, (rate,) = parameters("poisson", found, shape, _REAL, lam)
    require("poisson", "lam", lam, lambda x: (x >= 0) & (x < inf), "non-negative and finite")
    sides = _sides(lambda lam: lam, lam)
    return cast(_poisson(found, sizes, rate, sides), target)


def binomial(key: Any, n: Any, p: Any, shape: Any = None, dtype: Any = None) -> Tensor:
    """Successes in n trials of probability p, int64 unless asked otherwise.

    Parameters out of range give -1 where their values cannot be read, inside vmap for instance.
    """
    found, target = as_key("binomial", key), count_dtype("binomial", dtype)
    sizes, (trials, chance) = parameters("binomial", found, shape, _REAL, n, p)
    require_count("binomial", n)
    require("binomial", "p", p, lambda x: (x >= 0) & (x <= 1), "in [0, 1]")
    sides = _sides(lambda n, p: n * np.where(p > 0.5, 1 - p, p), n, p)
    return cast(_binomial(found, sizes, trials, chance, sides), target)


def require_count(op: str, n: Any) -> None:
    """Refuse a number of trials that is known and no whole number from 0 on."""
    what = "a whole number from 0 on"
    require(op, "n", n, lambda x: (x >= 0) & (x < inf) & (np.floor(x) == x), what)


def multinomial(key: Any, n: Any, p: Any, shape: Any = None, dtype: Any = None) -> Tensor:
    """How often each category comes up in n trials; categories are the last axis of p.

    Categories are halved again and again, and each half gets a binomial share of what is left.
    """
    found, target = as_key("multinomial", key), count_dtype("multinomial", dtype)
    trials, chances = (parameter("multinomial", found, _REAL, x) for x in (n, p))
    if chances.ndim == 0 or chances.shape[-1] == 0:
        raise ShapeError(f"multinomial: p needs a last axis of categories, got {chances.shape}")
    require_count("multinomial", n)
    require("multinomial", "p", p, lambda x: (x >= 0) & (x <= 1), "in [0, 1]")
    _require_total(p)
    batch = draw_shape("multinomial", shape, trials.shape, chances.shape[:-1])
    size = chances.shape[-1]
    levels = (size - 1).bit_length()
    weights = broadcast(chances, (*batch, size))
    unused = (1 << levels) - size
    if unused:
        gap = zeros((*batch, unused), dtype=_REAL, device=found.device)
        weights = concat([weights, gap], axis=-1)
    halves = []
    for _ in range(levels):
        pairs = reshape(weights, (*batch, weights.shape[-1] // 2, 2))
        weights = pairs[..., 0] + pairs[..., 1]
        halves.append(where(weights > 0, pairs[..., 0] / where(weights > 0, weights, 1), 0))
    counts = broadcast(expand_dims(broadcast(trials, batch), -1), (*batch, 1))
    for branch, left_share in zip(streams(found, levels), reversed(halves), strict=True):
        left = _binomial(branch, counts.shape, counts, left_share, (True, True))
        counts = reshape(stack([left, counts - left], axis=-1), (*batch, 2 * left.shape[-1]))
    return cast(counts[..., :size], target)


def _require_total(p: Any) -> None:
    values = known(p)
    if values is None:
        return
    totals = values.astype(np.float64).sum(-1)
    if (np.abs(totals - 1) > 1e-3).any():
        worst = float(totals.flat[np.abs(totals - 1).argmax()])
        raise ArgumentError(f"multinomial: probabilities must sum to 1, got {worst:.6g}")


def geometric(key: Any, p: Any, shape: Any = None, dtype: Any = None) -> Tensor:
    """Trials up to and with the first success, from 1 on; int64 unless asked otherwise."""
    found, target = as_key("geometric", key), count_dtype("geometric", dtype)
    sizes, (chance,) = parameters("geometric", found, shape, _REAL, p)
    require("geometric", "p", p, lambda x: (x > 0) & (x <= 1), "in (0, 1]")
    ratio = log(open_uniform(found, sizes, _REAL)) / log1p(-chance)
    valid = (chance > 0) & (chance <= 1)
    return cast(where(valid, floor(ratio) + 1, -1), target)
