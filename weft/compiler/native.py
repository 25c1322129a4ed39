"""`Native`: a trace as machine code — kernels, one program that calls them, and planned memory.

A graph whose kernels report a mistake (an index out of range) is run again by its references,
which say what it was.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.compiler import explain
from weft.compiler.assemble import Assembler, Environment, constant, leaves
from weft.compiler.executable import Interpreted
from weft.compiler.fuse import PACKED
from weft.compiler.kernels import STORE, memory_told
from weft.compiler.memory import ALIGNMENT
from weft.compiler.merge import without_copies
from weft.compiler.packs import Packs
from weft.compiler.place import place
from weft.compiler.point import kind_of
from weft.compiler.prepared import Interface, Prepared, failure_of
from weft.compiler.rates import calibrate_for, rates
from weft.compiler.small import is_small
from weft.compiler.statistics import BuildCounts
from weft.compiler.steps import Call, Memory, Step
from weft.compiler.translate import Translator, touched
from weft.compiler.watched import Watched
from weft.config import settings
from weft.core.common import dtypes
from weft.core.common.types import Array, TensorType
from weft.core.graph.node import Ref
from weft.core.graph.trace import Trace
from weft.core.tensor.sharing import is_shared
from weft.core.tensor.tensor import Tensor
from weft.runtime.cpu.code_ahead import later
from weft.runtime.cpu.program_builder import ProgramBuilder

_DRAFTED = frozenset({"view", "map", "reduce", "dot"})
_DRAFTED_ELEMENTS = 1 << 24  # of all results: drafts take milliseconds longer, and save as many
_OWN_BYTES = 1 << 16  # an arena up to this size belongs to the program, a larger one to each run


class Native(Prepared):
    """A trace compiled for this machine; whoever wants `drafts` of its code must `settle` it."""

    def __init__(
        self,
        trace: Trace,
        donated: tuple[bool, ...] = (),
        *,
        general: bool = False,
        own: bool = False,
        strides: dict[Ref, tuple[int, ...]] | None = None,
        retells: bool = True,
        lasting: Sequence[bool] = (),
        drafts: bool = False,
    ) -> None:
        calibrate_for(trace)
        self._trace = trace
        self._retells = retells  # whether references say what a kernel reports
        self._assembler = assembler = Assembler(general, own, drafts, usable(strides or {}, trace))
        self._inputs = [Memory(node.types[0], "input", i) for i, node in enumerate(trace.inputs)]
        constants = [not x._impl.shared for x in trace.captures]
        given = [*lasting[: len(self._inputs) - len(constants)]]
        given += [False] * (len(self._inputs) - len(constants) - len(given)) + constants
        for each, lasts in zip(self._inputs, given, strict=True):
            each.lasts = lasts
        for node, tensor in zip(reversed(trace.inputs), reversed(trace.captures), strict=False):
            node.number = _integer(tensor)
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
        with memory_told(f"kernels for {len(trace.nodes)} calls were written"):
            steps = assembler.block(trace.nodes, trace.outputs, memory)
        self.steps: tuple[Step, ...] = without_copies(steps)
        self._kept = self._place_kept()
        given_back = set(self._given)
        spare = [gone and m not in given_back for m, gone in zip(self._inputs, donated)]
        self.placement = place(self.steps, self._inputs, self._outputs, tuple(spare))
        self._new_kernels = STORE.ready(assembler.requests, assembler.clock, drafts)
        self._prepare()

    def _place_kept(self) -> list[Call]:
        """The calls that pack what lasts: all they write is one more input."""
        used = {m for step in self.steps for m in touched(step)}
        calls = [c for c in self._assembler.kept.values() if c.written[0] in used]
        total = 0
        for call in calls:
            (made,) = call.written
            made.position = total
            total += -(-made.nbytes // ALIGNMENT) * ALIGNMENT
        if calls:
            kind = TensorType((total,), np.dtype(np.uint8))
            self._inputs.append(Memory(kind, "input", len(self._inputs)))
        return calls

    def _packs(self, kept: dict[Memory, Array]) -> Packs | None:
        """The program that packs what lasts; `kept` has constants."""
        if not self._kept:
            return None
        read = [m for m in self._inputs if any(m in call.memory for call in self._kept)]
        builder, slots = ProgramBuilder(len(read) + 1, rates().parallel), dict[Memory, int]()
        for each in dict.fromkeys(m for call in self._kept for m in call.memory):
            if each.role == "kept":
                slots[each] = builder.argument(len(read), each.position)
            elif each.role == "constant":
                slots[each] = builder.constant(kept[each].ctypes.data)
            else:
                slots[each] = builder.argument(read.index(each))
        translator = Translator(builder, slots, self._ranges())
        translator.write(self._kept)
        name = f"{self._trace.name}, packing"
        program = builder.build(failure_of(name), (list(kept.values()), self.code))
        return Packs(program, [m.position for m in read], self._inputs[-1].nbytes)

    def _prepare(self) -> None:
        large = self.placement.arena > _OWN_BYTES
        count = len(self._inputs) + len(self._outputs) + large
        builder = ProgramBuilder(count, rates().parallel)
        slots: dict[Memory, int] = {}
        kept: dict[Memory, Array] = {}
        slots[self._assembler.status] = 0
        for number, each in enumerate((*self._inputs, *self._outputs)):
            slots[each] = builder.argument(number)
        constants = (m for call in self._kept for m in call.memory if m.role == "constant")
        for each in dict.fromkeys((*self.placement.memories, *constants)):
            if each.role == "constant":
                kept[each] = np.array(each.data, order="C")
                slots[each] = builder.constant(kept[each].ctypes.data)
            elif each.role == "kept":
                slots[each] = builder.argument(len(self._inputs) - 1, each.position)
            elif each.role in ("slice", "panel", "shared"):
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
        translator = Translator(builder, slots, self._ranges())
        translator.write(self.steps)
        self.calls = translator.calls
        self.hosts = translator.hosts
        self.held = tuple(kept.values())
        self.code = [r.compiled for r in self._assembler.requests]
        program = builder.build(failure_of(self._trace.name), (self.held, self.code))
        self._watched = Watched(self._trace.name, program, self.calls)
        self.counts = BuildCounts(
            kernels=self._assembler.groups,
            regions=translator.regions,
            bytes_planned=self.placement.arena,
            bytes_kept=self._inputs[-1].nbytes if self._kept else 0,
            native_compilations=int(self._new_kernels > 0),
            milliseconds=self._assembler.clock.milliseconds,
        )
        captured = [x.data() for x in self._trace.captures]
        self._connect(program, self._interface(large), captured, self._packs(kept))

    def settle(self, then: Callable[[], None] = lambda: None) -> None:
        """Have drafts replaced when the code itself was made, and `then` called."""
        drafted = [each for each in dict.fromkeys(self.code) if each.drafted]
        begun = [(each, each.jobs) for each in drafted]

        def replace() -> None:
            for each, jobs in begun:
                each.link(jobs)
            pairs = (zip(each.drafted, each.addresses, strict=True) for each in drafted)
            self.program.replace(dict(itertools.chain.from_iterable(pairs)))
            then()

        if drafted:
            later([job for _, jobs in begun for job in jobs], replace)
        else:
            then()

    def _ranges(self) -> dict[Memory, tuple[int, int]]:
        """Where the elements of inputs lie that are read however they are strided."""
        found = {}
        for (node, _), strides in self._assembler.strides.items():
            place = self._inputs[self._trace.inputs.index(node)]
            ends = [s * (n - 1) for s, n in zip(strides, place.kind.shape, strict=True)]
            found[place] = sum(min(e, 0) for e in ends), sum(max(e, 0) for e in ends) + 1
        return found

    def _interface(self, large: bool) -> Interface:
        homes = self.placement.homes.items()
        count, strides = len(self._inputs), self._assembler.strides
        return Interface(
            strided=tuple((node, 0) in strides for node in self._trace.inputs)
            + (False,) * bool(self._kept),
            outputs=tuple(m.kind for m in self._outputs),
            reused={m.position: home.position for m, home in homes if m.role == "output"},
            places=tuple(m.position + count * (m.role == "output") for m in self._given),
            arena=self.placement.arena if large else 0,
        )

    def _run_watched(self, arrays: Sequence[Any], threads: int) -> tuple[Any, ...]:
        inputs = self._with_constants(arrays, threads)
        return self._run_by_address(inputs, threads, self._watched.run)

    def timed(
        self, arrays: Sequence[Any], threads: int = 0
    ) -> tuple[tuple[Any, ...], dict[str, float]]:
        """The outputs for these inputs, and nanoseconds of each of `calls`, all threads added."""
        spent: dict[str, float] = dict.fromkeys(self.calls, 0.0)

        def run(pointers: list[int], threads: int) -> None:
            for timing in self._watched.timings(pointers, threads):
                spent[timing.name] += timing.end_ns - timing.start_ns

        return self._run_by_address(self._with_constants(arrays, threads), threads, run), spent

    def _retell(self, arrays: Sequence[Any]) -> None:
        if self._retells:
            Interpreted(self._trace).retell(arrays)

    def explain(self, *, loops: bool = False) -> str:
        text = explain.describe(
            self._trace.name, self.steps, self.calls, self.placement, self._kept
        )
        return text + explain.all_loops(self.calls) if loops else text


def drafts_pay(trace: Trace) -> bool:
    """Whether drafts are quick enough to run: a graph of some arithmetic on not too much data.

    Products of matrices are no part of it, whose code takes many times as long as a draft.
    """
    if not settings.drafts or not all(kind_of(node) in _DRAFTED for node in trace.nodes):
        return False
    kinds = (kind for node in (*trace.inputs, *trace.nodes) for kind in node.types)
    return sum(kind.size for kind in kinds) <= _DRAFTED_ELEMENTS


def usable(strides: dict[Ref, tuple[int, ...]], trace: Trace) -> dict[Ref, tuple[int, ...]]:
    """Inputs that kernels read where they lie; what others read must be packed row by row."""
    if not strides or is_small(trace.nodes, trace.outputs):
        return {}
    packed = {ref for node in trace.nodes if kind_of(node) in PACKED for ref in node.inputs}
    packed.update(trace.outputs)
    return {ref: steps for ref, steps in strides.items() if ref not in packed}


def _integer(tensor: Tensor) -> int | None:
    """The integer that a captured tensor is, and stays."""
    if tensor.size != 1 or not dtypes.is_integer(tensor.dtype) or tensor.owner is not None:
        return None
    if tensor._impl.shared or is_shared(tensor.data()):
        return None
    return int(tensor.host().reshape(()))
