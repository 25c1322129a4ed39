"""Map a kernel to the blocks and threads of a GPU.

Where each element is computed on its own, a thread takes one, or a few adjacent ones as a vector.
Where rows are reduced, a block takes a row: its threads share each reduction and each run over the
row. A few long rows take two kernels: blocks reduce parts of a row, then one block joins them.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TypeAlias

from weft.compiler.lanes import Lanes, stores_fit
from weft.compiler.loops import (
    BOOL,
    LANES,
    LEAF,
    Assign,
    Buffer,
    Kernel,
    Loop,
    Reduce,
    Statement,
    Store,
    Value,
    When,
    every,
    get,
    integer,
)
from weft.compiler.passes.accumulate import dtypes_of
from weft.compiler.passes.blocks_hidden import guarded
from weft.compiler.passes.blocks_product import tiled
from weft.compiler.passes.blocks_turned import turned
from weft.compiler.passes.blocks_updates import updates
from weft.compiler.passes.cooperate import (
    BLOCK,
    WIDTH,
    Chunks,
    Columns,
    Cooperation,
    Team,
    chunks_of,
)
from weft.compiler.passes.items import Limits, Space, is_plain, less, placed, rounded
from weft.compiler.passes.points import points
from weft.compiler.passes.share import share
from weft.compiler.polynomial import (
    add,
    divide,
    known,
    multiply,
    remainder,
    smaller,
)
from weft.compiler.rebuild import Scope, Statements, substitute
from weft.core.common.types import DType
from weft.errors import UnsupportedError

MANY = 1 << 16  # results that keep a GPU busy, a thread for each
FEW = 128  # rows that leave most of a GPU idle,
PART = 64  # where each has more blocks of a reduction than this
MOST_PARTS = 512
Scratch: TypeAlias = tuple[tuple[DType, int], ...]


def blocks(kernel: Kernel, limits: Limits) -> tuple[Kernel, ...]:
    """The kernels to launch one after another; each notes its `blocks` and `threads`.

    `scratch` notes buffers that follow the kernel's own: (dtype, elements) each, in order.
    """
    nest, body = _nest(kernel)
    if not nest and _is_report(body):
        return (_report(kernel, body, limits),)
    if any(isinstance(s, Loop) for s in body) and not _is_row(body):
        shared = updates(kernel, nest, body, limits)
        if shared is not None:
            return (shared,)
        if not nest:
            raise UnsupportedError(
                f"kernel {kernel.name}: its steps depend on each other, on a GPU"
            )
    if _is_column(nest, body):
        return (_columns(kernel, nest, body, limits),)
    if not _is_row(body):
        made = tiled(kernel, limits) if isinstance(body[0], Reduce) else ()
        if made:
            ready = ((k,) if "blocks" in k.notes else blocks(k, limits) for k in made)
            return tuple(k for each in ready for k in each)
        squares = turned(kernel, nest, body, limits)
        return (squares or _Elements(kernel, nest, limits).kernel(),)
    rows = prod(extent for _, extent in nest)
    (first, *others) = [s for s in body if isinstance(s, Reduce)]
    long = _count(first) > PART * BLOCK and rows < FEW
    if long and not others and not any(isinstance(s, Loop) for s in body):
        return _Parts(kernel, nest, body, limits).kernels()
    return (_Rows(kernel, nest, body, limits).kernel(),)


def _nest(kernel: Kernel) -> tuple[list[tuple[Value, int]], Statements]:
    """Outermost loops whose steps may run in any order, and what is inside."""
    found: list[tuple[Value, int]] = []
    body = kernel.body
    while len(body) == 1 and isinstance(body[0], Loop):
        loop = body[0]
        extent = known(loop.stop)
        plain = loop.kind == "serial" and known(loop.start) == 0 and extent is not None
        if not plain or not stores_fit(loop.variable, loop.body):
            break
        assert extent is not None
        found.append((loop.variable, extent))
        body = loop.body
    return found, body


def _is_report(body: Statements) -> bool:
    """Whether statements look for something at all points, and say so once if it is there."""
    if len(body) != 2:
        return False
    reduce, said = body
    if not isinstance(reduce, Reduce) or not isinstance(said, When):
        return False
    parts, stores = reduce.parts, [s for s in said.body if isinstance(s, Store)]
    plain = len(parts) == 1 and parts[0].combine == "or" and all(map(is_plain, reduce.body))
    once = len(stores) == len(said.body) and all(
        known(s.index) is not None and known(s.value) is not None and not s.combine for s in stores
    )
    return plain and once and said.condition == get(parts[0].targets[0], BOOL)


def _report(kernel: Kernel, body: Statements, limits: Limits) -> Kernel:
    """A kernel whose threads look at a point each; any that finds something says so."""
    reduce, said = body
    assert isinstance(reduce, Reduce) and isinstance(said, When)
    nest = [(variable, known(extent) or 0) for variable, extent in reduce.axes]
    at_point = (*reduce.body, When(reduce.parts[0].values[0], said.body))
    scope = Scope(kernel)
    return _of_items(scope, Space(scope, Lanes(kernel), nest, at_point, 1), limits)


def _is_row(body: Statements) -> bool:
    """Whether statements reduce along the last axis, in ways that threads can share."""
    reductions = [s for s in body if isinstance(s, Reduce)]
    plain = all(
        s.lanes == LANES and not any(isinstance(i, Reduce | Loop) for i in every(s.body))
        for s in reductions
    )
    inner = [s for s in body if isinstance(s, Loop)]
    return bool(reductions) and plain and all(_is_flat(s) for s in inner)


def _is_column(nest: list[tuple[Value, int]], body: Statements) -> bool:
    """Whether each result is a long reduction of its own, and they are few."""
    first, *others = body
    if not isinstance(first, Reduce) or first.lanes != 1 or not all(map(is_plain, others)):
        return False
    few = prod(extent for _, extent in nest) < MANY
    return few and _count(first) > 4 * LEAF and not first.body


def _columns(
    kernel: Kernel, nest: list[tuple[Value, int]], body: Statements, limits: Limits
) -> Kernel:
    """A kernel whose blocks take WIDTH results each."""
    scope = Scope(kernel)
    reduce, *others = body
    assert isinstance(reduce, Reduce)
    results = prod(extent for _, extent in nest)
    group = scope.variable("group")
    start = multiply(group, WIDTH)

    def place(lane: Value) -> dict[Value, Value]:
        # Lanes past the last result do its work again, and do not store it.
        return placed(nest, smaller(add(start, lane), results - 1))

    count = -(-_count(reduce) // LEAF)
    chunks = chunks_of(count, reduce.parts, limits.shared // 4, WIDTH)
    team = Team(scope, rounded(chunks.count * WIDTH, limits))
    shared = Columns(team, reduce, chunks, place)

    def finish(lane: Value) -> Statements:
        made = (*shared.results(lane), *substitute(tuple(others), place(lane)))
        inside = less(add(start, lane), results)
        return made if results % WIDTH == 0 else (When(inside, made),)

    made = (*shared.partial(), team.each("item", WIDTH, finish))
    blocks_ = -(-results // WIDTH)
    loop = Loop(group, integer(0), integer(blocks_), made, "block")
    return scope.kernel_with((loop,), blocks=blocks_, threads=team.threads, scratch=())


def _is_flat(loop: Loop) -> bool:
    return all(isinstance(s, Store | Assign | Loop) for s in every(loop.body))


def _count(reduce: Reduce) -> int:
    found = known(points(reduce))
    assert found is not None, "sizes are known on a GPU"
    return found


class _Elements:
    """A kernel whose elements, or whose results, are computed each on its own."""

    def __init__(self, kernel: Kernel, nest: list[tuple[Value, int]], limits: Limits) -> None:
        self.scope = Scope(kernel)
        self.limits = limits
        _, body = _nest(kernel)
        self.space = Space(self.scope, Lanes(kernel), nest, body, limits.lanes)

    def kernel(self) -> Kernel:
        """One item for each thread."""
        return _of_items(self.scope, self.space, self.limits)


def _of_items(scope: Scope, space: Space, limits: Limits) -> Kernel:
    """The kernel that gives each thread an item."""
    items = space.items
    threads = rounded(items, limits)
    count = -(-items // threads)
    block, thread = scope.variable("block"), scope.variable("thread")
    item = add(multiply(block, threads), thread)
    body = space.item(item)
    if items % threads:
        body = (When(less(item, items), body),)
    inner = Loop(thread, integer(0), integer(threads), body, "thread")
    outer = Loop(block, integer(0), integer(count), (inner,), "block")
    scratch = scope.kernel.notes.get("scratch", ())
    return scope.kernel_with((outer,), blocks=count, threads=threads, scratch=scratch)


class _Rows:
    """A kernel whose blocks take a row each."""

    def __init__(
        self, kernel: Kernel, nest: list[tuple[Value, int]], body: Statements, limits: Limits
    ) -> None:
        self.scope = Scope(kernel)
        self.judge = Lanes(kernel)
        self.nest = nest
        self.body = body
        self.limits = limits
        self.rows = prod(extent for _, extent in nest)
        self.reductions = [s for s in body if isinstance(s, Reduce)]
        longest = max(-(-_count(s) // BLOCK) for s in self.reductions)
        self.team = Team(self.scope, rounded(longest * LANES, limits))
        self.budget = limits.shared // 4 // len(self.reductions)
        self.row = self.scope.variable("row")

    def kernel(self) -> Kernel:
        """One row for each block."""
        made: list[Statement] = []
        for statement in substitute(self.body, placed(self.nest, self.row)):
            made += self.statement(statement)
        return self.finished(tuple(made), self.rows)

    def finished(self, body: Statements, count: int, scratch: Scratch = ()) -> Kernel:
        """The kernel of `count` blocks, its rows kept in shared memory where they fit."""
        outer = Loop(self.row, integer(0), integer(count), body, "block")
        kernel = self.scope.kernel_with(
            (outer,), blocks=count, threads=self.team.threads, scratch=scratch
        )
        return share(kernel, self.row, count, self.limits.shared)

    def statement(self, statement: Statement) -> Statements:
        """What the threads of a block do for one statement of a row."""
        if isinstance(statement, Reduce):
            count = -(-_count(statement) // BLOCK)
            chunks = chunks_of(count, statement.parts, self.budget)
            return Cooperation(self.team, guarded(statement), chunks).statements()
        if isinstance(statement, Loop):
            return self.run(statement)
        if isinstance(statement, Assign):
            return (statement,)
        thread = self.scope.variable("thread")
        return (Loop(thread, integer(0), integer(1), (statement,), "thread"),)

    def run(self, loop: Loop) -> Statements:
        """A run over the row."""
        nest: list[tuple[Value, int]] = []
        body: Statements = (loop,)
        while len(body) == 1 and isinstance(body[0], Loop):
            extent = known(body[0].stop)
            assert extent is not None and known(body[0].start) == 0
            nest.append((body[0].variable, extent))
            body = body[0].body
        space = Space(self.scope, self.judge, nest, body, self.limits.lanes)
        return (self.team.each("item", space.items, space.item),)


class _Parts:
    """Two kernels: blocks reduce parts of rows, then one block for each row joins them."""

    def __init__(
        self, kernel: Kernel, nest: list[tuple[Value, int]], body: Statements, limits: Limits
    ) -> None:
        self.kernel = kernel
        self.nest = nest
        self.body = body
        self.limits = limits
        (self.reduce,) = [s for s in body if isinstance(s, Reduce)]
        self.rows = prod(extent for _, extent in nest)
        count = -(-_count(self.reduce) // BLOCK)
        self.size = PART
        while -(-count // self.size) > MOST_PARTS:
            self.size *= 2
        self.parts = -(-count // self.size)
        dtypes = [dtype for part in self.reduce.parts for dtype in dtypes_of(part)]
        self.scratch: Scratch = tuple((dtype, self.rows * self.parts * LANES) for dtype in dtypes)
        self.buffers: list[tuple[int, ...]] = []
        place = len(kernel.buffers)
        for part in self.reduce.parts:
            self.buffers.append(tuple(range(place, place + len(part.targets))))
            place += len(part.targets)

    def kernels(self) -> tuple[Kernel, ...]:
        """Both kernels."""
        return self._first(), self._second()

    def _with_scratch(self, mode: str) -> _Rows:
        extra = tuple(Buffer(f"s{k}", d, mode) for k, (d, _) in enumerate(self.scratch))
        made = replace(self.kernel, buffers=(*self.kernel.buffers, *extra))
        return _Rows(made, self.nest, self.body, self.limits)

    def _first(self) -> Kernel:
        rows = self._with_scratch("write")
        row, part = divide(rows.row, self.parts), remainder(rows.row, self.parts)
        inside = chunks_of(self.size, self.reduce.parts, rows.budget)
        chunks = replace(inside, first=multiply(part, inside.count))
        before = [s for s in self.body[: self.body.index(self.reduce)] if isinstance(s, Assign)]
        *early, reduce = substitute((*before, self.reduce), placed(self.nest, row))
        assert isinstance(reduce, Reduce)
        shared = Cooperation(rows.team, reduce, chunks)
        kept = shared.kept(self.buffers, multiply(rows.row, LANES))
        body = (*early, *shared.partial(), *kept)
        return rows.finished(body, self.rows * self.parts, self.scratch)

    def _second(self) -> Kernel:
        rows = self._with_scratch("read")
        made: list[Statement] = []
        for statement in substitute(self.body, placed(self.nest, rows.row)):
            if isinstance(statement, Reduce):
                shared = Cooperation(rows.team, statement, Chunks(self.parts))
                first = multiply(rows.row, self.parts * LANES)
                made += shared.resumed(self.buffers, first)
            else:
                made += rows.statement(statement)
        return rows.finished(tuple(made), self.rows, self.scratch)
