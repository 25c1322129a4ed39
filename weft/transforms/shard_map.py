"""`shard_map`: run single-device code over a mesh.

The function runs once, on shapes; its calls are then replayed on tensors that lie over the mesh,
where every op propagates layouts. With `auto_sharding=True` a solver chooses the layouts first.
With `manual=True` the function sees one device's pieces and calls collectives by axis name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from weft.core.common.context import default_device
from weft.core.common.handler import Handler, installed
from weft.core.common.lazy import LazyModule
from weft.core.common.parameters import as_flag, as_function, shown
from weft.core.common.slots import public
from weft.core.common.source import blamed, describe, user_position
from weft.core.common.spec import DeviceMesh, P, ShardingSpec
from weft.core.common.trees import prefix_leaves, tree_flatten, tree_paths, tree_unflatten
from weft.core.graph.node import OutputRefs
from weft.core.graph.trace import Trace, relocated
from weft.core.sharding.cost import collective_bytes
from weft.core.sharding.log import Communication, enter, is_logging
from weft.core.sharding.pieces import Pieces, at_home, home_of, local_coordinates
from weft.core.sharding.steps import Step
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.impl import TensorImpl, check_running
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.tracing import trace_tree
from weft.errors import ArgumentError, ConcretizationError, ShardingError
from weft.ops.base import call
from weft.ops.communication import named
from weft.ops.communication.apart import PutTogether, TakeApart, pieces_of, tensor_of
from weft.ops.communication.joint import OfPieces, needs_devices
from weft.ops.communication.layout import shard, spec_of
from weft.ops.communication.mesh import rule_for
from weft.ops.communication.transfer import carry_out, permuted, varied
from weft.ops.control.graph_call import GraphCall
from weft.ops.families import CollectiveOperation
from weft.ops.named_axis import axis_gather_op, axis_index_op
from weft.ops.view.reshape import expand_dims

if TYPE_CHECKING:
    from weft.transforms.planning.solver import Solution

_planning: Any = LazyModule("weft.transforms.planning")


@public
def shard_map(
    function: Callable[..., Any] | None = None,
    mesh: DeviceMesh | None = None,
    in_specs: Any = None,
    out_specs: Any = None,
    *,
    auto_sharding: bool = False,
    manual: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """Distribute a function over a mesh; its Python runs once, on shapes.

    `in_specs` and `out_specs` are trees of partitions (`P`) that are prefixes of the arguments and
    the result; None leaves a layout to propagation. `auto_sharding=True` lets a solver choose what
    is not fixed (`options` are the solver's: `memory`, `device`…). `manual=True` gives the function
    one device's pieces: it calls `wf.all_reduce(x, "data")` and the like by axis name, and
    `out_specs` says how its results fit together.

    >>> mesh = DeviceMesh("line", (2,), ("x",))
    >>> total = shard_map(lambda x: x.sum(), mesh, in_specs=P("x"), out_specs=P())
    >>> total(to_tensor([1.0, 2.0, 3.0, 4.0])).item()
    10.0
    """
    if function is None:
        return lambda f: shard_map(
            f, mesh, in_specs, out_specs, auto_sharding=auto_sharding, manual=manual, **options
        )
    as_function("shard_map", "function", function)
    if not isinstance(mesh, DeviceMesh):
        raise ArgumentError(f"shard_map: expected a DeviceMesh, got {shown(mesh)}")
    by_hand = as_flag("shard_map", "manual", manual)
    chosen = as_flag("shard_map", "auto_sharding", auto_sharding)
    if by_hand and chosen:
        raise ArgumentError("shard_map: manual and auto_sharding exclude each other")
    if options and not chosen:
        raise ArgumentError(f"shard_map: options without auto_sharding: {', '.join(options)}")

    @wraps(function)
    def mapped(*args: Any, **keywords: Any) -> Any:
        leaves, structure = tree_flatten((args, keywords))
        tensors = [to_tensor(x, op="shard_map") for x in leaves]
        specs = spread_specs(in_specs, args, keywords)
        if by_hand:
            return _by_hand(function, mesh, tensors, structure, specs, out_specs)
        traced, shape = _traced(function, mesh, tensors, structure, specs)
        solution = None
        if chosen:
            result = tree_unflatten(shape, range(len(traced.outputs)))
            out = spread("out_specs", out_specs, result)
            solution = _solved(traced, mesh, tensors, specs, out, options)
        inputs = [
            x if spec is None else shard(x, mesh, spec)
            for x, spec in zip(tensors, specs, strict=True)
        ]
        results = _replay(traced, inputs, solution)
        return _laid_out(tree_unflatten(shape, results), mesh, out_specs)

    return mapped


def _traced(
    function: Callable[..., Any],
    mesh: DeviceMesh,
    tensors: list[Tensor],
    structure: Any,
    specs: list[Any],
) -> Any:
    """The graph of a function, and its result's structure; operands are on the mesh already."""
    if not mesh.is_apart:
        args, keywords = tree_unflatten(structure, tensors)
        return trace_tree(function, args, keywords, "shard_map")
    near = (x.device for x in tensors if x.device in mesh.devices)
    moved = [
        x if spec is None or x.sharding.mesh == mesh else x.type
        for x, spec in zip(tensors, specs, strict=True)
    ]
    args, keywords = tree_unflatten(structure, moved)
    with default_device(next(near, home_of(mesh, (), ()))):
        return trace_tree(function, args, keywords, "shard_map")


def _solved(
    traced: Trace, mesh: DeviceMesh, tensors: list[Tensor], specs: list[Any], out: Any, options: Any
) -> Solution:
    """The best layouts for a trace; what the user fixed stays as it is."""
    fixed = {
        number: spec_of("shard_map", mesh, spec, x)
        for number, (x, spec) in enumerate(zip(tensors, specs, strict=True))
        if spec is not None
    }
    results = {
        number: ShardingSpec.of(mesh, spec, len(kind.shape))
        for number, (kind, spec) in enumerate(zip(traced.output_types, out, strict=True))
        if spec is not None
    }
    problem = _planning.problem_of(traced, mesh, in_specs=fixed, out_specs=results)
    solution: Solution = _planning.SimpleSolver(**options).solve(problem)
    return solution


def _replay(traced: Trace, inputs: list[Tensor], chosen: Solution | None) -> tuple[Any, ...]:
    """Perform the recorded calls on sharded tensors; chosen layouts are enforced as they come."""
    numbers = {} if chosen is None else _planning.numbered(traced)

    def step(node: OutputRefs, args: tuple[Any, ...]) -> tuple[Any, ...]:
        with blamed(node.position):
            if chosen is not None and node.op.leaf:
                number = numbers[node]
                args = tuple(
                    _placed(x, chosen.operands.get((number, k))) for k, x in enumerate(args)
                )
            result: Any = call(node.op, args, node.params)
            found = result if isinstance(result, tuple) else (result,)
            if chosen is None or isinstance(node.op, GraphCall):
                return found
            number = numbers[node]
            return tuple(_placed(x, chosen.nodes.get((number, k))) for k, x in enumerate(found))

    given = (*inputs, *traced.captures)
    if chosen is not None:
        given = tuple(map(_placed, given, chosen.inputs))
    return traced.walk(given, step)


def _placed(x: Tensor, spec: ShardingSpec | None) -> Tensor:
    """`x` laid out as chosen; a reduction that may stay pending stays pending."""
    if spec is None or spec.pending or spec.mesh is None or x.sharding == spec:
        return x
    return shard(x, spec.mesh, spec)


def _laid_out(result: Any, mesh: DeviceMesh, out_specs: Any) -> Any:
    leaves, structure = tree_flatten(result)
    specs = spread("out_specs", out_specs, result)
    return tree_unflatten(
        structure,
        [
            x if spec is None else shard(x, mesh, spec)
            for x, spec in zip(leaves, specs, strict=True)
        ],
    )


def spread_specs(specs: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> list[Any]:
    """One partition for each leaf of the arguments; keyword arguments have none."""
    if isinstance(specs, P | ShardingSpec) or specs is None:
        found = [specs] * len(tree_flatten(args)[0])
    else:
        found = spread("in_specs", tuple(specs) if len(args) > 1 else specs, args)
    return [*found, *[None] * len(tree_flatten(keywords)[0])]


def spread(name: str, specs: Any, tree: Any) -> list[Any]:
    """One partition for each leaf of `tree`, from a prefix tree of partitions."""
    return prefix_leaves(
        f"shard_map: {name}",
        specs,
        tree,
        lambda spec: spec is None or isinstance(spec, P | ShardingSpec),
        '\nhint: a partition is written P("axis", None)',
    )


class Manual(Handler):
    """Runs a function on the pieces of all devices at once: one op, then the next."""

    label = "shard_map"

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.piece_mesh = mesh
        self._joint = OfPieces(self._replayed, self._alone).rules()
        self._here: dict[str, int] = {}  # coordinates of devices that go their own way

    def handle(self, op: Any, args: tuple[Tensor, ...], params: dict[str, Any]) -> Any:
        with installed(self.outer):
            results = tuple(map(self.show, self.run(op, list(map(self._held, args)), params)))
        return results if op.multiple else results[0]

    def _held(self, x: Tensor) -> Pieces:
        """The pieces of a tensor; one from outside is the same on every device."""
        if x._impl.owner is self:
            pieces: Pieces = x._impl.payload
            return pieces
        if x._impl.owner is None:
            return Pieces.everywhere(self.piece_mesh, x)
        return pieces_of(x, ShardingSpec.whole(x.ndim, self.piece_mesh))

    def run(self, op: Any, held: Sequence[Pieces], params: dict[str, Any]) -> tuple[Pieces, ...]:
        """One op on the pieces of all devices, in the handler outside."""
        mesh = self.piece_mesh
        if isinstance(op, named.NamedCollective):
            self._check_together(op, params["axes"])
            return (collective(op, held[0], params),)
        if op is axis_index_op and params["axis"] in mesh.axis_names:
            axis = params["axis"]
            index = Pieces.build(mesh, (axis,), lambda at: to_tensor(at[axis]))
            return (index.only(self._here),)
        if op is axis_gather_op and params["axis"] in mesh.axis_names:
            self._check_together(op, (params["axis"],))
            opened = held[0].map(lambda x: expand_dims(x, axis=0))
            return (_stepped(Step("all_gather", params["axis"], 0), opened),)
        if isinstance(op, CollectiveOperation):
            return (_on_one_device(op, held, params),)
        alone = op.leaf or (isinstance(op, GraphCall) and not needs_devices(params["trace"]))
        rule = None if alone else rule_for(op, self._joint)
        if rule is not None:
            return rule(op, held, params)
        axes = mesh.ordered({axis for pieces in held for axis in pieces.axes})
        made = {}
        for place in local_coordinates(mesh, axes):
            at = dict(zip(axes, place, strict=True))
            pieces = tuple(at_home(mesh, at, p.at(at)) for p in held)
            made[place] = call(op, pieces, params if op.leaf else _there(params, pieces))
        done = Pieces(mesh, axes, made)
        if not op.multiple:
            return (done,)
        count = len(next(iter(done.parts.values())))
        return tuple(done.map(itemgetter(k)) for k in range(count))

    @contextmanager
    def _alone(self, here: Mapping[str, int]) -> Iterator[None]:
        """Inside, what runs is for the devices at these coordinates."""
        before, self._here = self._here, {**self._here, **here}
        try:
            yield
        finally:
            self._here = before

    def _check_together(self, op: Any, axes: Sequence[str]) -> None:
        """Refuse a collective of devices that do not all come to it."""
        for axis in axes:
            if axis in self._here:
                raise ShardingError(
                    f"{op}: devices along {axis!r} do not all come here: the choice of a cond,"
                    " switch or while_loop around it differs between them"
                    f"\nhint: wf.all_reduce(choice, {axis!r}, 'max') makes the choice the same"
                )

    def _replayed(self, node: OutputRefs, args: tuple[Any, ...]) -> tuple[Pieces, ...]:
        """One call of a subgraph; what it captured is the same on every device."""
        held = [x if isinstance(x, Pieces) else self._held(x) for x in args]
        with blamed(node.position):
            return self.run(node.op, held, node.params)

    def show(self, pieces: Pieces) -> Tensor:
        """A tensor that stands for one piece on each device."""
        first = next(iter(pieces.parts.values()))
        return Tensor(TensorImpl.owned(first.type, first.device, self, pieces))

    def read(self, payload: Pieces) -> Any:
        check_running(self)
        if not payload.axes:
            return payload.parts[()]
        raise ConcretizationError(
            f"shard_map: a value was read inside, at {describe(user_position(2))}:"
            f" it differs between devices along {', '.join(payload.axes)}"
            "\nhint: use wf.where or wf.cond; wf.all_reduce makes a value the same everywhere"
        )


def _there(params: dict[str, Any], pieces: Sequence[Tensor]) -> dict[str, Any]:
    """The parameters of a call whose subgraph was recorded on another device than its operands'."""
    trace = params.get("trace")
    if trace is None:
        return params
    for node, piece in zip(trace.inputs, pieces, strict=True):
        if node.device is not piece.device:
            return {**params, "trace": relocated(trace, node.device, piece.device)}
    return params


def _on_one_device(op: Any, held: Sequence[Pieces], params: Mapping[str, Any]) -> Pieces:
    """What a change of layout makes of pieces, each of which lies on one device: nothing."""
    if isinstance(op, TakeApart | PutTogether):
        raise ShardingError(
            f"shard_map: a piece lies on one device and cannot be split over {params['spec'].mesh}:"
            " this is inside another shard_map with manual=True"
            "\nhint: use one mesh with more axes, or leave out manual=True inside"
        )
    return held[0]


def collective(op: Any, pieces: Pieces, params: Mapping[str, Any]) -> Pieces:
    """What a collective by axis name does to the pieces of all devices."""
    for axis in params["axes"]:
        pieces = varied(pieces, axis)
    if op is named.permute_over_op:
        (axis,) = params["axes"]
        _note("ppermute", axis, pieces, 1.0)
        return permuted(pieces, axis, params["pairs"])
    rank = next(iter(pieces.parts.values())).ndim
    at = params["axis"] + rank if "axis" in params else None
    kind, source, target, reduction = {
        named.sum_over_op: ("all_reduce", None, None, "sum"),
        named.reduce_over_op: ("all_reduce", None, None, params.get("kind", "")),
        named.join_over_op: ("all_gather", at, None, ""),
        named.sum_part_over_op: ("reduce_scatter", None, at, "sum"),
        named.swap_over_op: ("all_to_all", at, params.get("split", 0) + rank, ""),
    }[op]
    # Joins go from the innermost mesh axis outwards, cuts from the outermost inwards.
    order = reversed(params["axes"]) if kind == "all_gather" else params["axes"]
    for axis in order:
        pieces = _stepped(Step(kind, axis, source, target, reduction), pieces)
    return pieces


def _stepped(step: Step, pieces: Pieces) -> Pieces:
    pieces = varied(pieces, step.axis)
    if is_logging():
        first = next(iter(pieces.parts.values()))
        count = pieces.mesh.axis_size(step.axis)
        share = collective_bytes(step.kind, count, count if step.kind == "all_gather" else 1)
        _note(step.kind, step.axis, pieces, share, first.shape)
    return carry_out(step, pieces)


def _note(kind: str, axis: str, pieces: Pieces, share: float, shape: Any = None) -> None:
    if is_logging():
        first = next(iter(pieces.parts.values()))
        sent = int(share * first.nbytes)
        where = user_position(2)
        enter(Communication(kind, pieces.mesh, (axis,), shape or first.shape, sent, "", where))


def _by_hand(
    function: Callable[..., Any],
    mesh: DeviceMesh,
    tensors: list[Tensor],
    structure: Any,
    in_specs: list[Any],
    out_specs: Any,
) -> Any:
    specs = [spec_of("shard_map", mesh, s, x) for x, s in zip(tensors, in_specs, strict=True)]
    for number, (x, spec) in enumerate(zip(tensors, specs, strict=True)):
        _check_even(f"argument leaf {number}", x.shape, spec)
    pieces = [pieces_of(x, spec) for x, spec in zip(tensors, specs, strict=True)]
    with Manual(mesh) as manual, _at(mesh):
        assert isinstance(manual, Manual)
        args, keywords = tree_unflatten(structure, list(map(manual.show, pieces)))
        result = function(*args, **keywords)
        leaves, shape = tree_flatten(result)
        found = [to_tensor(x, op="shard_map") for x in leaves]
    places = spread("out_specs", out_specs, result)
    paths = tree_paths(result)
    return tree_unflatten(
        shape,
        [
            _assembled(manual, mesh, x, spec, path)
            for x, spec, path in zip(found, places, paths, strict=True)
        ],
    )


def _at(mesh: DeviceMesh) -> AbstractContextManager[Any]:
    """Inside, what is made is where the pieces of a mesh are."""
    return default_device(home_of(mesh, (), ())) if mesh.is_apart else nullcontext()


def _assembled(manual: Manual, mesh: DeviceMesh, x: Tensor, spec: Any, path: str) -> Tensor:
    held = x._impl.payload if x._impl.owner is manual else Pieces.everywhere(mesh, x)
    full = spec_of("shard_map", mesh, spec, x)
    extra = [axis for axis in held.axes if axis not in full.varying]
    if extra:
        raise ShardingError(
            f"shard_map: result{path} differs between devices along {', '.join(extra)},"
            f" but out_specs {full} says that it is the same there"
            f"\nhint: wf.all_reduce(x, {extra[0]!r}), or name the axis in out_specs"
        )
    shape = tuple(size * full.parts(axis) for axis, size in enumerate(x.shape))
    return tensor_of(held, full, shape)


def _check_even(what: str, shape: Any, spec: ShardingSpec) -> None:
    for axis, size in enumerate(shape):
        if size % spec.parts(axis):
            raise ShardingError(
                f"shard_map: {what}: axis {axis} of shape {shape} cannot be cut into"
                f" {spec.parts(axis)} equal pieces (mesh {spec.mesh}, {spec})"
                "\nhint: pad the axis, or leave out manual=True, which allows pieces of any size"
            )


__all__ = ["shard_map"]
