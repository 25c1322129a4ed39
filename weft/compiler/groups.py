"""Groups of calls that become one kernel, and what their calls read."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from weft.compiler.point import Point
from weft.core.common.types import Shape
from weft.core.graph.node import OutputRefs, Ref

FEW_ROWS = 8  # rows that are too few to share among threads,
LONG_ROW = 32_768  # where they are long


class Read:
    """One operand of a call, through views: a result and the index it is read at."""

    __slots__ = ("node", "point", "ref", "step")

    def __init__(self, ref: Ref, point: Point, step: int) -> None:
        self.ref = ref
        self.node = ref[0]  # the call that is read
        self.point = point
        self.step = step  # elements of the reader's space for each element read; 0: not in order


@dataclass(eq=False)
class Group:
    """Calls that become one kernel."""

    kind: str
    space: Shape
    members: list[OutputRefs] = field(default_factory=list)
    inner: int = 0  # elements in a row; 0 while nothing is reduced
    columns: tuple[int, ...] = ()  # reduced axes, where they are not the last ones
    rows: set[OutputRefs] = field(default_factory=set)  # members that have one value for each row
    needs: set[Group] = field(default_factory=set)
    work: int = 0
    position: int = 0

    @property
    def size(self) -> int:
        """How many elements the space has."""
        return prod(self.space)

    def is_closed(self, inner: int) -> bool:
        """Whether a row's result can only be used when all rows are done: too few, too long."""
        return inner > LONG_ROW and self.size // max(inner, 1) < FEW_ROWS
