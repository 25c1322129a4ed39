"""`GpuArray`: what stands for an array on a GPU."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from weft.core.common.types import Array, DType, Shape
from weft.errors import InteropError

ALIGNED = 16  # bytes that the address of an operand divides by, so that vectors can be read


class GpuArray:
    """Elements in row-major order, from some byte of a piece of memory on.

    Nobody writes to them once the array is there, so arrays may share memory.
    """

    __slots__ = ("__weakref__", "dtype", "gpu", "memory", "offset", "shape")

    def __init__(self, gpu: Any, memory: Any, shape: Shape, dtype: DType, offset: int = 0) -> None:
        self.gpu, self.memory, self.shape, self.dtype = gpu, memory, shape, dtype
        self.offset = offset  # bytes

    @classmethod
    def of(cls, gpu: Any, array: Array) -> GpuArray:
        """A copy of a host array."""
        plain = np.ascontiguousarray(array)
        made = cls.empty(gpu, array.shape, array.dtype)
        if plain.nbytes:
            gpu.write(made.address, plain)
        return made

    @classmethod
    def empty(cls, gpu: Any, shape: Shape, dtype: DType) -> GpuArray:
        """An array that is yet to be written."""
        return cls(gpu, gpu.allocate(prod(shape) * dtype.itemsize), shape, dtype)

    @property
    def size(self) -> int:
        """How many elements there are."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes they take."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def address(self) -> int:
        """Where the first element lies."""
        address: int = self.memory.address + self.offset
        return address

    def __repr__(self) -> str:
        return f"GpuArray({self.dtype}{list(self.shape)} at {self.address:#x})"

    def to_host(self) -> Array:
        """A copy as a NumPy array; waits for what computes it."""
        made = np.empty(self.shape, self.dtype)
        if made.nbytes:
            self.gpu.read(self.address, made)
        return made

    def reshaped(self, shape: Shape) -> GpuArray:
        """The same elements in another shape."""
        return GpuArray(self.gpu, self.memory, shape, self.dtype, self.offset)

    def row(self, number: int) -> GpuArray:
        """One slice along the leading axis: where it lies, if kernels can read it there."""
        shape = self.shape[1:]
        size = prod(shape) * self.dtype.itemsize
        there = GpuArray(self.gpu, self.memory, shape, self.dtype, self.offset + number * size)
        if there.offset % ALIGNED == 0:
            return there
        made = GpuArray.empty(self.gpu, shape, self.dtype)
        made.put(there)
        return made

    def put(self, array: GpuArray, number: int = 0) -> None:
        """Copy an array over the elements of a slice of this size, while nobody reads them yet."""
        if array.nbytes:
            self.gpu.copy(self.address + number * array.nbytes, array.address, array.nbytes)

    def dlpack_device(self) -> tuple[int, int]:
        """DLPack's number of CUDA devices, and which one it is."""
        return (2, self.gpu.number)

    def to_dlpack(self, *_: Any) -> Any:
        """Sharing it with another library is not supported."""
        raise InteropError(
            "dlpack: memory of a GPU is not shared with other libraries"
            "\nhint: x.to_device('cpu') gives a tensor that can be"
        )
