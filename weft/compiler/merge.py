"""Copies that nobody needs: where the original is done with, both are one piece of memory.

A loop that changes some elements of what it carries would otherwise copy all of it in every turn,
and so would one that hands a value on as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from weft.compiler.loops import Buffer, Kernel, Loop, Store, integer, load, variable
from weft.compiler.steps import (
    Call,
    Carry,
    Choice,
    Copy,
    HostCall,
    Memory,
    Panels,
    Repeat,
    ScanLoop,
    Step,
)
from weft.compiler.translate import touched
from weft.core.common.types import DType

_Pair: TypeAlias = tuple[Memory, Memory]  # what is copied, and its copy
_WRITABLE = ("temporary", "output")


def without_copies(steps: Sequence[Step]) -> tuple[Step, ...]:
    """A program that copies only what is read or written afterwards on both sides."""
    if not any(_has_copies(step) for step in steps):
        return tuple(steps)
    merging = _Merging(steps)
    merging.block(steps, {})
    return merging.renamed(steps)


def flat_copy(dtype: DType, size: int) -> Kernel:
    """The kernel that copies so many numbers."""
    buffers = (Buffer("b0", dtype, "read"), Buffer("b1", dtype, "write"))
    i = variable("i0")
    body = (Loop(i, integer(0), integer(size), (Store(1, i, load(0, i, dtype)),)),)
    return Kernel("copy", buffers, (), body, notes={"name": "copy"})


def _has_copies(step: Step) -> bool:
    if isinstance(step, ScanLoop | Repeat | Choice):
        return any(_has_copies(inner) for block in _blocks(step) for inner in block)
    return isinstance(step, Copy) or (isinstance(step, Call) and step.copies)


def _blocks(step: ScanLoop | Repeat | Choice) -> tuple[tuple[Step, ...], ...]:
    if isinstance(step, ScanLoop):
        return (step.body,)
    return (step.condition, step.body) if isinstance(step, Repeat) else step.branches


class _Merging:
    """Which pieces of memory are one."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._same: dict[Memory, Memory] = {}
        self._uses = Counter(_uses(steps))
        self._swapped: set[Memory] = set()  # what changes places in loops that were seen

    def _of(self, place: Memory) -> Memory:
        """The piece of memory that this one has become."""
        while place in self._same:
            place = self._same[place]
        return place

    # -- what may be merged --------------------------------------------------------------------

    def block(self, steps: Sequence[Step], carried: dict[Memory, Memory]) -> None:
        """Merge what is copied in a block; `carried` has what the loop around it turns into what.

        Memory that only this block touches, and what it is given by the loop, it may write over.
        """
        for step in steps:
            if isinstance(step, ScanLoop | Repeat):
                *condition, body = _blocks(step)
                for asked in condition:
                    self.block(asked, {})
                self.block(body, {c.now: c.then for c in step.carries if c.changes})
                self._see(step.carries)
            elif isinstance(step, Choice):
                for branch in step.branches:
                    self.block(branch, {})
        inside = Counter(map(self._of, _uses(steps)))
        for pair in self._free_pairs(steps):
            self._merge(pair, inside, carried)

    def _see(self, carries: Sequence[Carry]) -> None:
        """Remember which carries of a loop still have two pieces of memory."""
        for c in carries:
            now, then, home = self._every((c.now, c.then, c.home))
            if c.changes and now is not then:
                self._swapped |= {now, then, home}

    def _merge(self, pair: _Pair, inside: Counter[Memory], carried: dict[Memory, Memory]) -> None:
        source, target = map(self._of, pair)
        own = [m for m in (source, target) if self._is_own(m, inside)]
        then = self._of(carried.get(source, source))  # what the next turn reads in its place
        if source in own and target in own:
            self._become(target, source, inside)
        elif source in own:
            self._become(source, target, inside)
        elif then is not source and (target in own or then is target):
            self._become(target, source, inside)

    def _is_own(self, place: Memory, inside: Counter[Memory]) -> bool:
        """Whether nothing but the block touches this memory."""
        return place.role == "temporary" and inside[place] == self._uses[place]

    def _become(self, place: Memory, other: Memory, inside: Counter[Memory]) -> None:
        self._same[place] = other
        self._uses[other] += self._uses[place]
        inside[other] += inside[place]

    def _copied(self, step: Step) -> list[_Pair]:
        """What a step copies; what each branch of a choice copies as the last to read it."""
        if isinstance(step, Copy):
            return [(step.source, step.target)]
        if isinstance(step, Call):
            return [(step.memory[0], step.memory[1])] if step.copies else []
        if not isinstance(step, Choice) or not step.branches:
            return []
        first, *others = ([*self._free_pairs(branch)] for branch in step.branches)
        return [pair for pair in first if all(pair in other for other in others)]

    def _free_pairs(self, steps: Sequence[Step]) -> Iterator[_Pair]:
        """What a block copies when it is done with it, and has not begun with its copy."""
        for number, step in enumerate(steps):
            for pair in self._copied(step):
                source, target = map(self._of, pair)
                apart = source is not target and self._swapped.isdisjoint((source, target))
                fits = source.nbytes == target.nbytes and target.role in _WRITABLE
                if not apart or not fits:
                    continue
                done = not self._touch(steps[number + 1 :], source)
                if done and not self._touch(steps[:number], target):
                    yield source, target

    def _touch(self, steps: Sequence[Step], place: Memory) -> bool:
        return any(self._of(each) is place for step in steps for each in touched(step))

    # -- the program after it ------------------------------------------------------------------

    def renamed(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        """Steps on the memory that is left, without those that copy something onto itself."""
        found = [self._renamed(step) for step in steps]
        return tuple(step for step in found if not _is_idle(step))

    def _every(self, places: Iterable[Memory]) -> tuple[Memory, ...]:
        return tuple(map(self._of, places))

    def _renamed(self, step: Step) -> Step:
        if isinstance(step, Call):
            return self._call(step)
        if isinstance(step, Copy):
            return Copy(*self._every((step.source, step.target)))
        if isinstance(step, HostCall):
            return HostCall(step.node, self._every(step.inputs), self._every(step.outputs))
        if isinstance(step, Panels):
            return replace(step, calls=tuple(map(self._call, step.calls)))
        if isinstance(step, Choice):
            branches = tuple(map(self.renamed, step.branches))
            return Choice(step.node, self._of(step.index), branches)
        if isinstance(step, ScanLoop | Repeat):
            return self._loop(step)
        return step

    def _call(self, call: Call) -> Call:
        return replace(
            call,
            memory=self._every(call.memory),
            written=self._every(call.written),
            in_place=tuple((self._of(a), self._of(b)) for a, b in call.in_place),
        )

    def _loop(self, step: ScanLoop | Repeat) -> ScanLoop | Repeat:
        carries = tuple(Carry(*self._every((c.now, c.then, c.home))) for c in step.carries)
        body = self.renamed(step.body)
        if isinstance(step, Repeat):
            condition, holds = self.renamed(step.condition), self._of(step.holds)
            return replace(step, carries=carries, condition=condition, holds=holds, body=body)
        slices = tuple((part, self._of(whole)) for part, whole in step.slices)
        return replace(step, carries=carries, slices=slices, body=body)


def _is_idle(step: Step) -> bool:
    """Whether a step copies something onto itself."""
    if isinstance(step, Call):
        return step.copies and step.memory[0] is step.memory[1]
    return isinstance(step, Copy) and step.source is step.target


def _uses(steps: Sequence[Step]) -> Iterator[Memory]:
    """What each step touches itself, and then what the steps inside it do."""
    for step in steps:
        if isinstance(step, ScanLoop | Repeat):
            yield from (m for c in step.carries for m in (c.now, c.then, c.home))
        if isinstance(step, ScanLoop):
            yield from (m for pair in step.slices for m in pair)
        elif isinstance(step, Repeat):
            yield step.holds
        elif isinstance(step, Choice):
            yield step.index
        if isinstance(step, ScanLoop | Repeat | Choice):
            for block in _blocks(step):
                yield from _uses(block)
        else:
            yield from touched(step)
