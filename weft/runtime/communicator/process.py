"""Which communicator a process has: that of the job it was started in, or the local one.

Only a process that a launcher has started loads what talks to others.
"""

from __future__ import annotations

import os

from weft.core.common.lazy import LazyModule
from weft.core.sharding.pieces import forget_owners
from weft.runtime.communicator.interface import Communicator
from weft.runtime.communicator.local import LocalCommunicator

_job = LazyModule("weft.runtime.communicator.job")

# Set by the launchers of Open MPI, of MPICH and Intel MPI, and of systems that use PMIx.
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_RANKS = (*_SIZES, "PMIX_RANK")
_chosen: list[Communicator] = []


def world() -> Communicator:
    """The communicator of this process: all ranks of its MPI job, or itself alone.

    >>> world().size
    1
    """
    if not _chosen:
        _chosen.append(_job.join() if _has_company() else LocalCommunicator())
    return _chosen[0]


def use(communicator: Communicator) -> None:
    """Let tensors over meshes be spread over the processes of this communicator from now on.

    After a rank has died, `use(world().shrink())` on every rank that is left lets them go on with
    meshes for fewer processes. Tensors whose pieces are no longer where a mesh wants them say so
    when they are used: load them from a checkpoint.
    """
    _chosen[:] = [communicator]
    forget_owners()


def _has_company() -> bool:
    """Whether a launcher has started this process as one of several, as far as it tells."""
    if not any(name in os.environ for name in _RANKS):
        return False
    return not any(os.environ.get(name) == "1" for name in _SIZES)
