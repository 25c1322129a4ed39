"""The kernel that orders many rows of moderate length: a network of exchanges, a row in each lane.

Which two elements are compared never depends on what they are, so as many rows as a vector has
lanes are sorted at once. Sixteen vectors are taken into registers for four stages of the network at
a time. Every exchange leaves the smaller element at the lower place, so what fills a row up to the
length of the network, which comes after everything, stays at its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from weft.compiler.loops import Kernel, Statement, Value, When, integer, turned
from weft.compiler.order.code import Body, Order
from weft.compiler.order.rows import MOST_TASKS, Made, Task
from weft.compiler.steps import Memory
from weft.runtime.cpu.jit import chosen_target

LONGEST = 4096  # elements of a row,
LONGEST_SLOW = 512  # if vectors of their records have no instruction for the smaller of two,
LONGEST_WIDE = 16384  # or if vectors are wide and have it for all
HELD = 16  # vectors in registers
_LEVELS = HELD.bit_length() - 1  # of stretches that are sorted in registers


def lanes_of(order: Order) -> int:
    """How many rows are sorted side by side."""
    return min(chosen_target().vector_bytes // order.record[0].itemsize, HELD)


def longest(order: Order) -> int:
    """The longest rows that are sorted so."""
    if chosen_target().has("avx512f"):
        return LONGEST_WIDE
    return LONGEST_SLOW if order.record[0].itemsize == 8 else LONGEST


def fits_network(order: Order) -> bool:
    """Whether rows are short, fill half of the lanes, and have records that are one number."""
    if len(order.record) > 1 or order.size > longest(order):
        return False
    return 2 * order.rows >= lanes_of(order)


def exchanged_rows(order: Order, source: Memory, target: Memory) -> Made:
    """The kernel that orders many short rows."""
    network = Network(order, Task(order, source, target))
    steps = max(order.size - 1, 1).bit_length()
    kernel = network.kernel()
    memory = tuple(network.code.memory)
    return Made(kernel, memory, (target,), 4 + steps * (steps + 1) // 8)


def compares_numbers() -> bool:
    """Whether floats are compared faster than integers: twice as fast by processors of Intel."""
    target = chosen_target()
    return target.has("avx512f") and not target.cpu.startswith("znver")


class Network:
    """A network for rows of one length, on the sixteen vectors it takes into registers."""

    def __init__(self, order: Order, task: Task) -> None:
        self.order, self.task, self.code = order, task, task.code
        self.number = task.order.number if compares_numbers() else None  # what is held, if not None
        dtype = self.number or order.record[0]
        self.lanes = lanes_of(order)
        self.levels = max((order.size - 1).bit_length(), _LEVELS)
        granule = HELD
        if self.levels > _LEVELS:
            granule = (1 << self.levels) >> self._groups(self.levels)[0]
        self.size = -(-order.size // granule) * granule  # of a row that is filled up
        self.row = self.code.array(dtype, self.size, self.lanes)
        self.held = [self.code.register(dtype, self.lanes) for _ in range(HELD)]
        self.spare = self.code.register(dtype, self.lanes)
        self.special = self.code.register(order.key_dtype, self.lanes)

    def kernel(self) -> Kernel:
        s, blocks = self.code, -(-self.order.rows // self.lanes)
        tasks = min(blocks, MOST_TASKS)
        share = -(-blocks // tasks)

        def run(task: Value) -> Body:
            start = s.mul(task, integer(share))
            stop = s.min(s.add(start, integer(share)), integer(blocks))
            return (s.loop(stop, self._block, start),)

        return s.kernel("order_short", tasks, run)

    def _block(self, number: Value) -> Body:
        """As many rows as there are lanes; lanes past the last row do that one again."""
        s, task, order = self.code, self.task, self.order
        first, zero = s.mul(number, integer(self.lanes)), s.const(0, order.key_dtype)
        sort = lambda lane: (*self._read(first, lane), *self._merge(first, lane))  # noqa: E731
        body = s.loop(self.lanes, sort, 0, "vector", self.lanes)
        if not task.restores:
            return (body,)
        rows = s.min(s.add(first, integer(self.lanes)), integer(order.rows))
        mend = s.loop(rows, lambda r: task.restored(s.mul(r, integer(order.size))), first)
        found = s.not_equal(s.across("or", self.special.value), zero)
        return self.special.set(zero), body, When(found, (mend,))

    def _start(self, first: Value, lane: Value | int, length: int) -> Value:
        """Where the row of a lane begins, in memory with rows of this length."""
        s = self.code
        number = s.min(s.sum(first, lane), integer(self.order.rows - 1))
        return s.mul(number, integer(length))

    # -- reading and writing -------------------------------------------------------------------

    def held_as(self, record: Value) -> Value:
        """What is held of a record."""
        if self.number is None:
            return record
        task = self.task
        return (task.records if self.order.positions else task.keys).number(record)

    def after_all(self) -> Value:
        """What comes after everything, or is the same."""
        s, dtype = self.code, self.row.dtype
        return s.const(np.inf, dtype) if self.number else s.bit_not(s.const(0, dtype))

    def result(self, held: Value) -> Value:
        """What is given for what is held."""
        if self.number is None:
            return self.task.result((held,))
        if self.order.positions:
            return self.task.records.position_of_number(held)
        return self.task.keys.bits_of_number(held)

    def _read(self, first: Value, lane: Value) -> Iterator[Statement]:
        """Take the rows in, and sort each stretch that fits into registers."""
        s, order = self.code, self.order
        whole = order.size // HELD * HELD

        def stretch(number: Value) -> Iterator[Statement]:
            begin = s.mul(number, integer(HELD))
            yield from self._read_whole(first, lane, begin)
            yield from self._sorted(HELD)
            if self.levels == _LEVELS and order.kept == HELD:
                yield from self._write_whole(first, lane, begin)
            else:
                yield from self._put(begin, range(HELD))

        yield s.loop(whole // HELD, stretch)
        if whole < order.size:
            base = self._start(first, lane, order.size)
            yield s.loop(order.size, lambda i: self._read_one(base, i), whole)
            rest = range(order.size - whole)
            yield from self._take(integer(whole), rest)
            yield from self._sorted(len(rest))
            yield from self._put(integer(whole), rest)
        last = self.after_all()
        yield s.loop(self.size, lambda i: (self.row.set(last, i),), order.size)

    def _seen(self, bits: Value) -> Body:
        """Remember whether some elements cannot be told from their keys."""
        s, task = self.code, self.task
        if not task.restores:
            return ()
        found = s.cast(task.keys.is_special(bits), self.order.key_dtype)
        return (self.special.set(s.bit_or(self.special.value, found)),)

    def _read_one(self, base: Value, i: Value) -> Body:
        """An element of each row."""
        bits = self.task.bits(self.code.add(base, i))
        (record,) = self.task.records.make(self.task.keys.key(bits), i)
        return (self.row.set(self.held_as(record), i), *self._seen(bits))

    def _read_whole(self, first: Value, lane: Value, begin: Value) -> Iterator[Statement]:
        """As many elements of each row as are held: vectors along rows, turned."""
        s, task = self.code, self.task
        starts = [self._start(first, r, self.order.size) for r in range(self.lanes)]
        for at in range(0, HELD, self.lanes):
            here = s.sum(begin, at)
            read = [task.bits(s.sum(start, here, lane)) for start in starts]
            for bits in read:
                yield from self._seen(bits)
            keys = turned([task.keys.key(bits) for bits in read])
            for k, key in enumerate(keys):
                (record,) = task.records.make(key, s.sum(here, k))
                yield self.held[at + k].set(self.held_as(record))

    def _write_whole(self, first: Value, lane: Value, begin: Value) -> Iterator[Statement]:
        """The results for all vectors that are held."""
        s, task = self.code, self.task
        goals = [self._start(first, r, self.order.kept) for r in range(self.lanes)]
        for at in range(0, HELD, self.lanes):
            here = s.add(s.sum(begin, at), lane)
            records = turned([each.value for each in self.held[at : at + self.lanes]])
            for goal, record in zip(goals, records, strict=True):
                yield task.store(s.add(goal, here), self.result(record))

    def _write_rest(self, first: Value, lane: Value, begin: int) -> Statement:
        """The results from a place on, element by element."""
        s, task = self.code, self.task
        goal = self._start(first, lane, self.order.kept)
        one = lambda i: (task.store(s.add(goal, i), self.result(self.row.at(i))),)  # noqa: E731
        return s.loop(self.order.kept, one, begin)

    # -- the network ---------------------------------------------------------------------------

    def _groups(self, level: int) -> list[int]:
        """How many of a level's stages are done together: as many as registers allow, last too."""
        most = HELD.bit_length() - 1
        stages = level - most
        return [*(min(most, stages - n) for n in range(0, stages, most)), most]

    def _merge(self, first: Value, lane: Value) -> Iterator[Statement]:
        """Sort stretches of 32, 64, 128… elements: two meet end to end, then half by half."""
        whole = min(self.order.kept, self.size) // HELD * HELD
        for level in range(_LEVELS + 1, self.levels + 1):
            length = 1 << level
            for number, stages in enumerate(self._groups(level)):
                stride = length >> stages
                if stride == 1 and level == self.levels:
                    yield from self._last(first, lane, whole)
                else:
                    yield from self._group(stages, stride, met=number == 0)
                length = stride
        if whole < self.order.kept:
            yield self._write_rest(first, lane, whole)

    def _group(self, stages: int, stride: int, met: bool) -> Iterator[Statement]:
        """Some stages in all stretches: exchanges of places that are multiples of a stride apart.

        Where two sorted stretches meet, elements of the second are taken from its end.
        """
        s, count = self.code, 1 << stages
        length = count * stride
        whole, rest = divmod(self.size, length)

        def stretch(begin: Value, kept: range) -> Statement:
            def exchange(i: Value) -> Iterator[Statement]:
                back = s.sub(integer(stride - 1), i)
                ahead, behind = s.add(begin, i), s.add(begin, back)
                starts = [behind if met and k >= count // 2 else ahead for k in range(count)]
                places = [s.sum(start, k * stride) for k, start in enumerate(starts)]
                for k in kept:
                    yield self.held[k].set(self.row.at(places[k]))
                yield from self._cleaned(count, len(kept), met)
                for k in kept:
                    yield self.row.set(self.held[k].value, places[k])

            return s.loop(stride, exchange)

        each = lambda n: (stretch(s.mul(n, integer(length)), range(count)),)  # noqa: E731
        yield s.loop(whole, each)
        if rest // stride > 1:
            yield stretch(integer(whole * length), range(rest // stride))

    def _last(self, first: Value, lane: Value, whole: int) -> Iterator[Statement]:
        """The last stages of all: what is wanted of the stretches in registers is written."""
        s = self.code

        def stretch(number: Value) -> Iterator[Statement]:
            begin = s.mul(number, integer(HELD))
            yield from self._take(begin, range(HELD))
            yield from self._cleaned(HELD, HELD, met=False)
            yield from self._write_whole(first, lane, begin)

        yield s.loop(whole // HELD, stretch)
        if whole < self.order.kept:
            yield from self._take(integer(whole), range(HELD))
            yield from self._cleaned(HELD, HELD, met=False)
            yield from self._put(integer(whole), range(HELD))

    def _cleaned(self, count: int, kept: int, met: bool) -> Iterator[Statement]:
        """Exchanges half by half among the first `kept` of `count` vectors."""
        distance = count // 2
        while distance:
            for k in range(count):
                if not k & distance:
                    turned_ = met and distance == count // 2
                    yield from self._exchange(k, count - 1 - k if turned_ else k + distance, kept)
            distance //= 2

    def _sorted(self, kept: int) -> Iterator[Statement]:
        """Sort the first vectors: two sorted stretches become one by their even and odd places."""
        length = 1
        while length < HELD:
            distance = length
            while distance:
                for begin in range(distance % length, HELD - distance, 2 * distance):
                    for low in range(begin, begin + distance):
                        if low // (2 * length) == (low + distance) // (2 * length):
                            yield from self._exchange(low, low + distance, kept)
                distance //= 2
            length *= 2

    def _exchange(self, low: int, high: int, kept: int) -> Body:
        if high >= kept:
            return ()
        x, y, spare = self.held[low], self.held[high], self.spare
        least, most = self._two(spare.value, y.value)
        return spare.set(x.value), x.set(least), y.set(most)

    def _two(self, x: Value, y: Value) -> tuple[Value, Value]:
        """The smaller and the larger one; there is no NaN, so one instruction does for numbers."""
        s = self.code
        if self.number is not None:
            return s.select(s.less(x, y), x, y), s.select(s.less(y, x), x, y)
        return s.min(x, y), s.max(x, y)

    def _take(self, begin: Value, places: Iterable[int]) -> Iterator[Statement]:
        for k in places:
            yield self.held[k].set(self.row.at(self.code.sum(begin, k)))

    def _put(self, begin: Value, places: Iterable[int]) -> Iterator[Statement]:
        for k in places:
            yield self.row.set(self.held[k].value, self.code.sum(begin, k))
