"""Have caches fetch what long vector loops will read.

A processor that follows reads loses the trail at the end of a page, and where several runs of one
page are read in turns. Wide vectors are through with a page before it is found again. Loops that
also write several runs are left alone: there the memory is busy, not idle.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from weft.compiler.loops import (
    Ahead,
    Assign,
    Kernel,
    Loop,
    Statement,
    Store,
    Value,
    expressions,
    load,
    walk,
)
from weft.compiler.passes.contract_blocks import LINE, WIDEST
from weft.compiler.passes.reduce_lanes import BLOCK
from weft.compiler.polynomial import add, known, number, stride, subtract
from weft.compiler.rebuild import Statements, with_body

MOST_RUNS = 8


def ahead(kernel: Kernel, vector_bytes: int = 16) -> Kernel:
    """The kernel whose long vector loops say what they will read."""
    if vector_bytes < WIDEST:
        return kernel
    return replace(kernel, body=_statements(kernel.body))


def _statements(statements: Statements) -> Statements:
    made: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Loop) and _is_long(statement):
            made.append(replace(statement, body=(*_soon(statement), *statement.body)))
        elif isinstance(statement, Store | Assign):
            made.append(statement)
        else:
            made.append(with_body(statement, _statements(statement.body)))
    return tuple(made)


def _is_long(loop: Loop) -> bool:
    steps = known(subtract(loop.stop, loop.start))
    plain = all(isinstance(s, Store | Assign) for s in loop.body)
    return loop.kind == "vector" and plain and (steps is None or steps >= BLOCK)


def _soon(loop: Loop) -> Statements:
    """What a later step reads of each run: a block on for each run of its buffer."""
    runs = _runs(loop)
    writes = any(isinstance(s, Store) for s in loop.body)
    if len(runs) > (1 if writes else MOST_RUNS):
        return ()
    together, made = Counter(x.data for x in runs), list[Statement]()
    for x in runs:
        start, size = BLOCK * together[x.data], x.dtype.itemsize
        for k in range(start, start + loop.step, max(LINE // size, 1)):
            made.append(Ahead(load(x.data, add(x.args[0], k), x.dtype)))
    return tuple(made)


def _runs(loop: Loop) -> list[Value]:
    """Reads of adjacent elements, each once, in the order of the statements."""
    found: dict[Value, None] = {}
    for x in walk(*(x for s in loop.body for x in expressions(s))):
        if x.op == "load" and number(stride(x.args[0], loop.variable)) == 1:
            found[x] = None
    return list(found)
