"""A product in tiles whose warps multiply four together: the tensor cores of Hopper.

Such warps read both factors from shared memory by themselves, which they must find there in rows of
128 bytes, swirled, so that no two of their reads meet in a bank. Each group has 64 rows of a tile,
and all of its columns.
"""

from __future__ import annotations

from dataclasses import replace

from weft.compiler.loops import Kernel, Panel, Settle, Squares, Statement, Value
from weft.compiler.passes.blocks_slab import ZERO, Slab
from weft.compiler.passes.blocks_squares import Squared
from weft.compiler.passes.blocks_tile import together
from weft.compiler.passes.contract_match import Axis, match
from weft.compiler.passes.items import Limits, Tile
from weft.compiler.polynomial import add, divide, multiply, remainder
from weft.compiler.rebuild import Scope
from weft.compiler.squares import CHUNK, ROW, WARP
from weft.core.common.types import DType

GROUP = 4 * WARP  # threads that multiply together
ROWS = 64  # of a tile, that they have
STAGES = 3  # slabs in shared memory
_NARROW = 2  # bytes of factors


def tiles(kernel: Kernel, dtype: DType, limits: Limits) -> dict[Tile, int]:
    """Those that a block can have, and how many a multiprocessor has room for."""
    if dtype.itemsize != _NARROW or not limits.groups or not _is_fetched(kernel, limits):
        return {}
    room = {tile: limits.room // (STAGES * _slab_bytes(tile)) for tile in limits.groups}
    return {tile: min(together(tile), count) for tile, count in room.items() if count}


def _slab_bytes(tile: Tile) -> int:
    """What one slab of both factors takes."""
    return (tile.rows + tile.columns) * tile.depth * _NARROW


def _is_fetched(kernel: Kernel, limits: Limits) -> bool:
    """Whether both factors can go to shared memory as they lie."""
    scope = Scope(kernel)
    product = match(scope)
    assert product is not None, "it was looked at before"
    made = Grouped(scope, product, limits.groups[-1], limits)
    return made.left.is_direct and made.right.is_direct


class Grouped(Squared):
    """A kernel whose warps multiply four together."""

    def ahead(self, limits: Limits) -> int:
        """One that is multiplied, and those that are fetched meanwhile."""
        return STAGES

    def slab(self, factor: Value, axis: Axis, start: Value, points: int, filling: Value) -> Slab:
        """A factor lies as it does elsewhere, in rows that are swirled."""
        given = (self.product.depth, factor, axis, start, points, filling)
        return Slab.of(self.scope, self.tile, CHUNK, *given, deep=None, swirled=True)

    def settled(self) -> Settle:
        """Warps that read by themselves are shown what is there."""
        return replace(super().settled(), shown=True)

    def products(self, thread: Value, side: Value) -> Statement:
        """The matrices of one slab."""
        row = multiply(divide(thread, GROUP), ROWS)
        sums = tuple(register for registers in self.sums for register in registers)
        left, right = (
            Panel(
                slab.array,
                add(multiply(side, slab.size), multiply(place, slab.slab)),
                *slab.steps,
                swirled=ROW * slab.slab,
            )
            for slab, place in ((self.left, row), (self.right, ZERO))
        )
        lane = remainder(thread, GROUP)
        return Squares(sums, self.tile.high, left, right, self.tile.depth, lane, together=True)
