"""Sharded tensors between processes: the bits of one process, whoever owns the devices."""

import subprocess
import sys

import pytest

from tests.mpi.conftest import PROGRAMS, ROOT


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What `meshes.py` prints in one process, and the folder it left a checkpoint in."""
    folder = tmp_path_factory.mktemp("meshes")
    done = subprocess.run(
        [sys.executable, PROGRAMS / "meshes.py", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    return folder, digests(done.stdout)


def digests(text):
    return [line for line in text.splitlines() if " arrays, " in line]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_programs_over_meshes_give_the_bits_of_one_process(launch, alone, ranks):
    folder, expected = alone
    status, text = launch(ranks, "meshes.py", str(folder), options=("--timeout", "60"))
    assert status == 0, text
    assert digests(text) == expected
    assert text.count("is done") == ranks


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_may_look_collect_diverge_come_late_and_die(launch, ranks):
    status, text = launch(ranks, "apart.py", options=("--timeout", "30"))
    assert text.count("is done") == ranks - 1, text
    assert "Traceback" not in text, (status, text)
