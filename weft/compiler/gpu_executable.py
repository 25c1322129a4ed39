"""`GpuExecutable`: a trace made ready to run on a GPU, on arrays that lie there.

Memory is planned once: what lives inside a run shares one piece of memory, results have their own.
The addresses of a run are written into a table that all launches read, so a launch is one call of
the driver. Calls without kernels get whole arrays, see `gpu_calls`. Runs of several threads, and
those that a call begins, take turns at the table; nobody waits while a call runs.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from weft.compiler.executable import Executable
from weft.compiler.gpu_calls import is_on_host, run_alone, run_call, run_on_host
from weft.compiler.gpu_chains import Chains, Link, Slots
from weft.compiler.gpu_code import functions_of, language_of
from weft.compiler.gpu_memory import places
from weft.compiler.gpu_program import plan
from weft.compiler.gpu_steps import Block, Call, GpuProgram, Launch
from weft.compiler.statistics import BuildCounts, Clock
from weft.core.common.events import told, watchers
from weft.core.common.locks import lock_for
from weft.core.common.source import describe, user_position
from weft.core.common.types import DType, Shape
from weft.core.graph.graph import Located
from weft.core.graph.node import OutputRefs
from weft.core.graph.trace import Trace
from weft.errors import DeviceError
from weft.runtime.gpu.array import GpuArray
from weft.runtime.gpu.interface import GpuMemory

BYTE = np.dtype(np.uint8)


class GpuExecutable(Executable):
    """What a compiled function, a recorded graph or a single call runs on a GPU."""

    def __init__(self, trace: Trace, client: Any) -> None:
        self._trace, self._client, self._gpu = trace, client, client.gpu
        clock = Clock()
        with clock("lower"):
            language = language_of(self._gpu)
            admit = functools.partial(language.admit, self._gpu)
            self.program: GpuProgram = plan(trace, language.limits(self._gpu), admit)
            self._slots = {block: k for k, block in enumerate(self.program.memory())}
            if self.program.status is not None:
                self._slots.setdefault(self.program.status, len(self._slots))
            self._places = places(self.program, self._slots, self._gpu)
        with clock("compile"):
            functions = functions_of(self._gpu, self.program.kernels)
        self._table = (ctypes.c_uint64 * max(len(self._slots), 1))()
        # What is the same in every run, by slot; None for what is not.
        self._held: list[GpuArray | None] = [self._constant(block.data) for block in self._slots]
        self._inputs = [self._slots[block] for block in self.program.inputs]
        self._outputs, self._own = self._results()
        self._starts = [
            self._prepared(launch, function)
            for launch, function in zip(self.program.launches, functions, strict=True)
        ]
        self._stages = self._staged()
        self._written: object = None  # the mark of the run whose addresses are in the table
        self._lock = lock_for(self, "_lock")
        self.counts = BuildCounts(
            kernels=len(functions),
            regions=len(self.program.steps),
            bytes_planned=sum(self._places.pieces),
            native_compilations=1,
            milliseconds=clock.milliseconds,
        )

    def _constant(self, x: Any) -> GpuArray | None:
        if x is None:
            return None
        found: GpuArray = self._client.to_device(x) if isinstance(x, np.ndarray) else x
        found.memory.common = True  # a result may lie there, and every run reads it
        return found

    def _results(self) -> tuple[list[tuple[int, Shape, DType]], list[tuple[int, int]]]:
        """The slots of outputs with their kinds, and those of memory that each run has anew."""
        kinds = [(kind.shape, kind.dtype) for kind in self._trace.output_types]
        slots = [self._slots[block] for block in self.program.outputs]
        own = [(slot, self._nbytes(block)) for slot, block in self._places.own]
        return [(slot, *kind) for slot, kind in zip(slots, kinds, strict=True)], own

    def _prepared(self, step: Launch, function: Any) -> Callable[[], int]:
        notes = step.kernel.notes
        slots = [self._slots[block] for block in step.memory]
        start: Callable[[], int]
        start = self._gpu.prepare(function, notes["blocks"], notes["threads"], self._table, slots)
        return start

    def _staged(self) -> list[Callable[[_Run], None]]:
        """What a run does: launches that follow each other together, and calls.

        Before a call, and at the end, positions are looked at that may be out of range.
        """
        stages: list[Callable[[_Run], None]] = []
        starts = iter(self._starts)
        for is_call, steps in groupby(self.program.steps, lambda step: isinstance(step, Call)):
            if is_call:
                stages += [self._call(step) for step in steps if isinstance(step, Call)]
                continue
            launches = [(step, next(starts)) for step in steps if isinstance(step, Launch)]
            stages.append(self._launches(launches))
            if any(self.program.status in step.memory for step, _ in launches):
                stages.append(self._look)
        return stages

    def _launches(self, launches: list[tuple[Launch, Callable[[], int]]]) -> Callable[[_Run], None]:
        links = [Link(start, *self._touched(step)) for step, start in launches]
        chains = Chains(self._gpu, links, self._table)

        def run(state: _Run) -> None:
            self._gpu.enter()
            with self._lock:
                if self._written is not state.mark:  # another run was here in between
                    state.write()
                if not watchers:
                    chains.run()
                    return
                for step, start in launches:
                    self._watched(step, start)

        return run

    def _touched(self, step: Launch) -> tuple[Slots, Slots]:
        """The slots that a launch reads, and those that it writes."""
        read, written = (
            tuple((self._slots[b], self._nbytes(b)) for b in blocks) for blocks in step.touched()
        )
        return read, written

    def _nbytes(self, block: Block) -> int:
        """Bytes of a block in the GPU's memory."""
        itemsize: int = self._gpu.stored(block.dtype).itemsize
        return block.size * itemsize

    def _watched(self, step: Launch, start: Callable[[], int]) -> None:
        """One launch that watchers are told of: it is waited for."""
        self._gpu.synchronize()
        with told("kernel", step.kernel.name.partition("_")[2], step.details):
            code = start()
            if code:
                self._gpu.refuse(code)
            self._gpu.synchronize()

    def _call(self, step: Call) -> Callable[[_Run], None]:
        reads = [
            (self._slots[b], *_kind(ref))
            for b, ref in zip(step.reads, step.node.inputs, strict=True)
        ]
        makes = [self._slots[block] for block in step.makes]
        performed = run_alone if step.alone else run_call

        def run(state: _Run) -> None:
            arrays = tuple(state.array(*each) for each in reads)
            with Located(step.node):
                results = performed(self._client, step.node, arrays)
            for slot, result in zip(makes, results, strict=True):
                state.hold(slot, result)

        return run

    def run(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs for these inputs; arrays of the host are copied to the GPU."""
        if not watchers:
            return self._run(arrays)
        line = describe(user_position(3))
        with told("run", self._trace.name, lambda: {"lost": 0, "line": line}):
            return self._run(arrays)

    def _run(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        given, gpu = [], self._gpu
        for a in arrays:
            array = self._client.to_device(a) if isinstance(a, np.ndarray) else a
            if array.gpu is not gpu:  # whose addresses mean nothing here
                raise DeviceError(f"{self._trace.name}: {array} is on another GPU than its kernels")
            given.append(array)
        state = _Run(self, given)
        for stage in self._stages:
            stage(state)
        return tuple([state.array(*each) for each in self._outputs])

    def _look(self, state: _Run) -> None:
        """Raise what is wrong, if a kernel has met a position that is out of range."""
        assert state.report is not None
        if self._gpu.reported(state.report):
            values = [*state.given, *(x.data() for x in self._trace.captures)]
            self._trace.walk([_on_host(x) for x in values], self._retell)
            raise DeviceError("a kernel met a position out of range that the reference does not")

    def _retell(self, node: OutputRefs, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """A call on the host, to say what is wrong and where; effects are not had again."""
        if not node.types and not node.op.pure:
            return ()
        with Located(node):
            if node.op.leaf:
                return run_on_host(node, arrays)
            made = run_call(self._client, node, tuple(map(self._client.to_device, arrays)))
        return tuple(map(_on_host, made))

    def explain(self, *, loops: bool = False) -> str:
        between = sum(self._places.pieces)
        count = len(self.program.steps)
        lines = [f"{count} steps on {self._gpu.name}, {between} bytes between them"]
        for step in self.program.steps:
            if isinstance(step, Launch):
                number, panels = step.panel
                notes = step.kernel.notes
                where = f"{notes['blocks']} blocks of {notes['threads']} threads"
                if number == 0:
                    again = f", in {panels} panels" if panels > 1 else ""
                    lines.append(f"  kernel {step.kernel.name}: {where}{again}")
            elif step.why and is_on_host(step.node):
                why = step.why.removeprefix(f"{step.node.name}: ")
                lines.append(f"  call {step.node.name} on the host: {why}")
            else:
                lines.append(f"  call {step.node.name}")
        return "\n".join(lines)


class _Run:
    """The memory of one run."""

    __slots__ = ("_arrays", "_owner", "_pieces", "given", "mark", "report")

    def __init__(self, owner: GpuExecutable, given: list[GpuArray]) -> None:
        self._owner, self.given, self.mark = owner, given, object()
        gpu = owner._gpu
        arrays = self._arrays = owner._held.copy()
        for slot, array in zip(owner._inputs, given, strict=True):
            arrays[slot] = array
        for slot, nbytes in owner._own:
            arrays[slot] = GpuArray(gpu, gpu.allocate(nbytes), (nbytes,), BYTE)
        status = owner.program.status
        self.report: GpuMemory | None = None
        if status is not None:
            self.report = report = gpu.report()
            arrays[owner._slots[status]] = GpuArray(gpu, report, (1,), status.dtype)
        self._pieces = [gpu.allocate(nbytes) for nbytes in owner._places.pieces]

    def write(self) -> None:
        """Put the addresses of this run into the table, by whoever holds its lock."""
        table = self._owner._table
        for slot, array in enumerate(self._arrays):
            if array is not None:
                table[slot] = array.memory.address + array.offset
        if self._pieces:
            firsts = [piece.address for piece in self._pieces]
            for slot, (piece, offset) in self._owner._places.inside.items():
                table[slot] = firsts[piece] + offset
        self._owner._written = self.mark

    def hold(self, slot: int, array: GpuArray) -> None:
        """A call's result, for what comes later."""
        self._arrays[slot] = array
        owner = self._owner
        with owner._lock:
            if owner._written is self.mark:
                owner._table[slot] = array.address

    def array(self, slot: int, shape: Any, dtype: Any) -> GpuArray:
        """What a slot holds, as an array of this kind."""
        found = self._arrays[slot]
        if found is not None:
            return GpuArray(found.gpu, found.memory, shape, dtype, found.offset)
        piece, offset = self._owner._places.inside[slot]
        return GpuArray(self._owner._gpu, self._pieces[piece], shape, dtype, offset)


def _kind(ref: Any) -> tuple[Any, Any]:
    kind = ref[0].types[ref[1]]
    return kind.shape, kind.dtype


def _on_host(x: Any) -> Any:
    return x.to_host() if isinstance(x, GpuArray) else x
