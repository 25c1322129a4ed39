"""What every GPU has in common: arrays that lie there, and the client that runs ops on them.

| file | what lives in it |
|---|---|
| `interface` | `Driver`: what a kind of GPU provides; `GpuMemory`, `GpuStats` |
| `array` | `GpuArray`: what stands for an array there |
| `client` | `GpuRuntime`, `GpuClient`: a backend of such devices |
"""
