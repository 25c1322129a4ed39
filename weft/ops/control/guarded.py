"""Subgraphs that run for rows whose results nobody takes: those are not checked.

Where a choice is mapped over, all branches run for all rows, and a loop goes on while any row does.
A position out of range, or a matrix without an inverse, in a row that a plain call would not have
run there is no mistake, nor is a NaN for those who watch for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.core.common import dtypes
from weft.core.common.handler import perform
from weft.core.common.slots import FUNCTIONS
from weft.core.common.source import Position, blamed, positions_wanted, spare
from weft.core.graph.node import OutputRefs
from weft.core.graph.trace import Trace, subgraphs
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.tracing import trace_tree
from weft.ops.base import Operation, call_multiple
from weft.ops.control.graph_call import GraphCall
from weft.ops.control.subgraphs import Flags, SubgraphOperation, batched
from weft.ops.families import cast
from weft.ops.gather import Gather, Scatter, checks_positions
from weft.ops.matrices import MatrixOperation


def batched_where(trace: Trace, size: int, varies: Flags, wanted: Flags) -> Callable[..., Any]:
    """The same as `batched`, with a mask of the rows that count as one more operand in front."""
    if not (positions_wanted() or (any(varies) and has_checks(trace))):
        plain = batched(trace, size, varies, wanted)
        return lambda mask, *tensors: plain(*tensors)
    axes = (0, *(0 if v else None for v in varies))
    places = tuple(0 if w else None for w in wanted)
    mapped: Callable[..., Any] = FUNCTIONS["vmap_again"](guarded(trace, varies), axes, places, size)
    return mapped


def has_checks(trace: Trace) -> bool:
    """Whether a subgraph, or one inside of it, refuses some positions or matrices."""
    return any(
        _checks(node)
        or isinstance(node.op, MatrixOperation)
        or any(map(has_checks, subgraphs(node.params)))
        for node in trace.nodes
    )


def guarded(trace: Trace, varies: Flags | None = None) -> Callable[..., tuple[Tensor, ...]]:
    """The subgraph with one more operand in front: whether what it computes counts.

    Where it does not, positions that depend on inputs that vary are 0, which is in range, and
    matrices are the identity.
    """
    moving = set(trace.inputs)
    if varies is not None:
        moving = {node for node, v in zip(trace.inputs, varies, strict=True) if v}
    for node in trace.nodes:
        if any(source in moving for source, _ in node.inputs):
            moving.add(node)

    def of_node(counts: Tensor, node: OutputRefs, args: tuple[Tensor, ...]) -> Any:
        if node in moving and any(map(has_checks, subgraphs(node.params))):
            if isinstance(node.op, SubgraphOperation):
                return node.op.guard(counts, args, **node.params)
            if isinstance(node.op, GraphCall):
                return _guard_call(node.op, counts, args, **node.params)
        elif isinstance(node.op, MatrixOperation) and node.inputs[0][0] in moving:
            a, *rest = args
            identity = FUNCTIONS["eye"](*a.shape[-2:], dtype=a.dtype, device=a.device)
            args = (FUNCTIONS["where"](counts, a, identity), *rest)
        elif _checks(node) and node.inputs[1][0] in moving:
            x, positions, *rest = args
            args = (x, positions * cast(counts, positions.dtype), *rest)
        return perform(node.op, args, node.params)

    def function(counts: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        def step(node: OutputRefs, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            if positions_wanted():
                return _watched(counts, node.position, lambda: of_node(counts, node, args))
            return as_tuple(of_node(counts, node, args))

        return trace.walk(tensors, step)

    return function


def _guard_call(
    op: Operation, counts: Tensor, args: tuple[Tensor, ...], *, trace: Trace, **params: Any
) -> Any:
    """Call a captured function whose last operand, beside constants, is whether it counts."""

    def last(*tensors: Tensor) -> tuple[Tensor, ...]:
        return guarded(trace)(tensors[-1], *tensors[:-1])

    given = (*args, counts)
    made, _ = trace_tree(last, given, {})
    return call_multiple(op, (*given, *made.captures), {**params, "trace": made})


def _watched(
    counts: Tensor, position: Position | None, run: Callable[[], Any]
) -> tuple[Tensor, ...]:
    """Results of a call, which those who watch for NaN see only in the rows that count."""
    with blamed(position):
        with spare():
            made = as_tuple(run())
        for x in made:
            if dtypes.is_inexact(x.dtype):
                FUNCTIONS["where"](counts, x, 0)
    return made


def as_tuple(result: Any) -> tuple[Tensor, ...]:
    """What an op gave, one tensor or several, as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def _checks(node: OutputRefs) -> bool:
    return isinstance(node.op, Gather | Scatter) and checks_positions(node.params, ())
