"""What goes around an optimiser: accumulation, loss scaling, averages of parameters."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import weft as wf
from weft.core.common import dtypes
from weft.core.common.parameters import as_finite, as_flag, as_integer, shown
from weft.core.common.trees import tree_leaves, tree_map
from weft.errors import ArgumentError, ShapeError, TreeError
from weft.optim.transform import (
    Setting,
    Transform,
    alike,
    as_setting,
    as_transform,
    beside,
    by_dtype,
    first_count,
    place_of,
    remade,
    settled,
    stacked,
    trained,
    widened,
    with_state,
    zeros_for,
)


class AccumulateState(NamedTuple):
    """Gradients seen since the last step, their sum, and the optimiser's own state."""

    steps: wf.Tensor
    total: Any
    inner: Any


@remade
def accumulate(transform: Transform, every: int) -> Transform:
    """Take one step for the mean of each `every` gradients; the updates between are zeros."""
    as_transform("accumulate", "transform", transform)
    number = as_integer("accumulate", "every", every, low=1)

    def init(params: Any) -> AccumulateState:
        return AccumulateState(first_count(params), zeros_for(params), transform.init(params))

    @with_state("accumulate", AccumulateState, "total")
    def update(gradients: Any, state: AccumulateState, params: Any = None) -> tuple[Any, Any]:
        total = tree_map(lambda t, g: t + widened(g), state.total, gradients)

        def step(total: Any, inner: Any) -> Any:
            mean = tree_map(lambda t: t / number, total)
            updates, following = transform.update(mean, inner, params)
            return tree_map(widened, updates), tree_map(wf.zeros_like, total), following

        def wait(total: Any, inner: Any) -> Any:
            return tree_map(wf.zeros_like, total), total, inner

        count = state.steps + 1
        full = count >= number
        updates, total, inner = wf.cond(full, step, wait, total, state.inner)
        return updates, AccumulateState(wf.where(full, 0, count), total, inner)

    return Transform(init, update)


class LossScaleState(NamedTuple):
    """The factor of the loss, good steps since it last changed, steps skipped, the inner state."""

    scale: wf.Tensor
    good: wf.Tensor
    skipped: wf.Tensor
    inner: Any


def all_finite(tree: Any) -> wf.Tensor:
    """Whether no number of a tree is infinite or NaN."""
    found = [wf.all(wf.isfinite(leaf)) for leaf in tree_leaves(tree)]
    return wf.all(stacked(found)) if found else wf.asarray(True)


@remade
def loss_scaled(
    transform: Transform,
    initial: float = 2.0**15,
    growth: float = 2.0,
    backoff: float = 0.5,
    interval: int = 2000,
    least: float = 1.0,
) -> Transform:
    """For gradients of a loss that was multiplied by `state.scale`, as float16 needs it.

        value, gradients = wf.value_and_grad(lambda p: loss(p) * state.scale)(params)
        updates, state = transform.update(gradients, state, params)

    Gradients are divided by the scale. A step with a number that is not finite is skipped and
    shrinks the scale by `backoff`; `interval` good steps in a row grow it by `growth`.
    """
    as_transform("loss_scaled", "transform", transform)
    lowest = as_finite("loss_scaled", "least", least, 0)
    first = as_finite("loss_scaled", "initial", initial, 0)
    if first == 0:
        raise ArgumentError("loss_scaled: initial must be positive, got 0.0")
    up, down = (
        as_finite("loss_scaled", "growth", growth, 1),
        as_finite("loss_scaled", "backoff", backoff, 0, 1),
    )
    wanted = as_integer("loss_scaled", "interval", interval, low=1)

    def init(params: Any) -> LossScaleState:
        start = wf.full((), first, dtype=wf.float32, device=place_of(params))
        return LossScaleState(
            start, first_count(params), first_count(params), transform.init(params)
        )

    @with_state("loss_scaled", LossScaleState)
    def update(gradients: Any, state: LossScaleState, params: Any = None) -> tuple[Any, Any]:
        wide = tree_map(widened, gradients)
        plain = tree_map(lambda g: g / wf.astype(beside(state.scale, g), g.dtype), wide)
        finite = all_finite(trained(gradients))
        updates, inner = transform.update(plain, state.inner, params)
        kept = tree_map(
            lambda new, old: wf.where(beside(finite, new), new, old), inner, state.inner
        )
        taken = tree_map(lambda u: wf.where(beside(finite, u), u, 0), updates)
        finite = beside(finite, state.good)
        good = wf.where(finite, state.good + 1, 0)
        grown = good >= wanted
        larger = state.scale * up
        scale = wf.where(grown & wf.isfinite(larger), larger, state.scale)
        scale = wf.where(finite, scale, wf.maximum(state.scale * down, lowest))
        skipped = state.skipped + wf.astype(wf.logical_not(finite), wf.int32)
        return taken, LossScaleState(scale, wf.where(grown, 0, good), skipped, kept)

    return Transform(init, update)


class EmaState(NamedTuple):
    """Updates seen, and the averaged parameters."""

    steps: wf.Tensor
    value: Any


@dataclass(frozen=True)
class Ema:
    """A running mean of parameters: `state = ema.update(params, state)`, read `state.value`.

    What is no float, such as a counter, is not averaged: the latest value counts. Parameters may
    be assigned to: the mean has values of its own.
    """

    decay: Any
    warmup: bool

    def init(self, params: Any) -> EmaState:
        """The state that starts from these parameters."""
        return EmaState(first_count(params), tree_map(lambda p: copy(widened(p)), params))

    def update(self, params: Any, state: EmaState) -> EmaState:
        """The state after a step: moved toward the parameters by 1 − decay."""
        if not isinstance(state, EmaState):
            raise TreeError(
                f"ema: state: expected EmaState, got {shown(state)}"
                "\nhint: state = average.update(params, state)"
            )
        count = state.steps + 1
        fresh = by_dtype(state.value, lambda dtype: self._fresh(count, dtype))

        def moved(old: Any, p: Any) -> Any:
            wide = widened(p)
            if wide.shape != old.shape:
                raise ShapeError(f"ema: a parameter of shape {p.shape} for a mean of {old.shape}")
            if not dtypes.is_inexact(old.dtype):
                return copy(p)
            return old + settled(fresh[old.dtype], old) * (wide - old)

        with alike("ema", "parameters are not in the places of means"):
            return EmaState(count, tree_map(moved, state.value, params))

    def _fresh(self, count: Any, dtype: Any) -> Any:
        """How far averages of a dtype move."""
        if not self.warmup or not dtypes.is_inexact(dtype):
            return 1 - self.decay
        number: Any = wf.astype(count, dtypes.real_of(dtype))
        return 1 - wf.minimum((1 + number) / (10 + number), settled(self.decay, number))


def ema(decay: Setting = 0.999, warmup: bool = False) -> Ema:
    """A running mean of parameters; with `warmup` early steps count more."""
    return Ema(as_setting("ema", "decay", decay, 0, 1), as_flag("ema", "warmup", warmup))
