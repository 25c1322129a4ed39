"""How a tensor lies in its storage: shape, strides and offset, all counted in elements.

A `Layout` is a value. Each method gives the layout of a view, so transpose, flip, narrow and their
kin never touch memory. Strides may be negative (flip) or 0 (broadcast).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from operator import index

from weft.core.common.types import Array, Shape
from weft.errors import AxisError, IndexingError, NotContiguousError, ShapeError


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each element of a view lies: element `i` is at `offset + Σ i[axis]·strides[axis]`.

    >>> Layout.contiguous_of((2, 3, 4)).strides
    (12, 4, 1)
    >>> Layout.contiguous_of((4,)).flip(0)
    Layout(shape=(4,), strides=(-1,), offset=3)
    """

    shape: Shape
    strides: Shape
    offset: int = 0

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.strides):
            raise ShapeError(
                f"layout: shape {self.shape} and strides {self.strides} differ in rank"
            )
        if any(size < 0 for size in self.shape):
            raise ShapeError(f"layout: a size is negative (shape {self.shape})")

    @classmethod
    def contiguous_of(cls, shape: Sequence[int], offset: int = 0) -> Layout:
        """The row-major layout of `shape`."""
        sizes = tuple(index(size) for size in shape)
        return cls(sizes, _packed_strides(sizes, 1), offset)

    @classmethod
    def of_array(cls, array: Array, root_address: int) -> Layout:
        """The layout of a NumPy view, its offset counted from `root_address` (a byte address)."""
        itemsize = array.itemsize
        distance = array.__array_interface__["data"][0] - root_address
        if array.size == 0:
            # NumPy may place an empty view anywhere; no element is ever read there.
            distance -= distance % itemsize
        if distance % itemsize or any(stride % itemsize for stride in _meaningful(array)):
            raise NotContiguousError(
                f"layout: elements of {itemsize} bytes do not lie on whole steps (offset "
                f"{distance} bytes, strides {array.strides} bytes)\n"
                "hint: copy the array first, np.ascontiguousarray(array)"
            )
        strides = tuple(stride // itemsize for stride in array.strides)
        return cls(array.shape, strides, distance // itemsize)

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie densely in row-major order; axes of size 1 do not matter."""
        expected = 1
        contiguous = True
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size == 0:
                return True
            if size != 1:
                contiguous = contiguous and stride == expected
                expected *= size
        return contiguous

    def transpose(self, first: int, second: int) -> Layout:
        """Swap two axes."""
        axes = list(range(self.rank))
        first, second = self._axis("transpose", first), self._axis("transpose", second)
        axes[first], axes[second] = second, first
        return self.permute(axes)

    def permute(self, axes: Sequence[int]) -> Layout:
        """Reorder the axes: axis `i` of the result is axis `axes[i]` of this layout."""
        order = tuple(self._axis("permute", axis) for axis in axes)
        if len(order) != self.rank or len(set(order)) != self.rank:
            raise AxisError(
                f"permute: axes {tuple(axes)} do not name each of {self.rank} axes once"
            )
        return Layout(
            tuple(self.shape[axis] for axis in order),
            tuple(self.strides[axis] for axis in order),
            self.offset,
        )

    def unsqueeze(self, axis: int) -> Layout:
        """Insert an axis of size 1 before `axis`; its stride is the next stride × its size."""
        axis = _normalize("unsqueeze", axis, self.rank + 1)
        stride = self.strides[axis] * self.shape[axis] if axis < self.rank else 1
        return Layout(
            (*self.shape[:axis], 1, *self.shape[axis:]),
            (*self.strides[:axis], stride, *self.strides[axis:]),
            self.offset,
        )

    def squeeze(self, axis: int) -> Layout:
        """Remove an axis of size 1."""
        axis = self._axis("squeeze", axis)
        if self.shape[axis] != 1:
            raise ShapeError(
                f"squeeze: axis {axis}: size is {self.shape[axis]}, not 1 (shape {self.shape})"
            )
        return Layout(
            self.shape[:axis] + self.shape[axis + 1 :],
            self.strides[:axis] + self.strides[axis + 1 :],
            self.offset,
        )

    def narrow(self, axis: int, start: int, length: int) -> Layout:
        """Keep `length` elements of an axis, from `start` on."""
        return self._sliced("narrow", axis, start, length, 1)

    def slice(self, axis: int, start: int, length: int, step: int = 1) -> Layout:
        """Keep `length` elements of an axis: `start`, `start + step`, … `step` may be negative."""
        return self._sliced("slice", axis, start, length, step)

    def flip(self, axis: int) -> Layout:
        """Reverse an axis: its stride is negated and the offset moves to its last element."""
        axis = self._axis("flip", axis)
        size = self.shape[axis]
        return self._sliced("flip", axis, max(size - 1, 0), size, -1)

    def broadcast_to(self, shape: Sequence[int]) -> Layout:
        """Repeat axes of size 1, and new leading axes, with stride 0."""
        target = tuple(index(size) for size in shape)
        added = len(target) - self.rank
        if added < 0 or any(
            size not in (1, wanted) for size, wanted in zip(self.shape, target[added:], strict=True)
        ):
            raise ShapeError(f"broadcast_to: cannot broadcast shape {self.shape} to {target}")
        strides = tuple(
            stride if size == wanted else 0
            for size, wanted, stride in zip(self.shape, target[added:], self.strides, strict=True)
        )
        return Layout(target, (0,) * added + strides, self.offset)

    def reshape(self, shape: Sequence[int]) -> Layout | None:
        """The layout of a zero-copy reshape, or None where only a copy can have that shape."""
        target = tuple(index(size) for size in shape)
        if any(size < 0 for size in target) or prod(target) != self.size:
            raise ShapeError(
                f"reshape: shape {self.shape} has {self.size} elements, {target} does not"
            )
        if self.size == 0:
            return Layout.contiguous_of(target, self.offset)
        strides = _split_runs(_merge_runs(self.shape, self.strides), target)
        return None if strides is None else Layout(target, strides, self.offset)

    def view(self, shape: Sequence[int]) -> Layout:
        """The layout of a reshape that must not copy; raises where `reshape` would need to."""
        layout = self.reshape(shape)
        if layout is None:
            raise NotContiguousError(
                f"view: shape {self.shape} with strides {self.strides} cannot be viewed as "
                f"{tuple(shape)} without a copy\nhint: use reshape, which copies where it must"
            )
        return layout

    def _axis(self, op: str, axis: int) -> int:
        return _normalize(op, axis, self.rank)

    def _sliced(self, op: str, axis: int, start: int, length: int, step: int) -> Layout:
        axis = self._axis(op, axis)
        size, stride = self.shape[axis], self.strides[axis]
        if step == 0:
            raise IndexingError(f"{op}: axis {axis}: step is 0")
        last = start + (length - 1) * step
        inside = 0 <= start < size and 0 <= last < size if length else 0 <= start <= size
        if length < 0 or not inside:
            raise IndexingError(
                f"{op}: axis {axis}: start {start}, length {length}, step {step} leaves "
                f"the size {size} (shape {self.shape})"
            )
        return Layout(
            (*self.shape[:axis], length, *self.shape[axis + 1 :]),
            (*self.strides[:axis], stride * step, *self.strides[axis + 1 :]),
            # An empty view reads nothing; leaving its offset alone keeps it inside the storage.
            self.offset + start * stride if length else self.offset,
        )


def _normalize(op: str, axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise AxisError(f"{op}: axis {axis} is out of range (rank {rank})")
    return axis % rank


def _meaningful(array: Array) -> list[int]:
    """The byte strides that some index is ever multiplied with."""
    if array.size == 0:
        return []
    pairs = zip(array.shape, array.strides, strict=True)
    return [stride for size, stride in pairs if size != 1]


def _packed_strides(shape: Shape, innermost: int) -> Shape:
    strides: list[int] = []
    for size in reversed(shape):
        strides.append(innermost)
        innermost *= max(size, 1)
    return tuple(reversed(strides))


def _merge_runs(shape: Shape, strides: Shape) -> list[tuple[int, int]]:
    """Axes of a non-empty layout joined where they step evenly: (size, stride), outermost first."""
    runs: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * stride:
            runs[-1] = (runs[-1][0] * size, stride)
        else:
            runs.append((size, stride))
    return runs


def _split_runs(runs: list[tuple[int, int]], shape: Shape) -> Shape | None:
    """Strides that lay `shape` over the runs; None where an axis would straddle two of them."""
    pending = list(runs)
    remaining, stride = pending.pop() if pending else (1, 1)
    strides: list[int] = []
    for size in reversed(shape):
        if remaining == 1 and size != 1:
            remaining, stride = pending.pop()
        if remaining % size:
            return None
        strides.append(stride)
        stride *= size
        remaining //= size
    return tuple(reversed(strides))
