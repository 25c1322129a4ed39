"""A WebGPU device through the `wgpu` package, which is imported when a device is first asked for.

All shaders of a run go into one submission, in order. `webgpu()` opens the default adapter; where
there is none, or the package is missing, it raises an error of weft that says so.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.core.common.lazy import LazyModule
from weft.core.common.types import Array
from weft.errors import BackendError, OutOfMemoryError

_wgpu = LazyModule("wgpu")
_OPTIONAL = ("shader-f16",)
_LIMITS = ("max-storage-buffer-binding-size", "max-buffer-size")
_STORAGE = 0x0080 | 0x0004 | 0x0008  # STORAGE, COPY_SRC, COPY_DST
_COMPUTE = 0x4  # the stage that sees a buffer
_WIDTH = 65_535  # workgroups in one dimension of a grid


class Pipeline(NamedTuple):
    """A compiled shader and what it binds."""

    compiled: Any
    layout: Any


@functools.cache
def webgpu() -> WebGpu:
    """The default device, opened once."""
    return WebGpu()


def is_available() -> bool:
    """Whether the package and an adapter are here."""
    try:
        webgpu()
    except BackendError:
        return False
    return True


class WebGpu:
    """One device."""

    def __init__(self) -> None:
        try:
            module: Any = _wgpu.load()
        except ImportError as error:
            raise BackendError(
                f"webgpu: the wgpu package cannot be loaded ({error})\n"
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
                "hint: a machine without a GPU can use lavapipe, of Mesa's Vulkan drivers"
            )
        features = [name for name in _OPTIONAL if name in adapter.features]
        limits = {name: adapter.limits[name] for name in _LIMITS if name in adapter.limits}
        self.name = str(adapter.info["device"])
        self.features = frozenset(features)
        self._device = adapter.request_device_sync(
            required_features=features, required_limits=limits
        )
        self._most = int(self._device.limits["max-storage-buffer-binding-size"])

    def buffer(self, size: int, data: Array | None = None) -> Any:
        """Memory of `size` bytes, or of these data."""
        if size > self._most:
            raise OutOfMemoryError(
                f"webgpu: a buffer of {size} bytes, where {self._most} are the most"
            )
        made = self._device.create_buffer(size=max(-(-size // 4) * 4, 4), usage=_STORAGE)
        if data is not None:
            self.write(made, data)
        return made

    def write(self, buffer: Any, data: Array) -> None:
        """Copy an array into a buffer."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        padded = np.zeros(-(-raw.size // 4) * 4, np.uint8)
        padded[: raw.size] = raw
        self._device.queue.write_buffer(buffer, 0, padded)

    def read(self, buffer: Any, size: int) -> Array:
        """The first `size` bytes of a buffer; waits for the shaders before."""
        view = self._device.queue.read_buffer(buffer, 0, -(-size // 4) * 4)
        return np.frombuffer(view, np.uint8)[:size].copy()

    def pipeline(self, text: str, writes: Sequence[bool]) -> Pipeline:
        """A shader, ready to run; `writes` says of each buffer whether it is written."""
        shader = self._device.create_shader_module(code=text)
        kinds = ["storage" if written else "read-only-storage" for written in writes]
        entries = [
            {"binding": k, "visibility": _COMPUTE, "buffer": {"type": kind}}
            for k, kind in enumerate(kinds)
        ]
        group = self._device.create_bind_group_layout(entries=entries)
        layout = self._device.create_pipeline_layout(bind_group_layouts=[group])
        stage = {"module": shader, "entry_point": "main"}
        made = self._device.create_compute_pipeline(layout=layout, compute=stage)
        return Pipeline(made, group)

    def run(self, launches: Sequence[tuple[Pipeline, int, Sequence[Any]]]) -> None:
        """Start pipelines, each with its number of workgroups and its buffers."""
        encoder = self._device.create_command_encoder()
        for pipeline, blocks, buffers in launches:
            entries = [
                {"binding": k, "resource": {"buffer": b, "offset": 0, "size": b.size}}
                for k, b in enumerate(buffers)
            ]
            group = self._device.create_bind_group(layout=pipeline.layout, entries=entries)
            step = encoder.begin_compute_pass()
            step.set_pipeline(pipeline.compiled)
            step.set_bind_group(0, group)
            step.dispatch_workgroups(min(blocks, _WIDTH), -(-blocks // _WIDTH))
            step.end()
        self._device.queue.submit([encoder.finish()])
