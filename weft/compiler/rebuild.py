"""Changed copies of kernels: values and statements never change, so passes build new ones.

`Scope` gives a pass fresh variables and locals; `rebuild` and `revise` apply a change to every
value of an expression or of statements; `read_locals` and its kin say what statements touch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from operator import is_
from typing import Any, TypeAlias

from weft.compiler.loops import (
    Ahead,
    Assign,
    Fetch,
    Kernel,
    Local,
    Loop,
    Part,
    Reduce,
    Settle,
    Squares,
    Statement,
    Store,
    Tiles,
    Value,
    When,
    every,
    expressions,
    leaves_of,
    recalled,
    value,
    values_in,
    variable,
    walk,
)
from weft.core.common.types import DType

Change: TypeAlias = Callable[[Value], Value]
Statements: TypeAlias = tuple[Statement, ...]
DEEPEST = 200  # calls inside calls, which Python does not take without end


class Scope:
    """The variables and locals of a kernel that a pass is rebuilding."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.locals = list(kernel.locals)

    @cached_property
    def _names(self) -> set[str]:
        return {v.data for s in every(self.kernel.body) for v in bound(s)}

    def variable(self, name: str) -> Value:
        """A variable whose name is not taken; `name` is where the search begins."""
        stem = name.rstrip("0123456789").rstrip("_") or "v"
        found, count = stem, 0
        while found in self._names:
            count += 1
            found = f"{stem}_{count}"
        self._names.add(found)
        return variable(found)

    def local(self, name: str, dtype: DType, lanes: int = 1, length: int = 0) -> int:
        """The number of a new local."""
        self.locals.append(Local(name, dtype, lanes, length))
        return len(self.locals) - 1

    def copy(self, statements: Statements) -> Statements:
        """The same statements with variables of their own."""
        names = {v: self.variable(v.data) for s in every(statements) for v in bound(s)}
        return substitute(statements, names) if names else statements

    def kernel_with(self, body: Statements, **notes: Any) -> Kernel:
        """The kernel with these statements and every local made so far."""
        old, made = self.kernel, tuple(self.locals)
        if made == old.locals and not notes:
            return with_statements(old, body)
        return replace(old, body=body, locals=made, notes={**old.notes, **notes})


def bound(statement: Statement) -> tuple[Value, ...]:
    """The variables a statement brings into being."""
    if isinstance(statement, Loop):
        return (statement.variable,)
    if isinstance(statement, Reduce):
        return tuple(v for v, _ in statement.axes)
    return ()


def rebuild(x: Value, change: Change, memo: dict[Value, Value], depth: int = 0) -> Value:
    """`x` with `change` applied to each of its points, operands first."""
    found = memo.get(x)
    if found is not None:
        return found
    args = x.args
    if args:
        if depth == DEEPEST:
            for point in walk(x):
                rebuild(point, change, memo, DEEPEST - 1)
            return memo[x]
        depth += 1
        made = tuple([memo[a] if a in memo else rebuild(a, change, memo, depth) for a in args])
        if made != args:
            found = value(x.op, made, x.dtype, x.data)
    memo[x] = found = change(found or x)
    return found


def changer(change: Change) -> Change:
    """`change` for whole expressions, each point changed once."""
    memo: dict[Value, Value] = {}
    return lambda x: rebuild(x, change, memo)


def _are_same(old: Statements, new: Statements) -> bool:
    return old is new or (len(old) == len(new) and all(map(is_, old, new)))


def with_statements(kernel: Kernel, body: Statements) -> Kernel:
    """The same kernel around other statements; itself, if it has these."""
    if _are_same(kernel.body, body):
        return kernel
    parameters, notes = kernel.parameters, kernel.notes
    return Kernel(kernel.name, kernel.buffers, kernel.locals, body, parameters, notes)


def with_body(statement: Statement, body: Statements) -> Statement:
    """The same loop, reduction or condition around other statements."""
    if _are_same(statement.body, body):
        return statement
    if isinstance(statement, Loop):
        variable, kind = statement.variable, statement.kind
        return Loop(variable, statement.start, statement.stop, body, kind, statement.step)
    if isinstance(statement, Reduce):
        return Reduce(statement.axes, statement.lanes, statement.parts, body)
    assert isinstance(statement, When)
    return When(statement.condition, body)


def revise_one(statement: Statement, change: Change) -> Statement:
    """A statement whose own expressions have been changed; those inside it stay."""
    if isinstance(statement, Assign):
        position = None if statement.position is None else change(statement.position)
        given = change(statement.value)
        if position is statement.position and given is statement.value:
            return statement
        return Assign(statement.local, given, position)
    if isinstance(statement, Store):
        index, given = change(statement.index), change(statement.value)
        if index is statement.index and given is statement.value:
            return statement
        return Store(statement.buffer, index, given, statement.combine)
    if isinstance(statement, Loop):
        bounds = (statement.variable, statement.start, statement.stop)
        variable, start, stop = made = _all(bounds, change)
        if made == bounds:
            return statement
        return Loop(variable, start, stop, statement.body, statement.kind, statement.step)
    if isinstance(statement, Reduce):
        axes = tuple((change(v), change(extent)) for v, extent in statement.axes)
        parts = tuple(Part(p.targets, p.combine, _all(p.values, change)) for p in statement.parts)
        same = axes == statement.axes and parts == statement.parts
        return statement if same else replace(statement, axes=axes, parts=parts)
    if isinstance(statement, Tiles):
        sums, left, right = _all(statement.places, change)
        ahead = statement.ahead and (change(statement.ahead[0]), statement.ahead[1])
        groups = change(statement.groups)
        return replace(statement, places=(sums, left, right), groups=groups, ahead=ahead)
    if isinstance(statement, Squares):
        one, other = (replace(x, start=change(x.start)) for x in (statement.left, statement.right))
        return replace(statement, left=one, right=other, lane=change(statement.lane))
    if isinstance(statement, Fetch):
        inside = None if statement.inside is None else change(statement.inside)
        position, source = change(statement.position), change(statement.source)
        return replace(statement, position=position, source=source, inside=inside)
    if isinstance(statement, Settle):
        return statement
    if isinstance(statement, Ahead):
        return replace(statement, source=change(statement.source))
    condition = change(statement.condition)
    return statement if condition is statement.condition else When(condition, statement.body)


def _all(values: tuple[Value, ...], change: Change) -> tuple[Value, ...]:
    return tuple([change(v) for v in values])


def revise(statements: Statements, change: Change) -> Statements:
    """Statements whose every expression has been changed, inner ones too."""
    made: list[Statement] = []
    for statement in statements:
        changed = revise_one(statement, change)
        if changed.body:
            changed = with_body(changed, revise(changed.body, change))
        made.append(changed)
    return tuple(made)


def substitute(statements: Statements, values: Mapping[Value, Value]) -> Statements:
    """Statements where some leaves, such as variables, are other values."""
    if not values:
        return statements
    memo, leaves = dict(values), frozenset(values)
    return revise(statements, lambda x: _replaced(x, memo, leaves))


def substitute_value(x: Value, values: Mapping[Value, Value]) -> Value:
    """An expression where some leaves are other values."""
    return _replaced(x, dict(values), frozenset(values))


def _replaced(
    x: Value, memo: dict[Value, Value], leaves: frozenset[Value], depth: int = 0
) -> Value:
    """`rebuild` where nothing changes but `leaves`, which `memo` knows from the start."""
    found = memo.get(x)
    if found is not None:
        return found
    if leaves.isdisjoint(x.inside):
        return x
    if depth == DEEPEST:
        for point in walk(x):
            _replaced(point, memo, leaves, DEEPEST - 1)
        return memo[x]
    made = []
    for a in x.args:
        b = memo.get(a)
        if b is None:
            b = _replaced(a, memo, leaves, depth + 1) if a.args else a
        made.append(b)
    memo[x] = found = value(x.op, tuple(made), x.dtype, x.data)
    return found


def rename_locals(statements: Statements, numbers: Mapping[int, int]) -> Statements:
    """Statements that read and assign other locals in the place of some."""
    if not numbers:
        return statements

    read = [x for x in leaves_in(statements) if x.op == "get" and x.data in numbers]
    values: dict[Value, Value] = {}
    for x in sorted(read, key=lambda x: len(x.inside)):  # positions before those made of them
        args = tuple([substitute_value(a, values) for a in x.args])
        values[x] = value("get", args, x.dtype, numbers[x.data])
    return renamed(substitute(statements, values), numbers)


def renamed(statements: Statements, numbers: Mapping[int, int]) -> Statements:
    """Statements that assign other locals in the place of some, and read those they read."""
    if not numbers:
        return statements
    made: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Assign):
            local = numbers.get(statement.local, statement.local)
            statement = Assign(local, statement.value, statement.position)
        elif isinstance(statement, Reduce):
            parts = tuple(
                Part(tuple(numbers.get(t, t) for t in p.targets), p.combine, p.values)
                for p in statement.parts
            )
            statement = replace(statement, parts=parts)
        elif isinstance(statement, Tiles):
            named = (statement.sums, statement.left, statement.right)
            sums, left, right = (numbers.get(n, n) for n in named)
            right = statement.right if statement.shared else right
            statement = replace(statement, sums=sums, left=left, right=right)
        elif isinstance(statement, Fetch):
            array = numbers.get(statement.array, statement.array)
            statement = replace(statement, array=array)
        elif isinstance(statement, Squares):
            own = tuple(numbers.get(n, n) for n in statement.sums)
            one, other = (
                replace(
                    x,
                    array=numbers.get(x.array, x.array),
                    held=tuple(numbers.get(n, n) for n in x.held),
                )
                for x in (statement.left, statement.right)
            )
            statement = replace(statement, sums=own, left=one, right=other)
        inner = statement.body
        made.append(with_body(statement, renamed(inner, numbers)) if inner else statement)
    return tuple(made)


def renumbered(statements: Statements, numbers: Mapping[int, int]) -> Statements:
    """Statements whose buffers have other numbers."""

    def change(x: Value) -> Value:
        if x.op != "load" or numbers.get(x.data, x.data) == x.data:
            return x
        return value("load", x.args, x.dtype, numbers[x.data])

    return _stored_to(revise(statements, changer(change)), numbers)


def _stored_to(statements: Statements, numbers: Mapping[int, int]) -> Statements:
    made: list[Statement] = []
    for s in statements:
        if isinstance(s, Store):
            made.append(replace(s, buffer=numbers.get(s.buffer, s.buffer)))
        else:
            inner = s.body
            made.append(with_body(s, _stored_to(inner, numbers)) if inner else s)
    return tuple(made)


def values_of(statements: Iterable[Statement]) -> set[Value]:
    """Every point of every expression in statements and in those inside them."""
    return values_in(*(x for s in every(tuple(statements)) for x in expressions(s)))


@recalled
def leaves_in(statements: Statements) -> frozenset[Value]:
    """The variables, loads and locals that statements, and those inside them, are made of."""
    found: set[Value] = set()
    for statement in every(statements):
        for x in expressions(statement):
            found |= leaves_of(x)
    return frozenset(found)


def assigned_locals(statements: Iterable[Statement]) -> set[int]:
    """The locals that statements give values to."""
    found: set[int] = set()
    for statement in every(tuple(statements)):
        if isinstance(statement, Assign):
            found.add(statement.local)
        elif isinstance(statement, Reduce):
            found.update(t for part in statement.parts for t in part.targets)
        elif isinstance(statement, Tiles):
            found.add(statement.sums)
        elif isinstance(statement, Squares):
            found.update(statement.sums)
        elif isinstance(statement, Fetch):
            found.add(statement.array)
    return found


def read_locals(statements: Iterable[Statement]) -> set[int]:
    """The locals that statements read."""
    inside = tuple(statements)
    found = {x.data for x in leaves_in(inside) if x.op == "get"}
    for s in every(inside):
        if isinstance(s, Tiles):
            found |= {s.sums, s.left} if s.shared else {s.sums, s.left, s.right}
        elif isinstance(s, Squares):
            found |= {*s.sums, s.left.array, s.right.array, *s.left.held}
    return found


def stored_buffers(statements: Iterable[Statement]) -> set[int]:
    """The buffers that statements write to."""
    return {s.buffer for s in every(tuple(statements)) if isinstance(s, Store)}
