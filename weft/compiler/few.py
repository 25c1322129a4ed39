"""Kernels of linear algebra on matrices of a few rows: each is computed whole, in registers."""

from __future__ import annotations

from weft.compiler.index import Index, flat
from weft.compiler.lower import Frame, Lowered, nest
from weft.compiler.point import Point, Pull
from weft.compiler.reports import reporting
from weft.core.graph.node import OutputRefs
from weft.ops.few import Found, Matrix

SINGULAR = 1  # the status of a matrix for which there is no result


def elements(pull: Pull, node: OutputRefs, lead: Point, column: Index | None = None) -> Found:
    """The result of a call for the matrices at a point of the batch, and whether there is none.

    With a `column`, only that one of the right sides is solved for.
    """

    def matrix(operand: int) -> Matrix:
        source, slot = node.inputs[operand]
        rows, columns = source.types[slot].shape[-2:]
        taken = range(columns) if column is None or operand == 0 else (column,)
        return [[pull.at((source, slot), (*lead, i, j)) for j in taken] for i in range(rows)]

    found: Found = node.op.few(pull, *map(matrix, range(len(node.inputs))), **node.params)
    return found


def lower_few(frame: Frame, node: OutputRefs) -> Lowered:
    """The kernel of one call: a loop over the matrices of its batch, or over all right sides."""
    shape = node.types[0].shape
    alone = node.op.by_column(*(s.types[slot].shape for s, slot in node.inputs))
    lead = shape[: len(shape) - node.op.core]
    space = (*lead, shape[-1]) if alone else lead or (1,)
    point = frame.variables(space)
    batch, column = (point[:-1], point[-1]) if alone else (point, None)
    rows, bad = elements(Pull(frame.source), node, batch, column)
    columns = shape[-1] if alone else len(rows[0])
    here = flat(batch, lead or (1,)) * (len(rows) * columns) if batch else Index.of(0)
    if column is not None:
        here = here + column
    places = [
        (here + Index.of(i * columns + j), x)
        for i, row in enumerate(rows)
        for j, x in enumerate(row)
    ]
    stores = tuple(s for place, x in places for s in frame.store(node, place, x))
    if bad is None:
        return frame.finish(node.name, nest(point, space, stores))
    return reporting(frame, node.name, (point, space), bad, SINGULAR, stores)
