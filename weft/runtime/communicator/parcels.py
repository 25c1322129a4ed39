"""Arrays as the bytes that travel between ranks."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from weft.core.common.types import Array, TensorType
from weft.runtime.communicator.transport import Bytes

NOTHING: Bytes = np.empty(0, np.uint8)


def as_bytes(array: Array) -> Bytes:
    """The bytes of a row-major array, without a copy."""
    return array.reshape(-1).view(np.uint8)


def put(targets: Sequence[Bytes], start: int, views: Sequence[Bytes]) -> None:
    """Copy what came in a round to its place in each target."""
    for target, view in zip(targets, views, strict=True):
        target[start : start + len(view)] = view


def split(types: Sequence[TensorType], joined: Bytes) -> list[Array]:
    """Arrays of these types, out of their bytes one after another."""
    arrays: list[Array] = []
    start = 0
    for each in types:
        nbytes = prod(each.shape) * each.dtype.itemsize
        arrays.append(joined[start : start + nbytes].view(each.dtype).reshape(each.shape))
        start += nbytes
    return arrays
