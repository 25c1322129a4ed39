"""`Pieces`: what the devices of a mesh hold of one tensor, each different piece once.

A value that is the same along a mesh axis does not *vary* over it: copies are one object here, so
an op on them runs once. A process holds the pieces of its own devices only: processes share out the
axes of a mesh evenly, the outermost first. Which process this is the layer of communicators says
with `install_world`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd
from typing import Any, TypeAlias

from weft.core.common.device import Device
from weft.core.common.slots import FUNCTIONS
from weft.core.common.spec import DeviceMesh, MeshAxes, ShardingSpec
from weft.core.common.types import TensorType
from weft.core.tensor.views import alias
from weft.errors import ShardingError

Coordinates: TypeAlias = tuple[int, ...]  # along some mesh axes, in their order

_world: list[Callable[[], tuple[int, int]]] = [lambda: (0, 1)]
_generation = [0]
_forgetters: list[Callable[[], None]] = []


def install_world(function: Callable[[], tuple[int, int]]) -> None:
    """Say which process this is and of how many: (rank, size)."""
    _world[:] = [function]
    forget_owners()


def forget_owners() -> None:
    """Forget which devices belong to which process: there are other processes now."""
    _generation[0] += 1
    for forget in _forgetters:
        forget()


def depends_on_owners(forget: Callable[[], None]) -> None:
    """Have a cache emptied when other processes share the devices."""
    _forgetters.append(forget)


def generation() -> int:
    """How often owners were forgotten: a program of pieces is good for one generation."""
    return _generation[0]


def lost(mesh: DeviceMesh) -> ShardingError:
    """The error for a tensor whose pieces are not where the processes of today expect them."""
    return ShardingError(
        f"mesh {mesh.name!r}: the tensor was spread over processes that no longer work together;"
        " pieces of it are missing\nhint: load it from a checkpoint into the layout it needs now"
    )


@lru_cache(maxsize=1024)
def _shares(mesh: DeviceMesh) -> tuple[int, ...]:
    """Among how many processes each axis of the mesh is divided."""
    _, size = _world[0]()
    rest, found = size, []
    for count in mesh.shape:
        found.append(gcd(count, rest))
        rest //= found[-1]
    if rest != 1:
        raise ShardingError(
            f"mesh {mesh.name!r}: {size} processes cannot share {mesh.size} devices"
            f" ({' × '.join(map(str, mesh.shape))}) evenly"
            f"\nhint: let {size} divide the number of devices, or start another number of processes"
        )
    return tuple(found)


@lru_cache(maxsize=1024)
def local_places(mesh: DeviceMesh) -> tuple[int, ...]:
    """The numbers of the mesh's devices that belong to this process."""
    rank, _ = _world[0]()
    return tuple(place for place in range(mesh.size) if owner_of(mesh, place) == rank)


def owner_of(mesh: DeviceMesh, place: int) -> int:
    """The rank of the process that a device of the mesh belongs to."""
    rank = 0
    at = mesh.coordinates(place)
    for axis, count, share in zip(mesh.axis_names, mesh.shape, _shares(mesh), strict=True):
        rank = rank * share + at[axis] * share // count
    return rank


@lru_cache(maxsize=4096)
def local_coordinates(mesh: DeviceMesh, axes: MeshAxes) -> tuple[Coordinates, ...]:
    """Where along these axes this process has devices, in order."""
    if len(local_places(mesh)) == mesh.size:
        return tuple(itertools.product(*(range(mesh.axis_size(axis)) for axis in axes)))
    found = (mesh.coordinates(place) for place in local_places(mesh))
    return tuple(sorted({tuple(at[axis] for axis in axes) for at in found}))


@lru_cache(maxsize=4096)
def home_of(mesh: DeviceMesh, axes: MeshAxes, at: Coordinates) -> Device:
    """The device of this process that holds a piece: the first at its coordinates."""
    for place in local_places(mesh):
        here = mesh.coordinates(place)
        if all(here[axis] == i for axis, i in zip(axes, at, strict=True)):
            found: Device = mesh.devices[place]
            return found
    raise lost(mesh)


def home_at(mesh: DeviceMesh, at: Mapping[str, int]) -> Device:
    """The same for coordinates by axis."""
    return home_of(mesh, tuple(at), tuple(at.values()))


def at_home(mesh: DeviceMesh, at: Mapping[str, int], tensor: Any) -> Any:
    """A tensor on the device that holds pieces at these coordinates."""
    if not mesh.is_apart:
        return tensor
    return FUNCTIONS["to_device"](tensor, home_at(mesh, at))


for _cached in (_shares, local_places, local_coordinates, home_of):
    depends_on_owners(_cached.cache_clear)


def is_local(mesh: DeviceMesh, axis: str) -> bool:
    """Whether all devices along an axis belong to this process, for each of its devices."""
    return len(local_coordinates(mesh, (axis,))) == mesh.axis_size(axis)


@dataclass(frozen=True, slots=True)
class Pieces:
    """One tensor for each coordinate along the mesh axes it varies over."""

    mesh: DeviceMesh
    axes: MeshAxes  # in the order of the mesh
    parts: Mapping[Coordinates, Any]

    @classmethod
    def everywhere(cls, mesh: DeviceMesh, tensor: Any) -> Pieces:
        """The same tensor on every device, as it is now."""
        return cls(mesh, (), {(): alias(tensor)})

    @classmethod
    def build(
        cls, mesh: DeviceMesh, axes: Iterable[str], make: Callable[[dict[str, int]], Any]
    ) -> Pieces:
        """One piece for each coordinate of this process, as `make` gives it."""
        names = mesh.ordered(axes)
        parts = {}
        for at in local_coordinates(mesh, names):
            here = dict(zip(names, at, strict=True))
            parts[at] = at_home(mesh, here, make(here))
        return cls(mesh, names, parts)

    def at(self, coordinates: Mapping[str, int]) -> Any:
        """The piece at a place; axes it does not vary over do not matter."""
        try:
            return self.parts[tuple([coordinates[axis] for axis in self.axes])]
        except KeyError:
            raise lost(self.mesh) from None

    def homed(self) -> Pieces:
        """The same pieces, each on the device that holds it."""
        return Pieces.build(self.mesh, self.axes, self.at) if self.mesh.is_apart else self

    def only(self, coordinates: Mapping[str, int]) -> Pieces:
        """The pieces at these coordinates, which vary over the other axes alone."""
        left = [axis for axis in self.axes if axis not in coordinates]
        return Pieces.build(self.mesh, left, lambda at: self.at({**at, **coordinates}))

    def map(self, function: Callable[[Any], Any]) -> Pieces:
        """The pieces after `function`."""
        return Pieces(self.mesh, self.axes, {at: function(x) for at, x in self.parts.items()})


@dataclass(frozen=True, slots=True)
class Shards:
    """A tensor over a mesh: its global type, its layout, and the pieces this process holds."""

    type: TensorType
    spec: ShardingSpec
    pieces: Pieces
    settled: dict[ShardingSpec, Shards] = field(default_factory=dict, repr=False, compare=False)
    """What became of pending reductions, so that a second use does not reduce again."""

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh the tensor lies on."""
        return self.pieces.mesh
