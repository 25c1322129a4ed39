"""Kernels that order one row after another, each task with memory of its own.

Long rows are sorted by their digits, the lowest first: one run counts all digits, then each digit
moves every record once; digits that all keys share move nothing. Short rows are ranked: each
element goes to the place that the number of smaller ones is. Where few elements of a row are
wanted, those up to the digit that holds the last of them are taken out and sorted alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from weft.compiler.loops import BOOL, INDEX, Kernel, Statement, Store, Value, When, integer, load
from weft.compiler.order.code import (
    COUNT,
    LANES,
    Body,
    Code,
    Keys,
    Order,
    Records,
    Register,
    Rows,
    Stretch,
)
from weft.compiler.steps import Memory
from weft.core.common.types import DType, TensorType

SHORT = 64  # elements of a row that is ranked
LONG = 1536  # elements from which larger tables pay
MOST_TASKS = 64
SELECTED = 16  # rows this many times longer than what is wanted of them are not sorted whole,
SAMPLED = 2048  # if they have so many elements
SAMPLE = 64  # elements of a sample that lie side by side
STRETCH = 16  # elements that are looked at together,
MANY = 64  # the same of those among which hardly any is wanted
POSITION = np.dtype(np.int64)

Span = tuple[Value, Value, Value]  # where a row begins, and from where to where in it
Finish = Callable[[Value, tuple[Value, ...]], Body]  # what becomes of a record at its place


def digits_of(order: Order) -> list[tuple[int, int]]:
    """(lowest bit, bits) of the digits of a key, the lowest first."""
    width = order.width
    bits = 11 if order.size >= LONG and width > 16 else 8
    return [(low, min(bits, width - low)) for low in range(0, width, bits)]


def highest_of(order: Order) -> tuple[int, int]:
    """(lowest bit, bits) of the digit that tells which elements can be among the first."""
    bits = min(order.width, 10 if order.size < 1 << 15 else 12)
    return order.width - bits, bits


def every_of(order: Order) -> int:
    """One stretch in so many is looked at before all are gone through."""
    return 16 if order.kept * 1024 <= order.size else 4


@dataclass(frozen=True)
class Made:
    """A kernel of ordering and the memory it runs on; `work` is instructions for each element."""

    kernel: Kernel
    memory: tuple[Memory, ...]
    written: tuple[Memory, ...]
    work: int
    own: bool = False  # whether its code follows from its very sizes


class Task:
    """What every kernel of an order has: the operand, the result, keys and records."""

    def __init__(self, order: Order, source: Memory, target: Memory) -> None:
        self.order = order
        self.code = Code()
        self.keys = Keys(order, self.code)
        self.records = Records(order, self.code, order.record)
        self.digits = digits_of(order)
        self.highest = highest_of(order)
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

    def key(self, position: Value) -> Value:
        """The key of an element of the operand."""
        return self.keys.key(self.bits(position))

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

    def held(self, memory: Sequence[Memory], mode: str = "update") -> Rows:
        """Records in memory, one field to a piece of it."""
        pairs = ((each, each.kind.dtype) for each in memory)
        return Rows(tuple(Stretch(self.code.buffer(m, kind, mode), kind) for m, kind in pairs))

    def mapped(
        self, span: Span, put: Callable[[Value, Value], Body], lanes: int = LANES
    ) -> tuple[Body, Value]:
        """Give `put` the keys of a part of a row; and whether some are special."""
        s, dtype = self.code, self.order.key_dtype
        base, start, stop = span
        count = s.floordiv(s.sub(stop, start), integer(lanes))
        middle = s.add(start, s.mul(count, integer(lanes)))
        wide, single = s.register(dtype, lanes), s.register(dtype)

        def step(found: Register) -> Callable[[Value], Body]:
            def body(i: Value) -> Body:
                bits = self.bits(s.add(base, i))
                made = put(i, self.keys.key(bits))
                if not self.restores:
                    return made
                special = s.cast(self.keys.is_special(bits), dtype)
                return (*made, found.set(s.bit_or(found.value, special)))

            return body

        loops: Body = (
            s.loop(middle, step(wide), start, "vector", lanes),
            s.loop(stop, step(single), middle),
        )
        if not self.restores:
            return loops, s.const(False, BOOL)
        zero = s.const(0, dtype)
        found = s.bit_or(s.across("or", wide.value), single.value)
        return (wide.set(zero), single.set(zero), *loops), s.not_equal(found, zero)

    @property
    def restores(self) -> bool:
        """Whether results have to be looked up where keys do not tell elements apart."""
        return self.keys.floating and not self.order.positions

    def restored(self, base: Value) -> Body:
        """Give zeros and NaNs of a sorted row the bits they had, in the order they came in."""
        s, size = self.code, self.order.size
        zeros, missing = s.register(INDEX), s.register(INDEX)
        tests = self.keys.is_before_zeros, self.keys.is_missing
        counts = [s.register(COUNT, LANES) for _ in tests]
        whole = size // LANES * LANES

        def count(into: Sequence[Register], dtype: DType) -> Callable[[Value], Body]:
            def body(i: Value) -> Body:
                bits = self.bits(s.add(base, i))
                return tuple(
                    here.set(s.add(here.value, s.cast(test(bits), dtype)))
                    for here, test in zip(into, tests, strict=True)
                )

            return body

        def put(i: Value) -> Body:
            bits = self.bits(s.add(base, i))
            kinds = (zeros, self.keys.is_zero(bits)), (missing, self.keys.is_missing(bits))
            return tuple(
                When(
                    test,
                    (
                        self.store(s.add(base, place.value), bits),
                        place.set(s.add(place.value, integer(1))),
                    ),
                )
                for place, test in kinds
            )

        starts: Body = (missing.set(s.sub(integer(size), missing.value)),)
        if self.order.missing_first:
            starts = zeros.set(s.add(zeros.value, missing.value)), missing.set(integer(0))
        return (
            *(here.set(s.const(0, COUNT)) for here in counts),
            s.loop(whole, count(counts, COUNT), 0, "vector", LANES),
            zeros.set(s.index(s.across("add", counts[0].value))),
            missing.set(s.index(s.across("add", counts[1].value))),
            s.loop(size, count((zeros, missing), INDEX), whole),
            *starts,
            *self._at_special(base, put),
        )

    def _at_special(self, base: Value, put: Callable[[Value], Body]) -> Body:
        """Go to the zeros and NaNs of a row, of which there are few: most stretches have none."""
        s, size, dtype = self.code, self.order.size, self.order.key_dtype
        oddest, whole = s.register(dtype, STRETCH), size // MANY

        def look(n: Value) -> Body:
            begin = s.mul(n, integer(MANY))
            end = s.sum(begin, MANY)

            def ask(i: Value) -> Body:
                oddity = self.keys.oddity(self.bits(s.add(base, i)))
                return (oddest.set(s.max(oddest.value, oddity)),)

            return (
                oddest.set(s.const(0, dtype)),
                s.loop(end, ask, begin, "vector", STRETCH),
                When(
                    s.less_equal(self.keys.odd(), s.across("max", oddest.value)),
                    (s.loop(end, put, begin),),
                ),
            )

        return s.loop(whole, look), s.loop(size, put, whole * MANY)


def found_special(task: Task, flags: Memory, chunks: int) -> Kernel:
    """The kernel that gives zeros and NaNs their bits back, in rows where a chunk has a flag."""
    s, order = task.code, task.order
    flagged = s.buffer(flags, order.key_dtype)
    found = s.register(order.key_dtype)

    def row(number: Value) -> Body:
        def look(c: Value) -> Body:
            place = s.add(s.mul(number, integer(chunks)), c)
            return (found.set(s.bit_or(found.value, load(flagged, place, order.key_dtype))),)

        zero = s.const(0, order.key_dtype)
        special = When(
            s.not_equal(found.value, zero), task.restored(s.mul(number, integer(order.size)))
        )
        return found.set(zero), s.loop(chunks, look), special

    return s.kernel("order_restore", order.rows, row)


def space(kinds: tuple[DType, ...], count: int) -> list[Memory]:
    """New memory for so many records."""
    return [Memory(TensorType((count,), dtype)) for dtype in kinds]


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
    tables: tuple[Register, ...]  # one for each digit
    scratch: Rows
    now: Register  # where in the scratch memory the records are

    def sorted(self, homes: tuple[Value, Value], count: Value, finish: Finish) -> list[Statement]:
        """Sort `count` records at `now`, which is one of two homes; `finish` is told each place."""
        task, s = self.task, self.task.code
        other = s.sub(s.add(*homes), self.now.value)
        pairs = list(zip(task.digits, self.tables, strict=True))
        body: list[Statement] = [cleared(s, table, 1 << bits) for (_, bits), table in pairs]

        def look(i: Value) -> Body:
            record = self.scratch.at(s.add(self.now.value, i))
            return tuple(
                counted(s, table, task.records.digit(record, *digit)) for digit, table in pairs
            )

        def keep(place: Value, record: tuple[Value, ...]) -> Body:
            return self.scratch.put(s.add(other, place), record)

        body.append(s.loop(count, look))
        for digit, table in pairs[:-1]:
            first = task.records.digit(self.scratch.at(self.now.value), *digit)
            moves = self._moved(digit, table, count, keep)
            differ = s.not_equal(s.index(table.at(first)), count)
            body.append(When(differ, (*moves, self.now.set(other))))
        return [*body, *self._moved(*pairs[-1], count, finish)]

    def _moved(
        self,
        digit: tuple[int, int],
        table: Register,
        count: Value,
        goal: Finish,
    ) -> Body:
        """Turn counts into the places where a digit's values begin; move each record to the next
        place of its own."""
        task, s = self.task, self.task.code
        total, held = s.register(table.dtype), s.register(table.dtype)

        def begin(d: Value) -> Body:
            return (
                held.set(table.at(d)),
                table.set(total.value, d),
                total.set(s.add(total.value, held.value)),
            )

        def move(i: Value) -> Body:
            record = self.scratch.at(s.add(self.now.value, i))
            place = task.records.digit(record, *digit)
            return (
                held.set(table.at(place)),
                table.set(s.add(held.value, s.const(1, table.dtype)), place),
                *goal(s.index(held.value), record),
            )

        zero = total.set(s.const(0, table.dtype))
        return zero, s.loop(1 << digit[1], begin), s.loop(count, move)


def sorter_of(task: Task, scratch: Rows) -> Sorter:
    """A sorter that moves records between two homes in this memory."""
    s = task.code
    tables = tuple(s.array(COUNT, 1 << bits) for _, bits in task.digits)
    return Sorter(task, tables, scratch, s.register(INDEX))


def selects(order: Order) -> bool:
    """Whether so little is wanted of each row that it is not sorted whole."""
    return order.positions and order.kept * SELECTED <= order.size >= SAMPLED


def sorted_rows(order: Order, source: Memory, target: Memory) -> Made:
    """The kernel that orders rows one by one."""
    task = Task(order, source, target)
    s, tasks = task.code, min(order.rows, MOST_TASKS)
    memory = space(order.record, 2 * tasks * order.size)
    sorter = sorter_of(task, task.held(memory))
    size, zero = integer(order.size), integer(0)

    def row(number: Value, homes: tuple[Value, Value]) -> Body:
        base, goal = s.mul(number, size), s.mul(number, integer(order.kept))
        if selects(order):
            return _selected(task, sorter, base, homes, goal)

        def put(i: Value, key: Value) -> Body:
            return sorter.scratch.put(s.add(homes[0], i), task.records.make(key, i))

        body, special = task.mapped((base, zero, size), put)
        finish = partial(task.finish, goal)
        body = (*body, sorter.now.set(homes[0]), *sorter.sorted(homes, size, finish))
        return (*body, When(special, task.restored(base))) if task.restores else body

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
    first = s.mul(task, integer(2 * order.size))
    homes = first, s.add(first, integer(order.size))
    start = s.mul(task, integer(share))
    stop = s.min(s.add(start, integer(share)), integer(order.rows))
    return (s.loop(stop, lambda r: row(r, homes), start),)


# -- a few of a row ----------------------------------------------------------------------------


def threshold(task: Task, counts: Callable[[Value], Value]) -> tuple[Body, Value]:
    """Find the digit that as many elements as are wanted go up to, where `counts` says how often
    each digit was seen; the last digit if too few were."""
    s, kept = task.code, integer(task.order.kept)
    digit, count = s.register(INDEX), s.register(INDEX)

    def step(d: Value) -> Body:
        early = s.less(count.value, kept)
        return (
            digit.set(s.select(early, d, digit.value)),
            count.set(s.add(count.value, s.index(counts(d)))),
        )

    loop = s.loop(1 << task.highest[1], step)
    return (digit.set(integer(0)), count.set(integer(0)), loop), digit.value


def look(task: Task, span: Span, table: Register) -> Body:
    """Count the highest digit of some keys; keys are computed a stretch at a time.

    As many elements as are wanted lie up to a threshold if they do so among these already.
    """
    s, highest, every = task.code, task.highest, every_of(task.order)
    base, start, stop = span
    keys = s.array(task.order.key_dtype, SAMPLE)
    plain = Records(task.order, s, (task.order.key_dtype,))

    def count(key: Value) -> Body:
        return (counted(s, table, plain.digit((key,), *highest)),)

    def stretch(here: Value) -> Body:
        first = s.add(base, here)
        make = lambda i: (keys.set(task.key(s.add(first, i)), i),)  # noqa: E731
        return (
            s.loop(SAMPLE, make, kind="vector"),
            s.loop(SAMPLE, lambda i: count(keys.at(i))),
        )

    skipped = integer(SAMPLE * every)
    some = s.loop(
        s.floordiv(s.sub(stop, start), skipped),
        lambda number: stretch(s.add(start, s.mul(number, skipped))),
    )
    return cleared(s, table, 1 << highest[1]), some


def take(task: Task, digit: Value, span: Span, target: Rows, next_: Register) -> Body:
    """Put records up to the threshold one after another; stretches without any are passed over."""
    s, low = task.code, task.highest[0]
    base, start, stop = span
    dtype = task.order.key_dtype
    bound, last, some = s.register(dtype), s.register(dtype), s.register(dtype, STRETCH)
    first = s.shift_left(s.cast(digit, dtype), s.const(low, dtype))
    limit = bound.set(s.bit_or(first, s.const((1 << low) - 1, dtype)))

    def one(i: Value) -> Body:
        key = task.key(s.add(base, i))
        put = target.put(next_.value, task.records.make(key, i))
        moved = next_.set(s.add(next_.value, integer(1)))
        return (When(s.less_equal(key, bound.value), (*put, moved)),)

    def stretch(here: Value) -> Body:
        first = s.add(base, here)

        def test(i: Value) -> Body:
            wanted = task.keys.is_near(task.bits(s.add(first, i)), last.value)
            return (some.set(s.cast(wanted, dtype)),)

        any_ = s.not_equal(s.across("or", some.value), s.const(0, dtype))
        return (
            s.loop(STRETCH, test, kind="vector", lanes=STRETCH),
            When(any_, (s.loop(s.add(here, integer(STRETCH)), one, here),)),
        )

    nearest = last.set(task.keys.bits(bound.value))
    count = s.floordiv(s.sub(stop, start), integer(STRETCH))
    middle = s.add(start, s.mul(count, integer(STRETCH)))
    each = lambda number: stretch(s.add(start, s.mul(number, integer(STRETCH))))  # noqa: E731
    return limit, nearest, s.loop(count, each), s.loop(stop, one, middle)


def _selected(
    task: Task, sorter: Sorter, base: Value, homes: tuple[Value, Value], goal: Value
) -> Body:
    """Take out the records up to the threshold, and sort those."""
    s, order = task.code, task.order
    table = s.array(COUNT, 1 << task.highest[1])
    found, span = s.register(INDEX), (base, integer(0), integer(order.size))
    search, digit = threshold(task, table.at)
    return (
        *look(task, span, table),
        *search,
        found.set(homes[0]),
        *take(task, digit, span, sorter.scratch, found),
        sorter.now.set(homes[0]),
        *sorter.sorted(homes, s.sub(found.value, homes[0]), partial(task.finish, goal)),
    )


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

        def rank(i: Value) -> Body:
            return (keys.set(task.records.make(task.key(s.add(base, i)), i)[0], i),)

        return (
            s.loop(size, rank),
            s.loop(whole, place, kind="vector"),
            s.loop(size, put),
        )

    def rows(t: Value) -> Body:
        return (cleared(s, keys, SHORT), *_rows_of(s, order, tasks, t, row))

    kernel = s.kernel("order", tasks, rows)
    return Made(kernel, tuple(s.memory), (target,), 6 + order.size)
