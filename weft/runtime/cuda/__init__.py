"""NVIDIA GPUs: a backend that needs their driver, and nothing else.

| file | what lives in it |
|---|---|
| `driver` | `Gpu`, `GpuModule`: libcuda through ctypes |
| `client` | `CudaRuntime`, `CudaClient`: the devices `cuda:0 …` |
"""
