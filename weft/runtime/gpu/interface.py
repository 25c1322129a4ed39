"""`Driver`: what a kind of GPU provides, so that arrays, clients and the compiler can use it.

Memory has addresses, numbers that only its driver understands. Work is done in the order it is
asked for, so memory that is given back may be used again at once.
"""

from __future__ import annotations

import abc
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core.common.locks import lock_for
from weft.core.common.types import Array, DType
from weft.errors import InteropError, UnsupportedError

REPORT = np.dtype(np.int64)


@dataclass(frozen=True, slots=True)
class GpuStats:
    """What is held of a GPU's memory, and what was asked for."""

    live_bytes: int
    peak_bytes: int
    allocations: int
    frees: int


class GpuMemory:
    """Bytes on a GPU, given back when nobody holds this."""

    __slots__ = (
        "__weakref__",
        "_give_back",
        "address",
        "common",
        "nbytes",
        "read_only",
        "shared",
    )

    def __init__(self, address: int, nbytes: int, give_back: Callable[[int, int], None]) -> None:
        self.address = address
        self.nbytes = nbytes
        self._give_back = give_back
        self.shared = False  # another library may write to it: readers run at the call
        self.read_only = False  # whose it is does not want it to be written to
        self.common = False  # others of weft count on its values: it is not handed out

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_ending():  # where drivers, and names of modules, may be gone
            self._give_back(self.address, self.nbytes)


class Driver(abc.ABC):
    """One GPU; its work is done in the order it is asked for."""

    kind: str  # the name of its backend, which says what its kernels are written in
    name: str  # what its maker calls it
    aligned = 16  # bytes that the address of an operand divides by
    apart = False  # whether a kernel must not write into a piece of memory that it reads from
    dlpack: int  # DLPack's number of its kind
    lends = False  # whether other libraries can use its addresses, and weft theirs
    chains = False  # whether it has chains

    def __init__(self, number: int) -> None:
        self.number = number
        self._lock = lock_for(self, "_lock")
        self._live = self._peak = self._allocations = self._frees = 0

    def stored(self, dtype: DType) -> DType:
        """The dtype that elements have in memory here."""
        return dtype

    def stats(self) -> GpuStats:
        """What is held."""
        return GpuStats(self._live, self._peak, self._allocations, self._frees)

    def counted(self, nbytes: int) -> None:
        """Say in the statistics that memory was given out; by whoever holds the lock."""
        self._allocations += 1
        live = self._live = self._live + nbytes
        if live > self._peak:
            self._peak = live

    def discounted(self, nbytes: int) -> None:
        """Say in the statistics that memory came back; by whoever holds the lock."""
        self._frees += 1
        self._live -= nbytes

    @abc.abstractmethod
    def enter(self) -> None:
        """Let calls of this thread be about this device."""

    @abc.abstractmethod
    def allocate(self, nbytes: int) -> GpuMemory:
        """Memory whose address divides by 256."""

    def borrow(self, address: int, nbytes: int, owner: object) -> GpuMemory:
        """Another library's memory; its `owner` is let go when what weft does with it is done."""
        raise InteropError(f"{self.kind}: memory of other libraries cannot be used")

    @abc.abstractmethod
    def write(self, address: int, array: Array) -> None:
        """Copy a contiguous array to an address."""

    @abc.abstractmethod
    def read(self, address: int, array: Array) -> None:
        """Copy what lies at an address into a contiguous array; waits for the kernels before."""

    @abc.abstractmethod
    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy bytes from one address to another, on the GPU."""

    @abc.abstractmethod
    def clear(self, address: int, nbytes: int) -> None:
        """Make bytes zero."""

    def report(self) -> GpuMemory:
        """A number of 64 bits that is 0 until a kernel writes it: see `reported`."""
        memory = self.allocate(REPORT.itemsize)
        self.clear(memory.address, memory.nbytes)
        return memory

    def reported(self, report: GpuMemory) -> int:
        """What kernels have written, when all of them are done; it is 0 again."""
        found = np.zeros(1, REPORT)
        self.read(report.address, found)
        if found[0]:
            self.clear(report.address, report.nbytes)
        return int(found[0])

    @abc.abstractmethod
    def compiled(self, kernels: Sequence[Any], key: str, emit: Callable[..., str]) -> list[Any]:
        """The functions of these kernels, which `emit` writes; `key` names their code."""

    @abc.abstractmethod
    def prepare(
        self, function: Any, blocks: int, threads: int, table: Any, slots: Sequence[int]
    ) -> Callable[[], int]:
        """What starts a kernel on the addresses that are then in these slots of a table.

        It gives a code, 0 if all is well, and is to be called after `enter`.
        """

    def chain(
        self, starts: Sequence[Callable[[], int]], waits: Sequence[Sequence[int]]
    ) -> Callable[[], int]:
        """What starts kernels by one call, on the addresses they have now.

        Each waits until those before it are done that `waits` names by number, and for no others.
        """
        raise UnsupportedError(f"{self.kind}: there are no chains of kernels")

    @abc.abstractmethod
    def refuse(self, code: int) -> None:
        """Raise what a code of `prepare`'s function says."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Wait until all work is done; a kernel that failed raises here."""
