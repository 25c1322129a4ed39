"""Products of matrices for a GPU: which of them go by tiles, by which ones, and in how many pieces.

Factors that warps can multiply as matrices go that way (`blocks_squares`), others by the products
of each thread (`blocks_tile`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from math import prod

from weft.compiler.loops import (
    PIECE,
    Assign,
    Buffer,
    Kernel,
    Loop,
    Store,
    Value,
    get,
    integer,
    load,
    value,
)
from weft.compiler.passes import blocks_groups, blocks_squares
from weft.compiler.passes.blocks_groups import Grouped
from weft.compiler.passes.blocks_hidden import Rests, with_rests
from weft.compiler.passes.blocks_slab import VECTOR, ZERO, size_of
from weft.compiler.passes.blocks_squares import Squared, narrow_dtype
from weft.compiler.passes.blocks_tile import Tiled, together
from weft.compiler.passes.contract_match import Product, match
from weft.compiler.passes.items import Limits, Tile
from weft.compiler.polynomial import add, known, multiply
from weft.compiler.rebuild import Scope, Statements, substitute_value

FEWEST = 8  # products of a sum that a tile is for
DEEP = 16  # the same for squares
LONELY = 256  # the same for tiles of which a multiprocessor has room for one alone
MULTIPROCESSORS = 132  # of a large GPU: fewer blocks leave some of it idle
THREADS = 256  # of a multiprocessor: with half as many it mostly waits for memory
ALONE = 0.6  # of a block's time: what it waits longer if it is nearly alone
MOST_PIECES = 256  # whose sums are added up by one expression


def tiled(kernel: Kernel, limits: Limits) -> tuple[Kernel, ...]:
    """The kernel in tiles, if it is a product and that pays; none if not.

    Where tiles are few and sums long, it is followed by another kernel: that adds up the sums of
    pieces, which scratch memory holds meanwhile. Where a mask hides much, one comes before it, for
    what is left out. Both are not scheduled.
    """
    scope = Scope(kernel)
    product = match(scope)
    if product is None or not _fits(product):
        return ()
    way = _way(kernel, product, limits)
    tile = way.chosen(product)
    if tile is None:
        return ()
    pieces = -(-size_of(product.depth[1]) // PIECE)
    few = 2 * _blocks(product, tile) * tile.threads <= MULTIPROCESSORS * THREADS
    if few and product.is_pieced and pieces <= MOST_PIECES:
        return _parted(kernel, pieces, way, limits)
    before, kernel, rests = _rested(kernel, scope, product, tile, way)
    scope.kernel = kernel
    made = way.write(scope, product, tile, limits, rests=rests).kernel()
    return (*before, _with_scratch(made, kernel))


def _rested(
    kernel: Kernel, scope: Scope, product: Product, tile: Tile, way: _Way
) -> tuple[tuple[Kernel, ...], Kernel, Rests | None]:
    """A kernel for rests of what a mask hides, the kernel that can read them, and where they lie.

    If nothing is to be left out, there is no such kernel.
    """
    quick = way.write is not Tiled and product.dtype.itemsize == 4
    found = with_rests(kernel, scope, product, tile, quick)
    if found is None:
        return (), kernel, None
    first, rests = found
    buffers = (*kernel.buffers, replace(first.buffers[-1], mode="read"))
    return (first,), replace(kernel, buffers=buffers, notes=first.notes), rests


def _with_scratch(made: Kernel, kernel: Kernel) -> Kernel:
    """A kernel that is given the scratch memory that another one notes."""
    return replace(made, notes={**made.notes, "scratch": kernel.notes.get("scratch", ())})


def _fits(product: Product) -> bool:
    """Whether sums are of plain products of wide elements, and long enough."""
    if product.is_paired:
        return False
    axes = (*product.batch, product.row, product.column)
    several = prod(known(extent) or 0 for _, extent in axes) > 1
    deep = (known(product.depth[1]) or 0) >= FEWEST
    return several and deep and product.dtype.itemsize in (4, 8)


@dataclass(frozen=True)
class _Way:
    """How tiles are multiplied, and those that a block can have."""

    write: type[Tiled]
    tiles: dict[Tile, int]  # with the number that a multiprocessor has room for

    def chosen(self, product: Product, pieces: int = 1) -> Tile | None:
        """The tile that takes the least time, as far as that can be told."""
        return min(self.tiles, key=lambda tile: self.time(product, tile, pieces), default=None)

    def time(self, product: Product, tile: Tile, pieces: int = 1) -> float:
        """What a product takes by such tiles, in some unit."""
        together = self.tiles[tile]
        full, left = divmod(_blocks(product, tile) * pieces, together * MULTIPROCESSORS)
        few = -(-left // MULTIPROCESSORS)  # of the last ones, on the busiest multiprocessor
        idle = 1 + ALONE * (1 - few / together)
        return (full * together + few * idle) * tile.rows * tile.columns / tile.rate

    def least(self, product: Product) -> float:
        """What it takes by the best of them."""
        return min(self.time(product, tile) for tile in self.tiles)


def _way(kernel: Kernel, product: Product, limits: Limits) -> _Way:
    """By squares where that is possible, of one warp or of several together."""
    dtype = narrow_dtype(product)
    if dtype is not None and size_of(product.depth[1]) >= DEEP:
        ways = (
            _Way(Squared, blocks_squares.tiles(dtype, limits)),
            _Way(Grouped, blocks_groups.tiles(kernel, dtype, limits)),
        )
        found = [way for way in ways if way.tiles]
        if found:
            return min(found, key=lambda way: way.least(product))
    itemsize = product.dtype.itemsize
    fitted = (tile.fitted(itemsize) for tile in limits.tiles)
    tiles = {
        tile: together(tile)
        for tile in fitted
        if tile.threads <= limits.threads and _shared_bytes(tile, itemsize) <= limits.shared
    }
    if size_of(product.depth[1]) < LONELY:  # nothing would hide how a block begins and ends
        tiles = {tile: count for tile, count in tiles.items() if count > 1}
    return _Way(Tiled, tiles)


def _blocks(product: Product, tile: Tile) -> int:
    batches = prod(size_of(extent) for _, extent in product.batch)
    rows, columns = size_of(product.row[1]), size_of(product.column[1])
    return batches * -(-rows // tile.rows) * -(-columns // tile.columns)


def _shared_bytes(tile: Tile, itemsize: int) -> int:
    return 2 * tile.depth * ((tile.rows + tile.columns) * itemsize + 2 * VECTOR)


def _parted(kernel: Kernel, pieces: int, way: _Way, limits: Limits) -> tuple[Kernel, ...]:
    """A kernel whose blocks have one piece of the depth each, and one that adds up their sums."""
    scope = Scope(kernel)
    product = match(scope)
    assert product is not None
    tile = way.chosen(product, pieces)
    assert tile is not None
    before, kernel, rests = _rested(kernel, scope, product, tile, way)
    number, dtype, piece = len(kernel.buffers), product.dtype, scope.variable("piece")
    axes = [x for x in (*product.batch, product.row, product.column) if size_of(x[1]) > 1]
    place: Value = piece
    for variable, extent in axes:
        place = add(multiply(place, extent), variable)
    sums = (dtype, pieces * prod(size_of(extent) for _, extent in axes))
    notes = {**kernel.notes, "scratch": (*kernel.notes.get("scratch", ()), sums)}

    def with_sums(mode: str) -> Kernel:
        return replace(kernel, buffers=(*kernel.buffers, Buffer("sums", dtype, mode)), notes=notes)

    alone = replace(
        product,
        batch=((piece, integer(pieces)), *product.batch),
        epilogue=(Store(number, place, get(product.target, dtype)),),
    )
    scope.kernel = with_sums("write")
    first = way.write(scope, alone, tile, limits, piece, rests).kernel()
    at = (substitute_value(place, {piece: integer(k)}) for k in range(pieces))
    found = (load(number, index, dtype) for index in at)
    total = reduce(lambda x, y: value("add", (x, y), dtype), found)
    body: Statements = (Assign(product.target, total), *product.epilogue)
    for variable, extent in reversed(axes):
        body = (Loop(variable, ZERO, extent, body),)
    return (*before, _with_scratch(first, scope.kernel), replace(with_sums("read"), body=body))
