"""Kernels as functions of an NVIDIA GPU: LLVM IR, and PTX made of it.

    kernel(buffer 0, buffer 1, …, parameter 0, …)      buffers are pointers, parameters int64

It is launched with the `blocks` and `threads` its notes name. Every operation is rounded by itself:
PTX says `.rn`, so the driver fuses no product with a sum, and keeps subnormal numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.emit_llvm import Frame, emit_kernel
from weft.compiler.emit_squares import DEEP_DOUBLES, GROUPED
from weft.compiler.emit_text import Writer
from weft.compiler.loops import Kernel, Loop
from weft.compiler.squares import in_registers
from weft.errors import UnsupportedError
from weft.runtime.cpu.jit import Target, emit_assembly

ALIGNED = 16  # bytes that every buffer's address divides by, at the least
SWIRLED = 1024  # the same of memory that blocks are given at their start: eight rows of 128 bytes
_INDEX = {"block": "ctaid", "thread": "tid"}
_NATIVE: dict[str, frozenset[str]] = {  # what each kind of GPU has, and those before it have not
    "sm_70": frozenset({"half", "round", "fma", "saturate", "short_exp2"}),
    "sm_80": frozenset({"bfloat"}),
    "sm_90": frozenset({DEEP_DOUBLES}),
}


def gpu_target(capability: tuple[int, int] = (9, 0)) -> Target:
    """The target for a GPU of this compute capability; 7.0 is the oldest."""
    major, minor = capability
    if capability < (7, 0):
        raise UnsupportedError(f"cuda: compute capability {major}.{minor}: 7.0 is the oldest")
    if capability == GROUPED:
        return Target("nvptx64-nvidia-cuda", "sm_90a", "+ptx80")
    if capability >= (9, 0):
        return Target("nvptx64-nvidia-cuda", "sm_90", "+ptx80")
    return Target("nvptx64-nvidia-cuda", f"sm_{'80' if major == 8 else '70'}", "+ptx70")


def emit(kernels: Sequence[Kernel], target: Target) -> str:
    """A module of these kernels, each a function of its name, in LLVM IR."""
    writer = Writer()
    for kernel in kernels:
        emit_kernel(in_registers(kernel), Ptx(target), writer)
    return f'target triple = "{target.triple}"\n{writer.text()}'


def emit_ptx(kernels: Sequence[Kernel], target: Target) -> str:
    """A module of these kernels in PTX."""
    return emit_assembly(emit(kernels, target), target.triple, target.cpu, target.features)


class Ptx:
    """How a kernel becomes a function of a GPU."""

    pointer = "ptr addrspace(1)"
    aligned = True

    def __init__(self, target: Target) -> None:
        self.native = frozenset().union(*(_NATIVE[cpu] for cpu in _NATIVE if cpu <= target.cpu))
        self._dynamic = ""  # memory that blocks are given at their start,
        self._used = 0  # and bytes of it that arrays have

    def open(self, kernel: Kernel, writer: Writer) -> Frame:
        """Write the function's header."""
        if kernel.notes.get("dynamic"):
            self._dynamic = f"@{kernel.name}_dynamic"
            declared = f"{self._dynamic} = external addrspace(3) global [0 x i8], align {SWIRLED}"
            writer.declarations[declared] = None
        buffers = tuple(f"%b{number}" for number in range(len(kernel.buffers)))
        parameters = tuple(f"%p{number}" for number in range(kernel.parameters))
        given = [f"{self.pointer} align {ALIGNED} {name}" for name in buffers]
        given += [f"i64 {name}" for name in parameters]
        threads, together = kernel.notes["threads"], kernel.notes.get("together")
        asked = f'"nvvm.reqntid"="{threads}"'
        if together is not None:  # blocks that a multiprocessor has registers for
            asked += f' "nvvm.minctasm"="{together}"'
        writer.lines.append(
            f"define ptx_kernel void @{kernel.name}({', '.join(given)}) nounwind {asked} {{\nentry:"
        )
        return Frame(buffers, parameters, "0", "1")

    def close(self, writer: Writer) -> None:
        """Write the function's end."""
        writer.lines.append("  ret void\n}")

    def index(self, loop: Loop, writer: Writer) -> str:
        """The number of this block, or of this thread in its block."""
        name = f"@llvm.nvvm.read.ptx.sreg.{_INDEX[loop.kind]}.x"
        writer.declarations[f"declare i32 {name}()"] = None
        return writer.let(f"zext i32 {writer.let(f'call i32 {name}()')} to i64")

    def shared(self, name: str, kind: str, nbytes: int, writer: Writer) -> str:
        """A variable of the module, one for each block that runs; or a part of a large one."""
        if self._dynamic:
            start, self._used = self._used, self._used + -(-nbytes // ALIGNED) * ALIGNED
            return f"getelementptr (i8, ptr addrspace(3) {self._dynamic}, i64 {start})"
        declared = f"@{name} = internal addrspace(3) global {kind} undef, align {ALIGNED}"
        writer.declarations[declared] = None
        return f"@{name}"

    def barrier(self, writer: Writer) -> None:
        """Wait for the block's threads; what they wrote is seen after."""
        name = "@llvm.nvvm.barrier.cta.sync.aligned.all"
        writer.declarations[f"declare void {name}(i32)"] = None
        writer.do(f"call void {name}(i32 0)")
