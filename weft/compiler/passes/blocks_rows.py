"""Reductions of rows whose elements are in the registers of a GPU's threads.

A block has some rows. Each of its threads has two of them, and two of every 8 columns, a tile of
columns after the other, as tensor cores leave sums. Lanes and trees are those of `reduce`: running
values of a lane are one thread's, what many tiles give is joined leaf by leaf in shared memory, and
at the end threads that have the same row meet there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from weft.compiler.loops import (
    BOOL,
    INDEX,
    LANES,
    Assign,
    Local,
    Loop,
    Part,
    Statement,
    Value,
    When,
    const,
    get,
    identity_of,
    integer,
    value,
)
from weft.compiler.passes.accumulate import exponent, joined
from weft.compiler.passes.blocks_slab import ZERO
from weft.compiler.passes.cooperate import BLOCK, Team
from weft.compiler.polynomial import add, divide, known, multiply, remainder, subtract
from weft.compiler.rebuild import Scope, Statements
from weft.compiler.squares import WARP
from weft.core.common.types import DType

SIDE = 64  # rows of a block, and columns of a tile
THREADS = 4 * WARP
ROWS, PAIR = 2, 2  # of a thread: its rows, and adjacent columns in a register
ACROSS = LANES // 2  # running values of a row, those of lanes 8 apart having met


@dataclass
class Meeting:
    """The running values of one part of a reduction: vectors of two columns for each row.

    Those of a sum are apart for even and odd groups of 8 columns: they are lanes of their own.
    """

    part: Part
    dtype: DType
    held: list[list[int]]  # for each row

    @property
    def flat(self) -> list[int]:
        """Those of all rows."""
        return [r for row in self.held for r in row]

    def is_tree(self, trees: dict[DType, int]) -> bool:
        """Whether it is a sum of more than one leaf."""
        return self.part.combine == "add" and self.dtype in trees


class Rows:
    """The rows of a block, of which tiles from `start` to `stop` are gone through.

    Columns of other tiles are known to change nothing: they leave maxima, and add zeros.
    """

    columns: int
    start: Value
    stop: Value
    is_hiding: bool  # whether there are such
    own: list[dict[int, int]]  # what is assigned for a row, in registers for each of a thread's
    mixed: list[list[list[int]]]  # what weights have mixed so far: for each product and row

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.team = Team(scope, THREADS)

    def share(self, parts: Sequence[Part]) -> None:
        """Shared memory for reductions of these parts."""
        leaves = -(-self.columns // BLOCK)
        self.levels = leaves.bit_length()
        dtypes = dict.fromkeys(part.values[0].dtype for part in parts)
        self.met = {dtype: self._array("met", dtype, SIDE * ACROSS) for dtype in dtypes}
        summed = dict.fromkeys(p.values[0].dtype for p in parts if p.combine == "add")
        length = self.levels * 2 * ROWS * PAIR * THREADS
        self.trees = {d: self._array("tree", d, length) for d in summed if leaves > 1}

    def _array(self, name: str, dtype: DType, length: int) -> int:
        self.scope.locals.append(Local(name, dtype, 1, length, shared=True))
        return len(self.scope.locals) - 1

    def _kept(self, name: str, dtype: DType, lanes: int = 1) -> int:
        self.scope.locals.append(Local(name, dtype, lanes, kept=True))
        return len(self.scope.locals) - 1

    def _dtype(self, local: int) -> DType:
        return self.scope.locals[local].dtype

    def _threads(self, body: Callable[[Value], Statements]) -> Loop:
        return self.team.each("item", THREADS, body)

    def _all(self, registers: Sequence[Sequence[int]], x: Value) -> Statements:
        return self._vector(lambda _: tuple(Assign(r, x) for row in registers for r in row))

    def _vector(self, body: Callable[[Value], Statements]) -> Statements:
        lane = self.scope.variable("lane")
        return (Loop(lane, ZERO, integer(PAIR), body(lane), "vector", PAIR),)

    def _place(self, thread: Value, number: int, k: int = 0) -> tuple[Value, Value]:
        """The row of the block, and the first of two columns, that a register is for."""
        warp, lane = divide(thread, WARP), remainder(thread, WARP)
        row = add(multiply(warp, 8 * ROWS), add(divide(lane, 4), 8 * number))
        return row, add(multiply(remainder(lane, 4), PAIR), 8 * k)

    def _in_lanes(self, numbers: set[int]) -> dict[int, int]:
        """Registers for two columns in the place of these."""
        return {
            n: self.scope.local(self.scope.locals[n].name, self._dtype(n), PAIR)
            for n in sorted(numbers)
        }

    # -- reductions ------------------------------------------------------------------------

    def _meeting(self, part: Part) -> Meeting:
        dtype = part.values[0].dtype
        count = 2 if part.combine == "add" else 1
        held = [[self._kept("running", dtype, PAIR) for _ in range(count)] for _ in range(ROWS)]
        return Meeting(part, dtype, held)

    def _leaves(self, thread: Value, tile: Value, meetings: list[Meeting]) -> Statements:
        """Sums of so many columns that they are a leaf of the tree are joined to those before."""
        sums = [m for m in meetings if m.is_tree(self.trees)]
        if not sums:
            return ()
        each = BLOCK // SIDE
        after = add(divide(tile, each), 1)
        lowest = value("bit_and", (after, value("neg", (after,), INDEX)), INDEX)
        full = exponent(lowest)
        made: list[Statement] = []
        for m in sums:
            level = self.scope.variable("level")
            join = self._vector(partial(self._from_tree, m, level, thread))
            made.append(Loop(level, ZERO, full, join))
            made += self._vector(partial(self._to_tree, m, full, thread))
            made += self._all(m.held, identity_of("add", m.dtype))
        ends = value("equal", (remainder(tile, each), integer(each - 1)), BOOL)
        last = value("equal", (tile, subtract(self.stop, 1)), BOOL)
        return (When(value("bit_or", (ends, last), BOOL), tuple(made)),)

    def _from_tree(self, m: Meeting, level: Value, thread: Value, lane: Value) -> Statements:
        """Running sums are met by those that a level of the tree holds."""
        made: list[Statement] = []
        for a, r in enumerate(m.flat):
            earlier = get(self.trees[m.dtype], m.dtype, _in_tree(a, level, thread, lane))
            made.append(Assign(r, joined("add", earlier, get(r, m.dtype))))
        return tuple(made)

    def _to_tree(self, m: Meeting, level: Value, thread: Value, lane: Value) -> Statements:
        """A level of the tree holds the running sums."""
        tree = self.trees[m.dtype]
        return tuple(
            Assign(tree, get(r, m.dtype), _in_tree(a, level, thread, lane))
            for a, r in enumerate(m.flat)
        )

    def _cleared(self, m: Meeting, thread: Value) -> Statements:
        """The tree of leaves that are hidden before the first: all sums are 0."""
        if self.start is ZERO or not m.is_tree(self.trees):
            return ()
        level, zero = self.scope.variable("level"), const(0, m.dtype)

        def clear(lane: Value) -> Statements:
            tree = self.trees[m.dtype]
            places = (_in_tree(a, level, thread, lane) for a in range(len(m.flat)))
            return tuple(Assign(tree, zero, place) for place in places)

        return (Loop(level, ZERO, integer(self.levels), self._vector(clear)),)

    # -- sums that are divided by a power of two -----------------------------------------------

    def _grown(
        self, power: int, top: Meeting, between: Statements, sums: list[Meeting], thread: Value
    ) -> Statements:
        """The power that `between` makes of the largest so far; sums are scaled where it grows."""
        (target,), dtype = top.part.targets, self._dtype(power)
        was, largest, by = (
            [get(self.scope.local(name, dtype), dtype) for _ in range(ROWS)]
            for name in ("was", "largest", "by")
        )
        made, factors, changed = list[Statement](), list[Statement](), list[Value]()
        for own, before, first, factor in zip(self.own, was, largest, by, strict=True):
            now = get(own[power], dtype)
            made.append(Assign(before.data, now))
            made.append(Assign(first.data, get(own[target], dtype)))
            lower = value("call", (value("sub", (before, now), dtype),), dtype, "short_exp2")
            nothing = value("equal", (first, identity_of("max", dtype)), BOOL)  # to be scaled
            grown = value("select", (nothing, const(1, dtype), lower), dtype)
            factors.append(Assign(factor.data, grown))
            changed.append(value("not_equal", (before, now), BOOL))
        made += [*self._take(top, thread), *between]
        mixed = [
            Assign(r, _times(get(r, dtype), factor))
            for registers in self.mixed
            for row, factor in zip(registers, by, strict=True)
            for r in row
        ]
        done = (*factors, *self._vector(lambda _: tuple(mixed)))
        done = (*done, *(s for m in sums for s in self._scaled(m, thread, by)))
        return (*made, When(value("bit_or", tuple(changed), BOOL), done))

    def _scaled(self, m: Meeting, thread: Value, factors: Sequence[Value]) -> Statements:
        """Running sums, and those in the tree, times a factor for each row."""
        count = len(m.held[0])
        by = [factors[a // count] for a in range(len(m.flat))]

        def registers(_: Value) -> Statements:
            return tuple(Assign(r, _times(get(r, m.dtype), f)) for r, f in zip(m.flat, by))

        made = self._vector(registers)
        if not m.is_tree(self.trees):
            return made
        tree, level = self.trees[m.dtype], self.scope.variable("level")

        def levels(lane: Value) -> Statements:
            places = [_in_tree(a, level, thread, lane) for a in range(len(m.flat))]
            return tuple(
                Assign(tree, _times(get(tree, m.dtype, place), f), place)
                for place, f in zip(places, by)
            )

        return (*made, Loop(level, ZERO, integer(self.levels), self._vector(levels)))

    # -- what all threads give ------------------------------------------------------------------

    def _met(self, m: Meeting) -> Statements:
        """What all columns of a row give, in each thread that has some of them."""
        return self._threads(partial(self._give, m)), self._threads(partial(self._take, m))

    def _give(self, m: Meeting, thread: Value) -> Statements:
        """What a thread's columns give goes where all threads see it."""
        made: list[Statement] = [*self._joined_leaves(m, thread)]
        for number in range(ROWS):
            made += self._vector(partial(self._given, m, thread, number))
        return tuple(made)

    def _take(self, m: Meeting, thread: Value) -> Statements:
        """What those of all threads give together."""
        combine, array, made = m.part.combine, self.met[m.dtype], list[Statement]()
        for number in range(ROWS):
            start = multiply(self._place(thread, number)[0], ACROSS)
            lanes = [get(array, m.dtype, add(start, k)) for k in range(ACROSS)]
            while len(lanes) > 1:
                half = len(lanes) // 2
                lanes = [joined(combine, lanes[k], lanes[k + half]) for k in range(half)]
            found = lanes[0]
            if combine == "add" and self.is_hiding:  # what is hidden adds zeros
                found = joined(combine, found, const(0, m.dtype))
            made.append(Assign(self.own[number][m.part.targets[0]], found))
        return tuple(made)

    def _given(self, m: Meeting, thread: Value, number: int, lane: Value) -> Statements:
        """Running values of one row go where all threads see them."""
        row, first = self._place(thread, number)
        now = [get(r, m.dtype) for r in m.held[number]]
        x = now[0] if len(now) == 1 else joined(m.part.combine, *now)
        return (Assign(self.met[m.dtype], x, add(multiply(row, ACROSS), add(first, lane))),)

    def _joined_leaves(self, m: Meeting, thread: Value) -> Statements:
        """The leaves of a tree that are left, the latest and smallest ones first."""
        if not m.is_tree(self.trees):
            return ()
        each = BLOCK // SIDE
        leaves = divide(add(self.stop, each - 1), each)
        count = known(leaves)
        made: list[Statement] = []
        for k in range(self.levels):
            join = self._vector(partial(self._from_tree, m, integer(k), thread))
            if count is None:
                bit = value("bit_and", (leaves, integer(1 << k)), INDEX)
                made.append(When(value("less", (ZERO, bit), BOOL), join))
            elif count >> k & 1:
                made += join
        return tuple(made)


def _times(x: Value, factor: Value) -> Value:
    return value("mul", (x, factor), x.dtype)


def _in_tree(number: int, level: Value, thread: Value, lane: Value) -> Value:
    """Where a level of the tree holds a thread's running sums of a number."""
    place = add(multiply(add(multiply(level, 2 * ROWS), number), THREADS), thread)
    return add(multiply(place, PAIR), lane)
