"""The tasks of a scheduled matrix product: each has a tile of the result, of one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from weft.compiler.loops import Loop, Statement, Value, integer
from weft.compiler.passes.contract_frame import Frame, Span, ceiling
from weft.compiler.passes.contract_tile import tile
from weft.compiler.polynomial import divide, larger, multiply, remainder, smaller, subtract
from weft.compiler.rebuild import Statements, substitute

Tile: TypeAlias = Callable[[Span, Span, Value | None], Statements]


def tasks(frame: Frame, write: Tile | None = None) -> Loop:
    """A loop over all tiles of all batches; over the pieces of the depth too, if sums wait.

    `write` gives the statements for some rows and columns, and a piece; as `tile` does, if None.
    """
    write = write or (lambda rows, columns, piece: tile(frame, rows, columns, piece))
    product, block = frame.product, frame.block
    task = frame.scope.variable("task")
    (_, height), (_, width) = product.row, product.column
    high, wide = ceiling(height, block.tile_rows), ceiling(width, block.tile_columns)
    made: list[Statement] = []
    column = frame.let("tile_column", multiply(remainder(task, wide), block.tile_columns), made)
    rest = divide(task, wide)
    row = frame.let("tile_row", multiply(remainder(rest, high), block.tile_rows), made)
    rest, total = divide(rest, high), multiply(high, wide)
    piece = None
    if frame.waits is not None:
        pieces = larger(ceiling(product.depth[1], block.depth), 1)
        piece = frame.let("piece", remainder(rest, pieces), made)
        rest, total = divide(rest, pieces), multiply(total, pieces)
    names = {}
    for variable, extent in reversed(product.batch):
        names[variable] = frame.let("batch", remainder(rest, extent), made)
        rest, total = divide(rest, extent), multiply(total, extent)
    rows = Span(row, frame.let("rows", smaller(subtract(height, row), block.tile_rows), made))
    count = smaller(subtract(width, column), block.tile_columns)
    columns = Span(column, frame.let("columns", count, made))
    body = substitute(write(rows, columns, piece), names)
    return Loop(task, integer(0), total, (*made, *body), "parallel")
