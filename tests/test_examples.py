"""Every example runs, checks itself, is short, and is listed."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from weft.errors import BackendError
from weft.launch import find_mpirun

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples"
EXAMPLES = sorted(path.name for path in FOLDER.glob("*.py"))
LONGEST = 120  # lines
LIMIT = 300  # seconds; a quiet machine needs a twentieth of that


def why_not(name: str) -> str:
    """What an example needs that is not here."""
    if name.startswith("16"):
        try:
            find_mpirun()
        except BackendError as error:
            return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_and_its_own_checks_hold(name, tmp_path) -> None:
    reason = why_not(name)
    if reason:
        pytest.skip(reason)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(FOLDER / name)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip(), "an example says what it found"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_says_what_one_learns_and_asserts(name) -> None:
    text = (FOLDER / name).read_text()
    tree = ast.parse(text)
    assert len(text.splitlines()) < LONGEST
    assert "You learn" in (ast.get_docstring(tree) or "")
    assert sum(isinstance(node, ast.Assert) for node in ast.walk(tree)) >= 2


def test_the_list_of_examples_names_each_of_them_once() -> None:
    rows = re.findall(
        r"^\| \[(.+?)\]\((.+?)\) \| (.+) \|$", (FOLDER / "README.md").read_text(), re.M
    )
    assert [name for name, _, _ in rows] == EXAMPLES
    assert all(name == link and len(line) > 20 for name, link, line in rows)


def test_examples_are_numbered_without_a_gap() -> None:
    assert [name[:2] for name in EXAMPLES] == [f"{n:02d}" for n in range(1, len(EXAMPLES) + 1)]
