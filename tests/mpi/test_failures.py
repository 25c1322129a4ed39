import os
import re
import signal
import threading

import pytest

from tests.mpi.conftest import LAUNCH_MARK

BEGUN = "has begun"
SLEEP = 600  # seconds that a rank sleeps in `mistake.py`


def begun(process, ranks):
    """Read until all ranks have met once."""
    text = ""
    while text.count(BEGUN) < ranks:
        line = process.stdout.readline()
        assert line, text
        text += line
    return text


def ended(process):
    """The exit status and the rest of the text of ranks that must not wait for those that sleep."""
    limit = threading.Timer(SLEEP / 3, process.kill)
    limit.start()
    text = process.stdout.read()  # not `communicate`, which forgets what `readline` has buffered
    process.wait(10)
    limit.cancel()
    return process.returncode, text


def ranks_left(launcher, folder="/proc"):
    """Processes of one launch that still run; other tests may have ranks of their own meanwhile."""
    mark = f"{LAUNCH_MARK}={launcher.mark}".encode()
    found = []
    for name in filter(str.isdecimal, os.listdir(folder)):
        try:
            with open(f"{folder}/{name}/environ", "rb") as file:
                variables = file.read().split(b"\0")
        except OSError:
            continue
        if mark in variables:  # an ended process that nobody has reaped has no environment
            found.append(int(name))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("ranks, transport", [(4, "SharedMemory"), (3, "Messages")])
def test_survivors_of_killed_ranks_learn_who_died_and_go_on(succeed, ranks, transport):
    text = succeed(ranks, "death.py", transport, finishers=1)
    for victim in range(1, ranks):
        assert f"rank {victim} died" in text, text


@pytest.mark.slow
@pytest.mark.parametrize("case", ["raise", "thread"])
def test_an_exception_of_one_rank_ends_those_that_wait_and_those_that_compute(start, case):
    process = start(3, "mistake.py", case)
    text = begun(process, 3)
    status, rest = ended(process)
    assert status == 1
    assert "ZeroDivisionError: the mistake of rank 1" in text + rest
    assert "is done" not in rest
    assert not ranks_left(process)


@pytest.mark.slow
def test_an_exception_before_mpi_has_started_ends_all(launch):
    status, text = launch(2, "mistake.py", "before")
    assert status == 1 and "nobody has started MPI yet" in text


@pytest.mark.slow
def test_a_rank_that_exits_is_missed_by_name(launch):
    status, text = launch(2, "mistake.py", "exit")
    assert status in (1, 7)
    assert "RankFailedError" in text and "rank 1 has left" in text


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_and_the_job_ends(start):
    process = start(2, "mistake.py", "hang", options=("--timeout", "1"))
    begun(process, 2)
    status, text = ended(process)
    assert status == 1
    assert re.search(r"RankTimeoutError: .*rank 1 did not come in \d+\.\d s", text), text
    assert not ranks_left(process)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launcher_stops_every_rank(start, number):
    process = start(2, "mistake.py", "hang")
    begun(process, 2)
    process.send_signal(number)
    status, _ = ended(process)
    assert status == 128 + number
    assert not ranks_left(process)


@pytest.mark.slow
def test_ctrl_c_interrupts_a_rank_that_waits(launch, tmp_path):
    status, text = launch(2, "mistake.py", "interrupt", str(tmp_path / "interrupted"))
    assert "KeyboardInterrupt while it waits" in text, text
    assert status == 0
