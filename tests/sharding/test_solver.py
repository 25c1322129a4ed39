"""The solver finds what people choose by hand, exactly, and keeps what is fixed."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import optimize

import weft as wf
from weft.core.common.spec import DeviceMesh, P, ShardingSpec
from weft.core.sharding.cost import Fabric, reshard_cost
from weft.core.sharding.profiles import DEVICES
from weft.core.sharding.propagate import Passing, propagate
from weft.errors import ArgumentError, ShardingError
from weft.transforms.planning import SimpleSolver, graph_to_json, problem_from_json, problem_of
from weft.transforms.planning.evaluate import Costs, Placement, evaluate
from weft.transforms.planning.facts import Facts
from weft.transforms.planning.groups import resolved
from weft.transforms.planning.program import Row
from weft.transforms.planning.solver import Search, _constraints
from weft.transforms.planning.strategies import Rules

LINE = DeviceMesh("line", (4,), ("x",))
GRID = DeviceMesh("grid", (2, 4), ("x", "y"))


def tensor(*shape: int) -> wf.TensorType:
    return wf.TensorType(shape, np.dtype("float32"))


def spec(mesh: DeviceMesh, *axes: str | tuple[str, ...] | None) -> ShardingSpec:
    return ShardingSpec.of(mesh, P(*axes), len(axes))


def network(x: Any, a: Any, b: Any) -> Any:
    return wf.tanh(x @ a) @ b


def training_step(x: Any, a: Any, b: Any) -> Any:
    ga, gb = wf.grad(lambda a, b: (network(x, a, b) ** 2).mean(), argnums=(0, 1))(a, b)
    return a - 0.1 * ga, b - 0.1 * gb


TIES = ((1, 0), (2, 1))


def matmuls(trace: Any) -> list[int]:
    return [i for i, node in enumerate(trace.nodes) if node.name == "matmul"]


@pytest.mark.promise("S3.5")
def test_a_big_batch_with_small_weights_is_data_parallel() -> None:
    trace = wf.trace(training_step, tensor(65536, 256), tensor(256, 256), tensor(256, 256))
    found = SimpleSolver().solve(problem_of(trace, LINE, ties=TIES))
    assert str(found.inputs[0]) == "[x, ·]"
    first, second, *_ = matmuls(trace)
    assert str(found.nodes[first, 0]) == str(found.nodes[second, 0]) == "[x, ·]"
    assert found.operands[first, 1].is_whole


@pytest.mark.promise("S3.5")
def test_a_small_batch_with_big_weights_is_split_by_column_then_by_row() -> None:
    trace = wf.trace(network, tensor(64, 8192), tensor(8192, 32768), tensor(32768, 8192))
    found = SimpleSolver().solve(problem_of(trace, LINE))
    assert [str(s) for s in found.inputs[1:]] == ["[·, x]", "[x, ·]"]
    first, second = matmuls(trace)
    assert str(found.nodes[first, 0]) == "[·, x]"
    assert found.nodes[second, 0].pending == (("x", "sum"),)
    assert not found.outputs[0].pending


def test_both_at_once_on_a_mesh_of_two_axes() -> None:
    # The batch comes split along x; the weights are best split along y.
    links = {"x": "infiniband", "y": "nvlink"}
    trace = wf.trace(training_step, tensor(24576, 4096), tensor(4096, 16384), tensor(16384, 4096))
    batch = {0: spec(GRID, "x", None)}
    problem = problem_of(trace, GRID, ties=TIES, in_specs=batch)
    found = SimpleSolver(links=links, gap=0.0).solve(problem)
    first, second, *_, weights = matmuls(trace)
    assert [str(found.operands[m, 1]) for m in (first, second)] == ["[·, y]", "[y, ·]"]
    assert str(found.nodes[first, 0]) == "[x, y]"
    assert str(found.nodes[second, 0]) == "[x, ·] pending sum over y"
    assert found.nodes[weights, 0].pending == (("x", "sum"),)
    assert found.outputs == found.inputs[1:3]


def deep(x: Any, *weights: Any) -> Any:
    for w in weights:
        x = wf.tanh(x @ w)
    return x


def deep_step(x: Any, *weights: Any) -> Any:
    grads = wf.grad(lambda *w: (deep(x, *w) ** 2).mean(), argnums=tuple(range(6)))(*weights)
    return tuple(w - 0.1 * g for w, g in zip(weights, grads, strict=True))


def test_parameters_are_sharded_where_memory_is_short() -> None:
    trace = wf.trace(deep_step, tensor(16384, 2048), *[tensor(2048, 2048)] * 6)
    ties = [(i + 1, i) for i in range(6)]
    whole = {0: spec(LINE, "x", None)} | {i + 1: spec(LINE, None, None) for i in range(6)}
    copies = SimpleSolver().solve(problem_of(trace, LINE, ties=ties, in_specs=whole))
    limit = copies.memory - 48 * 2**20  # six weights of 16 MiB, a quarter of each on a device
    with pytest.raises(ShardingError, match="smallest achievable"):
        SimpleSolver(memory=limit).solve(problem_of(trace, LINE, ties=ties, in_specs=whole))
    batch = {0: whole[0]}
    found = SimpleSolver(memory=limit).solve(problem_of(trace, LINE, ties=ties, in_specs=batch))
    assert found.memory <= limit
    assert sum(not s.is_whole for s in found.inputs[1:7]) >= 4
    gathered = [m for m in matmuls(trace)[:6] if found.operands[m, 1].is_whole]
    assert len(gathered) == 6  # the batch stays split, weights are gathered where they are used
    assert all(str(found.nodes[m, 0]) == "[x, ·]" for m in gathered)


@pytest.mark.promise("S3.8")
@pytest.mark.parametrize("axes", [("x", None), (None, "x"), (None, None), (None, ("x",))])
def test_what_the_user_fixed_stays(axes: tuple[Any, ...]) -> None:
    trace = wf.trace(network, tensor(64, 512), tensor(512, 512), tensor(512, 512))
    first, _ = matmuls(trace)
    fixed = spec(LINE, *axes)
    problem = problem_of(
        trace, LINE, in_specs={1: fixed, 2: fixed}, fixed={(first, 0): fixed}, out_specs={0: fixed}
    )
    found = SimpleSolver().solve(problem)
    assert found.inputs[1] == found.inputs[2] == found.nodes[first, 0] == found.outputs[0] == fixed


@pytest.mark.promise("S3.8")
def test_what_the_function_shards_itself_stays() -> None:
    fixed = P(None, "x")
    trace = wf.trace(lambda x: wf.exp(wf.sin(x).shard(LINE, fixed)), tensor(4096, 4096))
    (position,) = (i for i, node in enumerate(trace.nodes) if "shard" in node.name)
    found = SimpleSolver().solve(problem_of(trace, LINE))
    assert found.nodes[position, 0] == spec(LINE, None, "x")


def test_an_order_of_mesh_axes_that_the_solver_would_not_choose_is_kept() -> None:
    trace = wf.trace(network, tensor(64, 512), tensor(512, 512), tensor(512, 512))
    fixed = spec(GRID, ("y", "x"), None)
    found = SimpleSolver().solve(problem_of(trace, GRID, in_specs={1: fixed}))
    assert found.inputs[1] == fixed


def everything(problem: Any) -> tuple[float, int]:
    """The least time of all placements, by trying every one."""
    fabric = Fabric.of(problem.mesh)
    facts = Facts(problem, fabric)
    costs = Costs(problem, fabric, DEVICES["h100"], facts)
    options = []
    for v, rules in enumerate(facts.rules):
        free = rules.candidates(carries=True)
        options.append([rules.replicated()] if facts.is_free[v] else free)
    best, tried = float("inf"), 0
    for choice in product(*options):
        outputs = []
        for v, slot in problem.outputs:
            kind = problem.type((v, slot))
            layout = choice[v].outputs[slot]
            outputs.append(resolved(fabric, layout, kind.shape, kind.dtype.itemsize))
        if not possible(problem, choice):
            continue
        tried += 1
        best = min(best, evaluate(costs, Placement(choice, tuple(outputs))).seconds)
    return best, tried


def possible(problem: Any, choice: Any) -> bool:
    return all(
        set(choice[v].inputs[k].pending) <= set(choice[u].outputs[slot].pending)
        for v, node in enumerate(problem.nodes)
        for k, (u, slot) in enumerate(node.inputs)
    )


TINY = {
    "matmul": (lambda a, b: a @ b, (tensor(64, 4096), tensor(4096, 64))),
    "matmul, large result": (lambda a, b: a @ b, (tensor(4096, 64), tensor(64, 4096))),
    "two matmuls": (lambda a, b, c: a @ b @ c, (tensor(32, 99), tensor(99, 999), tensor(999, 32))),
    "sum of products": (lambda a, b: (a @ b) + (b @ a), (tensor(512, 512), tensor(512, 512))),
    "sum": (lambda a, b: (a * b).sum(axis=0), (tensor(4096, 64), tensor(4096, 64))),
}  # fmt: skip


@pytest.mark.parametrize("name", TINY)
def test_the_optimum_is_that_of_trying_everything(name: str) -> None:
    function, types = TINY[name]
    problem = problem_of(wf.trace(function, *types), LINE)
    best, tried = everything(problem)
    assert tried > 10
    assert SimpleSolver(gap=0.0).solve(problem).seconds == pytest.approx(best, rel=1e-6)


def least(program: Any, cost: Any, rows: list[Row]) -> float:
    """The smallest value of a cost under the program's rows and these."""
    matrix = _constraints([*program.rows, *rows], program.count)
    objective = np.array([cost.get(v, 0.0) for v in range(program.count)])
    scale = objective.max()
    bounds = optimize.Bounds(0, 1)
    return float(optimize.milp(objective / scale, constraints=matrix, bounds=bounds).fun * scale)


@pytest.mark.parametrize("mesh", [LINE, GRID], ids=["line", "grid"])
def test_the_program_and_the_evaluation_agree_on_time_and_memory(mesh: DeviceMesh) -> None:
    trace = wf.trace(training_step, tensor(512, 256), tensor(256, 1024), tensor(1024, 256))
    search = Search(SimpleSolver(gap=0.0), problem_of(trace, mesh, ties=TIES))
    program = search.builder.program
    outcome = search._solve(program.cost, [])
    assert outcome is not None
    found = evaluate(search.costs, search.builder.placement(outcome.chosen))
    fixed = [
        Row({first + outcome.chosen[c]: 1.0}, 1.0, 1.0) for c, first in enumerate(program.first)
    ]
    for cost, expected in (
        (program.cost, found.seconds),
        (search.builder.memory_at(20), found.memory[20]),
    ):
        assert least(program, cost, fixed) == pytest.approx(expected, rel=1e-3)
    limit = found.peak
    again = SimpleSolver(gap=0.0, memory=limit).solve(problem_of(trace, mesh, ties=TIES))
    assert again.seconds == pytest.approx(found.seconds, rel=1e-6)


@pytest.mark.promise("S3.6")
@pytest.mark.parametrize("mesh", [LINE, GRID], ids=["line", "grid"])
def test_calls_on_operands_as_wanted_propagate_to_what_was_chosen(mesh: DeviceMesh) -> None:
    trace = wf.trace(training_step, tensor(512, 256), tensor(256, 1024), tensor(1024, 256))
    problem = problem_of(trace, mesh, ties=TIES)
    found = SimpleSolver().solve(problem)
    for i, node in enumerate(problem.nodes[problem.inputs :]):
        sign = node.signature
        operands = [found.operands[i, k] for k in range(len(node.inputs))]
        passing = Passing(sign.linear == "jointly", sign.linear == "each", sign.view)
        done = propagate(sign.factors, sign.sizes, operands, sign.combine, passing)
        assert list(done.inputs) == operands
        for slot, made in enumerate(done.outputs):
            steps = reshard_cost(
                made, found.nodes[i, slot], node.signature.results[slot].shape, "f4"
            )
            assert all(step.kind == "slice" for step in steps.steps)  # of what a call repeats


@pytest.mark.promise("S3.4")
def test_a_problem_goes_through_json_unchanged() -> None:
    trace = wf.trace(training_step, tensor(512, 256), tensor(256, 1024), tensor(1024, 256))
    text = graph_to_json(trace, GRID, in_specs={0: spec(GRID, "x", None)}, ties=TIES)
    again = problem_from_json(text)
    assert again.to_json() == text
    direct, read = (SimpleSolver().solve(p) for p in (problem_from_json(text), text))
    assert direct.seconds == read.seconds
    assert read.inputs[0] == spec(GRID, "x", None)
    assert "test_solver.py" in text  # the user's lines are there


def test_json_of_something_else_is_refused() -> None:
    for text in ("{}", '{"format": "other", "version": 1}', "[1]", "no json"):
        with pytest.raises(ArgumentError, match="sharding graph"):
            problem_from_json(text)


def test_a_limit_that_nothing_meets_is_an_error_with_the_smallest_achievable() -> None:
    trace = wf.trace(network, tensor(64, 512), tensor(512, 512), tensor(512, 512))
    problem = problem_of(trace, LINE)
    with pytest.raises(
        ShardingError, match=r"'line' \(x=4\).*97.66 KiB.*smallest achievable"
    ) as info:
        SimpleSolver(memory=100_000).solve(problem)
    least = float(str(info.value).split("achievable is ")[1].split()[0]) * 1024
    assert SimpleSolver(memory=least * 1.01).solve(problem).memory <= least * 1.01


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({0: ShardingSpec(LINE, (("z",), ()))}, "no axis 'z'"),
        ({0: ShardingSpec(LINE, (("x",),))}, "2 axes"),
        ({0: ShardingSpec(LINE, (("x",), ("x",)))}, "twice"),
        ({3: ShardingSpec(LINE, (("x",),))}, "too few"),
    ],
)
def test_specs_that_cannot_be_are_refused(bad: dict[int, Any], error: str) -> None:
    trace = wf.trace(lambda x, a, b, c: network(x, a, b) + c, *[tensor(8, 8)] * 3, tensor(1))
    with pytest.raises(ShardingError, match=error):
        problem_of(trace, LINE, in_specs=bad)


def test_odd_sizes_are_split_only_where_every_device_gets_something() -> None:
    trace = wf.trace(lambda x: wf.exp(x), tensor(3, 1000003))
    found = SimpleSolver().solve(problem_of(trace, LINE))
    assert str(found.outputs[0]) == "[·, x]"


@pytest.mark.parametrize(
    ("shape", "target", "split"),
    [
        ((8, 6), (48,), ["[·, ·]", "[x, ·]"]),  # along the outermost factor only
        ((6, 8), (48,), ["[·, ·]"]),  # 4 parts of 6 rows do not end where a row ends
        ((3, 5), (3, 5, 1), ["[·, ·]", "[·, x]"]),  # 3 are too few for 4 devices, 5 are enough
    ],
)
def test_a_call_is_split_only_where_its_pieces_exist(
    shape: tuple[int, ...], target: tuple[int, ...], split: list[str]
) -> None:
    trace = wf.trace(lambda x: x.reshape(target), tensor(*shape))
    problem = problem_of(trace, LINE)
    rules = Rules(problem.nodes[1].signature, Fabric.of(LINE))
    found = [str(ShardingSpec(LINE, each.inputs[0].axes)) for each in rules.candidates()]
    assert found == split


def test_ops_that_say_nothing_of_their_axes_stay_whole() -> None:
    def loop(x: Any) -> Any:
        return wf.fori_loop(0, 3, lambda i, y: y * 2.0, x)

    trace = wf.trace(loop, tensor(64, 64))
    found = SimpleSolver().solve(problem_of(trace, LINE))
    position = next(i for i, n in enumerate(trace.nodes) if n.name == "scan")
    assert all(
        found.operands[position, k].is_whole for k in range(len(trace.nodes[position].inputs))
    )


def test_three_mesh_axes_are_solved_together() -> None:
    mesh = DeviceMesh("cube", (2, 2, 2), ("x", "y", "z"))
    trace = wf.trace(network, tensor(4096, 1024), tensor(1024, 1024), tensor(1024, 1024))
    found = SimpleSolver().solve(problem_of(trace, mesh))
    first, _ = matmuls(trace)
    assert (
        np.prod([found.nodes[first, 0].parts(i) for i in (0, 1)])
        * 2 ** len(found.nodes[first, 0].pending)
        == 8
    )


@pytest.mark.parametrize(
    "bad", [{"memory": -1}, {"gap": "a"}, {"device": "abacus"}, {"time_limit": 0}]
)
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        SimpleSolver(**bad)
