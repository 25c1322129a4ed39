"""Optimisers: chains of the parts in `steps`, with torch's names and defaults."""

from __future__ import annotations

from typing import Any

from weft.core.common.parameters import as_flag, as_real
from weft.errors import ArgumentError
from weft.optim.steps import (
    Rate,
    add_decayed_weights,
    add_momentum,
    scale_by_adam,
    scale_by_lion,
    scale_by_rate,
    scale_by_rms,
)
from weft.optim.transform import Transform, chain


def _betas(op: str, betas: Any) -> tuple[float, float]:
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise ArgumentError(f"{op}: betas: expected two numbers, got {betas!r}")
    first, second = (as_real(op, "betas", b, 0, 1) for b in betas)
    return first, second


def sgd(
    learning_rate: Rate,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    mask: Any = None,
) -> Transform:
    """Gradient descent, with momentum; `weight_decay` is added to the gradients, as in torch."""
    if as_flag("sgd", "nesterov", nesterov) and not momentum:
        raise ArgumentError("sgd: nesterov needs a momentum\nhint: sgd(rate, momentum=0.9, ...)")
    parts = [add_decayed_weights(weight_decay, mask)]
    if momentum:
        parts.append(add_momentum(momentum, nesterov))
    return chain(*parts, scale_by_rate(learning_rate))


def adam(
    learning_rate: Rate = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    mask: Any = None,
) -> Transform:
    """Adam; `weight_decay` is added to the gradients (`adamw` keeps it apart from them)."""
    return chain(
        add_decayed_weights(weight_decay, mask),
        scale_by_adam(*_betas("adam", betas), eps),
        scale_by_rate(learning_rate),
    )


def adamw(
    learning_rate: Rate = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    mask: Any = None,
) -> Transform:
    """Adam with weight decay apart from the gradients; `mask` says which parameters decay."""
    return chain(
        scale_by_adam(*_betas("adamw", betas), eps),
        add_decayed_weights(weight_decay, mask),
        scale_by_rate(learning_rate),
    )


def lion(
    learning_rate: Rate = 1e-4,
    betas: tuple[float, float] = (0.9, 0.99),
    weight_decay: float = 0.0,
    mask: Any = None,
) -> Transform:
    """Steps of one size: the sign of a mean of gradient and momentum, and weight decay."""
    return chain(
        scale_by_lion(*_betas("lion", betas)),
        add_decayed_weights(weight_decay, mask),
        scale_by_rate(learning_rate),
    )


def rmsprop(
    learning_rate: Rate = 1e-2,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    centered: bool = False,
    mask: Any = None,
) -> Transform:
    """Gradients over the root of the running mean of their squares."""
    parts = [add_decayed_weights(weight_decay, mask), scale_by_rms(alpha, eps, centered)]
    if momentum:
        parts.append(add_momentum(momentum))
    return chain(*parts, scale_by_rate(learning_rate))
