"""Reduce a few columns side by side: one reduction of all of them in the place of one for each.

Columns that are too few for lanes would be read one after another, each time all of their rows, and
each as one chain of steps. Side by side the rows are read once, and the chains run together. Every
column keeps its own order, so no bit changes.
"""

from __future__ import annotations

from dataclasses import replace

from weft.compiler.loops import Assign, Kernel, Loop, Reduce, Statement, Store, every, integer, walk
from weft.compiler.passes.points import points
from weft.compiler.polynomial import hides, known, number, stride
from weft.compiler.rebuild import (
    Scope,
    Statements,
    assigned_locals,
    rename_locals,
    stored_buffers,
    substitute,
    values_of,
    with_body,
)

FEW = frozenset({2, 3, 5, 6, 7})  # columns, none of which fill vectors
LONG = 64  # points of a reduction, at least
WORK = 48  # instructions of a column, at most


def beside(kernel: Kernel) -> Kernel:
    """The kernel whose reductions of a few adjacent columns are one."""
    scope = Scope(kernel)
    body = _statements(kernel.body, scope)
    return kernel if body == kernel.body else scope.kernel_with(body)


def beside_extents(kernel: Kernel) -> frozenset[int]:
    """How many columns those loops of a lowered kernel have that are reduced side by side."""
    loops = (s for s in every(kernel.body) if isinstance(s, Loop) and _has_few(s))
    return frozenset(known(loop.stop) or 0 for loop in loops)


def _statements(statements: Statements, scope: Scope) -> Statements:
    made: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Loop) and _has_few(statement):
            made += _written_out(statement, scope)
        elif isinstance(statement, Store | Assign | Reduce):
            made.append(statement)
        else:
            made.append(with_body(statement, _statements(statement.body, scope)))
    return tuple(made)


def _has_few(loop: Loop) -> bool:
    """Whether a loop is over a few columns, each of which is reduced on its own."""
    if loop.kind != "serial" or known(loop.start) != 0 or known(loop.stop) not in FEW:
        return False
    places = [k for k, s in enumerate(loop.body) if isinstance(s, Reduce)]
    if len(places) != 1:
        return False
    (place,) = places
    before, reduce, after = loop.body[:place], loop.body[place], loop.body[place + 1 :]
    assert isinstance(reduce, Reduce)
    plain = all(isinstance(s, Assign) for s in before)
    plain = plain and all(isinstance(s, Store | Assign) for s in after)
    return plain and _is_long(reduce, loop) and len(values_of(loop.body)) <= WORK


def _is_long(reduce: Reduce, loop: Loop) -> bool:
    """Whether a reduction has many points, and neighbours in memory read them for each column."""
    count = known(points(reduce))
    if reduce.body or (count is not None and count < LONG):
        return False
    if any(hides(extent, loop.variable) for _, extent in reduce.axes):
        return False
    read = [x for part in reduce.parts for x in walk(*part.values) if x.op == "load"]
    if not stored_buffers(loop.body).isdisjoint(x.data for x in read):
        return False
    steps = [number(stride(x.args[0], loop.variable)) for x in read]
    return 1 in steps and all(step in (0, 1) for step in steps)


def _written_out(loop: Loop, scope: Scope) -> Statements:
    """All columns: what comes before their reductions, these as one, and what follows."""
    own = sorted(assigned_locals(loop.body))
    place = next(k for k, s in enumerate(loop.body) if isinstance(s, Reduce))
    before, after, found = list[Statement](), list[Statement](), list[Reduce]()
    for column in range(known(loop.stop) or 0):
        body = substitute(loop.body, {loop.variable: integer(column)})
        old = [scope.locals[k] for k in own]
        fresh = [scope.local(x.name, x.dtype, x.lanes, x.length) for x in old] if column else own
        body = rename_locals(body, dict(zip(own, fresh, strict=True)) if column else {})
        reduce = body[place]
        assert isinstance(reduce, Reduce)
        found.append(reduce)
        before += body[:place]
        after += body[place + 1 :]
    parts = tuple(part for reduce in found for part in reduce.parts)
    return (*before, replace(found[0], parts=parts), *after)
