"""The integer program: one choice for each class of groups, least predicted time.

Groups that look alike with all their surroundings (repeated layers) form a class and choose alike.
Between two classes, continuous variables say which pair of layouts meets on an edge; they add up to
both choices, so only the choices are integers. Limits on memory are rows for the times that matter.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from weft.core.sharding.steps import Layout
from weft.transforms.planning.evaluate import Costs, Placement
from weft.transforms.planning.facts import Cluster, Use
from weft.transforms.planning.groups import Groups, resolved
from weft.transforms.planning.problem import Ref
from weft.transforms.planning.strategies import Strategy

Terms: TypeAlias = dict[int, float]  # variable: coefficient
Moves: TypeAlias = dict[tuple[Layout, Layout], Terms]  # terms that are 1 where the two meet
_ROUNDS = 6  # how far groups must look alike around them to choose alike
_TIE_BREAK = 1e-4
_SMALL = 48  # groups; below, every group chooses for itself


@dataclass(frozen=True, eq=False)
class Layouts:
    """A layout for each choice of a class; equal ones are one object."""

    owner: int
    each: tuple[Layout, ...]


@dataclass
class Row:
    """low <= sum of terms <= high."""

    terms: Terms
    low: float
    high: float


@dataclass
class Program:
    """Variables, costs and rows; choices are the first variables."""

    first: list[int] = field(default_factory=list)  # of each class
    choices: int = 0
    count: int = 0
    cost: Terms = field(default_factory=lambda: defaultdict(float))
    rows: list[Row] = field(default_factory=list)

    def variable(self) -> int:
        """A new variable between 0 and 1."""
        self.count += 1
        return self.count - 1


class Builder:
    """Builds the program of a problem, and reads its solution."""

    def __init__(self, costs: Costs, groups: Groups) -> None:
        self.costs, self.groups, self.facts = costs, groups, costs.facts
        self.problem = costs.problem
        self.strategies = groups.strategies
        self.category = classes(groups)  # the class of each group
        self.program = Program()
        self._tied = {o: i for i, o in self.problem.ties}
        self._pairs: dict[Any, Moves] = {}
        self._changes: dict[Any, tuple[Moves, Terms]] = {}
        self._interned: dict[Any, Layouts] = {}
        self._known: dict[Any, Layouts] = {}
        self.moves: list[tuple[Cluster, Moves]] = []
        self._choose()
        self._compute()
        for cluster in self.facts.clusters():
            self._communicate(cluster)

    def _choose(self) -> None:
        program = self.program
        size = {}
        for v, group in enumerate(self.groups.group):
            size[self.category[group]] = len(self.strategies[v])
        for category in range(len(size)):
            program.first.append(program.count)
            mine = [program.variable() for _ in range(size[category])]
            program.rows.append(Row(dict.fromkeys(mine, 1.0), 1.0, 1.0))
        program.choices = program.count

    def owner(self, v: int) -> int:
        """The class that decides about a node."""
        return self.category[self.groups.group[v]]

    def _compute(self) -> None:
        cost = self.program.cost
        for v, strategies in enumerate(self.strategies):
            first = self.program.first[self.owner(v)]
            for number, strategy in enumerate(strategies):
                cost[first + number] += self.costs.of_call(v, strategy) + self._storing(v, strategy)
        for ref, target in self.problem.fixed.items():
            v, slot = ref
            first = self.program.first[self.owner(v)]
            for number, strategy in enumerate(self.strategies[v]):
                seconds = self.costs.of_change(ref, strategy.outputs[slot], target)
                if seconds is None:
                    self.program.rows.append(Row({first + number: 1.0}, 0.0, 0.0))
                else:
                    cost[first + number] += seconds

    def _storing(self, v: int, strategy: Strategy) -> float:
        """Next to nothing, so that of equally fast placements the one with small inputs wins."""
        if self.problem.nodes[v].signature.op != "input":
            return 0.0
        nbytes = self.costs.nbytes((v, 0), strategy.outputs[0])
        return _TIE_BREAK * nbytes / self.costs.profile.bandwidth

    def given(self, ref: Ref) -> Layouts:
        """How a value lies, for each choice of its class."""
        v, slot = ref
        strategies, fixed = self.strategies[v], self.problem.fixed.get(ref)
        if fixed is not None:
            return self._layouts(self.owner(v), (fixed,) * len(strategies))
        key = self.owner(v), id(strategies), slot, "out"
        if key not in self._known:
            each = tuple(strategy.outputs[slot] for strategy in strategies)
            self._known[key] = self._layouts(self.owner(v), each)
        return self._known[key]

    def wanted(self, ref: Ref, use: Use) -> Layouts:
        """How a use wants the value, for each choice of the class that decides about it."""
        v, k = use
        if v < 0:
            return self._wanted_output(-1 - v, ref)
        strategies = self.strategies[v]
        key = self.owner(v), id(strategies), k, "in"
        if key not in self._known:
            each = tuple(strategy.inputs[k] for strategy in strategies)
            self._known[key] = self._layouts(self.owner(v), each)
        return self._known[key]

    def _layouts(self, owner: int, each: tuple[Layout, ...]) -> Layouts:
        return self._interned.setdefault((owner, each), Layouts(owner, each))

    def _wanted_output(self, place: int, ref: Ref) -> Layouts:
        given = self.given(ref)
        if place in self._tied:
            return self.given((self._tied[place], 0))
        if place in self.problem.fixed_outputs:
            fixed = self.problem.fixed_outputs[place]
            return self._layouts(given.owner, (fixed,) * len(given.each))
        kind = self.problem.type(ref)
        each = tuple(
            resolved(self.costs.fabric, layout, kind.shape, kind.dtype.itemsize)
            for layout in given.each
        )
        return self._layouts(given.owner, each)

    def _communicate(self, cluster: Cluster) -> None:
        ref = cluster.ref
        given = self.given(ref)
        wishes = frozenset(self.wanted(ref, use) for use in cluster.uses) - {given}
        key = given, wishes, self.problem.type(ref)
        if key not in self._changes:
            self._changes[key] = self._priced(ref, given, wishes)
        moves, cost = self._changes[key]
        for variable, seconds in cost.items():
            self.program.cost[variable] += seconds
        if moves:
            self.moves.append((cluster, moves))

    def _priced(self, ref: Ref, given: Layouts, wishes: frozenset[Layouts]) -> tuple[Moves, Terms]:
        """What the uses of a value may need to be moved, and what that costs."""
        ordered = sorted(wishes, key=lambda wish: (wish.owner, wish.each))
        found = [pairs for wish in ordered if (pairs := self._costly(ref, given, wish))]
        if not found:
            return {}, {}
        moves = found[0] if len(found) == 1 else self._shared(found)
        cost: Terms = defaultdict(float)
        for (source, target), indicator in moves.items():
            seconds = self.costs.of_change(ref, source, target)
            assert seconds is not None
            for variable, factor in indicator.items():
                cost[variable] += factor * seconds
        return moves, cost

    def _costly(self, ref: Ref, given: Layouts, wish: Layouts) -> Moves:
        """For each pair of layouts that costs something, the variables that say that it meets."""
        seconds = {
            (p, q): self.costs.of_change(ref, p, q)
            for p in dict.fromkeys(given.each)
            for q in dict.fromkeys(wish.each)
        }
        if not any(each is None or each > 0 for each in seconds.values()):
            return {}
        impossible = frozenset(pair for pair, each in seconds.items() if each is None)
        pairs = self._meeting(given, wish, impossible)
        return {pair: pairs[pair] for pair, each in seconds.items() if each and pair in pairs}

    def _meeting(
        self, given: Layouts, wish: Layouts, impossible: frozenset[tuple[Layout, Layout]]
    ) -> Moves:
        """Terms that are 1 where a pair of layouts meets, and rows that make them so."""
        key = given, wish, impossible
        if key not in self._pairs:
            same = given.owner == wish.owner or 1 in (len(given.each), len(wish.each))
            build = self._by_choice if same else self._by_pair
            self._pairs[key] = build(given, wish, impossible)
        return self._pairs[key]

    def _by_choice(
        self, given: Layouts, wish: Layouts, impossible: frozenset[tuple[Layout, Layout]]
    ) -> Moves:
        """One choice settles both ends."""
        owner = given.owner if len(given.each) > 1 else wish.owner
        first = self.program.first[owner]
        count = max(len(given.each), len(wish.each))
        found: Moves = defaultdict(dict)
        for number in range(count):
            pair = (
                given.each[number if len(given.each) > 1 else 0],
                wish.each[number if len(wish.each) > 1 else 0],
            )
            if pair in impossible:
                self.program.rows.append(Row({first + number: 1.0}, 0.0, 0.0))
            found[pair][first + number] = 1.0
        return dict(found)

    def _by_pair(
        self, given: Layouts, wish: Layouts, impossible: frozenset[tuple[Layout, Layout]]
    ) -> Moves:
        program = self.program
        found: Moves = {}
        rows: dict[tuple[int, Layout], Terms] = {}
        for side, layouts in enumerate((given, wish)):
            first = program.first[layouts.owner]
            for number, layout in enumerate(layouts.each):
                rows.setdefault((side, layout), {})[first + number] = -1.0
        for p in dict.fromkeys(given.each):
            for q in dict.fromkeys(wish.each):
                if (p, q) not in impossible:
                    variable = program.variable()
                    found[p, q] = {variable: 1.0}
                    rows[0, p][variable] = rows[1, q][variable] = 1.0
        program.rows += [Row(terms, 0.0, 0.0) for terms in rows.values()]
        return found

    def _shared(self, found: list[Moves]) -> Moves:
        """One copy for all uses that want the same: a variable not below any of them."""
        made: Moves = {}
        wanting = Counter(pair for each in found for pair in each)
        for pairs in found:
            for pair, terms in pairs.items():
                if wanting[pair] == 1:
                    made[pair] = terms
                    continue
                if pair not in made:
                    made[pair] = {self.program.variable(): 1.0}
                row = made[pair] | {variable: -factor for variable, factor in terms.items()}
                self.program.rows.append(Row(row, 0.0, 2.0))
        return made

    def memory_at(self, time: int) -> Terms:
        """Bytes one device holds at a time, as terms."""
        terms: Terms = defaultdict(float)
        for v, strategies in enumerate(self.strategies):
            for slot in self.costs.stores[v]:
                start, end = self.facts.lifetime((v, slot))
                if start <= time <= end:
                    first = self.program.first[self.owner(v)]
                    fixed = self.problem.fixed.get((v, slot))
                    for number, strategy in enumerate(strategies):
                        layout = fixed or strategy.outputs[slot]
                        terms[first + number] += self.costs.nbytes((v, slot), layout)
        for cluster, pairs in self.moves:
            if cluster.start <= time <= cluster.end:
                for (_, target), indicator in pairs.items():
                    nbytes = self.costs.nbytes(cluster.ref, target)
                    for variable, factor in indicator.items():
                        terms[variable] += factor * nbytes
        return dict(terms)

    def placement(self, chosen: Mapping[int, int]) -> Placement:
        """The strategies of all nodes, from the choice of each class."""
        strategies = tuple(each[chosen[self.owner(v)]] for v, each in enumerate(self.strategies))
        outputs = []
        for place, ref in enumerate(self.problem.outputs):
            wish = self.wanted(ref, Use(-1 - place, 0))
            outputs.append(wish.each[chosen[wish.owner]])
        return Placement(strategies, tuple(outputs))


def classes(groups: Groups) -> list[int]:
    """The class of each group: alike by head, by members, and by all around it."""
    count = len(groups.heads)
    if count <= _SMALL:
        return list(range(count))
    around: list[list[tuple[str, int, int]]] = [[] for _ in range(count)]
    for here, there, label in _edges(groups):
        around[here].append((">", label, there))
        around[there].append(("<", label, here))
    held = {groups.group[v]: groups.problem.fixed[v, s] for v, s in groups.problem.fixed}
    numbers: dict[Any, int] = {}
    members = Counter(groups.group)
    color = [
        numbers.setdefault(
            (groups.nodes[head].signature, _list(groups, head), members[g], held.get(g)),
            len(numbers),
        )
        for g, head in enumerate(groups.heads)
    ]
    for _ in range(_ROUNDS):
        numbers = {}
        color = [
            numbers.setdefault(
                (color[g], tuple(sorted((d, k, color[other]) for d, k, other in around[g]))),
                len(numbers),
            )
            for g in range(count)
        ]
    return color


def _list(groups: Groups, head: int) -> int:
    """Which list of strategies a head chooses from: heads of one class must share it."""
    found = groups.strategies[head]
    return id(found) if len(found) > 1 else 0


def _edges(groups: Groups) -> Iterator[tuple[int, int, int]]:
    """Edges between groups, labelled by what is read and where."""
    labels: dict[Any, int] = {}
    for v, node in enumerate(groups.nodes):
        for k, (u, slot) in enumerate(node.inputs):
            here, there = groups.group[u], groups.group[v]
            if here != there and not groups.facts.is_free[u]:
                label = (groups.nodes[u].signature, slot, node.signature, k)
                yield here, there, labels.setdefault(label, len(labels))
    ties = {o: i for i, o in groups.problem.ties}
    for place, (u, _) in enumerate(groups.problem.outputs):
        if place in ties:
            yield groups.group[u], groups.group[ties[place]], -1
