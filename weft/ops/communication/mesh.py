"""Ops on tensors that lie over a mesh: propagate, reshard, run on each piece, package.

A sharded tensor is owned by one ambient handler at the bottom of the stack, so every transform
works on logical tensors and never sees a mesh. Below, each op becomes ordinary ops on pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

from weft.core.common import dtypes
from weft.core.common.factors import Factors
from weft.core.common.frozen import freeze
from weft.core.common.handler import Handler, current, installed
from weft.core.common.slots import public
from weft.core.common.source import blamed
from weft.core.common.spec import DeviceMesh, MeshAxes, ShardingSpec, extent
from weft.core.common.types import DType, Shape, TensorType
from weft.core.graph.node import OutputRefs
from weft.core.graph.trace import home_of
from weft.core.sharding.pieces import (
    Coordinates,
    Pieces,
    Shards,
    at_home,
    depends_on_owners,
    is_local,
    local_coordinates,
    lost,
)
from weft.core.sharding.propagate import Passing, Propagation, common_mesh, propagate
from weft.core.tensor.impl import TensorImpl, leaked
from weft.core.tensor.tensor import Tensor
from weft.errors import DeviceMismatchError, ShardingError
from weft.ops.base import Linear, Operation, call
from weft.ops.communication.transfer import reshard
from weft.ops.families import CollectiveOperation, LogicalShapeOperation

# How ops with subgraphs run on shards, by class; the modules that know them enter them here.
Rules: TypeAlias = dict[type, Callable[..., tuple[Any, ...]]]
joint_rules: Rules = {}
_plans: dict[Any, Plan] = {}
_PLANS_LIMIT = 16_384
depends_on_owners(_plans.clear)


class Mesh(Handler):
    """Gives ops on sharded tensors their meaning, wherever they are met."""

    ambient = True
    transparent = True
    label = "mesh"

    def __init__(self) -> None:
        self.outer = None

    def handle(self, op: Any, args: tuple[Tensor, ...], params: dict[str, Any]) -> Any:
        for position, x in enumerate(args):
            owner = x._impl.owner
            if owner is not None and owner is not self:
                if owner.ambient:
                    return owner.handle(op, args, params)
                raise leaked(op, position, x._impl)
        made = execute(op, [opened(x) for x in args], params)
        results = tuple(wrapped(each, args[0].device if args else None) for each in made)
        return results if op.multiple else results[0]

    def read(self, payload: Shards) -> Tensor:
        with installed(None):  # no transform watches how a value is put together
            return whole_tensor(payload)

    def is_realized(self, payload: Shards) -> bool:
        return all(piece.is_realized for piece in payload.pieces.parts.values())

    def values(self, payload: Shards) -> tuple[Tensor, ...]:
        return tuple(payload.pieces.parts.values())

    def holds(self, payload: Shards) -> bool:
        """Whether this process has the whole value."""
        return not _missing(payload)

    def part(self, payload: Shards) -> str:
        """What this process has of the value, as text."""
        return ", ".join(map(str, payload.pieces.parts.values()))


MESH = Mesh()


def opened(x: Tensor) -> Shards | Tensor:
    """What a tensor is over its mesh, or the tensor itself when it is on one device."""
    if x._impl.owner is MESH:
        payload: Shards = x._impl.payload
        return payload
    return x


def wrapped(made: Shards | Tensor, device: Any = None) -> Tensor:
    """A logical tensor for shards: global shape, one handle."""
    if isinstance(made, Tensor):
        return made
    first = next(iter(made.pieces.parts.values())).device
    if device is None or made.mesh.is_apart or device.kind != first.kind:
        device = first
    impl = TensorImpl.owned(made.type, device, MESH, made)
    impl.spec = made.spec
    return Tensor(impl)


def whole_tensor(shards: Shards) -> Tensor:
    """The value on one device, put together from pieces that this process holds."""
    spec, mesh = shards.spec, shards.mesh
    missing = _missing(shards)
    if missing:
        raise ShardingError(
            f"read: a tensor {shards.type} laid out as {spec} is spread over other processes"
            f" along {', '.join(missing)}; this one holds a part of it"
            "\nhint: x.reshard(P()) gives every process the whole; x.dual shows the local part"
        )
    # Reading leaves no trace: processes that read other values than this one stay in step.
    alone = Shards(shards.type, spec, shards.pieces)
    done = reshard(alone, ShardingSpec.whole(len(spec.axes), mesh))
    tensor: Tensor = done.pieces.parts[()]
    return tensor


def _missing(shards: Shards) -> list[str]:
    """The mesh axes along which other processes hold parts of a tensor."""
    return [axis for axis in shards.spec.varying if not is_local(shards.mesh, axis)]


@dataclass(frozen=True)
class ShardView:
    """One device's part of an op: where its piece of each factor starts and how long it is."""

    factors: Factors
    starts: Mapping[str, int]
    sizes: Mapping[str, int]
    totals: Mapping[str, int]

    def result(self, slot: int = 0) -> Shape:
        """The shape of this device's piece of a result."""
        return self._shape(self.factors.outputs[slot])

    def operand(self, position: int) -> Shape:
        """The shape of this device's piece of an operand."""
        return self._shape(self.factors.inputs[position])

    def _shape(self, term: Any) -> Shape:
        found = []
        for names in term:
            size = 1
            for name in names:
                size *= self.sizes[name]
            found.append(size)
        return tuple(found)


@dataclass(frozen=True)
class Plan:
    """How one op runs over a mesh: layouts of operands and results, parameters of each piece."""

    mesh: DeviceMesh
    inputs: tuple[ShardingSpec, ...]
    outputs: tuple[ShardingSpec, ...]
    types: tuple[TensorType, ...]
    axes: MeshAxes  # over which pieces of the op differ
    params: Mapping[Coordinates, dict[str, Any]]
    fits: tuple[bool, ...]  # operands that lie as they should already

    @cached_property
    def operands(self) -> tuple[tuple[ShardingSpec, bool, tuple[Coordinates, ...]], ...]:
        """For each operand its layout, whether it has it, and the place of each piece of the op."""
        picks = [[self.axes.index(axis) for axis in spec.varying] for spec in self.inputs]
        places = [tuple(tuple(at[k] for k in pick) for at in self.params) for pick in picks]
        return tuple(zip(self.inputs, self.fits, places, strict=True))

    @cached_property
    def results(self) -> tuple[tuple[TensorType, ShardingSpec, bool], ...]:
        """For each result its type, its layout, and whether it is settled before it is handed out.

        That is so for a single number, so that anyone may read it.
        """
        return tuple(
            (kind, spec, bool(spec.pending) and kind.size == 1)
            for kind, spec in zip(self.types, self.outputs, strict=True)
        )


def execute(
    op: Operation, args: Sequence[Shards | Tensor], params: dict[str, Any]
) -> tuple[Shards | Tensor, ...]:
    """Run `op` on sharded operands (tensors on one device count as whole everywhere)."""
    if isinstance(op, CollectiveOperation):
        made = op.communicate(*args, **params)
        return made if isinstance(made, tuple) else (made,)
    rule = None if op.leaf else rule_for(op, joint_rules)
    if rule is not None:
        return rule(op, args, params)
    args = [_reduced(x) if isinstance(x, Shards) and x.settled else x for x in args]
    plan = plan_of(op, args, params)
    columns = []
    for x, (spec, fits, places) in zip(args, plan.operands, strict=True):
        if isinstance(x, Shards):
            parts = (x if fits else reshard(x, spec, op.name)).pieces.parts
        else:
            parts = {(): x} if fits else on_mesh(x, spec).pieces.parts
        try:
            columns.append([parts[place] for place in places])
        except KeyError:
            raise lost(plan.mesh) from None
    if plan.mesh.is_apart:
        columns = _met(op, args, plan, columns)
    bare = current() is None
    runs: list[Any] = []
    for pieces, local in zip(zip(*columns, strict=True), plan.params.values(), strict=True):
        piece = op.directly(*pieces) if bare else None
        runs.append(call(op, pieces, local) if piece is None else piece)
    found = []
    for slot, (kind, spec, settles) in enumerate(plan.results):
        each = [run[slot] for run in runs] if op.multiple else runs
        made = Shards(kind, spec, Pieces(plan.mesh, plan.axes, dict(zip(plan.params, each))))
        found.append(reshard(made, spec.settled, op.name) if settles else made)
    return tuple(found)


def _met(
    op: Operation, args: Sequence[Shards | Tensor], plan: Plan, columns: list[list[Any]]
) -> list[list[Any]]:
    """The operands of each piece of an op on the device that runs it."""
    for position, x in enumerate(args):
        if isinstance(x, Tensor) and x.device not in plan.mesh.devices:
            raise DeviceMismatchError(
                f"{op}: operand {position} is on {x.device}, others lie over mesh {plan.mesh}"
                f" of {', '.join(sorted(plan.mesh.kinds))}"
                "\nhint: wf.shard(x, mesh, spec) moves it; weft never copies in silence"
            )
    places = [dict(zip(plan.axes, at, strict=True)) for at in plan.params]
    return [[at_home(plan.mesh, at, x) for at, x in zip(places, each)] for each in columns]


def _reduced(x: Shards) -> Shards:
    """What became of a tensor whose pending reductions were settled before: nothing is redone."""
    return x.settled.get(x.spec.settled) or next(iter(x.settled.values()))


def rule_for(op: Operation, rules: Rules) -> Callable[..., tuple[Any, ...]] | None:
    """The rule for an op's class, or for the nearest class it derives from."""
    return next((rules[kind] for kind in type(op).__mro__ if kind in rules), None)


def replay_step(node: OutputRefs, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """One recorded call on shards, or on tensors where no operand lies over a mesh."""
    with blamed(node.position):
        if home_of(node.op, node.params) is MESH or any(isinstance(x, Shards) for x in args):
            return execute(node.op, args, node.params)
        result: Any = call(node.op, args, node.params)
    return result if isinstance(result, tuple) else (result,)


@public
def result_layouts(
    op: Operation, impls: Sequence[TensorImpl], params: dict[str, Any]
) -> tuple[ShardingSpec | None, ...] | None:
    """How the results of a recorded call will lie over a mesh; None where only a run can tell."""
    specs = tuple(impl.spec for impl in impls)
    if isinstance(op, CollectiveOperation):
        found: ShardingSpec | None = op.layout_of(*specs, **params)
        return None if found is None else (_for_rank(found, impls[0].type.rank),)
    if not op.leaf:
        return None
    plan = _plan(op, tuple(impl.type for impl in impls), specs, params)
    return tuple(
        spec.settled if kind.size == 1 else spec
        for kind, spec in zip(plan.types, plan.outputs, strict=True)
    )


def _for_rank(spec: ShardingSpec, rank: int) -> ShardingSpec:
    """A layout of the last axes as one of all: batches, which lead, are whole."""
    lead = rank - len(spec.axes)
    if not lead:
        return spec
    axes = ((),) * lead + spec.axes[max(0, -lead) :]
    free = tuple(axis + lead for axis in spec.open if axis + lead >= 0)
    return replace(spec, axes=axes, open=free)


def on_mesh(x: Tensor, spec: ShardingSpec) -> Shards:
    """A tensor of one device as part of a mesh: every device has it, and keeps what it needs."""
    assert spec.mesh is not None
    held = Shards(x.type, ShardingSpec.whole(x.ndim, spec.mesh), Pieces.everywhere(spec.mesh, x))
    return homed(reshard(held, spec))


def homed(x: Shards) -> Shards:
    """The same tensor, each piece on the device that holds it."""
    return Shards(x.type, x.spec, x.pieces.homed()) if x.mesh.is_apart else x


def plan_of(op: Operation, args: Sequence[Shards | Tensor], params: dict[str, Any]) -> Plan:
    """The plan for this op on operands of these types and layouts; programs repeat."""
    specs = tuple(x.spec if isinstance(x, Shards) else None for x in args)
    types = tuple(x.type for x in args)
    if not op.leaf:
        return _plan(op, types, specs, params)
    key = (op, types, specs, freeze(params) if params else None)
    found = _plans.get(key)
    if found is None:
        if len(_plans) >= _PLANS_LIMIT:
            _plans.clear()
        found = _plans[key] = _plan(op, types, specs, params)
    return found


def _plan(
    op: Operation,
    types: tuple[TensorType, ...],
    specs: tuple[ShardingSpec | None, ...],
    params: dict[str, Any],
) -> Plan:
    inferred = op.infer(*types, **params)
    made = (inferred,) if isinstance(inferred, TensorType) else tuple(inferred)
    known = [s or ShardingSpec.whole(t.rank) for s, t in zip(specs, types, strict=True)]
    mesh = _mesh_of(op, types, known)
    if op.leaf and not op.breaks_law and op.pure:
        factors = op.sharding_rule(*types, **params)
        sizes = factors.sizes([kind.shape for kind in types])
        done = propagate(factors, sizes, known, op.combine, passing_of(op, types, params))
        if op.base is not None:
            done = _as_term(done, op.base, factors)
        local = _local_params(op, types, made, params, mesh, done, factors, sizes)
        if local is not None:
            fits = _fitting(specs, done.inputs)
            return Plan(mesh, done.inputs, done.outputs, made, _varying(mesh, done), local, fits)
    inputs = tuple(ShardingSpec.whole(kind.rank, mesh) for kind in types)
    outputs = tuple(ShardingSpec.whole(kind.rank, mesh) for kind in made)
    return Plan(mesh, inputs, outputs, made, (), {(): params}, _fitting(specs, inputs))


def _as_term(done: Propagation, base: int, factors: Factors) -> Propagation:
    """The operand that devices add their parts to is itself a term, of the first device."""
    cut = {axis for name in factors.contracted for axis in done.chosen.get(name, ())}
    if not cut:
        return done
    inputs = list(done.inputs)
    held = inputs[base]
    terms = tuple(p for p in done.outputs[0].pending if p[0] in cut)
    inputs[base] = ShardingSpec(held.mesh, held.axes, (*held.pending, *terms))
    return Propagation(tuple(inputs), done.outputs, done.chosen)


def _fitting(
    specs: Sequence[ShardingSpec | None], wanted: Sequence[ShardingSpec]
) -> tuple[bool, ...]:
    """Which operands need not be moved: they lie as wanted, or are wanted whole and on no mesh."""
    pairs = zip(specs, wanted, strict=True)
    return tuple(new.is_whole if old is None else old == new for old, new in pairs)


def _mesh_of(
    op: Operation, types: Sequence[TensorType], specs: Sequence[ShardingSpec]
) -> DeviceMesh:
    try:
        mesh = common_mesh(specs)
    except ShardingError as error:
        pairs = zip(types, specs, strict=True)
        listed = ", ".join(f"{kind} as {spec} on {spec.mesh}" for kind, spec in pairs)
        raise ShardingError(f"{op}({listed}): {error}") from None
    assert mesh is not None
    return mesh


def passing_of(op: Operation, types: Sequence[TensorType], params: Mapping[str, Any]) -> Passing:
    """How pending reductions go through an op, by its linearity."""
    moves = isinstance(op, LogicalShapeOperation) and len(types) == 1
    jointly = op.linear is Linear.JOINTLY
    if op.name == "cast":
        jointly = _keeps_sums(types[0].dtype, params["dtype"])
    if op.name == "divide":  # a sum over 0 is infinite, its terms over 0 may cancel: numbers only
        return Passing(each=types[1].rank == 0, constants=(1,))
    return Passing(jointly, op.linear is Linear.EACH, moves, op.constants)


def _keeps_sums(old: DType, new: DType) -> bool:
    """Whether a cast of a sum is the sum of casts: floats lose nothing, integers wrap around."""
    if dtypes.is_inexact(old):
        return dtypes.promote_all(old, new) == new
    whole = dtypes.is_integer(old) and dtypes.is_integer(new)
    return whole and new.itemsize <= old.itemsize


def _varying(mesh: DeviceMesh, done: Propagation) -> MeshAxes:
    return mesh.ordered({axis for spec in (*done.inputs, *done.outputs) for axis in spec.varying})


def _local_params(
    op: Operation,
    types: tuple[TensorType, ...],
    made: tuple[TensorType, ...],
    params: dict[str, Any],
    mesh: DeviceMesh,
    done: Propagation,
    factors: Factors,
    totals: Mapping[str, int],
) -> dict[tuple[int, ...], dict[str, Any]] | None:
    """Parameters for each piece, or None if the op cannot run on pieces of this kind."""
    axes = _varying(mesh, done)
    if any(spec.varying != axes for spec in done.outputs):
        return None
    found = {}
    for place in local_coordinates(mesh, axes):
        at = dict(zip(axes, place, strict=True))
        ends = {
            name: extent(size, [(mesh.axis_size(a), at[a]) for a in done.chosen.get(name, ())])
            for name, size in totals.items()
        }
        view = ShardView(
            factors,
            {name: start for name, (start, _) in ends.items()},
            {name: end - start for name, (start, end) in ends.items()},
            totals,
        )
        local = op._transform_shard_kwargs(view, **params)
        kinds = [TensorType(view.operand(i), kind.dtype) for i, kind in enumerate(types)]
        inferred = op.infer(*kinds, **local)
        shapes = [t.shape for t in ((inferred,) if isinstance(inferred, TensorType) else inferred)]
        if shapes != [view.result(slot) for slot in range(len(made))]:
            return None
        found[place] = local
    return found
