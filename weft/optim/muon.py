"""Muon: momentum of matrices made orthogonal, and another optimiser for all other tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import weft as wf
from weft.core.common.context import current_device
from weft.core.common.parameters import as_choice, as_flag, as_integer
from weft.core.common.trees import tree_flatten, tree_map, tree_unflatten
from weft.errors import ShapeError
from weft.nn.parameters import combine
from weft.optim.optimizers import adamw
from weft.optim.steps import MomentumState, Rate, add_decayed_weights, scale_by_rate
from weft.optim.transform import (
    Setting,
    Transform,
    as_setting,
    as_transform,
    blended,
    chain,
    mask_for,
    place_of,
    remade,
    settled,
    widened,
    with_state,
    zeros_for,
)

_COEFFICIENTS = (3.4445, -4.775, 2.0315)  # steep at 0: small singular values grow quickest


def orthogonalize(matrix: Any, steps: int = 5, eps: float = 1e-7, dtype: Any = None) -> wf.Tensor:
    """A matrix with the singular vectors of the given one, and singular values near 1.

    Newton-Schulz: X ← aX + b(XXᵀ)X + c(XXᵀ)²X, `steps` times, in `dtype` (its own by default).
    """
    a, b, c = _COEFFICIENTS
    x: Any = widened(wf.asarray(matrix)) if dtype is None else wf.astype(matrix, dtype)
    if x.ndim < 2:
        raise ShapeError(f"orthogonalize: expected a matrix (…, rows, columns), got {x.shape}")
    tall = x.shape[-2] > x.shape[-1]
    x = wf.matrix_transpose(x) if tall else x
    x = x / wf.maximum(wf.sqrt(wf.sum(x * x, axis=(-2, -1), keepdims=True)), eps)
    for _ in range(steps):
        gram = x @ wf.matrix_transpose(x)
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    made = wf.matrix_transpose(x) if tall else x
    return wf.astype(made, widened(matrix).dtype)


@remade
def scale_by_muon(
    momentum: Setting = 0.95,
    nesterov: bool = True,
    steps: int = 5,
    adjust: str = "original",
    dtype: Any = None,
) -> Transform:
    """Orthogonal momentum, scaled by √max(1, rows / columns), or to the size of AdamW's steps."""
    rate = as_setting("muon", "momentum", momentum, 0, 1)
    ahead = as_flag("muon", "nesterov", nesterov)
    rounds = as_integer("muon", "steps", steps, low=1, high=100)
    as_choice("muon", "adjust", adjust, ("original", "match_rms_adamw"))

    def direction(matrix: Any) -> Any:
        rows, columns = matrix.shape[-2:]
        found: Any = orthogonalize(matrix, rounds, dtype=dtype)
        if adjust == "original":
            return found * max(1.0, rows / columns) ** 0.5
        return found * (0.2 * max(rows, columns) ** 0.5)

    @with_state("muon", MomentumState, "momentum")
    def update(gradients: Any, state: MomentumState, params: Any = None) -> tuple[Any, Any]:
        wide = tree_map(widened, gradients)
        moved = tree_map(lambda g, m: blended(rate, m, g), wide, state.momentum)
        ahead_of = tree_map(
            lambda g, m: g + settled(rate, m) * (m - g) if ahead else m, wide, moved
        )
        return _map_together(direction, ahead_of), MomentumState(moved)

    return Transform(lambda params: MomentumState(zeros_for(params)), update)


def _map_together(function: Any, tree: Any) -> Any:
    """Map a function over leaves, all leaves of one type at once: it takes leading axes."""
    leaves, structure = tree_flatten(tree)
    groups: dict[Any, list[int]] = {}
    for place, leaf in enumerate(leaves):
        groups.setdefault((leaf.shape, leaf.dtype, leaf.device), []).append(place)
    made = list(leaves)
    for places in groups.values():
        found = function(wf.stack([leaves[i] for i in places]))
        for row, place in enumerate(places):
            made[place] = found[row]
    return tree_unflatten(structure, made)


class SplitState(NamedTuple):
    """The states of the two transformations of `split`."""

    chosen: Any
    others: Any


@remade
def split(mask: Any, chosen: Transform, others: Transform) -> Transform:
    """One transformation for the parameters that a mask chooses, another for the others.

    A mask is a tree of bools, of which one may stand for all below it, a function of the
    parameters that gives such a tree, or patterns of names. Splits within splits make more groups.

    >>> rest = wf.optim.split("*.bias", wf.optim.sgd(0.1), wf.optim.adamw(0.1))
    >>> groups = wf.optim.split("encoder.*", wf.optim.sgd(0.01), rest)
    """
    as_transform("split", "chosen", chosen)
    as_transform("split", "others", others)

    def parts(tree: Any, params: Any) -> tuple[Any, Any]:
        found = mask_for("split", mask, params)
        return (
            tree_map(lambda x, m: x if m else None, tree, found),
            tree_map(lambda x, m: None if m else x, tree, found),
        )

    def init(params: Any) -> SplitState:
        first, second = parts(params, params)
        with wf.default_device(place_of(params) or current_device()):  # one may have no parameter
            return SplitState(chosen.init(first), others.init(second))

    @with_state("split", SplitState)
    def update(gradients: Any, state: SplitState, params: Any = None) -> tuple[Any, Any]:
        known = gradients if params is None else params
        slopes, points = parts(gradients, known), parts(known, known)
        if params is None:
            points = (None, None)
        one, first = chosen.update(slopes[0], state.chosen, points[0])
        two, second = others.update(slopes[1], state.others, points[1])
        return combine(one, two), SplitState(first, second)

    return Transform(init, update)


def _two_axes(params: Any) -> Any:
    return tree_map(lambda p: p.ndim == 2, params)


@remade
def muon(
    learning_rate: Rate = 1e-3,
    momentum: Setting = 0.95,
    nesterov: bool = True,
    weight_decay: Setting = 0.1,
    steps: int = 5,
    adjust: str = "original",
    fallback: Transform | None = None,
    mask: Any = None,
    dtype: Any = None,
) -> Transform:
    """Orthogonal steps for matrices, `fallback` (AdamW of the same rate) for all other tensors.

    `mask` chooses what counts as a matrix, by default every tensor of two axes: tables of
    embeddings and the last layer do better with the fallback.
    """
    others = adamw(learning_rate, weight_decay=0.0) if fallback is None else fallback
    own = chain(
        scale_by_muon(momentum, nesterov, steps, adjust, dtype),
        add_decayed_weights(weight_decay),
        scale_by_rate(learning_rate),
    )
    return split(_two_axes if mask is None else mask, own, others)
