"""Pages in a browser: they load without a complaint, show every box, search, and fold."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import weft as wf

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium to open pages (apt: chromium)"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def step(carry: wf.Tensor, row: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        return wf.tanh(carry + row), carry.sum()

    def function(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        h = wf.softmax(x @ w)
        return wf.scan(step, h[0], h)[1]

    function.__name__ = "<img src=x onerror=document.title='evil'>"
    path = tmp_path_factory.mktemp("page") / "graph.html"
    wf.visualize(function)(wf.ones((16, 32)), wf.ones((32, 32)), path=path)
    return path


def opened(path: Path, asked: str, profile: Path) -> str:
    """The page as the browser has it after its script ran; anything on the console is an error."""
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += ["--disable-dev-shm-usage", "--enable-logging=stderr", "--virtual-time-budget=4000"]
    command += [f"--user-data-dir={profile}", f"{path.as_uri()}#{asked}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    assert 'data-ready="yes"' in done.stdout and "data-error" not in done.stdout
    return done.stdout


def drawn(page: str, *kinds: str) -> list[str]:
    """The first line of every box of these kinds that is on the page."""
    found = re.findall(r'<div class="box (\w+)[^>]*><div[^>]*>([^<]*)</div>', page)
    return sorted(name for kind, name in found if not kinds or kind in kinds)


def test_a_page_shows_every_box_when_all_is_unfolded(page: Path, tmp_path: Path) -> None:
    shown = opened(page, "view=program&open=all", tmp_path)
    count = int(re.search(r'data-boxes="(\d+)"', shown)[1])
    assert len(drawn(shown)) == count
    assert drawn(shown, "input").count("x") == 1
    assert {"matmul", "exp", "scan", "tanh", "reduce_sum"} <= set(drawn(shown, "call"))
    assert "<path" in shown and "<title>evil" not in shown and "<img" not in shown


def test_folding_hides_what_is_inside_and_keeps_the_lines(page: Path, tmp_path: Path) -> None:
    shown = opened(page, "view=kernels&open=none", tmp_path)
    assert not {"exp", "tanh"} & set(drawn(shown, "call"))
    assert any(name.startswith("reduce_max_subtract_exp") for name in drawn(shown, "kernel"))
    whole = opened(page, "view=kernels&open=all", tmp_path)
    assert len(drawn(whole)) > len(drawn(shown)) and "tanh" in drawn(whole, "call")
    assert shown.count("<path") > 0


def test_a_search_finds_marks_and_unfolds(page: Path, tmp_path: Path) -> None:
    shown = opened(page, "view=program&open=none&find=tanh", tmp_path)
    hits = int(re.search(r'data-hits="(\d+)"', shown)[1])
    marked = re.findall(r'<div class="box [^"]*\bhit\b[^"]*"[^>]*><div[^>]*>([^<]*)</div>', shown)
    # The line `return wf.tanh(carry + row), carry.sum()` made the other two calls.
    assert hits == 4 and sorted(marked) == ["add", "output 0", "reduce_sum", "tanh"]
    assert re.search(r'class="box call[^"]*chosen', shown)
    nothing = opened(page, "find=no-such-thing", tmp_path)
    assert 'data-hits="0"' in nothing and "0 found" in nothing
