"""Products whose factors are packed before their tasks run: kernels that pack, and one that sums.

The packed factors lie in a buffer, panel by panel as blocks read them, so that tasks copy nothing
and the caches meet memory in order. A tile's panels of the right factor stay in the second cache
while one panel of the left factor after another passes through the first. Factors whose values
last, such as the weights of a model, are packed once for all runs, into a buffer of their own; so
is the right factor of a product that runs panel by panel, once for all panels of a run.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from weft.compiler.choice import USUAL, Choice
from weft.compiler.loops import Buffer, Kernel, Loop, Statement, Value, expressions, integer, walk
from weft.compiler.narrow import widened
from weft.compiler.passes.contract_blocks import (
    Block,
    choose_shared,
    is_plain,
    is_worth_keeping,
    is_worth_packing,
    orient,
    shared_factors,
)
from weft.compiler.passes.contract_frame import (
    ZERO,
    Frame,
    Packed,
    Span,
    ceiling,
    less,
    when,
)
from weft.compiler.passes.contract_hidden import FINE, mask_of_sums, masks
from weft.compiler.passes.contract_match import Axis, Product, match, runs_along
from weft.compiler.passes.contract_pack import FEW, Copy, in_fews
from weft.compiler.passes.contract_tasks import tasks
from weft.compiler.passes.contract_words import in_words
from weft.compiler.polynomial import (
    add,
    divide,
    hides,
    known,
    multiply,
    remainder,
    smaller,
    subtract,
)
from weft.compiler.rebuild import Scope, Statements, substitute


@dataclass(frozen=True)
class Packing:
    """Which factors of a product are packed before its tasks run.

    A factor that reads nothing but the buffers `lasting`, whose values last from run to run, is
    packed once for all of them. Others, left and right, are packed in each run if they are `shared`
    by its tasks.
    """

    shared: tuple[bool, bool]
    lasting: frozenset[int] = frozenset()

    def lasts(self, factor: Value) -> bool:
        """Whether a factor is the same in all runs."""
        return bool(self.lasting) and read_by(factor) <= self.lasting


_NONE, _SHARED = (False, False), Packing((True, True))
MUCH = 2048  # elements that a task packs, at least, of a factor that lies along its axis


def packing_of(
    kernel: Kernel,
    vector_bytes: int,
    lasting: frozenset[int] = frozenset(),
    alone: bool = False,
    often: bool = False,
) -> Packing | None:
    """What is packed of a kernel with known sizes before its tasks run; None if nothing is.

    If it must be `alone`, no kernel may pack in each run: it runs panel by panel, and its right
    factor may be packed before. It runs `often` in a loop.
    """
    product = match(Scope(widened(kernel)))
    if product is None:
        return None
    if not product.batch and _is_bare(product):
        found = Packing(_NONE if alone else shared_factors(product, vector_bytes), lasting)
        lasts = [found.lasts(x) for x in _factors(product)]
        if not (any(lasts) and is_worth_keeping(product, lasts[0], lasts[1], often)):
            found = replace(found, lasting=frozenset())
        if any(found.shared) or found.lasting:
            return found
    right = read_by(product.right)
    apart = right and not read_by(product.left) <= right and not masks(product)[1]
    return Packing(_NONE, right) if alone and apart and is_worth_packing(product) else None


def contract_shared(
    kernel: Kernel,
    vector_bytes: int,
    registers: int,
    choice: Choice = USUAL,
    packing: Packing = _SHARED,
    native: Set[str] = frozenset(),
    *,
    tall: int = 0,
) -> tuple[Kernel, ...]:
    """The kernel that packs what each run must, if there is such, the one that sums, and the last
    one, which packs what lasts.

    They have one buffer more than the kernel for what is packed in each run, and then one for what
    lasts. Tiles have `tall` rows, if that is not 0, and `native` is that of `contract`.
    """
    made: list[Kernel] = []
    for stage in ("packs", "sums", "keeps"):
        scope = Scope(kernel)
        product = match(scope)
        assert product is not None, "it was looked at before"
        product = in_words(scope, product, native)
        lanes = vector_bytes // product.dtype.itemsize
        given, product = product, product if tall else orient(product, lanes)
        shared = packing.shared if product is given else packing.shared[::-1]
        by_lane, lasting = "lane" in native, bool(packing.lasting)
        fixed = product, vector_bytes, registers, choice
        block = choose_shared(*fixed, tall, by_lane, shared=shared, lasting=lasting)
        if masks(product)[0]:
            block = replace(block, depth=min(block.depth, FINE))
        ready = shared[0] or packing.lasts(product.left) or product.batch
        if known(product.row[1]) == 1 and is_plain(product.left) and not ready:
            block = replace(block, pack_left=False)  # each point of a row is read once
        places = _Places(product, block, packing, shared, len(kernel.buffers))
        if (stage == "packs" and not places.packed) or (stage == "keeps" and not places.kept):
            continue
        scope.kernel = replace(kernel, buffers=(*kernel.buffers, *places.buffers(stage)))
        frame = Frame(scope, product, block, ready=(places.left, places.right))
        loop = tasks(frame) if stage == "sums" else _packing(frame, places.of(stage))
        whole = product is given and product.in_order  # rows follow each other, tile by tile
        notes = places.notes(stage) | {"rows": product.row[1] if whole else None}
        made.append(scope.kernel_with((loop,), **notes, tasks=loop.stop, pieces=0))
    return tuple(made)


class _Places:
    """Where the panels of both factors lie: in the buffer of a run, or in the one that lasts."""

    def __init__(
        self,
        product: Product,
        block: Block,
        packing: Packing,
        shared: tuple[bool, bool],
        first: int,
    ) -> None:
        self.product, self.block = product, block
        self.lasting = packing.lasts(product.left), packing.lasts(product.right)
        new = tuple(x and not lasts for x, lasts in zip(shared, self.lasting, strict=True))
        self.packed, self.kept = any(new), any(self.lasting)
        self._sizes = [ZERO, ZERO]  # of both buffers
        self._first = first
        rows = product.left, block.packed_rows, block.rows, product.row[1]
        columns = product.right, block.columns, block.columns, product.column[1]
        self.left, self.right = (
            self._place(lasts, *axis) if lasts or ready else None
            for axis, lasts, ready in zip((rows, columns), self.lasting, new, strict=True)
        )

    def _place(self, lasts: bool, x: Value, width: int, points: int, extent: Value) -> Packed:
        panels, start = ceiling(extent, points), self._sizes[lasts]
        size = multiply(multiply(panels, width), self.product.depth[1])
        batch, batches = ZERO, integer(1)
        for variable, count in batches_of(self.product, x):
            batch, batches = add(multiply(batch, count), variable), multiply(batches, count)
        self._sizes[lasts] = add(start, multiply(size, batches))
        number = self._first + (lasts and self.packed)
        first = add(start, multiply(size, batch))
        return Packed(number, self.product.dtype, width, points, first, panels)

    def buffers(self, stage: str) -> list[Buffer]:
        """The buffers of packed factors, as a kernel uses them."""
        named = [("packed", "packs")] * self.packed + [("kept", "keeps")] * self.kept
        dtype = self.product.dtype
        return [Buffer(n, dtype, "write" if own == stage else "read") for n, own in named]

    def of(self, stage: str) -> tuple[bool, bool]:
        """Whether a kernel packs the left factor, and whether the right one."""
        left, right = (x is not None for x in (self.left, self.right))
        if stage == "keeps":
            return self.lasting
        return left and not self.lasting[0], right and not self.lasting[1]

    def notes(self, stage: str) -> dict[str, Any]:
        """What callers must know of a kernel."""
        dtype, product = self.product.dtype, self.product
        lasting = [x for x, lasts in zip(_factors(product), self.lasting, strict=True) if lasts]
        kept = frozenset[int]().union(*map(read_by, lasting))
        if stage == "keeps":
            return {"contract": self.block, "kept": (dtype, self._sizes[1]), "reads": kept}
        notes: dict[str, Any] = {"contract": self.block}
        if stage == "packs":
            notes |= {"partials": (dtype, self._sizes[0]), "packs": True}
        others = [x for x in _factors(product) if x not in lasting or masks(product)[0]]
        others += [x for x in product.masks if x is not None]
        others += [x for s in product.epilogue for x in expressions(s)]
        notes["spared"] = kept - read_by(*others)
        return notes


def batches_of(product: Product, factor: Value) -> tuple[Axis, ...]:
    """The batches that a factor is not the same in."""
    return tuple(axis for axis in product.batch if hides(factor, axis[0]))


def _factors(product: Product) -> tuple[Value, Value]:
    return product.left, product.right


def read_by(*values: Value) -> frozenset[int]:
    """Buffers that values are read from."""
    return frozenset(x.data for x in walk(*values) if x.op == "load")


def _is_bare(product: Product) -> bool:
    """Whether no mask hides parts of a product."""
    return mask_of_sums(product) is None and not any(masks(product))


def _packing(frame: Frame, which: tuple[bool, bool]) -> Loop:
    """Tasks that pack: those for the left factor, then those for the right one."""
    task, product = frame.scope.variable("task"), frame.product
    packers: list[_Packer] = []
    for is_packed, factor, axis, array in (
        (which[0], product.left, product.row, frame.left),
        (which[1], product.right, product.column, frame.right),
    ):
        if is_packed:
            packers.append(_Packer(Copy(frame, factor, axis, array)))
    first, *rest = packers
    body, total = first.task(task), first.tasks
    for other in rest:
        body = when(less(task, total), body, other.task(subtract(task, total)))
        total = add(total, other.tasks)
    return Loop(task, ZERO, total, body, "parallel")


class _Packer:
    """Packs a factor: some points of the depth for all panels, or a panel for all of the depth."""

    def __init__(self, copy: Copy) -> None:
        self.copy = copy
        self.frame, self.axis = copy.frame, copy.axis
        self.depth: Axis = self.frame.product.depth
        self.is_across = runs_along(copy.factor, self.axis[0])
        assert copy.array.panels is not None, "packed for all tasks"
        self.panels = copy.array.panels
        # Narrow factors are packed in tasks that are worth a thread's while.
        elements = FEW * copy.array.width * (known(self.panels) or MUCH)
        self.times = max(MUCH // elements, 1)
        points = FEW * self.times
        self.each = ceiling(self.depth[1], points) if self.is_across else self.panels
        self.batch = batches_of(self.frame.product, copy.factor)
        self.tasks = reduce(multiply, (extent for _, extent in self.batch), self.each)

    def task(self, number: Value) -> Statements:
        """What one task packs."""
        f, made, names = self.frame, list[Statement](), dict[Value, Value]()
        here = f.let("part", remainder(number, self.each), made) if self.batch else number
        rest = divide(number, self.each)
        for variable, extent in reversed(self.batch):
            names[variable] = f.let("batch", remainder(rest, extent), made)
            rest = divide(rest, extent)
        packed = self.some(here) if self.is_across else self.panel(here)
        return (*made, *substitute(packed, names))

    def some(self, number: Value) -> Statements:
        """Some points of the depth, a few at a time."""
        if self.times == 1:
            return self.few(number)
        first = multiply(number, self.times)
        left = subtract(ceiling(self.depth[1], FEW), first)
        return self.frame.loop(
            "few", smaller(left, self.times), lambda at: self.few(add(first, at))
        )

    def few(self, number: Value) -> Statements:
        """A few points of the depth: memory is read along the axis."""
        f, array, made = self.frame, self.copy.array, list[Statement]()
        start = f.let("start", multiply(number, FEW), made)
        count = f.let("count", smaller(subtract(self.depth[1], start), FEW), made)
        deep = f.block.depth
        piece = f.let("piece", multiply(divide(start, deep), deep), made)
        whole = Span(piece, f.let("deep", smaller(subtract(self.depth[1], piece), deep), made))
        before = multiply(subtract(start, piece), array.width)

        def panels(part: Span) -> Statements:
            def body(panel: Value) -> Statements:
                at = multiply(panel, array.points)
                place = add(array.panel(at, whole), before)
                return self.copy.statements(at, part, place)

            return f.loop("panel", self.panels, body)

        return (*made, *in_fews(f, Span(start, count), panels))

    def panel(self, number: Value) -> Statements:
        """One panel: memory is read along the depth."""
        f, array, deep = self.frame, self.copy.array, self.frame.block.depth
        at = multiply(number, array.points)

        def body(piece: Value) -> Statements:
            made: list[Statement] = []
            start = f.let("start", multiply(piece, deep), made)
            count = f.let("count", smaller(subtract(self.depth[1], start), deep), made)
            part = Span(start, count)
            return (*made, *self.copy.statements(at, part, array.panel(at, part)))

        return f.loop("piece", ceiling(self.depth[1], deep), body)
