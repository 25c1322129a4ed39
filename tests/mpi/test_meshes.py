"""Sharded tensors between processes: the bits of one process, whoever owns the devices."""

import os
import subprocess
import sys

import pytest

from tests.mpi.conftest import LIMIT, PROGRAMS, ROOT


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What `meshes.py` prints in one process, and the folder it left a checkpoint in."""
    folder = tmp_path_factory.mktemp("meshes")
    done = subprocess.run(
        [sys.executable, PROGRAMS / "meshes.py", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    return folder, digests(done.stdout)


def digests(text):
    return [line for line in text.splitlines() if " arrays, " in line]


@pytest.mark.slow
@pytest.mark.promise("S3.24")
@pytest.mark.promise("S3.25")
@pytest.mark.parametrize("ranks", [2, 4])
def test_programs_over_meshes_give_the_bits_of_one_process(launch, alone, ranks):
    folder, expected = alone
    some = expected[:: ranks - 1]  # every third one if there are more ranks than cores
    names = [line.partition(":")[0] for line in some]
    status, text = launch(ranks, "meshes.py", str(folder), *names, options=("--timeout", "60"))
    assert status == 0, text
    assert digests(text) == some
    assert text.count("is done") == ranks


@pytest.mark.slow
def test_sums_that_go_together_as_messages_give_the_same_bits(launch, alone):
    folder, expected = alone
    names = ("train together", "gradients inside", "gathered once")
    status, text = launch(2, "meshes.py", str(folder), *names, WEFT_SHARED_MEMORY="0")
    assert status == 0, text
    assert digests(text) == [line for line in expected if line.partition(":")[0] in names]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_may_look_collect_diverge_come_late_and_die(launch, ranks):
    status, text = launch(ranks, "apart.py", options=("--timeout", "30"))
    assert text.count("is done") == ranks - 1, text
    assert "Traceback" not in text, (status, text)


LIGHT = """
import sys
import weft
late = ("socket", "selectors", "hashlib", "json", "html", "numpy.typing", "llvmlite")
late += ("weft.runtime.communicator.collectives", "weft.runtime.communicator.job")
assert weft.runtime.communicator.world().size == 1
print(*(name for name in late if name in sys.modules))
"""


def test_a_process_alone_loads_nothing_that_talks_to_others():
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMI"))}
    done = subprocess.run(
        [sys.executable, "-c", LIGHT], cwd=ROOT, env=variables, capture_output=True, text=True
    )
    assert (done.stdout.strip(), done.stderr) == ("", "")


@pytest.mark.slow
def test_ranks_with_gpus_give_the_bits_of_the_processor(launch):
    status, text = launch(2, "gpus.py", options=("--timeout", "60"))
    assert status == 0, text
    assert text.count("is done") == 2
