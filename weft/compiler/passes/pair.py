"""Run two tasks side by side where each is a chain of steps that wait for one another.

A running sum adds its elements one by one, and the next addition begins when the last has ended.
So does each step of a softmax of a short row: its maximum, its exponentials, their sum. Narrower
vectors are several to a step already, and two rows of them have no registers.
Two rows at a time keep a processor busy in between. More rows would compete for the same places of
the nearest cache where they lie a power of two apart.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from weft.compiler.loops import (
    Assign,
    Kernel,
    Loop,
    Statement,
    Store,
    Value,
    every,
    expressions,
    integer,
    leaves_of,
    walk,
)
from weft.compiler.passes.contract_registers import WIDEST
from weft.compiler.polynomial import add, hides, known, multiply
from weft.compiler.rebuild import Scope, Statements, assigned_locals, rename_locals, substitute

SOME = 16  # tasks that are left, at least
SHORT = 512  # steps of the loops of a row whose chains show: longer ones are several at once


def pair(kernel: Kernel, vector_bytes: int = 16) -> Kernel:
    """The kernel with half as many tasks, if each was one chain."""
    outer = kernel.parallel
    if outer is None:
        return kernel
    if not (_is_chain(kernel, outer) or (vector_bytes == WIDEST and _is_short(outer))):
        return kernel
    count = known(outer.stop)
    if count is None or count % 2 or count // 2 < SOME or known(outer.start) != 0:
        return kernel
    scope = Scope(kernel)
    half = scope.variable(outer.variable.data)
    first, second = (_row(scope, outer, add(multiply(half, 2), k), k) for k in range(2))
    loop = Loop(half, integer(0), integer(count // 2), _together(first, second), "parallel")
    return scope.kernel_with((loop,), tasks=integer(count // 2))


def _row(scope: Scope, outer: Loop, row: Value, number: int) -> Statements:
    """A task's statements, the second time with registers of their own."""
    body = substitute(outer.body, {outer.variable: row})
    if number == 0:
        return body
    numbers = {}
    for local in sorted(assigned_locals(body)):
        old = scope.locals[local]
        numbers[local] = scope.local(old.name, old.dtype, old.lanes, old.length)
    return rename_locals(body, numbers)


def _together(first: Statements, second: Statements) -> Statements:
    """The statements of two rows by turns; their loops are one."""
    made: list[Statement] = []
    for one, other in zip(first, second, strict=True):
        if isinstance(one, Loop) and isinstance(other, Loop):
            made.append(replace(one, body=_together(one.body, other.body)))
        else:
            made += (one, other)
    return tuple(made)


def _is_short(outer: Loop) -> bool:
    """Whether a task makes single numbers of a row in lanes, and has few steps to do so."""
    inside = list(every(outer.body))
    loops = [s for s in inside if isinstance(s, Loop)]
    if not all(isinstance(s, Loop) or _is_plain(s) for s in inside):
        return False
    if _steps(outer.body) > SHORT:
        return False
    given = (x for s in inside if isinstance(s, Assign) for x in walk(s.value))
    return any(s.kind == "vector" for s in loops) and any(x.op == "across" for x in given)


def _steps(statements: Statements) -> float:
    """How many steps the longest loop has, with those of loops inside."""
    found = 1.0
    for loop in (s for s in statements if isinstance(s, Loop)):
        start, stop = known(loop.start), known(loop.stop)
        if start is None or stop is None:
            return inf
        found = max(found, (stop - start) * _steps(loop.body))
    return found


def _is_chain(kernel: Kernel, outer: Loop) -> bool:
    """Whether a task is registers, and one loop that hands values from step to step."""
    if not outer.body:
        return False
    *before, inner = outer.body
    if not isinstance(inner, Loop) or inner.kind != "serial":
        return False
    if any(hides(x, outer.variable) for x in (inner.start, inner.stop)):
        return False
    steps = (*before, *inner.body)
    if not all(map(_is_plain, steps)) or any(isinstance(s, Store) for s in before):
        return False
    locals_ = [kernel.locals[n] for n in assigned_locals(outer.body)]
    return all(x.length == 0 and x.lanes == 1 for x in locals_) and _hands_on(inner.body)


def _is_plain(statement: object) -> bool:
    if isinstance(statement, Assign):
        return True
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
