"""Find the place of an extreme element in two runs instead of one.

The extremes of parts of a row need one instruction a step. Only the part with the first best one is
then run over again, for the first place that holds it. Places are whole numbers and ties go to the
first, so no order of steps can change the answer.
"""

from __future__ import annotations

from weft.compiler.lanes import Lanes, touches
from weft.compiler.loops import (
    BOOL,
    INDEX,
    LANES,
    LEAF,
    Assign,
    Kernel,
    Loop,
    Part,
    Reduce,
    Statement,
    Store,
    Value,
    every,
    get,
    identity_of,
    integer,
    value,
)
from weft.compiler.passes.accumulate import is_better, select
from weft.compiler.passes.points import at, moved
from weft.compiler.polynomial import add, known, multiply, smaller
from weft.compiler.rebuild import Scope, Statements, with_body

BLOCK = LANES * LEAF
_MANY = 4  # parts of a row that is worth it
_WIDEST = 64  # bytes of vectors of which four are compared together


def search(kernel: Kernel, vector_bytes: int = 16) -> Kernel:
    """The kernel with long searches for extreme places in two runs."""
    if not any(map(_is_search, every(kernel.body))):
        return kernel
    scope = Scope(kernel)
    size = BLOCK * max(_MANY * vector_bytes // _WIDEST, 1)
    return scope.kernel_with(_Searcher(scope, Lanes(kernel), size).statements(kernel.body))


def _is_search(statement: Statement) -> bool:
    """Whether a statement is a reduction that finds one extreme place."""
    if not isinstance(statement, Reduce) or len(statement.parts) != 1:
        return False
    return statement.parts[0].combine in ("argmax", "argmin")


class _Searcher:
    def __init__(self, scope: Scope, judge: Lanes, size: int) -> None:
        self.scope = scope
        self.judge = judge
        self.size = size
        self.touches = touches(scope.kernel.body)

    def statements(self, statements: Statements) -> Statements:
        """Statements outside loops that run in lanes."""
        made: list[Statement] = []
        for statement in statements:
            if isinstance(statement, Reduce) and self.is_worth(statement):
                made += self.two_runs(statement)
            elif isinstance(statement, Store | Assign | Reduce) or self._in_lanes(statement):
                made.append(statement)
            else:
                made.append(with_body(statement, self.statements(statement.body)))
        return tuple(made)

    def _in_lanes(self, statement: Statement) -> bool:
        return isinstance(statement, Loop) and self.judge.runs_as_lanes(statement)

    def is_worth(self, reduce: Reduce) -> bool:
        """Whether a reduction is a search of a long row, for the place alone."""
        if not _is_search(reduce) or len(reduce.axes) != 1 or reduce.body:
            return False
        (part,), ((_, extent),) = reduce.parts, reduce.axes
        if self.touches[part.targets[0]] > 1:
            return False
        long = (known(extent) or 0) >= _MANY * self.size
        return long and self.judge.runs_as_lanes(reduce)

    def two_runs(self, reduce: Reduce) -> Statements:
        """The extremes of all parts, then the place in the best one."""
        (part,), ((_, extent),) = reduce.parts, reduce.axes
        count = known(extent)
        assert count is not None
        scope, dtype = self.scope, part.values[0].dtype
        best, found = scope.local("best", dtype), scope.local("found", dtype)
        first, better = scope.local("first", INDEX), scope.local("better", BOOL)
        block, point = scope.variable("part"), scope.variable("point")
        start = multiply(block, self.size)
        if count % self.size:
            start = smaller(start, count - self.size)  # the last part begins in the one before
        now, new = get(best, dtype), get(found, dtype)
        (x, _) = self._values(reduce, add(start, point))
        length = ((point, integer(self.size)),)
        run: Statements = (
            Reduce(length, LANES, (Part((found,), part.combine.removeprefix("arg"), (x,)),)),
            Assign(better, is_better(part.combine, now, new)),
            Assign(first, select(get(better, BOOL), start, get(first, INDEX))),
            Assign(best, select(get(better, BOOL), new, now)),
        )
        return (
            Assign(best, identity_of(part.combine, dtype)),
            Assign(first, integer(0)),
            Loop(block, integer(0), integer(-(-count // self.size)), run),
            self._place(reduce, now, get(first, INDEX)),
            Assign(part.targets[0], now),
        )

    def _place(self, reduce: Reduce, best: Value, first: Value) -> Reduce:
        """The first place from `first` on that holds what the best part has."""
        (part,) = reduce.parts
        point = self.scope.variable("point")
        x, place = self._values(reduce, add(first, point))
        holds = value("equal", (x, best), BOOL)
        if x.dtype.kind not in "biu":  # NaN is the best, if there is one
            holds = value("bit_or", (holds, value("not_equal", (x, x), BOOL)), BOOL)
        beyond = identity_of("min", place.dtype)
        lowest = Part((part.targets[1],), "min", (select(holds, place, beyond),))
        return Reduce(((point, integer(self.size)),), LANES, (lowest,))

    @staticmethod
    def _values(reduce: Reduce, point: Value) -> tuple[Value, Value]:
        x, place = moved(reduce, at(reduce, point)).parts[0].values
        return x, place
