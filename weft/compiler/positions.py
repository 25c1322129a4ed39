"""Which positions are checked, and where: before the kernel runs that uses them.

A check computes positions again from what lies in memory. So it cannot wait for a reduction of the
kernel it is for: positions that are made of one are stored first, and used by another kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from weft.core.common.types import Shape
from weft.core.graph.node import OutputRefs, Ref
from weft.ops.gather import Gather, Scatter, checks_positions


def indexed_sizes(node: OutputRefs) -> Shape:
    """The sizes of the axes that positions refer to."""
    source, slot = node.inputs[0]
    shape = source.types[slot].shape
    end = len(shape) - node.params["rest"]
    return shape[end - node.params["indexed"] : end]


def is_checked(node: OutputRefs) -> bool:
    """Whether a call takes positions that may lie outside their axes."""
    positional = isinstance(node.op, Gather | Scatter)
    return positional and checks_positions(node.params, indexed_sizes(node))


def are_late(
    members: Sequence[OutputRefs],
    checked: set[OutputRefs],
    kinds: Mapping[OutputRefs, str],
    roots: Callable[[Iterable[Ref]], list[Ref]],
) -> bool:
    """Whether one kernel of these calls, in order, would check what its reductions make."""
    if checked.isdisjoint(members):
        return False
    late: set[OutputRefs] = set()
    for node in members:
        if node in checked and late.intersection(source for source, _ in roots(node.inputs[1:2])):
            return True
        if kinds[node] == "reduce" or late.intersection(s for s, _ in roots(node.inputs)):
            late.add(node)
    return False
