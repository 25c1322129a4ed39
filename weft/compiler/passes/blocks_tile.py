"""A product of matrices by the blocks of a GPU: each block computes a tile of results.

Its threads copy a slab of both factors, a few points of the depth, to shared memory, computing what
the factors are made of on the way. Each thread then takes all products of its own results from
there, while the next slab is on its way to its registers. Every result is one thread's, which takes
products in the order of the depth, in chains of PIECE: the bits are those of `chains`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod

from weft.compiler.loops import (
    BOOL,
    PIECE,
    Assign,
    Kernel,
    Local,
    Loop,
    Statement,
    Value,
    When,
    const,
    get,
    identity_of,
    integer,
    value,
)
from weft.compiler.passes.accumulate import multiplied
from weft.compiler.passes.blocks_hidden import Rests, shown
from weft.compiler.passes.blocks_slab import VECTOR, ZERO, Slab, size_of
from weft.compiler.passes.contract_frame import ceiling, when
from weft.compiler.passes.contract_hidden import chosen
from weft.compiler.passes.contract_match import Axis, Product, changed
from weft.compiler.passes.cooperate import Team
from weft.compiler.passes.items import Limits, Tile, less, placed
from weft.compiler.polynomial import add, divide, multiply, remainder, smaller, subtract
from weft.compiler.rebuild import (
    Scope,
    Statements,
    assigned_locals,
    rename_locals,
    substitute,
    substitute_value,
)

MULTIPROCESSOR = 1 << 16  # registers that it has
STATIC = 48 * 1024  # bytes that a kernel's code may have threads share; more are given at its start
BESIDE = 4  # rests that are read together: none waits for another
HIGH, WIDE = 4, 8  # threads of a warp, down and across a tile: their reads meet few banks


def together(tile: Tile) -> int:
    """Blocks that a multiprocessor has registers for."""
    return max(MULTIPROCESSOR // (tile.threads * tile.registers), 1)


def _in_runs(thread: Value, k: int, run: int, threads: int) -> Value:
    """The place of a thread's element k, if threads in a row have `run` elements each in turn."""
    return add(multiply(thread, run), k // run * run * threads + k % run)


class Tiled:
    """A kernel whose blocks compute a tile of a product each."""

    def __init__(
        self,
        scope: Scope,
        product: Product,
        tile: Tile,
        limits: Limits,
        piece: Value | None = None,
        rests: Rests | None = None,
    ) -> None:
        self.scope, self.tile = scope, tile
        self.dtype = product.dtype
        self.team = Team(scope, tile.threads)
        self.group = scope.variable("group")
        self.high = -(-size_of(product.row[1]) // tile.rows)
        self.wide = -(-size_of(product.column[1]) // tile.columns)
        batch = [(v, size_of(extent)) for v, extent in product.batch]
        self.batches = prod(extent for _, extent in batch)
        self.blocks = self.high * self.wide * self.batches
        at_row, at_column, at_batch = self._place(rests)
        self.where = where = placed(batch, at_batch)
        self.product = product = _moved(product, where)
        self.piece = None if piece is None else where[piece]  # the only one that a block takes
        self.row, self.column = multiply(at_row, tile.rows), multiply(at_column, tile.columns)
        self.slabs = -(-size_of(product.depth[1]) // tile.depth)
        corner = self.row, self.column
        self.shown = shown(product, tile, self.slabs, corner, rests, where)
        self.most = min(limits.lanes, VECTOR // self.dtype.itemsize)
        lanes = self.widest()
        self.lanes = lanes if size_of(product.column[1]) % lanes == 0 else 1
        # Past the end a product is -0.0: with it, a sum keeps each of its bits.
        factors = self.factors()
        fillings = const(0, factors[0].dtype), identity_of("add", factors[1].dtype)
        self.left = self.slab(factors[0], product.row, self.row, tile.rows, fillings[0])
        self.right = self.slab(factors[1], product.column, self.column, tile.columns, fillings[1])
        self.stages = self.ahead(limits)
        self.left, self.right = (s.in_stages(self.stages) for s in (self.left, self.right))
        self.sums = self._registers("sum")
        self.is_joined = self.in_pieces and piece is None
        self.totals = self._registers("total") if self.is_joined else self.sums

    def _place(self, rests: Rests | None) -> tuple[Value, Value, Value]:
        """A block's place down and across the tiles of a batch, and the batch.

        Those that a mask shows most to come first: others then fill what time they leave.
        """
        high, wide, group = self.high, self.wide, self.group
        if rests is None:
            batch = divide(group, high * wide)
            return remainder(divide(group, wide), high), remainder(group, wide), batch
        own, other = (high, wide) if rests.is_left else (wide, high)
        first = divide(group, other * self.batches)
        first = subtract(integer(own - 1), first) if rests.grows else first
        second, batch = remainder(group, other), remainder(divide(group, other), self.batches)
        return (first, second, batch) if rests.is_left else (second, first, batch)

    @property
    def in_pieces(self) -> bool:
        """Whether sums of PIECE products each are added up."""
        return self.product.is_pieced

    def widest(self) -> int:
        """Adjacent results that a thread has in one vector."""
        return min(self.most, self.tile.wide)

    def factors(self) -> tuple[Value, Value]:
        """What shared memory holds of each factor."""
        return self.product.left, self.product.right

    def slab(self, factor: Value, axis: Axis, start: Value, points: int, filling: Value) -> Slab:
        """Where a factor lies in shared memory."""
        given = (self.product.depth, factor, axis, start, points, filling)
        return Slab.of(self.scope, self.tile, self.most, *given)

    def ahead(self, limits: Limits) -> int:
        """Slabs that shared memory holds: one that is multiplied, and those that are to be."""
        return 2

    def _registers(self, name: str) -> list[list[int]]:
        """A thread's results: vectors across the columns, for each row."""
        made: list[list[int]] = []
        for _ in range(self.tile.high):
            row: list[int] = []
            for _ in range(self.tile.wide // self.lanes):
                self.scope.locals.append(Local(name, self.dtype, self.lanes, kept=True))
                row.append(len(self.scope.locals) - 1)
            made.append(row)
        return made

    def kernel(self) -> Kernel:
        """All of it."""
        first, steps, main = ZERO, PIECE // self.tile.depth, list[Statement]()
        if self.is_joined:
            piece = self.scope.variable("piece")
            inner = (*self._loop(multiply(piece, steps)), self.threads(self._joined))
            main.append(Loop(piece, ZERO, integer(-(-self.slabs // steps)), inner))
        else:
            first = ZERO if self.piece is None else multiply(self.piece, steps)
            main += self._loop(first)
        begin = self.threads(partial(self._begin, *self._run(first)))
        body = (begin, *main, self.threads(self._finish))
        loop = Loop(self.group, ZERO, integer(self.blocks), body, "block")
        threads, both = self.tile.threads, together(self.tile)
        notes = {"blocks": self.blocks, "threads": threads, "scratch": (), "together": both}
        shared = sum(slab.nbytes for slab in (self.left, self.right))
        if shared > STATIC or self.left.swirled:
            notes["dynamic"] = shared
        return self.scope.kernel_with((loop,), **notes)

    def threads(self, body: Callable[[Value], Statements]) -> Loop:
        """What every thread does."""
        return self.team.each("item", self.tile.threads, body)

    def _loop(self, first: Value) -> Statements:
        """All slabs, or those of the piece whose first one is given, and rests of hidden ones."""
        slab, last = self.scope.variable("slab"), add(first, self._count(first))
        begin, end = self.shown.part(first, last)
        _, stop = self._run(first)

        def step(thread: Value) -> Statements:
            return self.step(thread, add(begin, slab), stop)

        made: list[Statement] = []
        if self.shown.begins:
            made.append(self.threads(partial(self._rested, first, begin)))
        made.append(Loop(slab, ZERO, subtract(end, begin), (self.threads(step),)))
        if self.shown.stops:
            made.append(self.threads(partial(self._rested, end, last)))
        return tuple(made)

    def _run(self, first: Value) -> tuple[Value, Value]:
        """Where the slabs begin and end that a block takes, one after another."""
        if self.is_joined:
            return self.shown.part(ZERO, integer(self.slabs))
        return self.shown.part(first, add(first, self._count(first)))

    def _count(self, first: Value) -> Value:
        """Slabs from the first one of a piece on."""
        if self.is_joined or self.piece is not None:
            return smaller(subtract(integer(self.slabs), first), PIECE // self.tile.depth)
        return integer(self.slabs)

    def _begin(self, first: Value, stop: Value, thread: Value) -> Statements:
        """The first slab, and sums that are 0."""
        made = [*self.first(thread, first, stop)]
        made += self._all(self.sums, const(0, self.dtype))
        if self.is_joined:
            made += self._all(self.totals, identity_of("add", self.dtype))
        return tuple(made)

    def _all(self, registers: list[list[int]], x: Value) -> Statements:
        return self._vector(lambda _: tuple(Assign(r, x) for row in registers for r in row))

    def _vector(self, body: Callable[[Value], Statements]) -> Statements:
        """Statements for one vector of columns."""
        if self.lanes == 1:
            return body(ZERO)
        lane = self.scope.variable("lane")
        return (Loop(lane, ZERO, integer(self.lanes), body(lane), "vector", self.lanes),)

    def first(self, thread: Value, slab: Value, stop: Value) -> Statements:
        """What is there before the first step: its slab."""
        sides, side = (self.left, self.right), remainder(slab, self.stages)
        made = tuple(s for x in sides for s in (*x.taken(thread, slab), *x.put(thread, side)))
        return (When(value("less", (slab, stop), BOOL), made),) if self.shown.varies else made

    def step(self, thread: Value, slab: Value, stop: Value) -> Statements:
        """The products of one slab, while the next one is read."""
        after = add(slab, 1)
        more = value("less", (after, stop), BOOL)
        sides = (self.left, self.right)
        taken = tuple(s for side in sides for s in side.taken(thread, after))
        here, there = (remainder(x, self.stages) for x in (slab, after))
        put = tuple(s for side in sides for s in side.put(thread, there))
        return (When(more, taken), self.products(thread, here), When(more, put))

    def products(self, thread: Value, side: Value) -> Statement:
        """All products of a thread's results in one slab."""
        depth = self.scope.variable("depth")
        rows, columns = self.places(thread)

        def products(lane: Value) -> Statements:
            made: list[Statement] = []
            for i, registers in zip(rows, self.sums, strict=True):
                x = self.left.at(i, depth, side)
                for j, total in zip(columns, registers, strict=True):
                    y = self.right.at(add(j, lane), depth, side)
                    made.append(Assign(total, multiplied(x, y, get(total, self.dtype))))
            return tuple(made)

        body = self._vector(products)
        return Loop(depth, ZERO, integer(self.tile.depth), body, "unroll")

    def places(self, thread: Value) -> tuple[list[Value], list[Value]]:
        """A thread's rows, and the first of each of its vectors of columns, inside the tile.

        They are in runs of a vector each, so that the runs of neighbours lie side by side.
        """
        tile = self.tile
        down, across = tile.rows // tile.high, tile.columns // tile.wide
        high, wide = min(HIGH, down), min(WIDE, across)
        warp, lane = divide(thread, high * wide), remainder(thread, high * wide)
        warps = across // wide
        i = add(multiply(divide(warp, warps), high), divide(lane, wide))
        j = add(multiply(remainder(warp, warps), wide), remainder(lane, wide))
        rows = [_in_runs(i, k, min(self.most, tile.high), down) for k in range(tile.high)]
        run = min(self.most, tile.wide)
        columns = [_in_runs(j, k, run, across) for k in range(0, tile.wide, self.lanes)]
        return rows, columns

    def _joined(self, thread: Value) -> Statements:
        """The sums of a piece are added to those of the pieces before, and begin again."""

        def join(_: Value) -> Statements:
            made: list[Statement] = []
            for totals, sums in zip(self.totals, self.sums, strict=True):
                for total, found in zip(totals, sums, strict=True):
                    both = (get(total, self.dtype), get(found, self.dtype))
                    made.append(Assign(total, value("add", both, self.dtype)))
                    made.append(Assign(found, const(0, self.dtype)))
            return tuple(made)

        return self._vector(join)

    def _rested(self, first: Value, last: Value, thread: Value) -> Statements:
        """Add the rests of slabs from a first to a last one that are hidden."""
        rests, made = self.shown.rests, list[Statement]()
        assert rests is not None
        rows, columns = self.places(thread)
        step, turn = rests.unit // self.tile.depth, self.scope.variable("turn")
        start, stop = ceiling(first, step), ceiling(last, step)
        lanes = self.lanes if rests.is_left else 1
        corner, places = (self.column, columns) if rests.is_left else (self.row, rows)
        held = [smaller(add(corner, x), size_of(rests.axis[1]) - lanes) for x in places]
        sums = [self.scope.local("rest", self.dtype, lanes) for _ in held]
        vector = self._vector if rests.is_left else lambda body: body(ZERO)
        nothing = identity_of("add", self.dtype)

        def taken(lane: Value) -> Statements:
            made: list[Statement] = []
            for k in range(BESIDE):
                here = add(add(start, multiply(turn, BESIDE)), k)
                inside = value("less", (here, stop), BOOL)
                for s, place in zip(sums, held, strict=True):
                    x = rests.at(smaller(here, subtract(stop, 1)), add(place, lane), self.where)
                    x = value("select", (inside, x, nothing), self.dtype)
                    made.append(Assign(s, value("add", (get(s, self.dtype), x), self.dtype)))
            return tuple(made)

        def added(_: Value) -> Statements:
            made: list[Statement] = []
            for i, registers in enumerate(self.sums):
                for j, register in enumerate(registers):
                    rest = get(sums[j if rests.is_left else i], self.dtype)
                    total = value("add", (get(register, self.dtype), rest), self.dtype)
                    made.append(Assign(register, total))
            return tuple(made)

        made += vector(lambda _: tuple(Assign(s, nothing) for s in sums))
        made.append(Loop(turn, ZERO, ceiling(subtract(stop, start), BESIDE), vector(taken)))
        return (*made, *self._vector(added))

    # -- results ---------------------------------------------------------------------------

    def _finish(self, thread: Value) -> Statements:
        """The epilogue for all results; without what a mask hides, if that is all of the tile."""
        epilogue, unused = self.product.epilogue, self.shown.unused
        if unused is None:
            return self._finished(epilogue, thread)
        hidden = self._finished(chosen(epilogue, self.shown.mask, 2), thread)
        return when(unused, hidden, self._finished(epilogue, thread))

    def _finished(self, epilogue: Statements, thread: Value) -> Statements:
        """An epilogue for all results of a thread that there are."""
        rows, columns = self.places(thread)
        epilogue = self._in_lanes(epilogue)
        made: list[Statement] = []
        for i, registers in zip(rows, self.totals, strict=True):
            row = add(self.row, i)
            inner: list[Statement] = []
            for j, total in zip(columns, registers, strict=True):
                column = add(self.column, j)
                done = self._vector(partial(self._result, epilogue, row, column, total))
                inner += self._inside(column, self.product.column, self.tile.columns, done)
            made += self._inside(row, self.product.row, self.tile.rows, tuple(inner))
        return tuple(made)

    def _result(
        self, epilogue: Statements, row: Value, column: Value, total: int, lane: Value
    ) -> Statements:
        product = self.product
        sums = get(product.target, self.scope.locals[product.target].dtype)
        places = {product.row[0]: row, product.column[0]: add(column, lane)}
        return substitute(epilogue, {**places, sums: get(total, self.dtype)})

    def _inside(self, place: Value, axis: Axis, points: int, body: Statements) -> Statements:
        size = size_of(axis[1])
        return body if size % points == 0 else (When(less(place, size), body),)

    def _in_lanes(self, epilogue: Statements) -> Statements:
        """An epilogue, its registers as wide as a vector of columns."""
        if self.lanes == 1:
            return epilogue
        numbers = {
            n: self.scope.local(self.scope.locals[n].name, self.scope.locals[n].dtype, self.lanes)
            for n in sorted(assigned_locals(epilogue))
        }
        return rename_locals(epilogue, numbers)


def _moved(product: Product, where: dict[Value, Value]) -> Product:
    """The product of the batch that a block is in."""
    return replace(
        product,
        left=substitute_value(product.left, where),
        right=substitute_value(product.right, where),
        epilogue=substitute(product.epilogue, where),
        masks=changed(product.masks, lambda x: substitute_value(x, where)),
    )
