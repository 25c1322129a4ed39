"""What calls of kernels cost: arithmetic, bytes, and about how long they take on one thread.

`estimate` decides what runs on several threads. It knows the loops and the width of vectors, and
takes its constants from `rates`; it is right within a factor of two for most kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.compiler.loops import Kernel, Loop, every
from weft.compiler.point import kind_of, weight
from weft.compiler.rates import rates
from weft.compiler.steps import Call
from weft.core.graph.node import OutputRefs
from weft.runtime.cpu.jit import host_target

CACHE_BYTES = 1 << 20  # moved by a call, up to which it counts as cached


@dataclass(frozen=True, slots=True)
class Work:
    """Arithmetic operations of a call, and bytes it reads and writes."""

    flops: int
    read: int
    written: int

    @property
    def moved(self) -> int:
        """Bytes read and written."""
        return self.read + self.written


def work_of(call: Call) -> Work:
    """What one call does; a buffer counts as read once, or as far as the loops can reach."""
    flops = sum(map(operations, call.members)) if call.members else call.points
    return Work(flops, *_bytes_of(call))


def _bytes_of(call: Call) -> tuple[int, int]:
    """How many bytes a call reads and writes."""
    most = call.points * call.work  # elements that can be asked for
    read = sum(
        min(place.nbytes, most * place.kind.dtype.itemsize)
        for place in dict.fromkeys(call.memory)
        if place not in call.written and place.role != "status"
    )
    written = (min(place.nbytes, most * place.kind.dtype.itemsize) for place in call.written)
    return read, sum(written)


def operations(node: OutputRefs) -> int:
    """Arithmetic of a fused call: functions such as `exp` count what they are computed with."""
    if node.op.has("body") and not node.op.has("at") and kind_of(node) == "map":
        return weight(node) * node.types[0].size
    types = (source.types[slot] for source, slot in node.inputs)
    return int(node.op.cost(*types, **node.params).flops)


def estimate(call: Call) -> float:
    """About how many nanoseconds a call takes on one thread."""
    moved, r = sum(_bytes_of(call)), rates()
    steps = call.points * call.work
    if lanes(call.request.compiled.kernels[call.number]) > 1:
        widest = max((place.kind.dtype.itemsize for place in call.written), default=4)
        computing = steps * r.vector * max(widest, 4) / host_target().vector_bytes
    else:
        computing = steps * r.scalar
    moving = moved * (r.cached if moved <= CACHE_BYTES else r.memory)
    return r.call + max(computing, moving)


def lanes(kernel: Kernel) -> int:
    """Elements that the widest vector loop of a kernel computes at once; 1 if there is none."""
    return max(
        (s.step for s in every(kernel.body) if isinstance(s, Loop) and s.kind == "vector"),
        default=1,
    )
