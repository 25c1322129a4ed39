"""`Dual`: the physical side of a tensor — one shard for each device of its mesh.

A logical tensor shows the global shape; its dual shows who holds what. A captured graph can be
replayed on duals as on tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from weft.core.common.device import Device
from weft.core.common.slots import FUNCTIONS
from weft.core.common.spec import DeviceMesh, ShardingSpec
from weft.core.common.types import Shape
from weft.core.sharding.pieces import Pieces, local_places
from weft.core.tensor.impl import TensorImpl
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias


@dataclass(frozen=True)
class Shard:
    """What one device holds: `tensor`, which is `index` of the whole (slices, one an axis)."""

    device: Device
    index: tuple[slice, ...]
    tensor: Tensor


class Dual:
    """The shards of a tensor that belong to this process, in the order of the mesh's devices."""

    def __init__(self, logical: Tensor, spec: ShardingSpec, pieces: Pieces | None) -> None:
        self.logical = logical
        self.spec = spec
        self._pieces = pieces

    @property
    def mesh(self) -> DeviceMesh | None:
        """The mesh the tensor lies on; None for a tensor of one device."""
        return self.spec.mesh

    @property
    def shape(self) -> Shape:
        """The shape of the first (largest) shard."""
        return self.spec.local_shape(self.logical.shape)

    @property
    def shards(self) -> tuple[Shard, ...]:
        """One shard for each device of this process; those of pending sums are terms of them."""
        mesh, whole = self.spec.mesh, self.logical.shape
        if mesh is None or self._pieces is None:
            index = tuple(slice(0, size) for size in whole)
            return (Shard(self.logical.device, index, alias(self.logical)),)
        found = []
        for place in local_places(mesh):
            at = mesh.coordinates(place)
            index = tuple(slice(start, end) for start, end in self.spec.extents(whole, at))
            found.append(Shard(mesh.devices[place], index, _on(self._pieces.at(at), mesh, place)))
        return tuple(found)

    def __len__(self) -> int:
        return len(self.shards)

    def __iter__(self) -> Iterator[Shard]:
        return iter(self.shards)

    def __getitem__(self, number: int) -> Shard:
        return self.shards[number]

    def __repr__(self) -> str:
        return f"<dual of {self.logical.type}: {len(self)} shards, {self.spec}>"


def _on(piece: Tensor, mesh: DeviceMesh, place: int) -> Tensor:
    """A piece, as a tensor of its own on its device; logical CPU devices share memory."""
    device: Any = mesh.devices[place]
    if piece.owner is not None or device is piece.device:
        return alias(piece)
    if mesh.is_apart or piece.device.kind != "cpu":
        moved: Tensor = FUNCTIONS["to_device"](piece, device)
        return moved
    return Tensor(TensorImpl(piece.shape, piece.dtype, device, piece.data()))
