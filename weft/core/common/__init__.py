"""What every other part of the core shares; imports none of them.

| file | what lives in it |
|---|---|
| `context` | context-local defaults: dtype, device |
| `device` | devices as values |
| `dtypes` | dtypes, promotion, weak Python scalars |
| `events` | what runs and when, told to whoever watches |
| `factors` | index notation |
| `files` | files and folders that appear whole or not at all |
| `frozen` | keys that tell apart what `==` does not |
| `handler` | the handler stack and `perform` |
| `keywords` | other libraries' words for parameters |
| `lazy` | modules loaded at first use |
| `locks` | locks that a forked child finds free |
| `markup` | HTML for notebooks and pages, escaped |
| `parameters` | parameters as users write them, checked |
| `peers` | other libraries' names for what weft has |
| `slots` | the tables of ops and functions that operators look names up in |
| `source` | the user's line |
| `spec` | meshes, partitions, sharding specs |
| `strict_json` | JSON from files that nobody vouches for |
| `trees` | trees of tensors |
| `types` | `TensorType`: shape and dtype |
"""
