"""A traced function as a sharding problem: what to place, its costs, what is fixed; also as JSON.

Inputs are nodes as well and come first, so call `i` of the trace is node `len(inputs) + i` here. A
captured function (a checkpoint, one with derivatives of its own) stands for the calls inside, which
`numbered` counts. Calls that are alike share one `Signature`.

The JSON form is an object with `format` ("weft sharding graph"), `version`, `mesh` (`name`,
`shape`, `axis_names`), `nodes`, `outputs` (pairs node, slot), `fixed` (node, slot, spec) and `ties`
(input number, output number: the output must come out as the input went in). A node has `op`
("input" for inputs), `inputs` (pairs node, slot), `operands` and `results` (shape, dtype),
`factors` in index notation, `sizes` of the factors, `whole` ones, how pending reductions pass
(`linear`, `constants`, `moves`), `combine`, `view`, `flops`, `bytes` and `source`, the user's line.
A spec has `axes` and `pending`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from weft.core.common.factors import Factors
from weft.core.common.frozen import freeze
from weft.core.common.lazy import LazyModule
from weft.core.common.parameters import shown
from weft.core.common.source import Position, describe
from weft.core.common.spec import DeviceMesh, ShardingSpec
from weft.core.common.types import TensorType
from weft.core.graph.node import OutputRefs
from weft.core.graph.trace import Trace
from weft.core.sharding.cost import spec_of
from weft.core.sharding.steps import Layout, layout_of
from weft.errors import ArgumentError, MissingRuleError, ShardingError
from weft.ops.communication.apart import PutTogether, TakeApart
from weft.ops.communication.mesh import passing_of
from weft.ops.control.graph_call import GraphCall

_json: Any = LazyModule("json")

Ref: TypeAlias = tuple[int, int]  # node, slot
FORMAT, VERSION = "weft sharding graph", 2


@dataclass(frozen=True, eq=False)
class Signature:
    """What a call is, whoever its operands are."""

    op: str
    factors: Factors
    sizes: Mapping[str, int]
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    linear: str = "no"
    constants: tuple[int, ...] = ()
    combine: str = "add"
    moves: bool = False
    view: bool = False
    flops: int = 0
    bytes: int = 0


@dataclass(frozen=True, eq=False)
class Node:
    """One input or call."""

    signature: Signature
    inputs: tuple[Ref, ...] = ()
    source: str = ""


@dataclass(frozen=True, eq=False)
class Problem:
    """What the solver is given."""

    mesh: DeviceMesh
    nodes: tuple[Node, ...]
    outputs: tuple[Ref, ...]
    fixed: Mapping[Ref, Layout] = field(default_factory=dict)
    ties: tuple[tuple[int, int], ...] = ()
    fixed_outputs: Mapping[int, Layout] = field(default_factory=dict)

    @property
    def inputs(self) -> int:
        """How many of the nodes are inputs."""
        return sum(node.signature.op == "input" for node in self.nodes)

    def type(self, ref: Ref) -> TensorType:
        """Shape and dtype of one value."""
        return self.nodes[ref[0]].signature.results[ref[1]]

    def to_json(self) -> str:
        """The problem as text; `problem_from_json` reads it."""
        text: str = _json.dumps(
            {
                "format": FORMAT,
                "version": VERSION,
                "mesh": {
                    "name": self.mesh.name,
                    "shape": self.mesh.shape,
                    "axis_names": self.mesh.axis_names,
                },
                "nodes": [_node_data(node) for node in self.nodes],
                "outputs": self.outputs,
                "fixed": [[*ref, _layout_data(layout)] for ref, layout in self.fixed.items()],
                "fixed_outputs": [
                    [place, _layout_data(layout)] for place, layout in self.fixed_outputs.items()
                ],
                "ties": self.ties,
            }
        )
        return text


def _node_data(node: Node) -> dict[str, Any]:
    sign = node.signature
    return {
        "op": sign.op,
        "inputs": node.inputs,
        "operands": [[t.shape, t.dtype.name] for t in sign.operands],
        "results": [[t.shape, t.dtype.name] for t in sign.results],
        "factors": str(sign.factors),
        "sizes": dict(sign.sizes),
        "whole": sorted(sign.factors.whole),
        "linear": sign.linear,
        "constants": sign.constants,
        "combine": sign.combine,
        "moves": sign.moves,
        "view": sign.view,
        "flops": sign.flops,
        "bytes": sign.bytes,
        "source": node.source,
    }


def _layout_data(layout: Layout) -> dict[str, Any]:
    return {"axes": layout.axes, "pending": layout.pending}


def _layout(data: Any) -> Layout:
    return Layout(tuple(map(tuple, data["axes"])), tuple((a, k) for a, k in data["pending"]))


def problem_from_json(text: str) -> Problem:
    """Read what `graph_to_json` wrote."""
    try:
        data = _json.loads(text)
        if data["format"] != FORMAT or data["version"] != VERSION:
            raise ValueError(f"format {data['format']!r}, version {data['version']!r}")
        mesh = data["mesh"]
        seen: dict[str, Signature] = {}
        nodes = tuple(_read_node(each, seen) for each in data["nodes"])
        return Problem(
            DeviceMesh(mesh["name"], tuple(mesh["shape"]), tuple(mesh["axis_names"])),
            nodes,
            tuple((n, s) for n, s in data["outputs"]),
            {(n, s): _layout(spec) for n, s, spec in data["fixed"]},
            tuple((i, o) for i, o in data["ties"]),
            {place: _layout(spec) for place, spec in data["fixed_outputs"]},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"problem_from_json: this is not a {FORMAT} of version {VERSION} ({error!r})"
        ) from None


def _read_node(data: Mapping[str, Any], seen: dict[str, Signature]) -> Node:
    inputs = tuple((n, s) for n, s in data["inputs"])
    own = {k: v for k, v in data.items() if k not in ("inputs", "source")}
    key = _json.dumps(own)
    if key not in seen:
        ranks = [len(shape) for shape, _ in data["operands"]]
        factors = Factors.parse(data["factors"], ranks, whole=" ".join(data["whole"]))
        operands, results = (
            tuple(TensorType(tuple(shape), np.dtype(d)) for shape, d in data[side])
            for side in ("operands", "results")
        )
        seen[key] = Signature(
            data["op"],
            factors,
            data["sizes"],
            operands,
            results,
            data["linear"],
            tuple(data["constants"]),
            data["combine"],
            data["moves"],
            data["view"],
            data["flops"],
            data["bytes"],
        )
    return Node(seen[key], inputs, data["source"])


def graph_to_json(
    trace: Trace,
    mesh: DeviceMesh,
    *,
    in_specs: Mapping[int, ShardingSpec] | None = None,
    fixed: Mapping[Ref, ShardingSpec] | None = None,
    ties: Sequence[tuple[int, int]] = (),
) -> str:
    """A trace's topology, factors, costs and constraints as JSON, for the solver."""
    return problem_of(trace, mesh, in_specs=in_specs, fixed=fixed, ties=ties).to_json()


def problem_of(
    trace: Trace,
    mesh: DeviceMesh,
    *,
    in_specs: Mapping[int, ShardingSpec] | None = None,
    fixed: Mapping[Ref, ShardingSpec] | None = None,
    out_specs: Mapping[int, ShardingSpec] | None = None,
    ties: Sequence[tuple[int, int]] = (),
) -> Problem:
    """The sharding problem of a trace.

    `in_specs` fixes inputs by number, `out_specs` outputs by number, `fixed` results of calls by
    (number of the call, slot). A tie (i, o) makes output o come out as input i went in.
    """
    if not isinstance(trace, Trace):
        raise ArgumentError(f"problem_of: expected a trace, got {shown(trace)}")
    count = len(trace.inputs)
    seen: dict[Any, Signature] = {}
    nodes = [Node(_input_signature(kind, seen)) for kind in trace.input_types]
    lines: dict[Position, str] = {}
    places = {(i, 0): spec for i, spec in (in_specs or {}).items()}

    def step(node: OutputRefs, inputs: tuple[Ref, ...]) -> tuple[Ref, ...]:
        _check_planned(node, lines)
        if isinstance(node.op, GraphCall):
            found: tuple[Ref, ...] = node.params["trace"].walk(inputs, step)
            return found
        place = len(nodes)
        nodes.append(Node(_signature(node, seen), inputs, _line(node.position, lines)))
        spec = node.params.get("spec")  # where the function itself says x.shard(mesh, spec)
        if isinstance(spec, ShardingSpec) and spec.mesh == mesh and not spec.open:
            places[place, 0] = spec
        return tuple((place, slot) for slot in range(len(node.types)))

    outputs = trace.walk([(i, 0) for i in range(count)], step)
    places |= {(count + i, slot): spec for (i, slot), spec in (fixed or {}).items()}
    problem = Problem(mesh, tuple(nodes), outputs)
    checked = {ref: _checked(problem, f"node {ref}", ref, spec) for ref, spec in places.items()}
    results = {
        place: _checked(problem, f"output {place}", outputs[place], spec)
        for place, spec in (out_specs or {}).items()
    }
    for i, o in ties:
        if problem.type((i, 0)).shape != problem.type(outputs[o]).shape:
            raise ShardingError(
                f"tie: input {i} is {problem.type((i, 0))}, output {o} is"
                f" {problem.type(outputs[o])}: they cannot lie alike"
            )
    return Problem(mesh, tuple(nodes), outputs, checked, tuple(ties), results)


def numbered(trace: Trace) -> dict[OutputRefs, int]:
    """The number of each call of a trace: how many come before, inside captured functions too."""
    found, count = {}, 0
    for node in trace.nodes:
        found[node] = count
        count += _calls(node)
    return found


def _calls(node: OutputRefs) -> int:
    return sum(map(_calls, node.params["trace"].nodes)) if isinstance(node.op, GraphCall) else 1


def _input_signature(kind: TensorType, seen: dict[Any, Signature]) -> Signature:
    if kind not in seen:
        names = [f"n{i}" for i in range(kind.rank)]
        sizes = dict(zip(names, kind.shape, strict=True))
        factors = Factors.parse(f"-> {' '.join(names)}", (), sizes)
        seen[kind] = Signature("input", factors, sizes, (), (kind,))
    return seen[kind]


def _check_planned(node: OutputRefs, lines: dict[Position, str]) -> None:
    """Refuse a function that sees pieces: its layouts are its own, and cannot be chosen."""
    if isinstance(node.op, TakeApart | PutTogether):
        raise ShardingError(
            "plan: shard_map with manual=True has no layouts to choose"
            f" ({_line(node.position, lines)})"
            "\nhint: leave out manual=True, or plan what comes before and after it"
        )


def _line(position: Position | None, lines: dict[Position, str]) -> str:
    if position is None:
        return ""
    if position not in lines:
        lines[position] = describe(position)
    return lines[position]


def _signature(node: OutputRefs, seen: dict[Any, Signature]) -> Signature:
    operands = tuple(source.types[slot] for source, slot in node.inputs)
    key = (node.op, operands, freeze(node.params), node.types)
    if key not in seen:
        seen[key] = _described(node, operands)
    return seen[key]


def _described(node: OutputRefs, operands: tuple[TensorType, ...]) -> Signature:
    op = node.op
    shapes = [t.shape for t in operands]
    try:
        factors = op.sharding_rule(*operands, **node.params)
        sizes = factors.sizes(shapes)
    except MissingRuleError:
        factors, sizes = _opaque(operands, node.types)
    cost = op.cost(*operands, **node.params)
    passing = passing_of(op, operands, node.params)
    return Signature(
        op.name,
        factors,
        sizes,
        operands,
        node.types,
        "jointly" if passing.jointly else "each" if passing.each else "no",
        passing.constants,
        op.combine,
        passing.moves,
        op.view,
        cost.flops,
        cost.bytes,
    )


def _opaque(
    operands: tuple[TensorType, ...], results: tuple[TensorType, ...]
) -> tuple[Factors, dict[str, int]]:
    """Factors of an op that says nothing about its axes: each is its own, and whole."""
    sizes: dict[str, int] = {}

    def term(kind: TensorType) -> str:
        names = []
        for size in kind.shape:
            names.append(f"w{len(sizes)}")
            sizes[names[-1]] = size
        return " ".join(names)

    left, right = (", ".join(map(term, side)) for side in (operands, results))
    ranks = [t.rank for t in operands]
    return Factors.parse(f"{left} -> {right}", ranks, sizes, " ".join(sizes)), sizes


def _checked(problem: Problem, where: str, ref: Ref, spec: Any) -> Layout:
    mesh, kind = problem.mesh, problem.type(ref)
    if not isinstance(spec, ShardingSpec) or len(spec.axes) != kind.rank:
        raise ShardingError(
            f"{where}: expected a ShardingSpec of {kind.rank} axes for {kind}, got {shown(spec)}"
        )
    layout = layout_of(spec)
    used = [a for axes in layout.axes for a in axes] + [a for a, _ in layout.pending]
    for axis in used:
        mesh.axis_size(axis)
    if len(set(used)) != len(used):
        raise ShardingError(f"{where}: {spec} uses a mesh axis twice")
    own = spec_of(mesh, layout)
    for i, size in enumerate(kind.shape):
        if own.parts(i) > max(size, 1):
            raise ShardingError(
                f"{where}: axis {i} of {kind} has {size} elements, too few for"
                f" {own.parts(i)} parts ({spec})"
            )
    return layout
