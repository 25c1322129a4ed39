"""Benchmarks run and print figures; what the figures are is not a test's business."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(name: str, target: Path, *more: str) -> dict:
    subprocess.run(
        [
            sys.executable,
            str(ROOT / "benchmarks" / name),
            *("--rounds", "1", "--seconds", "0.01", "--only", "weft", "--json", str(target)),
            *more,
        ],
        check=True,
        cwd=ROOT,
    )
    return json.loads(target.read_text())


@pytest.mark.promise("S4.42")
@pytest.mark.slow
def test_the_cost_of_a_dispatched_call_is_measured(tmp_path: Path) -> None:
    rows = run("dispatch.py", tmp_path / "dispatch.json")["rows"]
    assert rows["x + y, 4 elements"]["microseconds"]["weft"] > 0


@pytest.mark.promise("S1.21")
@pytest.mark.slow
def test_the_cost_of_a_handler_is_measured(tmp_path: Path) -> None:
    rows = run("transforms.py", tmp_path / "transforms.json")["rows"]
    assert rows["100 sines of 64, gradient"]["microseconds"]["weft"] > 0


@pytest.mark.slow
def test_compiled_programs_are_measured(tmp_path: Path) -> None:
    found = run("compiler.py", tmp_path / "compiler.json", "--quick", "--rows", "call")
    assert found["rows"]["compiled call, 4 elements"]["milliseconds"]["weft"] > 0
    assert found["first calls"]["first call, fused kernel"]["seconds"] > 0


@pytest.mark.slow
def test_heavy_work_is_measured(tmp_path: Path) -> None:
    found = run("heavy.py", tmp_path / "heavy.json", "--quick", "--rows", "float32 16")
    (row,) = found["rows"].values()
    assert row["milliseconds"]["weft"] > 0


@pytest.mark.slow
def test_everyday_work_is_measured(tmp_path: Path) -> None:
    found = run("everyday.py", tmp_path / "everyday.json", "--threads", "1", "--rows", "rows of")
    assert len(found["rows"]) > 3
    assert all(row["milliseconds"]["weft"] > 0 for row in found["rows"].values())


@pytest.mark.slow
def test_shares_of_the_machines_peak_are_measured(tmp_path: Path) -> None:
    found = run("roofline.py", tmp_path / "roofline.json", "--quick", "--rows", "float32 128")
    (row,) = found["rows"].values()
    assert row["of_block"] > 0 and row["of_peaks"] > 0


@pytest.mark.slow
def test_work_of_a_gpu_is_measured(tmp_path: Path) -> None:
    found = run("gpu.py", tmp_path / "gpu.json", "--quick", "--rows", "2048×128")
    (row,) = found["rows"].values()
    assert row["milliseconds"]["weft"] > 0
