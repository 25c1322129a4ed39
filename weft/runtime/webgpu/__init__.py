"""WebGPU devices: a backend that needs the `wgpu` package.

| file | what lives in it |
|---|---|
| `driver` | `WebGpu`: an adapter, its memory, and shaders that are submitted together |
| `buffers` | `Buffers`: memory that was given back is used again |
| `client` | `WebGpuRuntime`: the device `webgpu:0` |
"""
