"""The parts optimisers are chained of: clipping, momentum, scaling, weight decay, the rate."""

from __future__ import annotations

from math import log
from typing import Any, NamedTuple, TypeAlias

import weft as wf
from weft.core.common.parameters import as_finite, as_flag, shown
from weft.core.common.trees import tree_map
from weft.errors import ArgumentError
from weft.optim.schedules import Schedule
from weft.optim.transform import (
    Setting,
    Transform,
    as_setting,
    beside,
    blended,
    by_dtype,
    first_count,
    global_norm,
    is_zero,
    mask_for,
    needed,
    remade,
    settled,
    stateless,
    trained,
    widened,
    with_state,
    zeros_for,
)

Rate: TypeAlias = "float | wf.Tensor | Schedule"


class RateState(NamedTuple):
    """How many steps a schedule has seen."""

    steps: wf.Tensor


class MomentumState(NamedTuple):
    """The running sum of gradients."""

    momentum: Any


class AdamState(NamedTuple):
    """Steps taken, the running means of gradients and of their squares, and the largest of these.

    The largest are None unless `amsgrad` asks for them.
    """

    steps: wf.Tensor
    mean: Any
    square: Any
    largest: Any = None


class SquareState(NamedTuple):
    """Running means of squares and None; or, centred, the variance and the mean of gradients."""

    square: Any
    mean: Any


def checked_rate(op: str, rate: Any) -> Any:
    """A learning rate: a number, a tensor, or a schedule."""
    if isinstance(rate, wf.Tensor):
        return rate
    if callable(rate):
        return rate
    is_plain = isinstance(rate, int | float) and not isinstance(rate, bool)
    if is_plain or getattr(rate, "shape", None) == ():
        return as_finite(op, "learning_rate", rate)
    raise ArgumentError(
        f"{op}: learning_rate: expected a number, a tensor or a schedule, got {shown(rate)}"
    )


@remade
def scale_by_rate(rate: Rate) -> Transform:
    """Multiply by minus the learning rate: the last part of an optimiser."""
    found = checked_rate("scale_by_rate", rate)
    if isinstance(found, wf.Tensor) or not callable(found):

        def moved_by(g: Any) -> Any:
            wide = widened(g)
            return wide * -settled(found, wide)

        return stateless(lambda gradients, params: tree_map(moved_by, gradients))

    @with_state("scale_by_rate", RateState)
    def update(gradients: Any, state: RateState, params: Any = None) -> tuple[Any, Any]:
        factor = -found(state.steps)
        wide = tree_map(widened, gradients)
        moved = tree_map(lambda g: g * wf.astype(beside(factor, g), g.dtype), wide)
        return moved, RateState(state.steps + 1)

    return Transform(lambda params: RateState(first_count(params)), update)


@remade
def scale(factor: Setting) -> Transform:
    """Multiply by a number."""
    return stateless(lambda gradients, params: tree_map(lambda g: g * factor, gradients))


@remade
def clip_by_value(limit: Setting) -> Transform:
    """Cut each number off at −limit and limit."""
    bound = as_setting("clip_by_value", "limit", limit, 0)

    def clipped(g: Any) -> Any:
        most = settled(bound, g)
        return wf.clip(g, -most, most)

    return stateless(lambda gradients, _: tree_map(clipped, gradients))


@remade
def clip_by_global_norm(limit: Setting) -> Transform:
    """Scale all gradients down together where their norm exceeds `limit`."""
    bound = as_setting("clip_by_global_norm", "limit", limit, 0)

    def clipped(gradients: Any, params: Any) -> Any:
        # As in torch: the small number also keeps a norm of zero from dividing.
        norm = global_norm(trained(gradients)) + 1e-6
        factor: Any = wf.minimum(settled(bound, norm) / norm, 1.0)
        wide = tree_map(widened, gradients)  # in float16 a small factor would be no number
        return tree_map(lambda g: g * wf.astype(beside(factor, g), g.dtype), wide)

    return stateless(clipped)


@remade
def add_decayed_weights(weight_decay: Setting, mask: Any = None) -> Transform:
    """Add `weight_decay` times the parameters, where the mask holds."""
    decay = as_setting("add_decayed_weights", "weight_decay", weight_decay, 0)

    def decayed(g: Any, p: Any, is_chosen: bool) -> Any:
        wide = widened(p)
        return widened(g) + settled(decay, wide) * wide if is_chosen else g

    def added(gradients: Any, params: Any) -> Any:
        if is_zero(decay):
            return gradients
        chosen = mask_for("add_decayed_weights", mask, needed("add_decayed_weights", params))
        return tree_map(decayed, gradients, params, chosen)

    return stateless(added)


@remade
def add_momentum(decay: Setting, nesterov: bool = False) -> Transform:
    """Sum up gradients, of which each step forgets all but the part `decay`."""
    rate = as_setting("add_momentum", "decay", decay, 0, 1)
    ahead = as_flag("add_momentum", "nesterov", nesterov)

    def added(g: Any, m: Any) -> Any:
        return settled(rate, m) * m + widened(g)

    @with_state("add_momentum", MomentumState, "momentum")
    def update(gradients: Any, state: MomentumState, params: Any = None) -> tuple[Any, Any]:
        moved = tree_map(added, gradients, state.momentum)
        return tree_map(added, gradients, moved) if ahead else moved, MomentumState(moved)

    return Transform(lambda params: MomentumState(zeros_for(params)), update)


def correction(decay: Any, count: Any, dtype: Any) -> Any:
    """1 − decay^count, with all its digits when the decay is close to 1."""
    if is_zero(decay):
        return wf.ones((), dtype=dtype, device=count.device)
    number = wf.astype(count, dtype)
    is_tensor = isinstance(decay, wf.Tensor)
    return -wf.expm1(number * (wf.log(settled(decay, number)) if is_tensor else log(decay)))


def as_decay(op: str, name: str, value: Any) -> Any:
    """The part of a mean that a step keeps: from 0 on, and below 1."""
    found = as_setting(op, name, value, 0, 1)
    if not isinstance(found, wf.Tensor) and found == 1:
        raise ArgumentError(f"{op}: {name} must be below 1, got {found}")
    return found


@remade
def scale_by_adam(
    b1: Setting = 0.9, b2: Setting = 0.999, eps: Setting = 1e-8, amsgrad: bool = False
) -> Transform:
    """Running mean of gradients over the root of the running mean of squares, both unbiased.

    With `amsgrad` the largest mean of squares so far is taken in place of the present one.
    """
    b1, b2 = as_decay("adam", "b1", b1), as_decay("adam", "b2", b2)
    small, keeps_largest = as_setting("adam", "eps", eps, 0), as_flag("adam", "amsgrad", amsgrad)

    @with_state("adam", AdamState, "mean")
    def update(gradients: Any, state: AdamState, params: Any = None) -> tuple[Any, Any]:
        count = state.steps + 1
        wide = tree_map(widened, gradients)
        mean = tree_map(lambda m, g: blended(b1, m, g), state.mean, wide)
        square = tree_map(lambda v, g: blended(b2, v, g * g), state.square, wide)
        largest = tree_map(wf.maximum, state.largest, square) if keeps_largest else None
        parts = by_dtype(mean, lambda t: (correction(b1, count, t), correction(b2, count, t)))

        def direction(m: Any, v: Any) -> Any:
            first, second = beside(parts[m.dtype], m)
            return m / first / (wf.sqrt(v / second) + settled(small, m))

        moved = tree_map(direction, mean, largest if keeps_largest else square)
        return moved, AdamState(count, mean, square, largest)

    def init(params: Any) -> AdamState:
        largest = zeros_for(params) if keeps_largest else None
        return AdamState(first_count(params), zeros_for(params), zeros_for(params), largest)

    return Transform(init, update)


@remade
def scale_by_lion(b1: Setting = 0.9, b2: Setting = 0.99) -> Transform:
    """The sign of a mean of gradient and momentum."""
    b1, b2 = as_setting("lion", "b1", b1, 0, 1), as_setting("lion", "b2", b2, 0, 1)

    @with_state("lion", MomentumState, "momentum")
    def update(gradients: Any, state: MomentumState, params: Any = None) -> tuple[Any, Any]:
        wide = tree_map(widened, gradients)
        signs = tree_map(lambda m, g: wf.sign(blended(b1, m, g)), state.momentum, wide)
        moved = tree_map(lambda m, g: blended(b2, m, g), state.momentum, wide)
        return signs, MomentumState(moved)

    return Transform(lambda params: MomentumState(zeros_for(params)), update)


@remade
def scale_by_rms(decay: Setting = 0.99, eps: Setting = 1e-8, centered: bool = False) -> Transform:
    """Gradients over the root of a running mean of their squares (less the squared mean)."""
    rate, small = as_setting("rmsprop", "decay", decay, 0, 1), as_setting("rmsprop", "eps", eps, 0)
    centred = as_flag("rmsprop", "centered", centered)

    @with_state("rmsprop", SquareState, "square")
    def update(gradients: Any, state: SquareState, params: Any = None) -> tuple[Any, Any]:
        wide, mean = tree_map(widened, gradients), None
        if centred:  # the variance itself: a difference of means could be negative
            away = tree_map(lambda g, m: settled(rate, m) * ((g - m) * (g - m)), wide, state.mean)
            mean = tree_map(lambda m, g: blended(rate, m, g), state.mean, wide)
        else:
            away = tree_map(lambda g: g * g, wide)
        square = tree_map(lambda v, a: blended(rate, v, a), state.square, away)
        moved = tree_map(lambda g, v: g / (wf.sqrt(v) + settled(small, v)), wide, square)
        return moved, SquareState(square, mean)

    def init(params: Any) -> SquareState:
        return SquareState(zeros_for(params), zeros_for(params) if centred else None)

    return Transform(init, update)
