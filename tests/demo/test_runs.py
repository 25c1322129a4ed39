"""Runs of the demo: they leave files behind, stop when asked, and go on as if nothing had been."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.checkpoints import Checkpoints, pieces
from weft.cli import main
from weft.demo import Settings, State, Training, folder, progress, runs

SIZES = "--batch 2 --layers 1 --width 8 --heads 2 --context 8".split()
TINY = Settings(steps=16, batch=2, layers=1, width=8, heads=2, context=8)
PLAIN = [*SIZES, "--mesh", "1", "--steps", "16"]


def demo(out: Path, *words: str) -> int:
    return main(["demo", *PLAIN, "--out", str(out), *words])


def saved(out: Path) -> Any:
    return Checkpoints(out / "checkpoints").restore()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbed."""
    out = tmp_path_factory.mktemp("finished")
    assert demo(out) == 0
    return out


def interrupt_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Training.advance

    def advance(self: Training, state: State, batch: Any) -> float:
        if state.step == step:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(self, state, batch)

    monkeypatch.setattr(Training, "advance", advance)


def check_same_curve(out: Path, finished: Path) -> None:
    found, wanted = saved(out), saved(finished)
    assert found["step"] == wanted["step"] == TINY.steps
    np.testing.assert_array_equal(found["losses"], wanted["losses"])
    np.testing.assert_array_equal(found["validation"], wanted["validation"])


@pytest.mark.slow
def test_a_run_leaves_its_curve_a_profile_and_checkpoints(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert {"loss.png", "profile.json", "checkpoints"} <= names
    assert ("graph.html" in names) == hasattr(wf, "visualize")
    assert Checkpoints(finished / "checkpoints").steps() == [14, 16]
    assert np.isfinite(saved(finished)["losses"]).all()


@pytest.mark.slow
def test_a_finished_run_says_so_and_only_samples(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(finished.rglob("*"))
    assert demo(finished) == 0
    told = capsys.readouterr().out
    assert "the run is finished (16 steps)" in told and runs.PROMPT in told
    assert sorted(finished.rglob("*")) == before


@pytest.mark.slow
def test_an_interrupted_run_saves_and_goes_on_to_the_same_losses(
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as patch:
        interrupt_at(4, patch)
        assert demo(tmp_path) == 130
    assert "interrupted after step 5; the same command goes on" in capsys.readouterr().out
    assert saved(tmp_path)["step"] == 5
    assert demo(tmp_path) == 0
    assert "going on from step 5" in capsys.readouterr().out
    check_same_curve(tmp_path, finished)


@pytest.mark.slow
def test_a_run_goes_on_over_a_mesh(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        interrupt_at(4, patch)
        assert demo(tmp_path) == 130
    assert demo(tmp_path, "--mesh", "2x2") == 0
    found, wanted = saved(tmp_path), saved(finished)
    np.testing.assert_allclose(found["losses"], wanted["losses"], rtol=1e-4)


@pytest.mark.slow
def test_other_settings_are_refused_and_fresh_begins_anew(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo(finished, "--steps", "17", "--seed", "3") == 1
    told = capsys.readouterr().err
    assert "steps was 16, is 17; seed was 0, is 3" in told and "--fresh" in told
    assert demo(tmp_path, "--steps", "2") == 0
    assert demo(tmp_path, "--steps", "3", "--fresh") == 0
    assert "going on" not in capsys.readouterr().out
    assert Checkpoints(tmp_path / "checkpoints").latest() == 3


def test_only_a_sample_needs_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo(tmp_path, "--sample-only") == 1
    assert "holds no model yet" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        demo(tmp_path, "--sample-only", "--fresh")


def test_without_matplotlib_the_curve_is_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "CAN_DRAW", False)
    made = folder.Folder(tmp_path, TINY)
    losses, looks = np.linspace(4, 3, 16, dtype=np.float32), np.ones(8, np.float32)
    path = made.draw_losses(State(None, None, losses, looks, 3, {}))  # type: ignore[arg-type]
    rows = path.read_text().splitlines()
    assert path.name == "loss.csv" and len(rows) == 4
    assert rows[0] == "step,training,validation" and rows[2].endswith(",1.0")


@pytest.mark.slow
def test_a_full_disk_stops_nothing_but_the_last_save(
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain, calls = pieces.write_file, [0]

    def write_file(*args: Any, **keywords: Any) -> int:
        calls[0] += 1
        if calls[0] > 5:  # two files a checkpoint: the third finds no room, nor any after it
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return plain(*args, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(pieces, "write_file", write_file)
        assert demo(tmp_path) == 1
    told = capsys.readouterr()
    assert "training goes on" in told.out and "the disk is full" in told.err
    assert "Traceback" not in told.out + told.err
    assert Checkpoints(tmp_path / "checkpoints").steps() == [2, 4]
    assert "step 16 could not be saved; complete: [2, 4]" in told.out
    assert demo(tmp_path) == 0
    check_same_curve(tmp_path, finished)


@pytest.mark.slow
def test_room_that_comes_back_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, calls = pieces.write_file, [0]

    def write_file(*args: Any, **keywords: Any) -> int:
        calls[0] += 1
        if 2 < calls[0] < 10:  # room for the first checkpoint and for the last
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return plain(*args, **keywords)

    monkeypatch.setattr(pieces, "write_file", write_file)
    assert demo(tmp_path) == 0
    assert Checkpoints(tmp_path / "checkpoints").latest() == TINY.steps


@pytest.mark.parametrize("reason", (errno.EROFS, errno.EACCES))
def test_a_folder_that_takes_no_files_is_refused_before_training(
    reason: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def write_bytes(self: Path, data: bytes) -> int:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    assert demo(tmp_path) == 1
    told = capsys.readouterr()
    assert os.strerror(reason) in told.err and "hint:" in told.err and not told.out


def test_a_file_where_the_folder_should_be_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").write_text("mine")
    assert demo(tmp_path / "out") == 1
    assert "hint:" in capsys.readouterr().err
    assert (tmp_path / "out").read_text() == "mine"


def started(out: Path, *words: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "weft", "demo", *PLAIN, "--out", str(out), *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


@pytest.mark.slow
def test_after_kill_9_the_same_command_ends_with_the_same_losses(tmp_path: Path) -> None:
    words = ("--steps", "1600")
    out, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    process = started(out, *words)
    deadline = time.monotonic() + 60
    store = Checkpoints(out / "checkpoints")
    while store.latest() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    step = store.latest()
    assert step is not None and step % 200 == 0 and step < 1600
    told, problems = started(out, *words).communicate(timeout=100)
    assert f"going on from step {step}" in told, problems
    assert demo(undisturbed, *words) == 0
    for name in ("losses", "validation"):
        np.testing.assert_array_equal(saved(out)[name], saved(undisturbed)[name])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:os.fork")  # other tests of this process may have loaded JAX
def test_a_limit_on_file_sizes_is_told_without_a_traceback(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    process = started(tmp_path, "--steps", "2", preexec_fn=limit)
    _, told = process.communicate(timeout=100)
    assert process.returncode == 1
    assert "a limit on file sizes was met" in told and "Traceback" not in told


def test_without_a_terminal_progress_is_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress(0, 80, 100) as shown:
        assert isinstance(shown, progress.Lines)
        for step in range(1, 81):
            shown.update(step, 1.0)
    lines = capsys.readouterr().out.splitlines()
    assert 20 < len(lines) <= 42
    assert "compiled" in lines[0] and "tokens/s" in lines[-1]


def test_on_a_terminal_progress_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich", reason="the bar is drawn by rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    with progress.progress(0, 3, 100) as shown:
        assert isinstance(shown, progress.Bar)
        shown.update(1, 2.0)
        shown.say("a line that stays")
