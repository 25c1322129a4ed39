"""What holds for a problem whatever the placement: who uses what and when, what memory is touched.

Calls run in the order of the nodes. Light calls (elementwise, reductions) near each other are taken
to be fused: what passes between them touches no memory. Uses of one value that are near each other
share one resharded copy; a use much later (the backward pass) fetches its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from weft.core.sharding.cost import Fabric
from weft.transforms.planning.problem import Problem, Ref, Signature
from weft.transforms.planning.strategies import Rules

_FUSED = 24  # calls between two light ones that still run as one kernel


class Use(NamedTuple):
    """A call (or, negative, output -1 - number) that reads a value as one of its operands."""

    node: int
    operand: int


class Cluster(NamedTuple):
    """Uses of one value near each other, and the time from the first to the end of the last."""

    ref: Ref
    uses: tuple[Use, ...]
    start: int
    end: int


class Facts:
    """Uses, life times and memory traffic of a problem."""

    def __init__(self, problem: Problem, fabric: Fabric) -> None:
        self.problem = problem
        self.nodes = problem.nodes
        self.end = len(problem.nodes)
        self.outputs = set(problem.outputs)
        self.tied = {problem.outputs[o] for _, o in problem.ties}
        known: dict[Signature, Rules] = {}
        for node in self.nodes:
            known.setdefault(node.signature, Rules(node.signature, fabric))
        self.rules = [known[node.signature] for node in self.nodes]
        self.uses: dict[Ref, list[Use]] = {}
        for v, node in enumerate(self.nodes):
            for k, ref in enumerate(node.inputs):
                self.uses.setdefault(ref, []).append(Use(v, k))
        for place, ref in enumerate(problem.outputs):
            self.uses.setdefault(ref, []).append(Use(-1 - place, 0))
        self.is_free = self._find_free()
        self._last_uses()

    def _find_free(self) -> list[bool]:
        """Calls on single elements, and views of them: every device has the value for nothing."""
        found: list[bool] = []
        for node in self.nodes:
            sign = node.signature
            single = all(t.size == 1 for t in (*sign.operands, *sign.results))
            of_free = sign.view and all(found[source] for source, _ in node.inputs)
            found.append(single or of_free)
        return found

    def _last_uses(self) -> None:
        """When the value of each node, or a view of it, is read last."""
        self.finish = list(range(self.end))
        for v in range(self.end - 1, -1, -1):
            for slot in range(len(self.nodes[v].signature.results)):
                for use in self.uses.get((v, slot), ()):
                    self.finish[v] = max(self.finish[v], self._over(use))

    def time(self, use: Use) -> int:
        """When a use happens."""
        return self.end if use.node < 0 else use.node

    def clusters(self) -> Iterator[Cluster]:
        """Uses of each value, cut where the time between two is long."""
        window = max(8, self.end // 16)
        for ref, uses in self.uses.items():
            ordered = sorted(uses, key=self.time)
            run: list[Use] = []
            for use in ordered:
                if run and self.time(use) - self.time(run[-1]) > window:
                    yield self._cluster(ref, run)
                    run = []
                run.append(use)
            yield self._cluster(ref, run)

    def _cluster(self, ref: Ref, run: list[Use]) -> Cluster:
        return Cluster(ref, tuple(run), self.time(run[0]), max(map(self._over, run)))

    def _over(self, use: Use) -> int:
        """When a copy made for this use is needed no more: a view keeps it."""
        view = use.node >= 0 and self.nodes[use.node].signature.view
        return self.finish[use.node] if view else self.time(use)

    def is_fused(self, source: int, use: Use) -> bool:
        """Whether a value passes from one call to the next in registers."""
        near = 0 <= use.node - source <= _FUSED
        return near and self.rules[source].is_light and self.rules[use.node].is_light

    def is_read(self, v: int, k: int) -> bool:
        """Whether operand k of call v comes from memory."""
        source, slot = self.nodes[v].inputs[k]
        if self.nodes[v].signature.view or self.nodes[source].signature.results[slot].size == 1:
            return False
        return not self.is_free[source] and not self.is_fused(source, Use(v, k))

    def is_stored(self, ref: Ref) -> bool:
        """Whether a result goes to memory of its own."""
        v, _ = ref
        if self.nodes[v].signature.view or self.is_free[v]:
            return False
        return not all(self.is_fused(v, use) for use in self.uses.get(ref, ()))

    def lifetime(self, ref: Ref) -> tuple[int, int]:
        """When a stored value is in memory: inputs always, results that update an input never."""
        v, _ = ref
        if self.nodes[v].signature.op == "input":
            return 0, self.end
        if ref in self.tied:
            return 0, -1
        return v, self.finish[v]
