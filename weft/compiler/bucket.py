"""Sums between processes that do not need each other become one: fewer meetings, no copies.

Which sums go together is decided by the trace over the mesh, which is the same in every process;
the pieces of one process may depend less on each other than those of another (a term of zeros
depends on nothing). Where code works on pieces by hand, sums stay as they are. Between ranks of one
host the terms of large sums lie in memory that all of them read, and adding them up is an ordinary
op, fused with what uses the result. Elsewhere they are joined into one array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any, TypeAlias

from weft.core.common.slots import FUNCTIONS
from weft.core.common.source import blamed
from weft.core.graph.node import OutputRefs, Ref
from weft.core.graph.trace import Trace, subgraphs
from weft.core.sharding.pieces import Shards
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.tracing import Recorder
from weft.ops.base import call, call_multiple
from weft.ops.communication.apart import PutTogether, TakeApart
from weft.ops.communication.remote import (
    WorldOperation,
    fold_op,
    share_world_op,
    sum_world_op,
)
from weft.runtime.communicator import world

Bucket: TypeAlias = list[OutputRefs]  # calls that become one

MOST_BYTES = 32 << 20  # of a bucket: what waits for the others takes memory
SHARED_BYTES = 64 << 10  # from which reading each other's terms beats sending them


@dataclass(frozen=True)
class _Effect:
    """A recorded call with an effect, and the call over the mesh whose result it adds up."""

    node: OutputRefs
    owner: OutputRefs | None  # None: nobody knows, or it is no sum


class Ledger:
    """Watches a trace over a mesh being replayed on pieces: which effects come of which call."""

    def __init__(self, trace: Trace, recorder: Recorder) -> None:
        self._recorder = recorder
        self._is_common = not _sees_pieces(trace)
        self._number = {node: number for number, node in enumerate(trace.nodes)}
        self._before: dict[OutputRefs, int] = {}  # the calls that one needs, as bits
        self._producer: dict[int, tuple[Shards, OutputRefs]] = {}
        self._effects: list[_Effect] = []
        self._notes: list[tuple[int, Shards]] = []

    def note(self, shards: Shards) -> None:
        """A tensor is about to be moved: the effects that follow are its."""
        self._notes.append((len(self._recorder.effects), shards))

    def watch(
        self, step: Callable[[OutputRefs, tuple[Any, ...]], tuple[Any, ...]]
    ) -> Callable[[OutputRefs, tuple[Any, ...]], tuple[Any, ...]]:
        """`step`, watched."""

        def watched(node: OutputRefs, args: tuple[Any, ...]) -> tuple[Any, ...]:
            begin = len(self._recorder.effects)
            self._notes.clear()
            found = step(node, args)
            for each in found:
                if isinstance(each, Shards):
                    self._producer[id(each)] = each, node
            sources = [source for source, _ in node.inputs if source.op is not None]
            self._before[node] = reduce(
                lambda bits, s: bits | self._before[s] | 1 << self._number[s], sources, 0
            )
            self._effects += self._owned(node, begin)
            return found

        return watched

    def _owned(self, node: OutputRefs, begin: int) -> list[_Effect]:
        made = self._recorder.effects[begin:]
        found = []
        for number, effect in enumerate(made, begin):
            of = [shards for first, shards in self._notes if first <= number]
            known = self._producer.get(id(of[-1])) if of else None
            alone = node if len(made) == 1 else None  # then whoever needs it needs this call
            owner = alone if known is None else known[1]
            found.append(_Effect(effect, owner if self._is_common and _is_sum(effect) else None))
        return found

    def order(self) -> list[Bucket]:
        """All effects in an order that every process finds, those that go together together."""
        done: list[Bucket] = []
        waiting: dict[Any, list[_Effect]] = {}

        def flush(*keys: Any) -> None:
            done.extend([each.node for each in waiting.pop(key)] for key in keys)

        for effect in self._effects:
            owner = effect.owner
            if owner is None:
                flush(*waiting)
                done.append([effect.node])
                continue
            needed = self._before[owner]
            held = [each for group in waiting.values() for each in group]
            if any(needed >> self._number[each.owner] & 1 for each in held if each.owner):
                flush(*waiting)
            key = effect.node.params["members"]
            waiting.setdefault(key, []).append(effect)
            if sum(_nbytes(each.node) for each in waiting[key]) >= MOST_BYTES:
                flush(key)
        flush(*waiting)
        return done


def _sees_pieces(trace: Trace) -> bool:
    """Whether code over pieces is part of a trace, which may then differ between processes.

    Of processes that hold copies of a piece, the first answers for its cotangent alone.
    """
    by_hand = (TakeApart, PutTogether, WorldOperation)
    return any(
        isinstance(node.op, by_hand) or any(map(_sees_pieces, subgraphs(node.params)))
        for node in trace.nodes
    )


def _is_sum(node: OutputRefs) -> bool:
    return node.op is sum_world_op and node.types[0].size > 0 and node.device.kind == "cpu"


def _nbytes(node: OutputRefs) -> int:
    return node.types[0].nbytes


def merged(trace: Trace, order: Sequence[Bucket]) -> Trace:
    """The trace with its effects in this order, each bucket of several sums as one."""
    if not any(len(bucket) > 1 or _is_shared(bucket) for bucket in order):
        return trace
    given = len(trace.inputs) - len(trace.captures)
    with Recorder(label="compile") as recorder:
        assert isinstance(recorder, Recorder)
        values: dict[Ref, Any] = {
            (node, 0): recorder.input(node.types[0], node.device) for node in trace.inputs[:given]
        }
        for node, tensor in zip(trace.inputs[given:], trace.captures, strict=True):
            values[node, 0] = tensor
        replay = _Replay(values)
        for bucket in order:
            replay.need([ref for node in bucket for ref in node.inputs])
            replay.sums(bucket) if _is_sum(bucket[0]) else replay.perform(bucket[0])
        replay.need(trace.outputs)
        return recorder.finish([values[ref] for ref in trace.outputs], trace.name)


def _is_shared(bucket: Bucket) -> bool:
    """Whether the terms of a bucket lie where all members read them."""
    if not _is_sum(bucket[0]) or sum(map(_nbytes, bucket)) < SHARED_BYTES:
        return False
    return world().exposes([node.types[0] for node in bucket], bucket[0].params["members"])


@dataclass
class _Replay:
    """Recorded calls performed again, in another order; effects only when they are asked for."""

    values: dict[Ref, Any]

    def need(self, refs: Sequence[Ref]) -> None:
        """Perform what these values need."""
        stack = [node for node, slot in reversed(refs) if (node, slot) not in self.values]
        while stack:
            node = stack[-1]
            missing = [n for n, slot in node.inputs if (n, slot) not in self.values]
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            if (node, 0) not in self.values:
                self.perform(node)

    def perform(self, node: OutputRefs) -> None:
        """One call as it was."""
        with blamed(node.position):
            made: Any = call(node.op, tuple(self.values[ref] for ref in node.inputs), node.params)
        for slot, each in enumerate(made if node.op.multiple else (made,)):
            self.values[node, slot] = each

    def sums(self, bucket: Bucket) -> None:
        """A bucket of sums as one."""
        with blamed(bucket[0].position):
            if _is_shared(bucket):
                self._shared(bucket)
                return
            for dtype in dict.fromkeys(node.types[0].dtype for node in bucket):
                same = [node for node in bucket if node.types[0].dtype == dtype]
                self._joined(same) if len(same) > 1 else self.perform(same[0])

    def _shared(self, bucket: Bucket) -> None:
        members = bucket[0].params["members"]
        params = {"members": members, "position": members.index(world().rank)}
        own = tuple(self.values[node.inputs[0]] for node in bucket)
        terms = iter(call_multiple(share_world_op, own, params))
        for node in bucket:
            every = [next(terms) for _ in members]
            self.values[node, 0] = reduce(lambda x, y: call(fold_op("sum"), (x, y), {}), every)

    def _joined(self, bucket: Bucket) -> None:
        flat = [self.values[node.inputs[0]].reshape(-1) for node in bucket]
        whole: Tensor = FUNCTIONS["concat"](flat, axis=0)
        parts = tuple(node.types[0].shape for node in bucket)
        total = call(sum_world_op, (whole,), {**bucket[0].params, "parts": parts})
        start = 0
        for node in bucket:
            shape = node.types[0].shape
            part = FUNCTIONS["narrow"](total, 0, start, prod(shape))
            self.values[node, 0] = part.reshape(shape)
            start += prod(shape)
