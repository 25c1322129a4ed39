"""Max pools undone: elements put back where their pool found them, zeros elsewhere."""

from __future__ import annotations

from math import prod
from typing import Any

from weft.core.common import dtypes
from weft.core.common.parameters import as_integers, shown
from weft.core.common.slots import public
from weft.core.common.types import Shape
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ops.base import call
from weft.ops.creation import zeros
from weft.ops.families import cast
from weft.ops.gather import scatter_set_op
from weft.ops.nn.pooling import image_of
from weft.ops.view.reshape import expand_dims, reshape
from weft.ops.view.window import per_axis


def _unpool(
    op: str,
    rank: int,
    x: Any,
    indices: Any,
    window: Any,
    stride: Any,
    padding: Any,
    output_size: Any,
) -> Tensor:
    image = image_of(op, x, rank, beside=(indices,))
    places = to_tensor(indices, like=image.device, op=f"{op}: indices")
    if not dtypes.is_integer(places.dtype):
        kind = dtypes.name_of(places.dtype)
        raise DTypeError(
            f"{op}: indices must be integers, got {kind}"
            f"\nhint: {op.replace('un', '')}(…, return_indices=True) gives them"
        )
    if places.shape != image.shape:
        raise ShapeError(f"{op}: indices of shape {places.shape} for a tensor of {image.shape}")
    lead, pooled = image.shape[: image.ndim - rank], image.shape[image.ndim - rank :]
    space = _space(op, pooled, window, stride, padding, output_size)
    row = (*lead, prod(pooled))
    empty = zeros((*lead, prod(space)), dtype=image.dtype, device=image.device)
    at = expand_dims(cast(reshape(places, row), dtypes.int64), -1)
    params = {"indexed": 1, "rest": 0, "picks": 1, "mode": f"{op}: indices"}
    filled = call(scatter_set_op, (empty, at, reshape(image, row)), params)
    return reshape(filled, (*lead, *space))


def _space(
    op: str, pooled: Shape, window: Any, stride: Any, padding: Any, output_size: Any
) -> Shape:
    """The sizes that were pooled: those given, or the least that the windows fit."""
    rank = len(pooled)
    widths = per_axis(op, "window", window, rank)
    strides = per_axis(op, "stride", window if stride is None else stride, rank)
    around = per_axis(op, "padding", padding, rank, 0)
    rows = zip(pooled, widths, strides, around, strict=True)
    least = tuple((n - 1) * step - 2 * p + k for n, k, step, p in rows)
    if output_size is None:
        if any(n < 0 for n in least):
            raise ShapeError(f"{op}: windows {widths} in padding {around} leave sizes {least}")
        return least
    sizes = as_integers(op, "output_size", output_size, 0)[-rank:]
    if len(sizes) != rank:
        raise ArgumentError(f"{op}: output_size: {shown(output_size)} for {rank} space axes")
    for axis, (size, near, step) in enumerate(zip(sizes, least, strides, strict=True)):
        if abs(size - near) >= step:
            raise ArgumentError(
                f"{op}: output_size: space axis {axis}: {size} is not within a stride, {step},"
                f" of {near}"
            )
    return sizes


@public
def max_unpool1d(
    x: Any, indices: Any, window: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> Tensor:
    """The elements of a max pool where its `indices` say they were, and zeros elsewhere.

    Several sizes pool to one: `output_size`, of space or of the whole result, tells them apart.

    >>> max_unpool1d([[5.0, 4.0]], [[1, 2]], 2).tolist()
    [[0.0, 5.0, 4.0, 0.0]]
    """
    return _unpool("max_unpool1d", 1, x, indices, window, stride, padding, output_size)


@public
def max_unpool2d(
    x: Any, indices: Any, window: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> Tensor:
    """The elements of a max pool over two axes where they were; see `max_unpool1d`."""
    return _unpool("max_unpool2d", 2, x, indices, window, stride, padding, output_size)


@public
def max_unpool3d(
    x: Any, indices: Any, window: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> Tensor:
    """The elements of a max pool over three axes where they were; see `max_unpool1d`."""
    return _unpool("max_unpool3d", 3, x, indices, window, stride, padding, output_size)


__all__ = ["max_unpool1d", "max_unpool2d", "max_unpool3d"]
