"""What a placement costs: seconds of each call, every collective, and memory over time.

A `Placement` says how every value lies and how every call wants its operands. The prediction adds
compute and communication without overlap, and assumes one device's largest piece everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from weft.core.sharding.cost import Fabric
from weft.core.sharding.profiles import DeviceProfile
from weft.core.sharding.steps import Layout, Step
from weft.transforms.planning.facts import Cluster, Facts, Use
from weft.transforms.planning.problem import Problem, Ref, Signature
from weft.transforms.planning.strategies import Strategy, local_bytes


@dataclass(frozen=True)
class Placement:
    """One strategy for each node, and how each output is handed over."""

    strategies: tuple[Strategy, ...]
    outputs: tuple[Layout, ...]


class Move(NamedTuple):
    """A change of layout: of which value, from where to where, for whom, by which collectives."""

    ref: Ref
    source: Layout
    target: Layout
    users: tuple[Use, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Evaluation:
    """What a placement costs."""

    compute: tuple[float, ...]  # seconds of each node
    moves: tuple[Move, ...]
    communication: float  # seconds of all moves
    memory: tuple[int, ...]  # bytes of one device while each node runs, and at the end
    flops: float  # operations of one device

    @property
    def seconds(self) -> float:
        """Predicted time of one run."""
        return sum(self.compute) + self.communication

    @property
    def peak(self) -> int:
        """The most bytes one device holds."""
        return max(self.memory)


class Costs:
    """Costs of strategies and of changes of layout in one problem."""

    def __init__(
        self, problem: Problem, fabric: Fabric, profile: DeviceProfile, facts: Facts
    ) -> None:
        self.problem, self.fabric, self.profile, self.facts = problem, fabric, profile, facts
        self.reads = [
            tuple(k for k in range(len(node.inputs)) if facts.is_read(v, k))
            for v, node in enumerate(problem.nodes)
        ]
        self.stores = [
            tuple(s for s in range(len(node.signature.results)) if facts.is_stored((v, s)))
            for v, node in enumerate(problem.nodes)
        ]
        self.reshard = lru_cache(maxsize=None)(fabric.reshard_seconds)
        self.compute = lru_cache(maxsize=None)(self._compute)

    def of_call(self, v: int, strategy: Strategy) -> float:
        """Seconds of one call on one device."""
        sign = self.problem.nodes[v].signature
        if sign.op == "input" or sign.view or self.facts.is_free[v]:
            return 0.0
        return self.compute(sign, strategy, self.reads[v], self.stores[v])

    def _compute(
        self, sign: Signature, strategy: Strategy, reads: tuple[int, ...], stores: tuple[int, ...]
    ) -> float:
        from_memory = [(sign.operands[k], strategy.inputs[k]) for k in reads]
        to_memory = [(sign.results[s], strategy.outputs[s]) for s in stores]
        traffic = sum(local_bytes(self.fabric, *each) for each in (*from_memory, *to_memory))
        dtype = sign.results[0].dtype.name
        return self.profile.seconds(sign.flops * strategy.share, traffic, dtype)

    def of_change(self, ref: Ref, source: Layout, target: Layout) -> float | None:
        """Seconds to turn one layout of a value into another; None where there is no way."""
        if source == target:
            return 0.0
        kind = self.problem.type(ref)
        return self.reshard(source, target, kind.shape, kind.dtype.itemsize)

    def nbytes(self, ref: Ref, layout: Layout) -> int:
        """Bytes of one device's piece of a value."""
        return local_bytes(self.fabric, self.problem.type(ref), layout)


def evaluate(costs: Costs, placement: Placement) -> Evaluation:
    """Add up what a placement costs."""
    problem, facts = costs.problem, costs.facts
    compute = tuple(costs.of_call(v, s) for v, s in enumerate(placement.strategies))
    change = [0] * (facts.end + 2)
    for v, strategy in enumerate(placement.strategies):
        for slot in costs.stores[v]:
            start, end = facts.lifetime((v, slot))
            given = problem.fixed.get((v, slot), strategy.outputs[slot])
            nbytes = costs.nbytes((v, slot), given)
            if start <= end:
                change[start] += nbytes
                change[end + 1] -= nbytes
    moves = []
    for move, start, end in _moves(costs, placement):
        moves.append(move)
        nbytes = costs.nbytes(move.ref, move.target)
        change[start] += nbytes
        change[end + 1] -= nbytes
    fabric = costs.fabric
    return Evaluation(
        compute,
        tuple(moves),
        sum((fabric.seconds(step) for move in moves for step in move.steps), 0.0),
        tuple(accumulate(change))[: facts.end + 1],
        sum(
            node.signature.flops * strategy.share
            for node, strategy in zip(problem.nodes, placement.strategies, strict=True)
        ),
    )


def _moves(costs: Costs, placement: Placement) -> Iterator[tuple[Move, int, int]]:
    """Every change of layout that communicates, and how long its result is needed."""
    problem, facts = costs.problem, costs.facts
    for (v, slot), target in problem.fixed.items():
        made = placement.strategies[v].outputs[slot]
        if move := _move(costs, (v, slot), made, target, ()):
            yield move, v, v - 1  # the piece that was made takes the place of the one kept
    for cluster in facts.clusters():
        v, slot = cluster.ref
        source = problem.fixed.get(cluster.ref, placement.strategies[v].outputs[slot])
        for target, users in _by_target(placement, cluster).items():
            if move := _move(costs, cluster.ref, source, target, tuple(users)):
                yield move, cluster.start, cluster.end


def _by_target(placement: Placement, cluster: Cluster) -> dict[Layout, list[Use]]:
    found: dict[Layout, list[Use]] = {}
    for use in cluster.uses:
        wanted = (
            placement.outputs[-1 - use.node]
            if use.node < 0
            else placement.strategies[use.node].inputs[use.operand]
        )
        found.setdefault(wanted, []).append(use)
    return found


def _move(
    costs: Costs, ref: Ref, source: Layout, target: Layout, users: tuple[Use, ...]
) -> Move | None:
    if source == target:
        return None
    kind = costs.problem.type(ref)
    steps = costs.fabric.steps(source, target, kind.shape, kind.dtype.itemsize)
    if all(step.kind == "slice" for step in steps):
        return None
    return Move(ref, source, target, users, tuple(steps))
