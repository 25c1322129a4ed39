"""Axis parameters: users count from either end, ops count from the right."""

from __future__ import annotations

from typing import Any

from weft.core.common.parameters import as_integer, is_sequence, shown
from weft.errors import AxisError


def normalize_axis(op: str, axis: Any, rank: int) -> int:
    """The axis counted from the left, or an `AxisError`."""
    found = axis if type(axis) is int else as_integer(op, "axis", axis)
    if not -rank <= found < rank:
        raise AxisError(f"{op}: axis {found} is out of range for {rank} axes")
    return found % rank


def normalize_axes(op: str, axes: Any, rank: int) -> tuple[int, ...]:
    """Axes counted from the left, in the order given; repeated ones are refused."""
    listed = (axes,) if type(axes) is int or not is_sequence(axes) else tuple(axes)
    found = tuple(normalize_axis(op, axis, rank) for axis in listed)
    if len(set(found)) != len(found):
        raise AxisError(f"{op}: an axis is given twice ({shown(axes)})")
    return found


def reduced_axes(op: str, axis: Any, rank: int) -> tuple[int, ...]:
    """The axes a reduction removes: all for None; negative and ascending."""
    if axis is None:
        return tuple(range(-rank, 0))
    return tuple(sorted([i - rank for i in normalize_axes(op, axis, rank)]))
