"""What the parts of a scheduled convolution share: loops, registers, and the image of a tile.

A task works on a copy of the part of the image that it needs, padding included. Where windows move
by more than one element, the copy is taken apart into planes, one for each phase of the strides:
then neighbouring places of the result read neighbouring elements, whatever the strides are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd, prod

from weft.compiler.convolution import Convolution, Space
from weft.compiler.loops import INDEX, Assign, Loop, Statement, Value, const, get, integer
from weft.compiler.passes.accumulate import multiplied
from weft.compiler.passes.contract_frame import ZERO, both, less, when
from weft.compiler.polynomial import (
    add,
    divide,
    known,
    larger,
    multiply,
    remainder,
    smaller,
    subtract,
    whole,
)
from weft.compiler.rebuild import Scope, Statements, substitute_value
from weft.core.common.types import Shape


class Frame:
    """The variables and registers of a task."""

    def __init__(self, scope: Scope, convolution: Convolution, lanes: int) -> None:
        self.scope, self.convolution, self.lanes = scope, convolution, lanes
        self.dtype = convolution.dtype

    def let(self, name: str, x: Value, into: list[Statement]) -> Value:
        """A value computed here and kept in a register; literals need none."""
        if not x.args:
            return x
        local = self.scope.local(name, INDEX)
        into.append(Assign(local, x))
        return get(local, INDEX)

    def loop(
        self, name: str, count: Value | int, body: Callable[[Value], Statements]
    ) -> Statements:
        """A serial loop; a single step is written without one."""
        count = integer(count) if isinstance(count, int) else count
        if known(count) == 1:
            return body(ZERO)
        at = self.scope.variable(name)
        return (Loop(at, ZERO, count, body(at)),)

    def unrolled(
        self, name: str, count: Value, times: int, body: Callable[[Value], Statements]
    ) -> Statements:
        """A serial loop whose steps are written out, some at a time."""
        number = known(count)
        if times <= 1 or (number is not None and number < times):
            return self.loop(name, count, body)
        made: list[Statement] = []
        turns = self.let("turns", divide(count, times), made)

        def several(i: Value) -> Statements:
            return tuple(s for k in range(times) for s in body(add(multiply(i, times), k)))

        made += self.loop(name, turns, several)
        if number is None or number % times:
            at = self.scope.variable(name)
            made.append(Loop(at, multiply(turns, times), count, body(at)))
        return tuple(made)

    def nest(
        self, name: str, counts: Sequence[Value | int], body: Callable[..., Statements]
    ) -> Statements:
        """Serial loops, the first one outermost."""
        if not counts:
            return body()
        rest = counts[1:]
        return self.loop(
            name, counts[0], lambda i: self.nest(name, rest, lambda *more: body(i, *more))
        )

    def along(
        self,
        name: str,
        start: Value,
        stop: Value,
        body: Callable[[Value], Statements],
        *,
        twice: bool = False,
    ) -> Statements:
        """A loop in vectors as far as they are whole, then one element at a time.

        If elements may be visited `twice`, the last vector ends where the elements do.
        """
        made: list[Statement] = []
        count = self.let("count", subtract(stop, start), made)
        full = whole(count, self.lanes)
        if known(full) != 0 and self.lanes > 1:
            end = self.let("end", add(start, full), made)
            at = self.scope.variable(name)
            made.append(Loop(at, start, end, body(at), "vector", self.lanes))
            start = end
            if twice and full is not count and (known(count) or 0) > self.lanes:
                last = self.scope.variable(name)
                begin = subtract(stop, self.lanes)
                made.append(Loop(last, begin, stop, body(last), "vector", self.lanes))
                return tuple(made)
        if full is not count or self.lanes == 1:
            at = self.scope.variable(name)
            made.append(Loop(at, start, stop, body(at)))
        return tuple(made)

    def vector(self, body: Callable[[Value], Statements]) -> Statements:
        """Statements for one vector of lanes."""
        if self.lanes == 1:
            return body(ZERO)
        at = self.scope.variable("lane")
        return (Loop(at, ZERO, integer(self.lanes), body(at), "vector", self.lanes),)


@dataclass(frozen=True)
class Layout:
    """Where the elements under some places of the window lie in a plane-by-plane copy.

    `counts` are places along each axis, `window` the points of the window that go with them.
    """

    space: tuple[Space, ...]
    counts: Shape
    window: Shape

    @property
    def phases(self) -> tuple[tuple[int, ...], ...]:
        """For each axis, what is left of distances within the window by the stride."""
        return tuple(
            tuple(sorted({w * s.dilation % s.stride for w in range(min(n, s.stride))}))
            for s, n in zip(self.space, self.window, strict=True)
        )

    @property
    def extents(self) -> Shape:
        """Elements of a plane along each axis."""
        return tuple(
            count + (n - 1) * s.dilation // s.stride
            for s, n, count in zip(self.space, self.window, self.counts, strict=True)
        )

    @property
    def pitch(self) -> int:
        """Elements from a row to the next; the padding after a row is that before the next."""
        last = self.extents[-1]
        s = self.space[-1]
        if len(self.phases[-1]) > 1 or s.stride > 1 or self.counts[-1] != s.place[1]:
            return last
        after = last - s.low - s.raw[1]
        return last - max(min(s.low, after), 0)

    @property
    def steps(self) -> Shape:
        """Elements from one point of a plane to the next along each axis."""
        made = [1]
        sizes = (*self.extents[:-1], self.pitch)
        for size in reversed(sizes[1:]):
            made.append(made[-1] * size)
        return tuple(reversed(made))

    @property
    def plane(self) -> int:
        """Elements of a plane; the last row is whole."""
        pairs = zip(self.extents, self.steps, strict=True)
        return 1 + sum((extent - 1) * step for extent, step in pairs)

    @property
    def size(self) -> int:
        """Elements of all planes of a channel."""
        return self.plane * prod(map(len, self.phases))

    def is_regular(self, axis: int) -> bool:
        """Whether phases along an axis follow from the distance by arithmetic."""
        s, phases = self.space[axis], self.phases[axis]
        step = gcd(s.stride, s.dilation)
        return phases == tuple(range(0, s.stride, step)) or len(phases) == 1

    def offset(self, taps: Sequence[Value]) -> Value:
        """How far from a place's own position its element under a point of the window lies."""
        total, number = ZERO, ZERO
        for axis, (s, tap) in enumerate(zip(self.space, taps, strict=True)):
            distance, phases = multiply(tap, s.dilation), self.phases[axis]
            total = add(total, multiply(divide(distance, s.stride), self.steps[axis]))
            left = remainder(distance, s.stride)
            if len(phases) == 1:
                left = ZERO
            elif known(left) is not None:
                left = integer(phases.index(int(known(left) or 0)))
            else:
                left = divide(left, gcd(s.stride, s.dilation))
            number = add(multiply(number, len(phases)), left)
        return add(total, multiply(number, self.plane))


def fill(
    frame: Frame,
    layout: Layout,
    array: int,
    place: Value,
    origins: Sequence[Value],
    extents: Sequence[Value],
    names: dict[Value, Value],
) -> Statements:
    """Copy one channel of the image, from `origins` of the padded space on, to array[place …].

    `extents` says how many elements of each plane along each axis are there.
    """
    made: list[Statement] = []
    planes = list(product(*layout.phases))
    for number, phases in enumerate(planes):
        starts = [add(origin, phase) for origin, phase in zip(origins, phases, strict=True)]
        base = add(place, number * layout.plane)
        copy = _Copy(frame, layout, array, starts, names, extents)
        made += frame.nest("at", extents[:-1], _rows(copy, base))
    return tuple(made)


def _rows(copy: _Copy, base: Value) -> Callable[..., Statements]:
    return lambda *at: copy.row(base, at)


@dataclass(frozen=True)
class _Copy:
    """Copies rows of one plane."""

    frame: Frame
    layout: Layout
    array: int
    starts: Sequence[Value]  # in the padded space, of each axis
    names: dict[Value, Value]
    extents: Sequence[Value]

    def row(self, base: Value, at: Sequence[Value]) -> Statements:
        """Copy the row at these positions of the outer axes."""
        f, made = self.frame, list[Statement]()
        names = dict(self.names)
        inside: Value | bool = True
        here = base
        for k, i in enumerate(at):
            s = self.layout.space[k]
            here = add(here, multiply(i, self.layout.steps[k]))
            raw = subtract(add(self.starts[k], multiply(i, s.stride)), s.low)
            raw = names[s.raw[0]] = f.let("raw", raw, made)
            inside = both(inside, both(_not_negative(raw), less(raw, integer(s.raw[1]))))
        here = f.let("to", here, made)
        zero = const(0, f.dtype)
        empty = f.along(
            "at", ZERO, self.extents[-1], lambda j: self._put(here, j, zero), twice=True
        )
        return (*made, *when(inside, self._inside(here, names, zero), empty))

    def _inside(self, here: Value, names: dict[Value, Value], zero: Value) -> Statements:
        f, s = self.frame, self.layout.space[-1]
        made: list[Statement] = []
        first = subtract(self.starts[-1], s.low)  # of the image, at the start of the row
        end = self.extents[-1]
        start = f.let("first", _held(_up(subtract(ZERO, first), s.stride), end), made)
        stop = f.let("stop", _held(_up(subtract(integer(s.raw[1]), first), s.stride), end), made)
        stop = f.let("stop", larger(stop, start), made)

        def element(j: Value) -> Statements:
            raw = add(first, multiply(j, s.stride))
            x = substitute_value(f.convolution.image, {**names, s.raw[0]: raw})
            return self._put(here, j, x)

        made += self._border(here, ZERO, start, zero)
        made += f.along("at", start, stop, element, twice=True)
        made += self._border(here, stop, end, zero)
        return tuple(made)

    def _border(self, here: Value, start: Value, stop: Value, zero: Value) -> Statements:
        if known(subtract(stop, start)) == 0:
            return ()
        at = self.frame.scope.variable("at")
        return (Loop(at, start, stop, self._put(here, at, zero)),)

    def _put(self, here: Value, at: Value, x: Value) -> Statements:
        return (Assign(self.array, x, add(here, at)),)


def _not_negative(x: Value) -> Value | bool:
    return less(integer(-1), x)


def _held(x: Value, most: Value) -> Value:
    """x moved into 0 … most."""
    return smaller(larger(x, 0), most)


def _up(x: Value, by: int) -> Value:
    """x / by, rounded up."""
    return x if by == 1 else divide(add(x, by - 1), by)


def met(
    sums: Sequence[Sequence[int]], lefts: Sequence[Value], rights: Sequence[Value]
) -> Statements:
    """Each sum takes the product of its left and right factor.

    The fewer of them stay in registers while the others come one at a time: registers that hold
    sums leave little room.
    """
    pairs = [(i, j) for i in range(len(lefts)) for j in range(len(rights))]
    if len(lefts) < len(rights):
        pairs.sort(key=lambda pair: pair[1])
    made: list[Statement] = []
    for i, j in pairs:
        s, x, y = sums[i][j], lefts[i], rights[j]
        made.append(Assign(s, multiplied(x, y, get(s, x.dtype))))
    return tuple(made)


__all__ = ["Frame", "Layout", "fill", "met"]
