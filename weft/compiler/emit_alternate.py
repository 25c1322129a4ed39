"""Every second, third or fourth element, in LLVM IR: parts of complex numbers, and short rows.

Lanes that are a few elements apart are one part of what lies there. Where the other parts are used
as well, one access takes all of them, and lanes alternate: processors have instructions for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.compiler.emit_scope import VECTOR, Operand, Place
from weft.compiler.emit_text import type_of, vector
from weft.compiler.loops import Loop, Store, Value, expressions, leaves_of
from weft.compiler.prices import Where, are_taken, group_of, together, where
from weft.compiler.rebuild import Statements

if TYPE_CHECKING:
    from weft.compiler.emit_values import Values


def loads_in(statements: Statements) -> dict[Where, Value]:
    """What statements load, and from where; of loops inside, what moves with their variables."""
    found = (leaves_of(x) for s in statements if not s.body for x in expressions(s))
    loads = {x for leaves in found for x in leaves if x.op == "load"}
    made = {where(x.data, x.args[0]): x for x in loads}
    for inner in statements:
        if isinstance(inner, Loop):
            moving = loads_in(inner.body).items()
            made |= {at: x for at, x in moving if inner.variable in leaves_of(x.args[0])}
    return made


def alternating(values: Values, x: Value, place: Place) -> Operand | None:
    """A load of every few elements as part of one that takes all; None if the ends are not read."""
    here, slope = where(x.data, x.args[0]), values.slope(x.args[0])
    if values.kind != "ptr" or not are_taken(here, slope, values.loads):
        return None
    step = group_of(slope)
    kind = vector(type_of(x.dtype), step * values.lanes)
    whole = _all(values, values.loads[together(here, step)[0]], step, place)
    lanes = ", ".join(f"i32 {step * k + here[2] % step}" for k in range(values.lanes))
    mask = f"<{values.lanes} x i32> <{lanes}>"
    text = values.let(f"shufflevector {kind} {whole.text}, {kind} poison, {mask}", whole.depth)
    return Operand(text, x.dtype, values.lanes, whole.depth, whole.reads, True)


def _all(values: Values, first: Value, step: int, place: Place) -> Operand:
    """All elements of the groups that begin with a load of every few ones."""
    key = ("all", first)
    found = values.scopes.known.get(key)
    if found is None:
        pointer, depth, reads, _ = values.locate(place, first.args[0], 0)
        depth = values.scopes.anchor(depth, place.memory)
        lines, values.writer.lines = values.writer.lines, values.scopes.lines_at(depth)
        lanes = step * values.lanes
        text = values.read(place, pointer, lanes)
        values.writer.lines = lines
        found = Operand(text, first.dtype, lanes, depth, reads | place.reads, True)
        values.scopes.keep(key, found, depth)
    assert isinstance(found, Operand)
    return found


def in_groups(
    values: Values, ready: list[tuple[Store, Operand]]
) -> Iterator[list[tuple[Store, Operand]]]:
    """Stores in order; those that follow each other and fill whole groups are together."""
    k = 0
    while k < len(ready):
        count = group_of(values.slope(ready[k][0].index)) if values.lane == VECTOR else 1
        if not _meet(values, [store for store, _ in ready[k : k + count]], count):
            count = 1
        yield ready[k : k + count]
        k += count


def _meet(values: Values, stores: list[Store], count: int) -> bool:
    """Whether stores are those of a group of so many elements, in order."""
    if values.variable is None or values.kind != "ptr" or len(stores) < count:
        return False
    places = [where(store.buffer, store.index) for store in stores]
    buffer, moving, rest = places[0]
    return places == [(buffer, moving, rest + k) for k in range(len(places))]


def put_alternately(values: Values, place: Place, index: Value, found: list[Operand]) -> None:
    """Write vectors whose lanes alternate in memory, from an index on."""
    lanes, count, name = values.lanes, len(found), type_of(found[0].dtype)
    texts = [values.spread(x, lanes) for x in found]
    halves, kind = texts, vector(name, lanes)
    if count > 2:
        texts += ["poison"] * (4 - count)
        halves = [_joined(values, kind, *texts[k : k + 2]) for k in (0, 2)]
        kind = vector(name, 2 * lanes)
    order = ", ".join(f"i32 {k // count + k % count * lanes}" for k in range(count * lanes))
    mask = f"<{count * lanes} x i32> <{order}>"
    first, second = halves
    text = values.writer.let(f"shufflevector {kind} {first}, {kind} {second}, {mask}")
    values.write(place, values.locate(place, index, 0).pointer, text, count * lanes)


def _joined(values: Values, kind: str, first: str, second: str) -> str:
    """Two vectors, one behind the other."""
    lanes = 2 * values.lanes
    mask = f"<{lanes} x i32> <{', '.join(f'i32 {k}' for k in range(lanes))}>"
    return values.writer.let(f"shufflevector {kind} {first}, {kind} {second}, {mask}")
