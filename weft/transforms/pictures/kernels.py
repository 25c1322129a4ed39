"""Which calls of a trace become one kernel, and what the whole program costs.

The steps of an executable are read, so what is drawn is what runs. Times are the compiler's own
estimates for one thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weft.compiler.cost import Work, estimate, work_of
from weft.compiler.executable import Executable
from weft.compiler.native import Native
from weft.compiler.place import blocks
from weft.compiler.steps import Call, Choice, HostCall, Panels, Repeat, ScanLoop, Step
from weft.compiler.stored import Stored
from weft.core.graph.node import OutputRefs


@dataclass(eq=False)
class Fused:
    """Calls that run as one: mostly one kernel, sometimes two or three in a row."""

    members: tuple[OutputRefs, ...]
    trips: int  # how often loops around it run it
    names: list[str] = field(default_factory=list)
    work: Work = field(default_factory=lambda: Work(0, 0, 0))  # of one run
    nanoseconds: float = 0.0

    def add(self, name: str, call: Call) -> None:
        """Count one more kernel."""
        done = work_of(call)
        self.names.append(name)
        self.work = Work(
            self.work.flops + done.flops,
            self.work.read + done.read,
            self.work.written + done.written,
        )
        self.nanoseconds += estimate(call)


@dataclass
class Kernels:
    """What an executable runs; loops of unknown length count once, choices with every branch."""

    fused: list[Fused] = field(default_factory=list)
    of: dict[OutputRefs, Fused] = field(default_factory=dict)
    hosts: set[OutputRefs] = field(default_factory=set)
    arena: int = 0

    @property
    def count(self) -> int:
        """How many kernels there are."""
        return sum(len(each.names) for each in self.fused)

    @property
    def work(self) -> Work:
        """Arithmetic and bytes of one run of the program."""
        return Work(
            sum(each.trips * each.work.flops for each in self.fused),
            sum(each.trips * each.work.read for each in self.fused),
            sum(each.trips * each.work.written for each in self.fused),
        )

    @property
    def nanoseconds(self) -> float:
        """About how long one run takes on one thread."""
        return sum(each.trips * each.nanoseconds for each in self.fused)


def kernels_of(executable: Executable) -> Kernels | None:
    """What an executable runs; None if every call runs by itself, on its reference."""
    if isinstance(executable, Stored):
        executable = executable.whole
    if not isinstance(executable, Native):
        return None
    found = Kernels(arena=executable.placement.arena)
    names = {call: name for name, call in executable.calls.items()}
    _collect(executable.steps, 1, names, found)
    return found


def _collect(steps: Sequence[Step], trips: int, names: Mapping[Call, str], found: Kernels) -> None:
    for step in steps:
        if isinstance(step, Call):
            # The end of a shared reduction has no members: it belongs to the kernel before it.
            last = found.fused[-1] if found.fused else None
            if last is None or (step.members and step.members != last.members):
                last = Fused(step.members, trips)
                found.fused.append(last)
                for node in step.members:
                    found.of.setdefault(node, last)  # what others compute again is drawn once
            last.add(names[step], step)
        elif isinstance(step, Panels):
            _collect(step.calls, trips, names, found)
        elif isinstance(step, HostCall):
            found.hosts.add(step.node)
        elif isinstance(step, ScanLoop | Repeat | Choice):
            inner = trips * step.length if isinstance(step, ScanLoop) else trips
            for block in blocks(step):
                _collect(block, inner, names, found)
