"""Slabs of a product that a mask hides from a block of a GPU are not read.

A block whose sums nobody uses takes no slab at all. Where a mask makes a factor 0, a block begins
and ends with what the mask shows to its rows, or columns. What is left out is added as one number:
the *rest*, a sum of the other factor times 0, which is ±0, or NaN if that is infinite somewhere. A
kernel before the product leaves a rest for each `unit` of the depth. Bits stay what they were, as
rests come where what they stand for did: before all products of a chain, or after them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce as folded
from math import prod

from weft.compiler.loops import (
    INDEX,
    PIECE,
    WRITTEN,
    Buffer,
    Kernel,
    Loop,
    Reduce,
    Store,
    Value,
    identity_of,
    integer,
    literal,
    load,
    value,
)
from weft.compiler.passes.blocks_slab import ZERO, size_of
from weft.compiler.passes.contract_frame import Span, ceiling
from weft.compiler.passes.contract_hidden import (
    Masked,
    box_of,
    ends,
    is_hidden,
    mask_of_sums,
    masks,
)
from weft.compiler.passes.contract_match import Axis, Product
from weft.compiler.passes.items import Tile, less
from weft.compiler.passes.positions import is_held
from weft.compiler.polynomial import add, divide, hides, larger, multiply, smaller
from weft.compiler.rebuild import Scope, Statements, changer, revise, substitute_value
from weft.core.common.types import DType

WORTH = 1 << 29  # products for which leaving out some is worth a kernel before,
QUICK = 8  # times as many if they are of narrow floats, which take less time


@dataclass(frozen=True)
class Rests:
    """Sums of a factor times 0, one for each unit of the depth, which a kernel leaves in memory."""

    mask: Masked
    is_left: bool  # whether the left factor is masked: rests are sums of the right one, by columns
    unit: int  # points of the depth
    axis: Axis  # of the other factor
    part: Value  # the variable of units
    place: Value  # where a rest lies
    buffer: int
    dtype: DType
    grows: bool  # whether later rows, or columns, are shown more

    def at(self, unit: Value, place: Value, where: Mapping[Value, Value]) -> Value:
        """The rest of a unit at a row or a column; `where` has the variables of batches."""
        found = {**where, self.part: unit, self.axis[0]: place}
        return load(self.buffer, substitute_value(self.place, found), self.dtype)


@dataclass(frozen=True)
class Shown:
    """The slabs that a mask shows to a block, from `low` up to `high`, and whether they vary."""

    low: Value
    high: Value
    rests: Rests | None = None
    begins: bool = False  # whether some are hidden before,
    stops: bool = False  # and after
    varies: bool = True
    unused: Value | None = None  # whether nobody uses the sums of the block,
    mask: Value | None = None  # which this one hides then

    def part(self, first: Value, last: Value) -> tuple[Value, Value]:
        """Where slabs begin and end of those from a first to a last one."""
        if not self.varies:
            return first, last
        begin = smaller(larger(self.low, first), last)
        return begin, larger(smaller(self.high, last), begin)


def shown(
    product: Product,
    tile: Tile,
    slabs: int,
    corner: tuple[Value, Value],
    rests: Rests | None,
    where: Mapping[Value, Value],
) -> Shown:
    """The slabs of the block whose first row and column are given, and its batch."""
    rows = (product.row, Span(corner[0], integer(tile.rows)))
    columns = (product.column, Span(corner[1], integer(tile.columns)))
    low, high, seen = ZERO, integer(slabs), mask_of_sums(product)
    if rests is not None:
        box = box_of(rows if rests.is_left else columns)
        condition = substitute_value(rests.mask.condition, where)
        lows, highs = ends(condition, product.depth[0], box)
        step = rests.unit // tile.depth
        for first in lows:
            units = divide(larger(first, 0), rests.unit)
            low = larger(low, smaller(multiply(units, step), slabs))
        for last in highs:
            units = ceiling(larger(last, 0), rests.unit)
            high = smaller(high, multiply(units, step))
        return Shown(low, high, rests, bool(lows), bool(highs))
    unused = False if seen is None else is_hidden(seen, box_of(rows, columns))
    if isinstance(unused, Value):
        end = value("select", (unused, ZERO, high), INDEX)
        return Shown(low, end, unused=unused, mask=seen)
    return Shown(low, ZERO if unused else high, varies=unused)


def with_rests(
    kernel: Kernel, scope: Scope, product: Product, tile: Tile, quick: bool
) -> tuple[Kernel, Rests] | None:
    """A kernel that leaves rests in its last buffer, for a product that a mask hides much of."""
    axes = (*product.batch, product.row, product.column, product.depth)
    few = prod(size_of(extent) for _, extent in axes) < (QUICK * WORTH if quick else WORTH)
    if few or mask_of_sums(product) is not None:
        return None
    left, right = masks(product)
    mask, is_left = (left, True) if left is not None else (right, False)
    own, other, factor, points = product.row, product.column, product.right, tile.rows
    if not is_left:
        own, other, factor, points = other, own, product.left, tile.columns
    unit = tile.depth
    while unit < points and 2 * unit <= PIECE:
        unit *= 2
    if mask is None or not _hides(mask, product, own) or size_of(product.depth[1]) <= unit:
        return None
    part = scope.variable("unit")
    units = integer(-(-size_of(product.depth[1]) // unit))
    nest = [axis for axis in product.batch if hides(factor, axis[0])]
    nest += [(part, units), other]
    place = folded(lambda at, axis: add(multiply(at, axis[1]), axis[0]), nest, ZERO)
    lows, _ = ends(mask.condition, product.depth[0], {own[0]: (ZERO, ZERO)})
    number = len(kernel.buffers)
    rests = Rests(mask, is_left, unit, other, part, place, number, product.dtype, not lows)
    scratch = ((product.dtype, prod(size_of(extent) for _, extent in nest)),)
    total = rest_of(factor, product.depth, multiply(part, unit), unit, mask.hidden)
    body: Statements = (Store(number, place, total),)
    for variable, extent in reversed(nest):
        body = (Loop(variable, ZERO, extent, body),)
    buffers = (*kernel.buffers, Buffer("rests", product.dtype, "write"))
    notes = {**kernel.notes, "scratch": scratch}
    return replace(kernel, body=body, buffers=buffers, notes=notes), rests


def _hides(mask: Masked, product: Product, own: Axis) -> bool:
    """Whether a factor is 0, and not another number, in whole slabs that can be told from it."""
    number = mask.hidden.args[0] if mask.hidden.op == "cast" else mask.hidden
    if number.op != "const" or literal(number) != 0 or product.is_paired:
        return False
    lows, highs = ends(mask.condition, product.depth[0], {own[0]: (ZERO, ZERO)})
    return bool(lows or highs) and all(is_held(x) is True for x in (*lows, *highs))


def rest_of(factor: Value, depth: Axis, first: Value, unit: int, zero: Value) -> Value:
    """The rest of a unit: all of it at once, so that no thread waits for one number after another.

    A sum of ±0 and NaN is the same in any order.
    """
    length, found = size_of(depth[1]), list[Value]()
    for k in range(unit):
        place = add(first, k)
        held = place if length % unit == 0 else smaller(place, length - 1)
        x = value("mul", (zero, substitute_value(factor, {depth[0]: held})), zero.dtype)
        if held is not place:
            x = value("select", (less(place, length), x, identity_of("add", x.dtype)), x.dtype)
        found.append(x)
    return folded(lambda x, y: value("add", (x, y), zero.dtype), found)


def guarded(reduce: Reduce) -> Reduce:
    """A reduction that reads the first of its points in the place of those that a mask hides.

    Of elements that were stored under a mask those that it hides are known: so only what it shows
    comes from memory.
    """
    first = {variable: ZERO for variable, _ in reduce.axes}

    def change(x: Value) -> Value:
        if x.op != "select" or x.data != WRITTEN or x.args[1].op != "load":
            return x
        condition, (index,), shown = x.args[0], x.args[1].args, x.args[1]
        near = value("select", (condition, index, substitute_value(index, first)), INDEX)
        found = load(shown.data, near, shown.dtype)
        return value("select", (condition, found, x.args[2]), x.dtype)

    (made,) = revise((reduce,), changer(change))
    assert isinstance(made, Reduce)
    return made
