"""`GraphCall`: a captured function as one op — the base of checkpoints and custom derivatives.

Its rules are those of the recorded calls inside, found by replaying the trace under a transform.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.parameters import as_function
from weft.core.common.slots import FUNCTIONS
from weft.core.common.trees import PyTreeDef, tree_flatten, tree_unflatten
from weft.core.common.types import TensorType
from weft.core.graph.trace import Trace
from weft.core.tensor.number import Number
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.tracing import trace_tree
from weft.ops.base import Cost, Operation, Tangents, Tensors, call_multiple
from weft.ops.control.subgraphs import interned, owned_results


class GraphCall(Operation):
    """Calls a trace; operands are its inputs, captured tensors last."""

    multiple = True
    leaf = False
    reasons = {
        "notation": "its notation is that of the calls inside",
        "kernel": "its kernels are those of the calls inside",
        "examples": "takes a trace, which is made at the call",
    }

    def infer(self, *types: TensorType, trace: Trace, **params: Any) -> tuple[TensorType, ...]:
        return trace.output_types

    def places(self, **params: Any) -> tuple[Any, ...]:
        trace: Trace = params["trace"]
        return trace.output_devices

    def eval(self, *arrays: Any, trace: Trace, **params: Any) -> tuple[Any, ...]:
        return owned_results(trace.run(arrays), arrays)

    def cost(self, *types: TensorType, trace: Trace, **params: Any) -> Cost:
        costs = [
            node.op.cost(*(source.types[slot] for source, slot in node.inputs), **node.params)
            for node in trace.nodes
        ]
        return Cost(sum(c.flops for c in costs), sum(c.bytes for c in costs))

    def jvp(self, *args: Any, **params: Any) -> Any:
        primals, tangents, _ = args
        places = [i for i, t in enumerate(tangents) if t is not None]
        moved = [tangents[i] for i in places]
        at = _at_places(params["trace"].replay, primals, places)
        return FUNCTIONS["jvp"](at, tuple(primals[i] for i in places), tuple(moved))[1]

    def vjp(self, *args: Any, **params: Any) -> Tangents:
        primals, outs, ct = args
        needed = params.get("needed", (True,) * len(primals))
        places = [i for i in inexact_places(primals) if needed[i]]
        at = _at_places(self.replayed(outs, **params), primals, places)
        found, pullback = FUNCTIONS["vjp"](at, *(primals[i] for i in places))
        return scattered(pullback(tuple(ct[: len(found)])), places, len(primals))

    def replayed(self, outs: Any, **params: Any) -> Callable[..., tuple[Any, ...]]:
        """What `vjp` differentiates: the calls once more, for the first of the results or all."""
        trace: Trace = params["trace"]
        return trace.replay

    def batch(self, *arguments: Any, **params: Any) -> Any:
        size, args, hidden = arguments
        mapped, operands = batched_trace(params["trace"], args, hidden, size)
        results = call_multiple(self, operands, {**params, "trace": mapped})
        return results, (True,) * len(results)


def inexact_places(tensors: Tensors) -> list[int]:
    """Positions of the operands that can carry a derivative."""
    return [i for i, x in enumerate(tensors) if dtypes.is_inexact(x.dtype)]


def scattered(values: Any, places: list[int], count: int) -> Tangents:
    """Values at their places among `count`, None elsewhere."""
    found: list[Tensor | None] = [None] * count
    for place, value in zip(places, values, strict=True):
        found[place] = value
    return tuple(found)


def _at_places(function: Callable[..., Any], args: Tensors, places: list[int]) -> Any:
    def run(*values: Tensor) -> Any:
        full = list(args)
        for place, value in zip(places, values, strict=True):
            full[place] = value
        return function(*full)

    return run


def batched_trace(trace: Trace, args: Tensors, hidden: Any, size: int) -> tuple[Trace, Tensors]:
    """The trace that maps another over the leading axes of the operands marked in `hidden`.

    Gives its operands too: batching rules may make constants, which come last.
    """
    axes = tuple(0 if h else None for h in hidden)
    mapped = FUNCTIONS["vmap_again"](trace.replay, axes, 0, size)
    made, _ = trace_tree(mapped, tuple(args), {})
    return made, (*args, *made.captures)


def is_data(x: Any) -> bool:
    """Whether a leaf of arguments is an operand; numbers, strings and the like are constants."""
    return isinstance(x, Tensor | np.ndarray) and not isinstance(x, Number)


def capture(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    keywords: dict[str, Any],
    constants: bool = True,
    label: str = "trace",
) -> tuple[Trace, Tensors, PyTreeDef]:
    """Trace a function on its tensor arguments; numbers, strings and the like stay constants.

    Gives the trace, its operands (arguments, then captures) and the result's structure. Without
    `constants` every leaf must be a tensor or a number.
    """
    as_function(label, "function", function)
    leaves, structure = tree_flatten((args, keywords))
    places = [i for i, x in enumerate(leaves) if not constants or is_data(x)]
    operands = tuple(FUNCTIONS["asarray"](leaves[i]) for i in places)

    def of_tensors(*values: Tensor) -> Any:
        full = list(leaves)
        for place, value in zip(places, values, strict=True):
            full[place] = value
        positional, named = tree_unflatten(structure, full)
        return function(*positional, **named)

    of_tensors.__name__ = getattr(function, "__name__", "function")
    trace, shape = trace_tree(of_tensors, operands, {}, label)
    operands = (*operands, *trace.captures)
    return interned(replace(trace, captures=())) if operands else trace, operands, shape
