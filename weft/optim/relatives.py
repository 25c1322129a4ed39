"""Relatives of Adam's: parts that scale gradients by what they have seen of them."""

from __future__ import annotations

from math import log
from typing import Any, NamedTuple

import numpy as np

import weft as wf
from weft.core.common.parameters import as_real
from weft.core.common.trees import tree_map
from weft.optim.steps import AdamState, as_decay, correction
from weft.optim.transform import (
    Setting,
    Transform,
    as_setting,
    beside,
    blended,
    by_dtype,
    first_count,
    needed,
    place_of,
    remade,
    settled,
    stateless,
    widened,
    with_state,
    zeros_for,
)

_EXACT = 64  # steps whose lengths of averages are looked up: computed, they would lose digits


class SumState(NamedTuple):
    """The sum of all squares."""

    square: Any


class NadamState(NamedTuple):
    """Steps taken, running means of gradients and squares, and the product of all momenta."""

    steps: wf.Tensor
    mean: Any
    square: Any
    product: wf.Tensor


class AdadeltaState(NamedTuple):
    """Running means of the squares of gradients, and of those of steps."""

    square: Any
    moved: Any


@remade
def scale_by_adadelta(rho: Setting = 0.9, eps: Setting = 1e-6) -> Transform:
    """Gradients by the root of the mean square of past steps over that of past gradients."""
    rho, small = as_setting("adadelta", "rho", rho, 0, 1), as_setting("adadelta", "eps", eps, 0)

    def step(g: Any, v: Any, moved: Any) -> Any:
        least = settled(small, v)
        return g * (wf.sqrt(moved + least) / wf.sqrt(v + least))

    @with_state("adadelta", AdadeltaState, "square")
    def update(gradients: Any, state: AdadeltaState, params: Any = None) -> tuple[Any, Any]:
        wide = tree_map(widened, gradients)
        square = _square(rho, state.square, wide)
        steps = tree_map(step, wide, square, state.moved)
        return steps, AdadeltaState(square, _square(rho, state.moved, steps))

    return Transform(lambda p: AdadeltaState(zeros_for(p), zeros_for(p)), update)


@remade
def scale_by_adagrad(initial: Setting = 0.0, eps: Setting = 1e-10) -> Transform:
    """Gradients over the root of the sum of all squares so far, which begins at `initial`."""
    first = as_setting("adagrad", "initial", initial, 0)
    small = as_setting("adagrad", "eps", eps, 0)

    def step(g: Any, v: Any) -> Any:
        return g / (wf.sqrt(v) + settled(small, v))

    def begun(v: Any) -> Any:
        return v + settled(first, v)

    @with_state("adagrad", SumState, "square")
    def update(gradients: Any, state: SumState, params: Any = None) -> tuple[Any, Any]:
        wide = tree_map(widened, gradients)
        square = tree_map(lambda v, g: v + g * g, state.square, wide)
        return tree_map(step, wide, square), SumState(square)

    return Transform(lambda p: SumState(tree_map(begun, zeros_for(p))), update)


@remade
def scale_by_adamax(b1: Setting = 0.9, b2: Setting = 0.999, eps: Setting = 1e-8) -> Transform:
    """Running mean of gradients over the largest of them, of which each step forgets a part."""
    b1, b2 = as_decay("adamax", "b1", b1), as_decay("adamax", "b2", b2)
    small = as_setting("adamax", "eps", eps, 0)

    def largest_of(u: Any, g: Any) -> Any:
        return wf.maximum(settled(b2, u) * u, wf.abs(g) + settled(small, g))

    @with_state("adamax", AdamState, "mean")
    def update(gradients: Any, state: AdamState, params: Any = None) -> tuple[Any, Any]:
        count = state.steps + 1
        mean, wide = _mean(b1, state.mean, gradients)
        largest = tree_map(largest_of, state.square, wide)
        parts = by_dtype(mean, lambda dtype: correction(b1, count, dtype))
        moved = tree_map(lambda m, u: m / (beside(parts[m.dtype], m) * u), mean, largest)
        return moved, AdamState(count, mean, largest)

    return Transform(_first_state, update)


@remade
def scale_by_nadam(
    b1: Setting = 0.9, b2: Setting = 0.999, eps: Setting = 1e-8, momentum_decay: Setting = 4e-3
) -> Transform:
    """Adam with Nesterov's momentum, which grows with the steps toward `b1`."""
    b1, b2 = as_decay("nadam", "b1", b1), as_decay("nadam", "b2", b2)
    small = as_setting("nadam", "eps", eps, 0)
    rate = as_setting("nadam", "momentum_decay", momentum_decay, 0)

    def momentum(count: Any) -> Any:
        number = wf.astype(count, wf.float32)
        grown = 1 - 0.5 * wf.exp(number * (settled(rate, number) * log(0.96)))
        return settled(b1, number) * grown

    @with_state("nadam", NadamState, "mean")
    def update(gradients: Any, state: NadamState, params: Any = None) -> tuple[Any, Any]:
        count = state.steps + 1
        now, after = momentum(count), momentum(count + 1)
        product: Any = state.product * now
        fresh, kept = (1 - now) / (1 - product), after / (1 - product * after)
        mean, wide = _mean(b1, state.mean, gradients)
        square = _square(b2, state.square, wide)
        parts = by_dtype(
            mean, lambda t: (wf.astype(fresh, t), wf.astype(kept, t), correction(b2, count, t))
        )

        def direction(g: Any, m: Any, v: Any) -> Any:
            first, second, third = beside(parts[m.dtype], m)
            return (first * g + second * m) / (wf.sqrt(v / third) + settled(small, v))

        return tree_map(direction, wide, mean, square), NadamState(count, mean, square, product)

    def init(params: Any) -> NadamState:
        one = wf.ones((), dtype=wf.float32, device=place_of(params))
        return NadamState(first_count(params), zeros_for(params), zeros_for(params), one)

    return Transform(init, update)


@remade
def scale_by_radam(b1: Setting = 0.9, b2: float = 0.999, eps: Setting = 1e-8) -> Transform:
    """Adam whose first steps, of which too few squares are known, are those of momentum alone."""
    b1, b2 = as_decay("radam", "b1", b1), as_decay("radam", "b2", as_real("radam", "b2", b2))
    small = as_setting("radam", "eps", eps, 0)

    @with_state("radam", AdamState, "mean")
    def update(gradients: Any, state: AdamState, params: Any = None) -> tuple[Any, Any]:
        count = state.steps + 1
        mean, wide = _mean(b1, state.mean, gradients)
        square = _square(b2, state.square, wide)
        parts = by_dtype(mean, lambda t: (correction(b1, count, t), *_rectification(b2, count, t)))

        def direction(m: Any, v: Any) -> Any:
            first, is_known, factor = beside(parts[m.dtype], m)
            return m / first * wf.where(is_known, factor / (wf.sqrt(v) + settled(small, v)), 1)

        return tree_map(direction, mean, square), AdamState(count, mean, square)

    return Transform(_first_state, update)


def _rectification(b2: float, count: Any, dtype: Any) -> tuple[Any, Any]:
    """Whether squares of enough steps are known, and what Adam's step is multiplied by then."""
    longest = 2 / (1 - b2) - 1
    steps = np.arange(1, _EXACT + 1)
    lengths = longest - 2 * steps * b2**steps / (1 - b2**steps)
    table = wf.tensor(lengths, dtype=dtype, device=count.device)
    known, number = correction(b2, count, dtype), wf.astype(count, dtype)
    computed = longest - 2 * number * (1 - known) / known
    length = wf.where(count <= _EXACT, table[wf.minimum(count, _EXACT) - 1], computed)
    is_known = length > 5
    safe = wf.where(is_known, length, 6)
    ratio = (safe - 4) * (safe - 2) * longest / ((longest - 4) * (longest - 2) * safe)
    return is_known, wf.sqrt(ratio * known)


@remade
def scale_by_trust_ratio() -> Transform:
    """Scale the step of each tensor to the norm of its parameter; where one is 0, leave it."""

    def ratio(update: Any, parameter: Any) -> Any:
        wide = widened(parameter)
        size, length = (wf.sqrt(wf.sum(x * x)) for x in (wide, update))
        is_known = (size > 0) & (length > 0)
        return update * wf.where(is_known, size / wf.where(is_known, length, 1), 1)

    def scaled(gradients: Any, params: Any) -> Any:
        wide = tree_map(widened, gradients)
        return tree_map(ratio, wide, needed("scale_by_trust_ratio", params))

    return stateless(scaled)


def _first_state(params: Any) -> AdamState:
    return AdamState(first_count(params), zeros_for(params), zeros_for(params))


def _mean(decay: Any, old: Any, gradients: Any) -> tuple[Any, Any]:
    """The running mean of gradients after a step, and the gradients as steps take them."""
    wide = tree_map(widened, gradients)
    return tree_map(lambda m, g: blended(decay, m, g), old, wide), wide


def _square(decay: Any, old: Any, wide: Any) -> Any:
    """The running mean of squares after a step."""
    return tree_map(lambda v, g: blended(decay, v, g * g), old, wide)
