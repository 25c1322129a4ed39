"""A backend in another package: device memory is a bytearray that only this module can read.

It shows what weft asks of a backend. Ops run by copying operands to the host, evaluating the op's
reference there and copying the results back; float64 and complex numbers are refused, as are ops
listed in `ABSENT`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from weft.core.common.device import Device, as_device
from weft.core.common.types import Array, DType, Shape, TensorType
from weft.errors import InteropError, UnsupportedDTypeError, UnsupportedError
from weft.runtime.named import NamedFunctions

REFUSED = frozenset({"float64", "complex64", "complex128"})
ABSENT = frozenset({"sort"})


@dataclass(frozen=True, slots=True, weakref_slot=True)
class MockArray:
    """What stands for an array on a mock device."""

    shape: Shape
    dtype: DType
    memory: bytearray

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def to_host(self) -> Array:
        return np.frombuffer(bytes(self.memory), self.dtype).reshape(self.shape)

    def dlpack_device(self) -> tuple[int, int]:
        return (12, 0)  # DLPack's number for extension devices

    def to_dlpack(self, *_: Any) -> Any:
        raise InteropError("dlpack: memory of the mock device cannot be shared")


@dataclass(frozen=True, slots=True)
class MockStats:
    allocations: int
    frees: int
    live_bytes: int


class MockAllocator:
    def __init__(self) -> None:
        self.allocations = self.frees = self.live_bytes = 0

    def allocate(self, nbytes: int) -> bytearray:
        self.allocations += 1
        self.live_bytes += nbytes
        return bytearray(nbytes)

    def deallocate(self, storage: bytearray) -> None:
        self.frees += 1
        self.live_bytes -= len(storage)
        storage.clear()

    def stats(self) -> MockStats:
        return MockStats(self.allocations, self.frees, self.live_bytes)


class MockClient(NamedFunctions):
    def __init__(self, device: Device) -> None:
        self._device = device
        self.executed: list[str] = []
        self.synchronized = 0

    @property
    def device(self) -> Device:
        return self._device

    def synchronize(self) -> None:
        self.synchronized += 1

    def check(
        self,
        op: Any,
        types: tuple[TensorType, ...],
        params: Mapping[str, Any],
        results: tuple[TensorType, ...],
    ) -> None:
        if op.name in ABSENT:
            raise UnsupportedError(f"{op}: backend mock has no kernel for it")
        for kind in (*types, *results):
            self._check_dtype(kind.dtype, op.name)

    def execute(
        self,
        op: Any,
        arrays: tuple[MockArray, ...],
        params: Mapping[str, Any],
        types: tuple[TensorType, ...],
    ) -> tuple[MockArray, ...]:
        self.executed.append(op.name)
        assert all(type(a) is MockArray for a in arrays)
        with np.errstate(all="ignore"):
            found = op.eval(*(a.to_host() for a in arrays), **params)
        results = found if isinstance(found, tuple) else (found,)
        return tuple(
            self.to_device(np.asarray(r, kind.dtype))
            for r, kind in zip(results, types, strict=True)
        )

    def to_device(self, array: Array) -> MockArray:
        self._check_dtype(array.dtype, "to_device")
        return MockArray(array.shape, array.dtype, bytearray(array.tobytes()))

    def to_host(self, array: MockArray) -> Array:
        return array.to_host()

    def _check_dtype(self, dtype: DType, op: str) -> None:
        if dtype.name in REFUSED:
            raise UnsupportedDTypeError(f"{op}: backend mock has no {dtype.name}")


class MockRuntime:
    name = "mock"

    def __init__(self) -> None:
        self.allocator = MockAllocator()

    def allocate(self, nbytes: int, device: Device) -> bytearray:
        return self.allocator.allocate(nbytes)

    def deallocate(self, handle: bytearray, device: Device) -> None:
        self.allocator.deallocate(handle)

    def copy_to_device(self, source: Any, handle: bytearray, device: Device) -> None:
        handle[: len(source)] = source

    def copy_from_device(self, handle: bytearray, target: bytearray, device: Device) -> None:
        target[:] = handle[: len(target)]

    def copy_within_device(
        self, source: bytearray, target: bytearray, nbytes: int, device: Device
    ) -> None:
        target[:nbytes] = source[:nbytes]

    def devices(self) -> tuple[Device, ...]:
        return (as_device("mock:0"), as_device("mock:1"))

    def default_device(self) -> Device:
        return as_device("mock:0")

    def default_client(self, device: Device) -> MockClient:
        return MockClient(device)
