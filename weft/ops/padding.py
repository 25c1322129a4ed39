"""Widen axes with constants, repeated elements, ramps or statistics: `pad` by NumPy's rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.device import CPU
from weft.core.common.parameters import LARGEST, as_choice, as_integer, is_sequence, shown
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import Array
from weft.core.tensor.convert import holds_tensor, to_tensor
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ops.axes import normalize_axis
from weft.ops.base import call
from weft.ops.creation import check_memory
from weft.ops.elementwise.arithmetic import where
from weft.ops.families import cast
from weft.ops.indexing import value_like
from weft.ops.often import often
from weft.ops.selection import take
from weft.ops.view.broadcast import broadcast_to
from weft.ops.view.join import concat, pad_op
from weft.ops.view.reshape import reshape
from weft.ops.view.slice import flip, narrow

_MIRRORS = ("reflect", "symmetric")
_REPEATING = ("edge", *_MIRRORS, "wrap")
_STATISTICS = {"maximum": "max", "mean": "mean", "median": "median", "minimum": "min"}


@public
@often
def pad(
    x: Any,
    /,
    pad_width: Any,
    mode: str = "constant",
    *,
    constant_values: Any = 0,
    end_values: Any = 0,
    stat_length: Any = None,
    reflect_type: str = "even",
) -> Tensor:
    """Widen axes: `pad_width` is one number, a pair (before, after), or a pair for each axis.

    New elements are `constant_values`, or repeat old ones: `edge`, `reflect`, `symmetric`, `wrap`;
    with `linear_ramp` they go from those at the edge to `end_values`, with `maximum`, `mean`,
    `median` and `minimum` they are that of the `stat_length` elements beside them, or of all; with
    `empty` their values do not matter. By the `reflect_type` `odd`, `reflect` and `symmetric` take
    what they repeat from twice the element at the edge.
    """
    tensor = to_tensor(x, op="pad")
    widths = _pairs("pad", pad_width, tensor.ndim)
    if any(n < 0 for pair in widths for n in pair):
        raise ArgumentError(f"pad: a width is negative ({shown(pad_width)})")
    shape = tuple(n + sum(pair) for n, pair in zip(tensor.shape, widths, strict=True))
    check_memory("pad", shape, tensor.dtype)
    modes = ("constant", "empty", "linear_ramp", *_REPEATING, *_STATISTICS)
    as_choice("pad", "mode", mode, modes)
    value = constant_values if mode == "constant" else 0
    is_odd = as_choice("pad", "reflect_type", reflect_type, ("even", "odd")) == "odd"
    if is_odd and mode not in _MIRRORS:
        raise ArgumentError(
            f"pad: reflect_type='odd' is for 'reflect' and 'symmetric', not {mode!r}"
        )
    if mode in _REPEATING:
        made = _repeating(tensor, widths, mode, is_odd)
    elif mode in _STATISTICS:
        made = _statistics(tensor, widths, mode, stat_length)
    elif mode == "linear_ramp":
        made = _ramps(tensor, widths, end_values)
    elif not tensor.ndim:
        made = tensor
    elif is_sequence(value):
        made = _constants(tensor, widths, value)
    else:
        made = _padded(tensor, value, widths)
    return alias(made) if made is x else made


def _padded(x: Tensor, value: Any, widths: list[tuple[int, int]]) -> Tensor:
    low, high = zip(*widths, strict=True)
    if not any(low) and not any(high):
        return x
    if dtypes.is_bool(x.dtype) and type(value) is int and value in (0, 1):
        value = bool(value)
    fill = value_like("pad", x, value)
    if fill.shape != ():
        raise ShapeError(f"pad: a fill value must have no axes, got shape {fill.shape}")
    params = {"low": low, "high": high, "interior": (0,) * len(low)}
    return call(pad_op, (x, fill), params)


def _constants(x: Tensor, widths: list[tuple[int, int]], values: Any) -> Tensor:
    """Different values for different sides: one axis after the other, one side at a time."""
    value = _sides("constant_values", values, x)
    for i, (before, after) in enumerate(widths):
        for side in (0, 1):
            here = [(0, 0)] * x.ndim
            here[i] = (before, 0) if side == 0 else (0, after)
            x = _padded(x, value(i, side), here)
    return x


def _sides(name: str, values: Any, x: Tensor) -> Callable[[int, int], Any]:
    """What is given for one side of one axis: a number, or of tensors beside floats a tensor."""
    if dtypes.is_inexact(x.dtype) and (isinstance(values, Tensor) or holds_tensor(values)):
        given = to_tensor(values, beside=(x,), op=f"pad: {name}")
        _table("pad", name, np.empty(given.shape), x.ndim)
        pairs = broadcast_to(cast(given, x.dtype), (x.ndim, 2))
        return lambda axis, side: pairs[axis, side]
    table = _table("pad", name, to_tensor(values, like=CPU, op=f"pad: {name}").host(), x.ndim)
    return lambda axis, side: table[axis, side].item()


def _widened(
    x: Tensor, widths: list[tuple[int, int]], mode: str, made: Callable[[Tensor, int, int], Tensor]
) -> Tensor:
    """Each axis in turn between what is made for it and its sides, which may be of length 1."""
    for i, pair in enumerate(widths):
        _check_axis(x, i, pair, mode)
        parts = [x]
        for side, width in enumerate(pair):
            if width:
                shape = (*x.shape[:i], width, *x.shape[i + 1 :])
                parts.insert(side * len(parts), broadcast_to(made(x, i, side), shape))
        x = concat(parts, i) if any(pair) else x
    return x


def _statistics(x: Tensor, widths: list[tuple[int, int]], mode: str, stat_length: Any) -> Tensor:
    """A statistic of the elements that are nearest to each side."""
    table = np.full((x.ndim, 2), LARGEST)
    if stat_length is not None:
        given = _whole("pad", stat_length, "stat_length")
        table = _table("pad", "stat_length", given, x.ndim)
        if (table < 1).any():
            raise ArgumentError(f"pad: stat_length must be positive, got {shown(stat_length)}")

    def made(x: Tensor, axis: int, side: int) -> Tensor:
        size = x.shape[axis]
        count = min(int(table[axis, side]), size)
        near = narrow(x, axis, side * (size - count), count)
        found = FUNCTIONS[_STATISTICS[mode]](near, axis=axis, keepdims=True)
        if found.dtype != x.dtype and dtypes.is_integer(x.dtype):
            found = FUNCTIONS["round"](found)
        return cast(found, x.dtype)

    return _widened(x, widths, mode, made)


def _ramps(x: Tensor, widths: list[tuple[int, int]], end_values: Any) -> Tensor:
    """Elements in even steps from an end value to the edge; integers are rounded down."""
    value = _sides("end_values", end_values, x)

    def made(x: Tensor, axis: int, side: int) -> Tensor:
        width = widths[axis][side]
        kind = x.dtype if dtypes.is_inexact(x.dtype) else dtypes.float64
        edge = cast(_edge(x, axis, side), kind)
        share = np.arange(width) / width
        share = share[:: -1 if side else 1].reshape(-1, *[1] * (x.ndim - axis - 1))
        end = value(axis, side)
        found = (edge - end) * cast(to_tensor(share, like=x.device, op="pad"), kind) + end
        if not dtypes.is_inexact(x.dtype):
            found = FUNCTIONS["floor"](found)
        return cast(found, x.dtype)

    return _widened(x, widths, "linear_ramp", made)


def _check_axis(x: Tensor, axis: int, pair: tuple[int, int], mode: str) -> None:
    if any(pair) and not x.shape[axis]:
        raise ShapeError(f"pad: axis {axis} is empty: {mode!r} has nothing to repeat")


def _repeating(x: Tensor, widths: list[tuple[int, int]], mode: Any, is_odd: bool) -> Tensor:
    for i, pair in enumerate(widths):
        _check_axis(x, i, pair, mode)
        if not any(pair):
            continue
        odd = is_odd and (x.shape[i] > 1 or mode == "symmetric")  # one element reflects itself
        if max(pair) <= x.shape[i] - (mode == "reflect") or mode == "edge":
            before, after = (_repeated(x, i, width, mode, side) for side, width in enumerate(pair))
            if odd:
                before, after = (
                    None if part is None else 2 * _edge(x, i, side) - part
                    for side, part in enumerate((before, after))
                )
            x = concat([part for part in (before, x, after) if part is not None], i)
        elif odd:
            before, after = (_mirrored(x, i, side, n, mode) for side, n in enumerate(pair))
            x = concat([before, x, after], i)
        else:  # it is repeated several times
            x = take(x, np.pad(np.arange(x.shape[i]), pair, mode=mode), axis=i)
    return x


def _edge(x: Tensor, axis: int, side: int) -> Tensor:
    """The first element (side 0) or the last one along an axis."""
    return narrow(x, axis, side * (x.shape[axis] - 1), 1)


def _mirrored(x: Tensor, axis: int, side: int, width: int, mode: str) -> Tensor:
    """What odd mirrors at both ends of an axis show before (side 0) or after it."""
    size, rest = x.shape[axis], (1,) * (x.ndim - 1 - axis)
    period = 2 * (size - (mode == "reflect"))
    turns, place = np.divmod(np.arange(width) + (size if side else -width), period)
    is_back = place >= size
    found = take(x, np.where(is_back, period - place - (mode == "symmetric"), place), axis=axis)
    first, last = (_edge(x, axis, k) for k in range(2))
    back, far = (
        reshape(to_tensor(part, like=x.device, op="pad"), (-1, *rest))
        for part in (is_back, 2 * turns)
    )
    return where(back, 2 * last - found, found) + cast(far, x.dtype) * (last - first)


def _repeated(x: Tensor, axis: int, width: int, mode: str, side: int) -> Tensor | None:
    """What is put before (side 0) or after the elements of an axis, if anything is."""
    size = x.shape[axis]
    if not width:
        return None
    if mode == "edge":
        shape = (*x.shape[:axis], width, *x.shape[axis + 1 :])
        return broadcast_to(_edge(x, axis, side), shape)
    if mode == "wrap":
        return narrow(x, axis, 0 if side else size - width, width)
    skipped = int(mode == "reflect")  # the element at the end is not repeated
    start = size - width - skipped if side else skipped
    return flip(narrow(x, axis, start, width), axis=axis)


def _whole(op: str, widths: Any, name: str = "pad_width") -> Array:
    """Widths as an array of integers."""
    if not is_sequence(widths):
        return np.asarray(as_integer(op, name, widths, high=LARGEST))
    found = to_tensor(widths, like=CPU, op=f"{op}: {name}").host()
    if found.dtype.kind not in "iu":
        raise DTypeError(f"{op}: {name} must be integers, got {shown(widths)}")
    return found


def _table(op: str, name: str, values: Array, rank: int) -> Array:
    """One pair for each axis."""
    try:
        return np.broadcast_to(values, (rank, 2))
    except ValueError:
        raise ShapeError(
            f"{op}: {name} of shape {values.shape} does not fit {rank} axes (one pair for each)"
        ) from None


def _pairs(op: str, widths: Any, rank: int) -> list[tuple[int, int]]:
    """(before, after) for every axis, from one number, a pair, pairs, or a dict of axes."""
    if isinstance(widths, dict):
        table = np.zeros((rank, 2), np.int64)
        for axis, pair in widths.items():
            table[normalize_axis(op, axis, rank)] = _table(op, "pad_width", _whole(op, pair), 1)[0]
    else:
        table = _table(op, "pad_width", _whole(op, widths), rank)
    return [(int(before), int(after)) for before, after in table]


__all__ = ["pad"]
