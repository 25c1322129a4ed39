"""NVIDIA GPUs: a backend that needs their driver, and nothing else.

| file | what lives in it |
|---|---|
| `driver` | `Gpu`, `GpuMemory`, `GpuModule`: libcuda through ctypes |
| `array` | `GpuArray`: what stands for an array there |
| `client` | `CudaRuntime`, `CudaClient`: the devices `cuda:0 …` |
"""
