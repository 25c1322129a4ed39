"""Memory that another library can write to: what was handed out over DLPack or as a buffer.

Sharing belongs to the allocation, not to a tensor: every view of it, older or younger, is shared
from then on. Readers of shared memory run at the call, so that later writes do not reach their
results. What weft itself counts on, the constants of compiled functions, is not handed out: who
asks for such a tensor's memory gets a copy, and the tensor with it.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from weft.core.common.types import Array
from weft.core.graph.graph import GRAPH
from weft.core.tensor.lasting import forget_all_of
from weft.core.tensor.storage import Lease

_shared: dict[int, weakref.ref[Array]] = {}  # id of the array at the root of an allocation
_common: dict[int, weakref.ref[Array]] = {}  # the same, of memory that weft counts on
_kept: dict[int, tuple[weakref.ref[Any], dict[int, Any]]] = {}  # by id of the handle


def share(array: Any) -> None:
    """Mark the allocation under `array` as shared, after what was asked of it so far has run."""
    if not isinstance(array, np.ndarray):  # a backend's array knows its memory
        if not array.is_shared:
            GRAPH.flush()
            array.share()
        return
    root = root_of(array)
    key = id(root)
    if key not in _shared:
        GRAPH.flush()
        _shared[key] = weakref.ref(root, lambda _: _shared.pop(key, None))
        forget_all_of(root)


def is_shared(data: Any) -> bool:
    """Whether this data lies in memory that was handed out."""
    if isinstance(data, np.ndarray):
        return bool(_shared) and id(root_of(data)) in _shared
    return getattr(data, "is_shared", False)


def count_on(data: Any) -> None:
    """Have the values under `data` stay: their memory will not be handed out."""
    if not isinstance(data, np.ndarray):
        if hasattr(data, "memory"):  # others are never handed out
            data.memory.common = True
    elif not is_shared(data):
        root = root_of(data)
        key = id(root)
        if key not in _common:
            _common[key] = weakref.ref(root, lambda _: _common.pop(key, None))


def is_common(data: Array) -> bool:
    """Whether weft counts on the values of the memory that this array lies in."""
    return bool(_common) and id(root_of(data)) in _common


def own(data: Any) -> Any:
    """A copy that nobody else can write to."""
    return np.array(data) if isinstance(data, np.ndarray) else data.copied()


def keep(handle: Any, memory: Any) -> None:
    """Let memory live as long as a handle, whatever is assigned to that in the meantime."""
    key = id(handle)
    if key not in _kept:
        _kept[key] = weakref.ref(handle, lambda _: _kept.pop(key, None)), {}
    _kept[key][1][id(memory)] = memory


def root_of(array: Array) -> Array:
    """The array that answers for the memory: the end of the chain of bases, or a lease."""
    root = array
    while isinstance(root.base, np.ndarray) and not (isinstance(root, Lease) and root.is_loan):
        root = root.base
    return root
