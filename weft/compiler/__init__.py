"""The compiler: from recorded calls to fused kernels in machine code.

| file | what lives in it |
|---|---|
| `function` | `CompiledFunction`: what `compile` makes |
| `signature` | kinds of calls: static arguments, cache keys, why two calls differ |
| `capture` | a function traced: inputs, captured tensors, random states |
| `variables`, `holders` | places where captured tensors lie; the search for them |
| `specialization` | one traced and compiled version of a function |
| `flatten` | code made for one kind of call: arrays from arguments, tensors from arrays |
| `partition`, `bucket` | traces over a mesh as traces of pieces; sums that go together |
| `donation` | arguments that a call may use up |
| `executable` | `Executable`: what a compiled function runs |
| `build_executable` | `build`: a trace made ready to run, or found on disk |
| `several` | `Several`: a trace on several devices, part by part |
| `stored`, `program_key` | whole programs on disk; the name of a traced function |
| `prepared`, `host` | programs run on arrays; their calls of Python |
| `packs` | what programs keep of inputs that last: packed weights |
| `statistics` | `CompilationStats` |
| `export`, `encoding` | compiled functions in files |
| `rewrite` | `rewrite`: fewer calls, the same bits; `RewriteCounts` |
| `recompute` | `recompute`: large products made again instead of kept |
| `masks` | `behind_masks`: what a mask shows reads what it shows |
| `calls` | `Calls`: a graph under construction, equal calls are one |
| `algebra`, `movement` | the rules of `rewrite`: arithmetic, and ops that move elements |
| `install` | the compiler put in its place below |
| `tier`, `eager` | when recorded graphs are compiled; single calls on kernels |
| `native` | `Native`: a trace as a program of machine code |
| `assemble`, `translate` | a graph's kernels and host calls in order; the program they become |
| `entries` | what groups of calls read of each other, row by row or elsewhere |
| `steps`, `panels` | what such an order is made of; kernels that run on some rows at a time |
| `merge` | copies that nobody needs: two pieces of memory become one |
| `streams` | which results are so large that caches need not keep them |
| `place`, `memory` | where memory lies; `plan`: offsets of temporaries, reuse of dead memory |
| `choice`, `choices` | what may be decided otherwise about a heavy kernel; what tuning decided |
| `search` | `search`: candidates measured in turns, within a time |
| `kernels`, `lift` | kernels by form, compiled once; literals that become parameters |
| `fuse`, `groups` | `Fusion`: what runs together; groups of calls, and what they read |
| `updates` | what changes a few elements |
| `positions` | which positions are checked, and where |
| `lower`, `scatter`, `few`, `small`, `reports` | groups of calls become kernels |
| `joins` | joins of many pieces: a kernel for each of them |
| `alike` | groups that are lowered once: equal layers |
| `convolution` | convolutions become kernels; `Convolution`: what their loops stand for |
| `folds` | windows that are folded again: what is never written; loops that step as they do |
| `balanced` | reductions of a few values, written out |
| `point`, `index` | one element of one result; indices, simplified as they are built |
| `loops` | the loop IR: what a fused kernel is |
| `rebuild` | changed copies of kernels; fresh variables and locals |
| `polynomial` | indices as polynomials: strides, equality, folding |
| `lanes` | which loops may run as lanes, and which should |
| `prices` | what accesses to memory cost, in lanes and one by one |
| `pipeline` | `schedule`: the passes in order |
| `verify` | `verify`: the rules every kernel obeys |
| `show` | `show`, `fingerprint`: kernels as text |
| `explain` | `describe`: what a program runs, in words |
| `cost` | `work_of`, `estimate`: arithmetic, bytes and time of a call |
| `rates` | `rates`: the model's constants, fixed or measured |
| `peaks`, `peak_kernels` | what this machine can do at most, measured; by which kernels |
| `watched` | `Watched`: runs that tell each call of a kernel |
| `build` | `Builder`: scalar instructions as values of the loop IR |
| `complex_values` | complex numbers as pairs of values: their instructions |
| `intervals` | `decided`: comparisons that the intervals of floats answer |
| `affine` | `stride`, `depends`: how an index moves with a loop's variable |
| `order/` | calls that order rows become kernels |
| `fourier/` | Fourier transforms become kernels |
| `passes/` | kernels made of kernels: how loops, reductions and products run |
| `emit_llvm` | scheduled kernels as functions in LLVM IR; `Dialect` |
| `emit_cpu` | `emit`: the dialect of processors |
| `emit_tiles`, `narrow` | products of tiles; which products of bfloat16 are summed as they sum |
| `emit_words` | products of pairs of bfloat16 or of four bytes, by vectors |
| `emit_bits` | rotations and signs, where instructions insert bits |
| `emit_bounds` | `Guard`: kernels that check every access |
| `emit_values` | expressions, scalar and vector, each written once |
| `emit_scope` | where each value is computed, and how long it stays true |
| `emit_fused` | fused multiply-add where a processor has none |
| `emit_held` | loads whose index a bound holds back |
| `emit_alternate` | loads and stores of every other element, two at once |
| `squares`, `emit_squares` | small matrices that a warp of a GPU multiplies; in LLVM IR |
| `emit_stream` | stores of large results past the caches |
| `emit_lanes` | values combined, and the lanes of a vector |
| `emit_scale` | products by powers of two, where one instruction takes them |
| `emit_scalars` | scalar instructions with one meaning on every target |
| `emit_convert` | casts; narrow floats by integer arithmetic |
| `emit_quotient` | quotients of integers in vectors, by floats |
| `emit_remainder` | exact remainders of floats |
| `emit_text` | names, types and constants as LLVM writes them |
| `pipeline_gpu` | `schedule_gpu`: the passes for blocks and threads |
| `gpu_program`, `gpu_steps` | `plan`: a trace as launches on a GPU |
| `gpu_panels` | chains of its kernels, panel by panel |
| `weave`, `nests` | kernels that can be one by tensor cores; loops around everything |
| `weave_once` | whether their rows can be gone through once |
| `emit_ptx`, `gpu_code` | kernels in PTX; functions that a GPU has loaded, in its language |
| `gpu_memory` | `places`: where the memory of a program for a GPU lies |
| `gpu_executable`, `gpu_calls` | a trace ready to run on a GPU; calls without kernels |
| `gpu_chains` | the launches of a program by one call, and which of them wait for others |
| `gpu_engine` | what a GPU's client runs: single calls, whole traces |
| `emit_wgsl`, `wgsl_scalars` | kernels as shaders in WGSL |
| `wgsl_positions` | which int64 a shader can have |
"""
