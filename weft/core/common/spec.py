"""How a tensor lies over devices, as values: `DeviceMesh`, `P`, `ShardingSpec`."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

from weft.core.common.device import Device, as_device
from weft.core.common.parameters import as_integer, as_integers, as_sequence, shown
from weft.core.common.types import Shape
from weft.errors import ShardingError

MeshAxes: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class DeviceMesh:
    """Devices arranged in a grid whose axes have names.

    >>> mesh = DeviceMesh("grid", (2, 2), ("data", "model"))
    >>> mesh.size, mesh.axis_size("model")
    (4, 2)
    """

    name: str
    shape: Shape
    axis_names: MeshAxes
    devices: tuple[Device, ...] = ()

    def __post_init__(self) -> None:
        for field in ("axis_names", "devices"):
            object.__setattr__(self, field, as_sequence("mesh", field, getattr(self, field)))
        object.__setattr__(self, "shape", as_integers("mesh", "shape", self.shape))
        if not all(isinstance(name, str) for name in (self.name, *self.axis_names)):
            raise ShardingError(
                f"mesh {shown(self.name)}: its name and axis names must be strings,"
                f" got {shown(self.axis_names)}"
            )
        if len(self.shape) != len(self.axis_names) or len(set(self.axis_names)) != len(self.shape):
            raise ShardingError(
                f"mesh {self.name!r}: shape {self.shape} needs as many different axis names,"
                f" got {self.axis_names}"
            )
        if min(self.shape, default=1) < 1:
            raise ShardingError(f"mesh {self.name!r}: every axis needs a device ({self.shape})")
        count = as_integer(
            f"mesh {self.name!r}", "the number of devices", prod(self.shape), 1, 2**24
        )
        devices = self.devices or tuple(as_device(f"cpu:{i}") for i in range(count))
        if len(devices) != count:
            raise ShardingError(f"mesh {self.name!r}: {len(devices)} devices for {count} places")
        object.__setattr__(self, "devices", tuple(map(as_device, devices)))

    @property
    def size(self) -> int:
        """Number of devices."""
        return prod(self.shape)

    def axis_size(self, axis: str) -> int:
        """Number of devices along one axis."""
        if axis not in self.axis_names:
            raise ShardingError(
                f"mesh {self.name!r}: no axis {axis!r} (there are {', '.join(self.axis_names)})"
            )
        return self.shape[self.axis_names.index(axis)]

    def coordinates(self, place: int) -> dict[str, int]:
        """Where the device number `place` stands along each axis."""
        found = {}
        for axis, size in zip(reversed(self.axis_names), reversed(self.shape), strict=True):
            place, found[axis] = divmod(place, size)
        return found


class P(tuple[Any, ...]):
    """A partition: for each axis of a tensor a mesh axis, several of them, or None.

    >>> P("data", None, ("model", "seq"))
    P('data', None, ('model', 'seq'))
    """

    __slots__ = ()

    def __new__(cls, *axes: str | tuple[str, ...] | None) -> P:
        return super().__new__(cls, axes)

    def __repr__(self) -> str:
        return f"P({', '.join(map(repr, self))})"


PartitionSpec = P


@dataclass(frozen=True)
class ShardingSpec:
    """For each axis of a tensor the mesh axes that split it, and reductions still to be done.

    `pending` names mesh axes whose devices each hold one term of a `sum`, `max` or `min`.
    """

    mesh: DeviceMesh | None
    axes: tuple[MeshAxes, ...]
    pending: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, mesh: DeviceMesh, partition: P, rank: int) -> ShardingSpec:
        """The spec of a tensor of `rank` axes; a short partition leaves the rest whole."""
        if len(partition) > rank:
            raise ShardingError(f"{partition} has more entries than the tensor has axes ({rank})")
        listed = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in partition]
        spec = cls(mesh, tuple(listed) + ((),) * (rank - len(listed)))
        used = [axis for axes in spec.axes for axis in axes]
        for axis in used:
            mesh.axis_size(axis)
        if len(set(used)) != len(used):
            raise ShardingError(f"{partition} uses a mesh axis twice")
        return spec

    @classmethod
    def whole(cls, rank: int, mesh: DeviceMesh | None = None) -> ShardingSpec:
        """Not split at all: on one device, or a full copy on each device of a mesh."""
        return cls(mesh, ((),) * rank)

    @property
    def is_whole(self) -> bool:
        """Whether every device holds the entire value."""
        return not any(self.axes) and not self.pending

    def parts(self, axis: int) -> int:
        """Into how many pieces an axis is cut."""
        assert self.mesh is not None or not self.axes[axis]
        return prod(self.mesh.axis_size(a) for a in self.axes[axis]) if self.mesh else 1

    def local_shape(self, shape: Shape) -> Shape:
        """The shape of one device's piece; sizes that do not divide are rounded up."""
        return tuple(-(-size // self.parts(axis)) for axis, size in enumerate(shape))

    def __str__(self) -> str:
        entries = ", ".join("+".join(axes) or "·" for axes in self.axes)
        waiting = "".join(f" pending {kind} over {axis}" for axis, kind in self.pending)
        return f"[{entries}]{waiting}"
