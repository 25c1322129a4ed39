"""Transforms: functions that give functions another meaning. Each is a handler, one file each.

| file | what lives in it |
|---|---|
| `vjp` | reverse mode: `vjp`, `grad`, `value_and_grad` |
| `jvp` | forward mode: `jvp` |
| `vmap` | vectorisation: `vmap` |
"""
