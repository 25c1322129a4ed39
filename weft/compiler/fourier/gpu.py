"""Kernels of complex transforms for GPUs: one for each stage, of plain loops.

A stage reads (rows, radix, count, before, inner) and writes (rows, count, radix, before, inner), so
that results are in order when the last one is done. Every thread transforms a few numbers.
"""

from __future__ import annotations

from weft.compiler.fourier.around import plain
from weft.compiler.fourier.butterfly import butterfly, times
from weft.compiler.fourier.lanes import Numbers, root_at
from weft.compiler.fourier.plan import Stage, roots, stages
from weft.compiler.fourier.real import Transform
from weft.compiler.loops import Statement, Value, integer
from weft.compiler.order.code import Body, Code
from weft.compiler.order.rows import Made
from weft.compiler.steps import Memory
from weft.core.common.types import TensorType


def staged(t: Transform, source: Memory, target: Memory) -> list[Made] | None:
    """The kernels of a transform; None where its ends have to be apart from it."""
    if t.ends:
        return None
    table = roots(t.size, t.dtype)
    constant = Memory(TensorType(table.shape, t.dtype), "constant", data=table)
    kind, made = TensorType((t.points,), t.dtype), list[Made]()
    now: tuple[Memory, ...] = (source,)
    every = stages(t.size)
    for stage in every:
        then = (target,) if stage is every[-1] else (Memory(kind), Memory(kind))
        made.append(_stage(t, stage, now, then, constant))
        now = then
    return made


def _stage(
    t: Transform, stage: Stage, now: tuple[Memory, ...], then: tuple[Memory, ...], table: Memory
) -> Made:
    s = Code()
    reads = tuple(s.buffer(each, t.dtype) for each in now)
    writes = tuple(s.buffer(each, t.dtype, "write") for each in then)
    source = Numbers(s, reads, t.dtype, t.inverse)
    target = Numbers(s, writes, t.dtype, t.inverse, t.scale)
    roots_in = s.buffer(table, t.dtype) if stage.count > 1 else -1
    radix, count, beside = stage.radix, stage.count, stage.before * t.inner

    def place(*digits: tuple[Value | int, int]) -> Value:
        """An index from its digits, each with how many there are."""
        found = integer(0)
        for digit, size in digits:
            found = s.sum(s.mul(found, integer(size)), digit)
        return found

    def point(b: Value, p: Value, q: Value) -> Body:
        here = [
            source.at(place((b, t.rows), (j, radix), (p, count), (q, beside))) for j in range(radix)
        ]
        found = butterfly(s, here)
        for k in range(1, radix if stage.count > 1 else 1):
            found[k] = times(s, found[k], root_at(s, roots_in, stage, k, p, t.dtype))
        stores: list[Statement] = []
        for k, x in enumerate(found):
            stores += target.put(place((b, t.rows), (p, count), (k, radix), (q, beside)), x)
        return tuple(stores)

    shape = (t.rows, count, beside)
    return plain(s, f"fourier_{radix}", shape, point, then, t.work)
