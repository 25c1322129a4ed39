"""Communication between processes: collectives of NumPy arrays, the same under every launcher.

| file | what lives in it |
|---|---|
| `interface` | `Communicator`: what collectives promise |
| `local` | the communicator of a single process |
| `collectives` | all collectives, on any transport |
| `headers` | what a rank says it is doing; how divergence is found |
| `parcels` | arrays as the bytes that travel |
| `fold` | the ordered fold of reductions |
| `transport` | what collectives need of a way to move bytes |
| `shared_memory`, `segment`, `signals` | ranks of one host |
| `exposure` | memory that they write for each other to read |
| `small_sum`, `sum_text` | their small sums, in one native call each |
| `messages` | ranks anywhere, through MPI |
| `job` | the communicator of an MPI job |
| `process` | `world`: the communicator of this process; `use`: another one |
"""

from weft.runtime.communicator.interface import Communicator, Members
from weft.runtime.communicator.local import LocalCommunicator
from weft.runtime.communicator.process import use, world

__all__ = ["Communicator", "LocalCommunicator", "Members", "use", "world"]
