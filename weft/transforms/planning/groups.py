"""Which calls decide together: light calls follow an operand, views go where they are wanted.

A group has one list of strategies; each member's strategy follows from its number in that list.
The head chooses freely. A light call (elementwise, reduction) follows the light call before it. A
view with one user, such as a transposed weight or a broadcast bias, comes out as its user wants it.
"""

from __future__ import annotations

from weft.core.sharding.cost import Fabric
from weft.core.sharding.steps import Layout
from weft.transforms.planning.facts import Facts
from weft.transforms.planning.problem import Problem, Ref
from weft.transforms.planning.strategies import Rules, Strategy

_SMALL = 8  # how many times smaller than its group's head a value is reduced without ado


class Groups:
    """For each node its group, and its strategy for each of the group's choices."""

    def __init__(self, problem: Problem, fabric: Fabric, facts: Facts) -> None:
        self.problem, self.fabric, self.facts = problem, fabric, facts
        self.nodes = problem.nodes
        self.group = [-1] * len(self.nodes)
        self.strategies: list[list[Strategy]] = [[] for _ in self.nodes]
        self.heads: list[int] = []
        # Calls alike share one list, so that what is derived from it is derived once.
        self._candidates: dict[tuple[Rules, bool], list[Strategy]] = {}
        self._replicated: dict[Rules, list[Strategy]] = {}
        self._derived: dict[tuple[Rules, int, int, int], list[Strategy] | None] = {}
        self._lists: dict[tuple[Strategy, ...], list[Strategy]] = {}
        self._held = {v for v, _ in problem.fixed}  # calls whose result the user has placed
        waiting = [v for v in range(len(self.nodes)) if not self._settle(v)]
        for v in reversed(waiting):
            if not self._lead(v):
                self._head(v)

    def _settle(self, v: int) -> bool:
        """Give a call its group, unless it is a view that waits for its user's."""
        facts, rules = self.facts, self.facts.rules[v]
        if facts.is_free[v] and v not in self._held:
            self._open(v, self._replicated.setdefault(rules, [rules.replicated()]))
        elif v in self._held or self.nodes[v].signature.op == "input":
            self._head(v)
        elif not (rules.is_light and self._follow(v)):
            if self._waits(v):
                return False
            self._head(v)
        return True

    def _waits(self, v: int) -> bool:
        """Whether a view is to go where it is wanted: by one user, or repeated for several."""
        rules, uses = self.facts.rules[v], self.facts.uses.get((v, 0), [])
        if not rules.signature.view or not rules.leads or any(use.node < 0 for use in uses):
            return False
        return len(uses) == 1 or (bool(uses) and not rules.is_light)

    def _open(self, v: int, strategies: list[Strategy]) -> None:
        self.group[v] = len(self.heads)
        self.heads.append(v)
        self.strategies[v] = strategies

    def _head(self, v: int) -> None:
        rules = self.facts.rules[v]
        fixed = [self.problem.fixed.get((v, s)) for s in range(len(rules.signature.results))]
        if rules.signature.op == "input" and fixed[0] is not None:
            self._open(v, [Strategy((), (fixed[0],), 1.0)])
            return
        carries = bool(rules.carriers) and all(
            self._may_wait(self.nodes[v].inputs[k]) for k in rules.carriers
        )
        key = rules, carries
        if key not in self._candidates:
            self._candidates[key] = rules.candidates(carries)
        self._open(v, self._candidates[key])

    def _may_wait(self, ref: Ref) -> bool:
        """Whether a value may be a sum still to be done."""
        v, slot = ref
        if ref in self.problem.fixed:
            return bool(self.problem.fixed[ref].pending)
        if self.group[v] < 0:  # a view that waits for its user's group
            return self._may_wait(self.nodes[v].inputs[0])
        return any(
            kind == "sum" for each in self.strategies[v] for _, kind in each.outputs[slot].pending
        )

    def _follow(self, v: int) -> bool:
        """Join the group of the largest light operand whose every layout this call can take."""
        rules, inputs = self.facts.rules[v], self.nodes[v].inputs
        size = [t.size for t in rules.signature.operands]
        for k in sorted(range(len(inputs)), key=lambda k: -size[k]):
            u, slot = inputs[k]
            if self.group[u] < 0 or not self._leads_on(u):
                continue
            key = rules, k, id(self.strategies[u]), slot
            if key not in self._derived:
                small = _SMALL * rules.signature.operands[k].size <= self._size(self.group[u])
                found = [rules.follow(k, each.outputs[slot], small) for each in self.strategies[u]]
                self._derived[key] = self._list(found)
            if self._join(v, u, self._derived[key]):
                return True
        return False

    def _join(self, v: int, other: int, strategies: list[Strategy] | None) -> bool:
        if strategies is None:
            return False
        self.group[v] = self.group[other]
        self.strategies[v] = strategies
        return True

    def _leads_on(self, u: int) -> bool:
        return self.facts.rules[u].is_light and not self.facts.is_free[u] and u not in self._held

    def _lead(self, v: int) -> bool:
        """Join the group of a view's users, and come out as they want it."""
        rules, uses = self.facts.rules[v], self.facts.uses[v, 0]
        if len({self.group[use.node] for use in uses}) > 1:
            return False
        found: list[list[Strategy] | None] = []
        for use in uses:
            wishes = self.strategies[use.node]
            key = rules, use.operand, id(wishes), -1
            if key not in self._derived:
                led = [rules.lead(each.inputs[use.operand]) for each in wishes]
                self._derived[key] = self._list(led)
            found.append(self._derived[key])
        same = all(each is found[0] for each in found)
        return same and self._join(v, uses[0].node, found[0])

    def _size(self, group: int) -> int:
        head = self.nodes[self.heads[group]].signature
        return max(kind.size for kind in (*head.operands, *head.results))

    def _list(self, found: list[Strategy | None]) -> list[Strategy] | None:
        """The list, if nothing is missing in it; equal ones are one object."""
        there = [each for each in found if each is not None]
        return self._lists.setdefault(tuple(there), there) if len(there) == len(found) else None


def resolved(fabric: Fabric, layout: Layout, shape: tuple[int, ...], itemsize: int) -> Layout:
    """The nearest layout without pending reductions: what a result that nobody placed becomes."""
    if not layout.pending:
        return layout
    axes = layout.axes
    for axis, _ in layout.pending:
        options = [
            (*axes[:i], (*mine, axis), *axes[i + 1 :])
            for i, mine in enumerate(axes)
            if shape[i] % fabric.parts((*mine, axis)) == 0
        ]
        axes = options[0] if options else axes
    scattered, plain = Layout(axes), Layout(layout.axes)
    costs = [fabric.reshard_seconds(layout, t, shape, itemsize) for t in (plain, scattered)]
    return scattered if (costs[1] or 0.0) < (costs[0] or 0.0) else plain
