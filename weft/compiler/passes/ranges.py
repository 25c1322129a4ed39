"""Share updates of whole rows between threads: each has a range of the rows that are updated.

Every task looks at all updates in order and takes those of its own rows, so each element meets its
updates in the order it always did. To look at an update costs little beside the row it carries.
"""

from __future__ import annotations

from dataclasses import replace

from weft.compiler.loops import BOOL, Kernel, Loop, Store, Value, When, integer, value
from weft.compiler.polynomial import (
    add,
    hides,
    known,
    most_of,
    multiply,
    number,
    polynomial,
    stride,
)
from weft.compiler.rebuild import Scope

TASKS = 4  # more would look at updates oftener, and skip more of what they carry
LEAST = 1 << 18  # elements of all updates that threads pay for
COLUMNS = 64  # elements of a row, at least


def ranges(kernel: Kernel) -> Kernel:
    """The kernel as tasks with a range of rows each, if it is updates of rows; else as it is."""
    columns = kernel.body[0] if len(kernel.body) == 1 else None
    updates = columns.body[0] if isinstance(columns, Loop) and len(columns.body) == 1 else None
    if not isinstance(columns, Loop) or not isinstance(updates, Loop) or len(updates.body) != 1:
        return kernel
    (store,) = updates.body
    if not isinstance(store, Store) or not all(map(_is_plain, (columns, updates))):
        return kernel
    row = _row(store.index, columns)
    if row is None or hides(row, columns.variable) or not _is_worth(row, columns, updates):
        return kernel
    return _shared(kernel, columns, updates, row)


def _is_plain(loop: Loop) -> bool:
    return loop.kind == "serial" and known(loop.start) == 0 and known(loop.stop) is not None


def _row(index: Value, columns: Loop) -> Value | None:
    """The row of an index that is row · columns + column, where that is all it is."""
    size, terms = known(columns.stop), polynomial(index)
    others = {term: count for term, count in terms.items() if term != (columns.variable,)}
    if number(stride(index, columns.variable)) != 1 or len(others) != 1:
        return None
    ((term, count),) = others.items()
    return term[0] if len(term) == 1 and count == size else None


def _is_worth(row: Value, columns: Loop, updates: Loop) -> bool:
    last, width, count = most_of(row), known(columns.stop), known(updates.stop)
    if last is None or width is None or count is None:
        return False
    return last >= TASKS and width >= COLUMNS and width * count >= LEAST


def _shared(kernel: Kernel, columns: Loop, updates: Loop, row: Value) -> Kernel:
    scope = Scope(kernel)
    task, last = scope.variable("task"), most_of(row)
    assert last is not None
    size = -(-(last + 1) // TASKS)
    first = multiply(task, size)
    low = value("less_equal", (first, row), BOOL)
    high = value("less", (row, add(first, size)), BOOL)
    own = When(value("bit_and", (low, high), BOOL), (replace(columns, body=updates.body),))
    loop = Loop(task, integer(0), integer(TASKS), (replace(updates, body=(own,)),), "parallel")
    return scope.kernel_with((loop,))
