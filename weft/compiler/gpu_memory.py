"""Where the memory of a program for a GPU lies: shared by what is never alive together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.compiler import memory
from weft.compiler.gpu_steps import Block, GpuProgram, Launch
from weft.runtime.gpu.interface import Driver

RESTING = 4  # launches before memory is used again: those in between need not wait for each other


@dataclass(frozen=True)
class Places:
    """Pieces of memory that every run has, by size, and what has memory of its own.

    `inside` says of a slot which piece it lies in, and at which byte.
    """

    pieces: list[int]
    inside: dict[int, tuple[int, int]]
    own: list[tuple[int, Block]]  # written by kernels, and may outlive the run


def places(program: GpuProgram, slots: Mapping[Block, int], gpu: Driver) -> Places:
    """Find where blocks lie that are written by kernels."""
    steps, given = _steps(program, slots)
    sizes = {slot: b.size * gpu.stored(b.dtype).itemsize for b, slot in slots.items()}
    lasting = dict.fromkeys((*program.outputs, *program.passed()))
    outputs = {slots[block] for block in lasting}
    own = [(slots[block], block) for block in lasting if slots[block] not in given]
    if gpu.apart:
        pieces, inside = _apart(steps, sizes, given | outputs)
        return Places(pieces, inside, own)
    found = memory.plan(steps, sizes, inputs=given, outputs=outputs, resting=RESTING)
    assert not found.buffers, "memory is shared inside the arena only"
    pieces = [found.arena_bytes] if found.arena_bytes else []
    return Places(pieces, {slot: (0, offset) for slot, offset in found.offsets.items()}, own)


def _steps(program: GpuProgram, slots: Mapping[Block, int]) -> tuple[list[memory.Step], set[int]]:
    """What each step touches; and what has memory before, or gets it from a call."""
    steps = list[memory.Step]()
    given = {slots[b] for b in program.inputs} | {
        slot for block, slot in slots.items() if block.data is not None
    }
    if program.status is not None:
        given.add(slots[program.status])
    for step in program.steps:
        if isinstance(step, Launch):
            reads, writes = (tuple(slots[b] for b in blocks) for blocks in step.touched())
            reads = tuple(x for x in reads if x in given or x not in writes)
        else:
            reads = tuple(slots[b] for b in step.reads)
            writes = ()
            given |= {slots[b] for b in step.makes}
        steps.append(memory.Step(reads, writes))
    return steps, given


def _apart(
    steps: Sequence[memory.Step], sizes: Mapping[int, int], others: set[int]
) -> tuple[list[int], dict[int, tuple[int, int]]]:
    """A piece for each that is alive at a time; one that is free is used again by what fits."""
    last = {
        slot: number for number, step in enumerate(steps) for slot in (*step.reads, *step.writes)
    }
    pieces, ends = list[int](), list[int]()  # and until when a piece is in use
    inside: dict[int, tuple[int, int]] = {}
    for number, step in enumerate(steps):
        for slot in step.writes:
            if slot in inside or slot in others:
                continue
            free = [k for k, end in enumerate(ends) if end < number]
            size = sizes[slot]
            fitting = [k for k in free if pieces[k] >= size]
            if fitting:
                chosen = min(fitting, key=lambda k: pieces[k])
            elif free:
                chosen = max(free, key=lambda k: pieces[k])
                pieces[chosen] = size
            else:
                chosen = len(pieces)
                pieces.append(size)
                ends.append(number)
            ends[chosen] = last[slot]
            inside[slot] = (chosen, 0)
    return pieces, inside
