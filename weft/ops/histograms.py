"""Count: how often numbers are there, and how many elements or points fall in bins.

With a length or bins known beforehand, counting runs under every transform.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.context import default_float
from weft.core.common.parameters import (
    as_choice,
    as_finite,
    as_flag,
    as_integer,
    as_sequence,
    is_sequence,
    shown,
)
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import DType
from weft.core.tensor.convert import known, scalar, to_tensor
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.tracing import read_for_size
from weft.core.tensor.views import alias
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ops import reduction
from weft.ops.base import call
from weft.ops.creation import arange, check_memory, shape_tuple, zeros
from weft.ops.elementwise.arithmetic import where
from weft.ops.families import cast
from weft.ops.gather import scatter_add_op
from weft.ops.naming import named
from weft.ops.often import often
from weft.ops.search import searchsorted
from weft.ops.view.reshape import expand_dims, reshape

RULES = ("auto", "doane", "fd", "rice", "scott", "sqrt", "stone", "sturges")  # for bins


@public
def bincount(
    x: Any, /, weights: Any = None, minlength: int = 0, *, length: int | None = None
) -> Tensor:
    """How often each number 0, 1, 2… is in `x`, or the sum of its `weights`.

    `length` fixes the size of the result, so that the call can be traced: numbers outside are
    left out.
    """
    tensor = to_tensor(x, beside=(weights,), op="bincount")
    if tensor.ndim != 1:
        raise ShapeError(f"bincount: expected one axis, got shape {tensor.shape}")
    if not dtypes.is_integer(tensor.dtype) and not dtypes.is_bool(tensor.dtype):
        raise DTypeError(f"bincount: numbers must be integers, not {dtypes.name_of(tensor.dtype)}")
    if length is None:
        known = read_for_size(tensor, "say how many counts there are: wf.bincount(x, length=…)")
        if known.size and int(known.min()) < 0:
            raise ArgumentError(f"bincount: a number is negative ({int(known.min())})")
        least = as_integer("bincount", "minlength", minlength, low=0)
        length = max(int(known.max()) + 1 if known.size else 0, least)
    length = as_integer("bincount", "length", length, low=0)
    counted = _weights("bincount", weights, tensor)
    if weights is not None and counted.shape != tensor.shape:
        raise ShapeError(
            f"bincount: weights of shape {counted.shape} for numbers of shape {tensor.shape}"
        )
    target = dtypes.accumulation_dtype(counted.dtype)
    return _tally(tensor, cast(counted, target), length)


def _weights(op: str, weights: Any, points: Tensor) -> Tensor:
    """What each point counts: 1 if nothing is given."""
    return to_tensor(1 if weights is None else weights, like=points.device, op=op)


@often
def _tally(numbers: Tensor, weights: Tensor, length: int) -> Tensor:
    """Sum of weights for each number below `length`; numbers outside are left out."""
    places = cast(numbers, dtypes.int64)
    places = where(places < 0, length, places)
    updates = FUNCTIONS["broadcast_to"](weights, numbers.shape)
    spare = zeros((length + 1,), dtype=weights.dtype, device=numbers.device)
    params = {"indexed": 1, "rest": 0, "picks": 1, "mode": "clip"}
    made = call(scatter_add_op, (spare, expand_dims(places, -1), updates), params)
    return made[:length]


@public
@named
def histogram_bin_edges(x: Any, /, bins: Any = 10, range: Any = None) -> Tensor:
    """The edges of equal bins over `range` (from the smallest to the largest element if None).

    `bins` is how many there are, or the name of one of NumPy's rules for that, such as `auto`, `fd`
    or `sturges`, which look at the elements.
    """
    tensor = reshape(to_tensor(x, beside=(bins, range), op="histogram"), (-1,))
    if isinstance(bins, str):
        bins = _by_rule(bins, tensor, range)
    if not isinstance(bins, int | np.integer):
        edges = to_tensor(bins, beside=(tensor,), op="histogram")
        if edges.ndim != 1:
            raise ShapeError(f"histogram: edges must have one axis, got shape {edges.shape}")
        values = None if isinstance(bins, Tensor) else known(bins)
        if values is not None and (values[1:] < values[:-1]).any():
            raise ArgumentError(f"histogram: edges must rise, got {shown(bins)}")
        return alias(edges)
    count = as_integer("histogram", "bins", bins, low=1)
    dtype = tensor.dtype if dtypes.is_floating(tensor.dtype) else default_float()
    low, high = _limits(tensor, range, dtype)
    flat = low == high
    low, high = where(flat, low - 0.5, low), where(flat, high + 0.5, high)
    steps = cast(arange(count + 1, device=tensor.device), dtype) / count
    inner = low + (high - low) * steps
    return where(steps == 1, high, inner)


def _by_rule(rule: str, x: Tensor, range: Any) -> int:
    """How many bins one of NumPy's rules wants for these elements."""
    name = as_choice("histogram", "bins", rule, RULES)
    values = read_for_size(x, "say how many bins there are: wf.histogram(x, bins=10)")
    if dtypes.is_floating(x.dtype):
        values = values.astype(np.float64)
    try:
        return len(np.histogram_bin_edges(values, name, range)) - 1
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"histogram: bins={rule!r}: {error}") from None


def _limits(x: Tensor, given: Any, dtype: DType) -> tuple[Tensor, Tensor]:
    if given is not None:
        ends = as_sequence("histogram", "range", given)
        if len(ends) != 2:
            raise ArgumentError(f"histogram: range must be (low, high), got {shown(given)}")
        low, high = (
            v if isinstance(v, Tensor) else as_finite("histogram", "range", v) for v in ends
        )
        if not isinstance(low, Tensor) and not isinstance(high, Tensor) and low > high:
            raise ArgumentError(f"histogram: the range is empty ({low} to {high})")
    elif x.size == 0:
        low, high = 0.0, 1.0
    else:
        low, high = reduction.minmax(x)
    first, last = (
        cast(v, dtype) if isinstance(v, Tensor) else scalar(v, dtype, x.device, "histogram")
        for v in (low, high)
    )
    return first, last


@public
@often
def histogram(
    x: Any, /, bins: Any = 10, range: Any = None, density: bool = False, weights: Any = None
) -> tuple[Tensor, Tensor]:
    """How many elements fall in each bin, and the edges of the bins.

    The last bin contains both its edges, the others only the lower one; what lies outside, and NaN,
    is not counted. `weights` are summed instead of counting; `density` makes the integral 1. Edges
    rise: those of a tensor are not looked at. `bins` is how many there are, the edges, or the name
    of a rule, as for `histogram_bin_edges`.
    """
    tensor = reshape(to_tensor(x, beside=(bins, range, weights), op="histogram"), (-1,))
    if isinstance(bins, str) and weights is not None:
        raise ArgumentError(f"histogram: bins={bins!r}: rules are for elements without weights")
    edges = histogram_bin_edges(tensor, bins, range)
    weight = _weights("histogram", weights, tensor)
    if weights is not None:
        weight = reshape(weight, (-1,))
        if weight.shape != tensor.shape:
            raise ShapeError(f"histogram: {weight.shape[0]} weights for {tensor.shape[0]} elements")
    counts = _tally(_bins(tensor, edges), weight, edges.shape[0] - 1)
    if as_flag("histogram", "density", density):
        widths = edges[1:] - edges[:-1]
        counts = counts / widths / reduction.sum(counts)
    return counts, edges


def _bins(x: Tensor, edges: Tensor) -> Tensor:
    """The bin of each element; -1 for those outside."""
    count = edges.shape[0] - 1
    place = searchsorted(edges, x, side="right") - 1
    return where(x == edges[-1], count - 1, where(place >= count, -1, place))


@public
@named
def histogram2d(
    x: Any, /, y: Any, bins: Any = 10, range: Any = None, density: bool = False, weights: Any = None
) -> tuple[Tensor, Tensor, Tensor]:
    """How many points (x, y) fall in each cell, and the edges along x and y."""
    beside = (x, y, bins, range, weights)
    first, second = (reshape(to_tensor(v, beside=beside, op="histogram2d"), (-1,)) for v in (x, y))
    if first.shape != second.shape:
        raise ShapeError(f"histogram2d: x has {first.shape[0]} elements, y {second.shape[0]}")
    pair = bins if isinstance(bins, tuple | list) and len(bins) == 2 else (bins, bins)
    counts, edges = _cells("histogram2d", (first, second), pair, range, density, weights)
    return counts, edges[0], edges[1]


@public
@named
def histogramdd(
    sample: Any, /, bins: Any = 10, range: Any = None, density: bool = False, weights: Any = None
) -> tuple[Tensor, list[Tensor]]:
    """How many points fall in each cell of a grid, and the edges along each of its axes.

    `sample` has a point in each row, or is a list with the coordinates along each axis. `bins` is a
    number for all axes, or for each axis a number or its edges; `range` has a (low, high) for each.
    """
    columns = _columns(sample, bins, range, weights)
    each = as_sequence("histogramdd", "bins", bins) if is_sequence(bins) else None
    if each is not None and len(each) != len(columns):
        raise ArgumentError(f"histogramdd: bins for {len(each)} axes, points have {len(columns)}")
    given = (bins,) * len(columns) if each is None else each
    return _cells("histogramdd", columns, given, range, density, weights)


def _columns(sample: Any, *beside: Any) -> tuple[Tensor, ...]:
    """The coordinates along each axis: columns of a matrix, or the entries of a list."""
    points = to_tensor(sample, beside=beside, op="histogramdd")
    if points.ndim not in (1, 2):
        raise ShapeError(f"histogramdd: a row for each point is expected, got {points.shape}")
    if points.ndim == 1:
        return (points,)
    along = 1 if hasattr(sample, "shape") else 0
    if not points.shape[along]:
        raise ShapeError(f"histogramdd: points have no coordinates (shape {points.shape})")
    return tuple(FUNCTIONS["unbind"](points, along))


def _cells(
    name: str, columns: tuple[Tensor, ...], bins: Any, range: Any, density: Any, weights: Any
) -> tuple[Tensor, list[Tensor]]:
    rank = len(columns)
    ranges = (None,) * rank if range is None else as_sequence(name, "range", range)
    if len(ranges) != rank:
        raise ArgumentError(f"{name}: range must have {rank} ranges, got {shown(range)}")
    edges = [histogram_bin_edges(*each) for each in zip(columns, bins, ranges, strict=True)]
    shape = shape_tuple(name, tuple(max(e.shape[0] - 1, 0) for e in edges))
    check_memory(name, shape, dtypes.int64)
    weight = _weights(name, weights, columns[0])
    if weights is not None and weight.shape != columns[0].shape:
        raise ShapeError(f"{name}: weights {weight.shape} for {columns[0].shape[0]} points")
    cell: Any = 0
    for column, edge, size in zip(columns, edges, shape, strict=True):
        place = _bins(column, edge)
        cell = where(where(place < 0, True, cell < 0), -1, cell * size + place)
    counts = reshape(_tally(cell, weight, prod(shape)), shape)
    if as_flag(name, "density", density):
        total = reduction.sum(counts)
        for i, edge in enumerate(edges):
            widths = edge[1:] - edge[:-1]
            counts = counts / reshape(widths, (-1, *(1,) * (rank - 1 - i)))
        counts = counts / total
    return counts, edges


__all__ = [
    "bincount",
    "histogram",
    "histogram2d",
    "histogram_bin_edges",
    "histogramdd",
]
