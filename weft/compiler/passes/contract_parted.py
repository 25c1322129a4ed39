"""Products of few rows by a large factor: a kernel that sums pieces, and one that adds them up.

Such a product takes as long as its right factor takes to be read. A task has some points of the
depth, and all columns: so each thread reads memory from end to end, however few columns there are.
The sums of pieces, which a `dot` has anyway, are added up in order afterwards.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from math import ceil

from weft.compiler.choice import USUAL, Choice
from weft.compiler.loops import (
    PIECE,
    Assign,
    Buffer,
    Kernel,
    Loop,
    Statement,
    Store,
    Value,
    get,
    integer,
    load,
    value,
)
from weft.compiler.passes.contract_blocks import LINE, NARROW, choose, forced_path, orient
from weft.compiler.passes.contract_frame import Frame
from weft.compiler.passes.contract_hidden import mask_of_sums, masks
from weft.compiler.passes.contract_match import Product, depth_of, match, runs_along
from weft.compiler.passes.contract_registers import WIDEST, balanced
from weft.compiler.passes.contract_tasks import tasks
from weft.compiler.polynomial import add, known, multiply
from weft.compiler.rebuild import Scope, Statements, substitute_value

MOST_ROWS = 32
FEWEST, MOST = 4, 64  # pieces of the depth
LARGE = 1 << 20  # bytes of the right factor
WIDE = 8192  # columns of a task, at most
FEW = 6  # rows beyond which the right factor is packed before it is multiplied with
DEEP, PACKED = 64, 4608  # points of the depth and columns that are packed at a time, then
BRIEF, NEAR = 32, 1152  # the same with longer vectors, whose processors may have less room
READ = 8  # points of the depth that are read at a time where the widest vectors are: no packing


def is_parted(kernel: Kernel) -> bool:
    """Whether a kernel with known sizes is a product that `contract_parted` is good for."""
    pieces, rest = divmod(depth_of(kernel), PIECE)
    if rest or not FEWEST <= pieces <= MOST or forced_path() not in ("", "parted"):
        return False
    product = match(Scope(kernel))
    if product is None or product.batch or not product.is_pieced:
        return False
    product = orient(product, 1)
    rows, columns, depth = _sizes(product)
    large = columns * depth * product.dtype.itemsize >= LARGE or forced_path() == "parted"
    if not (large and 0 < rows <= MOST_ROWS and columns > 1):
        return False
    if mask_of_sums(product) is not None or any(masks(product)):
        return False
    return runs_along(product.right, product.column[0])


def contract_parted(
    kernel: Kernel,
    vector_bytes: int,
    registers: int,
    choice: Choice = USUAL,
    native: Set[str] = frozenset(),
) -> tuple[Kernel, Kernel]:
    """The kernel that sums pieces of a product, and the one that adds them up and finishes.

    The first has one buffer more than the kernel, its last one, which the second reads. How the
    second runs is not said: it is plain loops.
    """
    scope = Scope(kernel)
    product = match(scope)
    assert product is not None, "it was looked at before"
    product = orient(product, 1)
    rows, columns, depth = _sizes(product)
    buffer = Buffer("partials", product.dtype, "write")
    piece = scope.variable("piece")
    scope.kernel = replace(kernel, buffers=(*kernel.buffers, buffer))
    part = _part(product, piece, len(kernel.buffers))
    block = choose(part, vector_bytes, registers, choice)
    many = rows > FEW and block.lanes > 1
    deep, packed = (BRIEF, NEAR) if NARROW < vector_bytes < WIDEST else (DEEP, PACKED)
    if many and vector_bytes == WIDEST:  # whose rows are as long as what is fetched at a time
        block = replace(block, depth=READ, pack_right=False, rows_inside=True)
    elif many:
        block = replace(block, depth=deep, pack_right=True)
    wide = block.columns
    most = (packed if many else WIDE) // wide * wide
    lanes = "lane" in native and block.lanes > 1 and block.rows % block.lanes == 0
    block = replace(block, tile_columns=balanced(columns, most, wide), by_lane=lanes)
    block = replace(block, tile_rows=balanced(rows, rows, block.rows), pack_left=rows > 1)
    if many and block.pack_right:
        nbytes = block.turn * block.columns * part.dtype.itemsize * block.rows
        block = replace(block, rows_inside=True, ahead=ceil(nbytes / block.tile_rows / LINE))
    loop = tasks(Frame(scope, part, block))
    size = depth // PIECE * rows * columns
    notes = {"tasks": loop.stop, "contract": block, "partials": (product.dtype, size)}
    first = scope.kernel_with((loop,), **notes)
    buffers = (*kernel.buffers, replace(buffer, mode="read"))
    ending = replace(kernel, buffers=buffers, body=_ending(product, len(kernel.buffers)))
    return first, ending


def _sizes(product: Product) -> tuple[int, int, int]:
    """Rows, columns and depth; 0 for what is not known."""
    extents = (product.row[1], product.column[1], product.depth[1])
    rows, columns, depth = (known(extent) or 0 for extent in extents)
    return rows, columns, depth


def _place(product: Product, piece: Value) -> Value:
    """Where the sum of a piece waits."""
    rows, columns, _ = _sizes(product)
    row = add(multiply(piece, rows), product.row[0])
    return add(multiply(row, columns), product.column[0])


def _part(product: Product, piece: Value, buffer: int) -> Product:
    """The product of each piece, as a batch of its own."""
    deep = {product.depth[0]: add(multiply(piece, PIECE), product.depth[0])}
    pieces = integer(_sizes(product)[2] // PIECE)
    total = get(product.target, product.dtype)
    return replace(
        product,
        batch=((piece, pieces),),
        depth=(product.depth[0], integer(PIECE)),
        left=substitute_value(product.left, deep),
        right=substitute_value(product.right, deep),
        epilogue=(Store(buffer, _place(product, piece), total),),
    )


def _ending(product: Product, buffer: int) -> Statements:
    """Loops over all results, each the sum of its pieces in order, and what follows it."""
    dtype, total = product.dtype, None
    for i in range(_sizes(product)[2] // PIECE):
        x = load(buffer, _place(product, integer(i)), dtype)
        total = x if total is None else value("add", (total, x), dtype)
    assert total is not None, "there are several pieces"
    body: tuple[Statement, ...] = (Assign(product.target, total), *product.epilogue)
    for variable, extent in (product.column, product.row):
        body = (Loop(variable, integer(0), extent, body),)
    return body
