"""`GpuProgram`: a trace as launches on a GPU, the memory between them, and calls of other kinds.

Graphs of elementwise ops, views, reductions, products of matrices and updates become kernels; every
kernel is one launch (two for a reduction of few long rows). Anything else is a `Call`, which reads
and gives whole arrays and says why it is no kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from weft.compiler.cost import operations
from weft.compiler.fourier.gpu import staged
from weft.compiler.fourier.lower import lower_fourier
from weft.compiler.fuse import PACKED, Fusion, Group
from weft.compiler.loops import INDEX, Kernel, Statement, Store, Value, const, load
from weft.compiler.lower import Lowered
from weft.compiler.order.gpu import lower_order_gpu
from weft.compiler.passes.items import Limits
from weft.compiler.pipeline_gpu import schedule_gpu
from weft.compiler.point import kind_of
from weft.compiler.rebuild import Statements, changer, revise, with_body
from weft.compiler.scatter import lower
from weft.compiler.steps import Memory
from weft.core.common.device import Device
from weft.core.common.source import describe
from weft.core.common.types import Array, DType, TensorType
from weft.core.graph.node import OutputRefs, Ref
from weft.core.graph.trace import Trace
from weft.errors import UnsupportedDTypeError, UnsupportedError
from weft.ops.view.reshape import Reshape

OWN = ("order", "fourier")  # calls that are lowered by themselves
Admit = Callable[[Kernel], Kernel]


def _as_it_is(kernel: Kernel) -> Kernel:
    return kernel


@dataclass(frozen=True, eq=False)
class Block:
    """Memory of one result, or of what one kernel leaves for the next."""

    dtype: DType
    size: int
    data: Any = None  # of a constant, here or on the GPU

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.size * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Launch:
    """One kernel on certain memory, for some calls: the first of their launches has them all."""

    kernel: Kernel
    memory: tuple[Block, ...]
    calls: tuple[OutputRefs, ...] = ()

    def details(self) -> dict[str, Any]:
        """What the kernel does, in numbers and words."""
        modes = [buffer.mode for buffer in self.kernel.buffers]
        pairs = list(zip(self.memory, modes, strict=False))
        read = sum(block.nbytes for block, mode in pairs if mode != "write")
        written = sum(block.nbytes for block, mode in pairs if mode != "read")
        return {
            "ops": ", ".join(node.name for node in self.calls),
            "dtype": str(max((b.dtype for b, _ in pairs), key=lambda d: d.itemsize)),
            "flops": sum(map(operations, self.calls)),
            "read": read,
            "written": written,
            "blocks": self.kernel.notes["blocks"],
            "threads": self.kernel.notes["threads"],
            "line": describe(self.calls[0].position) if self.calls else "",
            "elsewhere": True,  # the peaks of this processor are not its own
        }


@dataclass(frozen=True)
class Call:
    """A call that is no kernel: what it reads and what it makes."""

    node: OutputRefs
    reads: tuple[Block, ...]
    makes: tuple[Block, ...]
    why: str = ""  # what keeps it from the GPU
    alone: bool = False  # whether it runs there, by itself


@dataclass
class GpuProgram:
    """What runs, in order; `inputs` and `outputs` are memory by position."""

    trace: Trace
    inputs: list[Block] = field(default_factory=list)
    outputs: list[Block] = field(default_factory=list)
    steps: list[Launch | Call] = field(default_factory=list)
    status: Block | None = None  # where kernels report positions that are out of range

    @property
    def launches(self) -> list[Launch]:
        """The steps that are kernels."""
        return [step for step in self.steps if isinstance(step, Launch)]

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels of all launches; each has a name of its own."""
        return [launch.kernel for launch in self.launches]

    def memory(self) -> list[Block]:
        """Every block once: inputs and constants first."""
        used = (
            block
            for step in self.steps
            for block in (step.memory if isinstance(step, Launch) else (*step.reads, *step.makes))
        )
        return list(dict.fromkeys((*self.inputs, *self.outputs, *used)))

    def passed(self) -> list[Block]:
        """What calls read whose results may be the same memory: loops, branches, reshapes."""
        calls = [s for s in self.steps if isinstance(s, Call)]
        passing = [s for s in calls if not s.node.op.leaf or isinstance(s.node.op, Reshape)]
        return [block for call in passing for block in call.reads]


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
    others: dict[OutputRefs, str] = {}
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
        self.blocks: dict[Ref, Block] = {}
        self.refused: list[tuple[OutputRefs, ...]] = []
        self.reasons: list[str] = []
        kinds = {node: kind_of(node) for node in trace.nodes}
        few = [node for node, kind in kinds.items() if kind == "few"]
        kinds |= dict.fromkeys((*few, *others), "host")
        self.fusion = Fusion(trace.nodes, trace.outputs, merges=False, kinds=kinds)

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
        if self.refused:
            raise _NoKernels(self.refused, self.reasons)
        made.outputs = [blocks[ref] for ref in trace.outputs]
        return made

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
                self.launches(group, lowered)
        except (UnsupportedError, UnsupportedDTypeError) as error:
            self.refused.append((*group.members, *self.fusion.pulled(group)))
            self.reasons.append(str(error).partition("\n")[0])

    def call(self, node: OutputRefs) -> None:
        """A call that is no kernel."""
        why = self.others.get(node, f"{node.name}: no kernel for a GPU")
        self.made.steps.append(
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
            for plain in lower_fourier(node, source, target, staged):
                self.launch(plain.kernel, memory(plain.memory), calls)
                calls = ()
            return
        for made in lower_order_gpu(node, source, target, self.limits):
            kernel = replace(made.kernel, name=f"k{len(self.made.steps)}_{made.kernel.name}")
            self.made.steps.append(Launch(self.admit(kernel), tuple(memory(made.memory)), calls))
            calls = ()

    def launches(self, group: Group, lowered: Lowered) -> None:
        """The launches of one lowered kernel."""
        memory = [self.block(ref) for ref in lowered.refs]
        if lowered.reports:
            self.made.status = self.made.status or Block(INDEX, 1)
            memory.append(self.made.status)
        calls = () if lowered.reports else tuple(group.members)
        kernel, memory = _with_numbers(lowered.kernel, memory)
        self.launch(kernel, memory, calls)

    def launch(self, kernel: Kernel, memory: list[Block], calls: tuple[OutputRefs, ...]) -> None:
        """The launches of one kernel that has no constants any more."""
        scratch: list[Block] = []
        if not memory or any(block.size == 0 for block in memory):
            kinds = ", ".join(str(block.size) for block in memory)
            raise UnsupportedError(f"kernel {kernel.name}: memory of no element ({kinds}) on a GPU")
        steps = self.made.steps
        for made in schedule_gpu(kernel, self.limits):
            wanted = made.notes["scratch"]
            scratch += [Block(dtype, size) for dtype, size in wanted[len(scratch) :]]
            named = replace(made, name=f"k{len(steps)}_{made.name}")
            given = (*memory, *scratch[: len(wanted)])
            steps.append(Launch(self.admit(named), given, calls))
            calls = ()

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
        if x.op != "load":
            return x
        found = numbers.get(x.data)
        return load(new[x.data], x.args[0], x.dtype) if found is None else found

    body = _renumbered(revise(kernel.body, changer(change)), new)
    buffers = tuple(kernel.buffers[k] for k in kept)
    return replace(kernel, body=body, buffers=buffers), [memory[k] for k in kept]


def _number(data: Any) -> Array:
    host: Array = data if isinstance(data, np.ndarray) else data.to_host()
    return host.reshape(())


def _renumbered(statements: Statements, new: dict[int, int]) -> Statements:
    """Statements that store to buffers of other numbers."""
    made: list[Statement] = []
    for s in statements:
        if isinstance(s, Store):
            made.append(replace(s, buffer=new[s.buffer]))
        else:
            inner = s.body
            made.append(with_body(s, _renumbered(inner, new)) if inner else s)
    return tuple(made)
