"""From a lowered kernel to kernels for the blocks and threads of a GPU: the passes, in order.

Every size is a literal here. Bits stay what they are on a CPU, whatever the limits.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.compiler.loops import Kernel
from weft.compiler.narrow import widened
from weft.compiler.passes.blocks import blocks
from weft.compiler.passes.collapse import collapse
from weft.compiler.passes.items import DOUBLES, SQUARES, Limits
from weft.compiler.passes.reduce import reduce
from weft.compiler.passes.simplify import simplify

CUDA = Limits(squares=SQUARES, doubles=DOUBLES)
OLDER = Limits()  # GPUs whose warps multiply no such matrices
WEBGPU = Limits(threads=256, shared=16 * 1024, lanes=1, tiles=(), panel=1 << 60)


def stages_gpu(kernel: Kernel, limits: Limits = CUDA) -> Iterator[tuple[str, tuple[Kernel, ...]]]:
    """The kernels after each pass, with the pass's name."""
    plain = collapse(simplify(widened(kernel)))
    yield "collapse", (plain,)
    kernels = blocks(plain, limits)
    yield "blocks", kernels
    kernels = tuple(reduce(k, vectors=False) for k in kernels)
    yield "reduce", kernels
    yield "simplify", tuple(map(simplify, kernels))


def schedule_gpu(kernel: Kernel, limits: Limits = CUDA) -> tuple[Kernel, ...]:
    """The kernels to launch, one after another, for a lowered one.

    Each notes its `blocks`, its `threads` in a block, and the `scratch` buffers that follow its
    own: (dtype, elements). Scratch of the first kernel is given to the second.
    """
    *_, (_, kernels) = stages_gpu(kernel, limits)
    return kernels
