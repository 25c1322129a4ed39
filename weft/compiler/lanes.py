"""Which loops may run their steps as lanes of a vector, and which of them should.

Steps may run side by side if none reads what another wrote. Locals that a loop alone uses are
private to each step: a step never reads them before it assigns them. Of buffers, lowering promises
that plain stores of different steps meet different elements; indices that were loaded promise
nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import TypeVar

from weft.compiler.loops import (
    INDEX,
    LANES,
    Assign,
    Kernel,
    Loop,
    Reduce,
    Statement,
    Store,
    Value,
    When,
    every,
    expressions,
    leaves_of,
)
from weft.compiler.polynomial import hides, known, number, polynomial, stride
from weft.compiler.prices import APART, UNIT, indices, is_heavy, points_of, price, weight
from weft.compiler.rebuild import (
    Scope,
    Statements,
    assigned_locals,
    bound,
    leaves_in,
    rename_locals,
)

_S = TypeVar("_S", bound=Statement)

FEWEST = 4  # lanes that pay
_NOTHING: frozenset[Value] = frozenset()


def touches(statements: Statements) -> Counter[int]:
    """How often statements read or assign each local."""
    found: Counter[int] = Counter()
    for statement in every(statements):
        read = _NOTHING.union(*map(leaves_of, expressions(statement)))
        found.update({x.data for x in read if x.op == "get"})
        if isinstance(statement, Assign):
            found[statement.local] += 1
        elif isinstance(statement, Reduce):
            found.update(t for part in statement.parts for t in part.targets)
    return found


class Lanes:
    """Judges loops of one kernel; what it found of a statement it remembers."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._costs: dict[tuple[str, int], tuple[float, Statement]] = {}

    @cached_property
    def total(self) -> Counter[int]:
        """How often each local is touched anywhere."""
        return touches(self.kernel.body)

    def varying(
        self, variable: Value, body: Statements, results: frozenset[int] = frozenset()
    ) -> set[int] | None:
        """The locals that differ between lanes; None if the steps may not run side by side.

        `results` are targets of a reduction whose own points are the steps.
        """
        if any(isinstance(s, Loop) and s.kind in ("vector", "parallel") for s in every(body)):
            return None
        spread = self._spread_arrays(variable, body)
        if spread is None:
            return None
        differing = _differing(variable, body, spread)
        if not self._locals_fit(body, spread | results):
            return None
        if not _control_fits(variable, body, differing):
            return None
        return differing - results if stores_fit(variable, body) else None

    def varying_points(self, reduce: Reduce, variable: Value) -> set[int] | None:
        """Like `varying`, for the points of a reduction along its last axis."""
        results = frozenset(t for part in reduce.parts for t in part.targets)
        return self.varying(variable, (*reduce.body, replace(reduce, axes=(), body=())), results)

    def _spread_arrays(self, variable: Value, body: Statements) -> set[int] | None:
        """Arrays whose elements belong to one lane each; None if lanes share elements."""
        written: dict[int, set[Value]] = {}
        for s in every(body):
            if isinstance(s, Assign) and s.position is not None and hides(s.position, variable):
                written.setdefault(s.local, set()).add(s.position)
        for local, positions in written.items():
            slope = number(stride(next(iter(positions)), variable))
            if len(positions) > 1 or not slope or self.kernel.locals[local].lanes > 1:
                return None
            reads = [x for x in leaves_in(body) if x.op == "get" and x.data == local]
            if any(x.args[0] not in positions for x in reads):
                return None
            if any(
                isinstance(s, Assign) and s.local == local and s.position not in positions
                for s in every(body)
            ):
                return None
        return set(written)

    def _locals_fit(self, body: Statements, exempt: set[int]) -> bool:
        inside = touches(body)
        for local in assigned_locals(body) - exempt:
            if inside[local] != self.total[local] or self.kernel.locals[local].lanes > 1:
                return False
        for x in leaves_in(body):
            if x.op == "get" and self.kernel.locals[x.data].lanes > 1:
                return False
        return True

    # -- what pays -------------------------------------------------------------------------

    def _once(self, kind: str, statement: _S, find: Callable[[_S], float]) -> float:
        key = (kind, id(statement))
        if key not in self._costs:
            self._costs[key] = find(statement), statement  # held, so that its id stays its own
        return self._costs[key][0]

    def as_lanes(self, statement: Loop | Reduce) -> float:
        """What a loop costs when its own steps are lanes; infinite where they may not be."""
        return self._once("lanes", statement, self._as_lanes)

    def inside(self, statement: Loop | Reduce) -> float:
        """What a loop costs when its steps run one by one."""
        return self._once("inside", statement, self._inside)

    def _as_lanes(self, statement: Loop | Reduce) -> float:
        if isinstance(statement, Reduce):
            if statement.lanes != LANES or not statement.axes:
                return inf
            variable = statement.axes[-1][0]
            fits = self.varying_points(statement, variable) is not None
            return price(variable, points_of(statement), by_rows=True) if fits else inf
        if statement.kind == "vector":
            return UNIT
        start, stop = known(statement.start), known(statement.stop)
        short = start is not None and stop is not None and stop - start < FEWEST
        if statement.kind != "serial" or short:
            return inf
        if self.varying(statement.variable, statement.body) is None:
            return inf
        found = price(statement.variable, statement.body)
        if found == inf and is_heavy(statement.body):
            return self.inside(statement) / 2
        return found

    def _inside(self, statement: Loop | Reduce) -> float:
        return self._one_by_one(points_of(statement))

    def _one_by_one(self, statements: Statements) -> float:
        cost = float(APART * len(indices(statements)))
        for s in statements:
            if isinstance(s, When) or (isinstance(s, Reduce) and not s.axes):
                cost += self._one_by_one(s.body)
            elif isinstance(s, Loop | Reduce):
                cost += weight(s) * min(self.as_lanes(s), self.inside(s))
        return cost

    def runs_as_lanes(self, statement: Loop | Reduce) -> bool:
        """Whether a loop's own steps are best run as lanes."""
        here = self.as_lanes(statement)
        return here < inf and here < self.inside(statement)


def _differing(variable: Value, body: Statements, spread: set[int]) -> set[int]:
    """Locals that are given values that depend on the variable, directly or through others."""
    found: set[int] = set()
    while True:
        before = len(found)
        for s in every(body):
            if isinstance(s, Assign):
                if s.local not in spread and depends(s.value, variable, found):
                    found.add(s.local)
            elif isinstance(s, Reduce):
                for part in s.parts:
                    if any(depends(x, variable, found) for x in part.values):
                        found.update(part.targets)
        if len(found) == before:
            return found


def depends(x: Value, variable: Value, differing: set[int]) -> bool:
    """Whether a value is another one in each lane."""
    return any(p is variable or (p.op == "get" and p.data in differing) for p in leaves_of(x))


def _control_fits(variable: Value, body: Statements, differing: set[int]) -> bool:
    """Whether all lanes take the same way: bounds, conditions and positions are one for all."""
    for s in every(body):
        if isinstance(s, Assign):
            own = [s.position] if s.position is not None and s.local in differing else []
        elif isinstance(s, Store):
            own = []
        elif isinstance(s, Reduce):
            own = [extent for _, extent in s.axes]
        else:
            own = list(expressions(s))
        if any(depends(x, variable, differing) for x in own):
            return False
    positions = [
        x.args[0] for x in leaves_in(body) if x.op == "get" and x.args and x.data in differing
    ]
    return not any(depends(x, variable, differing) for x in positions)


def stores_fit(variable: Value, body: Statements) -> bool:
    """Whether no step stores what another one stores or loads."""
    inner = {v for s in every(body) for v in bound(s)}
    stores = [s for s in every(body) if isinstance(s, Store)]
    loads = [x for x in leaves_in(body) if x.op == "load"]
    assigned = assigned_locals(body)
    for store in stores:
        if any(x.op == "get" and x.data in assigned for x in leaves_of(store.index)):
            return False
        step = stride(store.index, variable)
        if not step and (step is not None or store.combine or _is_loaded(store.index)):
            return False
        same = [x.args[0] for x in loads if x.data == store.buffer]
        if not all(_is_own(store.index, index, variable, inner) for index in same):
            return False
        others = [s.index for s in stores if s.buffer == store.buffer]
        if not all(_is_beside(store.index, index, variable, inner) for index in others):
            return False
    return True


def _is_loaded(index: Value) -> bool:
    return any(x.op in ("load", "get") for x in leaves_of(index))


def _is_own(stored: Value, other: Value, variable: Value, inner: set[Value]) -> bool:
    """Whether another access in the same buffer meets elements of its own step alone."""
    if stored is other:
        return True
    if stride(stored, variable) != stride(other, variable) or not stride(stored, variable):
        return False
    p, q = polynomial(stored), polynomial(other)
    apart = [term for term in {**p, **q} if p.get(term) != q.get(term)]
    return bool(apart) and all(any(a in inner for a in term) for term in apart)


def _is_beside(stored: Value, other: Value, variable: Value, inner: set[Value]) -> bool:
    """Whether another store is to elements of its own step alone: also to those beside these."""
    step = stride(stored, variable)
    if stored is other or not step or step != stride(other, variable):
        return stored is other
    p, q = polynomial(stored), polynomial(other)
    apart = [term for term in {**p, **q} if p.get(term) != q.get(term)]
    if apart == [()]:
        size, distance = number(step), abs(p.get((), 0) - q.get((), 0))
        if size is None:
            return False
        beyond = variable.extent is not None and distance >= abs(size) * variable.extent
        return beyond or distance % size != 0
    return all(not term or any(a in inner for a in term) for term in apart)


def widen(statements: Statements, differing: set[int], lanes: int, scope: Scope) -> Statements:
    """Statements as one vector step runs them: locals that differ between lanes hold them all."""
    numbers: dict[int, int] = {}
    for number_ in sorted(differing):
        old = scope.locals[number_]
        numbers[number_] = scope.local(old.name, old.dtype, lanes, old.length)
    return rename_locals(statements, numbers) if numbers else statements


def widest(variable: Value, statements: Statements) -> int:
    """Bytes of the widest element that is computed in lanes, indices aside."""
    sizes = [s.value.dtype.itemsize for s in every(statements) if isinstance(s, Store)]
    for s in every(statements):
        loads = [x for v in expressions(s) for x in leaves_of(v) if x.op == "load"]
        sizes += [x.dtype.itemsize for x in loads if hides(x.args[0], variable)]
        if isinstance(s, Assign) and s.value.dtype != INDEX:
            sizes.append(s.value.dtype.itemsize)
    return max(sizes, default=4)
