"""Run the steps of loops as lanes of vectors.

The loop that is chosen is the one whose lanes meet adjacent elements: an innermost one, or one
around loops that must keep their order. Whole steps are taken by a vector loop, and what is left by
narrower ones, then one by one. Widths never change bits: each lane computes what its step did.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft.compiler.lanes import FEWEST, Lanes, widen, widest
from weft.compiler.loops import Assign, Kernel, Loop, Statement, Store, Value, every, walk
from weft.compiler.polynomial import add, known, polynomial, subtract, whole
from weft.compiler.rebuild import Scope, Statements, substitute, values_of, with_body

MOST_LANES = 16  # where two registers of float32 have no more
MOST_COLUMNS = 64  # lanes of a loop around others, where each lane holds running values
_SHORT = 80  # instructions of a step that is taken four registers at a time, longer ones two
_NARROW = 16  # bytes of vectors that always take four: their instructions wait for each other
_TWICE = 200  # instructions above which a second, narrower copy of a loop does not pay


def vectorize(kernel: Kernel, vector_bytes: int = 16) -> Kernel:
    """The kernel with vector loops where they pay."""
    scope = Scope(kernel)
    return scope.kernel_with(_Vectorizer(scope, Lanes(kernel), vector_bytes).run(kernel.body))


def width(loop: Loop, vector_bytes: int, rows: bool = False) -> int:
    """Lanes for a loop: some registers of its widest element, eight around loops in order.

    Steps that are `rows` written out hold much at a time, and wait for little.
    """
    size = widest(loop.variable, loop.body)
    around = any(isinstance(s, Loop) for s in every(loop.body))
    work = len(values_of(loop.body))
    if around and work < _TWICE:
        return max(FEWEST, min(MOST_COLUMNS, 8 * vector_bytes // size))
    registers = 4 if work < _SHORT or vector_bytes <= _NARROW else 2
    if rows and work >= _TWICE:
        registers = 1
    most = max(MOST_LANES, 2 * vector_bytes // 4)  # a second register while one waits for results
    return max(FEWEST, min(most, registers * vector_bytes // size))


class _Vectorizer:
    def __init__(self, scope: Scope, judge: Lanes, vector_bytes: int) -> None:
        self.scope = scope
        self.judge = judge
        self.vector_bytes = vector_bytes

    def run(self, statements: Statements) -> Statements:
        made: list[Statement] = []
        for statement in statements:
            if self.is_chosen(statement):
                assert isinstance(statement, Loop)
                made += self.lanes(statement)
            elif isinstance(statement, Store | Assign) or _is_vector(statement):
                made.append(statement)
            else:
                made.append(with_body(statement, self.run(statement.body)))
        return tuple(made)

    def is_chosen(self, statement: Statement) -> bool:
        """Whether a statement is a loop that runs in lanes from now on."""
        if not isinstance(statement, Loop) or statement.kind != "serial":
            return False
        if _is_rest(subtract(statement.stop, statement.start)):
            return False  # fewer steps than a vector: a second copy of the body does not pay
        if self.vector_bytes <= _NARROW and _goes_apart(statement):
            return False
        return self.judge.runs_as_lanes(statement)

    def lanes(self, loop: Loop) -> Statements:
        """A loop as vector loops, each narrower than the one before, and a serial one."""
        differing = self.judge.varying(loop.variable, loop.body)
        assert differing is not None
        rows = bool(self.scope.kernel.notes.get("rows_written"))
        lanes = width(loop, self.vector_bytes, rows)
        trips = known(subtract(loop.stop, loop.start))
        while trips is not None and lanes > trips:
            lanes //= 2
        start, made = loop.start, list[Statement]()
        small = len(values_of(loop.body)) < _TWICE
        while lanes >= FEWEST:
            taken = whole(subtract(loop.stop, start), lanes)
            if known(taken) != 0:
                body = widen(self.fresh(loop), differing, lanes, self.scope)
                variable = self.scope.variable(loop.variable.data)
                body = substitute(body, {loop.variable: variable})
                made.append(Loop(variable, start, add(start, taken), body, "vector", lanes))
                start = add(start, taken)
            lanes = lanes // (2 if trips is not None else 4) if small else 0
        if known(subtract(loop.stop, start)) != 0:
            made.append(replace(loop, start=start))
        return tuple(made)

    def fresh(self, loop: Loop) -> Statements:
        return self.scope.copy(loop.body)


def _is_rest(trips: Value) -> bool:
    """Whether steps are those that whole vectors, as many as there are, have left over."""
    terms = polynomial(trips)
    for term, count in terms.items():
        if len(term) == 1 and term[0].op == "floordiv" and known(term[0].args[1]) == -count:
            return polynomial(term[0].args[0]) == {t: n for t, n in terms.items() if t != term}
    return False


def _goes_apart(loop: Loop) -> bool:
    """Whether lanes of few elements would be taken apart for most of what a step does.

    So it is where memory says where to read what says where to read, as a search does, and where
    data of 64 bits are multiplied or divided.
    """
    found = {x for x in values_of(loop.body) if x.op == "load" and _is_found(x, loop.variable)}
    if any(y in found for x in found for y in walk(x.args[0])):
        return True
    return any(
        x.op in ("mul", "floordiv", "rem")
        and x.dtype.kind in "iu"
        and x.dtype.itemsize == 8
        and _reads(x)
        for x in _data(loop.body)
    )


def _is_found(x: Value, variable: Value) -> bool:
    """Whether each lane reads where what it read before says."""
    loads = (y for y in walk(x.args[0]) if y.op == "load")
    return any(variable in walk(y) for y in loads)


def _reads(x: Value) -> bool:
    return any(y.op == "load" for y in walk(x))


def _data(statements: Statements) -> Iterator[Value]:
    """What statements make of what they read; not where they read and write it."""
    stack = [s.value for s in every(statements) if isinstance(s, Store | Assign)]
    seen: set[Value] = set()
    while stack:
        x = stack.pop()
        if x in seen or x.op == "load":
            continue
        seen.add(x)
        yield x
        stack += x.args


def _is_vector(statement: Statement) -> bool:
    return isinstance(statement, Loop) and statement.kind == "vector"
