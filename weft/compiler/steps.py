"""What a program is made of: steps, and the memory they pass results in.

A block is a list of steps; loops and branches have blocks of their own. `Memory` stands for one
result: where it lies is decided later, when the whole program is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from weft.compiler.kernels import Request
from weft.core.common.types import TensorType
from weft.core.graph.node import OutputRefs


@dataclass(eq=False)
class Memory:
    """One piece of memory: an input, an output, a constant, or a temporary of the program.

    What is `kept` is made of values that last, before the program runs, see `packs`.
    """

    kind: TensorType
    role: str = "temporary"
    position: int = 0  # among inputs or outputs; bytes before it, of what is kept
    data: Any = None  # of a constant
    lasts: bool = False  # whether an input has the same values in most runs

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return self.kind.nbytes


@dataclass(frozen=True, eq=False)
class Call:
    """One function of a kernel, on certain memory."""

    name: str
    request: Request
    number: int
    memory: tuple[Memory, ...]
    written: tuple[Memory, ...]
    points: int  # of its loops, for estimates
    work: int  # instructions at each point
    node: OutputRefs
    in_place: tuple[tuple[Memory, Memory], ...] = ()  # (read, written) that may be one
    members: tuple[OutputRefs, ...] = ()  # the calls that were fused into it
    is_part: bool = False  # whether others of its node write elsewhere in the same result
    copies: bool = False  # whether the second piece of memory becomes what the first one is


@dataclass(frozen=True, eq=False)
class HostCall:
    """A call that runs its reference in Python."""

    node: OutputRefs
    inputs: tuple[Memory, ...]
    outputs: tuple[Memory, ...]


@dataclass(frozen=True, eq=False)
class Reserve:
    """Ask where the terms of a `share_world` lie in this run: its own, then those of others."""

    node: OutputRefs
    places: tuple[Memory, ...]


@dataclass(frozen=True, eq=False)
class Copy:
    """The bytes of one piece of memory in another."""

    source: Memory
    target: Memory


@dataclass(frozen=True, eq=False)
class Carry:
    """What a step of a loop reads `now` and its next one reads `then`.

    Usually these are two pieces of memory that change places, the first of which is `home`, where
    the value lies before and after the loop. A step's part of something is not written `then`: it
    is read where it lies, and `now` is no memory but a place.
    """

    now: Memory
    then: Memory
    home: Memory

    @property
    def changes(self) -> bool:
        """Whether both pieces of memory change places."""
        return self.now is self.home


@dataclass(frozen=True, eq=False)
class ScanLoop:
    """`length` runs of a body; slices move along."""

    node: OutputRefs
    length: int
    reverse: bool
    carries: tuple[Carry, ...]
    slices: tuple[tuple[Memory, Memory], ...]  # a step's part, the whole
    body: tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class Repeat:
    """Runs of a body while the condition's result holds."""

    node: OutputRefs
    carries: tuple[Carry, ...]
    condition: tuple[Step, ...]
    holds: Memory
    body: tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class Choice:
    """One of several blocks, chosen by an integer."""

    node: OutputRefs
    index: Memory
    branches: tuple[tuple[Step, ...], ...]


@dataclass(frozen=True)
class Private:
    """Memory of which only the rows of one panel exist at a time, one set for each worker."""

    memory: Memory
    offset: int  # in the worker's part of the scratch memory
    row_bytes: int


@dataclass(frozen=True, eq=False)
class Panels:
    """Calls that run one after another on a panel of rows, then on the next one.

    Threads share the panels, or the batches where panels follow each other `in_order`. `shares` has
    for each call its tasks in a batch and in a panel.
    """

    calls: tuple[Call, ...]
    shares: tuple[tuple[int, int], ...]
    private: tuple[Private, ...]
    scratch: Memory  # of all workers
    workers: int
    batches: int
    rows: int  # of a batch
    height: int  # rows of a panel; the last one of a batch may have fewer
    in_order: bool = False

    @property
    def panels(self) -> int:
        """Panels in a batch."""
        return -(-self.rows // self.height)


Step: TypeAlias = Call | HostCall | Reserve | Copy | ScanLoop | Repeat | Choice | Panels
