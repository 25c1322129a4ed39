"""Tensors over meshes: what ops on them do, and what moves between devices.

| file | what lives in it |
|---|---|
| `mesh` | ops on sharded tensors: propagate, reshard, run on pieces, package |
| `transfer` | the steps of a reshard between devices of this process |
| `remote` | the same steps between processes |
| `layout` | `shard`, `reshard`, `all_gather` and the other ops that change layouts |
"""
