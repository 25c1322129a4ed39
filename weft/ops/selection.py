"""Pick and place by position: take, gather, scatter, segments, choices, flat positions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.parameters import as_choice, as_integer, as_sequence
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import Shape
from weft.core.tensor.convert import device_of, to_tensor, to_tensors
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.tracing import read_for_size
from weft.errors import ArgumentError, DTypeError, IndexingError, ShapeError
from weft.ops.axes import normalize_axis
from weft.ops.base import call
from weft.ops.creation import asarray, full, shape_tuple
from weft.ops.elementwise.arithmetic import where
from weft.ops.families import as_tensors, broadcast, broadcast_shape, cast
from weft.ops.gather import SCATTERS, checked_mode, gathered
from weft.ops.index_update import changed, updated
from weft.ops.indexing import getitem, value_like
from weft.ops.naming import named
from weft.ops.order import take_along_axis
from weft.ops.placement import copy_of
from weft.ops.view.broadcast import broadcast_arrays
from weft.ops.view.join import stack
from weft.ops.view.reshape import expand_dims, ravel, reshape
from weft.ops.view.transpose import moveaxis


def _integers(op: str, indices: Any, device: Any) -> Tensor:
    """Positions as an int64 tensor."""
    if isinstance(indices, list | tuple | range) and not len(indices):
        indices = np.zeros(0, np.int64)
    found = to_tensor(indices, like=device, op=op)
    if not dtypes.is_integer(found.dtype):
        raise DTypeError(f"{op}: positions must be integers, got {dtypes.name_of(found.dtype)}")
    return cast(found, dtypes.int64)


@public
@named
def take(
    x: Any,
    /,
    indices: Any,
    axis: int | None = None,
    *,
    mode: str = "raise",
    fill_value: Any = None,
) -> Tensor:
    """Elements at positions along an axis (of the flattened tensor when none is given).

    `mode` says what positions out of range mean: `raise`, `clip`, `wrap`, or `fill` (with
    `fill_value`).
    """
    tensor = to_tensor(x, beside=(indices,), op="take")
    places = _integers("take", indices, tensor.device)
    if axis is None:
        tensor, axis = ravel(tensor), 0
    i = normalize_axis("take", axis, tensor.ndim)
    return getitem(tensor, (*(slice(None),) * i, places), mode=mode, fill_value=fill_value)


@public
@named
def index_select(x: Any, /, axis: int, index: Any) -> Tensor:
    """Slices at positions along an axis."""
    return take(x, index, axis=axis)


@public
def embedding(table: Any, ids: Any, /) -> Tensor:
    """Rows of a table: the result has the shape of `ids` and then that of a row.

    No row has a negative number: such an id is an error, not a row counted from the end.
    """
    tensor = to_tensor(table, beside=(ids,), op="embedding")
    places = expand_dims(_integers("embedding", ids, tensor.device), -1)
    normalize_axis("embedding", 0, tensor.ndim)
    return gathered(tensor, places, 1, tensor.ndim - 1, "embedding: ids")


def _fitting(
    op: str, x: Any, axis: int, index: Any, values: Any = None
) -> tuple[Tensor, Tensor, int]:
    """The tensor, the positions and the axis, where positions stay inside the other axes."""
    tensor = to_tensor(x, beside=(index, values), op=op)
    places = _integers(op, index, tensor.device)
    if places.ndim != tensor.ndim:
        raise ShapeError(
            f"{op}: index has {places.ndim} axes, the tensor {tensor.ndim}"
            f" (shapes {places.shape}, {tensor.shape})"
        )
    i = normalize_axis(op, axis, tensor.ndim)
    for k, (size, whole) in enumerate(zip(places.shape, tensor.shape, strict=True)):
        if k != i and size > whole:
            raise ShapeError(f"{op}: axis {k}: the index has size {size}, the tensor {whole}")
    return tensor, places, i


def _window(shape: Shape, places: Shape, axis: int) -> tuple[slice, ...]:
    return tuple(
        slice(None) if k == axis else slice(size)
        for k, (size, _) in enumerate(zip(places, shape, strict=True))
    )


@public
def gather(x: Any, /, axis: int, index: Any, *, mode: str = "raise") -> Tensor:
    """One element for each of `index`: along `axis` at its value, elsewhere at its own position.

    >>> gather(to_tensor([[1, 2], [3, 4]]), 1, to_tensor([[0], [1]])).tolist()
    [[1], [4]]
    """
    tensor, places, i = _fitting("gather", x, axis, index)
    part = getitem(tensor, _window(tensor.shape, places.shape, i))
    return take_along_axis(part, places, axis=i, mode=checked_mode("gather", mode))


@public
def scatter(
    x: Any, /, axis: int, index: Any, src: Any, reduce: str | None = None, *, mode: str = "raise"
) -> Tensor:
    """A copy of `x` with `src` put where `gather` with this `index` would read.

    `reduce` says how values meet what is there: None replaces (of several the last stays), `add`,
    `mul`, `min`, `max` combine.
    """
    as_choice("scatter", "reduce", reduce, (None, "add", "mul", "min", "max"))
    tensor, places, i = _fitting("scatter", x, axis, index, src)
    values = value_like("scatter", tensor, src)
    if values.ndim == tensor.ndim:  # a larger source is read from its beginning
        values = getitem(values, tuple(map(slice, places.shape)))
    if broadcast_shape("scatter", values.shape, places.shape) != places.shape:
        raise ShapeError(f"scatter: values {values.shape} do not fit the index {places.shape}")
    window = _window(tensor.shape, places.shape, i)
    part = getitem(tensor, window)
    moved, at, updates = (
        moveaxis(t, i, -1) for t in (part, places, broadcast(values, places.shape))
    )
    params = {"indexed": 1, "rest": 0, "picks": 1, "mode": checked_mode("scatter", mode)}
    op = SCATTERS[reduce or "set"]
    made = moveaxis(call(op, (moved, expand_dims(at, -1), updates), params), -1, i)
    return made if part.shape == tensor.shape else updated("scatter", tensor, window, made, "set")


@public
def scatter_add(x: Any, /, axis: int, index: Any, src: Any) -> Tensor:
    """`scatter` that adds."""
    return scatter(x, axis, index, src, "add")


@public
def put_along_axis(
    x: Any,
    /,
    indices: Any,
    values: Any,
    axis: int = -1,
    *,
    mode: str = "raise",
    inplace: bool = True,
) -> Tensor:
    """Put `values` into `x` where `take_along_axis` would read; the other axes broadcast.

    It gives the tensor that it changes, or, if not `inplace`, a changed copy.
    """
    tensor = to_tensor(x, beside=(indices, values), op="put_along_axis")
    places = _integers("put_along_axis", indices, tensor.device)
    i = normalize_axis("put_along_axis", axis, tensor.ndim)
    if places.ndim != tensor.ndim:
        raise ShapeError(
            f"put_along_axis: indices have {places.ndim} axes, the tensor {tensor.ndim}"
        )
    shape = (*tensor.shape[:i], places.shape[i], *tensor.shape[i + 1 :])
    if broadcast_shape("put_along_axis", places.shape, shape) != shape:
        raise ShapeError(f"put_along_axis: indices {places.shape} do not fit {tensor.shape}")
    made = scatter(tensor, i, broadcast(places, shape), values, mode=mode)
    return changed("put_along_axis", x, made, inplace)


@public
def put(x: Any, /, ind: Any, v: Any, mode: str = "raise", *, inplace: bool = True) -> Tensor:
    """Put `v` into `x` at flat positions.

    Values are taken in order, and again from the first if they are too few. `mode` is for positions
    out of range: `raise`, `clip` or `wrap`. It gives the tensor that it changes, or, if not
    `inplace`, a changed copy.

    >>> put(to_tensor([[1, 2], [3, 4]]), [0, -1], 9).tolist()
    [[9, 2], [3, 9]]
    """
    tensor = to_tensor(x, beside=(ind, v), op="put")
    places = ravel(_integers("put", ind, tensor.device))
    values = ravel(value_like("put", tensor, v))
    checked_mode("put", mode)
    made = copy_of(tensor)
    if places.size and values.size:
        filling = FUNCTIONS["resize"](values, places.shape)
        made = reshape(updated("put", ravel(tensor), places, filling, "set", mode), tensor.shape)
    return changed("put", x, made, inplace)


@public
def putmask(x: Any, /, mask: Any, values: Any, *, inplace: bool = True) -> Tensor:
    """Put `values` into `x` where the mask holds.

    Each element takes the value at its own flat position; too few values begin again. It gives the
    tensor that it changes, or, if not `inplace`, a changed copy.
    """
    tensor, chosen = _under_mask("putmask", x, mask, values)
    new = ravel(value_like("putmask", tensor, values))
    made = copy_of(tensor)
    if new.size:
        made = where(chosen, FUNCTIONS["resize"](new, tensor.shape), tensor)
    return changed("putmask", x, made, inplace)


@public
def place(x: Any, /, mask: Any, vals: Any, *, inplace: bool = True) -> Tensor:
    """Put the first of `vals` into `x` where the mask holds first, the second where it holds next,
    and so on; too few begin again.

    It gives the tensor that it changes, or, if not `inplace`, a changed copy.

    >>> place(to_tensor([1, 2, 3, 4]), [True, False, True, True], [7, 8]).tolist()
    [7, 2, 8, 7]
    """
    tensor, chosen = _under_mask("place", x, mask, vals)
    values = ravel(value_like("place", tensor, vals))
    made = copy_of(tensor)
    if tensor.size:
        if not values.size:
            raise ArgumentError("place: vals: there is no value to place")
        turn = FUNCTIONS["cumsum"](cast(ravel(chosen), dtypes.int64), 0) - 1
        made = where(chosen, reshape(take(values, turn % values.size), tensor.shape), tensor)
    return changed("place", x, made, inplace)


def _under_mask(op: str, x: Any, mask: Any, values: Any) -> tuple[Tensor, Tensor]:
    """A tensor, and a mask of as many elements in its shape."""
    tensor = to_tensor(x, beside=(mask, values), op=op)
    chosen = to_tensor(mask, like=tensor.device, op=op)
    if chosen.size != tensor.size:
        raise ShapeError(f"{op}: a mask of shape {chosen.shape} for a tensor of {tensor.shape}")
    return tensor, reshape(cast(chosen, dtypes.bool_), tensor.shape)


def _segments(
    name: str, combine: str, data: Any, segment_ids: Any, num_segments: int | None, start: Any
) -> Tensor:
    values = to_tensor(data, beside=(segment_ids,), op=name)
    ids = _integers(name, segment_ids, values.device)
    if values.shape[: ids.ndim] != ids.shape:
        raise ShapeError(f"{name}: ids {ids.shape} do not lead the data's shape {values.shape}")
    if num_segments is None:
        known = read_for_size(ids, f"say how many segments there are: {name}(…, num_segments=…)")
        num_segments = int(known.max(initial=-1)) + 1
    count = as_integer(name, "num_segments", num_segments, low=0)
    base = full((count, *values.shape[ids.ndim :]), start, dtype=values.dtype, device=values.device)
    # A negative id is a mistake here, not a position counted from the end.
    legal = where(ids < 0, count, ids)
    return updated(name, base, legal, values, combine)


def _limits(data: Any, op: str) -> tuple[Any, Any]:
    dtype = to_tensor(data, op=op).dtype
    if dtypes.is_integer(dtype):
        limits = dtypes.iinfo(dtype)
        return limits.min, limits.max
    if dtypes.is_floating(dtype):
        return float("-inf"), float("inf")
    raise DTypeError(f"{op}: {dtypes.name_of(dtype)} has no order")


@public
def segment_sum(data: Any, /, segment_ids: Any, num_segments: int | None = None) -> Tensor:
    """Sums of the slices of `data` that share an id; result row k is segment k."""
    return _segments("segment_sum", "add", data, segment_ids, num_segments, 0)


@public
def segment_prod(data: Any, /, segment_ids: Any, num_segments: int | None = None) -> Tensor:
    """Products of the slices of `data` that share an id; an empty segment is 1."""
    return _segments("segment_prod", "mul", data, segment_ids, num_segments, 1)


@public
def segment_max(data: Any, /, segment_ids: Any, num_segments: int | None = None) -> Tensor:
    """Largest elements of the slices that share an id; an empty segment is the least value."""
    least = _limits(data, "segment_max")[0]
    return _segments("segment_max", "max", data, segment_ids, num_segments, least)


@public
def segment_min(data: Any, /, segment_ids: Any, num_segments: int | None = None) -> Tensor:
    """Smallest elements of the slices that share an id; an empty segment is the largest value."""
    largest = _limits(data, "segment_min")[1]
    return _segments("segment_min", "min", data, segment_ids, num_segments, largest)


@public
def masked_fill(x: Any, /, mask: Any, value: Any) -> Tensor:
    """`x` with `value` where the mask holds."""
    tensor = to_tensor(x, beside=(mask, value), op="masked_fill")
    chosen = to_tensor(mask, like=tensor.device, op="masked_fill")
    if not dtypes.is_bool(chosen.dtype):
        raise DTypeError(f"masked_fill: the mask must be bool, got {dtypes.name_of(chosen.dtype)}")
    return where(chosen, value_like("masked_fill", tensor, value), tensor)


@public
@named
def select(condlist: Any, /, choicelist: Any, default: Any = 0) -> Tensor:
    """For each element the choice of the first condition that holds, else `default`."""
    conditions = as_sequence("select", "condlist", condlist)
    values = as_sequence("select", "choicelist", choicelist)
    if not conditions or len(conditions) != len(values):
        raise ArgumentError(
            f"select: {len(conditions)} conditions for {len(values)} choices"
            "\nhint: one choice for each condition, and at least one"
        )
    choices = as_tensors("select", *values, default, beside=tuple(conditions))
    result = choices[-1]
    for condition, choice in zip(conditions[::-1], choices[-2::-1], strict=True):
        result = where(condition, choice, result)
    return result


@public
def piecewise(x: Any, /, condlist: Any, funclist: Any, *args: Any, **keywords: Any) -> Tensor:
    """For each element the function, or the number, of the last condition that holds.

    One entry more than there are conditions is for elements where none does, else they are 0.
    One mask alone is one condition. Every function is called with the whole of `x`.

    >>> piecewise(to_tensor([-2.0, 3.0]), [to_tensor([True, False])], [abs, 7.0]).tolist()
    [2.0, 7.0]
    """
    tensor = to_tensor(x, beside=(condlist,), op="piecewise")
    conditions = as_sequence("piecewise", "condlist", condlist)
    if tensor.ndim and conditions and FUNCTIONS["ndim"](conditions[0]) == 0:
        conditions = (condlist,)
    choices = list(as_sequence("piecewise", "funclist", funclist))
    if len(choices) not in (len(conditions), len(conditions) + 1):
        raise ArgumentError(
            f"piecewise: {len(conditions)} conditions for {len(choices)} functions"
            "\nhint: one function for each condition, and perhaps one for all other elements"
        )
    default = choices.pop() if len(choices) > len(conditions) else 0
    values = [f(tensor, *args, **keywords) if callable(f) else f for f in (*choices, default)]
    result = broadcast(value_like("piecewise", tensor, values[-1]), tensor.shape)
    for condition, value in zip(conditions, values[:-1], strict=True):
        result = where(condition, value_like("piecewise", result, value), result)
    return result


@public
def choose(index: Any, /, choices: Any, *, mode: str = "raise") -> Tensor:
    """For each element, the element of the choice that `index` names."""
    listed = as_sequence("choose", "choices", choices)
    if not listed:
        raise ArgumentError("choose: needs at least one choice")
    places = _integers("choose", index, device_of(*listed))
    options = broadcast_arrays(*as_tensors("choose", *listed, beside=(places,)))
    shape = broadcast_shape("choose", places.shape, options[0].shape)
    table = stack([broadcast(option, shape) for option in options], axis=-1)
    at = expand_dims(broadcast(places, shape), -1)
    found = take_along_axis(table, at, axis=-1, mode=checked_mode("choose", mode))
    return reshape(found, shape)


@public
def compress(condition: Any, x: Any, /, axis: int | None = None) -> Tensor:
    """Slices along an axis for which the condition (one axis of bools) holds."""
    mask, tensor = to_tensors("compress", condition, x)
    if mask.ndim != 1:
        raise ShapeError(f"compress: the condition must have one axis, got shape {mask.shape}")
    return take(tensor, np.flatnonzero(mask.host()), axis=axis)


@public
@named
def extract(condition: Any, x: Any, /) -> Tensor:
    """The elements of `x`, flattened, for which the condition holds."""
    mask, tensor = to_tensors("extract", condition, x)
    return compress(ravel(mask), ravel(tensor), axis=0)


@public
def unravel_index(indices: Any, /, shape: Any, order: str = "C") -> tuple[Tensor, ...]:
    """Positions in a flattened tensor as positions along each axis of `shape`.

    The last axis is the one whose positions follow each other, the first for `order` F. Positions
    out of range are refused, but not in a compiled or mapped function, where values are not there
    to be looked at: each is a position inside of `shape` then.
    """
    flat = _integers("unravel_index", indices, None)
    sizes, step = _grid("unravel_index", shape, order)
    _check_range("unravel_index", flat, prod(sizes))
    found = []
    for size in sizes[::step]:
        found.append(flat % max(size, 1))
        flat = flat // max(size, 1)
    return tuple(found[::step])


@public
def ravel_multi_index(
    multi_index: Any, /, dims: Any, mode: str | Sequence[str] = "raise", order: str = "C"
) -> Tensor:
    """Positions along each axis of `dims` as positions in the flattened tensor.

    `mode` is for those out of range, of all axes or of each: `raise`, `clip` or `wrap`. A compiled
    or mapped function has no values to look at: what `raise` would refuse there becomes a number
    that means nothing. Positions along the last axis follow each other, along the first for `order`
    F.
    """
    sizes, step = _grid("ravel_multi_index", dims, order)
    listed = as_sequence("ravel_multi_index", "multi_index", multi_index)
    device = device_of(*listed)
    parts = [_integers("ravel_multi_index", part, device) for part in listed]
    modes = mode if isinstance(mode, tuple | list) else (mode,) * len(sizes)
    if len(parts) != len(sizes) or len(modes) != len(sizes):
        what = f"{len(parts)} positions" if len(parts) != len(sizes) else f"{len(modes)} modes"
        raise ShapeError(f"ravel_multi_index: {what} for {len(sizes)} axes {sizes}")
    placed = [_within(part, size, how) for part, size, how in zip(parts, sizes, modes, strict=True)]
    flat: Any = 0
    for part, size in zip(placed[::-step], sizes[::-step], strict=True):
        flat = flat * size + part
    return asarray(flat)


def _grid(op: str, shape: Any, order: str) -> tuple[Shape, int]:
    """Sizes whose positions int64 counts, and the step through them from the fastest axis on."""
    sizes = shape_tuple(op, shape, held=False)
    if prod(sizes) > np.iinfo(np.int64).max:
        raise ShapeError(f"{op}: shape {sizes} has more positions than int64 counts")
    return sizes, -1 if as_choice(op, "order", order, ("C", "F")) == "C" else 1


def _within(places: Tensor, size: int, mode: str) -> Tensor:
    """Positions along an axis, with those out of range refused, clipped or wrapped."""
    checked_mode("ravel_multi_index", mode)
    if places.size and not size:
        raise IndexingError("ravel_multi_index: an axis of size 0 has no positions")
    if mode == "raise":
        _check_range("ravel_multi_index", places, size)
        return places
    if mode == "wrap":
        return places % size
    clipped: Tensor = FUNCTIONS["clip"](places, 0, size - 1)
    return clipped


def _check_range(op: str, places: Tensor, size: int) -> None:
    """Refuse positions out of range; where only shapes are known there is nothing to see."""
    if places.owner is not None and not places.is_realized:
        return
    found = places.host()
    if found.size and (found.min() < 0 or found.max() >= size):
        bad = int(found[(found < 0) | (found >= size)].flat[0])
        raise IndexingError(f"{op}: position {bad} is out of range for size {size}")


__all__ = [
    "choose",
    "compress",
    "embedding",
    "extract",
    "gather",
    "index_select",
    "masked_fill",
    "piecewise",
    "place",
    "put",
    "put_along_axis",
    "putmask",
    "ravel_multi_index",
    "scatter",
    "scatter_add",
    "segment_max",
    "segment_min",
    "segment_prod",
    "segment_sum",
    "select",
    "take",
    "unravel_index",
]
