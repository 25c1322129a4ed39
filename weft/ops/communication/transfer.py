"""Carry out layouts: each step of a reshard on the pieces of a tensor.

Between devices of this process the steps are ordinary ops on pieces (slices, joins, ordered
reductions), so they are recorded, differentiated, fused and compiled like any other. Between
processes they go through the communicator (`remote`). Reductions fold in the order of the devices,
here and there: the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, reduce
from typing import Any

from weft.core.common.handler import current
from weft.core.common.slots import FUNCTIONS
from weft.core.common.source import user_position
from weft.core.common.spec import DeviceMesh, ShardingSpec, extent
from weft.core.sharding.cost import collective_bytes, reshard_steps
from weft.core.sharding.log import Communication, enter, is_logging
from weft.core.sharding.pieces import Pieces, Shards, at_home, is_local, local_places
from weft.core.sharding.steps import Step
from weft.core.tensor.tensor import Tensor
from weft.ops.base import call
from weft.ops.communication import remote
from weft.ops.communication.remote import fold_op
from weft.ops.view.join import concat_op
from weft.ops.view.slice import slice_axes


class Moves:
    """What moves between processes while a graph is compiled: each tensor to a layout once."""

    def __init__(self, note: Callable[[Shards], None]) -> None:
        self.note = note
        # By identity: the tensors are held here, so that no other one takes their place.
        self._made: dict[tuple[int, ShardingSpec], tuple[Shards, Any, Shards]] = {}

    def known(self, shards: Shards, target: ShardingSpec) -> Shards | None:
        """The tensor in this layout, if it went there before in the same graph or body."""
        found = self._made.get((id(shards), target))
        return found[2] if found is not None and found[1] is current() else None

    def keep(self, shards: Shards, target: ShardingSpec, made: Shards) -> None:
        """A tensor has gone to a layout."""
        self._made[id(shards), target] = shards, current(), made


_moves: ContextVar[Moves | None] = ContextVar("weft_moves", default=None)


@contextmanager
def noting(note: Callable[[Shards], None]) -> Iterator[None]:
    """Inside, a graph is compiled: `note` is told each tensor that is about to be moved.

    A tensor that goes to the same layout twice between processes goes there once.
    """
    token = _moves.set(Moves(note))
    try:
        yield
    finally:
        _moves.reset(token)


def reshard(shards: Shards, target: ShardingSpec, reason: str = "") -> Shards:
    """The same tensor in another layout of its mesh, by the cheapest steps."""
    if shards.spec == target:
        return shards
    if target.mesh is not None and target.mesh != shards.mesh:
        shards = _in_axes_of(target.mesh, shards)
    mesh, shape, size = shards.mesh, shards.type.shape, shards.type.dtype.itemsize
    target = target.on(mesh)
    moves = _moves.get()
    known = shards.settled.get(target) or (moves.known(shards, target) if moves else None)
    if known is not None:
        return known
    spec, pieces = shards.spec.plain, shards.pieces
    terms = tuple(p for p in target.pending if p not in spec.pending)
    waiting = tuple(p for p in target.pending if p in spec.pending)
    goal = ShardingSpec(mesh, target.axes, waiting)
    steps = reshard_steps(spec, goal, shape, size)
    if moves is not None:
        moves.note(shards)
    for step in steps:
        if is_logging() and step.kind != "slice":
            sent = int(collective_bytes(step.kind, mesh.axis_size(step.axis), step.nbytes))
            at = user_position(2)
            enter(Communication(step.kind, mesh, (step.axis,), shape, sent, reason, at))
        pieces = carry_out(step, pieces, partial(spec.local_shape, shape))
        spec = step.apply(spec)
    for axis, _ in terms:
        pieces = _as_terms(pieces, axis)
    made = Shards(shards.type, target, pieces)
    if shards.spec.pending and not target.pending:
        shards.settled[target] = made
    elif moves is not None and any(_leaves(mesh, step) for step in steps):
        moves.keep(shards, target, made)
    return made


def _leaves(mesh: DeviceMesh, step: Step) -> bool:
    """Whether a step moves something between processes."""
    return step.kind != "slice" and not is_local(mesh, step.axis)


def _in_axes_of(mesh: DeviceMesh, shards: Shards) -> Shards:
    """The same pieces on a mesh that splits the axes of theirs further."""
    old, rank = shards.mesh, shards.type.rank
    spec = shards.spec.plain.on(mesh)
    uneven = any(size % spec.parts(axis) for axis, size in enumerate(shards.type.shape))
    if uneven or local_places(old) != local_places(mesh):
        whole = reshard(shards, ShardingSpec.whole(rank, old)).pieces.parts[()]
        everywhere = Pieces.everywhere(mesh, whole)  # uneven pieces are cut elsewhere there
        return Shards(shards.type, ShardingSpec.whole(rank, mesh), everywhere)
    finer = {axis: old.refined(axis, mesh) for axis in shards.pieces.axes}

    def make(at: dict[str, int]) -> Tensor:
        place = dict.fromkeys(finer, 0)
        for axis, parts in finer.items():
            for part in parts:
                place[axis] = place[axis] * mesh.axis_size(part) + at[part]
        piece: Tensor = shards.pieces.at(place)
        return piece

    axes = [part for parts in finer.values() for part in parts]
    return Shards(shards.type, spec, Pieces.build(mesh, axes, make))


def carry_out(step: Step, pieces: Pieces, shape_at: Any = None) -> Pieces:
    """The pieces after one step; `shape_at` gives the shapes of pieces that are elsewhere."""
    if step.kind == "slice" or is_local(pieces.mesh, step.axis):
        return _within(step, pieces)
    return remote.carry_out(step, pieces, shape_at, _within)


def _within(step: Step, pieces: Pieces) -> Pieces:
    """One step between devices whose pieces are all here."""
    return {
        "all_reduce": _all_reduce,
        "reduce_scatter": _reduce_scatter,
        "all_gather": _all_gather,
        "all_to_all": _all_to_all,
        "slice": _slice,
    }[step.kind](step, pieces)


def _all_reduce(step: Step, pieces: Pieces) -> Pieces:
    left = [axis for axis in pieces.axes if axis != step.axis]

    def make(at: dict[str, int]) -> Tensor:
        return fold(_met(pieces.mesh, at, _along(pieces, step.axis, at)), step.reduction)

    return Pieces.build(pieces.mesh, left, make)


def _reduce_scatter(step: Step, pieces: Pieces) -> Pieces:
    def make(at: dict[str, int]) -> Tensor:
        held = _along(pieces, step.axis, at)
        parts = [_cut(x, step, at[step.axis], len(held)) for x in held]
        return fold(_met(pieces.mesh, at, parts), step.reduction)

    return Pieces.build(pieces.mesh, pieces.axes, make)


def _all_gather(step: Step, pieces: Pieces) -> Pieces:
    left = [axis for axis in pieces.axes if axis != step.axis]
    assert step.source is not None
    source = step.source

    def make(at: dict[str, int]) -> Tensor:
        return joined(_met(pieces.mesh, at, _along(pieces, step.axis, at)), source)

    return Pieces.build(pieces.mesh, left, make)


def _all_to_all(step: Step, pieces: Pieces) -> Pieces:
    assert step.source is not None
    source = step.source

    def make(at: dict[str, int]) -> Tensor:
        held = _along(pieces, step.axis, at)
        parts = [_cut(x, step, at[step.axis], len(held)) for x in held]
        return joined(_met(pieces.mesh, at, parts), source)

    return Pieces.build(pieces.mesh, pieces.axes, make)


def _slice(step: Step, pieces: Pieces) -> Pieces:
    count = pieces.mesh.axis_size(step.axis)
    axes = [*pieces.axes, step.axis]
    return Pieces.build(
        pieces.mesh, axes, lambda at: _cut(pieces.at(at), step, at[step.axis], count)
    )


def permuted(pieces: Pieces, axis: str, pairs: Sequence[tuple[int, int]]) -> Pieces:
    """Pieces sent from device to device along a mesh axis; who gets none has zeros."""
    if not is_local(pieces.mesh, axis):
        return remote.permuted(pieces, axis, tuple(pairs))
    senders = {target: source for source, target in pairs}

    def make(at: dict[str, int]) -> Tensor:
        if at[axis] in senders:
            found: Tensor = pieces.at({**at, axis: senders[at[axis]]})
            return found
        zeros: Tensor = FUNCTIONS["zeros_like"](pieces.at(at))
        return zeros

    return Pieces.build(pieces.mesh, pieces.axes, make)


def _as_terms(pieces: Pieces, axis: str) -> Pieces:
    """A tensor as the sum of terms along a mesh axis: the first device has it, others zeros."""

    def make(at: dict[str, int]) -> Tensor:
        piece: Tensor = pieces.at(at)
        return piece if at[axis] == 0 else FUNCTIONS["zeros_like"](piece)

    return Pieces.build(pieces.mesh, (*pieces.axes, axis), make)


def varied(pieces: Pieces, axis: str) -> Pieces:
    """The same pieces, seen as varying over one more mesh axis."""
    if axis in pieces.axes:
        return pieces
    return Pieces.build(pieces.mesh, (*pieces.axes, axis), pieces.at)


def _along(pieces: Pieces, axis: str, at: Mapping[str, int]) -> list[Tensor]:
    """The pieces of the devices along a mesh axis, in order."""
    return [pieces.at({**at, axis: i}) for i in range(pieces.mesh.axis_size(axis))]


def _met(mesh: DeviceMesh, at: Mapping[str, int], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of several devices, on the one that makes a piece of them."""
    return [at_home(mesh, at, x) for x in tensors]


def _cut(x: Tensor, step: Step, number: int, count: int) -> Tensor:
    assert step.target is not None
    return part_of(x, step.target, number, count)


def part_of(x: Tensor, axis: int, number: int, count: int) -> Tensor:
    """One of `count` balanced parts of `x` along an axis."""
    start, end = extent(x.shape[axis], [(count, number)])
    return window(x, axis, start, end)


def window(x: Tensor, axis: int, start: int, end: int) -> Tensor:
    """`x` from `start` to `end` along an axis."""
    starts = tuple(start if k == axis else 0 for k in range(x.ndim))
    lengths = tuple(end - start if k == axis else n for k, n in enumerate(x.shape))
    return slice_axes(x, starts, lengths, (1,) * x.ndim)


def fold(terms: Sequence[Tensor], kind: str) -> Tensor:
    """The reduction of the terms from the first to the last."""
    result: Tensor = reduce(lambda x, y: call(fold_op(kind), (x, y), {}), terms)
    return result


def joined(parts: Sequence[Tensor], axis: int) -> Tensor:
    """The parts behind each other along an axis."""
    if len(parts) == 1:
        return parts[0]
    return call(concat_op, tuple(parts), {"axis": axis - parts[0].ndim})
