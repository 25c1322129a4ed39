"""Lower a group to kernels: scatters, and the checks of positions that gathers and scatters make.

Updates meet in order, so the loop over them is never split; what is split is what each update
carries along. Positions are checked on their own, before any of them is used: a kernel moves each
into range, so nothing is read or written elsewhere even when the check fails.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from weft.compiler.complex_values import loaded, parts
from weft.compiler.convolution import lower_convolution
from weft.compiler.few import lower_few
from weft.compiler.fuse import Fusion
from weft.compiler.groups import Group
from weft.compiler.index import Index, flat
from weft.compiler.joins import lower_join
from weft.compiler.loops import INDEX, Statement, Store, Value, integer
from weft.compiler.lower import Frame, Lowered, lower_group, nest
from weft.compiler.point import Point, Pull, inside
from weft.compiler.positions import indexed_sizes, is_checked
from weft.compiler.reports import reporting
from weft.core.graph.node import OutputRefs, Ref
from weft.ops.view.slice import SliceUpdate


def lower(
    fusion: Fusion, group: Group, strides: dict[Ref, tuple[int, ...]], one_nest: bool = False
) -> tuple[Lowered, ...]:
    """The kernels of one group: checks of positions first, then what is computed."""
    frame = Frame(fusion, group, strides, one_nest)
    found = [
        checks(Frame(fusion, group, strides), node, 1 + number)
        for number, node in enumerate((*group.members, *fusion.pulled(group)))
        if is_checked(node)
    ]
    if group.kind == "scatter":
        return (*found, *lower_scatter(frame, group.members[0]))
    if group.kind == "join":
        return (*found, *lower_join(frame))
    if group.kind == "conv":
        return (*found, lower_convolution(frame))
    if group.kind == "few":
        return (*found, lower_few(frame, group.members[0]))
    return (*found, lower_group(frame))


def lower_scatter(frame: Frame, node: OutputRefs) -> tuple[Lowered, Lowered]:
    """Two kernels: the operand copied, then the updates put into the copy."""
    update = _windowed if isinstance(node.op, SliceUpdate) else _updated
    return _copied(Frame(frame.fusion, frame.group, frame.strides), node), update(frame, node)


def _copied(frame: Frame, node: OutputRefs) -> Lowered:
    shape = node.types[0].shape
    point = frame.variables(shape)
    x = Pull(frame.source).at(node.inputs[0], point)
    here = flat(point, shape)
    plain = x == loaded(0, here, node.types[0].dtype)
    body = nest(point, shape, tuple(frame.store(node, here, x)))
    return replace(frame.finish("scatter_copy", body), copies=plain)


def _windowed(frame: Frame, node: OutputRefs) -> Lowered:
    """Loops over the slice that is replaced."""
    starts, lengths, steps = (node.params[name] for name in ("starts", "lengths", "steps"))
    shape = node.types[0].shape
    lead = len(shape) - len(starts)
    window = (*shape[:lead], *lengths)
    point = frame.variables(window)
    x = Pull(frame.source).at(node.inputs[1], point)
    inner = (start + step * i for start, step, i in zip(starts, steps, point[lead:], strict=True))
    stores = _stores(frame, node, (*point[:lead], *inner), x)
    return frame.finish(node.name, nest(point, window, stores), prod(window))


def _stores(
    frame: Frame, node: OutputRefs, place: Point, x: Value, combine: str = ""
) -> tuple[Statement, ...]:
    """What puts an update into the copy."""
    buffer, found = frame.buffer((node, 0), "update"), parts(x)
    first = flat(place, node.types[0].shape) * len(found)
    return tuple(Store(buffer, (first + k).value, part, combine) for k, part in enumerate(found))


def _updated(frame: Frame, node: OutputRefs) -> Lowered:
    """Loops over batches and slices outside, which may be split; over updates in order inside."""
    op, params = node.op, node.params
    types = tuple(source.types[slot] for source, slot in node.inputs)
    shape = node.types[0].shape
    rest, picks = params["rest"], params["picks"]
    lead = shape[: len(shape) - params["indexed"] - rest]
    count = types[2].shape[len(types[2].shape) - picks - rest : len(types[2].shape) - rest]
    row = shape[len(shape) - rest :]
    outer, updates = frame.variables((*lead, *row)), frame.variables(count)
    index = (*outer[: len(lead)], *updates, *outer[len(lead) :])
    pull = Pull(frame.source)

    def read(operand: int, at: tuple[Index, ...]) -> Value:
        return pull.at(node.inputs[operand], at)

    target, x = op.into(pull, index, read, *types, **params)
    where = tuple(inside(pull.operand(i), n) for i, n in zip(target, shape, strict=True))
    combine = "" if op.combine == "last" else op.combine
    stores = _stores(frame, node, where, x, combine)
    body = nest(outer, (*lead, *row), nest(updates, count, stores))
    return frame.finish(node.name, body, types[2].size)


def checks(frame: Frame, node: OutputRefs, code: int) -> Lowered:
    """A kernel that reports a status if a position lies outside its axis."""
    source, slot = node.inputs[1]
    shape, sizes = source.types[slot].shape, indexed_sizes(node)
    point = frame.variables(shape)
    pull = Pull(frame.source)
    i = pull.cast(pull.at(node.inputs[1], point), INDEX)
    size = integer(sizes[-1])
    for k, n in enumerate(sizes[:-1]):
        size = pull.select(pull.equal(point[-1], k), integer(n), size)
    low = pull.neg(size) if node.params["mode"] == "raise" else integer(0)
    bad = pull.bit_or(pull.less(i, low), pull.less_equal(size, i))
    return replace(reporting(frame, "check", (point, shape), bad, code), points=prod(shape))


__all__ = ["checks", "lower_scatter"]
