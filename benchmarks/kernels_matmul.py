"""Matrix products on one thread: the scheduled kernel against NumPy's BLAS.

Run with OPENBLAS_NUM_THREADS=1 (set here if it is not), or NumPy uses every core.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when NumPy is imported

import numpy as np
from harness import Workloads, main

from weft.compiler.build import Builder
from weft.compiler.emit_cpu import emit
from weft.compiler.kernels import evaluate
from weft.compiler.loops import (
    Buffer,
    Kernel,
    Local,
    Loop,
    Part,
    Reduce,
    Store,
    get,
    integer,
    load,
    variable,
)
from weft.compiler.passes.contract import contract
from weft.runtime.cpu.jit import compile_text, host_target, load_object

SIZES = [
    *((n, n, n) for n in (8, 32, 64, 128, 256, 512, 1024)),
    *[(1, 1024, 1024), (1024, 1, 1024), (4, 1024, 1024), (37, 53, 71)],
]
Strides = tuple[int, int]


def product(size: tuple[int, int, int], dtype: Any, left: Strides, right: Strides) -> Kernel:
    """The kernel of a product before it is scheduled."""
    rows, columns, depth = size
    s = Builder()
    m, n, k = map(variable, "mnk")

    def at(x: Any, y: Any, steps: Strides) -> Any:
        return s.add(s.mul(x, integer(steps[0])), s.mul(y, integer(steps[1])))

    a, b = load(0, at(m, k, left), dtype), load(1, at(k, n, right), dtype)
    reduce = Reduce(((k, integer(depth)),), 0, (Part((0,), "dot", (a, b)),))
    inner = (reduce, Store(2, at(m, n, (columns, 1)), get(0, dtype)))
    body = Loop(m, integer(0), integer(rows), (Loop(n, integer(0), integer(columns), inner),))
    buffers = (Buffer("a", dtype), Buffer("b", dtype), Buffer("c", dtype, "write"))
    return Kernel("product", buffers, (Local("sum", dtype),), (body,))


def compiled(kernel: Kernel, arrays: list[Any]) -> Callable[[], None]:
    """A call of the scheduled kernel on these arrays, all tasks on this thread."""
    target = host_target()
    made = contract(kernel, target.vector_bytes)
    loaded = load_object(compile_text(emit([made], target), target))
    kinds = (ctypes.c_void_p,) * 3 + (ctypes.c_int64,) * 2
    function = ctypes.CFUNCTYPE(None, *kinds)(loaded.address(made.name))
    table = np.array([0, *(a.ctypes.data for a in arrays)], np.uint64)
    slots = np.arange(1, len(table), dtype=np.int32)
    parameters = np.zeros(1, np.int64)
    tasks = evaluate(made.notes["tasks"], ())
    held = (table, slots, parameters)
    given = [x.ctypes.data for x in held]  # asked for once: it takes longer than a small product

    def call(_held: object = (held, loaded, arrays)) -> None:
        function(*given, 0, tasks)

    return call


def workload(size: tuple[int, int, int], dtype: Any, transposed: bool) -> dict[str, Any]:
    """One product for each library; the right factor may be stored by columns."""
    rows, columns, depth = size
    random = np.random.default_rng(0)
    a = random.standard_normal((rows, depth)).astype(dtype)
    b = random.standard_normal((columns, depth) if transposed else (depth, columns)).astype(dtype)
    c = np.zeros((rows, columns), dtype)
    right = (1, depth) if transposed else (columns, 1)
    call = compiled(product(size, np.dtype(dtype), (depth, 1), right), [a, b, c])
    factor = b.T if transposed else b
    call()
    np.testing.assert_allclose(c, a @ factor, rtol=1e-3, atol=1e-3)
    return {"weft": call, "numpy": lambda: a @ factor}


def build() -> Workloads:
    """Every size in two dtypes; the right factor by rows and by columns."""
    return {
        f"{np.dtype(dtype).name} {'×'.join(map(str, size))}{' transposed' if transposed else ''}": (
            workload(size, dtype, transposed)
        )
        for dtype in (np.float32, np.float64)
        for size in SIZES
        for transposed in (False, True)
        if not transposed or size[2] > 500
    }


if __name__ == "__main__":
    main("matrix products, one thread", build)
