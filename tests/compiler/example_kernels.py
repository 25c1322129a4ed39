"""Small kernels as lowering makes them, each with operands: what the passes are proved on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.compiler.kernel_parts import (
    D,
    Example,
    F,
    add,
    buffers,
    mul,
    nest,
    op,
    sized,
    variables,
)
from tests.compiler.reduction_kernels import (
    column_extreme,
    column_sum,
    extreme,
    full_sum,
    layer_norm,
    long_steps,
    lowest,
    middle_sum,
    outer_and_last,
    product,
    row_sum,
    softmax,
    sum_of_products,
    ties,
    transposed_rows,
    two_parts,
)
from weft.compiler.loops import (
    BOOL,
    INDEX,
    Assign,
    Buffer,
    Kernel,
    Local,
    Loop,
    Part,
    Reduce,
    Store,
    When,
    const,
    get,
    identity_of,
    integer,
    load,
)

# -- each element on its own -------------------------------------------------------------------


def elementwise(n: int, flexible: bool = False, dtype: Any = F) -> Example:
    (extent,), given = sized(flexible, n)
    (i,) = variables("i")
    x, y = load(1, i, np.dtype(dtype)), load(2, i, np.dtype(dtype))
    body = nest([(i, extent)], [Store(0, i, op("mul", op("add", x, y), x))])
    kernel = Kernel(
        "elementwise", buffers("write", "read", "read", dtype=dtype), (), body, len(given)
    )
    return Example(kernel, (n, n, n), given)


def broadcast(rows: int, columns: int, flexible: bool = False) -> Example:
    (m, n), given = sized(flexible, rows, columns)
    i, j = variables("i j")
    at = add(mul(i, n), j)
    x, y = load(1, at, F), load(2, j, F)
    body = nest([(i, m), (j, n)], [Store(0, at, op("add", x, y))])
    kernel = Kernel("broadcast", buffers("write", "read", "read"), (), body, len(given))
    return Example(kernel, (rows * columns, rows * columns, columns), given)


def packed(a: int, b: int, c: int) -> Example:
    i, j, k = variables("i j k")
    at = add(mul(i, b * c), add(mul(j, c), k))
    place = op("cast", at, dtype=F)
    body = nest([(i, a), (j, b), (k, c)], [Store(0, at, op("add", load(1, at, F), place))])
    return Example(Kernel("packed", buffers("write", "read"), (), body), (a * b * c,) * 2)


def divided(rows: int, columns: int, extra: int = 1, flexible: bool = False) -> Example:
    """A broadcast written with quotients and remainders of one variable."""
    (n, total), given = sized(flexible, columns, rows * columns)
    if flexible:
        total = mul(integer(rows), n)
    (j,) = variables("j")
    row, column = op("floordiv", j, n), op("rem", j, n)
    block = (
        op("floordiv", j, mul(n, extra))
        if flexible
        else op("floordiv", j, integer(columns * extra))
    )
    x = op("add", load(1, j, F), op("mul", load(2, column, F), load(3, row, F)))
    body = nest([(j, total)], [Store(0, j, op("sub", x, load(3, block, F)))])
    kernel = Kernel("divided", buffers("write", "read", "read", "read"), (), body, len(given))
    return Example(kernel, (rows * columns, rows * columns, columns, rows), given)


def padded(n: int, width: int, pitch: int) -> Example:
    """The elements of rows that lie apart, in one loop that no row divides."""
    (j,) = variables("j")
    at = add(mul(op("floordiv", j, integer(width)), pitch), op("rem", j, integer(width)))
    body = nest([(j, n)], [Store(0, j, load(1, at, F))])
    size = (n // width + 1) * pitch
    return Example(Kernel("padded", buffers("write", "read"), (), body), (n, size))


def padded_sum(rows: int, width: int, pitch: int) -> Example:
    r, k = variables("r k")
    part = Part((0,), "add", (load(1, add(mul(r, pitch), k), F),))
    reduce = Reduce(((r, integer(rows)), (k, integer(width))), 16, (part,))
    body = (reduce, Store(0, integer(0), get(0, F)))
    kernel = Kernel("padded_sum", buffers("write", "read"), (Local("s", F),), body)
    return Example(kernel, (1, rows * pitch))


def transpose(m: int, n: int, flexible: bool = False) -> Example:
    (rows, columns), given = sized(flexible, m, n)
    i, j = variables("i j")
    x = load(1, add(mul(j, rows), i), F)
    body = nest([(i, rows), (j, columns)], [Store(0, add(mul(i, columns), j), op("neg", x))])
    kernel = Kernel("transpose", buffers("write", "read"), (), body, len(given))
    return Example(kernel, (m * n, m * n), given)


def permute(a: int, b: int, c: int) -> Example:
    """out[i, j, k] = x[k, j, i]."""
    i, j, k = variables("i j k")
    x = load(1, add(mul(k, a * b), add(mul(j, a), i)), F)
    at = add(mul(i, b * c), add(mul(j, c), k))
    body = nest([(i, a), (j, b), (k, c)], [Store(0, at, x)])
    return Example(Kernel("permute", buffers("write", "read"), (), body), (a * b * c,) * 2)


def two_stores(n: int) -> Example:
    (i,) = variables("i")
    t = get(0, F)
    body = nest(
        [(i, n)],
        [
            Assign(0, op("mul", load(2, i, F), const(3, F))),
            Store(0, i, t),
            Store(1, i, op("neg", t)),
        ],
    )
    kernel = Kernel("two_stores", buffers("write", "write", "read"), (Local("t", F),), body)
    return Example(kernel, (n, n, n))


# -- order that must stay ----------------------------------------------------------------------


def running_sum(rows: int, n: int, columns: int = 1, flexible: bool = False) -> Example:
    """A cumulative sum along the middle axis of (rows, n, columns)."""
    (m, extent), given = sized(flexible, rows, n)
    r, c, k = variables("r c k")
    at = add(mul(r, mul(extent, columns)), add(mul(k, columns), c))
    body = nest(
        [(r, m), (c, columns)],
        [
            Assign(0, identity_of("add", F)),
            Loop(
                k,
                integer(0),
                extent,
                (Assign(0, op("add", get(0, F), load(1, at, F))), Store(0, at, get(0, F))),
            ),
        ],
    )
    kernel = Kernel("running_sum", buffers("write", "read"), (Local("t", F),), body, len(given))
    return Example(kernel, (rows * n * columns,) * 2, given)


def gather(rows: int, width: int, table: int) -> Example:
    i, d = variables("i d")
    row = load(2, i, INDEX)
    x = load(1, add(mul(row, width), d), F)
    body = nest([(i, rows), (d, width)], [Store(0, add(mul(i, width), d), x)])
    made = (Buffer("out", F, "write"), Buffer("table", F, "read"), Buffer("index", INDEX, "read"))
    fill = {2: lambda rng, size: rng.integers(0, table, size)}
    return Example(Kernel("gather", made, (), body), (rows * width, table * width, rows), (), fill)


def scatter(updates: int, width: int, table: int, combine: str = "add") -> Example:
    i, d = variables("i d")
    row = load(2, i, INDEX)
    x = load(1, add(mul(i, width), d), F)
    store = Store(0, add(mul(row, width), d), x, combine)
    made = (Buffer("out", F, "update"), Buffer("x", F, "read"), Buffer("index", INDEX, "read"))
    fill = {2: lambda rng, size: rng.integers(0, table, size)}
    kernel = Kernel("scatter", made, (), nest([(i, updates), (d, width)], [store]))
    return Example(kernel, (table * width, updates * width, updates), (), fill)


def scatter_by_register(updates: int, table: int) -> Example:
    """Updates whose position passes through a register: two may meet."""
    (i,) = variables("i")
    place = Assign(0, load(2, i, INDEX))
    store = Store(0, op("add", get(0, INDEX), op("sub", i, i)), load(1, i, F))
    made = (Buffer("out", F, "update"), Buffer("x", F, "read"), Buffer("index", INDEX, "read"))
    fill = {2: lambda rng, size: rng.integers(0, table, size)}
    kernel = Kernel("scatter", made, (Local("p", INDEX),), nest([(i, updates)], [place, store]))
    return Example(kernel, (table, updates, updates), (), fill)


def kept_row(rows: int, n: int) -> Example:
    """A row kept in an array between two runs over it."""
    r, k, k2 = variables("r k k2")
    x = op("mul", load(1, add(mul(r, n), k), F), const(3, F))
    body = nest(
        [(r, rows)],
        [
            Reduce(((k, integer(n)),), 16, (Part((0,), "max", (x,)),), (Assign(1, x, k),)),
            *nest(
                [(k2, n)],
                [Store(0, add(mul(r, n), k2), op("sub", get(1, F, k2), get(0, F)))],
            ),
        ],
    )
    locals_ = (Local("m", F), Local("row", F, 1, n))
    return Example(Kernel("kept_row", buffers("write", "read"), locals_, body), (rows * n,) * 2)


def report(n: int) -> Example:
    """A status that is written where any element is out of range."""
    (k,) = variables("k")
    bad = op("less", load(1, k, F), const(-1000, F))
    body = (
        Reduce(((k, integer(n)),), 16, (Part((0,), "or", (bad,)),)),
        When(get(0, BOOL), (Store(0, integer(0), integer(7)),)),
    )
    made = (Buffer("status", INDEX, "update"), Buffer("x", F, "read"))
    return Example(Kernel("report", made, (Local("bad", BOOL),), body), (1, n))


def unread(rows: int, n: int) -> Example:
    """A reduction whose result nobody reads, with a store at each point."""
    r, k = variables("r k")
    at = add(mul(r, n), k)
    x = load(1, at, F)
    reduce = Reduce(((k, integer(n)),), 16, (Part((0,), "add", (x,)),), (Store(0, at, x),))
    kernel = Kernel(
        "unread", buffers("write", "read"), (Local("s", F),), nest([(r, rows)], [reduce])
    )
    return Example(kernel, (rows * n,) * 2)


TAILS = (*range(1, 41), 63, 64, 65, 511, 512, 513, 1023, 1024, 1025)

EXAMPLES: dict[str, Callable[[], Example]] = {
    "elementwise": lambda: elementwise(100),
    "elementwise, sizes given": lambda: elementwise(100, True),
    "elementwise, one chunk": lambda: elementwise(60),
    "elementwise, whole chunks": lambda: elementwise(128),
    "elementwise float64": lambda: elementwise(50, dtype=D),
    "elementwise int8": lambda: elementwise(50, dtype=np.int8),
    "broadcast": lambda: broadcast(7, 37),
    "broadcast, sizes given": lambda: broadcast(7, 37, True),
    "broadcast, long rows": lambda: broadcast(2, 150),
    "broadcast, three columns": lambda: broadcast(50, 3),
    "packed": lambda: packed(3, 5, 7),
    "divided": lambda: divided(12, 21),
    "divided, three axes": lambda: divided(12, 21, 4),
    "divided, sizes given": lambda: divided(9, 20, flexible=True),
    "padded": lambda: padded(100, 21, 32),
    "padded sum": lambda: padded_sum(20, 37, 40),
    "padded sum of whole steps": lambda: padded_sum(20, 32, 40),
    "transpose": lambda: transpose(37, 50),
    "transpose, whole tiles": lambda: transpose(32, 16),
    "transpose, sizes given": lambda: transpose(17, 30, True),
    "permute": lambda: permute(20, 3, 11),
    "two stores": lambda: two_stores(100),
    "full sum": lambda: full_sum(700),
    "full sum, long": lambda: full_sum(3500),
    "full sum, sizes given": lambda: full_sum(1777, flexible=True),
    "full product of nothing": lambda: full_sum(0, "mul", True),
    "full maximum of int64": lambda: full_sum(700, "max", dtype=np.int64),
    "row sums": lambda: row_sum(5, 100),
    "row sums, sizes given": lambda: row_sum(5, 600, flexible=True),
    "row sums, many": lambda: row_sum(300, 20),
    "row sums, few and long": lambda: row_sum(2, 2500),
    "sum of products": lambda: sum_of_products(9, 80),
    "sum of products, odd rows": lambda: sum_of_products(9, 83),
    "sum of products, long": lambda: sum_of_products(31, 83),
    "long steps": lambda: long_steps(3, 700),
    "long steps, blocks": lambda: long_steps(2, 1024),
    "long steps, sizes given": lambda: long_steps(2, 1100, True),
    "softmax": lambda: softmax(6, 77),
    "softmax, sizes given": lambda: softmax(2, 530, True),
    "layer norm": lambda: layer_norm(5, 70),
    "layer norm, sizes given": lambda: layer_norm(5, 48, True),
    "column sums": lambda: column_sum(40, 37),
    "column sums, long": lambda: column_sum(400, 9),
    "column sums, wide": lambda: column_sum(40, 130),
    "column sums, wide and long": lambda: column_sum(260, 132),
    "column sums, sizes given": lambda: column_sum(130, 21, flexible=True),
    "column maxima": lambda: column_sum(40, 60, "max"),
    "middle sums": lambda: middle_sum(3, 70, 19),
    "outer and last": lambda: outer_and_last(40, 5, 30),
    "transposed rows": lambda: transposed_rows(18, 520),
    "transposed rows, short": lambda: transposed_rows(20, 37),
    "transposed rows, long": lambda: transposed_rows(4, 2060),
    "argmax": lambda: extreme(2, 700, "argmax"),
    "argmax, sizes given": lambda: extreme(2, 700, "argmax", flexible=True),
    "argmin of ties": lambda: extreme(20, 100, "argmin", ties),
    "argmax of ties": lambda: extreme(4, 530, "argmax", ties),
    "argmax of ties, long": lambda: extreme(1, 2100, "argmax", ties),
    "argmax of the lowest": lambda: extreme(3, 40, "argmax", lowest),
    "argmax of the lowest, long": lambda: extreme(1, 1300, "argmax", lowest),
    "argmax of the lowest, longer": lambda: extreme(1, 2100, "argmax", lowest),
    "argmax, the place alone": lambda: extreme(2, 2100, "argmax", ties, alone=True),
    "argmax of few": lambda: extreme(3, 5, "argmax", lowest),
    "argmax of int64": lambda: extreme(3, 50, "argmax", dtype=np.int64),
    "column argmin": lambda: column_extreme(70, 20),
    "column argmin, long": lambda: column_extreme(210, 9),
    "column argmin, wide": lambda: column_extreme(70, 150),
    "two parts": lambda: two_parts(4, 90),
    "two parts, long": lambda: two_parts(1, 2100),
    "product": lambda: product(5, 33, 20),
    "running sum": lambda: running_sum(9, 20),
    "running sum, sizes given": lambda: running_sum(9, 20, flexible=True),
    "running sum of many rows": lambda: running_sum(34, 20),
    "running sum of columns": lambda: running_sum(2, 30, 21),
    "running sum of many columns": lambda: running_sum(1, 20, 90),
    "gather": lambda: gather(30, 20, 10),
    "gather of numbers": lambda: gather(70, 1, 10),
    "scatter": lambda: scatter(40, 20, 9),
    "scatter of numbers": lambda: scatter(60, 1, 9),
    "scatter, the last wins": lambda: scatter(60, 1, 9, ""),
    "scatter by a register": lambda: scatter_by_register(130, 9),
    "kept row": lambda: kept_row(5, 70),
    "unread": lambda: unread(5, 40),
    "report": lambda: report(100),
}
