"""Kernels of linear algebra on matrices of a few rows: each is computed whole, in registers."""

from __future__ import annotations

from weft.compiler.index import Index, flat
from weft.compiler.loops import Value
from weft.compiler.lower import Frame, Lowered, nest
from weft.compiler.point import Point, Pull
from weft.compiler.reports import reporting
from weft.core.graph.node import OutputRefs
from weft.ops.few import Found, Matrix

SINGULAR = 1  # the status of a matrix for which there is no result


def elements(pull: Pull, node: OutputRefs, lead: Point) -> Found:
    """The result of a call for the matrices at a point of the batch, and whether there is none."""

    def matrix(operand: int) -> Matrix:
        source, slot = node.inputs[operand]
        rows, columns = source.types[slot].shape[-2:]
        return [
            [pull.at((source, slot), (*lead, i, j)) for j in range(columns)] for i in range(rows)
        ]

    found: Found = node.op.few(pull, *map(matrix, range(len(node.inputs))), **node.params)
    return found


def lower_few(frame: Frame, node: OutputRefs) -> Lowered:
    """The kernel of one call: a loop over the matrices of its batch."""
    shape = node.types[0].shape
    lead = shape[: len(shape) - node.op.core] or (1,)
    point = frame.variables(lead)
    rows, bad = elements(Pull(frame.source), node, point)
    here = flat(point, lead) * (len(rows) * len(rows[0]))
    results: list[Value] = [x for row in rows for x in row]
    places = [(here + Index.of(k), x) for k, x in enumerate(results)]
    stores = tuple(s for place, x in places for s in frame.store(node, place, x))
    if bad is None:
        return frame.finish(node.name, nest(point, lead, stores))
    return reporting(frame, node.name, (point, lead), bad, SINGULAR, stores)
