"""From one layout to another: the cheapest sequence of collectives, each over one mesh axis.

A step is a value; what it costs follows from the bytes on a device and the mesh's links. A slice
moves nothing, so a split that every device can cut out of what it holds is free.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from weft.core.common.spec import DeviceMesh, MeshAxes, ShardingSpec
from weft.core.common.types import Shape
from weft.core.sharding.cost import collective_bytes, collective_seconds
from weft.errors import ShardingError


@dataclass(frozen=True, slots=True)
class Step:
    """One collective over one mesh axis: `axis` leaves tensor axis `source`, comes to `target`."""

    kind: str  # all_reduce reduce_scatter all_gather all_to_all slice
    axis: str
    source: int | None = None
    target: int | None = None
    reduction: str = ""

    def apply(self, spec: ShardingSpec) -> ShardingSpec:
        """The layout after this step."""
        axes = list(spec.axes)
        if self.source is not None:
            axes[self.source] = axes[self.source][:-1]
        if self.target is not None:
            axes[self.target] = (*axes[self.target], self.axis)
        pending = spec.pending
        if self.reduction:
            pending = tuple(p for p in pending if p[0] != self.axis)
        return ShardingSpec(spec.mesh, tuple(axes), pending)

    def bytes(self, mesh: DeviceMesh, local: float) -> float:
        """What each device sends, of `local` bytes it holds before the step."""
        count = mesh.axis_size(self.axis)
        return collective_bytes(self.kind, count, self._held(count, local))

    def seconds(self, mesh: DeviceMesh, local: float) -> float:
        """How long it takes on this mesh's links."""
        count = mesh.axis_size(self.axis)
        held = self._held(count, local)
        return collective_seconds(self.kind, count, held, mesh.link(self.axis))

    def _held(self, count: int, local: float) -> float:
        """The bytes that costs are counted by: a gather's are those after it."""
        return local * count if self.kind == "all_gather" else local

    def __str__(self) -> str:
        ends = [f"axis {end}" for end in (self.source, self.target) if end is not None]
        return f"{self.kind} over {self.axis}{': ' if ends else ''}{' to '.join(ends)}"


@lru_cache(maxsize=16_384)
def reshard_steps(
    source: ShardingSpec, target: ShardingSpec, shape: Shape, itemsize: int
) -> tuple[Step, ...]:
    """The cheapest way from one layout to another on the same mesh.

    >>> mesh = DeviceMesh("m", (2,), ("x",))
    >>> held, wanted = ShardingSpec(mesh, (("x",), ())), ShardingSpec(mesh, ((), ("x",)))
    >>> [str(step) for step in reshard_steps(held, wanted, (4, 4), 4)]
    ['all_to_all over x: axis 0 to axis 1']
    """
    mesh = source.mesh
    assert mesh is not None and target.mesh == mesh
    start, goal = source.plain, target.plain
    if not set(goal.pending) <= set(start.pending):
        raise ShardingError(f"reshard: {start} has no such reduction pending as {goal}")
    serial = itertools.count()
    queue: list[tuple[float, int, ShardingSpec, tuple[Step, ...]]] = [(0.0, 0, start, ())]
    seen: set[ShardingSpec] = set()
    while queue:
        cost, _, spec, path = heapq.heappop(queue)
        if spec == goal:
            return path
        if spec in seen:
            continue
        seen.add(spec)
        local = local_bytes(spec, shape, itemsize)
        for step in _possible(spec, goal):
            more = step.seconds(mesh, local) + 1e-12  # of equal costs the fewest steps
            after = step.apply(spec)
            heapq.heappush(queue, (cost + more, next(serial), after, (*path, step)))
    raise ShardingError(f"reshard: no way from {source} to {target}")


def local_bytes(spec: ShardingSpec, shape: Shape, itemsize: int) -> float:
    """Bytes of a tensor that one device holds, on average."""
    pieces = prod(spec.parts(axis) for axis in range(len(shape)))
    return prod(shape) * itemsize / pieces


def _possible(spec: ShardingSpec, goal: ShardingSpec) -> Iterator[Step]:
    """Steps that can be on a cheapest way: only what the goal has is built up."""
    grows = [
        target[len(held)] if target[: len(held)] == held and len(held) < len(target) else ""
        for held, target in zip(spec.axes, goal.axes, strict=True)
    ]
    for axis, kind in spec.pending:
        if (axis, kind) not in goal.pending:
            yield Step("all_reduce", axis, reduction=kind)
            if axis in grows:
                yield Step("reduce_scatter", axis, None, grows.index(axis), kind)
    for dimension, (held, wanted) in enumerate(zip(spec.axes, goal.axes, strict=True)):
        if held and wanted[: len(held)] != held:
            last = held[-1]
            yield Step("all_gather", last, dimension)
            if last in grows:
                yield Step("all_to_all", last, dimension, grows.index(last))
    varying: MeshAxes = spec.varying
    for dimension, axis in enumerate(grows):
        if axis and axis not in varying:
            yield Step("slice", axis, None, dimension)


def without(spec: ShardingSpec, *axes: str) -> ShardingSpec:
    """The layout after gathering and reducing over these mesh axes."""
    kept = tuple(tuple(a for a in entry if a not in axes) for entry in spec.axes)
    return replace(spec, axes=kept, pending=tuple(p for p in spec.pending if p[0] not in axes))
