"""The loops of one tile of a matrix product, the work of one task.

    for each piece of the depth:
        pack the tile's columns of the right factor      what the second cache holds
        for each panel of rows:
            pack the panel of the left factor            what the first cache holds
            for each panel of columns: a block           what the registers hold

A factor that is small, or used only once, is read where it lies; but the last columns, if they do
not make a whole panel, are packed.
"""

from __future__ import annotations

from weft.compiler.loops import Statement, Value, integer
from weft.compiler.passes.contract_frame import ZERO, Frame, Span, ceiling, less
from weft.compiler.passes.contract_pack import pack_left, pack_right
from weft.compiler.passes.contract_sums import Blocks
from weft.compiler.polynomial import divide, known, larger, multiply, smaller, subtract
from weft.compiler.rebuild import Statements


def tile(frame: Frame, rows: Span, columns: Span) -> Statements:
    """Everything for the tile of these rows and columns."""
    depth, deep = frame.product.depth[1], frame.block.depth
    if not frame.pieces:
        return _piece(frame, Blocks(frame, rows, columns, Span(ZERO, depth), True, True))
    pieces = larger(ceiling(depth, deep), 1)

    def body(at: Value) -> Statements:
        made: list[Statement] = []
        start = frame.let("start", multiply(at, deep), made)
        count = frame.let("count", smaller(subtract(depth, start), deep), made)
        first, last = less(at, integer(1)), less(subtract(pieces, 2), at)
        blocks = Blocks(frame, rows, columns, Span(start, count), first, last)
        return (*made, *_piece(frame, blocks))

    return frame.loop("piece", pieces, body)


def _piece(frame: Frame, blocks: Blocks) -> Statements:
    """One piece of the depth."""
    b, made = frame.block, list[Statement]()
    rows, columns, depth = blocks.rows, blocks.columns, blocks.depth
    direct: Value = ZERO  # panels of columns that are not packed
    if not b.pack_right:
        whole = ceiling if b.turns else divide
        direct = frame.let("direct", whole(columns.count, b.columns), made)
    wide = frame.let("wide", ceiling(columns.count, b.columns), made)
    if not b.turns:
        made += pack_right(frame, columns, direct, wide, depth)

    def body(p: Value) -> Statements:
        found: list[Statement] = []
        if b.pack_left:
            found += pack_left(frame, rows, p, depth)
        if known(direct) != 0:
            found += frame.loop("panel", direct, lambda q: blocks.block(p, q, None))
        if not b.turns and known(subtract(wide, direct)) != 0:
            found += frame.loop(
                "panel", wide, lambda q: blocks.block(p, q, subtract(q, direct)), direct
            )
        return tuple(found)

    return (*made, *frame.loop("panel", ceiling(rows.count, b.rows), body))
