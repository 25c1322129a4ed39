"""Convolutions with many places: blocks of features and neighbouring places.

    once: kernels are packed, panel by panel of features
    for each tile of places and features, the work of one task:
        for each piece of the channels:
            copy the image under the tile                what the second cache holds
            for each panel of features, for each panel of places:
                sums in registers take all products of the piece
        finish: the epilogue of all sums

Places of a tile are counted as the copy is laid out, row after row with the gaps between them; what
is summed in a gap goes nowhere.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod

from weft.compiler.convolution import Axis, Convolution
from weft.compiler.loops import (
    Assign,
    Buffer,
    Kernel,
    Loop,
    Statement,
    Store,
    Value,
    const,
    get,
    integer,
    load,
)
from weft.compiler.passes.contract_frame import ZERO, less, when
from weft.compiler.passes.convolve_blocks import Cut
from weft.compiler.passes.convolve_frame import Frame, fill, met
from weft.compiler.polynomial import (
    add,
    divide,
    hides,
    multiply,
    remainder,
    smaller,
    subtract,
)
from weft.compiler.rebuild import (
    Scope,
    Statements,
    changer,
    revise,
    substitute,
    substitute_value,
)
from weft.core.common.types import Shape

WRITTEN = 640  # products that are written out, at most
CHANNELS = 200  # products of several channels that are written out


def batches_of(found: Convolution) -> tuple[Axis, ...]:
    """The leading axes that kernels have."""
    return tuple(a for a in found.lead if hides(found.kernel, a[0]))


def packing(kernel: Kernel, found: Convolution, cut: Cut) -> Kernel:
    """A kernel that puts side by side what a block needs at a time: packed[…, c, w…, row]."""
    scope = Scope(replace(kernel, locals=()))
    frame = Frame(scope, found, cut.lanes)
    task, made = scope.variable("task"), list[Statement]()
    panels = ceil(found.feature[1] / cut.rows)
    rest, names = divide(task, panels), dict[Value, Value]()
    first = frame.let("first", multiply(remainder(task, panels), cut.rows), made)
    for variable, extent in reversed(batches_of(found)):
        names[variable] = frame.let("batch", remainder(rest, extent), made)
        rest = divide(rest, extent)
    features = [
        frame.let("feature", smaller(add(first, i), found.feature[1] - 1), made)
        for i in range(cut.rows)
    ]
    inner = (found.channel, *(s.window for s in found.space))
    taps = prod(n for _, n in inner)

    def body(*at: Value) -> Statements:
        flat = ZERO
        for (_, n), i in zip(inner, at, strict=True):
            flat = add(multiply(flat, n), i)
        here = multiply(add(multiply(task, taps), flat), cut.rows)
        spot = {v: i for (v, _), i in zip(inner, at, strict=True)}
        return tuple(
            Store(
                len(kernel.buffers),
                add(here, i),
                substitute_value(found.kernel, {**names, **spot, found.feature[0]: feature}),
            )
            for i, feature in enumerate(features)
        )

    made += frame.nest("at", [n for _, n in inner], body)
    total = panels * prod(n for _, n in batches_of(found))
    loop = Loop(task, ZERO, integer(total), tuple(made), "parallel")
    buffer = Buffer("packed", found.dtype, "write")
    return Kernel(
        kernel.name,
        (*kernel.buffers, buffer),
        tuple(scope.locals),
        (loop,),
        kernel.parameters,
        {**kernel.notes, "tasks": loop.stop, "partials": (found.dtype, total * taps * cut.rows)},
    )


class Places:
    """Writes the tasks of a convolution."""

    def __init__(self, kernel: Kernel, found: Convolution, cut: Cut, packed: bool) -> None:
        self.found, self.cut, self.packed = found, cut, packed
        self.buffer = len(kernel.buffers)
        body = kernel.body
        while isinstance(body[0], Loop):
            body = body[0].body
        self.epilogue = body[1:]
        buffers = kernel.buffers + ((Buffer("packed", found.dtype),) if packed else ())
        self.scope = Scope(replace(kernel, buffers=buffers))
        self.frame = Frame(self.scope, found, cut.lanes)
        local, dtype = self.scope.local, found.dtype
        self.filled = cut.channels * cut.layout.size
        self.slack = cut.columns  # what the last block reads beyond the last row
        self.image = local("image", dtype, 1, self.filled + self.slack)
        high = ceil(cut.features / cut.rows) * cut.rows
        self.tile = local("tile", dtype, 1, high * cut.spread)
        self.sums = [
            [local(f"sum{i}_{j}", dtype, cut.lanes) for j in range(cut.vectors)]
            for i in range(cut.rows)
        ]
        self.names: dict[Value, Value] = {}

    def kernel(self) -> Kernel:
        """The kernel whose parallel loop runs over all tiles."""
        found, cut, frame = self.found, self.cut, self.frame
        task = self.scope.variable("task")
        made: list[Statement] = []
        rest, total = task, 1
        starts: list[Value] = []
        counts: list[Value] = []
        axes = ((found.feature, cut.features), *zip(_places(found), cut.counts, strict=True))
        for (_, extent), piece in (axes[0], *reversed(axes[1:])):
            many = ceil(extent / piece)
            start = frame.let("start", multiply(remainder(rest, many), piece), made)
            starts.append(start)
            count = smaller(subtract(integer(extent), start), piece)
            counts.append(frame.let("count", count if extent % piece else integer(piece), made))
            rest, total = divide(rest, many), total * many
        for variable, extent in reversed(found.lead):
            self.names[variable] = frame.let("batch", remainder(rest, extent), made)
            rest, total = divide(rest, extent), total * extent
        places = list(reversed(starts[1:])), list(reversed(counts[1:]))
        body = self._tile(starts[0], counts[0], *places)
        loop = Loop(task, ZERO, integer(total), (*made, *substitute(body, self.names)), "parallel")
        notes = {"tasks": loop.stop, "convolve": cut}
        return self.scope.kernel_with((loop,), **notes)

    def _tile(
        self, first: Value, features: Value, starts: list[Value], counts: list[Value]
    ) -> Statements:
        """Everything for one tile."""
        frame, cut, found = self.frame, self.cut, self.found
        made: list[Statement] = []
        panels = frame.let("panels", divide(add(features, cut.rows - 1), cut.rows), made)
        steps = cut.layout.steps
        columns: Value = integer(1)
        for count, step in zip(counts, steps, strict=True):
            columns = add(columns, multiply(subtract(count, 1), step))
        wide = frame.let("wide", divide(add(columns, cut.columns - 1), cut.columns), made)
        pieces = ceil(found.channel[1] / cut.channels)

        def piece(at: Value) -> Statements:
            inside: list[Statement] = []
            start = frame.let("channel", multiply(at, cut.channels), inside)
            count = smaller(subtract(integer(found.channel[1]), start), cut.channels)
            if found.channel[1] % cut.channels == 0:
                count = integer(cut.channels)
            count = frame.let("channels", count, inside)
            inside += self._copied(start, count, starts)
            inside += frame.loop(
                "panel",
                panels,
                lambda p: frame.loop(
                    "panel",
                    wide,
                    lambda q: self._block(first, p, q, start, count, less(at, integer(1))),
                ),
            )
            return tuple(inside)

        zero, end = const(0, found.dtype), integer(self.filled + self.slack)
        made += frame.along(
            "at", integer(self.filled), end, lambda i: (Assign(self.image, zero, i),)
        )
        return (
            *made,
            *frame.loop("piece", pieces, piece),
            *self._finish(first, features, starts, counts),
        )

    def _copied(self, start: Value, channels: Value, starts: list[Value]) -> Statements:
        """The image under the tile, channel by channel."""
        found, layout = self.found, self.cut.layout
        origins = [multiply(at, s.stride) for at, s in zip(starts, found.space, strict=True)]
        extents = [integer(n) for n in layout.extents]

        def body(c: Value) -> Statements:
            names = {found.channel[0]: add(start, c)}
            place = multiply(c, layout.size)
            return fill(self.frame, layout, self.image, place, origins, extents, names)

        return self.frame.loop("channel", channels, body)

    # -- blocks ----------------------------------------------------------------------------

    def _block(
        self, first: Value, p: Value, q: Value, start: Value, channels: Value, fresh: Value | bool
    ) -> Statements:
        """The sums where a panel of features meets a panel of places, for a piece of channels."""
        frame, cut, found = self.frame, self.cut, self.found
        made: list[Statement] = []
        column = frame.let("column", multiply(q, cut.columns), made)
        slot = add(multiply(p, cut.rows * cut.spread), column)
        slot = frame.let("slot", slot, made)
        panel = self._panel(add(divide(first, cut.rows), p))
        depth = found.channel[1] * prod(found.window)
        base = multiply(panel, depth)
        base = add(base, multiply(start, prod(found.window)))
        base = frame.let("kernel", multiply(base, cut.rows), made)

        def body(lane: Value) -> Statements:
            at = [
                (s, add(slot, add(lane, i * cut.spread + j * cut.lanes)))
                for i, row in enumerate(self.sums)
                for j, s in enumerate(row)
            ]
            begin = tuple(Assign(s, const(0, found.dtype)) for s, _ in at)
            kept = tuple(Assign(s, get(self.tile, found.dtype, k)) for s, k in at)
            return (
                *begin,
                *when(fresh, (), kept),
                *frame.unrolled(
                    "channel",
                    channels,
                    CHANNELS // (prod(found.window) * cut.rows * cut.vectors),
                    lambda c: self._products(base, start, c, add(column, lane)),
                ),
                *(Assign(self.tile, get(s, found.dtype), k) for s, k in at),
            )

        made += frame.vector(body)
        return tuple(made)

    def _panel(self, panel: Value) -> Value:
        """The number of a packed panel, all batches counted."""
        number = ZERO
        for variable, extent in batches_of(self.found):
            number = add(multiply(number, extent), variable)
        return add(multiply(number, ceil(self.found.feature[1] / self.cut.rows)), panel)

    def _products(self, base: Value, start: Value, c: Value, column: Value) -> Statements:
        """Sums take the products of one channel, one point of the window after another."""
        found, cut, window = self.found, self.cut, self.found.window
        spot = add(multiply(c, cut.layout.size), column)
        written = len(window)  # the first of the axes that are written out
        while written > 0 and _is_short(cut, window[written - 1 :]):
            written -= 1
        irregular = [k for k in range(len(window)) if not cut.layout.is_regular(k)]
        written = min([written, *irregular])

        def tap(*at: Value) -> Statements:
            flat = ZERO
            for n, i in zip(window, at, strict=True):
                flat = add(multiply(flat, n), i)
            offset = add(spot, cut.layout.offset(at))
            rights = [
                get(self.image, found.dtype, add(offset, j * cut.lanes)) for j in range(cut.vectors)
            ]
            here = add(base, multiply(add(multiply(c, prod(window)), flat), cut.rows))
            lefts = [self._left(add(here, row), add(start, c), at) for row in range(cut.rows)]
            return met(self.sums, lefts, rights)

        def short(*outer: Value) -> Statements:
            made: list[Statement] = []
            for point in _points(window[written:]):
                made += tap(*outer, *map(integer, point))
            return tuple(made)

        return self.frame.nest("tap", window[:written], short)

    def _left(self, here: Value, channel: Value, taps: tuple[Value, ...]) -> Value:
        """An element of a kernel: packed, or where it lies."""
        found = self.found
        if self.packed:
            return load(self.buffer, here, found.dtype)
        names = {found.channel[0]: channel, found.feature[0]: ZERO}
        names |= {s.window[0]: t for s, t in zip(found.space, taps, strict=True)}
        return substitute_value(found.kernel, names)

    def _finish(
        self, first: Value, features: Value, starts: list[Value], counts: list[Value]
    ) -> Statements:
        """The epilogue at each place, from the sums of the tile."""
        frame, found, cut = self.frame, self.found, self.cut

        def row(feature: Value, *at: Value) -> Statements:
            made: list[Statement] = []
            slot = multiply(feature, cut.spread)
            for i, step in zip(at, cut.layout.steps, strict=False):
                slot = add(slot, multiply(i, step))
            slot = frame.let("slot", slot, made)

            def element(j: Value) -> Statements:
                names = {found.feature[0]: add(first, feature)}
                for s, start, i in zip(found.space, starts, (*at, j), strict=True):
                    names[s.place[0]] = add(start, i)
                total = get(self.tile, found.dtype, add(slot, j))

                def change(x: Value) -> Value:
                    mine = x.op == "get" and x.data == found.target
                    return total if mine else names.get(x, x)

                return revise(self.epilogue, changer(change))

            return (*made, *frame.along("place", ZERO, counts[-1], element))

        return frame.nest("place", [features, *counts[:-1]], row)


def _places(found: Convolution) -> tuple[Axis, ...]:
    return tuple(s.place for s in found.space)


def _is_short(cut: Cut, window: Shape) -> bool:
    return prod(window) * cut.rows * cut.vectors <= WRITTEN


def _points(window: Shape) -> list[Shape]:
    made: list[Shape] = [()]
    for n in window:
        made = [(*point, i) for point in made for i in range(n)]
    return made
