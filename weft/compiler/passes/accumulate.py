"""Running values of a reduction, and the balanced tree that joins those of blocks.

`Accumulators` holds one running value per part: in a register, or in one with a lane for each of
LANES. The tree is a binary counter: `partials[k]` holds the value of 2^k blocks, the carry joins
equal ones, and what is left at the end is joined from the latest, smallest one to the first. Where
blocks are few, all their values are held, and pairs joined level by level: less to compile.
"""

from __future__ import annotations

import numpy as np

from weft.compiler.loops import (
    BOOL,
    INDEX,
    LANES,
    PRODUCTS,
    Assign,
    Loop,
    Part,
    Value,
    When,
    const,
    get,
    identity_of,
    integer,
    value,
)
from weft.compiler.polynomial import add, known, most_of
from weft.compiler.rebuild import Scope, Statements
from weft.core.common.types import DType

_INSTRUCTION = {"and": "bit_and", "or": "bit_or"}
_NEUTRAL = frozenset({"add", "mul", "max", "min", "and", "or"})
_DOUBLE = np.dtype(np.float64)
_MANTISSA, _BIAS = 52, 1023
_MOST_LEVELS = 48  # blocks of an extent that only the caller knows: fewer than 2^48
MANY = 64  # values of blocks that are all held, if nothing drives them out of the nearest memory


def dtypes_of(part: Part) -> tuple[DType, ...]:
    """The dtypes of a part's results."""
    return tuple(x.dtype for x in part.values[: len(part.targets)])


def joined(combine: str, first: Value, second: Value) -> Value:
    """Two values met by a combine, the earlier one first."""
    return value(_INSTRUCTION.get(combine, combine), (first, second), first.dtype)


def multiplied(x: Value, y: Value, total: Value) -> Value:
    """total + x · y: rounded once for floats, wrapped for integers."""
    if x.dtype.kind == "f":
        return value("fma", (x, y, total), x.dtype)
    return value("add", (value("mul", (x, y), x.dtype), total), x.dtype)


def is_better(combine: str, x: Value, y: Value) -> Value:
    """Whether `y` replaces the earlier `x` under argmax or argmin: ties stay, NaN is extreme."""
    low, high = (x, y) if combine == "argmax" else (y, x)
    if x.dtype.kind in "biu":
        return value("less", (low, high), BOOL)
    beyond = value("bit_not", (value("less_equal", (high, low), BOOL),), BOOL)
    return value("bit_and", (beyond, value("equal", (x, x), BOOL)), BOOL)


def select(condition: Value, x: Value, y: Value) -> Value:
    """`x` where the condition holds, else `y`."""
    return value("select", (condition, x, y), x.dtype)


def exponent(x: Value) -> Value:
    """The place of the highest set bit of a positive integer below 2^53."""
    bits = value("bitcast", (value("cast", (x,), _DOUBLE),), INDEX)
    return add(value("shift_right", (bits, integer(_MANTISSA)), INDEX), -_BIAS)


class Accumulators:
    """One running value for each result of a reduction."""

    def __init__(self, parts: tuple[Part, ...], scope: Scope, lanes: int) -> None:
        self.parts = parts
        self.scope = scope
        self.lanes = lanes
        self.held = [
            tuple(scope.local("total", dtype, lanes) for dtype in dtypes_of(part)) for part in parts
        ]

    def now(self, k: int) -> tuple[Value, ...]:
        """The running values of a part."""
        return tuple(get(n, self.scope.locals[n].dtype) for n in self.held[k])

    def everywhere(self, statements: Statements) -> Statements:
        """Statements on running values, for all their lanes."""
        if self.lanes == 1:
            return statements
        lane = self.scope.variable("lane")
        stop = integer(self.lanes)
        return (Loop(lane, integer(0), stop, statements, "vector", self.lanes),)

    def start(self, places: list[Value | None]) -> Statements:
        """Running values before the first point; `places` is where each part's lanes begin."""
        made: list[Assign] = []
        for part, held, place in zip(self.parts, self.held, places, strict=True):
            first = part.values[0].dtype
            products = part.combine in PRODUCTS
            empty = const(0, first) if products else identity_of(part.combine, first)
            made.append(Assign(held[0], empty))
            if place is not None:
                made.append(Assign(held[1], place))
        return tuple(made)

    def meet(self, k: int, values: tuple[Value, ...]) -> Statements:
        """The running values of a part, met by those of one point."""
        part, held, now = self.parts[k], self.held[k], self.now(k)
        if part.combine in PRODUCTS:
            x, y = values
            return (Assign(held[0], multiplied(x, y, now[0])),)
        return self.joined(k, now, values)

    def joined(
        self, k: int, first: tuple[Value, ...], second: tuple[Value, ...]
    ) -> tuple[Assign, ...]:
        """The running values of a part become two values met by each other."""
        held, combine = self.held[k], self.parts[k].combine
        if len(held) == 1:
            return (Assign(held[0], joined(combine, first[0], second[0])),)
        better = is_better(combine, first[0], second[0])
        # The place first: the choice reads the running value, which changes last.
        return (
            Assign(held[1], select(better, second[1], first[1])),
            Assign(held[0], select(better, second[0], first[0])),
        )

    def before(self, k: int, earlier: tuple[Value, ...]) -> Statements:
        """The running values of a part, met by a value from before them."""
        return self.joined(k, earlier, self.now(k))


def tree_of(totals: Accumulators, blocks: Value, held: int = MANY) -> Tree | Levels:
    """What joins the values of so many blocks, each taken in by itself; up to `held` are held."""
    most = most_of(blocks)
    neutral = all(part.combine in _NEUTRAL for part in totals.parts)
    if totals.lanes == 1 or not neutral or most is None or most > held:
        return Tree(totals, blocks)
    return Levels(totals, blocks, most)


class _Joiner:
    """Values of blocks in arrays, `length` of each, beside the running ones."""

    def __init__(self, totals: Accumulators, blocks: Value, length: int) -> None:
        self.totals = totals
        self.blocks = blocks
        scope = totals.scope
        self.partials = [
            tuple(scope.local("partials", scope.locals[n].dtype, totals.lanes, length) for n in ns)
            for ns in totals.held
        ]

    def _at(self, k: int, place: Value) -> tuple[Value, ...]:
        locals_ = self.totals.scope.locals
        return tuple(get(n, locals_[n].dtype, place) for n in self.partials[k])

    def _hold(self, place: Value) -> Statements:
        """The running values, held at this place."""
        return tuple(
            Assign(partial, now, place)
            for k, partials in enumerate(self.partials)
            for partial, now in zip(partials, self.totals.now(k), strict=True)
        )

    def _take(self, place: Value) -> Statements:
        return tuple(
            Assign(n, x)
            for k, held in enumerate(self.totals.held)
            for n, x in zip(held, self._at(k, place), strict=True)
        )


class Levels(_Joiner):
    """The tree of few blocks: their values, as many as a power of two, then those of each pair.

    Empty blocks, which leave what they meet as it is, make up the number. So pair t, of the values
    2t and 2t + 1, is the value `width` + t, level after level in one loop; the last is that of all.
    """

    def __init__(self, totals: Accumulators, blocks: Value, most: int) -> None:
        self.width = 1 << max(most - 1, 0).bit_length()
        super().__init__(totals, blocks, 2 * self.width - 1)

    def carry(self, block: Value) -> Statements:
        """Take in the running values of a block."""
        return self.totals.everywhere(self._hold(block))

    def finish(self) -> Statements:
        """Leave the value of all blocks in the running values."""
        totals, width = self.totals, self.width
        pair, none = totals.scope.variable("pair"), totals.scope.variable("none")
        met: Statements = ()
        empty: Statements = ()
        for k, (part, (held,)) in enumerate(zip(totals.parts, self.partials, strict=True)):
            (near,), (far,) = self._at(k, add(pair, pair)), self._at(k, add(add(pair, pair), 1))
            met += (Assign(held, joined(part.combine, near, far), add(pair, width)),)
            empty += (Assign(held, identity_of(part.combine, near.dtype), none),)
        return (
            Loop(none, self.blocks, integer(width), totals.everywhere(empty)),
            Loop(pair, integer(0), integer(width - 1), totals.everywhere(met)),
            *totals.everywhere(self._take(integer(2 * width - 2))),
        )


class Tree(_Joiner):
    """Joins the values of blocks, one after another, by a balanced tree."""

    def __init__(self, totals: Accumulators, blocks: Value) -> None:
        most = most_of(blocks)
        self.levels = _MOST_LEVELS if most is None else max(most.bit_length(), 1)
        super().__init__(totals, blocks, self.levels)

    def _join(self, level: Value) -> Statements:
        parts = range(len(self.partials))
        return tuple(s for k in parts for s in self.totals.before(k, self._at(k, level)))

    def carry(self, block: Value, lowest_level: int = 0) -> Statements:
        """Take in the running values of a block, the blocks before it having been taken in.

        With a level, `block` counts groups of 2^level blocks, whose values have met already.
        """
        scope, everywhere = self.totals.scope, self.totals.everywhere
        after = add(block, 1)
        lowest = value("bit_and", (after, value("neg", (after,), INDEX)), INDEX)
        full = add(exponent(lowest), lowest_level)  # partial values below it meet this block's
        level = scope.variable("level")
        return (
            Loop(level, integer(lowest_level), full, everywhere(self._join(level))),
            *everywhere(self._hold(full)),
        )

    def finish(self) -> Statements:
        """Leave the value of all blocks in the running values."""
        count = known(self.blocks)
        if count is None:
            return self._finish_unknown()
        levels = [integer(k) for k in range(count.bit_length()) if count >> k & 1]
        made: Statements = ()
        for k, level in enumerate(levels):
            made += self._take(level) if k == 0 else self._join(level)
        return self.totals.everywhere(made) if made else ()

    def _finish_unknown(self) -> Statements:
        scope, everywhere = self.totals.scope, self.totals.everywhere
        level = scope.variable("level")
        shifted = value("shift_right", (self.blocks, level), INDEX)
        bit = value("bit_and", (shifted, integer(1)), INDEX)
        present = value("less", (integer(0), bit), BOOL)
        join = When(present, everywhere(self._join(level)))
        top = integer(self.levels)
        if self.levels == _MOST_LEVELS:
            top = add(exponent(self.blocks), 1)
        if all(part.combine in _NEUTRAL for part in self.totals.parts):
            nothing = self.totals.start([None] * len(self.partials))  # leaves what it meets as is
            return (*everywhere(nothing), Loop(level, integer(0), top, (join,)))
        lowest = exponent(value("bit_and", (self.blocks, _negative(self.blocks)), INDEX))
        some = value("less", (integer(0), self.blocks), BOOL)
        loop = Loop(level, add(lowest, 1), top, (join,))
        return (When(some, (*everywhere(self._take(lowest)), loop)),)


def _negative(x: Value) -> Value:
    return value("neg", (x,), INDEX)


def across(totals: Accumulators, k: int) -> Statements:
    """The lanes of a part joined by halves, in its targets; or apart, if those have lanes."""
    part, scope = totals.parts[k], totals.scope
    if scope.locals[part.targets[0]].lanes == LANES:
        pairs = zip(part.targets, totals.now(k), strict=True)
        return totals.everywhere(tuple(Assign(t, x) for t, x in pairs))
    if len(part.targets) == 1:
        (now,) = totals.now(k)
        return (Assign(part.targets[0], value("across", (now,), now.dtype, part.combine)),)
    both = value("across", totals.now(k), totals.now(k)[0].dtype, part.combine)
    return tuple(
        Assign(target, value("item", (both,), x.dtype, i))
        for i, (target, x) in enumerate(zip(part.targets, totals.now(k), strict=True))
    )


def halves(part: Part, arrays: list[int], scope: Scope) -> Statements:
    """Join LANES elements of arrays by halves; the result goes to the part's targets."""
    made: Statements = ()
    half = LANES // 2
    while half:
        lane = scope.variable("lane")
        near = tuple(get(a, scope.locals[a].dtype, lane) for a in arrays)
        far = tuple(get(a, scope.locals[a].dtype, add(lane, half)) for a in arrays)
        join = _pair(part.combine, arrays, near, far, lane, scope)
        made += (Loop(lane, integer(0), integer(half), join),)
        half //= 2
    first = [get(a, scope.locals[a].dtype, integer(0)) for a in arrays]
    return (*made, *(Assign(t, x) for t, x in zip(part.targets, first, strict=True)))


def _pair(
    combine: str,
    arrays: list[int],
    near: tuple[Value, ...],
    far: tuple[Value, ...],
    lane: Value,
    scope: Scope,
) -> Statements:
    if len(arrays) == 1:
        return (Assign(arrays[0], joined(combine, near[0], far[0]), lane),)
    wins = is_better(combine, near[0], far[0])
    loses = is_better(combine, far[0], near[0])
    earlier = value("less", (far[1], near[1]), BOOL)
    tie = value("bit_and", (value("bit_not", (loses,), BOOL), earlier), BOOL)
    taken = scope.local("taken", BOOL)
    choice = get(taken, BOOL)
    return (
        Assign(taken, value("bit_or", (wins, tie), BOOL)),
        *(
            Assign(array, select(choice, y, x), lane)
            for array, x, y in zip(arrays, near, far, strict=True)
        ),
    )
