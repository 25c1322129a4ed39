"""Which results of a program caches would not hold until somebody reads them.

That is so if the kernel that writes them touches more than caches hold. A smaller one leaves its
results in a cache, from where they are read twice as fast as from memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.compiler.emit_cpu import native_to
from weft.compiler.loops import Kernel
from weft.compiler.steps import Memory
from weft.runtime.cpu.jit import chosen_target

TOUCHED = 1 << 26  # bytes of all that a kernel reads and writes, at least
LARGE = 1 << 23  # bytes of a result, at least


def large_results(kernel: Kernel, places: Sequence[Memory]) -> frozenset[int]:
    """The buffers of a kernel that are large results of the program and not read back by it."""
    if sum(place.nbytes for place in set(places)) < TOUCHED:
        return frozenset()
    if "stream" not in native_to(chosen_target()):
        return frozenset()
    return frozenset(
        number
        for number, (buffer, place) in enumerate(zip(kernel.buffers, places, strict=False))
        if buffer.mode == "write" and place.role == "output" and place.nbytes >= LARGE
    )


def with_streams(kernel: Kernel, streams: frozenset[int]) -> Kernel:
    """The kernel with some of its buffers as streams."""
    buffers = tuple(
        replace(buffer, mode="stream") if number in streams else buffer
        for number, buffer in enumerate(kernel.buffers)
    )
    return replace(kernel, buffers=buffers) if streams else kernel
