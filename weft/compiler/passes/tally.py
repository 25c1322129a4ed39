"""Share updates of integers that meet in few places between threads: two kernels in place of one.

Integers meet alike in any order. So each task of the first kernel takes some of the updates, in an
array of its own, and writes it to a new buffer, `partials`; the second brings them all together.
"""

from __future__ import annotations

from dataclasses import replace

from weft.compiler.loops import (
    Assign,
    Buffer,
    Kernel,
    Loop,
    Statement,
    Store,
    Value,
    get,
    identity_of,
    integer,
    load,
    value,
)
from weft.compiler.polynomial import add, divide, known, most_of, multiply, smaller
from weft.compiler.rebuild import Scope

LEAST = 1 << 16  # updates that are worth two kernels
TASKS = 16
SHARE = 4  # updates of a task for each of its places, at least
MOST_BYTES = 1 << 15  # of a task's own places: they stay in the nearest cache
COMBINES = ("add", "min", "max")


def tally(kernel: Kernel) -> tuple[Kernel, ...]:
    """The kernel in two, where it is many updates of few places by integers; else as it is."""
    loop = kernel.body[0] if len(kernel.body) == 1 else None
    if not isinstance(loop, Loop) or loop.kind != "serial" or known(loop.start) != 0:
        return (kernel,)
    store = loop.body[0] if len(loop.body) == 1 else None
    if not isinstance(store, Store) or not _is_worth(store, known(loop.stop)):
        return (kernel,)
    return _Tally(kernel, loop, store).kernels()


def _is_worth(store: Store, updates: int | None) -> bool:
    dtype, last = store.value.dtype, most_of(store.index)
    if store.combine not in COMBINES or dtype.kind not in "iu" or last is None or updates is None:
        return False
    few = (last + 1) * dtype.itemsize <= MOST_BYTES and TASKS * SHARE * (last + 1) <= updates
    return few and updates >= LEAST


class _Tally:
    def __init__(self, kernel: Kernel, loop: Loop, store: Store) -> None:
        self.kernel = kernel
        self.loop = loop
        self.store = store
        self.dtype = store.value.dtype
        last = most_of(store.index)
        assert last is not None
        self.places = last + 1
        self.buffer = len(kernel.buffers)

    def kernels(self) -> tuple[Kernel, Kernel]:
        """The kernel of tasks, and the one that brings what they have together."""
        partials = Buffer("partials", self.dtype, "write")
        note = (self.dtype, TASKS * self.places)
        first, second = Scope(self.kernel), Scope(self.kernel)
        tasks = self._tasks(first)
        made = replace(
            first.kernel_with((tasks,), partials=note), buffers=(*self.kernel.buffers, partials)
        )
        ends = replace(
            second.kernel_with((self._ends(second),)),
            name=f"{self.kernel.name}_end",
            buffers=(*self.kernel.buffers, replace(partials, mode="read")),
        )
        return made, ends

    def _tasks(self, scope: Scope) -> Loop:
        task, cleared, given = (scope.variable(name) for name in ("task", "place", "place"))
        own = scope.local("own", self.dtype, 1, self.places)
        share = divide(add(self.loop.stop, TASKS - 1), TASKS)
        start = multiply(task, share)
        index, combine = self.store.index, self.store.combine
        met = value(combine, (get(own, self.dtype, index), self.store.value), self.dtype)
        update = replace(
            self.loop,
            start=start,
            stop=smaller(add(start, share), self.loop.stop),
            body=(Assign(own, met, index),),
        )
        home = add(multiply(task, self.places), given)
        body = (
            self._each(cleared, Assign(own, identity_of(combine, self.dtype), cleared)),
            update,
            self._each(given, Store(self.buffer, home, get(own, self.dtype, given))),
        )
        return Loop(task, integer(0), integer(TASKS), body, "parallel")

    def _ends(self, scope: Scope) -> Loop:
        task, place = scope.variable("task"), scope.variable("place")
        found = load(self.buffer, add(multiply(task, self.places), place), self.dtype)
        meet = replace(self.store, index=place, value=found)
        return self._each(place, Loop(task, integer(0), integer(TASKS), (meet,)))

    def _each(self, place: Value, statement: Statement) -> Loop:
        return Loop(place, integer(0), integer(self.places), (statement,))
