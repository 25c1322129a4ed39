"""The loops of one tile of a matrix product, the work of one task.

    for each piece of the depth:
        pack the tile's columns of the right factor      what the second cache holds
        for each panel of rows:
            pack the panel of the left factor            what the first cache holds
            for each panel of columns: a block           what the registers hold

Few rows of a panel are packed at once, and meet one panel of columns after another. A factor that
is small, or used only once, is read where it lies; but the last columns, if they do not make a
whole panel, are packed. Nothing is packed that was packed before the tasks. What a mask hides is
left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from weft.compiler.loops import Statement, Value, integer
from weft.compiler.passes.contract_frame import ZERO, Frame, Span, ceiling, either, less, when
from weft.compiler.passes.contract_hidden import Hidden
from weft.compiler.passes.contract_pack import pack_left, pack_right
from weft.compiler.passes.contract_sums import WHOLE, Blocks, Part
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
from weft.compiler.rebuild import Statements


def tile(frame: Frame, rows: Span, columns: Span, piece: Value | None = None) -> Statements:
    """Everything for the tile of these rows and columns, or one piece of the depth of it."""
    depth, deep = frame.product.depth[1], frame.block.depth
    if not frame.pieces and piece is None:
        span = Span(ZERO, depth)
        return _piece(frame, Blocks(frame, rows, columns, span, WHOLE, Hidden(frame)))
    hidden = Hidden(frame)
    pieces = larger(ceiling(depth, deep), 1)

    def body(at: Value) -> Statements:
        made: list[Statement] = []
        start = frame.let("start", multiply(at, deep), made)
        count = frame.let("count", smaller(subtract(depth, start), deep), made)
        part = _part(frame, at, less(subtract(pieces, 2), at), made)
        blocks = Blocks(frame, rows, columns, Span(start, count), part, hidden)
        return (*made, *_piece(frame, blocks))

    return frame.loop("piece", pieces, body) if piece is None else body(piece)


def _part(frame: Frame, at: Value, last: Value | bool, into: list[Statement]) -> Part:
    """What a depth is to its piece of the sums, and the piece to all of them."""
    per, first = frame.block.per_piece, less(at, integer(1))
    if not per:
        return Part(first, last, last, False)
    after = less(integer(per - 1), at)
    if per == 1:
        return Part(True, True, last, after)
    place = frame.let("place", remainder(at, per), into)
    closes = either(last, less(integer(per - 2), place))
    return Part(less(place, integer(1)), closes, last, after)


def _piece(frame: Frame, blocks: Blocks) -> Statements:
    """One piece of the depth."""
    b, product, made = frame.block, frame.product, list[Statement]()
    rows, columns, depth = blocks.rows, blocks.columns, blocks.depth

    def finished(p: Value) -> Statements:
        return when(blocks.part.last, blocks.finish_panel(p)) if frame.late else ()

    hidden = blocks.hidden
    none = frame.flag("none", hidden.no_product(rows, columns, depth), made)
    unused = frame.flag("unused", hidden.no_sum(rows, columns), made)
    some = frame.flag("some", hidden.no_products_of_some(rows, columns, depth), made)
    seen = frame.let("seen", hidden.seen(rows, depth, none), made)
    near, far = Span(depth.start, seen), frame.flag("far", less(seen, depth.count), made)
    empty = none if far is False else False  # then nothing of the piece is seen
    blocks = replace(blocks, none=empty, some=some, seen=seen, far=far)
    direct: Value = ZERO  # panels of columns that are not packed
    if not b.pack_right:
        whole = ceiling if b.turns else divide
        direct = frame.let("direct", whole(columns.count, b.columns), made)
    wide = frame.let("wide", ceiling(columns.count, b.columns), made)
    shown = frame.flag("shown", hidden.is_shown(rows, columns, depth), made)

    def of_right(factor: Value) -> Statements:
        if b.turns or frame.right_ready:
            return ()
        return pack_right(frame, factor, columns, direct, wide, near)

    packed = when(unused, (), _packed(of_right, shown, hidden.right_shown, product.right))
    rested = either(either(none, some), far)
    rest = depth if far is False else Span(add(depth.start, seen), subtract(depth.count, seen))
    made += when(rested, hidden.rests(rows, columns, rest) if rested is not False else ())
    made += when(none, (), packed)

    def pack(p: Value) -> Statements:
        if not b.pack_left or frame.left_ready:
            return ()
        left = partial(pack_left, frame, rows=rows, panel=p, depth=near)
        packed = _packed(left, shown, hidden.left_shown, product.left)
        return when(none, (), when(unused, (), packed))

    def panels(meet: Callable[[Value, Value | None], Statements]) -> Statements:
        """What each panel of columns meets; and where it is packed, if it is."""
        found: Statements = ()
        if known(direct) != 0:
            found += frame.loop("panel", direct, lambda q: meet(q, None))
        if not b.turns and known(subtract(wide, direct)) != 0:
            found += frame.loop("panel", wide, lambda q: meet(q, subtract(q, direct)), direct)
        return found

    high = ceiling(rows.count, b.rows)
    if b.rows_inside:
        made += frame.loop("panel", high, pack)
        made += panels(lambda q, at: frame.loop("panel", high, lambda p: blocks.block(p, q, at)))
        return tuple(made)

    def body(p: Value) -> Statements:
        return (*pack(p), *panels(lambda q, at: blocks.block(p, q, at)), *finished(p))

    return (*made, *frame.loop("panel", high, body))


def _packed(
    pack: Callable[[Value], Statements], shown: Value | bool, plain: Value, whole: Value
) -> Statements:
    """Pack a factor: the `plain` one where a mask shows all of it, else the `whole` one."""
    if plain is whole or shown is False:
        return pack(whole)
    return pack(plain) if shown is True else when(shown, pack(plain), pack(whole))
