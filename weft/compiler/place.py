"""Where the memory of a program lies: one arena, whose parts are used again when they are free.

What a loop shares with the outside is in use as long as the loop runs; so are its carries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weft.compiler import memory
from weft.compiler.steps import Choice, Memory, Repeat, ScanLoop, Step
from weft.compiler.translate import Region, regions, touched

_PLANNED = frozenset({"temporary", "input", "output"})


@dataclass(frozen=True)
class Placement:
    """Every piece of memory of a program, and where it is."""

    memories: tuple[Memory, ...]
    offsets: dict[Memory, int]  # of temporaries in the arena
    homes: dict[Memory, Memory]  # of those that lie in the buffer of an output or an input
    arena: int


class _Schedule:
    """The steps of a program in the planner's terms."""

    def __init__(self, carries: Sequence[tuple[Memory, Memory]]) -> None:
        self.numbers: dict[Memory, int] = {}
        self.steps: list[memory.Step] = []
        # Loops swap the two halves of a carry, so each may be the other's memory afterwards.
        self._other = {a: b for a, b in carries} | {b: a for a, b in carries}

    def number(self, places: Sequence[Memory]) -> tuple[int, ...]:
        """Planner's numbers of memory that it places."""
        planned = [m for m in places if m.role in _PLANNED]
        return tuple(self.numbers.setdefault(m, len(self.numbers)) for m in planned)

    def add(self, steps: Sequence[Step]) -> None:
        """Append a block."""
        for step in regions(steps):
            if isinstance(step, ScanLoop | Repeat | Choice):
                self._loop(step)
                continue
            places = [m for each in touched(step) for m in (each, self._other.get(each, each))]
            self.steps.append(memory.Step((), self.number(places), self._in_place(step)))

    def _loop(self, step: ScanLoop | Repeat | Choice) -> None:
        inside = list(touched(step))
        shared = [m for m in inside if m in self.numbers]
        carries = () if isinstance(step, Choice) else step.carries
        carried = [m for c in carries for m in (c.home, c.then)]
        whole = [w for _, w in step.slices] if isinstance(step, ScanLoop) else []
        held = self.number(tuple(dict.fromkeys((*shared, *carried, *whole))))
        self.steps.append(memory.Step((), held))
        for block in blocks(step):
            self.add(block)
        results = [m for m in inside if m.role == "output"]
        self.steps.append(memory.Step((), tuple(dict.fromkeys((*held, *self.number(results))))))

    def _in_place(self, step: Region | Step) -> tuple[tuple[int, int], ...]:
        if not isinstance(step, Region):
            return ()
        readers: dict[Memory, int] = {}
        for call in step.calls:
            for place in dict.fromkeys(call.memory):
                readers[place] = readers.get(place, 0) + 1
        pairs = [pair for call in step.calls for pair in call.in_place]
        return tuple(
            (self.number((read,))[0], self.number((written,))[0])
            for read, written in pairs
            if readers.get(read) == 1 and read.role in _PLANNED and written.role in _PLANNED
        )


def place(
    steps: Sequence[Step],
    inputs: Sequence[Memory],
    outputs: Sequence[Memory],
    donated: tuple[bool, ...],
) -> Placement:
    """Give each temporary a place."""
    schedule = _Schedule(list(_carries(steps)))
    given = schedule.number(inputs)
    schedule.add(steps)
    ends = schedule.number(outputs)
    written = {n for step in schedule.steps for n in step.writes}
    sizes = {number: m.nbytes for m, number in schedule.numbers.items()}
    spare = [n for n, gone in zip(given, donated, strict=False) if gone]
    found = memory.plan(
        schedule.steps,
        sizes,
        inputs=given,
        outputs=[n for n in ends if n in written],
        donated=spare,
    )
    known = list(schedule.numbers)
    homes = {known[n]: known[home] for n, home in found.buffers.items()}
    homes |= {known[n]: known[home] for n, home in found.reused.items()}
    every = dict.fromkeys(m for step in steps for m in touched(step))
    offsets = {known[n]: offset for n, offset in found.offsets.items()}
    return Placement(tuple(every), offsets, homes, found.arena_bytes)


def _carries(steps: Sequence[Step]) -> Iterator[tuple[Memory, Memory]]:
    """The halves that change places of the carries of every loop, loops inside included."""
    for step in steps:
        if isinstance(step, ScanLoop | Repeat):
            changing = (c for c in step.carries if c.changes and c.now is not c.then)
            yield from ((c.now, c.then) for c in changing)
        if isinstance(step, ScanLoop | Repeat | Choice):
            for block in blocks(step):
                yield from _carries(block)


def blocks(step: ScanLoop | Repeat | Choice) -> tuple[tuple[Step, ...], ...]:
    """The blocks inside a loop or a choice."""
    if isinstance(step, ScanLoop):
        return (step.body,)
    return (step.condition, step.body) if isinstance(step, Repeat) else step.branches
