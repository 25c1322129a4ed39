"""Windows that are folded again: pools of them, and sums of them where they overlap.

Windows have several times the elements of what they were cut from, and a fold meets each of theirs
once. So what is computed of windows only to be folded is never written: the fold computes it. Loops
over overlapping windows step as the windows do, so that each place of a step is known to be met by
some of them and not by others, and their ends, where windows stick out, are loops of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from weft.compiler.index import Index, axis
from weft.compiler.loops import Loop, Statement, integer
from weft.compiler.point import Point, is_of_windows, is_pool, weight
from weft.core.common.types import Shape
from weft.core.graph.node import OutputRefs
from weft.ops.families import ElementwiseOperation, ReduceOperation
from weft.ops.view.join import Pad
from weft.ops.view.window import OverlapAdd, Window

MOST_WORK = 6  # instructions of a call that are rather done again for each fold


def folded(
    nodes: Sequence[OutputRefs], kinds: Mapping[OutputRefs, str], kept: set[OutputRefs]
) -> set[OutputRefs]:
    """The calls that are computed where they are folded, or cropped, and nowhere else."""
    if not any(isinstance(node.op, Window | OverlapAdd) for node in nodes):
        return set()
    users: dict[OutputRefs, list[OutputRefs]] = {}
    for node in nodes:
        for source, _ in node.inputs:
            users.setdefault(source, []).append(node)
    found: set[OutputRefs] = set()
    for node in reversed(nodes):
        readers = users.get(node, [])
        if kinds[node] != "map" or node in kept or not readers:
            continue
        if isinstance(node.op, OverlapAdd):
            read_once = len(readers) == 1 and _crops(readers[0]) and kinds[readers[0]] == "map"
        else:
            light = isinstance(node.op, ElementwiseOperation) and weight(node) <= MOST_WORK
            read_once = light and bool(is_of_windows((node, 0)))
            read_once = read_once and all(r in found or _folds(r, kinds) for r in readers)
        if read_once:
            found.add(node)
    return found


def _folds(node: OutputRefs, kinds: Mapping[OutputRefs, str]) -> bool:
    if kinds[node] != "map":
        return False
    is_reduction = isinstance(node.op, ReduceOperation)
    return isinstance(node.op, OverlapAdd) or (is_reduction and is_pool(node))


def _crops(node: OutputRefs) -> bool:
    return isinstance(node.op, Pad) and not any(node.params["interior"])


@dataclass(frozen=True)
class Form:
    """How an axis is walked: `step` elements a turn; from `low` up to `high` none is at an end."""

    step: int
    low: int
    high: int


def forms_of(members: Sequence[OutputRefs], space: Shape) -> tuple[Form, ...] | None:
    """The form of each axis of a space that overlapping windows are added into, if any are."""
    for node in members:
        crop = (0,) * len(space)
        if _crops(node) and isinstance(node.inputs[0][0].op, OverlapAdd):
            low = node.params["low"]
            crop = (0,) * (len(space) - len(low)) + tuple(-n for n in low)
            node = node.inputs[0][0]
        if isinstance(node.op, OverlapAdd):
            return _forms(node, space, crop)
    return None


def _forms(node: OutputRefs, space: Shape, crop: Shape) -> tuple[Form, ...]:
    source, slot = node.inputs[0]
    shape, rank = source.types[slot].shape, len(node.params["space"])
    places, window = shape[len(shape) - 2 * rank : len(shape) - rank], shape[len(shape) - rank :]
    made = [Form(1, 0, n) for n in space[: len(space) - rank]]
    for k, (count, size) in enumerate(zip(places, window, strict=True)):
        step, cut = node.params["strides"][k], crop[len(space) - rank + k]
        turns = space[len(space) - rank + k] // step
        low = -(-max((size - 1) * node.params["dilation"][k] - cut, 0) // step)
        high = min(max(count + -cut // step, low), turns)
        lanes = k == rank - 1  # along rows alone: elsewhere ends are a choice for a whole row
        made.append(Form(step, min(low, turns), high) if lanes else Form(step, 0, turns))
    return tuple(made)


def nest(
    forms: Sequence[Form], space: Shape, make: Callable[[Point], tuple[Statement, ...]]
) -> tuple[Statement, ...]:
    """Loops over a space in these forms, around what `make` says of each point."""
    count = 0

    def along(point: Point) -> tuple[Statement, ...]:
        nonlocal count
        if len(point) == len(space):
            return make(point)
        size, form = space[len(point)], forms[len(point)]
        turns = size // form.step
        made: list[Statement] = []
        for start, stop in ((0, form.low), (form.low, form.high), (form.high, turns)):
            if start >= stop:
                continue
            turn = axis(f"f{count}", stop - start)
            count += 1
            first = (turn + start) * form.step
            body = tuple(s for k in range(form.step) for s in along((*point, first + k)))
            made.append(Loop(turn.value, integer(0), integer(stop - start), body))
        for place in range(turns * form.step, size):
            made += along((*point, Index({}, place)))
        return tuple(made)

    return along(())
