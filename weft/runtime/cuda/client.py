"""The CUDA backend: devices `cuda:0 …`, as many as the driver shows.

Calls run as kernels that weft's compiler makes; what it has no kernel for runs on the host, with
copies there and back that a profile shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.core.common.device import Device, as_device
from weft.core.common.types import Array, TensorType
from weft.core.tensor import dlpack
from weft.core.tensor.layout import Layout
from weft.errors import ArgumentError, BackendError
from weft.runtime.cuda import driver
from weft.runtime.cuda.array import LEGACY_STREAM, GpuArray
from weft.runtime.cuda.driver import GpuMemory, GpuStats
from weft.runtime.named import NamedFunctions

NUMBERS = 4096  # small arrays of one number that stay on a device
_engine: list[Any] = []  # what runs calls on kernels, once it is installed


def install_engine(engine: Any) -> None:
    """Say what runs a call on a GPU: `engine.run(client, op, arrays, params, types)`."""
    _engine[:] = [engine]


class CudaClient(NamedFunctions):
    """Runs ops on one GPU."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.gpu = driver.gpu(device.id)
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
            found = self._numbers[key] = GpuArray.of(self.gpu, array)
            found.memory.common = True
        return found.reshaped(array.shape)  # an array that is nobody else's

    def from_dlpack(self, source: Any) -> tuple[GpuArray, Layout]:
        """Another library's elements where they lie on this GPU: see `GpuArray.borrowed`."""
        place = (dlpack.CUDA_KIND, self.gpu.number)
        return GpuArray.borrowed(self.gpu, *dlpack.view_elsewhere(source, place, LEGACY_STREAM))

    def to_host(self, array: GpuArray) -> Array:
        """A copy on the host."""
        return array.to_host()


class CudaAllocator:
    """Memory of all GPUs together, as reports tell it."""

    def stats(self) -> GpuStats:
        """The sums over all GPUs that are open."""
        found = [driver.gpu(number).stats() for number in range(driver.device_count())]
        return GpuStats(
            sum(x.live_bytes for x in found),
            sum(x.peak_bytes for x in found),
            sum(x.allocations for x in found),
            sum(x.frees for x in found),
        )


class CudaRuntime:
    """The backend of NVIDIA GPUs; it needs their driver and nothing else."""

    name = "cuda"

    def __init__(self) -> None:
        count = driver.device_count()
        if not count:
            raise BackendError("cuda: the driver is here, but sees no GPU")
        self._devices = tuple(as_device(f"cuda:{i}") for i in range(count))
        self.allocator = CudaAllocator()

    def allocate(self, nbytes: int, device: Device) -> GpuMemory:
        """Fresh memory."""
        return driver.gpu(device.id).allocate(nbytes)

    def deallocate(self, handle: GpuMemory, device: Device) -> None:
        """Memory goes back when the last holder drops it."""

    def copy_to_device(self, source: Any, handle: GpuMemory, device: Device) -> None:
        """Copy host bytes (any buffer) into an allocation."""
        raw = np.frombuffer(source, np.uint8)
        driver.gpu(device.id).write(handle.address, raw[: _within(handle, raw.nbytes)])

    def copy_from_device(self, handle: GpuMemory, target: Any, device: Device) -> None:
        """Copy the beginning of an allocation into host bytes (any writable buffer)."""
        raw = np.frombuffer(target, np.uint8)
        driver.gpu(device.id).read(handle.address, raw[: _within(handle, raw.nbytes)])

    def copy_within_device(
        self, source: GpuMemory, target: GpuMemory, nbytes: int, device: Device
    ) -> None:
        """Copy between two allocations."""
        size = min(_within(source, nbytes), _within(target, nbytes))
        driver.gpu(device.id).copy(target.address, source.address, size)

    def devices(self) -> tuple[Device, ...]:
        """`cuda:0 …`, as many as there are."""
        return self._devices

    def default_device(self) -> Device:
        """`cuda:0`."""
        return as_device("cuda:0")

    def default_client(self, device: Device) -> CudaClient:
        """The client of one GPU."""
        return CudaClient(device)


def _within(handle: GpuMemory, nbytes: int) -> int:
    if not 0 <= nbytes <= handle.nbytes:
        raise ArgumentError(f"copy: {nbytes} bytes do not fit {handle.nbytes}")
    return nbytes
