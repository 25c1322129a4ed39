"""`checkpoint` (alias `remat`): forget what a function computed, compute it again when needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from weft.core.common.parameters import as_function
from weft.core.common.slots import public
from weft.core.common.trees import tree_unflatten
from weft.ops.base import call_multiple
from weft.ops.control.graph_call import GraphCall, capture


class Checkpoint(GraphCall):
    """Calls a trace and keeps only its operands for the backward pass."""

    selective = True


class CheckpointWithEffects(Checkpoint):
    """The same for a function that does something besides computing: it runs at the call."""

    pure = False


checkpoint_op, checkpoint_with_effects_op = Checkpoint(), CheckpointWithEffects()


@public
def checkpoint(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, but reverse mode stores only its arguments and recomputes the rest.

    It trades time for memory: wrap the layers of a deep model. The function is traced, so Python
    may not read values inside.
    """
    as_function("checkpoint", "function", function)

    @wraps(function)
    def recomputed(*args: Any, **keywords: Any) -> Any:
        trace, operands, shape = capture(function, args, keywords, label="checkpoint")
        if not operands:  # nothing to recompute from: a constant
            return tree_unflatten(shape, trace.replay())
        op = checkpoint_with_effects_op if trace.effects else checkpoint_op
        return tree_unflatten(shape, call_multiple(op, operands, {"trace": trace}))

    return recomputed


remat = checkpoint
