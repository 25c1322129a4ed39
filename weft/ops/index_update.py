"""Functional updates: `x.at[index].set(v)` and what `x[index] = v` is made of.

A basic index is a slice update, arrays are a scatter. One value under a mask is a choice, so that
the mask's value is not read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.config import settings
from weft.core.common import dtypes
from weft.core.common.handler import current
from weft.core.common.parameters import as_choice, as_flag, shown
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import DType, Shape
from weft.core.tensor.convert import EXACT_EVERYWHERE, PYTHON_SCALARS, scalar, to_tensor, wrap
from weft.core.tensor.impl import TensorImpl, Unread, write_unread
from weft.core.tensor.sharing import is_shared
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias, base_of
from weft.errors import ArgumentError, DTypeError, IndexingError, ShapeError
from weft.ops.base import call
from weft.ops.elementwise.arithmetic import where
from weft.ops.families import broadcast, broadcast_shape
from weft.ops.gather import OUT_OF_RANGE, SCATTERS, checked_mode
from weft.ops.indexing import (
    Plan,
    arranged,
    basic_view,
    getitem,
    legal_positions,
    plain_index,
    plan_index,
    stacked_positions,
    value_like,
)
from weft.ops.placement import copy_of
from weft.ops.view.join import pad_op
from weft.ops.view.reshape import expand_dims, reshape
from weft.ops.view.slice import slice_axes, slice_update_op
from weft.ops.view.transpose import permute_dims

_MODES = ("raise", "clip", "wrap", "drop")
_SOON = 1 << 16  # positions, at most, that are looked at when they are assigned to, not later
_OFTEN = 8  # recorded assignments in a row, after which the next ones are written on the data
_ELEMENTWISE = {"add": "add", "mul": "multiply", "min": "minimum", "max": "maximum"}
_FAULTS = (IndexError, TypeError, ValueError, OverflowError)  # the long way says so in our words
_ASSIGNMENTS = (slice_update_op, SCATTERS["set"])
_new_tensor = Tensor.__new__


@public
def index_update(x: Any, index: Any, value: Any, combine: str, mode: str = "raise") -> Tensor:
    """A copy of `x` with `value` combined (`set`, `add`, `mul`, `min`, `max`) at `index`.

    Where positions repeat, all values are combined; of several set, the last one stays. `mode` is
    for positions out of range: `raise`, `clip`, `wrap` or `drop`.
    """
    as_choice("index_update", "combine", combine, SCATTERS)
    return updated("index_update", x, index, value, combine, mode)


def updated(op: str, x: Any, index: Any, value: Any, combine: str, mode: str = "raise") -> Tensor:
    """What `index_update` gives; `op` is the function that errors speak of."""
    checked_mode(op, mode, _MODES)
    tensor = to_tensor(x, beside=(index, value), op=op)
    update = value_like(op, tensor, value)
    _check_combine(op, tensor.dtype, combine)
    mask = _lone_mask(op, index, tensor)
    if mask is not None and _fits_rest(update, tensor.shape[mask.ndim :]):
        return _masked(tensor, mask, update, combine)
    plan = plan_index(op, tensor, index)
    base = basic_view(tensor, plan)
    values = _fitted(op, update, _result_shape(op, plan))
    if mode == "raise" and current() is None:
        _check_positions(op, plan)
    if plan.arrays:
        values = _scattered(op, base, plan, values, combine, mode)
    elif combine != "set":
        values = FUNCTIONS[_ELEMENTWISE[combine]](base, values)
    if base is tensor:
        return _lasting(values)
    window = reshape(values, plan.lengths)
    params = {"starts": plan.starts, "lengths": plan.lengths, "steps": plan.steps}
    return call(slice_update_op, (tensor, window), params)


def _check_positions(op: str, plan: Plan) -> None:
    """Refuse positions out of range where they are known: what is assigned to stays as it was.

    Not while a function is traced, which may be a branch that is never taken.
    """
    if not all(places.size for places in plan.arrays):
        return
    for places, axis in zip(plan.arrays, plan.axes, strict=True):
        if places.owner is None and places.is_realized and places.size <= _SOON:
            found, size = places.host(), plan.shape[axis]
            if found.min() < -size or found.max() >= size:
                bad = int(found[(found < -size) | (found >= size)].flat[0])
                raise IndexingError(f"{op}: {OUT_OF_RANGE.format(index=bad, size=size)}")


def changed(op: str, x: Any, made: Tensor, inplace: bool) -> Tensor:
    """What a function of NumPy's that changes its argument gives: the argument, or a copy."""
    if not as_flag(op, "inplace", inplace):
        return made
    if not isinstance(x, Tensor):
        raise ArgumentError(
            f"{op}: changes a tensor, got {shown(x)}\nhint: inplace=False gives a changed copy"
        )
    x[...] = made
    return x


def _lasting(value: Tensor) -> Tensor:
    """A value that takes the place of another: a copy where others may write to its memory."""
    impl = value._impl.innermost()
    if impl is not None and impl.is_realized and (impl.shared or is_shared(impl.data)):
        return copy_of(value)
    return alias(value)


def _check_combine(op: str, dtype: DType, combine: str) -> None:
    if (combine in ("add", "mul") and dtypes.is_bool(dtype)) or (
        combine in ("min", "max") and dtypes.is_complex(dtype)
    ):
        raise DTypeError(f"{op}: {combine} has no meaning for {dtypes.name_of(dtype)}")


def _fitted(op: str, update: Tensor, target: Shape) -> Tensor:
    """`update` broadcast to the place it goes to; extra leading axes of size 1 are dropped."""
    extra = update.ndim - len(target)
    if extra > 0 and update.shape[:extra] == (1,) * extra:
        update = reshape(update, update.shape[extra:])
    if broadcast_shape(op, update.shape, target) != target:
        raise ShapeError(
            f"{op}: a value of shape {update.shape} does not fit the shape {target} of its place"
        )
    return broadcast(update, target)


def _lone_mask(op: str, index: Any, x: Tensor) -> Tensor | None:
    """The mask, if the index is one mask over leading axes and nothing else."""
    entry = index[0] if type(index) is tuple and len(index) == 1 else index
    if not isinstance(entry, Tensor | np.ndarray | bool | np.bool_):
        return None
    mask = to_tensor(entry, like=x.device, op=op)
    fits = dtypes.is_bool(mask.dtype) and mask.shape == x.shape[: mask.ndim]
    return mask if fits else None


def _fits_rest(update: Tensor, rest: Shape) -> bool:
    return update.ndim <= len(rest) and all(
        size in (1, full) for size, full in zip(update.shape[::-1], rest[::-1], strict=False)
    )


def _masked(x: Tensor, mask: Tensor, update: Tensor, combine: str) -> Tensor:
    """One value for every place of a mask: a choice, so the mask's value is not read."""
    chosen = reshape(mask, (*mask.shape, *(1,) * (x.ndim - mask.ndim)))
    if combine == "mul":  # not `where(mask, x * v, x)`: an infinite v would make 0 · ∞ derivatives
        return x * where(chosen, update, 1)
    new = update if combine == "set" else FUNCTIONS[_ELEMENTWISE[combine]](x, update)
    return where(chosen, new, x)


def _scattered(
    op: str, base: Tensor, plan: Plan, values: Tensor, combine: str, mode: str
) -> Tensor:
    """Scatter into the sliced tensor, with the indexed axes together, and back again."""
    indices, picks = stacked_positions(op, plan)
    moved, rest = arranged(base, plan)
    indexed = len(plan.axes)
    params = {"indexed": indexed, "rest": rest, "picks": len(picks), "mode": mode}
    if mode == "drop":
        made = _dropping(moved, indices, values, params, combine)
    else:
        made = call(SCATTERS[combine], (moved, indices, values), params)
    if not plan.front:
        return made
    order = [*plan.axes, *(i for i in range(base.ndim) if i not in plan.axes)]
    return permute_dims(made, [order.index(i) for i in range(len(order))])


def _dropping(x: Tensor, indices: Tensor, values: Tensor, params: Any, combine: str) -> Tensor:
    """Scatter in which positions out of range go to a margin that is cut off afterwards."""
    indexed, rest = params["indexed"], params["rest"]
    core = x.shape[x.ndim - indexed - rest :]
    none, ones = (0,) * len(core), (1,) * len(core)
    margin = {"low": none, "high": (1,) * indexed + (0,) * rest, "interior": none}
    wide = call(pad_op, (x, scalar(0, x.dtype, x.device)), margin)
    placed, inside = legal_positions(x, indices, indexed, rest)
    last = wrap(np.asarray(core[:indexed], np.int64), x.device)
    placed = where(expand_dims(inside, -1), placed, last)
    made = call(SCATTERS[combine], (wide, placed, values), {**params, "mode": "raise"})
    return slice_axes(made, none, core, ones)


def _result_shape(op: str, plan: Plan) -> Shape:
    if not plan.arrays:
        return plan.shape
    _, full = stacked_positions(op, plan)
    rest = [i for i in range(len(plan.shape)) if i not in plan.axes]
    before = 0 if plan.front else plan.axes[0]
    sizes = [plan.shape[i] for i in rest]
    return (*sizes[:before], *full, *sizes[before:])


@public
def index_set(x: Any, index: Any, value: Any) -> Tensor:
    """A copy of `x` with `value` at `index`."""
    if type(x) is Tensor and current() is None:
        found = _set_direct(x._impl, index, value)
        if found is not None:
            return found
    return updated("setitem", x, index, value, "set")


def _set_direct(impl: TensorImpl, index: Any, value: Any) -> Tensor | None:
    """Data with a value at an index, by NumPy itself; None where that is not enough.

    So it is for small data that is there, and for large data that is assigned to again and again.
    """
    is_small = impl.size <= settings.small_elements
    if impl.traced or not (type(impl.data) is np.ndarray if is_small else _is_busy(impl)):
        return None
    filled = _ready(impl, value)
    where = None if filled is None else plain_index(impl, index)
    data = None if where is None else impl.realize()
    if type(data) is not np.ndarray:
        return None
    array = np.array(data, order="C")
    try:
        array[where] = filled
    except _FAULTS:
        return None
    tensor = _new_tensor(Tensor)
    tensor._impl = Unread.of(array, impl)
    return tensor


def _is_busy(impl: TensorImpl) -> bool:
    """Whether many assignments in a row have been recorded."""
    node = impl.node
    if impl.owner is not None or impl.spec is not None or node is None or node.specs is not None:
        return False
    for _ in range(_OFTEN):
        if node.op not in _ASSIGNMENTS or not node.inputs:
            return False
        node = node.inputs[0][0]
    return True


def _ready(impl: TensorImpl, value: Any) -> Any:
    """What NumPy can assign as it is: a number, or data of the same dtype.

    It is there, or little beside what it is assigned to.
    """
    kind = type(value)
    if kind is float and impl.dtype.kind == "f" and abs(value) <= EXACT_EVERYWHERE:
        return value
    if kind in PYTHON_SCALARS:
        if dtypes.weak_dtype(kind, impl.dtype) != impl.dtype:
            return None
        return scalar(value, impl.dtype, impl.device, "setitem")._impl.data
    if kind is np.ndarray or isinstance(value, np.generic):
        return value if value.dtype == impl.dtype else None
    if kind is not Tensor:
        return None
    other = value._impl
    same = other.dtype is impl.dtype and other.device is impl.device
    if not same or other.traced or other.owner is not None or other.spec is not None:
        return None
    if impl.size > settings.small_elements:
        if other.size > settings.small_elements:
            return None
        other.realize()
    return other.data if type(other.data) is np.ndarray else None


@public
def write_on(x: Tensor, index: Any, value: Any) -> bool:
    """Assign to part of a tensor whose memory nobody else has seen, if that is all there is to do.

    Says whether it was.
    """
    impl = x._impl
    lone = base_of(x) is None and impl.owner is None  # which tensors that want a gradient have
    filled = _ready(impl, value) if lone and current() is None else None
    where = None if filled is None else plain_index(impl, index)
    try:
        return where is not None and write_unread(impl, where, filled)
    except _FAULTS:
        return False


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

    def get(self, *, mode: str = "raise", fill_value: Any = None) -> Tensor:
        """The elements there; `mode` is `raise`, `clip`, `wrap` or `fill`."""
        return getitem(self._tensor, self._index, mode=mode, fill_value=fill_value)

    def set(self, value: Any, *, mode: str = "raise") -> Tensor:
        """Replace the elements there."""
        return updated("setitem", self._tensor, self._index, value, "set", mode)

    def add(self, value: Any, *, mode: str = "raise") -> Tensor:
        """Add to the elements there; repeated positions add up."""
        return updated("setitem", self._tensor, self._index, value, "add", mode)

    def mul(self, value: Any, *, mode: str = "raise") -> Tensor:
        """Multiply the elements there; repeated positions multiply up."""
        return updated("setitem", self._tensor, self._index, value, "mul", mode)

    multiply = mul

    def subtract(self, value: Any, *, mode: str = "raise") -> Tensor:
        """Subtract from the elements there; repeated positions add up."""
        taken = value_like("setitem", self._tensor, value)
        return self.add(FUNCTIONS["negative"](taken), mode=mode)

    def divide(self, value: Any, *, mode: str = "raise") -> Tensor:
        """Divide the elements there, which are floats; repeated positions divide again."""
        return self._tensor / self._product(value, mode)

    def power(self, value: Any, *, mode: str = "raise") -> Tensor:
        """Raise the elements there to powers; repeated positions raise again."""
        return self._tensor ** self._product(value, mode)

    def _product(self, value: Any, mode: str) -> Tensor:
        """The values there, multiplied where they meet, and 1 elsewhere."""
        ones = FUNCTIONS["ones_like"](self._tensor)
        return updated("setitem", ones, self._index, value, "mul", mode)

    def min(self, value: Any, *, mode: str = "raise") -> Tensor:
        """The smaller of the elements there and the values."""
        return updated("setitem", self._tensor, self._index, value, "min", mode)

    def max(self, value: Any, *, mode: str = "raise") -> Tensor:
        """The larger of the elements there and the values."""
        return updated("setitem", self._tensor, self._index, value, "max", mode)

    def apply(self, function: Any) -> Tensor:
        """Replace the elements there by `function` of them."""
        return self.set(function(self.get()))


@public
def updater(x: Tensor) -> Updater:
    """Functional updates: `x.at[i].set(v)`."""
    return Updater(x)


__all__ = [
    "index_set",
    "index_update",
]
