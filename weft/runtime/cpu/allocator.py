"""Host memory that is used again: freed blocks wait in a bounded cache for the next request.

Fresh pages cost several times what a copy costs, since the system must clear and map them. Blocks
are kept by size class (four classes to each power of two), and the one freed longest ago is
dropped first when the cache is full. Large ones begin on a large page, and the system is asked for
such pages: processors find their places sooner.
"""

from __future__ import annotations

import atexit
import mmap
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from operator import index
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

import numpy as np

from weft.core.common.device import CPU, Device
from weft.core.common.types import Array
from weft.core.tensor.storage import Lease, Storage
from weft.errors import DeviceError, OutOfMemoryError, ShapeError, UnsupportedDTypeError
from weft.runtime.report import memory_report

ALIGNMENT = 64
LARGE_PAGE = 1 << 21
SMALLEST_CACHED = 64 * 1024
# Some systems promise any amount and end the process that writes to it. A request for so many times
# the machine's memory is refused here.
BEYOND_MEMORY = 4
_LISTED = 10  # allocations that the error for lack of memory names
LIMIT_WHERE_MEMORY_IS_UNKNOWN = 2**30

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AllocatorStats:
    """What an allocator holds and has done; bytes count whole blocks, not requests.

    Arrays below 64 KiB made by `empty` are NumPy's own and are not counted.
    """

    live_bytes: int
    live_blocks: int
    peak_bytes: int
    cached_bytes: int
    allocations: int
    frees: int
    cache_hits: int


class Block(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """Raw bytes of one size class, with room to align them."""

    capacity: int
    """Bytes that can be lent."""
    shift: int
    """Distance from the first byte to the first aligned one."""

    @classmethod
    def fresh(cls, capacity: int) -> Block:
        """Ask for `capacity` bytes that can start on an aligned address."""
        large = capacity >= LARGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE")
        alignment = LARGE_PAGE if large else ALIGNMENT
        pages = _pages(capacity + alignment) if large else None
        block = cls((capacity + alignment,), np.uint8, pages)
        block.capacity = capacity
        block.shift = -block.__array_interface__["data"][0] % alignment
        if pages is not None:
            whole = capacity // LARGE_PAGE * LARGE_PAGE
            with suppress(OSError):  # a system without large pages has small ones
                pages.madvise(mmap.MADV_HUGEPAGE, block.shift, whole)
        return block


class CachingAllocator:
    """Allocates host memory, and keeps what is freed for the next request of its size class.

    `limit` bounds the cache in bytes; by default it is a quarter of the machine's memory.

    >>> allocator = CachingAllocator()
    >>> x = allocator.empty((512, 512), np.dtype("float32"))
    >>> allocator.stats().live_blocks
    1
    >>> del x
    >>> allocator.stats().cached_bytes
    1048576
    """

    def __init__(self, device: Device = CPU, limit: int | None = None) -> None:
        self.device = device
        self.limit = physical_memory() // 4 if limit is None else limit
        self._largest = BEYOND_MEMORY * physical_memory()
        self._lock = threading.RLock()
        self._busy = False  # whether the holder of the lock is changing the cache
        self._closed = False
        # Blocks on their way back. Appending is atomic, so a lease may die anywhere: in another
        # thread, or in a garbage collection that starts while this thread holds the lock.
        self._returned: deque[Block] = deque()
        self._cache: OrderedDict[int, Block] = OrderedDict()  # number of the free → block
        self._by_class: dict[int, deque[int]] = {}  # size class → numbers, some perhaps outdated
        self._cached_bytes = 0
        self._live_bytes = 0
        self._live_blocks = 0
        self._peak_bytes = 0
        self._allocations = 0
        self._frees = 0
        self._cache_hits = 0
        _allocators.add(self)

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """A new row-major array with arbitrary contents; its memory returns with its last view."""
        if shape and min(shape) < 0:
            raise ShapeError(f"empty: a size is negative (shape {tuple(shape)})")
        nbytes = prod(shape) * dtype.itemsize
        if nbytes < SMALLEST_CACHED:
            return self._or_out_of_memory(nbytes, np.empty, shape, dtype)
        if dtype.hasobject:
            raise UnsupportedDTypeError(f"empty: dtype {dtype} holds Python objects, not numbers")
        return np.ndarray(shape, dtype, self._lend(nbytes))

    def allocate(self, nbytes: int) -> Storage:
        """Raw memory of `nbytes` bytes, aligned to 64."""
        lease = self._lend(index(nbytes))
        ptr: int = lease.__array_interface__["data"][0]
        return Storage(ptr, nbytes, self.device, owned=True, keep_alive=lease)

    def deallocate(self, storage: Storage) -> None:
        """Let go of a storage: its memory returns once no view of it is left.

        Borrowed memory is left alone: its owner frees it.
        """
        if storage.device != self.device:
            raise DeviceError(
                f"deallocate: {storage!r} is not on {self.device}, which this allocator serves"
            )
        storage.release()

    def stats(self) -> AllocatorStats:
        """The counters as of now."""
        self._alone(self._book_returned)
        with self._lock:
            return AllocatorStats(
                live_bytes=self._live_bytes,
                live_blocks=self._live_blocks,
                peak_bytes=self._peak_bytes,
                cached_bytes=self._cached_bytes,
                allocations=self._allocations,
                frees=self._frees,
                cache_hits=self._cache_hits,
            )

    def empty_cache(self) -> None:
        """Give every cached block back to the system."""
        self._alone(self._book_returned)
        self._alone(self._drop_down_to, 0)

    def _lend(self, nbytes: int) -> Lease:
        if not 0 <= nbytes <= self._largest:
            raise self.out_of_memory(nbytes)
        capacity = size_class(nbytes)
        block = self._alone(self._take_cached, capacity)
        if block is None:
            block = self._or_out_of_memory(nbytes, Block.fresh, capacity)
            with self._lock:
                self._count_loan(capacity)
            if self._returned:
                self._settle()
        return Lease.of(block, block.shift, nbytes, self._give_back)

    def _count_loan(self, capacity: int) -> None:
        self._allocations += 1
        self._live_blocks += 1
        self._live_bytes += capacity
        if self._live_bytes > self._peak_bytes:
            self._peak_bytes = self._live_bytes

    def _give_back(self, block: Block) -> None:
        if self._closed:
            return
        self._returned.append(block)
        self._settle()

    def _alone(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Run a step on the cache in one thread at a time.

        A signal handler or a finaliser may interrupt a step and come here in the same thread: its
        own step is left out, so that it meets neither a deadlock nor a half-changed cache.
        """
        with self._lock:
            if self._busy:
                return None
            self._busy = True
            try:
                result = step(*args, **kwargs)
            finally:
                self._busy = False
        if self._returned:
            self._settle()
        return result

    def _settle(self) -> None:
        """Book returned blocks, unless someone holds the lock: then they do it on leaving."""
        while self._returned:
            lock = self._lock
            if not lock.acquire(False):
                return
            try:
                if self._busy:
                    return
                self._busy = True
                try:
                    dropped = self._book_returned()
                finally:
                    self._busy = False
            finally:
                lock.release()
            del dropped  # outside the lock: freeing large blocks takes the system a while

    def _book_returned(self) -> list[Block]:
        """Move the blocks that came back into the cache; the result is what it let go for them."""
        while self._returned:
            block = self._returned.popleft()
            capacity = block.capacity
            self._frees += 1
            self._live_blocks -= 1
            self._live_bytes -= capacity
            if capacity >= SMALLEST_CACHED:
                # First, since numbers without a block do no harm if an interrupt comes in between.
                self._by_class.setdefault(capacity, deque()).append(self._frees)
                self._cache[self._frees] = block
                self._cached_bytes += capacity
        return self._drop_down_to(self.limit) if self._cached_bytes > self.limit else []

    def _take_cached(self, capacity: int) -> Block | None:
        """The block of this size class that was freed last: the likeliest to be in a CPU cache."""
        numbers = self._by_class.get(capacity)
        while numbers:
            block = self._cache.pop(numbers.pop(), None)
            if block is not None:
                self._cached_bytes -= capacity
                self._cache_hits += 1
                self._count_loan(capacity)
                return block
        return None

    def _drop_down_to(self, limit: int) -> list[Block]:
        """Take blocks out of the cache, the one freed longest ago first, until `limit` holds."""
        dropped = []
        while self._cache and self._cached_bytes > limit:
            number, block = self._cache.popitem(last=False)
            self._cached_bytes -= block.capacity
            dropped.append(block)
            numbers = self._by_class[block.capacity]
            while numbers and numbers[0] <= number:
                numbers.popleft()
        return dropped

    def _or_out_of_memory(
        self, nbytes: int, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        try:
            return make(*args, **kwargs)
        except MemoryError:
            self.empty_cache()
        try:
            return make(*args, **kwargs)
        except MemoryError as error:
            raise self.out_of_memory(nbytes) from error

    def out_of_memory(self, nbytes: int) -> OutOfMemoryError:
        """The error for a request that cannot be met; its message lists what is alive."""
        stats = self.stats()
        try:
            alive = memory_report().head(_LISTED)
        except MemoryError:  # looking at everything that is alive takes some, too
            alive = "what is alive cannot be listed: no memory is left for that"
        return OutOfMemoryError(
            f"allocate: {self.device}: cannot have {nbytes} bytes (live {stats.live_bytes} bytes "
            f"in {stats.live_blocks} blocks, cached {stats.cached_bytes} bytes)\n"
            "hint: drop tensors that are no longer needed, or work on smaller pieces\n"
            f"{alive}"
        )

    def _reset_after_fork(self) -> None:
        """Start the child without a cache; leases it inherited stay valid and come back here."""
        self._lock = threading.RLock()  # a thread that is not in the child may hold the old one
        self._busy = False
        self.empty_cache()

    def _close(self) -> None:
        """From now on blocks go straight back to the system: the interpreter is shutting down."""
        self._closed = True


def _pages(nbytes: int) -> mmap.mmap:
    """Memory of its own, straight from the system."""
    try:
        return mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError from error


_allocators: WeakSet[CachingAllocator] = WeakSet()


def size_class(nbytes: int) -> int:
    """The capacity that serves a request: four steps to each power of two.

    >>> [size_class(kib * 1024) // 1024 for kib in (64, 65, 96, 100, 127, 129)]
    [64, 80, 96, 112, 128, 160]

    Below 64 KiB, where nothing is cached, it is the request rounded up to 64 bytes.
    """
    cached = nbytes >= SMALLEST_CACHED
    step = 1 << ((nbytes - 1).bit_length() - 3) if cached else ALIGNMENT
    return max(-(-nbytes // step) * step, ALIGNMENT)


def physical_memory() -> int:
    """Bytes of memory in this machine; where the system does not tell, four GiB are assumed."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return 4 * LIMIT_WHERE_MEMORY_IS_UNKNOWN
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _reset_all_after_fork() -> None:
    for allocator in _allocators:
        allocator._reset_after_fork()


def _close_all() -> None:
    for allocator in _allocators:
        allocator._close()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all_after_fork)
