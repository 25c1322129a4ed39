"""Run two tasks side by side where each is a chain of steps that wait for one another.

A running sum adds its elements one by one, and the next addition begins when the last has ended.
Two rows at a time keep a processor busy in between. More rows would compete for the same places of
the nearest cache where they lie a power of two apart.
"""

from __future__ import annotations

from dataclasses import replace

from weft.compiler.loops import Assign, Kernel, Loop, Store, Value, expressions, integer, leaves_of
from weft.compiler.polynomial import add, hides, known, multiply
from weft.compiler.rebuild import Scope, Statements, assigned_locals, rename_locals, substitute

SOME = 16  # tasks that are left, at least


def pair(kernel: Kernel) -> Kernel:
    """The kernel with half as many tasks, if each was one chain."""
    outer = kernel.parallel
    if outer is None or not _is_chain(kernel, outer):
        return kernel
    count = known(outer.stop)
    if count is None or count % 2 or count // 2 < SOME or known(outer.start) != 0:
        return kernel
    scope = Scope(kernel)
    half = scope.variable(outer.variable.data)
    first, second = (_row(scope, outer, add(multiply(half, 2), k), k) for k in range(2))
    *before, inner = first
    *others, twin = second
    assert isinstance(inner, Loop) and isinstance(twin, Loop)
    steps = tuple(s for both in zip(inner.body, twin.body, strict=True) for s in both)
    body = (*before, *others, replace(inner, body=steps))
    loop = Loop(half, integer(0), integer(count // 2), body, "parallel")
    return scope.kernel_with((loop,), tasks=integer(count // 2))


def _row(scope: Scope, outer: Loop, row: Value, number: int) -> Statements:
    """A task's statements, the second time with registers of their own."""
    body = substitute(outer.body, {outer.variable: row})
    if number == 0:
        return body
    numbers = {}
    for local in sorted(assigned_locals(body)):
        old = scope.locals[local]
        numbers[local] = scope.local(old.name, old.dtype)
    return rename_locals(body, numbers)


def _is_chain(kernel: Kernel, outer: Loop) -> bool:
    """Whether a task is registers, and one loop that hands values from step to step."""
    if not outer.body:
        return False
    *before, inner = outer.body
    if not isinstance(inner, Loop) or inner.kind != "serial":
        return False
    if any(hides(x, outer.variable) for x in (inner.start, inner.stop)):
        return False
    if not all(map(_is_plain, (*before, *inner.body))) or any(isinstance(s, Store) for s in before):
        return False
    locals_ = [kernel.locals[n] for n in assigned_locals(outer.body)]
    return all(x.length == 0 and x.lanes == 1 for x in locals_) and _hands_on(inner.body)


def _is_plain(statement: object) -> bool:
    if isinstance(statement, Assign):
        return statement.position is None
    return isinstance(statement, Store) and not statement.combine


def _hands_on(body: Statements) -> bool:
    """Whether a step reads a register before it assigns it."""
    later, assigned = assigned_locals(body), set[int]()
    for statement in body:
        reads = {x.data for v in expressions(statement) for x in leaves_of(v) if x.op == "get"}
        if reads & later - assigned:
            return True
        if isinstance(statement, Assign):
            assigned.add(statement.local)
    return False
