"""What changes a few elements of something large.

Such calls are put into a copy of their operand, which is not made where the operand is done with
(see `merge`). So whoever else reads the operand had better do so before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from weft.core.graph.node import OutputRefs, Ref
from weft.ops.view.slice import SliceUpdate

LARGE = 1 << 11  # elements of an operand that is rather not copied
FEW = 16  # times fewer elements are changed
MANY = 3  # updates after one for which it pays to have computed what they change


class Changes:
    """Calls of a graph that change a few elements of something large; `operands` says of what."""

    def __init__(
        self,
        nodes: Sequence[OutputRefs],
        kinds: Mapping[OutputRefs, str],
        roots: Callable[[Sequence[Ref]], Iterable[Ref]],
    ) -> None:
        self.operands = {
            node: frozenset(roots(node.inputs[:1]))
            for node in nodes
            if kinds[node] == "scatter" and changes_few(node)
        }
        self._changed = {ref for refs in self.operands.values() for ref in refs}

    def __bool__(self) -> bool:
        return bool(self.operands)

    def meet(self, refs: Sequence[Ref]) -> bool:
        """Whether among these are something changed and what it was before."""
        before = {ref for node, _ in refs for ref in self.operands.get(node, ())}
        return not before.isdisjoint(refs)

    def has_part(self, node: OutputRefs, refs: Sequence[Ref]) -> bool:
        """Whether a call reads a part of what others change: it is better done before."""
        read = [source.types[slot].size for source, slot in self._changed.intersection(refs)]
        return any(node.types[0].size * FEW <= size for size in read)


def put_into_copies(
    nodes: Sequence[OutputRefs], kinds: Mapping[OutputRefs, str], kept: Collection[OutputRefs]
) -> set[OutputRefs]:
    """Updates of few elements of what is in memory and stays there, or many after each other.

    Others are computed along with what reads them, at every element.
    """
    users: dict[OutputRefs, list[OutputRefs]] = {}
    for node in nodes:
        for source, _ in node.inputs:
            users.setdefault(source, []).append(node)
    chains: dict[OutputRefs, tuple[int, bool]] = {}  # how many follow, whether the last is kept
    for node in reversed(nodes):
        if isinstance(node.op, SliceUpdate) and changes_few(node):
            readers = users.get(node, [])
            following = [n for n in readers if n in chains and n.inputs[0][0] is node]
            goes_on = len(following) == 1 and node not in kept
            if goes_on and all(n in following or _is_part(n, node) for n in readers):
                count, stays = chains[following[0]]
                chains[node] = count + 1, stays
            else:
                chains[node] = 0, node in kept
    made: set[OutputRefs] = set()
    for node, (count, stays) in reversed(chains.items()):
        base = node.inputs[0][0]
        is_there = kinds.get(base, "scatter") == "scatter"
        if base in made or (is_there and stays) or count >= MANY:
            made.add(node)
    return made


def _is_part(reader: OutputRefs, node: OutputRefs) -> bool:
    """Whether a call makes a few elements of a large operand."""
    return all(kind.size * FEW <= node.types[0].size for kind in reader.types)


def changes_few(node: OutputRefs) -> bool:
    """Whether a call changes few elements of a large operand."""
    changed, slot = node.inputs[-1]
    size = node.types[0].size
    return size >= LARGE and changed.types[slot].size * FEW <= size
