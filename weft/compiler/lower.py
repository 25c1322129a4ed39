"""Lower a group of calls to a kernel: loops over its space, stage by stage.

A row's work is a sequence of stages. Each stage runs over the row once: it computes what full
members and reductions of that stage need, stores what must be stored, and leaves the reductions'
results in registers for the next. A value that several stages need is computed again if that is
cheap, read back if it was stored, and otherwise kept in an array the size of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from weft.compiler import folds
from weft.compiler.balanced import combined
from weft.compiler.complex_values import loaded, parts, whole
from weft.compiler.fuse import CHEAP, Fusion
from weft.compiler.groups import Group
from weft.compiler.index import Index, axis, flat, strided, unflat
from weft.compiler.loops import (
    INDEX,
    LANES,
    UNREAD,
    WRITTEN,
    Assign,
    Buffer,
    Kernel,
    Local,
    Loop,
    Part,
    Reduce,
    Statement,
    Store,
    Value,
    get,
    identity_of,
    integer,
    load,
    value,
)
from weft.compiler.narrow import narrow_combine
from weft.compiler.point import (
    Point,
    Pull,
    is_stack,
    joined_axis,
    reduced_axes,
    reduced_size,
    weight,
)
from weft.compiler.polynomial import number, polynomial, subtract
from weft.core.common import dtypes
from weft.core.common.types import DType, Shape
from weft.core.graph.node import OutputRefs, Ref

KEPT_BYTES = 32_768  # the longest row that is kept in a task's own array
_FLOAT = np.dtype(np.float32)
_PLACE = np.dtype(np.int32)  # of an extreme element along a row: twice the lanes of an index
_MOST_PLACES = np.iinfo(_PLACE).max


@dataclass(frozen=True)
class Lowered:
    """A kernel and the results its buffers hold, in order."""

    kernel: Kernel
    refs: tuple[Ref, ...]
    written: tuple[Ref, ...]
    reports: bool = False  # whether one more buffer follows: the program's status
    points: int = 0  # that it computes, where they are not those of its group's space
    copies: bool = False  # whether it copies its first buffer to its second one


@dataclass
class Frame:
    """What a kernel is being put together from."""

    fusion: Fusion
    group: Group
    strides: dict[Ref, tuple[int, ...]]  # of inputs that are not packed row by row
    one_nest: bool = False  # whether loops must be one inside another, as a GPU needs them
    buffers: dict[Ref, int] = field(default_factory=dict)
    modes: list[str] = field(default_factory=list)
    locals: list[Local] = field(default_factory=list)
    registers: dict[OutputRefs, Value] = field(default_factory=dict)
    arrays: dict[OutputRefs, tuple[int, ...]] = field(default_factory=dict)
    readable: set[OutputRefs] = field(default_factory=set)  # stored in an earlier stage
    axes: int = 0

    def buffer(self, ref: Ref, mode: str) -> int:
        """The number of the buffer that holds a result."""
        number = self.buffers.setdefault(ref, len(self.buffers))
        if number == len(self.modes):
            self.modes.append(mode)
        elif self.modes[number] != mode:
            self.modes[number] = "update"
        return number

    def local(self, dtype: DType, length: int = 0) -> int:
        """A new register, or an array."""
        self.locals.append(Local(f"t{len(self.locals)}", dtype, 1, length))
        return len(self.locals) - 1

    def variables(self, shape: Shape) -> Point:
        """Fresh loop variables for axes of these sizes."""
        self.axes += len(shape)
        return tuple(axis(f"i{self.axes - len(shape) + k}", n) for k, n in enumerate(shape))

    def load(self, ref: Ref, point: Point) -> Value:
        """An element from memory."""
        kind = ref[0].types[ref[1]]
        steps = self.strides.get(ref)
        place = flat(point, kind.shape) if steps is None else strided(point, steps)
        return loaded(self.buffer(ref, "read"), place, kind.dtype)

    def keep(self, x: Value) -> tuple[list[Statement], Value]:
        """What puts a number into a register, and the number from there."""
        registers = [self.local(part.dtype) for part in parts(x)]
        held = [get(k, part.dtype) for k, part in zip(registers, parts(x), strict=True)]
        return [Assign(k, part) for k, part in zip(registers, parts(x), strict=True)], whole(held)

    def store(self, node: OutputRefs, position: Index, x: Value) -> list[Statement]:
        """Write an element of a member; both parts of one are read before any is written."""
        buffer, found = self.buffer((node, 0), "write"), parts(x)
        first = position * len(found)
        return [Store(buffer, (first + k).value, part) for k, part in enumerate(found)]

    def source(self, ref: Ref, point: Point) -> Value | None:
        """What holds an element already; None where it is to be computed."""
        node = ref[0]
        if node in self.registers:
            return self.registers[node]
        if node in self.arrays:
            position = flat(point, node.types[0].shape) % self.group.inner
            held = self.arrays[node]
            return whole([get(k, self.locals[k].dtype, position.value) for k in held])
        if self.fusion.kinds.get(node) == "view":
            return None
        home = self.fusion.group.get(node)
        mine = home is not None and (home is self.group or node in self.fusion.inline)
        if mine and node not in self.readable:
            return None
        if node in self.fusion.hiding and self.fusion.looks(self.group):
            return self._hidden(ref, point)
        return self.load(ref, point)

    def _hidden(self, ref: Ref, point: Point) -> Value:
        """An element from memory under the mask that it was written with, and has there already."""
        node = ref[0]

        def source(operand: Ref, place: Point) -> Value | None:
            return (
                self.load(ref, place) if operand == node.inputs[1] else self.source(operand, place)
            )

        return _noted(Pull(source).compute(node, point), WRITTEN)

    def finish(self, name: str, body: tuple[Statement, ...], points: int = 0) -> Lowered:
        """The kernel."""
        made = tuple(
            Buffer(f"b{number}", dtypes.real_of(node.types[slot].dtype), self.modes[number])
            for (node, slot), number in self.buffers.items()
        )
        refs = tuple(self.buffers)
        written = tuple(r for r, mode in zip(refs, self.modes, strict=True) if mode != "read")
        kernel = Kernel(name, made, tuple(self.locals), body, notes={"name": name})
        return Lowered(kernel, refs, written, points=points)


def lower_group(frame: Frame) -> Lowered:
    """The kernel of a group of calls that are computed point by point."""
    group, stored = frame.group, frame.fusion.stored(frame.group)
    if group.kind == "ordered":
        body = _ordered(frame, group.members[0])
    elif group.kind == "dot":
        body = _product(frame, stored)
    elif group.columns:
        body = _columns(frame, stored)
    elif group.inner:
        body = _rows(frame, stored)
    else:
        body = _points(frame, stored)
    return frame.finish(name_of(group), body)


def _noted(x: Value, note: str) -> Value:
    """A choice between two values with a note on them."""
    return value("select", x.args, x.dtype, note) if x.op == "select" else x


def name_of(group: Group) -> str:
    """What a kernel is called: its calls, shortened."""
    names = [node.name for node in group.members]
    return "_".join(names[:4]) + (f"_and_{len(names) - 4}" if len(names) > 4 else "")


def nest(variables: Point, shape: Shape, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Loops over axes, the first one outermost."""
    for variable, size in zip(reversed(variables), reversed(shape), strict=True):
        body = (Loop(variable.value, integer(0), integer(size), body),)
    return body


def _points(frame: Frame, stored: list[OutputRefs]) -> tuple[Statement, ...]:
    """Every element on its own."""
    space = _plain_space(frame)

    def element(point: Point) -> tuple[Statement, ...]:
        here = flat(point, space)
        pull = Pull(frame.source)
        body: list[Statement] = []
        for node in frame.group.members:  # in order, so that no chain is followed all at once
            at = point if node.types[0].shape == space else unflat(here, node.types[0].shape)
            x = pull.at((node, 0), at)
            if node in stored:
                body += frame.store(node, here, x)
        return tuple(body)

    forms = folds.forms_of(frame.group.members, space)
    if forms is not None and not frame.one_nest:
        return folds.nest(forms, space, element)
    *lead, last = space or (1,)
    if any(is_stack(node) and node.types[0].shape == space for node in frame.group.members):
        rows = frame.variables(tuple(lead))  # whose elements are written out
        made = [s for j in range(last) for s in element((*rows, Index.of(j)))]
        return nest(rows, tuple(lead), tuple(made))
    for node in frame.group.members if not frame.one_nest else ():
        if node.types[0].shape == space and joined_axis(node) is not None:
            return _pieces(frame, node, space, element)
    point = frame.variables(space)
    return nest(point, space, element(point))


def _pieces(
    frame: Frame, join: OutputRefs, space: Shape, element: Callable[[Point], tuple[Statement, ...]]
) -> tuple[Statement, ...]:
    """Loops for each piece of a join, inside those over the axes before it."""
    axis, start = joined_axis(join), 0
    outer = frame.variables(space[:axis])
    made: list[Statement] = []
    for source, slot in join.inputs:
        shape = source.types[slot].shape[join.params["axis"] :]
        first, *rest = inner = frame.variables(shape)
        made += nest(inner, shape, element((*outer, first + start, *rest)))
        start += shape[0]
    return nest(outer, space[:axis], tuple(made))


def _plain_space(frame: Frame) -> Shape:
    """One axis, where everything is read in order: then no quotient is ever needed."""
    group, fusion = frame.group, frame.fusion
    nodes = (*group.members, *fusion.pulled(group))
    in_order = all(
        r.step == 1 or r.node.types[r.ref[1]].size == 1 for n in nodes for r in fusion.reads[n]
    )
    dense = not any(r.ref in frame.strides for n in nodes for r in fusion.reads[n])
    return (group.size,) if in_order and dense else group.space


# -- reductions along the last axes ------------------------------------------------------------


@dataclass
class _Stages:
    """When each member of a row group is computed."""

    level: dict[OutputRefs, int]  # the stage in which a full member can first be computed
    at: dict[OutputRefs, set[int]]  # the stages that need a full member

    @property
    def count(self) -> int:
        """How many stages there are."""
        return 1 + max(self.level.values())


def levels(fusion: Fusion, group: Group) -> dict[OutputRefs, int]:
    """The stage in which each member of a group can first be computed."""
    level: dict[OutputRefs, int] = {}
    for node in group.members:
        own = [level[r.node] for r in fusion.reads[node] if r.node in level]
        level[node] = max(own, default=0) + (fusion.kinds[node] == "reduce")
    return level


def _stages(frame: Frame, stored: list[OutputRefs]) -> _Stages:
    group, fusion = frame.group, frame.fusion
    level = levels(fusion, group)
    at: dict[OutputRefs, set[int]] = {n: set() for n in group.members if n not in group.rows}
    for node in reversed(group.members):
        if node in at and node in stored:
            at[node].add(level[node])
        needed = at[node] if node in at else ({level[node] - 1} if _reduces(frame, node) else set())
        for r in fusion.reads[node]:
            if r.node in at:
                at[r.node] |= needed
    return _Stages(level, at)


def _reduces(frame: Frame, node: OutputRefs) -> bool:
    return frame.fusion.kinds[node] == "reduce"


def _row_space(group: Group) -> tuple[Shape, Shape]:
    """(rows, row): the axes of the space before and after the cut, or one axis each."""
    for cut in range(len(group.space) + 1):
        if prod(group.space[cut:]) == group.inner:
            return group.space[:cut], group.space[cut:]
    return (group.size // group.inner,), (group.inner,)


def _rows(frame: Frame, stored: list[OutputRefs]) -> tuple[Statement, ...]:
    """One row after another, each in stages."""
    group = frame.group
    stages = _stages(frame, stored)
    outer, inner = _row_space(group)
    row = frame.variables(outer)
    body: list[Statement] = []
    for stage in range(stages.count):
        body += _row_members(frame, stages, stage, flat(row, outer), stored)
        body += _stage_loop(frame, stages, stage, (row, outer), inner, stored)
    return nest(row, outer, tuple(body))


def _held(frame: Frame, node: OutputRefs, here: Index) -> list[Statement]:
    """Compute one element, and keep it in a register from then on."""
    x = Pull(frame.source).compute(node, unflat(here, node.types[0].shape))
    made, frame.registers[node] = frame.keep(x)
    return made


def _row_members(
    frame: Frame, stages: _Stages, stage: int, here: Index, stored: list[OutputRefs]
) -> list[Statement]:
    """Values for each row that are known now: kept in registers, stored where needed."""
    made: list[Statement] = []
    for node in frame.group.members:
        if node not in frame.group.rows or stages.level[node] != stage:
            continue
        if not _reduces(frame, node):
            made += _held(frame, node, here)
        if node in stored:
            made += frame.store(node, here, frame.registers[node])
    return made


def _stage_loop(
    frame: Frame,
    stages: _Stages,
    stage: int,
    outer: tuple[Point, Shape],
    inner: Shape,
    stored: list[OutputRefs],
) -> list[Statement]:
    """One run over the row."""
    group = frame.group
    along = frame.variables(inner)
    row, rows = outer
    here = flat((*row, *along), (*rows, *inner))
    point = (*row, *along)
    pull = Pull(frame.source)
    body: list[Statement] = []
    reduced = [n for n in group.members if _reduces(frame, n) and stages.level[n] == stage + 1]
    for node, needed in stages.at.items():
        if stage not in needed:
            continue
        at = point if node.types[0].shape == rows + inner else unflat(here, node.types[0].shape)
        x = pull.at((node, 0), at)
        if min(needed) != stage:
            continue
        if node in stored:
            if reduced:  # of it, while its operands may lie where it is stored
                kept, x = frame.keep(x)
                body += kept
                frame.registers[node] = x
                pull = Pull(frame.source)
            body += frame.store(node, here, x)
        elif max(needed) > stage and _worth_keeping(frame, node, stages):
            length = 1 << (group.inner - 1).bit_length()
            arrays = tuple(frame.local(part.dtype, length) for part in parts(x))
            place = flat(along, inner).value
            body += [Assign(k, part, place) for k, part in zip(arrays, parts(x), strict=True)]
            frame.arrays[node] = arrays
    found = [_part(frame, pull, node, along, inner, here) for node in reduced]
    for node in stages.at:
        if node in stored and stages.level[node] == stage:
            frame.registers.pop(node, None)
            if weight(node) > 0:
                frame.readable.add(node)
    if found:
        axes = tuple((v.value, integer(n)) for v, n in zip(along, inner, strict=True))
        _finish(frame, reduced, [result for _, result in found])
        return [Reduce(axes, LANES, tuple(p for each, _ in found for p in each), tuple(body))]
    return list(nest(along, inner, tuple(body))) if body else []


def _worth_keeping(frame: Frame, node: OutputRefs, stages: _Stages) -> bool:
    """Whether a row of a member is better kept than computed again."""
    total, stack, seen = 0, [node], {node}
    while stack:
        here = stack.pop()
        total += weight(here)
        for r in frame.fusion.reads[here]:
            if r.node in stages.at and r.node not in frame.arrays and r.node not in seen:
                seen.add(r.node)
                stack.append(r.node)
    nbytes = frame.group.inner * node.types[0].dtype.itemsize
    return total > 2 * CHEAP and nbytes <= KEPT_BYTES


def _part(
    frame: Frame, pull: Pull, node: OutputRefs, along: Point, inner: Shape, here: Index
) -> tuple[tuple[Part, ...], Value]:
    """What one reduction adds up, and its result."""
    source, slot = node.inputs[0]
    x = pull.at((source, slot), unflat(here, source.types[slot].shape))
    return reduction(frame, node, x, flat(along, inner))


def reduction(
    frame: Frame, node: OutputRefs, x: Value, place: Index
) -> tuple[tuple[Part, ...], Value]:
    """A reduction's parts for the element `x` at `place` along the axis, and its result."""
    pull = Pull(frame.source)
    if dtypes.is_narrow(x.dtype):
        x = pull.cast(x, _FLOAT)
    targets = [frame.local(part.dtype) for part in parts(x)]
    better = getattr(node.op, "better", "")
    if better:
        counted = _PLACE if reduced_size(node) <= _MOST_PLACES else INDEX
        where = frame.local(counted)
        values = (*parts(x), pull.cast(place.value, counted))
        return (Part((*targets, where), better, values),), get(where, counted)
    made = [Part((k,), node.op.combine, (v,)) for k, v in zip(targets, parts(x), strict=True)]
    return tuple(made), whole([get(k, frame.locals[k].dtype) for k in targets])


def _finish(frame: Frame, nodes: list[OutputRefs], found: list[Value]) -> None:
    """Let reductions' results, in the dtype of their calls, be what stands for them."""
    pull = Pull(frame.source)
    for node, x in zip(nodes, found, strict=True):
        frame.registers[node] = pull.fit(x, node.types[0].dtype)


# -- reductions along other axes ---------------------------------------------------------------


def _columns(frame: Frame, stored: list[OutputRefs]) -> tuple[Statement, ...]:
    """One result after another: the last axes first, if they are among the reduced ones."""
    group = frame.group
    node = group.members[0]
    space, axes = frame.fusion.space_of(node), reduced_axes(node)
    kept = tuple(i for i in range(len(space)) if i not in axes)
    outer = tuple(space[i] for i in kept)
    row = frame.variables(outer)
    run = len(space)
    while run - 1 in axes:
        run -= 1
    early, late = (tuple(i for i in axes if (i >= run) == last) for last in (False, True))
    first, last = (frame.variables(tuple(space[i] for i in each)) for each in (early, late))
    places = dict(zip((*kept, *early, *late), (*row, *first, *last), strict=True))
    point = tuple(places[i] for i in range(len(space)))
    x = Pull(frame.source).at(node.inputs[0], point)
    body: tuple[Statement, ...] = ()
    if late:
        added, x = reduction(frame, node, x, Index({}, 0))
        body = (Reduce(_spans(last, space, late), LANES, added),)
    added, x = reduction(frame, node, x, flat(first, tuple(space[i] for i in early)))
    made: list[Statement] = [Reduce(_spans(first, space, early), 1, added, body)]
    _finish(frame, [node], [x])
    here = flat(row, outer)
    for member in group.members:
        if member is not node:
            made += _held(frame, member, here)
        if member in stored:
            made += frame.store(member, here, frame.registers[member])
    return nest(row, outer, tuple(made))


def _spans(variables: Point, space: Shape, axes: Any) -> tuple[tuple[Value, Value], ...]:
    return tuple((v.value, integer(space[i])) for v, i in zip(variables, axes, strict=True))


# -- matrix products ---------------------------------------------------------------------------


def _product(frame: Frame, stored: list[OutputRefs]) -> tuple[Statement, ...]:
    """A product of matrices and what is made of it, element by element."""
    node = frame.group.members[0]
    if dtypes.is_complex(node.types[0].dtype):
        return _complex_product(frame, node)
    shape = node.types[0].shape
    point = frame.variables(shape)
    source, slot = node.inputs[0]
    count = source.types[slot].shape[-1]
    (k,) = frame.variables((count,))
    *lead, m, n = point
    pull = Pull(frame.source)
    a, b = pull.at(node.inputs[0], (*lead, m, k)), pull.at(node.inputs[1], (*lead, k, n))
    wide = _FLOAT if dtypes.is_narrow(a.dtype) else a.dtype
    combine = narrow_combine(a.dtype)
    if wide != a.dtype and not combine:
        a, b = pull.cast(a, wide), pull.cast(b, wide)
    total = frame.local(wide)
    part = Part((total,), combine or "dot", (a, b))
    frame.registers[node] = pull.fit(get(total, wide), node.types[0].dtype)
    here = flat(point, shape)
    after = Pull(frame.source)
    body: list[Statement] = [Reduce(((k.value, integer(count)),), 0, (part,))]
    for member in stored:
        at = point if member.types[0].shape == shape else unflat(here, member.types[0].shape)
        x = after.at((member, 0), at)
        body += frame.store(member, here, _noted(x, UNREAD) if member in frame.fusion.unread else x)
    return nest(point, shape, tuple(body))


def _part_of(pull: Pull, x: Value, part: Index) -> Value:
    """The real (0) or imaginary (1) part of a number, where it lies if it lies in memory."""
    real, imag = parts(x)
    if real.op == imag.op == "load" and real.data == imag.data and _follows(real, imag):
        return load(real.data, (Index.of(real.args[0]) + part).value, real.dtype)
    found: Value = pull.select(pull.equal(part.value, integer(0)), real, imag)
    return found


def _follows(x: Value, y: Value) -> bool:
    """Whether what `y` loads lies behind what `x` loads."""
    return number(polynomial(subtract(y.args[0], x.args[0]))) == 1


def _complex_product(frame: Frame, node: OutputRefs) -> tuple[Statement, ...]:
    """A product of complex matrices as one of real ones, twice as wide and twice as deep.

    A row of the left factor is (re, im, re, im, …). A row and the next one of the right factor are
    (re, im, …) and (-im, re, …), so that sums are again (re, im, …).
    """
    *lead, high, wide = node.types[0].shape
    source, slot = node.inputs[0]
    count = source.types[slot].shape[-1]
    *batch, m, j = frame.variables((*lead, high, 2 * wide))
    (k,) = frame.variables((2 * count,))
    column, depth = j % 2, k % 2
    pull = Pull(frame.source)
    left = pull.at(node.inputs[0], (*batch, m, k // 2))
    right = pull.at(node.inputs[1], (*batch, k // 2, j // 2))
    a, b = _part_of(pull, left, depth), _part_of(pull, right, (column + depth) % 2)
    negated = pull.less(column.value, depth.value)
    part = Part((frame.local(a.dtype),), "dot", (a, pull.select(negated, pull.neg(b), b)))
    total = get(part.targets[0], a.dtype)
    here = flat((*batch, m, j), (*lead, high, 2 * wide))
    body = (
        Reduce(((k.value, integer(2 * count)),), 0, (part,)),
        Store(frame.buffer((node, 0), "write"), here.value, total),
    )
    return nest((*batch, m, j), (*lead, high, 2 * wide), body)


# -- running reductions ------------------------------------------------------------------------


def _ordered(frame: Frame, node: OutputRefs) -> tuple[Statement, ...]:
    """A running combination along one axis: what is carried stays in a register, or in two."""
    shape = node.types[0].shape
    position = len(shape) + node.params["axis"]
    point = frame.variables(shape)
    pull = Pull(frame.source)
    x = pull.at(node.inputs[0], point)
    if dtypes.is_narrow(x.dtype):
        x = pull.cast(x, _FLOAT)
    registers = [frame.local(part.dtype) for part in parts(x)]
    held = whole([get(k, frame.locals[k].dtype) for k in registers])
    total = parts(combined(pull, node.op.combine, held, x))
    along: tuple[Statement, ...] = (
        *(Assign(k, part) for k, part in zip(registers, total, strict=True)),
        *frame.store(node, flat(point, shape), pull.fit(held, node.types[0].dtype)),
    )
    others = [i for i in range(len(shape)) if i != position]
    body = (
        *(Assign(k, identity_of(node.op.combine, frame.locals[k].dtype)) for k in registers),
        *nest((point[position],), (shape[position],), along),
    )
    return nest(tuple(point[i] for i in others), tuple(shape[i] for i in others), body)
