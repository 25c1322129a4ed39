"""Kernels of complex transforms for processors: how lanes, tasks and memory are shared out.

Transforms are of the middle axis of (rows, size, inner). Where `inner` has several numbers, lanes
are along it. Many short rows have a lane each. Otherwise a transform has two parts: the lanes of
the first are along the numbers that remain, those of the second along the results of the first,
which lie row by row in between. What fits stays in arrays of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod

from weft.compiler.fourier.lanes import Held, Lanes, Numbers, repeat
from weft.compiler.fourier.plan import radices, roots, split, stages
from weft.compiler.loops import Statement, Value, integer
from weft.compiler.order.code import Body, Code
from weft.compiler.order.rows import Made
from weft.compiler.steps import Memory
from weft.core.common.types import DType, TensorType
from weft.runtime.cpu.jit import chosen_target

MOST_TASKS = 64
HELD = 2048  # numbers of a transform that lanes hold, as arrays of vectors
KEPT = 8192  # numbers that a task keeps between the two parts of a transform
SHORT = 64  # numbers of a row that has a lane of its own


@dataclass(frozen=True)
class Transform:
    """A complex transform of the middle axis of (rows, size, inner)."""

    rows: int
    size: int
    inner: int
    dtype: DType  # of real and imaginary parts
    inverse: bool
    scale: float = 1.0

    @property
    def points(self) -> int:
        """How many numbers there are."""
        return self.rows * self.size * self.inner

    @property
    def work(self) -> int:
        """Instructions for each number, as a guess."""
        return 4 * (self.size.bit_length() + 1)


def transformed(t: Transform, source: Memory, target: Memory) -> list[Made]:
    """The kernels of a transform from one piece of memory to another."""
    lanes = _lanes(t.dtype, t.inner)
    if t.inner > 1:
        if t.size <= HELD or len(radices(t.size)) == 1:
            return [_Pass(t, lanes, source, target).whole()]
        return _two(t, lanes, source, target)
    if t.size <= SHORT and t.rows >= _lanes(t.dtype, t.rows, 2) and t.size >= 4:
        wide = _lanes(t.dtype, t.rows)
        if wide <= t.size:
            return [_Pass(t, wide, source, target).side_by_side()]
    if len(radices(t.size)) == 1:
        return [_Pass(t, 1, source, target).whole()]
    first = prod(radices(t.size)[: split(t.size)])
    lanes = _lanes(t.dtype, min(first, t.size // first))
    if t.size <= KEPT:
        return [_Pass(t, lanes, source, target).kept()]
    return _two(t, lanes, source, target)


def _lanes(dtype: DType, most: int, least: int = 1) -> int:
    """Lanes of a vector, but no more than there is to do."""
    full = chosen_target().vector_bytes // dtype.itemsize
    return max(min(full, 1 << (most.bit_length() - 1)), least)


def _two(t: Transform, lanes: int, source: Memory, target: Memory) -> list[Made]:
    """Two kernels, and memory between them."""
    kind = TensorType((t.points,), t.dtype)
    between = (Memory(kind), Memory(kind))
    first = _Pass(t, lanes, source, between)
    second = _Pass(t, lanes, between, target)
    return [first.first(), second.second()]


class _Pass:
    """One kernel: numbers are read from a source, and go to a target."""

    def __init__(
        self,
        t: Transform,
        lanes: int,
        source: Memory | tuple[Memory, Memory],
        target: Memory | tuple[Memory, Memory],
    ) -> None:
        self.t, self.lanes, self.code = t, lanes, Code()
        self.source = self._numbers(source, "read")
        self.target = self._numbers(target, "write", t.scale)
        self.written = target if isinstance(target, tuple) else (target,)
        table = roots(t.size, t.dtype)
        kind = TensorType(table.shape, t.dtype)
        self.table = self.code.buffer(Memory(kind, "constant", data=table), t.dtype)
        self.cut = split(t.size) if len(radices(t.size)) > 1 else 0
        self.ahead = prod(radices(t.size)[: self.cut])  # results of the first part
        self.behind = t.size // self.ahead

    def _numbers(
        self, memory: Memory | tuple[Memory, Memory], mode: str, scale: float = 1.0
    ) -> Numbers:
        places = memory if isinstance(memory, tuple) else (memory,)
        buffers = tuple(self.code.buffer(each, self.t.dtype, mode) for each in places)
        return Numbers(self.code, buffers, self.t.dtype, self.t.inverse, scale)

    def _stages(self, first: int = 0, last: int | None = None) -> Lanes:
        found = stages(self.t.size)[first:last]
        return Lanes(self.code, found, self.lanes, self.t.dtype, self.table)

    # -- which kernel ----------------------------------------------------------------------------

    def whole(self) -> Made:
        """Transforms that lanes hold, along what is inner."""
        t, part = self.t, self._stages()
        return self._along(part, 1, (t.inner, 0), (t.inner, 0))

    def first(self) -> Made:
        """The first part of transforms that are too long for one."""
        part, behind, inner = self._stages(0, self.cut), self.behind, self.t.inner
        if inner > 1:
            step = behind * inner
            return self._along(part, behind, (step, inner), (step, inner))
        s, size = self.code, self.t.size

        def block(row: Value, n: Value) -> Body:
            return self._columns(part, s.mul(row, integer(size)), n, self.target)

        return self._kernel("fourier_first", self._blocks(behind), block)

    def second(self) -> Made:
        """The second part."""
        part, inner = self._stages(self.cut), self.t.inner
        if inner > 1:
            goes = self.ahead * inner
            return self._along(part, self.ahead, (inner, self.behind * inner), (goes, inner))
        s, size = self.code, self.t.size

        def block(row: Value, n: Value) -> Body:
            start = s.mul(row, integer(size))
            return self._results(part, self.source, start, start, n)

        return self._kernel("fourier_second", self._blocks(self.ahead), block)

    def kept(self) -> Made:
        """Both parts, of one row after another, with an array in between."""
        s, size = self.code, self.t.size
        one, two = self._stages(0, self.cut), self._stages(self.cut)
        between = Held.of(s, self.t.dtype, size)

        def row(number: Value, _: Value) -> Iterator[Statement]:
            start = s.mul(number, integer(size))
            for part, count in ((one, self.behind), (two, self.ahead)):

                def block(n: Value, part: Lanes = part) -> Body:
                    if part is one:
                        return self._columns(part, start, n, between)
                    return self._results(part, between, integer(0), start, n)

                yield from repeat(s, self._blocks(count), block)

        return self._kernel("fourier", 1, row)

    def side_by_side(self) -> Made:
        """As many rows as there are lanes."""
        t, s, part = self.t, self.code, self._stages()
        made = Held.of(s, t.dtype, t.size, self.lanes)
        blocks = self._blocks(t.rows)

        def block(n: Value, _: Value) -> Body:
            first = self._start(n, t.rows)
            starts = [s.mul(s.sum(first, k), integer(t.size)) for k in range(self.lanes)]

            def lane(at: Value) -> Iterator[Statement]:
                yield from part.take(self.source, starts, at)
                yield from part.run(None, made.put, integer(0))
                yield from part.give(made, self.target, starts, at)

            return (self._vector(lane),)

        return self._kernel("fourier_rows", 1, block, blocks)

    # -- what lanes do ---------------------------------------------------------------------------

    def _along(
        self, part: Lanes, columns: int, reads: tuple[int, int], writes: tuple[int, int]
    ) -> Made:
        """Lanes along what is inner: strides of numbers and of columns, as read and as written."""
        t, s = self.t, self.code
        blocks = self._blocks(t.inner)

        def block(row: Value, n: Value) -> Body:
            column = s.floordiv(n, integer(blocks))
            inside = self._start(s.rem(n, integer(blocks)), t.inner)
            start = s.add(s.mul(row, integer(t.size * t.inner)), inside)

            def place(steps: tuple[int, int], number: Value, lane: Value) -> Value:
                moved = s.add(s.mul(number, integer(steps[0])), s.mul(column, integer(steps[1])))
                return s.sum(start, moved, lane)

            def lane(at: Value) -> Iterable[Statement]:
                return part.run(
                    lambda j: self.source.at(place(reads, j, at)),
                    lambda k, x: self.target.put(place(writes, k, at), x),
                    column if part.after > 1 else integer(0),
                )

            return self._body(lane)

        return self._kernel("fourier_along", columns * blocks, block)

    def _columns(self, part: Lanes, start: Value, n: Value, target: Numbers | Held) -> Body:
        """Lanes along the numbers that remain for the second part."""
        s, behind = self.code, self.behind
        first = self._start(n, behind)
        to = start if target is self.target else integer(0)

        def lane(at: Value) -> Iterable[Statement]:
            column = s.add(first, at)

            def place(base: Value, number: Value) -> Value:
                return s.sum(base, s.mul(number, integer(behind)), column)

            return part.run(
                lambda j: self.source.at(place(start, j)),
                lambda k, x: target.put(place(to, k), x),
                column,
            )

        return self._body(lane)

    def _results(
        self, part: Lanes, source: Numbers | Held, start: Value, goal: Value, n: Value
    ) -> Body:
        """Lanes along the results of the first part."""
        s, ahead = self.code, self.ahead
        first = self._start(n, ahead)
        rows = [
            s.add(start, s.mul(s.sum(first, k), integer(self.behind))) for k in range(self.lanes)
        ]

        def lane(at: Value) -> Iterator[Statement]:
            def write(k: Value, x: tuple[Value, Value]) -> Body:
                return self.target.put(s.sum(goal, s.mul(k, integer(ahead)), first, at), x)

            if self.lanes == 1:
                yield from part.run(lambda j: source.at(s.add(rows[0], j)), write, integer(0))
                return
            yield from part.take(source, rows, at)
            yield from part.run(None, write, integer(0))

        return self._body(lane)

    # -- loops -----------------------------------------------------------------------------------

    def _vector(self, lane: Callable[[Value], Iterable[Statement]]) -> Statement:
        return self.code.loop(self.lanes, lane, 0, "vector", self.lanes)

    def _body(self, lane: Callable[[Value], Iterable[Statement]]) -> Body:
        return tuple(lane(integer(0))) if self.lanes == 1 else (self._vector(lane),)

    def _blocks(self, count: int) -> int:
        return -(-count // self.lanes)

    def _start(self, n: Value, count: int) -> Value:
        """Where a block begins; the last one ends at the end, and may do some of it again."""
        s = self.code
        begin = s.mul(n, integer(self.lanes))
        if count % self.lanes == 0:
            return begin
        return s.min(begin, integer(count - self.lanes))

    def _kernel(
        self,
        name: str,
        blocks: int,
        body: Callable[[Value, Value], Iterable[Statement]],
        rows: int = 0,
    ) -> Made:
        """The kernel that does this for each row and block."""
        s, total = self.code, (rows or self.t.rows) * blocks
        tasks = min(total, MOST_TASKS)
        share = -(-total // tasks)

        def item(number: Value) -> Iterable[Statement]:
            if blocks == 1:
                return body(number, integer(0))
            return body(s.floordiv(number, integer(blocks)), s.rem(number, integer(blocks)))

        def task(number: Value) -> Iterable[Statement]:
            if share == 1:
                return item(number)
            start = s.mul(number, integer(share))
            stop = s.min(s.add(start, integer(share)), integer(total))
            return (s.loop(stop, item, start),)

        kernel = s.kernel(name, tasks, task)
        return Made(kernel, tuple(s.memory), self.written, self.t.work, own=True)
