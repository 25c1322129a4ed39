"""`launch`: run one of `programs/` as several ranks, with a hard limit on its time."""

import importlib.util
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from weft.errors import BackendError
from weft.launch import find_mpirun

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
TRANSPORTS = {"SharedMemory": "1", "Messages": "0"}
LAUNCH_MARK = "WEFT_TEST_LAUNCH"  # in the environment of a launch's processes, to tell them apart
LIMIT = 600  # seconds; a quiet machine needs a few, one that does much else many times that


def why_not():
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed: pip install 'weft[mpi]'"
    try:
        find_mpirun()
    except BackendError as error:
        return str(error)
    return ""


@pytest.fixture
def start():
    """Start ranks and return the launcher's process; whatever is left is killed in the end."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    started = []

    def run(ranks, program, *arguments, options=(), **variables):
        words = ["-n", str(ranks), *options, str(PROGRAMS / program), *arguments]
        mark = uuid.uuid4().hex
        always = {"PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1", LAUNCH_MARK: mark}
        process = subprocess.Popen(
            [sys.executable, "-m", "weft.launch", *words],
            env={**os.environ, **always, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        process.mark = mark
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)  # it takes its ranks along
            process.wait(20)
        process.stdout.close()


@pytest.fixture
def launch(start):
    """Run ranks to their end; the result is their exit status and what they printed."""

    def run(ranks, program, *arguments, **options):
        process = start(ranks, program, *arguments, **options)
        try:
            text, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            text, _ = process.communicate(timeout=20)
            pytest.fail(f"{program} hangs; it printed\n{text}")
        return process.returncode, text

    return run


@pytest.fixture
def succeed(launch):
    """Run ranks, each of which must say that it is done."""

    def run(ranks, program, transport, finishers=None):
        memory = TRANSPORTS[transport]
        status, text = launch(
            ranks, program, transport, options=("--timeout", "60"), WEFT_SHARED_MEMORY=memory
        )
        assert status == 0, text
        assert text.count("is done") == (ranks if finishers is None else finishers), text
        return text

    return run
