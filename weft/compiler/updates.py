"""What changes a few elements of something large.

Such calls are put into a copy of their operand, which is not made where the operand is done with
(see `merge`). So whoever else reads the operand had better do so before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from weft.core.graph.node import OutputRefs
from weft.ops.view.slice import SliceUpdate

LARGE = 1 << 11  # elements of an operand that is rather not copied
FEW = 16  # times fewer elements are changed


def put_into_copies(
    nodes: Sequence[OutputRefs], kinds: Mapping[OutputRefs, str], kept: Collection[OutputRefs]
) -> set[OutputRefs]:
    """Updates of few elements of what is in memory already, and stays there.

    Others are computed along with what reads them, at every element.
    """
    users: dict[OutputRefs, list[OutputRefs]] = {}
    for node in nodes:
        for source, _ in node.inputs:
            users.setdefault(source, []).append(node)
    found: set[OutputRefs] = set()
    for node in reversed(nodes):
        if isinstance(node.op, SliceUpdate) and changes_few(node):
            readers = users.get(node, [])
            only = len(readers) == 1 and readers[0] in found and readers[0].inputs[0][0] is node
            if node in kept or only:
                found.add(node)
    made = set[OutputRefs]()
    for node in nodes:
        base = node.inputs[0][0] if node in found else node
        if node in found and (base in made or kinds.get(base, "scatter") == "scatter"):
            made.add(node)
    return made


def changes_few(node: OutputRefs) -> bool:
    """Whether a call changes few elements of a large operand."""
    changed, slot = node.inputs[-1]
    size = node.types[0].size
    return size >= LARGE and changed.types[slot].size * FEW <= size
