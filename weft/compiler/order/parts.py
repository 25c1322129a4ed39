"""Kernels that order few, long rows where vectors are wide: rows are parted at pivots.

A sorted sample of a row says where its buckets begin. Each chunk of a row is parted into the pieces
of all buckets, level by level. Then each bucket, whose pieces are put together, is sorted alone.
Threads share chunks, and buckets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from weft.compiler.loops import INDEX, Statement, Store, Value, integer, load
from weft.compiler.order.bucket import Bucket
from weft.compiler.order.code import COUNT, Body, Code, Order, Stretch
from weft.compiler.order.rows import Made, Task, found_special, space
from weft.compiler.order.split import SAMPLE, SAMPLES, Plan, Splitter
from weft.compiler.steps import Memory
from weft.runtime.cpu.jit import chosen_target

_SCATTER = 40503  # an odd number that spreads the sample


def parts(order: Order) -> bool:
    """Whether rows that threads share are parted: where lanes move freely, and digits are many."""
    return chosen_target().has("avx512f") and len(order.record) == 1 and order.width >= 32


@dataclass
class _Parted:
    """An order of long rows under construction, kernel by kernel."""

    order: Order
    source: Memory
    target: Memory
    made: list[Made] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plan = plan = Plan(self.order)
        rows = self.order.rows
        (self.home,) = space(self.order.record, 3 * plan.area)
        (self.sample,) = space(self.order.record, rows * SAMPLE)
        (self.bounds,) = space((INDEX,), rows * plan.chunks * (plan.buckets + 1))
        (self.flags,) = space((self.order.key_dtype,), rows * plan.chunks)

    def task(self) -> Task:
        """A new kernel."""
        return Task(self.order, self.source, self.target)


def parted_together(order: Order, source: Memory, target: Memory) -> list[Made]:
    """The kernels that sort few, long rows by parting them."""
    work = _Parted(order, source, target)
    _sample(work)
    _part_chunks(work)
    _sort_buckets(work)
    task = work.task()
    if task.restores:
        kernel = found_special(task, work.flags, work.plan.chunks)
        work.made.append(Made(kernel, tuple(task.code.memory), (target,), 1))
    return work.made


def _sample(work: _Parted) -> None:
    """Sort records from all over each row: the place of each is the number of smaller ones."""
    task, plan, order = work.task(), work.plan, work.order
    s = task.code
    sample = s.buffer(work.sample, order.record[0], "write")
    drawn, ranks = s.array(order.record[0], SAMPLE), s.array(COUNT, SAMPLE)
    rank, step = s.register(COUNT, plan.lanes), max(order.size // SAMPLE, 1)

    def look(i: Value) -> Body:
        def smaller(j: Value) -> Body:
            a, b = drawn.at(j), drawn.at(i)
            before = s.bit_or(s.less(a, b), s.bit_and(s.equal(a, b), s.less(j, i)))
            return (rank.set(s.add(rank.value, s.cast(before, COUNT))),)

        return rank.set(s.const(0, COUNT)), s.loop(SAMPLE, smaller), ranks.set(rank.value, i)

    def row(number: Value) -> Body:
        base, start = s.mul(number, integer(order.size)), s.mul(number, integer(SAMPLE))

        def draw(i: Value) -> Body:
            inside = s.rem(s.mul(i, integer(_SCATTER)), integer(step))
            place = s.rem(s.add(s.mul(i, integer(step)), inside), integer(order.size))
            return (drawn.set(task.records.make(task.key(s.add(base, place)), place)[0], i),)

        def put(i: Value) -> Body:
            return (Store(sample, s.add(start, s.index(ranks.at(i))), drawn.at(i)),)

        ranked = s.loop(SAMPLE, look, 0, "vector", plan.lanes)
        return s.loop(SAMPLE, draw), ranked, s.loop(SAMPLE, put)

    kernel = s.kernel("order_sample", order.rows, row)
    work.made.append(Made(kernel, tuple(s.memory), (work.sample,), 1))


# -- chunks ------------------------------------------------------------------------------------


def _part_chunks(work: _Parted) -> None:
    """Make the records of each chunk, and part them into the pieces of all buckets."""
    task, plan, order = work.task(), work.plan, work.order
    s = task.code
    (home,) = task.held([work.home]).fields
    sample = s.buffer(work.sample, order.record[0])
    table = s.buffer(work.bounds, INDEX, "write")
    flags = s.buffer(work.flags, order.key_dtype, "write") if task.restores else -1
    chunk = _Chunk(plan, s, sample)

    def run(number: Value) -> Body:
        row, which = s.floordiv(number, integer(plan.chunks)), s.rem(number, integer(plan.chunks))
        begin = s.mul(which, integer(plan.chunk))
        stop = s.min(s.add(begin, integer(plan.chunk)), integer(order.size))
        start = plan.chunk_start(s, row, which)

        def put(i: Value, key: Value) -> Body:
            return (chunk.records.set(task.records.make(key, i)[0], s.sub(i, begin)),)

        span = s.mul(row, integer(order.size)), begin, stop
        made, special = task.mapped(span, put, plan.lanes)
        flag = (Store(flags, number, s.cast(special, order.key_dtype)),) if task.restores else ()
        first = s.mul(number, integer(plan.buckets + 1))

        def keep(k: Value) -> Body:
            return (Store(table, s.add(first, k), chunk.bounds.at(k)),)

        parted = chunk.parted(row, s.sub(stop, begin), start, home)
        return (*made, *flag, *parted, s.loop(plan.buckets + 1, keep))

    kernel = s.kernel("order_part", order.rows * plan.chunks, run)
    written = [work.home, work.bounds, *([work.flags] if task.restores else [])]
    work.made.append(Made(kernel, tuple(s.memory), tuple(written), 4 + 2 * plan.levels))


class _Chunk:
    """Parts a chunk level by level, to and fro between two areas of a task's own memory.

    What is not below a pivot waits in a third one.
    """

    def __init__(self, plan: Plan, code: Code, sample: int) -> None:
        self.plan, self.sample = plan, sample
        s = self.code = code
        self.room = plan.chunk + plan.lanes  # of all records of a chunk
        self.records = s.array(plan.order.record[0], 3 * self.room)
        self.splitter = Splitter(s, self.records, plan)
        self.bounds = s.array(INDEX, plan.buckets + 1)  # where buckets begin
        self.now, self.then, self.step = (s.register(INDEX) for _ in range(3))
        self.start, self.count = s.register(INDEX), s.register(INDEX)

    def parted(self, row: Value, count: Value, goal: Value, home: Stretch) -> Body:
        """Part so many records, and write them into a home, from the goal on."""
        s, plan, room = self.code, self.plan, integer(self.room)
        buckets = integer(plan.buckets)

        def level(_: Value) -> Body:
            each = lambda n: self._halve(row, n)  # noqa: E731
            return (
                s.loop(s.floordiv(buckets, self.step.value), each),
                self.step.set(s.floordiv(self.step.value, integer(2))),
                self.now.set(self.then.value),
                self.then.set(s.sub(room, self.now.value)),
            )

        def give(lane: Value) -> Iterator[Statement]:
            yield self._filled(s.add(self.now.value, count), lane)
            yield from self.splitter.copied(self.now.value, count, goal, lane, home)

        return (
            self.splitter.once(lambda lane: (self._filled(count, lane),)),
            self.bounds.set(integer(0), integer(0)),
            self.bounds.set(count, buckets),
            self.step.set(buckets),
            self.now.set(integer(0)),
            self.then.set(room),
            s.loop(plan.levels, level),
            self.splitter.once(give),
        )

    def _filled(self, end: Value, lane: Value) -> Statement:
        """A vector behind the last record: the one that has it is read whole."""
        s, zero = self.code, self.code.const(0, self.records.dtype)
        return self.records.set(zero, s.add(end, lane))

    def _halve(self, row: Value, number: Value) -> Body:
        """Part the records of some buckets in two."""
        s, splitter, spare = self.code, self.splitter, integer(2 * self.room)
        first = s.mul(number, self.step.value)
        middle = s.add(first, s.floordiv(self.step.value, integer(2)))
        place = s.add(s.mul(row, integer(SAMPLE)), s.mul(middle, integer(SAMPLES)))
        start, count = self.start.value, self.count.value

        def move(lane: Value) -> Iterator[Statement]:
            here, there = s.add(self.now.value, start), s.add(self.then.value, start)
            yield splitter.pivot.set(load(self.sample, place, splitter.dtype))
            yield from splitter.split(here, count, (there, spare), lane)
            low = splitter.low.value
            yield self._filled(s.add(spare, s.sub(count, low)), lane)
            yield from splitter.copied(spare, s.sub(count, low), s.add(there, low), lane)

        return (
            self.start.set(self.bounds.at(first)),
            self.count.set(s.sub(self.bounds.at(s.add(first, self.step.value)), start)),
            splitter.once(move),
            self.bounds.set(s.add(start, splitter.low.value), middle),
        )


# -- buckets -----------------------------------------------------------------------------------


def _sort_buckets(work: _Parted) -> None:
    """Put the pieces of each bucket together, parted at its middle, and sort both parts."""
    task, plan, order = work.task(), work.plan, work.order
    s = task.code
    memory = task.held([work.home])
    table, sample = s.buffer(work.bounds, INDEX), s.buffer(work.sample, order.record[0])
    splitter = Splitter(s, memory.fields[0], plan)
    bucket = Bucket(plan, task, splitter, memory)
    rank, low, high = (s.register(INDEX) for _ in range(3))

    def run(number: Value) -> Body:
        row, which = s.floordiv(number, integer(plan.buckets)), s.rem(number, integer(plan.buckets))

        def bound(chunk: Value, k: Value) -> Value:
            one = s.add(s.mul(row, integer(plan.chunks)), chunk)
            place = s.add(s.mul(one, integer(plan.buckets + 1)), k)
            return load(table, place, INDEX)

        def look(chunk: Value) -> Body:
            return (rank.set(s.add(rank.value, bound(chunk, which))),)

        start = plan.bucket_start(s, row, which, rank.value)
        homes = s.sum(start, 2 * plan.area), s.sum(start, plan.area)

        def join(chunk: Value) -> Body:
            begin = bound(chunk, which)
            size = s.sub(bound(chunk, s.sum(which, 1)), begin)
            piece = s.sum(plan.chunk_start(s, row, chunk), begin)
            goals = s.add(homes[0], low.value), s.add(homes[1], high.value)

            def part(lane: Value) -> Iterator[Statement]:
                yield splitter.pivot.set(load(sample, middle, splitter.dtype))
                yield from splitter.split(piece, size, goals, lane)

            return (
                splitter.once(part),
                low.set(s.add(low.value, splitter.low.value)),
                high.set(s.sub(s.add(high.value, size), splitter.low.value)),
            )

        inside = s.sum(s.mul(which, integer(SAMPLES)), SAMPLES // 2)
        middle = s.add(s.mul(row, integer(SAMPLE)), inside)
        below = homes[0], s.add(homes[1], high.value), low.value, rank.value
        above = homes[1], s.add(homes[0], low.value), high.value, s.add(rank.value, low.value)
        return (
            rank.set(integer(0)),
            s.loop(plan.chunks, look),
            low.set(integer(0)),
            high.set(integer(0)),
            s.loop(plan.chunks, join),
            *bucket.sorted(row, (below, above)),
        )

    kernel = s.kernel("order_bucket", order.rows * plan.buckets, run)
    work.made.append(Made(kernel, tuple(s.memory), (work.target, work.home), 32))
