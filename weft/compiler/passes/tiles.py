"""Schedule a product whose blocks of sums are multiplied by instructions on tiles, or on words.

    for each piece of the depth:
        pack the columns of the right factor
        for each panel of rows:
            pack the panel of the left factor
            for each panel of columns: Tiles, and after the last piece what is made of the sums

Of a large product, another kernel packs the right factor before, once for all tasks. Then a task
packs all its rows, and one panel of columns after another passes by them.

Products of bfloat16 all go this way, where a processor has tiles: whatever their shape, a sum takes
groups of 32 points of the depth in order, so no cut shows. Those of int8 go where it pays. Where it
has vectors that multiply words instead, pairs of bfloat16 or four bytes, panels are the same, and
pieces of the depth of pairs are those of any other sum of products. Bytes of one factor count as
unsigned there: they are packed as 128 more, and what that adds to a row's sums comes off at last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial, reduce
from math import ceil
from typing import Any

import numpy as np

from weft.compiler.build import Builder
from weft.compiler.choice import USUAL, Choice
from weft.compiler.emit_tiles import feature_of
from weft.compiler.emit_words import words_feature
from weft.compiler.loops import (
    Assign,
    Buffer,
    Kernel,
    Loop,
    Statement,
    Tiles,
    Value,
    const,
    expressions,
    get,
    integer,
    value,
)
from weft.compiler.narrow import has_narrow_product, widened
from weft.compiler.passes.contract_blocks import Block, forced_path
from weft.compiler.passes.contract_frame import ZERO, Frame, Packed, Span, ceiling, less, when
from weft.compiler.passes.contract_match import Product, match, runs_along
from weft.compiler.passes.contract_shared import Packing, read_by
from weft.compiler.passes.contract_tasks import tasks
from weft.compiler.passes.tiles_cut import PART, Fit, cut, cut_packed, sizes_of
from weft.compiler.passes.tiles_pack import BYTES, EDGE, WORD, Columns, Rows, there_are, words_of
from weft.compiler.polynomial import (
    add,
    divide,
    known,
    larger,
    multiply,
    remainder,
    smaller,
    subtract,
)
from weft.compiler.rebuild import Scope, Statements, assigned_locals
from weft.core.common.dtypes import bfloat16, int8
from weft.core.common.types import DType

SOME = 16  # panels of columns, the same
FEW = 16  # rows, columns or words of depth, below which bytes are multiplied otherwise
_LOG_128 = 7
_SUMS = {bfloat16: np.dtype(np.float32), int8: np.dtype(np.int32)}


def in_tiles(
    kernel: Kernel,
    native: frozenset[str],
    vector_bytes: int,
    choice: Choice = USUAL,
    *,
    pieces: int = 0,
    tall: int = 0,
    packing: Packing | None = None,
) -> tuple[Kernel, ...]:
    """The kernels of a product that goes by tiles; none for any other.

    The arguments are those of `contract`. No product here waits for others, so `pieces` cut none.
    Where `packing` says so the right factor is packed before, by kernels as `contract_shared` has.
    """
    made: list[Kernel] = []
    for stage in ("packs", "sums", "keeps"):
        scope = Scope(widened(kernel))
        given = match(scope)
        dtype = None if given is None else _goes(kernel, given, native, pieces)
        if given is None or dtype is None:
            return ()
        words = feature_of(dtype) not in native
        product = given
        if not tall:
            product = _flat(product) if words else _oriented(product)
        product = replace(product, left=product.left.args[0], right=product.right.args[0])
        before = _before(product, None if words and dtype == bfloat16 else packing)
        if stage not in ("sums", before):
            continue
        fit = Fit(dtype, words, vector_bytes // _SUMS[dtype].itemsize, choice, tall)
        block = (cut_packed if before else cut)(product, fit)
        first = len(kernel.buffers)
        if before:
            buffer = Buffer("packed", WORD, "write" if stage == before else "read")
            scope.kernel = replace(scope.kernel, buffers=(*kernel.buffers, buffer))
        task = _Task(scope, product, block, dtype, words, first if before else None)
        loop = tasks(task, partial(_tile, task)) if stage == "sums" else _packing(task)
        whole = product.row is given.row and product.in_order
        notes = {"tasks": loop.stop, "rows": product.row[1] if whole else None, "pieces": 0}
        made.append(scope.kernel_with((loop,), **notes, **_notes(task, stage, before)))
    return tuple(made)


def _goes(kernel: Kernel, product: Product, native: frozenset[str], pieces: int) -> DType | None:
    """The dtype of the factors of a product that goes by tiles; None for any other."""
    dtype = _factors(product)
    if has_narrow_product(kernel):
        assert dtype == bfloat16, f"{kernel.name}: no product for tiles"
        return dtype
    if dtype != int8 or not {feature_of(int8), words_feature(int8)} & native:
        return None
    elsewhere = pieces or forced_path() in ("direct", "turned", "scalar")
    return dtype if _is_worth(product) and not elsewhere else None


def _before(product: Product, packing: Packing | None) -> str:
    """Which kernel packs the right factor before the sums: `packs`, `keeps`, or none."""
    if packing is None or product.batch:
        return ""
    if packing.lasts(product.right):
        return "keeps"
    return "packs" if any(packing.shared) else ""


def _notes(task: _Task, stage: str, before: str) -> dict[str, Any]:
    """What callers must know of a kernel."""
    notes: dict[str, Any] = {"contract": task.block}
    if not before:
        return notes
    assert task.shared is not None and task.shared.panels is not None
    depth = multiply(ceiling(task.product.depth[1], task.group), task.group)
    size = multiply(depth, multiply(task.shared.panels, task.shared.width))
    right = read_by(task.product.right)
    if stage == "packs":
        return notes | {"partials": (WORD, size), "packs": True}
    if stage == "keeps":
        return notes | {"kept": (WORD, size), "reads": right}
    others = [task.product.left, *(x for s in task.product.epilogue for x in expressions(s))]
    return notes | {"spared": right - read_by(*others)}


def _factors(product: Product) -> DType | None:
    """The dtype of both factors before they were widened, if tiles may hold it."""
    left, right = product.left, product.right
    if left.op != "cast" or right.op != "cast":
        return None
    found = left.args[0].dtype
    same = found == right.args[0].dtype and _SUMS.get(found) == left.dtype
    return found if same else None


def _is_worth(product: Product) -> bool:
    """Whether a product is large enough for tiles that another way gives the same bits."""
    rows, columns, depth = sizes_of(product)
    return rows >= FEW and columns >= FEW and depth >= 4 * FEW


def _oriented(product: Product) -> Product:
    """The product or its transpose: a matrix by few vectors is packed without being turned.

    That is, as the left factor if it lies along the depth, and else as the right one.
    """
    rows, columns, _ = sizes_of(product)
    if min(rows, columns) >= EDGE:
        return product
    is_left = rows > columns
    large = product.left if is_left else product.right
    return product if runs_along(large, product.depth[0]) == is_left else product.swapped()


def _flat(product: Product) -> Product:
    """The product or its transpose: words take any number of rows, but columns by the vector."""
    rows, columns, _ = sizes_of(product)
    return product.swapped() if columns < min(rows, EDGE) else product


class _Task(Frame):
    """The arrays of a task; the buffer `packed` has the right factor, if it is not None."""

    def __init__(
        self,
        scope: Scope,
        product: Product,
        block: Block,
        dtype: DType,
        words: bool,
        packed: int | None,
    ) -> None:
        self.scope, self.product, self.block, self.words = scope, product, block, words
        self.dtype, self.group = _SUMS[dtype], BYTES // dtype.itemsize
        depth = known(product.depth[1])
        self.pieces = depth is None or depth > block.depth
        self.left_ready = self.right_ready = False
        self.waits, self.shared = None, None
        b = block
        self.panel = words_of(b.depth, b.columns, dtype.itemsize)
        self.high, self.wide = b.tile_rows // b.rows, b.tile_columns // b.columns
        local, size = scope.local, b.rows * b.columns
        self.rows = b.rows * ceil(b.depth / self.group) * self.group  # elements of a panel
        if packed is None:
            number = local("right", WORD, 1, self.panel * self.wide)
            self.right = Packed(number, WORD, b.columns, b.columns)
        else:
            panels = ceiling(product.column[1], b.columns)
            across = EDGE * b.columns // self.group
            self.right = self.shared = Packed(packed, WORD, across, b.columns, ZERO, panels)
        # For each row, lane by lane, what its sums have too much: bytes of columns are too large.
        self.beyond: int | None = None
        if words and dtype == int8:
            self.beyond = local("beyond", WORD, 1, b.tile_rows * EDGE)
        array = local("left", dtype, 1, self.rows * (1 if packed is None else self.high))
        self.left = Packed(array, dtype, b.rows, b.rows)
        blocks = self.high * self.wide if self.pieces else 1
        self.tile = local("sums", self.dtype, 1, size * blocks)
        self.in_lanes = {
            number: local(scope.locals[number].name, scope.locals[number].dtype, b.lanes)
            for number in sorted(assigned_locals(product.epilogue))
        }

    def columns(self) -> Columns:
        """What packs columns of the right factor."""
        product, width = self.product, self.block.columns
        beyond = self.beyond is not None
        return Columns(self, product.right, product.column, width, self.right, beyond)

    def place(self, column: Value, piece: Span) -> Value:
        """Where a panel from a column on begins, in the buffer, for a piece of the depth."""
        assert self.shared is not None
        whole = multiply(ceiling(piece.count, self.group), self.group)
        return self.shared.panel(column, Span(piece.start, whole))


def _packing(task: _Task) -> Loop:
    """Tasks that pack some columns of the right factor each, at some points of the depth."""
    number, made, width = task.scope.variable("task"), list[Statement](), task.block.columns
    (_, columns), (_, depth) = task.product.column, task.product.depth
    deep = task.block.depth
    part = task.group if forced_path() else min(PART * task.group, deep)
    across = ceiling(columns, SOME * width)
    column = task.let("column", multiply(remainder(number, across), SOME * width), made)
    count = task.let("columns", smaller(subtract(columns, column), SOME * width), made)
    start = task.let("start", multiply(divide(number, across), part), made)
    points = task.let("points", smaller(subtract(depth, start), part), made)
    first = task.let("piece", multiply(divide(start, deep), deep), made)
    piece = Span(first, task.let("deep", smaller(subtract(depth, first), deep), made))
    before = task.let("before", divide(subtract(start, first), task.group), made)

    def place(q: Value, group: Value) -> Value:
        panel = task.place(add(column, multiply(q, width)), piece)
        return add(panel, multiply(add(before, group), EDGE * width))

    wide = task.let("wide", ceiling(count, width), made)
    made += task.columns().panels(Span(column, count), wide, Span(start, points), place)
    total = multiply(across, ceiling(depth, part))
    return Loop(number, ZERO, total, tuple(made), "parallel")


def _tile(task: _Task, rows: Span, columns: Span, _: Value | None) -> Statements:
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
        groups = t.let("groups", ceiling(self.depth.count, t.group), made)
        left, ahead = ZERO, None
        if t.shared is None:
            panel = t.let("panel", multiply(q, t.panel), made)
        else:
            left = t.let("rows", multiply(p, t.rows), made)
            column = add(self.columns.start, multiply(q, b.columns))
            panel = t.let("panel", t.place(column, self.depth), made)
            # The next panel comes to the second cache while this one meets all rows.
            lines = ceil(b.columns / t.high)
            following = t.place(add(column, b.columns), self.depth)
            done = multiply(multiply(p, groups), lines * EDGE)
            ahead = t.let("ahead", add(following, done), made), lines
        fresh, more = (
            Tiles(
                *(t.tile, t.left.number, t.right.number),
                places=(slot, left, panel),
                rows=b.rows,
                columns=b.columns,
                groups=groups,
                fresh=each,
                words=t.words,
                shared=t.shared is not None,
                ahead=ahead,
            )
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
            if t.beyond is not None:
                more = get(t.beyond, WORD, multiply(add(multiply(p, b.rows), i), EDGE))
                kept = value("sub", (kept, more), WORD)
            return t.epilogue(add(row, i), add(column, j), kept, lanes)

        return (*made, *t.each(row, column, at))


def _piece(piece: _Piece) -> Statements:
    """Pack the panels of one piece of the depth, and multiply them."""
    t, b, product = piece.task, piece.task.block, piece.task.product
    rows, columns, depth = piece.rows, piece.columns, piece.depth
    made: list[Statement] = []
    wide = t.let("wide", ceiling(columns.count, b.columns), made)
    high = ceiling(rows.count, b.rows)

    def packed(p: Value, first: Value = ZERO) -> Statements:
        found: list[Statement] = []
        start = t.let("from", add(rows.start, multiply(p, b.rows)), found)
        count = t.let("count", there_are(start, product.row[1], b.rows), found)
        left = Rows(t, product.left, product.row, b.rows, t.left, first)
        found += left.panel(Span(start, count), depth)
        if t.beyond is not None:
            found += _beyond(piece, t.beyond, left, multiply(p, b.rows), count)
        return tuple(found)

    if t.shared is not None:
        high = t.let("high", high, made)
        made += t.loop("panel", high, lambda p: packed(p, multiply(p, t.rows)))
        inner = lambda q: t.loop("row", high, lambda p: piece.block(p, q))  # noqa: E731
        return (*made, *t.loop("panel", wide, inner))

    def place(q: Value, group: Value) -> Value:
        return add(multiply(q, t.panel), multiply(group, EDGE * b.columns))

    made += t.columns().panels(columns, wide, depth, place)

    def body(p: Value) -> Statements:
        return (*packed(p), *t.loop("panel", wide, lambda q: piece.block(p, q)))

    return (*made, *t.loop("panel", high, body))


def _beyond(piece: _Piece, array: int, packed: Rows, first: Value, rows: Value) -> Statements:
    """What bytes of the right factor that are 128 too large add to the sums of packed rows.

    It is added up lane by lane, and after the last piece all lanes are in the first one.
    """
    t, scope = piece.task, piece.task.scope
    total, groups = scope.local("total", WORD, EDGE), ceiling(piece.depth.count, t.group)
    s = Builder()

    def row(i: Value) -> Statements:
        made: list[Statement] = []
        at = t.let("beyond_at", multiply(add(first, i), EDGE), made)
        lane = scope.variable("lane")
        before = get(array, WORD, add(at, lane))

        def group(g: Value) -> Statements:
            bytes_of = [
                s.cast(get(packed.array.number, packed.array.dtype, packed.place(g, i, k)), WORD)
                for k in (add(lane, part) for part in range(0, t.group, EDGE))
            ]
            return (Assign(total, reduce(s.add, bytes_of, get(total, WORD))),)

        sums: Statements = (Assign(total, const(0, WORD)), *t.loop("group", groups, group))
        more = s.shift_left(get(total, WORD), s.const(_LOG_128, WORD))
        put = Assign(array, s.add(before, more), add(at, lane))
        sums += when(piece.first, (Assign(array, more, add(at, lane)),), (put,))
        made.append(Loop(lane, ZERO, integer(EDGE), sums, "vector", EDGE))
        lanes = [get(array, WORD, add(at, k)) for k in range(EDGE)]
        return (*made, *when(piece.last, (Assign(array, reduce(s.add, lanes), at),)))

    return t.loop("row", rows, row)
