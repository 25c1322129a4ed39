"""What the parts of a scheduled matrix product share: conditions, loops, registers and places.

Conditions that are known while the loops are written are plain bools, and leave no trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from weft.compiler.loops import (
    BOOL,
    INDEX,
    Assign,
    Loop,
    Statement,
    Store,
    Value,
    When,
    const,
    expressions,
    get,
    integer,
    load,
    value,
    walk,
)
from weft.compiler.passes.accumulate import multiplied
from weft.compiler.passes.contract_blocks import UNROLL, Block
from weft.compiler.passes.contract_match import Product, runs_along
from weft.compiler.passes.contract_words import dot
from weft.compiler.polynomial import (
    add,
    divide,
    hides,
    is_multiple,
    known,
    multiply,
    number,
    polynomial,
    smaller,
    subtract,
)
from weft.compiler.rebuild import (
    Scope,
    Statements,
    assigned_locals,
    rebuild,
    renamed,
    revise,
)
from weft.core.common.types import DType

LIGHT = 8  # instructions of an epilogue that is written out for every vector of a block
LIGHTER = 5  # the same if it reads memory row by row, which a block has little of
SHALLOW = 64  # products of a sum beyond which a way through the tile costs little
ZERO = integer(0)


@dataclass(frozen=True)
class Span:
    """Part of an axis: where it starts, and how many of its points are there."""

    start: Value
    count: Value


def ceiling(x: Value, by: int) -> Value:
    """How many pieces of `by` cover x."""
    return divide(add(x, by - 1), by)


def less(x: Value, y: Value) -> Value | bool:
    """x < y, where it can be said now as a bool."""
    gap = number(polynomial(subtract(x, y)))
    return value("less", (x, y), BOOL) if gap is None else gap < 0


def when(condition: Value | bool, body: Statements, otherwise: Statements = ()) -> Statements:
    """Statements under a condition, and those for the case that it does not hold."""
    if isinstance(condition, bool):
        return body if condition else otherwise
    made: list[Statement] = [When(condition, body)] if body else []
    if otherwise:
        unless = negated(condition)
        assert isinstance(unless, Value)
        made.append(When(unless, otherwise))
    return tuple(made)


def negated(condition: Value | bool) -> Value | bool:
    """Whether a condition does not hold."""
    if isinstance(condition, bool):
        return not condition
    return value("equal", (condition, const(False, BOOL)), BOOL)


def both(x: Value | bool, y: Value | bool) -> Value | bool:
    """Whether two conditions hold."""
    if isinstance(x, bool):
        return y if x else False
    if isinstance(y, bool):
        return x if y else False
    return value("bit_and", (x, y), BOOL)


def either(x: Value | bool, y: Value | bool) -> Value | bool:
    """Whether one of two conditions holds."""
    if isinstance(x, bool):
        return True if x else y
    if isinstance(y, bool):
        return True if y else x
    return value("bit_or", (x, y), BOOL)


def selected(condition: Value | bool, x: Value, y: Value) -> Value:
    """`x` if the condition holds, else `y`."""
    if isinstance(condition, bool) or x is y:
        return x if condition else y
    return value("select", (condition, x, y), INDEX)


def folded(x: Value) -> Value:
    """A load at a sum whose literal comes last: places that differ by it share the rest."""
    return load(x.data, add(x.args[0], 0), x.dtype) if x.op == "load" else x


def _at_a_sum(statement: Statement) -> Statement:
    """Like `folded`, of a store."""
    if not isinstance(statement, Store):
        return statement
    index = add(statement.index, 0)
    return Store(statement.buffer, index, statement.value, statement.combine)


def _reads(product: Product) -> bool:
    """Whether an epilogue reads rows of columns, and has no mask, which may hide whole blocks."""
    points = list(walk(*(x for s in product.epilogue for x in expressions(s))))
    asks = any(x.op in ("less", "less_equal") and x.args[0].dtype.kind in "iu" for x in points)
    axes = product.row[0], product.column[0]
    rows = (x for x in points if x.op == "load" and all(hides(x.args[0], v) for v in axes))
    return not asks and any(rows)


def _in_vectors(product: Product, block: Block) -> bool:
    """Whether panels of rows can be packed as vectors: along the rows, or turned."""
    rows, along = known(product.row[1]), runs_along(product.left, product.row[0])
    if along:
        return rows is None or rows >= block.packed_rows
    return runs_along(product.left, product.depth[0])


@dataclass(frozen=True)
class Packed:
    """Where panels of a factor lie: in an array of the task, or in a buffer that all tasks share.

    A buffer has all panels of the factor, from `first` on: those of a piece of the depth together.
    """

    number: int
    dtype: DType
    width: int  # elements from one point of the depth to the next
    points: int  # of the factor's axis, that a panel holds
    first: Value = ZERO
    panels: Value | None = None  # of the whole factor; None: an array

    def at(self, position: Value) -> Value:
        """The element at a position."""
        if self.panels is not None:
            return load(self.number, position, self.dtype)
        return get(self.number, self.dtype, position)

    def put(self, position: Value, x: Value) -> Statement:
        """Write an element, or a vector of them."""
        if self.panels is not None:
            return Store(self.number, position, x)
        return Assign(self.number, x, position)

    def panel(self, start: Value, piece: Span) -> Value:
        """Where the panel from `start` on begins, for a piece of the depth."""
        assert self.panels is not None, "an array has the panels of one piece"
        across = multiply(piece.start, multiply(self.panels, self.width))
        along = multiply(divide(start, self.points), multiply(piece.count, self.width))
        return add(add(across, along), self.first)


class Frame:
    """The registers and arrays of a task, and the loops around what is done with them."""

    def __init__(
        self,
        scope: Scope,
        product: Product,
        block: Block,
        waits: Store | None = None,
        ready: tuple[Packed | None, Packed | None] = (None, None),
    ) -> None:
        self.scope, self.product, self.block = scope, product, block
        self.waits = waits  # where sums wait for the task that has the next piece of the depth
        self.dtype = product.dtype
        depth = known(product.depth[1])
        self.pieces = waits is None and (depth is None or depth > block.depth)
        even = depth is not None and depth % UNROLL == 0
        cut = self.pieces or waits is not None
        self.is_even = even and not (cut and block.depth % UNROLL)
        b = block
        self.high, self.wide = b.tile_rows // b.rows, b.tile_columns // b.columns
        size = b.rows * b.columns
        local = scope.local
        packed = b.tile_columns if b.pack_right else b.columns
        self.left_ready, self.right_ready = (x is not None for x in ready)  # packed before
        left, right = ready
        if left is None:
            high = b.packed_rows if _in_vectors(product, b) else b.rows
            panels = self.high if b.rows_inside else 1
            array = local("left", self.dtype, 1, panels * high * b.depth if b.pack_left else 1)
            left = Packed(array, self.dtype, high, b.rows)
        if right is None:
            array = local("right", self.dtype, 1, packed * b.depth if b.lanes > 1 else 1)
            right = Packed(array, self.dtype, b.columns, b.columns)
        self.left, self.right = left, right
        # Whether a panel of rows is finished as a whole, so that memory is met row by row.
        by_rows = waits is None and not (b.turns or b.rows_inside)
        self.late = by_rows and not self.is_light() and _reads(product)
        blocks = self.high * self.wide if self.pieces else self.wide if self.late else 1
        self.tile = local("tile", self.dtype, 1, size * blocks)
        # Sums of a piece that goes on wait beside those of the pieces before it.
        self.open = local("open", self.dtype, 1, size * blocks) if b.per_piece > 1 else self.tile
        self.sums = [
            [local(f"sum{i}_{j}", self.dtype, b.lanes) for j in range(b.vectors)]
            for i in range(b.rows)
        ]
        self.in_lanes = {
            number: local(scope.locals[number].name, scope.locals[number].dtype, b.lanes)
            for number in sorted(assigned_locals(product.epilogue))
        }

    def left_place(self, panel: Value) -> Value:
        """Where the task packs a panel of rows: all have one place if only one is held."""
        if not self.block.rows_inside:
            return ZERO
        return multiply(panel, self.left.width * self.block.depth)

    def multiplied(self, x: Value, y: Value, total: Value) -> Value:
        """total + x · y, as factors of this product are multiplied."""
        # ARM has an instruction for one lane of the second factor.
        words = self.product.words
        return dot(words, y, x, total) if words else multiplied(x, y, total)

    def let(self, name: str, x: Value, into: list[Statement]) -> Value:
        """A value computed here and kept in a register; literals need none."""
        if not x.args:
            return x
        local = self.scope.local(name, INDEX)
        into.append(Assign(local, x))
        return get(local, INDEX)

    def flag(self, name: str, x: Value | bool, into: list[Statement]) -> Value | bool:
        """A condition computed here and kept in a register."""
        if isinstance(x, bool):
            return x
        local = self.scope.local(name, BOOL)
        into.append(Assign(local, x))
        return get(local, BOOL)

    def loop(
        self, name: str, count: Value, body: Callable[[Value], Statements], start: Value = ZERO
    ) -> Statements:
        """A serial loop; a single step is written without one."""
        if known(count) == 1 and known(start) == 0:
            return body(ZERO)
        at = self.scope.variable(name)
        return (Loop(at, start, count, body(at)),)

    def unrolled(
        self,
        count: Value,
        body: Callable[[Value], Statements],
        before: Callable[[Value], Statements] = lambda turn: (),
    ) -> Statements:
        """A loop over the depth whose turns take several points, and one for the rest."""
        made: list[Statement] = []

        def several(k: Value) -> Statements:
            first = multiply(k, UNROLL)
            return (*before(k), *(s for i in range(UNROLL) for s in body(add(first, i))))

        turns = self.let("turns", divide(count, UNROLL), made)
        if known(turns) != 0:
            made += self.loop("depth", turns, several)
        if self.is_even:
            return tuple(made)
        return (*made, *self.loop("depth", count, body, multiply(turns, UNROLL)))

    def lanes(self, body: Callable[[Value], Statements], width: int = 0) -> Statements:
        """Statements for one vector of lanes, or of `width` ones."""
        width = width or self.block.lanes
        if width == 1:
            return body(ZERO)
        at = self.scope.variable("lane")
        return (Loop(at, ZERO, integer(width), body(at), "vector", width),)

    def is_light(self, given: Statements | None = None) -> bool:
        """Whether the epilogue, or what is `given`, is written out for every vector of a block.

        That is if it is short, and comes after few products.
        """
        depth = known(self.product.depth[1])
        soon = self.right_ready or self.block.rows_inside  # memory is met anyway
        if depth is None or (depth > SHALLOW and not soon):
            return False
        epilogue = self.product.epilogue if given is None else given
        points = {x for s in epilogue for x in walk(*expressions(s))}
        work = [x for x in points if x.args and x.dtype != INDEX]
        most = LIGHTER if _reads(self.product) else LIGHT
        return len(work) <= most and not any(x.op in ("rarely", "call") for x in work)

    def epilogue(
        self, row: Value, column: Value, total: Value, lanes: int, given: Statements | None = None
    ) -> Statements:
        """The epilogue, or what is `given`, at one point, or at one vector of points."""
        product, others = self.product, self.in_lanes if lanes > 1 else {}
        sums = get(product.target, self.scope.locals[product.target].dtype)
        names = {product.row[0]: row, product.column[0]: column, sums: total}

        def change(x: Value) -> Value:
            if x.op == "get" and x.data in others:
                return get(others[x.data], x.dtype, *x.args)
            return folded(x)

        made = revise(
            product.epilogue if given is None else given, lambda x: rebuild(x, change, names)
        )
        return renamed(tuple(map(_at_a_sum, made)), others)

    def each(
        self, row: Value, column: Value, at: Callable[[Value, Value, int], Statements]
    ) -> Statements:
        """Statements for those rows and columns of the block that there are."""
        made: list[Statement] = []
        rows = smaller(subtract(self.product.row[1], row), self.block.rows)
        rows = self.let("rows", rows, made)
        along = self.along(column, made)
        return (*made, *self.loop("row", rows, lambda i: along(partial(at, i))))

    def along(
        self, column: Value, into: list[Statement]
    ) -> Callable[[Callable[[Value, int], Statements]], Statements]:
        """What writes statements for those columns of a block that there are, in one row."""
        b, product = self.block, self.product
        columns = smaller(subtract(product.column[1], column), b.columns)
        columns = self.let("columns", columns, into)
        whole, size = columns, known(product.column[1])
        if b.lanes == 1 or (size is not None and size < b.lanes):
            whole = ZERO
        elif not is_multiple(product.column[1], b.lanes):  # blocks begin at multiples
            whole = self.let("whole", multiply(divide(columns, b.lanes), b.lanes), into)

        def write(at: Callable[[Value, int], Statements]) -> Statements:
            found: list[Statement] = []
            if whole is not ZERO:
                lane = self.scope.variable("lane")
                found.append(Loop(lane, ZERO, whole, at(lane, b.lanes), "vector", b.lanes))
            if whole is columns:
                return tuple(found)
            j = self.scope.variable("column")
            return (*found, Loop(j, whole, columns, at(j, 1)))

        return write

    def is_whole(self, start: Value, width: int, extent: Value) -> Value | bool:
        """Whether `width` points from `start` on, a multiple of it, are all inside an extent."""
        size = known(extent)
        if size is not None and size % width == 0:
            return True
        return less(add(start, width - 1), extent)

    def held(
        self,
        start: Value,
        step: Value | int,
        width: int,
        extent: Value,
        into: list[Statement] | None = None,
    ) -> Value:
        """A point of `width` from `start` on, or the last one there is; kept `into` a register."""
        place = add(start, step)
        if self.is_whole(start, width, extent) is True:
            return place
        place = smaller(place, subtract(extent, 1))
        return place if into is None else self.let("place", place, into)
