"""`GpuExecutable`: a trace made ready to run on a GPU, on arrays that lie there.

Memory is planned once: what lives inside a run shares one piece of memory, results have their own.
The addresses of a run are written into a table that all launches read, so a launch is one call of
the driver. Calls without kernels get whole arrays, see `gpu_calls`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.compiler import memory
from weft.compiler.executable import Executable
from weft.compiler.gpu_calls import run_call, run_on_host
from weft.compiler.gpu_code import functions_of
from weft.compiler.gpu_program import Block, Call, GpuProgram, Launch, plan_all
from weft.compiler.pipeline_gpu import CUDA
from weft.compiler.statistics import BuildCounts, Clock
from weft.core.common.events import told, watchers
from weft.core.common.locks import lock_for
from weft.core.common.source import describe, user_position
from weft.core.graph.graph import Located
from weft.core.graph.node import OutputRefs
from weft.core.graph.trace import Trace
from weft.errors import DeviceError
from weft.runtime.cuda.array import GpuArray


class GpuExecutable(Executable):
    """What a compiled function, a recorded graph or a single call runs on a GPU."""

    def __init__(self, trace: Trace, client: Any) -> None:
        self._trace, self._client, self._gpu = trace, client, client.gpu
        clock = Clock()
        with clock("lower"):
            self.program: GpuProgram = plan_all(trace, CUDA)
            self._slots = {block: k for k, block in enumerate(self.program.memory())}
            if self.program.status is not None:
                self._slots.setdefault(self.program.status, len(self._slots))
            self._place()
        with clock("compile"):
            functions = functions_of(self._gpu, self.program.kernels)
        self._table = (ctypes.c_uint64 * max(len(self._slots), 1))()
        self._constants = {
            slot: client.to_device(x) if isinstance(x := block.data, np.ndarray) else x
            for block, slot in self._slots.items()
            if block.data is not None
        }
        made = iter(functions)
        self._steps = [
            self._launch(step, next(made)) if isinstance(step, Launch) else self._call(step)
            for step in self.program.steps
        ]
        self._lock = lock_for(self, "_lock")
        self.counts = BuildCounts(
            kernels=len(functions),
            regions=len(self.program.steps),
            bytes_planned=self._arena,
            native_compilations=1,
            milliseconds=clock.milliseconds,
        )

    def _place(self) -> None:
        """Find where blocks lie that are written by kernels and are no results."""
        slots, steps = self._slots, list[memory.Step]()
        given = {slots[b] for b in self.program.inputs} | {
            slot for block, slot in slots.items() if block.data is not None
        }
        if self.program.status is not None:
            given.add(slots[self.program.status])
        for step in self.program.steps:
            if isinstance(step, Launch):
                modes = [buffer.mode for buffer in step.kernel.buffers]
                modes += ["write"] * (len(step.memory) - len(modes))
                pairs = list(zip(step.memory, modes, strict=True))
                reads = tuple(slots[b] for b, mode in pairs if mode != "write")
                writes = tuple(slots[b] for b, mode in pairs if mode != "read")
                reads = tuple(x for x in reads if x in given or x not in writes)
            else:
                reads = tuple(slots[b] for b in step.reads)
                writes = ()
                given |= {slots[b] for b in step.makes}
            steps.append(memory.Step(reads, writes))
        sizes = {slot: block.nbytes for block, slot in slots.items()}
        lasting = dict.fromkeys((*self.program.outputs, *self.program.passed()))
        outputs = {slots[b] for b in lasting}
        found = memory.plan(steps, sizes, inputs=given, outputs=outputs)
        self._arena = found.arena_bytes
        self._offsets = {slot: found.offsets[slot] for slot in found.offsets}
        self._own = [  # what kernels write that may outlive the run
            (slots[block], block) for block in lasting if slots[block] not in given
        ]
        self._homes = dict(found.buffers)

    def _launch(self, step: Launch, function: Any) -> Callable[[_Run], None]:
        notes = step.kernel.notes
        slots = [self._slots[block] for block in step.memory]
        start = self._gpu.prepare(function, notes["blocks"], notes["threads"], self._table, slots)
        refuse = self._gpu.refuse

        def run(state: _Run) -> None:
            if watchers:
                self._watched(step, start)
                return
            code = start()
            if code:
                refuse(code)

        return run

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

        def run(state: _Run) -> None:
            arrays = tuple(state.array(*each) for each in reads)
            with Located(step.node):
                results = run_call(self._client, step.node, arrays)
            self._gpu.enter()
            for slot, result in zip(makes, results, strict=True):
                state.hold(slot, result)

        return run

    def run(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs for these inputs; arrays of the host are copied to the GPU."""
        to_device = self._client.to_device
        given = [to_device(a) if isinstance(a, np.ndarray) else a for a in arrays]
        with self._lock:
            if not watchers:
                return self._run(given)
            line = describe(user_position(3))
            with told("run", self._trace.name, lambda: {"lost": 0, "line": line}):
                return self._run(given)

    def _run(self, given: list[GpuArray]) -> tuple[Any, ...]:
        state = _Run(self, given)
        self._gpu.enter()
        for step in self._steps:
            step(state)
        if self.program.status is not None:
            self._look(state, given)
        return tuple(
            state.array(self._slots[block], kind.shape, kind.dtype)
            for block, kind in zip(self.program.outputs, self._trace.output_types, strict=True)
        )

    def _look(self, state: _Run, given: list[GpuArray]) -> None:
        """Raise what is wrong, if a kernel has met a position that is out of range."""
        status = np.zeros(1, np.int64)
        slot = self._slots[self.program.status]  # type: ignore[index]
        self._gpu.read(self._table[slot], status)
        if status[0]:
            values = [*given, *(x.data() for x in self._trace.captures)]
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
        lines = [f"{len(self._steps)} steps on {self._gpu.name}, {self._arena} bytes between them"]
        for step in self.program.steps:
            if isinstance(step, Launch):
                notes = step.kernel.notes
                where = f"{notes['blocks']} blocks of {notes['threads']} threads"
                lines.append(f"  kernel {step.kernel.name}: {where}")
            else:
                lines.append(f"  call {step.node.name}")
        return "\n".join(lines)


class _Run:
    """The memory of one run."""

    __slots__ = ("_arena", "_arrays", "_owner", "_table")

    def __init__(self, owner: GpuExecutable, given: list[GpuArray]) -> None:
        self._owner, self._table = owner, owner._table
        gpu, table = owner._gpu, owner._table
        self._arrays: dict[int, GpuArray] = dict(owner._constants)
        slots = owner._slots
        for block, array in zip(owner.program.inputs, given, strict=True):
            self._arrays[slots[block]] = array
        for slot, block in owner._own:
            self._arrays[slot] = GpuArray.empty(gpu, (block.size,), block.dtype)
        status = owner.program.status
        if status is not None:
            made = self._arrays[slots[status]] = GpuArray.empty(gpu, (1,), status.dtype)
            gpu.clear(made.address, made.nbytes)
        for slot, array in self._arrays.items():
            table[slot] = array.address
        self._arena = gpu.allocate(owner._arena) if owner._arena else None
        if self._arena is not None:
            first = self._arena.address
            for slot, offset in owner._offsets.items():
                table[slot] = first + offset
        for slot, home in owner._homes.items():
            table[slot] = table[home]

    def hold(self, slot: int, array: GpuArray) -> None:
        """A call's result, for what comes later."""
        self._arrays[slot] = array
        self._table[slot] = array.address

    def array(self, slot: int, shape: Any, dtype: Any) -> GpuArray:
        """What a slot holds, as an array of this kind."""
        slot = self._owner._homes.get(slot, slot)
        found = self._arrays.get(slot)
        if found is not None:
            return GpuArray(found.gpu, found.memory, shape, dtype, found.offset)
        offset = self._owner._offsets[slot]
        return GpuArray(self._owner._gpu, self._arena, shape, dtype, offset)


def _kind(ref: Any) -> tuple[Any, Any]:
    kind = ref[0].types[ref[1]]
    return kind.shape, kind.dtype


def _on_host(x: Any) -> Any:
    return x.to_host() if isinstance(x, GpuArray) else x


__all__ = ["Block", "GpuExecutable"]
