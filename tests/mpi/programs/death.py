"""A rank is killed while others wait for it; they go on without it. Run by `test_failures`."""

import os
import signal
import sys
import time

import numpy as np
import pytest

from weft.errors import RankFailedError
from weft.runtime.communicator import world

SMALL, LARGE = 3, 2_000_000


def everyone(ranks):
    return tuple(range(ranks.size))


def die_in(ranks, seconds):
    pid = os.getpid()
    if os.fork() == 0:  # a stranger kills it, in the middle of whatever it does
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        os._exit(0)
    while True:
        step(ranks)


def step(ranks):
    for count in (SMALL, LARGE):
        total = ranks.all_reduce(np.full(count, ranks.rank, np.float32), "sum", everyone(ranks))
        assert total[-1] == sum(everyone(ranks)), (total, everyone(ranks))
    ranks.exchange([], [])


def main():
    ranks = world()
    first = ranks.rank
    assert type(ranks._transport).__name__ == sys.argv[1]
    ranks.barrier()
    while ranks.size > 1:
        victim = ranks.size - 1
        if ranks.rank == victim:
            die_in(ranks, 0.3)
        last = time.monotonic()
        with pytest.raises(RankFailedError) as caught:
            while True:
                step(ranks)
                last = time.monotonic()
        assert time.monotonic() - last < 2, time.monotonic() - last
        assert caught.value.ranks, caught.value
        print(f"rank {first}: {caught.value}", flush=True)
        ranks = ranks.shrink()
        assert ranks.size == victim and ranks.rank == first, (ranks.rank, ranks.size)
        step(ranks)
    print(f"rank {first} is done", flush=True)


main()
