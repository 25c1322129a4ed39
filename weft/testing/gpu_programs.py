"""Small programs that every GPU backend must run: what its tests, golden files and checks share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import weft as wf
from weft.compiler.gpu_program import plan
from weft.compiler.gpu_steps import GpuProgram
from weft.compiler.passes.items import Limits
from weft.compiler.rewrite import rewrite
from weft.core.common.types import Array
from weft.core.graph.trace import Trace
from weft.core.tensor.tracing import trace


@dataclass(frozen=True)
class Program:
    """A function, and arrays to call it with."""

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: Any = np.float32

    def arrays(self, seed: int = 0, special: bool = True) -> list[Array]:
        """Random operands; some are zeros, infinities and not numbers where `special`."""
        rng = np.random.default_rng(seed)
        made = []
        for shape in self.shapes:
            array = (rng.standard_normal(shape) * 3).astype(self.dtype)
            if special and array.size > 64 and array.dtype.kind == "f":
                flat = array.reshape(-1)
                flat[:6] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40]
            made.append(array)
        return made

    def trace(self) -> Trace:
        """The function as a graph."""
        return trace(self.function, *(wf.asarray(a) for a in self.arrays(special=False)))


def planned(trace: Trace, limits: Limits) -> GpuProgram:
    """The program of a graph, simplified as a compiled function's is."""
    return plan(rewrite(trace)[0], limits)


def softmax(x: Any) -> Any:
    """Along the last axis."""
    e = wf.exp(x - wf.max(x, axis=-1, keepdims=True))
    return e / wf.sum(e, axis=-1, keepdims=True)


def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    """Along the last axis."""
    centred = x - wf.mean(x, axis=-1, keepdims=True)
    spread = wf.mean(wf.square(centred), axis=-1, keepdims=True)
    return centred / wf.sqrt(spread + 1e-5) * scale + shift


PROGRAMS: dict[str, Program] = {
    "chain": Program(lambda a, b, c: wf.tanh(a * b + c), ((64, 1024),) * 3),
    "chain_tail": Program(lambda a, b, c: wf.tanh(a * b + c), ((1003,),) * 3),
    "gelu": Program(wf.gelu, ((64, 512),)),
    "softmax": Program(softmax, ((64, 1024),)),
    "softmax_odd": Program(softmax, ((7, 777),)),
    "layer_norm": Program(layer_norm, ((64, 1024), (1024,), (1024,))),
    "sum": Program(lambda x: wf.sum(x), ((100_000,),)),
    "row_sums": Program(lambda x: wf.sum(wf.exp(-wf.square(x)), axis=-1), ((9, 3000),)),
    "column_sums": Program(lambda x: wf.sum(x, axis=0), ((300, 70),)),
    "row_maxima": Program(lambda x: wf.max(x, axis=-1), ((9, 700),)),
    "transpose": Program(lambda x: wf.permute_dims(x, (1, 0)) * 2.0, ((96, 200),)),
    "choose": Program(lambda a, b: wf.where(wf.isnan(a), b, wf.minimum(a, b[:1])), ((50, 33),) * 2),
    "matmul": Program(wf.matmul, ((33, 40), (40, 20))),
    "integers": Program(lambda a, b: (a * b + 7) // 3 - a % 5, ((999,), (999,)), np.int32),
    "argmax": Program(lambda x: wf.argmax(x, axis=-1), ((9, 1200),)),
    "half": Program(softmax, ((16, 300),), np.float16),
    "counts": Program(lambda x: wf.sum(wf.astype(x > 0, wf.int32), axis=-1), ((5, 1000),)),
}
