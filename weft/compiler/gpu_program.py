"""From a trace to a `GpuProgram`: launches, the memory between them, and calls of other kinds.

Graphs of elementwise ops, views, reductions, products of matrices and updates become kernels; every
kernel is one launch (two for a reduction of few long rows). Anything else is a `Call`, which reads
and gives whole arrays and says why it is no kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from weft.compiler.fourier.gpu import staged
from weft.compiler.fourier.lower import lower_fourier
from weft.compiler.fuse import PACKED, Fusion
from weft.compiler.gpu_panels import with_panels
from weft.compiler.gpu_steps import Block, Call, GpuProgram, Launch, Step, Work
from weft.compiler.groups import Group
from weft.compiler.loops import INDEX, Kernel, Value, const
from weft.compiler.lower import Lowered
from weft.compiler.masks import behind_masks
from weft.compiler.order.gpu import lower_order_gpu
from weft.compiler.passes.blocks_woven import is_woven, weave_kernels
from weft.compiler.passes.items import Limits
from weft.compiler.pipeline_gpu import schedule_gpu
from weft.compiler.point import kind_of
from weft.compiler.rebuild import changer, renumbered, revise
from weft.compiler.scatter import lower
from weft.compiler.steps import Memory
from weft.compiler.weave import Woven, woven
from weft.core.common.device import Device
from weft.core.common.types import Array, TensorType
from weft.core.graph.node import OutputRefs, Ref
from weft.core.graph.trace import Trace
from weft.errors import UnsupportedDTypeError, UnsupportedError

OWN = ("order", "fourier")  # calls that are lowered by themselves
Admit = Callable[[Kernel], Kernel]


def _as_it_is(kernel: Kernel) -> Kernel:
    return kernel


def call_of(
    op: Any,
    kinds: Sequence[TensorType],
    params: Mapping[str, Any],
    types: tuple[TensorType, ...],
    device: Device,
) -> OutputRefs:
    """A call on operands of these kinds, which nobody has computed."""
    inputs = tuple((OutputRefs.leaf(None, kind, device), 0) for kind in kinds)
    return OutputRefs(op, inputs, dict(params), types, device)


def single(call: OutputRefs) -> Trace:
    """The graph of such a call."""
    inputs = tuple(source for source, _ in call.inputs)
    outputs = tuple((call, slot) for slot in range(len(call.types)))
    return Trace(inputs, outputs, name=call.name)


def plan(trace: Trace, limits: Limits, admit: Admit = _as_it_is) -> GpuProgram:
    """The launches that compute a trace as it is, and calls where there is no kernel.

    Captures are constants. `admit` gives a kernel that the GPU can have, or raises what it lacks.
    """
    trace, others = behind_masks(trace), dict[OutputRefs, str]()
    while True:
        try:
            return _Planner(trace, limits, others, admit).program()
        except _NoKernels as refused:
            for group in refused.groups:
                reasons = {node: _why_not(node, limits, admit) for node in group}
                hosted = {node: why for node, why in reasons.items() if why}
                others |= hosted or reasons


def _why_not(node: OutputRefs, limits: Limits, admit: Admit) -> str:
    """What keeps a call from being a kernel, or some, if nothing is fused with it."""
    kinds = [source.types[slot] for source, slot in node.inputs]
    trace = single(call_of(node.op, kinds, node.params, node.types, node.device))
    try:
        made = _Planner(trace, limits, {}, admit).program()
    except _NoKernels as refused:
        return refused.reasons[0]
    return next((step.why for step in made.steps if isinstance(step, Call)), "")


class _Fusion(Fusion):
    """Groups for a GPU, where blocks reduce rows: they need not read what a mask hides."""

    def looks(self, group: Group) -> bool:
        """Products, and reductions along rows."""
        return super().looks(group) or bool(group.inner and not group.columns)


class _NoKernels(Exception):
    """Calls of some groups cannot be kernels together, and why."""

    def __init__(self, groups: list[tuple[OutputRefs, ...]], reasons: list[str]) -> None:
        super().__init__(groups, reasons)
        self.groups, self.reasons = groups, reasons


class _Planner:
    """Writes the program of a trace, of which the calls `others` are no kernels.

    With each comes the reason why it runs on the host, or none, where it runs alone on the GPU.
    """

    def __init__(
        self, trace: Trace, limits: Limits, others: Mapping[OutputRefs, str], admit: Admit
    ) -> None:
        self.trace, self.limits, self.others, self.admit = trace, limits, others, admit
        self.made = GpuProgram(trace)
        self.steps: list[Step] = []  # before there are panels
        self.blocks: dict[Ref, Block] = {}
        self.scheduled: dict[int, tuple[Kernel, tuple[Kernel, ...]]] = {}
        self.count = 0  # of kernels that have a name
        self.refused: list[tuple[OutputRefs, ...]] = []
        self.reasons: list[str] = []
        kinds = {node: kind_of(node) for node in trace.nodes}
        few = [node for node, kind in kinds.items() if kind == "few"]
        kinds |= dict.fromkeys((*few, *others), "host")
        self.fusion = _Fusion(trace.nodes, trace.outputs, merges=False, kinds=kinds)

    def program(self) -> GpuProgram:
        """All of it."""
        trace, made, blocks = self.trace, self.made, self.blocks
        given = len(trace.inputs) - len(trace.captures)
        for number, node in enumerate(trace.inputs):
            kind = node.types[0]
            data = None
            if number >= given:
                data = _packed(trace.captures[number - given].data())
            blocks[node, 0] = Block(kind.dtype, kind.size, data)
            if number < given:
                made.inputs.append(blocks[node, 0])
        _constants(trace, blocks)
        for group in self.fusion.groups:
            self.step(group)
        self.raise_refused()
        made.outputs = [self.block(ref) for ref in trace.outputs]
        outputs = frozenset(made.outputs)
        for step in with_panels(self.woven(outputs), outputs, self.limits.panel):
            if isinstance(step, Work):
                self.launch(step)
            else:
                made.steps.append(step)
        self.raise_refused()
        return made

    def woven(self, outputs: frozenset[Block]) -> list[Step]:
        """The steps, of which some are one kernel where warps multiply matrices."""
        if not self.limits.squares:
            return self.steps
        fits = partial(is_woven, limits=self.limits)
        return [
            each
            for step in woven(self.steps, outputs, fits)
            for each in (self.weave(step) if isinstance(step, Woven) else (step,))
        ]

    def weave(self, woven: Woven) -> Iterator[Launch]:
        """A weave as one launch, after some that are short."""
        *before, last = weave_kernels(woven.weave, self.limits)
        scratch = tuple(Block(dtype, size) for dtype, size in last.notes["scratch"])
        given, calls = woven.work.memory, woven.work.calls
        pairs = [
            (kernel, (*given, rests))
            for each, rests in zip(before, scratch, strict=True)
            for kernel in schedule_gpu(each, self.limits)
        ]
        for kernel, memory in (*pairs, (last, (*given, *scratch))):
            yield Launch(self.named(kernel), memory, calls)
            calls = ()

    def raise_refused(self) -> None:
        """Say which groups cannot be kernels, if there are such."""
        if self.refused:
            raise _NoKernels(self.refused, self.reasons)

    def step(self, group: Group) -> None:
        """One group: kernels, or a call."""
        first = group.members[0]
        is_own = group.kind in OWN and self.has_elements(first)
        if group.kind in PACKED and not is_own:
            self.call(first)
            return
        try:
            if is_own:
                self.own(first)
                return
            for lowered in lower(self.fusion, group, {}, one_nest=True):
                self.work(group, lowered)
        except (UnsupportedError, UnsupportedDTypeError) as error:
            self.refuse(self.all_of(group), error)

    def all_of(self, group: Group) -> tuple[OutputRefs, ...]:
        """The calls of a group, and those it computes for itself."""
        return (*group.members, *self.fusion.pulled(group))

    def refuse(self, group: tuple[OutputRefs, ...], error: Exception) -> None:
        """Remember what cannot be kernels."""
        self.refused.append(group)
        self.reasons.append(str(error).partition("\n")[0])

    def call(self, node: OutputRefs) -> None:
        """A call that is no kernel."""
        why = self.others.get(node, f"{node.name}: no kernel for a GPU")
        self.steps.append(
            Call(
                node,
                tuple(self.block(ref) for ref in node.inputs),
                tuple(self.block((node, slot)) for slot in range(len(node.types))),
                why,
                alone=not why,
            )
        )

    def has_elements(self, node: OutputRefs) -> bool:
        """Whether no operand and no result of a call is empty."""
        refs = (*node.inputs, *((node, slot) for slot in range(len(node.types))))
        return all(self.block(ref).size for ref in refs)

    def own(self, node: OutputRefs) -> None:
        """The launches of a call that is lowered by itself: a sort, or a Fourier transform."""
        (ref,) = node.inputs
        source, target = Memory(ref[0].types[ref[1]]), Memory(node.types[0])
        blocks = {source: self.block(ref), target: self.block((node, 0))}

        def memory(places: Sequence[Memory]) -> list[Block]:
            for each in places:
                if each not in blocks:
                    blocks[each] = Block(each.kind.dtype, each.kind.size, each.data)
            return [blocks[each] for each in places]

        calls: tuple[OutputRefs, ...] = (node,)
        if self.fusion.kinds[node] == "fourier":
            run = partial(staged, limits=self.limits)
            for plain in lower_fourier(node, source, target, run):
                given = tuple(memory(plain.memory))
                if "threads" in plain.kernel.notes:
                    self.steps.append(Launch(self.named(plain.kernel), given, calls))
                else:
                    self.steps.append(Work(plain.kernel, given, calls, (node,)))
                calls = ()
            return
        for made in lower_order_gpu(node, source, target, self.limits):
            given = tuple(memory(made.memory))
            self.steps.append(Launch(self.named(made.kernel), given, calls))
            calls = ()

    def work(self, group: Group, lowered: Lowered) -> None:
        """One lowered kernel."""
        memory = [self.block(ref) for ref in lowered.refs]
        if lowered.reports:
            self.made.status = self.made.status or Block(INDEX, 1)
            memory.append(self.made.status)
        calls = () if lowered.reports else tuple(group.members)
        kernel, memory = _with_numbers(lowered.kernel, memory)
        if not memory or any(block.size == 0 for block in memory):
            kinds = ", ".join(str(block.size) for block in memory)
            raise UnsupportedError(f"kernel {kernel.name}: memory of no element ({kinds}) on a GPU")
        self.steps.append(Work(kernel, tuple(memory), calls, self.all_of(group)))

    def launch(self, work: Work) -> None:
        """The launches of one kernel."""
        try:
            kernels = self.schedule(work.kernel)
        except (UnsupportedError, UnsupportedDTypeError) as error:
            self.refuse(work.group, error)
            return
        scratch: list[Block] = []
        calls = work.calls
        for kernel in kernels:
            wanted = kernel.notes["scratch"]
            scratch += [Block(dtype, size) for dtype, size in wanted[len(scratch) :]]
            given = (*work.memory, *scratch[: len(wanted)])
            self.made.steps.append(Launch(kernel, given, calls, work.panel))
            calls = ()

    def schedule(self, kernel: Kernel) -> tuple[Kernel, ...]:
        """A kernel for blocks and threads; it may be asked for again."""
        if id(kernel) not in self.scheduled:
            made = tuple(map(self.named, schedule_gpu(kernel, self.limits)))
            self.scheduled[id(kernel)] = kernel, made  # which stays, and so does its number
        return self.scheduled[id(kernel)][1]

    def named(self, kernel: Kernel) -> Kernel:
        """A kernel under a name of its own, if the GPU can have it."""
        self.count += 1
        return self.admit(replace(kernel, name=f"k{self.count - 1}_{kernel.name}"))

    def block(self, ref: Ref) -> Block:
        """The memory of a result."""
        if ref not in self.blocks:
            kind = ref[0].types[ref[1]]
            self.blocks[ref] = Block(kind.dtype, kind.size)
        return self.blocks[ref]


def _constants(trace: Trace, blocks: dict[Ref, Block]) -> None:
    """Nodes that hold data and are no inputs."""
    refs = [ref for node in trace.nodes for ref in node.inputs] + list(trace.outputs)
    for node, _ in refs:
        if node.op is None and (node, 0) not in blocks:
            assert node.results is not None
            data = _packed(node.results[0])
            blocks[node, 0] = Block(node.types[0].dtype, node.types[0].size, data)


def _packed(data: Any) -> Any:
    """A constant as memory is read: row by row."""
    return np.ascontiguousarray(data) if isinstance(data, np.ndarray) else data


def _with_numbers(kernel: Kernel, memory: list[Block]) -> tuple[Kernel, list[Block]]:
    """The kernel with literals in the place of constants of one number, and the memory left."""
    numbers = {
        k: const(_number(block.data), block.dtype)
        for k, block in enumerate(memory)
        if block.data is not None and block.size == 1 and block.dtype.kind != "c"
    }
    kept = [k for k in range(len(memory)) if k not in numbers]
    new = {old: number for number, old in enumerate(kept)}

    def change(x: Value) -> Value:
        return numbers.get(x.data, x) if x.op == "load" else x

    body = renumbered(revise(kernel.body, changer(change)), new)
    buffers = tuple(kernel.buffers[k] for k in kept)
    return replace(kernel, body=body, buffers=buffers), [memory[k] for k in kept]


def _number(data: Any) -> Array:
    host: Array = data if isinstance(data, np.ndarray) else data.to_host()
    return host.reshape(())
