"""Turn reductions into loops.

What a reduction of n points x[0], x[1], … is, on every backend and however it is split:

* `lanes` = 16: blocks of 512 points, 32 steps of 16 lanes. Point j of a block is in lane j % 16.
  Each lane starts at the combine's identity and meets its points in order. Blocks are joined lane
  by lane: tree(blocks) = combine(tree(first 2^p), tree(rest)), 2^p the largest power of two below
  their number. At the end lane l meets lane l + 8, then + 4, + 2, + 1.
* `lanes` = 1: blocks of 32 points, each met in order, then the same tree.
* `lanes` = 0: products, all in order, or in pieces (see `chains`).

So lane l of the first kind is a reduction of the second kind over the points l, l + 16, …: where
the loop around a reduction runs in lanes, or memory is not in the order of the points, it becomes
16 of those. Identities are exact, so a lane may meet one at any time.
"""

from __future__ import annotations

from dataclasses import replace

from weft.compiler.lanes import Lanes
from weft.compiler.loops import (
    LANES,
    LEAF,
    Assign,
    Kernel,
    Loop,
    Part,
    Reduce,
    Statement,
    Store,
    Value,
    get,
    integer,
)
from weft.compiler.passes.accumulate import (
    Accumulators,
    Tree,
    dtypes_of,
    halves,
)
from weft.compiler.passes.chains import in_chains
from weft.compiler.passes.points import at, moved, name_of, origin, places, points
from weft.compiler.passes.reduce_lanes import BLOCK, LaneForm
from weft.compiler.polynomial import add, divide, known, multiply, smaller, subtract
from weft.compiler.rebuild import Scope, Statements, with_body

FEW = 4  # blocks that are written out


def reduce(kernel: Kernel, vectors: bool = True, vector_bytes: int = 16) -> Kernel:
    """The kernel with loops in the place of reductions; `vectors` where their points are lanes."""
    scope = Scope(kernel)
    expander = _Expander(scope, Lanes(kernel), vector_bytes)
    body = expander.statements(kernel.body, alone=vectors)
    return scope.kernel_with(body)


class _Expander:
    def __init__(self, scope: Scope, judge: Lanes, vector_bytes: int) -> None:
        self.scope = scope
        self.judge = judge
        self.vector_bytes = vector_bytes

    def statements(self, statements: Statements, alone: bool) -> Statements:
        """Statements without reductions; `alone` where no loop around them runs in lanes."""
        made: list[Statement] = []
        for statement in statements:
            if isinstance(statement, Store | Assign):
                made.append(statement)
            elif isinstance(statement, Reduce):
                made += self.expand(statement, alone)
            else:
                lanes = isinstance(statement, Loop) and (
                    statement.kind == "vector" or self.judge.runs_as_lanes(statement)
                )
                body = self.statements(statement.body, alone and not lanes)
                made.append(with_body(statement, body))
        return tuple(made)

    def expand(self, reduce: Reduce, alone: bool) -> Statements:
        """A reduction in loops."""
        if reduce.parts[0].combine == "dot":
            return self.statements(in_chains(self.scope, reduce), alone)
        if reduce.lanes == 0:
            return self.in_order(reduce, alone)
        if reduce.lanes == 1:
            count = points(reduce)
            return self.by_blocks(reduce, divide(add(count, LEAF - 1), LEAF), alone)
        if alone and self.judge.runs_as_lanes(reduce):
            return self.in_lanes(reduce)
        return self.lane_by_lane(reduce, alone)

    def in_lanes(self, reduce: Reduce) -> Statements:
        """LANES points at a time."""
        differing = self.judge.varying_points(reduce, reduce.axes[-1][0])
        assert differing is not None

        def inner(body: Statements) -> Statements:
            return self.statements(body, alone=False)

        return LaneForm(reduce, differing, self.scope, inner, self.vector_bytes).statements()

    # -- one point at a time ---------------------------------------------------------------

    def in_order(self, reduce: Reduce, alone: bool) -> Statements:
        """Every point in order, one after another."""
        totals = Accumulators(reduce.parts, self.scope, 1)
        body = self.statements(reduce.body, alone) + _met(totals, reduce.parts)
        for variable, extent in reversed(reduce.axes):
            body = (Loop(variable, integer(0), extent, body),)
        start = totals.start(places(reduce, origin(reduce)))
        return (*start, *body, *_finished(totals))

    def by_blocks(self, reduce: Reduce, blocks: Value, alone: bool) -> Statements:
        """Blocks of LEAF points in order, then the tree; the last blocks may be empty."""
        if known(blocks) in (0, 1):
            return self.in_order(reduce, alone)
        count = points(reduce)
        exact = known(count)
        if exact is not None and exact <= FEW * LEAF and not alone:
            return self.one_by_one(reduce, exact)
        totals = Accumulators(reduce.parts, self.scope, 1)
        tree = Tree(totals, blocks)
        block, point = self.scope.variable("block"), self.scope.variable(name_of(reduce))
        first = multiply(block, LEAF)
        expanded = replace(reduce, body=self.statements(reduce.body, alone))
        inner = moved(expanded, at(reduce, point))
        body = (*inner.body, *_met(totals, inner.parts))
        steps = Loop(point, first, smaller(add(first, LEAF), count), body)
        start = totals.start(places(reduce, at(reduce, first)))
        each = Loop(block, integer(0), blocks, (*start, steps, *tree.carry(block)))
        empty = totals.start(places(reduce, origin(reduce))) if known(blocks) is None else ()
        return (*empty, each, *tree.finish(), *_finished(totals))

    def one_by_one(self, reduce: Reduce, count: int) -> Statements:
        """A few blocks, written out, each with running values of its own that meet at the end."""
        made: Statements = ()
        totals: list[Accumulators] = []
        for first in range(0, count, LEAF):
            here = Accumulators(reduce.parts, self.scope, 1)
            point = self.scope.variable(name_of(reduce))
            inner = moved(reduce, at(reduce, point))
            body = self.scope.copy(self.statements(inner.body, alone=False))
            steps = (*body, *_met(here, inner.parts))
            stop = integer(min(first + LEAF, count))
            made += here.start(places(reduce, at(reduce, integer(first))))
            made += (Loop(point, integer(first), stop, steps),)
            totals.append(here)
        return (*made, *_tree(totals), *_finished(totals[0]))

    def lane_by_lane(self, reduce: Reduce, alone: bool) -> Statements:
        """Each of LANES lanes on its own, then the lanes by halves."""
        scope = self.scope
        lane, step = scope.variable("lane"), scope.variable("step")
        count = points(reduce)
        steps = divide(add(subtract(count, lane), LANES - 1), LANES)
        here = moved(reduce, at(reduce, add(multiply(step, LANES), lane)))
        registers = [tuple(scope.local("lane", d) for d in dtypes_of(p)) for p in reduce.parts]
        parts = tuple(
            Part(targets, p.combine, p.values)
            for targets, p in zip(registers, here.parts, strict=True)
        )
        arrays = [[scope.local("lanes", d, 1, LANES) for d in dtypes_of(p)] for p in reduce.parts]
        inner = Reduce(((step, steps),), 1, parts, here.body)
        held = tuple(
            Assign(array, get(register, scope.locals[register].dtype), lane)
            for k, each in enumerate(arrays)
            for array, register in zip(each, registers[k], strict=True)
        )
        blocks = divide(add(count, BLOCK - 1), BLOCK)  # of the longest lane
        body = (*self.by_blocks(inner, blocks, alone), *held)
        made: Statements = (Loop(lane, integer(0), integer(LANES), body),)
        for part, each in zip(reduce.parts, arrays, strict=True):
            made += self._joined_lanes(part, each)
        return made

    def _joined_lanes(self, part: Part, arrays: list[int]) -> Statements:
        scope = self.scope
        if scope.locals[part.targets[0]].lanes == 1:
            return halves(part, arrays, scope)
        lane = scope.variable("lane")
        apart = tuple(
            Assign(t, get(a, scope.locals[a].dtype, lane))
            for t, a in zip(part.targets, arrays, strict=True)
        )
        return (Loop(lane, integer(0), integer(LANES), apart, "vector", LANES),)


def _met(totals: Accumulators, parts: tuple[Part, ...]) -> Statements:
    return tuple(s for k, part in enumerate(parts) for s in totals.meet(k, part.values))


def _tree(totals: list[Accumulators]) -> Statements:
    """The running values of all, in those of the first."""
    if len(totals) == 1:
        return ()
    half = 1 << (len(totals) - 1).bit_length() - 1
    first, rest = totals[:half], totals[half:]
    joins: Statements = (*_tree(first), *_tree(rest))
    for k in range(len(first[0].parts)):
        joins += first[0].joined(k, first[0].now(k), rest[0].now(k))
    return joins


def _finished(totals: Accumulators) -> Statements:
    return tuple(
        Assign(target, now)
        for k, part in enumerate(totals.parts)
        for target, now in zip(part.targets, totals.now(k), strict=True)
    )
