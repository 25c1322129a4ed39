"""Write out innermost loops of a few steps, which cost more in turns than in work."""

from __future__ import annotations

from dataclasses import replace

from weft.compiler.loops import Assign, Kernel, Loop, Statement, Store, every
from weft.compiler.passes.collapse import collapse
from weft.compiler.polynomial import known
from weft.compiler.rebuild import Statements, values_of, with_body, with_statements

STEPS = 8
INSTRUCTIONS = 256  # that a loop may become


def unroll(kernel: Kernel) -> Kernel:
    """The kernel with short innermost loops of kind `unroll`."""
    return with_statements(kernel, _statements(kernel.body))


def unrolled_steps(kernel: Kernel) -> frozenset[int]:
    """How many steps those loops of a lowered kernel have that will be written out."""
    few = any(isinstance(s, Loop) and 1 < _steps(s) <= STEPS for s in every(kernel.body))
    if not few:
        return frozenset()
    loops = (s for s in every(_statements(collapse(kernel).body)) if isinstance(s, Loop))
    return frozenset(_steps(loop) for loop in loops if loop.kind == "unroll")


def _statements(statements: Statements) -> Statements:
    made: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Store | Assign):
            made.append(statement)
            continue
        inner = with_body(statement, _statements(statement.body))
        if isinstance(inner, Loop) and _is_short(inner):
            inner = replace(inner, kind="unroll")
        made.append(inner)
    return tuple(made)


def _is_short(loop: Loop) -> bool:
    steps = _steps(loop)
    if loop.kind != "serial" or not 0 < steps <= STEPS:
        return False
    return steps * _work(loop.body) <= INSTRUCTIONS


def _steps(loop: Loop) -> int:
    """How many steps a loop has; 0 if that is not known."""
    start, stop = known(loop.start), known(loop.stop)
    return 0 if start is None or stop is None else stop - start


def _work(statements: Statements) -> int:
    """Instructions of statements that have no loops inside but those that are written out."""
    total = 0
    for s in statements:
        if isinstance(s, Store | Assign):
            total += len(values_of((s,)))
        elif isinstance(s, Loop) and s.kind == "unroll":
            total += _steps(s) * _work(s.body)
        else:
            return INSTRUCTIONS + 1
    return total
