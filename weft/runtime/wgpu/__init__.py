"""WebGPU devices: what running compiled shaders needs of the `wgpu` package.

| file | what lives in it |
|---|---|
| `device` | `WebGpu`: an adapter, its buffers, and shaders in one submission |
"""
