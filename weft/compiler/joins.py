"""Lower a join of many pieces: a kernel for each of them, which copies it to where it belongs.

A few pieces are a choice between them for each element, which fuses with what is computed of the
join. Many would be a long chain of choices; pieces of one shape share a kernel instead.
"""

from __future__ import annotations

from math import prod

from weft.compiler.index import flat
from weft.compiler.lower import Frame, Lowered, nest
from weft.compiler.point import Pull
from weft.core.graph.node import OutputRefs, Ref


def lower_join(frame: Frame) -> tuple[Lowered, ...]:
    """A kernel for each piece that the only member of a group joins; empty ones have none."""
    (node,) = frame.group.members
    axis, start = node.params["axis"], 0
    made: list[Lowered] = []
    for place, ref in enumerate(node.inputs):
        source, slot = ref
        size = source.types[slot].shape[axis]
        is_last = place == len(node.inputs) - 1
        if size or (is_last and not made):  # one at least, for the sake of the result
            made.append(_piece(frame, node, ref, start))
        start += size
    return tuple(made)


def _piece(frame: Frame, node: OutputRefs, ref: Ref, start: int) -> Lowered:
    """The kernel that copies a piece to where it begins."""
    (source, slot), shape, axis = ref, node.types[0].shape, node.params["axis"]
    space = (*shape[:axis], source.types[slot].shape[axis], *shape[len(shape) + axis + 1 :])
    own = Frame(frame.fusion, frame.group, frame.strides, frame.one_nest)
    point = own.variables(space)
    place = list(point)
    place[axis] += start
    store = own.store(node, flat(place, shape), Pull(own.source).at(ref, point))
    return own.finish("concat", nest(point, space, tuple(store)), prod(space))
