"""Ops that hold functions: branches, loops, captured graphs and the user's own kernels.

| file | what lives in it |
|---|---|
| `subgraphs` | record a function once, hoist what it captures, transform it |
| `guarded` | rows that nobody takes are not checked |
| `branches` | cond and switch |
| `loop_ops` | the two loop ops |
| `scan_backward` | the backward pass of scan: what steps save, hand on and compute again |
| `postpone` | sums of products over all steps, as one product after them |
| `loops` | what users call: while_loop, fori_loop, scan, map, associative_scan |
| `graph_call` | a captured function as one op |
| `custom_op` | the user's own Python or NumPy function as an op |
"""
