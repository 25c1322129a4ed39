"""DLPack v1 in both directions, zero-copy, for every dtype weft has.

NumPy's own exporter and importer do the memory management: they are native, so a capsule that
outlives the interpreter's modules is still freed correctly. They know neither bfloat16 nor float8;
those travel as integers of their width, and the dtype written in the capsule is exchanged here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import ml_dtypes
import numpy as np

from weft.core.common.types import Array, DType, TensorType
from weft.errors import InteropError

NEWEST_VERSION: Final = (1, 2)
CPU_DEVICE: Final = (1, 0)
CUDA_KIND: Final = 2

KIND_NAMES: Final = {
    1: "cpu", 2: "cuda", 3: "cuda_host", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm",
    11: "rocm_host", 13: "cuda_managed", 14: "oneapi", 15: "webgpu", 16: "hexagon",
}  # fmt: skip
HOST_KINDS: Final = frozenset({1, 3})

READ_ONLY: Final = 1
IS_COPIED: Final = 2


@dataclass(frozen=True, slots=True)
class WireType:
    """How DLPack writes a dtype that NumPy cannot exchange, and the integer that carries it."""

    dtype: DType
    code: int
    bits: int
    minor_version: int

    @property
    def carrier(self) -> DType:
        """The unsigned integer dtype of the same width."""
        return np.dtype(f"uint{self.bits}")


WIRE_TYPES: Final = (
    WireType(np.dtype(ml_dtypes.bfloat16), code=4, bits=16, minor_version=0),
    WireType(np.dtype(ml_dtypes.float8_e4m3fn), code=10, bits=8, minor_version=1),
    WireType(np.dtype(ml_dtypes.float8_e5m2), code=12, bits=8, minor_version=1),
)
UNSIGNED_CODE: Final = 1


class _TypeStruct(ctypes.Structure):
    _fields_: ClassVar = [
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    ]


class _TensorStruct(ctypes.Structure):
    _fields_: ClassVar = [
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_number", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("dtype", _TypeStruct),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _VersionedStruct(ctypes.Structure):
    _fields_: ClassVar = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _TensorStruct),
    ]


# Prototypes of our own: setting `argtypes` on `ctypes.pythonapi` would change them for everybody.
_capsule_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@dataclass(frozen=True, slots=True)
class _Parcel:
    """An unconsumed capsule, offered to NumPy's importer as an object that speaks DLPack."""

    capsule: Any
    tensor: _TensorStruct
    versioned: _VersionedStruct | None

    @classmethod
    def of(cls, capsule: Any) -> _Parcel:
        if _capsule_is_valid(capsule, b"dltensor_versioned"):
            versioned = _VersionedStruct.from_address(
                _capsule_pointer(capsule, b"dltensor_versioned")
            )
            if versioned.major != 1:  # the fields after the version may lie elsewhere
                raise InteropError(
                    f"from_dlpack: the capsule is of DLPack {versioned.major}.{versioned.minor}, "
                    "weft reads version 1"
                )
            return cls(capsule, versioned.tensor, versioned)
        if _capsule_is_valid(capsule, b"dltensor"):
            tensor = _TensorStruct.from_address(_capsule_pointer(capsule, b"dltensor"))
            return cls(capsule, tensor, None)
        raise InteropError(
            f"from_dlpack: {capsule!r} is not an unconsumed DLPack capsule\n"
            "hint: a capsule can be imported once; export a new one"
        )

    @property
    def flags(self) -> int:
        return 0 if self.versioned is None else int(self.versioned.flags)

    @property
    def device(self) -> tuple[int, int]:
        return self.tensor.device_kind, self.tensor.device_number

    @contextmanager
    def placed_on(self, device: tuple[int, int]) -> Iterator[None]:
        """Exchange the device in the capsule for a while: the struct is its producer's."""
        tensor, before = self.tensor, self.device
        tensor.device_kind, tensor.device_number = device
        try:
            yield
        finally:
            tensor.device_kind, tensor.device_number = before

    @contextmanager
    def written_as(self, code: int, bits: int) -> Iterator[None]:
        """Exchange the dtype in the capsule for a while: the struct is its producer's."""
        dtype = self.tensor.dtype
        before = dtype.code, dtype.bits
        dtype.code, dtype.bits = code, bits
        try:
            yield
        finally:
            dtype.code, dtype.bits = before

    def __dlpack__(self, **_: object) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def to_capsule(
    array: Array,
    *,
    max_version: tuple[int, int] | None = None,
    stream: object = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """A DLPack capsule over the memory of `array`, for `__dlpack__` to return.

    The array lives until the consumer is done with it. The capsule is of version 1 where
    `max_version` allows that. A read-only array needs it: older capsules cannot say so.
    """
    if dl_device is not None and tuple(dl_device) != CPU_DEVICE:
        raise InteropError(
            f"dlpack: the tensor is on cpu:0 and cannot be exported to {device_name(dl_device)}"
        )
    if stream is not None:
        raise InteropError(f"dlpack: memory of the cpu has no stream (stream is {stream!r})")
    if not (array.flags.writeable or copy or _is_modern(max_version)):
        raise InteropError(
            f"dlpack: the memory is read-only, which max_version={max_version} cannot express\n"
            "hint: ask for max_version=(1, 0), or for copy=True"
        )
    wire = next((wire for wire in WIRE_TYPES if wire.dtype == array.dtype), None)
    exported = array if wire is None else array.view(wire.carrier)
    try:
        capsule = exported.__dlpack__(max_version=max_version, copy=copy)
    except BufferError as error:
        raise InteropError(
            f"dlpack: dtype {array.dtype} with strides {array.strides} cannot be exported: {error}"
        ) from error
    if wire is not None:
        parcel = _Parcel.of(capsule)
        parcel.tensor.dtype.code = wire.code
        if parcel.versioned is not None:
            parcel.versioned.minor = max(parcel.versioned.minor, wire.minor_version)
    return capsule


class _Elsewhere:
    """Memory that the host does not read, as NumPy is told of it, and what keeps it alive."""

    __slots__ = ("__array_interface__", "keeper")

    def __init__(self, interface: dict[str, Any], keeper: object) -> None:
        self.__array_interface__ = interface
        self.keeper = keeper


def to_capsule_elsewhere(
    address: int,
    kind: TensorType,
    device: tuple[int, int],
    keeper: object,
    *,
    max_version: tuple[int, int] | None = None,
    read_only: bool = False,
    copied: bool = False,
) -> Any:
    """A DLPack capsule over elements at an address of another device, packed row by row.

    `keeper` lives until the consumer is done with them.
    """
    wire = next((wire for wire in WIRE_TYPES if wire.dtype == kind.dtype), None)
    told = {
        "shape": kind.shape,
        "typestr": (kind.dtype if wire is None else wire.carrier).str,
        "data": (address, read_only),
        "version": 3,
    }
    array = np.asarray(_Elsewhere(told, keeper)).view(kind.dtype)
    capsule = to_capsule(array, max_version=max_version)
    parcel = _Parcel.of(capsule)
    parcel.tensor.device_kind, parcel.tensor.device_number = device
    if copied and parcel.versioned is not None:
        parcel.versioned.flags |= IS_COPIED
    return capsule


def view_elsewhere(source: Any, device: tuple[int, int], stream: int) -> tuple[Array, bool]:
    """Another library's elements on a device that is not the host: `(array, shared)`.

    The array has their address and strides, and keeps them alive; its elements must not be read.
    Work on `stream` sees what the producer has written before.
    """
    parcel = _Parcel.of(_asked(source, {"max_version": NEWEST_VERSION, "stream": stream}))
    if parcel.device != device:
        raise InteropError(
            f"from_dlpack: {type(source).__name__} says that it is on {device_name(device)}, its"
            f" capsule that it is on {device_name(parcel.device)}"
        )
    with parcel.placed_on(CPU_DEVICE):
        view = _view_of(parcel)
    return view, not parcel.flags & IS_COPIED


def device_of(source: Any) -> tuple[int, int]:
    """The DLPack device of an object that has one; arrays of the host need not say it."""
    ask = getattr(source, "__dlpack_device__", None)
    kind, number = CPU_DEVICE if ask is None else ask()
    return int(kind), int(number)


def from_capsule_or_object(
    source: Any, *, device: tuple[int, int] | None = None, copy: bool | None = None
) -> tuple[Array, bool, bool]:
    """Import a DLPack capsule, or an object that exports one: `(array, shared, read_only)`.

    The array is a view of the producer's memory, which is let go when the last view of it dies.
    `copy=True` always copies, `copy=False` never does and raises where it would have to. `device`
    asks a producer that lives elsewhere to bring its data to that device; only the host will do.
    A capsule older than version 1 cannot say whether it may be written, so it counts as read-only.
    """
    if device is not None and tuple(device) != CPU_DEVICE:
        raise InteropError(f"from_dlpack: cannot import to {device_name(device)}, only to cpu:0")
    parcel = _Parcel.of(_capsule_of(source, device, copy))
    if parcel.device[0] not in HOST_KINDS:
        raise _not_on_host(parcel.device)
    copied = bool(parcel.flags & IS_COPIED)
    if copied and copy is False:
        raise InteropError("from_dlpack: the producer made a copy, and copy=False forbids it")
    view = _view_of(parcel)
    if copy:
        return np.array(view, order="C"), False, False
    return view, not copied, not view.flags.writeable


def device_name(device: tuple[int, int]) -> str:
    """A DLPack device as users write it.

    >>> device_name((2, 1))
    'cuda:1'
    """
    kind, number = device
    return f"{KIND_NAMES.get(kind, f'device kind {kind}')}:{number}"


def _is_modern(max_version: tuple[int, int] | None) -> bool:
    return max_version is not None and max_version[0] >= 1


def _capsule_of(source: Any, device: tuple[int, int] | None, copy: bool | None) -> Any:
    if isinstance(source, np.ndarray):
        return to_capsule(source, max_version=NEWEST_VERSION)
    if type(source).__name__ == "PyCapsule":
        return source
    if not (hasattr(source, "__dlpack__") and hasattr(source, "__dlpack_device__")):
        raise InteropError(
            f"from_dlpack: {type(source).__name__} has no __dlpack__ and __dlpack_device__"
        )
    place = tuple(source.__dlpack_device__())
    keywords: dict[str, Any] = {"max_version": NEWEST_VERSION}
    if place[0] not in HOST_KINDS:
        if device is None or copy is False:
            raise _not_on_host(place)
        keywords["dl_device"] = device
    return _asked(source, keywords)


def _asked(source: Any, keywords: dict[str, Any]) -> Any:
    """The capsule that a producer gives when it is asked in this way."""
    try:
        return _export(source, keywords)
    except (BufferError, RuntimeError, ValueError) as error:
        raise InteropError(
            f"from_dlpack: {type(source).__name__} refuses to export: {error}"
        ) from error


def _export(source: Any, keywords: dict[str, Any]) -> Any:
    try:
        return source.__dlpack__(**keywords)
    except TypeError:
        if "dl_device" in keywords:
            raise
    # A producer from before DLPack 1 knows no `max_version`.
    return source.__dlpack__(**{key: keywords[key] for key in keywords if key == "stream"})


def _not_on_host(device: tuple[int, int]) -> InteropError:
    return InteropError(
        f"from_dlpack: the data is on {device_name(device)}, which is not host memory\n"
        "hint: move it to the cpu first, in the library that made it"
    )


def _view_of(parcel: _Parcel) -> Array:
    dtype = parcel.tensor.dtype
    written, lanes = (dtype.code, dtype.bits), dtype.lanes
    wire = next((wire for wire in WIRE_TYPES if (wire.code, wire.bits) == written), None)
    try:
        if wire is None:
            return np.from_dlpack(parcel)
        with parcel.written_as(UNSIGNED_CODE, wire.bits):
            view = np.from_dlpack(parcel)
        return view.view(wire.dtype)
    except (BufferError, RuntimeError) as error:
        raise InteropError(
            f"from_dlpack: cannot view type code {written[0]} of {written[1]} bits and {lanes} "
            f"lanes: {error}"
        ) from error
