"""Updates in order, by the threads of a GPU: each has some of the elements that are updated.

Every element meets its updates in the order it always did, whatever the number of threads. Where
updates are of rows, a block has every so manyth row: its threads look for the updates of these,
chunk by chunk, list them in order, and then take them together, each for a column: a few at a time,
so that it waits for memory once for all of these. Otherwise every thread looks at all updates; what
they are for is computed once for each block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from weft.compiler.loops import (
    BOOL,
    INDEX,
    Assign,
    Kernel,
    Local,
    Loop,
    Statement,
    Store,
    Value,
    When,
    const,
    get,
    integer,
    load,
    value,
)
from weft.compiler.passes.accumulate import joined, select
from weft.compiler.passes.cooperate import Team
from weft.compiler.passes.items import Limits, less, placed, rounded
from weft.compiler.polynomial import (
    add,
    divide,
    hides,
    known,
    larger,
    multiply,
    polynomial,
    remainder,
    smaller,
    subtract,
    to_value,
)
from weft.compiler.rebuild import (
    Scope,
    Statements,
    stored_buffers,
    substitute,
    substitute_value,
    values_of,
)
from weft.core.common.types import DType

THREADS = 1 << 16  # that keep a GPU busy
EACH = 4  # updates of a thread that is worth its while
CHUNK = 1024  # updates that a block looks at together
WRITTEN_OUT = 8  # of them, at once
ROW = 64  # elements of an update that a block takes with all its threads,
LOOKS = 16  # after each thread has looked at so many updates, or fewer
BLOCKS = 1 << 9  # that keep a GPU busy
TOGETHER = 4  # updates for which a thread waits at a time
MOST = 1 << 31  # updates that have numbers of 32 bits
OWNER = np.dtype(np.int32)
Nest = list[tuple[Value, int]]


@dataclass(frozen=True)
class _Update:
    """A store: its place is that of the update, and then that of the point around."""

    store: Store
    far: Value
    near: Value


def updates(kernel: Kernel, nest: Nest, body: Statements, limits: Limits) -> Kernel | None:
    """The kernel whose threads share its updates, if it is such; `nest` are loops around them."""
    inner, stores = _inside(body)
    read = {x.data for x in values_of(body) if x.op == "load"}
    if not inner or not stores or read & stored_buffers(body):
        return None
    found = [_split(store, nest) for store in stores]
    fars = {update.far for update in found if update is not None}
    if None in found or len(fars) != 1:
        return None
    (far,) = fars
    rows = prod(extent for _, extent in nest) >= ROW and prod(n for _, n in inner) < MOST
    write = _Listed if rows else _Shared
    return write(kernel, nest, inner, far, limits).kernel([x for x in found if x is not None])


def _inside(body: Statements) -> tuple[Nest, list[Store]]:
    """The loops over updates, one inside another, and what is stored in the innermost one."""
    inner: Nest = []
    while len(body) == 1 and isinstance(body[0], Loop):
        loop = body[0]
        extent = known(loop.stop)
        if loop.kind != "serial" or known(loop.start) != 0 or not extent:
            return [], []
        inner.append((loop.variable, extent))
        body = loop.body
    stores = [s for s in body if isinstance(s, Store)]
    return inner, stores if len(stores) == len(body) else []


def _split(store: Store, nest: Nest) -> _Update | None:
    """A store whose place has two parts; None if what the update is for depends on the point."""
    around = {variable for variable, _ in nest}
    terms = polynomial(store.index)
    near = {term: count for term, count in terms.items() if set(term) <= around}
    far = to_value({term: count for term, count in terms.items() if term not in near})
    if any(hides(far, variable) for variable in around):
        return None
    return _Update(store, far, to_value(near))


class _Updates:
    """What is updated: the points around, the updates, and parts of what they are for."""

    def __init__(self, kernel: Kernel, nest: Nest, inner: Nest, far: Value) -> None:
        self.scope = Scope(kernel)
        self.nest, self.inner, self.far = nest, inner, far
        self.points = prod(extent for _, extent in nest)
        self.count = prod(extent for _, extent in inner)
        self.parts = 1

    def shared(self, name: str, dtype: DType, length: int) -> int:
        """An array that the threads of a block share."""
        self.scope.locals.append(Local(name, dtype, 1, length, shared=True))
        return len(self.scope.locals) - 1

    def part(self) -> Value:
        """Which part an update is of: every so manyth place is one's own."""
        step = min((abs(count) for count in polynomial(self.far).values()), default=1)
        return remainder(divide(self.far, step), self.parts)

    def stores(self, found: list[_Update], far: Value, names: dict[Value, Value]) -> Statements:
        """An update, for what is `far`, of the point that `names` place."""
        return tuple(
            Store(
                x.store.buffer,
                add(far, substitute_value(x.near, names)),
                substitute_value(x.store.value, names),
                x.store.combine,
            )
            for x in found
        )


class _Shared(_Updates):
    """Writes the kernel: some threads for each point, each with every so manyth element."""

    def __init__(self, kernel: Kernel, nest: Nest, inner: Nest, far: Value, limits: Limits) -> None:
        super().__init__(kernel, nest, inner, far)
        while 2 * self.parts * self.points <= THREADS and self.parts * EACH < self.count:
            self.parts *= 2
        self.team = Team(self.scope, rounded(self.points * self.parts, limits))
        self.chunk = min(CHUNK, -(-self.count // WRITTEN_OUT) * WRITTEN_OUT)
        self.places = self.shared("places", INDEX, self.chunk)
        self.owners = self.shared("owners", OWNER, self.chunk)

    def kernel(self, found: list[_Update]) -> Kernel:
        """All of it."""
        scope, threads = self.scope, self.team.threads
        items = self.points * self.parts
        blocks = -(-items // threads)
        block, chunk, thread = (scope.variable(name) for name in ("block", "chunk", "thread"))
        item = add(multiply(block, threads), thread)

        def place(at: Value) -> Statements:
            number = smaller(add(multiply(chunk, self.chunk), at), self.count - 1)
            own = value("cast", (self.part(),), OWNER)
            put = Assign(self.places, self.far, at), Assign(self.owners, own, at)
            return substitute(put, placed(self.inner, number))

        look = self.look(found, chunk, item)
        look = (When(less(item, items), look),) if items % threads else look
        looking = Loop(thread, integer(0), integer(threads), look, "thread")
        both = (self.team.each("item", self.chunk, place), looking)
        chunks = -(-self.count // self.chunk)
        loop = Loop(chunk, integer(0), integer(chunks), both)
        outer = Loop(block, integer(0), integer(blocks), (loop,), "block")
        return scope.kernel_with((outer,), blocks=blocks, threads=threads, scratch=())

    def look(self, found: list[_Update], chunk: Value, item: Value) -> Statements:
        """What a thread does with a chunk: it takes the updates that are its own.

        Most are not: several are looked at before it is asked which of them is.
        """
        turn = self.scope.variable("turn")
        first = multiply(turn, WRITTEN_OUT)
        part = value("cast", (divide(item, self.points),), OWNER)
        taken: list[Statement] = []
        some: Value | None = None
        for step in range(WRITTEN_OUT):
            at = add(first, step)
            mine = value("equal", (get(self.owners, OWNER, at), part), BOOL)
            some = mine if some is None else value("bit_or", (some, mine), BOOL)
            taken.append(
                When(mine, self.take(found, add(multiply(chunk, self.chunk), at), at, item))
            )
        assert some is not None
        turns = integer(self.chunk // WRITTEN_OUT)
        return (Loop(turn, integer(0), turns, (When(some, tuple(taken)),)),)

    def take(self, found: list[_Update], number: Value, at: Value, item: Value) -> Statements:
        """One update of the point that a thread is for, if there are so many."""
        names = placed(self.inner, number) | placed(self.nest, remainder(item, self.points))
        stores = self.stores(found, get(self.places, INDEX, at), names)
        return (When(less(number, self.count), stores),) if self.count % self.chunk else stores


class _Listed(_Updates):
    """Writes the kernel: each block has every so manyth row of what is updated."""

    def __init__(self, kernel: Kernel, nest: Nest, inner: Nest, far: Value, limits: Limits) -> None:
        super().__init__(kernel, nest, inner, far)
        self.team = Team(self.scope, rounded(self.points, limits))
        self.wide = -(-self.points // self.team.threads)  # blocks for one row
        while 2 * self.parts * self.wide <= BLOCKS and self.parts * EACH < self.count:
            self.parts *= 2
        self.looks = LOOKS
        while (5 * self.looks + 8) * self.team.threads > limits.shared // 2:
            self.looks //= 2
        self.chunk = self.looks * self.team.threads
        self.mine = self.shared("mine", BOOL, self.chunk)
        self.next = self.scope.local("next", OWNER)
        counts = ("counts", OWNER, self.team.threads)
        self.counts = self.shared(*counts), self.shared(*counts)
        self.list = self.shared("list", OWNER, self.chunk)

    def kernel(self, found: list[_Update]) -> Kernel:
        """All of it."""
        scope, threads = self.scope, self.team.threads
        blocks = self.parts * self.wide
        block, chunk = scope.variable("block"), scope.variable("chunk")
        part, first = divide(block, self.wide), multiply(remainder(block, self.wide), threads)
        start = multiply(chunk, self.chunk)
        steps = [self.threads(partial(self.look, start, part)), self.threads(self.count_own)]
        side, apart = 0, 1
        while apart < threads:
            steps.append(self.threads(partial(self.add_up, side, apart)))
            side, apart = 1 - side, 2 * apart
        steps.append(self.threads(partial(self.enter, start, self.counts[side])))
        steps.append(self.threads(partial(self.take, found, first, self.counts[side])))
        loop = Loop(chunk, integer(0), integer(-(-self.count // self.chunk)), tuple(steps))
        outer = Loop(block, integer(0), integer(blocks), (loop,), "block")
        return scope.kernel_with((outer,), blocks=blocks, threads=threads, scratch=())

    def threads(self, body: Callable[[Value], Statements]) -> Loop:
        """What every thread does."""
        return self.team.each("item", self.team.threads, body)

    def look(self, start: Value, part: Value, thread: Value) -> Statements:
        """Which updates of a chunk are the block's; neighbours look at neighbours."""
        made: list[Statement] = []
        whole = self.count % self.chunk == 0
        for k in range(self.looks):
            here = add(thread, k * self.team.threads)
            at = add(start, here)
            number = at if whole else smaller(at, self.count - 1)
            own = substitute_value(self.part(), placed(self.inner, number))
            mine = value("equal", (own, part), BOOL)
            if not whole:
                mine = value("bit_and", (mine, less(at, self.count)), BOOL)
            made.append(Assign(self.mine, mine, here))
        return tuple(made)

    def _own(self, thread: Value, k: int) -> Value:
        """Whether the update at place k of a thread's own, which follow each other, is taken."""
        return get(self.mine, BOOL, add(multiply(thread, self.looks), k))

    def count_own(self, thread: Value) -> Statements:
        """How many of a thread's own updates are the block's."""
        count = const(0, OWNER)
        for k in range(self.looks):
            one = value("cast", (self._own(thread, k),), OWNER)
            count = value("add", (count, one), OWNER)
        return (Assign(self.counts[0], count, thread),)

    def add_up(self, side: int, apart: int, thread: Value) -> Statements:
        """One step of adding up the counts of all threads before each."""
        here, before = (
            get(self.counts[side], OWNER, at) for at in (thread, larger(subtract(thread, apart), 0))
        )
        some = value("less_equal", (integer(apart), thread), BOOL)
        more = value("select", (some, before, const(0, OWNER)), OWNER)
        both = value("add", (here, more), OWNER)
        return (Assign(self.counts[1 - side], both, thread),)

    def enter(self, start: Value, counts: int, thread: Value) -> Statements:
        """A thread's updates go to the list, after those of the threads before."""
        before = get(counts, OWNER, larger(subtract(thread, 1), 0))
        first = value("equal", (thread, integer(0)), BOOL)
        made: list[Statement] = [
            Assign(self.next, value("select", (first, const(0, OWNER), before), OWNER))
        ]
        here = get(self.next, OWNER)
        for k in range(self.looks):
            number = add(add(start, multiply(thread, self.looks)), k)
            put = Assign(self.list, value("cast", (number,), OWNER), value("cast", (here,), INDEX))
            following = Assign(self.next, value("add", (here, const(1, OWNER)), OWNER))
            made.append(When(self._own(thread, k), (put, following)))
        return tuple(made)

    def take(self, found: list[_Update], first: Value, counts: int, thread: Value) -> Statements:
        """All updates of the list, in order, for a thread's column."""
        turn, column = self.scope.variable("turn"), add(first, thread)
        count = value("cast", (get(counts, OWNER, integer(self.team.threads - 1)),), INDEX)
        body: Statements
        if len(found) == 1:
            turns = divide(add(count, TOGETHER - 1), TOGETHER)
            body = self.together(found[0], multiply(turn, TOGETHER), count, column)
        else:
            turns, names = count, self.names(turn, column)
            body = self.stores(found, substitute_value(self.far, names), names)
        body = (Loop(turn, integer(0), turns, body),)
        whole = self.points % self.team.threads == 0
        return body if whole else (When(less(column, self.points), body),)

    def names(self, at: Value, column: Value) -> dict[Value, Value]:
        """The variables of an update that the list has, and those of a column."""
        number = value("cast", (get(self.list, OWNER, at),), INDEX)
        return placed(self.inner, number) | placed(self.nest, column)

    def together(self, update: _Update, start: Value, count: Value, column: Value) -> Statements:
        """A few updates of the list: all is read before any of it is written.

        What several of them are for is met by one after another in registers.
        """
        store, made = update.store, list[Statement]()
        ends = [smaller(add(start, k), subtract(count, 1)) for k in range(TOGETHER)]
        names = [self.names(at, column) for at in ends]
        near = substitute_value(update.near, names[0])
        fars = [self.held(made, "far", substitute_value(self.far, each)) for each in names]
        places = [add(far, near) for far in fars]
        met = [self.held(made, "new", substitute_value(store.value, each)) for each in names]
        if store.combine:
            dtype = met[0].dtype
            old = [self.held(made, "old", load(store.buffer, place, dtype)) for place in places]
            for k, far in enumerate(fars):
                for i in range(k):
                    old[k] = select(value("equal", (fars[i], far), BOOL), met[i], old[k])
                met[k] = self.held(made, "met", joined(store.combine, old[k], met[k]))
        for k, place in enumerate(places):
            put = Store(store.buffer, place, met[k])
            made.append(When(value("less", (add(start, k), count), BOOL), (put,)))
        return tuple(made)

    def held(self, made: list[Statement], name: str, x: Value) -> Value:
        """A value that a register holds from here on."""
        local = self.scope.local(name, x.dtype)
        made.append(Assign(local, x))
        return get(local, x.dtype)
