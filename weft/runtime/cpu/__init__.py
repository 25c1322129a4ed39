"""The CPU backend: NumPy arrays as memory, logical devices, a caching allocator.

| file | what lives in it |
|---|---|
| `allocator` | `CachingAllocator`: freed blocks are used again |
| `builtin` | native routines as functions of Python's own kind |
| `client` | `CpuRuntime`, `CpuClient`, `ParallelismConfig` |
| `code_ahead` | `begin`, `finish`: modules are compiled while others are written |
| `code_cache` | `cached`: compiled code is kept in memory and on disk |
| `fingerprint` | a hash of the sources that made cached code |
| `code_folder` | `CodeFolder`: authenticated entries, shared by processes, bounded |
| `code_image` | `mapped`: object code brought into memory without LLVM |
| `executor` | `executor`: the native routine that runs programs, as functions |
| `executor_layout` | frames, instructions and steps, as words in memory |
| `executor_text` | the routine in LLVM IR: regions of steps |
| `handle_text` | routines that make arrays and tensors, in LLVM IR |
| `handles` | `array_maker`, `tensor_maker`: what a compiled call gives back |
| `instruction_text` | its other instructions: loops, branches, registers, slots |
| `jit` | `compile_text`, `load_object`: LLVM IR to machine code to addresses |
| `llvm_calls` | `calls`: LLVM's functions for several threads at once |
| `pool` | `pool`: threads that share the work of a region |
| `pool_text` | the pool in LLVM IR, and what differs between systems |
| `processor` | what LLVM calls this processor, kept on disk |
| `room` | `room_for`: memory for LLVM, where a process may have only so much |
| `profile` | `Profile`: when each kernel ran, and on which thread |
| `program` | `Program`: a compiled graph, run by one native call |
| `program_builder` | `ProgramBuilder`, `Step`: regions, loops, branches, calls of Python |
"""
