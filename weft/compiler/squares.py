"""What `Squares` and `Fetch` mean: the matrices that a warp multiplies at once, and plain loops."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from weft.compiler.loops import (
    INDEX,
    Assign,
    Fetch,
    Kernel,
    Local,
    Loop,
    Panel,
    Settle,
    Squares,
    Statement,
    Value,
    const,
    every,
    get,
    integer,
    load,
    value,
    variable,
)
from weft.compiler.passes.accumulate import multiplied
from weft.compiler.polynomial import add, divide, multiply, polynomial, remainder, to_value
from weft.compiler.rebuild import Statements, leaves_in, with_body
from weft.core.common.dtypes import bfloat16, float16, int8
from weft.core.common.types import DType

WARP = 32
ROW, CHUNK = 64, 8  # elements of two bytes of a row that is swirled, and of its chunks
_FLOAT = np.dtype(np.float32)


@dataclass(frozen=True)
class Shape:
    """The sizes of one instruction; it has 8 columns."""

    rows: int
    depth: int
    sums: DType
    name: str


_SHAPES = {
    bfloat16: Shape(16, 16, _FLOAT, "m16n8k16.row.col.bf16"),
    float16: Shape(16, 16, _FLOAT, "m16n8k16.row.col.f32.f32"),
    int8: Shape(16, 32, np.dtype(np.int32), "m16n8k32.row.col.s8"),
    np.dtype(np.float64): Shape(8, 4, np.dtype(np.float64), "m8n8k4.row.col.f64"),
}


def shape_of(dtype: DType) -> Shape | None:
    """How a warp multiplies factors of this dtype, if it can."""
    return _SHAPES.get(dtype)


def place_in(panel: Panel, point: Value | int, depth: Value | int) -> Value:
    """Where an element of a panel is in its array."""
    p, k = (integer(x) if isinstance(x, int) else x for x in (point, depth))
    if panel.swirled:
        return add(panel.start, swirled(p, k, panel.along == 1, panel.swirled))
    return add(panel.start, add(multiply(p, panel.across), multiply(k, panel.along)))


def swirled(point: Value, depth: Value, deep: bool, apart: int) -> Value:
    """Where an element of two bytes is in a swirled panel, whose rows are points if `deep`."""
    if deep:
        return _in_row(point, depth)
    return add(multiply(divide(point, ROW), apart), _in_row(depth, remainder(point, ROW)))


def _in_row(row: Value, place: Value) -> Value:
    terms = polynomial(row)  # none of which is negative
    parts = {term: count for term, count in terms.items() if count % CHUNK}
    inside = remainder(to_value(parts), CHUNK)
    chunk = value("bit_xor", (divide(place, CHUNK), inside), INDEX)
    return add(multiply(row, ROW), add(multiply(chunk, CHUNK), remainder(place, CHUNK)))


def spelled(statement: Statement, kernel: Kernel, number: int) -> Statements:
    """A statement for tensor cores as plain ones; `number` tells their variables from others."""
    if isinstance(statement, Squares):
        sums, factors = (kernel.locals[n] for n in (statement.sums[0], statement.left.array))
        products = _products(statement, factors.dtype, sums.dtype, sums.lanes, number)
        return (*_cleared(statement, sums, number), products)
    if isinstance(statement, Fetch):
        return (_copy(statement, number),)
    return () if isinstance(statement, Settle) else (statement,)


def in_registers(kernel: Kernel) -> Kernel:
    """The kernel without shared arrays that threads hold all they read of in registers."""
    panels = [s for s in every(kernel.body) if isinstance(s, Squares)]
    held = {s.left.array for s in panels if s.left.held}
    held -= {s.left.array for s in panels if not s.left.held} | {s.right.array for s in panels}
    held -= {x.data for x in leaves_in(kernel.body) if x.op == "get"}
    if not held:
        return kernel

    def kept(statements: Statements) -> Statements:
        made: list[Statement] = []
        for s in statements:
            if not (isinstance(s, Assign) and s.local in held):
                made.append(with_body(s, kept(s.body)) if s.body else s)
        return tuple(made)

    plain = (
        replace(x, shared=False, length=0) if n in held else x for n, x in enumerate(kernel.locals)
    )
    return replace(kernel, body=kept(kernel.body), locals=tuple(plain))


def _copy(fetch: Fetch, number: int) -> Statement:
    lane = variable(f"fetch_lane{number}")
    (first,) = fetch.source.args
    x = load(fetch.source.data, add(first, lane), fetch.source.dtype)
    if fetch.inside is not None:
        x = value("select", (fetch.inside, x, const(0, x.dtype)), x.dtype)
    put = Assign(fetch.array, x, add(fetch.position, lane))
    return Loop(lane, integer(0), integer(fetch.lanes), (put,))


def _cleared(squares: Squares, sums: Local, number: int) -> Statements:
    """Sums that are fresh are 0."""
    zeros = tuple(Assign(n, const(0, sums.dtype)) for n in squares.sums if squares.fresh)
    if not zeros or sums.lanes == 1:
        return zeros
    lane, lanes = variable(f"square_lane{number}"), sums.lanes
    return (Loop(lane, integer(0), integer(lanes), zeros, "vector", lanes),)


def _products(squares: Squares, dtype: DType, sums: DType, lanes: int, number: int) -> Statement:
    """A thread's share of them."""
    depth, column = variable(f"square_depth{number}"), variable(f"square_column{number}")
    lane = remainder(squares.lane, WARP) if squares.together else squares.lane
    first, second = divide(lane, 4), multiply(remainder(lane, 4), 2)
    if squares.together:
        first = add(first, multiply(divide(squares.lane, WARP), 16))
    per_row = len(squares.sums) // squares.rows
    body: list[Statement] = []
    for k, register in enumerate(squares.sums):
        row, at = add(first, k // per_row * 8), k % per_row * lanes
        beside = add(second, at // 2 * 8 + at % 2)
        if lanes > 1:
            beside = add(beside, column)
        x = get(squares.left.array, dtype, place_in(squares.left, row, depth))
        y = get(squares.right.array, dtype, place_in(squares.right, beside, depth))
        x, y = (value("cast", (a,), sums) if dtype != sums else a for a in (x, y))
        body.append(Assign(register, multiplied(x, y, get(register, sums))))
    inner = tuple(body)
    if lanes > 1:
        inner = (Loop(column, integer(0), integer(lanes), inner, "vector", lanes),)
    return Loop(depth, integer(0), integer(squares.depth), inner)
