"""`ComputeGraph`: records calls and runs what a reader needs.

Recording hash-conses nodes in a weak table: what nobody holds is forgotten without being run.
`realize` walks iteratively, so a chain may be as long as memory allows; each node's edges are cut
once it has run. When many calls (or much data that they hold) are pending they are flushed, at a
point that repeats in a loop.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from weft.config import settings
from weft.core.common.device import Device
from weft.core.common.frozen import freeze
from weft.core.common.source import Position, describe, user_position
from weft.core.common.types import TensorType
from weft.core.graph.node import OutputRefs, Ref
from weft.errors import ArgumentError

Executor: TypeAlias = Callable[[OutputRefs, tuple[Any, ...]], tuple[Any, ...]]

_executor: list[Executor] = []
_runner: list[Any] = []  # what runs whole graphs, once it is installed
_physical: ContextVar[bool] = ContextVar("weft_physical", default=False)
in_physical_context: Callable[[], bool] = _physical.get


def install_executor(executor: Executor) -> None:
    """Say how one node is run on its inputs' data; the layer above calls this once."""
    _executor[:] = [executor]


def install_runner(runner: Any) -> None:
    """Say what may run whole graphs: `runner.run(order, wanted)` is False where it may not.

    `runner.beside(order, wanted, pending)` are the calls that should run with them.
    """
    _runner[:] = [runner]


def execute(node: OutputRefs, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Run one node on data, through the installed executor."""
    return _executor[0](node, arrays)


class Located:
    """Adds the user's line to whatever goes wrong inside."""

    __slots__ = ("node",)

    def __init__(self, node: OutputRefs) -> None:
        self.node = node

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            locate(self.node, error)


def locate(node: OutputRefs, error: BaseException) -> None:
    """Add the user's line of a call to an error that came of it."""
    note = f"in {node.name}, recorded at {describe(node.position)}"
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


@dataclass(slots=True)
class Counters:
    """What a graph has done so far."""

    recorded: int = 0
    shared: int = 0  # calls that were found recorded already
    executions: int = 0  # runs of recorded graphs
    compilations: int = 0
    nodes_run: int = 0
    flushes: int = 0


class ComputeGraph:
    """A set of recorded calls that have not run yet; threads may share it."""

    def __init__(self, flush_limit: int | None = None) -> None:
        self.counters = Counters()
        self._flush_limit = flush_limit
        self._table: weakref.WeakValueDictionary[Any, OutputRefs] = weakref.WeakValueDictionary()
        self._table_lock = threading.RLock()  # held for moments: recording never waits for a run
        self._run_lock = threading.RLock()
        # What runs on the stack of the thread that holds the lock: calls, and graphs as a whole.
        self._running: tuple[OutputRefs, ...] = ()
        self._begun: tuple[set[OutputRefs], ...] = ()
        self._held_bytes = 0  # data that pending calls refer to, counted since the last flush
        self._flush_position: Position | None = None

    @property
    def flush_limit(self) -> int:
        """How many calls may be pending: this graph's own limit, or `settings.flush_limit`."""
        return settings.flush_limit if self._flush_limit is None else self._flush_limit

    @property
    def pending(self) -> int:
        """How many recorded calls have not run."""
        return len(self._table)

    @property
    def _runs(self) -> bool:
        return bool(self._running or self._begun)

    @property
    def runs_here(self) -> bool:
        """Whether a kernel is on this thread's stack: reads of other threads wait for it."""
        if not self._run_lock.acquire(blocking=False):
            return False
        try:
            return self._runs
        finally:
            self._run_lock.release()

    def record(
        self,
        op: Any,
        inputs: tuple[Ref, ...],
        params: dict[str, Any],
        types: tuple[TensorType, ...],
        device: Device,
    ) -> OutputRefs:
        """The node for this call: a recorded equal one, or a new one."""
        key: Any = (op, inputs, freeze(params) if params else None, device)
        with self._table_lock:
            if op.pure:
                found = self._table.get(key)
                if found is not None:
                    self.counters.shared += 1
                    return found
            else:
                key = (key, self.counters.recorded)
            node = OutputRefs(op, inputs, params, types, device, user_position(3))
            node.key = key
            self._table[key] = node
            self.counters.recorded += 1
            self._count_held(inputs)
            full = len(self._table) > self.flush_limit or self._held_bytes > settings.flush_bytes
        if full:
            self._flush_at(node)
        return node

    def _count_held(self, inputs: tuple[Ref, ...]) -> None:
        for source, _ in inputs:
            if source.results is not None and not source.counted:
                source.counted = True
                self._held_bytes += sum(map(_held, source.results, source.types))

    def _flush_at(self, node: OutputRefs) -> None:
        """Flush here if the last flush was at this line too, or if it cannot wait any longer."""
        overdue = self.pending > 2 * self.flush_limit or self._held_bytes > 2 * settings.flush_bytes
        if overdue or self._flush_position in (None, node.position):
            self._flush_position = node.position
            self.flush()

    def flush(self) -> None:
        """Run everything that is pending and still referred to.

        Nobody has asked for these values yet. So a call that fails stays pending, with what needs
        it, and whoever reads it runs it again and gets the error.
        """
        with self._run_lock:
            if self._runs:  # a kernel that runs user code came here: its own call is pending too
                return
            self.counters.flushes += 1
            if self._run_whole(self._all_pending(), ()):
                return
            for node in self._start(
                self._all_pending()
            ):  # held by nobody else: it frees as it runs
                if not all(source.realized for source, _ in node.inputs):
                    self._forget(node)
                    continue
                with suppress(Exception):
                    self._run(node)
                if not node.realized:
                    self._forget(node)

    def _all_pending(self) -> list[OutputRefs]:
        with self._table_lock:
            self._held_bytes = 0
            return self._listed()

    def _listed(self) -> list[OutputRefs]:
        """The calls that have not run, inputs before users."""
        with self._table_lock:
            return list(self._table.values())

    def realize(self, nodes: Iterable[OutputRefs]) -> None:
        """Run what these nodes need. A failure leaves the failed node pending, the rest usable."""
        with self._run_lock:
            roots = list(nodes)
            if len(roots) == 1 and roots[0].op.leaf and _waits_for_nothing(roots[0]):
                self.counters.executions += 1
                self._run(roots[0])
            elif not self._run_whole(roots, roots):
                for node in self._start(roots):
                    self._run(node)

    def _run_whole(self, roots: Sequence[OutputRefs], wanted: Sequence[OutputRefs]) -> bool:
        """Run what these need as one compiled graph, if it is to be compiled.

        It gives the results of `wanted`, and of every other call that a tensor stands for. Others
        that would need much of the same work again run with it.
        """
        if not _runner:
            return False
        order = _waiting(roots)
        if len(order) < 2 and all(node.op.leaf for node in order):
            return False
        others = _runner[0].beside(order, wanted, self._listed)
        if others and self._run_order(_waiting((*roots, *others)), wanted):
            return True
        return self._run_order(order, wanted)

    def _run_order(self, order: Sequence[OutputRefs], wanted: Sequence[OutputRefs]) -> bool:
        """Run these calls as one compiled graph, if it is to be compiled."""
        if any(not begun.isdisjoint(order) for begun in self._begun):
            return False  # a kernel reads what runs with it: one by one, that comes to an end
        keys = [node.key for node in order]  # which calls that have run do not keep
        before, nodes = self._begun, set(order)
        self._begun = (*before, nodes)  # nothing is called, so no interrupt comes before `try`
        try:
            done: bool = _runner[0].run(order, wanted)
        finally:
            self._begun = before
        if done:
            self.counters.executions += 1
            with self._table_lock:
                for node, key in zip(order, keys, strict=True):
                    if node.realized and self._table.get(key) is node:
                        del self._table[key]
        return done

    def _start(self, roots: Iterable[OutputRefs]) -> Iterator[OutputRefs]:
        """What must run, each let go as soon as it has run."""
        order = _waiting(roots)
        del roots
        if order:
            self.counters.executions += 1
        order.reverse()
        while order:
            node = order.pop()
            if not node.realized:  # a kernel that runs user code may have read it meanwhile
                yield node

    def _run(self, node: OutputRefs) -> None:
        if node in self._running:
            raise ArgumentError(
                f"{node.name}: its function reads the call's own result, which is not there before"
                " the function returns\nhint: compute it from the function's arguments"
            )
        arrays = tuple(source.results[slot] for source, slot in node.inputs)  # type: ignore[index]
        before = self._running
        self._running = (*before, node)
        try:
            with Located(node):
                results = execute(node, arrays)
        finally:
            self._running = before
        self.counters.nodes_run += 1
        self._forget(node)
        node.finish(results)

    def _forget(self, node: OutputRefs) -> None:
        with self._table_lock:
            if self._table.get(node.key) is node:
                del self._table[node.key]

    def reset_after_fork(self) -> None:
        """Start a forked child with free locks: a thread that is not in the child may hold them."""
        self._table_lock = threading.RLock()
        self._run_lock = threading.RLock()
        self._running, self._begun = (), ()

    @contextmanager
    def context(self) -> Iterator[ComputeGraph]:
        """Physical execution: inside, ops run at once on data and nothing is recorded."""
        token = _physical.set(True)
        try:
            yield self
        finally:
            _physical.reset(token)


GRAPH = ComputeGraph()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=GRAPH.reset_after_fork)


def _held(array: Any, kind: TensorType) -> int:
    """Bytes of memory that a value keeps: an axis along which it only repeats has none."""
    size = kind.nbytes
    if isinstance(array, np.ndarray) and 0 in array.strides:
        for length, stride in zip(array.shape, array.strides, strict=True):
            size //= length if length and not stride else 1
    return size


def _waits_for_nothing(node: OutputRefs) -> bool:
    for source, _ in node.inputs:
        if source.results is None:
            return False
    return node.results is None


def _waiting(roots: Iterable[OutputRefs]) -> list[OutputRefs]:
    """The calls that these need and that have not run, inputs before users."""
    return [node for node in get_operations_topological(roots) if not node.realized]


def get_operations_topological(nodes: Iterable[OutputRefs]) -> list[OutputRefs]:
    """Every node these need, inputs before users, without recursion; in order of first need."""
    order: list[OutputRefs] = []
    seen: set[OutputRefs] = set()
    for root in nodes:
        if root in seen:
            continue
        seen.add(root)
        stack: list[tuple[OutputRefs, Iterator[Ref]]] = [(root, iter(root.inputs))]
        while stack:
            node, remaining = stack[-1]
            for source, _ in remaining:
                if source not in seen:
                    seen.add(source)
                    stack.append((source, iter(source.inputs)))
                    break
            else:
                order.append(node)
                stack.pop()
    return order


def get_all_impls_topological(nodes: Iterable[OutputRefs]) -> list[Any]:
    """The live impls of every node these need, inputs before users."""
    live = (ref() for node in get_operations_topological(nodes) for ref in node.outputs)
    return [impl for impl in live if impl is not None]


def apply_to_operations(nodes: Iterable[OutputRefs], function: Callable[[OutputRefs], Any]) -> None:
    """Call `function` on every node these need, inputs before users."""
    for node in get_operations_topological(nodes):
        function(node)
