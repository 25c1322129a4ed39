"""`TileSort`: a kernel whose blocks sort what they have room for, rows or parts of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from weft.compiler.loops import Statement, Value, When, integer
from weft.compiler.order.blocks import Block, Launched, Output, Read
from weft.compiler.order.code import COUNT, Body


class TileSort(Block):
    """Each block sorts one part of its rows: whole rows have one."""

    together = 4

    def sort(self, name: str, read: Read, output: Output, parts: int, kept: int) -> Launched:
        """Each block sorts tiles of one part of its rows, and writes the first `kept` records."""
        s, tile, rows = self.code, self.tile, self.order.rows
        groups = -(-rows // tile.rows)

        def located(block: Value, place: Value) -> tuple[Value, Value, Value]:
            """The row of a place in the tile, the part of the row, and the place in it."""
            group, part = s.floordiv(block, integer(parts)), s.rem(block, integer(parts))
            inner, at = s.floordiv(place, integer(tile.size)), s.rem(place, integer(tile.size))
            row = s.add(s.mul(group, integer(tile.rows)), inner)
            return (row, part, at) if tile.rows > 1 else (group, part, place)

        def take(block: Value, place: Value) -> Body:
            row, part, at = located(block, place)
            position = s.add(s.mul(part, integer(tile.size)), at)
            inside = s.less(position, integer(self.size))
            position = s.min(position, integer(self.size - 1))
            record = read(s.min(row, integer(rows - 1)) if rows % tile.rows else row, position)
            return self.hold(place, self.moved.choose(inside, record, self.moved.last()))

        def give(block: Value, place: Value) -> Body:
            row, part, at = located(block, place)
            position = s.add(s.mul(part, integer(kept)), at)
            wanted = s.bit_and(s.less(at, integer(kept)), s.less(position, integer(output.size)))
            if rows % tile.rows:
                wanted = s.bit_and(wanted, s.less(row, integer(rows)))
            here = s.sum(place, self.half * (levels % 2))
            return (When(wanted, output.put(row, position, self.held(here))),)

        levels = tile.team.bit_length() - 1

        def body(block: Value) -> Iterator[Statement]:
            yield self.every(lambda place: take(block, place))
            if tile.items > 1:
                yield self.each(self._exchanged)
            if levels:
                yield s.loop(levels, lambda level: (self.each(partial(self._level, level)),))
            yield self.every(lambda place: give(block, place))

        return self.kernel(name, groups * parts, body)

    def _exchanged(self, thread: Value) -> Iterator[Statement]:
        """Sort the elements of a thread: neighbours change places, again and again."""
        s, moved, items = self.code, self.moved, self.tile.items
        first = s.mul(thread, integer(items))
        places = [s.sum(first, k) for k in range(items)]
        fields = [[s.register(dtype) for dtype in moved.dtypes] for _ in places]
        for registers, place in zip(fields, places, strict=True):
            yield from (r.set(x) for r, x in zip(registers, self.held(place), strict=True))
        row = [tuple(r.value for r in registers) for registers in fields]
        for turn in range(items):
            for k in range(turn % 2, items - 1, 2):
                one, other = row[k : k + 2]
                changes = moved.is_before(other, one)
                row[k : k + 2] = (
                    moved.choose(changes, other, one),
                    moved.choose(changes, one, other),
                )
        for place, record in zip(places, row, strict=True):
            yield from self.hold(place, record)

    def _level(self, level: Value, thread: Value) -> Iterator[Statement]:
        """Merge two runs of 2**level threads: a thread makes as many records as it has."""
        s, items = self.code, self.tile.items
        depth, number = s.cast(level, COUNT), s.cast(thread, COUNT)
        start = s.mul(s.bit_and(depth, 1), self.half)
        width = s.shift_left(s.const(1, COUNT), depth)
        first = s.bit_and(number, s.neg(s.mul(width, 2)))
        size = s.mul(width, items)
        begin = s.add(start, s.mul(first, items))
        diagonal = s.mul(s.sub(number, first), items)
        goal = s.add(s.sub(self.half, start), s.mul(number, items))
        steps = s.sum(level, items.bit_length())
        yield from self.joined((begin, size, size), diagonal, goal, steps)
