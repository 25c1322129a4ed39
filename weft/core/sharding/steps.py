"""From one layout to another: the cheapest sequence of collectives, each over one mesh axis.

A step is a value, whatever it is for: carrying out a change of layout, entering it into a log, or
predicting what it costs. A slice moves nothing, so a split that every device can cut out of what it
holds is free.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from weft.core.common.spec import MeshAxes, Pending, ShardingSpec
from weft.errors import ShardingError


class Layout(NamedTuple):
    """A `ShardingSpec` without its mesh: small to hash and compare."""

    axes: tuple[MeshAxes, ...]
    pending: Pending = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One collective over one mesh axis: `axis` leaves tensor axis `source`, comes to `target`."""

    kind: str  # all_reduce reduce_scatter all_gather all_to_all slice
    axis: str
    source: int | None = None
    target: int | None = None
    reduction: str = ""
    nbytes: float = 0.0  # what one device holds before it, after it for an all_gather

    def after(self, layout: Layout) -> Layout:
        """The layout after this step."""
        axes, pending = list(layout.axes), layout.pending
        if self.source is not None:
            axes[self.source] = axes[self.source][:-1]
        if self.target is not None:
            axes[self.target] = (*axes[self.target], self.axis)
        if self.reduction:
            pending = tuple(p for p in pending if p[0] != self.axis)
        return Layout(tuple(axes), pending)

    def apply(self, spec: ShardingSpec) -> ShardingSpec:
        """The layout after this step, on its mesh."""
        return ShardingSpec(spec.mesh, *self.after(layout_of(spec)))

    def __str__(self) -> str:
        ends = [f"axis {end}" for end in (self.source, self.target) if end is not None]
        return f"{self.kind} over {self.axis}{': ' if ends else ''}{' to '.join(ends)}"


def layout_of(spec: ShardingSpec) -> Layout:
    """The layout a spec gives on its mesh."""
    return Layout(tuple(map(tuple, spec.axes)), tuple(spec.pending))


def cheapest_steps(
    start: Layout,
    goal: Layout,
    local_bytes: Callable[[Layout], float],
    seconds: Callable[[Step], float],
) -> tuple[Step, ...]:
    """The cheapest way from one layout to another.

    `local_bytes` are those of a tensor that one device holds, `seconds` is what a step takes.
    """
    if not set(goal.pending) <= set(start.pending):
        raise ShardingError(f"reshard: no way to a pending result: {start} has none such as {goal}")
    waiting = set(goal.pending)
    serial = itertools.count()
    queue: list[tuple[float, int, Layout, tuple[Step, ...]]] = [(0.0, 0, start, ())]
    seen: set[Layout] = set()
    while queue:
        cost, _, layout, path = heapq.heappop(queue)
        if layout.axes == goal.axes and set(layout.pending) == waiting:
            return path
        if layout in seen:
            continue
        seen.add(layout)
        held = local_bytes(layout)
        for step in _possible(layout, goal):
            after = step.after(layout)
            nbytes = local_bytes(after) if step.kind == "all_gather" else held
            sized = replace(step, nbytes=nbytes)
            more = seconds(sized) + 1e-12  # of equal costs the fewest steps
            heapq.heappush(queue, (cost + more, next(serial), after, (*path, sized)))
    raise ShardingError(f"reshard: no way from {start} to {goal}")


def _possible(layout: Layout, goal: Layout) -> Iterator[Step]:
    """Steps that can be on a cheapest way: only what the goal has is built up."""
    grows = [
        target[len(held)] if target[: len(held)] == held and len(held) < len(target) else ""
        for held, target in zip(layout.axes, goal.axes, strict=True)
    ]
    for axis, kind in layout.pending:
        if (axis, kind) not in goal.pending:
            yield Step("all_reduce", axis, reduction=kind)
            if axis in grows:
                yield Step("reduce_scatter", axis, None, grows.index(axis), kind)
    for dimension, (held, wanted) in enumerate(zip(layout.axes, goal.axes, strict=True)):
        if held and wanted[: len(held)] != held:
            last = held[-1]
            yield Step("all_gather", last, dimension)
            if last in grows:
                yield Step("all_to_all", last, dimension, grows.index(last))
    varying = {axis for axes in layout.axes for axis in axes} | {p[0] for p in layout.pending}
    for dimension, axis in enumerate(grows):
        if axis and axis not in varying:
            yield Step("slice", axis, None, dimension)


def without(spec: ShardingSpec, *axes: str) -> ShardingSpec:
    """The layout after gathering and reducing over these mesh axes."""
    kept = tuple(tuple(a for a in entry if a not in axes) for entry in spec.axes)
    return replace(spec, axes=kept, pending=tuple(p for p in spec.pending if p[0] not in axes))
