"""What communication costs: bytes and seconds of collectives, and of a change of sharding.

Rings are assumed: N devices that reduce `bytes` each send 2(N-1)/N·bytes. A change of sharding is a
list of `Step`s, each one collective over one mesh axis: the cheapest on the links of a `Fabric`.
Nothing here depends on how many devices there are, only on the sizes of mesh axes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from weft.core.common.parameters import as_integers, shown
from weft.core.common.spec import DeviceMesh, Link, MeshAxes, ShardingSpec
from weft.core.common.types import Shape
from weft.core.sharding.profiles import as_link
from weft.core.sharding.steps import Layout, Step, cheapest_steps, layout_of
from weft.errors import ArgumentError, ShardingError

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "slice")


def collective_bytes(kind: str, size: int, nbytes: float) -> float:
    """Bytes each of `size` devices sends.

    `nbytes` is what one device holds: before an `all_reduce`, `reduce_scatter` or `all_to_all`,
    after an `all_gather`.

    >>> collective_bytes("all_reduce", 4, 1000), collective_bytes("all_gather", 4, 1000)
    (1500.0, 750.0)
    >>> collective_bytes("all_reduce", 1, 1000)
    0.0
    """
    _check_collective(kind, size)
    if kind == "slice":
        return 0.0
    return (2 if kind == "all_reduce" else 1) * (size - 1) / size * nbytes


def collective_seconds(kind: str, size: int, nbytes: float, link: Link) -> float:
    """Seconds of one collective: its bytes, and a latency for each round.

    Halving and doubling send a ring's bytes in log2(N) rounds.
    """
    traffic = collective_bytes(kind, size, nbytes)
    doublings = (size - 1).bit_length()
    rounds = {"slice": 0, "all_reduce": 2 * doublings}
    return rounds.get(kind, doublings) * link.latency + traffic / link.bandwidth


def _check_collective(kind: Any, size: Any) -> None:
    if kind not in COLLECTIVES:
        raise ArgumentError(
            f"collective: kind must be one of {', '.join(COLLECTIVES)}, got {shown(kind)}"
        )
    if not isinstance(size, int) or size < 1:
        raise ArgumentError(f"collective: size must be at least 1, got {shown(size)}")


@dataclass(frozen=True)
class Fabric:
    """The sizes of a mesh's axes and the link along each; all that costs depend on."""

    sizes: Mapping[str, int]
    links: Mapping[str, Link]

    @classmethod
    def of(cls, mesh: DeviceMesh, links: Mapping[str, Any] | str | Link | None = None) -> Fabric:
        """The fabric of a mesh; `links` (by mesh axis, or one for all) replace the mesh's own."""
        if not isinstance(mesh, DeviceMesh):
            raise ShardingError(f"expected a DeviceMesh, got {shown(mesh)}")
        given: Any = {} if links is None else links
        if not isinstance(given, Mapping):
            given = dict.fromkeys(mesh.axis_names, given)
        for axis in given:
            mesh.axis_size(axis)
        found = {axis: mesh.link(axis) for axis in mesh.axis_names}
        found |= {axis: as_link(f"mesh axis {axis!r}", link) for axis, link in given.items()}
        return cls(dict(zip(mesh.axis_names, mesh.shape, strict=True)), found)

    def parts(self, axes: MeshAxes) -> int:
        """Into how many pieces these mesh axes cut together."""
        return prod(self.sizes[axis] for axis in axes)

    def local_size(self, axes: tuple[MeshAxes, ...], shape: Shape) -> int:
        """Elements of the largest piece."""
        return prod(-(-n // self.parts(a)) for n, a in zip(shape, axes, strict=True))

    def local_bytes(self, layout: Layout, shape: Shape, itemsize: int) -> float:
        """Bytes of a tensor that one device holds, on average."""
        return prod(shape) * itemsize / prod(map(self.parts, layout.axes))

    def seconds(self, step: Step) -> float:
        """How long one step takes."""
        link = self.links[step.axis]
        return collective_seconds(step.kind, self.sizes[step.axis], step.nbytes, link)

    def traffic(self, step: Step) -> float:
        """Bytes that each device sends in one step."""
        return collective_bytes(step.kind, self.sizes[step.axis], step.nbytes)

    def steps(
        self, source: Layout, target: Layout, shape: Shape, itemsize: int
    ) -> tuple[Step, ...]:
        """The cheapest collectives that turn one layout into another, in order."""

        def local_bytes(layout: Layout) -> float:
            return self.local_bytes(layout, shape, itemsize)

        return cheapest_steps(source, target, local_bytes, self.seconds)

    def reshard_seconds(
        self, source: Layout, target: Layout, shape: Shape, itemsize: int
    ) -> float | None:
        """Seconds of a change of layout, or None where there is no way (to a pending result)."""
        if source == target:
            return 0.0
        if not set(target.pending) <= set(source.pending):
            return None
        return sum(map(self.seconds, self.steps(source, target, shape, itemsize)))


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
    assert source.mesh is not None and target.mesh == source.mesh
    fabric = Fabric.of(source.mesh)
    return fabric.steps(layout_of(source), layout_of(target), shape, itemsize)


class ReshardCost(NamedTuple):
    """Bytes each device sends, seconds, and the collectives in order."""

    bytes: float
    seconds: float
    steps: tuple[Step, ...]


def reshard_cost(
    source: ShardingSpec,
    target: ShardingSpec,
    shape: Shape,
    dtype: Any,
    links: Mapping[str, Any] | str | Link | None = None,
) -> ReshardCost:
    """What it costs to turn one sharding of a tensor into another.

    >>> mesh = DeviceMesh("m", (4,), ("x",))
    >>> rows, whole = ShardingSpec(mesh, (("x",), ())), ShardingSpec.whole(2, mesh)
    >>> reshard_cost(rows, whole, (8, 100), "float32").bytes
    2400.0
    >>> reshard_cost(whole, rows, (8, 100), "float32").bytes
    0.0
    """
    for name, spec in (("source", source), ("target", target)):
        if not isinstance(spec, ShardingSpec):
            raise ArgumentError(f"reshard_cost: {name}: expected a ShardingSpec, got {shown(spec)}")
    shape = as_integers("reshard_cost", "shape", shape)
    mesh = source.mesh or target.mesh
    if mesh is None or (source.mesh and target.mesh and source.mesh != target.mesh):
        raise ShardingError("reshard_cost: both specs must be of one mesh")
    if len(source.axes) != len(shape) or len(target.axes) != len(shape):
        raise ShardingError(f"reshard_cost: {source} and {target} do not fit shape {shape}")
    fabric = Fabric.of(mesh, links)
    steps = fabric.steps(layout_of(source), layout_of(target), shape, _itemsize(dtype))
    return ReshardCost(sum(map(fabric.traffic, steps)), sum(map(fabric.seconds, steps)), steps)


@lru_cache(maxsize=256)
def _itemsize(dtype: Any) -> int:
    return int(np.dtype(dtype).itemsize)


def spec_of(mesh: DeviceMesh, layout: Layout) -> ShardingSpec:
    """The spec that has this layout on a mesh."""
    return ShardingSpec(mesh, layout.axes, layout.pending)
