"""`GpuArray`: what stands for an array on a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from weft.core.common.types import Array, DType, Shape, TensorType
from weft.core.tensor import dlpack, sharing
from weft.core.tensor.layout import Layout
from weft.errors import InteropError
from weft.runtime.gpu.interface import Driver, GpuMemory

LEGACY_STREAM = 1  # weft's work is done on CUDA's legacy default stream, as DLPack counts them
_NO_STREAM = -1  # the consumer does not want anything to be waited for


class GpuArray:
    """Elements in row-major order, from some byte of a piece of memory on.

    Nobody writes to them once the array is there, so arrays may share memory; only those of
    memory that is shared with another library may change.
    """

    __slots__ = ("__weakref__", "dtype", "gpu", "memory", "offset", "shape")

    def __init__(
        self, gpu: Driver, memory: GpuMemory, shape: Shape, dtype: DType, offset: int = 0
    ) -> None:
        self.gpu, self.memory, self.shape, self.dtype = gpu, memory, shape, dtype
        self.offset = offset  # bytes

    @classmethod
    def of(cls, gpu: Driver, array: Array) -> GpuArray:
        """A copy of a host array."""
        plain = np.ascontiguousarray(array, gpu.stored(array.dtype))
        made = cls.empty(gpu, array.shape, array.dtype)
        if plain.nbytes:
            gpu.write(made.address, plain)
        return made

    @classmethod
    def empty(cls, gpu: Driver, shape: Shape, dtype: DType) -> GpuArray:
        """An array that is yet to be written."""
        return cls(gpu, gpu.allocate(prod(shape) * gpu.stored(dtype).itemsize), shape, dtype)

    @property
    def size(self) -> int:
        """How many elements there are."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes they take."""
        return prod(self.shape) * self.gpu.stored(self.dtype).itemsize

    @property
    def address(self) -> int:
        """Where the first element lies."""
        return self.memory.address + self.offset

    def __repr__(self) -> str:
        return f"GpuArray({self.dtype}{list(self.shape)} at {self.address:#x})"

    def to_host(self) -> Array:
        """A copy as a NumPy array; waits for what computes it."""
        made = np.empty(self.shape, self.gpu.stored(self.dtype))
        if made.nbytes:
            self.gpu.read(self.address, made)
        return made.astype(self.dtype, copy=False)

    def reshaped(self, shape: Shape) -> GpuArray:
        """The same elements in another shape."""
        return GpuArray(self.gpu, self.memory, shape, self.dtype, self.offset)

    def row(self, number: int) -> GpuArray:
        """One slice along the leading axis: where it lies, if kernels can read it there."""
        shape = self.shape[1:]
        size = prod(shape) * self.gpu.stored(self.dtype).itemsize
        there = GpuArray(self.gpu, self.memory, shape, self.dtype, self.offset + number * size)
        if there.offset % self.gpu.aligned == 0:
            return there
        made = GpuArray.empty(self.gpu, shape, self.dtype)
        made.put(there)
        return made

    @classmethod
    def borrowed(cls, gpu: Driver, view: Array, shared: bool) -> tuple[GpuArray, Layout]:
        """Another library's elements, from the lowest address to the highest, and their layout.

        `view` has the addresses and keeps the memory alive. It is copied, on the GPU, only where
        kernels cannot read it because of its address.
        """
        if not view.size:
            return cls.empty(gpu, (0,), view.dtype), Layout.contiguous_of(view.shape)
        low, high = np.lib.array_utils.byte_bounds(view)
        memory = gpu.borrow(low, high - low, view)
        memory.shared, memory.read_only = shared, not view.flags.writeable
        array = cls(gpu, memory, ((high - low) // view.itemsize,), view.dtype)
        return array if low % gpu.aligned == 0 else array.copied(), Layout.of_array(view, low)

    @property
    def is_shared(self) -> bool:
        """Whether another library may write to the elements."""
        return self.memory.shared

    def share(self) -> None:
        """Let others write to the elements from now on."""
        self.memory.shared = True

    def hand_out(self) -> None:
        """Have the elements where another library may write to them, and mark them."""
        if self.memory.common:
            made = self.copied()
            self.memory, self.offset = made.memory, made.offset
        sharing.share(self)

    def copied(self) -> GpuArray:
        """The elements in memory of their own."""
        made = GpuArray.empty(self.gpu, self.shape, self.dtype)
        made.put(self)
        return made

    def put(self, array: GpuArray, number: int = 0) -> None:
        """Copy an array over the elements of a slice of this size, while nobody reads them yet."""
        if array.nbytes:
            self.gpu.copy(self.address + number * array.nbytes, array.address, array.nbytes)

    def dlpack_device(self) -> tuple[int, int]:
        """DLPack's number of such devices, and which one it is."""
        return (self.gpu.dlpack, self.gpu.number)

    def to_dlpack(
        self,
        stream: Any,
        max_version: tuple[int, int] | None,
        dl_device: tuple[int, int] | None,
        copy: bool | None,
    ) -> Any:
        """A DLPack capsule over the elements, or over a copy of them, there or on the host."""
        here, kind = self.dlpack_device(), TensorType(self.shape, self.dtype)
        if dl_device is not None and tuple(dl_device) not in (here, dlpack.CPU_DEVICE):
            raise InteropError(
                f"dlpack: the tensor is on {dlpack.device_name(here)} and cannot be exported to"
                f" {dlpack.device_name(dl_device)}\nhint: x.to_device(…) moves it first"
            )
        if dl_device is not None and tuple(dl_device) != here:
            if copy is False:
                raise InteropError(
                    f"dlpack: from {dlpack.device_name(here)} to the host is a copy, and copy=False"
                )
            host, place = self.to_host(), dlpack.CPU_DEVICE
            return dlpack.to_capsule_elsewhere(
                host.ctypes.data, kind, place, host, max_version=max_version, copied=True
            )
        if not self.gpu.lends:
            raise InteropError(
                f"dlpack: memory of {dlpack.device_name(here)} is not shared with other libraries"
                "\nhint: x.to_device('cpu') gives a tensor that can be"
            )
        known = _check_stream(stream)
        source = self.copied() if copy else self
        if not copy:
            self.hand_out()
        if not known and stream != _NO_STREAM:
            self.gpu.synchronize()
        return dlpack.to_capsule_elsewhere(
            source.address,
            kind,
            here,
            source.memory if known else _Waits(self.gpu, source.memory),
            max_version=max_version,
            read_only=source.memory.read_only,
            copied=bool(copy),
        )

    def cuda_interface(self) -> dict[str, Any]:
        """What `__cuda_array_interface__` is to say (version 3)."""
        if self.dtype.kind == "V":
            raise InteropError(
                f"__cuda_array_interface__: cannot say {self.dtype.name}"
                "\nhint: DLPack can: cupy.from_dlpack(x), torch.from_dlpack(x)"
            )
        self.hand_out()
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address if self.size else 0, self.memory.read_only),
            "version": 3,
            "strides": None,
            "stream": LEGACY_STREAM,
        }


class _Waits:
    """Keeps memory for a consumer on another stream, whose work is waited for at the end."""

    __slots__ = ("_gpu", "_memory")

    def __init__(self, gpu: Driver, memory: GpuMemory) -> None:
        self._gpu, self._memory = gpu, memory

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_ending():
            self._gpu.synchronize()


def _check_stream(stream: Any) -> bool:
    """Whether a consumer works on weft's own stream, so that all is done in order."""
    if stream is None or stream == LEGACY_STREAM:
        return True
    if type(stream) is not int or stream == 0 or stream < _NO_STREAM:
        raise InteropError(
            f"dlpack: {stream!r} is no stream of CUDA"
            "\nhint: 1 is the legacy default stream, 2 that of a thread, -1 asks for no waiting;"
            " others are handles"
        )
    return False
