"""The pool: workers come when needed, go at exit, and never change a result."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.program_kernels import INDEX, mixed, pointers, step
from weft.config import settings
from weft.runtime.cpu.executor_text import executor_text
from weft.runtime.cpu.jit import emit_assembly
from weft.runtime.cpu.pool import Pool, available_cores, pool
from weft.runtime.cpu.program import Program
from weft.runtime.cpu.program_builder import ProgramBuilder

ROOT = Path(__file__).parents[2]
TASKS = 2000


def parallel_program(regions: int = 1, grain: int = 10) -> Program:
    """`mix` over its argument, `regions` times."""
    builder = ProgramBuilder(arguments=1)
    slot = builder.argument(0)
    with builder.loop(regions):
        builder.region([step("mix", [slot], [1], TASKS, 1e9, grain)])
    return builder.build()


def expected(regions: int = 1) -> np.ndarray:
    x = np.zeros(TASKS, INDEX)
    for _ in range(regions):
        x = mixed(x, 1)
    return x


def run_python(code: str, **environment: str) -> str:
    text = textwrap.dedent(PRELUDE) + textwrap.dedent(code)
    result = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", text],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


PRELUDE = """
        import os, sys, threading, time
        import numpy as np
        from tests.runtime.program_kernels import INDEX, pointers
        from tests.runtime.test_pool import TASKS, expected, parallel_program, pool
        def check(program, threads=0):
            x = np.zeros(TASKS, INDEX)
            program.run(pointers(x), threads)
            assert (x == expected()).all()
"""


@pytest.mark.slow
def test_the_pool_starts_when_a_region_needs_it_and_has_the_size_the_settings_ask_for():
    out = run_python(
        """
        program = parallel_program()
        print(pool.workers, threading.active_count())
        check(program, threads=1)
        print(pool.workers)
        check(program)
        print(pool.workers, threading.active_count())
        """,
        WEFT_THREADS="3",
    )
    assert out.split() == ["0", "1", "0", "2", "3"]


def test_without_a_setting_there_is_a_thread_for_each_core():
    out = run_python(
        "check(parallel_program()); print(pool.workers)",
        WEFT_THREADS="0",
    )
    assert int(out) == available_cores() - 1


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_the_pool_obeys_the_affinity_of_the_process():
    out = run_python(
        """
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        from weft.runtime.cpu.pool import Pool
        print(Pool().cores)
        """,
        WEFT_THREADS="0",
    )
    assert out == "1\n"


def test_the_setting_may_change_between_runs_and_bounds_the_threads():
    builder = ProgramBuilder(arguments=1)
    builder.region([step("spin", [builder.argument(0)], [10**4], 400, 1e9, grain=1)])
    program, before = builder.build(), settings.threads
    try:
        for threads in (4, 1, 2, 0):
            settings.threads = threads
            profile, x = program.profile(512), np.zeros(400, INDEX)
            program.run(pointers(x), profile=profile)
            assert x.all()
            used = {timing.thread for timing in profile.timings()}
            assert len(used) <= (threads or available_cores())
    finally:
        settings.threads = before


def test_more_threads_than_cores_give_the_same_result_and_do_not_spin():
    program, x = parallel_program(regions=40), np.zeros(TASKS, INDEX)
    program.run(pointers(x), threads=4 * available_cores())
    np.testing.assert_array_equal(x, expected(40))
    # Idle workers must cost nothing: the process sleeps.
    time.sleep(0.02)
    began = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - began < 0.15


@pytest.mark.slow
def test_idle_workers_go_to_sleep():
    out = run_python(
        """
        check(parallel_program(), threads=2)
        time.sleep(0.02)
        began = time.process_time()
        time.sleep(0.5)
        print(time.process_time() - began)
        """
    )
    assert float(out) < 0.25


@pytest.mark.parametrize("threads", [2, 4])
def test_the_tasks_of_a_region_run_at_the_same_time(threads):
    builder = ProgramBuilder(arguments=2)
    slot, met = builder.argument(0), builder.argument(1)
    builder.region([step("meet", [slot, met], [10**8], 2, 1e9, grain=1)])
    program = builder.build()

    def meet() -> bool:
        flags, results = np.zeros(2, INDEX), np.zeros(2, INDEX)
        program.run(pointers(flags, results), threads)
        return results.tolist() == [1, 1]

    for _ in range(5):  # the pool is free again after each region, unless someone else has it
        assert any(meet() for _ in range(20))


def test_a_stopped_pool_starts_again():
    program = parallel_program()
    for _ in range(20):
        x = np.zeros(TASKS, INDEX)
        program.run(pointers(x), threads=3)
        np.testing.assert_array_equal(x, expected())
        assert pool.workers >= 2
        pool.stop()
        assert pool.workers == 0


def test_a_pool_that_is_stopped_while_regions_run_does_no_harm():
    program, wrong = parallel_program(regions=20), []

    def work() -> None:
        for _ in range(40):
            x = np.zeros(TASKS, INDEX)
            program.run(pointers(x), threads=3)
            if not np.array_equal(x, expected(20)):
                wrong.append(x)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        pool.stop()
    assert not wrong


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_starts_without_workers_and_makes_its_own():
    out = run_python("""
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # this process has threads
        program = parallel_program()
        check(program, threads=3)
        # Another thread is in a region as often as not: the child must not inherit a busy pool.
        stop = threading.Event()
        def churn():
            while not stop.is_set():
                check(program, threads=3)
        thread = threading.Thread(target=churn)
        thread.start()
        for _ in range(5):
            child = os.fork()
            if child == 0:
                assert pool.workers == 0
                check(program, threads=1)
                check(program, threads=3)
                assert pool.workers == 2
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        thread.join()
        check(program, threads=3)
        print("parent and children agree")
    """)
    assert out == "parent and children agree\n"


@pytest.mark.slow
def test_the_interpreter_exits_at_once_while_workers_wait_or_work():
    began = time.perf_counter()
    run_python("check(parallel_program(), threads=4)")
    run_python("""
        from tests.runtime.program_kernels import LARGE, step
        from weft.runtime.cpu.program_builder import ProgramBuilder
        builder = ProgramBuilder(arguments=1)
        slot = builder.argument(0)
        builder.region([step("spin", [slot], [10**12], 8, LARGE, grain=1)])  # minutes
        x = np.zeros(8, INDEX)
        work = lambda: builder.build().run(pointers(x), threads=2)
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.2)
    """)
    assert time.perf_counter() - began < 60


@pytest.mark.slow
def test_programs_run_while_the_interpreter_exits():
    out = run_python("""
        import atexit
        program = parallel_program()
        def late():
            check(program, threads=3)
            print("ran with", pool.workers)
        atexit.register(late)
        check(program, threads=3)
        pool._close()
    """)
    assert out == "ran with 0\n"


def test_a_pool_that_cannot_have_threads_leaves_the_work_to_the_caller(monkeypatch):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    program, x = parallel_program(), np.zeros(TASKS, INDEX)
    pool.stop()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        program.run(pointers(x), threads=3)
        assert pool.workers == 0
    np.testing.assert_array_equal(x, expected())
    assert Pool().grow(1) == 1


@pytest.mark.parametrize(
    ("triple", "marks"),
    [
        ("x86_64-unknown-linux-gnu", ["rdtsc", "pause", "syscall", "$202"]),
        ("aarch64-unknown-linux-gnu", ["CNTVCT_EL0", "isb", "syscall"]),
        ("x86_64-apple-darwin", ["rdtsc", "usleep"]),
        ("arm64-apple-darwin", ["CNTVCT_EL0", "usleep"]),
        ("x86_64-pc-windows-msvc", ["rdtsc", "Sleep"]),
        ("riscv64-unknown-linux-gnu", ["clock_gettime", "sched_yield", "syscall"]),
    ],
)
def test_the_executor_can_be_compiled_for_other_machines(triple, marks):
    assembly = emit_assembly(executor_text(triple), triple)
    assert all(mark in assembly for mark in marks)


def test_fork_and_join_are_measured(capsys):
    def program(trips: int, turns: int) -> Program:
        builder = ProgramBuilder(arguments=0)
        slot = builder.scratch(16 * 8)  # aligned: the chunks share no cache line
        with builder.loop(trips):
            builder.region([step("spin", [slot], [turns], 16, 1e9, grain=8)])
        return builder.build()

    def microseconds(trips: int, turns: int, threads: int, repeats: int = 5) -> float:
        made = program(trips, turns)
        times = []
        for _ in range(repeats):
            time.sleep(0.002)  # workers fall asleep
            began = time.perf_counter()
            made.run([], threads)
            times.append((time.perf_counter() - began) * 1e6 / trips)
        return statistics.median(times)

    with capsys.disabled():
        print("\nmicroseconds of a region in two chunks, on one thread and on two:")
        for turns in (1, 1000, 10000):
            alone, both = (microseconds(500, turns, threads) for threads in (1, 2))
            cold = microseconds(1, turns, 2, 30)
            print(f"  {alone:7.2f} -> {both:7.2f}, run once with a sleeping worker {cold:7.2f}")
