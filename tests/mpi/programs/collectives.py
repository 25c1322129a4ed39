"""Every collective, with every dtype and many shapes, against NumPy; run by `test_collectives`."""

import gc
import sys

import ml_dtypes
import numpy as np

from weft.core.common.dtypes import ALL_DTYPES
from weft.runtime.communicator import world

FOLDS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
SHAPES = [(), (0,), (1,), (3, 0, 2), (2, 3, 4), (3000,), (130, 70)]
LARGE = (1_100_003,)

ranks = world()
everyone = tuple(range(ranks.size))


POOL = np.random.default_rng(0).normal(size=10_007)


def value(rank, shape, dtype, salt=0):
    """The array that a rank has: every rank can make that of any other."""
    real = np.resize(np.roll(POOL, 31 * rank + 7 * salt), shape)
    if dtype == np.bool_:
        return real > 0
    if dtype.kind in "iu":
        return np.asarray(np.abs(real) * 30).astype(dtype)
    if dtype.kind == "c":
        return (real + 1j * np.resize(POOL, shape)).astype(dtype)
    return real.astype(dtype)


def folded(kind, arrays):
    with np.errstate(all="ignore"):
        total = arrays[0].copy()
        for array in arrays[1:]:
            total = np.asarray(FOLDS[kind](total, array))
    return total


def same(found, expected):
    assert isinstance(found, np.ndarray), type(found)
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    assert found.flags.c_contiguous and found.flags.writeable
    assert found.tobytes() == np.ascontiguousarray(expected).tobytes(), (found, expected)


def layout(array, which):
    """The same values in another memory order."""
    if which % 3 == 0:
        return array
    if which % 3 == 1:
        return np.array(array, order="F")
    wide = np.zeros((*array.shape, 2), array.dtype)
    wide[..., 1] = array
    return wide[..., 1]


def pieces(array, axis, count):
    return np.array_split(array, count, axis)


def check_reductions(members):
    here = members.index(ranks.rank)
    for d, dtype in enumerate(ALL_DTYPES):
        for s, shape in enumerate(SHAPES):
            arrays = [value(rank, shape, dtype) for rank in members]
            for k, kind in enumerate(FOLDS):
                own = layout(arrays[here], d + s + k)
                expected = folded(kind, arrays)
                same(ranks.all_reduce(own, kind, members), expected)
                if shape:
                    axis = k % len(shape)
                    part = pieces(expected, axis, len(members))[here]
                    same(ranks.reduce_scatter(own, kind, axis, members), part)


def check_large_reductions(members):
    here = members.index(ranks.rank)
    for dtype in (np.float32, np.float64, np.int8, np.complex128, ml_dtypes.bfloat16):
        arrays = [value(rank, LARGE, np.dtype(dtype)) for rank in members]
        same(ranks.all_reduce(arrays[here], "sum", members), folded("sum", arrays))
    tables = [value(rank, (700, 1001), np.dtype(np.float32)) for rank in members]
    for axis in range(2):
        part = pieces(folded("sum", tables), axis, len(members))[here]
        for which in range(3):
            own = layout(tables[here], which)
            same(ranks.reduce_scatter(own, "sum", axis, members), part)


def check_gathers(members, shapes):
    here = members.index(ranks.rank)
    for dtype in ALL_DTYPES if shapes is SHAPES else (np.dtype(np.float32), np.dtype(np.int8)):
        for salt, shape in enumerate(shapes):
            arrays = [value(r, longer(shape, r), dtype, salt) for r in members]
            own = layout(arrays[here], salt)
            for found, expected in zip(ranks.all_gather(own, members), arrays, strict=True):
                same(found, expected)
            root = members[salt % len(members)]
            sent = arrays[here] if root == ranks.rank else None
            same(ranks.broadcast(sent, root, members), arrays[members.index(root)])
            table = [
                [value(a, longer(shape, b), dtype, salt + 1) for b in members] for a in members
            ]
            given = ranks.all_to_all(table[here], members)
            for found, row in zip(given, table, strict=True):
                same(found, row[here])


def longer(shape, rank):
    """Shapes that differ from rank to rank."""
    return (shape[0] * (rank + 1), *shape[1:]) if shape else shape


def check_exchanges():
    size, rank = ranks.size, ranks.rank
    for dtype in (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)):
        for shape in [(), (0,), (5,), (40, 3), (600_001,)]:
            after, before = (rank + 1) % size, (rank - 1) % size
            found = ranks.exchange([(after, value(rank, shape, dtype))], [(before, shape, dtype)])
            same(found[0], value(before, shape, dtype))
    half = np.dtype(np.float16)
    # A line: the ends take part on one side only. And one rank that sends itself something.
    sends = [(rank + 1, value(rank, (9,), half))] if rank + 1 < size else []
    receives = [(rank - 1, (9,), half)] if rank else []
    sends.append((rank, value(rank, (2, 2), half)))
    receives.insert(0, (rank, (2, 2), half))
    found = ranks.exchange(sends, receives)
    same(found[0], value(rank, (2, 2), half))
    if rank:
        same(found[1], value(rank - 1, (9,), half))
    # Several arrays between two ranks, in order, small and large; other ranks do nothing.
    shapes = [(3,), (300_000,), (0, 4)]
    if rank < 2:
        other = 1 - rank
        found = ranks.exchange(
            [(other, value(rank, shape, half, 1)) for shape in shapes],
            [(other, shape, half) for shape in shapes],
        )
        for array, shape in zip(found, shapes, strict=True):
            same(array, value(other, shape, half, 1))
    assert ranks.exchange([], []) == []


def check_groups():
    """Groups that overlap take turns; each has an order of its own."""
    size, rank = ranks.size, ranks.rank
    big = np.dtype(np.float64)
    for turn in range(8):
        for members in [(0, 1), tuple(reversed(everyone)), (size - 1, 0), everyone, (rank,)]:
            if rank not in members:
                continue
            shape = [(3,), (200_000,)][turn % 2]
            arrays = [value(r, shape, big, turn) for r in members]
            own = arrays[members.index(rank)]
            same(ranks.all_reduce(own, "sum", members), folded("sum", arrays))
            for found, expected in zip(ranks.all_gather(own, members), arrays, strict=True):
                same(found, expected)
            ranks.barrier(members)


def check_results_are_free():
    """What a collective returned stays as it is, and inputs may be changed at once."""
    own = np.full(1000, ranks.rank, np.float32)
    first = ranks.all_gather(own, everyone)
    total = ranks.all_reduce(own, "sum", everyone)
    for turn in range(5):
        own[:] = -turn
        ranks.all_gather(own, everyone)
        ranks.all_reduce(own, "max", everyone)
    for rank in everyone:
        assert (first[rank] == rank).all()
    assert (total == sum(everyone)).all()


def check_collector():
    """Garbage collection, at other moments on each rank, changes nothing."""
    for turn in range(60):
        if turn % (ranks.rank + 2) == 0:
            gc.collect(0)
        loop = []
        loop.append(loop)
        found = ranks.all_reduce(np.array([turn + ranks.rank]), "max", everyone)
        assert found[0] == turn + ranks.size - 1


def main():
    expected = sys.argv[1]
    assert type(ranks._transport).__name__ == expected, type(ranks._transport)
    check_reductions(everyone)
    check_large_reductions(everyone)
    check_gathers(everyone, SHAPES)
    check_gathers(everyone[::-1], [(900_001,), (1000, 301)])
    check_exchanges()
    check_groups()
    check_results_are_free()
    check_collector()
    ranks.check("the same text " * 200)
    ranks.barrier()
    print(f"rank {ranks.rank} of {ranks.size} is done", flush=True)


main()
