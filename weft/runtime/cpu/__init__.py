"""The CPU backend: NumPy arrays as memory, logical devices, a caching allocator.

| file | what lives in it |
|---|---|
| `allocator` | `CachingAllocator`: freed blocks are used again |
| `client` | `CpuRuntime`, `CpuClient`, `ParallelismConfig` |
"""
