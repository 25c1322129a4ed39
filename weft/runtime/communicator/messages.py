"""Transport by MPI messages, for ranks on several hosts: requests that are polled, never waited on.

A dead rank is reported by MPI itself when the job was started with fault tolerance (ULFM); without
it, the launcher ends the whole job instead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from weft.core.common.lazy import LazyModule
from weft.runtime.communicator.segment import SLOT
from weft.runtime.communicator.transport import (
    Bytes,
    Ranks,
    State,
    Transport,
    Trouble,
    chunk,
    rank_list,
    rounds_of,
    trouble_of,
)

MPI = LazyModule("mpi4py.MPI")

_TALK, _BULK, _NEWS = 1, 2, 3  # tags
_CHUNK = 1 << 20
_AWAKE_SECONDS = 300e-6
_LOOK_SECONDS = 5e-3
_LONGEST_SLEEP = 1e-3
_SHRINK_POLL = 1e-3


class Messages(Transport):
    """Ranks of an MPI communicator that nothing else uses."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self.room = SLOT
        self.timeout = 0.0
        self.turnstile = threading.Lock()
        self._inboxes = [bytearray(SLOT) for _ in range(self.size)]
        self._news: dict[int, tuple[State, str]] = {}
        self._kept: list[Any] = []  # requests that will never be completed, and their buffers
        self._buffers: dict[int, Bytes] = {}

    def talk(self, peers: Ranks, blocks: Sequence[tuple[bytes, bytes]]) -> list[memoryview]:
        boxes = [self._inboxes[peer] for peer in peers]
        outgoing = [head + rest for head, rest in blocks]
        self._swap(peers, outgoing, peers, boxes, _TALK)
        return [memoryview(box) for box in boxes]

    def scatter(
        self, peers: Ranks, outgoing: Sequence[Bytes], incoming: Sequence[int]
    ) -> Iterator[tuple[int, list[Bytes]]]:
        rounds = rounds_of([len(out) for out in outgoing], incoming, _CHUNK)
        for k in range(max(rounds, default=0)):
            start = k * _CHUNK
            out = [chunk(each, start, _CHUNK) for each in outgoing]
            sizes = [max(0, min(_CHUNK, size - start)) for size in incoming]
            views = [self._buffer(peer)[:n] for peer, n in zip(peers, sizes, strict=True)]
            targets = [i for i in range(len(peers)) if len(out[i])]
            sources = [i for i in range(len(peers)) if len(views[i])]
            self._swap(
                [peers[i] for i in targets],
                [out[i] for i in targets],
                [peers[i] for i in sources],
                [views[i] for i in sources],
                _BULK,
            )
            yield start, views

    def gather(
        self, peers: Ranks, outgoing: Bytes, incoming: Sequence[int]
    ) -> Iterator[tuple[int, list[Bytes]]]:
        return self.scatter(peers, [outgoing] * len(peers), incoming)

    def _buffer(self, peer: int) -> Bytes:
        found = self._buffers.get(peer)
        if found is None:
            found = self._buffers[peer] = np.empty(_CHUNK, np.uint8)
        return found

    def _swap(
        self,
        targets: Sequence[int],
        outgoing: Sequence[Any],
        sources: Sequence[int],
        buffers: Sequence[Any],
        tag: int,
    ) -> None:
        """Send and receive, and return when all of it has been done."""
        comm, byte = self._comm, MPI.BYTE
        pending: list[tuple[int, Any]] = []
        try:
            for source, buffer in zip(sources, buffers, strict=True):
                pending.append((source, comm.Irecv([buffer, byte], source, tag)))
            for target, data in zip(targets, outgoing, strict=True):
                pending.append((target, comm.Isend([data, byte], target, tag)))
            self._complete(pending)
        except MPI.Exception as error:
            self._kept.append((pending, outgoing, buffers))
            raise self._trouble(error) from error
        except BaseException:  # whatever it is, MPI goes on writing into these buffers
            self._kept.append((pending, outgoing, buffers))
            raise

    def _complete(self, pending: list[tuple[int, Any]]) -> None:
        requests = [request for _, request in pending]
        test = MPI.Request.Testall
        begin = time.monotonic()
        look = _LOOK_SECONDS
        while not test(requests):
            waited = time.monotonic() - begin
            if waited > _AWAKE_SECONDS:
                time.sleep(min(_LONGEST_SLEEP, waited / 20))
            if waited >= look:
                look = waited + _LOOK_SECONDS
                self._look(pending, waited)

    def _look(self, pending: list[tuple[int, Any]], waited: float) -> None:
        missing = sorted({rank for rank, request in pending if not request.Get_status()})
        for rank in missing:
            state, text = self.told(rank)
            if state is not State.RUNNING:
                raise trouble_of(rank, state, text)
        if missing and waited > self.timeout:
            ranks = tuple(missing)
            raise Trouble(
                State.GAVE_UP, ranks, f"{rank_list(ranks)} did not come in {waited:.1f} s"
            )

    def _trouble(self, error: Any) -> Trouble:
        failed = self._failed()
        if failed:
            return Trouble(State.FAILED, failed, f"{rank_list(failed)} died")
        return Trouble(State.FAILED, (), f"MPI: {error}")

    def dead(self) -> set[int]:
        return set(self._failed())

    def _failed(self) -> Ranks:
        try:
            group = self._comm.Get_failed()
            here = self._comm.Get_group()
            return tuple(MPI.Group.Translate_ranks(group, None, here))
        except (MPI.Exception, NotImplementedError):  # without fault tolerance
            return ()

    def shut(self) -> None:
        pass

    def tell(self, state: State, text: str) -> None:
        news = bytes([state]) + text.encode()[: SLOT - 1]
        for rank in range(self.size):
            if rank == self.rank:
                continue
            try:
                request = self._comm.Isend([news, MPI.BYTE], rank, _NEWS)
            except MPI.Exception:  # that rank is dead
                continue
            self._kept.append((request, news))

    def told(self, rank: int) -> tuple[State, str]:
        status = MPI.Status()
        try:
            if self._comm.Iprobe(rank, _NEWS, status):
                news = bytearray(status.Get_count(MPI.BYTE))
                self._comm.Recv([news, MPI.BYTE], rank, _NEWS)
                self._news[rank] = State(news[0]), news[1:].decode(errors="replace")
        except MPI.Exception as error:
            raise self._trouble(error) from error
        return self._news.get(rank, (State.RUNNING, ""))

    def shrink(self) -> tuple[Transport, Ranks]:
        result: list[Any] = []

        def agree() -> None:
            try:
                result.append(self._comm.Shrink())
            except (MPI.Exception, NotImplementedError) as error:
                result.append(error)

        # MPI has no way to give up on a shrink, so that it is left behind on a thread of its own.
        threading.Thread(target=agree, name="weft-shrink", daemon=True).start()
        begin = time.monotonic()
        while not result:
            if time.monotonic() - begin > self.timeout:
                raise Trouble(State.GAVE_UP, (), "some ranks did not come to shrink")
            time.sleep(_SHRINK_POLL)
        if isinstance(result[0], BaseException):
            raise Trouble(State.FAILED, (), f"MPI cannot shrink: {result[0]}")
        made = Messages(result[0])
        made.timeout = self.timeout
        group = result[0].Get_group()
        ranks = MPI.Group.Translate_ranks(group, None, self._comm.Get_group())
        return made, tuple(int(rank) for rank in ranks)
