"""Convolutions with few places and a large window, such as gradients of kernels.

    for each tile of rows and features, the work of one task:
        for each channel, for each piece of the window:
            copy the images under the piece, and pack the kernels' part of it
            for each panel of rows, for each panel of features:
                sums in registers take all products of the piece
        finish: the epilogue of all sums

A row is one place of one image; features run as lanes. Leading axes that kernels lack give images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, prod

from weft.compiler.convolution import Axis, Convolution
from weft.compiler.loops import Assign, Kernel, Loop, Statement, Value, const, get, integer, turned
from weft.compiler.passes.contract_frame import ZERO, less, when
from weft.compiler.passes.contract_match import runs_along
from weft.compiler.passes.convolve_blocks import even, registers_of
from weft.compiler.passes.convolve_frame import Frame, Layout, fill, met
from weft.compiler.polynomial import add, divide, hides, multiply, remainder, smaller, subtract
from weft.compiler.rebuild import (
    Scope,
    Statements,
    changer,
    revise,
    substitute,
    substitute_value,
)
from weft.core.common.types import Shape

PANEL = 24_576  # bytes of a panel of kernels, which the first cache holds
TALL = 640, 320  # rows of a tile, about, if that leaves as many tiles as are wanted, and TILES
TILES = 4
ROWS = 160  # the same for fewer tiles
SHORT = 80  # the same if tiles would not be half as many as tasks are wanted
FEATURES = 32  # of a tile
FEW = 4  # places for which more features go with an image, which is copied for them
IMAGES = 131_072  # bytes of the images of a tile
TIMES = 4  # points of the window that are written out
DEEP = 256  # points of the window in a piece


@dataclass(frozen=True)
class Piece:
    """How a convolution of few places is cut."""

    rows: int
    vectors: int
    lanes: int
    images: int  # of a tile
    features: int  # of a tile
    window: Shape  # of a piece
    layout: Layout

    @property
    def columns(self) -> int:
        """Features of a block."""
        return self.vectors * self.lanes

    @property
    def places(self) -> int:
        """Rows of one image."""
        return prod(self.layout.counts)


def free_axes(found: Convolution) -> tuple[Axis, ...]:
    """The leading axes that kernels lack."""
    return tuple(a for a in found.lead if not hides(found.kernel, a[0]))


def choose_piece(found: Convolution, lanes: int, registers: int, tasks: int = 0) -> Piece:
    """The cut of a convolution for a processor; shorter tiles if many `tasks` are wanted."""
    size, features, places = found.dtype.itemsize, found.feature[1], prod(found.places)
    if features == 1:
        lanes = 1
    window = [1] * len(found.window)
    room = DEEP
    for k in reversed(range(len(window))):
        window[k] = even(found.window[k], room)
        room //= window[k]
        if window[k] < found.window[k] or room < 1:
            break
    layout = Layout(found.space, found.places, tuple(window))
    wide = FEATURES if places > FEW else 2 * FEATURES
    across, along = ceil(features / wide), prod(n for _, n in found.lead) * places
    enough = (h for h in TALL if ceil(along / h) * across >= max(tasks, TILES))
    height = next(enough, ROWS if 2 * along / ROWS * across >= tasks else SHORT)
    most = min(height // places, IMAGES // (layout.size * size))
    images = even(prod(n for _, n in free_axes(found)), max(most, 1))
    tall = even(features, wide)
    rows, vectors = registers_of(
        images * places, tall, lanes, registers, partial(is_regular, found.places)
    )
    most = max(PANEL // (size * vectors * lanes), 1)
    while prod(window) > 2 * most:  # the outermost axis is cut first: points stay in order
        k = next(k for k, extent in enumerate(window) if extent > 1)
        window[k] = ceil(window[k] / 2)
    layout = Layout(found.space, found.places, tuple(window))
    tall = even(features, wide, vectors * lanes)
    if rows % places == 0:
        images = ceil(images * places / rows) * (rows // places)
    return Piece(rows, vectors, lanes, images, tall, tuple(window), layout)


def is_regular(places: Shape, rows: int) -> bool:
    """Whether rows lie alike in every block of so many."""
    for extent in reversed(places):
        if extent % rows == 0:
            return True
        if rows % extent:
            return False
        rows //= extent
    return True  # whole images


class Windows:
    """Writes the tasks of a convolution with a large window."""

    def __init__(self, kernel: Kernel, found: Convolution, cut: Piece) -> None:
        self.found, self.cut = found, cut
        body = kernel.body
        while isinstance(body[0], Loop):
            body = body[0].body
        self.epilogue = body[1:]
        self.scope = Scope(kernel)
        self.frame = Frame(self.scope, found, cut.lanes)
        local, dtype = self.scope.local, found.dtype
        self.image = local("image", dtype, 1, cut.images * cut.layout.size)
        self.wide = ceil(cut.features / cut.columns)
        self.high = ceil(cut.images * cut.places / cut.rows)
        size = cut.rows * cut.columns
        deep = prod(cut.window)
        self.packed = local("packed", dtype, 1, self.wide * cut.columns * deep)
        self.tile = local("tile", dtype, 1, self.wide * self.high * size)
        self.sums = [
            [local(f"sum{i}_{j}", dtype, cut.lanes) for j in range(cut.vectors)]
            for i in range(cut.rows)
        ]

    def kernel(self) -> Kernel:
        """The kernel whose parallel loop runs over all tiles."""
        found, cut, frame = self.found, self.cut, self.frame
        task, made = self.scope.variable("task"), list[Statement]()
        free = free_axes(found)
        images = prod(n for _, n in free)
        wide, high = ceil(found.feature[1] / cut.features), ceil(images / cut.images)
        first = frame.let("feature", multiply(remainder(task, wide), cut.features), made)
        rest = divide(task, wide)
        image = frame.let("image", multiply(remainder(rest, high), cut.images), made)
        rest, total = divide(rest, high), wide * high
        names: dict[Value, Value] = {}
        for variable, extent in reversed(found.lead):
            if all(variable is not v for v, _ in free):
                names[variable] = frame.let("batch", remainder(rest, extent), made)
                rest, total = divide(rest, extent), total * extent
        features = self._count(found.feature[1], first, cut.features, made)
        count = self._count(images, image, cut.images, made)
        body = (*self._sums(first, features, image, count), *self._finish(first, features, image))
        loop = Loop(task, ZERO, integer(total), (*made, *substitute(body, names)), "parallel")
        return self.scope.kernel_with((loop,), tasks=loop.stop, convolve=cut)

    def _count(self, extent: int, start: Value, piece: int, into: list[Statement]) -> Value:
        if extent % piece == 0:
            return integer(piece)
        found = smaller(subtract(integer(extent), start), piece)
        return self.frame.let("count", found, into)

    def _images(self, number: Value) -> dict[Value, Value]:
        """The free axes at one image."""
        names: dict[Value, Value] = {}
        for variable, extent in reversed(free_axes(self.found)):
            names[variable] = remainder(number, extent)
            number = divide(number, extent)
        return names

    def _sums(self, first: Value, features: Value, image: Value, count: Value) -> Statements:
        """All sums of a tile, piece by piece."""
        frame, cut, found = self.frame, self.cut, self.found
        pieces = [ceil(n / piece) for n, piece in zip(found.window, cut.window, strict=True)]

        def piece(channel: Value, *at: Value) -> Statements:
            made: list[Statement] = []
            starts = [
                frame.let("start", multiply(i, n), made)
                for i, n in zip(at, cut.window, strict=True)
            ]
            taps = [
                self._count(n, start, piece, made)
                for n, start, piece in zip(found.window, starts, cut.window, strict=True)
            ]
            fresh = less(sum_of((channel, *at)), integer(1))
            made += self._copied(channel, image, count, starts)
            made += self._pack(channel, first, features, starts, taps)
            rows = add(multiply(count, cut.places), cut.rows - 1)
            wide = frame.let("wide", divide(add(features, cut.columns - 1), cut.columns), made)
            made += frame.nest(
                "panel",
                [frame.let("high", divide(rows, cut.rows), made), wide],
                lambda p, q: self._block(p, q, starts, taps, channel, fresh),
            )
            return tuple(made)

        return frame.nest("piece", [found.channel[1], *pieces], piece)

    def _copied(
        self, channel: Value, image: Value, count: Value, starts: Sequence[Value]
    ) -> Statements:
        """The images under a piece of the window."""
        found, layout = self.found, self.cut.layout
        origins = [multiply(at, s.dilation) for at, s in zip(starts, found.space, strict=True)]
        extents = [integer(n) for n in layout.extents]

        def body(i: Value) -> Statements:
            made: list[Statement] = []
            number = self.frame.let("image", add(image, i), made)
            names = {found.channel[0]: channel, **self._images(number)}
            place = multiply(i, layout.size)
            return (
                *made,
                *fill(self.frame, layout, self.image, place, origins, extents, names),
            )

        return self.frame.loop("image", count, body)

    def _pack(
        self,
        channel: Value,
        first: Value,
        features: Value,
        starts: Sequence[Value],
        taps: Sequence[Value],
    ) -> Statements:
        """Features side by side for each point of the piece."""
        frame, cut, found = self.frame, self.cut, self.found
        if cut.lanes == 1:
            return ()
        deep = prod(cut.window)
        wide = divide(add(features, cut.columns - 1), cut.columns)
        turns = self._is_turned()

        def panel(q: Value) -> Statements:
            made: list[Statement] = []
            start = add(first, multiply(q, cut.columns))
            at = [
                frame.let("feature", smaller(add(start, i), found.feature[1] - 1), made)
                for i in range(cut.columns)
            ]
            place = frame.let("place", multiply(q, cut.columns * deep), made)

            def few(*outer: Value) -> Statements:
                if turns:
                    return self._turned(at, place, channel, starts, outer, taps[-1])
                return frame.loop(
                    "tap",
                    taps[-1],
                    lambda last: tuple(
                        Assign(
                            self.packed,
                            self._kernel(feature, channel, starts, (*outer, last)),
                            self._packed(place, (*outer, last), i),
                        )
                        for i, feature in enumerate(at)
                    ),
                )

            return (*made, *frame.nest("tap", taps[:-1], few))

        return frame.loop("panel", wide, panel)

    def _is_turned(self) -> bool:
        """Whether kernels lie along the window, and every piece has a vector of its points."""
        found, lanes, piece = self.found, self.cut.lanes, self.cut.window[-1]
        variable, extent = found.space[-1].window
        rest = extent % piece or piece
        return rest >= lanes and runs_along(found.kernel, variable)

    def _turned(
        self,
        features: Sequence[Value],
        place: Value,
        channel: Value,
        starts: Sequence[Value],
        outer: Sequence[Value],
        count: Value,
    ) -> Statements:
        """Vectors along the window become vectors of features; the last may meet the one before."""
        frame, lanes = self.frame, self.cut.lanes

        def turn(k: Value) -> Statements:
            made: list[Statement] = []
            tap = frame.let("tap", smaller(multiply(k, lanes), subtract(count, lanes)), made)

            def body(lane: Value) -> Statements:
                stored: list[Statement] = []
                for i in range(0, len(features), lanes):
                    given = [
                        self._kernel(feature, channel, starts, (*outer, add(tap, lane)))
                        for feature in features[i : i + lanes]
                    ]
                    for j, x in enumerate(turned(given)):
                        here = self._packed(place, (*outer, add(tap, j)), i)
                        stored.append(Assign(self.packed, x, add(here, lane)))
                return tuple(stored)

            return (*made, *frame.vector(body))

        return frame.loop("turn", divide(add(count, lanes - 1), lanes), turn)

    def _packed(self, place: Value, taps: Sequence[Value], feature: int) -> Value:
        return add(place, add(multiply(self._flat(taps), self.cut.columns), feature))

    def _flat(self, taps: Sequence[Value]) -> Value:
        flat = ZERO
        for n, i in zip(self.cut.window, taps, strict=True):
            flat = add(multiply(flat, n), i)
        return flat

    def _kernel(
        self, feature: Value, channel: Value, starts: Sequence[Value], taps: Sequence[Value]
    ) -> Value:
        found = self.found
        names = {found.feature[0]: feature, found.channel[0]: channel}
        for s, start, tap in zip(found.space, starts, taps, strict=True):
            names[s.window[0]] = add(start, tap)
        return substitute_value(found.kernel, names)

    def _block(
        self,
        p: Value,
        q: Value,
        starts: Sequence[Value],
        taps: Sequence[Value],
        channel: Value,
        fresh: Value | bool,
    ) -> Statements:
        """The sums where a panel of rows meets a panel of features, for a piece."""
        frame, cut, dtype = self.frame, self.cut, self.found.dtype
        made: list[Statement] = []
        slot = multiply(add(multiply(p, self.wide), q), cut.rows * cut.columns)
        slot = frame.let("slot", slot, made)
        base = frame.let("row", self._position(multiply(p, cut.rows)), made)
        rows = [add(base, self._position(integer(i))) for i in range(cut.rows)]
        panel = frame.let("panel", multiply(q, cut.columns * prod(cut.window)), made)

        def body(lane: Value) -> Statements:
            at = [
                (s, add(slot, add(lane, i * cut.columns + j * cut.lanes)))
                for i, row in enumerate(self.sums)
                for j, s in enumerate(row)
            ]

            def tap(*points: Value) -> Statements:
                offset = cut.layout.offset(points)
                here = add(panel, multiply(self._flat(points), cut.columns))
                if cut.lanes == 1:
                    rights = [self._kernel(ZERO, channel, starts, points)]
                else:
                    rights = [
                        get(self.packed, dtype, add(here, add(lane, j * cut.lanes)))
                        for j in range(cut.vectors)
                    ]
                lefts = [get(self.image, dtype, add(row, offset)) for row in rows]
                return met(self.sums, lefts, rights)

            kept = tuple(Assign(s, get(self.tile, dtype, k)) for s, k in at)
            return (
                *(Assign(s, const(0, dtype)) for s, _ in at),
                *when(fresh, (), kept),
                *frame.nest(
                    "tap",
                    taps[:-1],
                    lambda *outer: frame.unrolled(
                        "tap", taps[-1], TIMES, lambda last: tap(*outer, last)
                    ),
                ),
                *(Assign(self.tile, get(s, dtype), k) for s, k in at),
            )

        made += frame.vector(body)
        return tuple(made)

    def _position(self, row: Value) -> Value:
        """Where the element under the window's first point lies for a row."""
        cut = self.cut
        place = multiply(divide(row, cut.places), cut.layout.size)
        rest = remainder(row, cut.places)
        for n, step in zip(reversed(cut.layout.counts), reversed(cut.layout.steps), strict=True):
            place = add(place, multiply(remainder(rest, n), step))
            rest = divide(rest, n)
        return place

    def _finish(self, first: Value, features: Value, image: Value) -> Statements:
        """The epilogue at each place, from the sums of the tile."""
        frame, found, cut = self.frame, self.found, self.cut
        images = prod(n for _, n in free_axes(found))
        made: list[Statement] = []
        count = self._count(images, image, cut.images, made)

        def point(i: Value, feature: Value, *at: Value) -> Statements:
            inside: list[Statement] = []
            flat = i
            for n, j in zip(cut.layout.counts, at, strict=True):
                flat = add(multiply(flat, n), j)
            row = frame.let("row", flat, inside)
            block = add(multiply(divide(row, cut.rows), self.wide), divide(feature, cut.columns))
            slot = add(multiply(block, cut.rows), remainder(row, cut.rows))
            slot = add(multiply(slot, cut.columns), remainder(feature, cut.columns))
            names = self._images(frame.let("image", add(image, i), inside))
            names[found.feature[0]] = add(first, feature)
            names |= {s.place[0]: j for s, j in zip(found.space, at, strict=True)}
            total = get(self.tile, found.dtype, slot)

            def change(x: Value) -> Value:
                mine = x.op == "get" and x.data == found.target
                return total if mine else names.get(x, x)

            return (*inside, *revise(self.epilogue, changer(change)))

        counts = [count, features, *(integer(n) for n in cut.layout.counts)]
        return (*made, *frame.nest("place", counts, point))


def sum_of(values: Sequence[Value]) -> Value:
    """All of them added up."""
    total = ZERO
    for x in values:
        total = add(total, x)
    return total
