"""Schedule a convolution: one way for many places, another for few places of a large window.

Products of a result are taken in the order of the loops that lowering wrote, one rounding each,
however the work is cut.
"""

from __future__ import annotations

from math import prod

from weft.compiler.choice import USUAL, Choice
from weft.compiler.convolution import Convolution
from weft.compiler.loops import Kernel, Loop, Reduce
from weft.compiler.passes.convolve_blocks import choose
from weft.compiler.passes.convolve_places import Places, packing
from weft.compiler.passes.convolve_window import Windows, choose_piece

WORTH = 20_000  # products that are worth a kernel for these very sizes
FULL = 0.5  # how much of what is summed for a tile must be results, if its window is large


def is_worth(kernel: Kernel) -> bool:
    """Whether a kernel is a convolution large enough for a schedule of its own."""
    found: Convolution | None = kernel.notes.get("convolution")
    return found is not None and found.work >= WORTH


def convolve(
    kernel: Kernel, vector_bytes: int, registers: int = 0, choice: Choice = USUAL
) -> tuple[Kernel, ...] | None:
    """The kernels of a convolution: its own, and before it one that packs; None for others."""
    found: Convolution | None = kernel.notes.get("convolution")
    if found is None or not _is_whole(kernel, found):
        return None
    lanes = vector_bytes // found.dtype.itemsize
    registers = registers or (16 if vector_bytes == 32 else 32)
    cut = choose(found, lanes, registers)
    if prod(cut.counts) < FULL * cut.spread and prod(found.window) > prod(found.places):
        piece = choose_piece(found, lanes, registers, choice.tasks)
        return (Windows(kernel, found, piece).kernel(),)
    if prod(found.places) < lanes:
        return None
    packed = found.feature[1] > 1
    made = Places(kernel, found, cut, packed).kernel()
    return (packing(kernel, found, cut), made) if packed else (made,)


def _is_whole(kernel: Kernel, found: Convolution) -> bool:
    """Whether the kernel is still what its note says: all loops are there."""
    names = {found.feature[0], *(v for v, _ in found.lead), *(s.place[0] for s in found.space)}
    body = kernel.body
    while len(body) == 1 and isinstance(body[0], Loop):
        names.discard(body[0].variable)
        body = body[0].body
    return not names and bool(body) and isinstance(body[0], Reduce)
