"""Steps of a reduction that a mask of positions hides are taken without what it hides.

A mask such as column <= row shows one range of the points of a row. Before and after it every
value is the one that stands for what is hidden, so nothing else need be computed; inside it no
element is asked whether it is shown. Only steps at its ends look at the mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce as folded

from weft.compiler.loops import (
    INDEX,
    LANES,
    WRITTEN,
    Assign,
    Reduce,
    Statement,
    Value,
    get,
    integer,
    value,
)
from weft.compiler.passes.positions import compared, is_held, position
from weft.compiler.polynomial import (
    add,
    coefficient,
    divide,
    hides,
    larger,
    multiply,
    number,
    polynomial,
    smaller,
    subtract,
    to_value,
    without,
)
from weft.compiler.rebuild import Scope, Statements, changer, revise, values_of

WORTH = 8  # instructions of a point that its being hidden saves
_AS_ONE = frozenset({"max", "min", "and", "or"})  # what a value has no effect on the second time


@dataclass(frozen=True)
class Shown:
    """A reduction's points under a mask, which shows those from all `lows` on up to all `highs`."""

    point: Value
    given: Reduce
    shown: Reduce
    hidden: Reduce
    lows: tuple[Value, ...]
    highs: tuple[Value, ...]

    def steps(
        self,
        scope: Scope,
        start: Value,
        stop: Value,
        run: Callable[[Reduce, Value, Value], Statement],
        run_long: Callable[[Reduce, Value, Value], Statements],
    ) -> Statements:
        """Steps of LANES points from `start` to `stop`; `run` makes a loop of some of them.

        What is shown is all of the work: `run_long` makes loops of that.
        """
        made: list[Statement] = []
        at = start
        if self.lows:
            before, after = _around(scope, folded(larger, self.lows), start, stop, made)
            made += (run(self.hidden, *self.some(start, before)), run(self.given, before, after))
            at = after
        if not self.highs:
            return (*made, *run_long(self.shown, at, stop))
        before, after = self.end(scope, at, stop, made)
        made += (*run_long(self.shown, at, before), run(self.given, before, after))
        return (*made, run(self.hidden, *self.some(after, stop)))

    def some(self, start: Value, stop: Value) -> tuple[Value, Value]:
        """The ends of hidden steps that need be taken: of the first one, if it stands for all."""
        return start, smaller(add(start, LANES), stop) if self.counts_once else stop

    @property
    def counts_once(self) -> bool:
        """Whether one step of what is hidden stands for all: the same values, met again."""
        parts = self.hidden.parts
        differs = any(hides(x, self.point) for part in parts for x in part.values)
        return all(p.combine in _AS_ONE for p in parts) and not (differs or self.given.body)

    @property
    def hides_the_rest(self) -> bool:
        """Whether all points from one on are hidden, and one step of them stands for all."""
        sure = all(isinstance(is_held(high), bool) for high in self.highs)
        return self.counts_once and sure and not self.lows

    def end(
        self, scope: Scope, start: Value, stop: Value, into: list[Statement]
    ) -> tuple[Value, Value]:
        """The ends of the last step of which a point is shown, if all before it are shown whole."""
        return _around(scope, folded(smaller, self.highs), start, stop, into)


def _around(
    scope: Scope, place: Value, first: Value, stop: Value, into: list[Statement]
) -> tuple[Value, Value]:
    """The ends of the step with a place, no earlier than a first step, or after all."""

    def let(x: Value) -> Value:
        local = scope.local("shown", INDEX)
        into.append(Assign(local, x))
        return get(local, INDEX)

    points = let(subtract(smaller(larger(place, first), stop), first))
    before = add(first, multiply(divide(points, LANES), LANES))
    after = add(first, multiply(divide(add(points, LANES - 1), LANES), LANES))
    after, sure = smaller(after, stop), is_held(place)
    if not isinstance(sure, bool):  # if it is not, all steps look at the mask
        before = value("select", (sure, before, first), INDEX)
        after = value("select", (sure, after, stop), INDEX)
    return let(before), let(after)


def find(given: Reduce, point: Value) -> Shown | None:
    """A reduction at a point as one under a mask, if enough of it is hidden by one.

    What memory need not be asked for is always enough.
    """
    choices = [x for x in values_of((given,)) if x.op == "select"]
    written = {x.args[0] for x in choices if x.data == WRITTEN}
    for condition in dict.fromkeys(x.args[0] for x in choices):
        ends = _ends(condition, point)
        if ends is not None:
            shown, hidden = (_chosen(given, condition, choice) for choice in (1, 2))
            if condition in written or _work(shown) - _work(hidden) >= WORTH:
                return Shown(point, given, shown, hidden, *ends)
    return None


def _chosen(given: Reduce, condition: Value, choice: int) -> Reduce:
    def change(x: Value) -> Value:
        return x.args[choice] if x.op == "select" and x.args[0] is condition else x

    (made,) = revise((given,), changer(change))
    assert isinstance(made, Reduce)
    return made


def _work(reduce: Reduce) -> int:
    return sum(bool(x.args) and x.dtype != INDEX for x in values_of((reduce,)))


def _ends(condition: Value, point: Value) -> tuple[tuple[Value, ...], tuple[Value, ...]] | None:
    """From where on and up to where a condition holds; None if that is no range of points."""
    lows: list[Value] = []
    highs: list[Value] = []
    for each in compared(condition):
        x, y = (position(a) for a in each.args)
        assert x is not None and y is not None
        gap = polynomial(subtract(x, y))
        rest = to_value(without(gap, (point,)))
        step = number(coefficient(gap, point))
        if step not in (1, -1):
            return None
        bound = 0 if each.op == "less_equal" else -1
        if step == 1:
            highs.append(subtract(integer(bound + 1), rest))
        else:
            lows.append(subtract(rest, bound))
    return (tuple(lows), tuple(highs)) if lows or highs else None
