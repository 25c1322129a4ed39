"""The communicator of an MPI job, for a process that a launcher has started.

MPI is started when the communicator is first asked for, and ended when the interpreter exits. It is
not ended after a failure, since that would wait for ranks that are gone. An exception that nobody
catches ends the rank with a non-zero status, for which the launcher ends the others.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
from types import TracebackType
from typing import Any

from weft.config import settings
from weft.core.common.lazy import LazyModule
from weft.errors import BackendError
from weft.runtime.communicator.collectives import ProcessCommunicator
from weft.runtime.communicator.interface import Communicator
from weft.runtime.communicator.local import LocalCommunicator
from weft.runtime.communicator.messages import Messages
from weft.runtime.communicator.segment import MOST_SEATS, Segment
from weft.runtime.communicator.shared_memory import SharedMemory, Watch
from weft.runtime.communicator.transport import State, Transport

_mpi4py = LazyModule("mpi4py")
MPI = LazyModule("mpi4py.MPI")

_ABORT_SECONDS = 1.5  # for a rank whose threads keep it alive after an exception


def join() -> Communicator:
    """The communicator of all ranks of the job that this process belongs to."""
    started = _start()
    comm = MPI.COMM_WORLD.Dup()
    if comm.Get_size() == 1:
        made: Communicator = LocalCommunicator()
        atexit.register(_finish, None, started)
        return made
    transport = _shared(comm) or Messages(comm)
    ranks = ProcessCommunicator(transport, float(settings.rank_timeout))
    _die_loudly(ranks)
    atexit.register(_finish, ranks, started)
    return ranks


def _start() -> bool:
    """Start MPI unless someone else has; tells whether we did, and so have to end it."""
    try:
        _mpi4py.rc.initialize = False
        _mpi4py.rc.finalize = False
        running = bool(MPI.Is_initialized())
    except (ImportError, RuntimeError) as error:
        raise BackendError(
            f"world: this process was started as a rank, but mpi4py cannot be loaded ({error})\n"
            "hint: pip install 'weft[mpi]'"
        ) from error
    if not running:
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    return not running


def _shared(comm: Any) -> Transport | None:
    """Shared memory between all ranks, if they are on one host and may see each other."""
    able = settings.shared_memory > 0 and hasattr(os, "pidfd_open") and os.path.exists("/proc")
    here = (_host(), os.getpid(), able)
    everyone = comm.allgather(here)
    if len({host for host, _, _ in everyone}) != 1 or not all(able for _, _, able in everyone):
        return None
    processes = [process for _, process, _ in everyone]
    if len(processes) > MOST_SEATS:
        return None
    segment, descriptor = None, -1
    if comm.Get_rank() == 0:
        segment, descriptor = Segment.create(comm.Get_size())
    descriptor_of_first = comm.bcast(descriptor)
    try:
        if segment is None:
            segment = Segment.attach(processes[0], descriptor_of_first, comm.Get_size())
    except OSError:  # another container, or a system that hides processes from each other
        segment = None
    everybody = all(comm.allgather(segment is not None))
    if descriptor >= 0:
        os.close(descriptor)
    if segment is None or not everybody:
        return None
    return SharedMemory(segment, Watch(processes), tuple(range(len(processes))), comm.Get_rank())


def _host() -> str:
    """What only processes of one running system, and one view of it, have in common."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _die_loudly(ranks: ProcessCommunicator) -> None:
    """Have an exception that nobody catches end this rank at once, and its job with it."""
    usual = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        usual(kind, error, trace)
        sys.stdout.flush()
        sys.stderr.flush()
        ranks.newest.leave(State.FAILED, f"{kind.__name__}: {error}")
        timer = threading.Timer(_ABORT_SECONDS, MPI.COMM_WORLD.Abort, (1,))
        timer.daemon = True
        timer.start()

    sys.excepthook = hook


def _finish(ranks: ProcessCommunicator | None, started: bool) -> None:
    """End MPI in order if all ranks come to that; otherwise just go: it would wait for ever."""
    healthy = ranks is None or ranks.usable
    if ranks is not None:
        ranks.newest.close()
        healthy = healthy and ranks.all_have_left()
    if started and healthy and not MPI.Is_finalized():
        MPI.Finalize()
