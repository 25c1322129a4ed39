"""Sharding: how tensors lie over a mesh, how ops carry that along, and what moving costs.

| file | what lives in it |
|---|---|
| `propagate` | COLLECT, RESOLVE, UPDATE over an op's factors |
| `steps` | `Step`, one collective; the cheapest ones from one layout to another |
| `pieces` | what the devices of this process hold of a tensor |
| `dual` | the physical side of a tensor, shard by shard |
| `log` | the communication log |
| `profiles` | links and devices in numbers |
| `cost` | bytes and seconds of collectives and of a change of sharding on a mesh |
"""

from weft.core.common.spec import DeviceMesh, Link, P, PartitionSpec, ShardingSpec
from weft.core.sharding.cost import reshard_cost
from weft.core.sharding.dual import Dual, Shard
from weft.core.sharding.log import Communication, CommunicationLog, communication_log
from weft.core.sharding.profiles import DeviceProfile
from weft.core.sharding.propagate import Propagation, propagate

__all__ = [
    "Communication",
    "CommunicationLog",
    "DeviceMesh",
    "DeviceProfile",
    "Dual",
    "Link",
    "P",
    "PartitionSpec",
    "Propagation",
    "Shard",
    "ShardingSpec",
    "communication_log",
    "propagate",
    "reshard_cost",
]
