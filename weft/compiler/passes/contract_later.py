"""What caches fetch for later while a block of a matrix product is computed.

Each turn along the depth has a little of it fetched: rows of memory that are packed after this
piece, panels that tasks find packed and meet next, what the block is finished with, or what the
next one of many products reads. A block that met them in memory would wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import TypeAlias

from weft.compiler.loops import (
    INDEX,
    SECOND,
    Ahead,
    Assign,
    Statement,
    Value,
    expressions,
    get,
    integer,
    value,
    walk,
)
from weft.compiler.passes.contract_blocks import FAR, LINE
from weft.compiler.passes.contract_frame import (
    ZERO,
    Frame,
    Packed,
    Span,
    ceiling,
    folded,
    less,
    selected,
)
from weft.compiler.passes.contract_registers import WIDEST
from weft.compiler.polynomial import (
    add,
    divide,
    hides,
    known,
    larger,
    multiply,
    number,
    remainder,
    smaller,
    stride,
    subtract,
)
from weft.compiler.rebuild import Scope, Statements, rebuild

Part: TypeAlias = tuple[Value, int]  # an axis, and how many of its points
MOST = 4  # lines of one array that a turn has fetched


@dataclass(frozen=True)
class Later:
    """What the turns of a block have fetched."""

    start: Value  # where the first turn begins
    step: int  # elements from one turn to the next
    lines: Callable[[Value], tuple[Ahead, ...]]  # that a turn has fetched from there


class Fetching:
    """Fetches it, from places that the turn before has found: addresses are ready when one begins.

    Else a place that takes a division would be found among the products, whose sums would leave
    their registers for it.
    """

    def __init__(self, scope: Scope, later: Later) -> None:
        self._later = later
        self._at = scope.local("later_at", INDEX)
        self._lines = later.lines(get(self._at, INDEX))
        self._places = [scope.local("line_at", INDEX) for _ in self._lines]

    def start(self) -> Statements:
        """Before the first turn."""
        return (Assign(self._at, self._later.start), *self._found())

    def fetch(self) -> Statements:
        """What a turn fetches."""
        pairs = zip(self._places, self._lines, strict=True)
        return tuple(replace(line, source=_moved(line.source, place)) for place, line in pairs)

    def move(self) -> Statements:
        """What a turn does for the next one."""
        further = add(get(self._at, INDEX), self._later.step)
        return (Assign(self._at, further), *self._found())

    def _found(self) -> Statements:
        pairs = zip(self._places, self._lines, strict=True)
        return tuple(Assign(place, line.source.args[0]) for place, line in pairs)


def _moved(x: Value, place: int) -> Value:
    return value(x.op, (get(place, INDEX),), x.dtype, x.data)


@dataclass(frozen=True)
class Runs:
    """Neighbours in memory that a load reads, several times as many."""

    source: Value
    high: Part
    wide: Part

    @property
    def across(self) -> int:
        """Lines of memory in each run."""
        return ceil(self.wide[1] * self.source.dtype.itemsize / LINE)

    @property
    def lines(self) -> int:
        """Lines of memory in all of them."""
        return self.high[1] * self.across

    def line(self, at: Value, names: Mapping[Value, Value]) -> Ahead:
        """Fetch one of the lines; runs begin where `names` say, or at zero."""
        run = divide(at, self.across)
        along = subtract(at, multiply(run, self.across))
        steps = run, multiply(along, LINE // self.source.dtype.itemsize)
        places = dict(names)
        for (axis, _), step in zip((self.high, self.wide), steps, strict=True):
            places[axis] = add(names.get(axis, ZERO), step)
        return Ahead(rebuild(self.source, folded, places), SECOND)


@dataclass(frozen=True)
class Following:
    """Writes what the blocks of one piece of a tile have fetched."""

    frame: Frame
    rows: Span
    columns: Span
    depth: Span
    turn: int  # points of the depth that a turn takes

    def packed_later(self, p: Value, q: Value, into: list[Statement]) -> Later | None:
        """What is packed, or was, and will be met after these panels, if anything is fetched of it.

        The block where they meet takes both from where they were packed.
        """
        if self.frame.block.ahead:
            return self.to_pack(p, q, into)
        if not self.frame.block.fetches:
            return None
        return (self.columns_next if self.frame.block.rows_inside else self.packed)(p, q, into)

    def read_later(
        self, p: Value, q: Value, here: tuple[Value, Value], into: list[Statement]
    ) -> list[Later]:
        """What is read as it lies after the products where these panels meet, which is `here`."""
        f, b = self.frame, self.frame.block
        if b.lanes * f.dtype.itemsize != WIDEST or f.waits is not None or b.ahead:
            return []
        made = self.next_rows(p, q, into)
        if not f.pieces:
            made += self.next_product(p, q, into) or self.to_finish(here)
        return made

    def next_rows(self, p: Value, q: Value, into: list[Statement]) -> list[Later]:
        """What is packed of the left factor for the next panel."""
        f, b, product = self.frame, self.frame.block, self.frame.product
        if not b.pack_left or f.left_ready or b.rows_inside:
            return []
        row, depth = product.row[0], product.depth[0]
        following = smaller(add(p, 1), subtract(ceiling(self.rows.count, b.rows), 1))
        start = add(self.rows.start, multiply(following, b.rows))
        deep = known(self.depth.count) or b.depth
        loads = list(runs([product.left], (row, b.rows), (depth, deep)))
        if not loads:
            return []
        starts = {row: f.let("next_row", start, into), depth: self.depth.start}
        return [x for each in loads if (x := self._spread(each, q, f.wide, starts))]

    def to_finish(self, here: tuple[Value, Value]) -> list[Later]:
        """What the epilogue of the block reads, whose first row and column are `here`."""
        b, product = self.frame.block, self.frame.product
        axes = product.row[0], product.column[0]
        loads = runs(self._finishing, (axes[0], b.rows), (axes[1], b.columns))
        starts = dict(zip(axes, here, strict=True))
        return [x for each in loads if (x := self._spread(each, ZERO, 1, starts))]

    def next_product(self, p: Value, q: Value, into: list[Statement]) -> list[Later]:
        """What the next batch reads, if each is a task, and all of them are more than is near."""
        f, b, product = self.frame, self.frame.block, self.frame.product
        row, column, depth = (
            (axis, known(extent) or 0)
            for axis, extent in (product.row, product.column, product.depth)
        )
        is_task = row[1] <= b.tile_rows and column[1] <= b.tile_columns and depth[1] > 0
        if not (b.goes_on and product.batch and is_task):
            return []
        found = list(runs(self._finishing, row, column))
        found += () if f.left_ready else runs([product.left], row, depth)
        found += () if f.right_ready else runs([product.right], column, depth)
        size = sum(each.lines for each in found) * LINE
        if size * prod(known(extent) or 1 for _, extent in product.batch) < FAR:
            return []
        inner, blocks = product.batch[-1][0], f.high * f.wide
        block = f.let("block", add(multiply(p, f.wide), q), into)
        after = {inner: add(inner, 1)}
        return [x for each in found if (x := self._spread(each, block, blocks, after))]

    def _spread(
        self, found: Runs, block: Value, blocks: int, names: Mapping[Value, Value]
    ) -> Later | None:
        """What one of several blocks has fetched of runs, a few lines in each turn."""
        turns = (known(self.depth.count) or self.frame.block.depth) // self.turn
        lines = ceil(found.lines / blocks)
        if lines > MOST * turns:
            return None

        def fetched(at: Value) -> tuple[Ahead, ...]:
            first = divide(at, turns)
            return tuple(found.line(add(first, i), names) for i in range(ceil(lines / turns)))

        return Later(multiply(block, lines * turns), lines, fetched)

    @property
    def _finishing(self) -> list[Value]:
        """The values of the epilogue."""
        return [x for s in self.frame.product.epilogue for x in expressions(s)]

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

        def lines(at: Value) -> tuple[Ahead, ...]:
            made: list[Ahead] = []
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


def runs(values: Iterable[Value], one: Part, other: Part) -> Iterator[Runs]:
    """What values read along one of two axes, for each point of the other."""
    for x in walk(*values):
        if x.op != "load" or any(part.op in ("load", "get") for part in walk(*x.args)):
            continue
        for high, wide in ((one, other), (other, one)):
            if number(stride(x.args[0], wide[0])) == 1 and hides(x.args[0], high[0]):
                yield Runs(x, high, wide)
                break


def elements(factors: Iterable[Value]) -> Iterator[Ahead]:
    """What factors read at places that are computed: an index that is read may lie anywhere."""
    for x in walk(*factors):
        if x.op == "load" and all(part.op != "load" for part in walk(*x.args)):
            yield Ahead(x)
