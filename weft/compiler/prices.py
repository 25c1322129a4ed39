"""What accesses to memory cost when the steps of a loop run as lanes, and when one by one."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from math import inf
from typing import TypeAlias

from weft.compiler.loops import (
    Assign,
    Loop,
    Reduce,
    Statement,
    Store,
    Value,
    every,
    expressions,
    integer_of,
    leaves_of,
)
from weft.compiler.polynomial import hides, known, number, stride, subtract
from weft.compiler.rebuild import Statements, rebuild, values_of

UNIT, SAME, APART = 5, 2, 20  # what an access costs: adjacent, one for all lanes, others
Where: TypeAlias = tuple[int, Value | None, int]  # a buffer, what an index moves by, and its rest
GROUPS = (2, 3, 4)  # elements that follow each other, of which lanes take one each
_HEAVY = 6  # operations on floats for each access
_OFTEN = 16  # how often a loop's inside counts, at most


def accesses(statements: Statements) -> list[Value]:
    """The indices at which statements, and those inside them, load and store."""
    found = [x.args[0] for x in values_of(statements) if x.op == "load"]
    return found + [s.index for s in every(statements) if isinstance(s, Store)]


def where(buffer: int, index: Value) -> Where:
    """An index in a buffer as something and a literal."""
    if index.op == "add" and index.args[1].op == "const":
        return buffer, index.args[0], integer_of(index.args[1])
    return (buffer, None, integer_of(index)) if index.op == "const" else (buffer, index, 0)


def together(place: Where, step: int) -> list[Where]:
    """The elements of the group that an element belongs to, if so many make a group."""
    buffer, moving, rest = place
    first = rest - rest % step
    return [(buffer, moving, first + k) for k in range(step)]


def group_of(step: object) -> int:
    """How many elements make up a group of which lanes so far apart take one each; 1 if none do."""
    return step if isinstance(step, int) and step in GROUPS else 1


def are_taken(place: Where, step: object, places: Container[Where]) -> bool:
    """Whether the ends of an element's group are used, too: then all of it can be read at once."""
    group = together(place, group_of(step))
    return len(group) > 1 and group[0] in places and group[-1] in places


def points_of(statement: Loop | Reduce) -> Statements:
    """What runs at each step; the values of a reduction as one without axes."""
    if isinstance(statement, Loop):
        return statement.body
    return (*statement.body, replace(statement, axes=(), body=()))


def weight(statement: Statement) -> int:
    """How often what is inside counts: as often as it runs, up to a limit."""
    if isinstance(statement, Loop):
        trips = known(subtract(statement.stop, statement.start))
        return _OFTEN if trips is None else max(1, min(_OFTEN, trips // statement.step))
    if not isinstance(statement, Reduce):
        return 1
    count = 1
    for _, extent in statement.axes:
        count = min(_OFTEN, count * (known(extent) or _OFTEN))
    return count


def indices(statements: Statements) -> list[tuple[int, Value]]:
    """Where statements themselves, not those inside them, use memory and arrays, in any order."""
    leaves: set[Value] = set()
    found: list[tuple[int, Value]] = []
    for s in statements:
        if isinstance(s, Store):
            found.append((s.buffer, s.index))
        elif isinstance(s, Assign) and s.position is not None:
            found.append((-1 - s.local, s.position))
        if isinstance(s, Store | Assign) or (isinstance(s, Reduce) and not s.axes):
            leaves.update(*map(leaves_of, expressions(s)))
    return found + [
        (x.data if x.op == "load" else -1 - x.data, x.args[0]) for x in leaves if x.args
    ]


def price(variable: Value, statements: Statements, by_rows: bool = False) -> float:
    """What the accesses of statements cost when the variable's values are lanes.

    Lanes none of whose accesses are adjacent gain nothing. `by_rows`: lanes are taken so that a
    quotient is one for all of them.
    """
    total, adjacent = _price(variable, statements, by_rows)
    return total if adjacent else inf


def is_heavy(statements: Statements) -> bool:
    """Whether so much is computed that lanes pay even where none of their accesses are adjacent."""
    if not all(isinstance(s, Store | Assign) for s in statements):
        return False  # loops inside may have lanes of their own
    work = sum(
        x.dtype.kind == "f" and bool(x.args) and x.op != "load" for x in values_of(statements)
    )
    return work >= _HEAVY * len(accesses(statements))


def _price(variable: Value, statements: Statements, by_rows: bool) -> tuple[int, bool]:
    total, adjacent = 0, False
    found = [(m, _in_row(i, variable) if by_rows else i) for m, i in indices(statements)]
    places = {where(memory, index) for memory, index in found if memory >= 0}
    for memory, index in found:
        step = number(stride(index, variable)) if hides(index, variable) else 0
        is_part = are_taken(where(memory, index), step, places)
        if not hides(index, variable):
            total += SAME
        elif step == 1 or is_part:
            total, adjacent = total + UNIT, True
        else:
            total += APART
    for s in statements:
        inner, some = _price(variable, s.body, by_rows)
        total, adjacent = total + weight(s) * inner, adjacent or some
        if isinstance(s, Reduce) and s.axes:
            inner, some = _price(variable, (replace(s, axes=(), body=()),), by_rows)
            total, adjacent = total + weight(s) * inner, adjacent or some
    return total, adjacent


def _in_row(index: Value, variable: Value) -> Value:
    """An index as it is inside a row: quotients stand still, remainders move on."""

    def change(x: Value) -> Value:
        if x.op in ("floordiv", "rem") and number(stride(x.args[0], variable)) == 1:
            return x.args[1] if x.op == "floordiv" else x.args[0]
        return x

    return rebuild(index, change, {})
