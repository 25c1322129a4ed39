"""Updates in order, by the threads of a GPU: each has some of the elements that are updated.

Every thread looks at all updates in order and takes those of its own elements, so each element
meets its updates in the order it always did, whatever the number of threads.
"""

from __future__ import annotations

from math import prod

from weft.compiler.loops import BOOL, Kernel, Loop, Statement, Store, Value, When, integer, value
from weft.compiler.passes.items import Limits, less, placed, rounded
from weft.compiler.polynomial import add, divide, multiply, remainder
from weft.compiler.rebuild import (
    Scope,
    Statements,
    stored_buffers,
    substitute,
    values_of,
    with_body,
)

THREADS = 1 << 14  # that keep a GPU busy


def updates(
    kernel: Kernel, nest: list[tuple[Value, int]], body: Statements, limits: Limits
) -> Kernel | None:
    """The kernel whose threads share its updates, if it is such; `nest` are loops around them."""
    if not _only_stores(body) or not _is_apart(body):
        return None
    scope = Scope(kernel)
    points, row = prod(extent for _, extent in nest), nest[-1][1] if nest else 1
    parts = 1
    while 2 * parts * points <= THREADS:
        parts *= 2
    items = points * parts
    threads = rounded(items, limits)
    count = -(-items // threads)
    block, thread = scope.variable("block"), scope.variable("thread")
    item = add(multiply(block, threads), thread)
    part = divide(item, points)
    own = tuple(_of_part(s, row, part, parts) for s in body) if parts > 1 else body
    made = substitute(own, placed(nest, remainder(item, points)))
    if items % threads:
        made = (When(less(item, items), made),)
    inner = Loop(thread, integer(0), integer(threads), made, "thread")
    outer = Loop(block, integer(0), integer(count), (inner,), "block")
    return scope.kernel_with((outer,), blocks=count, threads=threads, scratch=())


def _only_stores(body: Statements) -> bool:
    """Whether statements are serial loops that do nothing but store."""
    return all(
        isinstance(s, Store)
        or (isinstance(s, Loop) and s.kind == "serial" and bool(s.body) and _only_stores(s.body))
        for s in body
    )


def _is_apart(body: Statements) -> bool:
    """Whether nothing reads what is updated but the update itself."""
    read = {x.data for x in values_of(body) if x.op == "load"}
    return read.isdisjoint(stored_buffers(body))


def _of_part(statement: Statement, row: int, part: Value, parts: int) -> Statement:
    """A statement whose stores are those to every `parts`-th row only, from the row `part` on."""
    if isinstance(statement, Store):
        mine = remainder(divide(statement.index, row), parts)
        return When(value("equal", (mine, part), BOOL), (statement,))
    return with_body(statement, tuple(_of_part(s, row, part, parts) for s in statement.body))
