"""Collectives between processes, on any transport.

A collective begins with one block to each peer and one back: the header says what this rank is
doing, and small arrays ride along, so that a small collective is a single exchange in which ranks
that diverge are found out. Large arrays follow in rounds. Reductions fold in the order of members:
each rank folds its piece of all arrays, and pieces are then gathered.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from weft.core.common.source import describe, user_position
from weft.core.common.types import Array, DType, Shape, TensorType
from weft.errors import ArgumentError, CommunicationError, RankMismatchError
from weft.runtime.communicator.exposure import Exposure, exposed_bytes
from weft.runtime.communicator.fold import Folder, fold_function, piece_bounds
from weft.runtime.communicator.headers import (
    Header,
    decode,
    encode,
    header_bytes,
    members_text,
    short_text,
    type_of,
)
from weft.runtime.communicator.interface import Communicator, Members, Reducer, Shapes
from weft.runtime.communicator.local import check_axis, check_own_messages, row_major
from weft.runtime.communicator.parcels import NOTHING, as_bytes, put, split
from weft.runtime.communicator.small_sum import Adder
from weft.runtime.communicator.sum_text import DIVERGED, DONE, REFUSED, WAITING
from weft.runtime.communicator.transport import ERRORS, Bytes, Lane, State, Transport, Trouble
from weft.runtime.cpu.program import address_of

_MOST_PLANS = 1024  # kinds of calls remembered for each group
_MOST_EXPOSING = 4  # members that read all of each other's terms; more share the work of a sum
_EXIT_POLL = 1e-3
_BUSY_SECONDS = 50e-6
_DETAIL_SECONDS = 1.0  # how long a rank that diverged waits to hear what the others were doing

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Plan:
    """One kind of reduction: what its block says, and whether the array fits into it."""

    header: Header
    function: Any  # its ufunc
    lane: Lane
    small: bool


@dataclass(slots=True)
class Group:
    """Some ranks that do collectives together."""

    members: Members
    position: int  # of this rank
    peers: Members  # the others, in order
    text: str
    plans: dict[Any, Plan] = field(default_factory=dict)
    reducers: dict[Any, Reducer] = field(default_factory=dict)

    def with_own(self, others: Sequence[Any], own: Any) -> list[Any]:
        """What peers gave and what this rank has, by position."""
        return [*others[: self.position], own, *others[self.position :]]


class ProcessCommunicator(Communicator):
    """The ranks of a transport; one collective runs at a time in each process."""

    def __init__(self, transport: Transport, timeout: float) -> None:
        self.rank = transport.rank
        self.size = transport.size
        self._transport = transport
        self._groups: dict[Members, Group] = {}
        self._lock = transport.turnstile
        self._folder = Folder()
        self._unusable: CommunicationError | None = None
        self._heir: ProcessCommunicator | None = None
        self.timeout = timeout

    @property
    def newest(self) -> ProcessCommunicator:
        """What the last `shrink` made of this, or itself."""
        return self if self._heir is None else self._heir.newest

    @property
    def usable(self) -> bool:
        """Whether it is open and every collective has been finished."""
        return self._unusable is None

    @property
    def timeout(self) -> float:
        """Seconds after which a collective raises and names the ranks that have not come."""
        return self._transport.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._transport.timeout = float(seconds)

    def all_gather(self, array: Array, members: Members, shapes: Shapes = ()) -> list[Array]:
        group = self._group(members, "all_gather")
        carried = type_of(array.shape, array.dtype, "all_gather")
        sizes = f"to shapes {short_text(str(shapes))}" if shapes else f"of {carried.rank} axes"
        common = (str(carried.dtype), sizes, group.text)
        header = Header("all_gather", common, (carried,))
        found = self._trade_alike(group.peers, header, [array])
        own = row_major(array, "all_gather")
        return group.with_own([arrays[0] for arrays in found], own)

    def all_reduce(
        self, array: Array, kind: str, members: Members, out: Array | None = None
    ) -> Array:
        group = self._groups.get(members) or self._group(members, "all_reduce")
        found = group.reducers.get((kind, array.dtype, array.shape))
        if found is None:
            found = self.reducer(TensorType(array.shape, array.dtype), kind, members)
        return found.run(array, out)

    def reducer(
        self, kind_of_array: TensorType, kind: str, members: Members, parts: Sequence[Shape] = ()
    ) -> Reducer:
        group = self._group(members, "all_reduce")
        shape, dtype = kind_of_array
        key = (kind, dtype, shape, tuple(parts)) if parts else (kind, dtype, shape)
        found = group.reducers.get(key)
        if found is None:
            found = self._make_reducer(group, np.empty(shape, dtype), kind, parts)
            if len(group.reducers) >= _MOST_PLANS:
                group.reducers.clear()
            group.reducers[key] = found
        return found

    def _make_reducer(
        self, group: Group, like: Array, kind: str, parts: Sequence[Shape]
    ) -> Reducer:
        joined = (f"of {len(parts)} parts {short_text(str(parts))}",) if parts else ()
        plan = self._plan(group, "all_reduce", (kind,), like, joined)
        if not group.peers:
            return Reducer(lambda array, out: row_major(array, "all_reduce", out))
        if not plan.small:
            run = functools.partial(self._run, plan.header, self._reduce_large, group, plan)
            return Reducer(run)
        adder = plan.lane.adder(group.position) if kind == "sum" else None
        if adder is not None:
            return self._make_adding(plan, adder, like)
        run = functools.partial(self._run, plan.header, self._reduce_small, group, plan)
        return Reducer(run)

    def _reduce_small(self, group: Group, plan: Plan, array: Array, out: Array | None) -> Array:
        arrays = self._meet(plan, array.tobytes())
        arrays.insert(group.position, array)
        return self._folder.fold(plan.function, arrays, out)

    def _make_adding(self, plan: Plan, adder: Adder, like: Array) -> Reducer:
        """Sums by native code, which Python helps only where it has to wait or is refused."""
        add_up, shape, dtype = adder.run, like.shape, like.dtype

        def run(array: Array, out: Array | None) -> Array:
            packed = type(array) is np.ndarray and array.flags.c_contiguous
            given = array if packed else np.ascontiguousarray(array)
            result = np.empty(shape, dtype) if out is None else out
            source, target = address_of(given), address_of(result)
            try:
                if add_up(source, target) != DONE:
                    self._add_patiently(plan, adder, source, target)
            except BaseException:
                abandon(target)  # an interrupt may come when native code has just returned
                raise
            return result

        def abandon(target: int) -> None:
            if adder.is_posted(target):
                self._failure(KeyboardInterrupt(), plan.header)
                adder.give_up()

        return Reducer(run, adder.record, abandon)

    def _add_patiently(self, plan: Plan, adder: Adder, source: int, target: int) -> None:
        """A sum that native code could not begin, or not end, at once."""
        while (answer := adder.run(source, target)) == REFUSED:
            if self._unusable is not None:
                raise self._refusal(plan.header)
            time.sleep(_BUSY_SECONDS)  # another thread is in the middle of a collective
        try:
            while answer == WAITING:
                plan.lane.wait()
                answer = adder.run(source, target)
            if answer == DIVERGED:
                self._diverged(plan)
        except BaseException as error:  # whatever it is, the other ranks must learn of it
            failure = self._failure(error, plan.header)
            adder.give_up()
            raise failure from None

    def exposes(self, types: Sequence[TensorType], members: Members) -> bool:
        area = self._transport.area()
        few = 1 < len(members) <= _MOST_EXPOSING
        return area is not None and few and area.has_room(exposed_bytes(types))

    def exposure(self, types: Sequence[TensorType], members: Members) -> Exposure:
        area = self._transport.area()
        assert area is not None
        return Exposure.agreed(self, types, members, area, self._transport.exposed_address)

    def meeting(self, types: Sequence[TensorType], members: Members) -> Callable[[int], None]:
        """What returns when all members have come to the sum of such arrays, which they expose.

        It takes the number of the turn, which is the same on all of them, unless an interrupt came
        between two steps of one.
        """
        group = self._group(members, "all_reduce")
        words = [str(type_of(*each, "all_reduce")) for each in types]
        header = Header("all_reduce", ("sum", short_text(", ".join(words)), group.text))
        lane = self._transport.lane(group.peers, encode(header), (1,), np.dtype(np.uint8))
        plan = Plan(header, np.add, lane, True)
        return functools.partial(self._run, header, self._take_turn, plan)

    def _take_turn(self, plan: Plan, turn: int) -> None:
        for peer, theirs in zip(plan.lane.peers, self._meet(plan, bytes([turn])), strict=True):
            if theirs[0] != turn:
                text = f"rank {peer} was interrupted in an earlier one, or this rank was"
                raise Trouble(State.FAILED, (peer,), text)

    def reduce_scatter(
        self, array: Array, kind: str, axis: int, members: Members, out: Array | None = None
    ) -> Array:
        group = self._groups.get(members) or self._group(members, "reduce_scatter")
        check_axis(axis, array.ndim)
        plan = group.plans.get((kind, axis, array.dtype, array.shape))
        if plan is None:
            plan = self._plan(group, "reduce_scatter", (kind, axis), array)
        if not group.peers:
            return row_major(array, "reduce_scatter", out)
        return self._run(plan.header, self._reduce_scatter, group, plan, array, axis, out)

    def all_to_all(
        self, pieces: Sequence[Array], members: Members, shapes: Shapes = ()
    ) -> list[Array]:
        group = self._group(members, "all_to_all")
        if len(pieces) != len(group.members):
            raise ArgumentError(
                f"all_to_all: {len(pieces)} pieces for {len(group.members)} members"
            )
        types = [type_of(piece.shape, piece.dtype, "all_to_all") for piece in pieces]
        if len({each.dtype for each in types}) != 1:
            raise ArgumentError(
                f"all_to_all: pieces differ in dtype ({', '.join(map(str, types))})"
            )
        common = (str(types[0].dtype), group.text)
        others = [i for i in range(len(pieces)) if i != group.position]
        back = [TensorType(shape, types[0].dtype) for shape in shapes]
        headers = [
            Header("all_to_all", common, (types[i],), tuple(back[i : i + 1])) for i in others
        ]
        found = self._trade(group.peers, headers, [[pieces[i]] for i in others])
        own = row_major(pieces[group.position], "all_to_all")
        return group.with_own([arrays[0] for arrays in found], own)

    def exchange(
        self,
        sends: Sequence[tuple[int, Array]],
        receives: Sequence[tuple[int, Shape, DType]],
    ) -> list[Array]:
        for rank in [send[0] for send in sends] + [receive[0] for receive in receives]:
            if not 0 <= rank < self.size:
                raise ArgumentError(f"exchange: there is no rank {rank} ({self.size} ranks)")
        out: dict[int, list[Array]] = {}
        back: dict[int, list[tuple[Shape, DType]]] = {}
        for rank, array in sends:
            out.setdefault(rank, []).append(array)
        for rank, shape, dtype in receives:
            back.setdefault(rank, []).append((shape, dtype))
        own = out.pop(self.rank, [])
        check_own_messages(own, back.pop(self.rank, []), self.rank)
        peers = tuple(sorted(set(out) | set(back)))
        arrays = [out.get(peer, []) for peer in peers]
        headers = [
            Header(
                "exchange",
                (),
                tuple(type_of(array.shape, array.dtype, "exchange") for array in sent),
                tuple(type_of(*wanted, "exchange") for wanted in back.get(peer, [])),
            )
            for peer, sent in zip(peers, arrays, strict=True)
        ]
        found = self._trade(peers, headers, arrays)
        queues = {peer: iter(got) for peer, got in zip(peers, found, strict=True)}
        queues[self.rank] = iter([row_major(array, "exchange") for array in own])
        return [next(queues[rank]) for rank, _, _ in receives]

    def broadcast(self, array: Array | None, root: int, members: Members) -> Array:
        group = self._group(members, "broadcast")
        if root not in group.members:
            raise ArgumentError(f"broadcast: root {root} is not one of {group.members}")
        if (array is None) is (root == self.rank):
            raise ArgumentError(
                f"broadcast: rank {self.rank} must give {'an array' * (root == self.rank) or None}"
                f", since the root is rank {root}"
            )
        sent = [] if array is None else [array]
        carried = tuple(type_of(each.shape, each.dtype, "broadcast") for each in sent)
        header = Header("broadcast", (f"from rank {root}", group.text), carried)
        found = self._trade_alike(group.peers, header, sent)
        if array is not None:
            return row_major(array, "broadcast")
        return found[group.peers.index(root)][0]

    def barrier(self, members: Members | None = None) -> None:
        group = self._group(tuple(range(self.size)) if members is None else members, "barrier")
        self._trade_alike(group.peers, Header("barrier", (group.text,)), [])

    def check(self, signature: str) -> None:
        group = self._group(tuple(range(self.size)), "check")
        self._trade_alike(group.peers, Header("check", (short_text(signature),)), [])

    def shrink(self) -> Communicator:
        with self._lock:
            try:
                transport, _ = self._transport.shrink()
            except Trouble as trouble:
                made = ERRORS[trouble.state](f"shrink: {trouble.text}", trouble.ranks)
                raise made from None
            self._give_up(CommunicationError("this communicator was replaced by shrink"))
        self._heir = ProcessCommunicator(transport, self.timeout)
        self._heir.origin = self.origin
        return self._heir

    def close(self) -> None:
        self.leave(State.LEFT, "")

    def leave(self, state: State, text: str) -> None:
        """Stop taking part, and tell the ranks that may wait why."""
        if self._unusable is None:
            self._give_up(CommunicationError("this communicator is closed"))
            self._transport.tell(state, text)

    def all_have_left(self) -> bool:
        """Wait until every rank has closed this communicator; False if one never will."""
        waiting = set(range(self.size)) - {self.rank}
        while waiting:
            try:
                dead = self._transport.dead()
                states = {rank: self._transport.told(rank)[0] for rank in waiting}
            except Trouble:
                return False
            waiting -= {rank for rank, state in states.items() if state is State.LEFT}
            if waiting & dead or any(states[rank] is not State.RUNNING for rank in waiting):
                return False
            time.sleep(_EXIT_POLL if waiting else 0)
        return True

    def _group(self, members: Members, op: str) -> Group:
        ranks = tuple(int(member) for member in members)
        found = self._groups.get(ranks)
        if found is not None:
            return found
        if len(set(ranks)) != len(ranks) or not all(0 <= rank < self.size for rank in ranks):
            raise ArgumentError(f"{op}: members {ranks} are not different ranks of {self.size}")
        if self.rank not in ranks:
            raise ArgumentError(f"{op}: rank {self.rank} is not one of the members {ranks}")
        position = ranks.index(self.rank)
        peers = ranks[:position] + ranks[position + 1 :]
        self._groups[ranks] = Group(ranks, position, peers, members_text(ranks))
        return self._groups[ranks]

    def _plan(
        self,
        group: Group,
        op: str,
        how: tuple[Any, ...],
        array: Array,
        more: tuple[str, ...] = (),
    ) -> Plan:
        kind, *axis = how
        function = fold_function(kind, op)
        carried = type_of(array.shape, array.dtype, op)
        along = (f"along axis {each}" for each in axis)
        words = [kind, *along, str(carried), *more, group.text]
        header = Header(op, tuple(words))
        head = encode(header)
        small = self._fits(head, carried.nbytes)
        inside = carried if small else TensorType((0,), carried.dtype)
        lane = self._transport.lane(group.peers, head, *inside)
        plan = Plan(header, function, lane, small)
        if len(group.plans) >= _MOST_PLANS:
            group.plans.clear()
        group.plans[(*how, array.dtype, array.shape, *more)] = plan
        return plan

    def _run(self, header: Header, how: Callable[..., Result], *args: Any) -> Result:
        """Do a collective; if it cannot be finished, this communicator is of no further use."""
        with self._lock:
            if self._unusable is not None:
                raise self._refusal(header)
            try:
                return how(*args)
            except BaseException as error:  # whatever it is, the other ranks must learn of it
                raise self._failure(error, header) from None

    def _refusal(self, header: Header) -> CommunicationError:
        assert self._unusable is not None
        text = f"{header.op}: no longer possible: {self._unusable}"
        return type(self._unusable)(text, self._unusable.ranks)

    def _meet(self, plan: Plan, payload: bytes) -> list[Array]:
        """Exchange blocks that every member must open alike."""
        return plan.lane.meet(payload) or self._diverged(plan)

    def _diverged(self, plan: Plan) -> list[Array]:
        peers = plan.lane.peers
        self._read(peers, plan.lane.arrived(), [plan.header] * len(peers))
        raise AssertionError("headers that differ as bytes differ")

    def _read(
        self, peers: Members, blocks: Sequence[memoryview], headers: Sequence[Header]
    ) -> list[Header]:
        """The headers of blocks, which must fit this rank's."""
        found = [decode(header_bytes(block)) for block in blocks]
        triples = list(zip(peers, found, headers, strict=True))
        strangers = tuple(peer for peer, theirs, mine in triples if not mine.fits(theirs))
        if strangers:
            seen = "\n".join(f"{peer}\t{theirs}" for peer, theirs, _ in triples)
            raise Trouble(State.MISMATCH, strangers, seen)
        return found

    def _reduce_large(self, group: Group, plan: Plan, array: Array, out: Array | None) -> Array:
        self._meet(plan, b"")
        flat = np.ascontiguousarray(array).reshape(-1)
        out = np.empty(array.shape, array.dtype) if out is None else out
        flat_out = out.reshape(-1)
        count = len(group.members)
        bounds = [slice(*piece_bounds(flat.size, count, i)) for i in range(count)]
        mine = flat_out[bounds[group.position]]
        self._fold_pieces(group, plan, [flat[each] for each in bounds], mine)
        targets = [as_bytes(flat_out[each]) for each in bounds]
        own = targets.pop(group.position)
        incoming = [len(target) for target in targets]
        for start, views in self._transport.gather(group.peers, own, incoming):
            put(targets, start, views)
        return out

    def _reduce_scatter(
        self, group: Group, plan: Plan, array: Array, axis: int, out: Array | None
    ) -> Array:
        count = len(group.members)
        bounds = [piece_bounds(array.shape[axis], count, i) for i in range(count)]
        leading = (slice(None),) * axis
        pieces = [array[(*leading, slice(*each))] for each in bounds]
        own = pieces[group.position]
        if plan.small:
            piece = (*leading, slice(*bounds[group.position]))
            arrays = [each[piece] for each in self._meet(plan, array.tobytes())]
            arrays.insert(group.position, own)
            return self._folder.fold(plan.function, arrays, out)
        out = np.empty(own.shape, own.dtype) if out is None else out
        self._meet(plan, b"")
        flat = [np.ascontiguousarray(piece).reshape(-1) for piece in pieces]
        self._fold_pieces(group, plan, flat, out.reshape(-1))
        return out

    def _fold_pieces(self, group: Group, plan: Plan, pieces: list[Array], out: Array) -> None:
        """Give each peer its piece, and fold what all members have for this rank's into `out`."""
        own = pieces[group.position]
        outgoing = [as_bytes(piece) for i, piece in enumerate(pieces) if i != group.position]
        incoming = [own.nbytes] * len(outgoing)
        for start, views in self._transport.scatter(group.peers, outgoing, incoming):
            begin = start // own.itemsize
            arrays = [view.view(own.dtype) for view in views]
            part = slice(begin, begin + arrays[0].size)
            arrays.insert(group.position, own[part])
            self._folder.fold_into(plan.function, arrays, out[part])

    def _trade_alike(
        self, peers: Members, header: Header, arrays: Sequence[Array]
    ) -> list[list[Array]]:
        """Give every peer the same arrays, and return what each of them gives."""
        if not peers:
            return []
        return self._run(header, self._traded, peers, [header] * len(peers), [arrays], True)

    def _trade(
        self, peers: Members, headers: Sequence[Header], arrays: Sequence[Sequence[Array]]
    ) -> list[list[Array]]:
        """Give each peer its own arrays, and return what each of them gives."""
        if not peers:
            return []
        return self._run(headers[0], self._traded, peers, headers, arrays, False)

    def _traded(
        self,
        peers: Members,
        headers: Sequence[Header],
        arrays: Sequence[Sequence[Array]],
        alike: bool,
    ) -> list[list[Array]]:
        parcels = [self._parcel(header, sent) for header, sent in zip(headers, arrays)]
        if alike:
            parcels *= len(peers)
        blocks = self._transport.talk(peers, [block for block, _ in parcels])
        theirs = self._read(peers, blocks, headers)
        results: list[list[Array]] = []
        targets: list[Bytes] = []
        for header, block in zip(theirs, blocks, strict=True):
            arrived, rest = self._unpack(header, block)
            results.append(arrived)
            targets.append(rest)
        outgoing, incoming = [rest for _, rest in parcels], [len(rest) for rest in targets]
        if not alike:
            for start, views in self._transport.scatter(peers, outgoing, incoming):
                put(targets, start, views)
        elif any(incoming) or len(outgoing[0]):
            for start, views in self._transport.gather(peers, outgoing[0], incoming):
                put(targets, start, views)
        for header, arrived, rest in zip(theirs, results, targets, strict=True):
            if len(rest):
                arrived[:] = split(header.carries, rest)
        return results

    def _parcel(self, header: Header, arrays: Sequence[Array]) -> tuple[tuple[bytes, bytes], Bytes]:
        """The block of a header, and what does not fit into it."""
        head = encode(header)
        if self._fits(head, header.nbytes):
            return (head, b"".join(array.tobytes() for array in arrays)), NOTHING
        if len(arrays) == 1:
            return (head, b""), as_bytes(np.ascontiguousarray(arrays[0]))
        return (head, b""), np.concatenate([as_bytes(np.ascontiguousarray(a)) for a in arrays])

    def _unpack(self, header: Header, block: memoryview) -> tuple[list[Array], Bytes]:
        """The arrays in a block, or none of them and the memory that they will come to."""
        head = header_bytes(block)
        if not self._fits(head, header.nbytes):
            return [], np.empty(header.nbytes, np.uint8)
        inside = np.frombuffer(block, np.uint8, header.nbytes, len(head)).copy()
        return split(header.carries, inside), NOTHING

    def _fits(self, head: bytes, nbytes: int) -> bool:
        return len(head) + nbytes <= self._transport.room

    def _failure(self, error: BaseException, header: Header) -> BaseException:
        """The error to raise; the other ranks are told, and this communicator is given up."""
        if not isinstance(error, Trouble):
            kind = type(error).__name__
            self._give_up(CommunicationError(f"{header.op} was stopped by {kind}"))
            self._transport.tell(State.FAILED, f"{kind} in {header}")
            return error
        if error.state is State.MISMATCH:
            return self._give_up(self._mismatch(error, header))
        text = f"{header}: {error.text}"
        kept = State.GAVE_UP if error.state is State.GAVE_UP else State.FAILED
        self._transport.tell(kept, text)
        if kept is State.GAVE_UP and not error.told:
            text += (
                "\nhint: see what those ranks are doing; WEFT_RANK_TIMEOUT sets how long to wait"
            )
        return self._give_up(ERRORS[error.state](text, error.ranks))

    def _give_up(self, reason: CommunicationError) -> CommunicationError:
        """Be of no further use."""
        self._unusable = reason
        self._transport.shut()
        return reason

    def _mismatch(self, trouble: Trouble, header: Header) -> RankMismatchError:
        where = self.origin() if self.origin is not None else describe(user_position())
        line = f"{header} at {where}"
        self._transport.tell(State.MISMATCH, line)
        lines = {self.rank: line}
        if not trouble.told:
            for each in trouble.text.splitlines():
                rank, _, doing = each.partition("\t")
                lines[int(rank)] = doing
        lines.update(self._details(set(lines) - {self.rank} | set(trouble.ranks)))
        listed = "\n".join(f"  rank {rank}: {lines[rank]}" for rank in sorted(lines))
        return RankMismatchError(
            f"{header.op}: ranks came to different collectives\n{listed}\n"
            "hint: every rank must call the same collectives, in the same order",
            tuple(rank for rank in sorted(lines) if rank != self.rank),
        )

    def _details(self, awaited: set[int]) -> dict[int, str]:
        """What other ranks were doing when they saw the mismatch, as far as they say so soon."""
        end = time.monotonic() + _DETAIL_SECONDS
        found: dict[int, str] = {}
        while True:
            for rank in range(self.size):
                state, text = self._transport.told(rank) if rank != self.rank else (None, "")
                if state is State.MISMATCH:
                    found[rank] = text
            if awaited <= set(found) or time.monotonic() > end:
                return found
            time.sleep(1e-3)
