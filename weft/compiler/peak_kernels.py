"""Kernels that measure a machine: chains of multiplications, reads, copies, blocks of a product."""

from __future__ import annotations

from functools import reduce

import numpy as np

from weft.compiler.loops import (
    Assign,
    Buffer,
    Kernel,
    Local,
    Loop,
    Statement,
    Store,
    Value,
    const,
    get,
    integer,
    load,
    parameter,
    value,
    variable,
)
from weft.compiler.passes.contract_reads import for_vectors
from weft.compiler.polynomial import add, multiply
from weft.compiler.rebuild import Statements
from weft.core.common.types import DType

CHAINS = 12  # independent sums: enough to hide latency, few enough for 16 registers
DEPTH = 256  # points of the panels that a block of a product runs along
_UNROLL = 4  # of them in one turn
FLOAT = np.dtype(np.float32)


_task, _lane, _turn, _block = map(variable, ("task", "lane", "turn", "block"))


def kernel(
    name: str, dtype: DType, lanes: int, body: Statements, modes: str, sums: int = CHAINS
) -> Kernel:
    """`body` for each task, in lanes; there are registers for sums, and two more."""
    buffers = tuple(Buffer(f"b{k}", dtype, mode) for k, mode in enumerate(modes.split()))
    registers = tuple(Local(f"t{k}", dtype, lanes) for k in range(sums + 2))
    inside = Loop(_lane, integer(0), integer(lanes), body, "vector", lanes)
    task = Loop(_task, integer(0), parameter(0), (inside,), "parallel")
    return Kernel(name, buffers, registers, (task,), parameters=3)


def _added(
    lanes: int, dtype: DType, repeated: Statement, count: int = CHAINS, target: int = 1
) -> Statements:
    """Sums that start at 0; then what is repeated; then their total in memory."""
    sums = [get(k, dtype) for k in range(count)]
    total = reduce(lambda x, y: value("add", (x, y), dtype), sums)
    start = [Assign(k, const(0, dtype)) for k in range(count)]
    return (*start, repeated, Store(target, add(multiply(_task, lanes), _lane), total))


def products(name: str, dtype: DType, lanes: int) -> Kernel:
    """Chains of fused multiplications and additions on registers."""
    x, y = (get(CHAINS + k, dtype) for k in range(2))
    steps = [Assign(k, value("fma", (x, y, get(k, dtype)), dtype)) for k in range(CHAINS)]
    given = [Assign(CHAINS + k, load(0, integer(k), dtype)) for k in range(2)]
    repeated = Loop(_turn, integer(0), parameter(1), tuple(steps))
    return kernel(name, dtype, lanes, (*given, *_added(lanes, dtype, repeated)), "read write")


def _places(lanes: int) -> list[Value]:
    """Where the vectors of a block lie, and a lane in each."""
    block = multiply(add(multiply(_task, parameter(1)), _block), CHAINS * lanes)
    return [add(add(block, k * lanes), _lane) for k in range(CHAINS)]


def _again(body: list[Statement]) -> Loop:
    """A task's blocks, several times."""
    blocks = Loop(_block, integer(0), parameter(1), tuple(body))
    return Loop(_turn, integer(0), parameter(2), (blocks,))


def sums(lanes: int) -> Kernel:
    """Reads of memory, added up."""
    steps: list[Statement] = [
        Assign(k, value("add", (get(k, FLOAT), load(0, place, FLOAT)), FLOAT))
        for k, place in enumerate(_places(lanes))
    ]
    return kernel("sums", FLOAT, lanes, _added(lanes, FLOAT, _again(steps)), "read write")


def copies(lanes: int) -> Kernel:
    """Copies of memory."""
    steps: list[Statement] = [Store(1, p, load(0, p, FLOAT)) for p in _places(lanes)]
    return kernel("copies", FLOAT, lanes, (_again(steps),), "read write")


def block(name: str, dtype: DType, lanes: int, rows: int, vectors: int) -> Kernel:
    """Rows × vectors of sums along two panels that lie packed in the first cache, several times."""
    wide = vectors * lanes
    steps: list[Statement] = []
    for k in range(_UNROLL):
        at = add(multiply(_block, _UNROLL), k)
        right = [
            load(1, add(multiply(at, wide), add(_lane, j * lanes)), dtype) for j in range(vectors)
        ]
        lefts = [load(0, add(multiply(at, rows), i), dtype) for i in range(rows)]
        for i, row in enumerate(for_vectors(lefts, vectors, lanes)):
            for j, left in enumerate(row):
                total = i * vectors + j
                product = value("fma", (left, right[j], get(total, dtype)), dtype)
                steps.append(Assign(total, product))
    panels = Loop(_block, integer(0), integer(DEPTH // _UNROLL), tuple(steps))
    again = Loop(_turn, integer(0), parameter(2), (panels,))
    body = _added(lanes, dtype, again, rows * vectors, 2)
    return kernel(name, dtype, lanes, body, "read read write", rows * vectors)
