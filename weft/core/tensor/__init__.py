"""Tensors: handles, what stands behind them, memory layout, and the ways in and out.

| file | what lives in it |
|---|---|
| `tensor` | `Tensor`, the handle users hold |
| `impl` | `TensorImpl`, the value behind a handle |
| `operators`, `methods`, `exchange`, `show` | Python syntax, methods, conversions, printing |
| `views` | assignment and basic-index views |
| `number` | Python numbers whose value is not known yet |
| `convert` | Python data and arrays into tensors |
| `layout`, `storage` | strides and reference-counted memory |
| `lasting` | arrays whose values have not changed since they were looked at |
| `sharing` | memory that other libraries can write to |
| `dlpack` | exchange of memory with other libraries |
| `tracing` | functions run on shapes: `trace`, `eval_shape` |
"""

from weft.core.tensor.impl import TensorImpl
from weft.core.tensor.layout import Layout
from weft.core.tensor.storage import Storage
from weft.core.tensor.tensor import Tensor

__all__ = ["Layout", "Storage", "Tensor", "TensorImpl"]
