"""Equal parts of a graph, such as the layers of a network, are lowered once.

What a group becomes follows from its calls, from the views and cheap calls it reads through, and
from the types of what it reads from memory. Groups that are alike in all of this share one kernel;
only the memory that it is called with differs.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from weft.compiler.fuse import Fusion
from weft.compiler.groups import Group
from weft.compiler.lower import Lowered
from weft.compiler.point import divisor
from weft.compiler.scatter import lower
from weft.core.common.frozen import freeze
from weft.core.graph.node import OutputRefs, Ref


@dataclass(frozen=True)
class _Kept:
    """A lowered kernel, whose buffers are results of numbered calls."""

    lowered: Lowered
    refs: tuple[tuple[int, int], ...]
    written: tuple[tuple[int, int], ...]


class Alike:
    """Lowers groups; remembers the kernels of those it has seen."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[_Kept, ...]] = {}

    def lower(
        self, fusion: Fusion, group: Group, strides: dict[Ref, tuple[int, ...]]
    ) -> tuple[Lowered, ...]:
        """The kernels of one group, as `scatter.lower` makes them."""
        key, numbers = likeness(fusion, group, strides)
        known = self._known.get(key)
        if known is None:
            made = lower(fusion, group, strides)
            self._known[key] = tuple(
                _Kept(each, _put(each.refs, numbers), _put(each.written, numbers)) for each in made
            )
            return made
        nodes = list(numbers)
        return tuple(
            replace(each.lowered, refs=_get(each.refs, nodes), written=_get(each.written, nodes))
            for each in known
        )


def _put(refs: tuple[Ref, ...], numbers: dict[OutputRefs, int]) -> tuple[tuple[int, int], ...]:
    return tuple((numbers[node], slot) for node, slot in refs)


def _get(refs: tuple[tuple[int, int], ...], nodes: list[OutputRefs]) -> tuple[Ref, ...]:
    return tuple((nodes[number], slot) for number, slot in refs)


def likeness(
    fusion: Fusion, group: Group, strides: dict[Ref, tuple[int, ...]]
) -> tuple[Hashable, dict[OutputRefs, int]]:
    """What decides the kernels of a group, and the calls it speaks of by number, in order."""
    numbers: dict[OutputRefs, int] = {}
    rows: list[Hashable] = []
    stored = set(fusion.stored(group))
    stack = [(node, False) for node in reversed(group.members)]
    while stack:
        node, ready = stack.pop()
        if node in numbers:
            continue
        mine = fusion.group.get(node) is group
        inside = mine or node in fusion.inline or fusion.kinds.get(node) == "view"
        operands = node.inputs if inside else fusion.looked_at(group, node)
        if operands and not ready:
            stack.append((node, True))
            stack += [(source, False) for source, _ in reversed(operands)]
            continue
        numbers[node] = len(numbers)
        inputs = tuple([(numbers[source], slot) for source, slot in operands])
        if not inside:
            places = range(len(node.types)) if strides else ()
            read = (node.types, divisor((node, 0)), *[strides.get((node, k)) for k in places])
            rows.append((node.op, freeze(node.params), inputs, *read) if operands else read)
            continue
        unread = node in fusion.unread
        roles = (mine, node in group.rows, node in stored, unread, fusion.kinds[node])
        rows.append((node.op, freeze(node.params), inputs, node.types, roles))
    whole = (group.kind, group.space, group.inner, group.columns)
    members = tuple([numbers[node] for node in group.members])
    return (whole, members, tuple(rows)), numbers
