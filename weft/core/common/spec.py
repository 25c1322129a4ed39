"""How a tensor lies over devices, as values: `DeviceMesh`, `P`, `ShardingSpec`.

Splits are nested and balanced: the mesh axes of a tensor's axis cut it one after the other, and
where a size does not divide, the first pieces are one longer. So gathering the last mesh axis
always gives the split by the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any, TypeAlias

from weft.core.common.device import Device, as_device
from weft.core.common.parameters import as_integer, as_integers, as_sequence, shown
from weft.core.common.types import Shape
from weft.errors import ShardingError

MeshAxes: TypeAlias = tuple[str, ...]
Pending: TypeAlias = tuple[tuple[str, str], ...]  # mesh axis and kind of reduction

KINDS = ("sum", "max", "min", "prod", "all", "any")
OPEN = "?"


@dataclass(frozen=True, slots=True)
class Link:
    """What connects neighbours along a mesh axis: bytes a second, and seconds for any message."""

    bandwidth: float = 10e9
    latency: float = 2e-6


@dataclass(frozen=True)
class DeviceMesh:
    """Devices arranged in a grid whose axes have names.

    `devices` are logical ones of the processor, those of a kind (`"cuda"`), or the ones listed.
    `links` says for each axis how fast its devices talk to each other; planning uses it.

    >>> mesh = DeviceMesh("grid", (2, 2), ("data", "model"))
    >>> mesh.size, mesh.axis_size("model")
    (4, 2)
    >>> DeviceMesh("gpus", (2,), ("data",), "cuda").devices
    (Device('cuda:0'), Device('cuda:1'))
    """

    name: str
    shape: Shape
    axis_names: MeshAxes
    devices: Any = field(default="cpu", repr=False)
    links: Any = field(default=(), repr=False)
    parent: DeviceMesh | None = field(default=None, repr=False)  # whose axes were split further

    def __post_init__(self) -> None:
        names = as_sequence("mesh", "axis_names", self.axis_names)
        object.__setattr__(self, "axis_names", names)
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
        if OPEN in self.axis_names:
            raise ShardingError(f"mesh {self.name!r}: {OPEN!r} in a partition means an open axis")
        if min(self.shape, default=1) < 1:
            raise ShardingError(f"mesh {self.name!r}: every axis needs a device ({self.shape})")
        count = as_integer(
            f"mesh {self.name!r}", "the number of devices", prod(self.shape), 1, 2**24
        )
        devices = self.devices or "cpu"
        if isinstance(devices, str):
            devices = _devices(devices, count)
        devices = as_sequence("mesh", "devices", devices)
        if len(devices) != count:
            raise ShardingError(f"mesh {self.name!r}: {len(devices)} devices for {count} places")
        object.__setattr__(self, "devices", tuple(map(as_device, devices)))
        object.__setattr__(self, "links", self._links())

    def _links(self) -> tuple[Link, ...]:
        given = self.links
        if isinstance(given, Link):
            given = (given,) * len(self.shape)
        if isinstance(given, Mapping):
            for axis in given:
                self.axis_size(axis)
            given = tuple(given.get(axis, Link()) for axis in self.axis_names)
        found = tuple(given) or (Link(),) * len(self.shape)
        if len(found) != len(self.shape) or not all(isinstance(link, Link) for link in found):
            raise ShardingError(
                f"mesh {self.name!r}: links must be a Link, or one for each of {self.axis_names},"
                f" got {shown(self.links)}"
            )
        return found

    @cached_property
    def _key(self) -> int:
        return hash((self.name, self.shape, self.axis_names, self.devices))

    def __hash__(self) -> int:
        return self._key

    @property
    def size(self) -> int:
        """Number of devices."""
        return prod(self.shape)

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The kinds of its devices, such as "cpu"."""
        return frozenset(device.kind for device in self.devices)

    @cached_property
    def is_apart(self) -> bool:
        """Whether a device has memory of its own, so that what it reads must be moved there."""
        return self.kinds != {"cpu"}

    def axis_size(self, axis: str) -> int:
        """Number of devices along one axis."""
        if axis not in self.axis_names:
            raise ShardingError(
                f"mesh {self.name!r}: no axis {axis!r} (there are {', '.join(self.axis_names)})"
            )
        return self.shape[self.axis_names.index(axis)]

    def link(self, axis: str) -> Link:
        """How fast devices along an axis talk to each other."""
        self.axis_size(axis)
        found: Link = self.links[self.axis_names.index(axis)]
        return found

    def parts(self, axes: MeshAxes) -> int:
        """Into how many pieces these mesh axes cut together."""
        return prod(map(self.axis_size, axes))

    def ordered(self, axes: Any) -> MeshAxes:
        """The given axes in the order of the mesh, each once."""
        return tuple(axis for axis in self.axis_names if axis in axes)

    def coordinates(self, place: int) -> dict[str, int]:
        """Where the device number `place` stands along each axis."""
        found = {}
        for axis, size in zip(reversed(self.axis_names), reversed(self.shape), strict=True):
            place, found[axis] = divmod(place, size)
        return found

    def split_axis(self, axis: str, **sizes: int) -> DeviceMesh:
        """The same devices with one axis seen as several, outermost first.

        >>> DeviceMesh("grid", (8,), ("x",)).split_axis("x", outer=2, inner=4).shape
        (2, 4)
        """
        whole = self.axis_size(axis)
        if prod(sizes.values()) != whole:
            raise ShardingError(
                f"mesh {self.name!r}: axis {axis!r} has {whole} devices,"
                f" which {shown(sizes)} do not make up"
            )
        at = self.axis_names.index(axis)
        return DeviceMesh(
            self.name,
            (*self.shape[:at], *sizes.values(), *self.shape[at + 1 :]),
            (*self.axis_names[:at], *sizes, *self.axis_names[at + 1 :]),
            self.devices,
            (*self.links[:at], *(self.links[at],) * len(sizes), *self.links[at + 1 :]),
            self,
        )

    def refined(self, axis: str, mesh: DeviceMesh) -> MeshAxes:
        """An axis of this mesh in the axes of `mesh`, which was made of it by `split_axis`."""
        steps = []
        while mesh != self:
            if mesh.parent is None:
                raise ShardingError(f"mesh {self.name!r} and mesh {mesh.name!r} differ")
            steps.append(mesh)
            mesh = mesh.parent
        found: MeshAxes = (axis,)
        for finer in reversed(steps):
            assert finer.parent is not None
            new = tuple(a for a in finer.axis_names if a not in finer.parent.axis_names)
            found = tuple(b for a in found for b in ((a,) if a in finer.axis_names else new))
        return found

    def __str__(self) -> str:
        axes = ", ".join(f"{a}={n}" for a, n in zip(self.axis_names, self.shape, strict=True))
        return f"{self.name}({axes})"


@lru_cache(maxsize=64)
def _devices(kind: str, count: int) -> tuple[Device, ...]:
    return tuple(as_device(f"{kind}:{i}") for i in range(count))


class P(tuple[Any, ...]):
    """A partition: for each axis of a tensor a mesh axis, several of them, or None.

    `"?"` in an entry leaves the axis open: automatic sharding may split it (further).

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

    `pending` names mesh axes whose devices each hold one term of a reduction. `replicated` names
    mesh axes that must not split the tensor; `open` the axes that automatic sharding may split
    further; `priority` says whose wish counts first where operands disagree (the lower).
    """

    mesh: DeviceMesh | None
    axes: tuple[MeshAxes, ...]
    pending: Pending = ()
    replicated: MeshAxes = ()
    open: tuple[int, ...] = ()
    priority: int = 0

    @classmethod
    def of(
        cls,
        mesh: DeviceMesh,
        partition: Any,
        rank: int,
        *,
        replicated: Any = (),
        priority: int = 0,
    ) -> ShardingSpec:
        """The spec of a tensor of `rank` axes; a short partition leaves the rest whole."""
        if not isinstance(partition, tuple | list):
            partition = P(partition)
        if len(partition) > rank:
            raise ShardingError(
                f"{_listed(partition)} has more entries than the tensor has axes ({rank})"
            )
        listed = [_entry(partition, e) for e in partition] + [()] * (rank - len(partition))
        replicated = _entry(partition, replicated)
        priority = as_integer(_listed(partition), "priority", priority)
        axes = tuple(tuple(a for a in entry if a != OPEN) for entry in listed)
        free = tuple(k for k, entry in enumerate(listed) if OPEN in entry)
        used = [axis for entry in axes for axis in entry]
        for axis in (*used, *replicated):
            if axis not in mesh.axis_names:
                raise ShardingError(
                    f"{_listed(partition)}: mesh {mesh} has no axis {axis!r}"
                    f"\nhint: there are {', '.join(mesh.axis_names)}"
                )
        if len(set(used)) != len(used) or set(used) & set(replicated):
            raise ShardingError(
                f"{_listed(partition)} uses a mesh axis twice (mesh {mesh})"
                "\nhint: each mesh axis can split one axis of a tensor, or keep it whole"
            )
        return cls(mesh, axes, (), mesh.ordered(replicated), free, priority)

    @classmethod
    def whole(cls, rank: int, mesh: DeviceMesh | None = None) -> ShardingSpec:
        """Not split at all: on one device, or a full copy on each device of a mesh."""
        return cls(mesh, ((),) * rank)

    @cached_property
    def _key(self) -> int:
        fixed = (self.mesh, self.axes, self.pending, self.replicated, self.open, self.priority)
        return hash(fixed)

    def __hash__(self) -> int:
        return self._key

    @property
    def is_whole(self) -> bool:
        """Whether every device holds the entire value."""
        return not any(self.axes) and not self.pending

    @cached_property
    def varying(self) -> MeshAxes:
        """The mesh axes along which devices hold different data, in the order of the mesh."""
        if self.mesh is None:
            return ()
        split = {a for entry in self.axes for a in entry} | {a for a, _ in self.pending}
        return self.mesh.ordered(split)

    @cached_property
    def plain(self) -> ShardingSpec:
        """The layout alone, without wishes about how to treat it."""
        if not (self.replicated or self.open or self.priority):
            return self
        return ShardingSpec(self.mesh, self.axes, self.pending)

    @cached_property
    def settled(self) -> ShardingSpec:
        """The same splits with no reduction pending."""
        return self if not self.pending else replace(self, pending=())

    def inside(self, count: int) -> ShardingSpec:
        """The layout without the first `count` axes, which a transform hides."""
        if not count:
            return self
        free = tuple(axis - count for axis in self.open if axis >= count)
        return replace(self, axes=self.axes[count:], open=free)

    def parts(self, axis: int) -> int:
        """Into how many pieces an axis is cut."""
        assert self.mesh is not None or not self.axes[axis]
        return self.mesh.parts(self.axes[axis]) if self.mesh else 1

    def extents(self, shape: Shape, coordinates: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
        """For each axis where a device's piece starts and ends."""
        if self.mesh is None:
            return tuple((0, size) for size in shape)
        return tuple(
            extent(size, [(self.mesh.axis_size(a), coordinates[a]) for a in axes])
            for size, axes in zip(shape, self.axes, strict=True)
        )

    def local_shape(self, shape: Shape, coordinates: Mapping[str, int] | None = None) -> Shape:
        """The shape of one device's piece: the first (largest) one, or that at `coordinates`."""
        at = coordinates or dict.fromkeys(self.mesh.axis_names if self.mesh else (), 0)
        return tuple(end - start for start, end in self.extents(shape, at))

    def on(self, mesh: DeviceMesh) -> ShardingSpec:
        """The same layout in the axes of `mesh`, which is this one's or splits its axes further."""
        if self.mesh is None or self.mesh == mesh:
            return replace(self, mesh=mesh) if self.mesh is None else self
        old = self.mesh
        return ShardingSpec(
            mesh,
            tuple(tuple(b for a in axes for b in old.refined(a, mesh)) for axes in self.axes),
            tuple((b, kind) for a, kind in self.pending for b in old.refined(a, mesh)),
            tuple(b for a in self.replicated for b in old.refined(a, mesh)),
            self.open,
            self.priority,
        )

    def __str__(self) -> str:
        entries = ", ".join("+".join(axes) or "·" for axes in self.axes)
        waiting = "".join(f" pending {kind} over {axis}" for axis, kind in self.pending)
        return f"[{entries}]{waiting}"


def _listed(partition: Any) -> str:
    return f"P({', '.join(map(repr, partition))})"


def _entry(partition: Any, entry: Any) -> MeshAxes:
    if entry is None:
        return ()
    names = (entry,) if isinstance(entry, str) else entry
    if not isinstance(names, tuple | list) or not all(isinstance(a, str) for a in names):
        raise ShardingError(
            f"{_listed(partition)}: {shown(entry)} is no mesh axis"
            "\nhint: an entry is None, the name of a mesh axis, or a tuple of names"
        )
    return tuple(names)


def extent(size: int, cuts: list[tuple[int, int]]) -> tuple[int, int]:
    """Start and end of a piece of an axis after nested cuts, each (pieces, number of this one).

    >>> [extent(10, [(2, i), (2, j)]) for i in range(2) for j in range(2)]
    [(0, 3), (3, 5), (5, 8), (8, 10)]
    """
    start, end = 0, size
    for pieces, number in cuts:
        each, longer = divmod(end - start, pieces)
        start += number * each + min(number, longer)
        end = start + each + (number < longer)
    return start, end
