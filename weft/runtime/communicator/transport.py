"""How bytes travel between ranks: what collectives need of shared memory or of MPI messages.

Every two ranks go in step: a block from one is answered by a block from the other, and so is each
round of bulk data. Whoever posts the next block has therefore read the last but one, and two
buffers for each direction are enough, with no acknowledgements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.core.common.types import Array, DType, Shape
from weft.errors import (
    CommunicationError,
    RankFailedError,
    RankMismatchError,
    RankTimeoutError,
)
from weft.runtime.communicator.exposure import Area
from weft.runtime.communicator.small_sum import Adder

Bytes = NDArray[np.uint8]
Ranks = tuple[int, ...]


class State(IntEnum):
    """What a rank has told the others about itself."""

    RUNNING = 0
    MISMATCH = 1
    GAVE_UP = 2
    FAILED = 3
    LEFT = 4


ERRORS: dict[State, type[CommunicationError]] = {
    State.MISMATCH: RankMismatchError,
    State.GAVE_UP: RankTimeoutError,
    State.FAILED: RankFailedError,
    State.LEFT: RankFailedError,
}


class Trouble(Exception):
    """A transport cannot go on: why, and which ranks it is about."""

    def __init__(self, state: State, ranks: Ranks, text: str, told: bool = False) -> None:
        super().__init__(text)
        self.state = state
        self.ranks = ranks
        self.text = text
        self.told = told  # whether those ranks have said so themselves


class Lane:
    """Blocks of one kind of reduction: a header that all peers must send alike, and a small array.

    A transport may know a faster way than this one for calls that come again and again.
    """

    def __init__(
        self, transport: Transport, peers: Ranks, head: bytes, shape: Shape, dtype: DType
    ) -> None:
        self.peers = peers
        self.head = head
        self._transport = transport
        self._type = shape, dtype
        self._blocks: list[memoryview] = []

    def meet(self, payload: bytes) -> list[Array] | None:
        """The arrays of the peers, valid until the next call; None if a header is another one."""
        head, start = self.head, len(self.head)
        self._blocks = self._transport.talk(self.peers, [(head, payload)] * len(self.peers))
        if any(bytes(block[:start]) != head for block in self._blocks):
            return None
        shape, dtype = self._type
        return [np.ndarray(shape, dtype, block, start) for block in self._blocks]

    def arrived(self) -> list[memoryview]:
        """The blocks that came last."""
        return self._blocks

    def adder(self, position: int) -> Adder | None:
        """What sums these arrays without Python, if the transport can; this rank's is there."""
        return None

    def wait(self) -> None:
        """Return when all blocks are there that an adder waits for."""
        raise AssertionError("this transport has no adders")


class Transport(ABC):
    """Pairs of ranks that exchange blocks and bulk data."""

    rank: int
    size: int
    timeout: float
    room: int
    """Bytes that fit into a block."""
    turnstile: AbstractContextManager[Any]
    """Is held by whoever does a collective."""

    @abstractmethod
    def talk(self, peers: Ranks, blocks: Sequence[tuple[bytes, bytes]]) -> list[memoryview]:
        """Give each peer its block (in two parts) and return the blocks they give.

        The views are valid until the next call.
        """

    def lane(self, peers: Ranks, head: bytes, shape: Shape, dtype: DType) -> Lane:
        """Blocks that will be exchanged with the same peers many times."""
        return Lane(self, peers, head, shape, dtype)

    def area(self) -> Area | None:
        """The memory in which this rank can expose arrays, if others can read it."""
        return None

    def exposed_address(self, rank: int, place: int) -> int:
        """The address, in this process, of a place in the area of a rank."""
        raise AssertionError("this transport exposes nothing")

    @abstractmethod
    def scatter(
        self, peers: Ranks, outgoing: Sequence[Bytes], incoming: Sequence[int]
    ) -> Iterator[tuple[int, list[Bytes]]]:
        """Stream bytes to each peer, and from each; yields an offset and what came from there.

        What is yielded is valid until the next step.
        """

    @abstractmethod
    def gather(
        self, peers: Ranks, outgoing: Bytes, incoming: Sequence[int]
    ) -> Iterator[tuple[int, list[Bytes]]]:
        """`scatter` of the same bytes to every peer."""

    @abstractmethod
    def shut(self) -> None:
        """Let nothing begin a collective that does not ask whether it may."""

    @abstractmethod
    def tell(self, state: State, text: str) -> None:
        """Let every rank know that this one has left the common path, and why."""

    @abstractmethod
    def told(self, rank: int) -> tuple[State, str]:
        """What a rank has told."""

    @abstractmethod
    def dead(self) -> set[int]:
        """Ranks whose processes have ended."""

    @abstractmethod
    def shrink(self) -> tuple[Transport, Ranks]:
        """A transport between the ranks that are alive, and their present numbers."""


def trouble_of(rank: int, state: State, text: str) -> Trouble:
    """What it means for a rank to wait for another one that has told this."""
    verb = {
        State.MISMATCH: "came to another collective",
        State.GAVE_UP: "gave up waiting",
        State.FAILED: "failed",
        State.LEFT: "has left",
    }[state]
    return Trouble(state, (rank,), f"rank {rank} {verb}" + (f": {text}" if text else ""), True)


def rank_list(ranks: Sequence[int]) -> str:
    """`rank 1` or `ranks 1, 3`, for messages."""
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"


def chunk(array: Bytes, start: int, length: int) -> Bytes:
    """At most `length` bytes from `start`."""
    return array[start : start + length]


def rounds_of(sizes: Sequence[int], other_sizes: Sequence[int], length: int) -> list[int]:
    """How many chunks of `length` bytes each pair needs for the longer of its two directions."""
    return [-(-max(a, b) // length) for a, b in zip(sizes, other_sizes, strict=True)]
