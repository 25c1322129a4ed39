"""`checkpoint` (alias `remat`): forget what a function computed, compute it again when needed.

A policy says which results are kept all the same. They are results of the op beside the function's
own; where the function is computed again for its derivative, they stand for what makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np

from weft.core.common.handler import perform
from weft.core.common.parameters import as_function, shown
from weft.core.common.slots import public
from weft.core.common.trees import tree_unflatten
from weft.core.common.types import Array
from weft.core.graph.node import OutputRefs, Ref
from weft.core.graph.trace import Trace
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias
from weft.errors import DTypeError
from weft.ops.base import Example, Linear, Operation, Tangents, call, call_multiple
from weft.ops.control.graph_call import GraphCall, capture
from weft.ops.control.subgraphs import interned
from weft.transforms.checkpoint_policies import CheckpointPolicy


class Checkpoint(GraphCall):
    """Calls a trace and keeps only its operands for the backward pass, and what a policy keeps.

    Of the trace's outputs the first `results` are the function's; those at `kept` are kept.
    """

    selective = True

    def replayed(self, outs: Any, **params: Any) -> Callable[..., tuple[Any, ...]]:
        trace: Trace = params["trace"]
        known: dict[Ref, Tensor] = {trace.outputs[k]: outs[k] for k in params["kept"]}
        if not known:
            return trace.replay

        def step(node: OutputRefs, args: tuple[Any, ...]) -> tuple[Any, ...]:
            found = perform(node.op, args, node.params)
            made = found if isinstance(found, tuple) else (found,)
            return tuple(
                perform(kept_op, (known[node, slot], x), {}) if (node, slot) in known else x
                for slot, x in enumerate(made)
            )

        return lambda *operands: trace.walk(operands, step)[: params["results"]]


class CheckpointWithEffects(Checkpoint):
    """The same for a function that does something besides computing: it runs at the call."""

    pure = False


class Kept(Operation):
    """A value that is known, beside what makes it, which is not computed: (value, made).

    Derivatives are those of what makes it.
    """

    factors = "..., ... -> ..."
    work = 0
    widen = False
    constants = (0,)
    reasons = dict.fromkeys(("vjp", "jvp"), "it is that of the second operand, whose value is not")

    def eval(self, value: Array, made: Array) -> Array:
        return np.array(np.broadcast_arrays(value, made)[0])

    def body(self, s: Any, value: Any, made: Any) -> Any:
        return value

    def directly(self, *args: Any) -> Tensor | None:
        value, made = args
        return alias(value) if value.shape == made.shape else None

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        return tangents[1]

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return None, ct


class CheckpointName(Operation):
    """The operand itself, with a label that policies of checkpoints ask for."""

    factors = "... -> ..."
    linear = Linear.JOINTLY
    work = 0
    widen = False
    view = True
    examples = (Example({"label": "name"}),)

    def eval(self, x: Array, *, label: str) -> Array:
        return x

    def body(self, s: Any, x: Any, *, label: str) -> Any:
        return x

    def vjp(self, primals: Any, out: Any, ct: Any, *, label: str) -> Tangents:
        return (ct,)


checkpoint_op, checkpoint_with_effects_op = Checkpoint(), CheckpointWithEffects()
kept_op, checkpoint_name_op = Kept(), CheckpointName()


@public
def checkpoint_name(x: Any, name: str) -> Tensor:
    """`x`, under a name that `wf.checkpoint_policies.save_only_these_names` knows it by.

    >>> checkpoint_name([1.0, 2.0], "scores").tolist()
    [1.0, 2.0]
    """
    if not isinstance(name, str):
        raise DTypeError(f"checkpoint_name: name must be text, got {shown(name)}")
    return call(checkpoint_name_op, (to_tensor(x, op="checkpoint_name"),), {"label": name})


@public
def checkpoint(
    function: Callable[..., Any] | None = None, *, policy: CheckpointPolicy | None = None
) -> Callable[..., Any]:
    """The same function, but reverse mode stores only its arguments and recomputes the rest.

    It trades time for memory: wrap the layers of a deep model. The function is traced, so Python
    may not read values inside. A `policy` says which results are stored as well: one of
    `wf.checkpoint_policies`, or a function of an op's name and parameters.
    """
    if policy is not None:
        as_function("checkpoint", "policy", policy)
    if function is None:
        return lambda f: checkpoint(f, policy=policy)
    as_function("checkpoint", "function", function)

    @wraps(function)
    def recomputed(*args: Any, **keywords: Any) -> Any:
        trace, operands, shape = capture(function, args, keywords, label="checkpoint")
        if not operands:  # nothing to recompute from: a constant
            return tree_unflatten(shape, trace.replay())
        op = checkpoint_with_effects_op if trace.effects else checkpoint_op
        count = len(trace.outputs)
        trace, kept = _keeping(trace, policy)
        params = {"trace": trace, "kept": kept, "results": count}
        return tree_unflatten(shape, call_multiple(op, operands, params)[:count])

    return recomputed


def _keeping(trace: Trace, policy: CheckpointPolicy | None) -> tuple[Trace, tuple[int, ...]]:
    """The trace with what a policy keeps among its outputs, and where it is among them."""
    if policy is None:
        return trace, ()
    wanted = [
        (node, slot)
        for node in trace.nodes
        if (not node.op.view or node.op is checkpoint_name_op) and policy(node.name, node.params)
        for slot in range(len(node.types))
    ]
    outputs = (*trace.outputs, *(ref for ref in wanted if ref not in trace.outputs))
    return interned(replace(trace, outputs=outputs)), tuple(map(outputs.index, wanted))


remat = checkpoint
