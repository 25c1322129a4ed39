"""Memory that tensors share: a `Storage` is an address, a length, a device and an owner.

NumPy's chain of bases is the reference count: every view keeps the root of its chain alive, and a
root that is a `Lease` gives its memory back to an allocator when the last view dies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.core.common.device import Device
from weft.core.common.types import Array
from weft.errors import DeviceError

GiveBack = Callable[[Any], None]

_BYTE = np.dtype(np.uint8)


class Lease(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """Bytes on loan from an allocator; the loan ends when the last view of them dies.

    Make one with `Lease.of`. Views taken of a lease are not leases of their own: they keep it alive
    as their base.
    """

    _give_back: GiveBack | None = None

    @classmethod
    def of(cls, block: Array, offset: int, nbytes: int, give_back: GiveBack) -> Lease:
        """Lend `nbytes` of `block`; `give_back(block)` is called when the last view is gone.

        `block` must be of a subclass of `np.ndarray`: NumPy shortens chains of bases of one type,
        and views must not reach past the lease to the block.
        """
        assert type(block) is not np.ndarray
        lease = cls((nbytes,), _BYTE, block, offset)
        lease._give_back = give_back
        return lease

    @property
    def is_loan(self) -> bool:
        """Whether this is the lease itself, not a view or copy that inherited its class."""
        return self._give_back is not None

    def __del__(self) -> None:
        # Runs at interpreter exit too, so it may use nothing but its own attributes.
        give_back = self._give_back
        if give_back is not None:
            give_back(self.base)


class Storage:
    """A piece of memory on a device, kept alive for as long as the storage refers to it.

    `owned` says who frees it: owned memory goes back when its last user drops it; borrowed memory
    (`owned=False`) belongs to someone else and is never freed by weft. Two storages are equal when
    they begin at one address of one device.
    """

    __slots__ = ("_device", "_keep_alive", "_nbytes", "_owned", "_ptr")

    def __init__(
        self, ptr: int, nbytes: int, device: Device, *, owned: bool, keep_alive: object = None
    ) -> None:
        self._ptr = ptr
        self._nbytes = nbytes
        self._device = device
        self._owned = owned
        self._keep_alive = keep_alive

    @classmethod
    def of_array(cls, array: Array, device: Device) -> Storage:
        """The storage under a NumPy view: the memory at the root of its chain of bases.

        It is owned when NumPy or a `Lease` answers for the memory, borrowed when the chain ends in
        another library's object (a buffer, a memory map, a DLPack capsule).
        """
        root = array
        while isinstance(root.base, np.ndarray) and not _is_loan(root):
            root = root.base
        low, high = np.lib.array_utils.byte_bounds(root)
        owned = _is_loan(root) or root.flags.owndata
        return cls(low, high - low if root.size else 0, device, owned=owned, keep_alive=root)

    @property
    def ptr(self) -> int:
        """Address of the first byte."""
        return self._ptr

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self._nbytes

    @property
    def device(self) -> Device:
        """The device whose memory this is."""
        return self._device

    @property
    def owned(self) -> bool:
        """Whether weft, rather than another library, frees this memory."""
        return self._owned

    @property
    def keep_alive(self) -> object:
        """The object whose life is the memory's life; None once released."""
        return self._keep_alive

    def release(self) -> None:
        """Let go of owned memory; it is freed once no view of it is left either.

        Borrowed memory stays as it is. Releasing twice is a mistake and raises.
        """
        if not self._owned:
            return
        if self._keep_alive is None:
            raise DeviceError(f"storage: already released ({self!r})")
        self._keep_alive = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Storage):
            return NotImplemented
        return self._ptr == other._ptr and self._device == other._device

    def __hash__(self) -> int:
        return hash((self._ptr, self._device))

    def __repr__(self) -> str:
        owned = "owned" if self._owned else "borrowed"
        return f"Storage({self._nbytes} bytes at {self._ptr:#x} on {self._device}, {owned})"


def _is_loan(array: Array) -> bool:
    return isinstance(array, Lease) and array.is_loan
