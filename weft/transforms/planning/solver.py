"""`SimpleSolver`: the placement of least predicted time, exactly, by integer programming (HiGHS).

Memory is limited where a solution exceeds it: the time of its peak becomes a row, and the program
is solved again, until nothing exceeds the limit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from weft.core.common.lazy import LazyModule
from weft.core.common.parameters import shown
from weft.core.common.spec import DeviceMesh, Link, ShardingSpec
from weft.core.sharding.cost import Fabric, spec_of
from weft.core.sharding.profiles import DeviceProfile, as_profile
from weft.errors import ArgumentError, ShardingError
from weft.transforms.planning.evaluate import Costs, Evaluation, Placement, evaluate
from weft.transforms.planning.facts import Facts
from weft.transforms.planning.groups import Groups
from weft.transforms.planning.problem import Problem, problem_from_json
from weft.transforms.planning.program import Builder, Row, Terms

optimize: Any = LazyModule("scipy.optimize")
sparse: Any = LazyModule("scipy.sparse")

_MOST_ROUNDS = 60
_NOTHING = 1e-11  # costs that are smaller, as a part of the largest, are taken for none


@dataclass(frozen=True)
class Solution:
    """Where everything goes. Calls have the numbers that `numbered` gives them.

    `inputs` has a spec for each trace input (captured tensors included); `nodes` for each
    (number of a call, slot); `operands` for each (number of a call, operand): how the call wants
    it, resharded before the call where it lies otherwise; `outputs` for each output.
    """

    mesh: DeviceMesh
    inputs: tuple[ShardingSpec, ...]
    nodes: Mapping[tuple[int, int], ShardingSpec]
    operands: Mapping[tuple[int, int], ShardingSpec]
    outputs: tuple[ShardingSpec, ...]
    seconds: float  # predicted time of one run
    memory: int  # predicted bytes of one device at the peak
    gap: float  # how far from the best the solver may still be, as a part of `seconds`
    solve_seconds: float


class SimpleSolver:
    """Finds the best sharding of a graph over a mesh.

    `memory` limits the bytes of one device. `links` maps mesh axes to a `Link` or its name. The
    result is within `gap` of the best, unless `time_limit` seconds end the search; it says so.
    """

    def __init__(
        self,
        *,
        device: str | DeviceProfile = "h100",
        links: Mapping[str, Any] | str | Link | None = None,
        memory: float | None = None,
        gap: float = 0.01,
        time_limit: float = 120.0,
    ) -> None:
        self.profile = as_profile("solver", device)
        self.links = links
        self.memory = _limit("memory", memory)
        self.gap = _limit("gap", gap, 0.0)
        self.time_limit = _limit("time_limit", time_limit)

    def solve(self, problem: Problem | str) -> Solution:
        """The best placement of a problem (or of its JSON)."""
        if isinstance(problem, str):
            problem = problem_from_json(problem)
        if not isinstance(problem, Problem):
            raise ArgumentError(f"solver: expected a problem or its JSON, got {shown(problem)}")
        search = Search(self, problem)
        placement, gap = search.best()
        found = evaluate(search.costs, placement)
        return solution_of(problem, placement, found, gap, search.spent())


class Search:
    """One run of the solver."""

    def __init__(self, solver: SimpleSolver, problem: Problem) -> None:
        self.start = time.perf_counter()
        self.solver, self.problem = solver, problem
        fabric = Fabric.of(problem.mesh, solver.links)
        facts = Facts(problem, fabric)
        self.costs = Costs(problem, fabric, solver.profile, facts)
        self.builder = Builder(self.costs, Groups(problem, fabric, facts))

    def spent(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.start

    def _left(self) -> float:
        """Seconds the next program may take: what is left, but enough to find something."""
        limit: float = self.solver.time_limit
        return max(limit - self.spent(), limit / 10)

    def best(self) -> tuple[Placement, float]:
        """The placement of least time within the limit, and the gap that is left."""
        limit = self.solver.memory
        times: set[int] = set()
        for _ in range(_MOST_ROUNDS):
            rows = [self._limited(t, limit) for t in sorted(times)]
            found = self._solve(self.builder.program.cost, rows)
            if found is None:
                raise self._infeasible(times)
            placement = self.builder.placement(found.chosen)
            if limit is None:
                return placement, found.gap
            memory = evaluate(self.costs, placement).memory
            if max(memory) <= limit:
                return placement, found.gap
            new = _peaks(memory, 0.9 * limit) - times  # those near the limit come next
            assert new, "a row holds where it was added"
            times |= new
        raise ShardingError(f"solver: no placement within {size_text(limit)} was found")

    def _limited(self, time: int, limit: float) -> Row:
        terms = self.builder.memory_at(time)
        return Row({v: c / limit for v, c in terms.items()}, -np.inf, 1.0)

    def _solve(self, cost: Terms, rows: list[Row], extra: int = 0) -> Outcome | None:
        """The choice of each class, or None where there is none."""
        program = self.builder.program
        count = program.count + extra
        scale = max(cost.values(), default=0.0) or 1.0
        objective = np.zeros(count)
        for variable, value in cost.items():
            objective[variable] = value / scale if value > _NOTHING * scale else 0.0
        integrality = np.zeros(count)
        integrality[: program.choices] = 1
        upper = np.ones(count)
        upper[program.count :] = np.inf
        result = optimize.milp(
            objective,
            integrality=integrality,
            bounds=optimize.Bounds(0, upper),
            constraints=_constraints([*program.rows, *rows], count),
            options={
                "mip_rel_gap": self.solver.gap,
                "time_limit": self._left(),
                "presolve": bool(rows),  # without limits on memory there is nothing to find
            },
        )
        if result.x is None:
            if result.status == 2:
                return None
            raise ShardingError(
                f"solver: nothing found within {self.solver.time_limit:g} s ({result.message})"
                "\nhint: give it more time (time_limit=…) or a mesh of fewer axes"
            )
        return Outcome(self._read(result.x), float(result.mip_gap or 0.0), float(result.x[-1]))

    def _read(self, values: Any) -> dict[int, int]:
        program = self.builder.program
        ends = [*program.first[1:], program.choices]
        return {
            category: int(np.argmax(values[first:end]))
            for category, (first, end) in enumerate(zip(program.first, ends, strict=True))
        }

    def _infeasible(self, times: set[int]) -> ShardingError:
        mesh, limit = self.problem.mesh, self.solver.memory
        grid = ", ".join(f"{a}={n}" for a, n in zip(mesh.axis_names, mesh.shape, strict=True))
        what = f"solver: mesh {mesh.name!r} ({grid})"
        if not times:
            return ShardingError(f"{what}: no placement keeps every fixed spec")
        return ShardingError(
            f"{what}: nothing fits into {size_text(limit)} a device; the smallest achievable is"
            f" {size_text(self._least_memory(times))}"
            "\nhint: use a larger mesh, checkpoint, or free inputs that are fixed as whole"
        )

    def _least_memory(self, times: set[int]) -> int:
        """The smallest peak a placement has, up to the gap; `times` are where peaks may be."""
        program, unit = self.builder.program, 2.0**20
        peak = program.count  # one more variable, not below the memory at any of the times
        least = 2**63
        while True:
            rows = []
            for each in sorted(times):
                terms = {v: -c / unit for v, c in self.builder.memory_at(each).items()}
                rows.append(Row(terms | {peak: 1.0}, 0.0, np.inf))
            found = self._solve({peak: 1.0}, rows, extra=1)
            assert found is not None
            memory = evaluate(self.costs, self.builder.placement(found.chosen)).memory
            least = min(least, max(memory))
            bound = found.last * unit * (1 + max(self.solver.gap, 1e-6))
            new = _peaks(memory, bound) - times
            if not new or least <= bound or self.spent() > 2 * self.solver.time_limit:
                return least
            times |= new


class Outcome(NamedTuple):
    """What one integer program gave: choices, the gap, and the value of the last variable."""

    chosen: dict[int, int]
    gap: float
    last: float


def _peaks(memory: tuple[int, ...], limit: float) -> set[int]:
    """The worst times above the limit: one in each stretch of the run."""
    stretch = max(1, len(memory) // 8)
    found = set()
    for start in range(0, len(memory), stretch):
        piece = range(start, min(start + stretch, len(memory)))
        top = max(piece, key=memory.__getitem__)
        if memory[top] > limit:
            found.add(top)
    return found


def _constraints(rows: list[Row], count: int) -> Any:
    data: list[float] = []
    columns: list[int] = []
    ends = [0]
    for row in rows:
        columns.extend(row.terms)
        data.extend(row.terms.values())
        ends.append(len(columns))
    matrix = sparse.csr_matrix((data, columns, ends), shape=(len(rows), count))
    low, high = [row.low for row in rows], [row.high for row in rows]
    return optimize.LinearConstraint(matrix, low, high)


def _limit(name: str, value: Any, low: float = 1e-9) -> Any:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= low:
        raise ArgumentError(f"solver: {name} must be a positive number, got {shown(value)}")
    return float(value)


def size_text(nbytes: float) -> str:
    """Bytes as people read them.

    >>> size_text(3 * 2**20)
    '3.00 MiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.3g} B" if unit == "B" else f"{nbytes:.2f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} TiB"


def solution_of(
    problem: Problem, placement: Placement, found: Evaluation, gap: float, spent: float
) -> Solution:
    """A placement in terms of the trace."""
    count, mesh = problem.inputs, problem.mesh
    nodes, operands = {}, {}
    for v, strategy in enumerate(placement.strategies):
        for slot, layout in enumerate(strategy.outputs):
            given = problem.fixed.get((v, slot), layout)
            nodes[v - count, slot] = spec_of(mesh, given)
        for k, layout in enumerate(strategy.inputs):
            operands[v - count, k] = spec_of(mesh, layout)
    inputs = tuple(nodes.pop((v - count, 0)) for v in range(count))
    outputs = tuple(spec_of(mesh, layout) for layout in placement.outputs)
    return Solution(mesh, inputs, nodes, operands, outputs, found.seconds, found.peak, gap, spent)
