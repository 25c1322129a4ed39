"""Search: sorted positions, sets, true elements.

What has a shape known beforehand (`searchsorted`, `isin`) runs under every transform. What has a
shape that depends on values (`unique`, `nonzero`…) reads them, so it cannot run inside vmap or
compile; `size` makes some of it static. Distinct elements are taken out of the tensor at
positions that were read, so they carry derivatives.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, ClassVar, NamedTuple

import numpy as np

from weft.core.common import dtypes
from weft.core.common.device import Device
from weft.core.common.parameters import (
    as_choice,
    as_flag,
    as_integer,
    as_sequence,
    shown,
)
from weft.core.common.slots import public
from weft.core.common.types import Array, DType, Shape, TensorType
from weft.core.tensor.convert import known, to_tensor, to_tensors
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.tracing import read_for_size
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ops import reduction
from weft.ops.axes import normalize_axis
from weft.ops.base import Example, Operation, call
from weft.ops.creation import arange, asarray, check_memory, full, zeros
from weft.ops.distinct import distinct
from weft.ops.elementwise.arithmetic import where
from weft.ops.families import as_tensors, broadcast, broadcast_shape, cast
from weft.ops.indexing import getitem
from weft.ops.naming import named
from weft.ops.order import argsort, sort, take_along_axis
from weft.ops.view.join import concat, stack
from weft.ops.view.reshape import expand_dims, reshape
from weft.ops.view.slice import flip

FEW_MEMBERS = 16  # that each element is rather compared with than searched for


class Searchsorted(Operation):
    """Where values belong in a sorted axis: how many of its elements come before each."""

    factors = "... n, ... m -> ... m"
    whole = "n"
    kernel_from = 1 << 14
    widen = False
    constants = (0, 1)
    sample = "of"
    examples: ClassVar[tuple[Example, ...]] = (
        Example({"side": "left"}, ((5,), (6,))),
        Example({"side": "right"}, ((1,), (6,))),
    )
    reasons: ClassVar[dict[str, str]] = {
        "vjp": "the result is an integer position",
        "jvp": "the result is an integer position",
    }

    def dtype(self, *found: DType, **params: Any) -> DType:
        return dtypes.int64

    def eval(self, x1: Array, x2: Array, *, side: Any) -> Array:
        row, values = (v.astype(np.float32) if dtypes.is_narrow(v.dtype) else v for v in (x1, x2))
        if row.ndim == 1:
            return np.asarray(np.searchsorted(row, values, side))
        lead = broadcast_shape(self.name, row.shape[:-1], values.shape[:-1])
        row = np.broadcast_to(row, (*lead, row.shape[-1]))
        values = np.broadcast_to(values, (*lead, values.shape[-1]))
        out = np.empty(values.shape, np.int64)
        for place in np.ndindex(*lead):
            out[place] = np.searchsorted(row[place], values[place], side)
        return out

    def at(
        self, s: Any, index: Any, read: Any, x1: TensorType, x2: TensorType, *, side: str
    ) -> Any:
        """Binary search with a fixed number of steps: each leaves half of the row, rounded up."""
        value, found = read(1, index), s.const(0, dtypes.int64)
        left = x1.shape[-1]
        is_before = _before(s, value, side)
        while left:
            half = (left + 1) // 2
            place = s.add(found, s.const(half - 1, dtypes.int64))
            chosen = is_before(read(0, (*index[:-1], place)))
            found = s.add(found, s.select(chosen, s.const(half, dtypes.int64), 0))
            left -= half
        return found


def _before(s: Any, value: Any, side: str) -> Any:
    """What tells whether an element comes before `value` in the order of `sort`: NaN is last."""
    if value.dtype.kind in "biu":
        return lambda x: s.less(x, value) if side == "left" else s.less_equal(x, value)
    missing = s.not_equal(value, value)
    if side == "right":
        return lambda x: s.bit_or(s.less_equal(x, value), missing)
    numbers = (s.const(v, value.dtype) for v in (np.inf, np.nan))
    last = s.select(missing, *numbers)  # all numbers come before NaN
    return lambda x: s.bit_or(s.less(x, value), s.less_equal(x, last))


searchsorted_op = Searchsorted()


@public
def searchsorted(x1: Any, x2: Any, /, side: str = "left", sorter: Any = None) -> Tensor:
    """Positions in the sorted `x1` at which elements of `x2` would keep it sorted.

    `side` says whether equal elements of `x1` come after (`left`) or before (`right`). With several
    axes in `x1`, each row is searched for the row of `x2` beside it. `sorter` sorts `x1` first.

    >>> searchsorted(to_tensor([1, 3, 3, 7]), to_tensor([3, 8])).tolist()
    [1, 4]
    """
    as_choice("searchsorted", "side", side, ("left", "right"))
    row, values = as_tensors("searchsorted", x1, x2)
    if row.ndim == 0:
        raise ShapeError("searchsorted: x1 has no axis to search along")
    dtype = dtypes.promote(row.dtype, values.dtype, op="searchsorted")
    if dtypes.is_complex(dtype):
        raise DTypeError("searchsorted: complex numbers have no order")
    if sorter is not None:
        row = take_along_axis(row, to_tensor(sorter, like=row.device, op="searchsorted"))
    if row.ndim > 1 and row.shape[:-1] != values.shape[:-1]:
        raise ShapeError(
            f"searchsorted: rows of x1 and x2 differ (shapes {row.shape}, {values.shape})"
        )
    sought = values if row.ndim > 1 else reshape(values, (-1,))
    found = call(searchsorted_op, (cast(row, dtype), cast(sought, dtype)), {"side": side})
    return reshape(found, values.shape)


@public
def digitize(x: Any, /, bins: Any, right: bool = False) -> Tensor:
    """The number of the bin each element falls in; `bins` are edges that rise or fall.

    With rising edges, bin i holds `bins[i-1] <= x < bins[i]`; `right` moves the equals sign.
    """
    values, edges = as_tensors("digitize", x, bins)
    if edges.ndim != 1:
        raise ShapeError(f"digitize: bins must have one axis, got shape {edges.shape}")
    ends = known(edges)
    if ends is not None and (ends[1:] < ends[:-1]).any() and (ends[1:] > ends[:-1]).any():
        raise ArgumentError(f"digitize: bins must rise or fall, got {shown(bins)}")
    side = "left" if as_flag("digitize", "right", right) else "right"
    rising = searchsorted(edges, values, side=side)
    if edges.shape[0] < 2:
        return rising
    turned = searchsorted(flip(edges), values, side=side)
    return where(edges[0] <= edges[-1], rising, edges.shape[0] - turned)


@public
def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Tensor:
    """For each element of `x1`, whether it is among the elements of `x2`; NaN never is."""
    invert = as_flag("isin", "invert", invert)
    values, members = as_tensors("isin", x1, x2)
    dtype = dtypes.promote(values.dtype, members.dtype, op="isin")
    values, members = cast(values, dtype), reshape(cast(members, dtype), (-1,))
    if members.shape[0] == 0:
        return full(values.shape, invert, dtype=dtypes.bool_, device=values.device)
    if members.shape[0] <= FEW_MEMBERS:
        found = functools.reduce(
            operator.or_, [values == members[k] for k in range(members.shape[0])]
        )
    elif dtypes.is_complex(dtype):
        found = reduction.any(expand_dims(values, -1) == members, -1)
    else:
        ordered = sort(members)
        place = searchsorted(ordered, values)
        found = ordered.at[place].get(mode="clip") == values
    return where(found, False, True) if invert else found


@public
@named
def lexsort(keys: Any, /, axis: int = -1) -> Tensor:
    """Positions that sort by the last key, then by the one before it, and so on; stable."""
    rows = to_tensors("lexsort", *as_sequence("lexsort", "keys", keys))
    if not rows:
        raise ArgumentError("lexsort: needs at least one key")
    i = normalize_axis("lexsort", axis, rows[0].ndim)
    order = argsort(rows[0], axis=i)
    for key in rows[1:]:
        step = argsort(take_along_axis(key, order, axis=i), axis=i)
        order = take_along_axis(order, step, axis=i)
    return order


@public
def nonzero(x: Any, /, *, size: int | None = None, fill_value: int = 0) -> tuple[Tensor, ...]:
    """Positions of the elements that are not zero: one tensor of indices for each axis.

    `size` fixes how many there are, so that the call can be traced: further ones are left out and
    missing ones are `fill_value`.
    """
    tensor = to_tensor(x, op="nonzero")
    if tensor.ndim == 0:
        raise ShapeError(
            "nonzero: a tensor with no axes has no positions\nhint: reshape it to (1,) first"
        )
    if size is None:
        return tuple(_made(axis, tensor.device) for axis in np.nonzero(_plain(tensor.host())))
    size = as_integer("nonzero", "size", size, low=0)
    fill = as_integer("nonzero", "fill_value", fill_value)
    flat, count = _static_positions(tensor, size)
    outside = arange(size, device=tensor.device) >= count
    found = []
    for length in reversed(tensor.shape):
        found.append(where(outside, fill, flat % max(length, 1)))
        flat = flat // max(length, 1)
    return tuple(reversed(found))


def _static_positions(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The first `size` flat positions of elements that are not zero, and how many there are."""
    mask = reshape(cast(x, dtypes.bool_), (-1,))
    order = argsort(mask, descending=True)[:size]
    if order.shape[0] < size:
        missing = size - order.shape[0]
        order = concat([order, zeros((missing,), dtype=dtypes.int64, device=x.device)])
    return order, reduction.sum(mask)


@public
def flatnonzero(x: Any, /, *, size: int | None = None, fill_value: int = 0) -> Tensor:
    """Positions in the flattened tensor of the elements that are not zero."""
    (found,) = nonzero(reshape(to_tensor(x), (-1,)), size=size, fill_value=fill_value)
    return found


@public
def argwhere(x: Any, /, *, size: int | None = None, fill_value: int = 0) -> Tensor:
    """Positions of the elements that are not zero, one row each."""
    tensor = to_tensor(x, op="argwhere")
    if tensor.ndim == 0:
        count = len(flatnonzero(tensor, size=size))
        return zeros((count, 0), dtype=dtypes.int64, device=tensor.device)
    return stack(nonzero(tensor, size=size, fill_value=fill_value), axis=-1)


def _plain(array: Array) -> Array:
    """An array NumPy can sort and compare: narrow floats widened, exactly."""
    return array.astype(np.float32) if dtypes.is_narrow(array.dtype) else array


def _places(x: Array, merged: bool, axis: int | None = None) -> tuple[Array, Array, Array]:
    """Where each distinct element (slice along `axis`) is first, which each one is, how often.

    `merged` makes all NaNs one.
    """
    plain = _plain(x)
    if axis is not None or not plain.size or dtypes.is_complex(plain.dtype):
        return np.unique(plain, True, True, True, axis=axis, equal_nan=merged)[1:]
    flat = plain.reshape(-1)
    order = np.argsort(flat)  # of equal elements in any order, which takes a third of the time
    ordered = flat[order]
    numbers = flat.size - np.count_nonzero(ordered != ordered)
    order[numbers:].sort()  # each NaN is what it is
    opens = np.ones(flat.size, np.bool_)
    opens[1:] = ordered[1:] != ordered[:-1]
    if merged:
        opens[numbers + 1 :] = False
    starts = np.flatnonzero(opens)
    inverse = np.empty_like(order)
    inverse[order] = np.cumsum(opens) - 1
    return np.minimum.reduceat(order, starts), inverse, np.diff(starts, append=flat.size)


def _made(array: Array, device: Device, dtype: DType | None = None) -> Tensor:
    return asarray(array.astype(dtypes.int64 if dtype is None else dtype), device=device, copy=True)


class UniqueAllResult(NamedTuple):
    """What `unique_all` gives."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCountsResult(NamedTuple):
    """What `unique_counts` gives."""

    values: Tensor
    counts: Tensor


class UniqueInverseResult(NamedTuple):
    """What `unique_inverse` gives."""

    values: Tensor
    inverse_indices: Tensor


@public
def unique_all(x: Any, /) -> UniqueAllResult:
    """Distinct elements in order, their first positions, where each went, and how often each is.

    Every NaN is distinct from every other.
    """
    tensor = to_tensor(x, op="unique_all")
    indices, inverse, counts = _places(tensor.host(), merged=False)
    device = tensor.device
    return UniqueAllResult(
        _at(tensor, indices),
        _made(indices, device),
        _made(inverse.reshape(tensor.shape), device),
        _made(counts, device),
    )


@public
def unique_counts(x: Any, /) -> UniqueCountsResult:
    """Distinct elements in order, and how often each is there; NaNs are distinct."""
    found = unique_all(x)
    return UniqueCountsResult(found.values, found.counts)


@public
def unique_inverse(x: Any, /) -> UniqueInverseResult:
    """Distinct elements in order, and which of them each element of `x` is; NaNs are distinct."""
    found = unique_all(x)
    return UniqueInverseResult(found.values, found.inverse_indices)


@public
def unique_values(x: Any, /) -> Tensor:
    """Distinct elements in order; every NaN is distinct from every other."""
    tensor = to_tensor(x, op="unique_values")
    return _at(tensor, _places(tensor.host(), merged=False)[0])


@public
def unique(
    x: Any,
    /,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """Distinct elements in order (of slices along `axis`), and what else is asked for, as a tuple.

    NaNs are one element unless `equal_nan` is False. `size` cuts or pads the result, with
    `fill_value` (the smallest element when none is given), first position 0 and count 0; then the
    call can be traced, if there is no axis.
    """
    tensor = to_tensor(x, op="unique")
    i = None if axis is None else normalize_axis("unique", axis, tensor.ndim)
    asked = [
        as_flag("unique", name, value)
        for name, value in (
            ("return_index", return_index),
            ("return_inverse", return_inverse),
            ("return_counts", return_counts),
        )
    ]
    merged = as_flag("unique", "equal_nan", equal_nan)
    fill = None
    if fill_value is not None:
        fill = to_tensor(fill_value, beside=(tensor,), op="unique: fill_value")
    is_plain = i is None and tensor.size > 0 and not dtypes.is_complex(tensor.dtype)
    if size is not None and is_plain and (fill is None or fill.size == 1):
        size = as_integer("unique", "size", size, low=0)
        check_memory("unique", (size,), tensor.dtype)
        filled = None if fill is None else cast(fill, tensor.dtype)
        found = distinct(reshape(tensor, (-1,)), size, filled, merged)
        shaped = (found[1], reshape(found[2], tensor.shape), found[3])
        more = [x for is_wanted, x in zip(asked, shaped, strict=True) if is_wanted]
        return (found[0], *more) if more else found[0]
    given = read_for_size(tensor, "say how many elements there are: wf.unique(x, size=…)")
    indices, inverse, counts = _places(given, merged, i)
    inverse = inverse.reshape(tensor.shape if i is None else (-1,))
    if size is None:
        values = _at(tensor, indices, i)
    else:
        size = as_integer("unique", "size", size, low=0)
        values = _sized(tensor, indices, i, size, fill)
        indices, counts = (np.append(v, np.zeros(size, v.dtype))[:size] for v in (indices, counts))
    wanted = zip(asked, (indices, inverse, counts), strict=True)
    extra = [_made(array, tensor.device) for is_wanted, array in wanted if is_wanted]
    return (values, *extra) if extra else values


def _at(x: Tensor, places: Array, axis: int | None = None) -> Tensor:
    """Slices along an axis (elements, if there is none) at positions that were read."""
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    return getitem(x, (*(slice(None),) * axis, _made(places, x.device)))


def _sized(x: Tensor, places: Array, axis: int | None, size: int, fill: Tensor | None) -> Tensor:
    """`size` of the slices at positions; what is missing is `fill`, or the first of them."""
    rest = (*x.shape[:axis], 1, *x.shape[axis + 1 :]) if axis is not None else (1,)
    along = axis or 0
    check_memory("unique", (*rest[:along], size, *rest[along + 1 :]), x.dtype)
    missing = max(size - len(places), 0)
    if missing and fill is None:
        if not len(places):
            raise ArgumentError(f"unique: nothing to fill size {size} with\nhint: give fill_value")
        places = np.append(places, np.repeat(places[:1], missing))
    kept = _at(x, places[:size], axis)
    if not missing or fill is None:
        return kept
    shape: Shape = (*rest[:along], missing, *rest[along + 1 :])
    if broadcast_shape("unique", fill.shape, shape) != shape:
        raise ShapeError(f"unique: fill_value of shape {fill.shape} does not fit {shape}")
    return concat([kept, broadcast(cast(fill, x.dtype), shape)], axis=along)


@public
def union1d(x1: Any, x2: Any, /) -> Tensor:
    """Distinct elements of both tensors, in order."""
    left, right = _flat_pair("union1d", x1, x2)
    result: Tensor = unique(concat([left, right]))
    return result


@public
def intersect1d(x1: Any, x2: Any, /, *, return_indices: bool = False) -> Any:
    """Distinct elements that both tensors have, in order.

    `return_indices` asks for where each is first, in `x1` and in `x2`, both flattened.
    """
    left, right = _flat_pair("intersect1d", x1, x2)
    found, place = unique(left, return_index=True)
    both = isin(found, right)
    if not as_flag("intersect1d", "return_indices", return_indices):
        return found[both]
    others, other_place = unique(right, return_index=True)
    return found[both], place[both], other_place[isin(others, left)]


@public
def setdiff1d(x1: Any, x2: Any, /) -> Tensor:
    """Distinct elements of `x1` that `x2` does not have, in order."""
    left, right = _flat_pair("setdiff1d", x1, x2)
    found = unique(left)
    result: Tensor = found[isin(found, right, invert=True)]
    return result


@public
@named
def setxor1d(x1: Any, x2: Any, /) -> Tensor:
    """Distinct elements that exactly one of the tensors has, in order."""
    return union1d(setdiff1d(x1, x2), setdiff1d(x2, x1))


def _flat_pair(name: str, x1: Any, x2: Any) -> tuple[Tensor, Tensor]:
    left, right = as_tensors(name, x1, x2)
    dtype = dtypes.promote(left.dtype, right.dtype, op=name)
    return reshape(cast(left, dtype), (-1,)), reshape(cast(right, dtype), (-1,))


__all__ = [
    "argwhere",
    "digitize",
    "flatnonzero",
    "intersect1d",
    "isin",
    "lexsort",
    "nonzero",
    "searchsorted",
    "setdiff1d",
    "setxor1d",
    "union1d",
    "unique",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
]
