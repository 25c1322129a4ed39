"""Tensors over a mesh as pieces on disk, and back: a process writes and reads what it holds.

Each different piece is written once, by the process that owns the first device it lies on. A tensor
is read back into the layout it is asked for, box by box, whatever grid wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import numpy as np

from weft.checkpoints.pieces import Piece
from weft.core.common.types import Array, Shape
from weft.core.sharding.pieces import Pieces, Shards, local_places
from weft.core.tensor.convert import wrap
from weft.core.tensor.sharing import is_shared
from weft.core.tensor.tensor import Tensor
from weft.ops.communication.layout import reshard
from weft.ops.communication.mesh import wrapped
from weft.runtime.communicator import world

ReadBox: TypeAlias = Callable[[Shape, Shape], Array]  # offset and shape


def pieces_of(tensors: Mapping[str, Tensor | Array], *, lasting: bool = False) -> list[Piece]:
    """The pieces of tensors that this process writes.

    What lies on no mesh is the same in every process: the first one writes it. With `lasting`,
    memory that others may write to is copied.
    """
    return [piece for name, value in tensors.items() for piece in _pieces(name, value, lasting)]


def _pieces(name: str, value: Tensor | Array, lasting: bool) -> Iterator[Piece]:
    if isinstance(value, Tensor) and value.sharding.mesh is not None:
        yield from _pieces_on_mesh(name, value, lasting)
    elif world().rank == 0:
        yield Piece.whole(name, _values(value, lasting))


def _pieces_on_mesh(name: str, value: Tensor, lasting: bool) -> Iterator[Piece]:
    spec = value.sharding
    if spec.pending:
        value, spec = reshard(value, spec.settled), spec.settled
    mesh, shape = spec.mesh, value.shape
    assert mesh is not None
    first: dict[tuple[tuple[int, int], ...], int] = {}
    for place in range(mesh.size):
        first.setdefault(spec.extents(shape, mesh.coordinates(place)), place)
    shards = dict(zip(local_places(mesh), value.dual.shards, strict=True))
    for extents, place in first.items():
        if place in shards:
            offset = tuple(start for start, _ in extents)
            yield Piece(name, offset, _values(shards[place].tensor, lasting), shape)


def _values(value: Tensor | Array, lasting: bool) -> Array:
    """The values in memory, in that of nobody else if they must last."""
    if isinstance(value, np.ndarray):
        return value.copy() if lasting else value
    array = value.host()
    return array.copy() if lasting and (value._impl.shared or is_shared(array)) else array


def read_like(read: ReadBox, like: Tensor) -> Tensor:
    """A tensor of the type, layout and device of `like`, of which only this process's boxes are
    read."""
    spec = like.sharding.settled.plain
    if spec.mesh is None:
        return wrap(read((0,) * like.ndim, like.shape), like.device)

    def piece(at: Mapping[str, int]) -> Tensor:
        extents = spec.extents(like.shape, at)
        offset = tuple(start for start, _ in extents)
        return wrap(read(offset, tuple(end - start for start, end in extents)), like.device)

    return wrapped(Shards(like.type, spec, Pieces.build(spec.mesh, spec.varying, piece)))
