"""Quantiles, percentiles and medians of axes, and versions that skip NaN.

All are compositions of sorts; places between two elements are computed in float64.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.parameters import as_choice, as_flag
from weft.core.common.slots import public
from weft.core.common.types import Shape
from weft.core.tensor.convert import holds_tensor, to_array, to_tensor, wrap
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, ShapeError
from weft.ops import reduction
from weft.ops.axes import reduced_axes
from weft.ops.elementwise.arithmetic import where
from weft.ops.families import cast
from weft.ops.often import often
from weft.ops.order import argsort, cumsum, sort, take_along_axis
from weft.ops.reduction import check_ordered, kept_shape
from weft.ops.statistics import float_of, is_missing, weights_of_elements
from weft.ops.view.reshape import expand_dims, reshape
from weft.ops.view.transpose import moveaxis

# NumPy's alpha and beta, which say how far the ends of the law lie outside of the first and last
# element (Hyndman and Fan, "Sample quantiles in statistical packages", 1996).
_SPREAD = {
    "interpolated_inverted_cdf": (0.0, 1.0),
    "hazen": (0.5, 0.5),
    "weibull": (0.0, 0.0),
    "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
}
_STEPS = {"inverted_cdf": 1.0, "averaged_inverted_cdf": 1.0, "closest_observation": 1.5}
_METHODS = ("linear", "lower", "higher", "nearest", "midpoint", *_STEPS, *_SPREAD)


@public
@often
def quantile(
    x: Any,
    /,
    q: Any,
    axis: Any = None,
    keepdims: bool = False,
    *,
    method: str = "linear",
    weights: Any = None,
) -> Tensor:
    """The value below which a part `q` (0 to 1) of the elements over axes lies.

    The axes of `q` come first in the result. Between two elements `method` decides: linear, lower,
    higher, nearest (half to even), midpoint, or another of NumPy's. NaN among the elements gives
    NaN. `weights`, of all elements or along the axes, say how much each counts; as in NumPy they
    need the method "inverted_cdf": the first element up to which the weights reach that part.

    >>> quantile([1.0, 2.0, 3.0], 0.5, method="inverted_cdf", weights=[1, 1, 4]).item()
    3.0
    """
    return _quantile("quantile", x, q, axis, keepdims, method, weights)


@public
@often
def nanquantile(
    x: Any,
    /,
    q: Any,
    axis: Any = None,
    keepdims: bool = False,
    *,
    method: str = "linear",
    weights: Any = None,
) -> Tensor:
    """`quantile` of the elements that are not NaN; NaN where there is none."""
    return _quantile("nanquantile", x, q, axis, keepdims, method, weights, skip=True)


@public
@often
def percentile(
    x: Any,
    /,
    q: Any,
    axis: Any = None,
    keepdims: bool = False,
    *,
    method: str = "linear",
    weights: Any = None,
) -> Tensor:
    """`quantile` with `q` from 0 to 100."""
    return quantile(x, _part_of_hundred(q), axis, keepdims, method=method, weights=weights)


@public
@often
def nanpercentile(
    x: Any,
    /,
    q: Any,
    axis: Any = None,
    keepdims: bool = False,
    *,
    method: str = "linear",
    weights: Any = None,
) -> Tensor:
    """`nanquantile` with `q` from 0 to 100."""
    return nanquantile(x, _part_of_hundred(q), axis, keepdims, method=method, weights=weights)


def _part_of_hundred(q: Any) -> Any:
    if isinstance(q, Tensor) or holds_tensor(q):
        return to_tensor(q, op="percentile") / 100
    return to_array(q, dtypes.float64, "percentile") / 100


@public
@often
def median(x: Any, /, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The middle element over axes, or the mean of the two middle ones; NaN if there is one."""
    return _quantile("median", x, 0.5, axis, keepdims, "midpoint")


@public
@often
def nanmedian(x: Any, /, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The median of the elements over axes that are not NaN."""
    return _quantile("nanmedian", x, 0.5, axis, keepdims, "midpoint", skip=True)


def _quantile(
    name: str,
    x: Any,
    q: Any,
    axis: Any,
    keepdims: bool,
    method: str,
    weights: Any = None,
    skip: bool = False,
) -> Tensor:
    as_choice(name, "method", method, _METHODS)
    if weights is not None and method != "inverted_cdf":
        raise ArgumentError(f"{name}: weights need the method 'inverted_cdf', got {method!r}")
    tensor, target = float_of(name, to_tensor(x, beside=(q, weights), op=name))
    check_ordered(name, tensor)
    axes = reduced_axes(name, axis, tensor.ndim)
    if prod(tensor.shape[i] for i in axes) == 0:
        raise ShapeError(f"{name}: nothing to choose from (axis {axis} of shape {tensor.shape})")
    part = _fraction(name, q, tensor)
    flat = reshape(part, (-1,))
    rows = _rows(tensor, axes)
    if weights is None:
        found = _of_rows(rows, flat, method, skip)
    else:
        heavy = _weights(name, weights, tensor, axis)
        found = _of_weighted_rows(rows, _rows(heavy, axes), flat, skip)
    kept = rows.shape[:-1]
    if as_flag(name, "keepdims", keepdims):
        kept = kept_shape(tensor.shape, axes)
    return cast(reshape(moveaxis(found, -1, 0), (*part.shape, *kept)), target)


def _rows(x: Tensor, axes: Shape) -> Tensor:
    """`x` with these axes (negative) as one, the last."""
    moved = moveaxis(x, axes, tuple(range(-len(axes), 0))) if axes else x
    rest = moved.shape[: x.ndim - len(axes)]
    return reshape(moved, (*rest, prod(x.shape[i] for i in axes)))


def _of_rows(rows: Tensor, part: Tensor, method: str, skip: bool) -> Tensor:
    """Quantiles (…, q) of rows (…, n) whose elements count the same."""
    size = rows.shape[-1]
    ordered = sort(rows)
    absent = reduction.sum(cast(is_missing(ordered), dtypes.int64), -1, True)
    last = cast(size - 1 - absent if skip else absent * 0 + (size - 1), dtypes.float64)
    last = where(last < 0, 0, last)
    found = _between(ordered, _place(part, last, method), last, method)
    invalid = absent == size if skip else absent > 0
    return where(part != part, np.nan, where(invalid, np.nan, found))


def _weights(name: str, weights: Any, tensor: Tensor, axis: Any) -> Tensor:
    """Weights of all elements, in float64; known ones below 0 are refused."""
    given = to_tensor(weights, beside=(tensor,), op=f"{name}: weights")
    check_ordered(name, given)
    if not isinstance(weights, Tensor) and not holds_tensor(weights):
        known = to_array(weights, dtypes.float64, name)
        if not (known >= 0).all():
            raise ArgumentError(f"{name}: weights must be 0 or more, got {known.min()}")
    return weights_of_elements(name, cast(given, dtypes.float64), tensor.shape, axis)


def _of_weighted_rows(rows: Tensor, weights: Tensor, part: Tensor, skip: bool) -> Tensor:
    """Quantiles (…, q) of rows (…, n): where the running sum of weights reaches each part.

    Nothing but weights 0 gives NaN, and so do weights that are NaN or infinite.
    """
    size, order = rows.shape[-1], argsort(rows)
    ordered, heavy = take_along_axis(rows, order), take_along_axis(weights, order)
    missing = is_missing(ordered)
    heavy = where(missing, 0, heavy) if skip else heavy
    running = cumsum(heavy, -1)
    total = running[..., -1:]
    reached = expand_dims(running / total, -2)
    # What has no weight is left out at the beginning, where a part 0 would take it.
    before = where(reached == 0, True, reached < expand_dims(part, -1))
    place = reduction.sum(cast(before, dtypes.int64), -1)
    found = take_along_axis(ordered, where(place < size, place, size - 1))
    invalid = reduction.all(missing, -1, True) if skip else reduction.any(missing, -1, True)
    wrong = where(total > 0, total == np.inf, True)
    wrong = where(reduction.any(heavy < 0, -1, True), True, wrong)
    return where(part != part, np.nan, where(invalid, np.nan, where(wrong, np.nan, found)))


def _fraction(name: str, q: Any, beside: Tensor) -> Tensor:
    """`q` in float64; known numbers outside 0 to 1 are refused, computed ones become NaN."""
    if isinstance(q, Tensor) or holds_tensor(q):
        given = cast(to_tensor(q, op=name), dtypes.float64)
        return where(given >= 0, where(given <= 1, given, np.nan), np.nan)
    known = to_array(q, dtypes.float64, name)
    if not ((known >= 0) & (known <= 1)).all():
        raise ArgumentError(f"{name}: q must lie between 0 and 1 (100 for percentiles), got {q!r}")
    return wrap(known, beside.device)


def _place(part: Tensor, last: Tensor, method: str) -> Tensor:
    """Fractional positions of parts in rows that end at `last`, which may lie outside of them."""
    if method in _STEPS:
        return (last + 1) * part - _STEPS[method]
    if method in _SPREAD:
        alpha, beta = _SPREAD[method]
        return (last + 1) * part + (alpha + part * (1 - alpha - beta)) - 1
    return last * part


def _between(ordered: Tensor, wanted: Tensor, last: Tensor, method: str) -> Tensor:
    """The value at fractional positions of the last axis, which is sorted."""
    place = where(wanted > 0, where(wanted < last, wanted, last), 0)
    below = cast(place, dtypes.int64)  # positions are not negative: truncation is the floor
    over = place - cast(below, dtypes.float64)
    above = below + cast(over > 0, dtypes.int64)
    odd = below - below // 2 * 2 == 1
    if method == "lower":
        return take_along_axis(ordered, below)
    if method in ("higher", "inverted_cdf"):
        return take_along_axis(ordered, above)
    if method == "nearest":
        up = where(odd, over >= 0.5, over > 0.5)
        return take_along_axis(ordered, where(up, above, below))
    if method == "closest_observation":
        stays = where(odd, over == 0, wanted < 0)
        return take_along_axis(ordered, where(stays, below, _next(below, last)))
    if method == "averaged_inverted_cdf":
        whole = where(wanted >= 0, over == 0, False)
        above = where(whole, _next(below, last), above)
        below = where(whole, below, above)
    low, high = take_along_axis(ordered, below), take_along_axis(ordered, above)
    if method in ("midpoint", "averaged_inverted_cdf"):
        return low * 0.5 + high * 0.5
    gap = high - low
    # Where both neighbours are the same infinity, or nothing is added, the lower one stands.
    stays = where(over == 0, True, gap != gap)
    part, rest = cast(over, ordered.dtype), cast(1 - over, ordered.dtype)
    # A gap may be past what the dtype holds, and starts at an infinity where the result is one.
    return where(gap == np.inf, low * rest + high * part, low + where(stays, 0, gap) * part)


def _next(place: Tensor, last: Tensor) -> Tensor:
    end = cast(last, dtypes.int64)
    return where(place < end, place + 1, end)


__all__ = ["median", "nanmedian", "nanpercentile", "nanquantile", "percentile", "quantile"]
