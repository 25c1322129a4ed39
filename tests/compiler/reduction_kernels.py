"""Reductions as lowering makes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.compiler.kernel_parts import (
    Example,
    F,
    add,
    buffers,
    call,
    mul,
    nest,
    op,
    sized,
    variables,
)
from weft.compiler.loops import (
    INDEX,
    Assign,
    Buffer,
    Kernel,
    Local,
    Loop,
    Part,
    Reduce,
    Store,
    Value,
    const,
    get,
    integer,
    load,
)


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
    alone: bool = False,
) -> Example:
    """Extreme elements and their places; `alone`: the places, nothing else is asked for."""
    (m, extent), given = sized(flexible, rows, n)
    r, k = variables("r k")
    dtype = np.dtype(dtype)
    part = Part((0, 1), combine, (load(2, add(mul(r, extent), k), dtype), k))
    body = nest(
        [(r, m)],
        [
            Reduce(((k, extent),), 16, (part,)),
            Store(0, r, get(1, INDEX)),
            Store(1, r, const(0, dtype) if alone else get(0, dtype)),
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


def long_steps(rows: int, n: int, flexible: bool = False) -> Example:
    """Polynomials that are kept, their sums and the places of the largest: much work in a step."""
    (m, extent), given = sized(flexible, rows, n)
    r, k = variables("r k")
    at = add(mul(r, extent), k)
    x = load(3, at, F)
    total = x
    for coefficient in (0.5, -0.25, 2.0, 0.125, -1.5):
        total = op("add", op("mul", total, x), const(coefficient, F))
    polynomial = get(0, F)
    parts = (Part((1,), "add", (polynomial,)), Part((2, 3), "argmax", (polynomial, k)))
    body = nest(
        [(r, m)],
        [
            Reduce(((k, extent),), 16, parts, (Assign(0, total), Store(0, at, polynomial))),
            Store(1, r, get(1, F)),
            Store(2, r, get(3, INDEX)),
        ],
    )
    made = (
        Buffer("kept", F, "write"),
        Buffer("sum", F, "write"),
        Buffer("place", INDEX, "write"),
        Buffer("x", F, "read"),
    )
    locals_ = (Local("p", F), Local("s", F), Local("best", F), Local("place", INDEX))
    kernel = Kernel("long_steps", made, locals_, body, len(given))
    fill = {3: lambda rng, size: rng.uniform(-1, 1, size)}  # so that each sum is rounded
    return Example(kernel, (rows * n, rows, rows, rows * n), given, fill)


def product(m: int, n: int, k: int) -> Example:
    """A matrix product, its points in plain order."""
    i, j, p = variables("i j p")
    factors = (load(1, add(mul(i, k), p), F), load(2, add(mul(p, n), j), F))
    reduce = Reduce(((p, integer(k)),), 0, (Part((0,), "dot", factors),))
    body = nest([(i, m), (j, n)], [reduce, Store(0, add(mul(i, n), j), get(0, F))])
    kernel = Kernel("product", buffers("write", "read", "read"), (Local("s", F),), body)
    return Example(kernel, (m * n, m * k, k * n))


def ties(rng: Any, size: int) -> Any:
    """Few different numbers, so that the first of equal ones must be found; some not a number."""
    x = rng.choice([1.0, -1.0, 0.0, -0.0, np.inf, -np.inf], size)
    x[rng.random(size) < 0.01] = np.nan
    return x


def lowest(rng: Any, size: int) -> Any:
    return np.full(size, -np.inf)
