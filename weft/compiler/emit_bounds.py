"""Kernels that check every access: a mode to find mistakes of the compiler, not for speed.

A kernel is given the range of each buffer's elements behind its parameters. An access outside goes
to spare memory instead, and the status word says which buffer it was, so nothing is read or written
that should not be. Arrays among a kernel's locals are checked as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.compiler.emit_text import Writer
from weft.compiler.loops import Kernel

if TYPE_CHECKING:
    from weft.compiler.emit_scope import Place

BOUNDS = 1 << 20  # the status of a kernel that reached outside
LOCALS = 1 << 10  # its detail: a buffer's number, or this plus a local's
WORDS = 2  # parameters for each buffer: the first element there is, and the one after the last
_SPARE = 4096  # bytes: more than any vector


class Guard:
    """Checks the accesses of one function."""

    def __init__(self, kernel: Kernel, writer: Writer) -> None:
        self._kernel = kernel
        self._writer = writer
        let = writer.let
        self._status = let("load ptr, ptr %table")
        self._sink = let("alloca [2 x i64]")
        self._spare = let(f"alloca [{_SPARE} x i8], align 64")
        self._ranges: list[tuple[str, str]] = []
        for number, buffer in enumerate(kernel.buffers):
            limits = []
            for word in range(WORDS):
                at = kernel.parameters + WORDS * number + word
                place = let(f"getelementptr i64, ptr %parameters, i64 {at}")
                elements = let(f"load i64, ptr {place}")
                limits.append(let(f"mul i64 {elements}, {buffer.dtype.itemsize}"))
            self._ranges.append((limits[0], limits[1]))

    def pointer(self, place: Place, pointer: str, lanes: int) -> str:
        """The pointer, if so many elements from there on exist; otherwise one to spare memory."""
        let = self._writer.let
        kind, number = place.memory
        detail = number
        if kind == "buffer":
            low, high = self._ranges[number]
        else:
            local = self._kernel.locals[number]
            size = local.length * local.lanes * local.dtype.itemsize
            low, high, detail = "0", str(size), LOCALS + number
        start, base = (let(f"ptrtoint ptr {p} to i64") for p in (pointer, place.pointer))
        first = let(f"sub i64 {start}, {base}")
        last = let(f"add i64 {first}, {lanes * place.dtype.itemsize}")
        begins = let(f"icmp sge i64 {first}, {low}")
        ends = let(f"icmp sle i64 {last}, {high}")
        inside = let(f"and i1 {begins}, {ends}")
        told = let(f"select i1 {inside}, ptr {self._sink}, ptr {self._status}")
        self._writer.do(f"store i64 {BOUNDS}, ptr {told}")
        beside = let(f"getelementptr i64, ptr {told}, i64 1")
        self._writer.do(f"store i64 {detail}, ptr {beside}")
        return let(f"select i1 {inside}, ptr {pointer}, ptr {self._spare}")
