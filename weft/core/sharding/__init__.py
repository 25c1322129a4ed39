"""Sharding: how tensors lie over a mesh, and how ops carry that along.

| file | what lives in it |
|---|---|
| `propagate` | COLLECT, RESOLVE, UPDATE over an op's factors |
| `steps` | the cheapest collectives from one layout to another |
| `pieces` | what the devices of this process hold of a tensor |
| `dual` | the physical side of a tensor, shard by shard |
| `log` | the communication log |
"""

from weft.core.common.spec import DeviceMesh, Link, P, PartitionSpec, ShardingSpec
from weft.core.sharding.dual import Dual, Shard
from weft.core.sharding.log import Communication, CommunicationLog, communication_log
from weft.core.sharding.propagate import Propagation, propagate

__all__ = [
    "Communication",
    "CommunicationLog",
    "DeviceMesh",
    "Dual",
    "Link",
    "P",
    "PartitionSpec",
    "Propagation",
    "Shard",
    "ShardingSpec",
    "communication_log",
    "propagate",
]
