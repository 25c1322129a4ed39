"""Fourier transforms of lengths whose prime factors are small, as kernels.

| file | what lives in it |
|---|---|
| `plan` | which stages a length has, and the roots of unity they multiply by |
| `butterfly` | `butterfly`: the transform of a few numbers, written out |
| `lanes` | `Lanes`: some stages of as many transforms as a vector has lanes |
| `passes` | kernels for processors: how lanes, tasks and memory are shared out |
| `real` | `Transform`, `Ends`: transforms of real numbers as those of pairs of them |
| `around` | what goes before and after complex transforms, in kernels of its own |
| `shared` | `Block`: stages that the threads of a block of a GPU do in shared memory |
| `gpu` | kernels for GPUs: which stages are one, and how blocks and threads share them out |
| `lower` | `lower_fourier`: which kernels a call becomes, axis by axis |
"""
