"""Steps of a reshard between processes, through the communicator.

Each process performs the same ops in the same order, on its own pieces. They are effects: in eager
code they happen at the call, in compiled code in program order, and never because (or just when)
somebody reads a value. Folds go in the order of the devices, as within a process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from weft.core.common.factors import Factors
from weft.core.common.slots import FUNCTIONS, OPS
from weft.core.common.spec import DeviceMesh, extent
from weft.core.common.types import Array, Shape, TensorType
from weft.core.sharding.pieces import Pieces, install_world, local_places, owner_of
from weft.core.sharding.steps import Step
from weft.core.tensor.tensor import Tensor
from weft.ops.base import Linear, Operation, Tangents, call, call_multiple
from weft.runtime.communicator import world

Members: TypeAlias = tuple[int, ...]
Letters: TypeAlias = tuple[tuple[int, int], ...]  # (number of a piece, rank)
Shapes: TypeAlias = tuple[Shape, ...]
Out: TypeAlias = Sequence[Array | None]  # memory of results; None where they are new
ShapeAt: TypeAlias = Callable[[Mapping[str, int]], Shape]

_NEW: Out = (None,)
_KINDS = {"all": "min", "any": "max"}
_FOLDS = {  # the op that combines two terms of a reduction
    "sum": "add",
    "max": "maximum",
    "min": "minimum",
    "prod": "multiply",
    "all": "bitwise_and",
    "any": "bitwise_or",
}


def fold_op(kind: str) -> Any:
    """The op that combines two terms of a reduction."""
    return OPS[_FOLDS[kind]]


class WorldOperation(Operation):
    """Takes part in a collective of several processes; `members` are their ranks, in order.

    `eval` takes the memory of its results as `out=`.
    """

    pure = False
    again = True
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


def several(types: Sequence[TensorType], rank: int) -> Factors:
    """Index notation of operands that share batches, and nothing of their last `rank` axes."""
    terms = [" ".join(["...", *(f"p{i}k{k}" for k in range(rank))]) for i in range(len(types))]
    return Factors.parse(f"{', '.join(terms)} -> ...", [kind.rank for kind in types])


class SumWorld(WorldOperation):
    """The sum of all members' tensors, in their order.

    `parts` are the shapes of what was joined into one, on which members must agree.
    """

    def eval(self, x: Array, *, members: Members, parts: Shapes = (), out: Out = _NEW) -> Array:
        kind = TensorType(x.shape, x.dtype)
        return world().reducer(kind, "sum", members, parts).run(x, out[0])

    def prepared(self, types: Any, params: dict[str, Any]) -> Any:
        reduce = self.native(types, params)
        return lambda x, out: reduce.run(x, out[0])

    def native(self, types: Any, params: dict[str, Any]) -> Any:
        return world().reducer(types[0], "sum", **params)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return (call(self, (ct,), params),)


class ShareWorld(WorldOperation):
    """The tensors of all members: those of the first operand, then those of the second one, …

    `position` is this process's among the members. Compiled code reads them where they lie.
    """

    multiple = True
    reasons = {
        **WorldOperation.reasons,
        **dict.fromkeys(("vjp", "jvp"), "the compiler makes it, after derivatives"),
    }

    def index(self, *types: Any, **params: Any) -> Factors:
        return several(types, 0)

    def infer(self, *types: Any, **params: Any) -> tuple[TensorType, ...]:
        return tuple(each for each in types for _ in params["members"])

    def eval(self, *xs: Array, members: Members, position: int, out: Out = _NEW) -> Any:
        count = len(members)
        found = [each for x in xs for each in world().all_gather(x, members, (x.shape,) * count)]
        return _put(out, found)


class FoldWorld(WorldOperation):
    """The ordered fold of all members' tensors by another operation than the sum."""

    linear = Linear.NO

    def eval(self, x: Array, *, kind: str, members: Members, out: Out = _NEW) -> Array:
        return world().all_reduce(x, _KINDS.get(kind, kind), members, out[0])

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        op, terms = fold_op(params["kind"]), _everyones(primals[0], params["members"])
        moves = _everyones(tangents[0], params["members"])
        value, moved = terms[0], moves[0]
        for term, move in zip(terms[1:], moves[1:], strict=True):
            found = call(op, (value, term), {})
            moved = op.jvp((value, term), (moved, move), found)
            value = found
        return moved

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        members = params["members"]
        op, terms = fold_op(params["kind"]), _everyones(primals[0], members)
        values = [terms[0]]
        for term in terms[1:]:
            values.append(call(op, (values[-1], term), {}))
        left, mine = call(sum_world_op, (ct,), {"members": members}), members.index(world().rank)
        for k in range(len(members) - 1, 0, -1):
            left, right = op.vjp((values[k - 1], terms[k]), values[k], left)
            if k == mine:
                return (right,)
        return (left,)


class ScatterWorld(WorldOperation):
    """This process's part along `axis` (from the end) of the sum of all members' tensors."""

    def infer(self, *types: Any, **params: Any) -> TensorType:
        (x,), members = types, params["members"]
        return TensorType(_cut(x.shape, params["axis"], members), x.dtype)

    def eval(self, x: Array, *, axis: int, members: Members, out: Out = _NEW) -> Array:
        return world().reduce_scatter(x, "sum", axis + x.ndim, members, out[0])

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        members, axis, (x,) = params["members"], params["axis"], primals
        shapes = tuple(_cut(x.shape, axis, members, rank) for rank in members)
        parts = call_multiple(gather_world_op, (ct,), {"members": members, "shapes": shapes})
        return (FUNCTIONS["concat"](parts, axis=axis),)


class GatherWorld(WorldOperation):
    """The tensors of all members, which have these `shapes`."""

    multiple = True

    def infer(self, *types: Any, **params: Any) -> tuple[TensorType, ...]:
        return _arriving(types[0], params["shapes"])

    def eval(self, x: Array, *, members: Members, shapes: Shapes, out: Out = _NEW) -> Any:
        return _put(out, world().all_gather(x, members, _arriving_shapes(x, shapes)))

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        members = params["members"]
        shape = params["shapes"][members.index(world().rank)]
        back = {"members": members, "shapes": (shape,) * len(members)}
        terms = call_multiple(swap_world_op, tuple(ct), back)
        return (sum(terms[1:], terms[0]),)


class SwapWorld(WorldOperation):
    """Give operand j to member j; results are what each member gives to this process."""

    multiple = True

    def index(self, *types: Any, **params: Any) -> Factors:
        return several(types, len(params["shapes"][0]))

    def infer(self, *types: Any, **params: Any) -> tuple[TensorType, ...]:
        return _arriving(types[0], params["shapes"])

    def eval(self, *pieces: Array, members: Members, shapes: Shapes, out: Out = _NEW) -> Any:
        return _put(out, world().all_to_all(pieces, members, _arriving_shapes(pieces[0], shapes)))

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        shapes = tuple(x.shape for x in primals)
        return call_multiple(self, tuple(ct), {"members": params["members"], "shapes": shapes})


class SendWorld(WorldOperation):
    """Send operand k to rank r for each (k, r) of `sends`, receive likewise; the rest is zeros."""

    multiple = True

    def index(self, *types: Any, **params: Any) -> Factors:
        return several(types, 0)

    def infer(self, *types: Any, **params: Any) -> tuple[TensorType, ...]:
        return types

    def eval(
        self, *pieces: Array, sends: Letters, receives: Letters, out: Out = _NEW
    ) -> tuple[Array, ...]:
        given = [(rank, pieces[k]) for k, rank in sends]
        wanted = [(rank, pieces[k].shape, pieces[k].dtype) for k, rank in receives]
        arrived = world().exchange(given, wanted)
        found = dict(zip([k for k, _ in receives], arrived, strict=True))
        made = [found[k] if k in found else np.zeros_like(x) for k, x in enumerate(pieces)]
        return _put(out, made)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        back = {"sends": params["receives"], "receives": params["sends"]}
        return call_multiple(self, tuple(ct), back)


def _put(out: Out, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """The arrays, in the memory that is given if there is any."""
    if out is not _NEW:
        for target, array in zip(out, arrays, strict=True):
            assert target is not None and target.shape == array.shape
            target[...] = array
    return tuple(arrays)


def _arriving(held: TensorType, shapes: Shapes) -> tuple[TensorType, ...]:
    """The types of tensors like this one from other processes."""
    return tuple(TensorType(shape, held.dtype) for shape in _arriving_shapes(held, shapes))


def _arriving_shapes(held: Array | TensorType, shapes: Shapes) -> Shapes:
    """The shapes of tensors like this one from other processes; batches lead there too."""
    lead = held.shape[: len(held.shape) - len(shapes[0])]
    return tuple((*lead, *shape) for shape in shapes)


def _everyones(x: Tensor, members: Members) -> tuple[Tensor, ...]:
    """The tensors of all members, which are alike."""
    shapes = (x.shape,) * len(members)
    return call_multiple(gather_world_op, (x,), {"members": members, "shapes": shapes})


def _cut(shape: Shape, axis: int, members: Members, rank: int | None = None) -> Shape:
    """The shape of one member's part along an axis."""
    axis %= len(shape)
    number = members.index(world().rank if rank is None else rank)
    start, end = extent(shape[axis], [(len(members), number)])
    return (*shape[:axis], end - start, *shape[axis + 1 :])


sum_world_op, fold_world_op, scatter_world_op = SumWorld(), FoldWorld(), ScatterWorld()
share_world_op = ShareWorld()
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
            return _folded(mine, step.reduction, members)
        if step.kind == "reduce_scatter":
            return _scattered(step, mine, members)
        others = [{**here, axis: i} for i in range(mesh.axis_size(axis))]
        shapes = tuple(mine.shape if shape_at is None else shape_at(each) for each in others)
        if step.kind == "all_gather":
            params = {"members": members, "shapes": shapes}
            return _joined(call_multiple(gather_world_op, (mine,), params), step.source)
        return _swapped(step, mine, members, shapes)

    return Pieces.build(mesh, left, make)


def _folded(mine: Tensor, kind: str, members: Members) -> Tensor:
    if kind == "sum":
        return call(sum_world_op, (mine,), {"members": members})
    return call(fold_world_op, (mine,), {"kind": kind, "members": members})


def _scattered(step: Step, mine: Tensor, members: Members) -> Tensor:
    assert step.target is not None
    if step.reduction == "sum":
        cut = {"axis": step.target - mine.ndim, "members": members}
        return call(scatter_world_op, (mine,), cut)
    full, count = _folded(mine, step.reduction, members), len(members)
    start, end = extent(mine.shape[step.target], [(count, members.index(world().rank))])
    part: Tensor = FUNCTIONS["narrow"](full, step.target, start, end - start)
    return part


def _swapped(step: Step, mine: Tensor, members: Members, shapes: tuple[Shape, ...]) -> Tensor:
    assert step.target is not None
    count, axis = len(members), step.target
    ends = [extent(mine.shape[axis], [(count, j)]) for j in range(count)]
    parts = tuple(FUNCTIONS["narrow"](mine, axis, start, end - start) for start, end in ends)
    arriving = tuple(_cut(shape, axis, members) for shape in shapes)
    found = call_multiple(swap_world_op, parts, {"members": members, "shapes": arriving})
    return _joined(found, step.source)


def permuted(pieces: Pieces, axis: str, pairs: tuple[tuple[int, int], ...]) -> Pieces:
    """Pieces sent between devices of several processes: all that two of them share at once."""
    mesh = pieces.mesh
    at_axis = pieces.axes.index(axis)
    parts: dict[Any, Tensor] = {}
    for key in sorted({(*k[:at_axis], *k[at_axis + 1 :]) for k in pieces.parts}):
        rest = dict(zip(pieces.axes[:at_axis] + pieces.axes[at_axis + 1 :], key, strict=True))
        place, here = _place(mesh, rest)
        owned = _owners(mesh, axis, place)
        rank_at = {i: rank for rank, held in owned.items() for i in held}
        mine = owned[world().rank]
        params = {
            "sends": tuple((mine.index(i), rank_at[j]) for i, j in pairs if i in mine),
            "receives": tuple((mine.index(j), rank_at[i]) for i, j in pairs if j in mine),
        }
        held = [{**here, axis: i} for i in mine]
        found = call_multiple(send_world_op, tuple(map(pieces.at, held)), params)
        for spot, each in zip(held, found, strict=True):
            parts[tuple(spot[a] for a in pieces.axes)] = each
    return Pieces(mesh, pieces.axes, parts)


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
