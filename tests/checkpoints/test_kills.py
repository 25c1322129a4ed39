"""`kill -9` at any instant loses nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_newest_checkpoint_survives_fifty_kills_at_random_instants(
    tmp_path: Path, fresh_seed: int
) -> None:
    command = [sys.executable, "tools/kill_checkpoints.py", "--kills", "52"]
    options = ["--seed", str(fresh_seed), "--folder", str(tmp_path)]
    done = subprocess.run(command + options, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "52 kills" in done.stdout and "nothing lost" in done.stdout
