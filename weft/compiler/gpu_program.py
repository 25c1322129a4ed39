"""`GpuProgram`: a trace as launches on a GPU, and the memory between them.

Graphs of elementwise ops, views, reductions and products of matrices become kernels; anything else
is refused, by name. Every kernel is one launch (two for a reduction of few long rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from weft.compiler.fuse import Fusion
from weft.compiler.loops import Kernel, Statement, Store, Value, const, load
from weft.compiler.passes.items import Limits
from weft.compiler.pipeline_gpu import schedule_gpu
from weft.compiler.rebuild import Statements, changer, revise, with_body
from weft.compiler.rewrite import rewrite
from weft.compiler.scatter import lower
from weft.core.common.types import Array, DType
from weft.core.graph.node import Ref
from weft.core.graph.trace import Trace
from weft.errors import ArgumentError, UnsupportedError


@dataclass(frozen=True, eq=False)
class Block:
    """Memory of one result, or of what one kernel leaves for the next."""

    dtype: DType
    size: int
    data: Array | None = None  # of a constant


@dataclass(frozen=True)
class Launch:
    """One kernel on certain memory."""

    kernel: Kernel
    memory: tuple[Block, ...]


@dataclass
class GpuProgram:
    """What runs, in order; `inputs` and `outputs` are memory by position."""

    trace: Trace
    inputs: list[Block] = field(default_factory=list)
    outputs: list[Block] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels of all launches; each has a name of its own."""
        return [launch.kernel for launch in self.launches]

    def memory(self) -> list[Block]:
        """Every block once: inputs and constants first."""
        used = (block for launch in self.launches for block in launch.memory)
        return list(dict.fromkeys((*self.inputs, *self.outputs, *used)))

    def check(self, arrays: Sequence[Any]) -> list[Array]:
        """The inputs as contiguous arrays, if they are what the trace was made for."""
        kinds = self.trace.input_types[: len(self.inputs)]
        if len(arrays) != len(kinds):
            raise ArgumentError(
                f"{self.trace.name}: expected {len(kinds)} arrays, got {len(arrays)}"
            )
        found = [np.ascontiguousarray(a) for a in arrays]
        for position, (array, kind) in enumerate(zip(found, kinds, strict=True)):
            if array.dtype != kind.dtype or np.shape(arrays[position]) != kind.shape:
                raise ArgumentError(
                    f"{self.trace.name}: input {position}: expected {kind}, "
                    f"got {array.dtype} of shape {np.shape(arrays[position])}"
                )
        return found


def plan(trace: Trace, limits: Limits) -> GpuProgram:
    """The launches that compute a trace; its captures are constants."""
    trace = rewrite(trace)[0]
    program = GpuProgram(trace)
    blocks: dict[Ref, Block] = {}
    given = len(trace.inputs) - len(trace.captures)
    for number, node in enumerate(trace.inputs):
        kind = node.types[0]
        data = None
        if number >= given:
            data = np.ascontiguousarray(trace.captures[number - given].data())
        blocks[node, 0] = Block(kind.dtype, kind.size, data)
        if number < given:
            program.inputs.append(blocks[node, 0])
    _constants(trace, blocks)
    fusion = Fusion(trace.nodes, trace.outputs, merges=False)
    for group in fusion.groups:
        if group.kind in ("host", "scatter", "order", "few"):
            raise UnsupportedError(f"{group.members[0].name}: no kernel for a GPU")
        for lowered in lower(fusion, group, {}, one_nest=True):
            if lowered.reports:
                raise UnsupportedError(
                    f"{group.members[0].name}: no kernel for a GPU that checks positions\n"
                    "hint: mode='clip' or mode='wrap' needs no check"
                )
            memory = [_block(ref, blocks) for ref in lowered.refs]
            _launch(program, lowered.kernel, memory, limits)
    program.outputs = [blocks[ref] for ref in trace.outputs]
    return program


def _constants(trace: Trace, blocks: dict[Ref, Block]) -> None:
    """Nodes that hold data and are no inputs."""
    refs = [ref for node in trace.nodes for ref in node.inputs] + list(trace.outputs)
    for node, _ in refs:
        if node.op is None and (node, 0) not in blocks:
            assert node.results is not None
            data = np.ascontiguousarray(node.results[0])
            blocks[node, 0] = Block(node.types[0].dtype, node.types[0].size, data)


def _block(ref: Ref, blocks: dict[Ref, Block]) -> Block:
    if ref not in blocks:
        kind = ref[0].types[ref[1]]
        blocks[ref] = Block(kind.dtype, kind.size)
    return blocks[ref]


def _launch(program: GpuProgram, kernel: Kernel, memory: list[Block], limits: Limits) -> None:
    scratch: list[Block] = []
    if any(block.size == 0 for block in memory):
        kinds = ", ".join(str(block.size) for block in memory)
        raise UnsupportedError(f"kernel {kernel.name}: memory of no element ({kinds}) on a GPU")
    kernel, memory = _with_numbers(kernel, memory)
    for made in schedule_gpu(kernel, limits):
        wanted = made.notes["scratch"]
        scratch += [Block(dtype, size) for dtype, size in wanted[len(scratch) :]]
        name = f"k{len(program.launches)}_{made.name}"
        given = (*memory, *scratch[: len(wanted)])
        program.launches.append(Launch(replace(made, name=name), given))


def _with_numbers(kernel: Kernel, memory: list[Block]) -> tuple[Kernel, list[Block]]:
    """The kernel with literals in the place of constants of one number, and the memory left."""
    numbers = {
        k: const(block.data.reshape(()), block.dtype)
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
