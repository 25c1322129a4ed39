"""Masks of positions: comparisons of integers that are places along axes, plus numbers."""

from __future__ import annotations

import numpy as np

from weft.compiler.loops import BOOL, INDEX, Value, integer, literal, value, walk
from weft.compiler.passes.contract_frame import both
from weft.compiler.polynomial import add, multiply, number, polynomial, subtract

MOST = 1 << 30  # numbers beside positions: with axes of that size, int32 does not overflow
_INT32 = np.dtype(np.int32)
_PLAIN = ("variable", "const", "add", "sub", "mul", "parameter", "rem", "floordiv")


def compared(condition: Value) -> list[Value]:
    """Comparisons of positions all of which must hold for the condition to hold."""
    if condition.op == "bit_and":
        parts = [compared(x) for x in condition.args]
        return [each for part in parts for each in part] if all(parts) else []
    if condition.op not in ("less", "less_equal"):
        return []
    return [condition] if all(position(x) is not None for x in condition.args) else []


def position(x: Value) -> Value | None:
    """An integer as an index, if it is a position plus or minus a number."""
    if x.dtype == INDEX:
        return x if _is_plain(x) else None
    if x.dtype != _INT32:
        return None
    if x.op == "load":
        return value("cast", (x,), INDEX) if x.args[0].op == "const" else None
    if x.op == "const":
        return integer(int(literal(x))) if abs(int(literal(x))) <= MOST else None
    if x.op == "cast":
        return position(x.args[0]) if x.args[0].dtype == INDEX else None
    if x.op not in ("add", "sub", "mul"):
        return None
    args = [position(a) for a in x.args]
    if args[0] is None or args[1] is None:
        return None
    if x.op == "mul":
        steps = [number(polynomial(a)) for a in args if a is not None]
        return multiply(args[0], args[1]) if any(n in (1, -1, 0) for n in steps) else None
    return add(args[0], args[1]) if x.op == "add" else subtract(args[0], args[1])


def _is_plain(x: Value) -> bool:
    """Whether an index is made of loops' variables and numbers, and does not overflow."""
    return all(v.op in _PLAIN or (v.op == "load" and v.args[0].op == "const") for v in walk(x))


def is_held(x: Value) -> Value | bool:
    """Whether numbers that are known only when the kernel runs are small enough."""
    found: Value | bool = True
    for each in walk(x):
        if each.op == "load":
            given = value("cast", (each,), INDEX) if each.dtype != INDEX else each
            for pair in ((integer(-MOST), given), (given, integer(MOST))):
                found = both(found, value("less", pair, BOOL))
    return found
