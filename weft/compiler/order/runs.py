"""`RunMerge`: a kernel that merges neighbouring runs of sorted records, a tile in each block."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from weft.compiler.loops import BOOL, INDEX, Statement, Value, When, integer, load
from weft.compiler.order.blocks import Block, Launched, Output, Read, Tile
from weft.compiler.order.code import COUNT, Body, Order
from weft.compiler.steps import Memory
from weft.core.common.types import TensorType

WAYS = 16  # threads that look for a cut, a power of two


class RunMerge(Block):
    """Each block makes one tile of two runs that become one.

    What it makes lies between two cuts, that is, the records before each of them. How many of
    these come from the left run is found by some threads together: each looks at one place.
    """

    together = 6

    def __init__(self, order: Order, tile: Tile) -> None:
        super().__init__(order, tile)
        s = self.code
        self.begin, self.left, self.right = (s.register(INDEX) for _ in range(3))  # of both runs
        self.diagonal, self.total = s.register(INDEX), s.register(INDEX)  # what is made of them
        self.own = s.register(INDEX)  # how much of that comes from the left one,
        self.near, self.far = s.register(INDEX), s.register(INDEX)  # and where place 0 would lie
        self.low, self.high = s.shared(INDEX, 2), s.shared(INDEX, 2)  # around each cut
        self.ways = min(WAYS, tile.threads // 2)
        self.early = s.shared(BOOL, 2 * self.ways)

    def merge(self, read: Read, output: Output, run: int) -> Launched:
        """Neighbouring runs of `run` tiles become one; a block makes a tile of it."""
        s, size = self.code, self.tile.size
        tiles = -(-output.size // size)
        lengths = s.buffer(_constant(run), INDEX)

        def body(block: Value) -> Iterator[Statement]:
            row, tile = s.floordiv(block, integer(tiles)), s.rem(block, integer(tiles))
            yield from self._divided(tile, load(lengths, integer(0), INDEX), output.size)
            yield from self._cuts(row, read)
            yield from self._found()
            yield self.every(partial(self._take, row, read))
            yield self.each(self._join)
            yield self.every(partial(self._give, row, tile, output))

        return self.kernel("merge", self.order.rows * tiles, body)

    def _divided(self, tile: Value, many: Value, wanted: int) -> Iterator[Statement]:
        """Where the runs begin, how long they are, and what of both together is made here."""
        s, size = self.code, integer(self.tile.size)
        begin, left, right, diagonal = self.begin, self.left, self.right, self.diagonal
        width = s.mul(many, size)
        rest = s.sub(integer(self.size), begin.value)
        yield begin.set(s.mul(s.bit_and(tile, s.neg(s.mul(many, integer(2)))), size))
        yield left.set(s.min(width, rest))
        yield right.set(s.min(width, s.sub(rest, left.value)))
        yield diagonal.set(s.sub(s.mul(tile, size), begin.value))
        both = s.min(s.add(left.value, right.value), s.sub(integer(wanted), begin.value))
        yield self.total.set(s.min(size, s.sub(both, diagonal.value)))

    # -- where the tile is cut -------------------------------------------------------------

    def _cuts(self, row: Value, read: Read) -> Iterator[Statement]:
        """Find what the tile begins and ends with: `low` is how much comes from the left run."""
        s = self.code
        rounds, width = 0, self.size // 2  # of the shorter run
        while width > 0:
            rounds, width = rounds + 1, (width - 1) // self.ways

        def start(cut: Value) -> Body:
            here = self._end(cut)
            return (
                self.low.set(s.max(s.sub(here, self.right.value), integer(0)), cut),
                self.high.set(s.min(here, self.left.value), cut),
            )

        def turn(_: Value) -> Body:
            threads, looked = 2 * self.ways, partial(self._look, row, read)
            return self.each(looked, threads), self.each(self._narrow, threads)

        yield self.each(start, 2)
        yield s.loop(rounds, turn)

    def _end(self, cut: Value) -> Value:
        """How many records lie before a cut."""
        return self.code.add(self.diagonal.value, self.code.mul(cut, self.total.value))

    def _places(self, thread: Value) -> tuple[Value, Value, Value]:
        """The cut that a thread looks for, where it looks, and where its neighbour does."""
        s, ways = self.code, self.ways
        cut, number = s.shift_right(thread, integer(ways.bit_length() - 1)), self._number(thread)
        low = self.low.at(cut)
        around = s.sum(self.high.at(cut), s.sub(integer(ways - 1), low))
        step = s.shift_right(around, integer(ways.bit_length() - 1))
        place = s.add(low, s.mul(number, step))
        return cut, place, s.sub(place, step)

    def _number(self, thread: Value) -> Value:
        return self.code.bit_and(thread, integer(self.ways - 1))

    def _look(self, row: Value, read: Read, thread: Value) -> Body:
        """Whether a cut lies at a place or before it."""
        s, begin = self.code, self.begin.value
        cut, place, _ = self._places(thread)
        behind = s.add(self.left.value, s.sub(s.sum(self._end(cut), -1), place))
        near, far = (read(row, s.add(begin, at)) for at in (place, behind))
        early = self.early.set(self.moved.is_before(far, near), thread)
        inside = s.less(place, self.high.at(cut))
        return self.early.set(s.const(True, BOOL), thread), When(inside, (early,))

    def _narrow(self, thread: Value) -> Body:
        """Move the bounds of a cut to the places around it: one of its threads does that."""
        s, number = self.code, self._number(thread)
        cut, place, before = self._places(thread)
        low, high = s.register(INDEX), s.register(INDEX)
        early, is_first = self.early.at(thread), s.equal(number, integer(0))
        late_before = s.bit_not(self.early.at(s.max(s.sum(thread, -1), integer(0))))
        found = s.bit_and(early, s.bit_or(is_first, late_before))
        nowhere = s.bit_and(s.bit_not(early), s.equal(number, integer(self.ways - 1)))
        between = (
            high.set(s.min(place, self.high.at(cut))),
            low.set(s.select(is_first, self.low.at(cut), s.sum(before, 1))),
            self.high.set(high.value, cut),
            self.low.set(low.value, cut),
        )
        behind = low.set(s.sum(place, 1)), self.low.set(low.value, cut)
        return When(found, between), When(nowhere, behind)

    # -- what lies between the cuts --------------------------------------------------------

    def _found(self) -> Iterator[Statement]:
        """What the cuts say, in registers."""
        s, first, last = self.code, self.low.at(integer(0)), self.low.at(integer(1))
        yield self.own.set(s.sub(last, first))
        yield self.near.set(s.add(self.begin.value, first))
        middle = s.add(self.begin.value, self.left.value)
        yield self.far.set(s.add(middle, s.sub(self.diagonal.value, last)))

    def _take(self, row: Value, read: Read, place: Value) -> Body:
        s = self.code
        is_near = s.less(place, self.own.value)
        at = s.add(place, s.select(is_near, self.near.value, self.far.value))
        return self.hold(place, read(row, s.min(at, integer(self.size - 1))))

    def _join(self, thread: Value) -> Iterator[Statement]:
        s = self.code
        own, total = s.cast(self.own.value, COUNT), s.cast(self.total.value, COUNT)
        place = s.mul(s.cast(thread, COUNT), self.tile.items)
        runs = s.const(0, COUNT), own, s.sub(total, own)
        goal = s.add(place, self.half)
        return self.joined(runs, s.min(place, total), goal, self.half.bit_length())

    def _give(self, row: Value, tile: Value, output: Output, place: Value) -> Body:
        s = self.code
        position = s.add(s.mul(tile, integer(self.tile.size)), place)
        put = output.put(row, position, self.held(s.sum(place, self.half)))
        return (When(s.less(place, self.total.value), put),)


def _constant(number: int) -> Memory:
    """Memory that holds a number: kernels that differ in nothing else are one."""
    return Memory(TensorType((1,), INDEX), "constant", data=np.array([number], INDEX))
