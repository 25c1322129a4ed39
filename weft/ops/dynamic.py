"""Parts of a tensor that begin where values say: their size is known, their place need not be.

A slice with a tensor in it has to read the tensor, as its length is part of a shape. Here the
length is given apart from the start, so that the start may be computed, mapped and traced.
"""

from __future__ import annotations

from typing import Any

from weft.core.common import dtypes
from weft.core.common.handler import current
from weft.core.common.parameters import as_choice, as_integer, as_sequence
from weft.core.common.slots import public
from weft.core.common.types import Shape
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, IndexingError, ShapeError
from weft.ops.base import call
from weft.ops.creation import arange
from weft.ops.elementwise.arithmetic import where
from weft.ops.elementwise.comparison import clip
from weft.ops.families import cast
from weft.ops.gather import Gather
from weft.ops.index_update import updated
from weft.ops.indexing import getitem
from weft.ops.placement import copy_of
from weft.ops.view.reshape import reshape

_MODES = ("raise", "clip")


class DynamicStart(Gather):
    """Where a part begins: picked from all places at which it fits, so that others raise."""

    fault = "a part from {index} on does not fit: the last place where it does is {last}"


dynamic_start_op = DynamicStart()


@public
def dynamic_slice(x: Any, starts: Any, sizes: Any, /, *, mode: str = "raise") -> Tensor:
    """The part of `x` with `sizes` elements along each axis, from `starts` on, as a copy.

    `starts` has a whole number for each axis, as a Python integer or as a tensor, whose value need
    not be known: inside `compile`, `scan` or `vmap` it may be computed. One below 0 counts from the
    end. A part that does not fit raises, or is moved until it fits with `mode="clip"`.

    >>> dynamic_slice(to_tensor([1, 2, 3, 4]), [to_tensor(1)], (2,)).tolist()
    [2, 3]
    """
    tensor = to_tensor(x, beside=(starts,), op="dynamic_slice")
    lengths = _lengths("dynamic_slice", tensor.shape, as_sequence("dynamic_slice", "sizes", sizes))
    index = _index("dynamic_slice", tensor, starts, lengths, mode)
    part = getitem(tensor, index, mode="clip")
    return part if any(isinstance(entry, Tensor) for entry in index) else copy_of(part)


@public
def dynamic_update_slice(x: Any, /, update: Any, starts: Any, *, mode: str = "raise") -> Tensor:
    """A copy of `x` in which the part of `update`'s shape from `starts` on is `update`.

    `starts` and `mode` are those of `dynamic_slice`.

    >>> dynamic_update_slice(to_tensor([1, 2, 3, 4]), [9, 8], [to_tensor(2)]).tolist()
    [1, 2, 9, 8]
    """
    tensor = to_tensor(x, beside=(update, starts), op="dynamic_update_slice")
    value = to_tensor(update, beside=(tensor,), op="dynamic_update_slice")
    lengths = _lengths("dynamic_update_slice", tensor.shape, value.shape)
    index = _index("dynamic_update_slice", tensor, starts, lengths, mode)
    return updated("dynamic_update_slice", tensor, index, update, "set", mode="clip")


def _lengths(op: str, shape: Shape, sizes: tuple[Any, ...]) -> Shape:
    """How many elements of each axis a part has."""
    if len(sizes) != len(shape):
        raise ShapeError(f"{op}: a part of {len(sizes)} axes of a tensor of shape {shape}")
    lengths = tuple(as_integer(op, "sizes", size, 0) for size in sizes)
    for axis, (length, size) in enumerate(zip(lengths, shape, strict=True)):
        if length > size:
            raise ShapeError(f"{op}: axis {axis}: a part of {length} exceeds its size {size}")
    return lengths


def _index(op: str, x: Tensor, starts: Any, lengths: Shape, mode: str) -> tuple[Any, ...]:
    """An index of the part: positions for the axes from the first to the last that need them.

    All positions are in range.
    """
    as_choice(op, "mode", mode, _MODES)
    given = _starts(op, x, starts)
    firsts = [
        _first(op, axis, *each, mode)
        for axis, each in enumerate(zip(given, x.shape, lengths, strict=True))
    ]
    unknown = [axis for axis, first in enumerate(firsts) if isinstance(first, Tensor)]
    index: list[Any] = [slice(f, f + n) for f, n in zip(firsts, lengths, strict=True)]
    for axis in range(unknown[0], unknown[-1] + 1) if unknown else ():
        places = arange(lengths[axis], dtype=dtypes.int64, device=x.device) + firsts[axis]
        index[axis] = reshape(places, (lengths[axis],) + (1,) * (unknown[-1] - axis))
    return tuple(index)


def _starts(op: str, x: Tensor, starts: Any) -> list[Any]:
    """Where a part begins, along each axis."""
    if isinstance(starts, Tensor) and starts.ndim == 1:
        given = [starts[k] for k in range(starts.shape[0])]
    else:
        given = list(as_sequence(op, "starts", starts))
    if len(given) != x.ndim:
        raise ArgumentError(f"{op}: {len(given)} starts for a tensor of shape {x.shape}")
    return given


def _first(op: str, axis: int, start: Any, size: int, length: int, mode: str) -> Any:
    """The first position of a part along an axis, counted from the front."""
    if isinstance(start, Tensor) and not _is_there(start):
        return _first_unknown(op, axis, start, size, length, mode)
    begin = as_integer(op, "starts", int(start) if isinstance(start, Tensor) else start)
    begin = begin + size if begin < 0 else begin
    if mode == "clip":
        return max(0, min(begin, size - length))
    if not 0 <= begin <= size - length:
        raise IndexingError(
            f"{op}: axis {axis}: {length} elements from {int(start)} exceed its size {size}"
        )
    return begin


def _is_there(start: Tensor) -> bool:
    """Whether a start is a number that may be read for nothing."""
    is_one = start.ndim == 0 and dtypes.is_integer(start.dtype)
    return is_one and current() is None and start.owner is None and start.is_realized


def _first_unknown(op: str, axis: int, start: Tensor, size: int, length: int, mode: str) -> Tensor:
    if start.ndim or not dtypes.is_integer(start.dtype):
        raise ArgumentError(f"{op}: starts: axis {axis}: expected one integer, got {start.type}")
    given = cast(start, dtypes.int64)
    begin = where((given < 0) & (given >= -size), given + size, given)
    if mode == "clip":
        return clip(begin, 0, size - length)
    fitting = arange(size - length + 1, dtype=dtypes.int64, device=start.device)
    params = {"indexed": 1, "rest": 0, "picks": 0, "mode": f"{op}: axis {axis}"}
    return call(dynamic_start_op, (fitting, reshape(begin, (1,))), params)


__all__ = ["dynamic_slice", "dynamic_update_slice"]
