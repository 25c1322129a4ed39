"""Between which numbers a float lies, whatever memory holds.

What is made of integers and literals alone lies between two floats and is never NaN. A function of
it asks no questions that these answer: the logarithm of a draw inside (0, 1) needs no care for 0.
"""

from __future__ import annotations

from itertools import product
from typing import Any, TypeAlias

import numpy as np

from weft.compiler.loops import Value, literal
from weft.core.common.types import DType
from weft.ops.functions.numpy_scalars import NumpyScalars

Interval: TypeAlias = tuple[Any, Any]  # the least and the greatest, NumPy scalars of the dtype

_DEPTH = 8  # instructions that are looked through
_FLOATS = frozenset({np.dtype(np.float32), np.dtype(np.float64)})
_MONOTONE = frozenset({"add", "sub", "mul", "min", "max", "neg", "fma"})  # in each operand


def decided(op: str, x: Value, y: Value) -> bool | None:
    """What a comparison of floats gives always; None if that depends, or is not known."""
    if x.dtype not in _FLOATS:
        return None
    known: dict[Value, Interval | None] = {}
    left = _interval(x, _DEPTH, known)
    right = None if left is None else _interval(y, _DEPTH, known)
    if left is None or right is None:
        return None
    if op in ("less", "less_equal"):
        return _is_before(left, right, op == "less")
    if left[1] < right[0] or right[1] < left[0]:
        return op == "not_equal"
    return op == "equal" if x is y else None


def _is_before(left: Interval, right: Interval, strictly: bool) -> bool | None:
    if left[1] < right[0] or (left[1] == right[0] and not strictly):
        return True
    if left[0] > right[1] or (left[0] == right[1] and strictly):
        return False
    return None


def _interval(x: Value, depth: int, known: dict[Value, Interval | None]) -> Interval | None:
    if x not in known:
        known[x] = None if depth == 0 else _found(x, depth - 1, known)
    return known[x]


def _found(x: Value, depth: int, known: dict[Value, Interval | None]) -> Interval | None:
    if x.op == "const":
        number = literal(x)
        return None if number != number else (number, number)
    if x.dtype.kind in "iu":
        return _whole(x, depth, known)
    if x.dtype not in _FLOATS or not _is_followed(x):
        return None
    given: list[Interval] = []
    for a in x.args:
        found = _interval(a, depth, known)
        if found is None or not np.isfinite(found).all():
            return None
        given.append(found)
    if x.op == "abs":
        low, high = given[0]
        return (low, high) if low >= 0 else None
    return _between([_result(x, corner) for corner in product(*given)])


def _is_followed(x: Value) -> bool:
    if x.op == "cast":
        return x.args[0].dtype.kind in "iu"
    return x.op in _MONOTONE or x.op == "abs"


def _result(x: Value, operands: tuple[Any, ...]) -> Any:
    """An instruction on numbers: rounding keeps their order."""
    with np.errstate(all="ignore"):
        if x.op == "cast":
            return NumpyScalars.cast(operands[0], x.dtype)
        return getattr(NumpyScalars, x.op)(*operands)


def _between(corners: list[Any]) -> Interval:
    return min(corners), max(corners)


def _whole(x: Value, depth: int, known: dict[Value, Interval | None]) -> Interval:
    """An integer lies in the range of its dtype; of an unsigned one that is shifted, in less."""
    low, high = _limits(x.dtype)
    if x.op == "shift_right" and x.dtype.kind == "u" and x.args[1].op == "const":
        most = _interval(x.args[0], depth, known)
        count = int(literal(x.args[1]))
        if most is not None and count < 8 * x.dtype.itemsize:
            return low, x.dtype.type(int(most[1]) >> count)
    return low, high


def _limits(dtype: DType) -> Interval:
    limits = np.iinfo(dtype)
    return dtype.type(limits.min), dtype.type(limits.max)
