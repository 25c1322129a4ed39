"""`Native`: a trace as machine code — kernels, one program that calls them, and planned memory.

Inputs are used where they lie; results come from the caching allocator; everything in between lives
in one arena whose parts are used again. A graph whose kernels report a mistake (an index out of
range) is run again by its references, which say what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.compiler import explain
from weft.compiler.assemble import Assembler, Environment, Memory, Step, constant, leaves
from weft.compiler.executable import Executable, Interpreted
from weft.compiler.kernels import STORE
from weft.compiler.place import place
from weft.compiler.point import kind_of
from weft.compiler.small import is_small
from weft.compiler.statistics import BuildCounts
from weft.compiler.translate import Translator
from weft.compiler.watched import Watched
from weft.core.common.events import watchers
from weft.core.common.types import Array, DType, Shape
from weft.core.graph.node import Ref
from weft.core.graph.trace import Trace
from weft.errors import WeftError
from weft.runtime.cpu.allocator import CachingAllocator
from weft.runtime.cpu.program import address_of, knows_arrays
from weft.runtime.cpu.program_builder import ProgramBuilder
from weft.runtime.registry import client

_OWN_BYTES = 1 << 16  # an arena up to this size belongs to the program, a larger one to each run
_CACHED_BYTES = 1 << 16  # results from which memory is worth a search in the allocator
_BYTE = np.dtype(np.uint8)


class KernelFailure(WeftError):
    """A kernel reported what the calls it was made of would have raised."""


class Native(Executable):
    """A trace compiled for this machine."""

    def __init__(
        self,
        trace: Trace,
        donated: tuple[bool, ...] = (),
        *,
        general: bool = False,
        strides: dict[Ref, tuple[int, ...]] | None = None,
        retells: bool = True,
    ) -> None:
        self._trace = trace
        self._retells = retells  # whether references say what a kernel reports
        self._assembler = assembler = Assembler(general, usable(strides or {}, trace))
        self._strided = [(node, 0) in assembler.strides for node in trace.inputs]
        self._inputs = [Memory(node.types[0], "input", i) for i, node in enumerate(trace.inputs)]
        memory: Environment = {
            (node, 0): place for node, place in zip(trace.inputs, self._inputs, strict=True)
        }
        for node in leaves(trace):
            memory[node, 0] = constant(node)
        self._outputs: list[Memory] = []
        self._given: list[Memory] = []  # for each result: the output, or input, it is
        for ref in trace.outputs:
            if ref not in memory:
                memory[ref] = Memory(ref[0].types[ref[1]], "output", len(self._outputs))
                self._outputs.append(memory[ref])
            self._given.append(memory[ref])
        self.steps: tuple[Step, ...] = assembler.block(trace.nodes, trace.outputs, memory)
        self._new_kernels = STORE.ready(assembler.requests, assembler.clock)
        self.placement = place(self.steps, self._inputs, self._outputs, donated)
        self._prepare()

    def _prepare(self) -> None:
        large = self.placement.arena > _OWN_BYTES
        builder = ProgramBuilder(len(self._inputs) + len(self._outputs) + large)
        slots: dict[Memory, int] = {}
        kept: list[Array] = []
        slots[self._assembler.status] = 0
        for number, each in enumerate((*self._inputs, *self._outputs)):
            slots[each] = builder.argument(number)
        self._reused = {m.position: home.position for m, home in self._reuse()}
        for each in self.placement.memories:
            if each.role == "constant":
                kept.append(np.array(each.data, order="C"))
                slots[each] = builder.constant(kept[-1].ctypes.data)
            elif each.role == "slice":
                slots[each] = builder.pointer()
            elif each in self.placement.homes:
                slots[each] = slots[self.placement.homes[each]]
            elif each.role == "temporary":
                offset = self.placement.offsets[each]
                slots[each] = (
                    builder.argument(len(self._inputs) + len(self._outputs), offset)
                    if large
                    else builder.scratch_at(offset, each.nbytes)
                )
        translator = Translator(builder, slots)
        translator.write(self.steps)
        self.calls = translator.calls
        code = [r.compiled for r in self._assembler.requests]
        self.program = builder.build(self._failure, (kept, code))
        self._watched = Watched(self._trace.name, self.program, self.calls)
        self.counts = BuildCounts(
            kernels=self._assembler.groups,
            regions=translator.regions,
            bytes_planned=self.placement.arena,
            native_compilations=int(self._new_kernels > 0),
            milliseconds=self._assembler.clock.milliseconds,
        )
        self._arena = self.placement.arena if large else 0
        self._constants = tuple(x.data() for x in self._trace.captures)
        self._places = [
            m.position + (len(self._inputs) if m.role == "output" else 0) for m in self._given
        ]
        self._is_direct = knows_arrays() and not any(self._strided)
        runs: Any = client("cpu")
        self._allocator: CachingAllocator = runs.allocator
        self._kinds: list[tuple[Callable[..., Any], Shape, DType]] = [
            (
                self._allocator.empty if m.kind.nbytes >= _CACHED_BYTES else np.empty,
                m.kind.shape,
                m.kind.dtype,
            )
            for m in self._outputs
        ]

    def _reuse(self) -> list[tuple[Memory, Memory]]:
        """Outputs that take over the buffer of a donated input."""
        return [(m, home) for m, home in self.placement.homes.items() if m.role == "output"]

    def run(self, arrays: Sequence[Any], threads: int = 0) -> tuple[Any, ...]:
        inputs = [*arrays, *self._constants]
        if not self._is_direct or watchers:
            return self._run_by_address(inputs, threads)
        outputs = self._outputs_for(inputs)
        given = inputs + outputs
        if self._arena:
            given.append(self._allocator.empty((self._arena,), _BYTE))
        try:
            done = self.program.run_arrays(given, threads)
        except KernelFailure:
            self._retell(arrays)
            raise
        if not done:
            return self._run_by_address(inputs, threads)
        return tuple([given[i] for i in self._places])

    def _outputs_for(self, inputs: list[Any]) -> list[Any]:
        """Memory for results: new, or that of inputs which were given away."""
        outputs = [make(shape, dtype) for make, shape, dtype in self._kinds]
        if self._reused:
            for output, source in self._reused.items():
                _, shape, dtype = self._kinds[output]
                given = inputs[source]
                same = given.dtype == dtype and given.shape == shape
                outputs[output] = given if same else given.view(dtype).reshape(shape)
        return outputs

    def _run_by_address(self, arrays: Sequence[Any], threads: int) -> tuple[Any, ...]:
        """Run on arrays of any layout, and tell watchers."""
        inputs = [
            a if a.flags.c_contiguous or kept else np.array(a, order="C")
            for a, kept in zip(arrays, self._strided, strict=True)
        ]
        given = inputs + self._outputs_for(inputs)
        if self._arena:
            given.append(self._allocator.empty((self._arena,), _BYTE))
        pointers = [*map(address_of, given)]
        try:
            if watchers:
                self._watched.run(pointers, threads)
            else:
                self.program.run(pointers, threads)
        except KernelFailure:
            self._retell(arrays[: len(arrays) - len(self._constants)])
            raise
        return tuple([given[i] for i in self._places])

    def _retell(self, arrays: Sequence[Any]) -> None:
        """Raise what is wrong, and where, as the calls one by one do."""
        if self._retells:
            Interpreted(self._trace).run(arrays)

    def _failure(self, code: int, detail: int) -> KernelFailure:
        return KernelFailure(f"{self._trace.name}: a kernel reported status {code} ({detail})")

    def explain(self, *, loops: bool = False) -> str:
        text = explain.describe(self._trace.name, self.steps, self.calls, self.placement)
        return text + explain.all_loops(self.calls) if loops else text


def usable(strides: dict[Ref, tuple[int, ...]], trace: Trace) -> dict[Ref, tuple[int, ...]]:
    """Inputs that kernels read where they lie; what others read must be packed row by row."""
    if not strides or is_small(trace.nodes, trace.outputs):
        return {}
    packed = {ref for node in trace.nodes if kind_of(node) == "host" for ref in node.inputs}
    packed.update(trace.outputs)
    return {ref: steps for ref, steps in strides.items() if ref not in packed}
