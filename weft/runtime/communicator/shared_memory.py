"""Transport between ranks of one host: blocks and bulk data in shared memory, counters as signals.

Waiting spins for a moment, then yields, then sleeps for up to a millisecond; now and then it looks
whether the missing ranks are alive and what they have told. `shrink` agrees on the survivors in the
same memory: the first seat alive decides once every other one has come to shrink or is dead.
"""

from __future__ import annotations

import functools
import os
import select
import time
from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from weft.core.common.types import Array, DType, Shape
from weft.runtime.communicator.exposure import Area
from weft.runtime.communicator.segment import (
    BLOCKS,
    DECISION,
    DONE,
    GATHER_CHUNK,
    SLOT,
    STATE,
    STEPS,
    SURVIVORS,
    TEXT,
    TEXT_BYTES,
    TEXT_LENGTH,
    WISH,
    Segment,
)
from weft.runtime.communicator.signals import signals
from weft.runtime.communicator.small_sum import Adder, Turnstile, folding
from weft.runtime.communicator.transport import (
    Bytes,
    Lane,
    Ranks,
    State,
    Transport,
    Trouble,
    chunk,
    rank_list,
    rounds_of,
    trouble_of,
)

_SPINS = 2_000  # about 30 µs
_SPINS_CROWDED = 50  # when there are more ranks than cores
_AWAKE_SECONDS = 300e-6
_YIELDS_CROWDED = 200
_LOOK_SECONDS = 5e-3
_LONGEST_SLEEP = 1e-3


class Watch:
    """Tells which processes have ended, without being their parent."""

    def __init__(self, processes: Sequence[int]) -> None:
        self._poll = select.poll()
        self._place: dict[int, int] = {}
        self.dead: set[int] = set()
        for place, process in enumerate(processes):
            try:
                descriptor = os.pidfd_open(process)
            except ProcessLookupError:
                self.dead.add(place)
                continue
            self._place[descriptor] = place
            self._poll.register(descriptor, select.POLLIN)

    def look(self) -> set[int]:
        """The places of processes that have ended."""
        for descriptor, _ in self._poll.poll(0):
            self.dead.add(self._place.pop(descriptor))
            self._poll.unregister(descriptor)
            os.close(descriptor)
        return self.dead


class Table:
    """The counters that a rank shares with some peers, as native code takes them."""

    def __init__(
        self, segment: Segment, kind: int, seat: int, seats: Sequence[int], spins: int
    ) -> None:
        counter = segment.layout.counter
        mine = [segment.address + counter(kind, seat, other) for other in seats]
        theirs = [segment.address + counter(kind, other, seat) for other in seats]
        self._words = np.array([len(seats), spins, *mine, *theirs], np.int64)
        self.pairs = list(zip(mine, theirs, strict=True))
        self.places = [counter(kind, seat, other) // segment.words.itemsize for other in seats]
        native, address = signals(), self._words.ctypes.data
        self.address: int = address
        self.post = functools.partial(native.post, address)
        self.arrived = functools.partial(native.arrived, address)
        self.turn = functools.partial(native.turn, address)


class Party:
    """What a rank keeps for a set of peers: their numbers, seats and counters."""

    def __init__(self, segment: Segment, peers: Ranks, seats: Ranks, rank: int, spins: int) -> None:
        self.peers = peers
        self.seats = tuple(seats[peer] for peer in peers)
        self.tables = [Table(segment, kind, seats[rank], self.seats, spins) for kind in range(3)]


class SharedLane(Lane):
    """Blocks whose places in memory are looked up once."""

    def __init__(
        self,
        transport: SharedMemory,
        party: Party,
        head: bytes,
        shape: Shape,
        dtype: DType,
    ) -> None:
        super().__init__(transport, party.peers, head, shape, dtype)
        self._party = party
        self._shared = transport
        self._table = party.tables[BLOCKS]
        start = len(head)
        end = start + prod(shape) * dtype.itemsize
        self._ways = []
        for peer, place in zip(party.peers, self._table.places, strict=True):
            out, back = transport.boxes[peer]
            heads = [(box[:start], box[start:end]) for box in out]
            found = [(box, box[:start], np.ndarray(shape, dtype, box, start)) for box in back]
            self._ways.append((place, heads, found))

    def adder(self, position: int) -> Adder | None:
        shape, dtype = self._type
        kind = folding(dtype, prod(shape))
        if kind is None:
            return None
        places = [place for peer in self.peers for place in self._shared.block_addresses(peer)]
        turnstile, table = self._shared.turnstile, self._table.address
        return Adder(turnstile, self.head, kind, position, table, places)

    def wait(self) -> None:
        self._shared.wait(self._table, self._party)

    def arrived(self) -> list[memoryview]:
        words = self._shared.words
        return [back[words[place] & 1][0] for place, _, back in self._ways]

    def meet(self, payload: bytes) -> list[Array] | None:
        head, words, table = self.head, self._shared.words, self._table
        arrived = []
        for place, out, back in self._ways:
            parity = (words[place] + 1) & 1  # of the number that the next block will have
            head_box, rest_box = out[parity]
            head_box[:] = head
            rest_box[:] = payload
            arrived.append(back[parity])
        if not table.turn():
            self._shared.wait(table, self._party)
        arrays = []
        for _, head_box, array in arrived:
            if head_box.tobytes() != head:
                return None
            arrays.append(array)
        return arrays


class SharedMemory(Transport):
    """Ranks that sit in one segment; `seats[r]` is the seat of rank r."""

    turnstile: Turnstile

    def __init__(self, segment: Segment, watch: Watch, seats: Ranks, rank: int) -> None:
        self.rank = rank
        self.size = len(seats)
        self.room = SLOT
        self.timeout = 0.0
        self._segment = segment
        self._watch = watch
        self._seats = seats
        self._generation = 0
        self._signals = signals()
        crowded = self.size > len(os.sched_getaffinity(0))
        self._spins = _SPINS_CROWDED if crowded else _SPINS
        self._yields = _YIELDS_CROWDED if crowded else 0
        self._parties: dict[Ranks, Party] = {}
        self._gathered: Party | None = None  # who may still be reading what I gathered last
        self.turnstile = Turnstile()
        self._area = Area(0, segment.layout.exposed_bytes)
        self.words = segment.words
        self.boxes = [self._pair_of_boxes(seat) for seat in seats]
        self._steps = [0] * self.size  # the same for bulk data

    def _pair_of_boxes(self, seat: int) -> tuple[list[memoryview], list[memoryview]]:
        view = self._segment.view
        out, back = self._block_places(seat)
        return [view[a : a + SLOT] for a in out], [view[a : a + SLOT] for a in back]

    def _block_places(self, seat: int) -> tuple[list[int], list[int]]:
        """Where blocks to a seat and from it lie, by parity."""
        slot, own = self._segment.layout.slot, self._seats[self.rank]
        out = [slot(own, seat, parity) for parity in range(2)]
        return out, [slot(seat, own, parity) for parity in range(2)]

    def block_addresses(self, peer: int) -> list[int]:
        """The addresses of blocks to a rank, then of those from it, by parity."""
        out, back = self._block_places(self._seats[peer])
        return [self._segment.address + place for place in (*out, *back)]

    def area(self) -> Area | None:
        return self._area

    def exposed_address(self, rank: int, place: int) -> int:
        return self._segment.address + self._segment.layout.exposed(self._seats[rank]) + place

    def shut(self) -> None:
        self.turnstile.shut()

    def _party(self, peers: Ranks) -> Party:
        found = self._parties.get(peers)
        if found is None:
            found = Party(self._segment, peers, self._seats, self.rank, self._spins)
            self._parties[peers] = found
        return found

    def talk(self, peers: Ranks, blocks: Sequence[tuple[bytes, bytes]]) -> list[memoryview]:
        party = self._parties.get(peers) or self._party(peers)
        words = self.words
        received = []
        for peer, place, (head, rest) in zip(peers, party.tables[BLOCKS].places, blocks):
            parity = (words[place] + 1) & 1
            out, back = self.boxes[peer]
            box, middle = out[parity], len(head)
            box[:middle] = head
            box[middle : middle + len(rest)] = rest
            received.append(back[parity])
        self._turn(party, BLOCKS)
        return received

    def lane(self, peers: Ranks, head: bytes, shape: Shape, dtype: DType) -> Lane:
        return SharedLane(self, self._party(peers), head, shape, dtype)

    def scatter(
        self, peers: Ranks, outgoing: Sequence[Bytes], incoming: Sequence[int]
    ) -> Iterator[tuple[int, list[Bytes]]]:
        layout, own = self._segment.layout, self._seats[self.rank]
        length = layout.chunk
        rounds = rounds_of([len(out) for out in outgoing], incoming, length)
        empty = self._segment.bytes[:0]
        for k in range(max(rounds, default=0)):
            start = k * length
            active = tuple(peer for peer, n in zip(peers, rounds, strict=True) if k < n)
            views = [empty] * len(peers)
            for i, peer in enumerate(peers):
                if k >= rounds[i]:
                    continue
                seat = self._seats[peer]
                parity = self._steps[peer] = self._steps[peer] ^ 1
                piece = chunk(outgoing[i], start, length)
                at = layout.scatter(own, seat, parity)
                self._segment.bytes[at : at + len(piece)] = piece
                size = max(0, min(length, incoming[i] - start))
                views[i] = self._segment.part(layout.scatter(seat, own, parity), size)
            self._turn(self._party(active), STEPS)
            yield start, views

    def gather(
        self, peers: Ranks, outgoing: Bytes, incoming: Sequence[int]
    ) -> Iterator[tuple[int, list[Bytes]]]:
        layout, own = self._segment.layout, self._seats[self.rank]
        self._until_read()
        rounds = rounds_of([len(outgoing)] * len(peers), incoming, GATHER_CHUNK)
        for k in range(max(rounds, default=0)):
            start, parity = k * GATHER_CHUNK, k & 1
            piece = chunk(outgoing, start, GATHER_CHUNK)
            at = layout.gather(own, parity)
            self._segment.bytes[at : at + len(piece)] = piece
            active = tuple(peer for peer, n in zip(peers, rounds, strict=True) if k < n)
            self._turn(self._party(active), STEPS)
            views = []
            for peer, size in zip(peers, incoming, strict=True):
                here = max(0, min(GATHER_CHUNK, size - start))
                views.append(self._segment.part(layout.gather(self._seats[peer], parity), here))
            yield start, views
        self._gathered = self._party(peers)
        self._gathered.tables[DONE].post()

    def _until_read(self) -> None:
        """Wait until nobody reads what this rank gathered last: its peers may be others now."""
        while self._gathered is not None:
            party, self._gathered = self._gathered, None
            try:
                self.wait(party.tables[DONE], party)
            except Trouble as trouble:
                if trouble.state is State.GAVE_UP and not trouble.told:
                    raise
                # Ranks that have ended, or raised, read no more.
                rest = tuple(peer for peer in party.peers if peer not in trouble.ranks)
                self._gathered = self._party(rest)

    def _turn(self, party: Party, kind: int) -> None:
        table = party.tables[kind]
        if not table.turn():
            self.wait(table, party)

    def wait(self, table: Table, party: Party) -> None:
        """Return when all peers have come as far as this rank."""
        begin = time.monotonic()
        look, yields = _LOOK_SECONDS, self._yields
        while not table.arrived():
            waited = time.monotonic() - begin
            if waited >= look:
                look = waited + _LOOK_SECONDS
                self._look(table, party, waited)
            if yields > 0:
                yields -= 1
                os.sched_yield()
            elif waited > _AWAKE_SECONDS:
                time.sleep(min(_LONGEST_SLEEP, waited / 20))

    def _look(self, table: Table, party: Party, waited: float) -> None:
        load = self._signals.load
        dead = self._watch.look()
        missing = [
            (peer, seat)
            for peer, seat, (mine, theirs) in zip(party.peers, party.seats, table.pairs)
            if load(theirs) < load(mine)
        ]
        for peer, _ in missing:
            state, text = self.told(peer)
            if state is not State.RUNNING:
                raise trouble_of(peer, state, text)
        gone = tuple(peer for peer, seat in missing if seat in dead)
        if gone:
            raise Trouble(State.FAILED, gone, f"{rank_list(gone)} died")
        if missing and waited > self.timeout:
            ranks = tuple(peer for peer, _ in missing)
            raise Trouble(
                State.GAVE_UP, ranks, f"{rank_list(ranks)} did not come in {waited:.1f} s"
            )

    def tell(self, state: State, text: str) -> None:
        start = self._segment.layout.control(self._seats[self.rank])
        encoded = text.encode()[:TEXT_BYTES]
        self._segment.view[start + TEXT : start + TEXT + len(encoded)] = encoded
        self._put(self._seats[self.rank], TEXT_LENGTH, len(encoded))
        self._put(self._seats[self.rank], STATE, state)

    def told(self, rank: int) -> tuple[State, str]:
        seat = self._seats[rank]
        state = State(self._get(seat, STATE))
        if state is State.RUNNING:
            return state, ""
        start = self._segment.layout.control(seat) + TEXT
        encoded = bytes(self._segment.view[start : start + self._get(seat, TEXT_LENGTH)])
        return state, encoded.decode(errors="replace")

    def dead(self) -> set[int]:
        gone = self._watch.look()
        return {rank for rank, seat in enumerate(self._seats) if seat in gone}

    def _put(self, seat: int, word: int, value: int) -> None:
        self._signals.store(
            self._segment.address + self._segment.layout.control(seat) + word, value
        )

    def _get(self, seat: int, word: int) -> int:
        return self._signals.load(self._segment.address + self._segment.layout.control(seat) + word)

    def shrink(self) -> tuple[Transport, Ranks]:
        wish = self._generation + 1
        own = self._seats[self.rank]
        self._put(own, WISH, wish)
        begin = time.monotonic()
        while True:
            dead = set(self._watch.look())  # before decisions are read: the dead decide no more
            for seat in self._seats:
                if self._get(seat, DECISION) >= wish:
                    return self._successor(seat, wish)
            alive = [seat for seat in self._seats if seat not in dead]
            late = [seat for seat in alive if self._get(seat, WISH) < wish]
            if not late and alive[0] == own:
                self._decide(alive, wish)
            elif time.monotonic() - begin > self.timeout:
                ranks = tuple(self._seats.index(seat) for seat in late or alive[:1])
                raise Trouble(State.GAVE_UP, ranks, f"{rank_list(ranks)} did not come to shrink")
            else:
                time.sleep(_LONGEST_SLEEP)

    def _decide(self, alive: list[int], wish: int) -> None:
        """Clear what the ranks used so far, since all of them wait now, and name the survivors."""
        begin, end = self._segment.layout.counters
        self._segment.bytes[begin:end] = 0
        for seat in alive:
            self._put(seat, STATE, State.RUNNING)
        own = self._seats[self.rank]
        start = self._segment.layout.control(own) + SURVIVORS
        listed = np.array([len(alive), *alive], np.uint16).tobytes()
        self._segment.view[start : start + len(listed)] = listed
        self._put(own, DECISION, wish)

    def _successor(self, leader: int, generation: int) -> tuple[Transport, Ranks]:
        start = self._segment.layout.control(leader) + SURVIVORS
        count = int(np.frombuffer(self._segment.view, np.uint16, 1, start)[0])
        listed = np.frombuffer(self._segment.view, np.uint16, count, start + 2)
        seats = tuple(int(seat) for seat in listed)
        made = SharedMemory(self._segment, self._watch, seats, seats.index(self._seats[self.rank]))
        made.timeout = self.timeout
        made._generation = generation
        return made, tuple(self._seats.index(seat) for seat in seats)
