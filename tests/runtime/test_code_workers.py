"""Modules compiled in other processes give the same code, and no trouble with a worker is seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from weft.runtime.cpu import code_workers, jit
from weft.runtime.cpu.code_workers import compile_apart, compile_many

pytestmark = pytest.mark.skipif(not jit.available(), reason="llvmlite is not installed")


@pytest.fixture(autouse=True)
def no_worker_is_left():
    yield
    code_workers.stop_workers()


@pytest.fixture
def target():
    return jit.host_target()


def text(number: int, steps: int = 20) -> str:
    rows = [f"define double @f{number}(double %x0) {{"]
    rows += [f"  %x{i + 1} = fadd double %x{i}, {float(number + i)}" for i in range(steps)]
    return "\n".join([*rows, f"  ret double %x{steps}", "}", ""])


def here(texts, target):
    return [jit.compile_text(each, target) for each in texts]


@pytest.mark.slow
def test_workers_and_this_process_make_the_same_code(target):
    texts = [text(n, 10 + n % 4) for n in range(12)]
    assert compile_apart(texts, target, 2) == here(texts, target)
    workers = list(code_workers._workers)
    assert len(workers) == 2 and all(worker.alive for worker in workers)
    assert compile_apart(texts, target, 2) == here(texts, target)
    assert code_workers._workers == workers  # they are used again
    assert workers[0].compile(texts[0], target) == here(texts[:1], target)[0]


def test_workers_start_only_where_they_pay(target, monkeypatch):
    asked = []

    def apart(texts, target, count):
        asked.append((len(texts), count))
        return [b""] * len(texts)

    monkeypatch.setattr(code_workers, "compile_apart", apart)
    monkeypatch.setattr(code_workers, "compile_text", lambda text, target: b"here")
    monkeypatch.setattr(code_workers, "cores", lambda: 4)
    long = " " * int(0.3 / code_workers.SECONDS_PER_CHARACTER)
    assert compile_many([], target) == []
    compile_many([long * 9], target)
    compile_many(["short"] * 9, target)
    compile_many([long] * 3, target)
    assert asked == []
    compile_many([long] * 9, target)
    compile_many([long * 4] * 2, target)
    assert asked == [(9, 3), (2, 1)]
    monkeypatch.setattr(code_workers, "cores", lambda: 1)
    assert compile_many([long] * 9, target) == [b"here"] * 9
    assert len(asked) == 2


def test_a_text_that_does_not_compile_raises_as_it_does_here(target):
    with pytest.raises(RuntimeError) as expected:
        jit.compile_text("nonsense", target)
    with pytest.raises(RuntimeError) as found:
        compile_apart([text(1), "nonsense", text(2)], target, 1)
    assert str(found.value) == str(expected.value)


def test_a_worker_survives_a_text_that_does_not_compile(target):
    (worker,) = code_workers._started(1)
    assert worker.compile("nonsense", target) is None
    assert worker.compile(text(1), target) == here([text(1)], target)[0]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_dead_worker_costs_nothing_but_time(target, number):
    (worker,) = code_workers._started(1)
    os.kill(worker.process.pid, number)
    texts = [text(n) for n in range(4)]
    assert compile_apart(texts, target, 1) == here(texts, target)
    worker.process.wait()
    assert compile_apart(texts, target, 1) == here(texts, target)
    assert worker not in code_workers._workers


def test_a_worker_that_does_not_answer_is_given_up(target, monkeypatch):
    monkeypatch.setattr(code_workers, "PATIENCE", 0.3)
    (worker,) = code_workers._started(1)
    os.kill(worker.process.pid, signal.SIGSTOP)
    texts = [text(n) for n in range(4)]
    assert compile_apart(texts, target, 1) == here(texts, target)
    assert not worker.alive


@pytest.mark.parametrize("answer", ["head -c 100 /dev/zero", "yes | head -c 100", "exit 1"])
def test_nonsense_from_a_worker_is_no_code(target, monkeypatch, tmp_path, answer):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o700)
    monkeypatch.setattr(code_workers.sys, "executable", str(program))
    texts = [text(n) for n in range(3)]
    assert compile_apart(texts, target, 1) == here(texts, target)


def test_without_workers_everything_is_compiled_here(target, monkeypatch):
    monkeypatch.setattr(code_workers.sys, "executable", "/nowhere/python")
    texts = [text(n) for n in range(3)]
    assert compile_apart(texts, target, 2) == here(texts, target)
    assert code_workers._workers == []


@pytest.mark.slow
def test_two_threads_do_not_mix_their_answers(target):
    found = {}

    def use(name: int) -> None:
        texts = [text(10 * name + n) for n in range(5)]
        found[name] = compile_apart(texts, target, 1) == here(texts, target)

    threads = [threading.Thread(target=use, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: True, 1: True, 2: True}


def gone(pid: int, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().split(") ")[1][0] in "ZX":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
def test_a_worker_stops_when_its_parent_is_killed():
    code = (
        "import time; from weft.runtime.cpu import code_workers as w; "
        "print(w._started(1)[0].process.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    assert gone(pid)


@pytest.mark.slow
def test_a_worker_stops_when_nothing_comes():
    code = "from weft.runtime.cpu import code_workers as w; w.IDLE_SECONDS = 0.1; w.serve()"
    worker = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert worker.wait(30) == 0  # though its input is still open
    finally:
        worker.kill()
        worker.communicate()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:os.fork")  # other tests of this process may have loaded JAX
def test_a_forked_child_leaves_the_parents_workers_alone(target):
    (worker,) = code_workers._started(1)
    pid = os.fork()
    if pid == 0:
        clean = not code_workers._workers and worker.process.stdin.closed
        os._exit(0 if clean else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert worker.compile(text(1), target) == here([text(1)], target)[0]
