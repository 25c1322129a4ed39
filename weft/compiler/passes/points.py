"""The points of a reduction: how many, where each is, and what holds at one of them."""

from __future__ import annotations

from dataclasses import replace

from weft.compiler.loops import Reduce, Value, integer
from weft.compiler.passes.simplify import fold
from weft.compiler.polynomial import divide, multiply, remainder
from weft.compiler.rebuild import substitute, substitute_value


def points(reduce: Reduce) -> Value:
    """How many points a reduction has."""
    count = integer(1)
    for _, extent in reduce.axes:
        count = multiply(count, extent)
    return count


def at(reduce: Reduce, point: Value) -> dict[Value, Value]:
    """The axes of a reduction at a row-major point."""
    found: dict[Value, Value] = {}
    for variable, extent in reversed(reduce.axes[1:]):
        found[variable] = remainder(point, extent)
        point = divide(point, extent)
    if reduce.axes:
        found[reduce.axes[0][0]] = point
    return found


def origin(reduce: Reduce) -> dict[Value, Value]:
    """The axes of a reduction at its first point."""
    return {v: integer(0) for v, _ in reduce.axes}


def moved(reduce: Reduce, where: dict[Value, Value]) -> Reduce:
    """A reduction's body and values at a point, its axes gone."""
    (changed,) = fold(substitute((replace(reduce, axes=()),), where))
    assert isinstance(changed, Reduce)
    return changed


def places(reduce: Reduce, where: dict[Value, Value]) -> list[Value | None]:
    """The places of parts that have them, at a point."""
    return [
        substitute_value(p.values[1], where) if p.combine in ("argmax", "argmin") else None
        for p in reduce.parts
    ]


def name_of(reduce: Reduce) -> str:
    """A name for a variable that runs over the points."""
    return str(reduce.axes[-1][0].data) if reduce.axes else "j"
