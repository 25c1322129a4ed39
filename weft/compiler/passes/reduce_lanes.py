"""A reduction whose points are lanes: LANES of them at each step.

Where steps are short, one takes points of several blocks, so that no running value waits for the
step before. Where they are long, and the longest vectors hold no more than LANES, several are taken
at once, an instruction at a time for all of them: a processor does not look as far ahead as to the
next step. Points that no whole step takes go one by one into the lanes they belong to. Where the
points run over rows of another length than whole steps, a step that stays in its row finds the row
once for all its lanes, and one that leaves it goes point by point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain

from weft.compiler.lanes import widen
from weft.compiler.loops import (
    BOOL,
    INDEX,
    LANES,
    LEAF,
    Assign,
    Loop,
    Part,
    Reduce,
    Statement,
    Store,
    Value,
    When,
    get,
    integer,
    value,
    walk,
)
from weft.compiler.passes.accumulate import Accumulators, Levels, Tree, across, tree_of
from weft.compiler.passes.contract_registers import WIDEST
from weft.compiler.passes.points import at, moved, name_of, places, points
from weft.compiler.passes.shown import find
from weft.compiler.polynomial import (
    Polynomial,
    add,
    divide,
    hides,
    known,
    multiply,
    number,
    polynomial,
    remainder,
    smaller,
    stride,
    subtract,
    whole,
    without,
)
from weft.compiler.rebuild import Scope, Statements, substitute, values_of

BLOCK = LANES * LEAF
_CHAINS = 4  # registers of running values that keep a processor busy
_CHEAP = 8  # instructions of a step that is over before its sum is
_LONG = 80  # instructions of a step that is taken twice at once, shorter ones four times
_FEW = 8  # blocks whose points leave the values of those before in the nearest memory


class LaneForm:
    """The loops of one reduction; `inner` makes loops of reductions in its body."""

    def __init__(
        self,
        reduce: Reduce,
        differing: set[int],
        scope: Scope,
        inner: Callable[[Statements], Statements],
        vector_bytes: int = 16,
    ) -> None:
        self.reduce = reduce
        self.differing = differing
        self.scope = scope
        self.inner = inner
        self.count = points(reduce)
        self.whole = whole(self.count, LANES)
        self.totals = Accumulators(reduce.parts, scope, LANES)
        self.point = scope.variable(name_of(reduce))
        self.here = moved(reduce, at(reduce, self.point))
        self.rows = _rows(self.here, self.point)
        self.crossing = self.rows is not None and not _are_whole(self.rows, self.point)
        self.shown = find(self.here, self.point)
        self.abreast = self._abreast(vector_bytes)
        self.at_once = self._at_once(vector_bytes)

    def _abreast(self, vector_bytes: int) -> int:
        """How many blocks are taken together: a power of two, fewer than wide steps need."""
        if self.shown is not None and not self.shown.hides_the_rest:
            return 1
        usual = self.reduce if self.shown is None else self.shown.shown
        values = [v for part in usual.parts for v in part.values]
        work = [x for x in walk(*values) if x.dtype != INDEX and x.op != "const"]
        if self.reduce.body or self.rows is not None or len(work) > _CHEAP:
            return 1
        size = max(x.dtype.itemsize for x in values)
        many = max(_CHAINS * vector_bytes // (LANES * size), 1)
        count = known(self.count)
        while count is not None and many > 1 and many * BLOCK > count:
            many //= 2
        return min(many, _CHAINS)

    def _at_once(self, vector_bytes: int) -> int:
        """How many steps are taken an instruction at a time for all of them."""
        values = [v for part in self.reduce.parts for v in part.values]
        work = [x for x in values_of((self.reduce,)) if x.dtype != INDEX and x.op != "const"]
        is_plain = all(isinstance(s, Assign) or _is_store(s) for s in self.reduce.body)
        if not is_plain or self.rows is not None or len(work) <= _CHEAP:
            return 1
        size = max(x.dtype.itemsize for x in values)
        registers = 2 if len(work) >= _LONG else 4
        return max(registers * vector_bytes // (LANES * size), 1) if vector_bytes == WIDEST else 1

    def statements(self) -> Statements:
        """The loops."""
        count = known(self.count)
        if count is not None and count <= BLOCK:
            stop = self.count if self.crossing else self.whole
            made = (*self.start(integer(0)), *self.steps(integer(0), stop), *self.tail())
        else:
            made = self.blocks()
        parts = range(len(self.reduce.parts))
        return (*made, *(s for k in parts for s in across(self.totals, k)))

    def blocks(self) -> Statements:
        """Blocks of BLOCK points, then the tree."""
        blocks = divide(add(self.count, BLOCK - 1), BLOCK)
        if self.abreast > 1 and known(self.count) == self.abreast * BLOCK:
            return self.together(integer(0))
        tree: Tree | Levels
        groups: Statements = ()
        taken = integer(0)
        if self.abreast == 1:
            tree = tree_of(self.totals, blocks, _FEW)
        else:
            tree = Tree(self.totals, blocks)
            groups, taken = self.groups(tree)
        block = self.scope.variable("block")
        first = multiply(block, BLOCK)
        stop = self.count if self.crossing else self.whole
        steps = self.steps(first, smaller(add(first, BLOCK), stop))
        tail = self.tail()
        if tail:
            last = value("equal", (block, subtract(blocks, 1)), BOOL)
            tail = (When(last, tail),)
        body = (*self.start(first), *steps, *tail, *tree.carry(block))
        single = (Loop(block, taken, blocks, body),) if known(subtract(blocks, taken)) != 0 else ()
        empty = self.start(integer(0)) if known(self.count) is None else ()
        return (*empty, *groups, *single, *tree.finish())

    def groups(self, tree: Tree) -> tuple[Statements, Value]:
        """Whole blocks, several at a time, and how many blocks they were."""
        group, count = self.scope.variable("group"), divide(self.count, BLOCK * self.abreast)
        body = self.together(multiply(group, BLOCK * self.abreast))
        body += tree.carry(group, self.abreast.bit_length() - 1)
        return (Loop(group, integer(0), count, body),), multiply(count, self.abreast)

    def together(self, first: Value) -> Statements:
        """Several blocks from the point `first` on, step by step, joined like the tree's leaves."""
        chains = [self.totals]
        while len(chains) < self.abreast:
            chains.append(Accumulators(self.reduce.parts, self.scope, LANES))
        starts: Statements = ()
        for k, totals in enumerate(chains):
            starts += self.start(add(first, k * BLOCK), totals)
        if self.shown is None:
            steps: Statements = (self.side_by_side(chains, first, integer(0), integer(BLOCK)),)
        else:
            steps = self.as_shown(chains, first)
        joins: Statements = ()
        apart = 1
        while apart < len(chains):
            for near, far in zip(chains[:: 2 * apart], chains[apart :: 2 * apart], strict=True):
                for part in range(len(self.reduce.parts)):
                    joins += near.everywhere(near.joined(part, near.now(part), far.now(part)))
            apart *= 2
        return (*starts, *steps, *joins)

    def side_by_side(
        self, chains: list[Accumulators], first: Value, start: Value, stop: Value
    ) -> Loop:
        """The steps of as many blocks as there are chains, from `start` to `stop` of each."""
        step, body = self.scope.variable(self.point.data), list[Statement]()
        here = self.here if self.shown is None else self.shown.shown
        for k, totals in enumerate(chains):
            body += self.step({self.point: add(add(first, k * BLOCK), step)}, totals, here)
        return Loop(step, start, stop, tuple(body), "vector", LANES)

    def as_shown(self, chains: list[Accumulators], first: Value) -> Statements:
        """Like `side_by_side`, but of blocks from whose points on some are hidden.

        How many of them are shown whole is asked once; of what is hidden one step stands for all.
        """
        assert self.shown is not None
        shown, made, zero = self.shown, list[Statement](), integer(0)
        ends = [add(first, k * BLOCK) for k in range(len(chains) + 1)]
        before, after = shown.end(self.scope, first, ends[-1], made)
        whole = self.scope.local("whole", INDEX)
        made.append(Assign(whole, divide(subtract(before, first), BLOCK)))
        for count, end in enumerate(ends):
            parts, at = list[Statement](), zero
            if count < len(chains):  # the block after the whole ones is shown up to `before`
                at = subtract(before, end)
                parts.append(self.side_by_side(chains[: count + 1], first, zero, at))
                parts.append(self.run(shown.given, before, after, chains[count]))
            for k in range(count, len(chains)):
                start = after if k == count else ends[k]
                parts.append(self.run(shown.hidden, *shown.some(start, ends[k + 1]), chains[k]))
            if count:
                parts.append(self.side_by_side(chains[:count], first, at, integer(BLOCK)))
            is_so = value("equal", (get(whole, INDEX), integer(count)), BOOL)
            made.append(When(is_so, tuple(parts)))
        return tuple(made)

    def start(self, first: Value, totals: Accumulators | None = None) -> Statements:
        """Running values before the points from `first` on."""
        lane = self.scope.variable("lane")
        where = places(self.reduce, at(self.reduce, add(first, lane)))
        made = (totals or self.totals).start(where)
        if all(place is None for place in where):
            return made
        return (Loop(lane, integer(0), integer(LANES), made, "vector", LANES),)

    def steps(self, start: Value, stop: Value) -> Statements:
        """Whole steps; where they may leave their row, the last one may be a part of a step."""
        if known(stop) == 0:
            return ()
        if self.rows is None:
            if self.shown is not None:
                return self.shown.steps(self.scope, start, stop, self.run, self.run_long)
            return self.run_long(self.here, start, stop)
        step, lane = self.scope.variable("step"), self.scope.variable("lane")
        first = multiply(step, LANES)
        body = self._in_row(first, lane)
        count = divide(add(stop, LANES - 1), LANES) if self.crossing else divide(stop, LANES)
        if self.crossing:
            body = self._in_row_or_not(first, body)
        return (Loop(step, divide(start, LANES), count, body),)

    def run_long(self, here: Reduce, start: Value, stop: Value) -> Statements:
        """Whole steps, several at once while there are as many."""
        if self.at_once == 1:
            return (self.run(here, start, stop),)
        points = self.at_once * LANES
        taken = whole(subtract(stop, start), points)
        made: list[Statement] = []
        if known(taken) != 0:
            made.append(self.several(here, start, divide(taken, points)))
        if known(subtract(subtract(stop, start), taken)) != 0:
            made.append(self.run(here, add(start, taken), stop))
        return tuple(made)

    def several(self, here: Reduce, start: Value, count: Value) -> Loop:
        """`count` times several steps at once, whose values then meet in order.

        Where they begin at a place that is found, it stays out of the points' own places: then it
        can be told from these what is written where.
        """
        points = self.at_once * LANES
        step, lane, near = (self.scope.variable(n) for n in ("step", self.point.data, "lane"))
        base = add(start, multiply(step, points))
        first = base if any(x.op == "get" for x in walk(start)) else integer(0)
        here = self._at({self.point: add(subtract(base, first), lane)}, here)
        held = [
            [(self.scope.local("values", x.dtype, 1, points), x) for x in part.values]
            for part in here.parts
        ]
        place = subtract(lane, first)
        kept = (Assign(array, x, place) for values in held for array, x in values)
        met = (
            self.totals.meet(part, tuple(get(n, x.dtype, add(near, k * LANES)) for n, x in values))
            for k in range(self.at_once)
            for part, values in enumerate(held)
        )
        wide = widen((*here.body, *kept), self.differing, points, self.scope)
        body = (
            Loop(lane, first, add(first, points), wide, "vector", points),
            Loop(near, integer(0), integer(LANES), tuple(chain(*met)), "vector", LANES),
        )
        return Loop(step, integer(0), count, body)

    def run(
        self, here: Reduce, start: Value, stop: Value, totals: Accumulators | None = None
    ) -> Loop:
        """Whole steps of points that are computed like `here`."""
        point = self.scope.variable(self.point.data)
        body = self.step({self.point: point}, totals, here)
        return Loop(point, start, stop, body, "vector", LANES)

    def _in_row(self, first: Value, lane: Value) -> Statements:
        """A step whose lanes are all in one row."""
        assert self.rows is not None
        index, length = self.rows
        base = _moved_by(index, self.point, first)
        where = {self.point: add(first, lane)}
        where[value("rem", (index, length), index.dtype)] = add(remainder(base, length), lane)
        where[value("floordiv", (index, length), index.dtype)] = divide(base, length)
        return (Loop(lane, integer(0), integer(LANES), self.step(where), "vector", LANES),)

    def _in_row_or_not(self, first: Value, body: Statements) -> Statements:
        assert self.rows is not None
        index, length = self.rows
        column = remainder(_moved_by(index, self.point, first), length)
        room = smaller(subtract(length, column), subtract(self.count, first))
        fits = value("less_equal", (integer(LANES), room), BOOL)
        stop = smaller(add(first, LANES), self.count)
        outside = value("bit_not", (fits,), BOOL)
        return (When(fits, body), When(outside, self.one_by_one(first, stop)))

    def step(
        self,
        where: dict[Value, Value],
        totals: Accumulators | None = None,
        here: Reduce | None = None,
    ) -> Statements:
        """The body and the running values, for LANES points."""
        here, totals = self._at(where, here), totals or self.totals
        met = tuple(s for k, p in enumerate(here.parts) for s in totals.meet(k, p.values))
        return widen((*self.inner(here.body), *met), self.differing, LANES, self.scope)

    def _at(self, where: dict[Value, Value], given: Reduce | None = None) -> Reduce:
        (here,) = self.scope.copy(substitute((given or self.here,), where))
        assert isinstance(here, Reduce)
        return here

    def tail(self) -> Statements:
        """The points that no whole step takes."""
        if self.crossing or known(subtract(self.count, self.whole)) == 0:
            return ()
        return self.one_by_one(self.whole, self.count)

    def one_by_one(self, first: Value, stop: Value) -> Statements:
        """Fewer than LANES points from `first` on, each into the lane it belongs to."""
        names = (self.point.data, "lane", "lane")
        point, down, up = (self.scope.variable(name) for name in names)
        here = self._at({self.point: point})
        rest = _Elements(self.totals, subtract(point, first))
        body = (*self.inner(here.body), *rest.meet(here.parts))
        return (
            Loop(down, integer(0), integer(LANES), rest.dump(down), "vector", LANES),
            Loop(point, first, stop, body),
            Loop(up, integer(0), integer(LANES), rest.back(up), "vector", LANES),
        )


def _is_store(statement: Statement) -> bool:
    return isinstance(statement, Store) and not statement.combine


def _moved_by(index: Value, point: Value, first: Value) -> Value:
    others: Polynomial = without(polynomial(index), (point,))
    total = first
    for term, count in others.items():
        product = integer(count)
        for atom in term:
            product = multiply(product, atom)
        total = add(total, product)
    return total


def _rows(here: Reduce, point: Value) -> tuple[Value, Value] | None:
    """(index, length) if places of points are found by index // length and index % length."""
    found: set[tuple[Value, Value]] = set()
    for x in values_of((here,)):
        if x.op in ("floordiv", "rem") and hides(x, point):
            index, length = x.args
            if number(stride(index, point)) == 1 and not hides(length, point):
                found.add((index, length))
    return found.pop() if len(found) == 1 else None


def _are_whole(rows: tuple[Value, Value], point: Value) -> bool:
    """Whether every row begins at a step and ends with one."""
    index, length = rows
    extent = known(length)
    others = without(polynomial(index), (point,))
    begins = all(count % LANES == 0 for count in others.values())
    return begins and extent is not None and extent > 0 and extent % LANES == 0


class _Elements:
    """Running values in arrays, one element per lane, so that single lanes can change."""

    def __init__(self, totals: Accumulators, lane: Value) -> None:
        self.totals = totals
        self.lane = lane
        self.dtypes = [tuple(totals.scope.locals[n].dtype for n in held) for held in totals.held]
        self.arrays = [
            tuple(totals.scope.local("lanes", dtype, 1, LANES) for dtype in dtypes)
            for dtypes in self.dtypes
        ]

    def dump(self, lane: Value) -> Statements:
        """Registers into arrays."""
        return tuple(
            Assign(array, now, lane)
            for k, arrays in enumerate(self.arrays)
            for array, now in zip(arrays, self.totals.now(k), strict=True)
        )

    def back(self, lane: Value) -> Statements:
        """Arrays into registers."""
        return tuple(
            Assign(held, now)
            for k, numbers in enumerate(self.totals.held)
            for held, now in zip(numbers, self._now(k, lane), strict=True)
        )

    def _now(self, k: int, lane: Value) -> tuple[Value, ...]:
        pairs = zip(self.arrays[k], self.dtypes[k], strict=True)
        return tuple(get(array, dtype, lane) for array, dtype in pairs)

    def meet(self, parts: tuple[Part, ...]) -> Statements:
        """The lane of one point, met by it."""
        made: Statements = ()
        for k, part in enumerate(parts):
            for assign in self.totals.joined(k, self._now(k, self.lane), part.values):
                held = self.totals.held[k].index(assign.local)
                made += (replace(assign, local=self.arrays[k][held], position=self.lane),)
        return made
