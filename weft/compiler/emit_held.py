"""Loads along lanes whose index is held back by a bound: what is joined, padded or rolled.

Most vectors meet no bound: all of their lanes read adjacent elements, or all the same one. Which it
is shows in the first and the last lane, as an index moves by one or not at all from lane to lane.
So it is with a choice between such loads: all lanes take one of them, and the other is not read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import TYPE_CHECKING

from weft.compiler.emit_scope import VECTOR, Operand, Place, Scope, reads_of
from weft.compiler.emit_text import Code, type_of, vector
from weft.compiler.loops import INDEX, Value

if TYPE_CHECKING:
    from weft.compiler.emit_values import Values

MOST = 32  # choices inside each other that are taken apart; of more, the innermost
_STILL = frozenset({0})


def is_held_back(values: Values, index: Value) -> bool:
    """Whether an index moves by one from lane to lane, or by nothing, and by nothing else."""
    return _moves(values, index) is not None


def _moves(values: Values, x: Value) -> frozenset[int] | None:
    """By how much an index may move from lane to lane, if that is 0 or 1."""
    step = values.slope(x)
    if step is not None:
        return frozenset({step}) if step in (0, 1) else None
    if x.op not in ("min", "max", "add", "sub") or values.has_lanes(x):
        return None
    one, other = (_moves(values, a) for a in x.args)
    if one is None or other is None:
        return None
    if x.op in ("min", "max"):
        return one | other
    if other == _STILL:
        return one
    return other if x.op == "add" and one == _STILL else None


def is_parted(values: Values, x: Value) -> bool:
    """Whether a choice by bounds of an index is one between loads, one of which they hold back."""
    if _bounds(values, x.args[0]) is None or _is_deep(x):
        return False
    return any(
        is_parted(values, a) if a.op == "select" else _is_held_load(values, a) for a in x.args[1:]
    )


def _is_deep(x: Value) -> bool:
    """Whether too many choices stand inside each other."""
    inner = {x}
    for _ in range(MOST):
        inner = {a for each in inner for a in each.args[1:] if a.op == "select"}
    return bool(inner)


def _is_held_load(values: Values, x: Value) -> bool:
    is_load = x.op == "load" and values.slope(x.args[0]) is None
    return is_load and is_held_back(values, x.args[0])


def _bounds(values: Values, x: Value) -> list[Value] | None:
    """The comparisons all of which must hold, if each changes once at most from lane to lane."""
    if x.op == "bit_and":
        one, other = (_bounds(values, a) for a in x.args)
        return None if one is None or other is None else one + other
    if x.op not in ("less", "less_equal") or x.args[0].dtype != INDEX:
        return None
    moves = [_moves(values, a) for a in x.args]
    return [x] if None not in moves and _STILL in moves else None


class _Ways:
    """Blocks that meet again, each with a vector of its own; `other` is for all that is left."""

    def __init__(self, values: Values, x: Value) -> None:
        self.values, self.writer, self.value = values, values.writer, x
        self.kind = vector(type_of(x.dtype), values.lanes)
        self.other, self.join = self.writer.label("other"), self.writer.label("join")
        self.found: list[tuple[str, str]] = []

    def branch(self, condition: str, *labels: str) -> list[str]:
        """Go to one of two new blocks, or to one and `other`."""
        made = [self.writer.label(label) for label in labels]
        self.writer.branch(condition, *([*made, self.other][:2]))
        return made

    def end(self, text: str) -> None:
        """This block has made its vector."""
        self.found.append((text, self.writer.block))
        self.writer.goto(self.join)

    def load(self, x: Value) -> None:
        """The elements that a load reads, if they are adjacent or one."""
        values, writer, lanes = self.values, self.writer, self.values.lanes
        place = values.place_of(("buffer", x.data))
        first, last = (values.value(x.args[0], lane) for lane in (0, lanes - 1))
        pointer, _ = values.address(place, first)
        passed = writer.let(f"sub i64 {last.text}, {first.text}")
        along, held = self.branch(writer.let(f"icmp eq i64 {passed}, {lanes - 1}"), "along", "held")
        writer.begin(along)
        self.end(values.read(place, pointer, lanes))
        writer.begin(held)
        (same,) = self.branch(writer.let(f"icmp eq i64 {passed}, 0"), "same")
        writer.begin(same)
        one = f"{type_of(x.dtype)} {values.read(place, pointer, 1)}"
        put = writer.let(f"insertelement {self.kind} poison, {one}, i32 0")
        first_lane = f"<{lanes} x i32> zeroinitializer"
        self.end(writer.let(f"shufflevector {self.kind} {put}, {self.kind} poison, {first_lane}"))

    def choose(self, x: Value) -> None:
        """What all lanes take of a choice, if they take the same."""
        values, code = self.values, Code(self.writer, 1)
        bounds = _bounds(values, x.args[0])
        assert bounds is not None, x
        both = [[values.value(b, k).text for k in (0, values.lanes - 1)] for b in bounds]
        taken = reduce(partial(code.op, "and", "i1"), [first for first, _ in both])
        met = reduce(partial(code.op, "or", "i1"), [code.op("xor", "i1", *pair) for pair in both])
        (even,) = self.branch(code.op("xor", "i1", met, "true"), "even")
        self.writer.begin(even)
        for block, way in zip(self.branch(taken, "yes", "no"), x.args[1:], strict=True):
            self.writer.begin(block)
            values.scopes.push(Scope("branch"))
            if way.op == "select" and is_parted(values, way):
                self.choose(way)
            elif _is_held_load(values, way):
                self.load(way)
            else:
                self.end(values.spread(values.value(way, VECTOR), values.lanes))
            values.scopes.pop()

    def made(self, otherwise: Callable[[], str]) -> Operand:
        """What the blocks have made, and the other one."""
        values = self.values
        self.writer.begin(self.other)
        values.scopes.push(Scope("branch"))
        text = otherwise()
        values.scopes.pop()
        self.end(text)
        self.writer.begin(self.join)
        ways = ", ".join(f"[ {text}, %{block} ]" for text, block in self.found)
        made = self.writer.let(f"phi {self.kind} {ways}")
        reads = reads_of(self.value)
        return Operand(made, self.value.dtype, values.lanes, values.scopes.top, reads, True)


def held_back(values: Values, x: Value, place: Place) -> Operand:
    """The elements that a load with such an index reads."""
    ways = _Ways(values, x)
    ways.load(x)
    return ways.made(lambda: gather(values, x, place).text)


def parted(values: Values, x: Value) -> Operand:
    """What is chosen by bounds, of which most vectors meet none."""
    ways = _Ways(values, x)
    ways.choose(x)

    def lane_by_lane() -> str:
        values.parts = False
        texts = [values.spread(values.value(a, VECTOR), values.lanes) for a in x.args]
        values.parts = True
        condition, one, other = texts
        kind, mask = ways.kind, vector("i1", values.lanes)
        return values.writer.let(f"select {mask} {condition}, {kind} {one}, {kind} {other}")

    return ways.made(lane_by_lane)


def _backwards(values: Values, x: Value, place: Place) -> Operand:
    """A load whose last lane reads the first of the elements."""
    lanes, kind = values.lanes, vector(type_of(x.dtype), values.lanes)
    pointer = values.locate(place, x.args[0], lanes - 1).pointer
    text = values.read(place, pointer, lanes)
    order = ", ".join(f"i32 {lanes - 1 - k}" for k in range(lanes))
    mask = f"<{lanes} x i32> <{order}>"
    made = values.writer.let(f"shufflevector {kind} {text}, {kind} poison, {mask}")
    return Operand(made, x.dtype, lanes, values.scopes.top, reads_of(x), True)


def gather(values: Values, x: Value, place: Place) -> Operand:
    """A load whose lanes read wherever they do, one by one; if backwards, all at once."""
    if values.kind == "ptr" and values.slope(x.args[0]) == -1:
        return _backwards(values, x, place)
    name, made = vector(type_of(x.dtype), values.lanes), "poison"
    for lane, pointer in enumerate(values.lane_addresses(place, x.args[0])):
        one = f"{type_of(x.dtype)} {values.read(place, pointer, 1)}"
        made = values.writer.let(f"insertelement {name} {made}, {one}, i32 {lane}")
    return Operand(made, x.dtype, values.lanes, values.scopes.top, reads_of(x), True)
