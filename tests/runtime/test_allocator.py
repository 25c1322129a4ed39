"""Memory is counted, used again, and returned exactly when its last view dies."""

import errno
import gc
import mmap
import os
import random
import subprocess
import sys
import textwrap
import threading

import ml_dtypes
import numpy as np
import pytest

import weft as wf
from weft.core.common.device import CPU, as_device
from weft.core.tensor.storage import Lease, Storage
from weft.errors import DeviceError, OutOfMemoryError, ShapeError, UnsupportedDTypeError
from weft.runtime.cpu import allocator as module
from weft.runtime.cpu import client as client_module
from weft.runtime.cpu.allocator import LARGE_PAGE, CachingAllocator, size_class

KIB = 1024
FLOAT = np.dtype(np.float32)
BYTE = np.dtype(np.uint8)


def address(array):
    return array.__array_interface__["data"][0]


def lease_of(array):
    while not isinstance(array, Lease):
        array = array.base
    return array


@pytest.fixture
def allocator():
    return CachingAllocator(limit=64 * KIB * KIB)


@pytest.mark.promise("S4.12")
def test_memory_is_freed_exactly_when_the_last_view_dies(allocator):
    array = allocator.empty((100, 1000), FLOAT)
    views = [array.T[::-2], array.reshape(-1).view(np.int32)[7:], memoryview(array), array[3:4]]
    del array
    while views:
        assert allocator.stats().live_blocks == 1
        assert allocator.stats().frees == 0
        views.pop()
    stats = allocator.stats()
    assert (stats.live_blocks, stats.live_bytes, stats.frees) == (0, 0, 1)
    assert stats.cached_bytes == size_class(400_000)


@pytest.mark.parametrize(
    "view",
    [
        lambda array: array[5:][5:],
        lambda array: array.base.view(np.ndarray),
        lambda array: np.asarray(array.base)[1:],
        lambda array: array.base[2:],
        lambda array: array.base.view(np.uint16).view(np.ndarray),
        lambda array: np.from_dlpack(array),
        lambda array: np.lib.stride_tricks.as_strided(array, (3,), (8,)),
    ],
)
def test_no_view_reaches_past_the_lease_to_the_block(allocator, view):
    kept = view(allocator.empty((100_000,), FLOAT))
    gc.collect()
    assert allocator.stats().live_blocks == 1
    other = allocator.empty((100_000,), FLOAT)
    assert not np.shares_memory(kept, other)
    del kept
    assert allocator.stats().live_blocks == 1


@pytest.mark.promise("S4.10")
def test_several_views_share_one_allocation(allocator):
    array = allocator.empty((100_000,), FLOAT)
    parts = np.split(array, 4)
    storages = {Storage.of_array(part, CPU) for part in [array, *parts]}
    assert len(storages) == 1
    assert allocator.stats().live_blocks == 1


def test_a_freed_block_serves_the_next_request_of_its_class(allocator):
    array = allocator.empty((100_000,), FLOAT)
    first = address(array)
    del array
    again = allocator.empty((99_000,), FLOAT)
    assert address(again) == first
    other_class = allocator.empty((300_000,), FLOAT)
    stats = allocator.stats()
    assert (stats.cache_hits, stats.allocations, stats.cached_bytes) == (1, 2 + 1, 0)
    del again, other_class


def test_the_block_freed_last_is_used_first(allocator):
    first, second = (allocator.empty((100_000,), FLOAT) for _ in range(2))
    expected = address(second)
    del first
    del second
    assert address(allocator.empty((100_000,), FLOAT)) == expected


def test_small_arrays_are_numpys_own(allocator):
    array = allocator.empty((64 * KIB - 1,), BYTE)
    assert array.base is None
    assert allocator.empty((0, 10**12), FLOAT).shape == (0, 10**12)
    assert allocator.stats().allocations == 0


@pytest.mark.parametrize("dtype", ["bool", "int8", "float64", "complex128", ml_dtypes.bfloat16])
def test_large_arrays_are_aligned_row_major_and_writable(allocator, dtype):
    for size in (64 * KIB, 100_003, 2**20):
        array = allocator.empty((2, size), np.dtype(dtype))
        assert address(array) % 64 == 0
        assert array.dtype == dtype
        assert array.flags.c_contiguous
        assert array.flags.writeable
        array[...] = 1
        assert (array == 1).all()


def test_size_classes_have_four_steps_to_a_power_of_two():
    classes = sorted({size_class(n) for n in range(64 * KIB, 256 * KIB + 1, 64)})
    assert [c // KIB for c in classes] == [64, 80, 96, 112, 128, 160, 192, 224, 256]
    for n in random.Random(0).sample(range(1, 2**40), 1000):
        assert n <= size_class(n) <= max(n * 5 // 4 + 1, n + 64)
        assert size_class(size_class(n)) == size_class(n)


def test_the_cache_is_bounded_and_drops_what_was_freed_longest_ago():
    allocator = CachingAllocator(limit=256 * KIB)
    arrays = {kib: allocator.empty((kib * KIB,), BYTE) for kib in (128, 64, 96)}
    for kib in (128, 64, 96):
        del arrays[kib]
    stats = allocator.stats()
    assert stats.cached_bytes == (64 + 96) * KIB
    kept = [allocator.empty((kib * KIB,), BYTE) for kib in (64, 96)]
    assert allocator.stats().cache_hits == 2
    kept.append(allocator.empty((128 * KIB,), BYTE))
    assert allocator.stats().cache_hits == 2


def test_a_limit_of_0_caches_nothing():
    allocator = CachingAllocator(limit=0)
    for _ in range(3):
        allocator.empty((KIB, KIB), BYTE)
    stats = allocator.stats()
    assert (stats.cached_bytes, stats.cache_hits, stats.frees) == (0, 0, 3)


def test_the_default_limit_is_a_quarter_of_the_memory():
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert CachingAllocator().limit == total // 4


def test_empty_cache_returns_everything_and_leaves_live_blocks_alone(allocator):
    live = allocator.empty((KIB * KIB,), BYTE)
    live[...] = 7
    for kib in (64, 128, 512):
        allocator.empty((kib * KIB,), BYTE)
    allocator.empty_cache()
    stats = allocator.stats()
    assert (stats.cached_bytes, stats.live_blocks) == (0, 1)
    assert (live == 7).all()
    del live
    assert allocator.stats().cached_bytes == KIB * KIB


def test_the_peak_remembers_the_most_that_was_alive(allocator):
    pair = [allocator.empty((128 * KIB,), BYTE) for _ in range(2)]
    del pair
    allocator.empty((64 * KIB,), BYTE)
    stats = allocator.stats()
    assert (stats.peak_bytes, stats.live_bytes) == (256 * KIB, 0)


def test_raw_memory_lives_until_storage_and_views_are_gone(allocator):
    storage = allocator.allocate(100_000)
    assert storage.owned
    assert storage.nbytes == 100_000
    assert storage.ptr % 64 == 0
    view = np.ndarray((10,), FLOAT, buffer=storage.keep_alive)
    allocator.deallocate(storage)
    assert allocator.stats().live_blocks == 1
    del view
    assert allocator.stats().live_blocks == 0
    with pytest.raises(DeviceError, match="already released"):
        allocator.deallocate(storage)


def test_raw_memory_of_few_bytes_is_counted_and_not_cached(allocator):
    storages = [allocator.allocate(nbytes) for nbytes in (0, 1, 1000)]
    assert [storage.ptr % 64 for storage in storages] == [0, 0, 0]
    assert allocator.stats().live_blocks == 3
    del storages
    stats = allocator.stats()
    assert (stats.live_bytes, stats.cached_bytes) == (0, 0)


@pytest.mark.promise("S4.11")
def test_borrowed_memory_is_never_freed(allocator):
    with mmap.mmap(-1, 256 * KIB) as memory:
        array = np.frombuffer(memory, np.uint8)
        storage = Storage.of_array(array[128:], CPU)
        assert not storage.owned
        assert storage.ptr == address(array)
        allocator.deallocate(storage)
        assert storage.keep_alive is not None
        array[0] = 42
        assert memory[0] == 42
        stats = allocator.stats()
        assert (stats.frees, stats.cached_bytes) == (0, 0)
        del array, storage


@pytest.mark.parametrize("step", [1, -1])
def test_the_storage_of_a_view_is_the_root_of_its_bases(allocator, step):
    array = allocator.empty((200, 200), FLOAT)
    storage = Storage.of_array(array[10:].T[::step, 3:], CPU)
    assert (storage.ptr, storage.nbytes, storage.owned) == (address(array), 160_000, True)
    assert storage.keep_alive is lease_of(array)
    plain = np.zeros(10)
    storage = Storage.of_array(plain[::-1][2:], CPU)
    assert (storage.ptr, storage.nbytes, storage.owned) == (address(plain), 80, True)
    escaped = Storage.of_array(lease_of(array)[5:], CPU)
    assert escaped == Storage.of_array(array, CPU)


def test_a_borrowed_root_with_negative_strides_begins_at_its_lowest_byte():
    memory = np.zeros(10)
    root = np.from_dlpack(memory[::-1])
    storage = Storage.of_array(root, CPU)
    assert (storage.ptr, storage.nbytes, storage.owned) == (address(memory), 80, False)


def test_storages_are_equal_by_address_and_device():
    one = Storage(4096, 10, CPU, owned=False)
    assert one == Storage(4096, 20, CPU, owned=False)
    assert one != Storage(4096, 10, as_device("cpu:1"), owned=False)
    assert one != Storage(8192, 10, CPU, owned=False)
    assert one != "storage"
    assert repr(one) == "Storage(10 bytes at 0x1000 on cpu:0, borrowed)"
    with pytest.raises(AttributeError):
        one.ptr = 0


def test_memory_of_another_device_is_refused(allocator):
    with pytest.raises(DeviceError, match=r"deallocate.*cpu:1"):
        allocator.deallocate(Storage(4096, 10, as_device("cpu:1"), owned=True))


@pytest.mark.parametrize("nbytes", [-1, 2**47 + 1, 2**70])
def test_an_absurd_request_is_refused_without_trying(allocator, nbytes, monkeypatch):
    monkeypatch.setattr(module.Block, "fresh", lambda capacity: pytest.fail("tried"))
    with pytest.raises(OutOfMemoryError, match=f"cannot have {nbytes} bytes"):
        allocator.allocate(nbytes)


def test_an_absurd_shape_is_refused(allocator):
    with pytest.raises(OutOfMemoryError, match="4000000000000000000 bytes"):
        allocator.empty((10**9, 10**9), FLOAT)
    with pytest.raises(ShapeError, match=r"empty: a size is negative \(shape \(-2, -3\)\)"):
        allocator.empty((-2, -3), FLOAT)
    with pytest.raises(UnsupportedDTypeError, match="object"):
        allocator.empty((KIB * KIB,), np.dtype(object))


def test_a_refused_request_empties_the_cache_and_tries_again(allocator, monkeypatch):
    fresh = module.Block.fresh
    cached_at_try = []

    def refuse_while_cached(capacity):
        cached_at_try.append(allocator.stats().cached_bytes)
        if cached_at_try[-1]:
            raise MemoryError
        return fresh(capacity)

    allocator.empty((128 * KIB,), BYTE)
    monkeypatch.setattr(module.Block, "fresh", refuse_while_cached)
    assert allocator.empty((KIB * KIB,), BYTE).nbytes == KIB * KIB
    assert cached_at_try == [128 * KIB, 0]


def test_out_of_memory_says_so_even_if_nothing_is_left_to_look_around(allocator, monkeypatch):
    def nothing_left() -> None:
        raise MemoryError

    monkeypatch.setattr(module, "memory_report", nothing_left)
    assert "cannot be listed" in str(allocator.out_of_memory(64))


def test_out_of_memory_names_what_is_asked_alive_and_cached(allocator, monkeypatch):
    def refuse(capacity):
        raise MemoryError

    live = allocator.empty((128 * KIB,), BYTE)
    monkeypatch.setattr(module.Block, "fresh", refuse)
    with pytest.raises(MemoryError) as caught:
        allocator.empty((KIB * KIB,), BYTE)
    assert isinstance(caught.value, OutOfMemoryError)
    assert str(caught.value).splitlines()[0] == (
        "allocate: cpu:0: cannot have 1048576 bytes (live 131072 bytes in 1 blocks, cached 0 bytes)"
    )
    assert allocator.stats().live_bytes == live.nbytes


def test_threads_share_the_allocator_without_losing_or_mixing_blocks():
    allocator = CachingAllocator(limit=1024 * KIB)
    handed_over = []
    failures = []

    def work(number):
        generator = random.Random(number)
        held = []
        for _ in range(400):
            array = allocator.empty((generator.randrange(64, 200) * KIB,), BYTE)
            array[::4096] = number
            held.append(array)
            if len(held) > 3:
                array = held.pop(generator.randrange(4))
                if not (array[::4096] == number).all():
                    failures.append(number)
                handed_over.append(array)
                if len(handed_over) > 20:
                    del handed_over[:10]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handed_over.clear()
    stats = allocator.stats()
    assert not failures
    assert (stats.live_blocks, stats.live_bytes) == (0, 0)
    assert stats.allocations == stats.frees == 1600
    assert 0 < stats.cached_bytes <= 1024 * KIB
    assert stats.cached_bytes == sum(block.capacity for block in allocator._cache.values())


def test_a_lease_may_die_and_memory_be_asked_for_inside_a_step_on_the_cache(allocator):
    """Garbage collection and signal handlers run anywhere, also while the lock is held."""
    array, cached = (allocator.empty((64 * KIB,), BYTE) for _ in range(2))
    del cached
    inside = []

    def step():
        nonlocal array
        array = None
        inside.append(allocator.empty((64 * KIB,), BYTE))
        inside.append(allocator.stats().allocations)

    allocator._alone(step)
    stats = allocator.stats()
    assert inside[1] == 3
    assert (stats.live_blocks, stats.frees, stats.cached_bytes) == (1, 2, 128 * KIB)
    assert stats.cache_hits == 0


@pytest.mark.parametrize("number", range(1, 10))
def test_an_interrupt_while_blocks_come_back_leaves_the_cache_usable(allocator, number):
    def trace(frame, event, _):
        nonlocal number
        if frame.f_code.co_name != "_book_returned":
            return None
        number -= event == "line"
        if number == 0:
            raise KeyboardInterrupt
        return trace

    def step():
        nonlocal array
        array = None
        sys.settrace(trace)

    array = allocator.empty((64 * KIB,), BYTE)
    before = sys.gettrace()
    with pytest.raises(KeyboardInterrupt):
        allocator._alone(step)
    sys.settrace(before)
    allocator.empty_cache()
    assert not allocator._cache
    assert allocator.empty((64 * KIB,), BYTE).nbytes == 64 * KIB


def run_python(program):
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_starts_with_an_empty_cache_and_valid_leases():
    out = run_python("""
        import os, threading
        import numpy as np
        from weft.runtime.cpu.allocator import CachingAllocator
        allocator = CachingAllocator()
        array = allocator.empty((100_000,), np.dtype("float32"))
        array[...] = 3
        allocator.empty((100_000,), np.dtype("float64"))
        before = allocator.stats()
        # The child must not inherit a lock that a thread of the parent holds.
        held = threading.Event()
        done = threading.Event()
        def hold():
            with allocator._lock:
                held.set()
                done.wait()
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        child = os.fork()
        if child == 0:
            stats = allocator.stats()
            assert stats.cached_bytes == 0 and stats.live_blocks == 1
            assert (array == 3).all()
            array[...] = 4
            del array
            assert allocator.stats().live_blocks == 0
            assert allocator.empty((100_000,), np.dtype("float32"))[0] == 4
            assert allocator.stats().cache_hits == before.cache_hits + 1
            os._exit(0)
        done.set()
        thread.join()
        assert os.waitpid(child, 0)[1] == 0
        assert allocator.stats() == before and (array == 3).all()
        print("parent and child agree")
    """)
    assert out == "parent and child agree\n"


@pytest.mark.slow
def test_leases_that_live_until_the_interpreter_exits_die_in_silence():
    out = run_python("""
        import json
        import sys
        import numpy as np
        from weft.runtime.cpu import allocator as module
        allocator = module.CachingAllocator()
        array = allocator.empty((100_000,), np.dtype("float32"))
        cycle = [allocator.empty((100_000,), np.dtype("float32"))]
        cycle.append(cycle)
        # Modules that are still referred to are emptied, the last imported first: this lease dies
        # when the allocator's functions have lost their globals.
        sys.modules_to_empty = [module, json]
        json.kept = allocator.empty((100_000,), np.dtype("float32"))[::2]
        print("leaving")
    """)
    assert out == "leaving\n"


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no large pages")
def test_large_blocks_begin_on_large_pages():
    allocator = CachingAllocator()
    for nbytes in (LARGE_PAGE, 3 * LARGE_PAGE + 100):
        array = allocator.empty((nbytes,), np.dtype(np.uint8))
        assert address(array) % LARGE_PAGE == 0
        array[[0, -1]] = 1


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no large pages")
def test_pages_that_the_system_refuses_are_a_lack_of_memory(monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr("weft.runtime.cpu.allocator.mmap.mmap", refuse)
    with pytest.raises(OutOfMemoryError, match=r"cannot have 8388608 bytes"):
        CachingAllocator().empty((1 << 20,), np.dtype(np.float64))


def test_results_beyond_the_machines_memory_are_refused_before_they_are_written(monkeypatch):
    monkeypatch.setattr(client_module, "MEMORY", 1 << 20)
    x = wf.ones(1 << 10)
    with pytest.raises(OutOfMemoryError, match="cannot have 4194304 bytes"):
        wf.tile(x, 1 << 10).numpy()
    assert wf.broadcast_to(x, (1 << 10, 1 << 10)).shape == (1 << 10, 1 << 10)
    assert wf.sum(x).item() == 1 << 10
