"""Lower a convolution: loops over its results, each a sum of products in order.

    result[lead, o, p…] = Σ over c, w… of kernel[lead, o, c, w…] · image[lead, c, p · stride + w · d…]

The sum runs over channels, then over the window row by row, one rounding each, as in a product of
matrices. Beside the loops the kernel notes what they stand for: a `Convolution`, from which the
schedule knows how to read the image, and where padding lies, without taking indices apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np

from weft.compiler.index import Index, axis, flat, unflat
from weft.compiler.loops import Part, Reduce, Statement, Value, get, integer
from weft.compiler.lower import Frame, Lowered, name_of, nest
from weft.compiler.point import Point, Pull
from weft.core.common import dtypes
from weft.core.common.types import DType, Shape
from weft.core.graph.node import OutputRefs, Ref
from weft.ops.view.join import Pad

Axis: TypeAlias = tuple[Value, int]  # a variable that counts from 0, and its extent

_FLOAT = np.dtype(np.float32)


@dataclass(frozen=True)
class Space:
    """One axis that the window moves along: its places, its window, and the image under them.

    Element i of the image lies at `low` + i · (`gap` + 1); whatever else there is, is padding.
    """

    place: Axis
    window: Axis
    raw: Axis
    stride: int
    dilation: int
    low: int
    gap: int


@dataclass(frozen=True)
class Convolution:
    """What the loops of a lowered convolution stand for."""

    lead: tuple[Axis, ...]
    feature: Axis
    channel: Axis
    space: tuple[Space, ...]
    image: Value  # at a lead, a channel and raw positions
    fill: Value  # what padding is, at a lead and a channel
    kernel: Value  # at a lead, a feature, a channel and a point of the window
    target: int

    @property
    def dtype(self) -> DType:
        """The dtype of factors and sums."""
        return self.image.dtype

    @property
    def places(self) -> Shape:
        """Sizes of the result along its space."""
        return tuple(s.place[1] for s in self.space)

    @property
    def window(self) -> Shape:
        """Sizes of the window."""
        return tuple(s.window[1] for s in self.space)

    @property
    def work(self) -> int:
        """Products of the whole convolution."""
        lead = prod(size for _, size in self.lead)
        return lead * self.feature[1] * self.channel[1] * prod(self.places) * prod(self.window)


def products_of(node: OutputRefs) -> int:
    """How many products go into one result of a convolution."""
    source, slot = node.inputs[1]
    return prod(source.types[slot].shape[-len(node.params["strides"]) - 1 :])


def lower_convolution(frame: Frame) -> Lowered:
    """The kernel of a convolution and what is made of it, element by element."""
    node = frame.group.members[0]
    rank = len(node.params["strides"])
    shape = node.types[0].shape
    source, slot = node.inputs[1]
    inner = source.types[slot].shape[-rank - 1 :]
    point, depth = frame.variables(shape), frame.variables(inner)
    (*lead, feature), places = point[:-rank], point[-rank:]
    channel, window = depth[0], depth[1:]
    steps = zip(places, node.params["strides"], window, node.params["dilation"], strict=True)
    where = [p * stride + w * d for p, stride, w, d in steps]
    pull = Pull(frame.source)
    factors = (
        pull.at(node.inputs[1], (*lead, feature, *depth)),
        pull.at(node.inputs[0], (*lead, channel, *where)),
    )
    kernel, image = (_wide(pull, x) for x in factors)
    total = frame.local(kernel.dtype)
    frame.registers[node] = pull.fit(get(total, kernel.dtype), node.types[0].dtype)
    here = flat(point, shape)
    axes = tuple((v.value, integer(n)) for v, n in zip(depth, inner, strict=True))
    body: list[Statement] = [Reduce(axes, 0, (Part((total,), "dot", (kernel, image)),))]
    after = Pull(frame.source)
    for member in frame.fusion.stored(frame.group):
        at = point if member.types[0].shape == shape else unflat(here, member.types[0].shape)
        body.append(frame.store(member, here, after.at((member, 0), at)))
    made = frame.finish(name_of(frame.group), nest(point, shape, tuple(body)))
    found = _described(frame, node, point, depth, kernel, total)
    if found is not None:
        made.kernel.notes["convolution"] = found
    return made


def _wide(pull: Pull, x: Value) -> Value:
    return pull.cast(x, _FLOAT) if dtypes.is_narrow(x.dtype) else x


def _described(
    frame: Frame, node: OutputRefs, point: Point, depth: Point, kernel: Value, target: int
) -> Convolution | None:
    """What the schedule needs to know; None where there is nothing to sum or to write."""
    rank = len(node.params["strides"])
    shape, (source, slot) = node.types[0].shape, node.inputs[0]
    window = tuple(_axis(i) for i in depth[1:])
    sizes = source.types[slot].shape[-rank:]
    lead = point[: len(shape) - rank - 1]
    reader = _Reader(frame, sizes)
    image = _wide(reader.pull, reader.pull.at(node.inputs[0], (*lead, depth[0], *reader.spots)))
    whole = reader.found
    raw, low, gap, fill = reader.raw, (0,) * rank, (0,) * rank, None
    if whole is not None:
        low, gap, fill = whole
    space = tuple(
        Space(*parts)
        for parts in zip(
            (_axis(i) for i in point[-rank:]),
            window,
            raw if whole is not None else reader.plain,
            node.params["strides"],
            node.params["dilation"],
            low,
            gap,
            strict=True,
        )
    )
    made = Convolution(
        tuple(_axis(i) for i in lead),
        _axis(point[len(shape) - rank - 1]),
        _axis(depth[0]),
        space,
        image,
        reader.pull.const(0, image.dtype) if fill is None else _wide(reader.pull, fill),
        kernel,
        target,
    )
    empty = made.work == 0 or any(s.raw[1] == 0 for s in space)
    return None if empty else made


def _axis(i: Index) -> Axis:
    """The variable that an index is, with its extent."""
    (variable,) = i.terms
    bounds = i.bounds
    assert bounds is not None
    return variable, bounds[1] + 1


class _Reader:
    """Reads an image at any place; padding that is not in memory is found, not computed.

    Views on the way may move what they like but the axes of the space.
    """

    def __init__(self, frame: Frame, sizes: Shape) -> None:
        self.frame = frame
        self.spots = tuple(axis(f"spot{k}", size) for k, size in enumerate(sizes))
        self.plain = tuple(_axis(i) for i in self.spots)
        self.raw: tuple[Axis, ...] = ()
        self.found: tuple[Shape, Shape, Value] | None = None
        self.pull = Pull(self._source)

    def _source(self, ref: Ref, point: Point) -> Value | None:
        held = self.frame.source(ref, point)
        node, rank = ref[0], len(self.spots)
        if held is not None or self.found is not None or not isinstance(node.op, Pad):
            return held
        low, gap = node.params["low"], node.params["interior"]
        if len(low) != rank or point[len(point) - rank :] != self.spots:
            return None
        source, slot = node.inputs[0]
        sizes = source.types[slot].shape[-rank:]
        if 1 in sizes or 0 in sizes:
            return None  # an axis of one element has no variable
        raw = tuple(axis(f"raw{k}", size) for k, size in enumerate(sizes))
        self.raw = tuple(_axis(i) for i in raw)
        outer = point[: len(point) - rank]
        self.found = low, gap, self.pull.at(node.inputs[1], outer)
        return self.pull.at(node.inputs[0], (*outer, *raw))
