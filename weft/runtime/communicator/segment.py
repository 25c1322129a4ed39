"""The memory that ranks of one host share, and where each thing lies in it.

The memory is a file without a name, so nothing is left behind however its processes end. A *seat*
is a rank's place; seats stay as they are when ranks are renumbered after a failure.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

import numpy as np

from weft.runtime.communicator.transport import Bytes

LINE = 64
SLOT = 8192  # bytes of a block
_CONTROL = 8192  # bytes of what a seat tells all others
_PAGE = 4096
_SCATTER_BYTES = 2 << 20
_LEAST_CHUNK = 64 << 10
GATHER_CHUNK = 1 << 20
_EXPOSED_BYTES = 1 << 28
_MOST_EXPOSING = 64

STATE, TEXT_LENGTH, WISH, DECISION = 0, 8, 16, 24  # words of a control block
TEXT, TEXT_BYTES = 64, 3968
SURVIVORS, SURVIVORS_BYTES = 4096, 4096
MOST_SEATS = SURVIVORS_BYTES // 2 - 1

BLOCKS, STEPS, DONE = range(3)  # kinds of counters


@dataclass(frozen=True)
class Layout:
    """Byte offsets for a number of seats."""

    seats: int

    @property
    def chunk(self) -> int:
        """Bytes of one round of bulk data between two seats."""
        return max(_SCATTER_BYTES // self.seats // _PAGE * _PAGE, _LEAST_CHUNK)

    def control(self, seat: int) -> int:
        """What a seat tells all others."""
        return seat * _CONTROL

    def counter(self, kind: int, writer: int, reader: int) -> int:
        """A counter that one seat advances for another one; each has a cache line."""
        index = (kind * self.seats + writer) * self.seats + reader
        return self.seats * _CONTROL + index * LINE

    @property
    def counters(self) -> tuple[int, int]:
        """Where the counters begin and end."""
        return self.counter(0, 0, 0), self.counter(3, 0, 0)

    def slot(self, writer: int, reader: int, parity: int) -> int:
        """A block from one seat to another."""
        index = (writer * self.seats + reader) * 2 + parity
        return _pages(self.counters[1]) + index * SLOT

    def scatter(self, writer: int, reader: int, parity: int) -> int:
        """Bulk data from one seat to another."""
        index = (writer * self.seats + reader) * 2 + parity
        return self.slot(self.seats, 0, 0) + index * self.chunk

    def gather(self, writer: int, parity: int) -> int:
        """Bulk data from one seat to all."""
        return self.scatter(self.seats, 0, 0) + (writer * 2 + parity) * GATHER_CHUNK

    @property
    def exposed_bytes(self) -> int:
        """Bytes that a seat can expose; where there are very many seats none of them can."""
        return _EXPOSED_BYTES if self.seats <= _MOST_EXPOSING else 0

    def exposed(self, seat: int) -> int:
        """What a seat's kernels write and those of others read."""
        return self.gather(self.seats, 0) + seat * self.exposed_bytes

    @property
    def nbytes(self) -> int:
        """Bytes in all; only pages that are used take memory."""
        return self.exposed(self.seats)


class Segment:
    """Shared memory for a number of seats: `Segment.create` makes it, `Segment.attach` joins it."""

    def __init__(self, descriptor: int, seats: int) -> None:
        self.layout = Layout(seats)
        self.map = mmap.mmap(descriptor, self.layout.nbytes)
        self.view = memoryview(self.map)
        self.words = self.view.cast("q")
        self.bytes: Bytes = np.frombuffer(self.map, np.uint8)
        self.address: int = self.bytes.ctypes.data

    @classmethod
    def create(cls, seats: int) -> tuple[Segment, int]:
        """New memory, and the file descriptor by which it is joined; close it after that."""
        descriptor = os.memfd_create("weft")
        os.ftruncate(descriptor, Layout(seats).nbytes)
        return cls(descriptor, seats), descriptor

    @classmethod
    def attach(cls, process: int, descriptor: int, seats: int) -> Segment:
        """The memory that another process of this user has open as `descriptor`."""
        own = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(own, seats)
        finally:
            os.close(own)

    def part(self, start: int, length: int) -> Bytes:
        """Some bytes of it."""
        return self.bytes[start : start + length]


def _pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE
