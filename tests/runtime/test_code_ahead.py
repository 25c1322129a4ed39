"""Modules are compiled while others are written; who waits gets every one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft.config import settings
from weft.runtime.cpu import code_ahead, jit
from weft.runtime.cpu.code_ahead import begin, finish
from weft.runtime.cpu.code_cache import code_cache
from weft.runtime.cpu.jit import compile_text, host_target, load_object

pytestmark = pytest.mark.skipif(not jit.available(), reason="llvmlite is not installed")


def text(number: int, steps: int = 1) -> str:
    rows = ["define i64 @f(i64 %x0) {"]
    rows += [f"  %x{i + 1} = add i64 %x{i}, {number}" for i in range(steps)]
    return "\n".join([*rows, f"  ret i64 %x{steps}", "}", ""])


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    deadline = time.monotonic() + 60
    while code_ahead._unfinished and time.monotonic() < deadline:  # what another test began
        time.sleep(0.01)
    _stop_threads()
    monkeypatch.setattr(code_ahead, "available_cores", lambda: 2)
    monkeypatch.setattr(settings, "cache_dir", str(tmp_path / "code"))
    yield
    _stop_threads()


def _stop_threads() -> None:
    """What comes next may need another number of them, or none."""
    for threads in (code_ahead._threads, code_ahead._patient):
        for each in threads:
            each.shutdown()
        threads.clear()


def test_every_module_comes_back_in_order() -> None:
    target = host_target()
    jobs = [begin(text(n), target) for n in range(5)]
    found = finish(jobs)
    assert found == [compile_text(text(n), target) for n in range(5)]
    assert all(load_object(code).address("f") for code in found)
    assert finish(jobs[2:3]) == found[2:3]


def test_what_was_not_begun_is_compiled_by_who_waits_the_longest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, here, there = threading.Event(), [], []
    mine = threading.get_ident()

    def compile_text(text: str, target: object) -> bytes:
        if threading.get_ident() != mine:
            there.append(text)
            held.wait(60)
            return b"there"
        here.append(len(text))
        if len(here) == 3:
            held.set()
        return b"here"

    monkeypatch.setattr(code_ahead, "compile_text", compile_text)
    first = begin(text(0), host_target())
    while not there:
        pass
    jobs = [first, *(begin(text(n, steps), host_target()) for n, steps in ((1, 2), (2, 9), (3, 5)))]
    assert finish(jobs) == [b"there", b"here", b"here", b"here"]
    assert here == sorted(here, reverse=True)


def test_on_one_core_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_ahead, "available_cores", lambda: 1)
    job = begin(text(7), host_target())
    assert job.is_left and not code_ahead._threads
    assert finish([job]) == [compile_text(text(7), host_target())]


def test_one_text_asked_for_twice_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    held, made = threading.Event(), []

    def compile_text(text: str, target: object) -> bytes:
        held.wait(60)
        made.append(text)
        return b"code"

    monkeypatch.setattr(code_ahead, "compile_text", compile_text)
    jobs = [begin(text(1), host_target()), begin(text(1), host_target())]
    held.set()
    assert finish(jobs) == [b"code", b"code"] and len(made) == 1
    assert finish([begin(text(1), host_target())]) == [b"code"] and len(made) == 1


@pytest.mark.parametrize("own", [None, 0.5, 1e-6])
def test_pythons_lock_goes_around_as_before_when_all_is_made(
    monkeypatch: pytest.MonkeyPatch, own: float | None
) -> None:
    deadline = time.monotonic() + 60
    while code_ahead._unfinished and time.monotonic() < deadline:  # of tests before
        time.sleep(0.01)
    with code_ahead._lock:  # who ends the last of them has set it back
        held, before = threading.Event(), sys.getswitchinterval()
    monkeypatch.setattr(code_ahead, "compile_text", lambda text, target: held.wait(60) and b"code")
    try:
        jobs = [begin(text(n), host_target()) for n in range(3)]
        assert sys.getswitchinterval() < before
        if own is not None:  # who sets it meanwhile is not overruled
            sys.setswitchinterval(own)
        held.set()
        finish(jobs)
        assert sys.getswitchinterval() == pytest.approx(own or before)
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("cores", [1, 2])
def test_a_draft_comes_first_and_the_code_later(
    monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    monkeypatch.setattr(code_ahead, "available_cores", lambda: cores)
    target, done = host_target(), threading.Event()
    job = begin(text(8, 50), target, drafts=True)
    assert finish([job], drafts=True) == [compile_text(text(8, 50), target, draft=True)]
    assert job.is_usable and not job.is_done
    assert code_cache().folder.read(job.key) is None
    code_ahead.later([job], done.set)
    assert done.wait(60) and job.code == compile_text(text(8, 50), target)
    assert code_cache().folder.read(job.key) == job.code
    assert finish([job], drafts=True) == finish([job]) == [job.code]


def test_who_wants_no_draft_gets_the_code() -> None:
    jobs = [begin(text(n, 50), host_target(), drafts=True) for n in range(3)]
    assert finish(jobs) == [compile_text(text(n, 50), host_target()) for n in range(3)]


def test_what_can_be_made_later_waits_for_who_hurries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_ahead, "_MEANWHILE", 0.0)
    done = threading.Event()
    with code_ahead.hurrying():
        code_ahead.later([], done.set)
        assert not done.wait(0.2)
    assert done.wait(10)


def test_nobody_hurries_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_ahead, "_MEANWHILE", 0.0)
    monkeypatch.setattr(code_ahead, "_PATIENCE", 0.01)
    done = threading.Event()
    with code_ahead.hurrying():
        code_ahead.later([], done.set)
        assert done.wait(10)


def test_nothing_follows_code_that_cannot_be_made() -> None:
    seen, done = [], threading.Event()
    code_ahead.later([begin("this is no module", host_target())], lambda: seen.append(1))
    code_ahead.later([], done.set)
    assert done.wait(60) and not seen


def test_code_is_on_disk_for_the_next_process() -> None:
    job = begin(text(5), host_target())
    (code,) = finish([job])
    assert code_cache().folder.read(job.key) == code


def test_what_is_needed_while_the_interpreter_exits_is_compiled(tmp_path: Path) -> None:
    program = """
        import atexit
        import weft as wf

        @atexit.register
        def late():
            total = wf.sum(wf.ones((40, 1000)) * 2)
            print(total.item(), wf.compile(lambda x: x * 3)(total).item())
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "WEFT_CACHE_DIR": str(tmp_path / "code"), "WEFT_COMPILE_AFTER": "0"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.stdout, result.stderr) == ("80000.0 240000.0\n", "")


def test_an_error_reaches_who_waits_and_the_next_compiles() -> None:
    with pytest.raises(RuntimeError, match="expected"):
        finish([begin("this is no module", host_target())])
    assert finish([begin(text(6), host_target())])


def test_an_interrupt_leaves_a_module_to_whoever_waits_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(text: str, target: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(code_ahead, "available_cores", lambda: 1)
    job = begin(text(9), host_target())
    with monkeypatch.context() as inside:
        inside.setattr(code_ahead, "compile_text", interrupted)
        with pytest.raises(KeyboardInterrupt):
            finish([job])
    assert job.is_left and not jit.tuned._stays
    assert finish([job]) == finish([begin(text(9), host_target())])


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a destructor
def test_an_interrupt_while_llvm_runs_leaves_llvm_usable() -> None:
    code = compile_text(text(3, 40), host_target())
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for number in range(20):
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.0005 * (number + 1), 0.05)
                while True:
                    finish([begin(text(number, 60), host_target())])
                    code_cache()._recent.clear()
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert finish([begin(text(3, 40), host_target())]) == [code]
            assert not code_ahead._waiting
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork")  # there are other threads, on purpose
def test_a_child_compiles_what_its_parent_had_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_ahead, "available_cores", lambda: 3)
    expected = [compile_text(text(n, 300), host_target()) for n in range(6)]
    jobs = [begin(text(n, 300), host_target()) for n in range(6)]
    time.sleep(0.002)  # two threads are in the midst of it
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(30)
            status = 0 if finish(jobs) == expected else 2
        finally:
            os._exit(status)
    assert finish(jobs) == expected
    assert os.waitpid(child, 0)[1] == 0


def test_the_options_of_llvm_are_set_back_when_all_is_made() -> None:
    jobs = [begin(text(n, 40), host_target()) for n in range(4)]
    assert jit.tuned._stays
    finish(jobs)
    assert not jit.tuned._stays and jit.tuned._options == {}
