"""Kernels that order few, long rows: threads share each row, chunk by chunk.

Digit by digit, every chunk counts its own records; then each moves its records, and knows from all
the counts where those of the chunks before it end. What is sorted is stable, so the result is the
same however many chunks there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from weft.compiler.loops import INDEX, Kernel, Store, Value, When, integer, load
from weft.compiler.order.code import COUNT, LANES, Body, Code, Order, Register
from weft.compiler.order.parts import parted_together, parts
from weft.compiler.order.rows import (
    Finish,
    Made,
    Task,
    cleared,
    counted,
    digits_of,
    found_special,
    highest_of,
    look,
    selects,
    sorter_of,
    space,
    take,
    threshold,
)
from weft.compiler.steps import Memory

FEW_ROWS = 16  # fewer are shared,
SHARED = 1 << 16  # if they are this long
CHUNK = 1 << 16  # elements of a chunk, at least
MOST_CHUNKS = 16


@dataclass
class Shared:
    """An order of long rows under construction, kernel by kernel."""

    order: Order
    source: Memory
    target: Memory
    made: list[Made] = field(default_factory=list)

    def __post_init__(self) -> None:
        chunks = max(2, min(self.order.size // CHUNK, MOST_CHUNKS))
        size = -(-self.order.size // chunks)
        self.chunk = -(-size // LANES) * LANES
        self.chunks = -(-self.order.size // self.chunk)
        digits = [highest_of(self.order)] if selects(self.order) else digits_of(self.order)
        self.bits = max(bits for _, bits in digits)
        (self.tables,) = space((COUNT,), (self.order.rows * self.chunks) << self.bits)
        (self.flags,) = space((self.order.key_dtype,), self.order.rows * self.chunks)

    def task(self) -> Task:
        """A new kernel."""
        return Task(self.order, self.source, self.target)

    def add(self, task: Task, kernel: Kernel, written: list[Memory], work: int) -> None:
        """Keep a finished kernel."""
        self.made.append(Made(kernel, tuple(task.code.memory), tuple(written), work))

    def by_chunk(
        self, task: Task, name: str, body: Callable[[Value, Value, Value, Value], Body]
    ) -> Kernel:
        """A kernel with a task for each chunk: `body` is told its row, number, start and stop."""
        s = task.code

        def run(t: Value) -> Body:
            row, number = s.floordiv(t, integer(self.chunks)), s.rem(t, integer(self.chunks))
            start = s.mul(number, integer(self.chunk))
            stop = s.min(s.add(start, integer(self.chunk)), integer(self.order.size))
            return body(row, number, start, stop)

        return s.kernel(name, self.order.rows * self.chunks, run)

    def tables_of(self, task: Task, mode: str) -> Tables:
        """The counts of all chunks, in one kernel."""
        return Tables(task.code, task.code.buffer(self.tables, COUNT, mode), self)


@dataclass(frozen=True)
class Tables:
    """How often each digit is in each chunk."""

    code: Code
    buffer: int
    shared: Shared

    def place(self, row: Value, chunk: Value, digit: Value) -> Value:
        """Where a count is."""
        s = self.code
        table = s.add(s.mul(row, integer(self.shared.chunks)), chunk)
        return s.add(s.mul(table, integer(1 << self.shared.bits)), digit)

    def keep(self, row: Value, chunk: Value, table: Register) -> Body:
        """Write the counts of a chunk down."""
        put = lambda d: (Store(self.buffer, self.place(row, chunk, d), table.at(d)),)  # noqa: E731
        return (self.code.loop(1 << self.shared.bits, put, kind="vector"),)

    def add_up(self, row: Value, stop: Value, table: Register) -> Body:
        """The counts of a row's chunks before `stop`, together."""
        s = self.code
        total = s.register(COUNT, LANES)

        def step(d: Value) -> Body:
            def add(c: Value) -> Body:
                count = load(self.buffer, self.place(row, c, d), COUNT)
                return (total.set(s.add(total.value, count)),)

            more = s.loop(stop, add)
            return total.set(s.const(0, COUNT)), more, table.set(total.value, d)

        return (s.loop(1 << self.shared.bits, step, kind="vector"),)


def sorted_together(order: Order, source: Memory, target: Memory) -> list[Made]:
    """The kernels that sort few, long rows."""
    work = Shared(order, source, target)
    homes = [space(order.record, order.rows * order.size) for _ in range(2)]
    digits = digits_of(order)
    for number in range(len(digits)):
        now, then = homes[number % 2], homes[1 - number % 2]
        _count(work, now, number)
        _move(work, now, then, number)
    task = work.task()
    if task.restores:
        work.add(task, found_special(task, work.flags, work.chunks), [target], 1)
    return work.made


def _count(work: Shared, now: list[Memory], number: int) -> None:
    """Count one digit in every chunk; at the first one, records are made as well."""
    task, order = work.task(), work.order
    s = task.code
    records, tables = task.held(now), work.tables_of(task, "write")
    table = s.array(COUNT, 1 << work.bits)
    written = [work.tables]
    flags = -1
    if number == 0:
        written += [*now, *([work.flags] if task.restores else [])]
        flags = s.buffer(work.flags, order.key_dtype, "write") if task.restores else -1

    def chunk(row: Value, which: Value, start: Value, stop: Value) -> Body:
        base = s.mul(row, integer(order.size))
        made: Body = ()
        if number == 0:

            def put(i: Value, key: Value) -> Body:
                return records.put(s.add(base, i), task.records.make(key, i))

            made, special = task.mapped((base, start, stop), put)
            if task.restores:
                place = s.add(s.mul(row, integer(work.chunks)), which)
                made = (*made, Store(flags, place, s.cast(special, order.key_dtype)))

        def count(i: Value) -> Body:
            record = records.at(s.add(base, i))
            return (counted(s, table, task.records.digit(record, *task.digits[number])),)

        clear, loop = cleared(s, table, 1 << work.bits), s.loop(stop, count, start)
        return (*made, clear, loop, *tables.keep(row, which, table))

    work.add(task, work.by_chunk(task, "order_count", chunk), written, 16 if number == 0 else 8)


def _move(work: Shared, now: list[Memory], then: list[Memory], number: int) -> None:
    """Move the records of every chunk to their places; the last digit gives the results."""
    task, order = work.task(), work.order
    s, last = task.code, number == len(task.digits) - 1
    records, tables = task.held(now, "read"), work.tables_of(task, "read")
    home = None if last else task.held(then, "write")
    table, before = s.array(COUNT, 1 << work.bits), s.array(COUNT, 1 << work.bits)
    held, total = s.register(COUNT), s.register(COUNT)

    def chunk(row: Value, which: Value, start: Value, stop: Value) -> Body:
        base, goal = s.mul(row, integer(order.size)), s.mul(row, integer(order.kept))
        finish: Finish = partial(task.finish, goal)
        if home is not None:
            finish = lambda place, record: home.put(s.add(base, place), record)  # noqa: E731

        def begin(d: Value) -> Body:
            return (
                held.set(table.at(d)),
                table.set(s.add(total.value, before.at(d)), d),
                total.set(s.add(total.value, held.value)),
            )

        def move(i: Value) -> Body:
            record = records.at(s.add(base, i))
            digit = task.records.digit(record, *task.digits[number])
            return (
                held.set(table.at(digit)),
                table.set(s.add(held.value, s.const(1, COUNT)), digit),
                *finish(s.index(held.value), record),
            )

        first = task.records.digit(records.at(base), *task.digits[number])
        same = s.equal(table.at(first), s.const(order.size, COUNT))
        all_same = s.register(same.dtype)
        starts = s.loop(1 << task.digits[number][1], begin)
        copy = s.loop(stop, lambda i: finish(i, records.at(s.add(base, i))), start)
        return (
            *tables.add_up(row, integer(work.chunks), table),
            all_same.set(same),
            When(all_same.value, (copy,)),
            When(
                s.equal(all_same.value, s.const(False, same.dtype)),
                (
                    *tables.add_up(row, which, before),
                    total.set(s.const(0, COUNT)),
                    starts,
                    s.loop(stop, move, start),
                ),
            ),
        )

    written = [work.target] if last else then
    work.add(task, work.by_chunk(task, "order_move", chunk), written, 12)


# -- a few of a row ----------------------------------------------------------------------------


def selected_together(order: Order, source: Memory, target: Memory) -> list[Made]:
    """The kernels that give the first few elements of long rows."""
    work = Shared(order, source, target)
    records = space(order.record, 2 * order.rows * order.size)
    (found,) = space((INDEX,), order.rows * work.chunks)
    _look(work)
    _take(work, records, found)
    _finish(work, records, found)
    return work.made


def _look(work: Shared) -> None:
    """Count the highest digit of keys in every chunk."""
    task = work.task()
    s, tables = task.code, work.tables_of(task, "write")
    table = s.array(COUNT, 1 << work.bits)

    def chunk(row: Value, which: Value, start: Value, stop: Value) -> Body:
        base = s.mul(row, integer(work.order.size))
        return (*look(task, (base, start, stop), table), *tables.keep(row, which, table))

    work.add(task, work.by_chunk(task, "order_look", chunk), [work.tables], 8)


def _take(work: Shared, records: list[Memory], found: Memory) -> None:
    """Take the records up to the threshold out of every chunk; they stay in its part."""
    task, order = work.task(), work.order
    s = task.code
    tables, target = work.tables_of(task, "read"), task.held(records, "write")
    counts = s.buffer(found, INDEX, "write")
    table, next_ = s.array(COUNT, 1 << work.bits), s.register(INDEX)
    search, digit = threshold(task, table.at)

    def chunk(row: Value, which: Value, start: Value, stop: Value) -> Body:
        span = (s.mul(row, integer(order.size)), start, stop)
        home = s.add(s.mul(row, integer(2 * order.size)), start)
        place = s.add(s.mul(row, integer(work.chunks)), which)
        return (
            *tables.add_up(row, integer(work.chunks), table),
            *search,
            next_.set(home),
            *take(task, digit, span, target, next_),
            Store(counts, place, s.sub(next_.value, home)),
        )

    work.add(task, work.by_chunk(task, "order_take", chunk), [*records, found], 4)


def _finish(work: Shared, records: list[Memory], found: Memory) -> None:
    """Put together what was taken out of each row, and sort it."""
    task, order = work.task(), work.order
    s = task.code
    counts, next_ = s.buffer(found, INDEX), s.register(INDEX)
    sorter = sorter_of(task, task.held(records))

    def row(number: Value) -> Body:
        first = s.mul(number, integer(2 * order.size))
        homes = first, s.add(first, integer(order.size))
        finish = partial(task.finish, s.mul(number, integer(order.kept)))

        def join(which: Value) -> Body:
            begin = s.add(first, s.mul(which, integer(work.chunk)))
            count = load(counts, s.add(s.mul(number, integer(work.chunks)), which), INDEX)

            def move(i: Value) -> Body:
                record = sorter.scratch.at(s.add(begin, i))
                put = sorter.scratch.put(next_.value, record)
                return (*put, next_.set(s.add(next_.value, integer(1))))

            return (s.loop(count, move),)

        return (
            next_.set(first),
            s.loop(work.chunks, join),
            sorter.now.set(first),
            *sorter.sorted(homes, s.sub(next_.value, first), finish),
        )

    work.add(task, s.kernel("order_finish", order.rows, row), [work.target, *records], 1)


def shares(order: Order) -> bool:
    """Whether threads share the rows of an order."""
    return order.rows < FEW_ROWS and order.size >= SHARED


def ordered_together(order: Order, source: Memory, target: Memory) -> list[Made]:
    """The kernels that order few, long rows."""
    if selects(order):
        return selected_together(order, source, target)
    return (parted_together if parts(order) else sorted_together)(order, source, target)
