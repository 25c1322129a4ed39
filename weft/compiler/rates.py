"""The constants of the cost model: fixed ones, or those that this machine was measured to have.

The first processes that compile heavy work measure (`peaks`), others read what they kept. No bit
of a result depends on these numbers: they decide what runs on several threads and how products are
cut. With the setting `calibrate` at 0 the fixed ones hold, and compiling is the same everywhere.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.compiler.choice import USUAL, Choice
from weft.compiler.point import kind_of
from weft.config import settings
from weft.core.common.lazy import LazyModule
from weft.core.graph.trace import Trace
from weft.runtime.cpu.code_cache import code_cache
from weft.runtime.cpu.jit import host_target
from weft.runtime.cpu.pool import pool
from weft.runtime.cpu.program_builder import PARALLEL_NS

if TYPE_CHECKING:
    from weft.compiler.peaks import Peaks

_peaks = LazyModule("weft.compiler.peaks")

HEAVY_FLOPS = 1 << 34  # of products, from which a program is worth measuring for
_BETTER = 1.01  # how much faster another block of sums must have been
_TRUST = 4.0  # how far a measured constant may be from the fixed one
_INSTRUCTION = 1.4  # what an instruction of a usual kernel takes, of a multiplication at the peak
_HANDOFFS = 2.0  # handoffs that work must be worth to be handed out


@dataclass(frozen=True)
class Rates:
    """Nanoseconds; the fixed ones were measured on a server's core of about 3 GHz."""

    call: float = 100.0  # that a call takes however little it does
    vector: float = 0.28  # an instruction on one vector
    scalar: float = 0.35  # an instruction on one element, where there are no vectors
    cached: float = 0.02  # a byte read or written, where all of them fit in a cache
    memory: float = 0.045  # where they do not
    parallel: float = PARALLEL_NS  # work that is worth several threads
    choice: Choice = USUAL  # how products are cut


FIXED = Rates()
_found: dict[tuple[str, int], Rates] = {}  # by folder and threads
_asked: set[tuple[str, int]] = set()  # for which this process has had them measured


def rates() -> Rates:
    """The constants that hold now; nothing is measured."""
    if not settings.calibrate:
        return FIXED
    place = _place()
    found = _found.get(place)
    if found is None:
        alone, together = (_peaks.measured_before(threads) for threads in (1, place[1]))
        known = alone is not None and together is not None
        found = _found[place] = calibrated(alone, together.handoff) if known else FIXED
    return found


def calibrate_for(trace: Trace) -> None:
    """Measure this machine if that was not done often enough, for a program that is worth it."""
    place = _place()
    if settings.calibrate and place not in _asked and products(trace) >= HEAVY_FLOPS:
        _asked.add(place)
        with suppress(MemoryError):  # what is there is for the program
            _found[place] = calibrated(_peaks.peaks(1), _peaks.peaks(place[1]).handoff)


def products(trace: Trace) -> int:
    """Multiplications and additions in the matrix products of a graph."""
    total = 0
    for node in trace.nodes:
        if kind_of(node) == "dot":
            source, slot = node.inputs[0]
            total += 2 * node.types[0].size * source.types[slot].shape[-1]
    return total


def calibrated(machine: Peaks, handoff: float) -> Rates:
    """The constants of a machine, from what one of its threads can do and what waking all takes.

    A measurement that was disturbed moves none of them far.
    """
    instruction = _INSTRUCTION * 2 * (host_target().vector_bytes / 4) / machine.float32
    usual, *others = machine.blocks or ((0, 0, 0.0),)
    rows, vectors, rate = max(others, key=lambda block: block[2], default=usual)
    return Rates(
        vector=_near(instruction, FIXED.vector),
        scalar=_near(instruction * FIXED.scalar / FIXED.vector, FIXED.scalar),
        cached=_near(1.0 / machine.read[1], FIXED.cached),
        memory=_near(1.0 / machine.read[-1], FIXED.memory),
        parallel=_near(_HANDOFFS * handoff or FIXED.parallel, FIXED.parallel),
        choice=Choice(rows=rows, vectors=vectors) if rate > _BETTER * usual[2] else USUAL,
    )


def _near(measured: float, fixed: float) -> float:
    return min(max(measured, fixed / _TRUST), fixed * _TRUST)


def _place() -> tuple[str, int]:
    return code_cache().folder.path, settings.threads or pool.cores
