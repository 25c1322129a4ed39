"""Donation: a tensor that a call may use up, so that results can be written over it.

Afterwards the handle has no value, and reading it says where it went. Memory that anything else can
see is copied first, so nobody but the donor notices.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.common.device import CPU
from weft.core.common.handler import Handler
from weft.core.common.source import Position, describe, user_position
from weft.core.tensor.impl import TensorImpl
from weft.core.tensor.lasting import forget
from weft.core.tensor.sharing import is_shared
from weft.core.tensor.storage import Lease
from weft.core.tensor.tensor import Tensor
from weft.errors import DonatedTensorError


class Donated(Handler):
    """Owns a tensor that was given away: whatever is asked of it is an error."""

    ambient = True

    def __init__(self, label: str, position: Position | None) -> None:
        self.outer = None
        self.label = label
        self.position = position

    def _gone(self) -> DonatedTensorError:
        return DonatedTensorError(
            f"{self.label} was donated to a compiled function at {describe(self.position)}: its"
            " memory has been used again"
            "\nhint: use what the function returned, or leave the argument out of donate_argnums"
        )

    def handle(self, op: Any, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        raise self._gone()

    def read(self, payload: Any) -> Any:
        raise self._gone()


def give(arrays: list[Any], donations: Sequence[tuple[int, Any, str]]) -> None:
    """Take the values of donated arguments, in place: (position in `arrays`, argument, name)."""
    line = user_position(2)
    for place, argument, label in donations:
        if type(argument) is not Tensor:
            arrays[place] = np.array(arrays[place])  # a NumPy array or a number stays the caller's
            continue
        if isinstance(arrays[place], np.ndarray):  # elsewhere, memory is dropped, not written over
            if not _is_exclusive(arrays, place, argument):
                arrays[place] = np.array(arrays[place])
            forget(arrays[place])
        impl = argument._impl
        argument._impl = TensorImpl.owned(impl.type, impl.device, Donated(label, line), None)


def _is_exclusive(arrays: list[Any], place: int, handle: Tensor) -> bool:
    """Whether nothing but this handle can see the memory of its array."""
    holders = _holders(arrays, place, handle)
    if any(count > alone for count, alone in zip(holders, _ALONE, strict=True)):
        return False
    array, impl = arrays[place], handle._impl
    if isinstance(impl.owner, Donated):  # by an argument before: who else sees it was not counted
        return False
    if impl.shared or is_shared(array) or impl.node is not None or not array.flags.writeable:
        return False
    views = getattr(handle, "_views", ())
    if getattr(handle, "_base", None) is not None or any(ref() is not None for ref in views):
        return False
    base = array.base
    return bool(array.flags.owndata if base is None else isinstance(base, Lease) and base.is_loan)


def _holders(arrays: list[Any], place: int, handle: Tensor) -> tuple[int, int, int]:
    """How many references there are to a tensor's impl, its array, and what that is a view of.

    Another handle on the impl, another impl or argument on the array, another view of the memory is
    one more.
    """
    impl, array = handle._impl, arrays[place]
    base = array.base
    counts = sys.getrefcount(impl), sys.getrefcount(array)
    return *counts, 0 if base is None else sys.getrefcount(base)


def _alone() -> tuple[int, int, int]:
    """The counts for a tensor that nobody else can see, on this version of Python."""
    array = np.empty(2)[:1]
    handle = Tensor(TensorImpl(array.shape, array.dtype, CPU, array))
    del array
    return _holders([handle._impl.data], 0, handle)


_ALONE = _alone()
