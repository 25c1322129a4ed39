"""Kernels of transforms for processors: how lanes, tasks and memory are shared out.

Transforms are of the middle axis of (rows, size, inner). Where `inner` has several numbers, lanes
are along it. Many short rows have a lane each. Otherwise a transform has two parts: the lanes of
the first are along the numbers that remain, those of the second along the results of the first,
which lie row by row in between. What fits stays in arrays of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import prod

from weft.compiler.fourier.butterfly import Pair
from weft.compiler.fourier.lanes import (
    Held,
    Lanes,
    Numbers,
    Read,
    Write,
    block_start,
    few_taken,
    given,
    repeat,
    taken,
)
from weft.compiler.fourier.plan import cuts, radices, roots, stages
from weft.compiler.fourier.real import Ends, Transform
from weft.compiler.loops import Statement, Value, integer, integer_of
from weft.compiler.order.code import Body, Code
from weft.compiler.order.rows import Made
from weft.compiler.steps import Memory
from weft.core.common.types import DType, TensorType
from weft.runtime.cpu.jit import chosen_target

MOST_TASKS = 64
HELD = 131072  # bytes of the transforms that lanes hold
KEPT = 262_144  # bytes of a transform that a task keeps between its two parts
FAR = 1 << 22  # bytes of transforms across what is inner, from which groups of lanes pay
LINES = 128  # bytes that groups of lanes read and write together
FRONT = 65_536  # bytes that lanes hold in the first part of a kept transform
SHORT = 32  # numbers of a row that has a lane of its own


def transformed(t: Transform, source: Memory, target: Memory) -> list[Made] | None:
    """The kernels of a transform; None where its ends have to be apart from it."""
    is_one = len(radices(t.size)) == 1
    if t.inner > 1:
        lanes = _lanes(t.dtype, t.inner)
        is_held = t.size <= _room(HELD, t, lanes)
        far = t.size * t.inner >= _room(FAR, t) and t.inner >= 2 * lanes
        if is_held and far and not t.ends:
            return [_Parts(t, lanes, source, target).beside()]
        if is_held or is_one:
            return [_Along(t, lanes, source, target).whole()]
        return None if t.ends else _two(_Along, t, lanes, source, target)
    lanes = _lanes(t.dtype, min(t.rows, t.size))
    if t.size <= SHORT and lanes > 1 and (is_one or lanes == _lanes(t.dtype, t.size)):
        return [_SideBySide(t, lanes, source, target).whole()]
    if is_one:
        return [_Along(t, 1, source, target).whole()]
    lanes = _lanes(t.dtype, t.size)
    while not cuts(t.size, lanes):
        lanes //= 2
    if t.size <= _room(KEPT, t):
        return [_Kept(t, lanes, source, target, _kept_cut(t, lanes)).whole()]
    return None if t.ends else _two(_Parts, t, lanes, source, target)


def _room(size: int, t: Transform, lanes: int = 1) -> int:
    """How many complex numbers, in each lane, so many bytes hold."""
    return size // (2 * t.dtype.itemsize * lanes)


def _lanes(dtype: DType, most: int) -> int:
    """Lanes of a vector, but no more than there is to do."""
    full = chosen_target().vector_bytes // dtype.itemsize
    return min(full, 1 << (most.bit_length() - 1))


def _kept_cut(t: Transform, lanes: int) -> int:
    """Stages of the first part: as many as lanes have room for, so that few are left."""
    sizes, found = radices(t.size), cuts(t.size, lanes)
    fits = [k for k in found if prod(sizes[:k]) <= _room(FRONT, t, lanes)]
    return max(fits, default=found[0])


def _two(
    kind: type[_Along | _Parts], t: Transform, lanes: int, source: Memory, target: Memory
) -> list[Made]:
    """Two kernels, of parts about as long, and memory between them."""
    sizes = radices(t.size)
    longer = {k: max(prod(sizes[:k]), prod(sizes[k:])) for k in cuts(t.size, 1)}
    cut = min(longer, key=longer.__getitem__)
    room = TensorType((t.points,), t.dtype)
    between = (Memory(room), Memory(room))
    return [
        kind(t, lanes, source, between, cut).first(),
        kind(t, lanes, between, target, cut).second(),
    ]


class _Pass:
    """One kernel: numbers are read from a source, and go to a target."""

    def __init__(
        self,
        t: Transform,
        lanes: int,
        source: Memory | tuple[Memory, ...],
        target: Memory | tuple[Memory, ...],
        cut: int = 0,
    ) -> None:
        self.t, self.lanes, self.code = t, lanes, Code()
        self.written = target if isinstance(target, tuple) else (target,)
        read = source if isinstance(source, tuple) else (source,)
        self.ends = Ends(self.code, t)
        self.source = self.ends.source(self._buffers(read, "read"))
        self.target = self.ends.target(self._buffers(self.written, "write"))
        table = roots(t.size, t.dtype)
        memory = Memory(TensorType(table.shape, t.dtype), "constant", data=table)
        self.table = self.code.buffer(memory, t.dtype)
        self.cut = cut  # stages of the first part
        self.ahead = prod(radices(t.size)[:cut])  # results of the first part
        self.behind = t.size // self.ahead

    def _buffers(self, memory: tuple[Memory, ...], mode: str) -> tuple[int, ...]:
        return tuple(self.code.buffer(each, self.t.dtype, mode) for each in memory)

    def stages(self, first: int = 0, last: int | None = None) -> Lanes:
        """Some stages of the transform."""
        found = stages(self.t.size)[first:last]
        return Lanes(self.code, found, self.lanes, self.t.dtype, self.table)

    def vector(self, lane: Callable[[Value], Iterable[Statement]]) -> Body:
        """What every lane does."""
        if self.lanes == 1:
            return tuple(lane(integer(0)))
        return (self.code.loop(self.lanes, lane, 0, "vector", self.lanes),)

    def blocks(self, count: int) -> int:
        """How many times all lanes take so many."""
        return -(-count // self.lanes)

    def start(self, n: Value, count: int) -> Value:
        """Where a block of lanes begins."""
        return block_start(self.code, n, self.lanes, count)

    def along(self, count: int, body: Callable[[Value], Iterable[Statement]]) -> Body:
        """Do something for so many places, lanes side by side."""
        s = self.code

        def block(n: Value) -> Body:
            first = self.start(n, count)
            return self.vector(lambda lane: body(s.add(first, lane)))

        return repeat(s, self.blocks(count), block)

    def kernel(self, name: str, total: int, body: Callable[[Value], Iterable[Statement]]) -> Made:
        """The kernel that does so many pieces of work, which tasks share."""
        s, tasks = self.code, min(total, MOST_TASKS)
        share = -(-total // tasks)

        def task(number: Value) -> Iterable[Statement]:
            if share == 1:
                return body(number)
            start = s.mul(number, integer(share))
            stop = s.min(s.add(start, integer(share)), integer(total))
            return (s.loop(stop, body, start),)

        kernel = s.kernel(name, tasks, task)
        return Made(kernel, tuple(s.memory), self.written, self.t.work, own=True)


class _Along(_Pass):
    """Lanes are along what is inner; or there is one."""

    def whole(self) -> Made:
        """Transforms that lanes hold."""
        t, s, ends = self.t, self.code, self.ends
        part, held = self.stages(), ends.held(self.lanes)
        blocks = self.blocks(t.inner)

        def item(number: Value) -> Body:
            row, inside = self._inside(number, blocks)

            def lane(at: Value) -> Iterator[Statement]:
                here = s.add(inside, at)

                def read(j: Value) -> Pair:
                    return self.source.at(ends.place_read(row, j, here))

                def write(k: Value, x: Pair) -> Body:
                    return self.target.put(ends.place_written(row, k, here), x)

                yield from self._run(part, held, read, write)

            return self.vector(lane)

        return self.kernel("fourier_along", t.rows * blocks, item)

    def _run(self, part: Lanes, held: Held | None, read: Read, write: Write) -> Iterator[Statement]:
        """All stages, with what comes before or after them."""
        s, ends, zero = self.code, self.ends, integer(0)
        if held is None:
            yield from part.run(read, write, zero)
        elif self.t.ends == "double":
            yield from repeat(s, self.t.size + 1, lambda k: held.put(k, read(k)))
            yield from ends.opened(held)
            yield from part.run(lambda k: ends.pairs(held.at, k), write, zero)
        else:
            yield from part.run(read, held.put, zero)
            yield from ends.closed(held)
            yield from repeat(s, self.t.size + 1, lambda k: write(k, ends.half(held.at, k)))

    def _inside(self, number: Value, blocks: int) -> tuple[Value, Value]:
        """Which row, or row and column, and where in what is inner."""
        s = self.code
        if blocks == 1:
            return number, integer(0)
        found = s.rem(number, integer(blocks))
        return s.floordiv(number, integer(blocks)), self.start(found, self.t.inner)

    def first(self) -> Made:
        """The first part of transforms that are too long for one."""
        step = self.behind * self.t.inner
        part = self.stages(0, self.cut)
        return self._part("fourier_first", part, (step, self.t.inner), (step, self.t.inner))

    def second(self) -> Made:
        """The second part."""
        inner = self.t.inner
        reads, writes = (inner, self.behind * inner), (self.ahead * inner, inner)
        return self._part("fourier_second", self.stages(self.cut), reads, writes)

    def _part(
        self, name: str, part: Lanes, reads: tuple[int, int], writes: tuple[int, int]
    ) -> Made:
        """Steps of numbers and of columns, in what is read and in what is written."""
        t, s = self.t, self.code
        columns, blocks = t.size // part.size, self.blocks(t.inner)

        def item(number: Value) -> Body:
            place, inside = self._inside(number, blocks)
            row, column = s.floordiv(place, integer(columns)), s.rem(place, integer(columns))
            start = s.add(s.mul(row, integer(t.size * t.inner)), inside)

            def at(steps: tuple[int, int], number: Value, lane: Value) -> Value:
                moved = s.add(s.mul(number, integer(steps[0])), s.mul(column, integer(steps[1])))
                return s.sum(start, moved, lane)

            def lane(here: Value) -> Iterable[Statement]:
                return part.run(
                    lambda j: self.source.at(at(reads, j, here)),
                    lambda k, x: self.target.put(at(writes, k, here), x),
                    column if part.after > 1 else integer(0),
                )

            return self.vector(lane)

        return self.kernel(name, t.rows * columns * blocks, item)


class _SideBySide(_Pass):
    """A lane for each row."""

    def whole(self) -> Made:
        """As many rows as there are lanes."""
        t, s, ends = self.t, self.code, self.ends
        part = self.stages()
        held, zero = ends.held(self.lanes) or Held.of(s, t.dtype, t.size, self.lanes), integer(0)

        def item(n: Value) -> Body:
            first = self.start(n, t.rows)
            rows = [s.sum(first, k) for k in range(self.lanes)]
            reads = [ends.place_read(row, zero, zero) for row in rows]
            writes = [ends.place_written(row, zero, zero) for row in rows]

            def lane(at: Value) -> Iterator[Statement]:
                if t.ends == "double":
                    yield from taken(s, self.source, held.put, t.size + 1, reads, at)
                    yield from ends.opened(held)
                    yield from part.run(lambda k: ends.pairs(held.at, k), part.made.put, zero)
                    yield from given(s, part.made.at, self.target, t.size, writes, at)
                    return
                yield from taken(s, self.source, part.row.put, t.size, reads, at)
                yield from part.run(None, held.put, zero)
                if t.ends:
                    yield from ends.closed(held)
                    half = lambda k: ends.half(held.at, k)  # noqa: E731
                    yield from given(s, half, self.target, t.size + 1, writes, at)
                else:
                    yield from given(s, held.at, self.target, t.size, writes, at)

            return self.vector(lane)

        return self.kernel("fourier_rows", self.blocks(t.rows), item)


class _Parts(_Pass):
    """A transform of numbers side by side has two parts, each with lanes of its own.

    Where each part is a kernel, groups of lanes read and write what lies side by side together; so
    they do along what is inner, where the numbers of a transform are far apart.
    """

    def first(self) -> Made:
        """The first part of transforms that are too long for one."""
        return self._of_columns("fourier_first", self.stages(0, self.cut), self.behind)

    def beside(self) -> Made:
        """Whole transforms that lie side by side."""
        return self._of_columns("fourier_beside", self.stages(), self.t.inner)

    def _of_columns(self, name: str, part: Lanes, count: int) -> Made:
        """Stages of so many columns, of numbers that lie as far apart."""
        s = self.code

        def take(row: Value, first: Value, lane: Value) -> Body:
            def one(j: Value, g: Value) -> Body:
                at = self._in_group(first, g, lane)
                place = s.sum(row, s.mul(j, integer(count)), at)
                return part.row.put(self._held(part, g, j), self.source.at(place))

            every = lambda j: repeat(s, part.groups, lambda g: one(j, g))  # noqa: E731
            return repeat(s, part.size, every)

        return self._grouped(name, part, count, take)

    def second(self) -> Made:
        """The second part."""
        s, part = self.code, self.stages(self.cut)

        def take(row: Value, first: Value, lane: Value) -> Body:
            def group(g: Value) -> Body:
                start = self._in_group(first, g, integer(0))
                rows = [
                    s.add(row, s.mul(s.sum(start, k), integer(self.behind)))
                    for k in range(self.lanes)
                ]
                put = lambda j, x: part.row.put(self._held(part, g, j), x)  # noqa: E731
                return taken(s, self.source, put, part.size, rows, lane)

            return repeat(s, part.groups, group)

        return self._grouped("fourier_second", part, self.ahead, take)

    def _in_group(self, first: Value, group: Value, lane: Value) -> Value:
        s = self.code
        return s.sum(first, s.mul(group, integer(self.lanes)), lane)

    def _held(self, part: Lanes, group: Value, number: Value) -> Value:
        s = self.code
        return s.add(s.mul(group, integer(part.size)), number)

    def _grouped(
        self, name: str, part: Lanes, count: int, take: Callable[[Value, Value, Value], Body]
    ) -> Made:
        """Groups of lanes along so many columns: all are read, then transformed, then written."""
        s, t = self.code, self.t
        most = min(count // self.lanes, _room(2 * HELD, t, self.lanes) // part.size)
        part.groups = max(1, min(_room(LINES, t, self.lanes), most))
        wide = part.groups * self.lanes
        blocks = -(-count // wide)

        def item(number: Value) -> Body:
            row = s.mul(s.floordiv(number, integer(blocks)), integer(t.size * t.inner))
            first = block_start(s, s.rem(number, integer(blocks)), wide, count)

            def lane(at: Value) -> Iterator[Statement]:
                def run(g: Value) -> Iterable[Statement]:
                    column = self._in_group(first, g, at) if part.after > 1 else integer(0)
                    put = lambda k, x: part.made.put(self._held(part, g, k), x)  # noqa: E731
                    return part.run(None, put, column, g)

                def write(k: Value, g: Value) -> Body:
                    place = s.sum(row, s.mul(k, integer(count)), self._in_group(first, g, at))
                    return self.target.put(place, part.made.at(self._held(part, g, k)))

                yield from take(row, first, at)
                yield from repeat(s, part.groups, run)
                every = lambda k: repeat(s, part.groups, lambda g: write(k, g))  # noqa: E731
                yield from repeat(s, part.size, every)

            return self.vector(lane)

        return self.kernel(name, t.rows * blocks, item)

    def columns(self, part: Lanes, n: Value, read: Read, write: Write) -> Body:
        """Lanes along the numbers that remain for the second part."""
        s, behind = self.code, self.behind
        first = self.start(n, behind)

        def lane(at: Value) -> Iterable[Statement]:
            column = s.add(first, at)

            def place(number: Value) -> Value:
                return s.add(s.mul(number, integer(behind)), column)

            return part.run(lambda j: read(place(j)), lambda k, x: write(place(k), x), column)

        return self.vector(lane)

    def results(
        self, part: Lanes, n: Value, source: Numbers | Held, start: Value, write: Write
    ) -> Body:
        """Lanes along the results of the first part."""
        s, ahead = self.code, self.ahead
        first = self.start(n, ahead)
        rows = [
            s.add(start, s.mul(s.sum(first, k), integer(self.behind))) for k in range(self.lanes)
        ]

        def lane(at: Value) -> Iterator[Statement]:
            def put(k: Value, x: Pair) -> Iterable[Statement]:
                return write(s.sum(s.mul(k, integer(ahead)), first, at), x)

            if len(part.stages) > 1:
                yield from taken(s, source, part.row.put, part.size, rows, at)
                yield from part.run(None, put, integer(0))
                return
            found = few_taken(s, source, part.size, rows, at)
            yield from part.run(lambda j: found[integer_of(j)], put, integer(0))

        return self.vector(lane)


class _Kept(_Parts):
    """Both parts in one task, with an array in between."""

    def whole(self) -> Made:
        """One row after another."""
        t, s, ends, zero = self.t, self.code, self.ends, integer(0)
        one, two = self.stages(0, self.cut), self.stages(self.cut)
        between, held = Held.of(s, t.dtype, t.size), ends.held(1)

        def item(row: Value) -> Iterator[Statement]:
            def read(j: Value) -> Pair:
                return self.source.at(ends.place_read(row, j, zero))

            def write(k: Value, x: Pair) -> Body:
                return self.target.put(ends.place_written(row, k, zero), x)

            first: Read = read
            last: Write = write
            if t.ends == "double" and held is not None:
                yield from self.along(t.size + 1, lambda k: held.put(k, read(k)))
                yield from ends.opened(held)
                first = lambda k: ends.pairs(held.at, k)  # noqa: E731
            elif held is not None:
                last = held.put
            block = lambda n: self.columns(one, n, first, between.put)  # noqa: E731
            yield from repeat(s, self.blocks(self.behind), block)
            block = lambda n: self.results(two, n, between, zero, last)  # noqa: E731
            yield from repeat(s, self.blocks(self.ahead), block)
            if t.ends == "half" and held is not None:
                yield from ends.closed(held)
                yield from self.along(t.size + 1, lambda k: write(k, ends.half(held.at, k)))

        return self.kernel("fourier", t.rows, item)
