"""Steps of a reshard between processes, through the communicator.

Each process performs the same ops in the same order, on its own pieces. They are effects: in eager
code they happen at the call, in compiled code in program order, and never because (or just when)
somebody reads a value. Folds go in the order of the devices, as within a process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from weft.core.common.slots import FUNCTIONS
from weft.core.common.spec import DeviceMesh, extent
from weft.core.common.types import Array, Shape, TensorType
from weft.core.sharding.pieces import Pieces, install_world, local_places, owner_of
from weft.core.sharding.steps import Step
from weft.core.tensor.tensor import Tensor
from weft.ops.base import Linear, Operation, Tangents, call, call_multiple
from weft.runtime.communicator import world

Members: TypeAlias = tuple[int, ...]
ShapeAt: TypeAlias = Callable[[Mapping[str, int]], Shape]

_KINDS = {"all": "min", "any": "max"}


class WorldOperation(Operation):
    """Takes part in a collective of several processes; `members` are their ranks, in order."""

    pure = False
    bare = True
    linear = Linear.JOINTLY
    widen = False
    work = 0
    factors = "... -> ..."
    reasons = {
        "kernel": "talks to other processes",
        "examples": "needs other processes",
        "notation": "combines what several processes hold",
    }


class ReduceWorld(WorldOperation):
    """The ordered fold of all members' tensors."""

    def eval(self, x: Array, *, kind: str, members: Members) -> Array:
        return world().all_reduce(x, _KINDS.get(kind, kind), members)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        if params["kind"] != "sum":
            raise self.missing("vjp")
        return (call(self, (ct,), params),)


class ScatterWorld(WorldOperation):
    """This process's part along `axis` of the ordered fold of all members' tensors."""

    def infer(self, *types: Any, **params: Any) -> TensorType:
        (x,), members = types, params["members"]
        return TensorType(_cut(x.shape, params["axis"], members), x.dtype)

    def eval(self, x: Array, *, kind: str, axis: int, members: Members) -> Array:
        return world().reduce_scatter(x, _KINDS.get(kind, kind), axis, members)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        members, axis, (x,) = params["members"], params["axis"], primals
        shapes = tuple(_cut(x.shape, axis, members, rank) for rank in members)
        parts = call_multiple(gather_world_op, (ct,), {"members": members, "shapes": shapes})
        return (FUNCTIONS["concat"](parts, axis=axis),)


class GatherWorld(WorldOperation):
    """The tensors of all members, which have these `shapes`."""

    multiple = True

    def infer(self, *types: Any, **params: Any) -> tuple[TensorType, ...]:
        return tuple(TensorType(shape, types[0].dtype) for shape in params["shapes"])

    def eval(self, x: Array, *, members: Members, shapes: tuple[Shape, ...]) -> tuple[Array, ...]:
        return tuple(world().all_gather(x, members))

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        members = params["members"]
        shape = params["shapes"][members.index(world().rank)]
        back = {"members": members, "shapes": (shape,) * len(members)}
        terms = call_multiple(swap_world_op, tuple(ct), back)
        return (sum(terms[1:], terms[0]),)


class SwapWorld(WorldOperation):
    """Give operand j to member j; results are what each member gives to this process."""

    multiple = True

    def infer(self, *types: Any, **params: Any) -> tuple[TensorType, ...]:
        return tuple(TensorType(shape, types[0].dtype) for shape in params["shapes"])

    def eval(self, *pieces: Array, members: Members, shapes: tuple[Shape, ...]) -> Any:
        return tuple(world().all_to_all(pieces, members))

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        shapes = tuple(x.shape for x in primals)
        return call_multiple(self, tuple(ct), {"members": params["members"], "shapes": shapes})


class SendWorld(WorldOperation):
    """Send a tensor to rank `target` and receive one like it from `source` (zeros if None)."""

    def eval(self, x: Array, *, source: int | None, target: int | None) -> Array:
        sends = [] if target is None else [(target, x)]
        receives = [] if source is None else [(source, x.shape, x.dtype)]
        found = world().exchange(sends, receives)
        return found[0] if found else np.zeros_like(x)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        back = {"source": params["target"], "target": params["source"]}
        return (call(self, (ct,), back),)


def _cut(shape: Shape, axis: int, members: Members, rank: int | None = None) -> Shape:
    """The shape of one member's part along an axis."""
    number = members.index(world().rank if rank is None else rank)
    start, end = extent(shape[axis], [(len(members), number)])
    return (*shape[:axis], end - start, *shape[axis + 1 :])


reduce_world_op, scatter_world_op = ReduceWorld(), ScatterWorld()
gather_world_op, swap_world_op, send_world_op = GatherWorld(), SwapWorld(), SendWorld()


def carry_out(
    step: Step, pieces: Pieces, shape_at: ShapeAt | None, locally: Callable[[Step, Pieces], Pieces]
) -> Pieces:
    """One step whose devices belong to several processes.

    `shape_at` gives the shapes of pieces elsewhere (all are alike if None); `locally` is the same
    step within a process.
    """
    mesh, axis = pieces.mesh, step.axis
    if any(len(held) > 1 for held in _owners(mesh, axis, local_places(mesh)[0]).values()):
        return locally(step, _gathered(pieces, axis, shape_at))
    left = [a for a in pieces.axes if step.kind not in ("all_reduce", "all_gather") or a != axis]

    def make(at: dict[str, int]) -> Tensor:
        place, here = _place(mesh, at)
        mine = pieces.at(here)
        members = tuple(_owners(mesh, axis, place))
        if step.kind == "all_reduce":
            return call(reduce_world_op, (mine,), {"kind": step.reduction, "members": members})
        if step.kind == "reduce_scatter":
            cut = {"kind": step.reduction, "axis": step.target, "members": members}
            return call(scatter_world_op, (mine,), cut)
        others = [{**here, axis: i} for i in range(mesh.axis_size(axis))]
        shapes = tuple(mine.shape if shape_at is None else shape_at(each) for each in others)
        if step.kind == "all_gather":
            params = {"members": members, "shapes": shapes}
            return _joined(call_multiple(gather_world_op, (mine,), params), step.source)
        return _swapped(step, mine, members, shapes)

    return Pieces.build(mesh, left, make)


def _swapped(step: Step, mine: Tensor, members: Members, shapes: tuple[Shape, ...]) -> Tensor:
    assert step.target is not None
    count, axis = len(members), step.target
    ends = [extent(mine.shape[axis], [(count, j)]) for j in range(count)]
    parts = tuple(FUNCTIONS["narrow"](mine, axis, start, end - start) for start, end in ends)
    arriving = tuple(_cut(shape, axis, members) for shape in shapes)
    found = call_multiple(swap_world_op, parts, {"members": members, "shapes": arriving})
    return _joined(found, step.source)


def permuted(pieces: Pieces, axis: str, pairs: tuple[tuple[int, int], ...]) -> Pieces:
    """Pieces sent between devices of several processes."""
    mesh = pieces.mesh
    targets, sources = dict(pairs), {target: source for source, target in pairs}
    if any(len(held) > 1 for held in _owners(mesh, axis, local_places(mesh)[0]).values()):
        full = _gathered(pieces, axis, None)

        def pick(at: dict[str, int]) -> Tensor:
            if at[axis] in sources:
                found: Tensor = full.at({**at, axis: sources[at[axis]]})
                return found
            zeros: Tensor = FUNCTIONS["zeros_like"](pieces.at(at))
            return zeros

        return Pieces.build(mesh, pieces.axes, pick)

    def make(at: dict[str, int]) -> Tensor:
        place, here = _place(mesh, at)
        ranks = tuple(_owners(mesh, axis, place))
        source, target = sources.get(here[axis]), targets.get(here[axis])
        params = {
            "source": None if source is None else ranks[source],
            "target": None if target is None else ranks[target],
        }
        return call(send_world_op, (pieces.at(here),), params)

    return Pieces.build(mesh, pieces.axes, make)


def _gathered(pieces: Pieces, axis: str, shape_at: ShapeAt | None) -> Pieces:
    """The pieces with those of other processes along an axis, where processes have several."""
    mesh = pieces.mesh
    parts = dict(pieces.parts)
    at_axis = pieces.axes.index(axis)
    for key in sorted({(*k[:at_axis], 0, *k[at_axis + 1 :]) for k in pieces.parts}):
        at = dict(zip(pieces.axes, key, strict=True))
        del at[axis]
        place, here = _place(mesh, at)
        owned = _owners(mesh, axis, place)
        members = tuple(owned)
        for turn in range(max(map(len, owned.values()))):
            mine = owned[world().rank][turn]
            spots = [{**here, axis: held[turn]} for held in owned.values()]
            piece = pieces.at({**here, axis: mine})
            shapes = tuple(piece.shape if shape_at is None else shape_at(spot) for spot in spots)
            params = {"members": members, "shapes": shapes}
            found = call_multiple(gather_world_op, (piece,), params)
            for spot, each in zip(spots, found, strict=True):
                parts[tuple(spot[a] for a in pieces.axes)] = each
    return Pieces(mesh, pieces.axes, parts)


def _place(mesh: DeviceMesh, at: Mapping[str, int]) -> tuple[int, dict[str, int]]:
    """This process's first device at these coordinates, and all its coordinates."""
    for place in local_places(mesh):
        here = mesh.coordinates(place)
        if all(here[axis] == i for axis, i in at.items()):
            return place, here
    raise AssertionError("no device of this process is there")


def _owners(mesh: DeviceMesh, axis: str, place: int) -> dict[int, list[int]]:
    """The ranks along an axis through a device, in order, and the coordinates each has there."""
    at = mesh.coordinates(place)
    stride = 1
    for name, size in zip(reversed(mesh.axis_names), reversed(mesh.shape), strict=True):
        if name == axis:
            break
        stride *= size
    found: dict[int, list[int]] = {}
    for i in range(mesh.axis_size(axis)):
        found.setdefault(owner_of(mesh, place + (i - at[axis]) * stride), []).append(i)
    return found


def _joined(parts: tuple[Tensor, ...], axis: int | None) -> Tensor:
    joined: Tensor = FUNCTIONS["concat"](parts, axis=axis)
    return joined


def _this_process() -> tuple[int, int]:
    here = world()
    return here.rank, here.size


install_world(_this_process)
