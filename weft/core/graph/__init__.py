"""Recorded calls: what was asked for and has not run yet, and functions captured as graphs.

| file | what lives in it |
|---|---|
| `node` | `OutputRefs`, one recorded call |
| `graph` | `ComputeGraph`, `GRAPH`, topological utilities |
| `trace` | `Trace`, a function as data; `print_trace_graph` |
"""

from weft.core.graph.graph import (
    GRAPH,
    ComputeGraph,
    Counters,
    apply_to_operations,
    get_all_impls_topological,
    get_operations_topological,
)
from weft.core.graph.node import OutputRefs, Ref
from weft.core.graph.trace import Trace, print_trace_graph

__all__ = [
    "GRAPH",
    "ComputeGraph",
    "Counters",
    "OutputRefs",
    "Ref",
    "Trace",
    "apply_to_operations",
    "get_all_impls_topological",
    "get_operations_topological",
    "print_trace_graph",
]
