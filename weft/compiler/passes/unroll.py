"""Write out innermost loops of a few steps, which cost more in turns than in work."""

from __future__ import annotations

from dataclasses import replace

from weft.compiler.loops import Assign, Kernel, Loop, Statement, Store
from weft.compiler.polynomial import known
from weft.compiler.rebuild import Statements, values_of, with_body, with_statements

STEPS = 8
INSTRUCTIONS = 128  # that a loop may become


def unroll(kernel: Kernel) -> Kernel:
    """The kernel with short innermost loops of kind `unroll`."""
    return with_statements(kernel, _statements(kernel.body))


def _statements(statements: Statements) -> Statements:
    made: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Loop) and _is_short(statement):
            made.append(replace(statement, kind="unroll"))
        elif isinstance(statement, Store | Assign):
            made.append(statement)
        else:
            made.append(with_body(statement, _statements(statement.body)))
    return tuple(made)


def _is_short(loop: Loop) -> bool:
    start, stop = known(loop.start), known(loop.stop)
    if loop.kind != "serial" or start is None or stop is None or stop - start > STEPS:
        return False
    plain = all(isinstance(s, Store | Assign) for s in loop.body)
    return plain and (stop - start) * len(values_of(loop.body)) <= INSTRUCTIONS
