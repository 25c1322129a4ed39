"""`Lanes`: some stages of as many transforms as a vector has lanes, a transform in each lane.

The numbers are in arrays of vectors between the first stage and the last one. Each stage leaves its
results where its operands were, so that digits of a place stand in the order of the stages, and
digits of a result's number in the opposite one: the last stage writes each result where it belongs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from weft.compiler.fourier.butterfly import Pair, butterfly, times
from weft.compiler.fourier.plan import Stage
from weft.compiler.loops import Statement, Store, Value, integer, load, turned
from weft.compiler.order.code import Body, Code, Register
from weft.core.common.types import DType

Read = Callable[[Value], Pair]
Write = Callable[[Value, Pair], Iterable[Statement]]


@dataclass(frozen=True)
class Numbers:
    """Complex numbers in memory: side by side in one buffer, or their parts in two."""

    code: Code
    buffers: tuple[int, ...]
    dtype: DType  # of a part
    swapped: bool = False  # whether parts trade places
    scale: float = 1.0  # of what is written
    apart: int = 0  # how far parts are from each other, where others are between them

    def at(self, place: Value) -> Pair:
        """The number at a place."""
        first, *others = self.buffers
        if others:
            return load(first, place, self.dtype), load(others[0], place, self.dtype)
        one, other = self._places(place)
        real, imag = load(first, one, self.dtype), load(first, other, self.dtype)
        return (imag, real) if self.swapped else (real, imag)

    def _places(self, place: Value) -> tuple[Value, Value]:
        s = self.code
        if self.apart:
            return place, s.sum(place, self.apart)
        twice = s.mul(place, integer(2))
        return twice, s.sum(twice, 1)

    def put(self, place: Value, x: Pair) -> Body:
        """Write a number."""
        s, (first, *others) = self.code, self.buffers
        if others:
            return Store(first, place, x[0]), Store(others[0], place, x[1])
        if self.scale != 1:
            scale = s.const(self.scale, self.dtype)
            x = s.mul(x[0], scale), s.mul(x[1], scale)
        real, imag = (x[1], x[0]) if self.swapped else x
        one, other = self._places(place)
        return Store(first, one, real), Store(first, other, imag)


@dataclass(frozen=True)
class Held:
    """Complex numbers in two arrays of a task."""

    parts: tuple[Register, Register]

    @classmethod
    def of(cls, s: Code, dtype: DType, length: int, lanes: int = 1) -> Held:
        """New arrays."""
        return cls((s.array(dtype, length, lanes), s.array(dtype, length, lanes)))

    def at(self, place: Value) -> Pair:
        """The number at a place."""
        return self.parts[0].at(place), self.parts[1].at(place)

    def put(self, place: Value, x: Pair) -> Body:
        """Write a number."""
        return self.parts[0].set(x[0], place), self.parts[1].set(x[1], place)


def root_at(s: Code, table: int, stage: Stage, k: int, at: Value, dtype: DType) -> Pair:
    """What result k of a stage is multiplied by."""
    real, imag = stage.root(k)
    return load(table, s.sum(at, real), dtype), load(table, s.sum(at, imag), dtype)


def repeat(s: Code, count: int, body: Callable[[Value], Iterable[Statement]]) -> Body:
    """Statements that are done so many times."""
    return tuple(body(integer(0))) if count == 1 else (s.loop(count, body),)


class Lanes:
    """What each lane does: stages that follow each other, with the roots of unity in a buffer."""

    def __init__(
        self, s: Code, stages: Sequence[Stage], lanes: int, dtype: DType, table: int
    ) -> None:
        self.code, self.stages, self.lanes = s, stages, lanes
        self.dtype, self.table = dtype, table
        self.radices = [stage.radix for stage in stages]
        self.size = prod(self.radices)
        self.after = stages[-1].count  # numbers that remain for other stages
        self.groups = 1  # of lanes, each with a row of its own
        self._row: Held | None = None
        self._made: Held | None = None
        most = max(self.radices)
        self._held = [(s.register(dtype, lanes), s.register(dtype, lanes)) for _ in range(most)]

    @property
    def row(self) -> Held:
        """Where the numbers are between stages."""
        if self._row is None:
            self._row = self._array()
        return self._row

    @property
    def made(self) -> Held:
        """Where results can be, in order."""
        if self._made is None:
            self._made = self._array()
        return self._made

    def _array(self) -> Held:
        return Held.of(self.code, self.dtype, self.groups * self.size, self.lanes)

    def run(
        self, read: Read | None, write: Write, column: Value, group: Value | None = None
    ) -> Iterator[Statement]:
        """All stages: of what is read, or is in the row already, at a column of what remains."""
        s, last = self.code, len(self.stages) - 1
        offset = integer(0) if group is None else s.mul(group, integer(self.size))

        def held(place: Value) -> Pair:
            return self.row.at(s.add(offset, place))

        for number, radix in enumerate(self.radices):
            first = read if number == 0 and read is not None else held
            if number == last:
                yield from self._last(first, write, column)
                continue
            blocks = prod(self.radices[:number])
            step = self.size // (blocks * radix)

            def block(
                n: Value, number: int = number, step: int = step, first: Read = first
            ) -> Iterator[Statement]:
                start = s.mul(n, integer(step * self.radices[number]))

                def one(p: Value) -> Iterator[Statement]:
                    places = [s.sum(start, p, step * j) for j in range(self.radices[number])]
                    found = yield from self._stage(number, first, places, p, column)
                    for place, x in zip(places, found, strict=True):
                        yield from self.row.put(s.add(offset, place), x)

                yield from repeat(s, step, one)

            yield from repeat(s, blocks, block)

    def _last(self, first: Read, write: Write, column: Value) -> Iterator[Statement]:
        """The last stage, digit by digit of what the stages before have made."""
        s, last = self.code, len(self.stages) - 1
        before = self.size // self.radices[-1]

        def digits(number: int, start: Value, result: Value) -> Iterator[Statement]:
            if number == last:
                places = [s.sum(start, j) for j in range(self.radices[-1])]
                found = yield from self._stage(number, first, places, integer(0), column)
                for k, x in enumerate(found):
                    yield from write(s.sum(result, k * before), x)
                return
            after = self.size // prod(self.radices[: number + 1])
            times_ = prod(self.radices[:number])

            def digit(k: Value) -> Iterator[Statement]:
                here = s.add(start, s.mul(k, integer(after)))
                yield from digits(number + 1, here, s.add(result, s.mul(k, integer(times_))))

            yield s.loop(self.radices[number], digit)

        yield from digits(0, integer(0), integer(0))

    def _stage(
        self, number: int, first: Read, places: Sequence[Value], p: Value, column: Value
    ) -> Generator[Statement, None, list[Pair]]:
        """Take numbers at some places into registers; gives what a stage makes of them."""
        s, stage = self.code, self.stages[number]
        held: list[Pair] = []
        for place, registers in zip(places, self._held, strict=False):
            x = first(place)
            yield registers[0].set(x[0])
            yield registers[1].set(x[1])
            held.append((registers[0].value, registers[1].value))
        found = butterfly(s, held)
        if stage.count == 1:
            return found
        at = s.add(s.mul(p, integer(self.after)), column)
        for k in range(1, stage.radix):
            found[k] = times(s, found[k], root_at(s, self.table, stage, k, at, self.dtype))
        return found


def taken(
    s: Code,
    source: Numbers | Held,
    put: Write,
    size: int,
    starts: Sequence[Value],
    lane: Value,
) -> Body:
    """Put rows that begin at some places into lanes: vectors along rows, turned."""

    def stretch(n: Value) -> Iterator[Statement]:
        begin = block_start(s, n, len(starts), size)
        found = [source.at(s.sum(start, begin, lane)) for start in starts]
        parts = _turned(found)
        for k, x in enumerate(zip(*parts, strict=True)):
            yield from put(s.sum(begin, k), x)

    return repeat(s, -(-size // len(starts)), stretch)


def _turned(found: Sequence[Pair]) -> tuple[tuple[Value, ...], ...]:
    """Both parts of as many vectors as lanes, turned."""
    parts = [[x[part] for x in found] for part in range(2)]
    return tuple(map(tuple, parts) if len(found) == 1 else map(turned, parts))


def few_taken(
    s: Code, source: Numbers | Held, size: int, starts: Sequence[Value], lane: Value
) -> list[Pair]:
    """The numbers of rows that are so short that all are in registers, one in each lane."""
    made: dict[int, Pair] = {}
    for n in range(-(-size // len(starts))):
        begin = min(n * len(starts), size - len(starts))
        found = [source.at(s.sum(start, begin, lane)) for start in starts]
        parts = _turned(found)
        made |= {begin + k: (re, im) for k, (re, im) in enumerate(zip(*parts, strict=True))}
    return [made[k] for k in range(size)]


def given(
    s: Code, made: Read, target: Numbers, size: int, starts: Sequence[Value], lane: Value
) -> Body:
    """Write what lanes have as rows that begin at some places."""

    def stretch(n: Value) -> Iterator[Statement]:
        begin = block_start(s, n, len(starts), size)
        found = [made(s.sum(begin, k)) for k in range(len(starts))]
        parts = _turned(found)
        for start, x in zip(starts, zip(*parts, strict=True), strict=True):
            yield from target.put(s.sum(start, begin, lane), x)

    return repeat(s, -(-size // len(starts)), stretch)


def block_start(s: Code, number: Value, lanes: int, size: int) -> Value:
    """Where a block of as many places as lanes begins; the last one ends where all end."""
    begin = s.mul(number, integer(lanes))
    return begin if size % lanes == 0 else s.min(begin, integer(size - lanes))
