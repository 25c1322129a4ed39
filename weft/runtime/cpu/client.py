"""The CPU backend: NumPy arrays as memory, logical devices `cpu:0 …`, kernels run at the call."""

from __future__ import annotations

import contextvars
import ctypes
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from weft.config import settings
from weft.core.common import dtypes
from weft.core.common.device import Device, as_device
from weft.core.common.events import told, watchers
from weft.core.common.source import describe, user_position
from weft.core.common.types import Array, TensorType
from weft.core.tensor.storage import Storage
from weft.errors import ArgumentError, DeviceError, OutOfMemoryError
from weft.runtime.cpu.allocator import CachingAllocator, physical_memory
from weft.runtime.named import NamedFunctions

MEMORY = physical_memory()  # bytes that no result can exceed

thread = threading.local()  # `thread.run` is this thread's quiet context, once it has one
_is_quiet: contextvars.ContextVar[bool] = contextvars.ContextVar("weft_quiet", default=False)


def quietly() -> Callable[..., Any]:
    """Call a function with NumPy's floating-point warnings off, at almost no cost.

    NumPy keeps its error state in a context variable; each thread has one context in which it is
    off, and kernels are run in that. A finaliser or signal handler may come here from inside a
    kernel: a context cannot be entered twice, and it is quiet there already.
    """
    if _is_quiet.get():
        return _call
    try:
        result: Callable[..., Any] = thread.run
        return result
    except AttributeError:
        context = contextvars.Context()
        context.run(np.seterr, all="ignore")
        context.run(_is_quiet.set, True)
        thread.run = context.run
        return context.run


def _call(function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    return function(*args, **keywords)


_kernels: list[Any] = []  # what runs single calls on compiled kernels, once it is installed


def install_kernels(kernels: Any) -> None:
    """Say what runs a call whose bits the reference does not fix: `kernels.run(…)`, or None."""
    _kernels[:] = [kernels]


def run_kernel(
    op: Any, arrays: tuple[Array, ...], params: Mapping[str, Any], types: tuple[TensorType, ...]
) -> tuple[Array, ...] | None:
    """The results of a call by its compiled kernel; None where there is none."""
    result: tuple[Array, ...] | None = _kernels[0].run(op, arrays, params, types)
    return result


def kernel_of(
    op: Any,
    operands: tuple[TensorType, ...],
    params: Mapping[str, Any],
    results: tuple[TensorType, ...],
) -> Callable[..., Array | None] | None:
    """The compiled kernel of calls of one result as a function of arrays; None if there is none.

    The function gives None where the reference has to say what is wrong.
    """
    result: Callable[..., Array | None] | None
    result = _kernels[0].kernel_of(op, operands, params, results)
    return result


def watched(
    op: Any,
    operands: tuple[TensorType, ...],
    results: tuple[TensorType, ...],
    flops: Callable[[], int],
) -> AbstractContextManager[None]:
    """Tells watchers of one call: what it is given, what it makes, and the user's line."""
    position = user_position(3)

    def details() -> dict[str, Any]:
        given, made = (", ".join(map(str, each)) for each in (operands, results))
        read, written = (sum(t.nbytes for t in each) for each in (operands, results))
        return {
            "shapes": f"{given} -> {made}",
            "dtype": str(results[0].dtype) if results else "",
            "flops": flops(),
            "read": read,
            "written": written,
            "line": describe(position),
        }

    return told("op", str(op), details)


@dataclass(frozen=True, slots=True)
class ParallelismConfig:
    """How many threads kernels may use, and from how many elements on they use more than one."""

    threads: int = 1
    chunk: int = 1 << 16

    def __post_init__(self) -> None:
        if any(type(n) is not int or n < 1 for n in (self.threads, self.chunk)):
            raise ArgumentError(f"ParallelismConfig: threads and chunk must be positive ({self})")


class CpuClient(NamedFunctions):
    """Runs ops on one logical CPU device."""

    holds = np.ndarray

    def __init__(self, device: Device, allocator: CachingAllocator) -> None:
        self._device = device
        self.allocator = allocator
        self.parallelism = ParallelismConfig()

    @property
    def device(self) -> Device:
        """The device this client drives."""
        return self._device

    def synchronize(self) -> None:
        """Nothing is in flight between calls: kernels have finished when they return."""

    def check(
        self,
        op: Any,
        types: tuple[TensorType, ...],
        params: Mapping[str, Any],
        results: tuple[TensorType, ...],
    ) -> None:
        """Every op runs here: its reference is the kernel."""

    def execute(
        self,
        op: Any,
        arrays: tuple[Array, ...],
        params: Mapping[str, Any],
        types: tuple[TensorType, ...],
    ) -> tuple[Array, ...]:
        """Run one op; narrow floats are computed in float32 and rounded once."""
        if watchers:
            operands = tuple(TensorType(a.shape, a.dtype) for a in arrays)
            with watched(op, operands, types, lambda: int(op.cost(*operands, **params).flops)):
                return self._execute(op, arrays, params, types)
        return self._execute(op, arrays, params, types)

    def _execute(
        self,
        op: Any,
        arrays: tuple[Array, ...],
        params: Mapping[str, Any],
        types: tuple[TensorType, ...],
    ) -> tuple[Array, ...]:
        if not op.leaf:
            return _fitted(op.eval(*arrays, **params), types)
        nbytes = types[0].nbytes if types else 0
        if nbytes > MEMORY and not (op.view and op.is_view(arrays[0], **params)):
            raise self.allocator.out_of_memory(nbytes)  # some systems promise it, and end us later
        try:
            return self._run(op, arrays, params, types)
        except OutOfMemoryError:
            raise
        except MemoryError as error:
            raise self.allocator.out_of_memory(sum(t.nbytes for t in types)) from error

    def _run(
        self,
        op: Any,
        arrays: tuple[Array, ...],
        params: Mapping[str, Any],
        types: tuple[TensorType, ...],
    ) -> tuple[Array, ...]:
        large = op.is_large(*arrays, **params)
        if large and op.ufunc is not None and not op.heavy and not _some_narrow(arrays):
            # NumPy reads what is not packed where it lies, but for what it has to convert.
            large = all([a.flags.c_contiguous for a in arrays])
        if large or not op.is_exact(*[a.dtype for a in arrays], **params):
            made = run_kernel(op, arrays, params, types)
            if made is not None:
                return made
        if any([a.dtype.kind == "c" and not a.flags.c_contiguous for a in arrays]):
            # NumPy's complex loops round differently where numbers do not lie side by side.
            arrays = tuple(np.array(a, order="C") for a in arrays)
        if op.widen and _some_narrow(arrays):
            arrays = tuple(a.astype(np.float32) if dtypes.is_narrow(a.dtype) else a for a in arrays)
        elif types[0].nbytes >= settings.cache_threshold and (op.writes or op.ufunc is not None):
            out = self.allocator.empty(types[0].shape, types[0].dtype)
            if op.writes:
                quietly()(op.write, out, *arrays, **params)
            else:
                quietly()(op.ufunc, *arrays, out=out)
            return (out,)
        return _fitted(quietly()(op.eval, *arrays, **params), types)

    def prepared(
        self,
        op: Any,
        operands: tuple[TensorType, ...],
        params: Mapping[str, Any],
        results: tuple[TensorType, ...],
    ) -> Callable[..., Array | None] | None:
        """A function that gives the only result of small calls, or None where `execute` must run.

        None if every call has to be looked at.
        """
        nbytes = sum(kind.nbytes for kind in (*operands, *results))
        found = [kind.dtype for kind in operands]
        if not op.leaf or op.multiple or len(results) > 1 or nbytes >= settings.cache_threshold:
            return None
        if not op.is_exact(*found, **params):
            kernel = kernel_of(op, operands, params, results)
            if kernel is not None:
                return kernel
        if any(d.kind == "c" or (op.widen and dtypes.is_narrow(d)) for d in found):
            return None
        run: Callable[..., Any] = op.repeated(operands, params)
        if op.view:
            return run
        (kind,) = results

        def fitted(*arrays: Array) -> Array:
            made = quietly()(run, *arrays)
            if type(made) is np.ndarray and made.dtype == kind.dtype:
                return made
            return _cast(made, kind)

        return fitted

    def reference(
        self,
        op: Any,
        operands: tuple[TensorType, ...],
        params: Mapping[str, Any],
        results: tuple[TensorType, ...],
    ) -> Callable[..., tuple[Array, ...]] | None:
        """What `execute` comes to on packed arrays of these types, if that is always `eval`.

        None if every call has to be looked at, or watchers are to be told.
        """
        found = [kind.dtype for kind in operands]
        if not op.leaf or op.moves or not results or results[0].nbytes > MEMORY:
            return None
        if op.writes or op.ufunc is not None or (op.widen and any(map(dtypes.is_narrow, found))):
            return None
        by_kernel = op.is_large(*operands, **params) or not op.is_exact(*found, **params)
        if by_kernel and (len(results) > 1 or kernel_of(op, operands, params, results)):
            return None
        run = partial(op.eval, **params)
        return lambda *arrays: _fitted(quietly()(run, *arrays), results)

    def to_device(self, array: Array) -> Array:
        """CPU memory is host memory."""
        return array

    def to_host(self, array: Array) -> Array:
        """CPU memory is host memory."""
        return array


def _some_narrow(arrays: tuple[Array, ...]) -> bool:
    return any([a.dtype.itemsize <= 2 and dtypes.is_narrow(a.dtype) for a in arrays])


def _fitted(results: Any, types: tuple[TensorType, ...]) -> tuple[Array, ...]:
    """What NumPy returned, as arrays of exactly the inferred types."""
    if type(results) is np.ndarray and results.dtype == types[0].dtype:
        return (results,)
    found = results if isinstance(results, tuple) else (results,)
    return tuple(
        array if type(array) is np.ndarray and array.dtype == kind.dtype else _cast(array, kind)
        for array, kind in zip(found, types, strict=True)
    )


def _cast(array: Any, kind: TensorType) -> Array:
    result: Array = quietly()(np.asarray, array, dtype=kind.dtype)
    return result


class CpuRuntime:
    """The built-in backend. `logical_devices` says how many devices one process shows."""

    name = "cpu"

    def __init__(self) -> None:
        self.allocator = CachingAllocator()

    def allocate(self, nbytes: int, device: Device) -> Storage:
        """Fresh memory."""
        return self.allocator.allocate(nbytes)

    def deallocate(self, handle: Storage, device: Device) -> None:
        """Free what `allocate` gave; borrowed memory is left to its owner."""
        self.allocator.deallocate(handle)

    def copy_to_device(self, source: Any, handle: Storage, device: Device) -> None:
        """Copy host bytes (any buffer) into an allocation."""
        raw = memoryview(source).cast("B")
        ctypes.memmove(handle.ptr, bytes(raw), self._within(handle, raw.nbytes))

    def copy_from_device(self, handle: Storage, target: Any, device: Device) -> None:
        """Copy the beginning of an allocation into host bytes (any writable buffer)."""
        raw = memoryview(target).cast("B")
        raw[:] = ctypes.string_at(handle.ptr, self._within(handle, raw.nbytes))

    def copy_within_device(
        self, source: Storage, target: Storage, nbytes: int, device: Device
    ) -> None:
        """Copy between two allocations, which may overlap."""
        size = min(self._within(source, nbytes), self._within(target, nbytes))
        ctypes.memmove(target.ptr, source.ptr, size)

    @staticmethod
    def _within(handle: Storage, nbytes: int) -> int:
        if handle.keep_alive is None and handle.owned:
            raise DeviceError(f"copy: the memory has been given back ({handle!r})")
        if not 0 <= nbytes <= handle.nbytes:
            raise ArgumentError(f"copy: {nbytes} bytes do not fit {handle!r}")
        return nbytes

    def devices(self) -> tuple[Device, ...]:
        """`cpu:0 …`, as many as `settings.logical_devices`."""
        return tuple(as_device(f"cpu:{i}") for i in range(settings.logical_devices))

    def default_device(self) -> Device:
        """`cpu:0`."""
        return as_device("cpu:0")

    def default_client(self, device: Device) -> CpuClient:
        """A client for one logical device."""
        return CpuClient(device, self.allocator)


DefaultRuntime = CpuRuntime
