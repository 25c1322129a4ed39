"""An NVIDIA GPU through its driver library, libcuda, by ctypes: no toolkit is needed.

`gpu()` opens a device; it loads PTX, holds memory, launches kernels and measures them. Work is done
in the order it is asked for, so memory that is given back may be used again at once: the driver
keeps it in a pool. A driver that is missing or refuses raises an error of weft that says which call
failed and why.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import hashlib
import sys
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any, ClassVar, NamedTuple

from weft.core.common.types import Array
from weft.errors import BackendError, DeviceError, OutOfMemoryError
from weft.runtime.cpu.code_cache import code_cache
from weft.runtime.gpu.interface import REPORT, Driver, GpuMemory

_LIBRARY = "libcuda.so.1"
_OUT_OF_MEMORY = 2
_MAJOR, _MINOR = 75, 76  # attributes: the compute capability
_SHARED = 97  # the bytes that threads of a block may be given to share
_POOLS = 115  # whether the driver keeps memory that was given back
_KEEP = 4  # an attribute of such a pool: bytes that it keeps
_EVERYTHING = 2**64 - 1
_IDLE = 1 << 31  # bytes of memory that are kept by their size: such comes back soon
_PAGE, _LINE = 4096, 64  # bytes of the host's memory for reports, and of each
_EVERYWHERE = 1 | 2  # for all GPUs, at the same address
_MOST_SHARED = 8  # an attribute of functions: bytes that its blocks may be given to share
_LOG_BYTES = 8192
_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6  # options: where the driver's compiler complains


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


class Function(NamedTuple):
    """A kernel that is loaded, and the bytes its blocks share besides those its code has."""

    handle: ctypes.c_void_p
    shared: int


class GpuModule:
    """Loaded kernels, which the driver makes of PTX; it keeps what it has made on disk."""

    def __init__(self, owner: Gpu, ptx: bytes) -> None:
        self._owner = owner
        self._handle = ctypes.c_void_p()
        log = ctypes.create_string_buffer(_LOG_BYTES)
        options = (ctypes.c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        text = ctypes.c_char_p(ptx)
        try:
            owner.call("cuModuleLoadDataEx", ctypes.byref(self._handle), text, 2, options, values)
        except DeviceError as error:
            error.add_note(log.value.decode(errors="replace"))
            raise

    def function(self, name: str, shared: int = 0) -> Function:
        """The kernel of this name, whose blocks are given so many bytes to share at its start."""
        found = ctypes.c_void_p()
        where = ctypes.byref(found)
        self._owner.call("cuModuleGetFunction", where, self._handle, name.encode())
        if shared:
            self._owner.call("cuFuncSetAttribute", found, _MOST_SHARED, ctypes.c_int(shared))
        return Function(found, shared)


class _Node(ctypes.Structure):
    """A kernel of a graph, as the driver is told of it."""

    _fields_: ClassVar = [
        ("function", ctypes.c_void_p),
        *((f"{name}_{axis}", ctypes.c_uint) for name in ("grid", "block") for axis in "xyz"),
        ("shared_bytes", ctypes.c_uint),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    ]


class GpuChain:
    """Kernels that wait for each other, which the driver calls a graph; calling it starts them."""

    def __init__(self, owner: Gpu, starts: Sequence[Any], waits: Sequence[Sequence[int]]) -> None:
        self._start: Callable[[], int] = lambda: 0
        self._handle: ctypes.c_void_p | None = None
        self._destroy = owner.library.cuGraphExecDestroy
        graph, made = ctypes.c_void_p(), ctypes.c_void_p()
        owner.call("cuGraphCreate", ctypes.byref(graph), 0)
        try:
            nodes = list[int | None]()
            for start, before in zip(starts, waits, strict=True):
                function, *grid, shared, _, places, _ = start.args  # of `prepare`
                told = _Node(function, *grid, shared, ctypes.addressof(places), None, None, None)
                node, count = ctypes.c_void_p(), len(before)
                after = (ctypes.c_void_p * count)(*(nodes[k] for k in before))
                where, given = ctypes.byref(node), ctypes.byref(told)
                size = ctypes.c_size_t(count)
                owner.call("cuGraphAddKernelNode_v2", where, graph, after, size, given)
                nodes.append(node.value)
            flags = ctypes.c_ulonglong(0)
            owner.call("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, flags)
        finally:
            owner.call("cuGraphDestroy", graph)
        self._handle = made
        self._start = functools.partial(owner.library.cuGraphLaunch, made, None)

    def __call__(self) -> int:
        return self._start()

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._handle is not None and not is_ending():
            self._destroy(self._handle)


class Gpu(Driver):
    """One GPU; its work is done in the order it is asked for."""

    kind = "cuda"
    dlpack = 2
    lends = True
    chains = True

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.library = _library()
        self._idle: dict[int, list[int]] = {}  # memory that came back, by size
        self._idle_bytes = 0
        self._reports: list[int] = []  # numbers that no run has
        self._settled: set[int] = set()  # those of runs, which no kernel writes any more
        device, self._context = ctypes.c_int(), ctypes.c_void_p()
        self._check("cuDeviceGet", self.library.cuDeviceGet(ctypes.byref(device), number))
        retained = self.library.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), device)
        self._check("cuDevicePrimaryCtxRetain", retained)
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, len(text), device)
        self.name = text.value.decode()
        self.capability = (self._attribute(_MAJOR, device), self._attribute(_MINOR, device))
        self.shared = self._attribute(_SHARED, device)  # bytes, of one block
        whole = ctypes.c_size_t()
        self.call("cuDeviceTotalMem_v2", ctypes.byref(whole), device)
        self.nbytes = whole.value
        self._pool = self._open_pool(device) if self._attribute(_POOLS, device) else None

    def _attribute(self, number: int, device: ctypes.c_int) -> int:
        found = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(found), number, device)
        return found.value

    def _open_pool(self, device: ctypes.c_int) -> ctypes.c_void_p:
        """The driver's pool, which is to keep what it is given back."""
        pool, most = ctypes.c_void_p(), ctypes.c_uint64(_EVERYTHING)
        self.call("cuDeviceGetDefaultMemPool", ctypes.byref(pool), device)
        self.call("cuMemPoolSetAttribute", pool, _KEEP, ctypes.byref(most))
        return pool

    def _check(self, name: str, code: int) -> None:
        if code == _OUT_OF_MEMORY:
            raise OutOfMemoryError(f"cuda: {name}: {_reason(self.library, code)}")
        if code:
            raise DeviceError(f"cuda: {name}: {_reason(self.library, code)}")

    def call(self, name: str, *args: Any) -> None:
        """One call of the driver on this device, from any thread."""
        self.enter()
        self._check(name, getattr(self.library, name)(*args))

    def enter(self) -> None:
        """Let calls of this thread be about this device."""
        code = self.library.cuCtxSetCurrent(self._context)
        if code:
            self._check("cuCtxSetCurrent", code)

    def _aside(self, name: str, *args: Any) -> int:
        """The code of one call that a finaliser may make amid this thread's work elsewhere."""
        code: int = self.library.cuCtxPushCurrent_v2(self._context)
        if code:
            return code
        try:
            code = getattr(self.library, name)(*args)
        finally:
            self.library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        return code

    # -- memory ----------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> GpuMemory:
        """Memory whose address divides by 256."""
        with self._lock:
            idle = self._idle.get(nbytes)
            if idle:
                self._idle_bytes -= nbytes
                self.counted(nbytes)
                # The lowest one, so that a program that runs again finds the same.
                return GpuMemory(heappop(idle), nbytes, self._free)
        try:
            address = self._reserve(nbytes)
        except OutOfMemoryError:
            gc.collect()
            self.trim()
            try:
                address = self._reserve(nbytes)
            except OutOfMemoryError as error:
                raise OutOfMemoryError(
                    f"cuda: {nbytes} bytes are not free on {self.name}: of {self.nbytes},"
                    f" this process holds {self._live}"
                    "\nhint: drop tensors that are no longer needed; wf.memory_report() lists them"
                ) from error
        with self._lock:
            self.counted(nbytes)
        return GpuMemory(address, nbytes, self._free)

    def _reserve(self, nbytes: int) -> int:
        address, size = ctypes.c_uint64(), ctypes.c_size_t(max(nbytes, 1))
        if self._pool is None:
            self.call("cuMemAlloc_v2", ctypes.byref(address), size)
        else:
            self.call("cuMemAllocAsync", ctypes.byref(address), size, None)
        return address.value

    def _free(self, address: int, nbytes: int) -> None:
        with self._lock:
            self.discounted(nbytes)
            if self._idle_bytes + nbytes <= _IDLE:
                self._idle_bytes += nbytes
                heappush(self._idle.setdefault(nbytes, []), address)
                return
        self._give_back(address)

    def _give_back(self, address: int) -> None:
        if self._pool is None:
            self._aside("cuMemFree_v2", ctypes.c_uint64(address))
        else:
            self._aside("cuMemFreeAsync", ctypes.c_uint64(address), None)

    def borrow(self, address: int, nbytes: int, owner: object) -> GpuMemory:
        """Another library's memory; its `owner` is let go when what weft does with it is done."""

        def let_go(*_: int) -> None:
            nonlocal owner
            self._aside("cuStreamSynchronize", None)  # the owner may work on another stream
            owner = None

        return GpuMemory(address, nbytes, let_go)

    def trim(self) -> None:
        """Give the memory that is kept for later back to the system."""
        with self._lock:
            idle, self._idle, self._idle_bytes = self._idle, {}, 0
        for address in (x for found in idle.values() for x in found):
            self._give_back(address)
        if self._pool is not None:
            self.synchronize()
            self.call("cuMemPoolTrimTo", self._pool, ctypes.c_size_t(0))

    def write(self, address: int, array: Array) -> None:
        """Copy a contiguous array to an address."""
        source, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), source, size)

    def read(self, address: int, array: Array) -> None:
        """Copy what lies at an address into a contiguous array; waits for the kernels before."""
        target, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        self.call("cuMemcpyDtoH_v2", target, ctypes.c_uint64(address), size)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy bytes from one address to another, on the GPU."""
        places = ctypes.c_uint64(target), ctypes.c_uint64(source)
        self.call("cuMemcpyDtoDAsync_v2", *places, ctypes.c_size_t(nbytes), None)

    def clear(self, address: int, nbytes: int) -> None:
        """Make bytes zero."""
        place, size = ctypes.c_uint64(address), ctypes.c_size_t(nbytes)
        self.call("cuMemsetD8Async", place, ctypes.c_ubyte(0), size, None)

    def report(self) -> GpuMemory:
        """A number in memory of the host, which kernels write to without a copy."""
        with self._lock:
            if not self._reports:
                page = ctypes.c_void_p()
                self.call("cuMemHostAlloc", ctypes.byref(page), ctypes.c_size_t(_PAGE), _EVERYWHERE)
                ctypes.memset(page, 0, _PAGE)
                self._reports = [(page.value or 0) + k for k in range(0, _PAGE, _LINE)]
            address = self._reports.pop()
        return GpuMemory(address, REPORT.itemsize, self._report_back)

    def reported(self, report: GpuMemory) -> int:
        """What kernels have written, when all of them are done; it is 0 again."""
        self.synchronize()
        number = ctypes.c_int64.from_address(report.address)
        found, number.value = number.value, 0
        self._settled.add(report.address)
        return found

    def _report_back(self, address: int, nbytes: int) -> None:
        """One that nobody has looked at may still be written: it is not used again."""
        if address in self._settled:
            self._settled.discard(address)
            self._reports.append(address)

    # -- kernels ---------------------------------------------------------------------------

    def compiled(
        self, kernels: Sequence[Any], key: str, emit: Callable[..., str]
    ) -> list[Function]:
        """The functions of these kernels, which `emit` writes in PTX for a compute capability."""
        store, name = code_cache(), hashlib.sha256(f"{key} {self.capability}".encode()).hexdigest()
        ptx = store.get(name)
        if ptx is None:
            ptx = emit(kernels, self.capability).encode()
            store.put(name, ptx)
        module = GpuModule(self, ptx)
        return [module.function(k.name, k.notes.get("dynamic", 0)) for k in kernels]

    def prepare(
        self, function: Any, blocks: int, threads: int, table: Any, slots: Sequence[int]
    ) -> Callable[[], int]:
        """What starts a kernel on the addresses that are then in these slots of a table.

        It gives the driver's code, 0 if all is well, and is to be called after `enter`.
        """
        first, size = ctypes.addressof(table), ctypes.sizeof(ctypes.c_uint64)
        places = (ctypes.c_void_p * len(slots))(*(first + size * slot for slot in slots))
        given = (function.handle, blocks, 1, 1, threads, 1, 1, function.shared)
        return functools.partial(self.library.cuLaunchKernel, *given, None, places, None)

    def chain(
        self, starts: Sequence[Callable[[], int]], waits: Sequence[Sequence[int]]
    ) -> Callable[[], int]:
        """What starts kernels by one call, on the addresses they have now; some wait for others."""
        return GpuChain(self, starts, waits)

    def refuse(self, code: int) -> None:
        """Raise what a code of `prepare`'s function says."""
        self._check("cuLaunchKernel", code)

    def synchronize(self) -> None:
        """Wait until all work is done; a kernel that failed raises here."""
        self._check("cuCtxSynchronize", self._aside("cuCtxSynchronize"))

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
