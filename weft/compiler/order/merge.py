"""Kernels that order few, long rows where vectors are wide: sorted runs are merged, two by two.

A network sorts as many runs as a vector has lanes; what a chunk of them holds is merged while it is
in the cache. Then runs of whole chunks are merged, level by level: tasks share each pair, and find
by a search where in both runs their part begins. A merge holds a block of the largest records met
so far; the block that begins with the smaller record comes next, and the smaller half of both is
written. Behind each run lies a block that comes after everything, which is read past its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from weft.compiler.loops import (
    BOOL,
    INDEX,
    Statement,
    Store,
    Value,
    When,
    integer,
    load,
    turned,
)
from weft.compiler.order.code import Body, Code, Order, Register
from weft.compiler.order.network import HELD, Network, lanes_of
from weft.compiler.order.rows import Made, Task, found_special, space
from weft.compiler.steps import Memory
from weft.core.common.types import TensorType
from weft.runtime.cpu.jit import chosen_target

SHORTEST_RUN, LONGEST_RUN = 512, 8192
RUNS = 128  # of a row, where their lengths allow it

Put = Callable[[Value, list[Register]], Body]


def merges(order: Order) -> bool:
    """Whether rows that threads share are merged: where vectors are wide, and digits many."""
    return chosen_target().has("avx512f") and len(order.record) == 1 and order.width >= 32


@dataclass(frozen=True)
class Plan:
    """Where runs lie: each level has half as many, twice as long and as far apart."""

    order: Order

    @property
    def lanes(self) -> int:
        """Of a vector of records."""
        return lanes_of(self.order)

    @property
    def block(self) -> int:
        """Records that are held."""
        return HELD * self.lanes

    @property
    def run(self) -> int:
        """Records of a run that the network sorts."""
        fitting = 1 << (self.order.size // RUNS).bit_length() - 1
        return max(SHORTEST_RUN, min(fitting, LONGEST_RUN))

    @property
    def stride(self) -> int:
        """From the start of a run to that of the next one."""
        return self.run + self.block

    @property
    def chunk(self) -> int:
        """Records of as many runs as there are lanes."""
        return self.lanes * self.run

    @property
    def chunks(self) -> int:
        """Of a row; the last one is filled up."""
        return -(-self.order.size // self.chunk)

    @property
    def room(self) -> int:
        """Memory of a row's records."""
        return self.chunks * self.lanes * self.stride

    @property
    def half(self) -> int:
        """Memory of all records; there are two such halves, and merges go from one to the other."""
        return self.order.rows * self.room


@dataclass
class _Merged:
    """An order of long rows under construction, kernel by kernel."""

    order: Order
    source: Memory
    target: Memory
    made: list[Made] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plan = Plan(self.order)
        (self.home,) = space(self.order.record, 2 * self.plan.half)
        (self.flags,) = space((self.order.key_dtype,), self.order.rows * self.plan.chunks)

    def task(self) -> Task:
        """A new kernel."""
        return Task(self.order, self.source, self.target)


def merged_together(order: Order, source: Memory, target: Memory) -> list[Made]:
    """The kernels that sort few, long rows by merging."""
    work = _Merged(order, source, target)
    plan = work.plan
    _runs(work)
    half, length, levels = 0, plan.run, plan.lanes.bit_length() - 1
    while length < plan.chunks * plan.chunk:
        _level(work, half, length, levels)
        half, length, levels = (half + levels) % 2, length << levels, 1
    task = work.task()
    if task.restores:
        kernel = found_special(task, work.flags, work.plan.chunks)
        work.made.append(Made(kernel, tuple(task.code.memory), (target,), 1))
    return work.made


# -- two runs ----------------------------------------------------------------------------------


class _Merger:
    """Merges two runs inside a vector loop."""

    def __init__(self, code: Code, home: int, order: Order) -> None:
        self.code, self.home = code, home
        self.dtype, self.lanes = order.record[0], lanes_of(order)
        self.block = HELD * self.lanes
        self.halvings = order.size.bit_length() + 1
        kept, come, low, high = (
            [code.register(self.dtype, self.lanes) for _ in range(HELD)] for _ in range(4)
        )
        self.kept, self.come, self.low, self.high = kept, come, low, high
        self.at, self.ends = ([code.register(INDEX) for _ in range(2)] for _ in range(2))
        self.next = code.register(INDEX)
        self.earlier = code.register(BOOL)

    def read(self, position: Value) -> Value:
        """A record."""
        return load(self.home, position, self.dtype)

    def split(self, runs: tuple[tuple[Value, Value], ...], done: Value) -> Body:
        """Begin where so many of the smallest records of both runs, (start, length), are left out.

        How many of them are the first run's is searched for.
        """
        s = self.code
        (first, first_length), (second, second_length) = runs
        low, left = (s.register(INDEX) for _ in range(2))

        def halve(_: Value) -> Body:
            half = s.shift_right(left.value, integer(1))
            middle = s.add(low.value, half)
            partner = s.sub(s.add(second, s.sub(done, middle)), integer(1))
            goes = s.less_equal(self.read(s.add(first, middle)), self.read(partner))
            rest = s.sub(s.sub(left.value, half), integer(1))
            return (
                self.next.set(s.add(middle, integer(1))),
                self.earlier.set(s.bit_and(goes, s.less(integer(0), left.value))),
                low.set(s.select(self.earlier.value, self.next.value, low.value)),
                left.set(s.select(self.earlier.value, rest, half)),
            )

        return (
            low.set(s.max(integer(0), s.sub(done, second_length))),
            left.set(s.sub(s.min(done, first_length), low.value)),
            s.loop(self.halvings, halve),
            self.at[0].set(s.add(first, low.value)),
            self.at[1].set(s.add(second, s.sub(done, low.value))),
            self.ends[0].set(s.add(first, first_length)),
            self.ends[1].set(s.add(second, second_length)),
        )

    def merge(self, lane: Value, blocks: Value, put: Put) -> Iterator[Statement]:
        """From where it was begun, give `put` so many blocks: their number, and their vectors."""
        s = self.code

        def step(number: Value) -> Iterator[Statement]:
            yield from self._take(lane)
            pairs = [(x.value, y.value) for x, y in zip(self.kept, self.come, strict=True)]
            yield from self._sorted([s.min(x, y) for x, y in pairs], self.low, False)
            yield from self._sorted([s.max(x, y) for x, y in pairs], self.high, True)
            yield from (x.set(y.value) for x, y in zip(self.kept, self.high, strict=True))
            made = put(s.sub(number, integer(1)), self.low)
            yield When(s.less(integer(0), number), made)  # the first turn only fills what is kept

        yield from (each.set(s.const(0, self.dtype)) for each in self.kept)
        yield s.loop(s.sum(blocks, 1), step)

    def _take(self, lane: Value) -> Iterator[Statement]:
        """Read the block that begins with the smaller record."""
        s, (x, y) = self.code, self.at
        yield self.earlier.set(s.less_equal(self.read(x.value), self.read(y.value)))
        earlier = self.earlier.value
        yield self.next.set(s.select(earlier, x.value, y.value))
        passed = [
            s.min(s.add(at.value, integer(self.block)), end.value)
            for at, end in zip(self.at, self.ends, strict=True)
        ]
        yield x.set(s.select(earlier, passed[0], x.value))
        yield y.set(s.select(earlier, y.value, passed[1]))
        for k, each in enumerate(self.come):
            yield each.set(self.read(s.sum(self.next.value, k * self.lanes, lane)))

    def _sorted(self, vectors: list[Value], into: list[Register], down: bool) -> Body:
        """Sort what first falls and then rises, or the other way round: half by half."""
        distance = HELD // 2
        while distance:
            vectors = self._exchanged(vectors, distance, down)
            distance //= 2
        vectors = self._turned(vectors)
        distance = self.lanes // 2
        while distance:
            vectors = self._exchanged(vectors, distance, down)
            distance //= 2
        vectors = self._turned(vectors)
        return tuple(each.set(x) for each, x in zip(into, vectors, strict=True))

    def _exchanged(self, vectors: list[Value], distance: int, down: bool) -> list[Value]:
        s, made = self.code, list(vectors)
        for k, x in enumerate(vectors):
            if not k & distance:
                y = vectors[k + distance]
                pair = s.min(x, y), s.max(x, y)
                made[k], made[k + distance] = reversed(pair) if down else pair
        return made

    def _turned(self, vectors: list[Value]) -> list[Value]:
        groups = (vectors[at : at + self.lanes] for at in range(0, HELD, self.lanes))
        return [each for group in groups for each in turned(group)]

    def close(self, lane: Value, end: Value) -> Body:
        """Write the block that lies behind a run."""
        s = self.code
        last = s.bit_not(s.const(0, self.dtype))
        return tuple(
            Store(self.home, s.sum(end, at, lane), last) for at in range(0, self.block, self.lanes)
        )

    def store(self, lane: Value, start: Value) -> Put:
        """Write blocks one after the other."""
        s = self.code

        def put(number: Value, vectors: list[Register]) -> Body:
            begin = s.add(start, s.mul(number, integer(self.block)))
            return tuple(
                Store(self.home, s.sum(begin, k * self.lanes, lane), x.value)
                for k, x in enumerate(vectors)
            )

        return put


# -- chunks ------------------------------------------------------------------------------------


class _Runs(Network):
    """Sorts the runs of a chunk, which lie in memory as records already."""

    def __init__(self, work: _Merged, task: Task, home: int) -> None:
        self.plan, self.home = work.plan, home
        part = replace(work.order, rows=self.plan.lanes, size=self.plan.run, kept=self.plan.run)
        super().__init__(part, task)

    def sorted(self, start: Value, lane: Value) -> Iterator[Statement]:
        """Sort the runs that begin here."""
        yield from self._read(start, lane)
        yield from self._merge(start, lane)

    def _places(self, first: Value, lane: Value, begin: Value) -> list[Value]:
        s = self.code
        return [s.sum(first, r * self.plan.stride, begin, lane) for r in range(self.lanes)]

    def _read_whole(self, first: Value, lane: Value, begin: Value) -> Iterator[Statement]:
        for at in range(0, HELD, self.lanes):
            places = self._places(first, lane, self.code.sum(begin, at))
            read = turned([load(self.home, place, self.row.dtype) for place in places])
            for k, record in enumerate(read):
                yield self.held[at + k].set(record)

    def _write_whole(self, first: Value, lane: Value, begin: Value) -> Iterator[Statement]:
        for at in range(0, HELD, self.lanes):
            places = self._places(first, lane, self.code.sum(begin, at))
            records = turned([each.value for each in self.held[at : at + self.lanes]])
            for place, record in zip(places, records, strict=True):
                yield Store(self.home, place, record)


def _runs(work: _Merged) -> None:
    """Make the records of each chunk, and sort them."""
    task, plan, order = work.task(), work.plan, work.order
    s = task.code
    (home,) = task.held([work.home]).buffers
    flags = s.buffer(work.flags, order.key_dtype, "write") if task.restores else -1
    network = _Runs(work, task, home)

    def chunk(number: Value) -> Body:
        start = s.mul(number, integer(plan.lanes * plan.stride))
        made, special = _records(plan, task, home, number, start)
        flag = (Store(flags, number, special),) if task.restores else ()
        sort = lambda lane: network.sorted(start, lane)  # noqa: E731
        return (*made, *flag, s.loop(plan.lanes, sort, 0, "vector", plan.lanes))

    kernel = s.kernel("order_runs", order.rows * plan.chunks, chunk)
    written = (work.home, work.flags) if task.restores else (work.home,)
    levels = plan.run.bit_length() - 1
    work.made.append(Made(kernel, tuple(s.memory), written, 8 + levels * (levels + 1) // 8))


def _records(plan: Plan, task: Task, home: int, number: Value, start: Value) -> tuple[Body, Value]:
    """Write a chunk's records down, run by run; and whether some elements are special."""
    s, order = task.code, task.order
    dtype, size = order.record[0], integer(order.size)
    row, which = s.floordiv(number, integer(plan.chunks)), s.rem(number, integer(plan.chunks))
    base, last = s.mul(row, size), s.bit_not(s.const(0, dtype))
    found = s.register(order.key_dtype)

    def run(r: Value) -> Body:
        begin = s.sum(s.mul(which, integer(plan.chunk)), s.mul(r, integer(plan.run)))
        place = s.sub(s.add(start, s.mul(r, integer(plan.stride))), begin)
        stop = s.min(s.add(begin, integer(plan.run)), size)
        end = s.add(begin, integer(plan.run))

        def put(i: Value, x: Value) -> Body:
            return (Store(home, s.add(place, i), x),)

        made, special = task.mapped(
            base, s.min(begin, size), stop, lambda i, key: put(i, task.records.make(key, i)[0])
        )
        seen = s.bit_or(found.value, s.cast(special, order.key_dtype))
        return (
            *made,
            found.set(seen),
            s.loop(end, lambda i: put(i, last), s.max(begin, stop)),
            s.loop(s.add(end, integer(plan.block)), lambda i: put(i, last), end, "vector"),
        )

    return (found.set(s.const(0, order.key_dtype)), s.loop(plan.lanes, run)), found.value


# -- rows --------------------------------------------------------------------------------------


def _level(work: _Merged, half: int, length: int, levels: int) -> None:
    """Merge runs of a length, from one half of the memory to the other or to the results.

    A task does a chunk's length of all that is written; more than one of the `levels` where they
    stay inside a chunk. What differs from call to call is read from memory, so all but the last are
    one kernel.
    """
    task, plan, order = work.task(), work.plan, work.order
    s, last = task.code, 2 * length >= plan.chunks * plan.chunk
    (home,) = task.held([work.home]).buffers
    merger = _Merger(s, home, order)
    data = np.array([length, half * plan.half, levels], INDEX)
    table = s.buffer(Memory(TensorType(data.shape, INDEX), "constant", data=data), INDEX)
    given = [load(table, integer(k), INDEX) for k in range(data.size)]
    level = _Level(plan, merger, s.register(INDEX), s.register(INDEX))
    tasks = -(-order.kept // plan.chunk) if last else plan.chunks

    def chunk(number: Value) -> Body:
        row, begin = s.floordiv(number, integer(tasks)), s.rem(number, integer(tasks))
        begin = s.mul(begin, integer(plan.chunk))
        start = level.length.set(given[0]), level.now.set(given[1])
        if last:
            (spare, _), split = level.split(row, begin)
            return (*start, *split, *_results(task, merger, row, begin, spare))
        return (*start, s.loop(given[2], lambda _: level.merged(row, begin)))

    kernel = s.kernel("order_merge", order.rows * tasks, chunk)
    written = (work.target, work.home) if last else (work.home,)
    work.made.append(Made(kernel, tuple(s.memory), written, 8 * levels))


@dataclass(frozen=True)
class _Level:
    """Merges that each task does its part of: runs of a length, at a place in memory."""

    plan: Plan
    merger: _Merger
    length: Register
    now: Register

    def split(self, row: Value, begin: Value) -> tuple[tuple[Value, Value], Body]:
        """Find what is merged to records from `begin` on: where they go, and how many are left."""
        s, plan, length = self.merger.code, self.plan, self.length.value
        both = s.add(length, length)
        start = s.mul(s.floordiv(begin, both), both)
        done, left = s.sub(begin, start), s.sub(integer(plan.chunks * plan.chunk), start)
        first_run = s.floordiv(start, integer(plan.run))
        place = s.add(s.mul(row, integer(plan.room)), s.mul(first_run, integer(plan.stride)))
        lengths = s.min(left, length), s.max(s.min(s.sub(left, length), length), integer(0))
        apart = s.mul(s.floordiv(length, integer(plan.run)), integer(plan.stride))
        apart = s.select(s.equal(lengths[1], integer(0)), lengths[0], apart)
        first = s.add(place, self.now.value)
        split = self.merger.split(((first, lengths[0]), (s.add(first, apart), lengths[1])), done)
        goal = s.add(s.add(place, done), s.sub(integer(plan.half), self.now.value))
        return (goal, s.sub(s.add(*lengths), done)), split

    def merged(self, row: Value, begin: Value) -> Body:
        """Merge a chunk's length, and go on to the next level."""
        s, plan, merger = self.merger.code, self.plan, self.merger
        size = s.min(s.add(self.length.value, self.length.value), integer(plan.chunk))

        def piece(number: Value) -> Body:
            (goal, left), split = self.split(row, s.add(begin, s.mul(number, size)))

            def merge(lane: Value) -> Iterator[Statement]:
                blocks = s.floordiv(size, integer(plan.block))
                yield from merger.merge(lane, blocks, merger.store(lane, goal))
                yield When(s.equal(left, size), merger.close(lane, s.add(goal, size)))

            return (*split, s.loop(plan.lanes, merge, 0, "vector", plan.lanes))

        return (
            s.loop(s.floordiv(integer(plan.chunk), size), piece),
            self.length.set(s.add(self.length.value, self.length.value)),
            self.now.set(s.sub(integer(plan.half), self.now.value)),
        )


def _results(
    task: Task, merger: _Merger, row: Value, begin: Value, spare: Value
) -> Iterator[Statement]:
    """Merge a piece of a row and give the results; a block that is not whole is kept aside."""
    s, plan, kept = task.code, Plan(task.order), integer(task.order.kept)
    stop = s.min(s.sum(begin, plan.chunk), kept)
    goal = s.add(s.mul(row, kept), begin)
    length = s.sub(stop, begin)
    whole = s.mul(s.floordiv(length, integer(plan.block)), integer(plan.block))

    def merge(lane: Value) -> Iterator[Statement]:
        def put(number: Value, vectors: list[Register]) -> Body:
            at = s.mul(number, integer(plan.block))
            stores = tuple(
                task.store(s.sum(goal, at, k * plan.lanes, lane), task.result((x.value,)))
                for k, x in enumerate(vectors)
            )
            if task.order.kept % plan.block == 0:
                return stores
            aside = merger.store(lane, spare)(number, vectors)
            partial = s.less_equal(whole, at)
            return When(s.bit_not(partial), stores), When(partial, aside)

        blocks = s.floordiv(s.sum(length, plan.block - 1), integer(plan.block))
        yield from merger.merge(lane, blocks, put)

    yield s.loop(plan.lanes, merge, 0, "vector", plan.lanes)
    if task.order.kept % plan.block:

        def finish(i: Value) -> Body:
            record = merger.read(s.add(spare, i))
            return (task.store(s.add(goal, i), task.result((record,))),)

        yield s.loop(length, finish, whole)
