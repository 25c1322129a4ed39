"""Copy panels of factors into arrays of a task, laid out as `Tiles` reads them.

Where memory lies across what a row of a tile holds, blocks of 16 × 16 elements are turned in
registers. Rows and columns that there are not stay as they were: what is made of them goes
nowhere. The last group of the depth is filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from weft.compiler.build import Builder
from weft.compiler.loops import Loop, Statement, Value, const, integer, turned
from weft.compiler.passes.contract_frame import ZERO, Frame, Packed, Span, less, when
from weft.compiler.passes.contract_match import Axis, runs_along
from weft.compiler.polynomial import add, divide, is_multiple, known, multiply, smaller, subtract
from weft.compiler.rebuild import Statements, substitute_value

EDGE = 16  # rows of a tile, and words of one of them
BYTES = 64  # of the depth in one group
SEVERAL = 16  # points of the depth that are read side by side, along all panels of columns
WORD = np.dtype(np.int32)
_HIGHEST = 0x80808080 - (1 << 32)  # bit of each byte of a word

Place: TypeAlias = Callable[[Value, Value], Value]  # of a panel, and a group of the depth


@dataclass(frozen=True)
class Packing:
    """Copies panels of `width` points of an axis of a factor into an array."""

    frame: Frame
    factor: Value
    axis: Axis
    width: int
    array: Packed

    @property
    def group(self) -> int:
        """Points of the depth in one group."""
        return BYTES // self.factor.dtype.itemsize

    @property
    def lies_across(self) -> bool:
        """Whether neighbours in memory are neighbours along the axis."""
        return runs_along(self.factor, self.axis[0])

    @property
    def lies_along(self) -> bool:
        """Whether neighbours in memory are neighbours along the depth."""
        return runs_along(self.factor, self.frame.product.depth[0]) and not self.lies_across

    def whole_groups(self, depth: Span) -> Value:
        """Groups that need no zeros."""
        return divide(depth.count, self.group)

    def element(self, point: Value, deep: Value, depth: Span, inside: bool = True) -> Value:
        """The factor at a point of the axis; 0 beyond the depth, if it is not known to be inside.

        `deep` counts from where the depth's part begins.
        """
        names = {self.frame.product.depth[0]: add(depth.start, deep), self.axis[0]: point}
        if inside:
            return substitute_value(self.factor, names)
        last = smaller(add(depth.start, deep), subtract(add(depth.start, depth.count), 1))
        names[self.frame.product.depth[0]] = last
        s, dtype = Builder(), self.factor.dtype
        here = s.less(deep, depth.count)
        return s.select(here, substitute_value(self.factor, names), const(0, dtype))

    def tail(self, depth: Span, body: Statements) -> Statements:
        """Statements for the last group, if it is not a whole one."""
        if is_multiple(self.frame.product.depth[1], self.group):  # as all pieces before the last
            return ()
        whole = multiply(self.whole_groups(depth), self.group)
        return when(less(whole, depth.count), body)


@dataclass(frozen=True)
class Rows(Packing):
    """Panels of rows: array[first + (group · width + i) · points + k], points to a group."""

    first: Value = ZERO

    def panel(self, points: Span, depth: Span) -> Statements:
        """Copy the rows that there are, `width` at most."""
        f, made = self.frame, list[Statement]()
        whole = f.let("whole", self.whole_groups(depth), made)
        first: Value = ZERO
        if self.lies_across and not runs_along(self.factor, f.product.depth[0]):
            chunks = f.let("chunks", divide(points.count, EDGE), made)
            first = multiply(chunks, EDGE)
            made += f.loop("group", whole, lambda g: self.turned(points, depth, g, chunks))

        def row(i: Value) -> Statements:
            def group(g: Value) -> Statements:
                lane = f.scope.variable("lane")
                deep = add(multiply(g, self.group), lane)
                copied = self.element(add(points.start, i), deep, depth)
                step = (self.array.put(self.place(g, i, lane), copied),)
                return (Loop(lane, ZERO, integer(self.group), step, "vector", self.group),)

            return f.loop("group", whole, group)

        def rest(i: Value) -> Statements:
            def point(k: Value) -> Statements:
                deep = add(multiply(whole, self.group), k)
                copied = self.element(add(points.start, i), deep, depth, inside=False)
                return (self.array.put(self.place(whole, i, k), copied),)

            return f.loop("point", integer(self.group), point)

        made += f.loop("row", points.count, row, first)
        return (*made, *self.tail(depth, f.loop("row", points.count, rest)))

    def place(self, group: Value, row: Value, deep: Value) -> Value:
        """Where an element goes."""
        rows = add(multiply(group, self.width), row)
        return add(self.first, add(multiply(rows, self.group), deep))

    def turned(self, points: Span, depth: Span, group: Value, chunks: Value) -> Statements:
        """Copy one group of rows that memory holds side by side, 16 at a time."""
        f = self.frame

        def chunk(c: Value) -> Statements:
            made: list[Statement] = []
            first = multiply(c, EDGE)
            for part in range(0, self.group, EDGE):
                lane = f.scope.variable("lane")
                start = add(multiply(group, self.group), part)
                point = add(points.start, add(first, lane))
                given = [self.element(point, add(start, k), depth) for k in range(EDGE)]
                body = tuple(
                    self.array.put(self.place(group, add(first, i), add(lane, part)), x)
                    for i, x in enumerate(turned(given))
                )
                made.append(Loop(lane, ZERO, integer(EDGE), body, "vector", EDGE))
            return tuple(made)

        return f.loop("chunk", chunks, chunk)


@dataclass(frozen=True)
class Columns(Packing):
    """Panels of columns: array[place + w · width + j], words of a few points of a group.

    If bytes are `beyond` their range, each one is 128 more than the factor.
    """

    beyond: bool = False

    @property
    def points(self) -> int:
        """Points of the depth in one word."""
        return self.group // EDGE

    def panels(self, columns: Span, wide: Value, depth: Span, place: Place) -> Statements:
        """Copy all panels of a part of the axis; `place` says where a group of a column begins."""
        f, made = self.frame, list[Statement]()
        whole = f.let("whole", self.whole_groups(depth), made)

        def panel(g: Value, q: Value, inside: bool, part: Value = ZERO) -> Statements:
            found: list[Statement] = []
            start = f.let("from", add(columns.start, multiply(q, self.width)), found)
            count = f.let("count", there_are(start, self.axis[1], self.width), found)
            to = f.let("to", place(q, g), found)
            points = Span(start, count)
            if inside and self.lies_along:
                return (*found, *self.turned(points, depth, g, to))
            return (*found, *self.words(points, depth, (g, part, to), inside))

        def across(g: Value, inside: bool) -> Statements:
            def several(part: Value) -> Statements:
                return f.loop("panel", wide, lambda q: panel(g, q, inside, part))

            return f.loop("part", integer(self.group // SEVERAL), several)

        if self.lies_along:  # a column's groups follow each other in memory

            def along(q: Value) -> Statements:
                return f.loop("group", whole, lambda g: panel(g, q, True))

            made += f.loop("panel", wide, along)
        else:
            made += f.loop("group", whole, lambda g: across(g, True))
        return (*made, *self.tail(depth, across(whole, False)))

    def words(
        self, points: Span, depth: Span, where: tuple[Value, Value, Value], inside: bool
    ) -> Statements:
        """Copy a part of a group of a panel, a row of words at a time."""
        (group, part, to), f, made = where, self.frame, list[Statement]()
        few = SEVERAL // self.points
        chunks = f.let("chunks", multiply(divide(points.count, EDGE), EDGE), made)

        def word(number: Value) -> Statements:
            w = add(multiply(part, few), number)
            deep = add(multiply(group, self.group), multiply(w, self.points))

            def at(j: Value) -> Statements:
                given = [
                    self.element(add(points.start, j), add(deep, k), depth, inside)
                    for k in range(self.points)
                ]
                place = add(to, add(multiply(w, self.width), j))
                return (self.array.put(place, self.joined(given)),)

            lane, column = f.scope.variable("lane"), f.scope.variable("column")
            lanes = Loop(lane, ZERO, chunks, at(lane), "vector", EDGE)
            if known(subtract(points.count, chunks)) == 0:
                return (lanes,)
            return (lanes, Loop(column, chunks, points.count, at(column)))

        return (*made, *f.loop("word", integer(few), word))

    def turned(self, points: Span, depth: Span, group: Value, to: Value) -> Statements:
        """Copy one group of a panel whose columns lie along the depth."""
        f, made = self.frame, list[Statement]()
        chunks = f.let("chunks", divide(points.count, EDGE), made)

        def chunk(c: Value) -> Statements:
            found: list[Statement] = []
            first = multiply(c, EDGE)
            for part in range(0, self.group, EDGE):
                lane = f.scope.variable("lane")
                deep = add(multiply(group, self.group), add(lane, part))
                given = [
                    self.element(add(points.start, add(first, j)), deep, depth) for j in range(EDGE)
                ]
                items, body = turned(given), list[Statement]()
                for w in range(EDGE // self.points):
                    word = self.joined(items[w * self.points : (w + 1) * self.points])
                    row = (part // self.points + w) * self.width
                    body.append(self.array.put(add(to, add(add(first, lane), row)), word))
                found.append(Loop(lane, ZERO, integer(EDGE), tuple(body), "vector", EDGE))
            return tuple(found)

        def column(j: Value) -> Statements:
            def word(w: Value) -> Statements:
                deep = add(multiply(group, self.group), multiply(w, self.points))
                given = [
                    self.element(add(points.start, j), add(deep, k), depth)
                    for k in range(self.points)
                ]
                place = add(to, add(multiply(w, self.width), j))
                return (self.array.put(place, self.joined(given)),)

            return f.loop("word", integer(EDGE), word)

        made += f.loop("chunk", chunks, chunk)
        return (*made, *f.loop("column", points.count, column, multiply(chunks, EDGE)))

    def joined(self, elements: list[Value] | tuple[Value, ...]) -> Value:
        """Elements as one word, the first one lowest."""
        s, size = Builder(), elements[0].dtype.itemsize
        bits = np.dtype(f"u{size}")
        found: Value | None = None
        for i, x in enumerate(elements):
            wide = s.cast(s.bitcast(x, bits), WORD)
            wide = s.shift_left(wide, s.const(8 * size * i, WORD)) if i else wide
            found = wide if found is None else s.bit_or(found, wide)
        assert found is not None
        return s.bit_xor(found, s.const(_HIGHEST, WORD)) if self.beyond else found


def there_are(start: Value, extent: Value, width: int) -> Value:
    """How many points there are from `start` on, a multiple of `width`, and no more than that."""
    if is_multiple(extent, width):
        return integer(width)
    return smaller(subtract(extent, start), width)


def words_of(depth: int, width: int, itemsize: int) -> int:
    """Words of a panel of columns of so many points of the depth."""
    groups = -(-depth * itemsize // BYTES)
    return groups * EDGE * width


__all__ = ["BYTES", "EDGE", "WORD", "Columns", "Rows", "there_are", "words_of"]
