"""Backends: memory, devices and the clients that run ops on them.

| file | what lives in it |
|---|---|
| `interface` | the protocols `Runtime`, `Device`, `RuntimeClient`, `Allocator` |
| `registry` | find a backend by name or entry point; `client` |
| `named` | `client.add(a, b)`: functions bound to a device |
| `cpu/` | the built-in backend |
"""
