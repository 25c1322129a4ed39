"""Choose the blocks of a matrix product: what fits registers, and what fits the caches.

A block of `rows` × `vectors` sums stays in registers while the depth runs. Blocks make up a tile,
the work of one task, whose packed factors stay in the second cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import ceil, prod

from weft.compiler.choice import USUAL, Choice
from weft.compiler.loops import PIECE, Value, integer, walk
from weft.compiler.passes.contract_direct import VECTORS, direct_cut
from weft.compiler.passes.contract_match import Product, changed, runs_along
from weft.compiler.passes.contract_registers import WIDEST, Pair, Registers, balanced
from weft.compiler.polynomial import add, known, multiply, number, stride
from weft.compiler.rebuild import Scope, substitute, substitute_value
from weft.errors import ArgumentError

PANELS = 65_536  # bytes of one panel of each factor; the first cache holds the left one
DEEP = 512  # points of the depth in one piece, at most
FLAT = 256  # the same for few rows, where packing the right factor is most of the work
RIGHT = 524_288  # bytes of the right factor that a tile packs: a part of the second cache
SUMS = 1_048_576  # bytes of sums that wait for the next piece of the depth
TALL = 1024  # rows of a tile, at most
BRIEF = 256  # the same, unless one known product is deep: what follows finds them in a cache
TASKS = 8  # tiles, at least, if rows are many enough
EVEN = 4  # tiles that all threads, of two or four, finish together
SHORT = 64  # rows of a tile that is not made shorter
PAIR = 1_500_000  # products for which even such a tile is cut in two, so that a thread can help
LONG = 4096  # points of the depth where nothing is packed
SHALLOW = 4  # points of the depth that few rows take at a time, so that memory is read along
WIDE = 16_384  # bytes of a row of sums for few rows
SLIM = 128  # columns of a tile for few rows and a right factor that is turned, if not deep
LINE = 64  # bytes that memory gives at a time
TURNED = 4  # rows, at most, for which the right factor is turned each time it is read
PAIRED = 2  # vectors of results that have both factors to themselves, where memory lies along them
FAR = 1 << 20  # bytes of such a factor from which on the lanes' columns lie far apart
SMALL = 32_768  # bytes of a factor that is read where it is: the first cache holds all of it
FEW_COLUMNS = 16  # columns, fewer than rows, which are better rows
FEW_ROWS = 4  # rows of a block whose places registers hold on any processor
FEW_PANELS = 2  # panels of columns, for which packing the left factor would not pay
SOME_PANELS = 4  # the same if it is small
ONCE = 256  # bytes of a row of sums for which a left factor is read too seldom to be packed
HALF = 8  # rows of a panel, or a few less, that are vectors of their own where lanes are more
FLAT_ROWS = 8  # rows of a block, at most, that then reads it where it lies
UNROLL = 4  # points of the depth in one turn of the innermost loop
MANY = 16  # products of one point of the depth that hide what a turn of the loop costs
LARGE = 1 << 24  # products of numbers from which on factors are packed once for all tasks
STRIP = 1 << 20  # bytes of a factor that the second cache holds, beside parts of the other one
STRIPS = 16  # tiles of a product of which one factor is packed so, at most
NARROWEST = 256  # bytes of a tile's part of a factor that lies in memory across the depth
MOST_SHARED = 1 << 28  # bytes of factors that are packed so, at most
FEW_TILES = 64  # rows or columns that are too few for it
KEPT = 1 << 18  # bytes of a factor that lasts from which on it is packed once for all runs
KEPT_IN_LOOPS = 1 << 12  # the same in a loop, of a factor to be turned; twice that of others
HELD = 3 << 16  # bytes of the right factor that a tile then holds in the second cache
WAITING = 1 << 17  # bytes of sums of a tile, there
HELD_WIDE, WAITING_WIDE = 200 << 10, 1 << 18  # with the longest vectors, beside what is fetched
NARROW = 16  # bytes of vectors with which the places of many rows fit the registers
UNKNOWN = 1 << 20  # the size that is assumed of an extent that is a parameter

# Ways to compute a product, each of which serves every size: what `using_path` takes.
PATHS = ("shared", "parted", "packed", "pieces", "direct", "turned", "scalar")
_forced: ContextVar[str] = ContextVar("weft_product_path", default="")


@contextmanager
def using_path(path: str) -> Iterator[None]:
    """Inside, products are cut this way, whatever their sizes: all ways give the same bits.

    `shared` copies both factors once, where there are no batches; `parted` adds up the pieces of a
    long sum in a kernel of its own, where rows are few; `packed` copies factors in each task,
    `pieces` also sums few points at a time in small tiles; `direct`
    copies no factor that lanes can read where it is, `turned` turns the right one in registers if
    it lies along the depth, and `scalar` has no lanes.
    """
    if path not in PATHS:
        raise ArgumentError(f"using_path: there is no path {path!r}\nhint: {', '.join(PATHS)}")
    token = _forced.set(path)
    try:
        yield
    finally:
        _forced.reset(token)


def forced_path() -> str:
    """The way products are cut here; empty where sizes decide."""
    return _forced.get()


@dataclass(frozen=True)
class Block:
    """How a product is cut."""

    rows: int
    vectors: int
    lanes: int
    tile_rows: int
    tile_columns: int
    depth: int  # summed in one go; sums wait in the tile in between
    pack_left: bool
    pack_right: bool
    turns: bool = False  # whether the right factor, read along the depth, is turned in registers
    per_piece: int = 0  # how many depths make up a piece of the sums; 0 for one chain of all
    by_lane: bool = False  # whether the left factor is read as vectors, and multiplied by lanes
    rows_inside: bool = False  # whether a panel of columns meets all rows before the next one
    fetches: bool = False  # whether caches fetch packed panels before they are read
    ahead: int = 0  # lines of the next points of the right factor that a turn has a cache fetch
    goes_on: bool = False  # whether batches follow each other in memory, where the caller says

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return self.vectors * self.lanes

    @property
    def packed_rows(self) -> int:
        """Elements of a packed panel of rows at a point of the depth.

        They are whole vectors, so that they can be copied as such, or one that is shorter.
        """
        if HALF // 2 < self.rows <= HALF < self.lanes:
            return HALF
        shorter = HALF < self.rows < self.lanes and self.rows & (self.rows - 1) == 0
        return self.rows if shorter else ceil(self.rows / self.lanes) * self.lanes

    @property
    def turn(self) -> int:
        """Points of the depth that a turn takes of packed factors.

        Many products hide what a turn costs, so that fewer points of them make as good a turn, and
        code that is compiled sooner; but not if rows are read where they lie.
        """
        many = self.pack_left and self.rows * self.vectors >= MANY
        return UNROLL // 2 if many else UNROLL


def orient(product: Product, lanes: int) -> Product:
    """The product or its transpose: many columns are better than a few."""
    if forced_path() == "turned" and _is_turned(product.swapped()) and not _is_turned(product):
        return product.swapped()
    rows, columns = (known(extent) for _, extent in (product.row, product.column))
    rows, columns = UNKNOWN if rows is None else rows, UNKNOWN if columns is None else columns
    few_columns = 0 < columns <= max(lanes, FEW_COLUMNS) and columns < rows
    return product.swapped() if few_columns else product


def dealt(scope: Scope, product: Product, lanes: int) -> Product:
    """The product whose lanes are columns far apart, where a large right factor is turned.

    Column `lane` · n + i is column `lane` of batch i: so each lane reads memory in one run from one
    task to the next, and not in runs as short as a column. Many lanes so far apart would meet in
    few places of a cache.
    """
    extents = (product.row[1], product.column[1], product.depth[1])
    rows, columns, depth = (known(e) or 0 for e in extents)
    size, path = product.dtype.itemsize, forced_path()
    large = (columns * depth * size >= FAR and lanes * size < WIDEST) or path == "turned"
    fits = 0 < rows <= TURNED and columns > lanes > 1 and columns % lanes == 0
    if path not in ("", "turned") or not (large and fits and _is_turned(product)):
        return product
    count = integer(columns // lanes)
    lane, batch = scope.variable("column"), scope.variable("batch")
    names = {product.column[0]: add(multiply(lane, count), batch)}
    return replace(
        product,
        batch=(*product.batch, (batch, count)),
        column=(lane, integer(lanes)),
        right=substitute_value(product.right, names),
        masks=changed(product.masks, lambda x: substitute_value(x, names)),
        epilogue=substitute(product.epilogue, names),
        in_order=False,
    )


def choose(
    product: Product, vector_bytes: int, registers: int, choice: Choice = USUAL, tall: int = 0
) -> Block:
    """The cut of a product for a processor; what a choice leaves open is as the constants say.

    Rows of a block go into `tall` ones without rest.
    """
    size, path = product.dtype.itemsize, forced_path()
    extents = (product.row[1], product.column[1], product.depth[1])
    rows, columns, depth = (UNKNOWN if (n := known(e)) is None else n for e in extents)
    lanes = 1 if columns == 1 or path == "scalar" else vector_bytes // size
    few = 0 < rows <= TURNED if path in ("", "scalar") else path == "turned"
    if product.is_paired:
        return _in_pieces(product, _pairing(product, columns, depth, lanes))
    if lanes > 1 and few and _is_turned(product):
        return _in_pieces(product, _turning(rows, columns, depth, lanes))
    cut = None if path or tall else direct_cut(product, vector_bytes)
    if cut is not None:
        tile = cut.tile_rows, columns
        block = Block(cut.rows, VECTORS, lanes, *tile, PIECE, cut.pack_left, False)
        return _in_pieces(product, block)
    fits = Registers(lanes, registers, vector_bytes, choice, tall)
    block = _usual(product, (rows, columns, depth), fits)
    return _in_pieces(product, _forced_block(product, block, path))


def _forced_block(product: Product, block: Block, path: str) -> Block:
    """The block as a path that is forced wants it."""
    lanes = block.lanes
    if path in ("packed", "pieces"):
        block = replace(block, pack_left=True, pack_right=lanes > 1)
    if path == "pieces":
        tile_rows, tile_columns = 2 * block.rows, 2 * block.columns
        block = replace(block, tile_rows=tile_rows, tile_columns=tile_columns, depth=2 * UNROLL)
    if path == "direct":
        aligned = lanes == 1 or runs_along(product.right, product.column[0])
        block = replace(block, pack_left=False, pack_right=not aligned)
    return block


def _in_pieces(product: Product, block: Block) -> Block:
    """The block whose depth makes up whole pieces of the sums, if there are several."""
    if not product.is_pieced:
        return block
    deep = PIECE
    while deep > block.depth:
        deep //= 2
    return replace(block, depth=deep, per_piece=PIECE // deep)


def is_large(product: Product) -> bool:
    """Whether packing the factors of a product once, for all tasks, is better than in each task."""
    if forced_path():
        return forced_path() == "shared"
    extents = (product.row[1], product.column[1], product.depth[1])
    rows, columns, depth = (known(e) or 0 for e in extents)
    nbytes = (rows + columns) * depth * product.dtype.itemsize
    few = min(rows, columns) < FEW_TILES
    return rows * columns * depth >= LARGE and nbytes <= MOST_SHARED and not few


def shared_factors(product: Product, vector_bytes: int) -> tuple[bool, bool]:
    """Which factors, left and right, are packed once for all tasks.

    A factor that a cache holds is all of it read by every task, whose tile is a strip; of the other
    one each task then packs its own part. Rows that are copied in short runs are better read all
    along, and so are columns, but on processors that are through with the products soon.
    """
    if not is_large(product) or (not forced_path() and direct_cut(product, vector_bytes)):
        return False, False
    rows, columns, depth = (known(e) or 0 for _, e in (product.row, product.column, product.depth))
    small = min(rows, columns) * depth * product.dtype.itemsize <= STRIP
    is_high = columns > rows
    own = (product.right, product.column) if is_high else (product.left, product.row)
    short = runs_along(own[0], own[1][0]) and not (is_high and vector_bytes == WIDEST)
    if forced_path() or short or not small:
        return True, True
    return is_high, not is_high


def is_worth_keeping(product: Product, left: bool, right: bool, often: bool = False) -> bool:
    """Whether one of these factors, which last, is better packed once than read in each run.

    Any number of rows gains by it, but tasks then pack the other factor: it should be the smaller.
    Runs come `often` where they are turns of a loop.
    """
    if forced_path():
        return forced_path() == "shared"
    rows, columns, depth = (known(e) or 0 for _, e in (product.row, product.column, product.depth))
    lasting = max(rows * left, columns * right)
    others = max(rows * (not left), columns * (not right))
    nbytes = lasting * depth * product.dtype.itemsize
    turned = (right and _is_turned(product)) or (left and _is_turned(product.swapped()))
    least = KEPT if not often else KEPT_IN_LOOPS if turned else 2 * KEPT_IN_LOOPS
    return least <= nbytes <= MOST_SHARED and (lasting >= others or is_large(product))


def is_worth_packing(product: Product) -> bool:
    """Whether the right factor is better packed before panels of rows run than in each of them."""
    if forced_path():
        return forced_path() == "shared"
    rows, columns, depth = (known(e) or 0 for _, e in (product.row, product.column, product.depth))
    large = columns * depth * product.dtype.itemsize > SMALL
    return large and rows >= 4 * SHORT and rows * columns * depth >= PAIR


def choose_shared(
    product: Product,
    vector_bytes: int,
    registers: int,
    choice: Choice,
    tall: int = 0,
    by_lane: bool = False,
    *,
    shared: tuple[bool, bool],
    lasting: bool,
) -> Block:
    """The cut of a product whose factors are packed before its tasks run; tiles of `tall` rows.

    If there is an instruction for it, packed rows are multiplied `by_lane`. Tasks have the `shared`
    factors, left and right, packed for them in each run. If that is only one, and none is
    `lasting`, tiles are as high as the left factor if that is it, as wide as the right one if not.
    """
    size, extents = product.dtype.itemsize, (product.row[1], product.column[1], product.depth[1])
    rows, columns, depth = (UNKNOWN if (n := known(e)) is None else max(n, 1) for e in extents)
    lanes, widest = vector_bytes // size, vector_bytes == WIDEST
    whole = by_lane and rows >= FEW_TILES and tall % lanes == 0
    fits = Registers(lanes, registers, vector_bytes, choice, tall, lanes if whole else 1)
    # Packing the left factor would not pay: a few of its rows are read where they lie.
    once = widest and columns * size <= ONCE and is_plain(product.left)
    once = once and runs_along(product.left, product.depth[0]) and not forced_path()
    fits = replace(fits, most=FLAT_ROWS if once else fits.most)
    if widest and columns > lanes and not whole:
        fits = replace(fits, packed=True, deep=all(shared) and depth >= PIECE and not once)
    panels = (choice.panels or PANELS) // size
    high, vectors = replace(fits, points=panels // PIECE).block(rows, columns)
    wide = vectors * lanes
    deep = panels // (high + wide)
    deep = max(min(deep, choice.deep or DEEP) // 8 * 8, 8)
    if forced_path() == "shared":
        deep = 2 * UNROLL
    if product.is_pieced:
        deep = min(deep, PIECE)
    else:
        deep = ceil(balanced(depth, deep, UNROLL) / 8) * 8
    held, waiting = (HELD_WIDE, WAITING_WIDE) if widest else (HELD, WAITING)
    most = (choice.right or held) // (deep * size)
    tile_columns = balanced(columns, max(most // wide * wide, wide), wide)
    most = (choice.sums or waiting) // (tile_columns * size)
    tile_rows = balanced(rows, max(most // high * high, high), high)
    tile = (tall or tile_rows), tile_columns
    if rows * columns * depth < PAIR:  # worth one thread
        tile = tile[0], balanced(columns, columns, wide)
    elif not (all(shared) or lasting or tall) and (columns, rows)[shared[0]] != UNKNOWN:
        tile = _strip(product, (rows, columns, depth), shared[0], (high, wide), choice)
    elif not tall:
        batches = prod(known(e) or 1 for _, e in product.batch)
        tasks = ceil(2 * (choice.tasks or TASKS) / max(batches, 1))
        tile = _enough((rows, columns), tile, (high, wide), tasks)
    packs = not (once and (tall or rows) % high == 0)
    block = Block(high, vectors, lanes, *tile, deep, packs, True)
    if widest:
        # Few rows stay in a cache while one panel of columns after another meets all of them.
        inside = packs and depth <= deep and 0 < tall <= FEW_TILES
        block = replace(block, rows_inside=inside, fetches=True)
    return _in_pieces(product, by_lanes(product, block) if by_lane else block)


def _strip(
    product: Product, extents: tuple[int, int, int], is_high: bool, block: Pair, choice: Choice
) -> Pair:
    """Tiles that are as high, or else as wide, as a product; many, so that threads end together."""
    rows, columns, depth = extents
    factor, axis, across = product.left, product.row[0], rows
    if is_high:
        factor, axis, across = product.right, product.column[0], columns
    step = block[is_high]
    tasks = max(min(rows * columns * depth // PAIR, max(STRIPS, choice.tasks)), TASKS)
    across = min(across, BRIEF * tasks)  # it may not be known
    least = NARROWEST // product.dtype.itemsize if runs_along(factor, axis) else step
    part = balanced(across, max(max(across // tasks, least) // step, 1) * step, step)
    whole = balanced(rows, rows, block[0]), balanced(columns, columns, block[1])
    return (whole[0], part) if is_high else (part, whole[1])


def _enough(extents: Pair, tile: Pair, block: Pair, least: int) -> Pair:
    """Tiles cut in halves until there are at least so many, each of two blocks at least."""
    cut = list(tile)
    while prod(ceil(n / t) for n, t in zip(extents, cut, strict=True)) < least:
        axis = 0 if cut[0] >= cut[1] else 1  # the longer one: squares read least
        step = block[axis]
        if cut[axis] < 2 * step:
            break
        cut[axis] = balanced(extents[axis], max(cut[axis] // 2 // step, 1) * step, step)
    return cut[0], cut[1]


def _usual(product: Product, extents: tuple[int, int, int], fits: Registers) -> Block:
    """The cut that these sizes suggest."""
    size, (rows, columns, depth) = product.dtype.itemsize, extents
    lanes, choice = fits.lanes, fits.choice
    high, vectors = fits.block(rows, columns)
    wide = vectors * lanes
    few_panels = columns <= FEW_PANELS * wide and is_plain(product.left)
    pack_left = not (few_panels or _is_small(product.left, rows * depth))
    if fits.vector_bytes > NARROW and lanes > 1 and high > FEW_ROWS and rows % high:
        pack_left = True  # places of many rows that may be any would fill the registers
    few, small = rows <= high, _is_near(product, columns, depth)
    aligned = lanes == 1 or runs_along(product.right, product.column[0])
    pack_right = lanes > 1 and not (aligned and (few or small))
    most = choice.deep or (DEEP if rows >= FEW_TILES else FLAT)
    deep = max(min((choice.panels or PANELS) // ((high + wide) * size), most) // 8 * 8, 8)
    narrow, wanted = few and aligned and not small, deep
    deep = LONG if lanes == 1 else SHALLOW if narrow else deep
    if product.is_pieced:
        wanted = min(wanted, PIECE)
    else:
        deep = balanced(max(depth, 1), deep, 1 if depth <= deep else UNROLL)
    most = WIDE // size if narrow else (choice.right or RIGHT) // (wanted * size)
    if not narrow:  # few points of the depth leave room for more columns
        most = max(most, HELD // (max(min(depth, deep), SHORT) * size) + wide)
    tile_columns = balanced(max(columns, 1), max(most // wide * wide, wide), wide)
    if rows < FEW_TILES and not product.batch:
        tile_columns = _even(columns, tile_columns, wide)
    large = depth > deep and not product.batch and UNKNOWN not in extents
    most = choice.tall or (TALL if large else BRIEF)
    if depth > deep:
        most = min(most, (choice.sums or SUMS) // (tile_columns * size))
    tiles = ceil(columns / tile_columns) * prod(known(e) or 1 for _, e in product.batch)
    short = SHORT if rows * tiles > SHORT or rows * columns * depth < PAIR else ceil(rows / 2)
    most = min(most, max(ceil(rows * tiles / (choice.tasks or TASKS)), short))
    tile_rows = balanced(max(rows, 1), max(ceil(most / high), 1) * high, high)
    return Block(high, vectors, lanes, tile_rows, tile_columns, deep, pack_left, pack_right)


def by_lanes(product: Product, block: Block) -> Block:
    """The block that multiplies by lanes of packed rows: even a small left factor is packed.

    Where the right factor is turned, lanes are points of the depth.
    """
    if block.turns:
        return replace(block, by_lane=runs_along(product.left, product.depth[0]))
    if block.lanes == 1 or block.rows % block.lanes:
        return block
    columns = known(product.column[1])
    many = columns is not None and columns > SOME_PANELS * block.columns and not forced_path()
    return replace(block, by_lane=True, pack_left=block.pack_left or many)


def _is_turned(product: Product) -> bool:
    """Whether the right factor lies in memory along the depth, and not along the columns."""
    along = runs_along(product.right, product.depth[0])
    return along and not runs_along(product.right, product.column[0])


def _turning(rows: int, columns: int, depth: int, lanes: int) -> Block:
    """The cut for a few rows and a right factor that is turned in registers."""
    high = max(min(rows, TURNED), 1)
    tile_rows = balanced(max(rows, 1), SHORT, high)
    # One piece of the depth after another: columns of a deep product are read from end to end.
    most = lanes if depth > PIECE else max(SLIM // lanes * lanes, lanes)
    tile_columns = balanced(max(columns, 1), most, lanes)
    deep = balanced(max(depth, 1), LONG, 1 if depth <= LONG else 16)
    return Block(high, 1, lanes, tile_rows, tile_columns, deep, False, False, turns=True)


def _pairing(product: Product, columns: int, depth: int, lanes: int) -> Block:
    """The cut for results that have both factors to themselves."""
    size, factors = product.dtype.itemsize, (product.left, product.right)
    if all(runs_along(x, product.depth[0]) for x in factors):
        vectors, most = 1, lanes if depth > PIECE else max(SLIM // lanes * lanes, lanes)
        deep = balanced(max(depth, 1), LONG, 1 if depth <= LONG else 16)
    else:  # memory is read along the columns
        vectors, most, deep = PAIRED, WIDE // size, SHALLOW
    wide = vectors * lanes
    tile_columns = balanced(max(columns, 1), max(most // wide * wide, wide), wide)
    return Block(1, vectors, lanes, 1, tile_columns, deep, False, False, turns=True)


def _even(columns: int, tile: int, wide: int) -> int:
    """The columns of a tile with which tiles, where they are few, are a multiple of EVEN."""
    tiles = ceil(columns / tile)
    if not EVEN < tiles < TASKS * EVEN:
        return tile
    return ceil(columns / (ceil(tiles / EVEN) * EVEN) / wide) * wide


def _is_small(x: Value, elements: int) -> bool:
    """Whether a factor may be read again and again where it lies: small, and no work to compute."""
    return is_plain(x) and elements * x.dtype.itemsize <= SMALL


def _is_near(product: Product, columns: int, depth: int) -> bool:
    """Whether the right factor is small, and lies in few lines of the first cache."""
    if not _is_small(product.right, columns * depth):
        return False
    axes = (product.column[0], columns), (product.depth[0], depth)
    for x in (x for x in walk(product.right) if x.op == "load"):
        steps = [(number(stride(x.args[0], name)), extent) for name, extent in axes]
        apart = sum(SMALL if step is None else abs(step) * (n - 1) for step, n in steps)
        if apart * x.dtype.itemsize >= SMALL:
            return False
    return True


def is_plain(x: Value) -> bool:
    """Whether a factor is no work to compute."""
    return all(p.dtype.kind in "iu" or p.op in ("load", "cast", "const") for p in walk(x))
