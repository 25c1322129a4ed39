"""Which dtype a model computes in: an explicit value, applied where it is written.

    policy = nn.Policy(compute="bfloat16")
    loss = lambda model, x: nn.losses.mse(policy.output(policy.cast(model)(policy.cast(x))), y)

Casting is an op like any other, so gradients come back in the parameters' own dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import weft as wf
from weft.core.common import dtypes
from weft.core.common.context import default_float
from weft.core.common.trees import tree_flatten, tree_map, tree_unflatten
from weft.errors import DTypeError
from weft.nn.names import entries


def _is_float(value: Any) -> bool:
    return isinstance(value, wf.Tensor | np.ndarray) and dtypes.is_floating(value.dtype)


@dataclass(frozen=True)
class Policy:
    """Dtypes of parameters, of computation and of results; only floats are ever cast."""

    compute: Any = "float32"
    parameters: Any = "float32"
    results: Any = "float32"

    def __post_init__(self) -> None:
        for name in ("compute", "parameters", "results"):
            dtype = dtypes.as_dtype(getattr(self, name), default_float=default_float())
            if not dtypes.is_floating(dtype):
                raise DTypeError(f"Policy: {name}: expected a float, got {dtypes.name_of(dtype)}")
            object.__setattr__(self, name, dtype)

    def cast(self, tree: Any) -> Any:
        """A model or data in the dtype of computation; buffers keep theirs."""
        leaves, structure = tree_flatten(tree)
        rows = zip(leaves, entries(tree), strict=True)
        made = [
            wf.astype(leaf, self.compute) if _is_float(leaf) and not entry.is_buffer else leaf
            for leaf, entry in rows
        ]
        return tree_unflatten(structure, made)

    def cast_parameters(self, tree: Any) -> Any:
        """A model in the dtype its parameters are kept in."""
        return tree_map(lambda x: wf.astype(x, self.parameters) if _is_float(x) else x, tree)

    def output(self, tree: Any) -> Any:
        """Results in the dtype losses are taken in."""
        return tree_map(lambda x: wf.astype(x, self.results) if _is_float(x) else x, tree)
