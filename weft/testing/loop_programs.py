"""Small programs whose loops are kept as text: how they are fused, lowered and scheduled.

The text is for one processor with vectors of 16 bytes, so that it is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import weft as wf
from weft.compiler.fuse import Fusion
from weft.compiler.kernels import KernelStore
from weft.compiler.loops import Kernel
from weft.compiler.lower import Lowered
from weft.compiler.rewrite import rewrite
from weft.compiler.scatter import lower
from weft.compiler.show import show
from weft.compiler.small import is_small, lower_small
from weft.core.graph.trace import Trace
from weft.core.tensor.tracing import trace
from weft.runtime.cpu.jit import Target, using_target
from weft.testing.gpu_programs import layer_norm, softmax

TARGET = Target("aarch64-unknown-linux-gnu", "generic", "")

F, D, H, N = np.float32, np.float64, wf.bfloat16, np.int32

PROGRAMS: dict[str, tuple[Callable[..., Any], Sequence[tuple[Any, ...]]]] = {
    "chain": (lambda x, y: wf.sqrt(x * y + 1) - x, [(F, 50, 40), (F, 50, 40)]),
    "chain_double": (lambda x, y: x * y + 1, [(D, 50, 40), (D, 50, 40)]),
    "chain_narrow": (lambda x, y: x * y + 1, [(H, 50, 40), (H, 50, 40)]),
    "chain_whole": (lambda x, y: (x * y) // 3 % 5, [(N, 50, 40), (N, 50, 40)]),
    "small": (lambda x, y: wf.sum(x * y, axis=-1) + 1, [(F, 2, 4), (F, 2, 4)]),
    "broadcast_row": (lambda x, y: x + y, [(F, 50, 40), (F, 40)]),
    "broadcast_column": (lambda x, y: x + y, [(F, 50, 40), (F, 50, 1)]),
    "compare_select": (lambda x, y: wf.where(x > y, x, -y), [(F, 50, 40), (F, 50, 40)]),
    "two_results": (lambda x: (x * 2, x * 2 + 1), [(F, 50, 40)]),
    "cast": (lambda x: wf.astype(x, wf.int8), [(F, 50, 40)]),
    "mask": (lambda x: (x > 0) | (x < -1), [(F, 50, 40)]),
    "transpose": (lambda x: wf.matrix_transpose(x) * 2, [(F, 50, 40)]),
    "transpose_meets": (lambda x, y: wf.matrix_transpose(x) + y, [(F, 50, 40), (F, 40, 50)]),
    "flip": (lambda x: wf.flip(x, axis=-1) + x, [(F, 50, 40)]),
    "slice": (lambda x: x[3:40:2, ::-1] * 2, [(F, 50, 40)]),
    "pad": (lambda x: wf.pad(x, [(1, 2), (0, 3)]), [(F, 50, 40)]),
    "concat": (lambda x, y: wf.concat([x, y * 2]), [(F, 50, 40), (F, 7, 40)]),
    "sum_rows": (lambda x: wf.sum(x, axis=-1), [(F, 50, 700)]),
    "sum_columns": (lambda x: wf.sum(x, axis=0), [(F, 700, 50)]),
    "sum_middle": (lambda x: wf.sum(x, axis=1), [(F, 5, 60, 70)]),
    "sum_all": (lambda x: wf.sum(x), [(F, 700, 900)]),
    "sum_narrow": (lambda x: wf.sum(x, axis=-1), [(H, 50, 700)]),
    "max_rows": (lambda x: wf.max(x, axis=-1), [(F, 50, 700)]),
    "argmax": (lambda x: wf.argmax(x, axis=-1), [(F, 50, 70)]),
    "any": (lambda x: wf.any(x > 3, axis=-1), [(F, 50, 70)]),
    "centre": (lambda x: x - wf.max(x, axis=-1, keepdims=True), [(F, 50, 700)]),
    "softmax": (softmax, [(F, 50, 700)]),
    "layer_norm": (layer_norm, [(F, 50, 700), (F, 700), (F, 700)]),
    "cumsum": (lambda x: wf.cumsum(x, axis=0), [(F, 50, 40)]),
    "product": (lambda x, y: x @ y, [(F, 64, 48), (F, 48, 32)]),
    "product_and_more": (
        lambda x, y, b: wf.relu(x @ y + b),
        [(F, 64, 48), (F, 48, 32), (F, 32)],
    ),
    "gather": (lambda x, i: x[i] * 2, [(F, 50, 40), (np.int64, 9)]),
    "scatter": (lambda x, i, y: x.at[i].add(y), [(F, 50, 40), (np.int64, 9), (F, 9, 40)]),
}


def traced(name: str) -> Trace:
    """The simplified graph of a program."""
    function, shapes = PROGRAMS[name]
    return rewrite(trace(function, *(wf.zeros(s[1:], dtype=s[0]) for s in shapes)))[0]


def lowered(name: str) -> Iterator[Kernel]:
    """The kernels of a program before they are scheduled."""
    graph = traced(name)
    found: list[Lowered] = []
    if is_small(graph.nodes, graph.outputs):
        found.append(lower_small(graph.nodes, graph.outputs))
    else:
        fusion = Fusion(graph.nodes, graph.outputs)
        for group in fusion.groups:
            found += lower(fusion, group, {})
    for each in found:
        yield each.kernel


def text_of(name: str) -> str:
    """All kernels of a program as text: as they are lowered, then as they are scheduled."""
    parts: list[str] = []
    for kernel in lowered(name):
        with using_target(TARGET):
            scheduled = tuple(KernelStore.scheduled(kernel))
        parts += ["-- lowered", show(kernel).rstrip(), "-- scheduled"]
        parts += [show(each).rstrip() for each in scheduled]
    return "\n".join(parts) + "\n"
