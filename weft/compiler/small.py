"""Graphs of a few numbers: every element becomes a scalar, and a whole scan becomes one loop.

Where tensors have a handful of elements, loops over them and memory between them cost more than the
arithmetic. Such a graph is written out element by element, in registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import product
from math import prod

import numpy as np

from weft.compiler import few
from weft.compiler.balanced import balanced, combined
from weft.compiler.index import Index, axis
from weft.compiler.loops import (
    BOOL,
    LANES,
    Assign,
    Buffer,
    Kernel,
    Local,
    Loop,
    Statement,
    Store,
    Value,
    const,
    get,
    integer,
    load,
)
from weft.compiler.lower import Lowered
from weft.compiler.narrow import narrow_combine
from weft.compiler.point import Point, Pull, Source, kind_of, nothing, reduced_axes, weight
from weft.compiler.reports import STATUS, report
from weft.core.common import dtypes
from weft.core.common.types import Shape
from weft.core.graph.node import OutputRefs, Ref
from weft.core.graph.trace import Trace
from weft.ops.few import Matrix

MOST_ELEMENTS = 32  # of one tensor
MOST_WORK = 6000  # instructions of the whole graph
_FLOAT = np.dtype(np.float32)
_FIRST = Index({}, 0)
_SEARCHES = frozenset({"gather", "dynamic_start", "searchsorted"})  # they read where data says
_KINDS = frozenset({"view", "map", "reduce", "dot", "ordered", "few"})
_STEPS = 6  # instructions for each product that a matrix of a few rows takes


def is_small(nodes: Sequence[OutputRefs], outputs: Iterable[Ref]) -> bool:
    """Whether a graph is better written out element by element."""
    work = 0
    for node in nodes:
        kind = kind_of(node)
        if any(
            dtypes.is_complex(t.dtype) for t in (*node.types, *(s.types[k] for s, k in node.inputs))
        ):
            return False
        if kind not in _KINDS or hasattr(node.op, "better") or node.op.name in _SEARCHES:
            return False
        size = prod(node.types[0].shape)
        if kind == "dot" and narrow_combine(node.types[0].dtype):
            return False
        if kind in ("reduce", "dot"):
            size = max(size, *(prod(s.types[slot].shape) for s, slot in node.inputs))
        work += size * (weight(node) if kind == "map" else 2)
        if kind == "few":
            source, slot = node.inputs[0]
            work += _STEPS * prod(source.types[slot].shape) * source.types[slot].shape[-1]
        if size > MOST_ELEMENTS or work > MOST_WORK:
            return False
    return len(nodes) > 1 and all(prod(n.types[s].shape) <= MOST_ELEMENTS for n, s in outputs)


class Scalarized(Pull):
    """Computes single elements, reductions included."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._few: dict[tuple[OutputRefs, Point], Matrix] = {}
        self.bad: list[Value] = []  # conditions of a mistake in what is given

    def compute(self, node: OutputRefs, point: Point) -> Value:
        kind = kind_of(node)
        if kind == "reduce":
            return self._summed(node, point)
        if kind == "dot":
            return self._product(node, point)
        if kind == "ordered":
            return self._running(node, point)
        if kind == "few":
            return self._of_few(node, point)
        return super().compute(node, point)

    def _of_few(self, node: OutputRefs, point: Point) -> Value:
        """An element of a matrix all of which is computed at once."""
        cut = len(point) - node.op.core
        lead, (i, j) = point[:cut], point[cut:] or (_FIRST, _FIRST)
        found = self._few.get((node, lead))
        if found is None:
            found, bad = few.elements(self, node, lead)
            self._few[node, lead] = found
            if bad is not None:
                self.bad.append(bad)
        assert i.constant is not None and j.constant is not None
        made: Value = found[i.constant][j.constant]
        return made

    def mistake(self) -> Value | None:
        """Whether anything is wrong with what was given."""
        return reduce(self.bit_or, self.bad) if self.bad else None

    def _wide(self, x: Value) -> Value:
        return self.cast(x, _FLOAT) if dtypes.is_narrow(x.dtype) else x

    def _summed(self, node: OutputRefs, point: Point) -> Value:
        source, slot = node.inputs[0]
        shape, axes = source.types[slot].shape, reduced_axes(node)
        run = len(shape)
        while run - 1 in axes:
            run -= 1
        early, late = ([i for i in axes if (i >= run) == last] for last in (False, True))
        kept = iter(point)
        places: list[Index] = [Index({}, 0) if i in axes else next(kept) for i in range(len(shape))]
        rows: list[Value] = []
        for outer in _points(shape, early):
            row = []
            for inner in _points(shape, late):
                for i, k in zip((*early, *late), (*outer, *inner), strict=True):
                    places[i] = Index({}, k)
                row.append(self._wide(self.at((source, slot), places)))
            rows += [balanced(self, node.op.combine, row, LANES)] if late and row else row
        if not rows:
            return nothing(node)
        made = balanced(self, node.op.combine, rows, 1) if early else rows[0]
        return self.fit(made, node.types[0].dtype)

    def _met(self, node: OutputRefs, x: Value, y: Value) -> Value:
        return combined(self, node.op.combine, x, y)

    def _product(self, node: OutputRefs, point: Point) -> Value:
        *lead, m, n = point
        source, slot = node.inputs[0]
        total: Value | None = None
        for k in range(source.types[slot].shape[-1]):
            a = self._wide(self.at(node.inputs[0], (*lead, m, k)))
            b = self._wide(self.at(node.inputs[1], (*lead, k, n)))
            if a.dtype.kind in "iu":
                total = self.mul(a, b) if total is None else self.add(total, self.mul(a, b))
            else:
                total = self.fma(a, b, self.const(0, a.dtype) if total is None else total)
        return nothing(node) if total is None else self.fit(total, node.types[0].dtype)

    def _running(self, node: OutputRefs, point: Point) -> Value:
        """Everything up to here, in order; narrow floats are rounded at the end only."""
        where = len(point) + node.params["axis"]
        last = point[where].constant
        assert last is not None
        total: Value | None = None
        for k in range(last + 1):
            here = (*point[:where], Index({}, k), *point[where + 1 :])
            x = self._wide(self.at(node.inputs[0], here))
            total = x if total is None else self._met(node, total, x)
        assert total is not None
        return self.fit(total, node.types[0].dtype)


def _points(shape: Shape, axes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return product(*(range(shape[i]) for i in axes))


def elements(shape: Shape) -> list[tuple[Index, ...]]:
    """Every point of a small shape, in order."""
    return [tuple(Index({}, i) for i in point) for point in product(*map(range, shape))]


def lower_small(nodes: Sequence[OutputRefs], outputs: Sequence[Ref]) -> Lowered:
    """One kernel without loops for a whole small graph."""
    buffers: dict[Ref, int] = {}

    def source(ref: Ref, point: Point) -> Value | None:
        if ref[0] in inside:
            return None
        kind = ref[0].types[ref[1]]
        number = buffers.setdefault(ref, len(buffers))
        return load(number, _offset(point, kind.shape), kind.dtype)

    inside = set(nodes)
    pull = Scalarized(source)
    wanted = list(dict.fromkeys(outputs))
    evaluate(pull, nodes)
    values = {
        ref: [pull.at(ref, p) for p in elements(ref[0].types[ref[1]].shape)] for ref in wanted
    }
    body: list[Statement] = []
    reads, bad = len(buffers), pull.mistake()
    for ref, found in values.items():
        number = buffers.setdefault(ref, len(buffers))
        body += [Store(number, integer(i), x) for i, x in enumerate(found)]
    if bad is not None:  # results may lie where operands did: these are looked at before
        body.insert(0, report(len(buffers), bad, few.SINGULAR))
    return _finish("small", buffers, reads, (), tuple(body), reports=bad is not None)


def evaluate(pull: Pull, nodes: Sequence[OutputRefs]) -> None:
    """Compute every element in order, so that no chain of calls is followed all at once."""
    for node in nodes:
        for point in elements(node.types[0].shape):
            pull.at((node, 0), point)


def _offset(point: Point, shape: Shape) -> Value:
    place = 0
    for i, size in zip(point, shape, strict=True):
        assert i.constant is not None
        place = place * size + i.constant
    return integer(place)


def _finish(
    name: str,
    buffers: dict[Ref, int],
    reads: int,
    locals_: Sequence[Local],
    body: tuple[Statement, ...],
    reports: bool,
) -> Lowered:
    made = tuple(
        Buffer(f"b{i}", node.types[slot].dtype, "read" if i < reads else "write")
        for (node, slot), i in buffers.items()
    )
    refs = tuple(buffers)
    made = (*made, STATUS) if reports else made
    return Lowered(Kernel(name, made, tuple(locals_), body), refs, refs[reads:], reports)


def is_small_scan(node: OutputRefs) -> bool:
    """Whether a scan's step is small enough to run in registers."""
    body: Trace = node.params["body"]
    places = (*body.input_types[node.params["consts"] :], *body.output_types)
    return (
        not body.effects
        and node.params["length"] > 0
        and sum(prod(t.shape) for t in places) <= 4 * MOST_ELEMENTS
        and is_small(body.nodes, body.outputs)
    )


def lower_scan(node: OutputRefs) -> Lowered:
    """A scan as one loop: carries in registers, slices read and written as it goes."""
    body: Trace = node.params["body"]
    consts, count = node.params["consts"], node.params["carries"]
    length, reverse = node.params["length"], node.params["reverse"]
    step = axis("t", length)
    row = (length - 1) - step if reverse else step
    buffers: dict[Ref, int] = {}
    locals_: list[Local] = []
    places = {inner: number for number, inner in enumerate(body.inputs)}
    carried: dict[OutputRefs, int] = {}
    start: list[Statement] = []
    for inner, ref in zip(body.inputs[consts : consts + count], node.inputs[consts:], strict=False):
        carried[inner] = len(locals_)
        for i in range(prod(inner.types[0].shape)):
            buffer = buffers.setdefault(ref, len(buffers))
            start.append(Assign(len(locals_), load(buffer, integer(i), inner.types[0].dtype)))
            locals_.append(Local(f"c{len(locals_)}", inner.types[0].dtype))

    def source(ref: Ref, point: Point) -> Value | None:
        if ref[0] not in places:
            return None
        inner, kind = ref[0], ref[0].types[0]
        offset = _offset(point, kind.shape)
        if inner in carried:
            return get(carried[inner] + int(Index.of(offset).offset), kind.dtype)
        buffer = buffers.setdefault(node.inputs[places[inner]], len(buffers))
        if places[inner] < consts:
            return load(buffer, offset, kind.dtype)
        return load(buffer, (row * prod(kind.shape) + offset).value, kind.dtype)

    pull = Scalarized(source)
    evaluate(pull, body.nodes)
    found = [[pull.at(r, p) for p in elements(r[0].types[r[1]].shape)] for r in body.outputs]
    reads, bad = len(buffers), pull.mistake()
    stores, moves = _step_results(node, found, count, row, locals_, buffers)
    watch: tuple[Statement, ...] = ()
    if bad is not None:
        flag = get(len(locals_), BOOL)
        locals_.append(Local("bad", BOOL))
        start.append(Assign(flag.data, const(False, BOOL)))
        watch, bad = (Assign(flag.data, pull.bit_or(flag, bad)),), flag
    loop = Loop(step.value, integer(0), integer(length), (*watch, *stores, *moves))
    end: list[Statement] = [
        Store(buffers.setdefault((node, k), len(buffers)), integer(i), get(first + i, x.dtype))
        for k, (values, first) in enumerate(zip(found, carried.values(), strict=False))
        for i, x in enumerate(values)
    ]
    if bad is not None:
        end.append(report(len(buffers), bad, few.SINGULAR))
    return _finish("scan", buffers, reads, locals_, (*start, loop, *end), reports=bad is not None)


def _step_results(
    node: OutputRefs,
    found: list[list[Value]],
    count: int,
    row: Index,
    locals_: list[Local],
    buffers: dict[Ref, int],
) -> tuple[list[Statement], list[Statement]]:
    """Stores of a step's stacked results; then the new carries, all computed before any is set."""
    stores: list[Statement] = []
    for k, values in enumerate(found[count:], count):
        buffer = buffers.setdefault((node, k), len(buffers))
        for i, x in enumerate(values):
            stores.append(Store(buffer, (row * len(values) + i).value, x))
    new = [x for values in found[:count] for x in values]
    first = len(locals_)
    locals_ += [Local(f"n{i}", x.dtype) for i, x in enumerate(new)]
    kept = [Assign(first + i, x) for i, x in enumerate(new)]
    moved = [Assign(i, get(first + i, x.dtype)) for i, x in enumerate(new)]
    return stores, [*kept, *moved]


__all__ = ["is_small", "is_small_scan", "lower_scan", "lower_small"]
