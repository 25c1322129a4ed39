"""`Block`: stages of transforms that the threads of a block do together, in shared memory.

Stages that follow each other are one stage of a larger radix: they read (rows, radix, after,
beside) and write (rows, after, radix, beside). A *column* is one place of the other axes, with the
`radix` numbers there; a block has a *tile* of columns. Its threads read each number once, and write
it once; between stages they trade numbers through one shared array. A thread does every stage of a
few numbers in registers, and threads meet before and after they trade.

Neighbouring threads read and write neighbouring numbers: the columns of a tile first, or the
numbers of a column where these are what is adjacent. In the shared array, numbers of a column lie
in the order of the next stage. Threads write them so many numbers apart as the radix is, which few
banks of that memory hold; so there is a gap behind every few of them, as wide as what lies side by
side, and neighbours meet other banks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from weft.compiler.fourier.butterfly import Pair, butterfly, times
from weft.compiler.fourier.lanes import Numbers, block_start
from weft.compiler.fourier.plan import Stage
from weft.compiler.fourier.real import Ends, Transform
from weft.compiler.loops import Kernel, Local, Loop, Statement, Value, When, integer, load
from weft.compiler.order.code import Body, Code, Register
from weft.compiler.order.rows import Made
from weft.compiler.passes.blocks_tile import STATIC
from weft.compiler.passes.simplify import simplify
from weft.compiler.steps import Memory

BANKED = 128  # bytes that threads read from shared memory at a time, if no two meet in a bank


@dataclass(frozen=True)
class Tile:
    """The columns of a block: so many of each axis, and how many threads share them."""

    rows: int
    after: int
    beside: int
    threads: int

    @property
    def columns(self) -> int:
        """How many columns there are."""
        return self.rows * self.after * self.beside


@dataclass(frozen=True)
class Item:
    """What a thread does in a turn of a stage: numbers of a column."""

    row: Value  # in the tile, as `after` and `beside` are
    after: Value
    beside: Value
    rest: Value  # which numbers of the column they are
    inside: Value | None = None  # whether there is such an item, where there may be none


@dataclass(frozen=True)
class Corner:
    """Where a tile begins."""

    row: Value
    after: Value
    beside: Value

    def of(self, s: Code, item: Item) -> tuple[Value, Value, Value]:
        """Where an item is in the whole of the memory."""
        after, beside = s.add(self.after, item.after), s.add(self.beside, item.beside)
        return s.add(self.row, item.row), after, beside


@dataclass(frozen=True)
class Layout:
    """Where numbers of the columns are in the shared array: a gap follows each `group` of them."""

    beside: int
    group: int
    gap: int
    column: int  # places from a column to the next one that is not beside it

    def step(self, numbers: int) -> int:
        """Places from a number to one that whole groups are in between of."""
        return numbers * self.beside + self.gap * (numbers // self.group)


class Block:
    """A kernel whose blocks do some stages of a transform."""

    def __init__(
        self,
        t: Transform,
        stages: Sequence[Stage],
        tile: Tile,
        memory: tuple[Memory, Memory, Memory],  # source, target, roots of unity
    ) -> None:
        self.t, self.stages, self.tile, self.code = t, stages, tile, Code()
        source, self.written, roots = memory
        s, self.ends = self.code, Ends(self.code, t)
        read, put = (s.buffer(source, t.dtype),), (s.buffer(self.written, t.dtype, "write"),)
        is_first, is_last = stages[0].before == 1, stages[-1].count == 1
        self.source = self.ends.source(read) if is_first else Numbers(s, read, t.dtype)
        self.target = self.ends.target(put) if is_last else Numbers(s, put, t.dtype)
        self.table = s.buffer(roots, t.dtype) if stages[0].count > 1 else -1
        self.radices = [stage.radix for stage in stages]
        self.size = prod(self.radices)
        self.after = stages[-1].count
        self.beside = stages[0].before * t.inner
        self.layouts = [self._layout(n) for n in range(len(stages))]
        self.array = self._shared()
        turns = max(self._turns(n) * radix for n, radix in enumerate(self.radices))
        self.taken, self.made = (self._registers(turns, kept) for kept in (False, True))

    def _registers(self, count: int, kept: bool) -> list[tuple[Register, Register]]:
        """Registers for complex numbers, which a thread may keep while it meets others."""
        s, dtype = self.code, self.t.dtype

        def one() -> Register:
            s.locals.append(Local(f"t{len(s.locals)}", dtype, kept=kept))
            return Register(len(s.locals) - 1, dtype)

        return [(one(), one()) for _ in range(count)]

    # -- the shared array ------------------------------------------------------------------

    def _layout(self, number: int) -> Layout:
        """How numbers lie after a stage: in order after the last one."""
        tile, radix, before = self.tile, self.radices[number], prod(self.radices[:number])
        group, banks = radix * before, BANKED // (2 * self.t.dtype.itemsize)
        gap = before * tile.beside
        if number + 1 == len(self.stages) or radix % 2 or gap >= banks:
            gap = 0
        left = self.size // (group * self.radices[number + 1]) if gap else 1
        wide = group * tile.beside
        fits = [k for k in range(1, left + 1) if left % k == 0 and k * wide >= banks]
        group *= min(fits, default=left)
        column = self.size * tile.beside + gap * (self.size // group)
        if tile.after > 1 and column // tile.beside % 2 == 0:
            column += tile.beside
        return Layout(tile.beside, group, gap, column)

    def _shared(self) -> Register | None:
        """Room for the numbers of all columns, their parts side by side."""
        used = self.layouts if self.t.ends else self.layouts[:-1]
        if not used:
            return None
        columns = self.tile.rows * self.tile.after
        length = columns * max(layout.column for layout in used)
        if self.t.ends == "double":
            length += columns * self.tile.beside
        return self.code.shared(self.t.dtype, 2 * length)

    def _at(self, layout: Layout, item: Item, start: Value, step: int = 0) -> Value:
        """Where a number of a column is: `step` places behind the one that `start` is."""
        s = self.code
        column = s.sum(s.mul(item.row, integer(self.tile.after)), item.after)
        place = s.sum(s.mul(start, integer(layout.beside)), item.beside, step)
        if layout.gap:
            gaps = s.floordiv(start, integer(layout.group))
            place = s.add(place, s.mul(gaps, integer(layout.gap)))
        return s.mul(s.add(s.mul(column, integer(layout.column)), place), integer(2))

    def _held(self, place: Value) -> Pair:
        assert self.array is not None
        return self.array.at(place), self.array.at(self.code.sum(place, 1))

    def _hold(self, place: Value, x: Pair) -> Body:
        assert self.array is not None
        return self.array.set(x[0], place), self.array.set(x[1], self.code.sum(place, 1))

    # -- items of threads ------------------------------------------------------------------

    def _count(self, number: int) -> int:
        """Items of a stage."""
        return self.tile.columns * (self.size // self.radices[number])

    def _turns(self, number: int) -> int:
        return -(-self._count(number) // self.tile.threads)

    def _items(self, thread: Value, each: int, columns_first: bool = False) -> Iterator[Item]:
        """The items of a thread, if a column has so many."""
        tile = self.tile
        sizes = (tile.rows, tile.after, each, tile.beside)
        if columns_first:
            sizes = (tile.rows, each, tile.after, tile.beside)
        count = prod(sizes)
        for turn in range(-(-count // tile.threads)):
            row, one, other, beside = self._digits(thread, turn, sizes)
            inside = None
            if (turn + 1) * tile.threads > count:
                item = self.code.sum(thread, turn * tile.threads)
                inside = self.code.less(item, integer(count))
            after, rest = (other, one) if columns_first else (one, other)
            yield Item(row, after, beside, rest, inside)

    def _digits(self, thread: Value, turn: int, sizes: Sequence[int]) -> list[Value]:
        """The digits of an item, of which turns have one for each thread; the last if none."""
        s, span, start, number = self.code, self.tile.threads, turn * self.tile.threads, thread
        if start + span > prod(sizes):
            number, start, span = s.min(s.sum(thread, start), integer(prod(sizes) - 1)), 0, 0
        found: list[Value] = []
        for size in reversed(sizes[1:]):  # what is left is number + start, below start + span
            if size == 1:
                found.append(integer(0))
            elif span and size % span == 0:
                found.append(s.sum(number, start % size))
                number, start, span = integer(0), start // size, 1
            else:
                if span % size or not span:
                    number, start, span = s.sum(number, start), 0, 0
                found.append(s.rem(number, integer(size)))
                number, start, span = s.floordiv(number, integer(size)), start // size, span // size
        return [s.sum(number, start), *reversed(found)]

    def each(self, body: Callable[[Value], Iterable[Statement]]) -> Loop:
        """What every thread does."""
        return self.code.loop(self.tile.threads, body, kind="thread")

    # -- stages ----------------------------------------------------------------------------

    def kernel(self) -> Made:
        """All of it."""
        s, t, tile = self.code, self.t, self.tile
        axes = ((t.rows, tile.rows), (self.after, tile.after), (self.beside, tile.beside))
        counts = [-(-size // part) for size, part in axes]

        def body(block: Value) -> Iterator[Statement]:
            digits: list[Value] = []
            for count in reversed(counts[1:]):
                digits.append(s.rem(block, integer(count)) if count > 1 else integer(0))
                block = s.floordiv(block, integer(count)) if count > 1 else block
            pairs = zip((block, *reversed(digits)), axes, strict=True)
            starts = [block_start(s, n, part, size) for n, (size, part) in pairs]
            yield from self._all(Corner(*starts))

        name = "fourier_" + "_".join(map(str, self.radices))
        blocks = prod(counts)
        notes: dict[str, Any] = {
            "name": name,
            "blocks": blocks,
            "threads": tile.threads,
            "scratch": (),
        }
        shared = sum(local.length * local.dtype.itemsize for local in s.locals if local.shared)
        if shared > STATIC:
            notes["dynamic"] = shared
        loop = s.loop(blocks, body, kind="block")
        kernel = Kernel(name, tuple(s.buffers), tuple(s.locals), (loop,), notes=notes)
        return Made(simplify(kernel), tuple(s.memory), (self.written,), t.work)

    def _all(self, corner: Corner) -> Iterator[Statement]:
        """The stages of the tile that begins there."""
        last, ends = len(self.stages) - 1, self.t.ends
        if ends == "double":
            yield self.each(partial(self._opened, corner))
        for number in range(last + 1):
            starts = number == 0 and ends != "double"
            gives = ends != "half" if number == last else starts
            yield self.each(partial(self._stage, corner, number, gives))
            if not gives:
                yield self.each(partial(self._given, corner, number))
        if ends == "half":
            yield self.each(partial(self._closed, corner))

    def _stage(
        self, corner: Corner, number: int, gives: bool, thread: Value
    ) -> Iterator[Statement]:
        """Take numbers, and transform them; results are given at once, or kept."""
        s, radix, stage = self.code, self.radices[number], self.stages[number]
        items = list(self._items_of(number, thread))
        for n, item in enumerate(items):
            for j, register in enumerate(self.taken[n * radix : (n + 1) * radix]):
                yield from _set(register, self._taken(corner, number, item, j))
        before = prod(self.radices[:number])
        for n, item in enumerate(items):
            registers = self.taken[n * radix : (n + 1) * radix]
            found = butterfly(s, [(real.value, imag.value) for real, imag in registers])
            first = s.floordiv(item.rest, integer(before))
            root = s.sum(s.mul(first, integer(self.after)), corner.after, item.after)
            for k in range(1, radix if stage.count > 1 else 1):
                found[k] = times(s, found[k], self._root(stage, k, root))
            for register, x in zip(self.made[n * radix :], found, strict=False):
                yield from _set(register, x)
        if gives:
            yield from self._given(corner, number, thread)

    def _given(self, corner: Corner, number: int, thread: Value) -> Iterator[Statement]:
        """Give what was kept, now that everybody has taken what was there."""
        radix = self.radices[number]
        for n, item in enumerate(self._items_of(number, thread)):
            registers = self.made[n * radix : (n + 1) * radix]
            found = [(real.value, imag.value) for real, imag in registers]
            yield from self._put(corner, number, item, found)

    def _items_of(self, number: int, thread: Value) -> Iterator[Item]:
        reads = number == 0 and self.t.ends != "double"
        return self._items(thread, self.size // self.radices[number], columns_first=reads)

    def _root(self, stage: Stage, k: int, at: Value) -> Pair:
        """What result k of a stage is multiplied by."""
        s, dtype = self.code, self.t.dtype
        place = s.sum(s.mul(at, integer(2)), stage.root(k)[0])
        return load(self.table, place, dtype), load(self.table, s.sum(place, 1), dtype)

    def _taken(self, corner: Corner, number: int, item: Item, j: int) -> Pair:
        """Number j of an item: what is read, or lies in the shared array."""
        s, apart = self.code, self.size // self.radices[number]
        if number > 0:
            layout = self.layouts[number - 1]
            return self._held(self._at(layout, item, item.rest, layout.step(j * apart)))
        here = s.sum(item.rest, j * apart)
        if self.t.ends == "double":
            return self.ends.pairs(partial(self._in_order, item), here)
        row, after, beside = corner.of(s, item)
        if self.t.ends:
            return self.source.at(self.ends.place_read(row, here, beside))
        place = s.sum(
            s.mul(s.sum(s.mul(row, integer(self.size)), here), integer(self.after)), after
        )
        return self.source.at(s.sum(s.mul(place, integer(self.beside)), beside))

    def _put(self, corner: Corner, number: int, item: Item, found: Sequence[Pair]) -> Body:
        """Results of an item: they are written, or go to the shared array."""
        s, before = self.code, prod(self.radices[:number])
        is_last = number + 1 == len(self.stages)
        made: list[Statement] = []
        for k, x in enumerate(found):
            if is_last and self.t.ends != "half":
                made += self._write(corner, item, s.sum(item.rest, k * before), x)
                continue
            first, rest = (f(item.rest, integer(before)) for f in (s.floordiv, s.rem))
            start = s.sum(s.mul(first, integer(self.radices[number] * before)), rest)
            layout = self.layouts[number]
            made += self._hold(self._at(layout, item, start, k * before * layout.beside), x)
        return tuple(made) if item.inside is None else (When(item.inside, tuple(made)),)

    def _write(self, corner: Corner, item: Item, k: Value, x: Pair) -> Body:
        """Write a number of a column."""
        s, (row, after, beside) = self.code, corner.of(self.code, item)
        if self.t.ends:
            return self.target.put(self.ends.place_written(row, k, beside), x)
        place = s.sum(s.mul(s.sum(s.mul(row, integer(self.after)), after), integer(self.size)), k)
        return self.target.put(s.sum(s.mul(place, integer(self.beside)), beside), x)

    # -- both ends of spectra --------------------------------------------------------------

    def _in_order(self, item: Item, k: Value) -> Pair:
        """A number of a spectrum from end to end."""
        return self._held(self._at(self._spectrum, item, k))

    @property
    def _spectrum(self) -> Layout:
        """One number more than there are, without gaps."""
        tile, size = self.tile, self.size + 1
        return Layout(tile.beside, size, 0, size * tile.beside)

    def _opened(self, corner: Corner, thread: Value) -> Iterator[Statement]:
        """Take a half spectrum, both ends of which are real."""
        s, zero = self.code, self.code.const(0, self.t.dtype)
        for item in self._items(thread, self.size + 1):
            row, _, beside = corner.of(s, item)
            real, imag = self.source.at(self.ends.place_read(row, item.rest, beside))
            ends = [s.equal(item.rest, integer(k)) for k in (0, self.size)]
            x = real, s.select(s.bit_or(*ends), zero, imag)
            made = self._hold(self._at(self._spectrum, item, item.rest), x)
            yield from made if item.inside is None else (When(item.inside, made),)

    def _closed(self, corner: Corner, thread: Value) -> Iterator[Statement]:
        """Write the half spectrum of what lies in order; it begins again behind its end."""
        s, layout = self.code, self.layouts[-1]
        for item in self._items(thread, self.size + 1):

            def held(k: Value, item: Item = item) -> Pair:
                here = s.select(s.equal(k, integer(self.size)), integer(0), k)
                return self._held(self._at(layout, item, here))

            made = self._write(corner, item, item.rest, self.ends.half(held, item.rest))
            yield from made if item.inside is None else (When(item.inside, made),)


def _set(register: tuple[Register, Register], x: Pair) -> Body:
    return register[0].set(x[0]), register[1].set(x[1])
