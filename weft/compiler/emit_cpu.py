"""Kernels as functions a processor's threads call.

    void kernel(ptr table, ptr slots, ptr parameters, i64 begin, i64 end)

`table[slots[b]]` points to buffer b, `parameters` holds integers, and `begin` to `end` is the range
of the parallel loop that this call runs. Buffers may share memory where each element is read before
it is overwritten, so nothing is promised to LLVM about them.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.emit_bounds import Guard
from weft.compiler.emit_llvm import Frame, emit_kernel
from weft.compiler.emit_stream import fence
from weft.compiler.emit_text import Writer
from weft.compiler.emit_tiles import feature_of
from weft.compiler.emit_words import PAIRS, QUADS
from weft.compiler.loops import Kernel, Loop
from weft.core.common.dtypes import bfloat16, int8
from weft.errors import UnsupportedError
from weft.runtime.cpu.jit import Target

# Processors that multiply pairs of bfloat16 twice as fast as floats. Intel's that have tiles take
# twice as long for pairs instead, so these widen where the tiles are not granted.
_PAIRING = ("znver", "cooperlake")
_NEON = ("aarch64", "arm64")


def emit(kernels: Sequence[Kernel], target: Target, checks: bool = False) -> str:
    """A module of these kernels, each a function of its name, in LLVM IR.

    With `checks` every access is checked, for which calls give ranges (`emit_bounds`).
    """
    writer, dialect = Writer(), Cpu(target, checks)
    for kernel in kernels:
        emit_kernel(kernel, dialect, writer)
    return f'target triple = "{target.triple}"\n{writer.text()}'


def native_to(target: Target) -> frozenset[str]:
    """The instructions a processor has that others must spell in several."""
    if target.architecture != "x86_64":
        found = {"half", "round", "fma", "saturate", "lane", "overwrites"}
        if target.architecture in _NEON:
            found |= {"inserts", "fnmadd"}
        return frozenset(found | {"dot4", "sdot"} if target.has("dotprod") else found)
    has = {
        "stream": ("avx",),
        "half": ("f16c", "avx512f"),
        "round": ("sse4.1", "avx"),
        "fma": ("fma", "avx512f"),
    }
    found = {name for name, any_of in has.items() if any(map(target.has, any_of))}
    pairs = {64: "avx512bw", 32: "avx2"}.get(target.vector_bytes)
    if pairs is None or target.has(pairs):
        found.add("dot2")
    signs = {64: "avx512vnni", 32: "avxvnni"}.get(target.vector_bytes)
    if signs is not None and target.has(signs):
        found |= {"dot4", "vnni", QUADS} if signs == "avx512vnni" else {"dot4", "vnni"}
    if target.has("avx512dq") and target.has("avx512vl"):
        found |= {"range", "scale", "wholes"}
    if target.has("amx-tile"):
        for dtype, feature in ((bfloat16, "amx-bf16"), (int8, "amx-int8")):
            found |= {feature_of(dtype)} if target.has(feature) else set()
    if target.has("avx512bf16") and target.vector_bytes == 64 and target.cpu.startswith(_PAIRING):
        found |= {PAIRS}
    return frozenset(found)


class Cpu:
    """How a kernel becomes a function of a processor."""

    pointer = "ptr"
    aligned = False

    def __init__(self, target: Target, checks: bool = False) -> None:
        self.native = native_to(target)
        self.checks = checks
        self._streams: frozenset[int] = frozenset()

    def open(self, kernel: Kernel, writer: Writer) -> Frame:
        """Write the function's header and load its pointers and parameters."""
        writer.lines.append(
            f"define void @{kernel.name}(ptr noalias readonly %table, ptr noalias readonly %slots, "
            "ptr noalias readonly %parameters, i64 %begin, i64 %end) nounwind {\nentry:"
        )
        buffers = []
        for number in range(len(kernel.buffers)):
            slot = writer.let(f"getelementptr i32, ptr %slots, i64 {number}")
            wide = writer.let(f"sext i32 {writer.let(f'load i32, ptr {slot}')} to i64")
            entry = writer.let(f"getelementptr ptr, ptr %table, i64 {wide}")
            buffers.append(writer.let(f"load ptr, ptr {entry}"))
        parameters = []
        for number in range(kernel.parameters):
            place = writer.let(f"getelementptr i64, ptr %parameters, i64 {number}")
            parameters.append(writer.let(f"load i64, ptr {place}"))
        guard = Guard(kernel, writer) if self.checks else None
        self._streams = self._streams_of(kernel)
        return Frame(tuple(buffers), tuple(parameters), "%begin", "%end", guard, self._streams)

    def _streams_of(self, kernel: Kernel) -> frozenset[int]:
        """The buffers that are written past caches."""
        if self.checks or "stream" not in self.native:
            return frozenset()
        return frozenset(n for n, buffer in enumerate(kernel.buffers) if buffer.mode == "stream")

    def close(self, writer: Writer) -> None:
        """Write the function's end; others see what went past caches after a fence."""
        if self._streams:
            fence(writer)
        writer.lines.append("  ret void\n}")

    def index(self, loop: Loop, writer: Writer) -> str:
        """Refused: processors have no grid of threads."""
        raise UnsupportedError(f"kernel: a {loop.kind} loop on a CPU")

    def shared(self, name: str, kind: str, nbytes: int, writer: Writer) -> str:
        """Refused: processors have no memory of a block of threads."""
        raise UnsupportedError(f"kernel: {name}: memory of a block of threads on a CPU")

    def barrier(self, writer: Writer) -> None:
        """Refused: threads of a processor run apart."""
        raise UnsupportedError("kernel: a barrier on a CPU")
