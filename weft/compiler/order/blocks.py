"""`Block`: how the threads of a block read, write and merge records of rows that are ordered.

A *tile* is what a block has room for in its shared memory, twice. A thread makes `items` records
of a merge: it finds by bisection how many of those before them come from either run.
Everything here is stable: of two records neither of which is before the other, the one that came
first stays first, and what fills up a tile comes after all elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np

from weft.compiler.loops import (
    BOOL,
    INDEX,
    Kernel,
    Statement,
    Store,
    Value,
    When,
    integer,
    load,
)
from weft.compiler.order.code import COUNT, Body, Code, Keys, Order, Records, Register
from weft.compiler.steps import Memory
from weft.core.common import dtypes

_SINGLE = np.dtype(np.float32)

Record: TypeAlias = tuple[Value, ...]
Read: TypeAlias = Callable[[Value, Value], Record]  # of a row, at a position
At: TypeAlias = Callable[[Value], Record]  # of a run
Runs: TypeAlias = tuple[Value, Value, Value]  # where two adjacent ones begin, how long both are


@dataclass(frozen=True)
class Launched:
    """A kernel of ordering and the memory of its buffers."""

    kernel: Kernel
    memory: tuple[Memory, ...]


@dataclass(frozen=True)
class Tile:
    """What a block sorts: rows of `team` threads with `items` elements each."""

    rows: int
    team: int
    items: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows * self.team

    @property
    def size(self) -> int:
        """Elements of a row that there is room for."""
        return self.team * self.items


# -- what moves --------------------------------------------------------------------------------


class _Moved:
    """What moves while rows are sorted: bits of elements, or keys and positions."""

    def __init__(self, order: Order, code: Code) -> None:
        self.order, self.code = order, code
        self.dtypes = order.record
        self.keys = Keys(order, code)
        self.records = Records(order, code, self.dtypes)

    def make(self, bits: Value, position: Value) -> Record:
        """The record of an element."""
        if not self.order.positions:
            return (bits,)
        return self.records.make(self.keys.key(bits), position)

    def result(self, record: Record) -> Value:
        """What is given for a record."""
        return self.records.position(record) if self.order.positions else record[0]

    def last(self) -> Record:
        """A record that no element comes after."""
        if self.order.positions:
            return tuple(self.code.const(np.iinfo(d).max, d) for d in self.dtypes)
        most = self.code.const(np.iinfo(self.dtypes[0]).max, self.dtypes[0])
        return (most if self.keys.floating else self.keys.bits(most),)

    def is_before(self, x: Record, y: Record) -> Value:
        """Whether a record must come before another one."""
        s, order = self.code, self.order
        if order.positions:
            return s.less(x[0], y[0])
        one, other = (self._number(each[0]) for each in (x, y))
        less = s.less(other, one) if order.descending else s.less(one, other)
        if not self.keys.floating:
            return less
        return s.bit_or(less, s.bit_and(s.not_equal(other, other), s.equal(one, one)))

    def _number(self, bits: Value) -> Value:
        """The element with these bits, in a dtype that is compared at once."""
        s, dtype = self.code, self.order.dtype
        if dtype.kind == "b":
            return bits
        found = s.bitcast(bits, dtype)
        return s.cast(found, _SINGLE) if dtypes.is_narrow(dtype) else found

    def choose(self, condition: Value, x: Record, y: Record) -> Record:
        """One of two records."""
        pairs = zip(x, y, strict=True)
        return tuple(self.code.select(condition, one, other) for one, other in pairs)


# -- what a block does -------------------------------------------------------------------------


@dataclass(frozen=True)
class Output:
    """Rows of `size` elements that a kernel writes: `put` is told row, position and record."""

    size: int
    put: Callable[[Value, Value, Record], Body]


class Block:
    """A kernel that reads rows of `size` records, a tile of which each block takes.

    Shared arrays have two halves of a tile each: what is read, and what is written.
    """

    together: ClassVar[int]  # blocks that a multiprocessor has registers for

    def __init__(self, order: Order, tile: Tile, size: int | None = None) -> None:
        self.order, self.tile = order, tile
        self.size = order.size if size is None else size
        self.code = Code()
        self.moved = _Moved(order, self.code)
        self.half = tile.threads * tile.items
        self.arrays = [self.code.shared(dtype, 2 * self.half) for dtype in self.moved.dtypes]

    def kernel(
        self, name: str, blocks: int, body: Callable[[Value], Iterable[Statement]]
    ) -> Launched:
        """The kernel whose blocks do this."""
        code = self.code
        loop = code.loop(blocks, body, kind="block")
        notes = {"blocks": blocks, "threads": self.tile.threads, "together": self.together}
        buffers, locals_ = tuple(code.buffers), tuple(code.locals)
        return Launched(Kernel(name, buffers, locals_, (loop,), notes=notes), tuple(code.memory))

    def each(self, body: Callable[[Value], Iterable[Statement]], threads: int = 0) -> Statement:
        """What every thread does, or the first ones."""
        return self.code.loop(threads or self.tile.threads, body, kind="thread")

    def every(self, body: Callable[[Value], Iterable[Statement]]) -> Statement:
        """What is done for each place of the tile, neighbours by neighbouring threads."""
        s, tile = self.code, self.tile

        def thread(number: Value) -> Body:
            def turn(count: Value) -> Iterable[Statement]:
                return body(s.add(s.mul(count, integer(tile.threads)), number))

            return (s.loop(tile.items, turn, kind="unroll"),)

        return self.each(thread)

    # -- memory ----------------------------------------------------------------------------

    def elements(self, source: Memory) -> Read:
        """Records of what was given."""
        s, dtype = self.code, self.order.key_dtype
        buffer = s.buffer(source, dtype)

        def read(row: Value, position: Value) -> Record:
            bits = load(buffer, s.add(s.mul(row, integer(self.size)), position), dtype)
            return self.moved.make(bits, position)

        return read

    def records_in(self, held: tuple[Memory, ...]) -> Read:
        """Records that another kernel left."""
        s = self.code
        buffers = [(s.buffer(each, each.kind.dtype), each.kind.dtype) for each in held]

        def read(row: Value, position: Value) -> Record:
            place = s.add(s.mul(row, integer(self.size)), position)
            return tuple(load(buffer, place, dtype) for buffer, dtype in buffers)

        return read

    def results(self, target: Memory) -> Output:
        """What is asked for, of each record."""
        s, kept = self.code, self.order.kept
        dtype = INDEX if self.order.positions else self.order.key_dtype
        buffer = s.buffer(target, dtype, "write")

        def put(row: Value, position: Value, record: Record) -> Body:
            place = s.add(s.mul(row, integer(kept)), position)
            return (Store(buffer, place, self.moved.result(record)),)

        return Output(kept, put)

    def records(self, held: tuple[Memory, ...]) -> Output:
        """Records, for another kernel."""
        s, size = self.code, held[0].kind.shape[-1]
        buffers = [s.buffer(each, each.kind.dtype, "write") for each in held]

        def put(row: Value, position: Value, record: Record) -> Body:
            place = s.add(s.mul(row, integer(size)), position)
            return tuple(Store(b, place, x) for b, x in zip(buffers, record, strict=True))

        return Output(size, put)

    def held(self, place: Value) -> Record:
        at = self.code.index(place)
        return tuple(array.at(at) for array in self.arrays)

    def hold(self, place: Value, record: Record) -> Body:
        at = self.code.index(place)
        return tuple(a.set(x, at) for a, x in zip(self.arrays, record, strict=True))

    # -- runs merged -----------------------------------------------------------------------

    def joined(
        self, runs: Runs, diagonal: Value, goal: Value, steps: Value | int
    ) -> Iterator[Statement]:
        """Merge runs in shared memory from a place of the result on: the records of a thread."""
        s, moved, (begin, left, right) = self.code, self.moved, runs
        middle, stop = s.add(begin, left), s.add(s.add(begin, left), right)
        cut, body = self._cut(
            diagonal,
            (left, right),
            lambda i: self.held(s.add(begin, i)),
            lambda i: self.held(s.add(middle, i)),
            steps,
        )
        yield from body
        here, there = s.register(COUNT), s.register(COUNT)
        one, other = ([s.register(d) for d in moved.dtypes] for _ in range(2))
        taken = s.register(BOOL)
        both = s.add(s.add(begin, middle), diagonal)  # both places of the first step, added up
        yield here.set(s.add(begin, cut.value))
        yield there.set(s.add(middle, s.sub(diagonal, cut.value)))

        def at(place: Value) -> Record:
            return self.held(s.min(place, s.sub(stop, 1)))

        for registers, place in ((one, here), (other, there)):
            yield from (r.set(x) for r, x in zip(registers, at(place.value), strict=True))

        def step(k: Value) -> Iterator[Statement]:
            first, second = (tuple(r.value for r in registers) for registers in (one, other))
            is_over = s.less_equal(middle, here.value)
            wins = s.bit_or(is_over, moved.is_before(second, first))
            yield taken.set(s.bit_and(s.less(there.value, stop), wins))
            yield from self.hold(
                s.add(goal, s.cast(k, COUNT)), moved.choose(taken.value, second, first)
            )
            yield there.set(s.add(there.value, s.cast(taken.value, COUNT)))
            yield here.set(s.sub(s.add(both, s.cast(s.sum(k, 1), COUNT)), there.value))
            following = at(s.select(taken.value, there.value, here.value))
            for old, new, x in zip(one, other, following, strict=True):
                yield old.set(s.select(taken.value, old.value, x))
                yield new.set(s.select(taken.value, x, new.value))

        yield s.loop(self.tile.items, step, kind="unroll")

    def _cut(
        self, diagonal: Value, sizes: tuple[Value, Value], left: At, right: At, steps: Value | int
    ) -> tuple[Register, Body]:
        """How many of the first `diagonal` records of two merged runs come from the left one."""
        s, dtype = self.code, diagonal.dtype
        low, high, middle, early = (s.register(d) for d in (dtype, dtype, dtype, BOOL))

        def step(_: Value) -> Body:
            behind = right(s.sub(s.sub(diagonal, middle.value), 1))
            halve = (
                middle.set(s.shift_right(s.add(low.value, high.value), 1)),
                early.set(self.moved.is_before(behind, left(middle.value))),
                high.set(s.select(early.value, middle.value, high.value)),
                low.set(s.select(early.value, low.value, s.add(middle.value, 1))),
            )
            return (When(s.less(low.value, high.value), halve),)

        return low, (
            low.set(s.max(s.sub(diagonal, sizes[1]), 0)),
            high.set(s.min(diagonal, sizes[0])),
            s.loop(steps, step),
        )
