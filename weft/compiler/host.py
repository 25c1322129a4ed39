"""Calls that a program makes in Python: references run on memory given by address."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from weft.core.common.events import watchers
from weft.core.common.source import blame, unblame
from weft.core.common.types import Array, TensorType
from weft.core.graph.graph import Located, execute, locate
from weft.core.graph.node import OutputRefs
from weft.runtime.cpu.program import Avoidable, Words

Memory: TypeAlias = tuple[tuple[int, ...], list[Array], list[Array]]  # addresses, operands, results


def host_call(node: OutputRefs, inputs: tuple[TensorType, ...]) -> Callable[..., None]:
    """What a program calls for a node: with the addresses of its operands, then its results."""
    return BareCall(node, inputs) if node.op.bare else partial(run_on_host, node, inputs)


def run_on_host(node: OutputRefs, inputs: tuple[TensorType, ...], *addresses: int) -> None:
    """Run a call's reference on memory given by address, and put its results where they belong."""
    arrays = tuple(map(array_at, addresses, inputs))
    with Located(node):
        results = execute(node, arrays)
    for address, kind, result in zip(addresses[len(inputs) :], node.types, results, strict=True):
        np.copyto(array_at(address, kind), np.asarray(result).reshape(kind.shape))


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
    if not kind.nbytes:
        return np.empty(kind.shape, kind.dtype)
    memory: Any = (ctypes.c_char * kind.nbytes).from_address(address)
    return np.frombuffer(memory, np.uint8).view(kind.dtype).reshape(kind.shape)
