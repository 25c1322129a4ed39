"""Let the threads of a block share one reduction.

Each thread takes one lane of one chunk, 2^m blocks of the definition in `reduce`, and leaves its
running value in shared memory. Chunks are joined in place, level by level: neighbours first, which
is the balanced tree. Every thread then joins the lanes for itself. So the bits are the same as when
one thread does it all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from weft.compiler.loops import (
    BOOL,
    LANES,
    LEAF,
    Assign,
    Local,
    Loop,
    Part,
    Reduce,
    Statement,
    Store,
    Value,
    When,
    get,
    integer,
    load,
    value,
)
from weft.compiler.passes.accumulate import (
    Accumulators,
    Tree,
    dtypes_of,
    is_better,
    joined,
    select,
)
from weft.compiler.passes.points import at, moved, places, points
from weft.compiler.polynomial import add, divide, known, multiply, remainder, smaller, subtract
from weft.compiler.rebuild import Scope, Statements, substitute, values_of
from weft.core.common.types import DType

BLOCK = LANES * LEAF
ZERO = integer(0)
WIDTH = 32  # results of a block, where each is a reduction on its own
Body: TypeAlias = Callable[[Value], Statements]
Places: TypeAlias = Callable[[Value], dict[Value, Value]]
_SMALL, _MEDIUM = 60, 150  # instructions of a point that is written out 8 times, or 4


@dataclass(frozen=True)
class Team:
    """The threads of a block."""

    scope: Scope
    threads: int

    def each(self, name: str, count: int, body: Body) -> Loop:
        """`body(k)` for each k below `count`, shared out among the threads."""
        thread = self.scope.variable("thread")
        if count <= self.threads:
            return Loop(thread, integer(0), integer(count), body(thread), "thread")
        turn = self.scope.variable(name)
        at_turn = add(multiply(turn, self.threads), thread)
        turns = integer(-(-count // self.threads))
        if count % self.threads:
            turns = divide(subtract(integer(count + self.threads - 1), thread), self.threads)
        inner = Loop(turn, integer(0), turns, body(at_turn))
        return Loop(thread, integer(0), integer(self.threads), (inner,), "thread")

    def shared(self, name: str, part: Part, length: int) -> tuple[int, ...]:
        """Shared arrays for the results of a part."""
        scope, made = self.scope, []
        for dtype in dtypes_of(part):
            scope.locals.append(Local(name, dtype, 1, length, shared=True))
            made.append(len(scope.locals) - 1)
        return tuple(made)


@dataclass(frozen=True)
class Chunks:
    """Blocks of a reduction in chunks of `size`, a power of two; `count` of them from `first`."""

    count: int
    size: int = 1
    first: Value = ZERO


def chunks_of(blocks: int, parts: tuple[Part, ...], budget: int, width: int = LANES) -> Chunks:
    """The smallest chunks whose running values take at most `budget` bytes."""
    each = width * sum(dtype.itemsize for part in parts for dtype in dtypes_of(part))
    size = 1
    while -(-blocks // size) * each > budget:
        size *= 2
    return Chunks(-(-blocks // size), size)


class Cooperation:
    """One reduction by the threads of a block: `width` lanes, `spacing` points between steps."""

    width = LANES
    spacing = LANES

    def __init__(self, team: Team, reduce: Reduce, chunks: Chunks) -> None:
        self.team = team
        self.scope = team.scope
        self.reduce = reduce
        self.chunks = chunks
        count = known(points(reduce))
        assert count is not None, "the sizes of a reduction on a GPU are known"
        self.points = count
        length = chunks.count * self.width
        self.arrays = [team.shared("partials", part, length) for part in reduce.parts]

    def statements(self) -> Statements:
        """All of it: the results are in the reduction's targets."""
        return (*self.partial(), *self.finish())

    def partial(self) -> Statements:
        """The running values of all chunks, joined into the first."""
        leaf = self.team.each("item", self.chunks.count * self.width, self._leaf)
        return (leaf, *self.levels())

    def resumed(self, buffers: list[tuple[int, ...]], first: Value) -> Statements:
        """Running values that other blocks left in buffers, joined."""

        def take(item: Value) -> Statements:
            return tuple(
                Assign(array, load(buffer, add(first, item), self._dtype(array)), item)
                for arrays, kept in zip(self.arrays, buffers, strict=True)
                for array, buffer in zip(arrays, kept, strict=True)
            )

        leaf = self.team.each("item", self.chunks.count * LANES, take)
        return (leaf, *self.levels(), *self.finish())

    def kept(self, buffers: list[tuple[int, ...]], first: Value) -> Statements:
        """Leave the joined running values in buffers, for `resumed`."""

        def give(lane: Value) -> Statements:
            return tuple(
                Store(buffer, add(first, lane), get(array, self._dtype(array), lane))
                for arrays, kept in zip(self.arrays, buffers, strict=True)
                for array, buffer in zip(arrays, kept, strict=True)
            )

        return (self.team.each("item", LANES, give),)

    def _dtype(self, local: int) -> DType:
        return self.scope.locals[local].dtype

    # -- one lane of one chunk -------------------------------------------------------------

    def _leaf(self, item: Value) -> Statements:
        chunk, lane = divide(item, self.width), remainder(item, self.width)
        chunk = add(chunk, self.chunks.first)
        totals = Accumulators(self.reduce.parts, self.scope, 1)
        if self.chunks.size == 1:
            body = self._steps(totals, chunk, lane)
        else:
            turn = self.scope.variable("block")
            tree = Tree(totals, integer(self.chunks.size))
            block = add(multiply(chunk, self.chunks.size), turn)
            inner = (*self._steps(totals, block, lane), *tree.carry(turn))
            loop = Loop(turn, integer(0), integer(self.chunks.size), inner)
            body = (loop, *tree.finish())
        held = tuple(
            Assign(array, now, item)
            for k, arrays in enumerate(self.arrays)
            for array, now in zip(arrays, totals.now(k), strict=True)
        )
        return (*body, *held)

    def _steps(self, totals: Accumulators, block: Value, lane: Value) -> Statements:
        """The points of one lane of one block, in order."""
        reduce, first, size = self.in_lane(lane), self.first(block, lane), LEAF * self.spacing
        start = totals.start(places(reduce, at(reduce, first)))
        if self.points % size:
            after = integer(self.points + self.spacing - 1)
            stop = smaller(integer(LEAF), divide(subtract(after, first), self.spacing))
            step = self.scope.variable("step")
            body = _point(totals, reduce, add(first, multiply(step, self.spacing)))
            return (*start, Loop(step, integer(0), stop, body))
        loop = self._written_out(totals, reduce, first)
        if self.points % (self.chunks.count * self.chunks.size * size) == 0:
            return (*start, loop)  # no chunk reaches past the last point
        return (*start, When(value("less", (first, integer(self.points)), BOOL), (loop,)))

    def in_lane(self, lane: Value) -> Reduce:
        """The reduction as one lane sees it."""
        return self.reduce

    def first(self, block: Value, lane: Value) -> Value:
        """The first point of a block in a lane."""
        return add(multiply(block, BLOCK), lane)

    def _written_out(self, totals: Accumulators, reduce: Reduce, first: Value) -> Loop:
        outer, inner = self.scope.variable("step"), self.scope.variable("step")
        size = len(values_of((reduce,)))
        times = 8 if size < _SMALL else 4 if size < _MEDIUM else 1
        step = add(multiply(outer, times), inner)
        body = _point(totals, reduce, add(first, multiply(step, self.spacing)))
        again: Statement = Loop(inner, integer(0), integer(times), body, "unroll")
        return Loop(outer, integer(0), integer(LEAF // times), (again,))

    # -- chunks, then lanes ----------------------------------------------------------------

    def levels(self) -> Statements:
        """Neighbouring chunks joined until the first holds them all."""
        made: list[Statement] = []
        apart = 1
        while apart < self.chunks.count:
            pairs = -(-(self.chunks.count - apart) // (2 * apart))
            made.append(self.team.each("item", pairs * self.width, self._join_at(apart)))
            apart *= 2
        return tuple(made)

    def _join_at(self, apart: int) -> Body:
        def join(item: Value) -> Statements:
            pair, lane = divide(item, self.width), remainder(item, self.width)
            near = add(multiply(pair, 2 * apart * self.width), lane)
            far = add(near, apart * self.width)
            made: Statements = ()
            for part, arrays in zip(self.reduce.parts, self.arrays, strict=True):
                first, second = ([get(a, self._dtype(a), p) for a in arrays] for p in (near, far))
                both = list(zip(arrays, _met(part.combine, first, second), strict=True))
                # The place first: its choice reads the element, which changes last.
                made += tuple(Assign(a, x, near) for a, x in reversed(both))
            return made

        return join

    def finish(self) -> Statements:
        """The lanes of the first chunk by halves, in every thread."""
        made: list[Statement] = []
        for part, arrays in zip(self.reduce.parts, self.arrays, strict=True):
            lanes = [
                [get(a, self._dtype(a), integer(lane)) for a in arrays] for lane in range(LANES)
            ]
            while len(lanes) > 1:
                half = len(lanes) // 2
                lanes = [_lanes_met(part.combine, lanes[k], lanes[k + half]) for k in range(half)]
            made += [Assign(t, x) for t, x in zip(part.targets, lanes[0], strict=True)]
        return tuple(made)


class Columns(Cooperation):
    """As many reductions of the kind without lanes as a block has lanes: one for each result.

    `place` gives the variables of a result that a lane stands for.
    """

    width = WIDTH
    spacing = 1

    def __init__(self, team: Team, reduce: Reduce, chunks: Chunks, place: Places) -> None:
        super().__init__(team, reduce, chunks)
        self.place = place

    def in_lane(self, lane: Value) -> Reduce:
        (found,) = substitute((self.reduce,), self.place(lane))
        assert isinstance(found, Reduce)
        return found

    def first(self, block: Value, lane: Value) -> Value:
        return multiply(block, LEAF)

    def results(self, lane: Value) -> Statements:
        """One lane's results, in the reduction's targets."""
        return tuple(
            Assign(target, get(array, self._dtype(array), lane))
            for part, arrays in zip(self.reduce.parts, self.arrays, strict=True)
            for target, array in zip(part.targets, arrays, strict=True)
        )


def _point(totals: Accumulators, reduce: Reduce, point: Value) -> Statements:
    here = moved(reduce, at(reduce, point))
    met = (s for k, part in enumerate(here.parts) for s in totals.meet(k, part.values))
    return (*here.body, *met)


def _met(combine: str, first: list[Value], second: list[Value]) -> list[Value]:
    """Two running values met, the earlier one first."""
    if len(first) == 1:
        return [joined(combine, first[0], second[0])]
    better = is_better(combine, first[0], second[0])
    return [select(better, y, x) for x, y in zip(first, second, strict=True)]


def _lanes_met(combine: str, near: list[Value], far: list[Value]) -> list[Value]:
    """Two lanes met: of equal extremes the one at the earlier place stays."""
    if len(near) == 1:
        return [joined(combine, near[0], far[0])]
    wins, loses = is_better(combine, near[0], far[0]), is_better(combine, far[0], near[0])
    earlier = value("less", (far[1], near[1]), BOOL)
    tie = value("bit_and", (value("bit_not", (loses,), BOOL), earlier), BOOL)
    taken = value("bit_or", (wins, tie), BOOL)
    return [select(taken, y, x) for x, y in zip(near, far, strict=True)]
