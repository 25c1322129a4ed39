"""Writes programs: regions of steps, loops, branches and calls of Python, in the order they run.

Buffers are named by *slots* of the program's table of pointers. Slots are declared first; loops may
swap them (double-buffered carries) or move them along (one slice for each iteration).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from weft.errors import ArgumentError, WeftError
from weft.runtime.cpu.executor_layout import (
    FIXED_ARGUMENTS,
    FRAME,
    INTEGERS,
    OPCODES,
    PANEL_WORDS,
    PRIVATE,
    REGION_WORDS,
    SCRATCH,
    SELF,
    STEP,
    ZERO,
)
from weft.runtime.cpu.program import Encoded, HostCall, Program, aligned_words

PARALLEL_NS = 20_000.0  # a region of less work runs on its caller's thread
CHUNK_NS = 5_000.0  # the least work that is worth handing out
MOST_CHUNKS = 256  # of a region, however much work it is
COPIED_BYTES = 4.0  # a nanosecond
BRIEF_NS = 100_000.0  # a program of less work need not let other Python threads run
UNWATCHED_NS = 5_000.0  # work after which nobody looks at the clock
_LEAST_NS = 50.0  # of one round of a loop, whatever it does
_LINE = 64
_WORD = 8


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel of a region: its code, its buffers, and how far it may be split.

    `cost_ns` estimates the whole step on one thread. `grain` is how many tasks make a chunk; 0
    leaves it to the cost.
    """

    kernel_address: int
    slots: tuple[int, ...]
    parameters: tuple[int, ...] = ()
    tasks: int = 1
    cost_ns: float = 0.0
    name: str = ""
    grain: int = 0


@dataclass(frozen=True, slots=True)
class PrivateSlot:
    """A slot whose memory is each worker's own: the rows of the panel that it is at.

    `batch_bytes` and `panel_bytes` are what a batch and a panel would take if all rows were there.
    """

    slot: int
    offset: int
    batch_bytes: int
    panel_bytes: int


@dataclass(frozen=True, slots=True)
class Register:
    """An integer of the run: a loop's counter, or one read from memory."""

    number: int


_ALWAYS_ZERO = Register(0)


def failure(code: int, detail: int) -> WeftError:
    """The error for a status that nobody gave a meaning to."""
    return WeftError(f"program: run: a kernel reported status {code} (detail {detail})")


class ProgramBuilder:
    """Writes a program; `arguments` is how many addresses each run is given.

    A region of less than `parallel_ns` runs on its caller's thread.

    >>> builder = ProgramBuilder(arguments=2)
    >>> x, total = builder.argument(0), builder.argument(1)
    >>> with builder.loop(10) as counter:
    ...     builder.store(counter, total)
    >>> buffers = [np.zeros(1, np.int64) for _ in range(2)]
    >>> builder.build().run([b.ctypes.data for b in buffers])
    >>> buffers[1]
    array([9])
    """

    def __init__(self, arguments: int, parallel_ns: float = PARALLEL_NS) -> None:
        self._arguments = arguments
        self._parallel_ns = parallel_ns
        self._sources: list[tuple[int, int]] = [(SELF, FRAME["STATUS"])]
        self._code: list[int] = []
        self._registers = 1
        self._scratch_bytes = 0
        self._hosts: list[HostCall] = []
        self._names: list[str] = []
        self._chunks: list[int] = []
        self._kernels: list[int] = []  # where in the code addresses of kernels are
        self._constants: list[int] = []  # slots
        self._cost_ns = 0.0
        self._is_straight = True  # serial regions and copies, one after the other
        self._serial: list[Step] = []  # of a region that is not written yet

    def argument(self, number: int, offset: int = 0) -> int:
        """A slot for the address that runs are given at place `number`, plus `offset` bytes."""
        assert 0 <= number < self._arguments
        return self._slot(FIXED_ARGUMENTS + number, offset)

    def constant(self, address: int) -> int:
        """A slot for memory that stays where it is as long as the program lives."""
        slot = self._slot(ZERO, address)
        self._constants.append(slot)
        return slot

    def scratch(self, nbytes: int) -> int:
        """A slot for memory of each run's own, of arbitrary contents, on a cache line."""
        offset = -(-self._scratch_bytes // _LINE) * _LINE
        self._scratch_bytes = offset + nbytes
        return self._slot(SCRATCH, offset)

    def scratch_at(self, offset: int, nbytes: int) -> int:
        """A slot for part of each run's own memory, which the caller lays out."""
        self._scratch_bytes = max(self._scratch_bytes, offset + nbytes)
        return self._slot(SCRATCH, offset)

    def pointer(self) -> int:
        """A slot that `advance` will set."""
        return self._slot(ZERO, 0)

    def region(self, steps: Sequence[Step]) -> None:
        """Run steps that do not depend on each other; large ones on several threads."""
        steps = [step for step in steps if step.tasks > 0]
        if not steps:
            return
        total = sum(step.cost_ns for step in steps)
        chunk_ns = max(CHUNK_NS, total / MOST_CHUNKS)
        # The longest chunks go first: what is begun last is what the others wait for.
        split = sorted(
            ((_grain(step, chunk_ns), step) for step in steps),
            key=lambda pair: -pair[1].cost_ns * pair[0] / pair[1].tasks,
        )
        chunks = sum(-(-step.tasks // grain) for grain, step in split)
        alone = total < self._parallel_ns or chunks == 1
        self._cost_ns += total
        self._is_straight &= alone
        if alone:
            self._append_serial([step for _, step in split])
        else:
            self._emit_region("parallel", split, chunks)

    def _append_serial(self, steps: list[Step]) -> None:
        """Run steps on the caller's thread, after those before if all of them are brief."""
        together = (*self._serial, *steps)
        if sum(step.cost_ns for step in together) > UNWATCHED_NS:
            self._here()
        self._serial += steps

    def _here(self) -> int:
        """Where the next instruction will be; steps that wait for more of them are written."""
        if self._serial:
            steps, self._serial = self._serial, []
            brief = sum(step.cost_ns for step in steps) <= UNWATCHED_NS
            self._emit_region("serial", [(step.tasks, step) for step in steps], int(brief))
        return len(self._code)

    def _emit_region(self, kind: str, split: list[tuple[int, Step]], chunks: int) -> None:
        data_at = REGION_WORDS + len(split) * len(STEP)
        records: list[int] = []
        data: list[int] = []
        first = 0
        begin = self._here()
        for grain, step in split:
            here = REGION_WORDS + len(records)
            self._kernels.append(begin + here)
            last = first + -(-step.tasks // grain)
            records += self._record(step, grain, (data_at - here, data), (first, last))
            self._chunks.append(last - first if kind == "parallel" else 1)
            first = last
        self._emit(kind, len(split), chunks, *records, *data)

    def _record(
        self, step: Step, grain: int, data: tuple[int, list[int]], chunks: tuple[int, int]
    ) -> list[int]:
        """The words of a step; slots and parameters are appended to the data, so many words on."""
        self._check(step.slots)
        distance, words = data
        slots_at = distance + len(words)
        words += _packed(step.slots)
        parameters_at = distance + len(words)
        words += step.parameters
        self._names.append(step.name)
        places = (slots_at * _WORD, parameters_at * _WORD)
        number = len(self._names) - 1
        return [step.kernel_address, *places, step.tasks, grain, *chunks, number]

    def panels(
        self,
        steps: Sequence[Step],
        private: Sequence[PrivateSlot],
        scratch: tuple[int, int, int],
        count: tuple[int, int, int],
    ) -> None:
        """Run all steps on one panel, then on the next one; threads share the panels.

        A step's `tasks` are those of a batch, its `grain` is that of a panel. `scratch` is a slot,
        the bytes of a worker's part and the number of parts, `count` batches, panels in each, and
        how many of those a thread takes together, in order.
        """
        self._is_straight = False
        batches, panels, together = count
        slot, nbytes, workers = scratch
        records_at = PANEL_WORDS + len(steps) * len(STEP)
        data_at = records_at + len(private) * len(PRIVATE)
        records: list[int] = []
        data: list[int] = []
        begin = self._here()
        for step in steps:
            here = PANEL_WORDS + len(records)
            self._kernels.append(begin + here)
            records += self._record(step, step.grain, (data_at - here, data), (0, 0))
            self._chunks.append(batches * panels)
        for each in private:
            places = (self._known(each.slot), each.offset, each.batch_bytes, each.panel_bytes)
            records += places
        head = (self._known(slot), nbytes, workers, panels, len(private), records_at * _WORD)
        chunks = batches * panels // together
        self._emit("panels", len(steps), chunks, *head, together, *records, *data)

    @contextmanager
    def loop(self, trips: int | Register) -> Iterator[Register]:
        """Repeat what is written inside; the counter goes from 0 to `trips` - 1."""
        limit = trips if isinstance(trips, Register) else self._set(trips)
        counter = self._set(0)
        head = self._emit("unless_less", counter.number, limit.number, 0)
        begin, before = self._here(), self._cost_ns
        self._is_straight = True
        yield counter
        rounds = UNWATCHED_NS / max(self._cost_ns - before, _LEAST_NS) if self._is_straight else 1
        mask = (1 << max(int(rounds), 1).bit_length() - 1) - 1
        self._is_straight = False
        back = self._emit("next", counter.number, limit.number, 0, mask)
        self._code[back + 4] = begin - back
        self._land(head + 4, head)

    @contextmanager
    def while_(self) -> Iterator[While]:
        """Repeat what is written inside, until a `check` in it finds its predicate false."""
        self._is_straight = False
        begin = self._here()
        loop = While(self)
        yield loop
        assert loop.exits, "a loop without a check would not end"
        back = self._emit("back", 0)
        self._code[back + 2] = begin - back
        for leave in loop.exits:
            self._land(leave + 3, leave)

    @contextmanager
    def branch(self, index: Register) -> Iterator[Callable[[], AbstractContextManager[None]]]:
        """Run one of the cases written inside, each `with case():`, in order of their index.

        An index below 0 chooses the first case, one that is too large the last.
        """
        self._is_straight = False
        choose = self._emit("choose", index.number, 0, 0)
        begins: list[int] = []
        ends: list[int] = []

        @contextmanager
        def case() -> Iterator[None]:
            begins.append(self._here() - choose)
            yield
            ends.append(self._emit("jump", 0))

        yield case
        assert begins, "a branch needs a case"
        self._code[choose + 3] = len(begins)
        self._land(choose + 4, choose)
        self._code += begins
        for end in ends:
            self._land(end + 2, end)

    def read(self, slot: int, dtype: Any, offset: int = 0) -> Register:
        """The integer or bool in memory as it is when the program comes here."""
        name = np.dtype(dtype).name
        if name not in INTEGERS:
            raise ArgumentError(f"program: read: {name} is no integer")
        register = self._register()
        self._emit(f"read_{name}", register.number, self._known(slot), offset)
        return register

    def store(self, register: Register, slot: int, offset: int = 0) -> None:
        """Write a register to memory as int64, for kernels to read."""
        self._emit("put", register.number, self._known(slot), offset)

    def swap(self, a: int, b: int) -> None:
        """Exchange the pointers of two slots."""
        self._emit("swap", self._known(a), self._known(b))

    def advance(
        self,
        slot: int,
        base: int,
        counter: Register = _ALWAYS_ZERO,
        stride: int = 0,
        offset: int = 0,
    ) -> None:
        """Point `slot` at `base` + `counter` * `stride` + `offset` bytes.

        Slices from the last to the first have a negative stride and begin at an offset.
        """
        slots = (self._known(slot), self._known(base))
        self._emit("advance", *slots, counter.number, stride, offset)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy memory; nothing happens where both slots point to the same place."""
        self._cost_ns += nbytes / COPIED_BYTES
        self._emit("copy", self._known(target), self._known(source), nbytes)

    def host(
        self, function: Callable[..., Any], slots: Sequence[int] = (), results: Sequence[int] = ()
    ) -> None:
        """Call Python with the addresses in `slots`; what it raises ends the run.

        The addresses that it returns are those of the slots `results` from then on.
        """
        self._is_straight = False
        self._check((*slots, *results))
        self._emit("host", len(self._hosts), *((slots[0], slots[-1]) if slots else (0, 0)))
        self._hosts.append(HostCall(function, tuple(slots), tuple(results)))

    def build(
        self,
        failure: Callable[[int, int], BaseException] = failure,
        keep_alive: Any = None,
    ) -> Program:
        """The program as written; `failure` makes the error for a status that a kernel reports."""
        self._here()
        sources = [word for pair in self._sources for word in pair]
        begin = 1 + len(sources)
        words = [len(self._sources), *sources, *self._code, OPCODES["end"], 2]
        code = aligned_words(len(words))
        code[:] = words
        return Program(
            Encoded(
                code=code,
                slots=len(self._sources),
                registers=self._registers,
                arguments=self._arguments,
                scratch_bytes=self._scratch_bytes,
                hosts=tuple(self._hosts),
                names=tuple(self._names),
                chunks=tuple(self._chunks),
                kernels=tuple(begin + place for place in self._kernels),
                constants=tuple(2 + 2 * slot for slot in self._constants),
                is_brief=self._is_straight and self._cost_ns < BRIEF_NS,
                failure=failure,
                keep_alive=keep_alive,
            )
        )

    def _slot(self, source: int, offset: int) -> int:
        self._sources.append((source, offset))
        return len(self._sources) - 1

    def _known(self, slot: int) -> int:
        assert 0 <= slot < len(self._sources), f"slot {slot} is not declared"
        return slot

    def _check(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._known(slot)

    def _register(self) -> Register:
        self._registers += 1
        return Register(self._registers - 1)

    def _set(self, value: int) -> Register:
        register = self._register()
        self._emit("set", register.number, value)
        return register

    def _emit(self, name: str, *operands: int) -> int:
        """Append an instruction; the result is where it begins."""
        begin = self._here()
        self._code += [OPCODES[name], 2 + len(operands), *operands]
        return begin

    def _land(self, place: int, origin: int) -> None:
        """Let the jump of the instruction at `origin` arrive here."""
        self._code[place] = self._here() - origin


class While:
    """A loop that is being written; see `ProgramBuilder.while_`."""

    def __init__(self, builder: ProgramBuilder) -> None:
        self._builder = builder
        self.exits: list[int] = []

    def check(self, predicate: int) -> None:
        """Leave the loop here if the byte in slot `predicate` is 0."""
        builder = self._builder
        self.exits.append(builder._emit("unless", builder._known(predicate), 0))


def _grain(step: Step, chunk_ns: float) -> int:
    """Tasks to a chunk, so that each is worth handing out and none is much smaller."""
    if step.grain:
        return step.grain
    chunks = min(max(int(step.cost_ns / chunk_ns), 1), step.tasks)
    return ceil(step.tasks / chunks)


def _packed(slots: tuple[int, ...]) -> list[int]:
    """32-bit slots as 64-bit words."""
    padded = np.zeros(len(slots) + len(slots) % 2, np.int32)
    padded[: len(slots)] = slots
    words: list[int] = padded.view(np.int64).tolist()
    return words
