"""Choose how a convolution is cut: blocks for registers, tiles and pieces for the caches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, prod

from weft.compiler.convolution import Convolution
from weft.compiler.passes.contract_registers import FEW_REGISTERS, lonely
from weft.compiler.passes.convolve_frame import Layout
from weft.core.common.types import Shape

COLUMNS = 512  # places of a tile, gaps included
PANEL = 4_608  # bytes of a panel of kernels: the first cache holds it beside the image under it
IMAGE = 262_144  # bytes of the image under a tile: a part of the second cache
SUMS = 196_608  # bytes of the sums of a tile
TALL = 128  # features of a tile


@dataclass(frozen=True)
class Cut:
    """How a convolution is cut."""

    rows: int  # features of a block
    vectors: int
    lanes: int
    features: int  # of a tile
    counts: Shape  # places of a tile along each axis
    channels: int  # of a piece
    layout: Layout

    @property
    def columns(self) -> int:
        """Places of a block."""
        return self.vectors * self.lanes

    @property
    def spread(self) -> int:
        """Places of a tile as the copy counts them, a whole number of blocks."""
        return ceil(spread_of(self.layout) / self.columns) * self.columns


def spread_of(layout: Layout) -> int:
    """Places of a tile with the gaps between its rows."""
    steps = layout.steps
    return 1 + sum((n - 1) * step for n, step in zip(layout.counts, steps, strict=True))


def choose(found: Convolution, lanes: int, registers: int) -> Cut:
    """The cut of a convolution for a processor."""
    size, taps = found.dtype.itemsize, prod(found.window)
    features, channels = found.feature[1], found.channel[1]
    places = found.places
    wide = even(places[-1], COLUMNS)
    counts = (*(1 for _ in places[:-1]), wide)
    if len(places) > 1:
        pitch = Layout(found.space, counts, found.window).pitch
        few = SUMS // (size * min(features, TALL)) // pitch
        most = max(min(COLUMNS if features > 8 else 4 * COLUMNS, few * pitch) // pitch, 1)
        counts = (*counts[:-2], even(places[-2], most), wide)
    layout = Layout(found.space, counts, found.window)
    while len(places) > 1 and counts[-2] > 1 and layout.size * size > IMAGE:
        counts = (*counts[:-2], counts[-2] // 2, wide)
        layout = Layout(found.space, counts, found.window)
    rows, vectors = registers_of(features, spread_of(layout), lanes, registers)
    deep = max(PANEL // (rows * size * taps), 1)
    deep = max(min(deep, IMAGE // (layout.size * size)), 1)
    tall = even(features, TALL, rows)
    return Cut(rows, vectors, lanes, tall, counts, even(channels, deep), layout)


def even(extent: int, most: int, step: int = 1) -> int:
    """A size of pieces, at most about `most`, that cuts an extent evenly; a multiple of `step`."""
    pieces = ceil(extent / max(most, 1))
    return ceil(extent / pieces / step) * step


def registers_of(
    features: int,
    columns: int,
    lanes: int,
    registers: int,
    allowed: Callable[[int], bool] = lambda rows: rows <= 16,
) -> tuple[int, int]:
    """(rows, vectors) of the block that needs the fewest cycles, if so many rows are allowed."""
    sums = 12 if registers == FEW_REGISTERS else 24

    def cycles(block: tuple[int, int]) -> float:
        rows, vectors = block
        blocks = ceil(features / rows) * ceil(columns / (vectors * lanes))
        # Two multiplications and two loads a cycle, four cycles until a sum can be added to.
        each = max(rows * vectors / 2, (rows + vectors) / 2, 4)
        each += lonely(block, registers)
        return blocks * (each + 0.3 * vectors + 0.05 * rows + 0.2)

    heights = [rows for rows in range(1, sums + 1) if allowed(rows)]
    return min(((r, v) for v in range(1, 9) for r in heights if r * v <= sums), key=cycles)
