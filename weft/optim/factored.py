"""Adafactor: second moments of a matrix kept as one row and one column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import weft as wf
from weft.core.common.parameters import as_finite, as_real, shown
from weft.core.common.trees import tree_map
from weft.errors import ArgumentError
from weft.optim.steps import Rate, checked_rate
from weft.optim.transform import (
    Transform,
    beside,
    by_dtype,
    check_shapes,
    first_count,
    needed,
    remade,
    widened,
    with_state,
)


class AdafactorState(NamedTuple):
    """Steps taken; means of squares by row and by column of matrices, in full of the others."""

    steps: wf.Tensor
    row: Any
    column: Any
    full: Any


def _part(params: Any, axis: int | None) -> Any:
    """Zeros for the means along an axis of matrices, or for all other tensors; else None."""

    def zeros(p: Any) -> Any:
        wide = widened(p)
        if (p.ndim > 1) != (axis is not None):
            return None
        return wf.zeros_like(wide if axis is None else wf.sum(wide, axis=axis, keepdims=True))

    return tree_map(zeros, params)


@remade
def adafactor(
    learning_rate: Rate = 1e-2,
    beta2_decay: float = -0.8,
    eps: tuple[float | None, float] = (None, 1e-3),
    clip: float = 1.0,
    weight_decay: float = 0.0,
) -> Transform:
    """Steps relative to the size of each parameter, with factored second moments.

    The rate falls with 1/√steps once that is below `learning_rate`; updates whose root mean square
    exceeds `clip` are scaled down to it. `eps[0]` is the dtype's own by default.
    """
    rate = checked_rate("adafactor", learning_rate)
    power = as_real("adafactor", "beta2_decay", beta2_decay)
    floor, least = _as_eps(eps)
    bound = as_finite("adafactor", "clip", clip)
    if bound <= 0:
        raise ArgumentError(f"adafactor: clip must be positive, got {bound}")
    decay = as_real("adafactor", "weight_decay", weight_decay, 0)

    @with_state("adafactor", AdafactorState)
    def update(gradients: Any, state: AdafactorState, params: Any = None) -> tuple[Any, Any]:
        check_shapes("adafactor", gradients, needed("adafactor", params))
        count = state.steps + 1
        now = rate(state.steps) if callable(rate) and not isinstance(rate, wf.Tensor) else rate
        wide = tree_map(widened, gradients)
        number = by_dtype(wide, lambda dtype: wf.astype(count, dtype))
        fresh = {dtype: steps**power for dtype, steps in number.items()}

        row = tree_map(_mixed(-1, fresh), wide, state.row)
        column = tree_map(_mixed(-2, fresh), wide, state.column)
        full = tree_map(_mixed(None, fresh), wide, state.full)

        def step(p: Any, g: Any, r: Any, c: Any, f: Any) -> Any:
            small = float(wf.finfo(p.dtype).eps) if floor is None else floor
            variance = (
                f if r is None else r @ c / _at_least(wf.mean(r, axis=-2, keepdims=True), small)
            )
            moved = g / wf.sqrt(_at_least(variance, small * small))
            wide_p = widened(p)
            relative = wf.minimum(1 / wf.sqrt(beside(number[g.dtype], g)), beside(now, g))
            size = wf.astype(relative, moved.dtype) * _at_least(_rms(wide_p), least)
            made = -size / _at_least(_rms(moved) / bound, 1.0) * moved
            if not decay:
                return made
            factor = now if isinstance(now, float) else wf.astype(beside(now, g), made.dtype)
            return made - factor * decay * wide_p

        moved = tree_map(step, params, wide, row, column, full)
        return moved, AdafactorState(count, row, column, full)

    def init(params: Any) -> AdafactorState:
        return AdafactorState(
            first_count(params), _part(params, -1), _part(params, -2), _part(params, None)
        )

    return Transform(init, update)


def _mixed(axis: int | None, fresh: dict[Any, Any]) -> Callable[[Any, Any], Any]:
    """Running means with squares of gradients mixed in, or with their means along an axis."""

    def mixed(g: Any, old: Any) -> Any:
        if old is None:
            return None
        squares = g * g if axis is None else wf.mean(g * g, axis=axis, keepdims=True)
        return _mix(old, squares, beside(fresh[g.dtype], g))

    return mixed


def _as_eps(eps: Any) -> tuple[float | None, float]:
    """Below what variances and the sizes of parameters do not count."""
    if not isinstance(eps, tuple | list) or len(eps) != 2:
        raise ArgumentError(f"adafactor: eps: expected two numbers, got {shown(eps)}")
    first = None if eps[0] is None else as_real("adafactor", "eps", eps[0], 0)
    return first, as_real("adafactor", "eps", eps[1], 0)


def _mix(old: Any, new: Any, fresh: Any) -> Any:
    return old + fresh * (new - old)


def _at_least(x: Any, low: float) -> Any:
    return wf.maximum(x, low)


def _rms(x: Any) -> Any:
    return wf.sqrt(wf.mean(x * x))
