"""Every other element, in LLVM IR: the parts of complex numbers, and rows of two.

Lanes that are two elements apart are half of what lies there. Where the other half is read as well,
one access takes both, and lanes alternate: processors have instructions for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from weft.compiler.emit_scope import VECTOR, Operand, Place
from weft.compiler.emit_text import type_of, vector
from weft.compiler.loops import Store, Value, expressions, leaves_of
from weft.compiler.prices import Where, beside, where
from weft.compiler.rebuild import Statements

if TYPE_CHECKING:
    from weft.compiler.emit_values import Values


def loads_in(statements: Statements) -> dict[Where, Value]:
    """What statements themselves, not those inside them, load; and from where."""
    found = (leaves_of(x) for s in statements if not s.body for x in expressions(s))
    loads = {x for leaves in found for x in leaves if x.op == "load"}
    return {where(x.data, x.args[0]): x for x in loads}


def alternating(values: Values, x: Value, place: Place) -> Operand | None:
    """A load of every other element as half of one that takes all; None if the rest is not read."""
    here = where(x.data, x.args[0])
    first = min(here, beside(here), key=lambda each: each[2])
    pair = values.loads.get(first), values.loads.get(beside(first))
    if values.slope(x.args[0]) != 2 or None in pair or values.kind != "ptr":
        return None
    assert pair[0] is not None
    kind = vector(type_of(x.dtype), 2 * values.lanes)
    both = _both(values, pair[0], place)
    lanes = ", ".join(f"i32 {2 * k + here[2] % 2}" for k in range(values.lanes))
    mask = f"<{values.lanes} x i32> <{lanes}>"
    text = values.let(f"shufflevector {kind} {both.text}, {kind} poison, {mask}", both.depth)
    return Operand(text, x.dtype, values.lanes, both.depth, both.reads, True)


def _both(values: Values, first: Value, place: Place) -> Operand:
    """All elements of the pairs that begin with a load of every other one."""
    key = ("both", first)
    found = values.scopes.known.get(key)
    if found is None:
        pointer, depth, reads, _ = values.locate(place, first.args[0], 0)
        depth = values.scopes.anchor(depth, place.memory)
        lines, values.writer.lines = values.writer.lines, values.scopes.lines_at(depth)
        text = values.read(place, pointer, 2 * values.lanes)
        values.writer.lines = lines
        lanes = 2 * values.lanes
        found = Operand(text, first.dtype, lanes, depth, reads | place.reads, True)
        values.scopes.keep(key, found, depth)
    assert isinstance(found, Operand)
    return found


def in_pairs(
    values: Values, ready: list[tuple[Store, Operand]]
) -> Iterable[tuple[tuple[Store, Operand], ...]]:
    """Stores in order; two that follow each other and fill every other element are together."""
    k = 0
    while k < len(ready):
        step = 2 if k + 1 < len(ready) and _meet(values, ready[k][0], ready[k + 1][0]) else 1
        yield tuple(ready[k : k + step])
        k += step


def _meet(values: Values, store: Store, other: Store) -> bool:
    if values.variable is None or values.lane != VECTOR or values.kind != "ptr":
        return False
    here, there = where(store.buffer, store.index), where(other.buffer, other.index)
    return there == (*here[:2], here[2] + 1) and values.slope(store.index) == 2


def put_alternately(values: Values, place: Place, index: Value, found: list[Operand]) -> None:
    """Write two vectors whose lanes alternate in memory, from an index on."""
    lanes = values.lanes
    kind = vector(type_of(found[0].dtype), lanes)
    first, second = (values.spread(x, lanes) for x in found)
    order = ", ".join(f"i32 {k // 2 + k % 2 * lanes}" for k in range(2 * lanes))
    mask = f"<{2 * lanes} x i32> <{order}>"
    text = values.writer.let(f"shufflevector {kind} {first}, {kind} {second}, {mask}")
    values.write(place, values.locate(place, index, 0).pointer, text, 2 * lanes)
