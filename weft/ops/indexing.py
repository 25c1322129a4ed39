"""`x[index]` in full: integers, slices, ellipsis, None, masks and integer arrays, mixed as in NumPy.

An index is split into a basic part (slices, new axes, integers: a view) and an advanced part (arrays:
a gather). Masks become integer arrays first, which reads the mask's value.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index as as_int
from types import EllipsisType
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import Shape
from weft.core.tensor.convert import to_tensor, wrap
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, IndexingError, ShapeError
from weft.ops.base import call
from weft.ops.families import as_tensors, broadcast, broadcast_shape, cast
from weft.ops.gather import SCATTERS, gathered
from weft.ops.view.join import stack
from weft.ops.view.reshape import expand_dims, reshape, reshape_op
from weft.ops.view.slice import slice_axes, slice_update_op
from weft.ops.view.transpose import permute_dims


@dataclass(frozen=True, slots=True)
class Plan:
    """An index, understood: slices of each axis, then the shape with new axes, then arrays."""

    starts: Shape
    lengths: Shape
    steps: Shape
    shape: Shape  # after slicing: integer axes gone, new axes in
    arrays: tuple[tuple[int, Tensor], ...]  # (axis of `shape`, positions), ascending axes
    front: bool  # whether the picked axes go first (arrays were separated)


def is_array_like(entry: Any) -> bool:
    """Whether an index entry is advanced: a tensor, an array or a list (a scalar tensor is too)."""
    return isinstance(entry, Tensor | np.ndarray | list) or isinstance(entry, bool | np.bool_)


@public
def is_basic_index(index: Any) -> bool:
    """Whether `x[index]` is a view: only integers, slices, ellipsis and None."""
    return not any(is_array_like(e) for e in (index if type(index) is tuple else (index,)))


def plan_index(op: str, x: Tensor, index: Any) -> Plan:
    """Understand `index` against `x`'s shape, or say what is wrong with which entry."""
    entries = _expanded(op, x, index if type(index) is tuple else (index,))
    starts, lengths, steps = [], [], []
    shape: list[int] = []
    arrays: list[tuple[int, Tensor]] = []
    slots: list[int] = []  # where among the entries the arrays stood
    axis = 0
    for position, entry in enumerate(entries):
        if entry is None:
            shape.append(1)
            continue
        size = x.shape[axis]
        if isinstance(entry, slice):
            start, length, step = _slice(op, entry, size, axis)
            shape.append(length)
        elif isinstance(entry, Tensor):
            start, length, step = 0, size, 1
            arrays.append((len(shape), entry))
            slots.append(position)
            shape.append(size)
        else:
            start, length, step = _integer(op, entry, size, axis), 1, 1
        starts.append(start)
        lengths.append(length)
        steps.append(step)
        axis += 1
    front = bool(slots) and slots[-1] - slots[0] + 1 != len(slots)
    return Plan(tuple(starts), tuple(lengths), tuple(steps), tuple(shape), tuple(arrays), front)


def _expanded(op: str, x: Tensor, entries: tuple[Any, ...]) -> list[Any]:
    """Entries with masks as positions, the ellipsis written out, and integers kept."""
    listed: list[Any] = []
    for entry in entries:
        listed.extend(_masks_as_positions(op, entry) if is_array_like(entry) else [entry])
    used = sum(e is not None and e is not Ellipsis for e in listed)
    if sum(e is Ellipsis for e in listed) > 1:
        raise IndexingError(f"{op}: more than one ellipsis in the index")
    if used > x.ndim:
        raise IndexingError(f"{op}: {used} indices for a tensor with {x.ndim} axes {x.shape}")
    fill = [slice(None)] * (x.ndim - used)
    if Ellipsis in [e for e in listed if isinstance(e, EllipsisType)]:
        where = next(i for i, e in enumerate(listed) if e is Ellipsis)
        listed[where : where + 1] = fill
    else:
        listed += fill
    if any(
        isinstance(e, Tensor | _Masked) for e in listed
    ):  # integers beside arrays are arrays too
        listed = [_scalar_position(e, x) for e in listed]
    return _check_masks(op, listed, x)


def _scalar_position(entry: Any, x: Tensor) -> Any:
    if entry is None or isinstance(entry, slice | Tensor | _Masked):
        return entry
    return wrap(np.asarray(as_int(entry), np.int64), x.device)


def _masks_as_positions(op: str, entry: Any) -> list[Any]:
    if isinstance(entry, list) and not entry:
        entry = np.zeros(0, np.int64)
    tensor = to_tensor(entry, op=op)
    if dtypes.is_bool(tensor.dtype):
        if tensor.ndim == 0:
            raise IndexingError(
                f"{op}: a mask with no axes stands alone in an index\nhint: x[None][mask[None]]"
            )
        found = np.nonzero(tensor.host())
        positions: list[Any] = [wrap(i, tensor.device) for i in found]
        return [_Masked(p, tensor.shape, k) for k, p in enumerate(positions)]
    if not dtypes.is_integer(tensor.dtype):
        raise DTypeError(
            f"{op}: an index must be of integers or bool, got {dtypes.name_of(tensor.dtype)}"
        )
    return [tensor]


@dataclass(frozen=True, slots=True)
class _Masked:
    """Positions from one axis of a mask."""

    positions: Tensor
    mask_shape: Shape
    axis: int


def _check_masks(op: str, entries: list[Any], x: Tensor) -> list[Any]:
    axis = 0
    checked = []
    for entry in entries:
        if isinstance(entry, _Masked):
            if x.shape[axis] != entry.mask_shape[entry.axis]:
                raise IndexingError(
                    f"{op}: axis {axis}: the mask has size {entry.mask_shape[entry.axis]},"
                    f" the tensor {x.shape[axis]} (mask {entry.mask_shape}, tensor {x.shape})"
                )
            entry = entry.positions
        checked.append(entry)
        axis += entry is not None
    return checked


def _slice(op: str, entry: slice, size: int, axis: int) -> tuple[int, int, int]:
    try:
        start, stop, step = entry.indices(size)
    except (TypeError, ValueError) as error:
        raise IndexingError(f"{op}: axis {axis}: bad slice {entry}: {error}") from None
    length = len(range(start, stop, step))
    return (start if length else 0), length, (step if length > 1 else 1)


def _integer(op: str, entry: Any, size: int, axis: int) -> int:
    try:
        i = as_int(entry)
    except TypeError:
        raise IndexingError(
            f"{op}: axis {axis}: {entry!r} is not an index"
            "\nhint: integers, slices, None, ..., masks and integer arrays are"
        ) from None
    if not -size <= i < size:
        raise IndexingError(f"{op}: index {i} is out of range for axis {axis} of size {size}")
    return i % size


def _view(x: Tensor, plan: Plan) -> Tensor:
    """The basic part of an index, as a view."""
    cut = slice_axes(x, plan.starts, plan.lengths, plan.steps)
    if cut.shape == plan.shape:
        return cut
    return call(reshape_op, (cut,), {"rank": cut.ndim, "shape": plan.shape})  # type: ignore[no-any-return]


def _positions(op: str, plan: Plan) -> tuple[Tensor, Shape]:
    """All position arrays broadcast and stacked: shape `picks… k`."""
    arrays = [cast(a, dtypes.int64) for _, a in plan.arrays]
    full = broadcast_shape(op, *(a.shape for a in arrays))
    return stack([broadcast(a, full) for a in arrays], axis=-1), full


@public
def getitem(x: Any, index: Any, /, *, mode: str = "raise") -> Tensor:
    """`x[index]` by NumPy's rules; basic indices give views."""
    tensor = to_tensor(x, op="getitem")
    if _is_scalar_mask(index):
        return getitem(expand_dims(tensor, 0), _row_mask(index))
    plan = plan_index("getitem", tensor, index)
    base = _view(tensor, plan)
    if not plan.arrays:
        return base
    indices, picks = _positions("getitem", plan)
    axes = [axis for axis, _ in plan.arrays]
    rest = [i for i in range(base.ndim) if i not in axes]
    moved = permute_dims(base, [*axes, *rest])
    found = gathered(moved, indices, len(axes), len(rest), mode)
    return permute_dims(found, _arrangement(plan, len(picks), rest))


def _is_scalar_mask(index: Any) -> bool:
    """Whether the whole index is one bool, or one bool tensor with no axes."""
    if isinstance(index, tuple) and len(index) == 1:
        index = index[0]
    if isinstance(index, Tensor | np.ndarray):
        return index.ndim == 0 and index.dtype == np.bool_
    return isinstance(index, bool | np.bool_)


def _row_mask(index: Any) -> Tensor:
    mask = to_tensor(index[0] if isinstance(index, tuple) else index, op="getitem")
    return reshape(mask, (1,))


def _arrangement(plan: Plan, picks: int, rest: list[int]) -> list[int]:
    """Axes of `picks… rest…` reordered so that picks stand where NumPy puts them."""
    before = 0 if plan.front else sum(i < plan.arrays[0][0] for i in rest)
    return [
        *range(picks, picks + before),
        *range(picks),
        *range(picks + before, picks + len(rest)),
    ]


def _undo(order: list[int]) -> list[int]:
    return [order.index(i) for i in range(len(order))]


@public
def index_update(x: Any, index: Any, value: Any, combine: str, mode: str = "raise") -> Tensor:
    """A copy of `x` with `value` combined (`set`, `add`, `mul`, `min`, `max`) at `index`."""
    if combine not in SCATTERS:
        raise ArgumentError(f"index_update: combine must be one of {', '.join(SCATTERS)}")
    tensor, update = as_tensors("setitem", to_tensor(x, op="setitem"), value)
    if dtypes.promote(tensor.dtype, update.dtype, op="setitem") != tensor.dtype:
        raise DTypeError(
            f"setitem: a value of dtype {dtypes.name_of(update.dtype)} does not fit a tensor of"
            f" {dtypes.name_of(tensor.dtype)}\nhint: cast one of them with astype"
        )
    if _is_scalar_mask(index):
        inner = index_update(expand_dims(tensor, 0), _row_mask(index), update, combine, mode)
        return reshape(inner, tensor.shape)
    plan = plan_index("setitem", tensor, index)
    base = _view(tensor, plan)
    target = _result_shape(plan)
    if broadcast_shape("setitem", update.shape, target) != target:
        raise ShapeError(f"setitem: value of shape {update.shape} does not fit {target}")
    values = broadcast(cast(update, tensor.dtype), target)
    if plan.arrays:
        values = _scattered(base, plan, values, combine, mode)
    elif combine != "set":
        values = FUNCTIONS[_ELEMENTWISE[combine]](base, values)
    if base is tensor:
        return values
    window = reshape(values, plan.lengths)
    params = {"starts": plan.starts, "lengths": plan.lengths, "steps": plan.steps}
    return call(slice_update_op, (tensor, window), params)  # type: ignore[no-any-return]


_ELEMENTWISE = {"add": "add", "mul": "multiply", "min": "minimum", "max": "maximum"}


def _scattered(base: Tensor, plan: Plan, values: Tensor, combine: str, mode: str) -> Tensor:
    """Scatter into the sliced tensor: indexed axes first, picks first, and back again."""
    indices, picks = _positions("setitem", plan)
    axes = [axis for axis, _ in plan.arrays]
    rest = [i for i in range(base.ndim) if i not in axes]
    order = [*axes, *rest]
    moved = permute_dims(base, order)
    updates = permute_dims(values, _undo(_arrangement(plan, len(picks), rest)))
    params = {"indexed": len(axes), "rest": len(rest), "picks": len(picks), "mode": mode}
    made = call(SCATTERS[combine], (moved, indices, updates), params)
    return permute_dims(made, _undo(order))


def _result_shape(plan: Plan) -> Shape:
    if not plan.arrays:
        return plan.shape
    full = broadcast_shape("setitem", *(a.shape for _, a in plan.arrays))
    axes = [axis for axis, _ in plan.arrays]
    rest = [i for i in range(len(plan.shape)) if i not in axes]
    before = 0 if plan.front else sum(i < axes[0] for i in rest)
    sizes = [plan.shape[i] for i in rest]
    return (*sizes[:before], *full, *sizes[before:])


@public
def index_set(x: Any, index: Any, value: Any) -> Tensor:
    """A copy of `x` with `value` at `index`."""
    return index_update(x, index, value, "set")


class Updater:
    """`x.at`: choose a place with `[index]`."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __getitem__(self, index: Any) -> Place:
        return Place(self._tensor, index)


class Place:
    """`x.at[index]`: say what happens there; the tensor itself stays as it is."""

    __slots__ = ("_index", "_tensor")

    def __init__(self, tensor: Tensor, index: Any) -> None:
        self._tensor = tensor
        self._index = index

    def get(self, *, mode: str = "raise") -> Tensor:
        """The elements there."""
        return getitem(self._tensor, self._index, mode=mode)

    def set(self, value: Any, *, mode: str = "raise") -> Tensor:
        """Replace the elements there."""
        return index_update(self._tensor, self._index, value, "set", mode)

    def add(self, value: Any, *, mode: str = "raise") -> Tensor:
        """Add to the elements there; repeated positions add up."""
        return index_update(self._tensor, self._index, value, "add", mode)

    def mul(self, value: Any, *, mode: str = "raise") -> Tensor:
        """Multiply the elements there; repeated positions multiply up."""
        return index_update(self._tensor, self._index, value, "mul", mode)

    multiply = mul

    def min(self, value: Any, *, mode: str = "raise") -> Tensor:
        """The smaller of the elements there and the values."""
        return index_update(self._tensor, self._index, value, "min", mode)

    def max(self, value: Any, *, mode: str = "raise") -> Tensor:
        """The larger of the elements there and the values."""
        return index_update(self._tensor, self._index, value, "max", mode)

    def apply(self, function: Any) -> Tensor:
        """Replace the elements there by `function` of them."""
        return self.set(function(self.get()))


@public
def updater(x: Tensor) -> Updater:
    """Functional updates: `x.at[i].set(v)`."""
    return Updater(x)


__all__ = [
    "getitem",
    "index_set",
    "index_update",
]
