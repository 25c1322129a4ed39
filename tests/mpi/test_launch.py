import importlib.util
import os
import subprocess
import sys

import pytest

from weft import launch as launching
from weft.errors import BackendError


def options(*words):
    return launching._parser().parse_args(words)


@pytest.mark.slow
def test_script_arguments_threads_and_timeout_reach_every_rank_and_a_status_comes_back(launch):
    options = ("--timeout", "33", "--tag")
    variables = {"WEFT_THREADS": "3", "STATUS_OF_RANK_1": "5"}
    status, text = launch(2, "show.py", "--deep", "-n", "7", options=options, **variables)
    assert status == 5, text
    told = [line for line in text.splitlines() if "]<stdout>" in line]
    for rank in range(2):
        assert any(f"rank {rank} of 2: ['--deep', '-n', '7'] 3 33.0" in line for line in told), text


@pytest.mark.slow
def test_one_rank_is_the_local_communicator(launch):
    status, text = launch(1, "show.py")
    assert status == 0 and "rank 0 of 1" in text


def test_cores_are_shared_among_ranks_unless_threads_are_given(monkeypatch):
    monkeypatch.setattr(launching, "_cores", lambda: 8)
    made = launching.environment({}, 4, None)
    assert made["WEFT_THREADS"] == made["OMP_NUM_THREADS"] == "2"
    assert launching.environment({}, 64, None)["WEFT_THREADS"] == "1"
    made = launching.environment({"WEFT_THREADS": "5", "OMP_NUM_THREADS": "6"}, 4, 9)
    assert (made["WEFT_THREADS"], made["OMP_NUM_THREADS"]) == ("5", "6")
    assert made["WEFT_RANK_TIMEOUT"] == "9"


def test_messages_stay_on_this_machine_unless_told_otherwise():
    assert launching.environment({}, 2, None)["OMPI_MCA_btl"] == "self,sm"
    assert launching.environment({"OMPI_MCA_btl": "tcp"}, 2, None)["OMPI_MCA_btl"] == "tcp"


def test_fault_tolerance_can_be_left_out(monkeypatch):
    monkeypatch.setattr(launching, "find_mpirun", lambda: "mpirun")
    monkeypatch.setattr(launching, "_survives", lambda mpirun: True)
    words = launching.command_line(options("-n", "2", "a.py", "--ft"))
    assert words[-3:] == [sys.executable, "a.py", "--ft"] and "ulfm" in words
    words = launching.command_line(options("-n", "2", "--no-ft", "-m", "package.module", "-n"))
    assert words[-4:] == [sys.executable, "-m", "package.module", "-n"] and "ulfm" not in words


@pytest.mark.parametrize("count", ["0", "-1", "two"])
def test_a_count_that_is_none_is_refused(count, capsys):
    with pytest.raises(SystemExit):
        launching.main(["-n", count, "a.py"])
    assert "-n" in capsys.readouterr().err


def test_what_is_missing_is_said_with_the_way_to_get_it(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert launching.main(["-n", "2", "a.py"]) == 2
    text = capsys.readouterr().err
    assert "mpi4py is not installed" in text and "pip install 'weft[mpi]'" in text


def test_a_missing_mpirun_is_said_too(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(launching.shutil, "which", lambda _: None)
    with pytest.raises(BackendError, match=r"no mpirun here\nhint: pip install"):
        launching.find_mpirun()


def test_importing_weft_and_asking_for_the_local_world_loads_no_mpi():
    program = (
        "import sys, weft, weft.launch\n"
        "from weft.runtime.communicator import world\n"
        "assert world().size == 1\n"
        "assert not [name for name in sys.modules if name.startswith('mpi4py')]\n"
    )
    clean = {name: text for name, text in os.environ.items() if not name.startswith("OMPI_")}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=clean)


def test_a_rank_without_mpi4py_says_how_to_install_it():
    program = (
        "import sys\n"
        "sys.modules['mpi4py'] = None\n"
        "from weft.runtime.communicator import world\n"
        "world()\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "OMPI_COMM_WORLD_SIZE": "2"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.returncode == 1
    assert "BackendError: world: this process was started as a rank" in found.stderr
    assert "pip install 'weft[mpi]'" in found.stderr
