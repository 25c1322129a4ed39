"""What caches are told to fetch: a kernel's loops, run for nothing but that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from weft.compiler.loops import (
    INDEX,
    SECOND,
    Ahead,
    Assign,
    Buffer,
    Kernel,
    Loop,
    Statement,
    Store,
    Value,
    When,
    const,
    integer,
)
from weft.compiler.polynomial import add, larger, smaller
from weft.compiler.rebuild import with_body
from weft.core.common.dtypes import int8
from weft.testing.ir import run_kernel

LINE = 16  # elements of float32 that memory gives at a time


def fetched(kernel: Kernel, number: int, size: int) -> Any:
    """Which elements of a buffer of so many float32 the second cache fetches.

    Each place that is named stands for the elements from there on that fill a line.
    """

    def noting(
        statements: tuple[Statement, ...], lane: Value | None = None
    ) -> tuple[Statement, ...]:
        made: list[Statement] = []
        for s in statements:
            if isinstance(s, Ahead):
                if s.cache == SECOND and s.source.op == "load" and s.source.data == number:
                    place = larger(smaller(s.source.args[0], size), -LINE)
                    steps = map(integer, range(LINE)) if lane is None else [lane]
                    made += [Store(0, add(add(place, LINE), x), const(1, int8)) for x in steps]
            elif isinstance(s, Assign):
                if kernel.locals[s.local].dtype == INDEX:
                    made.append(s)
            elif isinstance(s, Loop | When):
                is_vector = isinstance(s, Loop) and s.kind == "vector"
                made.append(with_body(s, noting(s.body, s.variable if is_vector else lane)))
        return tuple(made)

    watched = replace(kernel, buffers=(Buffer("seen", int8, "write"),), body=noting(kernel.body))
    (seen,) = run_kernel(watched, [np.zeros(size + 3 * LINE, np.int8)])
    return seen[LINE : LINE + size].astype(bool)
