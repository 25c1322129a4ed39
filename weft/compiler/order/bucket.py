"""How the records of a bucket are sorted inside a task: parted until a network sorts the parts.

A part lies in one of two homes, and has as much memory to spare in the other one. Records below
the pivot go to the other home, the rest stays in this one and is parted first: when what is below
comes, everything behind it is done with. A part that is small is set aside; when as many are as
there are lanes, a network sorts all of them, a part in each lane. Where pivots fail to make parts
small they are sorted by digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from weft.compiler.loops import BOOL, INDEX, Statement, Value, When, integer, turned
from weft.compiler.order.code import COUNT, Body, Code, Rows
from weft.compiler.order.network import HELD, Network
from weft.compiler.order.rows import Span, Task, sorter_of
from weft.compiler.order.split import PART, Plan, Splitter

DEEPEST = 40  # how often a bucket is parted
LEAST = 32  # records of a part on average; those of pivots that are any good have more


class _Small(Network):
    """Small parts that were set aside, a row each."""

    def __init__(self, plan: Plan, task: Task, splitter: Splitter) -> None:
        super().__init__(replace(plan.order, rows=plan.lanes, size=PART, kept=PART), task)
        s = self.code
        self.splitter, self.stride = splitter, PART + plan.lanes
        self.parts = s.array(self.row.dtype, self.lanes * self.stride)
        self.counts, self.ranks = (s.array(INDEX, self.lanes) for _ in range(2))
        self.filled = s.register(INDEX)  # how many parts there are

    def cleared(self) -> Body:
        """No part is there."""
        s, zero = self.code, self.code.const(0, self.row.dtype)
        clear = lambda i: (self.parts.set(zero, i),)  # noqa: E731
        room = self.lanes * self.stride
        return self.filled.set(integer(0)), s.loop(room, clear, 0, "vector", self.lanes)

    def add(self, place: Value, count: Value, rank: Value) -> Body:
        """Set a part aside."""
        s, number = self.code, self.filled.value
        start, last = s.mul(number, integer(self.stride)), self.after_all()

        def copy(lane: Value) -> Iterator[Statement]:
            for at in range(0, PART, self.lanes):
                here = s.add(s.cast(lane, COUNT), s.const(at, COUNT))
                held = self.held_as(self.splitter.read(place, at, lane))
                filled = s.select(s.less(here, s.cast(count, COUNT)), held, last)
                yield self.parts.set(filled, s.sum(start, at, lane))

        return (
            self.splitter.once(copy),
            self.counts.set(count, number),
            self.ranks.set(rank, number),
            self.filled.set(s.sum(number, 1)),
        )

    def sorted(self) -> Statement:
        """Sort all parts in their places."""
        zero = integer(0)
        return self.splitter.once(lambda lane: (*self._read(zero, lane), *self._merge(zero, lane)))

    def _places(self, lane: Value, begin: Value) -> list[Value]:
        return [self.code.sum(r * self.stride, begin, lane) for r in range(self.lanes)]

    def _read_whole(self, first: Value, lane: Value, begin: Value) -> Iterator[Statement]:
        for at in range(0, HELD, self.lanes):
            places = self._places(lane, self.code.sum(begin, at))
            for k, record in enumerate(turned([self.parts.at(place) for place in places])):
                yield self.held[at + k].set(record)

    def _write_whole(self, first: Value, lane: Value, begin: Value) -> Iterator[Statement]:
        for at in range(0, HELD, self.lanes):
            places = self._places(lane, self.code.sum(begin, at))
            records = turned([each.value for each in self.held[at : at + self.lanes]])
            for place, record in zip(places, records, strict=True):
                yield self.parts.set(record, place)


class _Part:
    """Records that are still to be sorted, as registers or on a stack."""

    def __init__(self, code: Code) -> None:
        # Where they lie, as much memory to spare, how many, their place in the row, their depth.
        self.fields = tuple(code.register(INDEX) for _ in range(5))
        self.place, self.spare, self.count, self.rank, self.depth = (x.value for x in self.fields)


class Bucket:
    """Sorts the records of a bucket: a stack holds the parts that are still to be sorted."""

    def __init__(self, plan: Plan, task: Task, splitter: Splitter, memory: Rows) -> None:
        self.plan, self.task, self.splitter = plan, task, splitter
        self.sorter, self.small = sorter_of(task, memory), _Small(plan, task, splitter)
        s = self.code = task.code
        self.part = _Part(s)
        self.height, self.held = s.register(INDEX), len(self.part.fields)
        self.stack = s.array(INDEX, self.held * (DEEPEST + 4))
        self.cut = s.register(splitter.dtype)  # the pivot
        self.row, self.here = s.register(INDEX), s.register(INDEX)
        self.is_small, self.is_hopeless, self.alike = (s.register(BOOL) for _ in range(3))

    def sorted(self, row: Value, parts: Sequence[tuple[Value, Value, Value, Value]]) -> Body:
        """Sort parts, and give the results.

        Of each it is told where it lies, where as much memory is to spare, how many records it has
        and what their place in the row is. One part may write behind its end once others are done.
        """
        s = self.code
        count = s.sum(*(count for _, _, count, _ in parts))
        usual = s.sum(s.floordiv(count, integer(LEAST)), DEEPEST)
        waits = s.less(integer(0), self.height.value)

        def turn(number: Value) -> Body:
            return (When(waits, (*self._pop(), *self._turn(s.less_equal(usual, number)))),)

        return (
            self.row.set(row),
            self.height.set(integer(0)),
            *self.small.cleared(),
            *(step for part in parts for step in self._push((*part, integer(0)))),
            s.loop(s.sum(usual, DEEPEST + 4), turn),
        )

    def _push(self, fields: tuple[Value, ...]) -> Body:
        """Keep a part for later, if it has records that are wanted."""
        s, order = self.code, self.plan.order
        first = s.mul(self.height.value, integer(self.held))
        wanted = s.less(integer(0), fields[2])
        if order.kept < order.size:
            wanted = s.bit_and(wanted, s.less(fields[3], integer(order.kept)))
        put = (self.stack.set(x, s.sum(first, k)) for k, x in enumerate(fields))
        return (*put, self.height.set(s.add(self.height.value, s.index(wanted))))

    def _pop(self) -> Body:
        s = self.code
        first = s.mul(self.height.value, integer(self.held))
        take = (x.set(self.stack.at(s.sum(first, k))) for k, x in enumerate(self.part.fields))
        return self.height.set(s.sub(self.height.value, integer(1))), *take

    def _turn(self, late: Value) -> Body:
        """Set the part that was taken aside if it is small, or make two of it."""
        s, part, small = self.code, self.part, self.small
        deep = s.less_equal(integer(DEEPEST), part.depth)
        is_large, is_last = s.bit_not(self.is_small.value), s.equal(self.height.value, integer(0))
        full = s.equal(small.filled.value, integer(self.plan.lanes))
        some = s.less(integer(0), small.filled.value)
        return (
            self.is_small.set(s.less_equal(part.count, integer(PART))),
            self.is_hopeless.set(s.bit_and(is_large, s.bit_or(deep, late))),
            When(self.is_small.value, small.add(part.place, part.count, part.rank)),
            When(self.is_hopeless.value, self._by_digits()),
            When(s.bit_and(is_large, s.bit_not(self.is_hopeless.value)), self._parted()),
            When(s.bit_or(full, s.bit_and(is_last, some)), self._given()),
        )

    def _parted(self) -> Body:
        """Part records at a pivot; if all are on one side of it, at the largest of them."""
        s, part, splitter = self.code, self.part, self.splitter
        low, depth = splitter.low.value, s.sum(part.depth, 1)
        goals = part.spare, part.place

        def split(lane: Value) -> Iterator[Statement]:
            yield self.cut.set(self._middle(lane))
            yield splitter.pivot.set(self.cut.value)
            yield from splitter.split(part.place, part.count, goals, lane)

        below = part.spare, part.place, low, part.rank, depth
        above = (
            part.place,
            s.add(part.spare, low),
            s.sub(part.count, low),
            s.add(part.rank, low),
            depth,
        )
        parted, both = splitter.once(split), (*self._push(below), *self._push(above))
        if self.plan.order.positions:  # no two records are the same
            return parted, *both
        nothing = s.equal(low, integer(0))
        return (
            parted,
            self.alike.set(s.bit_or(nothing, s.equal(low, part.count))),
            When(s.bit_not(self.alike.value), both),
            When(self.alike.value, self._without_largest()),
        )

    def _middle(self, lane: Value) -> Value:
        """A pivot above some records: between the medians of all lanes, in vectors of the part."""
        s, part = self.code, self.part
        gap = s.sum(part.count, -self.plan.lanes)
        places = [s.shift_right(s.mul(gap, integer(k)), integer(2)) for k in range(5)]
        a, b, c, d, e = (self.splitter.read(part.place, at, lane) for at in places)
        low = s.max(s.min(a, b), s.min(c, d))
        high = s.min(s.max(a, b), s.max(c, d))
        median = s.max(s.min(low, high), s.min(s.max(low, high), e))
        least, most = s.across("min", median), s.across("max", median)
        one = s.const(1, median.dtype)
        return s.add(s.add(least, s.shift_right(s.sub(most, least), one)), one)

    def _without_largest(self) -> Body:
        """Part records, none of which is above the one before the pivot, at that one."""
        s, part, splitter = self.code, self.part, self.splitter
        (place, spare, *_), low = part.fields, splitter.low.value
        here = s.select(s.equal(low, integer(0)), part.place, part.spare)

        def split(lane: Value) -> Iterator[Statement]:
            yield self.cut.set(s.sub(self.cut.value, s.const(1, splitter.dtype)))
            yield splitter.pivot.set(self.cut.value)
            yield from splitter.split(part.place, part.count, (part.spare, part.place), lane)

        below = part.spare, part.place, low, part.rank, s.sum(part.depth, 1)
        largest = self.task.result((self.cut.value,))
        return (
            self.here.set(here),
            spare.set(s.sub(s.add(part.place, part.spare), self.here.value)),
            place.set(self.here.value),
            splitter.once(split),
            *self._push(below),
            *self._results((part.rank, low, part.count), lambda _: largest),
        )

    def _given(self) -> Body:
        """Sort the parts that were set aside, and give their results."""
        s, small = self.code, self.small

        def give(number: Value) -> Body:
            start = s.mul(number, integer(small.stride))
            span = small.ranks.at(number), integer(0), small.counts.at(number)
            return self._results(span, lambda i: small.result(small.parts.at(s.add(start, i))))

        return small.sorted(), s.loop(small.filled.value, give), small.filled.set(integer(0))

    def _results(self, span: Span, result: Callable[[Value], Value]) -> Body:
        """Give the results for some records of a part, whose first one has this rank."""
        s, lanes, order = self.code, self.plan.lanes, self.plan.order
        rank, start, stop = span
        goal = s.add(s.mul(self.row.value, integer(order.kept)), rank)
        if order.kept < order.size:
            stop = s.max(start, s.min(stop, s.sub(integer(order.kept), rank)))
        whole = s.floordiv(s.sub(stop, start), integer(lanes))
        middle = s.add(start, s.mul(whole, integer(lanes)))

        def give(i: Value) -> Body:
            return (self.task.store(s.add(goal, i), result(i)),)

        return s.loop(middle, give, start, "vector", lanes), s.loop(stop, give, middle)

    def _by_digits(self) -> Body:
        """Sort a part by digits."""
        s, part = self.code, self.part
        base = s.mul(self.row.value, integer(self.plan.order.kept))

        def finish(place: Value, record: tuple[Value, ...]) -> Body:
            return self.task.finish(base, s.add(part.rank, place), record)

        homes = part.place, part.spare
        return self.sorter.now.set(part.place), *self.sorter.sorted(homes, part.count, finish)
