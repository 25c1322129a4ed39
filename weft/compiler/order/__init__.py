"""Sorting and selection along the last axis, as kernels.

| file | what lives in it |
|---|---|
| `lower` | `lower_order`: which kernels a call becomes, for how many rows how long |
| `code` | `Keys`, `Records`: what is sorted; `Code`: how kernels are written down |
| `network` | many rows of moderate length side by side, a row in each lane |
| `rows` | rows one after another: by digits, by ranks, or a few of their elements |
| `shared` | long rows that threads share, chunk by chunk |
| `parts` | such rows where vectors are wide: chunks are parted into buckets |
| `split` | how records are parted at a pivot, and where they lie meanwhile |
| `bucket` | a bucket of a row inside a task: parted, until networks sort the parts |
| `gpu` | `lower_order_gpu`: which launches a call becomes on a GPU |
| `blocks` | `Block`: how the threads of a block read, write and merge records |
| `tiles`, `runs` | parts of rows that blocks sort; runs that they merge |
"""
