"""Share a long reduction of few results between threads: two kernels in the place of one.

The first reduces chunks, each a power of two of whole blocks, and writes what they give to a new
buffer, `partials`; the second joins them by the upper levels of the same tree, so no bit changes.
What runs at each point stays in the first, what reads the results goes to the second.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from weft.compiler.lanes import Lanes
from weft.compiler.loops import (
    INDEX,
    LANES,
    LEAF,
    Assign,
    Buffer,
    Kernel,
    Loop,
    Part,
    Reduce,
    Store,
    Value,
    const,
    every,
    get,
    integer,
    load,
    value,
)
from weft.compiler.passes.accumulate import Accumulators, across, dtypes_of, halves, tree_of
from weft.compiler.passes.points import at, moved, points
from weft.compiler.polynomial import add, divide, known, multiply, remainder, smaller, subtract
from weft.compiler.rebuild import Scope, Statements
from weft.core.common.types import DType

CHUNK = 64 * LANES * LEAF  # points of a chunk, at least
ROWS = 4 * LEAF  # points of each lane of a chunk, at least
WORK = 4 * CHUNK  # points of all results of a chunk, at least
FEW = 32  # tasks that leave threads idle
_COLUMNS = 512  # results that one task reduces side by side


def split(kernel: Kernel) -> tuple[Kernel, ...]:
    """The kernel in two, where its reduction is long and its results are few; else as it is."""
    found = _find(kernel)
    if found is None or not _is_worth(found):
        return (kernel,)
    return _Split(kernel, found).kernels()


@dataclass(frozen=True)
class _Found:
    """A kernel that is loops around one reduction."""

    kept: tuple[Loop, ...]
    before: Statements
    reduce: Reduce
    after: Statements
    lanes: bool  # whether the points of the reduction run as lanes


def _find(kernel: Kernel) -> _Found | None:
    kept: list[Loop] = []
    body = kernel.body
    while len(body) == 1 and isinstance(body[0], Loop):
        loop = body[0]
        if loop.kind != "serial" or known(loop.start) != 0:
            return None
        kept.append(loop)
        body = loop.body
    places = [k for k, s in enumerate(body) if isinstance(s, Reduce)]
    if len(places) != 1:
        return None
    (place,) = places
    reduce, before, after = body[place], body[:place], body[place + 1 :]
    assert isinstance(reduce, Reduce)
    fits = reduce.lanes > 0
    fits = fits and all(isinstance(s, Assign) and s.position is None for s in before)
    fits = fits and not any(isinstance(s, Loop | Reduce) for s in every((*after, *reduce.body)))
    if not fits:
        return None
    lanes = Lanes(kernel).runs_as_lanes(reduce) and not any(
        Lanes(kernel).runs_as_lanes(loop) for loop in kept[-1:]
    )
    return _Found(tuple(kept), before, reduce, after, lanes)


def _results(found: _Found) -> Value:
    """How many results the reduction has, each for one point of the loops around it."""
    count = integer(1)
    for loop in found.kept:
        count = multiply(count, loop.stop)
    return count


def _size(found: _Found) -> int:
    """Points of a chunk: a power of two of whole blocks, of enough work for a task."""
    if found.lanes:
        return CHUNK
    results = known(_results(found)) or _COLUMNS
    size = ROWS * found.reduce.lanes
    least = WORK if results <= _COLUMNS else WORK // 2  # long rows are best walked whole
    while size * results < least:
        size *= 2
    return size


def _is_worth(found: _Found) -> bool:
    count, results = known(points(found.reduce)), known(_results(found))
    if count is not None and count < 2 * _size(found):
        return False
    if results is None:
        return not found.lanes
    return results < (FEW if found.lanes else FEW * _COLUMNS)


class _Split:
    def __init__(self, kernel: Kernel, found: _Found) -> None:
        self.kernel = kernel
        self.found = found
        self.size = _size(found)
        self.count = points(found.reduce)
        self.chunks = divide(add(self.count, self.size - 1), self.size)
        self.results = _results(found)
        dtypes = [d for part in found.reduce.parts for d in dtypes_of(part)]
        self.dtype = dtypes[0] if len(set(dtypes)) == 1 else INDEX
        self.slots = len(dtypes)
        self.buffer = len(kernel.buffers)

    def kernels(self) -> tuple[Kernel, Kernel]:
        """The kernel of chunks, and the one that joins them."""
        lanes = LANES if self.found.reduce.lanes == LANES else 1
        elements = multiply(multiply(self.chunks, self.results), self.slots * lanes)
        size = known(elements)
        partials = Buffer("partials", self.dtype, "write")
        first = Scope(self.kernel)
        second = Scope(self.kernel)
        note = (self.dtype, elements if size is None else size)
        chunks = first.kernel_with(self._chunks(first), partials=note)
        ends = second.kernel_with(self._ends(second))
        read = replace(partials, mode="read")
        return (
            replace(chunks, buffers=(*chunks.buffers, partials)),
            replace(ends, name=f"{ends.name}_end", buffers=(*ends.buffers, read)),
        )

    def _place(self, slot: int, chunk: Value, lane: Value | None) -> Value:
        """Where a result of a chunk lies; lanes that are adjacent in vectors are so here.

        Otherwise what belongs to one result lies side by side, so that results can be lanes.
        """
        kept = integer(0)
        for loop in self.found.kept:
            kept = add(multiply(kept, loop.stop), loop.variable)
        if lane is not None and self.found.lanes:
            row = add(multiply(self.chunks, slot), chunk)
            return add(multiply(add(multiply(row, self.results), kept), LANES), lane)
        row = chunk if lane is None else add(multiply(chunk, LANES), lane)
        return add(multiply(add(multiply(row, self.results), kept), self.slots), slot)

    def _nested(self, body: Statements) -> Statements:
        for loop in reversed(self.found.kept):
            body = (replace(loop, body=body),)
        return body

    # -- the first kernel ------------------------------------------------------------------

    def _chunks(self, scope: Scope) -> Statements:
        chunk = scope.variable("chunk")
        reduce = self.found.reduce
        start = multiply(chunk, self.size)
        count = integer(self.size)
        if known(remainder(self.count, self.size)) != 0:
            count = smaller(subtract(self.count, start), self.size)
        point = scope.variable("point")
        lane = scope.variable("lane") if reduce.lanes == LANES else None
        if lane is not None and not self.found.lanes:
            count = divide(add(subtract(count, lane), LANES - 1), LANES)
            place = add(add(start, multiply(point, LANES)), lane)
        else:
            place = add(start, point)
        here = moved(reduce, at(reduce, place))
        targets = [
            tuple(scope.local("chunk", d, LANES if self.found.lanes else 1) for d in dtypes_of(p))
            for p in reduce.parts
        ]
        parts = tuple(
            Part(t, p.combine, p.values) for t, p in zip(targets, here.parts, strict=True)
        )
        lanes = LANES if self.found.lanes else 1
        inner = Reduce(((point, count),), lanes, parts, here.body)
        stores = self._stores(scope, [n for each in targets for n in each], chunk, lane)
        if lane is None:
            body = self._nested((*self.found.before, inner, *stores))
        elif self.found.lanes:
            held = Loop(lane, integer(0), integer(LANES), stores, "vector", LANES)
            body = self._nested((*self.found.before, inner, held))
        else:
            body = self._nested((*self.found.before, inner, *stores))
            body = (Loop(lane, integer(0), integer(LANES), body),)
        return (Loop(chunk, integer(0), self.chunks, body),)

    def _stores(
        self, scope: Scope, targets: list[int], chunk: Value, lane: Value | None
    ) -> Statements:
        made: Statements = ()
        for slot, target in enumerate(targets):
            x = get(target, scope.locals[target].dtype)
            made += (Store(self.buffer, self._place(slot, chunk, lane), encoded(x, self.dtype)),)
        return made

    # -- the second kernel -----------------------------------------------------------------

    def _ends(self, scope: Scope) -> Statements:
        reduce = self.found.reduce
        if reduce.lanes == 1:
            joined = self._joined(scope, reduce.parts, None)
        elif self.found.lanes:
            totals = Accumulators(reduce.parts, scope, LANES)
            joined = self._tree(totals, scope.variable("lane"), reduce.parts)
            joined += tuple(s for k in range(len(reduce.parts)) for s in across(totals, k))
        else:
            joined = self._lane_by_lane(scope)
        return self._nested((*self.found.before, *joined, *self.found.after))

    def _tree(
        self, totals: Accumulators, lane: Value | None, parts: tuple[Part, ...]
    ) -> Statements:
        """Running values: those of all chunks, joined."""
        scope = totals.scope
        tree = tree_of(totals, self.chunks)
        chunk = scope.variable("chunk")
        loaded: Statements = ()
        held = [n for each in totals.held for n in each]
        for slot, n in enumerate(held):
            x = load(self.buffer, self._place(slot, chunk, lane), self.dtype)
            loaded += (Assign(n, decoded(x, scope.locals[n].dtype)),)
        if totals.lanes > 1:
            assert lane is not None
            loaded = (Loop(lane, integer(0), integer(LANES), loaded, "vector", LANES),)
        start = totals.start([None] * len(parts))
        places = tuple(
            Assign(held_[1], const(0, scope.locals[held_[1]].dtype))
            for held_ in totals.held
            if len(held_) > 1
        )
        loop = Loop(chunk, integer(0), self.chunks, (*loaded, *tree.carry(chunk)))
        empty = (*start, *places) if known(self.chunks) is None else ()
        return (*empty, loop, *tree.finish())

    def _joined(self, scope: Scope, parts: tuple[Part, ...], lane: Value | None) -> Statements:
        totals = Accumulators(parts, scope, 1)
        targets = [t for part in parts for t in part.targets]
        held = [n for each in totals.held for n in each]
        return (
            *self._tree(totals, lane, parts),
            *(Assign(t, get(n, scope.locals[n].dtype)) for t, n in zip(targets, held, strict=True)),
        )

    def _lane_by_lane(self, scope: Scope) -> Statements:
        reduce = self.found.reduce
        lane = scope.variable("lane")
        registers = [tuple(scope.local("lane", d) for d in dtypes_of(p)) for p in reduce.parts]
        arrays = [[scope.local("lanes", d, 1, LANES) for d in dtypes_of(p)] for p in reduce.parts]
        parts = tuple(replace(p, targets=t) for t, p in zip(registers, reduce.parts, strict=True))
        held = tuple(
            Assign(array, get(n, scope.locals[n].dtype), lane)
            for each, numbers in zip(arrays, registers, strict=True)
            for array, n in zip(each, numbers, strict=True)
        )
        body = (*self._joined(scope, parts, lane), *held)
        made: Statements = (Loop(lane, integer(0), integer(LANES), body),)
        for part, each in zip(reduce.parts, arrays, strict=True):
            made += halves(part, each, scope)
        return made


def encoded(x: Value, dtype: DType) -> Value:
    """A value of any dtype in the bits of `dtype`: its own, or int64."""
    if x.dtype == dtype:
        return x
    if x.dtype.kind in "biu":
        return value("cast", (x,), dtype)
    bits = value("bitcast", (x,), np.dtype(f"i{x.dtype.itemsize}"))
    return bits if bits.dtype == dtype else value("cast", (bits,), dtype)


def decoded(x: Value, dtype: DType) -> Value:
    """What `encoded` made its argument of."""
    if x.dtype == dtype:
        return x
    if dtype.kind in "biu":
        return value("cast", (x,), dtype)
    bits = np.dtype(f"i{dtype.itemsize}")
    narrow = x if x.dtype == bits else value("cast", (x,), bits)
    return value("bitcast", (narrow,), dtype)
