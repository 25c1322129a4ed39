"""`verify` states what every kernel obeys, between any two passes.

A broken rule is a mistake of the compiler, never of the user: it raises AssertionError with the
kernel's name, the statement and the rule.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from weft.compiler.loops import (
    BINARY,
    BOOL,
    COMBINES,
    COMPARISONS,
    INDEX,
    KINDS,
    LANES,
    PRODUCTS,
    UNARY,
    Ahead,
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
    expressions,
    walk,
)
from weft.compiler.polynomial import divides, known, polynomial
from weft.compiler.squares import shape_of
from weft.core.common.dtypes import bfloat16

_ARITY = {
    **dict.fromkeys(("const", "variable", "parameter"), 0),
    **dict.fromkeys(UNARY | {"cast", "bitcast", "load", "opaque"}, 1),
    **dict.fromkeys(BINARY | COMPARISONS | {"compress"}, 2),
    **dict.fromkeys(("select", "fma", "dot4", "dot2"), 3),
}
_OPEN = frozenset(
    {"call", "rarely", "item", "get", "across", "turned"}
)  # as many operands as they like
_EXTREMES = ("argmax", "argmin")
_WORD = np.dtype(np.int32)
_NARROW = (bfloat16, np.dtype(np.float32))
TILED = (_NARROW, (np.dtype(np.int8), _WORD))  # factors of tiles and their sums
_MODES = frozenset({"read", "write", "update", "stream"})
_READ = frozenset({"read", "update"})  # modes
_STORED = COMBINES - {*_EXTREMES, *PRODUCTS}


def verify(kernel: Kernel, scheduled: bool = False) -> Kernel:
    """The kernel, if it obeys the rules; `scheduled` forbids what only lowering may leave."""
    checker = _Checker(kernel, scheduled)
    checker.run(kernel.body, (), outermost=True)
    return kernel


class _Checker:
    def __init__(self, kernel: Kernel, scheduled: bool) -> None:
        self.kernel = kernel
        self.scheduled = scheduled
        self.seen: set[Value] = set()  # variables met so far: each has one loop
        self.checked: set[Value] = set()
        self.lanes = 0  # of the vector loop around; 0 outside
        self.vector: Value | None = None  # its variable
        for buffer in kernel.buffers:
            self.ensure(buffer.mode in _MODES, f"{buffer.name}: no such mode")
        for local in kernel.locals:
            self.ensure(local.lanes >= 1 and local.length >= 0, f"{local.name}: no such size")
            beside = local.beside is None or (local.length and local.beside < len(kernel.buffers))
            self.ensure(bool(beside), f"{local.name}: no array, or beside no buffer")

    def fail(self, rule: str, at: object = None) -> NoReturn:
        place = "" if at is None else f" (in {at!r})"
        raise AssertionError(f"kernel {self.kernel.name}: {rule}{place}")

    def ensure(self, holds: bool, rule: str, at: object = None) -> None:
        if not holds:
            self.fail(rule, at)

    # -- statements ------------------------------------------------------------------------

    def run(
        self, body: tuple[Statement, ...], scope: tuple[Value, ...], outermost: bool = False
    ) -> None:
        for statement in body:
            if isinstance(statement, Loop) and statement.kind == "parallel":
                alone = outermost and len(body) == 1
                self.ensure(alone, "a parallel loop is the only outermost statement")
            if not isinstance(statement, Reduce):
                for x in expressions(statement):
                    self.value(x, scope)
            if isinstance(statement, Loop):
                self.loop(statement, scope)
            elif isinstance(statement, Reduce):
                self.reduce(statement, scope)
            elif isinstance(statement, Store):
                self.store(statement)
            elif isinstance(statement, Assign):
                self.assign(statement)
            elif isinstance(statement, Tiles):
                self.tiles(statement)
            elif isinstance(statement, Squares):
                self.squares(statement)
            elif isinstance(statement, Fetch):
                self.fetch(statement)
            elif isinstance(statement, Settle):
                self.ensure(statement.pending >= 0, "fewer than no fetches")
            elif isinstance(statement, Ahead):
                self.ensure(statement.source.op in ("load", "get"), "ahead is what memory holds")
            else:
                self.when(statement, scope)

    def when(self, statement: When, scope: tuple[Value, ...]) -> None:
        self.ensure(statement.condition.dtype == BOOL, "a condition is a bool")
        self.ensure(self.width(statement.condition) == 1, "a condition is one for all lanes")
        self.run(statement.body, scope)

    def bind(self, variable: Value, scope: tuple[Value, ...]) -> tuple[Value, ...]:
        self.ensure(variable.op == "variable", "a loop runs over a variable", variable)
        self.ensure(variable not in self.seen, f"{variable.data}: the variable of two loops")
        self.seen.add(variable)
        return (*scope, variable)

    def loop(self, loop: Loop, scope: tuple[Value, ...]) -> None:
        name = loop.variable.data
        self.ensure(loop.kind in KINDS, f"{name}: no such kind of loop: {loop.kind}")
        for bound in (loop.start, loop.stop):
            self.ensure(bound.dtype == INDEX, f"{name}: a bound is an index", bound)
            self.ensure(self.width(bound) == 1, f"{name}: a bound is one for all lanes", bound)
        inside = self.bind(loop.variable, scope)
        if loop.kind != "vector":
            self.ensure(loop.step == 1, f"{name}: only vector loops have steps")
            self.run(loop.body, inside)
            return
        self.ensure(self.lanes == 0, f"{name}: a vector loop inside another")
        self.ensure(loop.step > 1, f"{name}: a vector loop of one lane")
        start, stop = known(loop.start), known(loop.stop)
        if start is not None and stop is not None:
            self.ensure((stop - start) % loop.step == 0, f"{name}: a part of a step is left")
        self.lanes, self.vector = loop.step, loop.variable
        self.run(loop.body, inside)
        self.lanes, self.vector = 0, None

    def reduce(self, reduce: Reduce, scope: tuple[Value, ...]) -> None:
        self.ensure(not self.scheduled, "a reduction is left in a scheduled kernel")
        self.ensure(reduce.lanes in (0, 1, LANES), f"a reduction of {reduce.lanes} lanes")
        inside = scope
        for variable, extent in reduce.axes:
            self.value(extent, scope)
            self.ensure(extent.dtype == INDEX, "an extent is an index", extent)
            inside = self.bind(variable, inside)
        self.run(reduce.body, inside)
        for part in reduce.parts:
            for x in part.values:
                self.value(x, inside)
            self.part(part, reduce.lanes)

    def part(self, part: Part, lanes: int) -> None:
        known_combine = part.combine in COMBINES - {"last"}
        self.ensure(known_combine, f"no such combine of a reduction: {part.combine}")
        dot, extreme = part.combine in PRODUCTS, part.combine in _EXTREMES
        sizes = (len(part.targets), len(part.values))
        self.ensure(sizes == (1 + extreme, 1 + extreme + dot), f"{part.combine}: {sizes}", part)
        self.ensure(dot == (lanes == 0), "products, and only they, go in plain order", part)
        if extreme:
            place = part.values[1]
            self.ensure(place.dtype.kind == "i", "a place is a signed integer", place)
            reads = any(p.op in ("load", "get") for p in walk(place))
            self.ensure(not reads, "a place is computed from variables alone", place)
        if dot:
            same = part.values[0].dtype == part.values[1].dtype
            self.ensure(same, "factors of one dtype", part)
        for target, x in zip(part.targets, part.values, strict=not dot):
            local = self.local(target)
            self.ensure(not local.length, f"{local.name}: a reduction's target is a register")
            fits = local.dtype == x.dtype or (dot and (x.dtype, local.dtype) == _NARROW)
            self.ensure(fits, f"{local.name}: {x.dtype} into {local.dtype}")
            fits = local.lanes in (1, lanes, self.lanes) and self.width(x) in (1, local.lanes)
            self.ensure(fits, f"{local.name}: lanes that do not fit", x)

    def store(self, store: Store) -> None:
        self.ensure(0 <= store.buffer < len(self.kernel.buffers), f"no buffer {store.buffer}")
        buffer = self.kernel.buffers[store.buffer]
        self.ensure(buffer.mode != "read", f"{buffer.name}: stored to, but read only")
        self.ensure(store.index.dtype == INDEX, f"{buffer.name}: an index is int64", store.index)
        given = store.value.dtype
        self.ensure(given == buffer.dtype, f"{buffer.name}: {given} into {buffer.dtype}")
        self.ensure(self.width(store.value) in (1, self.lanes), f"{buffer.name}: lanes outside")
        if self.lanes:
            self.ensure(self.width(store.index) > 1, f"{buffer.name}: lanes store to one element")
        if store.combine:
            self.ensure(store.combine in _STORED, f"no such combine: {store.combine}")
            updated = buffer.mode == "update"
            self.ensure(updated, f"{buffer.name}: combined with, but not read and written")

    def assign(self, assign: Assign) -> None:
        local = self.local(assign.local)
        given = assign.value.dtype
        self.ensure(given == local.dtype, f"{local.name}: {given} into {local.dtype}")
        if assign.position is None:
            self.ensure(not local.length, f"{local.name}: an array needs a position")
        else:
            self.ensure(local.length > 0, f"{local.name}: a register has no positions")
            index = assign.position.dtype == INDEX
            self.ensure(index, f"{local.name}: a position is int64", assign.position)
        width = self.width(assign.value)
        lanes = (
            local.lanes if assign.position is None else self.spread(local.lanes, assign.position)
        )
        self.ensure(width in (1, lanes), f"{local.name}: {width} lanes into {lanes}")

    def tiles(self, tiles: Tiles) -> None:
        """Arrays of fitting dtypes, blocks of whole tiles, outside of vector loops."""
        self.ensure(self.lanes == 0, "tiles inside a vector loop", tiles)
        for number in (tiles.sums, tiles.left, *(() if tiles.shared else (tiles.right,))):
            local = self.local(number)
            self.ensure(local.length > 0 and local.lanes == 1, f"{local.name}: no array", tiles)
        dtypes = tuple(self.local(n).dtype for n in (tiles.left, tiles.sums))
        buffers = self.kernel.buffers
        self.ensure(not tiles.shared or 0 <= tiles.right < len(buffers), "no such buffer", tiles)
        right = buffers[tiles.right] if tiles.shared else self.local(tiles.right)
        fits = dtypes in TILED and right.dtype == _WORD
        self.ensure(fits, f"tiles of {dtypes[0]} summed in {dtypes[1]}", tiles)
        few = tiles.words and 0 < tiles.rows <= 32
        sizes = (tiles.rows in (16, 32) or few) and tiles.columns in (16, 32)
        self.ensure(sizes, f"tiles of {tiles.rows} rows and {tiles.columns} columns", tiles)
        for x in expressions(tiles):
            self.ensure(x.dtype == INDEX, "places and numbers of groups are int64", x)

    def fetch(self, fetch: Fetch) -> None:
        """Whole vectors from a buffer to a shared array, outside of vector loops."""
        array, source = self.local(fetch.array), fetch.source
        self.ensure(self.lanes == 0, "a fetch inside a vector loop", fetch)
        self.ensure(array.shared and array.lanes == 1, f"{array.name}: not shared", fetch)
        fits = source.op == "load" and source.dtype == array.dtype
        self.ensure(fits, "a fetch is of what a buffer holds", fetch)
        self.ensure(fetch.lanes * array.dtype.itemsize == 16, "a fetch is of 16 bytes", fetch)
        whole = divides(polynomial(source.args[0]), fetch.lanes)
        self.ensure(whole, "a fetch that is not aligned", fetch)

    def squares(self, squares: Squares) -> None:
        """Shared arrays, kept registers for whole squares, outside of vector loops."""
        self.ensure(self.lanes == 0, "squares inside a vector loop", squares)
        panels = (squares.left, squares.right)
        arrays = [self.local(panel.array) for panel in panels]
        self.ensure(all(a.shared for a in arrays), "squares of arrays that nobody shares", squares)
        sums = [self.local(number) for number in squares.sums]
        self.ensure(all(s.kept and not s.length for s in sums), "sums that are not kept", squares)
        shape = shape_of(arrays[0].dtype)
        kinds = (arrays[1].dtype, *(s.dtype for s in sums))
        fits = shape is not None and set(kinds) == {arrays[0].dtype, shape.sums}
        self.ensure(fits, f"squares of {arrays[0].dtype} summed in {kinds[-1]}", squares)
        assert shape is not None
        pairs = sum(s.lanes for s in sums) // (2 * squares.rows)
        whole = squares.rows % (shape.rows // 8) == squares.depth % shape.depth == 0
        count = len(sums) * sums[0].lanes == 2 * squares.rows * pairs
        self.ensure(whole and count and pairs > 0, "no whole squares", squares)
        grouped = squares.together and squares.rows == 2 and all(p.swirled for p in panels)
        self.ensure(grouped or not squares.together, "warps that cannot multiply together", squares)
        steps = all(1 in (p.across, p.along) for p in panels)
        self.ensure(steps, "a panel that lies neither along its points nor its depth", squares)

    def spread(self, lanes: int, position: Value) -> int:
        """Lanes of an element of an array: those it holds, or one element for each lane."""
        width = self.width(position)
        self.ensure(lanes == 1 or width == 1, "lanes at places that differ", position)
        return max(lanes, width)

    # -- values ----------------------------------------------------------------------------

    def local(self, number: int) -> Local:
        self.ensure(0 <= number < len(self.kernel.locals), f"no local {number}")
        return self.kernel.locals[number]

    def width(self, x: Value) -> int:
        """How many lanes a value has here."""
        found: dict[Value, int] = {}
        for point in walk(x):
            lanes = max((found[a] for a in point.args), default=1)
            if point is self.vector:
                lanes = self.lanes
            elif point.op == "get":
                held = self.local(point.data).lanes
                lanes = self.spread(held, point.args[0]) if point.args else held
                fits = lanes in (1, self.lanes or lanes)
                self.ensure(fits, f"{lanes} lanes inside {self.lanes}", point)
            elif point.op == "across":
                lanes = 1
            found[point] = lanes
        return found[x]

    def value(self, x: Value, scope: tuple[Value, ...]) -> None:
        for point in walk(x):
            if point.op == "variable":
                self.ensure(point in scope, f"{point.data}: used outside its loop")
            if point not in self.checked:
                self.checked.add(point)
                self.instruction(point)

    def instruction(self, x: Value) -> None:
        """Operands, dtypes and names of one point."""
        arity = _ARITY.get(x.op)
        self.ensure(arity is not None or x.op in _OPEN, f"no such instruction: {x.op}", x)
        self.ensure(arity in (None, len(x.args)), f"{x.op}: {len(x.args)} operands", x)
        if x.op in ("const", "variable", "parameter", "load", "get", "across"):
            self.memory(x)
            return
        dtypes = [a.dtype for a in x.args]
        if x.op in UNARY or x.op in BINARY or x.op in ("fma", "dot4", "dot2", "call"):
            fits = all(d == x.dtype for d in dtypes)
        elif x.op in COMPARISONS:
            fits = dtypes[0] == dtypes[1] and x.dtype == BOOL
        elif x.op == "select":
            fits = dtypes == [BOOL, x.dtype, x.dtype]
        elif x.op == "bitcast":
            fits = dtypes[0].itemsize == x.dtype.itemsize
        elif x.op == "rarely":
            count = x.data
            fits = len(dtypes) == 1 + 2 * count and dtypes[0] == BOOL
            fits = fits and dtypes[1 : 1 + count] == dtypes[1 + count :]
        elif x.op == "opaque":
            fits = dtypes == [INDEX] and x.dtype == INDEX
        elif x.op == "compress":
            fits = dtypes == [BOOL, x.dtype] and self.lanes > 0
        elif x.op == "turned":
            fits = len(x.args) == self.lanes and all(d == x.dtype for d in dtypes)
        elif x.op == "item":
            of = x.args[0]
            items = of.args[1 : 1 + of.data] if of.op == "rarely" else of.args
            fits = of.op in ("rarely", "across", "turned") and 0 <= x.data < len(items)
            fits = fits and items[x.data].dtype == x.dtype
        else:
            fits = True
        self.ensure(fits, f"{x.op}: dtypes that do not fit", x)

    def memory(self, x: Value) -> None:
        """A leaf, or a read of a buffer or of a local."""
        if x.op == "const":
            self.ensure(len(x.data) == x.dtype.itemsize, "a literal of its dtype's size", x)
        elif x.op == "across":
            extreme = x.data in _EXTREMES
            fits = len(x.args) == 1 + extreme and x.args[0].dtype == x.dtype
            fits = fits and (extreme or x.data in _STORED - {"last"})
            self.ensure(fits, "across: lanes combined into one of their dtype", x)
        elif x.op in ("variable", "parameter"):
            self.ensure(x.dtype == INDEX, f"{x.op}: an index is int64", x)
            missing = x.op == "parameter" and not 0 <= x.data < self.kernel.parameters
            self.ensure(not missing, f"no parameter {x.data}", x)
        elif x.op == "load":
            self.ensure(0 <= x.data < len(self.kernel.buffers), f"no buffer {x.data}", x)
            buffer = self.kernel.buffers[x.data]
            self.ensure(buffer.mode in _READ, f"{buffer.name}: loaded, but only written", x)
            self.ensure(x.dtype == buffer.dtype, f"{buffer.name}: loaded as {x.dtype}", x)
            self.ensure(x.args[0].dtype == INDEX, f"{buffer.name}: an index is int64", x)
        else:
            local = self.local(x.data)
            self.ensure(x.dtype == local.dtype, f"{local.name}: read as {x.dtype}", x)
            array = local.length > 0
            self.ensure(len(x.args) == array, f"{local.name}: arrays alone have positions", x)
            self.ensure(all(a.dtype == INDEX for a in x.args), f"{local.name}: int64", x)
