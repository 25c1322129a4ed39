"""What groups read of each other: which results in the row at hand alone, and which elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from weft.compiler.fuse import Fusion
from weft.compiler.groups import Group
from weft.compiler.recompute import is_transpose
from weft.compiler.steps import Call, Step
from weft.core.common.types import TensorType
from weft.core.graph.node import OutputRefs, Ref

UPRIGHT = 48  # rows of a tile that is not turned, until it is known how many go into a panel


@dataclass(frozen=True)
class Share:
    """`tasks` of a batch; the least number of rows that some tasks compute whole, and how many."""

    tasks: int
    rows: int
    of_rows: int

    def tasks_of(self, height: int) -> int:
        """Tasks that compute so many rows, or what there is of them."""
        return min(-(-height // self.rows) * self.of_rows, self.tasks)


@dataclass(frozen=True, eq=False)
class Entry:
    """A group, what makes the steps it becomes, and what these read from memory.

    `local` has the results that are read in the row at hand, `other` those read elsewhere too. For
    a product, `summed` has those of which it sums over rows; `cut` makes it sum so many at a time,
    and its tiles so many rows tall. The tasks of other groups are a row each if they are cut.
    """

    group: Group
    make: Callable[[], tuple[Step, ...]]
    local: frozenset[OutputRefs]
    other: frozenset[OutputRefs]
    summed: frozenset[OutputRefs]
    cut: Callable[[int, int], Call | None]
    is_made: bool = False  # whether there are no other steps but these
    shares: dict[Rows, Share | None] = field(default_factory=dict)

    def with_steps(self, steps: tuple[Step, ...]) -> Entry:
        """The same group as these steps."""
        return replace(self, make=lambda: steps, is_made=True, shares={})

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The steps of a group that runs in no panel."""
        return self.make()

    @cached_property
    def reads(self) -> frozenset[OutputRefs]:
        """Everything that is read."""
        return self.local | self.other

    @cached_property
    def alone(self) -> tuple[Step, ...]:
        """The steps in a panel: a product that packs first is one kernel that packs as it goes.

        One with few columns, which is better computed as its transpose, is not turned there.
        """
        call = None if self.is_made else self.cut(0, 0)
        if call is not None and call.request.compiled.kernels[0].notes.get("rows") is None:
            call = self.cut(0, UPRIGHT) or call
        return self.steps if call is None else (call,)

    @cached_property
    def by_rows(self) -> Entry | None:
        """The same group with a task for each row, if its rows are written out otherwise."""
        call = self.steps[0] if self.group.kind == "loops" and len(self.steps) == 1 else None
        if not isinstance(call, Call):
            return None
        if not call.request.compiled.kernels[0].notes.get("rows_written"):
            return None
        made = self.cut(0, 1)
        return None if made is None else self.with_steps((made,))


@dataclass(frozen=True)
class Rows:
    """The rows that all members of a chain have."""

    batches: int
    rows: int

    @property
    def count(self) -> int:
        """Rows of all batches."""
        return self.batches * self.rows


def entry_of(
    fusion: Fusion,
    group: Group,
    make: Callable[[], tuple[Step, ...]],
    cut: Callable[[int, int], Call | None],
) -> Entry:
    """A group with what it reads from other groups."""
    found = _read_by(fusion, group, is_sum=False)
    local = frozenset(node for node, near in found.items() if near)
    summed: frozenset[OutputRefs] = frozenset()
    if group.kind == "dot":
        deep = _read_by(fusion, group, is_sum=True)
        summed = frozenset(node for node, near in deep.items() if near)
    return Entry(group, make, local, frozenset(found) - local, summed, cut)


def _read_by(fusion: Fusion, group: Group, is_sum: bool) -> dict[OutputRefs, bool]:
    """What a group reads, each with whether it does so in the row at hand alone.

    For a product that is a sum over rows, that is the row that it adds.
    """
    found: dict[OutputRefs, bool] = {}
    stack: list[tuple[OutputRefs, bool]] = [(node, True) for node in group.members]
    seen = set(stack)
    while stack:
        node, is_near = stack.pop()
        sources = _sources(fusion, node)
        if is_sum and node in group.members:
            sources = _summed_sources(fusion, node)
        for source, near in sources:
            if fusion.group.get(source) is group:
                continue
            here = source, is_near and near
            if source not in fusion.inline:
                found[source] = found.get(source, True) and here[1]
            elif here not in seen:
                seen.add(here)
                stack.append(here)
    return found


def _summed_sources(fusion: Fusion, node: OutputRefs) -> list[tuple[OutputRefs, bool]]:
    """What a member of a product reads, each with whether its rows are summed over."""
    if fusion.kinds[node] != "dot":
        return [(source, False) for source, _ in _sources(fusion, node)]
    rows = kind_of(node.inputs[1]).shape[:-1]
    made = []
    for ref, is_turned in zip(node.inputs, (True, False), strict=True):
        while fusion.kinds.get(ref[0]) == "view" and is_transpose(ref[0]):
            ref, is_turned = ref[0].inputs[0], not is_turned
        whole = not is_turned and kind_of(ref).shape[:-1] == rows
        whole = whole and fusion.kinds.get(ref[0]) != "view"
        made += [(source, whole) for source, _ in fusion.roots([ref])]
    return made


def _sources(fusion: Fusion, node: OutputRefs) -> list[tuple[OutputRefs, bool]]:
    """What a call reads, each with whether it reads only the row that it computes."""
    if fusion.kinds[node] == "dot":
        left, right = node.inputs
        whole = fusion.kinds.get(left[0]) != "view" and kind_of(left).shape[:-1] == lead_of(node)
        near = [(source, whole) for source, _ in fusion.roots([left])]
        return near + [(source, False) for source, _ in fusion.roots([right])]
    return [(r.node, r.step > 0) for r in fusion.reads[node]]


def lead_of(node: OutputRefs) -> tuple[int, ...]:
    """The sizes of a result but for the last axis."""
    return node.types[0].shape[:-1]


def kind_of(ref: Ref) -> TensorType:
    """The shape and dtype of a result."""
    return ref[0].types[ref[1]]
