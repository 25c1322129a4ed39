"""Updates in order, by the threads of a GPU: each has some of the elements that are updated.

Every thread looks at all updates in order and takes those of its own elements, so each element
meets its updates in the order it always did, whatever the number of threads. What an update is for
is computed once for each block, and left in shared memory, chunk by chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    get,
    integer,
    value,
)
from weft.compiler.passes.cooperate import Team
from weft.compiler.passes.items import Limits, less, placed, rounded
from weft.compiler.polynomial import (
    add,
    divide,
    hides,
    known,
    multiply,
    polynomial,
    remainder,
    smaller,
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
    return _Shared(kernel, nest, inner, far, limits).kernel([x for x in found if x is not None])


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


class _Shared:
    """Writes the kernel: some threads for each point, each with every so manyth element."""

    def __init__(self, kernel: Kernel, nest: Nest, inner: Nest, far: Value, limits: Limits) -> None:
        self.scope = Scope(kernel)
        self.nest, self.inner, self.far = nest, inner, far
        self.points = prod(extent for _, extent in nest)
        self.count = prod(extent for _, extent in inner)
        self.parts = 1
        while 2 * self.parts * self.points <= THREADS and self.parts * EACH < self.count:
            self.parts *= 2
        self.team = Team(self.scope, rounded(self.points * self.parts, limits))
        self.chunk = min(CHUNK, -(-self.count // WRITTEN_OUT) * WRITTEN_OUT)
        self.places = self._shared("places", INDEX)
        self.owners = self._shared("owners", OWNER)

    def _shared(self, name: str, dtype: DType) -> int:
        self.scope.locals.append(Local(name, dtype, 1, self.chunk, shared=True))
        return len(self.scope.locals) - 1

    def kernel(self, found: list[_Update]) -> Kernel:
        """All of it."""
        scope, threads = self.scope, self.team.threads
        items = self.points * self.parts
        blocks = -(-items // threads)
        block, chunk, thread = (scope.variable(name) for name in ("block", "chunk", "thread"))
        item = add(multiply(block, threads), thread)

        def place(at: Value) -> Statements:
            number = smaller(add(multiply(chunk, self.chunk), at), self.count - 1)
            own = value("cast", (remainder(divide(self.far, self.step), self.parts),), OWNER)
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
        here = get(self.places, INDEX, at)
        stores: Statements = tuple(
            Store(
                x.store.buffer,
                add(here, substitute_value(x.near, names)),
                substitute_value(x.store.value, names),
                x.store.combine,
            )
            for x in found
        )
        return (When(less(number, self.count), stores),) if self.count % self.chunk else stores

    @property
    def step(self) -> int:
        """From one place of an update to the next, at least."""
        return min((abs(count) for count in polynomial(self.far).values()), default=1)
