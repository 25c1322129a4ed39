"""What a backend is: `Runtime` (memory), `Device` (a place), `RuntimeClient` (runs ops there).

A backend provides one `Runtime`; weft finds it by name — built in, or through the entry-point group
`weft.backends` — and never needs to know more than these protocols.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from weft.core.common.device import Device as Place
from weft.core.common.types import Array, TensorType


@runtime_checkable
class Device(Protocol):
    """A place that holds tensors."""

    @property
    def id(self) -> int:
        """Number among the devices of its kind."""

    @property
    def name(self) -> str:
        """`kind:id`."""


@runtime_checkable
class Allocator(Protocol):
    """Hands out memory of one device and counts what is alive."""

    def allocate(self, nbytes: int) -> Any:
        """Memory of at least `nbytes`."""

    def deallocate(self, storage: Any) -> None:
        """Give memory back."""

    def stats(self) -> Any:
        """Live and cached bytes, allocations, frees."""


@runtime_checkable
class RuntimeClient(Protocol):
    """Runs ops on one device and owns that device's state (threads, streams, queues)."""

    @property
    def device(self) -> Place:
        """The device this client drives."""

    def synchronize(self) -> None:
        """Wait until everything submitted has finished."""

    def check(
        self,
        op: Any,
        types: tuple[TensorType, ...],
        params: Mapping[str, Any],
        results: tuple[TensorType, ...],
    ) -> None:
        """Raise `UnsupportedError` or `UnsupportedDTypeError` if this call cannot run here.

        Asked once for each kind of call, before it is recorded, so that the user learns of it at
        the call.
        """

    def execute(
        self,
        op: Any,
        arrays: tuple[Any, ...],
        params: Mapping[str, Any],
        types: tuple[TensorType, ...],
    ) -> tuple[Any, ...]:
        """Run one op on this backend's arrays; gives one array for each result type."""

    def to_device(self, array: Array) -> Any:
        """A NumPy array as this backend's array."""

    def to_host(self, array: Any) -> Array:
        """This backend's array as a NumPy array."""


@runtime_checkable
class Runtime(Protocol):
    """A backend: its name, its memory, its devices."""

    @property
    def name(self) -> str:
        """The device kind, such as `cpu`."""

    def allocate(self, nbytes: int, device: Place) -> Any:
        """A raw handle to fresh memory."""

    def deallocate(self, handle: Any, device: Place) -> None:
        """Free what `allocate` gave."""

    def copy_to_device(self, source: Any, handle: Any, device: Place) -> None:
        """Copy host bytes into device memory."""

    def copy_from_device(self, handle: Any, target: Any, device: Place) -> None:
        """Copy device memory into host bytes."""

    def copy_within_device(self, source: Any, target: Any, nbytes: int, device: Place) -> None:
        """Copy between two allocations of one device."""

    def devices(self) -> tuple[Place, ...]:
        """All devices of this kind."""

    def default_device(self) -> Place:
        """The device used when none is named."""

    def default_client(self, device: Place) -> RuntimeClient:
        """The client that drives `device`."""
