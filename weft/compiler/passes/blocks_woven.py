"""A weave on a GPU: scores, weights and what they mix by tensor cores, a block for some rows.

The rows' factor lies in shared memory all the time, the columns' factors a few columns at a time,
of which the next ones are on their way. Scores stay in the registers that multiplied them, and so
do weights, which are a factor again there; the array that they are written to as well is for those
who only play such a GPU. Lanes and trees of a row's reductions are those of `reduce`, so each bit
is what it is in separate kernels, also where two runs over the columns are one (`weave_once`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod

from weft.compiler.index import axis
from weft.compiler.loops import (
    BOOL,
    Assign,
    Buffer,
    Kernel,
    Loop,
    Panel,
    Reduce,
    Settle,
    Squares,
    Statement,
    Store,
    Value,
    When,
    const,
    get,
    identity_of,
    integer,
    load,
    value,
    walk,
)
from weft.compiler.passes.accumulate import joined
from weft.compiler.passes.blocks_hidden import rest_of
from weft.compiler.passes.blocks_rows import PAIR, ROWS, SIDE, THREADS, Meeting, Rows
from weft.compiler.passes.blocks_slab import VECTOR, ZERO, Slab, size_of
from weft.compiler.passes.contract_hidden import chosen, ends, is_shown
from weft.compiler.passes.contract_match import Axis
from weft.compiler.passes.items import Limits, Tile, less, placed
from weft.compiler.polynomial import (
    add,
    divide,
    known,
    larger,
    multiply,
    polynomial,
    remainder,
    smaller,
    subtract,
)
from weft.compiler.rebuild import (
    Scope,
    Statements,
    assigned_locals,
    rename_locals,
    substitute,
    substitute_value,
)
from weft.compiler.squares import CHUNK, ROW, WARP, shape_of, swirled
from weft.compiler.weave import Outer, Weave
from weft.compiler.weave_once import Once, at_once
from weft.core.common.types import DType

STAGES = 2  # columns in shared memory: those at hand, and the next ones
MOST = 4 * SIDE  # sums of a row that a block has, of scores and of results
FEW = 4  # tiles that are all taken, whatever a mask hides
WIDEST = 128  # points of a depth, and columns of results
STEP = 16  # points of a depth that are multiplied at once
_TILE = Tile(SIDE, SIDE, 2, SIDE // 4, SIDE)
REGISTERS = 1 << 16  # of a multiprocessor
OWN = 1024  # bytes of shared memory that a GPU takes for each block
LEAST = 128  # of a thread's,
SPARE, HIDING = 8, 48  # and those for what is neither sum nor weight; the same beside a mask


def is_woven(weave: Weave, limits: Limits) -> bool:
    """Whether warps can multiply its matrices, and a block has room for them."""
    dtypes = {x.dtype for inner in weave.inners for x in (inner.left, inner.right)}
    dtypes |= {outer.right.dtype for outer in weave.outers}
    dtypes |= {weave.kernel.locals[outer.weight].dtype for outer in weave.outers}
    wide = [size_of(outer.column[1]) for outer in weave.outers]
    sizes = (*(size_of(inner.depth[1]) for inner in weave.inners), *wide)
    shape = shape_of(dtypes.pop()) if len(dtypes) == 1 else None
    if not limits.squares or shape is None or max(sizes) > WIDEST or min(sizes) < WARP // 2:
        return False
    if SIDE * len(weave.inners) + sum(-(-n // SIDE) * SIDE for n in wide) > MOST:
        return False
    made = _Block(weave, limits)
    return made.is_fetched and made.nbytes <= limits.room


def weave_kernels(weave: Weave, limits: Limits) -> tuple[Kernel, ...]:
    """The kernel of a weave; where a mask hides columns, others before it, which are not scheduled.

    Each leaves what hidden columns add to the results of one product, in a scratch buffer.
    """
    block = _Block(weave, limits)
    if not block.is_hiding:
        return (block.kernel(),)
    return (*(block.before(n) for n in range(len(weave.outers))), block.kernel())


@dataclass(frozen=True)
class _Run:
    """A run over all columns: what is done at each of them."""

    meetings: list[Meeting]
    point: Statements
    wide: dict[int, int]  # registers of two columns in the place of those of one
    is_last: bool


class _Block(Rows):
    """A kernel whose blocks have some rows each."""

    def __init__(self, weave: Weave, limits: Limits) -> None:
        self.weave = weave
        scope = Scope(weave.kernel)
        super().__init__(scope)
        self.together, self.room = bool(limits.groups), limits.room
        self.group = scope.variable("group")
        self.high = -(-size_of(weave.row[1]) // SIDE)
        batch = [(v, size_of(extent)) for v, extent in weave.batch]
        self.blocks = self.high * prod(extent for _, extent in batch)
        self.where = placed(batch, divide(self.group, self.high))
        place = remainder(self.group, self.high)
        if weave.mask is not None:  # later rows often see more: those blocks come first
            place = subtract(integer(self.high - 1), place)
        self.first = multiply(place, SIDE)
        self.columns = size_of(weave.column[1])
        self.tiles = -(-self.columns // SIDE)
        self.runs = [s for s in weave.middle if isinstance(s, Reduce)]
        self.once = at_once(weave)
        self.sides = 1 if self.once else STAGES  # of what scores are made of, in shared memory
        self.start, self.stop = self._shown()
        self.is_hiding = self.start is not ZERO or known(self.stop) != self.tiles
        self.rests = len(weave.kernel.buffers)  # of the first outer product; others follow
        self._share()
        self.scores = [self._registers("scores", x.target, SIDE) for x in weave.inners]
        self.mixed = [
            self._registers("mixed", outer.target, slab.points)
            for outer, slab in zip(weave.outers, self.values, strict=True)
        ]
        own = assigned_locals(s for s in weave.middle if isinstance(s, Assign))
        own |= {t for run in self.runs for part in run.parts for t in part.targets}
        self.own = [
            {n: self._kept(scope.locals[n].name, self._dtype(n)) for n in sorted(own)}
            for _ in range(ROWS)
        ]

    # -- memory ----------------------------------------------------------------------------

    def _share(self) -> None:
        """What lies in shared memory: factors first, which begin at whole rows."""
        weave = self.weave
        self.rows, self.keys, self.values = list[Slab](), list[Slab](), list[Slab]()
        for inner in weave.inners:
            depth = -(-size_of(inner.depth[1]) // SIDE)
            rows = self._slab(inner.left, inner.depth, weave.row, self.first, SIDE)
            self.rows.append(rows.in_stages(depth))
            keys = self._slab(inner.right, inner.depth, weave.column, ZERO, SIDE)
            self.keys.append(keys.in_stages(self.sides * depth))
        self.lent = [self._lent(outer) for outer in weave.outers]
        for outer, lent in zip(weave.outers, self.lent, strict=True):
            wide = -(-size_of(outer.column[1]) // SIDE) * SIDE
            if lent is None:
                values = self._slab(outer.right, weave.column, outer.column, ZERO, wide)
                self.values.append(values.in_stages(STAGES))
            else:
                self.values.append(self.keys[lent])
        self.pitch = SIDE if self.together else SIDE + CHUNK
        self.weights = {
            n: self._array("weights", self._dtype(n), SIDE * self.pitch)
            for n in dict.fromkeys(outer.weight for outer in weave.outers)
        }
        self.held = {n: self._registers("weights", n, SIDE) for n in self.weights}
        self.share([part for run in self.runs for part in run.parts])

    def _lent(self, outer: Outer) -> int | None:
        """The inner product whose columns are, turned, what an outer one reads, if there is one."""
        if self.columns % SIDE or size_of(outer.column[1]) > SIDE or self.sides != STAGES:
            return None
        for number, inner in enumerate(self.weave.inners):
            same = substitute_value(inner.right, {inner.depth[0]: outer.column[0]})
            if (
                same.data == outer.right.data
                and polynomial(same.args[0]) == polynomial(outer.right.args[0])
                and inner.depth[1] == outer.column[1]
            ):
                return number
        return None

    def _slab(self, factor: Value, depth: Axis, axis: Axis, start: Value, points: int) -> Slab:
        factor = substitute_value(factor, self.where)
        given = (self.scope, _TILE, CHUNK, depth, factor, axis, start, points)
        filling, spare = const(0, factor.dtype), 0 if self.together else CHUNK
        return Slab.of(*given, filling, deep=None, spare=spare, swirled=self.together)

    def _registers(self, name: str, target: int, columns: int) -> list[list[int]]:
        """Sums of a thread: two columns of every 8, for each of its rows."""
        dtype = self._dtype(target)
        return [[self._kept(name, dtype, PAIR) for _ in range(columns // 8)] for _ in range(ROWS)]

    @property
    def is_fetched(self) -> bool:
        """Whether all factors can go to shared memory as they lie."""
        return all(slab.is_direct for slab in (*self.rows, *self.keys, *self.values))

    @property
    def nbytes(self) -> int:
        """Of shared memory; weights are in registers."""
        arrays = (
            x
            for n, x in enumerate(self.scope.locals)
            if x.shared and n not in self.weights.values()
        )
        shared = (x.length * x.dtype.itemsize for x in arrays)
        return sum(-(-nbytes // VECTOR) * VECTOR for nbytes in shared)

    @property
    def _fitting(self) -> int:
        """Blocks that a multiprocessor has registers for."""
        held = (*self.scores, *self.mixed)
        own = sum(PAIR * len(row) for registers in held for row in registers)
        own += sum(len(row) for registers in self.held.values() for row in registers)
        spare = HIDING if self.is_hiding else SPARE
        return REGISTERS // (max(own + spare, LEAST) * THREADS)

    # -- the kernel ------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        """All of it."""
        body: list[Statement] = [self._threads(self._begin)]
        middle = self.weave.middle
        if self.once is not None:
            body += self._run_once(self.once)
            middle = (*self.once.after, *middle[middle.index(self.once.last) + 1 :])
        for s in middle:
            if isinstance(s, Reduce):
                body += self._run(s, is_last=s is self.runs[-1])
            else:
                body.append(self._threads(partial(self._of_rows, s)))
        body.append(self._threads(self._finish))
        loop = Loop(self.group, ZERO, integer(self.blocks), tuple(body), "block")
        if self.is_hiding:
            rests = (Buffer("rests", dtype) for dtype, _ in self._scratch())
            old = self.scope.kernel
            self.scope.kernel = replace(old, buffers=(*old.buffers, *rests))
        together = max(1, min(self._fitting, (self.room + OWN) // (self.nbytes + OWN)))
        notes = {"blocks": self.blocks, "threads": THREADS, "together": together}
        scratch = () if not self.is_hiding else self._scratch()
        return self.scope.kernel_with((loop,), **notes, scratch=scratch, dynamic=self.nbytes)

    def _shown(self) -> tuple[Value, Value]:
        """The first columns that a mask shows to some row of a block, and where they end: tiles."""
        weave = self.weave
        start, stop = ZERO, integer(self.tiles)
        if weave.mask is None or self.tiles < FEW:
            return start, stop
        mask = substitute_value(weave.mask, self.where)
        lows, highs = ends(mask, weave.column[0], self._box())
        for low in filter(_is_known, lows):
            start = larger(start, divide(low, SIDE))
        for high in filter(_is_known, highs):
            stop = smaller(stop, larger(divide(add(high, SIDE - 1), SIDE), 0))
        return start, stop

    def _box(self) -> dict[Value, tuple[Value, Value]]:
        """The rows of a block."""
        last = smaller(add(self.first, SIDE - 1), size_of(self.weave.row[1]) - 1)
        return {self.weave.row[0]: (self.first, last)}

    # -- what is hidden --------------------------------------------------------------------

    def _scratch(self) -> tuple[tuple[DType, int], ...]:
        tiles = self.blocks // self.high * self.tiles
        return tuple(
            (self._dtype(outer.target), tiles * size_of(outer.column[1]))
            for outer in self.weave.outers
        )

    def _rest_place(self, outer: Outer, tile: Value, column: Value) -> Value:
        """Where the rest of a tile is, for a column of the results."""
        place: Value = ZERO
        for variable, extent in self.weave.batch:
            place = add(multiply(place, extent), variable)
        place = add(multiply(place, self.tiles), tile)
        return add(multiply(place, size_of(outer.column[1])), column)

    def before(self, number: int) -> Kernel:
        """A kernel that adds up what the columns of each tile give with weights of 0."""
        weave, outer = self.weave, self.weave.outers[number]
        tile, dtype = axis("tile", self.tiles).value, self._dtype(outer.target)
        column, extent = outer.column
        factor = value("cast", (outer.right,), dtype)
        total = rest_of(factor, weave.column, multiply(tile, SIDE), SIDE, const(0, dtype))
        body: Statements = (Store(self.rests, self._rest_place(outer, tile, column), total),)
        for v, n in reversed((*weave.batch, (tile, integer(self.tiles)), (column, extent))):
            body = (Loop(v, ZERO, n, body),)
        old = weave.kernel
        buffers = (*old.buffers, Buffer("rests", dtype, "write"))
        return Kernel(f"{old.name}_rests", buffers, old.locals, body)

    def _rests(self, thread: Value) -> Statements:
        """What hidden columns add to a thread's results: nothing, unless they are infinite."""
        if not self.is_hiding:
            return ()
        spans = [] if self.start is ZERO else [(ZERO, smaller(self.start, self.tiles))]
        spans.append((larger(self.start, self.stop), integer(self.tiles)))
        made: list[Statement] = []
        for number in range(len(self.weave.outers)):
            for span in spans:
                tile = self.scope.variable("tile")
                join = self._vector(partial(self._rest, thread, number, tile))
                made.append(Loop(tile, *span, join))
        return tuple(made)

    def _rest(self, thread: Value, number: int, tile: Value, lane: Value) -> Statements:
        """The rest of one tile joins a thread's results."""
        outer, made = self.weave.outers[number], list[Statement]()
        dtype = self._dtype(outer.target)
        for k in range(size_of(outer.column[1]) // 8):
            column = add(self._place(thread, 0, k)[1], lane)
            place = substitute_value(self._rest_place(outer, tile, column), self.where)
            rest = load(self.rests + number, place, dtype)
            for registers in self.mixed[number]:
                now = get(registers[k], dtype)
                made.append(Assign(registers[k], value("add", (now, rest), dtype)))
        return tuple(made)

    def _begin(self, thread: Value) -> Statements:
        """The rows' factors are on their way, and nothing is mixed yet."""
        made: list[Statement] = []
        for rows in self.rows:
            for k in range(rows.stages):
                made += rows.fetched(thread, integer(k))
        for registers in self.mixed:
            made += self._all(registers, const(0, self._dtype(registers[0][0])))
        return tuple(made)

    # -- a run over all columns ------------------------------------------------------------

    def _described(self, reduce: Reduce, is_last: bool) -> _Run:
        wide = self._in_lanes(assigned_locals(reduce.body))
        return _Run([self._meeting(part) for part in reduce.parts], reduce.body, wide, is_last)

    def _run(self, reduce: Reduce, is_last: bool) -> Statements:
        """All columns, a few at a time, and what they give together."""
        run, tile = self._described(reduce, is_last), self.scope.variable("tile")

        def step(thread: Value) -> Statements:
            made = [*self._fetched(thread, add(tile, STAGES - 1), is_last)]
            made += (*self._scored(thread, tile), *self._points_of(thread, tile, run))
            made += self._leaves(thread, tile, run.meetings)
            return tuple(made) if is_last else (*made, self._settled())

        inner = [self._threads(step)]
        if is_last:
            inner.append(self._threads(partial(self._mix, tile)))
        loop = Loop(tile, self.start, self.stop, tuple(inner))
        begin = self._threads(partial(self._begun, run.meetings, is_last))
        return (begin, loop, *(s for m in run.meetings for s in self._met(m)))

    def _begun(self, meetings: list[Meeting], with_values: bool, thread: Value) -> Statements:
        """The first columns are on their way, and nothing has met yet."""
        made: list[Statement] = []
        for k in range(STAGES - 1):
            made += (*self._fetched(thread, add(self.start, k), with_values), self._settled())
        for m in meetings:
            made += self._all(m.held, identity_of(m.part.combine, m.dtype))
            made += self._cleared(m, thread)
        return tuple(made)

    def _scored(self, thread: Value, tile: Value) -> Statements:
        """A thread's sums of all inner products."""
        numbers = range(len(self.scores))
        return tuple(s for number in numbers for s in self._products(thread, tile, number))

    # -- two runs as one -------------------------------------------------------------------

    def _run_once(self, once: Once) -> Statements:
        """All columns: the largest so far, by which those at hand are made weights at once."""
        look, run = self._described(once.largest, False), self._described(once.last, True)
        tile, (top,) = self.scope.variable("tile"), look.meetings

        def begin(thread: Value) -> Statements:
            first, (target,) = identity_of("max", top.dtype), top.part.targets
            made: list[Statement] = [Assign(own[target], first) for own in self.own]
            made += self._between(once, thread)
            return (*self._begun([top, *run.meetings], True, thread), *made)

        def find(thread: Value) -> Statements:
            made = (*self._scored(thread, tile), *self._points_of(thread, tile, look))
            return (*made, *self._give(top, thread))

        def weigh(thread: Value) -> Statements:
            made = [*self._fetched(thread, add(tile, 1), True)]
            made += self._grown(once.power, top, self._between(once, thread), run.meetings, thread)
            made += self._points_of(thread, tile, run)
            return (*made, *self._leaves(thread, tile, run.meetings))

        inner = self._threads(find), self._threads(weigh), self._threads(partial(self._mix, tile))
        loop = Loop(tile, self.start, self.stop, inner)
        return (self._threads(begin), loop, *(s for m in run.meetings for s in self._met(m)))

    def _between(self, once: Once, thread: Value) -> Statements:
        return tuple(s for each in once.between for s in self._of_rows(each, thread))

    def _settled(self) -> Settle:
        return Settle(STAGES - 2, shown=self.together)

    def _fetched(self, thread: Value, tile: Value, with_values: bool) -> Statements:
        """A few columns of all factors, or of those that scores are made of."""
        side = remainder(tile, self.sides)
        made: list[Statement] = []
        for rows, keys in zip(self.rows, self.keys, strict=True):
            here = replace(keys, start=multiply(tile, SIDE))
            for k in range(rows.stages):
                made += here.fetched(thread, integer(k), add(multiply(side, rows.stages), k))
        for values, lent in zip(self.values, self.lent, strict=True):
            made += values.fetched(thread, tile) if with_values and lent is None else ()
        return (When(value("less", (tile, self.stop), BOOL), tuple(made)),)

    def _products(self, thread: Value, tile: Value, number: int) -> Statements:
        """The sums of one inner product that a thread has."""
        side, registers = remainder(tile, self.sides), self.scores[number]
        rows, keys, deep = self.rows[number], self.keys[number], self.weave.inners[number].depth
        sums = tuple(r for row in registers for r in row)
        made: list[Statement] = []
        for k in range(rows.stages):
            left = self._panel(rows, integer(k), self._first_row(thread))
            right = self._panel(keys, add(multiply(side, rows.stages), k), ZERO)
            depth = min(-(-(size_of(deep[1]) - k * SIDE) // STEP) * STEP, SIDE)
            made.append(replace(self._squares(thread, sums, left, right, depth), fresh=k == 0))
        return tuple(made)

    def _mix(self, tile: Value, thread: Value) -> Statements:
        """What the weights of a few columns add to the results; the next columns are there."""
        start = multiply(self._first_row(thread), self.pitch)
        away, made = self.together * ROW * SIDE, list[Statement]()
        for outer, values, registers, lent in zip(
            self.weave.outers, self.values, self.mixed, self.lent, strict=True
        ):
            held = tuple(r for row in self.held[outer.weight] for r in row)
            left = Panel(self.weights[outer.weight], start, self.pitch, 1, away, held)
            right = self._panel(values, remainder(tile, STAGES), ZERO)
            if lent is not None:
                right = replace(right, across=right.along, along=right.across)
            sums = tuple(r for row in registers for r in row)
            made.append(self._squares(thread, sums, left, right, SIDE))
        return (*made, self._settled())

    def _first_row(self, thread: Value) -> Value:
        """The first row of what multiplies: of a warp, or of all four together."""
        return ZERO if self.together else multiply(divide(thread, WARP), 8 * ROWS)

    def _panel(self, slab: Slab, side: Value, place: Value) -> Panel:
        if self.together:
            start = multiply(side, slab.size)
            return Panel(slab.array, start, *slab.steps, swirled=ROW * slab.slab)
        return Panel(slab.array, slab.position(place, ZERO, side), *slab.steps)

    def _squares(
        self, thread: Value, sums: tuple[int, ...], left: Panel, right: Panel, depth: int
    ) -> Squares:
        lane = thread if self.together else remainder(thread, WARP)
        return Squares(sums, ROWS, left, right, depth, lane, together=self.together)

    # -- points ----------------------------------------------------------------------------

    def _points_of(self, thread: Value, tile: Value, run: _Run) -> Statements:
        """Points of a tile; where a mask shows all of them, nobody looks at it."""
        mask, first = self.weave.mask, multiply(tile, SIDE)
        found = self._points(thread, tile, run)
        if mask is None or not self.is_hiding:
            return found
        box = {**self._box(), self.weave.column[0]: (first, add(first, SIDE - 1))}
        shown = is_shown(substitute_value(mask, self.where), box)
        if isinstance(shown, bool):
            return found
        plain = self._points(thread, tile, replace(run, point=chosen(run.point, mask, 1)))
        return When(shown, plain), When(value("bit_not", (shown,), BOOL), found)

    def _points(self, thread: Value, tile: Value, run: _Run) -> Statements:
        """Everything at the columns of a thread, for each of its rows."""
        start = multiply(tile, SIDE)
        return tuple(
            s
            for number in range(ROWS)
            for k in range(SIDE // 8)
            for s in self._vector(partial(self._point, thread, start, run, number, k))
        )

    def _point(
        self, thread: Value, start: Value, run: _Run, number: int, k: int, lane: Value
    ) -> Statements:
        """What is done at two adjacent columns of one row."""
        weave, (row, column) = self.weave, self._place(thread, number, k)
        place = add(add(start, column), lane)
        inside = None if self.columns % SIDE == 0 else less(place, self.columns)
        where = {**self.where, weave.row[0]: self._row(row), weave.column[0]: place}
        for inner, registers in zip(weave.inners, self.scores, strict=True):
            dtype = self._dtype(inner.target)
            where[get(inner.target, dtype)] = get(registers[number][k], dtype)
        found: list[Statement] = [*run.point]
        for m in run.meetings:
            held = m.held[number][k % len(m.held[number])]
            x = _held(inside, m.part.values[0], identity_of(m.part.combine, m.dtype))
            found.append(Assign(held, joined(m.part.combine, get(held, m.dtype), x)))
        if run.is_last:
            for weight, array in self.weights.items():
                x = get(weight, self._dtype(weight))
                x = _held(inside, x, const(0, x.dtype))
                found.append(Assign(self.held[weight][number][k], x))
                found.append(Assign(array, x, self._weight_place(thread, number, k, lane)))
        return rename_locals(substitute(tuple(found), where), {**self.own[number], **run.wide})

    def _weight_place(self, thread: Value, number: int, k: int, lane: Value) -> Value:
        """Where a weight is in shared memory."""
        row, column = self._place(thread, number)
        if self.together:
            place = swirled(row, integer(8 * k), True, ROW * SIDE)
        else:
            place = add(multiply(row, self.pitch), 8 * k)
        return add(add(place, column), lane)

    def _row(self, row: Value) -> Value:
        """A row of the block, or the last there is."""
        size, here = size_of(self.weave.row[1]), add(self.first, row)
        return here if size % SIDE == 0 else smaller(here, size - 1)

    # -- results ---------------------------------------------------------------------------

    def _of_rows(self, statement: Statement, thread: Value) -> Statements:
        """A statement of a row, for each of a thread's."""
        made: list[Statement] = []
        for number in range(ROWS):
            where = {**self.where, self.weave.row[0]: self._row(self._place(thread, number)[0])}
            made += rename_locals(substitute((statement,), where), self.own[number])
        return tuple(made)

    def _finish(self, thread: Value) -> Statements:
        """The results of a thread that there are."""
        made: list[Statement] = [*self._rests(thread)]
        for outer, registers in zip(self.weave.outers, self.mixed, strict=True):
            wide = self._in_lanes(assigned_locals(outer.epilogue))
            for number in range(ROWS):
                inner: list[Statement] = []
                for k in range(size_of(outer.column[1]) // 8):
                    total = get(registers[number][k], self._dtype(outer.target))
                    result = partial(self._result, outer, total, thread, number, k, wide)
                    inner += self._vector(result)
                row = add(self.first, self._place(thread, number)[0])
                made.append(When(less(row, size_of(self.weave.row[1])), tuple(inner)))
        return tuple(made)

    def _result(
        self,
        outer: Outer,
        total: Value,
        thread: Value,
        number: int,
        k: int,
        wide: dict[int, int],
        lane: Value,
    ) -> Statements:
        row, column = self._place(thread, number, k)
        where = {
            **self.where,
            self.weave.row[0]: add(self.first, row),
            outer.column[0]: add(column, lane),
            get(outer.target, total.dtype): total,
        }
        return rename_locals(substitute(outer.epilogue, where), {**self.own[number], **wide})


def _is_known(x: Value) -> bool:
    """Whether an index needs nothing from memory."""
    return not any(each.op == "load" for each in walk(x))


def _held(inside: Value | None, x: Value, other: Value) -> Value:
    """A value, or another one outside."""
    return x if inside is None else value("select", (inside, x, other), x.dtype)
