"""`all_reduce`, `all_gather`, `ppermute`…: one name each, on whole tensors and on pieces.

On a sharded tensor they change its layout: what is pending is settled, what is split is gathered,
and the value stays what it is. In a function that sees one piece at a time (`shard_map` with
`manual=True`, or `vmap` with an `axis_name`) they combine the pieces of all devices.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from weft.core.common import dtypes
from weft.core.common.handler import current
from weft.core.common.parameters import as_choice, as_integer, shown
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.source import user_position
from weft.core.common.spec import DeviceMesh, ShardingSpec
from weft.core.sharding.cost import Fabric
from weft.core.sharding.log import Communication, enter, is_logging
from weft.core.sharding.pieces import Shards
from weft.core.sharding.steps import layout_of, without
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import DTypeError, ShapeError, ShardingError
from weft.ops.axes import normalize_axis
from weft.ops.base import Tangents, call
from weft.ops.communication import mapped, named
from weft.ops.communication.layout import Layout, reshard_like_op
from weft.ops.communication.transfer import permuted
from weft.ops.families import cast
from weft.ops.indexing import getitem
from weft.ops.named_axis import gather_axis, is_mapped, named_axis_size, names_of, reduced_over


class AllReduce(Layout):
    """Settle reductions that are pending over `axes` (all of them if None)."""

    def target(self, held: ShardingSpec, /, **params: Any) -> ShardingSpec:
        axes = params["axes"]
        left = () if axes is None else tuple(p for p in held.pending if p[0] not in axes)
        return ShardingSpec(held.mesh, held.axes, left)


class AllGather(Layout):
    """Give every device along `axes` (all mesh axes if None) what the others hold."""

    def target(self, held: ShardingSpec, /, **params: Any) -> ShardingSpec:
        assert held.mesh is not None
        axes = params["axes"]
        return without(held.plain, *(held.mesh.axis_names if axes is None else axes))


class ReduceScatter(Layout):
    """Settle what is pending over a mesh axis, each device keeping its part along `axis`."""

    def target(self, held: ShardingSpec, /, **params: Any) -> ShardingSpec:
        spec = held.plain
        for mesh_axis in params["axes"]:
            spec = _with_axis(without(spec, mesh_axis), params["axis"], mesh_axis)
        return spec


class AllToAll(Layout):
    """Let mesh axes split tensor axis `axis` instead of the ones they split now."""

    target = ReduceScatter.target


class PPermute(Layout):
    """Send the pieces of a tensor from device to device along a mesh axis that splits it."""

    def target(self, held: ShardingSpec, /, **params: Any) -> ShardingSpec:
        return held

    def communicate(self, x: Any, **params: Any) -> Any:
        (axis,) = params["axes"]
        if not isinstance(x, Shards) or all(axis not in entry for entry in x.spec.axes):
            held = x.spec if isinstance(x, Shards) else "on no mesh"
            raise ShardingError(
                f"ppermute: a tensor {x.type} that is {held} is not split over {axis!r}"
                f"\nhint: x.shard(mesh, P({axis!r}, …)) splits it"
            )
        if any(size % x.spec.parts(k) for k, size in enumerate(x.type.shape)):
            raise ShardingError(
                f"ppermute: shape {x.type.shape} laid out as {x.spec} has pieces of several sizes"
            )
        if is_logging():
            layout, size = layout_of(x.spec), x.type.dtype.itemsize
            sent = int(Fabric.of(x.mesh).local_bytes(layout, x.type.shape, size))
            where = user_position(2)
            enter(Communication("ppermute", x.mesh, (axis,), x.type.shape, sent, "", where))
        return Shards(x.type, x.spec, permuted(x.pieces, axis, params["pairs"]))

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        back = tuple((target, source) for source, target in params["pairs"])
        laid = call(reshard_like_op, (ct, primals[0]), {})
        return (call(self, (laid,), {**params, "pairs": back}),)


def _with_axis(spec: ShardingSpec, axis: int, mesh_axis: str) -> ShardingSpec:
    assert spec.mesh is not None
    spec.mesh.axis_size(mesh_axis)
    at = len(spec.axes) + axis
    axes = (*spec.axes[:at], (*spec.axes[at], mesh_axis), *spec.axes[at + 1 :])
    return ShardingSpec(spec.mesh, axes, spec.pending)


all_reduce_op, all_gather_op, ppermute_op = AllReduce(), AllGather(), PPermute()
reduce_scatter_op, all_to_all_op = ReduceScatter(), AllToAll()


def piece_mesh(op: str, axes: Any) -> DeviceMesh | None:
    """The mesh whose pieces a function sees here, if these are axes of it."""
    handler: Any = current()
    while handler is not None:
        mesh = getattr(handler, "piece_mesh", None)
        if mesh is not None:
            names = mesh.axis_names if axes is None else names_of(op, axes)
            for axis in names:
                if axis not in mesh.axis_names:
                    raise ShardingError(
                        f"{op}: {axis!r} is no axis of mesh {mesh}, whose pieces are seen here"
                        f"\nhint: there are {', '.join(mesh.axis_names)}"
                    )
            found: DeviceMesh = mesh
            return found
        handler = handler.outer
    return None


@public
def all_reduce(x: Any, axes: Any = None, op: str = "sum") -> Tensor:
    """Combine what the devices along some mesh axes (or all) hold, the same result on each.

    On a sharded tensor this settles the reductions that are still pending in it. In a body that
    sees one piece at a time `op` is `sum`, `mean`, `max`, `min` or `prod`.
    """
    as_choice("all_reduce", "op", op, ("sum", "mean", "max", "min", "prod"))
    tensor = to_tensor(x, op="all_reduce")
    names = None if axes is None else names_of("all_reduce", axes)
    if names is not None and any(map(is_mapped, names)):
        reduced: Tensor = reduced_over("all_reduce", tensor, names, op, FUNCTIONS[op])
        return reduced
    mesh = piece_mesh("all_reduce", axes)
    if mesh is None:
        if op != "sum":
            raise ShardingError(
                f"all_reduce: op: {op!r} has no meaning outside a body that sees one piece: what is"
                " pending in a sharded tensor is settled as it was begun"
                "\nhint: reduce the tensor itself, or use shard_map(manual=True)"
            )
        return call(all_reduce_op, (tensor,), {"axes": names})
    over = mesh.ordered(mesh.axis_names if names is None else names)
    if op in ("sum", "mean"):
        total = call(named.sum_over_op, (_widened(tensor),), {"axes": over})
        return total / mesh.parts(over) if op == "mean" else total
    if op == "prod":
        tensor = _widened(tensor)
    elif dtypes.is_complex(tensor.dtype):
        raise DTypeError(f"all_reduce: {op}: complex numbers have no order")
    return call(named.reduce_over_op, (tensor,), {"axes": over, "kind": op})


def _widened(x: Tensor) -> Tensor:
    """Small integers and truth values are added and multiplied as `sum` and `prod` do it."""
    return cast(x, dtypes.accumulation_dtype(x.dtype))


@public
def all_gather(x: Any, axes: Any = None, *, axis: int = 0) -> Tensor:
    """Give every device along some mesh axes (or all) what the others hold.

    In a body that sees one piece at a time the pieces are joined along `axis`.
    """
    tensor = to_tensor(x, op="all_gather")
    names = None if axes is None else names_of("all_gather", axes)
    if names is not None and any(map(is_mapped, names)):
        place = _behind("all_gather", axis, tensor)
        for name in reversed(names):
            gathered = partial(mapped.joined, "all_gather") if is_mapped(name) else all_gather
            tensor = gathered(tensor, name, axis=place)
        return tensor
    mesh = piece_mesh("all_gather", names)
    if mesh is None:
        return call(all_gather_op, (tensor,), {"axes": names})
    over = mesh.axis_names if names is None else names
    place = _behind("all_gather", axis, tensor)
    params = {"axes": tuple(over), "axis": place, "count": mesh.parts(tuple(over))}
    return call(named.join_over_op, (tensor,), params)


@public
def reduce_scatter(x: Any, axes: Any, *, axis: int = 0) -> Tensor:
    """Sum over mesh axes, each device keeping its part along tensor axis `axis`."""
    names = names_of("reduce_scatter", axes)
    if any(map(is_mapped, names)):
        tensor = to_tensor(x, op="reduce_scatter")
        place = _behind("reduce_scatter", axis, tensor)
        for name in names:
            scattered = _own_sum if is_mapped(name) else reduce_scatter
            tensor = scattered(tensor, name, axis=place)
        return tensor
    return _to_axis(reduce_scatter_op, named.sum_part_over_op, x, names, axis)


def _behind(op: str, axis: Any, x: Tensor) -> int:
    """An axis counted from the end: maps put theirs in front."""
    return normalize_axis(op, axis, x.ndim) - x.ndim


def _own_sum(x: Tensor, name: str, axis: int) -> Tensor:
    _check_parts("reduce_scatter", x, axis, named_axis_size("reduce_scatter", name))
    total = reduced_over("reduce_scatter", x, name, "sum", FUNCTIONS["sum"])
    return mapped.own_part("reduce_scatter", total, name, axis)


@public
def all_to_all(x: Any, axes: Any, *, axis: int = 0, split: int | None = None) -> Tensor:
    """Let mesh axes split another tensor axis than now: `axis`.

    In a body that sees one piece at a time, part j along `split` goes to device j, and what arrives
    is joined along `axis`.
    """
    names = names_of("all_to_all", axes)
    over_slices = any(map(is_mapped, names))
    by_pieces = over_slices or piece_mesh("all_to_all", names) is not None
    if by_pieces and (split is None or len(names) != 1):
        raise ShardingError("all_to_all: pieces need one mesh axis and `split`, the axis cut")
    if over_slices:
        tensor = to_tensor(x, op="all_to_all")
        place, cut = (_behind("all_to_all", a, tensor) for a in (axis, split))
        _check_parts("all_to_all", tensor, cut, named_axis_size("all_to_all", names[0]))
        return mapped.swapped("all_to_all", tensor, names[0], place, cut)
    return _to_axis(all_to_all_op, named.swap_over_op, x, names, axis, split)


def _to_axis(op: Any, by_name: Any, x: Any, axes: Any, axis: int, split: Any = None) -> Tensor:
    tensor = to_tensor(x, op=op.name)
    place = _behind(op.name, axis, tensor)
    names = names_of(op.name, axes)
    mesh = piece_mesh(op.name, names)
    if mesh is None:
        return call(op, (tensor,), {"axes": names, "axis": place})
    if by_name is named.sum_part_over_op:
        tensor = _widened(tensor)
    params: dict[str, Any] = {"axes": names, "axis": place, "count": mesh.parts(names)}
    if split is not None:
        params["split"] = _behind(op.name, split, tensor)
    _check_parts(op.name, tensor, params.get("split", place), params["count"])
    return call(by_name, (tensor,), params)


def _check_parts(op: str, x: Tensor, axis: int, count: int) -> None:
    """Refuse to give devices pieces of different shapes: a function sees one for all of them."""
    if x.shape[axis] % count:
        raise ShapeError(
            f"{op}: axis {x.ndim + axis} of a piece of shape {x.shape} cannot be cut into {count}"
            " equal parts\nhint: pad the axis"
        )


@public
def ppermute(x: Any, axis_name: str, pairs: Any) -> Tensor:
    """Send pieces from device to device along a mesh axis: `pairs` of (from, to).

    A device that nobody sends to has zeros. A sharded tensor must be split over the axis.
    """
    tensor = to_tensor(x, op="ppermute")
    if not isinstance(axis_name, str):
        raise ShardingError(f"ppermute: expected one mesh axis, got {shown(axis_name)}")
    if is_mapped(axis_name):
        return mapped.sent("ppermute", tensor, axis_name, pairs)
    mesh = piece_mesh("ppermute", axis_name)
    if mesh is not None:
        found = named.checked_pairs("ppermute", pairs, mesh.axis_size(axis_name))
        return call(named.permute_over_op, (tensor,), {"axes": (axis_name,), "pairs": found})
    held = tensor.sharding.mesh
    count = 2**24 if held is None else held.axis_size(axis_name)
    found = named.checked_pairs("ppermute", pairs, count)
    return call(ppermute_op, (tensor,), {"axes": (axis_name,), "pairs": found})


@public
def broadcast(x: Any, axis_name: str, root: int = 0) -> Tensor:
    """Give every device along a mesh axis the piece of device number `root`.

    For bodies that see one piece at a time; the whole of a sharded tensor is the same everywhere
    already.
    """
    tensor = to_tensor(x, op="broadcast")
    over_slices = is_mapped(axis_name)
    if not over_slices and piece_mesh("broadcast", axis_name) is None:
        return all_gather(tensor, axis_name)
    count = named_axis_size("broadcast", axis_name)
    number = as_integer("broadcast", "root", root, 0, count - 1)
    if over_slices:
        return getitem(gather_axis("broadcast", tensor, axis_name), number)
    chosen = FUNCTIONS["equal"](FUNCTIONS["axis_index"](axis_name), number)
    zeros = FUNCTIONS["zeros_like"](tensor)
    term = FUNCTIONS["where"](chosen, tensor, zeros)
    return call(named.sum_over_op, (term,), {"axes": (axis_name,)})


__all__ = ["all_gather", "all_reduce", "all_to_all", "broadcast", "ppermute", "reduce_scatter"]
