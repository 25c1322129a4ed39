"""Small products of which the right factor, and often the left one, is read where it lies.

With the longest vectors a block is through with a point of the depth in eight cycles, and meanwhile
the second cache gives more lines than it takes. Packed panels would come no sooner, and packing
takes its time. So it is while that cache holds both factors, and rows of memory are short enough
that a few pages hold many of them. A left factor that is computed is packed, by the one task that
needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from weft.compiler.loops import PIECE, Value
from weft.compiler.passes.contract_match import Product, runs_along
from weft.compiler.passes.contract_registers import WIDEST, balanced
from weft.compiler.polynomial import known, number, stride

ROWS = (8, 12, 10, 14, 9, 11, 13)  # of a block, the best first, that go into all rows without rest
VECTORS = 2
APART = 2048  # bytes from one row of memory to the next, at most
CACHED = 1 << 20  # bytes of both factors: half of the second cache
TALL = 16  # rows of a tile, at least
TASK = 750_000  # products that are worth a task


@dataclass(frozen=True)
class DirectCut:
    """Rows of a block and of a tile, which is as wide as the product."""

    rows: int
    tile_rows: int
    pack_left: bool


def direct_cut(product: Product, vector_bytes: int) -> DirectCut | None:
    """How a product is cut, if its right factor is better read where it lies."""
    rows, columns, depth = (known(e) or 0 for _, e in (product.row, product.column, product.depth))
    size = product.dtype.itemsize
    high = next((n for n in ROWS if rows % n == 0), 0)
    if vector_bytes != WIDEST or not (rows and columns and high):
        return None
    if columns % (VECTORS * vector_bytes // size) or depth < PIECE:
        return None
    if (rows + columns) * depth * size > CACHED or product.is_paired or any(product.masks):
        return None
    if not _lies_well(product):
        return None
    part = max(TASK // (columns * depth), TALL)
    tall = balanced(rows, ceil(part / high) * high, high)
    return DirectCut(high, tall, pack_left=product.left.op != "load")


def _lies_well(product: Product) -> bool:
    """Whether factors lie in memory so that a block finds them soon."""
    (row, _), (column, _), (depth, _) = product.row, product.column, product.depth
    left, right = product.left, product.right
    if product.dtype.kind != "f" or right.op != "load" or not runs_along(right, column):
        return False
    along = runs_along(left, row)
    if left.op == "load" and along and _apart(left, depth) > APART:
        return False
    return _apart(right, depth) <= APART and (along or runs_along(left, depth))


def _apart(factor: Value, axis: Value) -> int:
    """Bytes from one point of an axis to the next; more than any limit if they are not known."""
    step = number(stride(factor.args[0], axis))
    return APART + 1 if step is None else abs(step) * factor.dtype.itemsize
