"""Sharding: how tensors lie over a mesh, and how ops carry that along.

| file | what lives in it |
|---|---|
| `propagate` | COLLECT, RESOLVE, UPDATE over an op's factors |
"""

from weft.core.common.spec import DeviceMesh, P, PartitionSpec, ShardingSpec
from weft.core.sharding.propagate import Propagation, propagate

__all__ = ["DeviceMesh", "P", "PartitionSpec", "Propagation", "ShardingSpec", "propagate"]
