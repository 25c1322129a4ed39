"""Plan memory: where the temporaries of a program lie, and which results take over dead memory.

Steps run in order; a tensor is alive from the step that first touches it to the last. Temporaries
share one arena: those alive at the same time never overlap. A step may write over an operand that
dies with it (in place), and an output may take the buffer of an input that was donated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

ALIGNMENT = 64  # bytes: a cache line, and the widest vector
TRY_ALL = 128  # tensors up to which several orders of placing are tried


@dataclass(frozen=True, slots=True)
class Step:
    """What one step touches. `in_place`: (read, written) pairs that may be the same memory."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    in_place: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Where everything is. Inputs, and outputs that are in no map, have buffers of their own."""

    arena_bytes: int
    offsets: Mapping[int, int]  # temporaries in the arena
    buffers: Mapping[int, int]  # temporaries in the buffer of an output or of a donated input
    reused: Mapping[int, int]  # outputs in the buffer of a donated input
    in_place: Mapping[int, int]  # tensors written over an operand of the step that makes them
    live_bytes: int  # the most that is alive in the arena at once: no plan needs less


class _Range(NamedTuple):
    """Memory that is needed from one step to another."""

    start: int
    end: int
    size: int


@dataclass
class _Chain:
    """Tensors that follow each other in the same memory."""

    members: list[int]
    start: int
    end: int
    home: int | None = None  # the output or donated input whose buffer it is


@dataclass
class _Lives:
    """When each tensor is first and last touched; outputs are never done with."""

    steps: Sequence[Step]
    inputs: frozenset[int]
    outputs: frozenset[int]
    first: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for tensor in self.inputs:
            self.first[tensor] = self.last[tensor] = -1
        for number, step in enumerate(self.steps):
            for tensor in step.reads:
                assert tensor in self.first, f"step {number} reads {tensor}, which nobody wrote"
                self.last[tensor] = number
            for tensor in step.writes:
                self.first.setdefault(tensor, number)
                self.last[tensor] = number
        for tensor in self.outputs:
            assert tensor in self.first, f"output {tensor} is not written"
            self.last[tensor] = len(self.steps)


def plan(
    steps: Sequence[Step],
    sizes: Mapping[int, int],
    *,
    inputs: Iterable[int] = (),
    outputs: Iterable[int] = (),
    donated: Iterable[int] = (),
    resting: int = 0,
) -> Plan:
    """Place the tensors of a program: `sizes` in bytes, ids in any order.

    A donated input is used again only when it is dead, and only by what has its size. An output
    that is an input as well keeps that input's buffer. Memory in the arena rests for so many steps
    before it is used again: steps that run side by side need not wait for each other then.
    """
    given, ends = frozenset(inputs), tuple(dict.fromkeys(outputs))
    lives = _Lives(steps, given, frozenset(ends))
    spare = [d for d in dict.fromkeys(donated) if d in given and d not in lives.outputs]
    in_place = _choose_in_place(lives, sizes, frozenset(spare))
    chains = _chains(lives, in_place)
    _take_donated(chains, lives, sizes, spare, ends)
    return _placed(chains, lives, sizes, in_place, resting)


def _choose_in_place(
    lives: _Lives, sizes: Mapping[int, int], spare: frozenset[int]
) -> dict[int, int]:
    """For each tensor the operand it is written over; an operand is written over once."""
    chosen: dict[int, int] = {}
    taken: set[int] = set()
    for number, step in enumerate(lives.steps):
        for read, written in step.in_place:
            dies = lives.last[read] == number and (read not in lives.inputs or read in spare)
            begins = lives.first[written] == number and written not in lives.inputs
            fits = sizes[read] == sizes[written] and read != written
            if dies and begins and fits and read not in taken and written not in chosen:
                chosen[written] = read
                taken.add(read)
    return chosen


def _chains(lives: _Lives, in_place: Mapping[int, int]) -> dict[int, _Chain]:
    """The chain that each tensor is part of; a chain that an output ends is in its buffer."""
    chains: dict[int, _Chain] = {}
    for tensor in sorted(lives.first, key=lives.first.__getitem__):
        before = in_place.get(tensor)
        if before is None:
            chain = _Chain([tensor], lives.first[tensor], lives.last[tensor])
            chain.home = tensor if tensor in lives.inputs or tensor in lives.outputs else None
        else:
            chain = chains[before]
            chain.members.append(tensor)
            chain.end = lives.last[tensor]
            if chain.home is None and tensor in lives.outputs:
                chain.home = tensor
        chains[tensor] = chain
    return chains


def _take_donated(
    chains: dict[int, _Chain],
    lives: _Lives,
    sizes: Mapping[int, int],
    spare: Sequence[int],
    outputs: Sequence[int],
) -> None:
    """Give outputs the buffers of donated inputs that are dead before they begin."""
    free: dict[int, list[int]] = {}
    for tensor in sorted(spare, key=lambda d: chains[d].end, reverse=True):
        if chains[tensor].end < len(lives.steps):
            free.setdefault(sizes[tensor], []).append(tensor)
    # Whoever begins first has the fewest to choose from; any that is dead by then will do.
    own = [tensor for tensor in outputs if chains[tensor].home == tensor]
    for tensor in sorted(own, key=lambda each: chains[each].start):
        waiting = free.get(sizes[tensor], [])
        if (
            tensor not in lives.inputs
            and waiting
            and chains[waiting[-1]].end < chains[tensor].start
        ):
            chains[tensor].home = waiting.pop()


def _placed(
    chains: Mapping[int, _Chain],
    lives: _Lives,
    sizes: Mapping[int, int],
    in_place: Mapping[int, int],
    resting: int,
) -> Plan:
    # Each chain once, by its first member; in the order of time, so that equal programs are equal.
    mine = [c for tensor, c in chains.items() if c.home is None and c.members[0] == tensor]
    ranges = [_Range(c.start, c.end + resting, _aligned(sizes[c.members[0]])) for c in mine]
    least = _most_alive(ranges)
    places, total = _arrange(ranges, least)
    offsets = {t: offset for c, offset in zip(mine, places, strict=True) for t in c.members}
    housed = {t: c.home for t, c in chains.items() if c.home is not None and c.home != t}
    buffers = {t: home for t, home in housed.items() if t not in lives.outputs}
    reused = {t: home for t, home in housed.items() if t in lives.outputs}
    return Plan(total, offsets, buffers, reused, dict(in_place), least)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _most_alive(ranges: Sequence[_Range]) -> int:
    """The largest sum of sizes at any step."""
    changes: dict[int, int] = {}
    for start, end, size in ranges:
        changes[start] = changes.get(start, 0) + size
        changes[end + 1] = changes.get(end + 1, 0) - size
    alive = most = 0
    for step in sorted(changes):
        alive += changes[step]
        most = max(most, alive)
    return most


def _arrange(ranges: Sequence[_Range], least: int) -> tuple[list[int], int]:
    """An offset for each range, and the bytes they need together."""
    orders: list[Callable[[_Range], Any]] = [
        lambda r: (-r.size, r.start),  # large ones first: small ones fit into what is left
        lambda r: (-r.size * (r.end - r.start + 1) ** 0.5, r.start),
        lambda r: (r.start - r.end, -r.size),
    ]
    best, total = _first_fit(ranges, orders[0])
    for order in orders[1:] if len(ranges) <= TRY_ALL else ():
        if total == least:
            break
        places, needed = _first_fit(ranges, order)
        if needed < total:
            best, total = places, needed
    return best, total


def _first_fit(ranges: Sequence[_Range], order: Callable[[_Range], Any]) -> tuple[list[int], int]:
    """Place ranges in this order, each at the lowest offset that is free all its time."""
    count = len(ranges)
    places = [0] * count
    starts, ends = np.empty((2, count), np.int32)
    offsets, tops = np.empty((2, count), np.int64)
    early, late = np.empty((2, count), np.bool_)  # written again and again: fresh ones cost more
    placed = total = 0
    for number in sorted(range(count), key=lambda i: order(ranges[i])):
        start, end, size = ranges[number]
        if not size:
            continue
        beside = np.less_equal(starts[:placed], end, early[:placed])
        beside &= np.greater_equal(ends[:placed], start, late[:placed])
        offset = _lowest(beside.nonzero()[0], offsets, tops, size)
        starts[placed], ends[placed] = start, end
        offsets[placed], tops[placed] = offset, offset + size
        placed += 1
        places[number] = offset
        total = max(total, offset + size)
    return places, total


def _lowest(beside: Any, offsets: Any, tops: Any, size: int) -> int:
    """The lowest offset with room for `size` among those that are placed beside."""
    if not beside.size:
        return 0
    begins = offsets.take(beside)
    order = begins.argsort()
    begins = begins.take(order)
    if begins[0] >= size:
        return 0
    reach = np.maximum.accumulate(tops.take(beside.take(order)))
    fits = begins[1:] - reach[:-1] >= size
    if not fits.any():
        return int(reach[-1])
    return int(reach[fits.argmax()])
