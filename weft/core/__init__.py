"""The engine room: values, recorded graphs, tensors, sharding and the tape.

| file | what lives in it |
|---|---|
| `common/` | what every other part shares: context, devices, dtypes, handlers, trees |
| `graph/` | recorded calls, and functions captured as graphs |
| `tensor/` | tensors, their memory, and the ways in and out |
| `sharding/` | meshes, specs and how they propagate |
| `autograd/` | the tape and the walk back |

The names below are the core's surface; sharding and autograd are reached by their own paths.
"""

from weft.core.common.context import default_device, default_dtype, defaults, defaults_like
from weft.core.common.trees import (
    PyTreeDef,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_structure,
    tree_unflatten,
)
from weft.core.graph import (
    GRAPH,
    ComputeGraph,
    OutputRefs,
    Trace,
    apply_to_operations,
    get_all_impls_topological,
    get_operations_topological,
    print_trace_graph,
)
from weft.core.tensor import Tensor, TensorImpl
from weft.core.tensor.impl import driver_tensor_type
from weft.core.tensor.tracing import tensor_leaves, trace, traced, untraced

__all__ = [
    "GRAPH",
    "ComputeGraph",
    "OutputRefs",
    "PyTreeDef",
    "Tensor",
    "TensorImpl",
    "Trace",
    "apply_to_operations",
    "default_device",
    "default_dtype",
    "defaults",
    "defaults_like",
    "driver_tensor_type",
    "get_all_impls_topological",
    "get_operations_topological",
    "print_trace_graph",
    "tensor_leaves",
    "trace",
    "traced",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_structure",
    "tree_unflatten",
    "untraced",
]
