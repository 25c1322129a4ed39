"""`wf.tune` stays within its time, keeps only what is reliably faster, and never changes a bit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler import choices
from weft.compiler.choice import USUAL, Choice
from weft.compiler.kernels import STORE
from weft.compiler.native import Native
from weft.compiler.search import LEAST_ROUNDS, ROUNDS, Found, is_faster, search
from weft.config import settings
from weft.errors import ArgumentError, CompilationError
from weft.runtime.cpu.code_cache import code_cache
from weft.transforms.tune import TunedKernel, Tuner, TuningReport

SMALL = Choice(tall=8, right=4096)


class Bench:
    """A clock that only measurements move; each candidate takes the times it is given."""

    def __init__(self, times: Mapping[Any, Any]) -> None:
        self.times = times
        self.now = 0.0
        self.runs: list[Any] = []

    def clock(self) -> float:
        return self.now

    def run(self, candidate: Any) -> dict[str, float]:
        given = self.times[candidate]
        spent = given[len(self.runs) % len(given)] if isinstance(given, list) else given
        self.now += spent
        self.runs.append(candidate)
        return {"part": spent}


def searched(times: Mapping[Any, Any], end: float = 1e9) -> tuple[Found[Any, str], Bench]:
    bench = Bench(times)
    others = [c for c in times if c != "usual"]
    return search(others, "usual", bench.run, bench.clock, end), bench


def test_the_fastest_candidate_wins() -> None:
    found, _ = searched({"usual": 1.0, "slow": 1.5, "fast": 0.5, "fair": 0.8})
    assert found.best("part") == ("fast", 2.0)


def test_a_candidate_that_is_not_faster_is_not_chosen() -> None:
    found, bench = searched({"usual": 1.0, "same": 1.0, "slow": 2.0, "hardly": 0.99})
    assert found.best("part") is None
    assert len(bench.runs) < 3 * 2 * ROUNDS  # and it was given up early


def test_a_candidate_that_is_faster_now_and_then_is_not_chosen() -> None:
    found, _ = searched({"usual": 1.0, "moody": [0.5, 1.2, 1.3, 0.6, 1.1, 1.2, 0.5]})
    assert found.best("part") is None


@pytest.mark.parametrize("end", [0.0, 0.5, 3.0, 10.0, 17.5, 40.0])
def test_a_search_ends_in_time(end: float) -> None:
    _, bench = searched({"usual": 1.0, "a": 0.5, "b": 0.7, "c": 0.9}, end)
    assert bench.now <= max(end, 0.5)  # how long the very first run takes nobody knows before


def test_a_few_lucky_rounds_are_not_believed() -> None:
    assert not is_faster([2.0] * (LEAST_ROUNDS - 1))
    assert is_faster([2.0] * LEAST_ROUNDS)
    assert not is_faster([2.0] * 5 + [0.9] * 3)


def test_candidates_that_change_nothing_are_not_measured() -> None:
    runs: list[str] = []

    def run(candidate: str) -> dict[str, float]:
        runs.append(candidate)
        return {} if candidate == "same" else {"part": 1.0}

    search(["same"], "usual", run, lambda: 0.0, 1.0)
    assert runs == ["same"]


# -- kernels -----------------------------------------------------------------------------------


class FakeTuner(Tuner):
    """Kernels take what a test says; the clock moves with them."""

    def __init__(self, factors: Mapping[Choice, float], whole: float, *args: Any) -> None:
        self.now = 0.0
        super().__init__(*args, alternatives=[USUAL, *factors], clock=lambda: self.now)
        self.factors, self.whole = factors, whole

    def measure(self, choice: Choice | None) -> dict[choices.Form, float]:
        real = super().measure(choice)
        self.now += 1.0
        return {form: 1e6 / self.factors.get(choice or USUAL, 1.0) for form in real}

    def measure_whole(self, native: Native) -> dict[str, float]:
        super().measure_whole(native)
        self.now += 1.0
        changed = any(each.choice != USUAL for each in native.code)
        return {"whole": 1.0 / self.whole if changed else 1.0}


def matrices(n: int = 24) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return tuple(wf.tensor(rng.normal(size=(n, n)).astype(np.float32)) for _ in range(2))


def tuned(factors: Mapping[Choice, float], whole: float = 2.0, seconds: float = 1e6) -> Any:
    x, y = matrices()
    f = wf.compile(lambda x, y: x @ y)
    tuner = FakeTuner(factors, whole, "f", f.lower(x, y), [x.data(), y.data()])
    report, chosen = tuner.tune(0.0, seconds)
    return report, chosen, tuner


def test_a_choice_that_is_faster_is_kept() -> None:
    report, chosen, _ = tuned({SMALL: 2.0, Choice(tall=8): 0.5})
    assert list(chosen.values()) == [SMALL]
    assert report.improved and report.factor == 2.0
    assert report.kernels[0].factor == 2.0 and "tall 8" in report.kernels[0].choice


def test_a_choice_that_does_not_make_the_whole_function_faster_is_dropped() -> None:
    report, chosen, _ = tuned({SMALL: 2.0}, whole=1.0)
    assert not chosen and not report.improved
    assert report.kernels[0].factor == 1.0 and report.kernels[0].choice == "usual"


def test_without_a_gain_nothing_is_chosen() -> None:
    report, chosen, _ = tuned({SMALL: 1.0, Choice(tall=8): 0.9})
    assert not chosen and not report.improved


@pytest.mark.parametrize("seconds", [0.0, 6.0, 20.0])
def test_tuning_ends_in_time(seconds: float) -> None:
    _, _, tuner = tuned({SMALL: 2.0, Choice(tall=8): 1.5}, seconds=seconds)
    assert tuner.now <= max(seconds, 0.0)


def test_other_bits_are_refused() -> None:
    x, y = matrices()
    f = wf.compile(lambda x, y: x @ y)
    tuner = Tuner("f", f.lower(x, y), [x.data(), y.data()])
    tuner.measure(None)
    tuner._arrays = [x.data(), -y.data()]
    with pytest.raises(CompilationError, match="tune: f: other bits by choice"):
        tuner.measure(SMALL)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for compiled code, and no kernels that were compiled before."""
    monkeypatch.setattr(settings, "cache_dir", str(tmp_path))
    monkeypatch.setattr(STORE, "_made", OrderedDict())
    monkeypatch.setattr(STORE, "_versions", OrderedDict())
    return tmp_path


def forms(f: Any, *args: Any) -> dict[choices.Form, Choice]:
    made = Native(f.lower(*args))
    return {call.request.form: call.request.compiled.choice for call in made.calls.values()}


def test_what_was_kept_is_used_and_gives_the_same_bits(own_cache: Path) -> None:
    x, y = matrices()
    f = wf.compile(lambda x, y: x @ y)
    before = f(x, y).numpy()
    (form,) = forms(f, x, y)
    assert choices.keep({form: SMALL})
    again = wf.compile(lambda x, y: x @ y)
    assert forms(again, x, y) == {form: SMALL}
    f.prepared((x, y), {}).build_anew(f._counting, False)
    np.testing.assert_array_equal(f(x, y).numpy().view(np.int32), before.view(np.int32))


_LATER = """
import numpy as np, weft as wf
from weft.compiler.kernels import STORE
from weft.compiler.native import Native
f = wf.compile(lambda x, y: x @ y)
x = wf.ones((23, 23))
f(x, x)
print(f.stats.from_disk, *{str(c.choice) for c in Native(f.lower(x, x)).code})
"""


def later(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _LATER],
        env={**os.environ, "WEFT_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.slow
def test_a_later_process_uses_what_was_kept(own_cache: Path) -> None:
    x, _ = matrices(23)
    f = wf.compile(lambda x, y: x @ y)
    (form,) = forms(f, x, x)
    assert choices.keep({form: SMALL})
    f.prepared((x, x), {}).build_anew(f._counting, False)
    assert later(own_cache) == f"1 {SMALL}"


@pytest.mark.slow
def test_choices_that_were_changed_on_disk_are_not_used(own_cache: Path) -> None:
    x, _ = matrices(23)
    (form,) = forms(wf.compile(lambda x, y: x @ y), x, x)
    assert choices.keep({form: SMALL})
    for path in own_cache.glob("*.code"):
        data = path.read_bytes()
        if b'"tall": 8' in data:
            path.write_bytes(data.replace(b'"tall": 8', b'"tall": 9'))
    assert later(own_cache).endswith("usual")


def test_without_a_folder_choices_hold_for_this_process(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "cache_bytes", 0)
    x, y = matrices()
    f = wf.compile(lambda x, y: x @ y)
    (form,) = forms(f, x, y)
    assert not choices.keep({form: SMALL})
    assert forms(f, x, y) == {form: SMALL}
    assert not code_cache().folder.is_used


# -- what users call ---------------------------------------------------------------------------


def test_tuning_leaves_arguments_and_random_numbers_alone(own_cache: Path) -> None:
    x, y = matrices()
    f = wf.compile(lambda x, y: x @ y + wf.randn(24, 24), donate_argnums=0)
    wf.random.seed(3)
    want = f(wf.tensor(x.numpy()), y).numpy()
    wf.random.seed(3)
    report = wf.tune(f, x, y, seconds=0.3)
    assert isinstance(report, wf.TuningReport)
    np.testing.assert_array_equal(f(x, y).numpy(), want)


@pytest.mark.parametrize(
    "function, seconds, message",
    [
        (lambda x: x, 1.0, r"tune: function: expected what wf\.compile returns"),
        (None, 1.0, r"tune: function: expected what wf\.compile returns"),
        (wf.compile(lambda x: x), -1.0, "tune: seconds must be a number of at least 0, got -1.0"),
        (wf.compile(lambda x: x), float("nan"), "tune: seconds must be a number"),
        (wf.compile(lambda x: x), "long", "tune: seconds must be a number"),
        (wf.compile(lambda x: x), True, "tune: seconds must be a number"),
        (wf.compile(lambda x: wf.print("{}", x)), 0.1, r"tune: .* has effects"),
    ],
)
def test_wrong_input_is_refused(function: Any, seconds: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        wf.tune(function, wf.ones(3), seconds=seconds)


def test_inside_a_transform_there_is_nothing_to_measure() -> None:
    f = wf.compile(lambda x: x * 2.0)

    def inside(x: Any) -> Any:
        wf.tune(f, x)
        return x.sum()

    with pytest.raises(ArgumentError, match="tune: inside a transform"):
        wf.grad(inside)(wf.ones(3))


def test_a_report_is_a_table() -> None:
    kernel = TunedKernel("matmul", "float32[8,8] -> float32[8,8]", 1.5, 1.25, "tall 8")
    report = TuningReport("f", 0.5, 3, 21, (kernel,), 1.2, True)
    assert str(report).splitlines() == [
        "f: 3 alternatives, 21 rounds, 0.50 s",
        "  kernel  shapes                        ms     faster  choice",
        "  matmul  float32[8,8] -> float32[8,8]  1.500  1.25    tall 8",
        "the function is 1.20 times as fast; kept for later processes",
    ]
