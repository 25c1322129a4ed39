"""Whether the rows of a weave can be gone through once.

Weights are divided by a power of two that follows from the largest of their row. Where nothing else
does, a run need not wait for it: it begins with what is known of the largest so far, and whenever
that power grows, all sums are scaled. Powers of two change no digit, so bits are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.compiler.loops import (
    Assign,
    Local,
    Reduce,
    Store,
    Value,
    get,
    leaves_of,
    literal,
)
from weft.compiler.rebuild import Statements, assigned_locals, read_locals
from weft.compiler.weave import Weave, values_after


@dataclass(frozen=True)
class Once:
    """Two runs over the columns of a row as one."""

    largest: Reduce  # the first of them
    between: Statements  # what makes the power of what it finds
    power: int  # the local that holds the power
    last: Reduce  # the other one
    after: Statements  # what is stored of a row once it is done


def at_once(weave: Weave) -> Once | None:
    """The runs of a weave as one, if that is possible."""
    runs = [k for k, s in enumerate(weave.middle) if isinstance(s, Reduce)]
    if len(runs) != 2 or runs[0]:
        return None
    largest, last = (weave.middle[k] for k in runs)
    assert isinstance(largest, Reduce) and isinstance(last, Reduce)
    beside = weave.middle[1 : runs[1]]
    between = tuple(s for s in beside if isinstance(s, Assign))
    stores = tuple(s for s in beside if isinstance(s, Store))
    sums = all(part.combine == "add" for part in last.parts)
    if [part.combine for part in largest.parts] != ["max"] or not sums:
        return None
    if len(between) + len(stores) != len(beside):
        return None
    (top,) = largest.parts[0].targets
    made = {top, *assigned_locals(between)}
    used = made & read_locals((last,))
    if len(used) != 1 or top in used:
        return None
    (power,) = used
    locals_ = weave.kernel.locals
    if not _is_power(values_after(between, locals_)[power], get(top, locals_[top].dtype)):
        return None
    held = values_after(last.body, locals_)
    found = [held[outer.weight] for outer in weave.outers]
    found += [values_after((Assign(0, p.values[0]),), locals_, held)[0] for p in last.parts]
    if not all(_scales(x, _power(power, locals_)) for x in found):
        return None
    return Once(largest, between, power, last, stores)


def _power(number: int, locals_: Sequence[Local]) -> Value:
    return get(number, locals_[number].dtype)


def _is_power(x: Value, top: Value) -> bool:
    """Whether a value is a whole number that grows with the largest, or 0 where that is none."""
    if x.op != "select" or x.args[1].op != "ceil":
        return False
    grows = x.args[1].args[0]
    scaled = grows.op == "mul" and grows.args[0] is top and grows.args[1].op == "const"
    return scaled and bool(literal(grows.args[1]) > 0) and _is_zero(x.args[2])


def _is_zero(x: Value) -> bool:
    return x.op == "const" and bool(literal(x) == 0)


def _scales(x: Value, power: Value) -> bool:
    """Whether a value is halved where the power is greater by 1."""
    if power not in leaves_of(x):
        return _is_zero(x)
    if x.op == "cast":
        return x.dtype.kind in "fV" and _scales(x.args[0], power)
    if x.op == "select":
        condition, *both = x.args
        return power not in leaves_of(condition) and all(_scales(a, power) for a in both)
    if x.op != "call" or x.data != "short_exp2" or x.args[0].op != "sub":
        return False
    first, second = x.args[0].args
    shifted = second.op == "add" and second.args[0] is power and second.args[1].op == "const"
    return shifted and power not in leaves_of(first)
