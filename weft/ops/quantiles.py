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
from weft.core.tensor.convert import holds_tensor, to_array, to_tensor, wrap
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, ShapeError
from weft.ops import reduction
from weft.ops.axes import reduced_axes
from weft.ops.elementwise.arithmetic import where
from weft.ops.families import cast
from weft.ops.often import often
from weft.ops.order import sort, take_along_axis
from weft.ops.reduction import check_ordered, kept_shape
from weft.ops.statistics import float_of, is_missing
from weft.ops.view.reshape import reshape
from weft.ops.view.transpose import moveaxis

_METHODS = ("linear", "lower", "higher", "nearest", "midpoint")


@public
@often
def quantile(
    x: Any, /, q: Any, axis: Any = None, keepdims: bool = False, *, method: str = "linear"
) -> Tensor:
    """The value below which a part `q` (0 to 1) of the elements over axes lies.

    The axes of `q` come first in the result. Between two elements `method` decides: linear, lower,
    higher, nearest (half to even) or midpoint. NaN among the elements gives NaN.
    """
    return _quantile("quantile", x, q, axis, keepdims, method, skip=False)


@public
@often
def nanquantile(
    x: Any, /, q: Any, axis: Any = None, keepdims: bool = False, *, method: str = "linear"
) -> Tensor:
    """`quantile` of the elements that are not NaN; NaN where there is none."""
    return _quantile("nanquantile", x, q, axis, keepdims, method, skip=True)


@public
@often
def percentile(
    x: Any, /, q: Any, axis: Any = None, keepdims: bool = False, *, method: str = "linear"
) -> Tensor:
    """`quantile` with `q` from 0 to 100."""
    return quantile(x, _part_of_hundred(q), axis, keepdims, method=method)


@public
@often
def nanpercentile(
    x: Any, /, q: Any, axis: Any = None, keepdims: bool = False, *, method: str = "linear"
) -> Tensor:
    """`nanquantile` with `q` from 0 to 100."""
    return nanquantile(x, _part_of_hundred(q), axis, keepdims, method=method)


def _part_of_hundred(q: Any) -> Any:
    if isinstance(q, Tensor) or holds_tensor(q):
        return to_tensor(q, op="percentile") / 100
    return to_array(q, dtypes.float64, "percentile") / 100


@public
@often
def median(x: Any, /, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The middle element over axes, or the mean of the two middle ones; NaN if there is one."""
    return _quantile("median", x, 0.5, axis, keepdims, "midpoint", skip=False)


@public
@often
def nanmedian(x: Any, /, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The median of the elements over axes that are not NaN."""
    return _quantile("nanmedian", x, 0.5, axis, keepdims, "midpoint", skip=True)


def _quantile(
    name: str, x: Any, q: Any, axis: Any, keepdims: bool, method: str, skip: bool
) -> Tensor:
    as_choice(name, "method", method, _METHODS)
    tensor, target = float_of(name, to_tensor(x, beside=(q,), op=name))
    check_ordered(name, tensor)
    axes = reduced_axes(name, axis, tensor.ndim)
    size = prod(tensor.shape[i] for i in axes)
    if size == 0:
        raise ShapeError(f"{name}: nothing to choose from (axis {axis} of shape {tensor.shape})")
    part = _fraction(name, q, tensor)
    moved = moveaxis(tensor, axes, tuple(range(-len(axes), 0))) if axes else tensor
    rest = moved.shape[: tensor.ndim - len(axes)]
    ordered = sort(reshape(moved, (*rest, size)))
    lost = cast(is_missing(ordered), dtypes.int64)
    absent = reduction.sum(lost, -1, True)
    last = cast(size - 1 - absent if skip else absent * 0 + (size - 1), dtypes.float64)
    place = where(last < 0, 0, last) * reshape(part, (-1,))
    found = _between(ordered, place, method)
    invalid = absent == size if skip else absent > 0
    found = where(place != place, np.nan, where(invalid, np.nan, found))
    kept = kept_shape(tensor.shape, axes) if as_flag(name, "keepdims", keepdims) else rest
    return cast(reshape(moveaxis(found, -1, 0), (*part.shape, *kept)), target)


def _fraction(name: str, q: Any, beside: Tensor) -> Tensor:
    """`q` in float64; known numbers outside 0 to 1 are refused, computed ones become NaN."""
    if isinstance(q, Tensor) or holds_tensor(q):
        given = cast(to_tensor(q, op=name), dtypes.float64)
        return where(given >= 0, where(given <= 1, given, np.nan), np.nan)
    known = to_array(q, dtypes.float64, name)
    if not ((known >= 0) & (known <= 1)).all():
        raise ArgumentError(f"{name}: q must lie between 0 and 1 (100 for percentiles), got {q!r}")
    return wrap(known, beside.device)


def _between(ordered: Tensor, place: Tensor, method: str) -> Tensor:
    """The value at fractional positions of the last axis, which is sorted."""
    below = cast(place, dtypes.int64)  # positions are not negative: truncation is the floor
    over = place - cast(below, dtypes.float64)
    above = below + cast(over > 0, dtypes.int64)
    if method == "lower":
        return take_along_axis(ordered, below)
    if method == "higher":
        return take_along_axis(ordered, above)
    if method == "nearest":
        odd = below - below // 2 * 2 == 1
        up = where(odd, over >= 0.5, over > 0.5)
        return take_along_axis(ordered, where(up, above, below))
    low, high = take_along_axis(ordered, below), take_along_axis(ordered, above)
    if method == "midpoint":
        return low * 0.5 + high * 0.5
    gap = high - low
    # Where both neighbours are the same infinity, or nothing is added, the lower one stands.
    stays = where(over == 0, True, gap != gap)
    return low + where(stays, 0, gap) * cast(over, ordered.dtype)


__all__ = ["median", "nanmedian", "nanpercentile", "nanquantile", "percentile", "quantile"]
