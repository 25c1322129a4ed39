"""Recognise a matrix product in a kernel: loops over points, each with one sum of products.

Which loop is a row and which is a column follows from what the two factors read: a row moves the
left factor only, a column the right one only, and every other loop is a batch. Several rows, or
several summed axes, become one axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

import numpy as np

from weft.compiler.loops import (
    INDEX,
    PIECE,
    PRODUCTS,
    WRITTEN,
    Assign,
    Kernel,
    Loop,
    Reduce,
    Statement,
    Store,
    Value,
    expressions,
    integer,
    value,
    walk,
)
from weft.compiler.polynomial import hides, known, multiply, number, stride
from weft.compiler.rebuild import (
    Scope,
    Statements,
    assigned_locals,
    changer,
    read_locals,
    revise,
    stored_buffers,
    substitute,
    substitute_value,
)
from weft.core.common.types import DType

Axis: TypeAlias = tuple[Value, Value]  # a variable that counts from 0, and its extent

FEW = 16  # rows of which a product has blocks of its own
SHALLOW = 6  # products of a sum that plain loops take as they come,
MANY = 16  # for so many columns
VECTOR = 16  # bytes of the narrowest vector
NEAR = 1 << 14  # bytes of a factor that the first cache holds

_DTYPES = frozenset(np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)) | {
    np.dtype(np.float32),
    np.dtype(np.float64),
}


@dataclass(frozen=True)
class Product:
    """target[row, column] = Σ over depth of left · right, then the epilogue, for each batch."""

    batch: tuple[Axis, ...]
    row: Axis
    column: Axis
    depth: Axis
    left: Value
    right: Value
    target: int
    epilogue: Statements
    in_order: bool = True  # whether the loops were batches, rows and columns, in this order
    words: str = ""  # what multiplies factors that are several numbers each: `contract_words`
    chain: bool = False  # whether all products are one chain, and not pieces of it
    masks: tuple[Value | None, Value | None] = (None, None)  # that the factors were written under

    @property
    def is_pieced(self) -> bool:
        """Whether sums of PIECE products each are added up; integers have no order."""
        depth = known(self.depth[1])
        return not self.chain and self.dtype.kind == "f" and (depth is None or depth > PIECE)

    @property
    def is_paired(self) -> bool:
        """Whether the left factor is another one for each column."""
        return hides(self.left, self.column[0])

    @property
    def dtype(self) -> DType:
        """The dtype of factors and sums."""
        return self.left.dtype

    def swapped(self) -> Product:
        """The transposed product; the order of sums, and so every bit, is the same."""
        return replace(
            self,
            row=self.column,
            column=self.row,
            left=self.right,
            right=self.left,
            masks=self.masks[::-1],
        )


def runs_along(x: Value, variable: Value) -> bool:
    """Whether a value's loads have neighbours in memory as the variable grows."""
    steps = [number(stride(p.args[0], variable)) for p in walk(x) if p.op == "load"]
    return all(step in (0, 1) for step in steps)


def match(scope: Scope) -> Product | None:
    """The product a kernel computes, if it is one and nothing else."""
    nest = _nest(scope.kernel)
    if nest is None:
        return None
    loops, reduce, epilogue = nest
    (part,) = reduce.parts
    left, right = part.values
    if left.dtype not in _DTYPES or not _is_closed(part.targets[0], (left, right), epilogue):
        return None
    lefts, rights, batch = _sorted_by_reader(loops, left, right)
    _take_unread(loops, left, right, (lefts, rights, batch))
    if lefts and rights and loops.index(lefts[-1]) > loops.index(rights[-1]):
        lefts, rights, left, right = rights, lefts, right, left
    one = integer(1)
    *others, column = rights or [(scope.variable("column"), one)]
    outer = sorted((*batch, *others), key=loops.index)
    found = Product(
        tuple(outer),
        lefts[-1] if lefts else (scope.variable("row"), one),
        column,
        reduce.axes[-1],
        _bare(left),
        _bare(right),
        part.targets[0],
        _without_masks(epilogue),
        [*outer, *lefts, *rights[-1:]] == loops,
        chain=part.combine == "chain",
        masks=(_mask(left), _mask(right)),
    )
    return _joined(scope, found, lefts[:-1], reduce.axes[:-1])


def _mask(factor: Value) -> Value | None:
    """The mask that a factor was written under."""
    factor = masked(factor)
    return factor if factor.op == "select" and factor.data == WRITTEN else None


def masked(factor: Value) -> Value:
    """A factor that was hidden before it was cast as one that is hidden afterwards; or itself."""
    if factor.op != "cast" or factor.args[0].op != "select":
        return factor
    condition, shown, hidden = factor.args[0].args
    cast = (value("cast", (x,), factor.dtype) for x in (shown, hidden))
    return value("select", (condition, *cast), factor.dtype, factor.args[0].data)


def _bare(factor: Value) -> Value:
    """A factor as memory has it."""
    return factor if _mask(factor) is None else masked(factor).args[1]


def _without_masks(epilogue: Statements) -> Statements:
    """What follows a sum, which reads elements as memory has them."""
    found = walk(*(x for s in epilogue for x in expressions(s)))
    return revise(epilogue, changer(_bare)) if any(map(_mask, found)) else epilogue


def depth_of(kernel: Kernel) -> int:
    """Points of the sum inside the loops of a kernel; 0 if there is none, or no known number."""
    body = kernel.body
    while len(body) == 1 and isinstance(body[0], Loop):
        body = body[0].body
    if not body or not isinstance(body[0], Reduce):
        return 0
    return prod(known(extent) or 0 for _, extent in body[0].axes)


def is_shallow(kernel: Kernel) -> bool:
    """Whether sums are of so few products that they are written out."""
    return depth_of(kernel) == 1 or bool(shallow_sizes(kernel))


def shallow_sizes(kernel: Kernel) -> frozenset[int]:
    """The small sizes, and columns, of a product whose sums are written out; none of any other.

    Its columns are lanes, or there are as few of them as products: small matrices are then written
    out whole, one after another.
    """
    depth = depth_of(kernel)
    product = match(Scope(kernel)) if 1 < depth <= SHALLOW else None
    columns = None if product is None else known(product.column[1])
    if product is None or columns is None or any(mask is not None for mask in product.masks):
        return frozenset()
    if columns <= SHALLOW:
        rows = known(product.row[1])
        if rows is None or rows > SHALLOW:
            return frozenset({depth, columns})
        fits = columns * product.dtype.itemsize % VECTOR == 0  # so that blocks are better
        return frozenset({rows, depth, columns}) if product.batch and not fits else frozenset()
    loads = [x for x in walk(product.right) if x.op == "load"]
    along = all(number(stride(x.args[0], product.column[0])) == 1 for x in loads)
    near = columns * depth * product.dtype.itemsize <= NEAR
    return frozenset({depth, columns}) if columns >= MANY and along and near else frozenset()


def few_sizes(kernel: Kernel) -> frozenset[int]:
    """How many rows or columns a product has that has few of them: its blocks are as high."""
    product = match(Scope(kernel))
    sizes = () if product is None else (known(product.row[1]), known(product.column[1]))
    return frozenset(n for n in sizes if n is not None and n <= FEW)


def without_batches_of_one(kernel: Kernel) -> Kernel:
    """The kernel of a product without loops that run once, but for those of rows and columns.

    Loops of a convolution stay as they are: which is which follows from their order.
    """
    loops: list[Loop] = []
    body = kernel.body
    while len(body) == 1 and isinstance(loop := body[0], Loop):
        loops.append(loop)
        body = loop.body
    sums = body[0] if body else None
    is_product = isinstance(sums, Reduce) and _is_product(sums) and sums.parts[0].combine != "chain"
    single = [s for s in loops[:-2] if known(s.start) == 0 and known(s.stop) == 1 and s.step == 1]
    if not is_product or not single:
        return kernel
    body = substitute(body, {loop.variable: integer(0) for loop in single})
    for loop in reversed(loops):
        body = body if loop in single else (replace(loop, body=body),)
    return replace(kernel, body=body)


def is_batched(kernel: Kernel) -> bool:
    """Whether there are loops around those of rows and columns."""
    loops, body = 0, kernel.body
    while len(body) == 1 and isinstance(body[0], Loop):
        loops, body = loops + 1, body[0].body
    return loops > 2


def _is_product(reduce: Reduce) -> bool:
    return len(reduce.parts) == 1 and reduce.parts[0].combine in PRODUCTS


def _nest(kernel: Kernel) -> tuple[list[Axis], Reduce, Statements] | None:
    """The loops around a sum of products, the sum, and what follows it."""
    loops: list[Axis] = []
    body = kernel.body
    while len(body) == 1 and isinstance(loop := body[0], Loop):
        if loop.kind != "serial" or loop.step != 1 or known(loop.start) != 0:
            return None
        loops.append((loop.variable, loop.stop))
        body = loop.body
    reduce, epilogue = (body[0] if body else None), body[1:]
    if not isinstance(reduce, Reduce) or not all(map(_is_plain, epilogue)):
        return None
    free = {v for v, _ in loops}
    moving = any(x in free for _, extent in loops for x in walk(extent))
    moving = moving or any(x in free for _, extent in reduce.axes for x in walk(extent))
    if moving or not _is_product(reduce) or reduce.body or not reduce.axes:
        return None
    return loops, reduce, epilogue


def _is_plain(statement: Statement) -> bool:
    if isinstance(statement, Store):
        return not statement.combine
    return isinstance(statement, Assign) and statement.position is None


def _is_closed(target: int, factors: tuple[Value, ...], epilogue: Statements) -> bool:
    """Whether points do not see each other: no factor is stored to, no register is carried over."""
    stored, ready = stored_buffers(epilogue), {target}
    if target in assigned_locals(epilogue):
        return False
    for x in walk(*factors):
        if x.op == "get" or (x.op == "load" and x.data in stored):
            return False
    for statement in epilogue:
        if not read_locals((statement,)) <= ready:
            return False
        ready |= assigned_locals((statement,))
    return True


def _sorted_by_reader(
    loops: Sequence[Axis], left: Value, right: Value
) -> tuple[list[Axis], list[Axis], list[Axis]]:
    """Loops that move the left factor alone, the right one alone, and the others."""
    found: tuple[list[Axis], list[Axis], list[Axis]] = ([], [], [])
    for axis in loops:
        reads = hides(left, axis[0]), hides(right, axis[0])
        found[0 if reads == (True, False) else 1 if reads == (False, True) else 2].append(axis)
    return found


def _take_unread(
    loops: Sequence[Axis],
    left: Value,
    right: Value,
    found: tuple[list[Axis], list[Axis], list[Axis]],
) -> None:
    """Let the last loops be columns and rows although a factor is the same for all of them."""
    lefts, rights, batch = found
    unread = [a for a in batch if not (hides(left, a[0]) or hides(right, a[0]))]
    for last, own in ((loops[-1:], rights), (loops[-2:-1], lefts)):
        if not own and last and last[0] in unread:
            own.append(last[0])
            batch.remove(last[0])


def _joined(
    scope: Scope, product: Product, rows: Sequence[Axis], depths: Sequence[Axis]
) -> Product:
    """The product whose outer rows and outer summed axes have become part of the inner ones."""
    for outer in reversed(rows):
        product = _with_joined(scope, product, outer, product.row, "row")
    for outer in reversed(depths):
        product = _with_joined(scope, product, outer, product.depth, "depth")
    return product


def changed(
    masks: tuple[Value | None, Value | None], change: Callable[[Value], Value]
) -> tuple[Value | None, Value | None]:
    """Masks of both factors, each that there is changed."""
    left, right = masks
    return left and change(left), right and change(right)


def _with_joined(scope: Scope, product: Product, outer: Axis, inner: Axis, name: str) -> Product:
    flat = scope.variable(name)
    join = _Join(outer[0], inner[0], inner[1], flat)
    axis = (flat, multiply(outer[1], inner[1]))
    made = replace(
        product,
        left=join.value(product.left),
        right=join.value(product.right),
        epilogue=tuple(map(join.statement, product.epilogue)),
        masks=changed(product.masks, join.value),
    )
    return replace(made, row=axis) if name == "row" else replace(made, depth=axis)


@dataclass(frozen=True)
class _Join:
    """Writes two nested variables as one that counts both."""

    outer: Value
    inner: Value
    extent: Value
    flat: Value

    def value(self, x: Value) -> Value:
        """An expression; the index of each load on its own."""
        apart = {
            self.outer: value("floordiv", (self.flat, self.extent), INDEX),
            self.inner: value("rem", (self.flat, self.extent), INDEX),
        }
        found: dict[Value, Value] = {}
        for point in walk(x):
            if point.op == "load":
                found[point] = value("load", (self.index(point.args[0]),), point.dtype, point.data)
            elif point in apart:
                found[point] = apart[point]
            else:
                args = tuple(found[a] for a in point.args)
                found[point] = value(point.op, args, point.dtype, point.data)
        return found[x]

    def index(self, x: Value) -> Value:
        """An index: it moves along as it did where the two variables walk memory as one."""
        outer, inner = stride(x, self.outer), stride(x, self.inner)
        if known(self.extent) == 1:
            return substitute_value(x, {self.outer: self.flat, self.inner: integer(0)})
        if outer is not None and inner is not None:
            count, step = known(self.extent), number(inner)
            if count is not None and step is not None and number(outer) == count * step:
                return substitute_value(x, {self.outer: integer(0), self.inner: self.flat})
        return self.value(x)

    def statement(self, statement: Statement) -> Statement:
        """A statement of an epilogue."""
        if isinstance(statement, Store):
            x = self.value(statement.value)
            return Store(statement.buffer, self.index(statement.index), x, statement.combine)
        assert isinstance(statement, Assign)
        return Assign(statement.local, self.value(statement.value))
