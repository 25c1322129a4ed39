"""Let what a mask shows read what the same mask shows: then nothing is needed where it hides.

Inside where(mask, f(x), …) an operand where(mask, x, …) may stand for x: where they differ, the
mask hides f, and what f alone reads. So of exp in the gradient of masked attention only what is
shown is used.
"""

from __future__ import annotations

from weft.core.common.types import Shape
from weft.core.graph.node import OutputRefs, Ref
from weft.core.graph.trace import Trace
from weft.ops.families import ElementwiseOperation


def behind_masks(trace: Trace) -> Trace:
    """A trace of the same bits whose masks hide as much as they can."""
    hidden: dict[tuple[Ref, Ref], Ref] = {}  # a mask and what it shows, and the call that does so
    for node in trace.nodes:
        if _is_mask(node):
            hidden.setdefault((node.inputs[0], node.inputs[1]), (node, 0))
    changes = _changes(trace, hidden) if hidden else {}
    if not changes:
        return trace
    made: dict[OutputRefs, OutputRefs] = {}

    def now(ref: Ref) -> Ref:
        return made.get(ref[0], ref[0]), ref[1]

    for node in trace.nodes:
        inputs = tuple(map(now, changes.get(node, node.inputs)))
        if inputs != node.inputs:
            made[node] = OutputRefs(
                node.op, inputs, node.params, node.types, node.device, node.position
            )
            made[node].specs = node.specs
    outputs, effects = tuple(map(now, trace.outputs)), tuple(made.get(n, n) for n in trace.effects)
    return Trace(trace.inputs, outputs, effects, trace.captures, trace.name)


def _changes(trace: Trace, hidden: dict[tuple[Ref, Ref], Ref]) -> dict[OutputRefs, tuple[Ref, ...]]:
    """The operands of calls that only a mask reads, as they can be behind it."""
    users: dict[OutputRefs, list[OutputRefs | None]] = {}
    for reader in trace.nodes:
        for source, _ in reader.inputs:
            users.setdefault(source, []).append(reader)
    for source, _ in trace.outputs:
        users.setdefault(source, []).append(None)
    order = {node: place for place, node in enumerate(trace.nodes)}
    found: dict[OutputRefs, tuple[Ref, ...]] = {}
    for mask in trace.nodes:
        stack = [(mask.inputs[1][0], mask)] if _is_mask(mask) else []
        while stack:  # what the mask alone reads, or what that alone reads
            shown, reader = stack.pop()
            plain = isinstance(shown.op, ElementwiseOperation) and shown in order
            alone = plain and users[shown] == [reader] and shown not in trace.effects
            if not alone or _shape((shown, 0)) != _shape((mask, 0)):
                continue
            inputs = []
            for ref in shown.inputs:
                other = hidden.get((mask.inputs[0], ref), ref)
                if order.get(other[0], -1) > order[shown]:
                    other = ref
                inputs.append(other if _shape(other) == _shape((mask, 0)) else ref)
            stack += [(ref[0], shown) for ref in shown.inputs if ref in inputs]
            if tuple(inputs) != shown.inputs:
                found[shown] = tuple(inputs)
    return found


def _is_mask(node: OutputRefs) -> bool:
    """Whether a call is where(mask, x, …), x of its own shape."""
    return node.op.name == "where" and _shape(node.inputs[1]) == _shape((node, 0))


def _shape(ref: Ref) -> Shape:
    return ref[0].types[ref[1]].shape
