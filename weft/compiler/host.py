"""Calls that a program makes in Python: references run on memory given by address."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from weft.core.common.events import told, watchers
from weft.core.common.source import blame, blamed, unblame
from weft.core.common.types import Array, TensorType
from weft.core.graph.graph import Located, execute, locate
from weft.core.graph.node import OutputRefs
from weft.ops.communication.remote import ShareWorld
from weft.runtime.communicator import world
from weft.runtime.communicator.interface import Exposed
from weft.runtime.cpu.client import CpuClient
from weft.runtime.cpu.program import Avoidable, Words
from weft.runtime.registry import client

Memory: TypeAlias = tuple[tuple[int, ...], list[Array], list[Array]]  # addresses, operands, results


class HostCalls:
    """What a program calls for its nodes: with the addresses of operands, then of results."""

    def __init__(self) -> None:
        self._shared: dict[OutputRefs, SharedTerms] = {}

    def call(self, node: OutputRefs, inputs: tuple[TensorType, ...]) -> Callable[..., None]:
        """What does a node's work."""
        if isinstance(node.op, ShareWorld):
            return self._terms(node).meet
        if node.op.bare:
            return BareCall(node, inputs)
        driver = client(node.device)
        if isinstance(driver, CpuClient):
            run = driver.reference(node.op, inputs, node.params, node.types)
            if run is not None:
                return ReferenceCall(node, inputs, run)
        return partial(run_on_host, node, inputs)

    def reserve(self, node: OutputRefs) -> Callable[[], list[int]]:
        """What tells a run where the terms of a `share_world` lie."""
        return self._terms(node).reserve

    def _terms(self, node: OutputRefs) -> SharedTerms:
        return self._shared.setdefault(node, SharedTerms(node))


class SharedTerms:
    """The terms of sums that processes read from each other's memory."""

    def __init__(self, node: OutputRefs) -> None:
        self._node = node
        self._exposed: Exposed | None = None

    def reserve(self) -> list[int]:
        """Addresses for this run: of this process's terms, then of those of the others."""
        if self._exposed is None:
            types = [source.types[slot] for source, slot in self._node.inputs]
            with Located(self._node), blamed(self._node.position):
                self._exposed = world().exposure(types, self._node.params["members"])
        rows, position = self._exposed.places(), self._node.params["position"]
        own = [row.pop(position) for row in rows]
        return [*own, *(address for row in rows for address in row)]

    def meet(self) -> None:
        """Wait until everyone's terms are there."""
        assert self._exposed is not None
        node = self._node
        with Located(node), blamed(node.position), told("op", node.name):
            self._exposed.meet()


def run_on_host(node: OutputRefs, inputs: tuple[TensorType, ...], *addresses: int) -> None:
    """Run a call's reference on memory given by address, and put its results where they belong."""
    arrays = tuple(map(array_at, addresses, inputs))
    if not node.op.leaf:  # user code may keep them
        arrays = tuple(map(np.array, arrays))
    with Located(node):
        results = execute(node, arrays)
    for address, kind, result in zip(addresses[len(inputs) :], node.types, results, strict=True):
        np.copyto(array_at(address, kind), np.asarray(result).reshape(kind.shape))


class ReferenceCall:
    """A call that is always its op's `eval`; memory mostly lies where it lay before."""

    __slots__ = ("_inputs", "_memory", "_node", "_run")

    def __init__(
        self,
        node: OutputRefs,
        inputs: tuple[TensorType, ...],
        run: Callable[..., tuple[Array, ...]],
    ) -> None:
        self._node = node
        self._inputs = inputs
        self._run = run
        self._memory: Memory = (), [], []

    def __call__(self, *addresses: int) -> None:
        if watchers:
            run_on_host(self._node, self._inputs, *addresses)
            return
        memory = self._memory  # at once, since another thread may run the same program
        if addresses != memory[0]:
            arrays = list(map(array_at, addresses, (*self._inputs, *self._node.types)))
            count = len(self._inputs)
            self._memory = memory = addresses, arrays[:count], arrays[count:]
        try:
            for out, result in zip(memory[2], self._run(*memory[1]), strict=True):
                out[...] = result.reshape(out.shape)
        except MemoryError:
            run_on_host(self._node, self._inputs, *addresses)  # says what there is no room for
        except BaseException as error:
            locate(self._node, error)
            raise


class BareCall(Avoidable):
    """A call whose reference writes its results itself; memory mostly lies where it lay before."""

    __slots__ = ("_door", "_inputs", "_memory", "_native", "_node", "_position", "_run")

    def __init__(self, node: OutputRefs, inputs: tuple[TensorType, ...]) -> None:
        self._node = node
        self._position = node.position
        self._inputs = inputs
        self._memory: Memory = (), [], []
        self._run: Any = None
        self._native: Any = None
        self._door: Words | None = None

    def use(self, door: Words) -> None:
        self._door = door

    def abandon(self, *addresses: int) -> None:
        if self._native is not None:
            self._native.abandon(addresses[-1])

    def __call__(self, *addresses: int) -> None:
        if watchers:
            run_on_host(self._node, self._inputs, *addresses)
            return
        memory = self._memory  # at once, since another thread may run the same program
        if addresses != memory[0]:
            memory = self._find(addresses)
        token = blame(self._position)  # by hand: a context manager costs more than the rest of this
        try:
            self._run(*memory[1], out=memory[2])
        except BaseException as error:  # an interrupt, too, shows the line that waited
            locate(self._node, error)
            raise
        finally:
            unblame(token)

    def _find(self, addresses: tuple[int, ...]) -> Memory:
        node, count = self._node, len(self._inputs)
        if self._run is None:
            self._run = node.op.prepared(self._inputs, node.params)
            native = node.op.native(self._inputs, node.params)
            if native is not None and native.record and self._door is not None:
                self._native = native
                self._door[0] = native.record
        arrays = list(map(array_at, addresses, (*self._inputs, *node.types)))
        self._memory = found = addresses, arrays[:count], arrays[count:]
        return found


def array_at(address: int, kind: TensorType) -> Array:
    """Memory of a program as an array; it must not outlive the run."""
    nbytes = kind.nbytes
    if not nbytes:
        return np.empty(kind.shape, kind.dtype)
    memory: Any = (ctypes.c_char * nbytes).from_address(address)
    return np.ndarray(kind.shape, kind.dtype, memory)
