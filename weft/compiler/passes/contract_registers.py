"""How many sums of a matrix product registers hold, and which block of them is the best."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import TypeAlias

from weft.compiler.choice import Choice

# Cycles that a vector of the right factor takes to read, and an element of the left one.
NEAR = 0.3, 0.05
PACKED = 1.8, 0.05  # with vectors of WIDEST bytes, from the second cache
PACKED_DEEP = 1.4, 0.25  # the same along a depth, where ports of the first cache count
AGAIN = 1.5  # reads of an element where every other one is read twice
UNUSUAL = 1.05  # how much better another block than the best for large products must be
ROOM = 2  # rows fewer than the best block's, which long vectors do as well with
EDGE = 1.04  # what an edge costs beyond its blocks: code of its own
MOST_EDGE = 0.1  # part of a product beyond which more of it at the edge is not counted
WIDEST = 64  # bytes of the longest vectors there are
TWO = 2  # such vectors of a block, of which every other row is read twice, see `contract_reads`
FEW_REGISTERS = 16  # hold sums and little else
LONELY = 0.15  # cycles of a row that meets one vector alone, then: sums move between registers

Pair: TypeAlias = tuple[int, int]  # of rows and columns


@dataclass(frozen=True)
class Registers:
    """What decides how many sums registers hold."""

    lanes: int
    registers: int
    vector_bytes: int
    choice: Choice
    tall: int  # a multiple of the rows
    step: int = 1  # rows are a multiple of it, if registers hold so many
    most: int = 16  # rows
    packed: bool = False  # whether vectors of WIDEST bytes come packed, two at least
    deep: bool = False  # whether the depth hides what beginning and ending such a block costs
    points: int = 0  # rows and columns of such a block together, at most

    @property
    def usual(self) -> Pair:
        """(rows, vectors) of a block for large products."""
        choice = self.choice
        if choice.rows and choice.vectors * (choice.rows + 1) < self.registers:
            return choice.rows, choice.vectors
        if self.registers == FEW_REGISTERS:
            return 6, 2
        return (14, 2) if self.vector_bytes == WIDEST and not self.deep else (8, 3)

    def block(self, rows: int, columns: int) -> Pair:
        """(rows, vectors) of the block that needs the fewest cycles for so many of them."""
        lanes = self.lanes

        def cycles(block: Pair) -> tuple[float, int]:
            high, vectors = block
            blocks = ceil(max(rows, 1) / high) * ceil(max(columns, 1) / (vectors * lanes))
            # Two multiplications a cycle, four cycles until a sum can be added to, and loads.
            each = max(high * vectors / 2, 4) + self._reading(block) + 0.2
            each += lonely(block, self.registers)
            each *= 1 if self._is_usual(block) else UNUSUAL
            each *= self._edge(rows, high)
            each *= 1 if columns % (vectors * lanes) == 0 else EDGE
            return blocks * each, blocks * high * vectors

        return min(self._candidates(), key=cycles)

    def _reading(self, block: Pair) -> float:
        """Cycles that reading both factors takes."""
        rows, vectors = block
        vector, element = PACKED_DEEP if self.deep else PACKED if self.packed else NEAR
        again = self.deep and vectors == TWO
        return vector * vectors + element * rows * (AGAIN if again else 1)

    def _is_usual(self, block: Pair) -> bool:
        """Whether a block is the one for large products, or as good: long vectors have room."""
        (rows, vectors), (high, wide) = self.usual, block
        room = ROOM if self.vector_bytes == WIDEST else 0
        return vectors == wide and 0 <= rows - high <= room

    def _edge(self, rows: int, high: int) -> float:
        """What rows at the edge cost beyond their blocks: with long vectors, as much again."""
        if rows % high == 0:
            return 1.0
        return 1 + min(high / rows, MOST_EDGE) if self.vector_bytes == WIDEST else EDGE

    def _candidates(self) -> Iterator[Pair]:
        most, wide = (self.most, 8) if self.lanes > 1 else (8, 1)
        sums = self.registers if self.deep else self.usual[0] * self.usual[1]
        step = self.step if self.step <= min(most, sums) else 1
        for vectors in range(2 if self.packed else 1, wide + 1):
            for high in range(step, most + 1, step):
                fits = high * vectors <= sums and high * vectors + vectors < self.registers
                if fits and self._are_near((high, vectors)) and self.tall % high == 0:
                    yield high, vectors

    def _are_near(self, block: Pair) -> bool:
        """Whether a cache holds as much of both factors as is wanted of a depth: always the usual.

        Sums of shorter parts of the depth would be read and written more often.
        """
        points, usual = (high + vectors * self.lanes for high, vectors in (block, self.usual))
        return not self.deep or points <= max(self.points, usual)


def lonely(block: Pair, registers: int) -> float:
    """Cycles that a block of one vector takes beyond its products, if registers are few.

    Each product then has a read of its own, into a register that takes the sum.
    """
    rows, vectors = block
    return LONELY * rows if vectors == 1 and registers <= FEW_REGISTERS else 0.0


def balanced(extent: int, most: int, step: int) -> int:
    """A size of pieces, at most `most`, that cuts an extent evenly; a multiple of `step`."""
    pieces = ceil(extent / most)
    return ceil(extent / pieces / step) * step
