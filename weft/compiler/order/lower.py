"""Sorting and selection along the last axis as kernels: which ones, for how many rows how long.

The order of a stable sort is unique, so every way to find it gives the same bits: what is chosen
here depends on sizes alone and decides nothing but speed.
"""

from __future__ import annotations

from weft.compiler.order.code import Order
from weft.compiler.order.network import exchanged_rows, fits_network
from weft.compiler.order.rows import SHORT, Made, ranked_rows, sorted_rows
from weft.compiler.order.shared import ordered_together, shares
from weft.compiler.steps import Memory
from weft.core.graph.node import OutputRefs


def lower_order(node: OutputRefs, source: Memory, target: Memory) -> list[Made]:
    """The kernels of a call that orders rows; none where there is nothing to order."""
    if not target.kind.size:
        return []
    order = order_of(node, source, target)
    if fits_network(order):
        return [exchanged_rows(order, source, target)]
    if order.size <= SHORT:
        return [ranked_rows(order, source, target)]
    if shares(order):
        return ordered_together(order, source, target)
    return [sorted_rows(order, source, target)]


def order_of(node: OutputRefs, source: Memory, target: Memory) -> Order:
    """What a call asks for."""
    shape = source.kind.shape
    return Order(
        source.kind.dtype,
        source.kind.size // shape[-1],
        shape[-1],
        target.kind.shape[-1],
        **node.op.asked(**node.params),
    )
