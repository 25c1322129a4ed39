"""Runs of programs that somebody watches: the run and each call of a kernel become events.

Kernels write their times into a ring, which is emptied after the run. Of a run with more calls than
the ring has room for, the first ones are lost; the event of the run says how many.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cache, cached_property, partial
from time import perf_counter_ns
from typing import Any

from weft.compiler.cost import lanes, work_of
from weft.compiler.steps import Call
from weft.core.common.events import Details, Event, tell
from weft.core.common.source import Position, describe, user_position
from weft.runtime.cpu.profile import Profile, Timing
from weft.runtime.cpu.program import Program

CAPACITY = 1 << 16  # calls of kernels in one run; untouched memory costs nothing

_rings: list[Profile] = []  # that no run uses: a run inside a run has one of its own


class Watched:
    """A program as watchers see it."""

    def __init__(self, name: str, program: Program, calls: Mapping[str, Call]) -> None:
        self._name = name
        self._program = program
        self._calls = calls

    @cached_property
    def _details(self) -> dict[str, Details]:
        return {name: cache(partial(details_of, call)) for name, call in self._calls.items()}

    def run(self, pointers: Sequence[int], threads: int) -> None:
        """`program.run(pointers, threads)`, told to the watchers."""
        ring = self._ring()
        start = perf_counter_ns()
        try:
            self._program.run(pointers, threads, ring)
        finally:
            end = perf_counter_ns()
            self._tell_kernels(ring, start, end)
            lost = max(ring.calls - ring.capacity, 0)
            _rings.append(ring)
            told = partial(_run_details, lost, user_position(3))
            tell(Event("run", self._name, start, end, threading.get_native_id(), told))

    def timings(self, pointers: Sequence[int], threads: int) -> list[Timing]:
        """`program.run(pointers, threads)`, and when each of its last kernels ran."""
        ring = self._ring()
        try:
            self._program.run(pointers, threads, ring)
            return ring.timings()
        finally:
            _rings.append(ring)

    def _ring(self) -> Profile:
        ring = _rings.pop() if _rings else Profile((), CAPACITY)
        ring.names = self._program.encoded.names
        ring.clear()
        return ring

    def _tell_kernels(self, ring: Profile, start: int, end: int) -> None:
        me, chunks = threading.get_native_id(), self._program.encoded.chunks
        for timing in ring.timings():
            # Two clocks never agree to the last nanosecond: a kernel lies inside its run.
            first, last = (min(max(t, start), end) for t in (timing.start_ns, timing.end_ns))
            thread = -timing.thread if timing.thread else me
            details, share = self._details[timing.name], 1.0 / chunks[timing.step]
            tell(Event("kernel", timing.name, first, last, thread, details, share))


def _run_details(lost: int, position: Position | None) -> dict[str, Any]:
    return {"lost": lost, "line": describe(position)}


def details_of(call: Call) -> dict[str, Any]:
    """What a call of a kernel is, in numbers and words."""
    done = work_of(call)
    reads = [m for m in dict.fromkeys(call.memory) if m not in call.written and m.role != "status"]
    given, made = (", ".join(str(m.kind) for m in each) for each in (reads, call.written))
    return {
        "ops": ", ".join(node.name for node in call.members),
        "shapes": f"{given} -> {made}",
        "dtype": str(max((m.kind.dtype for m in call.written or reads), key=lambda d: d.itemsize)),
        "flops": done.flops,
        "read": done.read,
        "written": done.written,
        "tasks": call.request.tasks(call.number),
        "lanes": lanes(call.request.compiled.kernels[call.number]),
        "line": describe(call.node.position),
    }
