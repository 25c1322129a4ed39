"""The cost model's constants: measured once and kept, or fixed; no bit depends on them."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler import peaks, rates
from weft.compiler.choice import USUAL, Choice
from weft.compiler.choices import for_threads, trying
from weft.compiler.peaks import Peaks, best, blocks_of, measured_before
from weft.compiler.rates import FIXED, HEAVY_FLOPS, calibrate_for, calibrated, products
from weft.config import settings
from weft.runtime.cpu.jit import host_target

READS = (60.0, 40.0, 25.0, 18.0)
MACHINE = Peaks(1, 40.0, 20.0, READS, READS, 0.0, ((8, 3, 30.0), (12, 2, 31.0)))


@pytest.fixture
def measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Calibration is on, and nothing was measured yet."""
    monkeypatch.setattr(settings, "calibrate", 1)
    monkeypatch.setattr(settings, "cache_dir", str(tmp_path))
    peaks._known.cache_clear()
    return tmp_path


def test_fixed_constants_hold_in_tests() -> None:
    assert rates.rates() is FIXED and FIXED.choice == USUAL


def test_constants_follow_the_machine() -> None:
    found = calibrated(MACHINE, 30_000.0)
    assert found.cached == 1 / 40 and found.memory == 1 / 18
    assert found.parallel == 60_000.0
    twice = calibrated(replace(MACHINE, float32=80.0), 30_000.0)
    assert twice.vector == pytest.approx(found.vector / 2)
    assert twice.scalar / twice.vector == pytest.approx(FIXED.scalar / FIXED.vector)


def test_the_block_of_sums_that_ran_fastest_is_chosen() -> None:
    assert calibrated(MACHINE, 0.0).choice == Choice(rows=12, vectors=2)
    even = replace(MACHINE, blocks=((8, 3, 30.0), (12, 2, 30.1)))
    assert calibrated(even, 0.0).choice == USUAL
    assert calibrated(replace(MACHINE, blocks=()), 0.0).choice == USUAL


def test_a_disturbed_measurement_moves_no_constant_far() -> None:
    slow = Peaks(1, 1e-3, 1e-3, (1e-3,) * 4, (1e-3,) * 4)
    for found in (calibrated(slow, 1e9), calibrated(replace(slow, float32=1e6), 1.0)):
        for name in ("vector", "scalar", "cached", "memory", "parallel"):
            ratio = getattr(found, name) / getattr(FIXED, name)
            assert 0.25 <= ratio <= 4.0, name


def test_the_best_handoff_and_blocks_of_several_processes_count() -> None:
    other = replace(MACHINE, handoff=5.0, blocks=((8, 3, 33.0), (12, 2, 20.0)))
    found = best([replace(MACHINE, handoff=9.0), MACHINE, other])
    assert found.handoff == 5.0
    assert found.blocks == ((8, 3, 33.0), (12, 2, 31.0))


def test_only_heavy_programs_are_worth_measuring_for(measuring: Path) -> None:
    light = wf.compile(lambda x: x @ x).lower(wf.ones((8, 8)))
    assert products(light) == 2 * 8**3 < HEAVY_FLOPS
    calibrate_for(light)
    assert measured_before(1) is None and rates.rates() is FIXED


def test_a_heavy_program_measures_once_and_what_is_found_is_kept(
    measuring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "HEAVY_FLOPS", 0)
    heavy = wf.compile(lambda x: x @ x).lower(wf.ones((8, 8)))
    calibrate_for(heavy)
    found = rates.rates()
    assert found is not FIXED
    one = measured_before(1)
    assert one is not None and len(one.blocks) == len(blocks_of(host_target()))
    assert all(0.1 < rate < 10_000 for *_, rate in one.blocks)
    monkeypatch.setattr(peaks, "Bench", None)  # measuring again would fail
    rates._found.clear()
    assert rates.rates() == found  # as the next process reads it


def test_a_measurement_that_was_changed_on_disk_is_not_used(
    measuring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "threads", 1)
    peaks._known(1)
    for path in measuring.glob("*.code"):
        data = path.read_bytes()
        if b'"float32"' in data:
            path.write_bytes(data.replace(b'"float32"', b'"float99"'))
    peaks.code_cache()._recent.clear()
    assert measured_before(1) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to the superuser")
def test_a_folder_that_cannot_be_written_costs_a_measurement(measuring: Path) -> None:
    measuring.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert peaks._known(1).float32 > 0


def test_a_folder_of_others_costs_a_measurement(measuring: Path) -> None:
    measuring.chmod(0o777)
    assert peaks._known(1).float32 > 0


_BITS = """
import hashlib, numpy as np, weft as wf
from weft.compiler import rates
rates.HEAVY_FLOPS = 0
x = wf.tensor(np.random.default_rng(0).normal(size=(70, 70)).astype(np.float32))
found = wf.compile(lambda x: wf.tanh(x @ x).sum(0) @ x)(x).numpy()
print(hashlib.sha256(found.tobytes()).hexdigest(), rates.rates() is rates.FIXED)
"""


@pytest.mark.slow
def test_results_have_the_same_bits_with_and_without_calibration(tmp_path: Path) -> None:
    told = []
    for calibrate in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", _BITS],
            env={
                **os.environ,
                "WEFT_CACHE_DIR": str(tmp_path / calibrate),
                "WEFT_CALIBRATE": calibrate,
            },
            capture_output=True,
            text=True,
            check=True,
        )
        told.append(done.stdout.split())
    assert told[0][0] == told[1][0]
    assert [fixed for _, fixed in told] == ["True", "False"]


def test_a_choice_never_changes_a_bit() -> None:
    x = np.random.default_rng(0).normal(size=(60, 60)).astype(np.float32)
    for choice in (Choice(rows=12, vectors=2), Choice(rows=4, vectors=3), Choice(tall=16, deep=8)):
        f = wf.compile(lambda x: x @ x)
        with trying({}, choice):
            got = f(wf.tensor(x)).numpy()
        want = wf.compile(lambda x: x @ x)(wf.tensor(x)).numpy()
        assert got.tobytes() == want.tobytes()


def _weights(x: Any, w: Any, g: Any) -> Any:
    return wf.grad(lambda w: (wf.conv2d(x, w, padding=1) * g).sum())(w)


@pytest.mark.parametrize("name", ["large", "strip", "bfloat16", "convolution"])
def test_more_tiles_have_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "threads", 2)
    normal = np.random.default_rng(0).standard_normal
    given: list[Any] = {
        "large": [(600, 600), (600, 600)],
        "strip": [(2000, 200), (200, 200)],
        "bfloat16": [(600, 600), (600, 600)],
        "convolution": [(4, 64, 9, 9), (16, 64, 3, 3), (4, 16, 9, 9)],
    }[name]
    dtype = wf.bfloat16 if name == "bfloat16" else wf.float32
    tensors = [wf.tensor(normal(shape), dtype=dtype) for shape in given]
    run = _weights if name == "convolution" else wf.matmul
    told = []
    for choice in (USUAL, Choice(tasks=64)):
        f = wf.compile(lambda *xs: run(*xs))
        with trying({}, choice):
            text = f.explain(*tensors)
        tiles = max(int(n) for n in re.findall(r"tasks (\d+)", _heavy(text)))
        told.append((f(*tensors).numpy().tobytes(), tiles))
    assert told[0][0] == told[1][0]
    assert told[0][1] < told[1][1]


def test_many_threads_want_tiles_each(monkeypatch: pytest.MonkeyPatch) -> None:
    for threads, tasks in ((1, 0), (2, 0), (4, 0), (16, 32), (64, 128)):
        monkeypatch.setattr(settings, "threads", threads)
        assert for_threads(Choice(deep=8)) == Choice(deep=8, tasks=tasks)
        assert for_threads(Choice(tasks=5)) == Choice(tasks=5)


def _heavy(text: str) -> str:
    """The kernels of an explanation that multiply."""
    lines = text.splitlines()
    named = (i for i, line in enumerate(lines) if re.match(r"    (matmul|conv)[\w.]*:", line))
    return "\n".join(lines[i + 1] for i in named if "the rest" not in lines[i])
