"""Calls that a program makes in Python: references run on memory given by address."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from weft.core.common.types import Array, TensorType
from weft.core.graph.graph import Located, execute
from weft.core.graph.node import OutputRefs


def run_on_host(node: OutputRefs, inputs: tuple[TensorType, ...], *addresses: int) -> None:
    """Run a call's reference on memory given by address, and put its results where they belong."""
    arrays = tuple(map(array_at, addresses, inputs))
    with Located(node):
        results = execute(node, arrays)
    for address, kind, result in zip(addresses[len(inputs) :], node.types, results, strict=True):
        np.copyto(array_at(address, kind), np.asarray(result).reshape(kind.shape))


def array_at(address: int, kind: TensorType) -> Array:
    """Memory of a program as an array; it must not outlive the run."""
    if not kind.nbytes:
        return np.empty(kind.shape, kind.dtype)
    memory: Any = (ctypes.c_char * kind.nbytes).from_address(address)
    return np.frombuffer(memory, np.uint8).view(kind.dtype).reshape(kind.shape)
