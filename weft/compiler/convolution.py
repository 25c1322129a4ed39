"""Lower a convolution: loops over its results, each a sum of products in order.

    result[lead, o, p] = Σ over c, w of kernel[lead, o, c, w] · image[lead, c, p · stride + w · d]

The sum runs over channels, then over the window row by row, one rounding each, as in a product of
matrices. Beside the loops the kernel notes what they stand for: a `Convolution`, from which the
schedule knows how to read the image, and where padding lies, without taking indices apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np

from weft.compiler.index import flat, unflat
from weft.compiler.loops import Part, Reduce, Statement, Value, get, integer
from weft.compiler.lower import Frame, Lowered, name_of, nest
from weft.compiler.point import Point, Pull
from weft.core.common import dtypes
from weft.core.common.types import DType, Shape
from weft.core.graph.node import OutputRefs
from weft.ops.nn.correlation import Conv

Axis: TypeAlias = tuple[Value, int]  # a variable that counts from 0, and its extent

_FLOAT = np.dtype(np.float32)


@dataclass(frozen=True)
class Space:
    """One axis that the window moves along: its places, its window, and the image under them.

    Element i of the image lies at `low` + i; whatever else there is, is padding.
    """

    place: Axis
    window: Axis
    raw: Axis
    stride: int
    dilation: int
    low: int


@dataclass(frozen=True)
class Convolution:
    """What the loops of a lowered convolution stand for."""

    lead: tuple[Axis, ...]
    feature: Axis
    channel: Axis
    space: tuple[Space, ...]
    image: Value  # at a lead, a channel and raw positions
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
    if _is_pointwise(node):  # a product of matrices, whose columns are all places
        shape = (*shape[:-rank], prod(shape[-rank:]))
    source, slot = node.inputs[1]
    inner = source.types[slot].shape[-rank - 1 :]
    point, depth = frame.variables(shape), frame.variables(inner)
    cut = len(node.types[0].shape) - rank
    places = point[cut:] if len(point) > cut + 1 else unflat(point[-1], node.types[0].shape[cut:])
    (*lead, feature), (channel, *window) = point[:cut], depth
    pull = Pull(frame.source)
    image = _image(pull, node, (*lead, channel), places, tuple(window))
    kernel = _wide(pull, pull.at(node.inputs[1], (*lead, feature, *depth)))
    total = frame.local(kernel.dtype)
    frame.registers[node] = pull.fit(get(total, kernel.dtype), node.types[0].dtype)
    here = flat(point, shape)
    axes = tuple((v.value, integer(n)) for v, n in zip(depth, inner, strict=True))
    combine = "dot" if _is_pointwise(node) else "chain"
    body: list[Statement] = [Reduce(axes, 0, (Part((total,), combine, (kernel, image)),))]
    after = Pull(frame.source)
    for member in frame.fusion.stored(frame.group):
        at = point if member.types[0].shape == shape else unflat(here, member.types[0].shape)
        body += frame.store(member, here, after.at((member, 0), at))
    made = frame.finish(name_of(frame.group), nest(point, shape, tuple(body)))
    found = None
    if not _is_pointwise(node):
        found = _described(frame, node, point, depth, kernel, total)
    if found is not None:
        made.kernel.notes["convolution"] = found
    return made


def _is_pointwise(node: OutputRefs) -> bool:
    """Whether every place sees one element of each channel, and every element has a place."""
    params = node.params
    source, slot = node.inputs[1]
    window = source.types[slot].shape[-len(params["strides"]) :]
    plain = set(window) | set(params["strides"]) == {1} and not any(
        (*params["low"], *params["high"])
    )
    return plain and len(window) > 1


def _image(pull: Pull, node: OutputRefs, outer: Point, places: Point, window: Point) -> Value:
    """The element of the image under a point of the window at a place."""
    params, ref = node.params, node.inputs[0]
    kind = ref[0].types[ref[1]]
    steps = zip(places, params["strides"], window, params["dilation"], params["low"], strict=True)
    where = [p * stride + w * d - below for p, stride, w, d, below in steps]
    made: Value = Conv.element(
        pull,
        where,
        kind.shape[-len(places) :],
        kind.dtype,
        lambda at: _wide(pull, pull.at(ref, (*outer, *at))),
    )
    return made


def _wide(pull: Pull, x: Value) -> Value:
    return pull.cast(x, _FLOAT) if dtypes.is_narrow(x.dtype) else x


def _described(
    frame: Frame, node: OutputRefs, point: Point, depth: Point, kernel: Value, target: int
) -> Convolution | None:
    """What the schedule needs to know; None where there is nothing to sum or to write."""
    params = node.params
    rank = len(params["strides"])
    source, slot = node.inputs[0]
    sizes = source.types[slot].shape[-rank:]
    shape, (weights, number) = node.types[0].shape, node.inputs[1]
    inner = weights.types[number].shape[-rank - 1 :]
    if 0 in (*sizes, *shape, *inner):
        return None
    raw = frame.variables(sizes)
    outer = point[: len(point) - rank]
    pull = Pull(frame.source)
    image = _wide(pull, pull.at(node.inputs[0], (*outer[:-1], depth[0], *raw)))
    loops, (channel, *window) = _axes(point, shape), _axes(depth, inner)
    parts = (loops[-rank:], window, _axes(raw, sizes))
    steps = (params["strides"], params["dilation"], params["low"])
    space = tuple(Space(*each) for each in zip(*parts, *steps, strict=True))
    lead, feature = loops[: -rank - 1], loops[-rank - 1]
    return Convolution(lead, feature, channel, space, image, kernel, target)


def _axes(point: Point, sizes: Shape) -> tuple[Axis, ...]:
    """The variables that an index consists of, with the extents of their axes."""
    found = []
    for i, size in zip(point, sizes, strict=True):
        (variable,) = i.terms
        found.append((variable, size))
    return tuple(found)
