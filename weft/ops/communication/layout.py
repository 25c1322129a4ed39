"""Ops that change how a tensor lies over a mesh and never what it is: shard, reshard, all_gather…

Each says which layout it wants of the layout it finds; the steps in between are chosen by cost.
Parameters describe trailing axes: leading ones (batches) keep their layout.
"""

from __future__ import annotations

from typing import Any

from weft.core.common.device import Device
from weft.core.common.parameters import shown
from weft.core.common.slots import public
from weft.core.common.spec import DeviceMesh, P, ShardingSpec
from weft.core.common.types import TensorType
from weft.core.sharding.dual import Dual
from weft.core.sharding.pieces import Pieces, Shards, home_of
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, BackendError, DeviceError, DTypeError, ShardingError
from weft.ops.base import Tangents, call
from weft.ops.communication.mesh import MESH, homed, whole_tensor
from weft.ops.communication.transfer import reshard as moved
from weft.ops.families import CollectiveOperation
from weft.ops.placement import to_device
from weft.runtime.registry import client


class Layout(CollectiveOperation):
    """An op that is the identity on values; `target` gives the new layout for the old one."""

    home = MESH

    def target(self, held: ShardingSpec, /, **params: Any) -> ShardingSpec:
        """The layout wanted of a tensor that is laid out as `held`."""
        raise self.missing("target")

    def communicate(self, x: Any, **params: Any) -> Any:
        named = params.get("axes") or ()
        if not isinstance(x, Shards):
            if named:
                raise ShardingError(
                    f"{self}: a tensor {x.type} that is on no mesh has no mesh axis"
                    f" {shown(named[0])}\nhint: wf.shard(x, mesh, spec) puts it on one"
                )
            return x
        unknown = [a for a in named if a not in x.mesh.axis_names]
        if unknown:
            raise ShardingError(
                f"{self}: {shown(unknown[0])} is no axis of mesh {x.mesh}, over which a tensor"
                f" {x.type} is laid out as {x.spec}\nhint: there are {', '.join(x.mesh.axis_names)}"
            )
        return moved(x, self.target(x.spec, **params), self.name)

    def layout_of(self, *specs: Any, **params: Any) -> ShardingSpec | None:
        return None if specs[0] is None else self.target(specs[0], **params)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return (call(reshard_like_op, (ct, primals[0]), {}),)


class Reshard(Layout):
    """Lay the last axes of a tensor out as `spec` says, with no reduction left pending."""

    def target(self, held: ShardingSpec, /, **params: Any) -> ShardingSpec:
        wanted: ShardingSpec = params["spec"]
        lead = len(held.axes) - len(wanted.axes)
        taken = {a for axes in wanted.axes for a in axes} | set(wanted.replicated)
        kept = tuple(tuple(a for a in axes if a not in taken) for axes in held.axes[:lead])
        free = tuple(axis + lead for axis in wanted.open)
        return ShardingSpec(
            wanted.mesh, (*kept, *wanted.axes), (), wanted.replicated, free, wanted.priority
        )

    def layout_of(self, *specs: Any, **params: Any) -> ShardingSpec | None:
        wanted: ShardingSpec = params["spec"]
        held = specs[0]
        if held is None or held.mesh != wanted.mesh:
            return wanted if held is None else None
        return self.target(held, **params)

    def communicate(self, x: Any, **params: Any) -> Any:
        return self.moved_on(params["spec"].mesh, x, **params)

    def moved_on(self, mesh: DeviceMesh, x: Any, /, **params: Any) -> Any:
        """Lay shards of this or another mesh, or a tensor of one device, out as wanted."""
        if isinstance(x, Shards) and x.mesh != mesh:
            x = whole_tensor(x)
        if isinstance(x, Tensor):
            gone = x.device.kind != "cpu" and not mesh.is_apart
            x = to_device(x, mesh.devices[0]) if gone else x
            x = Shards(x.type, ShardingSpec.whole(x.ndim, mesh), Pieces.everywhere(mesh, x))
        return homed(moved(x, self.target(x.spec, **params), self.name))

    def places(self, **params: Any) -> tuple[Device, ...] | None:
        device = params.get("device")
        return first_home(params["spec"].mesh) if device is None else (device,)


class Spread(Reshard):
    """Let mesh axes split tensor axis `-rank`; the other axes keep their layout, whatever it is."""

    def target(self, held: ShardingSpec, /, **params: Any) -> ShardingSpec:
        names, at = params["axes"], len(held.axes) - params["rank"]
        kept = [tuple(a for a in axes if a not in names) for axes in held.axes]
        return ShardingSpec(held.mesh, (*kept[:at], names, *kept[at + 1 :]))

    def layout_of(self, *specs: Any, **params: Any) -> ShardingSpec | None:
        mesh, held = params["mesh"], specs[0]
        if held is None:
            held = ShardingSpec.whole(params["rank"], mesh)
        return self.target(held, **params) if held.mesh == mesh else None

    def communicate(self, x: Any, **params: Any) -> Any:
        return self.moved_on(params["mesh"], x, **params)

    def places(self, **params: Any) -> tuple[Device, ...] | None:
        return first_home(params["mesh"])


class ReshardLike(CollectiveOperation):
    """Lay a tensor out as another is, where that one lies on a mesh: for cotangents."""

    home = MESH
    factors = "..., ... -> ..."
    constants = (1,)
    follows = 1

    def infer(self, *types: Any, **params: Any) -> TensorType:
        found: TensorType = types[0]
        return found

    def layout_of(self, *specs: Any, **params: Any) -> ShardingSpec | None:
        found: ShardingSpec | None = specs[0] if specs[1] is None else specs[1].settled
        return found

    def communicate(self, x: Any, like: Any) -> Any:
        if not isinstance(like, Shards):
            found = whole_tensor(x) if isinstance(x, Shards) and _fits(x) else x
            apart = isinstance(x, Shards) and x.mesh.is_apart
            return to_device(found, like.device) if apart else found
        spec = like.spec.settled
        if isinstance(x, Shards) and x.mesh == spec.mesh and len(x.spec.axes) == len(spec.axes):
            return moved(x, spec, self.name)
        return call_reshard(x, spec)

    def batch(self, size: int, args: Any, hidden: Any, /) -> Any:
        return (call(self, args, {}),), (hidden[0],)  # a batch of layouts is one layout

    def vjp(self, primals: Any, out: Any, ct: Any) -> Tangents:
        return call(self, (ct, primals[0]), {}), None


def _fits(shards: Shards) -> bool:
    """Whether this process can hold the tensor as one that is not on a mesh."""
    return len(shards.pieces.parts) == shards.mesh.parts(shards.pieces.axes)


def first_home(mesh: DeviceMesh) -> tuple[Device, ...] | None:
    """The device that stands for a mesh whose devices have memory of their own."""
    return (home_of(mesh, (), ()),) if mesh.is_apart else None


def call_reshard(x: Any, spec: ShardingSpec) -> Any:
    """`Reshard` on shards or a tensor."""
    rank = len(x.type.shape)
    fitting = ShardingSpec(spec.mesh, spec.axes[max(0, len(spec.axes) - rank) :])
    return reshard_op.communicate(x, spec=fitting)


reshard_op, spread_op, reshard_like_op = Reshard(), Spread(), ReshardLike()


@public
def shard(
    x: Any, mesh: DeviceMesh, spec: Any = None, *, replicated: Any = (), priority: int = 0
) -> Tensor:
    """Lay a tensor out over a mesh: `shard(x, mesh, P("data", None))`.

    `replicated=` names mesh axes that must not split it later either, `priority=` says whose layout
    wins where operands disagree (0 first). An entry with `"?"` may be split further by automatic
    sharding.

    >>> mesh = DeviceMesh("line", (2,), ("x",))
    >>> y = shard(to_tensor([[1, 2], [3, 4]]), mesh, P("x"))
    >>> y.shape, str(y.sharding), y.tolist()
    ((2, 2), '[x, ·]', [[1, 2], [3, 4]])
    """
    wishes = {"replicated": replicated, "priority": priority}
    return _laid_out("shard", to_tensor(x, op="shard"), mesh, spec, **wishes)


def _laid_out(op: str, tensor: Tensor, mesh: Any, spec: Any, **wishes: Any) -> Tensor:
    if not isinstance(mesh, DeviceMesh):
        raise ShardingError(
            f"{op}: expected a DeviceMesh, got {shown(mesh)}"
            '\nhint: wf.DeviceMesh("mesh", (2, 4), ("data", "model"))'
        )
    params: dict[str, Any] = {"spec": spec_of(op, mesh, spec, tensor, **wishes)}
    if tensor.device.kind != "cpu" and not mesh.is_apart:
        params["device"] = mesh.devices[0]  # of the processor, to which it comes back
    return call(reshard_op, (tensor,), params)


def spec_of(op: str, mesh: DeviceMesh, spec: Any, tensor: Tensor, **wishes: Any) -> ShardingSpec:
    """A user's partition as a spec for this tensor."""
    _check_devices(op, mesh)
    if isinstance(spec, ShardingSpec):
        if spec.mesh != mesh or len(spec.axes) != tensor.ndim:
            raise ShardingError(
                f"{op}: {spec} on {spec.mesh} is no layout on {mesh} for shape {tensor.shape}"
            )
        return spec.settled
    if spec is None:
        spec = P()
    try:
        return ShardingSpec.of(mesh, spec, tensor.ndim, **wishes)
    except (ShardingError, ArgumentError, DTypeError) as error:
        raise ShardingError(f"{op}: shape {tensor.shape} on mesh {mesh}: {error}") from None


def _check_devices(op: str, mesh: DeviceMesh) -> None:
    """Raise where a mesh has a device that is not there."""
    for device in mesh.devices if mesh.is_apart else ():
        try:
            client(device)
        except (BackendError, DeviceError) as error:
            why = str(error).partition("\n")[0]
            raise DeviceError(
                f"{op}: mesh {mesh} has the device {device}, which is not there ({why})"
                "\nhint: wf.plan predicts what devices do that are elsewhere"
            ) from None


@public
def reshard(x: Any, spec: Any = None, *, replicated: Any = (), priority: int = 0) -> Tensor:
    """Lay a sharded tensor out differently on its own mesh: `reshard(x, P(None, "model"))`."""
    tensor = to_tensor(x, op="reshard")
    if isinstance(spec, ShardingSpec) and spec.mesh is not None:
        return _laid_out("reshard", tensor, spec.mesh, spec)
    mesh = _mesh("reshard", tensor)
    return _laid_out("reshard", tensor, mesh, spec, replicated=replicated, priority=priority)


def _mesh(op: str, tensor: Tensor) -> DeviceMesh:
    mesh = tensor.sharding.mesh
    if mesh is None:
        raise ShardingError(
            f"{op}: the tensor is on no mesh\nhint: wf.shard(x, mesh, spec) puts it on one"
        )
    return mesh


@public
def dual_of(x: Tensor) -> Dual:
    """The physical side of a tensor outside every transform."""
    while x._impl.owner is not None and x._impl.owner is not MESH:
        x = x._impl.owner.read(x._impl.payload)
    held = x._impl.payload.pieces if x._impl.owner is MESH else None
    return Dual(x, x.sharding, held)


@public
def laid_out_like(x: Tensor, like: Tensor) -> Tensor:
    """`x` in the layout of a tensor that it takes the place of, if that one lies on a mesh."""
    return x if like.sharding.mesh is None else call(reshard_like_op, (x, like), {})


@public
def spread_over(x: Tensor, mesh_axes: Any, mesh: DeviceMesh) -> Tensor:
    """`x` with its leading axis split by some mesh axes; the others keep their layout."""
    names = (mesh_axes,) if isinstance(mesh_axes, str) else tuple(mesh_axes)
    return call(spread_op, (x,), {"mesh": mesh, "axes": names, "rank": x.ndim})


@public
def with_sharding_constraint(x: Any, spec: Any, mesh: DeviceMesh | None = None) -> Tensor:
    """Fix the layout of a value inside a function; automatic sharding never changes it."""
    tensor = to_tensor(x, op="with_sharding_constraint")
    if mesh is None and isinstance(spec, ShardingSpec):
        mesh = spec.mesh
    found = _mesh("with_sharding_constraint", tensor) if mesh is None else mesh
    return _laid_out("with_sharding_constraint", tensor, found, spec)


__all__ = ["reshard", "shard", "with_sharding_constraint"]
