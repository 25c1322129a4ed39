"""Kernels of complex transforms for GPUs: as few as there is room for their stages in.

The stages of a length that fits into the shared memory of a block are one kernel. Those of longer
ones are cut into groups: a block has so many columns of each that what it reads and writes are
lines of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np

from weft.compiler.fourier.plan import Stage, roots, stages
from weft.compiler.fourier.real import Transform
from weft.compiler.fourier.shared import Block, Tile
from weft.compiler.order.rows import Made
from weft.compiler.passes.items import WARP, Limits
from weft.compiler.steps import Memory
from weft.core.common.types import Array, DType, TensorType

ROOM = 64 * 1024  # bytes of the numbers that a block has at most, where a GPU has as many,
THREADS = 512  # and threads
POINTS = 1024  # numbers of a block at least, where there are as many,
LINE = 64  # adjacent bytes that it reads and writes at least, where there are as many,
WIDE = 256  # and those it does if there is room
EACH = 8  # numbers of a thread,
MOST_EACH = 16  # and its most

Group = tuple[Stage, ...]


def staged(t: Transform, source: Memory, target: Memory, limits: Limits) -> list[Made] | None:
    """The kernels of a transform; None where its ends have to be apart from it."""
    groups = _groups(t, _room(t, limits))
    if t.ends and len(groups) > 1:
        return None
    table = paired_roots(t.size, t.dtype)
    constant = Memory(TensorType(table.shape, t.dtype), "constant", data=table)
    made, now = list[Made](), source
    for group in groups:
        is_last = group is groups[-1]
        then = target if is_last else Memory(TensorType((2 * t.points,), t.dtype))
        tile = _tile(t, group, limits)
        made.append(Block(t, group, tile, (now, then, constant)).kernel())
        now = then
    return made


@lru_cache(4)
def paired_roots(n: int, dtype: DType) -> Array:
    """The roots of unity of a length, both parts of each side by side."""
    table = roots(n, dtype)
    made = np.zeros_like(table)
    for stage in stages(n):
        for k in range(1, stage.radix if stage.count > 1 else 1):
            start, size = stage.root(k)[0], 2 * stage.count
            made[start : start + size] = table[start : start + size].reshape(2, -1).T.reshape(-1)
    return made


def _room(t: Transform, limits: Limits) -> int:
    """Numbers that a block has at most: a quarter of its memory is left for gaps."""
    shared = limits.room if limits.squares else limits.shared
    return min(ROOM, shared * 3 // 4) // (2 * t.dtype.itemsize)


def _size(group: Sequence[Stage]) -> int:
    return prod(stage.radix for stage in group)


def _groups(t: Transform, room: int) -> list[Group]:
    """The fewest groups of stages that blocks have room for, of which the largest is small."""
    every, line = stages(t.size), LINE // (2 * t.dtype.itemsize)

    def fits(group: Group) -> bool:
        size = _size(group)
        columns = t.size * t.inner // size
        return len(group) == 1 or size * min(line, columns) <= room

    best: list[list[Group]] = [[]]  # of the first stages, by how many
    for stop in range(1, len(every) + 1):
        found = [
            [*best[start], every[start:stop]] for start in range(stop) if fits(every[start:stop])
        ]
        best.append(min(found, key=lambda groups: (len(groups), max(map(_size, groups)))))
    return best[-1]


def _tile(t: Transform, group: Group, limits: Limits) -> Tile:
    """The columns of a block: adjacent ones first."""
    size, after, beside = _size(group), group[-1].count, group[0].before * t.inner
    wide = min(WIDE // (2 * t.dtype.itemsize), after * beside)
    columns = max(1, min(_room(t, limits) // size, max(wide, POINTS // size)))
    near = _part(beside, columns)
    far = _part(after, columns // beside)
    rows = _part(t.rows, columns // (after * beside))
    return Tile(rows, far, near, _threads(group, size * rows * far * near, limits))


def _part(size: int, most: int) -> int:
    """How many of an axis a block takes, so that all take about as many."""
    count = -(-size // max(1, min(size, most)))
    return -(-size // count)


def _threads(group: Group, points: int, limits: Limits) -> int:
    """Threads of a block: whole warps that are busy in all stages, with few numbers each."""

    def turns(threads: int, stage: Stage) -> int:
        return -(-points // (threads * stage.radix)) * stage.radix

    def cost(threads: int) -> tuple[int, float]:
        numbers = [turns(threads, stage) for stage in group]
        return threads * sum(numbers), abs(points / threads - EACH)

    most = THREADS if limits.squares else min(THREADS, limits.threads)
    every = range(WARP, most + 1, WARP)
    few = [n for n in every if max(turns(n, stage) for stage in group) <= MOST_EACH]
    return min(few or every[-1:], key=cost)
