"""`Buffers`: the buffers of a WebGPU device by number; those that were given back are used again.

A buffer has no address there, so weft gives it one: its number in the high bits, and a position in
it in the low ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

POSITION = 40  # bits of an address that are a position in a buffer
LEAST = 256  # bytes of the smallest buffer
_FINE = 3  # sizes have this many bits behind the first


def place(address: int) -> tuple[int, int]:
    """The number of a buffer, and the position in it."""
    return address >> POSITION, address & ((1 << POSITION) - 1)


def rounded(nbytes: int) -> int:
    """The size of the buffer that holds so many bytes: few sizes, so that many can use one."""
    grain = 1 << max((nbytes - 1).bit_length() - 1 - _FINE, 0) if nbytes > LEAST else LEAST
    return max(-(-nbytes // grain) * grain, LEAST)


class Buffers:
    """Makes buffers with `create`, and keeps what comes back up to a number of bytes."""

    def __init__(self, create: Callable[[int], Any], keep: int) -> None:
        self._create, self._keep = create, keep
        self._all: dict[int, Any] = {}
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        self._count = 0
        self.kept = 0  # bytes that nobody uses
        self.dropped = 0  # how often buffers were given back to the system

    def __getitem__(self, number: int) -> Any:
        return self._all[number]

    def take(self, nbytes: int) -> int:
        """The address of a buffer of at least so many bytes, a multiple of four."""
        size = rounded(nbytes)
        free = self._free[size]
        if free:
            self.kept -= size
            return free.pop() << POSITION
        made = self._create(size)
        self._count += 1
        self._all[self._count] = made
        return self._count << POSITION

    def give(self, address: int, nbytes: int) -> None:
        """Take a buffer back."""
        size = rounded(nbytes)
        self._free[size].append(address >> POSITION)
        self.kept += size
        if self.kept > self._keep:
            self.trim()

    def trim(self) -> None:
        """Give what nobody uses back to the system."""
        before, self._free = self._free, defaultdict(list)  # more may come back meanwhile
        self.kept = 0
        self.dropped += 1
        for free in before.values():
            for number in free:
                del self._all[number]
