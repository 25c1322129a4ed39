"""A WebGPU device through the `wgpu` package, which is imported when a device is first asked for.

Shaders and copies are gathered in one command buffer, which is submitted when something is read, or
when much has been gathered. Where the package is missing, or there is no adapter, `gpu()` raises an
error of weft that says so.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.core.common.lazy import LazyModule
from weft.core.common.types import Array, DType
from weft.errors import BackendError, DeviceError, OutOfMemoryError
from weft.runtime.gpu.interface import Driver, GpuMemory
from weft.runtime.webgpu.buffers import Buffers, place

_wgpu = LazyModule("wgpu")
_OPTIONAL = ("shader-f16",)
_LIMITS = (
    "max-storage-buffer-binding-size",
    "max-buffer-size",
    "max-storage-buffers-per-shader-stage",
)
_STORAGE = 0x0080 | 0x0004 | 0x0008  # STORAGE, COPY_SRC, COPY_DST
_COMPUTE = 0x4  # the stage that sees a buffer
_WIDTH = 65_535  # workgroups in one dimension of a grid
_WORD = np.dtype(np.uint32)
_TOGETHER = 128  # launches and copies that are submitted together
_GROUPS = 16  # groups of buffers that a launch remembers
_KEEP = 1 << 30  # bytes that stay when nobody uses them


class Pipeline(NamedTuple):
    """A compiled shader and what it binds."""

    compiled: Any
    layout: Any


def is_available() -> bool:
    """Whether the package is here; whether there is an adapter shows when it is opened."""
    return importlib.util.find_spec("wgpu") is not None


def device_count() -> int:
    """The default adapter alone is used; `BackendError` says why there is none."""
    gpu()
    return 1


def gpu(number: int = 0) -> WebGpu:
    """The default device, opened once."""
    if number:
        raise DeviceError(f"webgpu: device {number}: there is one, the default adapter")
    return _default()


@functools.cache
def _default() -> WebGpu:
    return WebGpu()


def _open_adapter() -> Any:
    try:
        module: Any = _wgpu.load()
    except ImportError as error:
        raise BackendError(
            f"webgpu: the package wgpu is not installed, or cannot be loaded ({error})\n"
            "hint: pip install 'weft[webgpu]'"
        ) from error
    try:
        adapter = module.gpu.request_adapter_sync(power_preference="high-performance")
    except (RuntimeError, ValueError) as error:
        adapter, reason = None, str(error)
    else:
        reason = "none was offered"
    if adapter is None:
        raise BackendError(
            f"webgpu: no adapter: {reason}\n"
            "hint: pip install 'weft[webgpu]' brings the package; a machine without a GPU can use"
            " lavapipe, of Mesa's Vulkan drivers"
        )
    return adapter


class WebGpu(Driver):
    """One device."""

    kind = "webgpu"
    dlpack = 15
    aligned = 256
    apart = True

    def __init__(self) -> None:
        super().__init__(0)
        adapter = _open_adapter()
        features = [name for name in _OPTIONAL if name in adapter.features]
        limits = {name: adapter.limits[name] for name in _LIMITS if name in adapter.limits}
        self.name = str(adapter.info["device"])
        self.features = frozenset(features)
        self._device = adapter.request_device_sync(
            required_features=features, required_limits=limits
        )
        self._queue = self._device.queue
        found = self._device.limits
        most = (found["max-storage-buffer-binding-size"], found["max-buffer-size"])
        self.largest = int(min(most)) // 4 * 4
        self.most_buffers = int(found["max-storage-buffers-per-shader-stage"])
        self._buffers = Buffers(self._create, _KEEP)
        self._word = self._buffers.take(4)
        self._encoder: Any = None
        self._pass: Any = None
        self._used: set[int] = set()  # buffers that what is gathered reads or writes
        self._gathered = 0

    def enter(self) -> None:
        """Every thread may use the device."""

    def stored(self, dtype: DType) -> DType:
        """A bool is a word: shaders cannot write less."""
        return _WORD if dtype.kind == "b" else dtype

    # -- memory ----------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> GpuMemory:
        """A buffer of its own."""
        if nbytes > self.largest:
            raise OutOfMemoryError(
                f"webgpu: an array of {nbytes} bytes, where {self.largest} are the most on"
                f" {self.name}"
            )
        with self._lock:
            try:
                address = self._buffers.take(nbytes)
            except OutOfMemoryError:
                gc.collect()
                self.submit()
                self._buffers.trim()
                address = self._buffers.take(nbytes)
            self.counted(nbytes)
        return GpuMemory(address, nbytes, self._free)

    def _create(self, size: int) -> Any:
        try:
            return self._device.create_buffer(size=min(size, self.largest), usage=_STORAGE)
        except MemoryError as error:
            raise OutOfMemoryError(
                f"webgpu: {size} bytes are not free on {self.name}: this process holds {self._live}"
                "\nhint: drop tensors that are no longer needed; wf.memory_report() lists them"
            ) from error

    def _free(self, address: int, nbytes: int) -> None:
        with self._lock:
            self.discounted(nbytes)
            self._buffers.give(address, nbytes)

    def write(self, address: int, array: Array) -> None:
        """Copy a contiguous array to an address."""
        raw = array.reshape(-1).view(np.uint8)
        number, position = place(address)
        with self._lock:
            if number in self._used:
                self.submit()
            if position % 4 or raw.size % 4:
                position, raw = self._among(number, position, raw)
            self._queue.write_buffer(self._buffers[number], position, raw)

    def _among(self, number: int, position: int, raw: Array) -> tuple[int, Array]:
        """Bytes with those before and behind them that fill words, and where they begin."""
        start, end = position // 4 * 4, -(-(position + raw.size) // 4) * 4
        words = np.empty(end - start, np.uint8)
        self._read(number, start, words)
        words[position - start :][: raw.size] = raw
        return start, words

    def read(self, address: int, array: Array) -> None:
        """Copy what lies at an address into a contiguous array; waits for the shaders before."""
        raw = array.reshape(-1).view(np.uint8)
        number, position = place(address)
        with self._lock:
            start, end = position // 4 * 4, -(-(position + raw.size) // 4) * 4
            if end - start == raw.size:
                self._read(number, start, raw)
                return
            words = np.empty(end - start, np.uint8)
            self._read(number, start, words)
            raw[:] = words[position - start :][: raw.size]

    def _read(self, number: int, position: int, raw: Array) -> None:
        self.submit()
        found = self._queue.read_buffer(self._buffers[number], position, raw.size)
        raw[:] = np.frombuffer(found, np.uint8)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy bytes from one address to another; words stay on the device."""
        (to, there), (of, here) = place(target), place(source)
        with self._lock:
            if to == of or there % 4 or here % 4 or nbytes % 4:
                raw = np.empty(nbytes, np.uint8)
                self.read(source, raw)
                self.write(target, raw)
                return
            buffers = self._buffers[of], here, self._buffers[to], there
            self._commands().copy_buffer_to_buffer(*buffers, nbytes)
            self._gather({to, of})

    def clear(self, address: int, nbytes: int) -> None:
        """Make bytes zero."""
        number, position = place(address)
        if position % 4 or nbytes % 4:
            self.write(address, np.zeros(nbytes, np.uint8))
            return
        with self._lock:
            self._commands().clear_buffer(self._buffers[number], position, nbytes)
            self._gather({number})

    # -- shaders ---------------------------------------------------------------------------

    def compiled(
        self, kernels: Sequence[Any], key: str, emit: Callable[..., str]
    ) -> list[Pipeline]:
        """The pipelines of these kernels, each of which `emit` writes in WGSL."""
        with self._lock:
            return [self._pipeline(emit([kernel], None), kernel) for kernel in kernels]

    def _pipeline(self, text: str, kernel: Any) -> Pipeline:
        kinds = ["read-only-storage" if b.mode == "read" else "storage" for b in kernel.buffers]
        entries = [
            {"binding": k, "visibility": _COMPUTE, "buffer": {"type": kind}}
            for k, kind in enumerate(kinds)
        ]
        try:
            shader = self._device.create_shader_module(code=text)
            group = self._device.create_bind_group_layout(entries=entries)
            layout = self._device.create_pipeline_layout(bind_group_layouts=[group])
            stage = {"module": shader, "entry_point": "main"}
            made = self._device.create_compute_pipeline(layout=layout, compute=stage)
        except _wgpu.GPUError as error:
            raise DeviceError(
                f"webgpu: {kernel.name}: the device refuses a shader\n{error}"
            ) from error
        return Pipeline(made, group)

    def prepare(
        self, function: Pipeline, blocks: int, threads: int, table: Any, slots: Sequence[int]
    ) -> Callable[[], int]:
        """What starts a shader on the buffers whose addresses are then in these slots of a table.

        Groups of buffers that come again are remembered until buffers are given back.
        """
        known: dict[tuple[int, ...], tuple[Any, set[int]]] = {}
        width, height = min(blocks, _WIDTH), -(-blocks // _WIDTH)
        dropped = -1

        def start() -> int:
            nonlocal dropped
            addresses = tuple([table[slot] for slot in slots])
            with self._lock:
                if dropped != self._buffers.dropped or len(known) > _GROUPS:
                    known.clear()
                    dropped = self._buffers.dropped
                found = known.get(addresses)
                if found is None:
                    found = known[addresses] = self._group(function.layout, addresses)
                if self._pass is None:
                    self._pass = self._commands().begin_compute_pass()
                self._pass.set_pipeline(function.compiled)
                self._pass.set_bind_group(0, found[0])
                self._pass.dispatch_workgroups(width, height)
                self._gather(found[1])
            return 0

        return start

    def _group(self, layout: Any, addresses: Sequence[int]) -> tuple[Any, set[int]]:
        entries, numbers = [], set()
        for k, address in enumerate(addresses):
            number, position = place(address)
            buffer = self._buffers[number]
            resource = {"buffer": buffer, "offset": position, "size": buffer.size - position}
            entries.append({"binding": k, "resource": resource})
            numbers.add(number)
        return self._device.create_bind_group(layout=layout, entries=entries), numbers

    def refuse(self, code: int) -> None:
        """Nothing is refused by a code."""

    # -- submissions -----------------------------------------------------------------------

    def _commands(self) -> Any:
        """Where commands that are no shaders are gathered."""
        if self._pass is not None:
            self._pass.end()
            self._pass = None
        if self._encoder is None:
            self._encoder = self._device.create_command_encoder()
        return self._encoder

    def _gather(self, numbers: set[int]) -> None:
        self._used |= numbers
        self._gathered += 1
        if self._gathered >= _TOGETHER:
            self.submit()

    def submit(self) -> None:
        """Let the device begin with all that was asked for."""
        with self._lock:
            if self._encoder is None:
                return
            encoder, self._encoder = self._commands(), None
            self._used.clear()
            self._gathered = 0
            try:
                self._queue.submit([encoder.finish()])
            except _wgpu.GPUError as error:
                raise DeviceError(f"webgpu: {self.name}: a submission failed\n{error}") from error

    def synchronize(self) -> None:
        """Wait until all work is done."""
        with self._lock:  # in order: when a word is read, all before is done
            self._read(*place(self._word), np.empty(4, np.uint8))
