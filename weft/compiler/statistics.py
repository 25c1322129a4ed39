"""What compiling cost and gave: `CompilationStats`, a compiled function's counters."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from time import perf_counter_ns

from weft.core.common.events import Event, tell, watchers

PHASES = ("trace", "recall", "optimise", "fuse", "lower", "emit", "compile", "link")


@dataclass(frozen=True)
class CompilationStats:
    """Counters of a compiled function: how often it was traced, what became of its graphs.

    The counts of nodes, kernels and bytes are sums over all graphs compiled so far.
    """

    traces: int = 0
    compilations: int = 0
    native_compilations: int = 0  # of these, in how many a kernel was new: the others share theirs
    from_disk: int = 0  # of these, how many were only read: nothing was lowered
    hits: int = 0  # calls that ran what was compiled before
    misses: int = 0
    evictions: int = 0
    nodes_before: int = 0
    nodes_after: int = 0
    dead: int = 0  # calls whose result nobody needed
    shared: int = 0  # calls that an equal one replaced
    folded: int = 0  # calls on constants, done while compiling
    simplified: int = 0  # calls that algebra removed or replaced
    kernels: int = 0
    regions: int = 0  # groups of calls that were fused
    bytes_planned: int = 0
    bytes_kept: int = 0  # of weights that are packed once for all calls
    milliseconds: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        counts = ", ".join(
            f"{each.name.replace('_', ' ')} {getattr(self, each.name)}"
            for each in fields(self)
            if each.name != "milliseconds"
        )
        times = ", ".join(f"{phase} {spent:.1f}" for phase, spent in self.milliseconds.items())
        return f"{counts}; ms: {times}"


@dataclass
class BuildCounts:
    """What building one executable counted; `milliseconds` by the names of `PHASES`."""

    kernels: int = 0
    regions: int = 0
    bytes_planned: int = 0
    bytes_kept: int = 0
    native_compilations: int = 0
    from_disk: int = 0
    milliseconds: dict[str, float] = field(default_factory=dict)


class Clock:
    """Milliseconds spent, by phase."""

    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = {}

    def __call__(self, phase: str) -> _Phase:
        """Inside, time is put down to `phase`."""
        return _Phase(self, phase)

    def add(self, milliseconds: Mapping[str, float]) -> None:
        """Put more time down."""
        for phase, spent in milliseconds.items():
            self.milliseconds[phase] = self.milliseconds.get(phase, 0.0) + spent


class _Phase:
    """What a clock is given with `with`; watchers are told too."""

    __slots__ = ("_clock", "_phase", "_start")

    def __init__(self, clock: Clock, phase: str) -> None:
        self._clock = clock
        self._phase = phase
        self._start = 0

    def __enter__(self) -> None:
        self._start = perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        end = perf_counter_ns()
        self._clock.add({self._phase: 1e-6 * (end - self._start)})
        if watchers:
            tell(Event("compile", self._phase, self._start, end, threading.get_native_id()))


class Counting:
    """The counters behind `CompilationStats`, as they grow."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {
            each.name: 0 for each in fields(CompilationStats) if each.name != "milliseconds"
        }
        self.timed = Clock()
        self.timed.add(dict.fromkeys(PHASES, 0.0))

    def add(self, **counts: int) -> None:
        """Add to counters by name."""
        for name, count in counts.items():
            self.numbers[name] += count

    def add_build(self, counts: BuildCounts) -> None:
        """Add what one executable counted."""
        self.add(kernels=counts.kernels, regions=counts.regions, bytes_planned=counts.bytes_planned)
        self.add(bytes_kept=counts.bytes_kept)
        self.add(native_compilations=counts.native_compilations, from_disk=counts.from_disk)
        self.timed.add(counts.milliseconds)

    def snapshot(self, hits: int) -> CompilationStats:
        """The counters as they stand; calls of the quick path are counted elsewhere."""
        numbers = {**self.numbers, "hits": self.numbers["hits"] + hits}
        return CompilationStats(**numbers, milliseconds=dict(self.timed.milliseconds))
