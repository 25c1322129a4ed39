"""A product in tiles whose warps multiply small matrices: the tensor cores of a GPU.

Shared memory holds factors as they are, narrow, and lies along the depth where they do. Sums of
narrow floats are one for the whole depth, or for a piece of it that a block has alone.
"""

from __future__ import annotations

from dataclasses import replace

from weft.compiler.loops import BOOL, Panel, Settle, Squares, Statement, Value, When, value
from weft.compiler.passes.blocks_slab import VECTOR, ZERO, Slab
from weft.compiler.passes.blocks_tile import Tiled, together
from weft.compiler.passes.contract_match import Axis, Product
from weft.compiler.passes.items import Limits, Tile
from weft.compiler.polynomial import add, divide, multiply, remainder
from weft.compiler.rebuild import Statements
from weft.compiler.squares import WARP, shape_of
from weft.core.common.dtypes import int8
from weft.core.common.types import DType

STAGES = (4, 3)  # slabs in shared memory, as many as leave room for another block


def narrow_dtype(product: Product) -> DType | None:
    """The dtype of factors that warps multiply, as memory holds them; None if they cannot."""
    dtypes = [narrowed(x).dtype for x in (product.left, product.right)]
    shape = shape_of(dtypes[0])
    fits = shape is not None and dtypes[0] == dtypes[1] and product.dtype == shape.sums
    return dtypes[0] if fits else None


def tiles(dtype: DType, limits: Limits) -> dict[Tile, int]:
    """Those of these factors that a block can have, and how many a multiprocessor has room for."""
    if dtype == int8:
        squares = tuple(replace(tile, depth=2 * tile.depth) for tile in limits.squares)
    else:
        squares = limits.doubles if dtype.itemsize == 8 else limits.squares
    fitting = (tile for tile in squares if 2 * slab_bytes(tile, dtype) <= limits.room)
    return {
        tile: min(
            together(tile), limits.room // (stages(tile, dtype, limits) * slab_bytes(tile, dtype))
        )
        for tile in fitting
    }


def spare_bytes(dtype: DType) -> int:
    """Between rows of a slab: so threads that read together meet banks of their own."""
    return 2 * VECTOR if dtype.itemsize == 8 else VECTOR


def slab_bytes(tile: Tile, dtype: DType) -> int:
    """What one slab of both factors takes, at most."""
    return (tile.rows + tile.columns) * (tile.depth * dtype.itemsize + spare_bytes(dtype))


def stages(tile: Tile, dtype: DType, limits: Limits) -> int:
    """Slabs that are in shared memory if factors can be fetched; 2 if there is no room for that."""
    slab = slab_bytes(tile, dtype)
    return next((n for n in STAGES if n * slab <= limits.room // 2), 2)


def narrowed(factor: Value) -> Value:
    """What is multiplied: the factor before it was widened to the dtype of its sums, if it was."""
    shape = shape_of(factor.args[0].dtype) if factor.op == "cast" else None
    return factor if shape is None or shape.sums != factor.dtype else factor.args[0]


class Squared(Tiled):
    """A kernel whose warps have some rows and columns of a tile each."""

    def ahead(self, limits: Limits) -> int:
        """More than two if factors are fetched."""
        if self.left.is_direct and self.right.is_direct:
            return stages(self.tile, self.left.factor.dtype, limits)
        return super().ahead(limits)

    @property
    def is_fetched(self) -> bool:
        """Whether factors come by themselves, and not by way of registers."""
        return self.stages > 2

    @property
    def in_pieces(self) -> bool:
        """Only float64 has the order of a CPU's sums."""
        return self.dtype.itemsize == 8 and self.product.is_pieced

    def widest(self) -> int:
        """A thread has pairs of results."""
        return 2

    def factors(self) -> tuple[Value, Value]:
        """Both as narrow as they are in memory."""
        return narrowed(self.product.left), narrowed(self.product.right)

    def slab(self, factor: Value, axis: Axis, start: Value, points: int, filling: Value) -> Slab:
        """A factor lies as it does elsewhere; bytes along the depth."""
        given = (self.product.depth, factor, axis, start, points, filling)
        most, spare = (n // factor.dtype.itemsize for n in (VECTOR, spare_bytes(factor.dtype)))
        deep = True if factor.dtype == int8 else None
        return Slab.of(self.scope, self.tile, most, *given, deep=deep, spare=spare)

    def first(self, thread: Value, slab: Value, stop: Value) -> Statements:
        """The first slabs are on their way, and the first one of them is there."""
        if not self.is_fetched:
            return super().first(thread, slab, stop)
        made: list[Statement] = []
        for k in range(self.stages - 1):
            made += (*self._fetched(thread, add(slab, k), stop), self.settled())
        return tuple(made)

    def settled(self) -> Settle:
        """Slabs on their way, but those that are needed next."""
        return Settle(self.stages - 2)

    def step(self, thread: Value, slab: Value, stop: Value) -> Statements:
        """The products of one slab, while later ones are on their way."""
        if not self.is_fetched:
            return super().step(thread, slab, stop)
        later = self._fetched(thread, add(slab, self.stages - 1), stop)
        products = self.products(thread, remainder(slab, self.stages))
        return (*later, products, self.settled())

    def _fetched(self, thread: Value, slab: Value, stop: Value) -> Statements:
        fetches = tuple(s for x in (self.left, self.right) for s in x.fetched(thread, slab))
        return (When(value("less", (slab, stop), BOOL), fetches),)

    def products(self, thread: Value, side: Value) -> Statement:
        """The matrices of one slab."""
        row, column = self._corner(thread)
        sums = tuple(register for registers in self.sums for register in registers)
        left, right = (
            Panel(slab.array, slab.position(place, ZERO, side), *slab.steps)
            for slab, place in ((self.left, row), (self.right, column))
        )
        tile = self.tile
        return Squares(sums, tile.high, left, right, tile.depth, remainder(thread, WARP))

    def places(self, thread: Value) -> tuple[list[Value], list[Value]]:
        """A thread's rows and vectors of columns, where the instruction leaves them."""
        row, column = self._corner(thread)
        lane = remainder(thread, WARP)
        first, second = divide(lane, 4), multiply(remainder(lane, 4), 2)
        rows = [add(add(row, 8 * k), first) for k in range(self.tile.high)]
        steps = range(0, self.tile.wide, self.lanes)
        return rows, [add(add(column, k // 2 * 8 + k % 2), second) for k in steps]

    def _corner(self, thread: Value) -> tuple[Value, Value]:
        """The first row and column of a warp."""
        tile, warp = self.tile, divide(thread, WARP)
        warps = tile.columns // (4 * tile.wide)
        row, column = divide(warp, warps), remainder(warp, warps)
        return multiply(row, 8 * tile.high), multiply(column, 4 * tile.wide)
