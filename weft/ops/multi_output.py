"""Cut one tensor into several along an axis; every part is a view."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from weft.core.common.parameters import as_integer, is_sequence
from weft.core.common.slots import public
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias
from weft.errors import AxisError, ShapeError
from weft.ops.axes import normalize_axis
from weft.ops.indexing import getitem
from weft.ops.naming import named
from weft.ops.view.slice import narrow

_MOST_PARTS = 2**20  # each part is a tensor of its own


def _cut(x: Tensor, bounds: list[int], axis: int) -> tuple[Tensor, ...]:
    """The parts between neighbouring bounds; bounds that run backwards give empty parts."""
    return tuple(narrow(x, axis, low, max(high - low, 0)) for low, high in pairwise(bounds))


def _bounds(op: str, size: int, cuts: Any) -> list[int]:
    """Positions to cut at as NumPy reads them: negative ones from the end, all clipped."""
    places = [as_integer(op, "positions to cut at", cut) for cut in cuts]
    inside = [min(max(p + size if p < 0 else p, 0), size) for p in places]
    return [0, *inside, size]


def _parts(op: str, number: Any) -> int:
    return as_integer(op, "the number of parts", number, 1, _MOST_PARTS)


@public
def split(x: Any, /, indices_or_sections: Any, axis: int = 0) -> tuple[Tensor, ...]:
    """Cut an axis into equal parts (an integer says how many) or at given positions.

    >>> [part.shape for part in split(to_tensor([1, 2, 3, 4, 5]), [2, 3])]
    [(2,), (1,), (2,)]
    """
    tensor = to_tensor(x, op="split")
    i = normalize_axis("split", axis, tensor.ndim)
    if not is_sequence(indices_or_sections):
        count = _parts("split", indices_or_sections)
        if tensor.shape[i] % count:
            raise ShapeError(
                f"split: axis {i} of size {tensor.shape[i]} has no {count} equal parts"
                "\nhint: wf.array_split and wf.chunk allow parts of different sizes"
            )
    return array_split(tensor, indices_or_sections, axis=i)


@public
def array_split(x: Any, /, indices_or_sections: Any, axis: int = 0) -> tuple[Tensor, ...]:
    """Like `split`, but parts may differ by one in size: the first ones are larger."""
    tensor = to_tensor(x, op="array_split")
    i = normalize_axis("array_split", axis, tensor.ndim)
    size = tensor.shape[i]
    if is_sequence(indices_or_sections):
        return _cut(tensor, _bounds("array_split", size, indices_or_sections), i)
    count = _parts("array_split", indices_or_sections)
    small, larger = divmod(size, count)
    return _cut(tensor, [k * small + min(k, larger) for k in range(count + 1)], i)


@public
def chunk(x: Any, /, chunks: int, axis: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` parts of equal size; the last one may be smaller."""
    tensor = to_tensor(x, op="chunk")
    i = normalize_axis("chunk", axis, tensor.ndim)
    size = tensor.shape[i]
    length = -(-size // _parts("chunk", chunks))
    if not length:
        return (alias(tensor),)
    return _cut(tensor, [*range(0, size, length), size], i)


@public
def unbind(x: Any, /, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis, without that axis."""
    tensor = to_tensor(x, op="unbind")
    i = normalize_axis("unbind", axis, tensor.ndim)
    before = (slice(None),) * i
    return tuple(getitem(tensor, (*before, k)) for k in range(tensor.shape[i]))


@public
@named
def unstack(x: Any, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis, without that axis: undoes `stack`."""
    return unbind(x, axis)


def _along(op: str, x: Any, sections: Any, axis: int, rank: int) -> tuple[Tensor, ...]:
    tensor = to_tensor(x, op=op)
    if tensor.ndim < rank:
        raise AxisError(f"{op}: needs at least {rank} axes, got shape {tensor.shape}")
    return split(tensor, sections, axis=axis)


@public
@named
def hsplit(x: Any, /, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Split the second axis (the only one where there is one)."""
    tensor = to_tensor(x, op="hsplit")
    return _along("hsplit", tensor, indices_or_sections, 0 if tensor.ndim == 1 else 1, 1)


@public
@named
def vsplit(x: Any, /, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Split the first of at least two axes."""
    return _along("vsplit", x, indices_or_sections, 0, 2)


@public
@named
def dsplit(x: Any, /, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Split the third axis."""
    return _along("dsplit", x, indices_or_sections, 2, 3)


__all__ = [
    "array_split",
    "chunk",
    "dsplit",
    "hsplit",
    "split",
    "unbind",
    "unstack",
    "vsplit",
]
