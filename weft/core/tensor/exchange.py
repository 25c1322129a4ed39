"""Leaving weft: Python values, NumPy arrays, DLPack, pickle, copies, text.

Reading a value realises the tensor. What NumPy gets is read-only; memory handed to another library
is marked shared from then on.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.device import Device
from weft.core.common.handler import loses_derivative
from weft.core.common.lazy import LazyModule
from weft.core.common.slots import FUNCTIONS
from weft.core.common.types import Array, DType, Shape
from weft.core.tensor import dlpack, sharing, show
from weft.core.tensor.impl import TensorImpl
from weft.errors import (
    ArgumentError,
    ConversionError,
    DifferentiationError,
    DTypeError,
    IndexingError,
    InteropError,
)

_WRITABLE = 1  # PyBUF_WRITABLE, which inspect.BufferFlags names from Python 3.12 on
_namespace = LazyModule("weft")


class Exchange:
    """Conversions from tensors to everything else."""

    __slots__ = ()

    if TYPE_CHECKING:
        _impl: TensorImpl

        @property
        def shape(self) -> Shape: ...
        @property
        def dtype(self) -> DType: ...
        @property
        def device(self) -> Device: ...
        @property
        def size(self) -> int: ...
        @property
        def requires_grad(self) -> bool: ...
        def data(self) -> Any: ...
        def host(self) -> Array: ...

    def numpy(self) -> Array:
        """The value as a read-only NumPy array that shares memory with the tensor where it can."""
        array = self.host().view()
        array.flags.writeable = False
        return array

    def item(self, *index: int) -> Any:
        """The single element as a Python number (or the element at `index`)."""
        array = self.host()
        if not index and array.size != 1:
            raise ConversionError(
                f"item: the tensor has {array.size} elements (shape {self.shape}), not one"
                "\nhint: index it first, or use tolist()"
            )
        if not index:
            return _python(array.reshape(())[()])
        try:
            found = array[index]
        except IndexError:
            found = array
        if found.ndim or not found.size:
            raise IndexingError(f"item: index {index} names no element of shape {self.shape}")
        return _python(found)

    def tolist(self) -> Any:
        """Nested Python lists of Python numbers."""
        array = self.host()
        if array.dtype.kind == "V":
            array = array.astype(np.float32)
        return array.tolist()

    def tobytes(self) -> bytes:
        """The bytes of the elements in row-major order."""
        return self.host().tobytes()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        self._check_read()
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise InteropError(f"__array__: {array.dtype} to {np.dtype(dtype)} needs a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __buffer__(self, flags: int) -> memoryview:
        if flags & _WRITABLE:
            raise InteropError(
                "buffer: a tensor's memory can be read through a buffer, not written"
            )
        self._check_read()
        array: Any = self.numpy()
        try:
            seen = memoryview(array)
        except ValueError:
            raise InteropError(
                f"buffer: {self.dtype} has no letter in the buffer protocol"
            ) from None
        sharing.share(array)
        return seen

    def _check_read(self, reader: str = "NumPy") -> None:
        """Refuse others who would read values where a derivative is wanted of what they make."""
        owner = self._impl.owner
        if owner is not None and loses_derivative(owner):
            raise DifferentiationError(
                f"{owner.title}: {reader} asks for the numbers of a tensor that is differentiated"
                " here, and what it makes of them would carry no derivative"
                "\nhint: use the function of weft; x.numpy() and x.detach() read values on purpose"
            )

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        self._check_read("DLPack")
        array = self.data()
        if not isinstance(array, np.ndarray):
            return array.to_dlpack(stream, max_version, dl_device, copy)
        if copy is None and min(array.strides, default=0) < 0:
            copy = True  # torch ends the process where strides are negative
        if not copy:
            array = _writable(self, array)
            sharing.share(array)
        return dlpack.to_capsule(
            array, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.device.kind == "cpu":
            return (1, 0)
        result: tuple[int, int] = self.data().dlpack_device()
        return result

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """What CuPy and Numba read of a tensor on a CUDA device; others have no such attribute."""
        if self.device.kind != "cuda":
            raise AttributeError(
                f"__cuda_array_interface__: the tensor is on {self.device}, not on a CUDA device"
            )
        self._check_read()
        array = self.data()
        found: dict[str, Any] = array.cuda_interface()
        sharing.keep(self, array.memory)  # others hold the tensor, which may be assigned to
        return found

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        if api_version not in (None, *_namespace.ARRAY_API_VERSIONS):
            raise ArgumentError(
                f"__array_namespace__: version {api_version!r} is not provided"
                f" (there are {', '.join(_namespace.ARRAY_API_VERSIONS)})"
            )
        return _namespace.load()

    def to_device(self, device: Any, /, *, stream: Any = None) -> Any:
        """The tensor on another device; the only way data moves between devices."""
        return FUNCTIONS["to_device"](self, device, stream=stream)

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ConversionError(
                f"bool: the truth of a tensor with {self.size} elements (shape {self.shape}) is"
                " ambiguous\nhint: use x.any() or x.all()"
            )
        return bool(self.host().reshape(())[()])

    def __float__(self) -> float:
        return float(self._scalar("float"))

    def __round__(self, digits: int | None = None) -> Any:
        return FUNCTIONS["round"](self, digits or 0)

    def __int__(self) -> int:
        value = self._scalar("int")
        try:
            return int(value)
        except (ValueError, OverflowError):
            raise ConversionError(f"int: {value} is no integer") from None

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __index__(self) -> int:
        if self.dtype.kind not in "iu" or self.shape != ():
            raise ConversionError(
                f"index: only an integer with no axes is an index, not {self.dtype}{self.shape}"
            )
        return int(self.host()[()])

    def _scalar(self, to: str) -> Any:
        if self.size != 1:
            raise ConversionError(f"{to}: the tensor has {self.size} elements, not one")
        if self.dtype.kind == "c" and to != "complex":
            raise DTypeError(f"{to}: a complex tensor has no {to} value\nhint: take .real or abs")
        return self.item()

    def __reduce__(self) -> tuple[Any, ...]:
        array = np.ascontiguousarray(self.host()).reshape(self.shape)
        kind = self.dtype.name, self.shape, self.device.name
        return _restore, (array.tobytes(), *kind, self.requires_grad)

    def __copy__(self) -> Any:
        return _another(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self.requires_grad:  # a leaf of its own: no gradient flows from it to this one
            value = FUNCTIONS["tensor"](FUNCTIONS["detach"](self))
            return FUNCTIONS["requires_grad"](value)
        return FUNCTIONS["tensor"](self, copy=True) if self._impl.owner is None else _another(self)

    def __repr__(self) -> str:
        return show.text(self)

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        if self.size != 1:
            raise ConversionError(f"format: {spec!r} needs a single element, not {self.shape}")
        return format(self.item(), spec)

    def _repr_html_(self) -> str:
        return show.html(self)


def _another(tensor: Any) -> Any:
    """A second handle on the same value."""
    return type(tensor)(tensor._impl)


def _writable(tensor: Any, array: Array) -> Array:
    """A tensor's memory, which becomes another one where weft counts on the values of this one."""
    if sharing.is_common(array):
        array = sharing.own(array)
        if tensor._impl.owner is None:
            tensor._impl = TensorImpl.realized(array, tensor.type, tensor.device)
    return array


def _python(scalar: Any) -> Any:
    return scalar.item() if scalar.dtype.kind != "V" else float(scalar)


def _restore(
    raw: bytes, dtype: str, shape: tuple[int, ...], device: str, requires_grad: bool = False
) -> Any:
    array = np.frombuffer(bytearray(raw), dtypes.as_dtype(dtype)).reshape(shape)
    made = FUNCTIONS["tensor"](array, device=device)
    return FUNCTIONS["requires_grad"](made) if requires_grad else made
