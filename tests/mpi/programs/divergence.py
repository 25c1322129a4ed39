"""Ranks that come to different collectives, or not at all; run by `test_divergence`."""

import sys
import time

import numpy as np
import pytest

from weft.errors import (
    ArgumentError,
    CommunicationError,
    RankFailedError,
    RankMismatchError,
    RankTimeoutError,
)
from weft.runtime.communicator import world
from weft.runtime.communicator.transport import State

start = world()
one, two = np.zeros(1, np.float32), np.zeros((2, 2), np.float32)


def everyone(ranks):
    return tuple(range(ranks.size))


def other_op(ranks):
    if ranks.rank == 1:
        ranks.barrier()  # the line of rank 1
    else:
        ranks.all_reduce(one, "sum", everyone(ranks))  # the line of the others


def other_shape(ranks):
    ranks.all_reduce(two if ranks.rank == 1 else one, "sum", everyone(ranks))


def other_kind(ranks):
    ranks.reduce_scatter(two, "max" if ranks.rank == 1 else "sum", 0, everyone(ranks))


def other_dtype(ranks):
    array = np.zeros(300_000, np.float64 if ranks.rank == 1 else np.float32)
    ranks.all_gather(array, everyone(ranks))


def other_root(ranks):
    root = 1 if ranks.rank == 1 else 0
    ranks.broadcast(one if ranks.rank == root else None, root, everyone(ranks))


def other_members(ranks):
    members = everyone(ranks)
    ranks.all_reduce(one, "sum", members[::-1] if ranks.rank == 1 else members)


def other_signature(ranks):
    ranks.check(f"{'long ' * 500} step {ranks.rank == 1}")


def other_exchange(ranks):
    dtype = np.dtype(np.float32)
    shape = (2,) if ranks.rank == 1 else (1,)
    after, before = (ranks.rank + 1) % ranks.size, (ranks.rank - 1) % ranks.size
    ranks.exchange([(after, one)], [(before, shape, dtype)])


def other_pieces(ranks):
    pieces = [one] * ranks.size
    if ranks.rank == 1:
        pieces = [each.astype(np.int32) for each in pieces]
    ranks.all_to_all(pieces, everyone(ranks))


CASES = {
    other_op: "barrier",
    other_shape: "float32[2,2]",
    other_kind: "reduce_scatter max",
    other_dtype: "float64",
    other_root: "from rank 1",
    other_members: "of ranks",
    other_signature: "check",
    other_exchange: "expects float32[2]",
    other_pieces: "int32",
}


def raises_everywhere(ranks):
    """Each mistake raises on every rank that takes part, and `shrink` makes a fresh start."""
    for case, shown in CASES.items():
        with pytest.raises(RankMismatchError) as caught:
            case(ranks)
            ranks.barrier()  # a rank that only met agreeing ones hears of it here
        text = str(caught.value)
        assert shown in text or ranks.size > 2, (case, text)
        assert "divergence.py" in text and "\n  rank 1: " in text, text
        with pytest.raises(RankMismatchError, match="no longer possible"):
            ranks.barrier()
        ranks = ranks.shrink()
        found = ranks.all_reduce(np.array([1.0]), "sum", everyone(ranks))
        assert found[0] == ranks.size
    return ranks


def names_the_late(ranks):
    """A rank that does not come is named by all that wait, and by nobody else."""
    ranks.timeout = 0.3
    begin = time.monotonic()
    if ranks.rank != 1:
        with pytest.raises(RankTimeoutError) as caught:
            ranks.all_reduce(one, "sum", everyone(ranks))
        assert caught.value.ranks, caught.value
        assert time.monotonic() - begin > 0.25
        if ranks.rank == 0:
            print(caught.value, flush=True)
            assert 1 in caught.value.ranks
    else:
        others = set(everyone(ranks)) - {1}
        while any(ranks._transport.told(rank)[0] is State.RUNNING for rank in others):
            time.sleep(0.01)
        with pytest.raises(CommunicationError, match="gave up"):
            ranks.all_reduce(one, "sum", everyone(ranks))  # their parts have come before they left
            ranks.barrier()
    ranks.timeout = 20
    return ranks.shrink()


def refuses_arguments(ranks):
    """Mistakes that one rank can see alone break nothing."""
    for wrong in [(0, 0), (0, ranks.size), (-1,), ((ranks.rank + 1) % ranks.size,)]:
        with pytest.raises(ArgumentError, match="members"):
            ranks.all_reduce(one, "sum", wrong)
    with pytest.raises(ArgumentError, match="kind 'mean'"):
        ranks.all_reduce(one, "mean", everyone(ranks))
    with pytest.raises(ArgumentError, match="no rank 99"):
        ranks.exchange([(99, one)], [])
    with pytest.raises(ArgumentError, match="pieces for"):
        ranks.all_to_all([one] * (ranks.size + 1), everyone(ranks))
    ranks.barrier()


def the_line_can_be_given(ranks):
    ranks.origin = lambda: f"train.py:{100 + ranks.rank}"
    with pytest.raises(RankMismatchError, match=r"rank 1: .* at train\.py:101"):
        other_op(ranks)
        ranks.barrier()
    return ranks.shrink()


def who_leaves_is_missed(ranks):
    if ranks.rank == 1:
        ranks.close()
        return
    with pytest.raises(RankFailedError, match="rank 1"):
        ranks.all_reduce(one, "sum", everyone(ranks))


def main():
    assert type(start._transport).__name__ == sys.argv[1]
    refuses_arguments(start)
    ranks = raises_everywhere(start)
    ranks = names_the_late(ranks)
    ranks = the_line_can_be_given(ranks)
    who_leaves_is_missed(ranks)
    print(f"rank {ranks.rank} of {ranks.size} is done", flush=True)


main()
