"""A rate that falls when a loss no longer does: `reduce_on_plateau`, around an optimiser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import weft as wf
from weft.core.common import dtypes
from weft.core.common.parameters import as_choice, as_finite, as_integer, as_real
from weft.core.common.trees import tree_map
from weft.core.tensor.convert import to_tensor
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.optim.transform import (
    Transform,
    as_transform,
    beside,
    first_count,
    place_of,
    remade,
    widened,
    with_state,
)


class PlateauState(NamedTuple):
    """The factor of updates, the best value so far, values since then that were no better, values
    to come that do not count, values seen for the next mean, their sum, and the inner state.
    """

    scale: wf.Tensor
    best: wf.Tensor
    bad: wf.Tensor
    waiting: wf.Tensor
    seen: wf.Tensor
    total: wf.Tensor
    inner: Any


@dataclass(frozen=True)
class _Plateau:
    """What follows a value: the rules, without a state."""

    factor: float
    patience: int
    threshold: float
    relative: bool
    cooldown: int
    least: float
    sign: int  # 1 where small values are good, -1 where large ones are
    every: int

    def after(self, value: wf.Tensor, state: PlateauState) -> PlateauState:
        """The state after one more value."""
        seen, total = state.seen + 1, state.total + value
        full = seen >= self.every
        judged = self._judged(total / self.every, state)
        pairs = zip(judged[:4], state[:4], strict=True)
        scale, best, bad, waiting = (wf.where(full, new, old) for new, old in pairs)
        seen, total = (wf.where(full, 0, x) for x in (seen, total))
        return PlateauState(scale, best, bad, waiting, seen, total, state.inner)

    def _judged(self, value: Any, state: PlateauState) -> PlateauState:
        better = self.sign * value < self.sign * self._bar(state.best)
        resting = state.waiting > 0
        bad = wf.where(better | resting, 0, state.bad + 1)
        tired = bad > self.patience
        lower = wf.maximum(state.scale * self.factor, self.least)
        return state._replace(
            scale=wf.where(tired, lower, state.scale),
            best=wf.where(better, value, state.best),
            bad=wf.where(tired, 0, bad),
            waiting=wf.where(tired, self.cooldown, wf.maximum(state.waiting - 1, 0)),
        )

    def _bar(self, best: Any) -> Any:
        """What a value has to be beyond to be better."""
        step = self.sign * self.threshold
        return best * (1 - step) if self.relative else best - step


@remade
def reduce_on_plateau(
    transform: Transform,
    factor: float = 0.1,
    patience: int = 10,
    threshold: float = 1e-4,
    threshold_mode: str = "rel",
    cooldown: int = 0,
    least: float = 0.0,
    mode: str = "min",
    every: int = 1,
) -> Transform:
    """Shrink an optimiser's updates by `factor` when values such as losses no longer get better.

        updates, state = transform.update(gradients, state, params, value=loss)

    More than `patience` values in a row that are not better than the best so far by `threshold`, a
    part of it ("rel") or a difference ("abs"), shrink `state.scale`, down to `least`; `cooldown`
    values after that do not count. `mode` "max" is for values that should grow. With `every` the
    means of so many values are judged. An update without a value keeps the scale.
    """
    op = "reduce_on_plateau"
    as_transform(op, "transform", transform)
    as_choice(op, "threshold_mode", threshold_mode, ("rel", "abs"))
    as_choice(op, "mode", mode, ("min", "max"))
    part = as_real(op, "factor", factor, 0, 1)
    if part == 1:
        raise ArgumentError(f"{op}: factor must be below 1, got {part}")
    sign = 1 if mode == "min" else -1
    rules = _Plateau(
        part,
        as_integer(op, "patience", patience, low=0),
        as_finite(op, "threshold", threshold, 0),
        threshold_mode == "rel",
        as_integer(op, "cooldown", cooldown, low=0),
        as_real(op, "least", least, 0, 1),
        sign,
        as_integer(op, "every", every, low=1),
    )

    def init(params: Any) -> PlateauState:
        one, worst, zero = (
            wf.full((), x, dtype=wf.float32, device=place_of(params)) for x in (1, sign * wf.inf, 0)
        )
        bad, waiting, seen = (first_count(params) for _ in range(3))
        return PlateauState(one, worst, bad, waiting, seen, zero, transform.init(params))

    @with_state(op, PlateauState)
    def update(
        gradients: Any, state: PlateauState, params: Any = None, *, value: Any = None
    ) -> tuple[Any, Any]:
        updates, inner = transform.update(gradients, state.inner, params)
        if value is not None:
            state = rules.after(_number(op, value, state), state)
        wide = tree_map(widened, updates)
        scaled = tree_map(lambda u: u * wf.astype(beside(state.scale, u), u.dtype), wide)
        return scaled, state._replace(inner=inner)

    return Transform(init, update)


def _number(op: str, value: Any, state: PlateauState) -> wf.Tensor:
    """A value that is judged, as the state's numbers are."""
    found = to_tensor(value, like=state.scale.device, op=f"{op}: value")
    if found.shape != ():
        raise ShapeError(f"{op}: value: expected one number, got shape {found.shape}")
    if dtypes.is_complex(found.dtype) or dtypes.is_bool(found.dtype):
        kind = dtypes.name_of(found.dtype)
        raise DTypeError(f"{op}: value: expected a real number, got {kind}")
    return wf.astype(found, wf.float32)
