"""Which results a checkpoint keeps: policies for `wf.checkpoint(f, policy=…)`, by JAX's names.

A policy is a function of a call: of the name of its op, as the page of ops lists them, and of its
parameters. It says whether the call's results are kept for the backward pass; what is not kept is
computed again. What happens inside of loops and branches is part of one call.

    wf.checkpoint(layer, policy=wf.checkpoint_policies.dots_saveable)
    wf.checkpoint(layer, policy=lambda op, params: op in ("matmul", "exp"))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from weft.core.common.parameters import as_function, shown
from weft.errors import DTypeError

CheckpointPolicy: TypeAlias = Callable[[str, Mapping[str, Any]], bool]


def everything_saveable(op: str, params: Mapping[str, Any]) -> bool:
    """Keep all results, as without a checkpoint."""
    return True


def nothing_saveable(op: str, params: Mapping[str, Any]) -> bool:
    """Keep nothing but the arguments: what a checkpoint does without a policy."""
    return False


def dots_saveable(op: str, params: Mapping[str, Any]) -> bool:
    """Keep matrix products and convolutions, which take long to compute again.

    >>> dots_saveable("matmul", {}), dots_saveable("exp", {})
    (True, False)
    """
    return op in ("matmul", "conv")


def save_only_these_names(*names: str) -> CheckpointPolicy:
    """Keep what `wf.checkpoint_name` has given one of these names."""
    for name in names:
        if not isinstance(name, str):
            raise DTypeError(f"save_only_these_names: a name must be text, got {shown(name)}")

    def policy(op: str, params: Mapping[str, Any]) -> bool:
        return op == "checkpoint_name" and params["label"] in names

    return policy


def save_from_both_policies(first: CheckpointPolicy, second: CheckpointPolicy) -> CheckpointPolicy:
    """Keep what either policy keeps."""
    as_function("save_from_both_policies", "first", first)
    as_function("save_from_both_policies", "second", second)
    return lambda op, params: first(op, params) or second(op, params)


__all__ = [
    "dots_saveable",
    "everything_saveable",
    "nothing_saveable",
    "save_from_both_policies",
    "save_only_these_names",
]
