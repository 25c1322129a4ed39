"""Choose the blocks of a product that is multiplied in tiles or by words; no bit depends on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from weft.compiler.choice import Choice
from weft.compiler.emit_words import rows_at_once
from weft.compiler.loops import PIECE
from weft.compiler.passes.contract_blocks import UNKNOWN, Block, forced_path
from weft.compiler.passes.contract_match import Product
from weft.compiler.passes.contract_registers import balanced
from weft.compiler.passes.tiles_pack import BYTES, EDGE
from weft.compiler.polynomial import known
from weft.core.common.dtypes import bfloat16, int8
from weft.core.common.types import DType

DEEP = 2048  # bytes of the depth in one piece, at most: sums that wait for the next one cost more
TALL = 1024  # rows of a task, at most: each packs its columns
WIDE = 512  # columns of a task, at most
SLIM = 256  # the same if tasks must be many: columns are more work to pack than rows are
TASKS = 8  # tasks, at least, if rows are many enough
SHORT = 64  # rows of a task that is not made shorter
HELD_ROWS = 256  # rows of a task that packs them all while columns pass by: as many blocks hold
WAITING = 1 << 18  # sums of such a task that wait for the next piece of the depth, at most
PART = 8  # groups of the depth that a task packs of a factor that is packed before
QUAD_ROWS = 24  # of a block: twice as many as registers hold


@dataclass(frozen=True)
class Fit:
    """What blocks must fit: factors in tiles or `words`, the lanes of a sum, rows of all tasks."""

    dtype: DType
    words: bool
    lanes: int
    choice: Choice
    tall: int = 0  # rows of a task, if that is given

    @property
    def group(self) -> int:
        """Points of the depth in a group."""
        return BYTES // self.dtype.itemsize

    @property
    def is_quads(self) -> bool:
        """Whether words are four bytes."""
        return self.words and self.dtype == int8

    @property
    def deep(self) -> int:
        """Points of the depth in one piece, at most."""
        return self.choice.deep or DEEP // self.dtype.itemsize

    def block(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows and columns of a block."""
        high, wide = (EDGE if size <= EDGE else 2 * EDGE for size in (rows, columns))
        if self.is_quads and rows > EDGE and self.tall % QUAD_ROWS == 0:
            high = QUAD_ROWS
        return high, wide

    def made(self, tile: tuple[int, int], block: tuple[int, int], deep: int) -> Block:
        """The block of these sizes, whose factors are packed."""
        high, wide = block
        lanes = min(self.lanes, wide)
        found = Block(high, wide // lanes, lanes, *tile, deep, True, True)
        if self.tall and self.tall % high == 0:
            return replace(found, tile_rows=self.tall)
        return found


def sizes_of(product: Product) -> tuple[int, int, int]:
    """Rows, columns and depth, those that are not known taken for large."""
    extents = (product.row[1], product.column[1], product.depth[1])
    rows, columns, depth = (UNKNOWN if (n := known(e)) is None else n for e in extents)
    return rows, columns, depth


def cut(product: Product, fit: Fit) -> Block:
    """The cut of a product whose tasks pack both factors."""
    rows, columns, depth = (max(size, 1) for size in sizes_of(product))
    choice, group = fit.choice, fit.group
    high, wide = fit.block(rows, columns)
    deep = balanced(depth, max(fit.deep // group * group, group), group)
    tile_columns = balanced(columns, SLIM if choice.tasks > TASKS else WIDE, wide)
    tiles = ceil(columns / tile_columns)
    tall = min(choice.tall or TALL, max(ceil(rows * tiles / max(choice.tasks, TASKS)), SHORT))
    tile_rows = balanced(rows, max(tall // high * high, high), high)
    if forced_path() == "pieces":
        tile_rows, tile_columns, deep = 2 * high, 2 * wide, group
    if fit.words and fit.dtype == bfloat16:  # pieces of the depth are those of any other sum
        deep = min(ceil(depth / group) * group, PIECE)
    few = rows <= EDGE and rows_at_once(fit.dtype, rows, wide) == rows
    if fit.words and few:  # they are not filled up
        high = tile_rows = rows
    return fit.made((tile_rows, tile_columns), (high, wide), deep)


def cut_packed(product: Product, fit: Fit) -> Block:
    """The same where the right factor is packed before: a task packs all its rows at once.

    All its columns pass by them, so that each of its rows is packed once.
    """
    rows, columns, depth = (max(size, 1) for size in sizes_of(product))
    choice, group = fit.choice, fit.group
    high, wide = fit.block(rows, columns)
    step = group if depth <= fit.deep else PART * group
    deep = balanced(depth, max(fit.deep // step * step, step), step)
    wanted = max(choice.tasks, TASKS)
    tall = min(choice.tall or HELD_ROWS, max(ceil(rows / wanted), SHORT))
    tile_rows = balanced(rows, ceil(tall / high) * high, high)
    parts = ceil(wanted / ceil(rows / tile_rows))
    most = max(ceil(columns / parts), SLIM)
    if deep < depth:
        most = min(most, max(WAITING // tile_rows, SLIM))
    tile_columns = balanced(columns, max(most // wide * wide, wide), wide)
    if forced_path() == "shared":
        tile_rows, tile_columns, deep = 2 * high, 2 * wide, 2 * group
    return fit.made((tile_rows, tile_columns), (high, wide), deep)
