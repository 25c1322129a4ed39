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


def run(*words: str, folder: Path) -> str:
    """What a program prints that ends well."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_and_its_own_checks_hold(name, tmp_path) -> None:
    reason = why_not(name)
    if reason:
        pytest.skip(reason)
    assert run(str(FOLDER / name), folder=tmp_path).strip(), "an example says what it found"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, absent, said",
    [
        ("06_cnn_on_digits.py", "sklearn", "accuracy"),
        ("14_weights_from_torch.py", "torch", "torch is not here"),
        ("16_processes_over_mpi.py", "mpi4py", "mpi4py is not installed"),
    ],
)
def test_an_example_does_without_a_library_that_is_not_installed(
    name, absent, said, tmp_path
) -> None:
    hide = f"import sys, runpy; sys.modules[{absent!r}] = None; sys.argv = [{name!r}]"
    text = run("-c", f"{hide}; runpy.run_path({str(FOLDER / name)!r})", folder=tmp_path)
    assert said in text


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_says_what_one_learns_and_asserts(name) -> None:
    text = (FOLDER / name).read_text()
    tree = ast.parse(text)
    assert len(text.splitlines()) < LONGEST
    assert "You learn" in (ast.get_docstring(tree) or "")
    assert sum(isinstance(node, ast.Assert) for node in ast.walk(tree)) >= 1


def test_the_list_of_examples_names_each_of_them_once() -> None:
    rows = re.findall(
        r"^\| \[(.+?)\]\((.+?)\) \| (.+) \|$", (FOLDER / "README.md").read_text(), re.M
    )
    assert [name for name, _, _ in rows] == EXAMPLES
    assert all(name == link and len(line) > 20 for name, link, line in rows)


def test_examples_are_numbered_without_a_gap() -> None:
    assert [name[:2] for name in EXAMPLES] == [f"{n:02d}" for n in range(1, len(EXAMPLES) + 1)]
