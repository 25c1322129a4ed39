"""Share out a run over elements, each computed on its own, in items for threads.

An item is one element, or a few adjacent ones as a vector, where every access is to adjacent
elements too. Elements that fill no vector are items of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from weft.compiler.lanes import Lanes, widen
from weft.compiler.loops import BOOL, Assign, Loop, Statement, Store, Value, When, integer, value
from weft.compiler.polynomial import add, divide, multiply, number, remainder, stride
from weft.compiler.rebuild import Scope, Statements, substitute, values_of

WARP = 32


@dataclass(frozen=True)
class Tile:
    """Results of a product that a block computes, for float32.

    A thread has `high` by `wide` of them in registers; `depth` points of both factors at a time are
    in shared memory. The fewer `registers` it may have, the more others fit on a multiprocessor,
    which hide what it waits for.
    """

    rows: int
    columns: int
    high: int
    wide: int
    depth: int
    rate: int = 100  # results in some time, measured where a GPU is full of such tiles
    registers: int = 128

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows // self.high * (self.columns // self.wide)

    def fitted(self, itemsize: int) -> Tile:
        """As many bytes of wider elements."""
        by = max(itemsize // 4, 1)
        return replace(
            self, columns=self.columns // by, wide=self.wide // by, depth=self.depth // by
        )


TILES = (
    Tile(192, 128, 12, 8, 16, 108, registers=255),
    Tile(128, 128, 8, 8, 16),
    Tile(96, 128, 12, 4, 16, 98),
    Tile(64, 128, 8, 8, 16, 97),
    Tile(64, 96, 4, 12, 16, 98),
    Tile(128, 64, 8, 4, 16, 95),
    Tile(64, 64, 8, 4, 16, 91),
    Tile(32, 32, 4, 4, 16, 58),
    Tile(8, 128, 2, 4, 16, 45),
    Tile(128, 8, 4, 2, 16, 45),
)


SQUARES = (
    Tile(128, 128, 8, 8, 64),
    Tile(96, 128, 6, 8, 64, 90),
    Tile(128, 96, 4, 12, 64, 90),
    Tile(96, 96, 6, 12, 64, 83),
    Tile(128, 64, 4, 8, 64, 75),
    Tile(64, 128, 4, 8, 64, 75),
    Tile(64, 64, 4, 8, 64, 56),
    Tile(32, 64, 2, 8, 64, 36),
    Tile(32, 32, 2, 4, 64, 26),
    Tile(16, 128, 2, 8, 64, 25),
    Tile(16, 64, 2, 4, 64, 22),
)
DOUBLES = (
    Tile(64, 64, 4, 4, 16),
    Tile(32, 32, 2, 4, 16, 65),
    Tile(16, 64, 2, 4, 16, 50),
)


GROUPS = (
    Tile(128, 128, 2, 32, 64, 180),
    Tile(128, 64, 2, 16, 64, 135),
    Tile(64, 128, 2, 32, 64, 135),
    Tile(64, 64, 2, 16, 64, 100),
)

MOST_STORES = 8  # of a point, beyond which its vectors would take too many registers


@dataclass(frozen=True)
class Limits:
    """What a block may use: threads, bytes of shared memory, and elements of a thread's vector.

    `tiles` are those for products of matrices, the largest first. Warps that can multiply small
    matrices take `squares` for factors of two bytes and `doubles` for float64, in `room` bytes;
    four warps that can multiply larger ones together take `groups`. A `panel` has so many bytes of
    what kernels hand on to each other.
    """

    threads: int = 256
    shared: int = 48 * 1024
    lanes: int = 4
    tiles: tuple[Tile, ...] = TILES
    squares: tuple[Tile, ...] = ()
    doubles: tuple[Tile, ...] = ()
    groups: tuple[Tile, ...] = ()
    room: int = 96 * 1024
    panel: int = 1 << 28


def placed(nest: list[tuple[Value, int]], position: Value) -> dict[Value, Value]:
    """The variables of nested loops at a row-major position."""
    found: dict[Value, Value] = {}
    for variable, extent in reversed(nest[1:]):
        found[variable] = remainder(position, extent)
        position = divide(position, extent)
    if nest:
        found[nest[0][0]] = position
    return found


def less(x: Value, y: int) -> Value:
    """Whether an index is below a number."""
    return value("less", (x, integer(y)), BOOL)


def rounded(count: int, limits: Limits) -> int:
    """Threads for `count` items: whole warps."""
    return min(limits.threads, -(-max(count, 1) // WARP) * WARP)


class Space:
    """A run over elements, each computed on its own, in items for threads."""

    def __init__(
        self,
        scope: Scope,
        judge: Lanes,
        nest: list[tuple[Value, int]],
        body: Statements,
        lanes: int,
    ) -> None:
        self.scope = scope
        self.judge = judge
        self.nest = nest
        self.body = body
        self.outer = prod(extent for _, extent in nest[:-1])
        self.extent = nest[-1][1] if nest else 1
        self.lanes = lanes if nest and self._is_vector(lanes) else 1
        self.vectors = self.outer * (self.extent // self.lanes)
        self.single = self.outer * self.extent - self.vectors * self.lanes

    @property
    def items(self) -> int:
        """How many items there are: vectors, then single elements."""
        return self.vectors + self.single

    def _is_vector(self, lanes: int) -> bool:
        if lanes == 1 or self.extent < lanes or any(not is_plain(s) for s in self.body):
            return False
        if self.extent % lanes and self.outer > 1:
            return False
        if sum(isinstance(s, Store) for s in self.body) > MOST_STORES:
            return False
        variable = self.nest[-1][0]
        if self.judge.varying(variable, self.body) is None:
            return False
        places = [x.args[0] for x in values_of(self.body) if x.op == "load"]
        places += [s.index for s in self.body if isinstance(s, Store)]
        return all(number(stride(index, variable)) in (0, 1) for index in places)

    def item(self, item: Value) -> Statements:
        """The work of one item."""
        if self.lanes == 1:
            return self._at(placed(self.nest, item))
        whole = self._vector(item)
        if not self.single:
            return whole
        place = add(item, self.vectors * (self.lanes - 1))
        rest = self._at({self.nest[-1][0]: place})
        return (
            When(less(item, self.vectors), whole),
            When(value("less_equal", (integer(self.vectors), item), BOOL), rest),
        )

    def _at(self, found: dict[Value, Value]) -> Statements:
        return substitute(self.scope.copy(self.body), found)

    def _vector(self, item: Value) -> Statements:
        variable = self.nest[-1][0]
        differing = self.judge.varying(variable, self.body)
        assert differing is not None
        per = self.extent // self.lanes
        found = placed([*self.nest[:-1], (variable, per)], item)
        start = multiply(found.pop(variable), self.lanes)
        lane = self.scope.variable(variable.data)
        body = widen(self._at({**found, variable: lane}), differing, self.lanes, self.scope)
        return (Loop(lane, start, add(start, self.lanes), body, "vector", self.lanes),)


def is_plain(statement: Statement) -> bool:
    """Whether a statement has no others inside."""
    return isinstance(statement, Store | Assign)
