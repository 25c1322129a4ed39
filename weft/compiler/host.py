"""Calls that a program makes in Python: references run on memory given by address."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from weft.core.common.events import watchers
from weft.core.common.source import blame, unblame
from weft.core.common.types import Array, TensorType
from weft.core.graph.graph import Located, execute, locate
from weft.core.graph.node import OutputRefs


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


class BareCall:
    """A call whose reference writes its results itself; memory mostly lies where it lay before."""

    __slots__ = ("_addresses", "_arrays", "_inputs", "_node")

    def __init__(self, node: OutputRefs, inputs: tuple[TensorType, ...]) -> None:
        self._node = node
        self._inputs = inputs
        self._addresses: tuple[int, ...] = ()
        self._arrays: list[Array] = []

    def __call__(self, *addresses: int) -> None:
        node, count = self._node, len(self._inputs)
        if watchers:
            run_on_host(node, self._inputs, *addresses)
            return
        arrays = self._arrays
        if addresses != self._addresses:
            arrays = list(map(array_at, addresses, (*self._inputs, *node.types)))
            self._addresses, self._arrays = addresses, arrays
        token = blame(node.position)  # by hand: a context manager costs more than the rest of this
        try:
            node.op.eval(*arrays[:count], out=arrays[count:], **node.params)
        except BaseException as error:
            locate(node, error)
            raise
        finally:
            unblame(token)


def array_at(address: int, kind: TensorType) -> Array:
    """Memory of a program as an array; it must not outlive the run."""
    if not kind.nbytes:
        return np.empty(kind.shape, kind.dtype)
    memory: Any = (ctypes.c_char * kind.nbytes).from_address(address)
    return np.frombuffer(memory, np.uint8).view(kind.dtype).reshape(kind.shape)
