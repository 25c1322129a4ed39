"""Backends of GPUs: what `cuda:0` and `webgpu:0` have in common.

Calls run as kernels that weft's compiler makes; what it has no kernel for runs on the host, with
copies there and back that a profile shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.core.common.device import Device, as_device
from weft.core.common.types import Array, TensorType
from weft.errors import ArgumentError, BackendError
from weft.runtime.gpu.array import GpuArray
from weft.runtime.gpu.interface import Driver, GpuMemory, GpuStats
from weft.runtime.named import NamedFunctions

NUMBERS = 4096  # small arrays of one number that stay on a device
_engine: list[Any] = []  # what runs calls on kernels, once it is installed


def install_engine(engine: Any) -> None:
    """Say what runs a call on a GPU: `engine.run(client, op, arrays, params, types)`."""
    _engine[:] = [engine]


class GpuClient(NamedFunctions):
    """Runs ops on one GPU."""

    holds = GpuArray

    def __init__(self, device: Device, gpu: Driver) -> None:
        self._device = device
        self.gpu = gpu
        self._numbers: dict[Any, GpuArray] = {}

    @property
    def device(self) -> Device:
        """The device this client drives."""
        return self._device

    def synchronize(self) -> None:
        """Wait until every kernel has finished; one that failed raises here."""
        self.gpu.synchronize()

    def check(
        self,
        op: Any,
        types: tuple[TensorType, ...],
        params: Mapping[str, Any],
        results: tuple[TensorType, ...],
    ) -> None:
        """Every op runs here, or on the host for it."""

    def execute(
        self,
        op: Any,
        arrays: tuple[Any, ...],
        params: Mapping[str, Any],
        types: tuple[TensorType, ...],
    ) -> tuple[GpuArray, ...]:
        """Run one op."""
        results: tuple[GpuArray, ...] = _engine[0].run(self, op, arrays, params, types)
        return results

    def prepared(
        self,
        op: Any,
        operands: tuple[TensorType, ...],
        params: Mapping[str, Any],
        results: tuple[TensorType, ...],
    ) -> Callable[..., GpuArray] | None:
        """A function that gives the only result of calls on arrays here, or None."""
        found: Callable[..., GpuArray] | None
        found = _engine[0].prepared(self, op, operands, params, results)
        return found

    def executable(self, trace: Any) -> Any:
        """A whole graph made ready to run: `run(arrays)` gives its results."""
        return _engine[0].executable(self, trace)

    def to_device(self, array: Array) -> GpuArray:
        """A copy on the GPU; numbers that come again are there already."""
        if array.size != 1:
            return GpuArray.of(self.gpu, array)
        key = (array.shape, array.dtype, array.tobytes())
        found = self._numbers.get(key)
        if found is None:
            if len(self._numbers) >= NUMBERS:
                self._numbers.clear()
            found = GpuArray.of(self.gpu, array)
            found.memory.common = True
            self._numbers[key] = found
        return found.reshaped(array.shape)  # an array that is nobody else's

    def to_host(self, array: GpuArray) -> Array:
        """A copy on the host."""
        return array.to_host()


class GpuAllocator:
    """Memory of all GPUs of a kind that are in use, as reports tell it."""

    def __init__(self) -> None:
        self.gpus: dict[int, Driver] = {}

    def stats(self) -> GpuStats:
        """The sums over all of them."""
        found = [gpu.stats() for gpu in tuple(self.gpus.values())]
        return GpuStats(
            sum(x.live_bytes for x in found),
            sum(x.peak_bytes for x in found),
            sum(x.allocations for x in found),
            sum(x.frees for x in found),
        )


class GpuRuntime:
    """A backend of GPUs: a subclass says its name and the module of its driver."""

    name: str
    client = GpuClient
    gpus: Any  # `gpu(number)` opens one, `device_count()` says how many there are

    def __init__(self) -> None:
        self._devices = tuple(as_device(f"{self.name}:{i}") for i in range(self._count()))
        self.allocator = GpuAllocator()

    @classmethod
    def is_available(cls) -> bool:
        """Whether what it needs is here, as far as can be told at once."""
        found: bool = cls.gpus.is_available()
        return found

    def _count(self) -> int:
        count: int = self.gpus.device_count()
        if not count:
            raise BackendError(f"{self.name}: the driver is here, but sees no GPU")
        return count

    def allocate(self, nbytes: int, device: Device) -> GpuMemory:
        """Fresh memory."""
        return self._gpu(device).allocate(nbytes)

    def deallocate(self, handle: GpuMemory, device: Device) -> None:
        """Memory goes back when the last holder drops it."""

    def copy_to_device(self, source: Any, handle: GpuMemory, device: Device) -> None:
        """Copy host bytes (any buffer) into an allocation."""
        raw = np.frombuffer(source, np.uint8)
        self._gpu(device).write(handle.address, raw[: _within(handle, raw.nbytes)])

    def copy_from_device(self, handle: GpuMemory, target: Any, device: Device) -> None:
        """Copy the beginning of an allocation into host bytes (any writable buffer)."""
        raw = np.frombuffer(target, np.uint8)
        self._gpu(device).read(handle.address, raw[: _within(handle, raw.nbytes)])

    def copy_within_device(
        self, source: GpuMemory, target: GpuMemory, nbytes: int, device: Device
    ) -> None:
        """Copy between two allocations."""
        size = min(_within(source, nbytes), _within(target, nbytes))
        self._gpu(device).copy(target.address, source.address, size)

    def devices(self) -> tuple[Device, ...]:
        """As many as there are."""
        return self._devices

    def default_device(self) -> Device:
        """The first of them."""
        return self._devices[0]

    def default_client(self, device: Device) -> GpuClient:
        """The client of one GPU."""
        return self.client(device, self._gpu(device))

    def _gpu(self, device: Device) -> Driver:
        gpu: Driver = self.gpus.gpu(device.id)
        self.allocator.gpus[device.id] = gpu
        return gpu


def _within(handle: GpuMemory, nbytes: int) -> int:
    if not 0 <= nbytes <= handle.nbytes:
        raise ArgumentError(f"copy: {nbytes} bytes do not fit {handle.nbytes}")
    return nbytes
