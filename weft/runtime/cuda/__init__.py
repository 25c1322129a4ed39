"""NVIDIA GPUs: what running compiled kernels needs of the driver, and nothing else.

| file | what lives in it |
|---|---|
| `driver` | `Gpu`, `GpuMemory`, `GpuModule`: libcuda through ctypes |
"""
