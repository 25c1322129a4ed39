"""Tensors over meshes: what ops on them do, and what moves between devices.

| file | what lives in it |
|---|---|
| `mesh` | ops on sharded tensors: propagate, reshard, run on pieces, package |
| `transfer` | the steps of a reshard between devices of this process |
| `remote` | the same steps between processes |
| `layout` | `shard`, `reshard`: ops that change how a tensor lies |
| `collectives` | `all_reduce`, `all_gather`, `ppermute`…, on tensors and on pieces |
| `named` | collectives by axis name, on pieces |
| `mapped` | the same over an axis that `vmap` has named |
| `joint` | loops and branches over a mesh |
| `apart` | from a sharded tensor to its pieces and back |
"""
