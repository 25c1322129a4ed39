"""What calls of kernels cost: arithmetic, bytes, and about how long they take on one thread.

`estimate` decides what runs on several threads, so it is the same in every process: it knows the
loops and the width of vectors, and its constants were measured on a server's core of about 3 GHz,
where it is right within a factor of two for most kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.compiler.loops import Kernel, Loop, every
from weft.compiler.point import kind_of, weight
from weft.compiler.steps import Call
from weft.core.graph.node import OutputRefs
from weft.runtime.cpu.jit import host_target

CALL_NS = 100.0  # what a call takes however little it does
VECTOR_NS = 0.28  # an instruction on one vector
SCALAR_NS = 0.35  # an instruction on one element, where there are no vectors
CACHED_NS = 0.02  # a byte read or written, where all of them fit in a cache
MEMORY_NS = 0.045  # where they do not
CACHE_BYTES = 1 << 20


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
    most = call.points * call.work  # elements that can be asked for
    read = sum(
        min(place.nbytes, most * place.kind.dtype.itemsize)
        for place in dict.fromkeys(call.memory)
        if place not in call.written and place.role != "status"
    )
    flops = sum(map(_operations, call.members)) if call.members else call.points
    return Work(flops, read, sum(place.nbytes for place in call.written))


def _operations(node: OutputRefs) -> int:
    """Arithmetic of a fused call: functions such as `exp` count what they are computed with."""
    if node.op.has("body") and not node.op.has("at") and kind_of(node) == "map":
        return weight(node) * node.types[0].size
    types = (source.types[slot] for source, slot in node.inputs)
    return int(node.op.cost(*types, **node.params).flops)


def estimate(call: Call) -> float:
    """About how many nanoseconds a call takes on one thread."""
    done = work_of(call)
    steps = call.points * call.work
    if lanes(call.request.compiled.kernels[call.number]) > 1:
        widest = max((place.kind.dtype.itemsize for place in call.written), default=4)
        computing = steps * VECTOR_NS * max(widest, 4) / host_target().vector_bytes
    else:
        computing = steps * SCALAR_NS
    moving = done.moved * (CACHED_NS if done.moved <= CACHE_BYTES else MEMORY_NS)
    return CALL_NS + max(computing, moving)


def lanes(kernel: Kernel) -> int:
    """Elements that the widest vector loop of a kernel computes at once; 1 if there is none."""
    return max(
        (s.step for s in every(kernel.body) if isinstance(s, Loop) and s.kind == "vector"),
        default=1,
    )
