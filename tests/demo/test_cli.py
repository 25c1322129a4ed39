"""The command `weft`: what it prints, and what it says to requests that it cannot meet."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import weft as wf
from weft.checkpoints import Checkpoints
from weft.cli import main
from weft.testing.emulated_gpu import use_emulated_gpu

TINY = "--steps 4 --batch 4 --layers 1 --width 8 --heads 2 --context 8".split()


@pytest.mark.parametrize(
    ("words", "told"),
    (
        ("--mesh 2", "argument --mesh: expected 1, or two sizes such as 2x2, got '2'"),
        ("--mesh 0x2", "argument --mesh"),
        ("--steps many", "argument --steps: invalid int value: 'many'"),
        ("--dtype int8", "argument --dtype: invalid choice: 'int8'"),
        ("--device tpu", "argument --device: invalid choice: 'tpu'"),
    ),
)
def test_words_that_make_no_sense_end_with_2(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["demo", *words.split()])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    (
        ("--device cuda", "--device cuda: no backend here keeps tensors there (there are cpu"),
        ("--device webgpu", "hint: --device cpu"),
        ("--ranks 3", "--ranks 3: processes share the devices of the mesh evenly, and there are 4"),
        ("--ranks 2 --mesh 1", "hint: --mesh 2x1"),
        ("--ranks 0", "--ranks: at least 1, got 0"),
        ("--steps 0", "--steps: at least 1, got 0"),
        ("--width 20", "--width: heads need an even number of features each"),
        ("--batch 1000000", "rows make no batch of 1000000"),
    ),
)
def test_what_cannot_be_done_is_told_in_a_line_and_ends_with_1(
    words: str,
    told: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wf, "available_backends", lambda: ("cpu",))
    assert main(["demo", "--out", str(tmp_path / "out"), *words.split()]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("weft: ") and told in said.err and not said.out
    assert not (tmp_path / "out").exists()


def test_info_names_version_backends_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    said = capsys.readouterr().out
    for word in (wf.__version__, "cpu", "threads", "code cache", "WEFT_CACHE_DIR"):
        assert word in said


def test_help_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    options = "steps batch mesh ranks device dtype out fresh seed sample-only help"
    assert all(f"--{name}" in said for name in options.split())


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed")
def test_ranks_share_a_run_and_one_process_goes_on_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["demo", *TINY, "--out", str(tmp_path)]
    command = [sys.executable, "-m", "weft", *words, "--ranks", "2"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "2 processes" in ran.stdout and ran.stdout.count("Of Man's first disobedience") == 1
    store = Checkpoints(tmp_path / "checkpoints")
    assert len(list(store.path(4).glob("*.safetensors"))) == 2
    assert main([*words, "--mesh", "1"]) == 0
    said = capsys.readouterr().out
    assert "the run is finished (4 steps)" in said
    assert said.splitlines()[-1] == ran.stdout.splitlines()[-1]


@pytest.mark.slow
def test_the_demo_trains_on_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["demo", "--device", "cuda", *TINY]
    with use_emulated_gpu(2):
        assert main([*words, "--out", str(tmp_path / "one")]) == 0
        said = capsys.readouterr().out
        assert "one device" in said
        assert main([*words, "--mesh", "2x1", "--out", str(tmp_path / "two")]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == said.splitlines()[-1]
        assert main([*words, "--mesh", "2x2", "--out", str(tmp_path / "four")]) == 1
    assert "cuda:2: does not exist" in capsys.readouterr().err
