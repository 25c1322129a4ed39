"""What caches fetch for later while a block of a matrix product is computed.

Each turn along the depth has a little of it fetched: rows of memory that are packed after this
piece, or panels that tasks find packed and meet next. A block that met them in memory would wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import ceil

from weft.compiler.loops import SECOND, Ahead, Statement, Value, integer, walk
from weft.compiler.passes.contract_blocks import LINE
from weft.compiler.passes.contract_frame import (
    Frame,
    Packed,
    Span,
    ceiling,
    folded,
    less,
    selected,
)
from weft.compiler.polynomial import add, divide, larger, multiply, remainder, smaller, subtract
from weft.compiler.rebuild import Statements, rebuild


@dataclass(frozen=True)
class Later:
    """What the turns of a block have fetched."""

    start: Value  # where the first turn begins
    step: int  # elements from one turn to the next
    lines: Callable[[Value], Statements]  # that a turn has fetched from there


@dataclass(frozen=True)
class Following:
    """Writes what the blocks of one piece of a tile have fetched."""

    frame: Frame
    rows: Span
    columns: Span
    depth: Span

    def later(self, p: Value, q: Value, into: list[Statement]) -> Later | None:
        """What the block has fetched where these panels meet, if it does."""
        if self.frame.block.ahead:
            return self.to_pack(p, q, into)
        if not self.frame.block.fetches:
            return None
        return (self.columns_next if self.frame.block.rows_inside else self.packed)(p, q, into)

    def to_pack(self, p: Value, q: Value, into: list[Statement]) -> Later:
        """Memory of the right factor that is packed after this piece.

        Blocks go along one row of it after another, and the last ones are through with them.
        """
        f, b, product, size = self.frame, self.frame.block, self.frame.product, self._line
        along = b.ahead * (b.depth // b.turn) * size
        parts = ceil(b.tile_columns / along)
        early = max(f.high * f.wide - b.depth * parts, 0)
        block = larger(subtract(add(multiply(q, f.high), p), early), 0)
        block = f.let("block", block, into)
        row = f.let("later_row", add(self._next, divide(block, parts)), into)
        column = add(self.columns.start, multiply(remainder(block, parts), along))

        def lines(at: Value) -> Statements:
            made: list[Statement] = []
            for i in range(b.ahead):
                names = {product.depth[0]: row, product.column[0]: add(at, i * size)}
                made += elements([rebuild(product.right, folded, names)])
            return tuple(made)

        return Later(f.let("later_column", column, into), b.ahead * size, lines)

    def columns_next(self, p: Value, q: Value, into: list[Statement]) -> Later | None:
        """The packed panel of columns that comes next, which blocks of this one share."""
        f, b = self.frame, self.frame.block
        if not f.right_ready:
            return None
        column = add(self.columns.start, multiply(add(q, 1), b.columns))
        first = f.right.panel(column, self.depth)
        start = add(first, multiply(p, self._share(f.right, 1, f.high)))
        return self._lines(f.right, f.let("later", start, into))

    def packed(self, p: Value, q: Value, into: list[Statement]) -> Later | None:
        """Packed panels that come next, for the second cache.

        Blocks of one panel of rows share the next one among them. All blocks share the panels of
        columns of the next piece, as those of a piece are met again and again. Where both are to be
        fetched, blocks take turns.
        """
        f = self.frame
        rows = f.left_ready
        columns = f.right_ready and f.pieces and (f.left.number == f.right.number or not rows)
        if not (rows or columns):
            return None
        kinds = rows + columns
        each, place = ceil(f.wide / kinds), f.let("place", divide(q, integer(kinds)), into)
        after = Span(self._next, smaller(subtract(f.product.depth[1], self._next), f.block.depth))
        starts: list[Value] = []
        if rows:
            first = add(self._next_rows(p, after), multiply(place, self._share(f.left, 1, each)))
            starts.append(first)
        if columns:
            part = self._share(f.right, f.wide, each * f.high)
            first = f.right.panel(self.columns.start, after)
            starts.append(add(first, multiply(add(multiply(p, each), place), part)))
        is_even = less(remainder(q, integer(kinds)), integer(1))
        start = f.let("later", selected(is_even, starts[0], starts[-1]), into)
        return self._lines(f.left if rows else f.right, start)

    def _lines(self, array: Packed, start: Value) -> Later:
        """One line of a packed factor after another, for the second cache."""
        return Later(start, self._line, lambda at: (Ahead(array.at(at), SECOND),))

    def _next_rows(self, p: Value, after: Span) -> Value:
        """Where the next panel of rows begins; after the last one, the first of the next piece."""
        f, b = self.frame, self.frame.block
        row = add(self.rows.start, multiply(add(p, 1), b.rows))
        following = f.left.panel(row, self.depth)
        if not f.pieces:
            return following
        is_last = less(subtract(ceiling(self.rows.count, b.rows), 2), p)
        return selected(is_last, f.left.panel(self.rows.start, after), following)

    def _share(self, array: Packed, panels: int, blocks: int) -> int:
        """Elements, in whole lines, that each of several blocks has fetched of some panels."""
        lines = ceil(panels * array.width * self.frame.block.depth / self._line)
        return ceil(lines / blocks) * self._line

    @property
    def _line(self) -> int:
        """Elements that memory gives at a time."""
        return LINE // self.frame.dtype.itemsize

    @property
    def _next(self) -> Value:
        """The point of the depth at which the next piece begins."""
        return add(self.depth.start, self.frame.block.depth)


def elements(factors: Iterable[Value]) -> Iterator[Ahead]:
    """What factors read at places that are computed: an index that is read may lie anywhere."""
    for x in walk(*factors):
        if x.op == "load" and all(part.op != "load" for part in walk(*x.args)):
            yield Ahead(x)
