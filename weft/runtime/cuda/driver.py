"""An NVIDIA GPU through its driver library, libcuda, by ctypes: no toolkit is needed.

`gpu()` opens a device; it loads PTX, holds memory, launches kernels and measures them. A driver
that is missing or refuses raises an error of weft that says which call failed and why.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from weft.core.common.types import Array
from weft.errors import BackendError, DeviceError, OutOfMemoryError

_LIBRARY = "libcuda.so.1"
_OUT_OF_MEMORY = 2
_MAJOR, _MINOR = 75, 76  # attributes: the compute capability
_LOG_BYTES = 8192
_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6  # options of a module: where the compiler complains


@functools.cache
def _library() -> Any:
    try:
        found = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise BackendError(
            f"cuda: {_LIBRARY} cannot be loaded ({error})\n"
            "hint: it comes with the driver of an NVIDIA GPU"
        ) from error
    code = found.cuInit(0)
    if code:
        raise BackendError(f"cuda: the driver does not start: {_reason(found, code)}")
    return found


def _reason(library: Any, code: int) -> str:
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    library.cuGetErrorName(code, ctypes.byref(name))
    library.cuGetErrorString(code, ctypes.byref(text))
    parts = [(x.value or b"unknown").decode() for x in (name, text)]
    return f"{parts[0]} ({parts[1]})"


def is_available() -> bool:
    """Whether a GPU and its driver are here."""
    try:
        return device_count() > 0
    except BackendError:
        return False


def device_count() -> int:
    """How many GPUs the driver sees."""
    count = ctypes.c_int()
    code = _library().cuDeviceGetCount(ctypes.byref(count))
    return 0 if code else count.value


@functools.cache
def gpu(number: int = 0) -> Gpu:
    """The GPU of this number, opened once."""
    count = device_count()
    if not 0 <= number < count:
        raise DeviceError(f"cuda: device {number}: this machine has {count}")
    return Gpu(number)


class GpuMemory:
    """Bytes on a GPU, given back when nobody holds this."""

    def __init__(self, owner: Gpu, nbytes: int) -> None:
        self.nbytes = nbytes
        self.address = ctypes.c_uint64()
        self._owner = owner
        owner.call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(max(nbytes, 1)))
        weakref.finalize(self, owner.free, self.address.value)

    def write(self, array: Array) -> None:
        """Copy a contiguous array there."""
        source = ctypes.c_void_p(array.ctypes.data)
        self._owner.call("cuMemcpyHtoD_v2", self.address, source, ctypes.c_size_t(array.nbytes))

    def copy_from(self, source: GpuMemory) -> None:
        """Copy other memory of this size here, on the GPU."""
        size = ctypes.c_size_t(self.nbytes)
        self._owner.call("cuMemcpyDtoDAsync_v2", self.address, source.address, size, None)

    def read(self, array: Array) -> None:
        """Copy it into a contiguous array; waits for the kernels before."""
        target = ctypes.c_void_p(array.ctypes.data)
        self._owner.call("cuMemcpyDtoH_v2", target, self.address, ctypes.c_size_t(array.nbytes))


class GpuModule:
    """Loaded kernels."""

    def __init__(self, owner: Gpu, ptx: str) -> None:
        self._owner = owner
        self._handle = ctypes.c_void_p()
        log = ctypes.create_string_buffer(_LOG_BYTES)
        options = (ctypes.c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        text = ctypes.c_char_p(ptx.encode())
        try:
            owner.call("cuModuleLoadDataEx", ctypes.byref(self._handle), text, 2, options, values)
        except DeviceError as error:
            error.add_note(log.value.decode(errors="replace"))
            raise

    def function(self, name: str) -> ctypes.c_void_p:
        """The kernel of this name."""
        found = ctypes.c_void_p()
        where = ctypes.byref(found)
        self._owner.call("cuModuleGetFunction", where, self._handle, name.encode())
        return found


class Gpu:
    """One GPU; its work is done in the order it is asked for."""

    def __init__(self, number: int) -> None:
        self._library = _library()
        device, self._context = ctypes.c_int(), ctypes.c_void_p()
        self._check("cuDeviceGet", self._library.cuDeviceGet(ctypes.byref(device), number))
        retained = self._library.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), device)
        self._check("cuDevicePrimaryCtxRetain", retained)
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, len(text), device)
        self.name = text.value.decode()
        capability = []
        for attribute in (_MAJOR, _MINOR):
            found = ctypes.c_int()
            self.call("cuDeviceGetAttribute", ctypes.byref(found), attribute, device)
            capability.append(found.value)
        self.capability = (capability[0], capability[1])

    def _check(self, name: str, code: int) -> None:
        if code == _OUT_OF_MEMORY:
            raise OutOfMemoryError(f"cuda: {name}: {_reason(self._library, code)}")
        if code:
            raise DeviceError(f"cuda: {name}: {_reason(self._library, code)}")

    def call(self, name: str, *args: Any) -> None:
        """One call of the driver on this device, from any thread."""
        self._check("cuCtxSetCurrent", self._library.cuCtxSetCurrent(self._context))
        self._check(name, getattr(self._library, name)(*args))

    def free(self, address: int) -> None:
        """Give memory back; at the end of the process the driver may be gone before."""
        self._library.cuCtxSetCurrent(self._context)
        self._library.cuMemFree_v2(ctypes.c_uint64(address))

    def load(self, ptx: str) -> GpuModule:
        """Compile PTX for this GPU and load it."""
        return GpuModule(self, ptx)

    def allocate(self, nbytes: int) -> GpuMemory:
        """Memory whose address divides by 256."""
        return GpuMemory(self, nbytes)

    def launch(
        self,
        function: ctypes.c_void_p,
        blocks: int,
        threads: int,
        memory: Sequence[GpuMemory],
        parameters: Sequence[int] = (),
    ) -> None:
        """Start a kernel; it runs when the work before it is done."""
        given = [block.address for block in memory]
        numbers = [ctypes.c_int64(x) for x in parameters]
        places = [ctypes.addressof(x) for x in (*given, *numbers)]
        args = (ctypes.c_void_p * len(places))(*places)
        grid = (blocks, 1, 1, threads, 1, 1, 0)
        self.call("cuLaunchKernel", function, *grid, None, args, None)

    def synchronize(self) -> None:
        """Wait until all work is done; a kernel that failed raises here."""
        self.call("cuCtxSynchronize")

    def milliseconds(self, work: Callable[[], object]) -> float:
        """How long the GPU is busy with what `work` starts."""
        start, end = ctypes.c_void_p(), ctypes.c_void_p()
        for event in (start, end):
            self.call("cuEventCreate", ctypes.byref(event), 0)
        self.call("cuEventRecord", start, None)
        work()
        self.call("cuEventRecord", end, None)
        self.call("cuEventSynchronize", end)
        found = ctypes.c_float()
        self.call("cuEventElapsedTime", ctypes.byref(found), start, end)
        for event in (start, end):
            self.call("cuEventDestroy_v2", event)
        return found.value
