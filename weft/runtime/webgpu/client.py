"""The WebGPU backend: the device `webgpu:0`, which is the default adapter."""

from __future__ import annotations

from weft.runtime.gpu.client import GpuRuntime
from weft.runtime.webgpu import driver


class WebGpuRuntime(GpuRuntime):
    """The backend of WebGPU devices; it needs the package `wgpu`."""

    name = "webgpu"
    gpus = driver
