"""Write the program of assembled steps: regions of kernels, loops, branches, host calls.

Kernels that do not depend on each other share a region, which is how many small updates run as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from weft.compiler.cost import estimate
from weft.compiler.host import HostCalls
from weft.compiler.steps import (
    Call,
    Carry,
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
from weft.core.common import dtypes
from weft.core.graph.node import OutputRefs
from weft.runtime.cpu import program_builder
from weft.runtime.cpu.program_builder import PrivateSlot, ProgramBuilder

_SMALL = 1 << 14  # bytes of results that may be made early


@dataclass(frozen=True, eq=False)
class Region:
    """Calls that do not depend on each other."""

    calls: tuple[Call, ...]


def regions(steps: Sequence[Step]) -> list[Region | Step]:
    """Steps with calls put together that do not depend on each other."""
    made: list[Region | Step] = []
    run: list[Call] = []
    for step in (*steps, None):
        if isinstance(step, Call):
            run.append(step)
            continue
        made += _neighbours(run)
        run = []
        if step is not None:
            made.append(step)
    return made


class _Group:
    """Calls, and the memory that they touch."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._memory: set[Memory] = set()
        self._written: set[Memory] = set()
        self._parts: dict[Memory, OutputRefs] = {}  # results that calls of one node write parts of

    def add(self, call: Call) -> None:
        self.calls.append(call)
        self._memory.update(call.memory)
        self._written.update(call.written)
        if call.is_part:
            self._parts.update(dict.fromkeys(call.written, call.node))

    def is_apart_from(self, call: Call) -> bool:
        """Whether the call may change places with all calls of the group."""
        shared = {m for m in call.written if call.is_part and self._parts.get(m) is call.node}
        touched, written = set(call.memory) - shared, set(call.written) - shared
        return self._written.isdisjoint(touched) and self._memory.isdisjoint(written)


def _neighbours(calls: Sequence[Call]) -> Iterator[Region]:
    """Calls that do not need each other, in their order: memory is planned by it.

    Only calls of small results may pass each other, such as the sums of a hundred tensors, each of
    which is two calls; results that lie about longer must not cost memory.
    """
    left = list(calls)
    while left:
        here, waiting = _Group(), _Group()
        for place, call in enumerate(left):
            small = sum(memory.nbytes for memory in call.written) <= _SMALL
            passes = small or not waiting.calls
            if passes and here.is_apart_from(call) and waiting.is_apart_from(call):
                here.add(call)
            elif small:
                waiting.add(call)
            else:
                waiting.calls += left[place:]
                break
        yield Region(tuple(here.calls))
        left = waiting.calls


@dataclass
class Translator:
    """Writes steps into a program; `slots` says where memory is."""

    builder: ProgramBuilder
    slots: dict[Memory, int]
    ranges: dict[Memory, tuple[int, int]] = field(default_factory=dict)  # of what is strided
    regions: int = 0
    calls: dict[str, Call] = field(default_factory=dict)  # by the name that profiles show
    hosts: list[OutputRefs] = field(default_factory=list)  # calls of Python, by number
    _hosts: HostCalls = field(default_factory=HostCalls)
    _named: dict[str, int] = field(default_factory=dict)

    def write(self, steps: Sequence[Step]) -> None:
        """Append a block."""
        for step in regions(steps):
            if isinstance(step, Region):
                self._region(step)
            elif isinstance(step, Copy):
                self.builder.copy(
                    self.slots[step.target], self.slots[step.source], step.target.nbytes
                )
            elif isinstance(step, HostCall):
                self._host(step)
            elif isinstance(step, Reserve):
                places = [self.slots[place] for place in step.places]
                self.builder.host(self._hosts.reserve(step.node), (), places)
                self.hosts.append(step.node)
            elif isinstance(step, ScanLoop):
                self._scan(step)
            elif isinstance(step, Repeat):
                self._repeat(step)
            elif isinstance(step, Panels):
                self._panels(step)
            else:
                assert isinstance(step, Choice)
                self._choice(step)

    def _region(self, region: Region) -> None:
        calls = [call for call in region.calls if not self._is_idle(call)]
        if calls:
            self.regions += 1
            self.builder.region([self._step(call) for call in calls])

    def _is_idle(self, call: Call) -> bool:
        """Whether a call copies something to where it lies already.

        It has its place among the others, though: memory was planned by it.
        """
        return call.copies and self.slots[call.memory[0]] == self.slots[call.memory[1]]

    def _step(self, call: Call) -> program_builder.Step:
        slots = tuple(self.slots[place] for place in call.memory)
        address = call.request.compiled.addresses[call.number]
        tasks = call.request.tasks(call.number)
        parameters = call.request.parameters
        if call.request.compiled.checks:
            parameters += tuple(limit for m in call.memory for limit in self._limits(m))
        return program_builder.Step(
            address, slots, parameters, tasks, estimate(call), self._name(call)
        )

    def _limits(self, place: Memory) -> tuple[int, int]:
        """The range of numbers that a kernel may reach: a complex one is two."""
        low, high = self.ranges.get(place, (0, place.kind.size))
        each = 2 if dtypes.is_complex(place.kind.dtype) else 1
        return low * each, high * each

    def _panels(self, step: Panels) -> None:
        self.regions += 1
        steps = [
            replace(self._step(call), tasks=tasks, grain=grain)
            for call, (tasks, grain) in zip(step.calls, step.shares, strict=True)
        ]
        private = [
            PrivateSlot(
                self.slots[each.memory],
                each.offset,
                each.row_bytes * step.rows,
                each.row_bytes * step.height,
            )
            for each in step.private
        ]
        scratch = (self.slots[step.scratch], step.scratch.nbytes // step.workers, step.workers)
        together = step.panels if step.in_order else 1
        self.builder.panels(steps, private, scratch, (step.batches, step.panels, together))

    def _name(self, call: Call) -> str:
        """A call's name, with a number where an earlier one has the same."""
        count = self._named[call.name] = self._named.get(call.name, 0) + 1
        name = call.name if count == 1 else f"{call.name}.{count}"
        self.calls[name] = call
        return name

    def _host(self, step: HostCall) -> None:
        slots = [self.slots[place] for place in (*step.inputs, *step.outputs)]
        inputs = tuple(source.types[slot] for source, slot in step.node.inputs)
        self.builder.host(self._hosts.call(step.node, inputs), slots)
        self.hosts.append(step.node)

    def _scan(self, loop: ScanLoop) -> None:
        for carry in loop.carries:
            if not carry.changes:
                self.builder.advance(self.slots[carry.now], self.slots[carry.home])
        with self.builder.loop(loop.length) as counter:
            for part, whole in loop.slices:
                stride, last = part.nbytes, (loop.length - 1) * part.nbytes
                turned = (-stride, last) if loop.reverse else (stride, 0)
                self.builder.advance(self.slots[part], self.slots[whole], counter, *turned)
            self.write(loop.body)
            self._pass_on(loop.carries)
        for carry in loop.carries:
            if not carry.changes:
                self.builder.copy(self.slots[carry.home], self.slots[carry.now], carry.home.nbytes)

    def _pass_on(self, carries: Sequence[Carry]) -> None:
        """Let the next step of a loop read what this one has for it."""
        for carry in carries:
            now, then = self.slots[carry.now], self.slots[carry.then]
            if not carry.changes:
                self.builder.advance(now, then)
            elif now != then:
                self.builder.swap(now, then)

    def _repeat(self, loop: Repeat) -> None:
        with self.builder.while_() as again:
            self.write(loop.condition)
            again.check(self.slots[loop.holds])
            self.write(loop.body)
            self._pass_on(loop.carries)

    def _choice(self, step: Choice) -> None:
        index = self.builder.read(self.slots[step.index], step.index.kind.dtype)
        with self.builder.branch(index) as case:
            for branch in step.branches:
                with case():
                    self.write(branch)


def touched(step: Region | Step) -> dict[Memory, None]:
    """Memory that a step uses, blocks inside it included, in order of use."""
    if isinstance(step, Region):
        return dict.fromkeys(place for call in step.calls for place in call.memory)
    if isinstance(step, Call):
        return dict.fromkeys(step.memory)
    if isinstance(step, HostCall):
        return dict.fromkeys((*step.inputs, *step.outputs))
    if isinstance(step, Reserve):
        return dict.fromkeys(step.places)
    if isinstance(step, Panels):
        every = (place for call in step.calls for place in call.memory)
        return dict.fromkeys((step.scratch, *every))
    if isinstance(step, Copy):
        return dict.fromkeys((step.source, step.target))
    if isinstance(step, ScanLoop):
        sliced = (place for pair in step.slices for place in pair)
        return dict.fromkeys((*_carried(step), *sliced)) | _all(step.body)
    if isinstance(step, Repeat):
        places = (*_carried(step), step.holds)
        return dict.fromkeys(places) | _all(step.condition) | _all(step.body)
    return dict.fromkeys(
        (step.index, *(place for branch in step.branches for place in _all(branch)))
    )


def _carried(loop: ScanLoop | Repeat) -> list[Memory]:
    return [place for c in loop.carries for place in (c.now, c.then, c.home)]


def _all(steps: Sequence[Step]) -> dict[Memory, None]:
    return dict.fromkeys(place for step in steps for place in touched(step))
