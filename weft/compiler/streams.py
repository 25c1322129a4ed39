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


class Streams:
    """Kernels that write results past caches, each made once."""

    def __init__(self) -> None:
        # By a kernel and its streams; with that kernel, so that its id stays its own.
        self._made: dict[tuple[int, frozenset[int]], tuple[Kernel, Kernel]] = {}

    def kernel(self, kernel: Kernel, places: Sequence[Memory]) -> Kernel:
        """The kernel with large results of the program, which it does not read back, as streams."""
        if sum(place.nbytes for place in set(places)) < TOUCHED:
            return kernel
        large = frozenset(
            number
            for number, (buffer, place) in enumerate(zip(kernel.buffers, places, strict=False))
            if buffer.mode == "write" and place.role == "output" and place.nbytes >= LARGE
        )
        if not large or "stream" not in native_to(chosen_target()):
            return kernel
        if (id(kernel), large) not in self._made:
            buffers = tuple(
                replace(buffer, mode="stream") if number in large else buffer
                for number, buffer in enumerate(kernel.buffers)
            )
            self._made[id(kernel), large] = replace(kernel, buffers=buffers), kernel
        return self._made[id(kernel), large][0]
