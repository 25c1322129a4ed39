"""Memory that ranks of one host write for each other to read: terms of sums, without a copy.

Each member writes its arrays where all see them and comes to `meet`; afterwards everyone reads
everyone's. There are two places for each array, used in turns: whoever comes to the next meeting
has read what the last one was about, so nobody writes where another one still reads.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.core.common.types import Array, TensorType
from weft.runtime.communicator.interface import Members

if TYPE_CHECKING:
    from weft.runtime.communicator.collectives import ProcessCommunicator

_TURNS = 2
_LINE = 64


class Area:
    """The part of shared memory in which one rank exposes arrays.

    What was given back serves the same members again: others may not have read all of it yet.
    """

    def __init__(self, start: int, nbytes: int) -> None:
        self._size = nbytes
        self._next, self._end = start, start + nbytes
        self._free: dict[tuple[Members, int], list[int]] = {}

    def has_room(self, nbytes: int) -> bool:
        """Whether so many bytes fit, on every rank: if nothing else were there."""
        return nbytes <= self._size

    def take(self, members: Members, nbytes: int) -> int | None:
        """Where so many bytes lie, or None if there is no room."""
        free = self._free.get((members, nbytes))
        if free:
            return free.pop()
        if self._next + nbytes > self._end:
            return None
        self._next += nbytes
        return self._next - nbytes

    def give_back(self, members: Members, nbytes: int, place: int) -> None:
        """Let others have the bytes."""
        self._free.setdefault((members, nbytes), []).append(place)


class Exposure:
    """Arrays of these types, of every member, for all members to read."""

    def __init__(
        self,
        ranks: ProcessCommunicator,
        types: Sequence[TensorType],
        members: Members,
        addresses: Sequence[int],
    ) -> None:
        self._gather: Callable[[Array], list[Array]] = lambda x: ranks.all_gather(x, members)
        self._position = members.index(ranks.rank)
        self._meet = ranks.meeting(types, members)
        self._turn = 0
        self._copies: list[list[Array]] = []
        if all(addresses):
            self._offsets, self._stride = _laid_out(types)
            self._bases = addresses
        else:  # somebody has no room left, so that everybody copies
            self._copies = [[np.empty(t.shape, t.dtype) for _ in members] for t in types]

    @classmethod
    def agreed(
        cls,
        ranks: ProcessCommunicator,
        types: Sequence[TensorType],
        members: Members,
        area: Area,
        address_of: Callable[[int, int], int],
    ) -> Exposure:
        """An exposure for which every member has told where its arrays lie."""
        nbytes = _TURNS * _laid_out(types)[1]
        own = area.take(members, nbytes)
        told = ranks.all_gather(np.array([-1 if own is None else own], np.int64), members)
        places = [int(each[0]) for each in told]
        addresses = [
            0 if place < 0 else address_of(member, place)
            for member, place in zip(members, places, strict=True)
        ]
        made = cls(ranks, types, members, addresses)
        if own is not None:
            weakref.finalize(made, area.give_back, members, nbytes, own).atexit = False
        return made

    def places(self) -> list[list[int]]:
        """For each array, the address of each member's; this rank writes to its own."""
        if self._copies:
            return [[each.ctypes.data for each in row] for row in self._copies]
        start = self._turn * self._stride
        return [[base + start + offset for base in self._bases] for offset in self._offsets]

    def meet(self) -> None:
        """Return when every member has written its arrays; they can be read until the next time."""
        self._meet(self._turn)
        for row in self._copies:
            for target, source in zip(row, self._gather(row[self._position]), strict=True):
                target[...] = source
        self._turn = (self._turn + 1) % _TURNS


def exposed_bytes(types: Sequence[TensorType]) -> int:
    """The shared memory that an exposure takes."""
    return _TURNS * _laid_out(types)[1]


def _laid_out(types: Sequence[TensorType]) -> tuple[list[int], int]:
    """The offset of each array, each on a cache line of its own, and the bytes of all."""
    offsets, end = [], 0
    for each in types:
        offsets.append(end)
        end += -(-each.nbytes // _LINE) * _LINE
    return offsets, end
