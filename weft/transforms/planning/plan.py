"""`plan`: what a function will cost on a mesh, and how to place it there, from shapes alone.

No device is touched and no data is needed. Costs depend on the sizes of the mesh's axes, so a mesh
of thousands of devices takes no longer than a small one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft.core.common.parameters import as_flag, shown
from weft.core.common.slots import public
from weft.core.common.source import keeping_positions
from weft.core.common.spec import DeviceMesh, Link, P, ShardingSpec
from weft.core.common.trees import tree_flatten, tree_leaves, tree_paths, tree_unflatten
from weft.core.common.types import TensorType
from weft.core.sharding.cost import Fabric, spec_of
from weft.core.sharding.profiles import DeviceProfile, as_profile
from weft.core.sharding.propagate import Passing, propagate
from weft.core.sharding.steps import layout_of
from weft.core.tensor.tracing import is_type, trace_tree
from weft.errors import ArgumentError, ShardingError
from weft.transforms.planning.evaluate import Costs, Placement, evaluate
from weft.transforms.planning.facts import Facts
from weft.transforms.planning.groups import resolved
from weft.transforms.planning.problem import Problem, Signature, problem_of
from weft.transforms.planning.report import Named, Plan
from weft.transforms.planning.solver import Search, SimpleSolver, solution_of
from weft.transforms.planning.strategies import Rules, Strategy


@public
def plan(
    function: Callable[..., Any],
    mesh: DeviceMesh,
    /,
    *args: Any,
    in_specs: Any = None,
    out_specs: Any = None,
    auto: bool = True,
    carry: Mapping[int, int | None] | None = None,
    memory: float | None = None,
    device: str | DeviceProfile = "h100",
    links: Mapping[str, Any] | str | Link | None = None,
    gap: float = 0.01,
    time_limit: float = 120.0,
) -> Plan:
    """Predict time, communication and memory of `function(*args)` on a mesh, and place it there.

    Arguments are trees of tensors or of `TensorType`s: nothing is computed. `in_specs` has one
    entry for each argument: a `P`, a tree of them, or None to leave it to the solver; likewise
    `out_specs` for the results. With `auto=False` nothing is chosen: arguments without a spec are
    whole, and specs are propagated from call to call.

    `carry={0: 1}` says that argument 0 comes back as result 1 (None: as the whole result), as the
    parameters of a training step do: they come out as they went in and take the same memory.
    `memory` limits the bytes of one device (what the device has, unless given); `device` and
    `links` (for each mesh axis) name a profile or are one.

    >>> mesh = DeviceMesh("line", (8,), ("x",))
    >>> import numpy as np
    >>> big, small = (TensorType(s, np.dtype("float32")) for s in ((8192, 512), (512, 512)))
    >>> found = plan(lambda x, w: x @ w, mesh, big, small)
    >>> [str(each.spec) for each in found.inputs], found.communication
    (['[x, ·]', '[·, ·]'], 0.0)
    """
    if not isinstance(mesh, DeviceMesh):
        raise ShardingError(f"plan: expected a DeviceMesh, got {shown(mesh)}")
    as_flag("plan", "auto", auto)
    with keeping_positions():  # so that a backward pass is put down to the lines it is for
        trace, structure = trace_tree(function, args, {}, label="plan")
    results = tree_unflatten(structure, range(len(trace.outputs)))
    problem = problem_of(
        trace,
        mesh,
        in_specs=_specs("in_specs", mesh, in_specs, args, trace.input_types),
        out_specs=_specs("out_specs", mesh, out_specs, results, trace.output_types),
        ties=_ties(carry or {}, args, results),
    )
    profile = as_profile("plan", device)
    limit = profile.memory if memory is None else memory
    solver = SimpleSolver(device=profile, links=links, memory=limit, gap=gap, time_limit=time_limit)
    costs, placement, left, spent = (_solved if auto else _as_given)(solver, problem)
    found = evaluate(costs, placement)
    solution = solution_of(problem, placement, found, left, spent)
    named = (
        _named(args, "args", solution.inputs, trace.input_types),
        _named(results, "result", solution.outputs, trace.output_types),
    )
    return Plan.of(trace.name, costs, placement, found, solution, *named, auto=auto)


def _solved(solver: SimpleSolver, problem: Problem) -> tuple[Costs, Placement, float, float]:
    """The best placement, how far it may be from the optimum, and the seconds it took."""
    search = Search(solver, problem)
    placement, left = search.best()
    return search.costs, placement, left, search.spent()


def _as_given(solver: SimpleSolver, problem: Problem) -> tuple[Costs, Placement, float, float]:
    """The same for specs that only propagate: nothing is searched."""
    fabric = Fabric.of(problem.mesh, solver.links)
    costs = Costs(problem, fabric, solver.profile, Facts(problem, fabric))
    return costs, propagated(costs), 0.0, 0.0


def _named(
    tree: Any,
    prefix: str,
    specs: tuple[ShardingSpec, ...],
    types: tuple[TensorType, ...],
) -> tuple[Named, ...]:
    """Paths, types and specs of the leaves; captured tensors have numbers."""
    given = _flat(tree)
    paths = tree_paths(given) if isinstance(given, list | tuple | dict) else [""]
    paths += [f"captured {i}" for i in range(len(specs) - len(paths))]
    return tuple(
        Named(path if path.startswith("captured") else prefix + path, kind, spec)
        for path, kind, spec in zip(paths, types, specs, strict=True)
    )


def _flat(tree: Any) -> Any:
    """The tree with a number for each leaf: `TensorType`s are tuples, and must not be opened."""
    leaves, structure = tree_flatten(tree, is_leaf=is_type)
    return tree_unflatten(structure, range(len(leaves)))


def _ties(
    carry: Mapping[int, int | None], args: tuple[Any, ...], results: Any
) -> list[tuple[int, int]]:
    if not isinstance(carry, Mapping):
        raise ArgumentError(f"plan: carry must map arguments to results, got {shown(carry)}")
    numbered = _flat(args)
    ties: list[tuple[int, int]] = []
    for argument, result in carry.items():
        try:
            inputs = tree_leaves(numbered[argument])
            outputs = tree_leaves(results if result is None else results[result])
        except (IndexError, KeyError, TypeError):
            raise ArgumentError(
                f"plan: carry: there is no argument {shown(argument)} or result {shown(result)}"
            ) from None
        if len(inputs) != len(outputs):
            raise ArgumentError(
                f"plan: carry: argument {argument} has {len(inputs)} tensors, result {result} has"
                f" {len(outputs)}"
            )
        ties += zip(inputs, outputs, strict=True)
    return ties


def _specs(
    name: str, mesh: DeviceMesh, given: Any, tree: Any, types: tuple[TensorType, ...]
) -> dict[int, ShardingSpec]:
    """Specs of the leaves that have one, by number."""
    found: dict[int, ShardingSpec] = {}

    def spread(entry: Any, numbers: Any, path: str) -> None:
        if entry is None:
            return
        if isinstance(entry, P | ShardingSpec):
            for number in tree_leaves(numbers):
                found[number] = _spec(f"plan: {path}", mesh, entry, types[number])
        elif isinstance(entry, Mapping) and isinstance(numbers, Mapping):
            for key, each in entry.items():
                if key not in numbers:
                    raise ArgumentError(f"plan: {path}: there is no {key!r}")
                spread(each, numbers[key], f"{path}[{key!r}]")
        elif (
            isinstance(entry, list | tuple)
            and isinstance(numbers, list | tuple)
            and len(entry) == len(numbers)
        ):
            for i, (each, number) in enumerate(zip(entry, numbers, strict=True)):
                spread(each, number, f"{path}[{i}]")
        else:
            raise ArgumentError(
                f"plan: {path}: expected P, None, or a tree like the tensors', got {shown(entry)}"
            )

    spread(given, _flat(tree), name)
    return found


def _spec(where: str, mesh: DeviceMesh, entry: P | ShardingSpec, kind: TensorType) -> ShardingSpec:
    if isinstance(entry, ShardingSpec):
        return spec_of(mesh, layout_of(entry))
    try:
        return ShardingSpec.of(mesh, entry, kind.rank)
    except ShardingError as error:
        raise ShardingError(f"{where}: {error}") from None


def propagated(costs: Costs) -> Placement:
    """The placement that follows from the inputs' specs alone, call by call."""
    problem, facts = costs.problem, costs.facts
    strategies: list[Strategy] = []
    for v, node in enumerate(problem.nodes):
        if node.signature.op == "input":
            whole = layout_of(ShardingSpec.whole(node.signature.results[0].rank))
            strategies.append(Strategy((), (problem.fixed.get((v, 0), whole),), 1.0))
            continue
        operands = tuple(
            spec_of(problem.mesh, problem.fixed.get((u, slot), strategies[u].outputs[slot]))
            for u, slot in node.inputs
        )
        strategies.append(_propagated(facts.rules[v], operands))
    outputs = []
    for place, (v, slot) in enumerate(problem.outputs):
        kind = problem.type((v, slot))
        given = problem.fixed.get((v, slot), strategies[v].outputs[slot])
        tied = [i for i, o in problem.ties if o == place]
        wanted = strategies[tied[0]].outputs[0] if tied else problem.fixed_outputs.get(place)
        outputs.append(wanted or resolved(costs.fabric, given, kind.shape, kind.dtype.itemsize))
    return Placement(tuple(strategies), tuple(outputs))


def _propagated(rules: Rules, operands: tuple[ShardingSpec, ...]) -> Strategy:
    sign = rules.signature
    if not operands:
        return rules.replicated()
    done = propagate(sign.factors, sign.sizes, operands, sign.combine, _passing(sign))
    inputs = tuple(map(layout_of, done.inputs))
    outputs = tuple(map(layout_of, done.outputs))
    return Strategy(inputs, outputs, rules.share_of(inputs, outputs))


def _passing(sign: Signature) -> Passing:
    """How pending reductions go through a call."""
    jointly, each = sign.linear == "jointly", sign.linear == "each"
    return Passing(jointly, each, sign.moves, sign.constants)
