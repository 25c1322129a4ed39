"""Backends: memory, devices and the clients that run ops on them.

| file | what lives in it |
|---|---|
| `interface` | the protocols `Runtime`, `Device`, `RuntimeClient`, `Allocator` |
| `registry` | find a backend by name or entry point; `client` |
| `named` | `client.add(a, b)`: functions bound to a device |
| `report` | `memory_report`: what is alive and who made it |
| `cpu/` | the built-in backend |
| `communicator/` | collectives of arrays between processes |
| `gpu/` | arrays and clients of any GPU, and what its driver provides |
| `cuda/` | NVIDIA GPUs, through their driver |
| `webgpu/` | WebGPU devices, through the `wgpu` package |
"""

from weft.runtime.cpu.client import CpuClient, CpuRuntime, DefaultRuntime, ParallelismConfig
from weft.runtime.interface import Allocator, Device, Runtime, RuntimeClient
from weft.runtime.registry import available_backends, client, register_runtime, runtime
from weft.runtime.report import MemoryReport, memory_report

__all__ = [
    "Allocator",
    "CpuClient",
    "CpuRuntime",
    "DefaultRuntime",
    "Device",
    "MemoryReport",
    "ParallelismConfig",
    "Runtime",
    "RuntimeClient",
    "available_backends",
    "client",
    "memory_report",
    "register_runtime",
    "runtime",
]
