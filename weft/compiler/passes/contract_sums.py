"""Blocks of sums in registers: start, take products, then wait in the tile or be finished.

A block at the edge is computed whole. Its epilogue then runs from the tile, for those rows and
columns that there are; other blocks are finished from registers if the epilogue is short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from weft.compiler.loops import (
    INDEX,
    Ahead,
    Assign,
    Statement,
    Store,
    Value,
    const,
    get,
    integer,
    load,
    turned,
    value,
)
from weft.compiler.passes.contract_blocks import LINE, NARROW, UNROLL
from weft.compiler.passes.contract_frame import (
    ZERO,
    Frame,
    Packed,
    Span,
    both,
    ceiling,
    either,
    folded,
    negated,
    when,
)
from weft.compiler.passes.contract_hidden import Hidden
from weft.compiler.passes.contract_later import Fetching, Following, Later, elements
from weft.compiler.passes.contract_reads import for_vectors
from weft.compiler.passes.contract_registers import WIDEST
from weft.compiler.polynomial import (
    add,
    divide,
    known,
    multiply,
    smaller,
    subtract,
)
from weft.compiler.rebuild import Statements, rebuild, substitute_value

AHEAD = 256  # bytes of a row of the left factor from what is multiplied to what a cache fetches
FURTHER = 4096  # bytes of all rows from what is turned in registers to what a cache fetches
NEAR = 512  # bytes of rows that are so short that it fetches the next ones
FEW = 64  # points of the depth of which a part of a line would be left over, and taken one by one


@dataclass(frozen=True)
class Part:
    """What is summed now: part of a piece of the depth, after other pieces, or all there is."""

    opens: Value | bool  # a piece, so sums start at zero
    closes: Value | bool  # a piece, so sums join those of the pieces before it
    last: Value | bool  # of everything, so sums are finished
    after: Value | bool  # another piece


WHOLE = Part(True, True, True, False)


@dataclass(frozen=True)
class Blocks:
    """Writes the blocks of a tile for one depth."""

    frame: Frame
    rows: Span
    columns: Span
    depth: Span
    part: Part
    hidden: Hidden
    seen: Value = ZERO  # points of the piece whose products are taken; 0 for the others
    far: Value | bool = False  # whether there are others
    none: Value | bool = False  # whether all products of the piece are 0, if `seen` cannot say it
    some: Value | bool = False  # whether those of some panel of columns are

    def block(self, p: Value, q: Value, packed: Value | None) -> Statements:
        """The block where two panels meet; the right one is `packed`, or read where it lies."""
        f, b, product = self.frame, self.frame.block, self.frame.product
        made: list[Statement] = []
        row = f.let("row", add(self.rows.start, multiply(p, b.rows)), made)
        column = f.let("column", add(self.columns.start, multiply(q, b.columns)), made)
        slot = f.let("slot", self.slot(p, q), made)
        at = [add(row, i) for i in range(b.rows)]
        if not b.pack_left:
            at = [f.held(row, i, b.rows, product.row[1], made) for i in range(b.rows)]
        left, panel = self.panels(p, row, column, packed, made)
        later = self.later(p, q, (row, column), panel, made)
        whole = both(
            f.is_whole(row, b.rows, product.row[1]),
            (packed is None and not b.turns) or f.is_whole(column, b.columns, product.column[1]),
        )
        here = Span(row, integer(b.rows)), Span(column, integer(b.columns))
        straight, shown = self.straight(here, both(self.part.last, whole), made)
        unused = f.flag("unused", self.hidden.no_sum(*here), made)
        none = self.none
        if self.some is not False:
            none = self.hidden.no_product(self.rows, here[1], self.depth)
            none = f.flag("none", both(self.some, none), made)

        def body(lane: Value) -> Statements:
            products = self.multiply(panel, left, at, column, lane, later)
            is_edge, least = self.edge(row, column)
            if panel is not None and is_edge is not False:
                edge = self.multiply_packed(panel, left, lane, at, least)
                products = when(is_edge, edge, products)
            products = when(unused, (), products)
            rested = either(self.far, none)
            rests = self.hidden.add_rests(p, q, lane) if rested is not False else ()
            if self.far is not False:
                products = (*products, *when(self.far, rests))
            ends = () if straight is False else self.finish(row, column, lane, shown)
            return (
                *self.begin(slot, lane),
                *self.soon(slot),
                *when(none, rests, products),
                *self.join(slot, lane),
                *when(straight, ends, self.keep(slot, lane)),
            )

        if f.waits is not None:
            begun = self.part.after if b.per_piece else negated(self.part.opens)
            made += when(begun, self.fetch(f.waits, row, column))
        if unused is not False and self.part == WHOLE:
            crooked = when(straight, (), self.finish_from_tile(row, column, slot))
            hidden = self.finish_hidden(row, column, slot, whole)
            return (*made, *when(unused, hidden, (*f.lanes(body), *crooked)))
        made += f.lanes(body)
        if f.waits is not None:
            sums = Store(f.waits.buffer, f.waits.index, get(product.target, f.dtype))
            waiting = self.finish_from_tile(row, column, slot, (sums,))
            made += when(self.part.last, self.finish_from_tile(row, column, slot), waiting)
        elif straight is not True and not f.late:
            crooked = when(straight, (), self.finish_from_tile(row, column, slot))
            made += when(self.part.last, crooked)
        return tuple(made)

    def slot(self, p: Value, q: Value) -> Value:
        """Where the sums of a block begin in the tile."""
        f, size = self.frame, self.frame.block.rows * self.frame.block.columns
        if f.pieces:
            return multiply(add(multiply(p, f.wide), q), size)
        return multiply(q, size) if f.late else ZERO

    def straight(
        self, here: tuple[Span, Span], done: Value | bool, into: list[Statement]
    ) -> tuple[Value | bool, Statements | None]:
        """Whether sums that are `done` are finished in registers, and how if a mask shows all."""
        f = self.frame
        if f.waits is not None:
            return False, None
        if f.is_light() and done is not False:
            return done, None
        epilogue = self.hidden.epilogue(1)
        if not f.is_light(epilogue):
            return False, None
        return both(done, f.flag("shown", self.hidden.all_sums(*here), into)), epilogue

    def panels(
        self, p: Value, row: Value, column: Value, packed: Value | None, into: list[Statement]
    ) -> tuple[Value, Value | None]:
        """Where the packed panels of a block begin; None for a right one that is not packed."""
        f, b = self.frame, self.frame.block
        left = f.left.panel(row, self.depth) if f.left_ready else f.left_place(p)
        left = f.let("left", left, into)
        if f.right_ready:
            return left, f.let("panel", f.right.panel(column, self.depth), into)
        if packed is None:
            return left, None
        return left, f.let("panel", multiply(packed, b.columns * b.depth), into)

    def begin(self, slot: Value, lane: Value) -> Statements:
        """Sums start at zero, or where the same piece left them."""
        f = self.frame
        zero = const(0, f.dtype)
        empty = tuple(Assign(s, zero) for row in f.sums for s in row)
        if self.part.opens is True:
            return empty
        kept = tuple(Assign(s, get(f.open, f.dtype, at)) for s, at in self.slots(slot, lane))
        # Zeros come first in any case: so no register lives on from the block before.
        return (*empty, *when(self.part.opens, (), kept))

    def join(self, slot: Value, lane: Value) -> Statements:
        """The sums of a whole piece meet those of the pieces before it."""
        f = self.frame
        met = tuple(
            Assign(s, value("add", (get(f.tile, f.dtype, at), get(s, f.dtype)), f.dtype))
            for s, at in self.slots(slot, lane)
        )
        return when(both(self.part.closes, self.part.after), met)

    def soon(self, slot: Value) -> Statements:
        """A cache fetches the sums of the pieces before, while products are taken."""
        f, b = self.frame, self.frame.block
        if not f.right_ready or not f.pieces or b.lanes * f.dtype.itemsize == WIDEST:
            return ()  # the longest vectors do not gain by it
        lines = range(0, b.rows * b.columns, LINE // f.dtype.itemsize)
        return tuple(Ahead(get(f.tile, f.dtype, add(slot, k))) for k in lines)

    def keep(self, slot: Value, lane: Value) -> Statements:
        """Sums wait: in the tile, or if their piece goes on, where it finds them."""
        f, slots = self.frame, self.slots(slot, lane)
        closed, opened = (
            tuple(Assign(array, get(s, f.dtype), at) for s, at in slots)
            for array in (f.tile, f.open)
        )
        return closed if f.open == f.tile else when(self.part.closes, closed, opened)

    def slots(self, slot: Value, lane: Value) -> list[tuple[int, Value]]:
        """Each sum and its place in the tile."""
        b = self.frame.block
        here = add(slot, lane)
        return [
            (s, add(here, i * b.columns + j * b.lanes))
            for i, row in enumerate(self.frame.sums)
            for j, s in enumerate(row)
        ]

    def multiply(
        self,
        panel: Value | None,
        own: Value,
        rows: list[Value],
        column: Value,
        lane: Value,
        later: Sequence[Later] = (),
    ) -> Statements:
        """Sums take the products of the piece, one point of the depth after another."""
        f, b, product = self.frame, self.frame.block, self.frame.product
        if product.is_paired:
            return self.multiply_pairs(rows[0], column, lane)
        if b.turns:
            return self.multiply_turned(rows, column, lane)

        if self.moves_along(panel):
            assert panel is not None
            return self.multiply_packed(panel, own, lane, rows, later=later)

        def body(k: Value) -> Statements:
            deep = {product.depth[0]: add(self.depth.start, k)}
            rights = []
            for j in range(b.vectors):
                if panel is None:
                    names = {product.column[0]: add(column, add(lane, j * b.lanes))}
                    rights.append(rebuild(product.right, folded, {**deep, **names}))
                else:
                    at = add(panel, add(multiply(k, b.columns), add(lane, j * b.lanes)))
                    rights.append(f.right.at(at))
            along = add(own, multiply(k, f.left.width))
            at = along if b.pack_left else deep[product.depth[0]]
            return self.products(self.lefts(at, lane, rows), rights)

        def fetched(turn: Value) -> Statements:
            places = (add(each.start, multiply(turn, each.step)) for each in later)
            lines = (each.lines(at) for each, at in zip(later, places, strict=True))
            return tuple(s for each in lines for s in each)

        return f.unrolled(self.seen, body, fetched)

    def moves_along(self, panel: Value | None) -> bool:
        """Whether the places that a block reads move along with the depth: it meets a `panel`."""
        b = self.frame.block
        return panel is not None and (
            b.pack_left or (self.frame.right_ready and (b.fetches or b.rows == 1))
        )

    def later(
        self,
        p: Value,
        q: Value,
        here: tuple[Value, Value],
        panel: Value | None,
        into: list[Statement],
    ) -> list[Later]:
        """What the block where two panels meet has fetched; its first row and column are `here`."""
        b, product = self.frame.block, self.frame.product
        if b.turns or product.is_paired:
            return []
        along = self.moves_along(panel)
        turn = b.turn if along else UNROLL
        following = Following(self.frame, self.rows, self.columns, self.depth, turn)
        packed = following.packed_later(p, q, into) if along else None
        return [*([] if packed is None else [packed]), *following.read_later(p, q, here, into)]

    def products(self, lefts: list[Value], rights: list[Value]) -> Statements:
        """Sums take the products of one point of the depth."""
        f, b = self.frame, self.frame.block
        each = for_vectors(lefts, b.vectors, b.lanes)
        return tuple(
            Assign(s, f.multiplied(x, y, get(s, f.dtype)))
            for sums, xs in zip(f.sums, each, strict=False)
            for s, x, y in zip(sums, xs, rights, strict=False)
        )

    def edge(self, row: Value, column: Value) -> tuple[Value | bool, tuple[int, int]]:
        """Whether a block has rows or vectors that are not there, and how many are there.

        Of rows and vectors, only those are left out that would be more work.
        """
        f, b, product = self.frame, self.frame.block, self.frame.product
        rows, columns = product.row[1], product.column[1]
        if not f.right_ready or not b.pack_left:
            return False, (b.rows, b.vectors)
        high = (known(rows) or 0) % b.rows or b.rows
        vectors = ceil(((known(columns) or 0) % b.columns or b.columns) / b.lanes)
        saved = (b.vectors - vectors) * b.lanes * (known(rows) or 1)
        if (b.rows - high) * (known(columns) or 1) > saved:
            return negated(f.is_whole(row, b.rows, rows)), (high, b.vectors)
        if saved:
            return negated(f.is_whole(column, b.columns, columns)), (b.rows, vectors)
        return False, (b.rows, b.vectors)

    def multiply_packed(
        self,
        panel: Value,
        own: Value,
        lane: Value,
        rows: list[Value],
        least: tuple[int, int] | None = None,
        later: Sequence[Later] = (),
    ) -> Statements:
        """Like `multiply`, for packed panels, of which only the first rows and vectors count.

        The left factor may be read where it lies. Places move along with the depth, so that a
        turn's addresses are ready when it begins. A block at the edge runs too seldom for longer
        turns to pay. What is needed `later` is fetched meanwhile.
        """
        f, b = self.frame, self.frame.block
        own, step = (own, f.left.width) if b.pack_left else (self.depth.start, 1)
        left, right = (f.scope.local(name, INDEX) for name in ("left_at", "right_at"))
        here, there = get(left, INDEX), get(right, INDEX)
        high, vectors = least or (b.rows, b.vectors)
        several = b.turn if least is None else 1
        made: list[Statement] = [Assign(left, own), Assign(right, panel)]
        fetching = [Fetching(f.scope, each) for each in later]
        made += [s for each in fetching for s in each.start()]

        def turn(points: int) -> Statements:
            made: list[Statement] = []
            for k in range(points):
                ats = [add(lane, k * b.columns + j * b.lanes) for j in range(vectors)]
                lefts = self.lefts(add(here, k * step), lane, rows)[:high]
                made += self.products(lefts, [f.right.at(add(there, x)) for x in ats])
                if points == several and k == 0:
                    made += [s for each in fetching for s in each.fetch()]
                if b.fetches and b.pack_left and f.pieces and points == several:
                    made.append(_soon(f.right, there, k))
            made.append(Assign(left, add(here, points * step)))
            made.append(Assign(right, add(there, points * b.columns)))
            if points == several:
                made += [s for each in fetching for s in each.move()]
            return tuple(made)

        turns = f.let("turns", divide(self.seen, several), made)
        if known(turns) != 0:
            made += f.loop("depth", turns, lambda _: turn(several))
        if f.is_even or several == 1:
            return tuple(made)
        rest = f.loop("depth", self.seen, lambda _: turn(1), multiply(turns, several))
        return (*made, *rest)

    def lefts(self, at: Value, lane: Value, rows: list[Value]) -> list[Value]:
        """The rows of the left factor at one point of the depth, each in every lane.

        It is at this place of the packed panel, or of the depth.
        """
        f, b, product = self.frame, self.frame.block, self.frame.product
        if not b.pack_left:
            deep = product.depth[0]
            return [rebuild(product.left, folded, {deep: at, product.row[0]: r}) for r in rows]
        if not b.by_lane:
            return [f.left.at(add(at, i)) for i in range(b.rows)]
        found: list[Value] = []
        for i in range(0, b.rows, b.lanes):
            found += turned([f.left.at(add(at, add(lane, i)))] * b.lanes)
        return found

    def multiply_turned(self, rows: list[Value], column: Value, lane: Value) -> Statements:
        """Like `multiply`; the right factor is read along the depth and turned in registers."""
        f, b, product = self.frame, self.frame.block, self.frame.product
        made: list[Statement] = []
        step = max(LINE // f.dtype.itemsize, b.lanes)  # each line of memory is read at once
        deep = known(product.depth[1])
        if deep is not None and (deep < step or (deep < FEW and deep % step)):
            step = b.lanes  # few points are left over
        width = b.columns, product.column[1]
        at = [f.held(column, i, *width, made) for i in range(b.columns)]

        def right(here: Value, k: Value) -> Value:
            names = {product.column[0]: here, product.depth[0]: add(self.depth.start, k)}
            return rebuild(product.right, folded, names)

        def left(row: Value, k: Value) -> Value:
            names = {product.row[0]: row, product.depth[0]: add(self.depth.start, k)}
            return rebuild(product.left, folded, names)

        def products(lefts: list[Value], x: Value) -> Statements:
            return tuple(
                Assign(s, f.multiplied(left, x, get(s, f.dtype)))
                for (s,), left in zip(f.sums, lefts, strict=True)
            )

        def several(turn: Value) -> Statements:
            found: list[Statement] = []
            if b.lanes * f.dtype.itemsize > NARROW:
                further = add(multiply(turn, step), FURTHER // (b.columns * f.dtype.itemsize))
                found += elements(right(place, further) for place in at)
            for first in range(0, step, b.lanes):
                k = add(multiply(turn, step), first)
                rights = turned([right(place, add(k, lane)) for place in at])
                lefts = [[left(row, add(k, i)) for row in rows] for i in range(b.lanes)]
                if b.by_lane:
                    along = [turned([left(row, add(k, lane))] * b.lanes) for row in rows]
                    lefts = [list(each) for each in zip(*along, strict=True)]
                for each, x in zip(lefts, rights, strict=True):
                    found += products(each, x)
            return tuple(found)

        def rest(k: Value) -> Statements:
            lefts = [left(row, k) for row in rows]
            return products(lefts, right(f.held(column, lane, *width), k))

        turns = f.let("turns", divide(self.seen, step), made)
        if known(turns) != 0:
            made += f.loop("depth", turns, several)
        taken = multiply(turns, step)
        if known(subtract(self.seen, taken)) == 0:
            return tuple(made)
        return (*made, *f.loop("depth", self.seen, rest, taken))

    def multiply_pairs(self, row: Value, column: Value, lane: Value) -> Statements:
        """Like `multiply`; each lane has both factors to itself, which may lie along the depth."""
        f, b, product = self.frame, self.frame.block, self.frame.product
        (sums,), width = f.sums, (b.columns, product.column[1])
        factors = left, right = product.left, product.right

        def at(x: Value, here: Value, k: Value) -> Value:
            names = {product.column[0]: here, product.depth[0]: add(self.depth.start, k)}
            return rebuild(x, folded, {**names, product.row[0]: row})

        def one(k: Value) -> Statements:
            """A product of each lane."""
            heres = [f.held(column, add(lane, j * b.lanes), *width) for j in range(b.vectors)]
            return tuple(
                Assign(s, f.multiplied(at(left, here, k), at(right, here, k), get(s, f.dtype)))
                for s, here in zip(sums, heres, strict=True)
            )

        if b.vectors > 1:
            return f.unrolled(self.seen, one)
        made: list[Statement] = []
        places = [f.held(column, i, *width, made) for i in range(b.lanes)]
        step = max(LINE // f.dtype.itemsize, b.lanes)  # each line of memory is read at once
        deep = known(product.depth[1])
        is_brief = deep is not None and deep * f.dtype.itemsize <= NEAR
        in_blocks = f.dtype.itemsize <= 4  # or both factors fill more registers than there are

        def several(turn: Value) -> Statements:
            first, found = multiply(turn, step), list[Statement]()
            for x in factors if is_brief else ():
                found += elements(at(x, add(place, b.lanes), first) for place in places)
            for k in range(0, step, b.lanes):
                here = add(first, add(lane, k))
                lefts, rights = (
                    turned([at(x, place, here) for place in places], in_blocks) for x in factors
                )
                for x, y in zip(lefts, rights, strict=True):
                    found.append(Assign(sums[0], f.multiplied(x, y, get(sums[0], f.dtype))))
            return tuple(found)

        turns = f.let("turns", divide(self.seen, step), made)
        made += f.loop("depth", turns, several)
        return (*made, *f.loop("depth", self.seen, one, multiply(turns, step)))

    def finish(
        self, row: Value, column: Value, lane: Value, given: Statements | None = None
    ) -> Statements:
        """The epilogue, or what is `given`, for all sums of the block, from registers."""
        f = self.frame
        made: list[Statement] = []
        for i, sums in enumerate(f.sums):
            for j, s in enumerate(sums):
                at = add(column, add(lane, j * f.block.lanes))
                made += f.epilogue(add(row, i), at, get(s, f.dtype), f.block.lanes, given)
        return tuple(made)

    def finish_from_tile(
        self, row: Value, column: Value, slot: Value, given: Statements | None = None
    ) -> Statements:
        """The epilogue, or what is `given`, for the points of the block, from the tile."""
        f, b = self.frame, self.frame.block

        def at(i: Value, j: Value, lanes: int) -> Statements:
            kept = get(f.tile, f.dtype, add(slot, add(multiply(i, b.columns), j)))
            return f.epilogue(add(row, i), add(column, j), kept, lanes, given)

        return self.frame.each(row, column, at)

    def finish_hidden(
        self, row: Value, column: Value, slot: Value, whole: Value | bool
    ) -> Statements:
        """The epilogue of a block whose sums a mask hides: written out, if all of it is there."""
        epilogue = self.hidden.epilogue(2)
        if not epilogue:
            return ()
        at_once = self.frame.lanes(lambda lane: self.finish(row, column, lane, epilogue))
        return when(whole, at_once, self.finish_from_tile(row, column, slot, epilogue))

    def finish_panel(self, p: Value) -> Statements:
        """The epilogue for all points of a panel of rows, from the tile, one row after another."""
        f, b = self.frame, self.frame.block
        made: list[Statement] = []
        row = f.let("row", add(self.rows.start, multiply(p, b.rows)), made)
        first = multiply(multiply(p, f.wide), b.rows * b.columns) if f.pieces else ZERO
        count = smaller(subtract(f.product.row[1], row), b.rows)
        count = f.let("rows", count, made)

        def body(i: Value) -> Statements:
            def panel(q: Value) -> Statements:
                found: list[Statement] = []
                column = add(self.columns.start, multiply(q, b.columns))
                column = f.let("column", column, found)
                slot = add(first, add(multiply(q, b.rows * b.columns), multiply(i, b.columns)))
                slot = f.let("slot", slot, found)

                def at(j: Value, lanes: int) -> Statements:
                    kept = get(f.tile, f.dtype, add(slot, j))
                    return f.epilogue(add(row, i), add(column, j), kept, lanes)

                along = f.along(column, found)
                return (*found, *along(at))

            return f.loop("panel", ceiling(self.columns.count, b.columns), panel)

        return (*made, *f.loop("row", count, body))

    def fetch(self, waits: Store, row: Value, column: Value) -> Statements:
        """Sums that wait in memory, in the tile."""
        f, b, product = self.frame, self.frame.block, self.frame.product
        names = product.row[0], product.column[0]

        def at(i: Value, j: Value, lanes: int) -> Statements:
            places = dict(zip(names, (add(row, i), add(column, j)), strict=True))
            index = substitute_value(waits.index, places)
            place = add(multiply(i, b.columns), j)
            return (Assign(f.tile, load(waits.buffer, index, f.dtype), place),)

        return self.frame.each(row, column, at)


def _soon(array: Packed, at: Value, point: int) -> Statement:
    """The first line of a packed factor that a later point of the depth takes, or the next block.

    A cache that has to ask for it gets the second one, too: lines come in pairs.
    """
    start = (AHEAD // array.dtype.itemsize + point) * array.width
    return Ahead(array.at(add(at, start)))
