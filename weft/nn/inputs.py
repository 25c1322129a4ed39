"""What layers are given, checked: an error names the layer, what it expected and what it got."""

from __future__ import annotations

from typing import Any

import weft as wf
from weft.core.common.parameters import as_integer
from weft.core.common.trees import tree_leaves
from weft.core.tensor.convert import to_tensor
from weft.errors import ArgumentError, ShapeError
from weft.nn.init import Initializer


def given_to(layer: Any, x: Any, *beside: Any) -> wf.Tensor:
    """`x` as a tensor; what is none yet becomes one where the layer, or what is beside it, is."""
    if isinstance(x, wf.Tensor):
        return x
    kind = type(layer).__name__
    if isinstance(x, tuple) and any(isinstance(each, wf.Tensor) for each in tree_leaves(x)):
        raise ArgumentError(
            f"{kind}: expected a tensor, got a tuple of {len(x)} results"
            "\nhint: take one of them; in a chain, by a function behind the layer that gives them:"
            " nn.Sequential(gru, lambda found: found[0], ...)"
        )
    return to_tensor(x, beside=(*tree_leaves(layer), *beside), op=kind)


def features_last(layer: Any, name: str, x: Any, size: int) -> wf.Tensor:
    """`x` as a tensor (…, size)."""
    kind = type(layer).__name__
    tensor = given_to(layer, x)
    if tensor.ndim < 1 or tensor.shape[-1] != size:
        turned = tensor.ndim > 1 and tensor.shape[-2] == size
        hint = "swap its last two axes" if turned else f"its last axis must have {size} features"
        raise ShapeError(
            f"{kind}: {name}: expected shape (…, {size}), got {tensor.shape}\nhint: {hint}"
        )
    return tensor


def features_second(layer: Any, x: Any, features: int, least: int = 2) -> wf.Tensor:
    """`x` as a tensor (N, features, …) with at least `least` axes."""
    kind = type(layer).__name__
    tensor = given_to(layer, x)
    if tensor.ndim < least or tensor.shape[1] != features:
        last = tensor.ndim >= least and tensor.shape[-1] == features
        hint = "move the features from the last axis" if last else "features are axis 1"
        raise ShapeError(
            f"{kind}: x: expected shape (N, {features}, …), got {tensor.shape}\nhint: {hint}"
        )
    return tensor


def sizes(kind: str, **given: Any) -> tuple[int, ...]:
    """Positive integers, each an argument of a layer."""
    return tuple(as_integer(kind, name, value, low=1) for name, value in given.items())


def divided(kind: str, what: str, size: int, by: str, count: int) -> int:
    """How many of `size` each of `count` parts has; they must come out even."""
    if size % count:
        raise ArgumentError(f"{kind}: {what} {size} cannot be divided by {by} {count}")
    return size // count


def uniform_within(bound: float) -> Initializer:
    """Even numbers between -bound and bound."""

    def make(key: Any, shape: Any, dtype: Any = None) -> wf.Tensor:
        return wf.random.uniform(key, shape, dtype, -bound, bound)

    return make


def keys_of(key: Any, count: int) -> list[wf.Tensor]:
    """`count` independent keys made of one."""
    rows = wf.random.split(key, count)
    return [rows[i] for i in range(count)]
