"""The WebGPU backend: the device `webgpu:0`, which is the default adapter."""

from __future__ import annotations

from weft.runtime.gpu.client import GpuClient, GpuRuntime
from weft.runtime.webgpu import driver


class WebGpuClient(GpuClient):
    """Runs ops on a WebGPU device."""


class WebGpuRuntime(GpuRuntime):
    """The backend of WebGPU devices; it needs the package `wgpu`."""

    name = "webgpu"
    client = WebGpuClient
    gpus = driver
