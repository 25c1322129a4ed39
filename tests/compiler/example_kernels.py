"""Small kernels as lowering makes them, each with operands: what the passes are proved on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

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
    Statement,
    Store,
    Value,
    When,
    const,
    get,
    identity_of,
    integer,
    load,
    parameter,
    value,
    variable,
)

F = np.dtype(np.float32)
D = np.dtype(np.float64)


def op(name: str, *args: Value, dtype: Any = None) -> Value:
    compares = name in ("less", "less_equal", "equal", "not_equal")
    return value(name, args, np.dtype(dtype or (BOOL if compares else args[-1].dtype)))


def add(x: Value, y: Value | int) -> Value:
    return op("add", x, integer(y) if isinstance(y, int) else y)


def mul(x: Value, y: Value | int) -> Value:
    return op("mul", x, integer(y) if isinstance(y, int) else y)


def call(function: str, x: Value) -> Value:
    return value("call", (x,), x.dtype, function)


@dataclass(frozen=True)
class Example:
    """A kernel, the sizes of its buffers, and the parameters it is called with."""

    kernel: Kernel
    sizes: Sequence[int]
    parameters: Sequence[int] = ()
    fill: dict[int, Callable[[np.random.Generator, int], Any]] = field(default_factory=dict)

    def arrays(self, seed: int = 0) -> list[Any]:
        rng = np.random.default_rng(seed)
        made = []
        for k, (buffer, size) in enumerate(zip(self.kernel.buffers, self.sizes, strict=True)):
            if k in self.fill:
                array = self.fill[k](rng, size)
            elif buffer.dtype.kind == "f":
                array = rng.standard_normal(size) * 10.0 ** rng.integers(-3, 4, size)
                array[rng.random(size) < 0.05] = 0
                array *= rng.choice([1.0, -1.0], size)  # zeros of either sign
            else:
                array = rng.integers(0, 2 if buffer.dtype == BOOL else 100, size)
            made.append(np.asarray(array).astype(buffer.dtype))
        return made


def buffers(*modes: str, dtype: Any = F) -> tuple[Buffer, ...]:
    return tuple(Buffer(f"b{k}", np.dtype(dtype), mode) for k, mode in enumerate(modes))


def nest(loops: Sequence[tuple[Value, Any]], body: Sequence[Statement]) -> tuple[Statement, ...]:
    made = tuple(body)
    for v, extent in reversed(loops):
        stop = integer(extent) if isinstance(extent, int) else extent
        made = (Loop(v, integer(0), stop, made),)
    return made


def variables(names: str) -> list[Value]:
    return [variable(n) for n in names.split()]


def sized(flexible: bool, *sizes: int) -> tuple[list[Value], tuple[int, ...]]:
    """Extents as parameters, or as literals."""
    if flexible:
        return [parameter(k) for k in range(len(sizes))], sizes
    return [integer(n) for n in sizes], ()


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


# -- reductions --------------------------------------------------------------------------------


def full_sum(n: int, combine: str = "add", flexible: bool = False, dtype: Any = F) -> Example:
    (extent,), given = sized(flexible, n)
    (k,) = variables("k")
    dtype = np.dtype(dtype)
    part = Part((0,), combine, (load(1, k, dtype),))
    body = (Reduce(((k, extent),), 16, (part,)), Store(0, integer(0), get(0, dtype)))
    kernel = Kernel(
        "full", buffers("write", "read", dtype=dtype), (Local("s", dtype),), body, len(given)
    )
    return Example(kernel, (1, n), given)


def row_sum(rows: int, n: int, combine: str = "add", flexible: bool = False) -> Example:
    (m, extent), given = sized(flexible, rows, n)
    r, k = variables("r k")
    part = Part((0,), combine, (load(1, add(mul(r, extent), k), F),))
    body = nest([(r, m)], [Reduce(((k, extent),), 16, (part,)), Store(0, r, get(0, F))])
    kernel = Kernel("row_sum", buffers("write", "read"), (Local("s", F),), body, len(given))
    return Example(kernel, (rows, rows * n), given)


def sum_of_products(rows: int, n: int) -> Example:
    """Σ x[r, k] · w[k] over both axes: they do not collapse."""
    r, k = variables("r k")
    x = op("mul", load(1, add(mul(r, n), k), F), load(2, k, F))
    reduce = Reduce(((r, integer(rows)), (k, integer(n))), 16, (Part((0,), "add", (x,)),))
    body = (reduce, Store(0, integer(0), get(0, F)))
    kernel = Kernel("products", buffers("write", "read", "read"), (Local("s", F),), body)
    return Example(kernel, (1, rows * n, n))


def softmax(rows: int, n: int, flexible: bool = False) -> Example:
    (m, extent), given = sized(flexible, rows, n)
    r, k, k2, k3 = variables("r k k2 k3")

    def x(v: Value) -> Value:
        return load(1, add(mul(r, extent), v), F)

    shifted = call("exp", op("sub", x(k2), get(0, F)))
    at = add(mul(r, extent), k2)
    body = nest(
        [(r, m)],
        [
            Reduce(((k, extent),), 16, (Part((0,), "max", (x(k),)),)),
            Reduce(
                ((k2, extent),),
                16,
                (Part((1,), "add", (get(2, F),)),),
                (Assign(2, shifted), Store(0, at, get(2, F))),
            ),
            Loop(
                k3,
                integer(0),
                extent,
                (
                    Store(
                        0,
                        add(mul(r, extent), k3),
                        op("div", load(0, add(mul(r, extent), k3), F), get(1, F)),
                    ),
                ),
            ),
        ],
    )
    locals_ = (Local("m", F), Local("s", F), Local("e", F))
    kernel = Kernel("softmax", buffers("update", "read"), locals_, body, len(given))
    return Example(kernel, (rows * n,) * 2, given)


def layer_norm(rows: int, n: int, flexible: bool = False) -> Example:
    (m, extent), given = sized(flexible, rows, n)
    r, k, k2, k3 = variables("r k k2 k3")
    count = const(n, F)

    def x(v: Value) -> Value:
        return load(1, add(mul(r, extent), v), F)

    def centred(v: Value) -> Value:
        return op("sub", x(v), op("div", get(0, F), count))

    scale = op("sqrt", op("add", op("div", get(1, F), count), const(1e-5, F)))
    out = op("add", op("mul", op("div", centred(k3), scale), load(2, k3, F)), load(3, k3, F))
    square = op("mul", centred(k2), centred(k2))
    body = nest(
        [(r, m)],
        [
            Reduce(((k, extent),), 16, (Part((0,), "add", (x(k),)),)),
            Reduce(((k2, extent),), 16, (Part((1,), "add", (square,)),)),
            Loop(k3, integer(0), extent, (Store(0, add(mul(r, extent), k3), out),)),
        ],
    )
    kernel = Kernel(
        "layer_norm",
        buffers("write", "read", "read", "read"),
        (Local("sum", F), Local("squares", F)),
        body,
        len(given),
    )
    return Example(kernel, (rows * n, rows * n, n, n), given)


def column_sum(rows: int, columns: int, combine: str = "add", flexible: bool = False) -> Example:
    (m, n), given = sized(flexible, rows, columns)
    c, r = variables("c r")
    part = Part((0,), combine, (load(1, add(mul(r, n), c), F),))
    body = nest([(c, n)], [Reduce(((r, m),), 1, (part,)), Store(0, c, get(0, F))])
    kernel = Kernel("column_sum", buffers("write", "read"), (Local("s", F),), body, len(given))
    return Example(kernel, (columns, rows * columns), given)


def middle_sum(a: int, b: int, c: int) -> Example:
    i, j, k = variables("i j k")
    part = Part((0,), "add", (load(1, add(mul(i, b * c), add(mul(j, c), k)), F),))
    store = Store(0, add(mul(i, c), k), get(0, F))
    body = nest([(i, a), (k, c)], [Reduce(((j, integer(b)),), 1, (part,)), store])
    kernel = Kernel("middle_sum", buffers("write", "read"), (Local("s", F),), body)
    return Example(kernel, (a * c, a * b * c))


def outer_and_last(a: int, b: int, c: int) -> Example:
    """The sum over the first and the last of three axes."""
    i, j, k = variables("i j k")
    inner = Part((1,), "add", (load(1, add(mul(i, b * c), add(mul(j, c), k)), F),))
    reduce = Reduce(
        ((i, integer(a)),),
        1,
        (Part((0,), "add", (get(1, F),)),),
        (Reduce(((k, integer(c)),), 16, (inner,)),),
    )
    body = nest([(j, b)], [reduce, Store(0, j, get(0, F))])
    locals_ = (Local("outer", F), Local("inner", F))
    return Example(
        Kernel("outer_and_last", buffers("write", "read"), locals_, body), (b, a * b * c)
    )


def transposed_rows(rows: int, n: int) -> Example:
    """Row sums of a transposed matrix: the reduced axis is not the adjacent one."""
    r, k = variables("r k")
    part = Part((0,), "add", (load(1, add(mul(k, rows), r), F),))
    body = nest([(r, rows)], [Reduce(((k, integer(n)),), 16, (part,)), Store(0, r, get(0, F))])
    kernel = Kernel("transposed_rows", buffers("write", "read"), (Local("s", F),), body)
    return Example(kernel, (rows, rows * n))


def extreme(
    rows: int,
    n: int,
    combine: str = "argmax",
    fill: Any = None,
    dtype: Any = F,
    flexible: bool = False,
) -> Example:
    (m, extent), given = sized(flexible, rows, n)
    r, k = variables("r k")
    dtype = np.dtype(dtype)
    part = Part((0, 1), combine, (load(2, add(mul(r, extent), k), dtype), k))
    body = nest(
        [(r, m)],
        [
            Reduce(((k, extent),), 16, (part,)),
            Store(0, r, get(1, INDEX)),
            Store(1, r, get(0, dtype)),
        ],
    )
    made = (
        Buffer("place", INDEX, "write"),
        Buffer("best", dtype, "write"),
        Buffer("x", dtype, "read"),
    )
    kernel = Kernel("extreme", made, (Local("v", dtype), Local("p", INDEX)), body, len(given))
    return Example(kernel, (rows, rows, rows * n), given, {2: fill} if fill else {})


def column_extreme(rows: int, columns: int) -> Example:
    c, r = variables("c r")
    part = Part((0, 1), "argmin", (load(2, add(mul(r, columns), c), F), r))
    body = nest(
        [(c, columns)],
        [
            Reduce(((r, integer(rows)),), 1, (part,)),
            Store(0, c, get(1, INDEX)),
            Store(1, c, get(0, F)),
        ],
    )
    made = (Buffer("place", INDEX, "write"), Buffer("best", F, "write"), Buffer("x", F, "read"))
    kernel = Kernel("column_extreme", made, (Local("v", F), Local("p", INDEX)), body)
    return Example(kernel, (columns, columns, rows * columns))


def two_parts(rows: int, n: int) -> Example:
    """A sum of float32 and a count of int64 in one run."""
    r, k = variables("r k")
    x = load(2, add(mul(r, n), k), F)
    positive = op("cast", op("less", const(0, F), x), dtype=INDEX)
    parts = (Part((0,), "add", (x,)), Part((1,), "add", (positive,)))
    body = nest(
        [(r, rows)],
        [Reduce(((k, integer(n)),), 16, parts), Store(0, r, get(0, F)), Store(1, r, get(1, INDEX))],
    )
    made = (Buffer("sum", F, "write"), Buffer("count", INDEX, "write"), Buffer("x", F, "read"))
    kernel = Kernel("two_parts", made, (Local("s", F), Local("n", INDEX)), body)
    return Example(kernel, (rows, rows, rows * n))


def product(m: int, n: int, k: int) -> Example:
    """A matrix product, its points in plain order."""
    i, j, p = variables("i j p")
    factors = (load(1, add(mul(i, k), p), F), load(2, add(mul(p, n), j), F))
    reduce = Reduce(((p, integer(k)),), 0, (Part((0,), "dot", factors),))
    body = nest([(i, m), (j, n)], [reduce, Store(0, add(mul(i, n), j), get(0, F))])
    kernel = Kernel("product", buffers("write", "read", "read"), (Local("s", F),), body)
    return Example(kernel, (m * n, m * k, k * n))


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


def ties(rng: Any, size: int) -> Any:
    """Few different numbers, so that the first of equal ones must be found; some not a number."""
    x = rng.choice([1.0, -1.0, 0.0, -0.0, np.inf, -np.inf], size)
    x[rng.random(size) < 0.01] = np.nan
    return x


def lowest(rng: Any, size: int) -> Any:
    return np.full(size, -np.inf)


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
    "softmax": lambda: softmax(6, 77),
    "softmax, sizes given": lambda: softmax(2, 530, True),
    "layer norm": lambda: layer_norm(5, 70),
    "layer norm, sizes given": lambda: layer_norm(5, 48, True),
    "column sums": lambda: column_sum(40, 37),
    "column sums, long": lambda: column_sum(400, 9),
    "column sums, wide": lambda: column_sum(40, 130),
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
    "argmax of few": lambda: extreme(3, 5, "argmax", lowest),
    "argmax of int64": lambda: extreme(3, 50, "argmax", dtype=np.int64),
    "column argmin": lambda: column_extreme(70, 20),
    "column argmin, long": lambda: column_extreme(210, 9),
    "two parts": lambda: two_parts(4, 90),
    "two parts, long": lambda: two_parts(1, 2100),
    "product": lambda: product(5, 33, 20),
    "running sum": lambda: running_sum(9, 20),
    "running sum, sizes given": lambda: running_sum(9, 20, flexible=True),
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
