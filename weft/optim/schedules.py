"""Numbers that change from step to step: functions of the count of steps taken before.

A schedule reads a counter tensor in the optimiser's state, so that a compiled step serves all
steps. Give one in place of a learning rate: `optim.adam(schedules.cosine(3e-4, 5000))`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from itertools import pairwise
from math import log, pi
from operator import call
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any, ParamSpec, TypeAlias

import weft as wf
from weft.core.common.parameters import as_choice, as_function, as_integer, as_real, shown
from weft.core.common.peers import refuse as _refuse
from weft.errors import ArgumentError
from weft.optim.transform import Setting, as_setting

P = ParamSpec("P")
Schedule: TypeAlias = Callable[[Any], Any]
_LAST_STEP = 2**31 - 1  # counts of steps are int32


@dataclass(frozen=True)
class Remade:
    """A schedule that is pickled as the call which made it."""

    function: Schedule = field(repr=False)
    recipe: partial[Schedule] = field(compare=False)

    def __call__(self, count: Any) -> Any:
        return self.function(count)

    def __reduce__(self) -> tuple[Any, ...]:
        return call, (self.recipe,)


def remade(maker: Callable[P, Schedule]) -> Callable[P, Schedule]:
    """Decorate a function: the schedules it makes can be pickled if its arguments can."""

    @wraps(maker)
    def makes(*args: P.args, **keywords: P.kwargs) -> Schedule:
        return Remade(maker(*args, **keywords), partial(makes, *args, **keywords))

    return makes


def _float(count: Any) -> Any:
    return wf.astype(wf.asarray(count), wf.float32)


def _fraction(count: Any, steps: float) -> Any:
    """How much of `steps` is done, from 0 to 1."""
    return wf.clip(_float(count) / max(steps, 1e-9), 0.0, 1.0)


@remade
def constant(value: Setting) -> Schedule:
    """The same number at each step."""
    number = as_setting("constant", "value", value)
    return lambda count: wf.full_like(_float(count), number)


@remade
def linear(start: Setting, end: Setting, steps: int) -> Schedule:
    """From `start` to `end` in equal steps, then `end`."""
    first, last = as_setting("linear", "start", start), as_setting("linear", "end", end)
    length = as_integer("linear", "steps", steps, low=1)
    return lambda count: first + (last - first) * _fraction(count, length)


@remade
def cosine(start: Setting, steps: int, end: Setting = 0.0) -> Schedule:
    """From `start` to `end` along half a cosine, then `end`."""
    first, last = as_setting("cosine", "start", start), as_setting("cosine", "end", end)
    length = as_integer("cosine", "steps", steps, low=1)
    return lambda count: _between(first, last, _fraction(count, length))


def _between(first: Any, last: Any, fraction: Any) -> Any:
    return last + (first - last) * 0.5 * (1 + wf.cos(pi * fraction))


@remade
def warmup_cosine(
    peak: Setting, warmup: int, steps: int, start: Setting = 0.0, end: Setting = 0.0
) -> Schedule:
    """Up to `peak` in `warmup` equal steps, then down along half a cosine until `steps`."""
    rise = as_integer("warmup_cosine", "warmup", warmup, low=0)
    whole = as_integer("warmup_cosine", "steps", steps, low=1)
    if whole <= rise:
        raise ArgumentError(f"warmup_cosine: steps {whole} must be more than warmup {rise}")
    down = cosine(peak, whole - rise, end)
    return join([linear(start, peak, rise), down], [rise]) if rise else down


@remade
def exponential(start: Setting, factor: float, every: int = 1, staircase: bool = False) -> Schedule:
    """`start`, multiplied by `factor` in the course of each `every` steps (at once: staircase)."""
    first, rate = (
        as_setting("exponential", "start", start),
        as_real("exponential", "factor", factor),
    )
    length = as_integer("exponential", "every", every, low=1)
    if rate <= 0:
        raise ArgumentError(f"exponential: factor must be positive, got {rate}")

    def value(count: Any) -> Any:
        times = _float(count) / length
        # A logarithm keeps the digits that a factor close to 1 loses as a number of 32 bits.
        return first * wf.exp((wf.floor(times) if staircase else times) * log(rate))

    return value


@remade
def polynomial(start: Setting, steps: int, power: float = 1.0, end: Setting = 0.0) -> Schedule:
    """From `start` to `end` in `steps`, by what is left of them to a power; then `end`."""
    first, last = as_setting("polynomial", "start", start), as_setting("polynomial", "end", end)
    length = as_integer("polynomial", "steps", steps, low=1)
    number = as_real("polynomial", "power", power, 0)
    return lambda count: last + (first - last) * (1 - _fraction(count, length)) ** number


@remade
def step(start: Setting, factor: float, every: int) -> Schedule:
    """`start`, multiplied by `factor` after each `every` steps."""
    return exponential(start, factor, every, staircase=True)


@remade
def piecewise(start: Setting, factors: Mapping[int, float]) -> Schedule:
    """`start`, multiplied by each factor from the step it is listed under on."""
    first = as_setting("piecewise", "start", start)
    if not isinstance(factors, Mapping):
        raise ArgumentError(
            f"piecewise: factors: expected factors by step, got {shown(factors)}"
            "\nhint: piecewise(0.1, {1000: 0.1, 2000: 0.1})"
        )
    rows = sorted(
        (as_integer("piecewise", "step", k, low=0), as_real("piecewise", "factor", f))
        for k, f in factors.items()
    )

    def value(count: Any) -> Any:
        found: Any = wf.full_like(_float(count), first)
        for boundary, factor in rows:
            found = found * wf.where(wf.asarray(count) >= boundary, factor, 1.0)
        return found

    return value


@remade
def one_cycle(
    peak: Setting,
    steps: int,
    rise: float = 0.3,
    start_divisor: float = 25.0,
    end_divisor: float = 1e4,
    shape: str = "cosine",
) -> Schedule:
    """Up to `peak` in the first part `rise` of the steps, then down to nearly nothing.

    It starts at peak / start_divisor and ends, at step `steps` − 1, at that / end_divisor.
    """
    as_choice("one_cycle", "shape", shape, ("cosine", "linear"))
    whole = as_integer("one_cycle", "steps", steps, low=2)
    top = as_real("one_cycle", "rise", rise, 0, 1) * whole - 1
    low = as_setting("one_cycle", "peak", peak) / _divisor("start_divisor", start_divisor)
    last = low / _divisor("end_divisor", end_divisor)

    def line(first: Any, last: Any, fraction: Any) -> Any:
        return first + (last - first) * fraction

    between = _between if shape == "cosine" else line

    def value(count: Any) -> Any:
        up = between(low, peak, _fraction(count, top))
        down = between(peak, last, _fraction(_float(count) - top, whole - 1 - top))
        return wf.where(_float(count) <= top, up, down)

    return value


def _divisor(name: str, value: Any) -> float:
    found = as_real("one_cycle", name, value, 0)
    if found == 0:
        raise ArgumentError(f"one_cycle: {name} must be positive, got {found}")
    return found


@remade
def join(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """One schedule after the other; each counts from the boundary it begins at."""
    if len(boundaries) != len(schedules) - 1:
        raise ArgumentError(
            f"join: {len(schedules)} schedules need {len(schedules) - 1} boundaries,"
            f" got {len(boundaries)}"
        )
    if any(late <= early for early, late in pairwise(boundaries)):
        raise ArgumentError(f"join: boundaries must grow, got {shown(boundaries)}")
    for number, schedule in enumerate(schedules):
        as_function("join", f"schedule {number}", schedule)

    def value(count: Any) -> Any:
        number = wf.asarray(count)
        found = schedules[0](number)
        for boundary, schedule in zip(boundaries, schedules[1:], strict=True):
            found = wf.where(number < boundary, found, schedule(number - boundary))
        return found

    return value


@remade
def repeat(schedule: Schedule, every: int, growth: int = 1) -> Schedule:
    """A schedule that begins again after each `every` steps, such as a cosine with restarts.

    Each round takes `growth` times the steps of the one before, and the schedule is stretched to
    it: with `growth` 2, rounds of 10 steps become 20 and 40.
    """
    as_function("repeat", "schedule", schedule)
    length = as_integer("repeat", "every", every, low=1)
    factor = as_integer("repeat", "growth", growth, low=1)
    if factor == 1:
        return lambda count: schedule(wf.asarray(count) % length)
    starts = [0]
    while starts[-1] <= _LAST_STEP:
        starts.append(starts[-1] * factor + length)

    def value(count: Any) -> Any:
        number = wf.asarray(count)
        begun = wf.asarray(starts, dtype=wf.int64, device=number.device)
        turn = wf.searchsorted(begun, number, side="right") - 1
        return schedule(_float(number - begun[turn]) / _float(factor**turn))

    return value


__all__ = [
    "Schedule",
    "constant",
    "cosine",
    "exponential",
    "join",
    "linear",
    "one_cycle",
    "piecewise",
    "polynomial",
    "repeat",
    "step",
    "warmup_cosine",
]


def __dir__() -> list[str]:
    return sorted(__all__)


if not _TYPE_CHECKING:  # checkers know which names there are
    __getattr__ = _refuse("weft.optim.schedules")
