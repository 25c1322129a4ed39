"""Between a sharded tensor and its pieces: `take_apart` and `put_together`, each other's transpose.

They are ops, so derivatives and maps flow through code that works on pieces by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core.common.device import Device
from weft.core.common.factors import Factors
from weft.core.common.slots import FUNCTIONS
from weft.core.common.spec import DeviceMesh, ShardingSpec
from weft.core.common.types import Shape, TensorType
from weft.core.sharding.pieces import Pieces, Shards, at_home, home_at, is_local, local_coordinates
from weft.core.tensor.tensor import Tensor
from weft.ops.base import Tangents, call, call_multiple
from weft.ops.communication.layout import first_home, reshard_op
from weft.ops.communication.mesh import MESH
from weft.ops.communication.remote import several
from weft.ops.families import CollectiveOperation


class TakeApart(CollectiveOperation):
    """The pieces of a tensor laid out as `spec`, one for each place of this process."""

    home = MESH
    multiple = True
    sparse = True

    def infer(self, *types: Any, **params: Any) -> tuple[TensorType, ...]:
        (x,), spec = types, params["spec"]
        lead, core = _lead(x.shape, spec)
        return tuple(TensorType(lead + spec.local_shape(core, at), x.dtype) for at in places(spec))

    def places(self, **params: Any) -> tuple[Device, ...] | None:
        spec: ShardingSpec = params["spec"]
        if spec.mesh is None or not spec.mesh.is_apart:
            return None
        return tuple(home_at(spec.mesh, at) for at in places(spec))

    def communicate(self, x: Any, **params: Any) -> tuple[Tensor, ...]:
        spec: ShardingSpec = params["spec"]
        wanted = ShardingSpec(spec.mesh, ((),) * (len(x.type.shape) - len(spec.axes)) + spec.axes)
        done = reshard_op.communicate(x, spec=wanted)
        return tuple(done.pieces.at(at) for at in places(spec))

    def vjp(self, primals: Any, out: Any, cts: Any, **params: Any) -> Tangents:
        spec: ShardingSpec = params["spec"]
        _, core = _lead(primals[0].shape, spec)
        pieces = tuple(
            FUNCTIONS["zeros_like"](piece) if ct is None else ct
            for piece, ct in zip(out, cts, strict=True)
        )
        return (_summed(pieces, spec, core),)


class PutTogether(CollectiveOperation):
    """The tensor of `shape` whose pieces, laid out as `spec`, these are."""

    home = MESH

    def index(self, *types: Any, **params: Any) -> Factors:
        return several(types, len(params["shape"]))

    def infer(self, *types: Any, **params: Any) -> TensorType:
        first = types[0]
        lead, _ = _lead(first.shape, params["spec"])
        return TensorType(lead + params["shape"], first.dtype)

    def places(self, **params: Any) -> tuple[Device, ...] | None:
        return first_home(params["spec"].mesh)

    def communicate(self, *pieces: Any, **params: Any) -> Shards:
        spec: ShardingSpec = params["spec"]
        assert spec.mesh is not None
        lead, _ = _lead(pieces[0].shape, spec)
        full = ShardingSpec(spec.mesh, ((),) * len(lead) + spec.axes, spec.pending)
        coordinates = local_coordinates(spec.mesh, spec.varying)
        held = Pieces(spec.mesh, spec.varying, dict(zip(coordinates, pieces, strict=True)))
        return Shards(TensorType(lead + params["shape"], pieces[0].dtype), full, held)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        parts = call_multiple(take_apart_op, (ct,), {"spec": params["spec"]})
        # Processes that hold copies of a piece are one value: the first of them answers for it.
        if any(_first(params["spec"], axis) for axis in _copied(params["spec"])):
            return tuple(map(FUNCTIONS["zeros_like"], parts))
        return parts


def _copied(spec: ShardingSpec) -> list[str]:
    """The mesh axes along which other processes hold copies of the same pieces."""
    mesh = spec.mesh
    assert mesh is not None
    return [a for a in mesh.axis_names if a not in spec.varying and not is_local(mesh, a)]


def _first(spec: ShardingSpec, axis: str) -> int:
    """The first coordinate along an axis that belongs to this process."""
    assert spec.mesh is not None
    return local_coordinates(spec.mesh, (axis,))[0][0]


def _summed(pieces: Sequence[Tensor], spec: ShardingSpec, shape: Shape) -> Tensor:
    """The tensor of these pieces, of which processes with copies each have a term."""
    copied = _copied(spec)
    if not copied:
        return call(put_together_op, tuple(pieces), {"spec": spec, "shape": shape})
    waiting = ShardingSpec(spec.mesh, spec.axes, tuple((axis, "sum") for axis in copied))
    order = [tuple(at[axis] for axis in spec.varying) for at in places(spec)]
    held = dict(zip(order, pieces, strict=True))
    terms = []
    for at in places(waiting):
        piece = held[tuple(at[axis] for axis in spec.varying)]
        mine = all(at[axis] == _first(spec, axis) for axis in copied)
        terms.append(piece if mine else FUNCTIONS["zeros_like"](piece))
    return call(put_together_op, tuple(terms), {"spec": waiting, "shape": shape})


def places(spec: ShardingSpec) -> list[dict[str, int]]:
    """The coordinates of this process's pieces, in order."""
    assert spec.mesh is not None
    return [
        dict(zip(spec.varying, at, strict=True))
        for at in local_coordinates(spec.mesh, spec.varying)
    ]


def _lead(shape: Any, spec: ShardingSpec) -> tuple[Any, Any]:
    cut = len(shape) - len(spec.axes)
    return shape[:cut], shape[cut:]


take_apart_op, put_together_op = TakeApart(), PutTogether()


def pieces_of(x: Tensor, spec: ShardingSpec) -> Pieces:
    """The pieces of `x` laid out as `spec`; what is done with them can be differentiated."""
    mesh: DeviceMesh | None = spec.mesh
    assert mesh is not None
    found = call_multiple(take_apart_op, (x,), {"spec": spec})
    coordinates = local_coordinates(mesh, spec.varying)
    return Pieces(mesh, spec.varying, dict(zip(coordinates, found, strict=True)))


def tensor_of(pieces: Pieces, spec: ShardingSpec, shape: Any) -> Tensor:
    """The tensor over a mesh whose pieces these are."""
    held = tuple(at_home(pieces.mesh, at, pieces.at(at)) for at in places(spec))
    return call(put_together_op, held, {"spec": spec, "shape": tuple(shape)})
