"""Kernels that order one row after another, each task with memory of its own.

Long rows are sorted by their digits, the lowest first: one run counts all digits, then each digit
moves every record once; digits that all keys share move nothing. Short rows are ranked: each
element goes to the place that the number of smaller ones is. Where few elements of a row are
wanted, those up to the digit that holds the last of them are taken out and sorted alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from weft.compiler.loops import BOOL, INDEX, Kernel, Statement, Store, Value, When, integer, load
from weft.compiler.order_code import (
    COUNT,
    LANES,
    Body,
    Code,
    Keys,
    Order,
    Records,
    Register,
    Rows,
)
from weft.compiler.steps import Memory
from weft.core.common.types import TensorType

SHORT = 64  # elements of a row that is ranked
LONG = 1 << 14  # elements from which larger tables pay
MOST_TASKS = 64
SELECTED = 4  # rows this many times longer than what is wanted of them are not sorted whole
POSITION = np.dtype(np.int64)


def digits_of(order: Order) -> list[tuple[int, int]]:
    """(lowest bit, bits) of the digits of a key, the lowest first."""
    width = order.width
    bits = 11 if order.size >= LONG and width > 16 else 8
    return [(low, min(bits, width - low)) for low in range(0, width, bits)]


@dataclass(frozen=True)
class Made:
    """A kernel of ordering and the memory it runs on; `work` is instructions for each element."""

    kernel: Kernel
    memory: tuple[Memory, ...]
    written: tuple[Memory, ...]
    work: int


class Task:
    """What every kernel of an order has: the operand, the result, keys and records."""

    def __init__(self, order: Order, source: Memory, target: Memory) -> None:
        self.order = order
        self.code = Code()
        self.keys = Keys(order, self.code)
        self.records = Records(order, self.code, order.record)
        self.digits = digits_of(order)
        self._source, self._target = source, target
        self._buffers: dict[Memory, int] = {}

    def bits(self, position: Value) -> Value:
        """An element of the operand."""
        dtype = self.order.key_dtype
        if self._source not in self._buffers:
            self._buffers[self._source] = self.code.buffer(self._source, dtype)
        return load(self._buffers[self._source], position, dtype)

    def store(self, position: Value, x: Value) -> Store:
        """Write an element of the result."""
        dtype = POSITION if self.order.positions else self.order.key_dtype
        if self._target not in self._buffers:
            self._buffers[self._target] = self.code.buffer(self._target, dtype, "write")
        return Store(self._buffers[self._target], position, x)

    def record(self, base: Value, i: Value) -> tuple[Value, ...]:
        """The record of element `i` of the row that begins at `base`."""
        key = self.keys.key(self.bits(self.code.add(base, i)))
        return self.records.make(key, i)

    def result(self, record: tuple[Value, ...]) -> Value:
        """What is given for a record."""
        if self.order.positions:
            return self.records.position(record)
        return self.keys.bits(self.records.key(record))

    def finish(self, base: Value, place: Value, record: tuple[Value, ...]) -> Body:
        """Write the result for a record at its place, if it is wanted."""
        stored = self.store(self.code.add(base, place), self.result(record))
        if self.order.kept == self.order.size:
            return (stored,)
        return (When(self.code.less(place, integer(self.order.kept)), (stored,)),)

    def rows(self, dtypes: tuple[np.dtype, ...], count: int) -> tuple[Rows, list[Memory]]:  # type: ignore[type-arg]
        """Memory for so many records."""
        memory = [Memory(TensorType((count,), dtype)) for dtype in dtypes]
        buffers = tuple(
            self.code.buffer(m, d, "update") for m, d in zip(memory, dtypes, strict=True)
        )
        return Rows(buffers, dtypes), memory

    @property
    def restores(self) -> bool:
        """Whether results have to be looked up where keys do not tell elements apart."""
        return self.keys.floating and not self.order.positions

    def restored(self, base: Value) -> Body:
        """Give zeros and NaNs of a sorted row the bits they had, in the order they came in."""
        s, size = self.code, self.order.size
        zeros, missing = s.register(INDEX), s.register(INDEX)
        goals = ((zeros, self.keys.zero()), (missing, self.keys.missing()))

        def count(i: Value) -> Body:
            key = self.keys.key(self.bits(s.add(base, i)))
            return tuple(
                place.set(s.add(place.value, s.index(s.less(key, goal)))) for place, goal in goals
            )

        def put(i: Value) -> Body:
            bits = self.bits(s.add(base, i))
            key = self.keys.key(bits)
            return tuple(
                When(
                    s.equal(key, goal),
                    (
                        self.store(s.add(base, place.value), bits),
                        place.set(s.add(place.value, integer(1))),
                    ),
                )
                for place, goal in goals
            )

        start = (zeros.set(integer(0)), missing.set(integer(0)))
        return (*start, s.loop(size, count), s.loop(size, put))


def cleared(s: Code, table: Register, length: int) -> Statement:
    """A table of zeros."""
    zero = s.const(0, table.dtype)
    return s.loop(length, lambda d: (table.set(zero, d),), kind="vector")


def counted(s: Code, table: Register, place: Value) -> Statement:
    """One more at a place of a table."""
    return table.set(s.add(table.at(place), s.const(1, table.dtype)), place)


# -- sorting by digits -------------------------------------------------------------------------


@dataclass(frozen=True)
class Sorter:
    """Sorts the records of one row inside a task."""

    task: Task
    table: Register
    scratch: Rows
    now: Register  # where in the scratch memory the records are

    @property
    def _bits(self) -> int:
        return max(bits for _, bits in self.task.digits)

    def sorted(
        self,
        read: Callable[[Value], tuple[Value, ...]] | None,
        homes: tuple[Value, Value],
        count: Value,
        target: Value,
    ) -> list[Statement]:
        """Sort `count` records, which `read` gives or which lie at `now`; then write the results.

        `homes` are the two places in the scratch memory that records move between.
        """
        task, s = self.task, self.task.code
        body: list[Statement] = []
        moves = self._moves(homes)
        for number, (shift, bits) in enumerate(task.digits):
            offset = number << self._bits
            first = read if number == 0 else None
            source = first or (lambda i: self.scratch.at(s.add(self.now.value, i)))
            last = number == len(task.digits) - 1

            def goal(place: Value, record: tuple[Value, ...], last: bool = last) -> Body:
                if last:
                    return task.finish(target, place, record)
                where = homes[0] if first is not None else s.sub(moves, self.now.value)
                return self.scratch.put(s.add(where, place), record)

            made = [*self._starts(offset, bits)]
            made.append(self._scatter(source, count, offset, number, goal))
            if not last:
                arrived = homes[0] if first is not None else s.sub(moves, self.now.value)
                made.append(self.now.set(arrived))
            if number and not last:
                digit = task.records.digit(self.scratch.at(self.now.value), shift, bits)
                all_same = self.table.at(s.sum(digit, offset))
                body.append(When(s.not_equal(s.index(all_same), count), tuple(made)))
            else:
                body += made
        return body

    def _moves(self, homes: tuple[Value, Value]) -> Value:
        return self.task.code.add(*homes)

    def tables(self, record: tuple[Value, ...]) -> Body:
        """Count a record in the tables of all digits."""
        task, s = self.task, self.task.code
        return tuple(
            counted(s, self.table, s.sum(task.records.digit(record, *each), k << self._bits))
            for k, each in enumerate(task.digits)
        )

    def clear(self) -> Statement:
        """Empty the tables of all digits."""
        return cleared(self.task.code, self.table, len(self.task.digits) << self._bits)

    def _starts(self, offset: int, bits: int) -> Body:
        """Counts of a digit as the places where its values begin."""
        s, table = self.task.code, self.table
        total, held = s.register(table.dtype), s.register(table.dtype)

        def step(d: Value) -> Body:
            place = s.sum(d, offset)
            return (
                held.set(table.at(place)),
                table.set(total.value, place),
                total.set(s.add(total.value, held.value)),
            )

        return total.set(s.const(0, table.dtype)), s.loop(1 << bits, step)

    def _scatter(
        self,
        read: Callable[[Value], tuple[Value, ...]],
        count: Value,
        offset: int,
        number: int,
        goal: Callable[[Value, tuple[Value, ...]], Body],
    ) -> Statement:
        task, s, table = self.task, self.task.code, self.table
        held = s.register(table.dtype)

        def step(i: Value) -> Body:
            record = read(i)
            place = s.sum(task.records.digit(record, *task.digits[number]), offset)
            return (
                held.set(table.at(place)),
                table.set(s.add(held.value, s.const(1, table.dtype)), place),
                *goal(s.index(held.value), record),
            )

        return s.loop(count, step)


def _sorter(task: Task, tasks: int) -> tuple[Sorter, list[Memory]]:
    """A sorter and the memory its tasks need: two rows of records for each."""
    size, order = len(task.digits) << max(bits for _, bits in task.digits), task.order
    scratch, memory = Rows((), ()), list[Memory]()
    if len(task.digits) > 1 or selects(order):
        scratch, memory = task.rows(order.record, 2 * tasks * (order.size + 1))
    table = task.code.array(COUNT, size)
    return Sorter(task, table, scratch, task.code.register(INDEX)), memory


def selects(order: Order) -> bool:
    """Whether so little is wanted of each row that it is not sorted whole."""
    return order.positions and order.kept * SELECTED <= order.size > SHORT


def sorted_rows(order: Order, source: Memory, target: Memory) -> Made:
    """The kernel that orders rows one by one."""
    task = Task(order, source, target)
    s, tasks = task.code, min(order.rows, MOST_TASKS)
    sorter, memory = _sorter(task, tasks)
    special = s.register(BOOL)

    def row(number: Value, homes: tuple[Value, Value]) -> Body:
        base, goal = s.mul(number, integer(order.size)), s.mul(number, integer(order.kept))
        read = lambda i: task.record(base, i)  # noqa: E731
        if selects(order):
            return tuple(_selected(sorter, read, homes, goal))

        def look(i: Value) -> Body:
            made = sorter.tables(read(i))
            if not task.restores:
                return made
            found = task.keys.is_special(task.bits(s.add(base, i)))
            return (*made, special.set(s.bit_or(special.value, found)))

        size = integer(order.size)
        body = [special.set(s.const(False, BOOL)), sorter.clear(), s.loop(size, look)]
        body += sorter.sorted(read, homes, size, goal)
        if task.restores:
            body.append(When(special.value, task.restored(base)))
        return tuple(body)

    kernel = s.kernel("order", tasks, lambda t: _rows_of(s, order, tasks, t, row))
    return Made(kernel, tuple(s.memory), (target, *memory), 3 + 8 * len(task.digits))


def _rows_of(
    s: Code,
    order: Order,
    tasks: int,
    task: Value,
    row: Callable[[Value, tuple[Value, Value]], Body],
) -> Body:
    """The rows of one task, and the two homes that their records move between."""
    share = -(-order.rows // tasks)
    length = order.size + 1
    first = s.mul(task, integer(2 * length))
    homes = first, s.add(first, integer(length))
    start = s.mul(task, integer(share))
    stop = s.min(s.add(start, integer(share)), integer(order.rows))
    return (s.loop(stop, lambda r: row(r, homes), start),)


# -- a few of a row ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Threshold:
    """The highest digit that holds the last element wanted, and how many elements go so far."""

    digit: Register
    count: Register

    @staticmethod
    def of(s: Code) -> Threshold:
        """New registers."""
        return Threshold(s.register(INDEX), s.register(INDEX))

    def find(self, s: Code, bits: int, kept: int, counts: Callable[[Value], Value]) -> Body:
        """Look for it, where `counts` says how often each digit is there."""

        def step(d: Value) -> Body:
            early = s.less(self.count.value, integer(kept))
            added = s.select(early, s.index(counts(d)), integer(0))
            return (
                self.digit.set(s.select(early, d, self.digit.value)),
                self.count.set(s.add(self.count.value, added)),
            )

        start = (self.digit.set(integer(0)), self.count.set(integer(0)))
        return (*start, s.loop(1 << bits, step))


def _selected(
    sorter: Sorter,
    read: Callable[[Value], tuple[Value, ...]],
    homes: tuple[Value, Value],
    goal: Value,
) -> list[Statement]:
    """Take out the records up to the threshold, and sort those."""
    task, s = sorter.task, sorter.task.code
    highest = task.digits[-1]
    threshold, found = Threshold.of(s), s.register(INDEX)

    def take(i: Value) -> Body:
        record = read(i)
        wanted = s.less_equal(task.records.digit(record, *highest), threshold.digit.value)
        # Stored in any case: what is not wanted is overwritten by what comes next.
        return (
            *sorter.scratch.put(s.add(homes[0], found.value), record),
            found.set(s.add(found.value, s.index(wanted))),
        )

    table, size = sorter.table, integer(task.order.size)
    return [
        cleared(s, table, 1 << max(highest[1], 3)),
        s.loop(size, lambda i: (counted(s, table, task.records.digit(read(i), *highest)),)),
        *threshold.find(s, highest[1], task.order.kept, table.at),
        found.set(integer(0)),
        s.loop(size, take),
        *sorted_found(sorter, homes, threshold.count.value, goal),
    ]


def sorted_found(
    sorter: Sorter, homes: tuple[Value, Value], count: Value, goal: Value
) -> list[Statement]:
    """Sort records that lie in the scratch memory."""
    s = sorter.task.code
    return [
        sorter.now.set(homes[0]),
        sorter.clear(),
        s.loop(count, lambda i: sorter.tables(sorter.scratch.at(s.add(homes[0], i)))),
        *sorter.sorted(None, homes, count, goal),
    ]


# -- short rows --------------------------------------------------------------------------------


def ranked_rows(order: Order, source: Memory, target: Memory) -> Made:
    """The kernel that orders short rows: each element's place is the number of smaller ones."""
    task = Task(order, source, target)
    task.records = Records(order, task.code, order.numbered)
    s, tasks, first = task.code, min(order.rows, MOST_TASKS), order.numbered[0]
    keys, ranks = s.array(first, SHORT), s.array(first, SHORT)
    rank = s.register(first, LANES)
    size = integer(order.size)
    one = len(order.numbered) == 1  # then no two records are equal

    def place(i: Value) -> Body:
        def smaller(j: Value) -> Body:
            a, b = keys.at(j), keys.at(i)
            before = s.less(a, b)
            if not one:
                before = s.bit_or(before, s.bit_and(s.equal(a, b), s.less(j, i)))
            return (rank.set(s.add(rank.value, s.cast(before, first))),)

        zero = s.const(0, first)
        return rank.set(zero), s.loop(size, smaller), ranks.set(rank.value, i)

    def row(number: Value, _: tuple[Value, Value]) -> Body:
        base, goal = s.mul(number, size), s.mul(number, integer(order.kept))

        def put(i: Value) -> Body:
            at = s.index(ranks.at(i))
            made = i if order.positions else task.bits(s.add(base, i))
            stored = task.store(s.add(goal, at), made)
            if order.kept == order.size:
                return (stored,)
            return (When(s.less(at, integer(order.kept)), (stored,)),)

        whole = -(-order.size // LANES) * LANES
        return (
            s.loop(size, lambda i: (keys.set(task.record(base, i)[0], i),)),
            s.loop(whole, place, kind="vector"),
            s.loop(size, put),
        )

    def rows(t: Value) -> Body:
        return (cleared(s, keys, SHORT), *_rows_of(s, order, tasks, t, row))

    kernel = s.kernel("order", tasks, rows)
    return Made(kernel, tuple(s.memory), (target,), 6 + order.size)
