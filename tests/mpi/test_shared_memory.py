"""Shared memory without MPI: the ranks are threads of this process."""

import itertools
import os
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.compiler.host import array_at
from weft.core.common.types import TensorType
from weft.errors import CommunicationError, RankMismatchError, RankTimeoutError
from weft.runtime.communicator import LocalCommunicator
from weft.runtime.communicator.collectives import ProcessCommunicator
from weft.runtime.communicator.exposure import Area
from weft.runtime.communicator.fold import piece_bounds
from weft.runtime.communicator.segment import GATHER_CHUNK, SLOT, Layout, Segment
from weft.runtime.communicator.shared_memory import SharedMemory, Watch
from weft.runtime.communicator.signals import signals
from weft.runtime.communicator.sum_text import REFUSED, WAITING

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux 5.3")


class NobodyDies(Watch):
    """Threads cannot share a real one."""

    def __init__(self):
        super().__init__([])

    def look(self):
        return set()


def run(size, function, timeout=30.0):
    """Call a function as `size` ranks; the results by rank, or the first error."""
    segment, descriptor = Segment.create(size)
    os.close(descriptor)
    watch = NobodyDies()
    seats = tuple(range(size))
    results = [None] * size
    errors = {}

    def rank(number):
        ranks = ProcessCommunicator(SharedMemory(segment, watch, seats, number), timeout)
        try:
            results[number] = function(ranks)
        except BaseException as error:
            errors[number] = error

    threads = [threading.Thread(target=rank, args=(number,)) for number in seats]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results, errors


def alone(size, function):
    results, errors = run(size, function)
    assert not errors, errors
    return results


POOL = np.random.default_rng(0).normal(size=997).astype(np.float32)

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["reduce", "scatter", "gather", "trade", "broadcast", "ring"]),
        st.permutations([0, 1, 2]),
        st.integers(1, 3),
        st.sampled_from([0, 1, 5, 3000, GATHER_CHUNK // 4 + 3, 700_001]),
    ),
    max_size=12,
)


def take(ranks, step, salt):
    """One step of a random program, and what it must give."""
    name, order, count, length = step
    members = tuple(order[:count])
    if ranks.rank not in members and name != "ring":
        return
    here = members.index(ranks.rank) if ranks.rank in members else 0
    arrays = [np.resize(np.roll(POOL, rank + salt), length) for rank in range(3)]
    mine = arrays[ranks.rank]
    total = arrays[members[0]]
    for member in members[1:]:
        total = total + arrays[member]
    if name == "reduce":
        assert np.array_equal(ranks.all_reduce(mine, "sum", members), total)
    elif name == "scatter":
        part = slice(*piece_bounds(length, count, here))
        assert np.array_equal(ranks.reduce_scatter(mine, "sum", 0, members), total[part])
    elif name == "gather":
        for found, member in zip(ranks.all_gather(mine, members), members, strict=True):
            assert np.array_equal(found, arrays[member])
    elif name == "trade":
        pieces = [mine[: length // (1 + member)] for member in members]
        for found, member in zip(ranks.all_to_all(pieces, members), members, strict=True):
            assert np.array_equal(found, arrays[member][: length // (1 + ranks.rank)])
    elif name == "broadcast":
        sent = mine if ranks.rank == members[-1] else None
        found = ranks.broadcast(sent, members[-1], members)
        assert np.array_equal(found, arrays[members[-1]])
    else:
        after, before = (ranks.rank + 1) % 3, (ranks.rank - 1) % 3
        found = ranks.exchange([(after, mine)], [(before, mine.shape, mine.dtype)])
        assert np.array_equal(found[0], arrays[before])


@settings(max_examples=15)
@given(STEPS)
def test_any_sequence_of_collectives_on_any_groups_is_right(steps):
    def program(ranks):
        for salt, step in enumerate(steps):
            take(ranks, step, salt)

    alone(3, program)


@pytest.mark.parametrize("way", ["scatter", "gather"])
def test_what_a_slow_rank_reads_is_not_overwritten_by_the_next_round(way):
    length = 2 * max(GATHER_CHUNK, Layout(2).chunk)
    data = [np.repeat(np.array([rank, 10 + rank], np.uint8), length // 2) for rank in range(2)]

    def program(ranks):
        transport, other = ranks._transport, 1 - ranks.rank
        outgoing = data[ranks.rank] if way == "gather" else [data[ranks.rank]]
        for start, (view,) in getattr(transport, way)((other,), outgoing, [length]):
            threading.Event().wait(0.1 * ranks.rank)
            assert np.array_equal(view, data[other][start : start + len(view)])

    alone(2, program)


def test_what_a_slow_rank_reads_is_not_overwritten_for_another_group():
    """Rank 1 is slow to read what rank 0 gathered, and rank 0 goes on with rank 2."""
    data = [np.full(1000, 7 + turn, np.uint8) for turn in range(2)]
    empty = data[0][:0]

    def program(ranks):
        gather = ranks._transport.gather
        if ranks.rank == 0:
            for peer, each in zip((1, 2), data, strict=True):
                for _ in gather((peer,), each, [0]):
                    pass
        else:
            for _, (view,) in gather((0,), empty, [1000]):
                threading.Event().wait(0.2 if ranks.rank == 1 else 0)
                assert np.array_equal(view, data[ranks.rank - 1])

    alone(3, program)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_no_two_things_share_memory(size):
    layout = Layout(size)
    seats = range(size)
    parts = [(layout.control(seat), 8192) for seat in seats]
    for a in seats:
        parts += [(layout.gather(a, parity), GATHER_CHUNK) for parity in range(2)]
        parts.append((layout.exposed(a), layout.exposed_bytes))
        for b in seats:
            parts += [(layout.counter(kind, a, b), 64) for kind in range(3)]
            parts += [(layout.slot(a, b, parity), SLOT) for parity in range(2)]
            parts += [(layout.scatter(a, b, parity), layout.chunk) for parity in range(2)]
    parts.sort()
    assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(parts))
    assert parts[0][0] == 0 and sum(parts[-1]) == layout.nbytes
    assert layout.chunk % 64 == 0


@pytest.mark.parametrize("room", [1 << 20, 0])
def test_ranks_read_what_others_expose_and_nobody_overwrites_it(room):
    types = (TensorType((3,), np.dtype(np.int64)), TensorType((5, 7), np.dtype(np.float32)))
    members = (2, 0, 1)

    def program(ranks):
        assert ranks.exposes(types, members)
        ranks._transport._area = Area(0, room if ranks.rank == 1 else 1 << 20)
        exposed = ranks.exposure(types, members)
        places = set()
        for turn in range(6):
            rows = exposed.places()
            places.update(rows[0])
            for row, kind in zip(rows, types, strict=True):
                array_at(row[members.index(ranks.rank)], kind)[...] = 10 * turn + ranks.rank
            exposed.meet()
            threading.Event().wait(0.01 * ((ranks.rank + turn) % 3))
            for row, kind in zip(rows, types, strict=True):
                for member, address in zip(members, row, strict=True):
                    assert (array_at(address, kind) == 10 * turn + member).all()
        return len(places)

    assert alone(3, program) == [6 if room else 3] * 3  # where one has no room, all copy


def test_ranks_that_are_at_different_turns_do_not_read_each_others_terms():
    def program(ranks):
        exposed = ranks.exposure((TensorType((3,), np.dtype(np.int64)),), (0, 1))
        exposed.meet()
        if ranks.rank == 1:
            exposed._turn = 0  # as if an interrupt had come before it was counted
        exposed.meet()

    _, errors = run(2, program)
    assert all("was interrupted" in str(errors[rank]) for rank in range(2)), errors


def test_exposed_memory_is_used_again_by_the_same_members_only():
    area = Area(100, 64)
    assert (area.take((0, 1), 32), area.take((0, 1), 32), area.take((0, 1), 32)) == (100, 132, None)
    area.give_back((0, 1), 32, 132)
    assert (area.take((0, 2), 32), area.take((0, 1), 32)) == (None, 132)


def test_the_memory_has_no_name_anywhere():
    before = set(os.listdir("/dev/shm"))
    segment, descriptor = Segment.create(2)
    try:
        assert "memfd" in os.readlink(f"/proc/self/fd/{descriptor}")
        assert set(os.listdir("/dev/shm")) <= before
        same = Segment.attach(os.getpid(), descriptor, 2)
        segment.bytes[100] = 7
        assert same.bytes[100] == 7
    finally:
        os.close(descriptor)


def test_a_watch_sees_a_killed_process_that_nobody_has_waited_for():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    watch = Watch([os.getpid(), child.pid])
    assert watch.look() == set()
    child.kill()
    child_is_gone = threading.Event()
    for _ in range(500):
        if watch.look() == {1}:
            break
        child_is_gone.wait(0.01)
    assert watch.look() == {1}
    child.wait()


def test_an_error_in_the_middle_leaves_the_others_an_answer():
    def program(ranks):
        members = (0, 1)
        ranks.all_reduce(np.ones(3), "max", members)
        if ranks.rank == 1:
            ranks._folder._run = None  # what it calls next is a mistake of ours
        ranks.all_reduce(np.ones(3), "max", members)
        ranks.barrier()

    _, errors = run(2, program)
    assert isinstance(errors[1], TypeError)
    assert isinstance(errors[0], CommunicationError) and "TypeError" in str(errors[0])


def test_native_code_does_small_sums_and_leaves_the_rest_to_python():
    def program(ranks):
        members = (0, 1)
        small, large = TensorType((5,), np.dtype(np.float32)), TensorType((5000,), np.dtype("f4"))
        assert ranks.reducer(small, "sum", members).record
        assert not ranks.reducer(small, "max", members).record
        assert not ranks.reducer(large, "sum", members).record
        for _ in range(200):
            assert ranks.all_reduce(np.float64(ranks.rank), "sum", members) == 1
            assert (ranks.all_reduce(np.ones(3), "max", members) == 1).all()

    alone(2, program)


def test_threads_of_a_rank_take_turns():
    def program(ranks):
        def many():
            for _ in range(100):
                total = ranks.all_reduce(np.full(4, ranks.rank + 1.0), "sum", (0, 1))
                assert (total == 3).all()
                done.append(1)

        done = []
        threads = [threading.Thread(target=many) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(done)

    assert alone(2, program) == [300, 300]


def test_a_sum_that_native_code_began_can_be_abandoned():
    began = threading.Event()

    def program(ranks):
        reducer = ranks.reducer(TensorType((4,), np.dtype(np.float32)), "sum", (0, 1))
        given, result = np.ones(4, np.float32), np.empty(4, np.float32)
        if ranks.rank == 0:
            answer = signals().add_up(reducer.record, given.ctypes.data, result.ctypes.data)
            assert answer == WAITING
            reducer.abandon(given.ctypes.data)  # another result: nothing happens
            assert ranks.usable
            reducer.abandon(result.ctypes.data)
            assert (
                signals().add_up(reducer.record, given.ctypes.data, result.ctypes.data) == REFUSED
            )
            began.set()
        assert began.wait(20)
        reducer.run(given, result)  # the term of rank 0 has come
        ranks.barrier()

    _, errors = run(2, program)
    assert "all_reduce was stopped by KeyboardInterrupt" in str(errors[0])
    assert isinstance(errors[1], CommunicationError) and "rank 0 failed" in str(errors[1])


def test_a_mismatch_tells_what_each_rank_was_doing():
    def program(ranks):
        ranks.all_reduce(np.zeros((2, 3 + ranks.rank), np.float32), "sum", (0, 1))

    _, errors = run(2, program)
    for rank in range(2):
        assert isinstance(errors[rank], RankMismatchError)
        assert errors[rank].ranks == (1 - rank,)
        lines = str(errors[rank]).splitlines()
        assert lines[0] == "all_reduce: ranks came to different collectives"
        assert lines[1].startswith("  rank 0: all_reduce sum float32[2,3] of ranks 0, 1 at ")
        assert lines[2].startswith("  rank 1: all_reduce sum float32[2,4] of ranks 0, 1 at ")
        assert lines[3].startswith("hint: ")


def test_a_timeout_names_exactly_the_missing_ranks():
    both = threading.Barrier(2)

    def program(ranks):
        if ranks.rank % 2 == 0:
            both.wait(60)
            ranks.barrier()

    _, errors = run(4, program, timeout=0.5)
    assert sorted(errors) == [0, 2]
    first = next(error for error in errors.values() if "did not come" in str(error))
    assert isinstance(first, RankTimeoutError) and first.ranks == (1, 3)
    assert re.search(r"ranks 1, 3 did not come in \d+\.\d s", str(first))


def test_the_local_communicator_gives_copies():
    local = LocalCommunicator()
    array = np.arange(6).reshape(2, 3).T
    for found in (
        local.all_reduce(array, "sum", (0,)),
        local.all_gather(array, (0,))[0],
        local.reduce_scatter(array, "max", 1, (0,)),
        local.all_to_all([array], (0,))[0],
        local.broadcast(array, 0, (0,)),
        local.exchange([(0, array)], [(0, array.shape, array.dtype)])[0],
    ):
        assert np.array_equal(found, array) and found.flags.c_contiguous
        assert not np.shares_memory(found, array)
    local.barrier()
    local.check("anything")
    assert local.shrink().size == 1
