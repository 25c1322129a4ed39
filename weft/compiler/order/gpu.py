"""Sorting and selection along the last axis on a GPU: blocks sort parts of rows, then join them.

A thread sorts a few elements in registers; runs of neighbours are merged in shared memory until a
block has one run. Longer rows are merged by launches, each of which makes runs twice as long:
every block finds out by itself which elements are its own. Where few elements are wanted, blocks
leave the first ones of their parts, which are sorted again, until one block has all that remain.

Everything here is stable: of two records neither of which is before the other, the one that came
first stays first, and what fills up a tile comes after all elements.
"""

from __future__ import annotations

from math import log2

from weft.compiler.order.blocks import Launched, Tile
from weft.compiler.order.code import Order
from weft.compiler.order.lower import order_of
from weft.compiler.order.runs import RunMerge
from weft.compiler.order.tiles import TileSort
from weft.compiler.passes.items import WARP, Limits
from weft.compiler.steps import Memory
from weft.core.common.types import TensorType
from weft.core.graph.node import OutputRefs

MOST = 17  # elements of a thread; odd, so that those of neighbours lie in other banks
BUSY = 256  # blocks that keep a GPU busy


def lower_order_gpu(
    node: OutputRefs, source: Memory, target: Memory, limits: Limits
) -> list[Launched]:
    """The launches of a call that orders rows, for operands and results that have elements."""
    order = order_of(node, source, target)
    tile = _tile_of(order, order.size, limits)
    if tile.size >= order.size:
        return [_sorted(order, tile, source, target)]
    if 2 * order.kept <= tile.size:
        return _selected(order, tile, source, target, limits)
    return _merged(order, tile, source, target)


def _tile_of(order: Order, size: int, limits: Limits) -> Tile:
    """The tile that sorts rows of a size with the least work, or the largest there is."""
    each = 2 * sum(dtype.itemsize for dtype in order.record)
    most = limits.shared * 3 // 4 // (each * limits.threads)
    most = max(1, min(MOST, most - 1 + most % 2))
    teams = [1 << k for k in range(limits.threads.bit_length())]
    fits = [(team, -(-size // team) | 1) for team in teams]
    fits = [(team, items) for team, items in fits if items <= most]
    if not fits:
        return Tile(1, teams[-1], most)
    team, items = min(fits, key=lambda each: _work(size, *each))
    side_by_side = max(WARP // team, min(limits.threads // team, order.rows // BUSY), 1)
    rows = 1 << (min(side_by_side, order.rows, limits.threads // team).bit_length() - 1)
    return Tile(rows, team, items)


def _work(size: int, team: int, items: int) -> float:
    """Instructions for a row, as a guess: exchanges in registers, searches and merges."""
    level = 15 + 10 * log2(size + 1) / items
    return team * items * (3.5 * items + log2(team) * level)


# -- which launches ----------------------------------------------------------------------------


def _sorted(order: Order, tile: Tile, source: Memory, target: Memory) -> Launched:
    """Rows that a block sorts whole."""
    block = TileSort(order, tile)
    return block.sort("sort", block.elements(source), block.results(target), 1, order.kept)


def _selected(
    order: Order, tile: Tile, source: Memory, target: Memory, limits: Limits
) -> list[Launched]:
    """Launches that keep the first records of parts, until the parts of a row are one."""
    made: list[Launched] = []
    size, held = order.size, tuple[Memory, ...]()
    while size > tile.size:
        parts = -(-size // tile.size)
        block = TileSort(order, tile, size)
        read = block.records_in(held) if held else block.elements(source)
        size = parts * order.kept
        held = _room(order, size)
        made.append(block.sort("select", read, block.records(held), parts, order.kept))
    block = TileSort(order, _tile_of(order, size, limits), size)
    write = block.results(target)
    return [*made, block.sort("select", block.records_in(held), write, 1, order.kept)]


def _merged(order: Order, tile: Tile, source: Memory, target: Memory) -> list[Launched]:
    """A launch that sorts parts of rows, and launches that merge them."""
    parts = -(-order.size // tile.size)
    now, then = (_room(order, order.size) for _ in range(2))
    block = TileSort(order, tile)
    made = [block.sort("sort", block.elements(source), block.records(now), parts, tile.size)]
    run = 1
    while run < parts:
        merge, last = RunMerge(order, tile), 2 * run >= parts
        read = merge.records_in(now)
        write = merge.results(target) if last else merge.records(then)
        made.append(merge.merge(read, write, run))
        now, then, run = then, now, 2 * run
    return made


def _room(order: Order, size: int) -> tuple[Memory, ...]:
    """Memory for records of all rows, a piece for each field."""
    return tuple(Memory(TensorType((order.rows, size), dtype)) for dtype in order.record)
