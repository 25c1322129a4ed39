"""`x[index]` in full: integers, slices, ellipsis, None, masks, integer arrays, mixed as in NumPy.

An index is split into a basic part (slices, new axes, integers: a view) and an advanced part
(arrays: a gather). Masks become integer arrays first, which reads the mask's value.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from operator import index as as_int
from types import EllipsisType
from typing import Any

import numpy as np

from weft.config import settings
from weft.core.common import dtypes
from weft.core.common.handler import current
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import DType, Shape
from weft.core.tensor.convert import PYTHON_SCALARS, is_array, to_array, to_tensor, wrap
from weft.core.tensor.impl import TensorImpl, Unread, copy_unread
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias, settled
from weft.errors import ConcretizationError, IndexingError, ShapeError, WeftError
from weft.ops.base import call
from weft.ops.elementwise.arithmetic import where
from weft.ops.families import broadcast, broadcast_shape, cast, fitting
from weft.ops.gather import checked_mode, gathered
from weft.ops.naming import speak_of
from weft.ops.view.join import stack
from weft.ops.view.reshape import expand_dims, reshape, reshape_op
from weft.ops.view.slice import slice_axes
from weft.ops.view.transpose import permute_dims

_PLAIN = frozenset((int, slice, type(None), EllipsisType))
_PICKS = frozenset((np.ndarray, bool, np.bool_))
_FEW = 4096  # positions up to this number are looked up at once
_READS = ("raise", "clip", "wrap", "fill")
_new_tensor = Tensor.__new__


@dataclass(frozen=True, slots=True)
class Plan:
    """An index, understood: slices of each axis, then the shape with new axes, then arrays."""

    starts: Shape
    lengths: Shape
    steps: Shape
    shape: Shape  # after slicing: integer axes gone, new axes in
    arrays: tuple[Tensor, ...]  # positions along some axes of `shape`
    axes: Shape  # which axes these are, ascending
    front: bool  # whether the picked axes go first (arrays were separated)


@dataclass(frozen=True, slots=True)
class _Picked:
    """Positions along one axis, from an integer array or from one axis of a mask."""

    positions: Tensor
    size: int | None = None  # the mask's size here, to be compared with the axis
    fresh: bool = False  # a mask with no axes picks from a new axis of size 1


def is_array_like(entry: Any) -> bool:
    """Whether an index entry is advanced: a tensor, an array of any library, a sequence, a bool."""
    if type(entry) in _PLAIN:
        return False
    if isinstance(entry, Tensor | np.ndarray | list | tuple | range | bool | np.bool_):
        return True
    return not isinstance(entry, np.generic) and is_array(entry)


@public
def is_basic_index(index: Any) -> bool:
    """Whether `x[index]` is a view: only integers, slices, ellipsis and None."""
    if type(index) is tuple:
        return all(type(e) in _PLAIN or not is_array_like(e) for e in index)
    return type(index) in _PLAIN or not is_array_like(index)


def plan_index(op: str, x: Tensor, index: Any) -> Plan:
    """Understand `index` against `x`'s shape, or say what is wrong with which entry."""
    entries = _expanded(op, x, index if type(index) is tuple else (index,))
    cuts: list[tuple[int, int, int]] = []
    shape: list[int] = []
    arrays: list[Tensor] = []
    axes: list[int] = []
    slots: list[int] = []  # where among the entries the arrays stood
    for position, entry in enumerate(entries):
        if entry is Ellipsis:
            continue
        if isinstance(entry, _Picked):
            arrays.append(entry.positions)
            axes.append(len(shape))
            slots.append(position)
        if entry is None or (isinstance(entry, _Picked) and entry.fresh):
            shape.append(1)
            continue
        axis = len(cuts)
        size = x.shape[axis]
        if isinstance(entry, slice):
            cuts.append(_slice(op, entry, size, axis))
            shape.append(cuts[-1][1])
        elif isinstance(entry, _Picked):
            if entry.size not in (None, 0, size):  # a mask without elements fits and picks nothing
                raise IndexingError(
                    f"{op}: axis {axis}: the mask has size {entry.size}, the tensor {size}"
                    f" (tensor of shape {x.shape})"
                )
            cuts.append((0, size, 1))
            shape.append(size)
        else:
            cuts.append((_integer(op, entry, size, axis), 1, 1))
    starts, lengths, steps = zip(*cuts, strict=True) if cuts else ((), (), ())
    front = bool(slots) and slots[-1] - slots[0] + 1 != len(slots)
    return Plan(starts, lengths, steps, tuple(shape), tuple(arrays), tuple(axes), front)


def _expanded(op: str, x: Tensor, entries: tuple[Any, ...]) -> list[Any]:
    """Entries with masks as positions and the ellipsis written out."""
    listed: list[Any] = []
    for entry in entries:
        listed.extend(_picked(op, entry, x) if is_array_like(entry) else [entry])
    ellipses = [i for i, e in enumerate(listed) if e is Ellipsis]
    if len(ellipses) > 1:
        raise IndexingError(f"{op}: more than one ellipsis in the index")
    taken = sum(
        e is not None and e is not Ellipsis and not (isinstance(e, _Picked) and e.fresh)
        for e in listed
    )
    if taken > x.ndim:
        raise IndexingError(f"{op}: {taken} indices for a tensor with {x.ndim} axes {x.shape}")
    fill: list[Any] = [slice(None)] * (x.ndim - taken)
    if ellipses:
        listed[ellipses[0] : ellipses[0] + 1] = fill or [Ellipsis]  # an empty one still separates
    else:
        listed += fill
    if any(isinstance(e, _Picked) for e in listed):  # integers beside arrays are arrays too
        return _integers_as_positions(op, listed, x)
    return listed


def _integers_as_positions(op: str, entries: list[Any], x: Tensor) -> list[Any]:
    axis = 0
    found = []
    for entry in entries:
        if not (entry is None or entry is Ellipsis or isinstance(entry, slice | _Picked)):
            place = _integer(op, entry, x.shape[axis], axis)
            entry = _Picked(wrap(np.asarray(place, np.int64), x.device))
        found.append(entry)
        fresh = isinstance(entry, _Picked) and entry.fresh
        axis += entry is not None and entry is not Ellipsis and not fresh
    return found


def _picked(op: str, entry: Any, x: Tensor) -> list[_Picked]:
    if isinstance(entry, list | tuple | range):
        entry = FUNCTIONS["asarray"](list(entry), device=x.device)
        if entry.size == 0:
            entry = cast(entry, dtypes.int64)
    tensor = to_tensor(entry, like=x.device, op=op)
    if dtypes.is_bool(tensor.dtype):
        if tensor.ndim == 0:
            here = np.zeros(int(bool(tensor)), np.int64)
            return [_Picked(wrap(here, x.device), fresh=True)]
        found = np.nonzero(tensor.host())
        return [
            _Picked(wrap(i, x.device), size) for i, size in zip(found, tensor.shape, strict=True)
        ]
    if not dtypes.is_integer(tensor.dtype):
        raise IndexingError(
            f"{op}: an array of {dtypes.name_of(tensor.dtype)} is no index"
            "\nhint: arrays of integers and of bool are; cast with x.astype(wf.int64)"
        )
    return [_Picked(cast(tensor, dtypes.int64))]


def _slice(op: str, entry: slice, size: int, axis: int) -> tuple[int, int, int]:
    try:
        start, stop, step = entry.indices(size)
    except ConcretizationError as error:
        hint = "wf.dynamic_slice and wf.dynamic_update_slice begin where tensors say"
        raise ConcretizationError(f"{error}\nhint: {hint}") from None
    except WeftError:
        raise
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


def basic_view(x: Tensor, plan: Plan) -> Tensor:
    """The basic part of an index, as a view."""
    cut = slice_axes(x, plan.starts, plan.lengths, plan.steps)
    if cut.shape == plan.shape:
        return cut
    return call(reshape_op, (cut,), {"rank": cut.ndim, "shape": plan.shape})


def stacked_positions(op: str, plan: Plan) -> tuple[Tensor, Shape]:
    """All position arrays broadcast and stacked (shape `picks… k`), and the shape of the picks."""
    try:
        full = broadcast_shape(op, *(a.shape for a in plan.arrays))
    except ShapeError as error:
        raise IndexingError(f"{error}\nhint: index arrays must broadcast with each other") from None
    if len(plan.arrays) == 1:
        return expand_dims(plan.arrays[0], -1), full
    return stack([broadcast(a, full) for a in plan.arrays], axis=-1), full


@public
def getitem(x: Any, index: Any, /, *, mode: str = "raise", fill_value: Any = None) -> Tensor:
    """`x[index]` by NumPy's rules; basic indices give views.

    `mode` says what positions out of range mean: `raise`, `clip`, `wrap`, or `fill`, which gives
    `fill_value` (NaN for floats, else 0, when none is given).
    """
    tensor = x if type(x) is Tensor else to_tensor(x, beside=(index,), op="getitem")
    if type(mode) is not str or mode != "raise":
        checked_mode("getitem", mode, _READS)
    if type(tensor._impl) is Unread and current() is None and mode == "raise":
        found = _copied(tensor._impl, index)
        if found is not None:
            return found
    if type(tensor._impl.data) is np.ndarray and current() is None and mode == "raise":
        direct = _direct if is_basic_index(index) else _direct_picks
        found = direct(tensor._impl, index)
        if found is not None:
            return found
    plan = plan_index("getitem", tensor, index)
    base = basic_view(tensor, plan)
    if not plan.arrays:
        return alias(tensor) if base is tensor else base
    indices, _ = stacked_positions("getitem", plan)
    moved, rest = arranged(base, plan)
    if mode == "fill":
        return _filled(moved, indices, len(plan.axes), rest, fill_value)
    try:
        return gathered(moved, indices, len(plan.axes), rest, mode)
    except IndexingError as error:
        speak_of("getitem", error)
        raise


def _direct(impl: TensorImpl, index: Any) -> Tensor | None:
    """A basic index of data that is there, by NumPy itself; None where something is wrong."""
    if impl.traced:
        return None
    whole: Any = index if type(index) is tuple else (index,)
    if not _PLAIN.issuperset(map(type, whole)):
        whole = plain_index(impl, index)
    if whole is None:
        return None
    try:
        array = impl.data[whole if Ellipsis in whole else (*whole, Ellipsis)]
    except (IndexError, TypeError, ValueError, OverflowError):
        return None  # the full path says what is wrong in our words
    made = TensorImpl(array.shape, impl.dtype, impl.device, array)
    made.shared = impl.shared
    tensor = _new_tensor(Tensor)
    tensor._impl = made
    return tensor


def _copied(impl: Unread, index: Any) -> Tensor | None:
    """A few elements of data that is being written, which then need not stay as it is."""
    where = plain_index(impl, index)
    array = None if where is None else copy_unread(impl, where, settings.small_elements)
    if array is None:
        return None
    tensor = _new_tensor(Tensor)
    tensor._impl = TensorImpl(array.shape, impl.dtype, impl.device, array)
    return tensor


def _direct_picks(impl: TensorImpl, index: Any) -> Tensor | None:
    """An index with arrays, where all data is there, little and weft's own, by NumPy itself."""
    plain = None if impl.traced or impl.shared else plain_index(impl, index)
    if plain is None or not (impl.size <= settings.small_elements or _picks_few(impl, plain)):
        return None
    try:
        array = np.asarray(impl.data[plain], order="C")
    except (IndexError, TypeError, ValueError, OverflowError):
        return None
    tensor = _new_tensor(Tensor)
    tensor._impl = TensorImpl(array.shape, impl.dtype, impl.device, array)
    return tensor


def _picks_few(impl: TensorImpl, index: tuple[Any, ...]) -> bool:
    """Whether an index is one array of positions along the first axis, and picks little."""
    (first, *rest) = index
    if rest or not isinstance(first, np.ndarray) or first.dtype.kind not in "iu" or not impl.shape:
        return False
    return bool(first.size * prod(impl.shape[1:]) <= settings.small_elements)


def plain_index(impl: TensorImpl, index: Any) -> tuple[Any, ...] | None:
    """An index as NumPy takes it, if its positions are there and few; it runs nobody's code."""
    if type(index) is int:
        return (index,)
    plain: list[Any] = []
    for entry in index if type(index) is tuple else (index,):
        if type(entry) in _PLAIN or not is_array_like(entry):
            try:
                plain.append(settled(entry))
            except (TypeError, ValueError):
                return None
            continue
        if isinstance(entry, Tensor):
            other = entry._impl
            entry = other.data
            if other.traced or other.device is not impl.device:
                return None
        if type(entry) not in _PICKS or getattr(entry, "size", 1) > _FEW:
            return None
        plain.append(entry)
    return tuple(plain)


def arranged(base: Tensor, plan: Plan) -> tuple[Tensor, int]:
    """`base` with the indexed axes together, and how many axes follow; those before are batch."""
    if not plan.front:
        return base, base.ndim - plan.axes[-1] - 1
    rest = [i for i in range(base.ndim) if i not in plan.axes]
    return permute_dims(base, [*plan.axes, *rest]), len(rest)


def legal_positions(x: Tensor, indices: Tensor, indexed: int, rest: int) -> tuple[Tensor, Tensor]:
    """Positions counted from the front, and which of them are in range."""
    cut = x.ndim - indexed - rest
    sizes = wrap(np.asarray(x.shape[cut : cut + indexed], np.int64), x.device)
    placed = where(indices < 0, indices + sizes, indices)
    inside = (placed >= 0) & (placed < sizes)
    return placed, FUNCTIONS["all"](inside, axis=-1)


def _filled(x: Tensor, indices: Tensor, indexed: int, rest: int, fill_value: Any) -> Tensor:
    """Gather in which positions out of range give a value."""
    if fill_value is None:
        fill_value = float("nan") if dtypes.is_inexact(x.dtype) else 0
    fill = value_like("getitem", x, fill_value)
    cut = x.ndim - indexed - rest
    lead, slices = x.shape[:cut], x.shape[cut + indexed :]
    shape = (*lead, *indices.shape[:-1], *slices)
    if 0 in x.shape[cut : cut + indexed]:
        return broadcast(fill, shape)
    placed, inside = legal_positions(x, indices, indexed, rest)
    found = gathered(x, placed, indexed, rest, "clip")
    return where(reshape(inside, (*inside.shape, *(1,) * rest)), found, fill)


def value_like(op: str, tensor: Tensor, value: Any) -> Tensor:
    """`value` as a tensor of `tensor`'s dtype, or an error where that would lose something."""
    if isinstance(value, list | tuple):
        value = _sequence(op, value, tensor)
    return fitting(op, tensor, value)


def _sequence(op: str, value: Any, tensor: Tensor) -> Tensor:
    """A list of Python numbers takes the tensor's dtype where its kind allows, as numbers do.

    One without any fits every dtype.
    """
    found = to_tensor(value, like=tensor.device, op=op)
    weak = all(type(v) in PYTHON_SCALARS for v in _leaves(value))
    if weak and (found.size == 0 or _kind_rank(found.dtype) <= _kind_rank(tensor.dtype)):
        return wrap(to_array(value, tensor.dtype, op), tensor.device)
    return found


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in _leaves(part)]
    return [value]


def _kind_rank(dtype: DType) -> int:
    return 0 if dtypes.is_bool(dtype) else "iufVc".index(dtype.kind) + 1


__all__ = ["getitem"]
