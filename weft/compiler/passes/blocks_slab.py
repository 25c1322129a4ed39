"""A few points of the depth of one factor of a product, in the shared memory of a GPU's block.

Threads read them by vectors where memory allows it, compute what the factor is made of, and hold it
in registers until they write it: so one slab is on its way while another is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import gcd

from weft.compiler.loops import (
    Assign,
    Fetch,
    Local,
    Loop,
    Statement,
    Value,
    When,
    get,
    integer,
    value,
    variable,
    walk,
)
from weft.compiler.passes.contract_match import Axis, runs_along
from weft.compiler.passes.items import Tile, less
from weft.compiler.polynomial import (
    add,
    divide,
    divides,
    known,
    multiply,
    polynomial,
    remainder,
    smaller,
)
from weft.compiler.rebuild import Scope, Statements, rebuild, substitute_value
from weft.compiler.squares import ROW, swirled

VECTOR = 16  # bytes that a thread moves at once
ZERO = integer(0)


def size_of(extent: Value) -> int:
    """The number of points of an axis."""
    found = known(extent)
    assert found is not None, "sizes are known on a GPU"
    return found


@dataclass(frozen=True)
class Slab:
    """A slab of one factor: how threads copy it, and where it lies in shared memory.

    `lanes` elements are read at once, along the depth if it is `turned`. In shared memory the depth
    runs fastest if it is `deep`; its rows may be `swirled`. Past the last point of the depth lies
    `filling`.
    """

    scope: Scope
    factor: Value
    axis: Axis
    depth: Axis
    start: Value  # the first of its points on the axis
    points: int
    slab: int  # points of the depth
    threads: int
    filling: Value
    turned: bool
    deep: bool
    spare: int
    lanes: int
    array: int
    stages: int  # slabs that the array has room for
    staged: tuple[int, ...]  # registers on the way from one memory to the other
    swirled: bool = False

    @classmethod
    def of(
        cls,
        scope: Scope,
        tile: Tile,
        most: int,
        depth: Axis,
        factor: Value,
        axis: Axis,
        start: Value,
        points: int,
        filling: Value,
        *,
        deep: bool | None = False,
        spare: int = 0,
        swirled: bool = False,
    ) -> Slab:
        """A factor's: by vectors of `most` if it lies along its axis, or along the depth.

        If it is not said whether it is `deep`, it lies as it is read; rows of it that are written
        across are as far apart as their banks are, others have `spare` elements between them.
        """
        along = _runs(factor, axis[0], most)
        turned = not along and _runs(factor, depth[0], most)
        deep = turned if deep is None else deep
        spare = spare or (VECTOR // factor.dtype.itemsize if turned and not deep else 0)
        fits = (along or turned) and points % most == tile.depth % most == 0
        lanes = gcd(most, size_of((depth if turned else axis)[1])) if fits else 1
        count = -(-points * tile.depth // (lanes * tile.threads))
        staged = tuple(scope.local("staged", factor.dtype, lanes) for _ in range(count))
        made = cls(
            *(scope, factor, axis, depth, start, points, tile.depth, tile.threads),
            *(filling, turned, deep, spare, lanes, len(scope.locals), 2, staged),
            swirled=swirled,
        )
        length = made.stages * made.size
        scope.locals.append(Local("slab", factor.dtype, 1, length, shared=True))
        return made

    @property
    def pitch(self) -> int:
        """Elements from one row of the array to the next."""
        return (self.slab if self.deep else self.points) + self.spare

    @property
    def size(self) -> int:
        """Elements of one of the array's slabs."""
        return (self.points if self.deep else self.slab) * self.pitch

    @property
    def nbytes(self) -> int:
        """Of the array: a multiple of a vector's."""
        return -(-self.stages * self.size * self.factor.dtype.itemsize // VECTOR) * VECTOR

    @property
    def steps(self) -> tuple[int, int]:
        """Elements from one point to the next, and from one of the depth to the next."""
        pitch = ROW if self.swirled else self.pitch
        return (pitch, 1) if self.deep else (1, pitch)

    def taken(self, thread: Value, slab: Value) -> Statements:
        """Read a thread's elements of a slab into registers."""

        def take(turn: int, place: Value, depth: Value, lane: Value) -> Statements:
            found, inside = self._source(place, depth, lane, slab)
            if inside is not None:
                found = value("select", (inside, found, self.filling), found.dtype)
            return (Assign(self.staged[turn], found),)

        return self._each(thread, partial(self._by_vectors, take))

    def put(self, thread: Value, side: Value) -> Statements:
        """Write the registers to one side of the array."""

        def give(turn: int, place: Value, depth: Value, lane: Value) -> Statements:
            here = (place, add(depth, lane)) if self.turned else (add(place, lane), depth)
            held = get(self.staged[turn], self.factor.dtype)
            return (Assign(self.array, held, self.position(*here, side)),)

        return self._each(thread, partial(self._by_vectors, give))

    @property
    def is_direct(self) -> bool:
        """Whether it is what memory holds, and lies there as it does here: it can be fetched."""
        itemsize = self.factor.dtype.itemsize
        if self.factor.op != "load" or self.lanes * itemsize != VECTOR or self.turned != self.deep:
            return False
        if itemsize == 8 and size_of(self.depth[1]) % self.slab:
            return False  # past the end lies no zero
        item, other = self.scope.variable("item"), self.scope.variable("other")
        item = multiply(item, self.lanes)
        place, depth = (other, item) if self.turned else (item, other)
        source, _ = self._source(place, depth, ZERO, ZERO)
        return divides(polynomial(source.args[0]), self.lanes)

    def in_stages(self, stages: int) -> Slab:
        """The same with room for so many slabs."""
        longer = replace(self.scope.locals[self.array], length=stages * self.size)
        self.scope.locals[self.array] = longer
        return replace(self, stages=stages)

    def fetched(self, thread: Value, slab: Value, side: Value | None = None) -> Statements:
        """Fetch a thread's elements of a slab, to one side of the array."""
        side = remainder(slab, self.stages) if side is None else side

        def fetch(_: int, place: Value, depth: Value) -> Statements:
            source, inside = self._source(place, depth, ZERO, slab)
            return (
                Fetch(self.array, self.position(place, depth, side), source, self.lanes, inside),
            )

        return self._each(thread, fetch)

    def at(self, place: Value, depth: Value, side: Value) -> Value:
        """An element in shared memory."""
        return get(self.array, self.factor.dtype, self.position(place, depth, side))

    def position(self, place: Value, depth: Value, side: Value) -> Value:
        """Where an element of one side is in the array."""
        if self.swirled:
            inside = swirled(place, depth, self.deep, ROW * self.slab)
            return add(multiply(side, self.size), inside)
        across, along = self.steps
        start = add(multiply(side, self.size), multiply(depth, along))
        return add(start, multiply(place, across))

    def _by_vectors(
        self,
        body: Callable[[int, Value, Value, Value], Statements],
        turn: int,
        place: Value,
        depth: Value,
    ) -> Statements:
        """`body(turn, place, depth, lane)` for each lane."""
        if self.lanes == 1:
            return body(turn, place, depth, ZERO)
        lane = self.scope.variable("lane")
        done = body(turn, place, depth, lane)
        return (Loop(lane, ZERO, integer(self.lanes), done, "vector", self.lanes),)

    def _each(self, thread: Value, body: Callable[[int, Value, Value], Statements]) -> Statements:
        """`body(turn, place, depth)` for what a thread copies, by vectors."""
        made: list[Statement] = []
        fast, count = self.slab if self.turned else self.points, self.points * self.slab
        items, runs = count // self.lanes, fast // self.lanes
        for turn in range(len(self.staged)):
            item = add(thread, turn * self.threads)
            first, other = multiply(remainder(item, runs), self.lanes), divide(item, runs)
            if self.threads % runs == 0:  # turns are so many whole rows apart
                first = multiply(remainder(thread, runs), self.lanes)
                other = add(divide(thread, runs), turn * self.threads // runs)
            done = body(turn, *((other, first) if self.turned else (first, other)))
            inside = (turn + 1) * self.threads <= items
            made += done if inside else (When(less(item, items), done),)
        return tuple(made)

    def _source(
        self, place: Value, depth: Value, lane: Value, slab: Value
    ) -> tuple[Value, Value | None]:
        """The factor at a point of a slab, and where it is one; indices are held inside."""
        place, depth = add(self.start, place), add(multiply(slab, self.slab), depth)
        points, length = size_of(self.axis[1]), size_of(self.depth[1])
        whole = length % self.slab == 0
        along, across = (self.lanes, 1) if self.turned else (1, self.lanes)
        held_depth = depth if whole else _held(depth, length, along)
        held_place = place if points % self.points == 0 else _held(place, points, across)
        fast, held, other, beside = self.axis[0], held_place, self.depth[0], held_depth
        if self.turned:
            fast, held, other, beside = other, beside, fast, held
        found = _at(self.factor, fast, held, lane, self.lanes)
        return substitute_value(found, {other: beside}), None if whole else less(depth, length)


def _runs(factor: Value, axis: Value, lanes: int) -> bool:
    """Whether memory holds vectors of so many points of an axis side by side."""
    if runs_along(factor, axis):
        return True
    unit, lane = variable("unit"), variable("lane_of_unit")
    return lanes > 1 and runs_along(_at(factor, axis, multiply(unit, lanes), lane, lanes), lane)


def _at(factor: Value, axis: Value, first: Value, lane: Value, lanes: int) -> Value:
    """A factor at a lane of a vector of points, of which `first` is a multiple of lanes.

    Points that axes are made of, as heads and their features are, are not divided lane by lane.
    """
    parts: dict[Value, Value] = {}
    for x in walk(factor):
        by = known(x.args[1]) if x.op in ("floordiv", "rem") and x.args[0] == axis else None
        if by and by % lanes == 0:
            unit, count = divide(first, lanes), by // lanes
            inside = add(multiply(remainder(unit, count), lanes), lane)
            parts[x] = divide(unit, count) if x.op == "floordiv" else inside
    return rebuild(factor, lambda x: x, {**parts, axis: add(first, lane)})


def _held(first: Value, extent: int, lanes: int) -> Value:
    """The first of `lanes` points, or that of the last ones if it is past the end."""
    return multiply(smaller(divide(first, lanes), extent // lanes - 1), lanes)
