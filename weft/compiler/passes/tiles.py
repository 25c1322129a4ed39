"""Schedule a product whose blocks of sums are multiplied by instructions on tiles.

    for each piece of the depth:
        pack the columns of the right factor
        for each panel of rows:
            pack the panel of the left factor
            for each panel of columns: Tiles, and after the last piece what is made of the sums

Products of bfloat16 all go this way, where a processor has tiles: whatever their shape, a sum takes
groups of 32 points of the depth in order, so no cut shows. Those of int8 go where it pays. Where it
has pairs of bfloat16 instead, pieces of the depth are those of any other sum of products.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from weft.compiler.choice import USUAL, Choice
from weft.compiler.emit_pairs import HELD
from weft.compiler.emit_tiles import feature_of
from weft.compiler.loops import PIECE, Kernel, Statement, Tiles, Value, get, integer
from weft.compiler.narrow import has_narrow_product, widened
from weft.compiler.passes.contract_blocks import UNKNOWN, Block, forced_path
from weft.compiler.passes.contract_frame import ZERO, Frame, Span, ceiling, less, when
from weft.compiler.passes.contract_match import Product, match, runs_along
from weft.compiler.passes.contract_registers import balanced
from weft.compiler.passes.contract_tasks import tasks
from weft.compiler.passes.tiles_pack import BYTES, EDGE, Columns, Rows, there_are, words_of
from weft.compiler.polynomial import (
    add,
    known,
    larger,
    multiply,
    smaller,
    subtract,
)
from weft.compiler.rebuild import Scope, Statements, assigned_locals
from weft.core.common.dtypes import bfloat16, int8
from weft.core.common.types import DType

DEEP = 2048  # bytes of the depth in one piece, at most: sums that wait for the next one cost more
TALL = 1024  # rows of a task, at most: each packs its columns
WIDE = 512  # columns of a task, at most
SLIM = 256  # the same if tasks must be many: columns are more work to pack than rows are
TASKS = 8  # tasks, at least, if rows are many enough
SHORT = 64  # rows of a task that is not made shorter
FEW = 16  # rows, columns or words of depth, below which bytes are multiplied otherwise
_SUMS = {bfloat16: np.dtype(np.float32), int8: np.dtype(np.int32)}


def in_tiles(
    kernel: Kernel,
    native: frozenset[str],
    vector_bytes: int,
    choice: Choice = USUAL,
    *,
    pieces: int = 0,
    tall: int = 0,
) -> Kernel | None:
    """The kernel scheduled, if it is a product that goes by tiles; None for any other.

    The arguments are those of `contract`. No product here waits for others, so `pieces` cut none.
    """
    narrow = has_narrow_product(kernel)
    if not narrow and feature_of(int8) not in native:
        return None
    if not narrow and (pieces or forced_path() in ("direct", "turned", "scalar")):
        return None
    scope = Scope(widened(kernel))
    product = match(scope)
    dtype = None if product is None else _factors(product)
    if narrow:
        assert dtype == bfloat16, f"{kernel.name}: no product for tiles"
    if product is None or dtype is None or not (narrow or (dtype == int8 and _is_worth(product))):
        return None
    pairs = dtype == bfloat16 and feature_of(dtype) not in native
    given = product
    if not tall:
        product = _flat(product) if pairs else _oriented(product)
    product = replace(product, left=product.left.args[0], right=product.right.args[0])
    cut = _cut_for_pairs if pairs else _cut
    block = cut(product, dtype, vector_bytes // _SUMS[dtype].itemsize, choice)
    if tall and tall % block.rows == 0:
        block = replace(block, tile_rows=tall)
    task = _Task(scope, product, block, dtype, pairs)
    loop = tasks(task, lambda rows, columns, _: _tile(task, rows, columns))
    whole = product.row is given.row and product.in_order
    rows = product.row[1] if whole else None
    notes = {"tasks": loop.stop, "contract": block, "rows": rows, "pieces": 0}
    return scope.kernel_with((loop,), **notes)


def _factors(product: Product) -> DType | None:
    """The dtype of both factors before they were widened, if tiles may hold it."""
    left, right = product.left, product.right
    if left.op != "cast" or right.op != "cast":
        return None
    found = left.args[0].dtype
    same = found == right.args[0].dtype and _SUMS.get(found) == left.dtype
    return found if same else None


def _sizes(product: Product) -> tuple[int, int, int]:
    """Rows, columns and depth."""
    extents = (product.row[1], product.column[1], product.depth[1])
    rows, columns, depth = (UNKNOWN if (n := known(e)) is None else n for e in extents)
    return rows, columns, depth


def _is_worth(product: Product) -> bool:
    """Whether a product is large enough for tiles that another way gives the same bits."""
    rows, columns, depth = _sizes(product)
    return rows >= FEW and columns >= FEW and depth >= 4 * FEW


def _oriented(product: Product) -> Product:
    """The product or its transpose: a matrix by few vectors is packed without being turned.

    That is, as the left factor if it lies along the depth, and else as the right one.
    """
    rows, columns, _ = _sizes(product)
    if min(rows, columns) >= EDGE:
        return product
    is_left = rows > columns
    large = product.left if is_left else product.right
    return product if runs_along(large, product.depth[0]) == is_left else product.swapped()


def _flat(product: Product) -> Product:
    """The product or its transpose: pairs take any number of rows, but columns by the vector."""
    rows, columns, _ = _sizes(product)
    return product.swapped() if columns < min(rows, EDGE) else product


def _cut(product: Product, dtype: DType, lanes: int, choice: Choice) -> Block:
    """How a product is cut; no bit depends on it."""
    rows, columns, depth = (max(size, 1) for size in _sizes(product))
    group = BYTES // dtype.itemsize
    high, wide = (EDGE if size <= EDGE else 2 * EDGE for size in (rows, columns))
    most = choice.deep or DEEP // dtype.itemsize
    deep = balanced(depth, max(most // group * group, group), group)
    tile_columns = balanced(columns, SLIM if choice.tasks > TASKS else WIDE, wide)
    tiles = ceil(columns / tile_columns)
    tall = min(choice.tall or TALL, max(ceil(rows * tiles / max(choice.tasks, TASKS)), SHORT))
    tile_rows = balanced(rows, max(tall // high * high, high), high)
    if forced_path() == "pieces":
        tile_rows, tile_columns, deep = 2 * high, 2 * wide, group
    lanes = min(lanes, wide)
    return Block(high, wide // lanes, lanes, tile_rows, tile_columns, deep, True, True)


def _cut_for_pairs(product: Product, dtype: DType, lanes: int, choice: Choice) -> Block:
    """The same for pairs: each piece of the depth is one of the sum, few rows are not filled up."""
    block = _cut(product, dtype, lanes, choice)
    rows, _, depth = _sizes(product)
    if 0 < rows <= HELD * EDGE // block.columns:
        block = replace(block, rows=rows, tile_rows=rows)
    group = BYTES // dtype.itemsize
    return replace(block, depth=min(ceil(max(depth, 1) / group) * group, PIECE))


class _Task(Frame):
    """The arrays of a task."""

    def __init__(
        self, scope: Scope, product: Product, block: Block, dtype: DType, pairs: bool
    ) -> None:
        self.scope, self.product, self.block, self.pairs = scope, product, block, pairs
        self.dtype = _SUMS[dtype]
        depth = known(product.depth[1])
        self.pieces = depth is None or depth > block.depth
        self.left_ready = self.right_ready = False
        self.waits = None
        b = block
        self.panel = words_of(b.depth, b.columns, dtype.itemsize)
        self.high, self.wide = b.tile_rows // b.rows, b.tile_columns // b.columns
        local, size = scope.local, b.rows * b.columns
        deep = ceil(b.depth * dtype.itemsize / BYTES) * BYTES // dtype.itemsize
        self.left_array = local("left", dtype, 1, b.rows * deep)
        self.right_array = local("right", np.dtype(np.int32), 1, self.panel * self.wide)
        blocks = self.high * self.wide if self.pieces else 1
        self.tile = local("sums", self.dtype, 1, size * blocks)
        self.group = BYTES // dtype.itemsize
        self.in_lanes = {
            number: local(scope.locals[number].name, scope.locals[number].dtype, b.lanes)
            for number in sorted(assigned_locals(product.epilogue))
        }


def _tile(task: _Task, rows: Span, columns: Span) -> Statements:
    """Everything for these rows and columns."""
    depth, deep = task.product.depth[1], task.block.depth
    if not task.pieces:
        return _piece(_Piece(task, rows, columns, Span(ZERO, depth), True, True))
    pieces = larger(ceiling(depth, deep), 1)

    def body(at: Value) -> Statements:
        made: list[Statement] = []
        start = task.let("start", multiply(at, deep), made)
        count = smaller(subtract(depth, start), deep)
        if known(depth) is not None:
            count = there_are(start, depth, deep)
        count = task.let("count", count, made)
        first, last = less(at, integer(1)), less(subtract(pieces, 2), at)
        return (*made, *_piece(_Piece(task, rows, columns, Span(start, count), first, last)))

    return task.loop("piece", pieces, body)


@dataclass(frozen=True)
class _Piece:
    """One piece of the depth of a task."""

    task: _Task
    rows: Span
    columns: Span
    depth: Span
    first: Value | bool
    last: Value | bool

    def block(self, p: Value, q: Value) -> Statements:
        """The block where two panels meet."""
        t, b, made = self.task, self.task.block, list[Statement]()
        slot: Value = ZERO
        if t.pieces:
            slot = multiply(add(multiply(p, t.wide), q), b.rows * b.columns)
            slot = t.let("slot", slot, made)
        panel = t.let("panel", multiply(q, t.panel), made)
        groups = t.let("groups", ceiling(self.depth.count, t.group), made)
        places = (slot, ZERO, panel)
        arrays = (t.tile, t.left_array, t.right_array)
        fresh, more = (
            Tiles(*arrays, places, b.rows, b.columns, groups, each, t.pairs)
            for each in (True, False)
        )
        made += when(self.first, (fresh,), (more,))
        return (*made, *when(self.last, self.finish(p, q, slot)))

    def finish(self, p: Value, q: Value, slot: Value) -> Statements:
        """What is made of the sums of a block, for those rows and columns that there are."""
        t, b, made = self.task, self.task.block, list[Statement]()
        row = t.let("row", add(self.rows.start, multiply(p, b.rows)), made)
        column = t.let("column", add(self.columns.start, multiply(q, b.columns)), made)

        def at(i: Value, j: Value, lanes: int) -> Statements:
            kept = get(t.tile, t.dtype, add(slot, add(multiply(i, b.columns), j)))
            return t.epilogue(add(row, i), add(column, j), kept, lanes)

        return (*made, *t.each(row, column, at))


def _piece(piece: _Piece) -> Statements:
    """Pack the panels of one piece of the depth, and multiply them."""
    t, b, product = piece.task, piece.task.block, piece.task.product
    rows, columns, depth = piece.rows, piece.columns, piece.depth
    made: list[Statement] = []
    wide = t.let("wide", ceiling(columns.count, b.columns), made)
    right = Columns(t, product.right, product.column, b.columns, t.right_array)
    left = Rows(t, product.left, product.row, b.rows, t.left_array)
    made += right.panels(columns, wide, depth, t.panel)

    def body(p: Value) -> Statements:
        found: list[Statement] = []
        start = t.let("from", add(rows.start, multiply(p, b.rows)), found)
        count = t.let("count", there_are(start, product.row[1], b.rows), found)
        found += left.panel(Span(start, count), depth)
        return (*found, *t.loop("panel", wide, lambda q: piece.block(p, q)))

    return (*made, *t.loop("panel", ceiling(rows.count, b.rows), body))
