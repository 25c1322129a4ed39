"""Move a loop inside the loops that it is around, so that memory is walked row by row.

Where the steps of a loop may run side by side but the loops inside it must keep their order, as for
sums down columns, the outer loop is run at every statement instead: each of its steps keeps its
running values in an element of an array. Rows are taken some at a time, so that running values are
read and written once for all of them.
"""

from __future__ import annotations

from dataclasses import replace

from weft.compiler.lanes import Lanes, touches
from weft.compiler.loops import (
    Assign,
    Kernel,
    Loop,
    Statement,
    Store,
    Value,
    every,
    expressions,
    get,
    integer,
    leaves_of,
    value,
    walk,
)
from weft.compiler.passes.vectorize import width
from weft.compiler.polynomial import add, divide, known, most_of, multiply, number, stride, subtract
from weft.compiler.prices import accesses
from weft.compiler.rebuild import (
    Scope,
    Statements,
    changer,
    revise_one,
    substitute,
    with_body,
)

ROWS = 4  # rows that are taken together,
FEWER = 2  # and those whose running values are
MANY = 5600  # more than these: with four rows beside them they crowd the nearest cache
LONG = 512  # columns of a row that is taken alone, if the next one follows it
LONGEST = 4096  # columns of such a row: running values of more crowd out what is read,
NARROW = 16  # unless vectors have no more bytes, which takes longer than to read
CROWD = 1 << 14  # bytes of running values that compete with what is read for places in a cache
MOST = 8192  # steps of a loop that may be moved: its running values fit a near cache
ROOM = 5 << 20  # bytes of arrays of a kernel that loops may be moved for: a stack has 8 << 20


def sink(kernel: Kernel, vector_bytes: int = 16) -> Kernel:
    """The kernel with loops of columns inside loops of rows."""
    scope = Scope(kernel)
    judge = Lanes(kernel)
    return scope.kernel_with(_statements(kernel.body, scope, judge, vector_bytes))


def _statements(
    statements: Statements, scope: Scope, judge: Lanes, vector_bytes: int
) -> Statements:
    made: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Store | Assign):
            made.append(statement)
        elif (
            isinstance(statement, Loop)
            and _is_columns(statement, judge, vector_bytes)
            and _has_room(statement, scope, judge)
        ):
            longest = MOST if vector_bytes <= NARROW else LONGEST
            made += _Sunk(scope, judge, statement, longest).statements()
        else:
            body = _statements(statement.body, scope, judge, vector_bytes)
            made.append(with_body(statement, body))
    return tuple(made)


def _is_columns(loop: Loop, judge: Lanes, vector_bytes: int) -> bool:
    """Whether a loop is around ordered loops and too long for the lanes of one vector."""
    most = most_of(loop.stop)
    if loop.kind != "serial" or known(loop.start) != 0 or most is None or most > MOST:
        return False
    if not any(isinstance(s, Loop) for s in every(loop.body)):
        return False
    return width(loop, vector_bytes) < most and judge.runs_as_lanes(loop)


def _has_room(loop: Loop, scope: Scope, judge: Lanes) -> bool:
    """Whether the running values of a loop fit the stack, beside the arrays that are there."""
    length, differing = most_of(loop.stop), judge.varying(loop.variable, loop.body)
    assert length is not None and differing is not None
    own = (scope.locals[local] for local in differing)
    wanted = sum(length * max(x.length, 1) * x.dtype.itemsize for x in own)
    return wanted + sum(x.length * x.lanes * x.dtype.itemsize for x in scope.locals) <= ROOM


class _Sunk:
    """A loop's body, with the loop at each of its statements."""

    def __init__(self, scope: Scope, judge: Lanes, loop: Loop, longest: int) -> None:
        self.scope = scope
        self.longest = longest
        self.loop = loop
        length = most_of(loop.stop)
        differing = judge.varying(loop.variable, loop.body)
        assert length is not None and differing is not None
        self.length = length
        self.total = touches(loop.body)
        self.homes: dict[int, int] = {}
        for local in sorted(differing):
            old = scope.locals[local]
            size = length * max(old.length, 1)
            self.homes[local] = home = scope.local(old.name, old.dtype, 1, size)
            if size * old.dtype.itemsize >= CROWD:
                scope.locals[home] = replace(scope.locals[home], beside=_walked(loop))

    def statements(self) -> Statements:
        """The body, the loop inside."""
        return self.within(self.loop.body)

    def within(self, statements: Statements) -> Statements:
        """Statements with the loop at each run of stores and assignments."""
        made: list[Statement] = []
        run: list[Statement] = []
        for statement in statements:
            if self._is_leaf(statement):
                run.append(statement)
                continue
            if isinstance(statement, Loop) and self._is_rows(statement):
                made += self.rows(statement, tuple(run))
                run = []
                continue
            made += self.strip(tuple(run))
            run = []
            if isinstance(statement, Store | Assign):
                made.append(statement)
            else:
                made.append(with_body(statement, self.within(statement.body)))
        return (*made, *self.strip(tuple(run)))

    def _is_leaf(self, statement: Statement) -> bool:
        if isinstance(statement, Assign):
            return statement.local in self.homes
        return isinstance(statement, Store)

    def _is_rows(self, loop: Loop) -> bool:
        """Whether a loop's steps read rows of buffers; stores are best left in their order."""
        plain = all(map(self._is_leaf, loop.body))
        stores = any(isinstance(s, Store) for s in loop.body)
        return plain and not stores and bool(accesses(loop.body))

    def _is_stream(self, loop: Loop) -> bool:
        """Whether long rows follow each other in memory: best read from end to end."""
        steps = [number(stride(index, loop.variable)) for index in accesses(loop.body)]
        fits = LONG <= self.length <= self.longest
        return fits and all(step in (0, self.length) for step in steps)

    def rows(self, loop: Loop, before: Statements) -> Statements:
        """An ordered loop of plain statements, some of its steps at a time.

        What comes `before` it, such as first values, goes with its first steps.
        """
        some = 1 if self._is_stream(loop) else ROWS if self.length <= MANY else FEWER
        trips = known(subtract(loop.stop, loop.start))
        if before and trips is not None and trips >= some:
            first = (*before, *self._together(loop, loop.start, some))
            made = self.strip(first, loop.body)
            loop = replace(loop, start=add(loop.start, some))
        else:
            made = self.strip(before)
        if some == 1:
            return (*made, with_body(loop, self.strip(loop.body)))
        group = self.scope.variable("rows")
        count = divide(subtract(loop.stop, loop.start), some)
        together = self._together(loop, add(loop.start, multiply(group, some)), some)
        rest = replace(loop, start=add(loop.start, multiply(count, some)))
        return (
            *made,
            Loop(group, integer(0), count, self.strip(together, loop.body)),
            with_body(rest, self.strip(loop.body)),
        )

    def _together(self, loop: Loop, first: Value, count: int) -> Statements:
        """Several steps of a loop, one after another."""
        steps = (substitute(loop.body, {loop.variable: add(first, k)}) for k in range(count))
        return tuple(statement for step in steps for statement in step)

    def strip(self, run: Statements, origin: Statements | None = None) -> Statements:
        """The loop around a run of statements; running values in registers meanwhile.

        `origin` is what the run was in the loop's body, if it is several steps of that.
        """
        if not run:
            return ()
        column = self.scope.variable(self.loop.variable.data)
        before, after = _live(run)
        inside = touches(run if origin is None else origin)
        registers: dict[int, int] = {}
        loads: list[Statement] = []
        stores: list[Statement] = []
        for local in sorted(self.homes.keys() & (before | after)):
            old = self.scope.locals[local]
            if old.length:
                continue
            registers[local] = register = self.scope.local(old.name, old.dtype)
            held = get(register, old.dtype)
            if local in before:
                loads.append(Assign(register, get(self.homes[local], old.dtype, column)))
            if local in after and inside[local] != self.total[local]:
                stores.append(Assign(self.homes[local], held, column))
        body = [self._moved(statement, registers) for statement in run]
        moved = substitute((*loads, *body, *stores), {self.loop.variable: column})
        return (Loop(column, self.loop.start, self.loop.stop, moved),)

    def _moved(self, statement: Statement, registers: dict[int, int]) -> Statement:
        """A statement on registers of this strip, and on the arrays of all columns."""

        def change(x: Value) -> Value:
            if x.op != "get" or x.data not in self.homes:
                return x
            if not x.args:
                return value("get", (), x.dtype, registers[x.data])
            return value("get", (self._place(x.args[0]),), x.dtype, self.homes[x.data])

        changed = revise_one(statement, changer(change))
        if not isinstance(changed, Assign) or changed.local not in self.homes:
            return changed
        if changed.position is None:
            return replace(changed, local=registers[changed.local])
        place = self._place(changed.position)
        return replace(changed, local=self.homes[changed.local], position=place)

    def _place(self, position: Value) -> Value:
        return add(multiply(position, self.length), self.loop.variable)


def _walked(loop: Loop) -> int | None:
    """The first buffer that is read along a loop."""
    for x in walk(*(x for s in every(loop.body) for x in expressions(s))):
        if x.op == "load" and number(stride(x.args[0], loop.variable)) == 1:
            return int(x.data)
    return None


def _live(run: Statements) -> tuple[set[int], set[int]]:
    """The registers that a run reads before it assigns them, and those it assigns."""
    before: set[int] = set()
    after: set[int] = set()
    for statement in run:
        read = {x.data for v in expressions(statement) for x in leaves_of(v) if x.op == "get"}
        before |= read - after
        if isinstance(statement, Assign):
            after.add(statement.local)
    return before, after
