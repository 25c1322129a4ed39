"""What a trace is on a GPU: launches, calls of other kinds, and the memory between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from weft.compiler.cost import operations
from weft.compiler.loops import Kernel
from weft.core.common.source import describe
from weft.core.common.types import DType
from weft.core.graph.node import OutputRefs
from weft.core.graph.trace import Trace
from weft.ops.view.reshape import Reshape


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
class Work:
    """A kernel that is not cut into blocks and threads yet, for calls of a group."""

    kernel: Kernel
    memory: tuple[Block, ...]
    calls: tuple[OutputRefs, ...]
    group: tuple[OutputRefs, ...]
    panel: tuple[int, int] = (0, 1)  # its number, and how many there are

    @cached_property
    def reads(self) -> frozenset[Block]:
        """What it reads, or adds to."""
        return self._memory("write")

    @cached_property
    def writes(self) -> frozenset[Block]:
        """What it writes, or adds to."""
        return self._memory("read")

    def _memory(self, other: str) -> frozenset[Block]:
        pairs = zip(self.memory, self.kernel.buffers, strict=True)
        return frozenset(block for block, buffer in pairs if buffer.mode != other)


@dataclass(frozen=True, eq=False)
class Launch:
    """One kernel on certain memory, for some calls: the first of their launches has them all."""

    kernel: Kernel
    memory: tuple[Block, ...]
    calls: tuple[OutputRefs, ...] = ()
    panel: tuple[int, int] = (0, 1)  # its number, and how many there are

    def touched(self) -> tuple[list[Block], list[Block]]:
        """What it reads, and what it writes; what only the kernel knows of is written."""
        modes = [buffer.mode for buffer in self.kernel.buffers]
        modes += ["write"] * (len(self.memory) - len(modes))
        pairs = list(zip(self.memory, modes, strict=True))
        read = [block for block, mode in pairs if mode in ("read", "update")]
        return read, [block for block, mode in pairs if mode != "read"]

    def details(self) -> dict[str, Any]:
        """What the kernel does, in numbers and words."""
        read, written = self.touched()
        return {
            "ops": ", ".join(node.name for node in self.calls),
            "dtype": str(max((b.dtype for b in self.memory), key=lambda d: d.itemsize)),
            "flops": sum(map(operations, self.calls)) // self.panel[1],
            "read": sum(block.nbytes for block in read),
            "written": sum(block.nbytes for block in written),
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


Step: TypeAlias = Work | Launch | Call


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
