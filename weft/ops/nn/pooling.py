"""Pooling: sliding windows reduced to one number each.

Every pool is a `Window` and a reduction; adaptive pools gather windows of unequal size along one
axis after the other, which is the same since their windows are boxes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.parameters import as_flag, is_sequence, shown
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import DType, Shape
from weft.core.tensor.convert import to_tensor, wrap
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ops.base import call
from weft.ops.creation import arange, check_memory
from weft.ops.families import cast
from weft.ops.gather import gather_op
from weft.ops.nn.correlation import padded
from weft.ops.reduction import reduce_max_op, reduce_min_op, reduce_sum_op
from weft.ops.statistics import float_of
from weft.ops.view.reshape import reshape
from weft.ops.view.window import per_axis, window_op


def image_of(op: str, x: Any, rank: int, beside: tuple[Any, ...] = ()) -> Tensor:
    """Input with `rank` space axes after its features (and batch, if any)."""
    tensor = to_tensor(x, beside=beside, op=op)
    if tensor.ndim not in (rank + 1, rank + 2):
        raise ShapeError(
            f"{op}: expected (N, C, space…) or (C, space…) with {rank} space axes, got shape"
            f" {tensor.shape}"
        )
    return tensor


class _Windows:
    """Where windows lie on padded axes: `high` padding makes room for those `ceil_mode` adds."""

    def __init__(
        self,
        op: str,
        space: Shape,
        window: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        ceil_mode: bool,
    ) -> None:
        rank = len(space)
        self.window = per_axis(op, "window", window, rank)
        self.strides = per_axis(op, "stride", window if stride is None else stride, rank)
        self.dilation = per_axis(op, "dilation", dilation, rank)
        self.low = per_axis(op, "padding", padding, rank, 0)
        self.space = space
        if any(2 * p > k for p, k in zip(self.low, self.window, strict=True)):
            raise ArgumentError(
                f"{op}: padding {self.low} is more than half of the window {self.window}"
            )
        self.places = tuple(self._count(op, k, ceil_mode) for k in range(rank))
        self.high = tuple(
            (count - 1) * step + (k - 1) * d + 1 - n - p
            for count, step, k, d, n, p in zip(
                self.places, self.strides, self.window, self.dilation, space, self.low, strict=True
            )
        )  # negative where the last elements belong to no window

    def _count(self, op: str, axis: int, ceil_mode: bool) -> int:
        size, step, below = self.space[axis], self.strides[axis], self.low[axis]
        span = (self.window[axis] - 1) * self.dilation[axis] + 1
        room = size + 2 * below - span
        if room < 0 and not (ceil_mode and room > -step):
            raise ShapeError(
                f"{op}: space axis {axis}: a window of {span} does not fit size {size} padded by"
                f" {below}"
            )
        count = (-(-room // step) if ceil_mode else room // step) + 1
        if ceil_mode and (count - 1) * step >= size + below:
            count -= 1  # the last window would start beyond the elements
        return count

    def of(self, x: Tensor, fill: Any) -> Tensor:
        """All windows of `x`, with their own axes last."""
        params = {"window": self.window, "strides": self.strides, "dilation": self.dilation}
        return call(window_op, (padded(x, self.low, self.high, fill=fill),), params)

    def counts(self, include_pad: bool) -> Any:
        """How many elements each window has; padding counts as far as it was asked for."""
        total: Any = np.ones(())
        for axis, size in enumerate(self.space):
            start = np.arange(self.places[axis]) * self.strides[axis] - self.low[axis]
            end = np.minimum(start + self.window[axis], size + self.low[axis])
            if not include_pad:
                start, end = np.maximum(start, 0), np.minimum(end, size)
            total = np.multiply.outer(total, end - start)
        return total


def _max_pool(
    op: str,
    rank: int,
    x: Any,
    window: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    return_indices: bool,
) -> Any:
    image = image_of(op, x, rank)
    if dtypes.is_complex(image.dtype):
        raise DTypeError(f"{op}: complex numbers have no order")
    space = image.shape[image.ndim - rank :]
    windows = _Windows(
        op, space, window, stride, padding, dilation, as_flag(op, "ceil_mode", ceil_mode)
    )
    found = windows.of(image, _lowest(image))
    top = call(reduce_max_op, (found,), {"axes": tuple(range(-rank, 0))})
    if not as_flag(op, "return_indices", return_indices):
        return top
    return top, _first_places(windows, found, top)


def _first_places(windows: _Windows, found: Tensor, top: Tensor) -> Tensor:
    """Where in flattened space the first element of each window is that is as large as `top`."""
    rank, count = len(windows.space), prod(windows.space)
    largest = found == reshape(top, (*top.shape, *(1,) * rank))
    if dtypes.is_floating(found.dtype):
        largest = largest | (found != found)
    places = windows.of(reshape(arange(count, device=found.device), windows.space), count)
    here = FUNCTIONS["where"](largest, places, count)  # padding is past all elements
    return call(reduce_min_op, (here,), {"axes": tuple(range(-rank, 0))})


def _lowest(x: Tensor) -> Any:
    if dtypes.is_floating(x.dtype):
        return -np.inf
    return dtypes.iinfo(x.dtype).min if dtypes.is_integer(x.dtype) else False


def _avg_pool(
    op: str,
    rank: int,
    x: Any,
    window: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
) -> Tensor:
    image, target = _floats(op, image_of(op, x, rank))
    space = image.shape[image.ndim - rank :]
    windows = _Windows(op, space, window, stride, padding, 1, as_flag(op, "ceil_mode", ceil_mode))
    total = call(reduce_sum_op, (windows.of(image, 0),), {"axes": tuple(range(-rank, 0))})
    counts = windows.counts(as_flag(op, "count_include_pad", count_include_pad))
    if (counts == prod(windows.window)).all():
        return cast(total / prod(windows.window), target)
    return cast(total / wrap(counts.astype(image.dtype), image.device), target)


def _floats(op: str, x: Tensor) -> tuple[Tensor, DType]:
    """What means are computed in, wide enough for sums, and their dtype."""
    if not dtypes.is_inexact(x.dtype):
        raise DTypeError(
            f"{op}: a mean needs floats, got {dtypes.name_of(x.dtype)}\nhint: cast with x.astype(…)"
        )
    return float_of(op, x)


@public
def max_pool1d(
    x: Any,
    window: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window over the last axis; `stride` is the window by default.

    With `return_indices` the result is a pair: the elements, and their positions in flattened
    space, which `max_unpool1d` takes.

    >>> [t.tolist() for t in max_pool1d([[1.0, 5.0, 4.0, 2.0]], 2, return_indices=True)]
    [[[5.0, 4.0]], [[1, 2]]]
    """
    return _max_pool(
        "max_pool1d", 1, x, window, stride, padding, dilation, ceil_mode, return_indices
    )


@public
def max_pool2d(
    x: Any,
    window: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window over the last two axes; see `max_pool1d`."""
    return _max_pool(
        "max_pool2d", 2, x, window, stride, padding, dilation, ceil_mode, return_indices
    )


@public
def max_pool3d(
    x: Any,
    window: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window over the last three axes; see `max_pool1d`."""
    return _max_pool(
        "max_pool3d", 3, x, window, stride, padding, dilation, ceil_mode, return_indices
    )


@public
def avg_pool1d(
    x: Any,
    window: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window over the last axis; padding counts unless told otherwise."""
    return _avg_pool("avg_pool1d", 1, x, window, stride, padding, ceil_mode, count_include_pad)


@public
def avg_pool2d(
    x: Any,
    window: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window over the last two axes; see `avg_pool1d`."""
    return _avg_pool("avg_pool2d", 2, x, window, stride, padding, ceil_mode, count_include_pad)


@public
def avg_pool3d(
    x: Any,
    window: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window over the last three axes; see `avg_pool1d`."""
    return _avg_pool("avg_pool3d", 3, x, window, stride, padding, ceil_mode, count_include_pad)


def taken(x: Tensor, axis: int, positions: Any) -> Tensor:
    """Elements at constant positions of one axis, which becomes the axes of `positions`."""
    indices = wrap(np.ascontiguousarray(positions, np.int64)[..., None], x.device)
    params = {
        "indexed": 1,
        "rest": x.ndim - axis - 1,
        "picks": np.ndim(positions),
        "mode": "raise",
    }
    return call(gather_op, (x, indices), params)


def _adaptive(
    op: str, rank: int, x: Any, size: Any, reduce_axis: Callable[[Tensor, int, int], Tensor]
) -> Tensor:
    """Reduce each space axis to the wanted size, one after the other."""
    image = image_of(op, x, rank)
    listed = tuple(size) if is_sequence(size) else (size,) * rank
    if len(listed) != rank:
        raise ShapeError(f"{op}: size must be one number or {rank}, got {shown(size)}")
    first = image.ndim - rank
    filled = [image.shape[first + k] if n is None else n for k, n in enumerate(listed)]
    wanted = per_axis(op, "size", filled, rank)
    check_memory(op, wanted, dtypes.int64)  # each place of the result has a position
    for k, count in enumerate(wanted):
        if image.shape[first + k] == 0:
            raise ShapeError(f"{op}: space axis {k} is empty (shape {image.shape})")
        if count != image.shape[first + k]:
            image = reduce_axis(image, first + k, count)
    return alias(image) if image is x else image


def _bounds(size: int, count: int) -> tuple[Any, Any]:
    """First and past-the-last element of each of `count` windows that cover `size`."""
    i = np.arange(count)
    return i * size // count, -(-(i + 1) * size // count)


def _spans(size: int, count: int) -> tuple[Any, Any]:
    """Positions of each window, repeated at its end to one length, and which are its own."""
    start, end = _bounds(size, count)
    offsets = np.arange((end - start).max())
    positions = start[:, None] + offsets
    return np.minimum(positions, end[:, None] - 1), positions < end[:, None]


def _largest_along(x: Tensor, axis: int, count: int) -> Tensor:
    positions, _ = _spans(x.shape[axis], count)  # repeating an element does not change the maximum
    found = taken(x, axis, positions)
    return call(reduce_max_op, (found,), {"axes": (axis + 1 - found.ndim,)})


def mean_along(x: Tensor, axis: int, count: int) -> Tensor:
    """Means of `count` windows that cover one axis as evenly as can be."""
    size = x.shape[axis]
    if size % count == 0:
        found = reshape(x, (*x.shape[:axis], count, size // count, *x.shape[axis + 1 :]))
        total = call(reduce_sum_op, (found,), {"axes": (axis + 1 - found.ndim,)})
        return total / (size // count)
    positions, own = _spans(size, count)
    found = taken(x, axis, positions)
    rest = (1,) * (x.ndim - axis - 1)
    mask = wrap(own.reshape(own.shape + rest), x.device)
    masked = FUNCTIONS["where"](mask, found, 0)
    total = call(reduce_sum_op, (masked,), {"axes": (axis + 1 - found.ndim,)})
    return total / wrap(own.sum(1).astype(x.dtype).reshape((count, *rest)), x.device)


def _adaptive_avg(op: str, rank: int, x: Any, size: Any) -> Tensor:
    image, target = _floats(op, image_of(op, x, rank))
    return cast(_adaptive(op, rank, image, size, mean_along), target)


_adaptive_max = partial(_adaptive, reduce_axis=_largest_along)


@public
def adaptive_avg_pool1d(x: Any, size: Any) -> Tensor:
    """Means over as many even windows of the last axis as `size` says; None keeps the axis."""
    return _adaptive_avg("adaptive_avg_pool1d", 1, x, size)


@public
def adaptive_avg_pool2d(x: Any, size: Any) -> Tensor:
    """Means over even windows of the last two axes; see `adaptive_avg_pool1d`."""
    return _adaptive_avg("adaptive_avg_pool2d", 2, x, size)


@public
def adaptive_avg_pool3d(x: Any, size: Any) -> Tensor:
    """Means over even windows of the last three axes; see `adaptive_avg_pool1d`."""
    return _adaptive_avg("adaptive_avg_pool3d", 3, x, size)


@public
def adaptive_max_pool1d(x: Any, size: Any) -> Tensor:
    """Maxima over as many even windows of the last axis as `size` says; None keeps the axis."""
    return _adaptive_max("adaptive_max_pool1d", 1, x, size)


@public
def adaptive_max_pool2d(x: Any, size: Any) -> Tensor:
    """Maxima over even windows of the last two axes; see `adaptive_max_pool1d`."""
    return _adaptive_max("adaptive_max_pool2d", 2, x, size)


@public
def adaptive_max_pool3d(x: Any, size: Any) -> Tensor:
    """Maxima over even windows of the last three axes; see `adaptive_max_pool1d`."""
    return _adaptive_max("adaptive_max_pool3d", 3, x, size)


__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
]
