"""Products whose factors are packed once, for all tasks: a kernel that packs, and one that sums.

The packed factors lie in one buffer, panel by panel as blocks read them, so that tasks copy nothing
and the caches meet memory in order. A tile's panels of the right factor stay in the second cache
while one panel of the left factor after another passes through the first.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from weft.compiler.choice import USUAL, Choice
from weft.compiler.loops import Buffer, Kernel, Loop, Statement, Value
from weft.compiler.passes.contract_blocks import (
    Block,
    by_lanes,
    choose_shared,
    is_large,
    orient,
    runs_along,
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
from weft.compiler.passes.contract_hidden import mask_of_sums, masked
from weft.compiler.passes.contract_match import Axis, Product, match
from weft.compiler.passes.contract_pack import FEW, Copy, in_fews
from weft.compiler.passes.contract_quads import in_quads
from weft.compiler.passes.contract_tasks import tasks
from weft.compiler.polynomial import add, divide, multiply, smaller, subtract
from weft.compiler.rebuild import Scope, Statements


def is_shared(kernel: Kernel) -> bool:
    """Whether a kernel with known sizes is a product that `contract_shared` is good for."""
    product = match(Scope(kernel))
    return product is not None and not product.batch and is_large(product) and _is_bare(product)


def contract_shared(
    kernel: Kernel,
    vector_bytes: int,
    registers: int,
    choice: Choice = USUAL,
    *,
    quads: bool = False,
    by_lane: bool = False,
) -> tuple[Kernel, Kernel]:
    """The kernel that packs both factors of a product, and the one that sums.

    The first has one buffer more than the kernel, its last one, which the second reads. Flags are
    those of `contract`.
    """
    made: list[Kernel] = []
    for mode, loop_of in (("write", _packing), ("read", tasks)):
        scope = Scope(kernel)
        product = match(scope)
        assert product is not None and not product.batch, "it was looked at before"
        product = in_quads(scope, product) if quads else product
        product = orient(product, vector_bytes // product.dtype.itemsize)
        block = choose_shared(product, vector_bytes, registers, choice)
        block = by_lanes(product, block) if by_lane else block
        left, right, size = _packed(product, block, len(kernel.buffers))
        buffer = Buffer("packed", product.dtype, mode)
        scope.kernel = replace(kernel, buffers=(*kernel.buffers, buffer))
        loop = loop_of(Frame(scope, product, block, shared=(left, right)))
        notes = {"tasks": loop.stop, "contract": block}
        if not made:
            notes |= {"partials": (product.dtype, size), "packs": True}
        made.append(scope.kernel_with((loop,), **notes))
    return made[0], made[1]


def _is_bare(product: Product) -> bool:
    """Whether no mask hides parts of a product."""
    factors = product.left, product.right
    return mask_of_sums(product) is None and not any(masked(product, x) for x in factors)


def _packed(product: Product, block: Block, buffer: int) -> tuple[Packed, Packed, Value]:
    """Where the panels of both factors lie, and how many elements that takes."""
    deep = multiply(ceiling(product.depth[1], block.depth), block.depth)
    high = ceil(block.rows / block.lanes) * block.lanes  # whole vectors
    rows, columns = ceiling(product.row[1], block.rows), ceiling(product.column[1], block.columns)
    size = multiply(multiply(rows, high), deep)
    left = Packed(buffer, product.dtype, high, block.rows, ZERO, rows)
    right = Packed(buffer, product.dtype, block.columns, block.columns, size, columns)
    return left, right, add(size, multiply(multiply(columns, block.columns), deep))


def _packing(frame: Frame) -> Loop:
    """Tasks that pack: those for the left factor, then those for the right one."""
    task, product = frame.scope.variable("task"), frame.product
    left = _Packer(Copy(frame, product.left, product.row, frame.left))
    right = _Packer(Copy(frame, product.right, product.column, frame.right))
    other = right.task(subtract(task, left.tasks))
    body = when(less(task, left.tasks), left.task(task), other)
    return Loop(task, ZERO, add(left.tasks, right.tasks), body, "parallel")


class _Packer:
    """Packs a factor: a few points of the depth for all panels, or a panel for all of the depth."""

    def __init__(self, copy: Copy) -> None:
        self.copy = copy
        self.frame, self.axis = copy.frame, copy.axis
        self.depth: Axis = self.frame.product.depth
        self.is_across = runs_along(copy.factor, self.axis[0])
        assert copy.array.panels is not None, "packed for all tasks"
        self.panels = copy.array.panels
        self.tasks = ceiling(self.depth[1], FEW) if self.is_across else self.panels

    def task(self, number: Value) -> Statements:
        """What one task packs."""
        return self.few(number) if self.is_across else self.panel(number)

    def few(self, number: Value) -> Statements:
        """A few points of the depth: memory is read along the axis."""
        f, array, made = self.frame, self.copy.array, list[Statement]()
        start = f.let("start", multiply(number, FEW), made)
        count = f.let("count", smaller(subtract(self.depth[1], start), FEW), made)
        piece = multiply(divide(start, f.block.depth), f.block.depth)
        before = multiply(subtract(start, piece), array.width)

        def panels(part: Span) -> Statements:
            def body(panel: Value) -> Statements:
                at = multiply(panel, array.points)
                place = add(array.panel(at, piece, f.block.depth), before)
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
            copied = self.copy.statements(at, Span(start, count), array.panel(at, start, deep))
            return (*made, *copied)

        return f.loop("piece", ceiling(self.depth[1], deep), body)
