"""Optimisers: chains of the parts in `steps`, with torch's names and defaults."""

from __future__ import annotations

from typing import Any

from weft.core.common.parameters import as_flag
from weft.errors import ArgumentError
from weft.optim.relatives import (
    scale_by_adadelta,
    scale_by_adagrad,
    scale_by_adamax,
    scale_by_nadam,
    scale_by_radam,
    scale_by_trust_ratio,
)
from weft.optim.steps import (
    Rate,
    add_decayed_weights,
    add_momentum,
    scale_by_adam,
    scale_by_lion,
    scale_by_rate,
    scale_by_rms,
)
from weft.optim.transform import (
    Setting,
    Transform,
    as_setting,
    chain,
    is_zero,
    remade,
)


def _betas(op: str, betas: Any) -> tuple[Any, Any]:
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise ArgumentError(f"{op}: betas: expected two numbers, got {betas!r}")
    first, second = (as_setting(op, "betas", b, 0, 1) for b in betas)
    return first, second


@remade
def sgd(
    learning_rate: Rate,
    momentum: Setting = 0.0,
    nesterov: bool = False,
    weight_decay: Setting = 0.0,
    mask: Any = None,
) -> Transform:
    """Gradient descent, with momentum; `weight_decay` is added to the gradients, as in torch."""
    if as_flag("sgd", "nesterov", nesterov) and is_zero(momentum):
        raise ArgumentError("sgd: nesterov needs a momentum\nhint: sgd(rate, momentum=0.9, ...)")
    parts = [add_decayed_weights(weight_decay, mask)]
    if not is_zero(momentum):
        parts.append(add_momentum(momentum, nesterov))
    return chain(*parts, scale_by_rate(learning_rate))


@remade
def adam(
    learning_rate: Rate = 1e-3,
    betas: tuple[Setting, Setting] = (0.9, 0.999),
    eps: Setting = 1e-8,
    weight_decay: Setting = 0.0,
    mask: Any = None,
    amsgrad: bool = False,
) -> Transform:
    """Adam; `weight_decay` is added to the gradients (`adamw` keeps it apart from them).

    With `amsgrad` steps never grow because squares are forgotten: the largest mean counts.
    """
    return chain(
        add_decayed_weights(weight_decay, mask),
        scale_by_adam(*_betas("adam", betas), eps, amsgrad),
        scale_by_rate(learning_rate),
    )


@remade
def adamw(
    learning_rate: Rate = 1e-3,
    betas: tuple[Setting, Setting] = (0.9, 0.999),
    eps: Setting = 1e-8,
    weight_decay: Setting = 0.01,
    mask: Any = None,
    amsgrad: bool = False,
) -> Transform:
    """Adam with weight decay apart from the gradients.

    `mask` says which parameters decay, as in `optim.split`: `optim.matrices`, `"*.weight"`.
    """
    return chain(
        scale_by_adam(*_betas("adamw", betas), eps, amsgrad),
        add_decayed_weights(weight_decay, mask),
        scale_by_rate(learning_rate),
    )


@remade
def lion(
    learning_rate: Rate = 1e-4,
    betas: tuple[Setting, Setting] = (0.9, 0.99),
    weight_decay: Setting = 0.0,
    mask: Any = None,
) -> Transform:
    """Steps of one size: the sign of a mean of gradient and momentum, and weight decay."""
    return chain(
        scale_by_lion(*_betas("lion", betas)),
        add_decayed_weights(weight_decay, mask),
        scale_by_rate(learning_rate),
    )


@remade
def rmsprop(
    learning_rate: Rate = 1e-2,
    alpha: Setting = 0.99,
    eps: Setting = 1e-8,
    weight_decay: Setting = 0.0,
    momentum: Setting = 0.0,
    centered: bool = False,
    mask: Any = None,
) -> Transform:
    """Gradients over the root of the running mean of their squares."""
    parts = [add_decayed_weights(weight_decay, mask), scale_by_rms(alpha, eps, centered)]
    if not is_zero(momentum):
        parts.append(add_momentum(momentum))
    return chain(*parts, scale_by_rate(learning_rate))


@remade
def adagrad(
    learning_rate: Rate = 1e-2,
    weight_decay: Setting = 0.0,
    initial_accumulator_value: Setting = 0.0,
    eps: Setting = 1e-10,
    mask: Any = None,
) -> Transform:
    """Gradients over the root of the sum of their squares; a schedule takes `lr_decay`'s place."""
    return chain(
        add_decayed_weights(weight_decay, mask),
        scale_by_adagrad(initial_accumulator_value, eps),
        scale_by_rate(learning_rate),
    )


@remade
def adadelta(
    learning_rate: Rate = 1.0,
    rho: Setting = 0.9,
    eps: Setting = 1e-6,
    weight_decay: Setting = 0.0,
    mask: Any = None,
) -> Transform:
    """Steps as large as those before, over gradients as large: nearly no rate to choose."""
    return chain(
        add_decayed_weights(weight_decay, mask),
        scale_by_adadelta(rho, eps),
        scale_by_rate(learning_rate),
    )


@remade
def adamax(
    learning_rate: Rate = 2e-3,
    betas: tuple[Setting, Setting] = (0.9, 0.999),
    eps: Setting = 1e-8,
    weight_decay: Setting = 0.0,
    mask: Any = None,
) -> Transform:
    """Adam by the largest gradients in place of squares."""
    return chain(
        add_decayed_weights(weight_decay, mask),
        scale_by_adamax(*_betas("adamax", betas), eps),
        scale_by_rate(learning_rate),
    )


@remade
def nadam(
    learning_rate: Rate = 2e-3,
    betas: tuple[Setting, Setting] = (0.9, 0.999),
    eps: Setting = 1e-8,
    weight_decay: Setting = 0.0,
    momentum_decay: Setting = 4e-3,
    decoupled_weight_decay: bool = False,
    mask: Any = None,
) -> Transform:
    """Adam with Nesterov's momentum; `decoupled_weight_decay` is that of `adamw`."""
    part = scale_by_nadam(*_betas("nadam", betas), eps, momentum_decay)
    decoupled = as_flag("nadam", "decoupled_weight_decay", decoupled_weight_decay)
    return _decayed(part, weight_decay, mask, decoupled, learning_rate)


@remade
def radam(
    learning_rate: Rate = 1e-3,
    betas: tuple[Setting, Setting] = (0.9, 0.999),
    eps: Setting = 1e-8,
    weight_decay: Setting = 0.0,
    decoupled_weight_decay: bool = False,
    mask: Any = None,
) -> Transform:
    """Adam that needs no warm-up; `decoupled_weight_decay` is that of `adamw`."""
    part = scale_by_radam(*_betas("radam", betas), eps)
    decoupled = as_flag("radam", "decoupled_weight_decay", decoupled_weight_decay)
    return _decayed(part, weight_decay, mask, decoupled, learning_rate)


def _decayed(
    part: Transform, weight_decay: Setting, mask: Any, decoupled: bool, rate: Rate
) -> Transform:
    """A chain with weight decay behind the part, or in the gradients before it."""
    decay = add_decayed_weights(weight_decay, mask)
    ordered = (part, decay) if decoupled else (decay, part)
    return chain(*ordered, scale_by_rate(rate))


@remade
def lamb(
    learning_rate: Rate = 1e-3,
    betas: tuple[Setting, Setting] = (0.9, 0.999),
    eps: Setting = 1e-6,
    weight_decay: Setting = 0.0,
    mask: Any = None,
) -> Transform:
    """AdamW whose steps are scaled to the norm of each parameter: for very large batches."""
    return chain(
        scale_by_adam(*_betas("lamb", betas), eps),
        add_decayed_weights(weight_decay, mask),
        scale_by_trust_ratio(),
        scale_by_rate(learning_rate),
    )
