"""Share updates of integers that meet in few places between threads: two kernels in place of one.

Integers meet alike in any order. So each task of the first kernel takes some of the updates, in
arrays of its own, and writes what they make together to a new buffer, `partials`; the second brings
all of that together. A task takes its arrays in turns, so that an update seldom waits for the one
before it to be written.
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
from weft.compiler.polynomial import (
    add,
    divide,
    known,
    most_of,
    multiply,
    smaller,
    subtract,
)
from weft.compiler.rebuild import Scope, substitute_value

LEAST = 1 << 16  # updates that are worth two kernels
TASKS = 16
SHARE = 4  # updates of a task for each of its places, at least
MOST_BYTES = 1 << 15  # of a task's own places: they stay in the nearest cache
WAYS = 4  # arrays of a task, at most
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
        last, updates = most_of(store.index), known(loop.stop)
        assert last is not None and updates is not None
        self.places, self.updates = last + 1, updates
        room = MOST_BYTES // (self.places * self.dtype.itemsize)
        self.ways = min(WAYS, 1 << (room.bit_length() - 1))
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
        turn, rest = scope.variable("turn"), scope.variable("rest")
        own = scope.local("own", self.dtype, 1, self.ways * self.places)
        share = -(-self.updates // (TASKS * self.ways)) * self.ways  # each has some: LEAST are many
        start = multiply(task, share)
        count = smaller(subtract(self.loop.stop, start), share)
        turns = divide(count, self.ways)

        def update(at: Value, way: int) -> Statement:
            index, x = (
                substitute_value(part, {self.loop.variable: add(start, at)})
                for part in (self.store.index, self.store.value)
            )
            place = add(index, way * self.places)
            return Assign(own, self._met(get(own, self.dtype, place), x), place)

        whole = tuple(update(add(multiply(turn, self.ways), way), way) for way in range(self.ways))
        met = get(own, self.dtype, given)
        for way in range(1, self.ways):
            met = self._met(met, get(own, self.dtype, add(given, way * self.places)))
        home = add(multiply(task, self.places), given)
        empty = Assign(own, identity_of(self.store.combine, self.dtype), cleared)
        body = (
            self._each(cleared, empty, self.ways),
            Loop(turn, integer(0), turns, whole),
            Loop(rest, multiply(turns, self.ways), count, (update(rest, 0),)),
            self._each(given, Store(self.buffer, home, met)),
        )
        return Loop(task, integer(0), integer(TASKS), body, "parallel")

    def _met(self, x: Value, y: Value) -> Value:
        return value(self.store.combine, (x, y), self.dtype)

    def _ends(self, scope: Scope) -> Loop:
        task, place = scope.variable("task"), scope.variable("place")
        found = load(self.buffer, add(multiply(task, self.places), place), self.dtype)
        meet = replace(self.store, index=place, value=found)
        return self._each(place, Loop(task, integer(0), integer(TASKS), (meet,)))

    def _each(self, place: Value, statement: Statement, times: int = 1) -> Loop:
        return Loop(place, integer(0), integer(times * self.places), (statement,))
