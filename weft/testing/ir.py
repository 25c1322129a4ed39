"""A slow, plain interpreter of kernels, at every stage of the pipeline.

`run_kernel` is the meaning of the loop IR: a `Reduce` is computed by its definition, a vector loop
gives its variable one value per lane. Passes are proved by comparing bits before and after. It
stops at whatever has no meaning: an index outside its buffer, a local read before it is assigned.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from weft.compiler.loops import (
    LEAF,
    PIECE,
    PRODUCTS,
    Assign,
    Fetch,
    Kernel,
    Local,
    Loop,
    Part,
    Reduce,
    Settle,
    Squares,
    Statement,
    Store,
    Tiles,
    Value,
    When,
    identity_of,
    literal,
    walk,
)
from weft.compiler.squares import spelled
from weft.core.common.dtypes import bfloat16
from weft.core.common.types import Array
from weft.testing.instructions import combine, fma, instruction, is_better
from weft.testing.tiles import BYTES, WORD, multiply

# The literals of an expression, in their places, and what computes the rest of it: for which place,
# and from which.
Plan: TypeAlias = tuple[list[Any], list[tuple[int, Callable[..., Any], list[int]]]]

_APART = ("parallel", "block", "thread")  # loops whose turns run in any order


def run_kernel(
    kernel: Kernel, arrays: Sequence[Array], parameters: Sequence[int] = (), backward: bool = False
) -> list[Array]:
    """The buffers after a run; the arrays given, one per buffer and flat, stay as they are.

    `backward` runs parallel, block and thread loops from their end: what turns share then shows.
    """
    assert len(arrays) == len(kernel.buffers), "one array per buffer"
    for array, buffer in zip(arrays, kernel.buffers, strict=True):
        assert array.ndim == 1 and array.dtype == buffer.dtype, f"{buffer.name}: a flat array"
    machine = _Machine(kernel, [a.copy() for a in arrays], parameters, backward)
    with np.errstate(all="ignore"):
        machine.run(kernel.body)
    return machine.buffers


class _Machine:
    def __init__(
        self, kernel: Kernel, buffers: list[Array], parameters: Sequence[int], backward: bool
    ) -> None:
        self.kernel = kernel
        self.buffers = buffers
        self.parameters = parameters
        self.backward = backward
        self.variables: dict[Value, Any] = {}
        self.locals: list[dict[int, Any]] = [{} for _ in kernel.locals]
        self.kept: dict[tuple[int, int], dict[int, Any]] = {}  # by local and thread
        self.lanes = 0  # of the vector loop around the statement; 0 outside
        self.plans: dict[Value, Plan] = {}

    def run(self, statements: tuple[Statement, ...]) -> None:
        for statement in statements:
            if isinstance(statement, Loop):
                self.loop(statement)
            elif isinstance(statement, Reduce):
                self.reduce(statement)
            elif isinstance(statement, Store):
                self.store(statement)
            elif isinstance(statement, Assign):
                self.assign(statement)
            elif isinstance(statement, Tiles):
                self.tiles(statement)
            elif isinstance(statement, Squares | Fetch | Settle):
                self.run(spelled(statement, self.kernel, 0))
            elif isinstance(statement, When):
                self.when(statement)

    def loop(self, loop: Loop) -> None:
        start, stop = int(self.value(loop.start)), int(self.value(loop.stop))
        steps = range(start, stop, loop.step)
        if loop.kind == "vector":
            assert self.lanes == 0, "a vector loop inside another"
            assert (stop - start) % loop.step == 0, f"{loop.variable}: a part of a step is left"
            self.lanes = loop.step
        apart = loop.kind in ("block", "thread")
        before = [dict(held) for held in self.locals] if apart else []
        for at in reversed(steps) if self.backward and loop.kind in _APART else steps:
            if loop.kind == "parallel":
                self.locals = [{} for _ in self.locals]
            elif apart:
                if loop.kind == "block":
                    self.kept = {}
                self.part_ways(before, at if loop.kind == "thread" else None)
            lanes = np.arange(at, at + loop.step)
            self.variables[loop.variable] = lanes if loop.kind == "vector" else np.int64(at)
            self.run(loop.body)
        self.variables.pop(loop.variable, None)
        if apart:
            self.part_ways(before)
        if loop.kind == "vector":
            self.lanes = 0

    def part_ways(self, before: list[dict[int, Any]], thread: int | None = None) -> None:
        """Registers as they were before a loop whose turns have registers of their own."""
        for k, local in enumerate(self.kernel.locals):
            if local.kept:
                self.locals[k] = {} if thread is None else self.kept.setdefault((k, thread), {})
            elif not local.shared:
                self.locals[k] = dict(before[k])

    def when(self, statement: When) -> None:
        condition = self.value(statement.condition)
        assert np.ndim(condition) == 0, "lanes that part ways"
        if condition:
            self.run(statement.body)

    def store(self, statement: Store) -> None:
        index, x = self.value(statement.index), self.value(statement.value)
        buffer = self.buffers[statement.buffer]
        assert self.lanes == 0 or np.ndim(index), "lanes that store to one element"
        places = np.atleast_1d(index)
        for place, element in zip(places, np.broadcast_to(x, places.shape), strict=True):
            self.check(statement.buffer, place)
            old = buffer[place]
            buffer[place] = (
                combine(statement.combine, old, element) if statement.combine else element
            )

    def check(self, buffer: int, place: Any) -> None:
        size, name = len(self.buffers[buffer]), self.kernel.buffers[buffer].name
        assert 0 <= place < size, f"{name}: element {place} of {size}"

    def assign(self, statement: Assign) -> None:
        x = self.value(statement.value)
        local = self.kernel.locals[statement.local]
        if statement.position is None:
            assert not local.length, f"{local.name}: an array needs a position"
            self.locals[statement.local][0] = self.fitted(local, x)
            return
        places = self.value(statement.position)
        if np.ndim(places) == 0:
            places, elements = (places,), (self.fitted(local, x),)
        else:
            elements = x if np.ndim(x) else (x,) * len(places)
        for place, element in zip(places, elements, strict=True):
            assert 0 <= place < local.length, f"{local.name}: element {place} of {local.length}"
            self.locals[statement.local][int(place)] = element

    def tiles(self, tiles: Tiles) -> None:
        """The block of sums and panels taken out of their arrays, multiplied, and put back."""
        groups = int(self.value(tiles.groups))
        sums, left, right = (int(self.value(at)) for at in tiles.places)
        high, wide, dtype = tiles.rows, tiles.columns, self.kernel.locals[tiles.left].dtype
        group = BYTES // dtype.itemsize
        panel = self.taken(tiles.left, left, groups * high * group)
        rows = panel.reshape(groups, high, group).transpose(1, 0, 2).reshape(high, -1)
        count = groups * BYTES // WORD * wide
        if tiles.shared:
            assert 0 <= right <= right + count <= len(self.buffers[tiles.right]), "beyond a buffer"
            words = self.buffers[tiles.right][right : right + count].view(dtype)
        else:
            words = self.taken(tiles.right, right, count).view(dtype)
        points = words.reshape(-1, wide, group * WORD // BYTES).transpose(0, 2, 1)
        columns = points.reshape(-1, wide)
        before = self.taken(tiles.sums, sums, high * wide).reshape(high, wide)
        if tiles.words and dtype.kind == "i":
            columns = columns.view(np.uint8)
        found = multiply(rows, columns, None if tiles.fresh else before, tiles.words)
        held = self.locals[tiles.sums]
        held.update((sums + k, x) for k, x in enumerate(found.ravel()))

    def taken(self, number: int, start: int, count: int) -> Array:
        """Elements of an array among the locals; 0 where none was assigned."""
        local, held = self.kernel.locals[number], self.locals[number]
        inside = start >= 0 and start + count <= local.length
        assert inside, f"{local.name}: elements {start} to {start + count} of {local.length}"
        zero = local.dtype.type(0)
        return np.array([held.get(k, zero) for k in range(start, start + count)], local.dtype)

    @staticmethod
    def fitted(local: Local, x: Any) -> Any:
        shape = (local.lanes,) if local.lanes > 1 else ()
        assert np.shape(x) in ((), shape), f"{local.name}: {np.shape(x)} into {shape}"
        return x if np.shape(x) == shape else np.broadcast_to(x, shape)

    def value(self, x: Value) -> Any:
        """An expression as memory is now: a scalar, or an array of lanes."""
        plan = self.plans.get(x)
        if plan is None:
            plan = self.plans[x] = self.plan(x)
        numbers, steps = plan
        found = numbers.copy()
        for k, run, operands in steps:
            found[k] = run(*[found[o] for o in operands])
        return found[-1]

    def plan(self, x: Value) -> Plan:
        """How an expression is computed."""
        order = {point: k for k, point in enumerate(walk(x))}
        numbers = [literal(point) if point.op == "const" else None for point in order]
        steps = [
            (k, self.step(point), [order[a] for a in point.args])
            for point, k in order.items()
            if point.op != "const"
        ]
        return numbers, steps

    def step(self, x: Value) -> Callable[..., Any]:
        """What computes one point of an expression from its operands."""
        if x.op == "variable":
            return lambda: self.variable(x)
        if x.op == "parameter":
            return lambda: np.int64(self.parameters[x.data])
        if x.op == "load":
            return lambda index: self.load(x.data, index)
        if x.op == "get":
            return lambda *position: self.get(x.data, *position)
        if x.op == "across":
            return lambda *args: _across(x.data, args)
        return instruction(x)

    def variable(self, x: Value) -> Any:
        assert x in self.variables, f"{x.data}: used outside its loop"
        return self.variables[x]

    def load(self, buffer: int, index: Any) -> Any:
        for place in index if index.ndim else (index,):
            self.check(buffer, place)
        return self.buffers[buffer][index]

    def get(self, local: int, position: Any = 0) -> Any:
        held, name = self.locals[local], self.kernel.locals[local].name
        places = position if np.ndim(position) else (position,)
        for place in places:
            assert int(place) in held, f"{name}: read before it is assigned"
        found = [held[int(place)] for place in places]
        return np.array(found) if np.ndim(position) else found[0]

    # -- reductions, by their definition ---------------------------------------------------

    def reduce(self, statement: Reduce) -> None:
        extents = [int(self.value(extent)) for _, extent in statement.axes]
        points: list[list[tuple[Any, ...]]] = [[] for _ in statement.parts]
        for point in itertools.product(*map(range, extents)):
            for (variable, _), at in zip(statement.axes, point, strict=True):
                self.variables[variable] = np.int64(at)
            self.run(statement.body)
            for part, values in zip(statement.parts, points, strict=True):
                values.append(tuple(self.value(v) for v in part.values))
        for variable, _ in statement.axes:
            self.variables.pop(variable, None)
        for part, values in zip(statement.parts, points, strict=True):
            self.finish(part, statement.lanes, values)

    def finish(self, part: Part, lanes: int, points: list[tuple[Any, ...]]) -> None:
        locals_ = [self.kernel.locals[t] for t in part.targets]
        apart = lanes > 1 and not self.lanes and locals_[0].lanes == lanes
        groups = [points[lane::lanes] for lane in range(lanes)] if apart else [points]
        results: list[tuple[Any, ...]] = []
        for group in groups:
            if part.combine in ("argmax", "argmin"):
                results.append(_first_extreme(part, group))
            elif part.combine in PRODUCTS:
                results.append((_products(part, group),))
            else:
                results.append((_balanced(part, 1 if apart else lanes, [x for (x,) in group]),))
        for k, (target, local) in enumerate(zip(part.targets, locals_, strict=True)):
            found = np.array([r[k] for r in results]) if apart else results[0][k]
            self.locals[target][0] = self.fitted(local, found)


def _first_extreme(part: Part, points: list[tuple[Any, ...]]) -> tuple[Any, Any]:
    best = literal(identity_of(part.combine, part.values[0].dtype))
    place: Any = np.int64(np.iinfo(np.int64).max)
    for k, (x, at) in enumerate(points):
        take = is_better(part.combine, best, x) if k else np.bool_(True)
        best, place = np.where(take, x, best)[()], np.where(take, at, place)[()]
    return best, place


def _products(part: Part, points: list[tuple[Any, ...]]) -> Any:
    if part.values[0].dtype == bfloat16:
        left, right = (np.array([p[i] for p in points], bfloat16) for i in (0, 1))
        return multiply(left[None], right[:, None], pairs=part.combine == "pairs")[0, 0]
    zero = part.values[0].dtype.type(0)
    size = PIECE if part.combine == "dot" else max(len(points), 1)
    sums = []
    for start in range(0, len(points), size):
        total = zero
        for x, y in points[start : start + size]:
            total = fma(x, y, total)
        sums.append(total)
    return functools.reduce(functools.partial(combine, "add"), sums) if sums else zero


def _balanced(part: Part, lanes: int, points: list[Any]) -> Any:
    """Blocks of LEAF steps per lane, a balanced tree over blocks, then over lanes."""
    identity = literal(identity_of(part.combine, part.values[0].dtype))
    size = LEAF * lanes
    blocks = []
    for start in range(0, len(points), size):
        block = [identity] * lanes
        for j, x in enumerate(points[start : start + size]):
            block[j % lanes] = combine(part.combine, block[j % lanes], x)
        blocks.append(block)
    total = _tree(part.combine, blocks) if blocks else [identity] * lanes
    while len(total) > 1:
        half = len(total) // 2
        total = [combine(part.combine, total[k], total[k + half]) for k in range(half)]
    return total[0]


def _tree(name: str, blocks: list[list[Any]]) -> list[Any]:
    if len(blocks) == 1:
        return blocks[0]
    whole = 1 << (len(blocks) - 1).bit_length() - 1
    first, rest = _tree(name, blocks[:whole]), _tree(name, blocks[whole:])
    return [combine(name, x, y) for x, y in zip(first, rest, strict=True)]


def _across(name: str, parts: tuple[Any, ...]) -> Any:
    assert all(np.ndim(lanes) == 1 for lanes in parts), "across: one value, not lanes"
    if len(parts) == 2:
        return _extreme_lane(name, *parts)
    (lanes,) = parts
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = np.atleast_1d(combine(name, lanes[:half], lanes[half:]))
    return lanes[0]


def _extreme_lane(name: str, values: Any, places: Any) -> tuple[Any, Any]:
    """The most extreme element, the one with the smallest place among equals."""
    best = 0
    for lane in range(1, len(values)):
        worse = is_better(name, values[lane], values[best])
        earlier = not worse and places[lane] < places[best]
        if is_better(name, values[best], values[lane]) or earlier:
            best = lane
    return values[best], places[best]
