"""What a program runs, in words: regions, kernels, loops, memory, and about how long it takes.

A kernel's time is the least that this machine needs for its arithmetic and its memory traffic, by
the measured peaks. Names are those that `profile` shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from weft.compiler.cost import Work, estimate, lanes, work_of
from weft.compiler.loops import Kernel, Loop, every
from weft.compiler.peaks import peaks
from weft.compiler.place import Placement
from weft.compiler.rates import rates
from weft.compiler.show import show
from weft.compiler.steps import (
    Call,
    Choice,
    Copy,
    HostCall,
    Memory,
    Panels,
    Repeat,
    Reserve,
    ScanLoop,
    Step,
)
from weft.compiler.translate import Region, regions
from weft.core.common.source import describe as describe_position
from weft.core.common.types import Shape
from weft.runtime.report import show_bytes


@dataclass
class Totals:
    """Sums over all that a program runs; loops of unknown length count once."""

    kernels: int = 0
    regions: int = 0
    hosts: int = 0
    work: Work = field(default_factory=lambda: Work(0, 0, 0))
    alone_ns: float = 0.0
    together_ns: float = 0.0


def describe(
    name: str,
    steps: Sequence[Step],
    calls: Mapping[str, Call],
    placement: Placement,
    kept: Sequence[Call] = (),
) -> str:
    """The program as text."""
    made = _Explanation(calls, placement)
    rows = list(made.block(steps, 0, 1))
    total = made.total
    count = f"kernels {total.kernels}, regions {total.regions}, host calls {total.hosts}"
    reused = sum(1 for each in placement.homes if each.role != "constant")
    return "\n".join(
        [
            f"{name}: {count}",
            *rows,
            f"memory: arena of {show_bytes(placement.arena)}, results in the memory of others:"
            f" {reused}",
            *_kept(kept),
            f"work: {show_count(total.work.flops)}FLOP, {show_bytes(total.work.read)} read,"
            f" {show_bytes(total.work.written)} written",
            f"time: at least {show_time(total.alone_ns)} on 1 thread,"
            f" {show_time(total.together_ns)} on {made.all.threads}",
            f"peaks: {made.one}",
            *([f"peaks: {made.all}"] if made.all.threads > 1 else []),
        ]
    )


def _kept(calls: Sequence[Call]) -> Iterator[str]:
    """A row about what was packed of weights that last."""
    if calls:
        nbytes = sum(m.nbytes for call in calls for m in call.written)
        yield f"packed once for all calls: factors {len(calls)}, {show_bytes(nbytes)}"


def all_loops(calls: Mapping[str, Call]) -> str:
    """The loops of every kernel, as text."""
    shown = (show(replace(kernel_of(call), name=name)) for name, call in calls.items())
    return "\n\n" + "\n".join(shown)


class _Explanation:
    def __init__(self, calls: Mapping[str, Call], placement: Placement) -> None:
        self.names = {call: name for name, call in calls.items()}
        self.placement = placement
        self.one, self.all = peaks(1), peaks()
        self.total = Totals()

    def block(self, steps: Sequence[Step], depth: int, trips: int) -> Iterator[str]:
        """Rows for each step; what is inside loops is indented."""
        indent = "  " * (depth + 1)
        for step in regions(steps):
            if isinstance(step, Region):
                yield from (indent + row for row in self._region(step, trips))
            elif isinstance(step, Copy):
                yield f"{indent}copy {show_bytes(step.target.nbytes)}"
            elif isinstance(step, HostCall):
                self.total.hosts += 1
                operands = ", ".join(str(m.kind) for m in step.inputs)
                where = describe_position(step.node.position)
                yield f"{indent}host call {step.node.name}({operands})  # {where}"
            elif isinstance(step, Reserve):
                nbytes = sum(place.nbytes for place in step.places)
                yield f"{indent}{show_bytes(nbytes)} in memory that processes share"
            elif isinstance(step, Panels):
                yield from (indent + row for row in self._panels(step, trips))
            elif isinstance(step, ScanLoop):
                yield f"{indent}scan, {step.length} times:"
                yield from self.block(step.body, depth + 1, trips * step.length)
            elif isinstance(step, Repeat):
                yield f"{indent}while:"
                yield from self.block(step.condition, depth + 1, trips)
                yield f"{indent}do:"
                yield from self.block(step.body, depth + 1, trips)
            else:
                assert isinstance(step, Choice)
                for number, branch in enumerate(step.branches):
                    yield f"{indent}branch {number}:"
                    yield from self.block(branch, depth + 1, trips)

    def _region(self, region: Region, trips: int) -> Iterator[str]:
        number = self.total.regions
        self.total.regions += 1
        shared = sum(map(estimate, region.calls)) >= rates().parallel and self.all.threads > 1
        yield f"region {number}{', shared by threads' if shared else ', on one thread'}:"
        for call in filter(self.names.__contains__, region.calls):
            yield from (f"  {row}" for row in self._kernel(call, trips, shared))

    def _panels(self, step: Panels, trips: int) -> Iterator[str]:
        number = self.total.regions
        self.total.regions += 1
        yield (
            f"region {number}, {step.batches * step.panels} panels of {step.height} rows,"
            f" {show_bytes(step.scratch.nbytes)} for {step.workers} workers:"
        )
        for call in step.calls:
            yield from (f"  {row}" for row in self._kernel(call, trips, self.all.threads > 1))

    def _kernel(self, call: Call, trips: int, shared: bool) -> Iterator[str]:
        done, kernel = work_of(call), kernel_of(call)
        wide = any(m.kind.dtype.itemsize == 8 for m in call.written)
        tasks = call.request.tasks(call.number)
        alone = self.one.nanoseconds(done, wide=wide)
        together = self.all.nanoseconds(done, wide=wide) if shared and tasks > 1 else alone
        self._count(done, trips, alone, together)
        other = "of what is handed on" if call.copies else "the rest"
        yield f"{self.names[call]}: {', '.join(node.name for node in call.members) or other}"
        looping = any(isinstance(s, Loop) for s in every(kernel.body))
        space = (looping and " x ".join(map(str, space_of(call)))) or "no loops"
        yield f"  {space}; tasks {tasks}, lanes {lanes(kernel)}"
        yield (
            f"  {show_bytes(done.read)} read, {show_bytes(done.written)} written,"
            f" {show_count(done.flops)}FLOP; {show_time(alone)} on 1 thread,"
            f" {show_time(together)} on {self.all.threads}"
        )
        for read, written in call.in_place:
            if self._place(read) is not None and self._place(read) == self._place(written):
                yield f"  in place: {written.kind} over {read.kind} ({read.role})"

    def _place(self, memory: Memory) -> object:
        """What two pieces of memory share exactly if they are one."""
        home = self.placement.homes.get(memory, memory)
        return self.placement.offsets.get(home, home if home.role != "temporary" else None)

    def _count(self, done: Work, trips: int, alone: float, together: float) -> None:
        total, before = self.total, self.total.work
        total.kernels += 1
        total.work = Work(
            before.flops + trips * done.flops,
            before.read + trips * done.read,
            before.written + trips * done.written,
        )
        total.alone_ns += trips * alone
        total.together_ns += trips * together


def kernel_of(call: Call) -> Kernel:
    """The scheduled kernel that a call runs."""
    return call.request.compiled.kernels[call.number]


def space_of(call: Call) -> Shape:
    """The largest index space among the calls of a kernel; reduced axes are part of it."""
    found: list[Shape] = [m.kind.shape for m in call.written]
    for node in call.members:
        inputs = [source.types[slot] for source, slot in node.inputs]
        found += [kind.shape for kind in node.types]
        if node.name == "matmul":
            found.append((*node.types[0].shape, inputs[0].shape[-1]))
        elif node.op.factors or len(inputs) == 1:
            found += [kind.shape for kind in inputs]
    return max(found, key=prod, default=())


def show_count(count: float) -> str:
    """A number as people read it, with a prefix for what follows.

    >>> show_count(2500000)
    '2.5 M'
    """
    for unit in ("", "k", "M", "G"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} T"


def show_time(nanoseconds: float) -> str:
    """A time as people read it.

    >>> show_time(1234567)
    '1.23 ms'
    """
    for unit in ("ns", "µs", "ms"):
        if nanoseconds < 1000:
            return f"{nanoseconds:.3g} {unit}"
        nanoseconds /= 1000
    return f"{nanoseconds:.3g} s"
