"""Copy panels of a factor into an array of the task: side by side what one block needs at a time.

    array[place + k · width + i] = factor at (start + i, k)       for i < width, k in the depth

Points beyond the last one repeat it, so that panels are whole; what is made of them goes nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weft.compiler.loops import Statement, Value, integer, turned
from weft.compiler.passes.contract_blocks import UNROLL
from weft.compiler.passes.contract_frame import (
    ZERO,
    Frame,
    Packed,
    Span,
    ceiling,
    folded,
    less,
    when,
)
from weft.compiler.passes.contract_match import Axis, runs_along
from weft.compiler.polynomial import add, divide, is_multiple, known, multiply, smaller, subtract
from weft.compiler.rebuild import Statements, rebuild

FEW = 4  # points of the depth that are copied for all panels before the next ones


def pack_left(frame: Frame, left: Value, rows: Span, panel: Value, depth: Span) -> Statements:
    """Copy one panel of rows of the left factor."""
    high, product = frame.block.rows, frame.product
    copy = Copy(frame, left, product.row, frame.left)
    place = frame.left_place(panel)
    return copy.statements(add(rows.start, multiply(panel, high)), depth, place)


def pack_right(
    frame: Frame, right: Value, columns: Span, first: Value, stop: Value, depth: Span
) -> Statements:
    """Copy panels of columns of the right factor, from `first` up to `stop`."""
    if known(subtract(stop, first)) == 0:
        return ()
    product, width = frame.product, frame.block.columns
    copy = Copy(frame, right, product.column, frame.right)

    def panels(part: Span) -> Statements:
        def body(panel: Value) -> Statements:
            place = multiply(subtract(panel, first), width * frame.block.depth)
            place = add(place, multiply(subtract(part.start, depth.start), width))
            return copy.statements(add(columns.start, multiply(panel, width)), part, place)

        return frame.loop("panel", stop, body, first)

    if not runs_along(right, product.column[0]):
        return panels(depth)

    # Columns are neighbours in memory: it is read along them, a few rows at a time.
    def few(at: Value) -> Statements:
        made: list[Statement] = []
        start = frame.let("start", multiply(at, FEW), made)
        count = frame.let("count", smaller(subtract(depth.count, start), FEW), made)
        return (*made, *in_fews(frame, Span(add(depth.start, start), count), panels))

    return frame.loop("few", ceiling(depth.count, FEW), few)


def in_fews(frame: Frame, part: Span, panels: Callable[[Span], Statements]) -> Statements:
    """What is done with a few points of the depth, written out if there are as many as usual."""
    whole = panels(Span(part.start, integer(FEW)))
    if is_multiple(frame.product.depth[1], FEW) and frame.block.depth % FEW == 0:
        return whole
    return when(less(integer(FEW - 1), part.count), whole, panels(part))


@dataclass(frozen=True)
class Copy:
    """Copies panels of an axis of a factor; where they are wider, the next ones' points fill up."""

    frame: Frame
    factor: Value
    axis: Axis
    array: Packed

    @property
    def width(self) -> int:
        """Points that are copied of each point of the depth."""
        return self.array.width

    @property
    def lanes(self) -> int:
        """Points that are copied at a time, where they lie in one piece."""
        return min(self.frame.block.lanes, self.width)

    def statements(self, start: Value, depth: Span, place: Value) -> Statements:
        """Copy the panel from `start` on, in lanes where it is whole and memory allows."""
        f, made = self.frame, list[Statement]()
        start, place = f.let("from", start, made), f.let("to", place, made)
        lanes = self.lanes
        if runs_along(self.factor, f.product.depth[0]) and not runs_along(
            self.factor, self.axis[0]
        ):
            turns = lanes > 1 and self.width % lanes == 0
            copied = self.turned if turns else self.along
            return (*made, *copied(start, depth, place))
        if lanes == 1 or self.width % lanes or not runs_along(self.factor, self.axis[0]):
            return (*made, *self.edge(start, depth, place))
        inside = less(add(start, self.width - 1), self.axis[1])
        if self.width == self.array.points:
            inside = f.is_whole(start, self.width, self.axis[1])
        whole = f.lanes(
            lambda lane: self.copies(
                lambda i: add(start, add(lane, i)),
                depth,
                add(place, lane),
                range(0, self.width, lanes),
            ),
            lanes,
        )
        return (*made, *when(inside, whole, self.vectors(start, depth, place)))

    def vectors(self, start: Value, depth: Span, place: Value) -> Statements:
        """Copy a panel at the edge, one vector after another, of which some may not be whole."""
        f, lanes, last = self.frame, self.lanes, subtract(self.axis[1], 1)

        def copied(at: Callable[[Value], Value], to: Value) -> Statements:
            return f.lanes(
                lambda lane: self.copies(lambda i: at(lane), depth, add(to, lane), range(1)), lanes
            )

        def group(number: Value) -> Statements:
            made: list[Statement] = []
            here = f.let("from", add(start, multiply(number, lanes)), made)
            to = f.let("to", add(place, multiply(number, lanes)), made)
            held = copied(lambda lane: smaller(add(here, lane), last), to)
            if self.width == lanes:
                return (*made, *held)
            inside = less(add(here, lanes - 1), self.axis[1])
            return (*made, *when(inside, copied(lambda lane: add(here, lane), to), held))

        return f.loop("group", integer(self.width // lanes), group)

    def along(
        self, start: Value, depth: Span, place: Value, first: Value | None = None
    ) -> Statements:
        """Copy a panel one point after another, the depth from `first` on."""
        f, last = self.frame, subtract(self.axis[1], 1)

        def point(i: Value) -> Statements:
            made: list[Statement] = []
            here = f.let("place", smaller(add(start, i), last), made)
            to = f.let("to", add(place, i), made)

            def body(k: Value) -> Statements:
                copied = self.element(here, add(depth.start, k))
                return (self.array.put(add(to, multiply(k, self.width)), copied),)

            if first is None and f.block.lanes == 1:
                return (*made, *f.unrolled(depth.count, body))
            return (*made, *f.loop("depth", depth.count, body, first or ZERO))

        return f.loop("point", integer(self.width), point)

    def turned(self, start: Value, depth: Span, place: Value) -> Statements:
        """Copy a panel whose depth lies in one piece: vectors along it become vectors across."""
        f, made, lanes = self.frame, list[Statement](), self.lanes
        turns = f.let("turns", divide(depth.count, lanes), made)

        def group(number: Value) -> Statements:
            found: list[Statement] = []
            first = f.let("first", multiply(number, lanes), found)
            at = self.held(add(start, first), lanes, found)

            def vectors(lane: Value) -> Statements:
                def body(k: Value) -> Statements:
                    here = multiply(k, lanes)
                    along = add(depth.start, add(here, lane))
                    given = turned([self.element(x, along) for x in at])
                    to = add(add(place, first), add(multiply(here, self.width), lane))
                    return tuple(
                        self.array.put(add(to, i * self.width), x) for i, x in enumerate(given)
                    )

                return f.loop("depth", turns, body)

            return (*found, *f.lanes(vectors, lanes))

        made += f.loop("group", integer(self.width // lanes), group)
        if f.is_even and UNROLL % lanes == 0:
            return tuple(made)
        return (*made, *self.along(start, depth, place, multiply(turns, lanes)))

    def element(self, point: Value, deep: Value) -> Value:
        """The factor at a point of the axis and of the depth."""
        names = {self.frame.product.depth[0]: deep, self.axis[0]: point}
        return rebuild(self.factor, folded, names)

    def held(self, start: Value, count: int, into: list[Statement]) -> list[Value]:
        """Places of a panel, held inside the axis."""
        f, places = self.frame, [add(start, i) for i in range(count)]
        if self.width == self.array.points and f.is_whole(start, self.width, self.axis[1]) is True:
            return places
        last = subtract(self.axis[1], 1)
        return [f.let("place", smaller(place, last), into) for place in places]

    def edge(self, start: Value, depth: Span, place: Value) -> Statements:
        """Copy a panel one element at a time, its places held inside the axis."""
        made: list[Statement] = []
        at = self.held(start, self.width, made)
        return (*made, *self.copies(at.__getitem__, depth, place, range(self.width)))

    def copies(
        self, at: Callable[[int], Value], depth: Span, place: Value, points: range
    ) -> Statements:
        """Copy these points of a panel, `at` places of the axis.

        Few vectors of a few points of the depth are written out; single elements are too many.
        """

        def body(k: Value) -> Statements:
            names = {self.frame.product.depth[0]: add(depth.start, k)}
            here = add(place, multiply(k, self.width))
            return tuple(
                self.array.put(
                    add(here, i), rebuild(self.factor, folded, {**names, self.axis[0]: at(i)})
                )
                for i in points
            )

        if known(depth.count) == FEW and points.step > 1:
            return tuple(s for k in range(FEW) for s in body(integer(k)))
        return self.frame.loop("depth", depth.count, body)
