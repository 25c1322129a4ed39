"""How records are parted at a pivot, and where they lie meanwhile.

In each vector the lanes below the pivot are moved to its beginning, and once more those that are
not; both are written whole, each behind what was written of its kind before. So what lies behind a
part is lost, and every part is followed by room for one more vector, or by what is done with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from weft.compiler.loops import BOOL, INDEX, Statement, Value, When, integer, value
from weft.compiler.order.code import COUNT, Code, Order, Register, Stretch
from weft.compiler.order.network import lanes_of

PART = 256  # records of a part that a network sorts
SAMPLE, SAMPLES = 256, 16  # records of a row's sample, in all and for each bucket
CHUNK = 1 << 14  # bytes of a chunk, at most: near caches hold what it is parted in
FEWEST_CHUNKS = 8


@dataclass(frozen=True)
class Plan:
    """Where records lie: in three areas, of which the first has chunks, and the others buckets."""

    order: Order

    @property
    def lanes(self) -> int:
        """Of a vector of records."""
        return lanes_of(self.order)

    @property
    def buckets(self) -> int:
        """Of a row."""
        return SAMPLE // SAMPLES

    @property
    def levels(self) -> int:
        """How often a chunk is parted."""
        return self.buckets.bit_length() - 1

    @property
    def chunk(self) -> int:
        """Records of a chunk."""
        parts = -(-self.order.size // (FEWEST_CHUNKS * PART))
        return min(parts * PART, CHUNK // self.order.record[0].itemsize)

    @property
    def chunks(self) -> int:
        """Of a row; the last one may have fewer records."""
        return -(-self.order.size // self.chunk)

    @property
    def room(self) -> int:
        """Memory of a row's records in an area; a part's room is to spare at the end."""
        return self.order.size + self.lanes * max(self.chunks, self.buckets) + PART

    @property
    def area(self) -> int:
        """Memory of all records in an area."""
        return self.order.rows * self.room

    def chunk_start(self, s: Code, row: Value, which: Value) -> Value:
        """Where the records of a chunk lie in the first area."""
        inside = s.mul(which, integer(self.chunk + self.lanes))
        return s.add(s.mul(row, integer(self.room)), inside)

    def bucket_start(self, s: Code, row: Value, which: Value, rank: Value) -> Value:
        """Where the records of a bucket lie in each area; `rank` records come before them."""
        inside = s.add(rank, s.mul(which, integer(self.lanes)))
        return s.add(s.mul(row, integer(self.room)), inside)


class Splitter:
    """Moves records in one piece of a kernel's memory, inside vector loops of one turn."""

    def __init__(self, code: Code, home: Stretch | Register, plan: Plan) -> None:
        self.code, self.home = code, home
        self.dtype, self.lanes = plan.order.record[0], plan.lanes
        self.come, self.pivot = (code.register(self.dtype, self.lanes) for _ in range(2))
        self.below, self.inside = (code.register(BOOL, self.lanes) for _ in range(2))
        self.low = code.register(INDEX)  # how many records were below the pivot

    def once(self, body: Callable[[Value], Iterable[Statement]]) -> Statement:
        """Statements on vectors, which are told the lane."""
        return self.code.loop(self.lanes, body, 0, "vector", self.lanes)

    def read(self, *place: Value | int) -> Value:
        """Records."""
        return self.home.at(self.code.sum(*place))

    def split(
        self, start: Value, count: Value, goals: tuple[Value, Value], lane: Value
    ) -> Iterator[Statement]:
        """Write records below the pivot from the first goal on, others from the second.

        A goal may be where they are read: no more is written than was read.
        """
        s, lanes = self.code, integer(self.lanes)
        whole = s.floordiv(count, lanes)
        done = s.mul(whole, lanes)

        def part(passed: Value) -> Iterator[Statement]:
            below, inside, low = self.below.value, self.inside.value, self.low.value
            yield self.come.set(self.read(start, passed, lane))
            yield self.below.set(s.bit_and(s.less(self.come.value, self.pivot.value), inside))
            above = s.bit_and(s.bit_not(below), inside)
            high = s.sub(s.add(goals[1], passed), low)
            yield self.home.set(self._moved(below), s.sum(goals[0], low, lane))
            yield self.home.set(self._moved(above), s.sum(high, lane))
            yield self.low.set(s.add(low, s.across("add", s.cast(below, INDEX))))

        yield self.low.set(integer(0))
        yield self._first(s.min(count, lanes), lane)
        yield s.loop(whole, lambda n: part(s.mul(n, lanes)))
        yield self._first(s.sub(count, done), lane)
        yield When(s.less(done, count), tuple(part(done)))

    def _first(self, count: Value, lane: Value) -> Statement:
        """So many lanes have records."""
        s = self.code
        return self.inside.set(s.less(s.cast(lane, COUNT), s.cast(count, COUNT)))

    def _moved(self, mask: Value) -> Value:
        return value("compress", (mask, self.come.value), self.dtype)

    def copied(
        self,
        start: Value,
        count: Value,
        goal: Value,
        lane: Value,
        into: Stretch | None = None,
    ) -> Iterator[Statement]:
        """Write so many records somewhere else, perhaps into other memory."""
        s, lanes, home = self.code, integer(self.lanes), into or self.home

        def copy(n: Value) -> Iterator[Statement]:
            passed = s.mul(n, lanes)
            yield home.set(self.read(start, passed, lane), s.sum(goal, passed, lane))

        yield s.loop(s.floordiv(s.sum(count, self.lanes - 1), lanes), copy)
