"""Runs of programs: cancelled, interrupted, paused, profiled, many at once, on arrays."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.program_kernels import INDEX, LARGE, array, mixed, pointers, step
from weft.errors import CancelledError
from weft.runtime.cpu import program as module
from weft.runtime.cpu.executor import executor
from weft.runtime.cpu.pool import pool
from weft.runtime.cpu.pool_text import POOL
from weft.runtime.cpu.program_builder import UNWATCHED_NS, ProgramBuilder

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("shape", ["loop", "region"])
def test_a_run_can_be_cancelled_from_another_thread_and_run_again(shape):
    cells = np.zeros(10**6, INDEX)
    builder = ProgramBuilder(arguments=1)
    slot = builder.argument(0)
    if shape == "loop":
        with builder.loop(1 << 60):
            builder.region([step("add", [slot], [1])])
    else:
        builder.region([step("spin", [slot], [10**5], 10**6, LARGE, grain=1)])
    program = builder.build()
    for _ in range(2):
        raised = []

        def run(raised=raised):
            try:
                program.run(pointers(cells))
            except CancelledError as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.12)  # longer than the pause that lets signals in
        assert thread.is_alive()
        program.cancel()
        thread.join(20)
        assert not thread.is_alive() and len(raised) == 1


def test_cancelling_a_program_that_does_not_run_changes_nothing():
    total = array(0)
    builder = ProgramBuilder(arguments=1)
    with builder.loop(3):
        builder.region([step("add", [builder.argument(0)], [1])])
    program = builder.build()
    for _ in range(2):
        program.run(pointers(total))
        program.cancel()
    program.run(pointers(total))
    assert total[0] == 9


def test_many_threads_run_one_program_at_once():
    builder = ProgramBuilder(arguments=2)
    x, carry, other = builder.argument(0), builder.argument(1), builder.scratch(8 * 3000)
    with builder.loop(6):
        builder.region([step("fold", [carry, x, other], tasks=3000, cost_ns=LARGE)])
        builder.swap(carry, other)
    program = builder.build()
    given = np.arange(3000, dtype=INDEX)
    want = given * 0
    for _ in range(6):
        want = want * 31 + given
    wrong = []

    def work() -> None:
        for _ in range(60):
            mine = np.zeros(3000, INDEX)
            program.run(pointers(given, mine))
            if not np.array_equal(mine, want):
                wrong.append(mine)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_a_program_keeps_what_it_is_told_to_and_no_more():
    class Owner:
        pass

    owner = Owner()
    alive = weakref.ref(owner)
    program = ProgramBuilder(arguments=0).build(keep_alive=owner)
    program.run([])
    del owner
    gc.collect()
    assert alive() is not None
    del program
    gc.collect()
    assert alive() is None


def test_a_profile_names_each_kernel_call_with_its_time_and_thread():
    cells = np.zeros(64, INDEX)
    builder = ProgramBuilder(arguments=1)
    slot = builder.argument(0)
    builder.region([step("spin", [slot], [10**5], 8, LARGE, grain=1)])
    builder.region([step("mix", [slot], [1], 64)])
    program = builder.build()
    profile = program.profile(16)
    before = time.perf_counter_ns()
    program.run(pointers(cells), 2, profile)
    after = time.perf_counter_ns()
    timings = profile.timings()
    assert [t.name for t in timings] == ["spin"] * 8 + ["mix"]
    assert len({t.thread for t in timings}) <= 2 and timings[-1].thread == 0
    assert all(before - 1e6 < t.start_ns <= t.end_ns < after + 1e6 for t in timings)
    program.run(pointers(cells), 2)  # nothing is recorded unless asked for
    assert profile.calls == 9
    for _ in range(3):
        program.run(pointers(cells), 1, profile)
    assert profile.calls == 36 and len(profile.timings()) == 16
    profile.clear()
    assert profile.timings() == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals differ there")
@pytest.mark.parametrize("shape", ["loop", "region"])
def test_ctrl_c_stops_a_long_run_and_the_pool_is_usable_again(shape):
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(LONG_RUN), shape],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert out == "interrupted\nusable\n"


LONG_RUN = """
    import signal, sys
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
    import numpy as np
    from tests.runtime.program_kernels import INDEX, mixed, pointers, step
    from weft.runtime.cpu.program_builder import ProgramBuilder

    cells = np.zeros(10**6, INDEX)
    builder = ProgramBuilder(arguments=1)
    slot = builder.argument(0)
    if sys.argv[1] == "loop":
        with builder.loop(1 << 60):
            builder.region([step("add", [slot], [1])])
    else:
        builder.region([step("spin", [slot], [10**5], 10**6, 1e9, grain=1)])
    print("running", flush=True)
    try:
        builder.build().run(pointers(cells), 2)
    except KeyboardInterrupt:
        print("interrupted", flush=True)

    builder = ProgramBuilder(arguments=1)
    slot = builder.argument(0)
    builder.region([step("mix", [slot], [1], 10**6, 1e9)])
    want = mixed(cells, 1)
    builder.build().run(pointers(cells), 2)
    assert (cells == want).all()
    print("usable", flush=True)
"""


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_run_that_pauses_at_every_occasion_does_every_task_once(monkeypatch, threads):
    monkeypatch.setattr(module, "_PAUSE_NS", 0)
    x, y = np.zeros(64, INDEX), np.zeros(1000, INDEX)
    builder = ProgramBuilder(arguments=2)
    slots = [builder.argument(0), builder.argument(1)]
    with builder.loop(5):
        small = step("mix", [slots[0]], [1], 64, LARGE, grain=1)
        large = step("mix", [slots[1]], [2], 1000, LARGE, grain=30)
        builder.region([small, large])
        builder.region([step("mix", [slots[0]], [3], 64, 2 * UNWATCHED_NS)])
    program = builder.build()
    program.run(pointers(x, y), threads)
    (frame,) = program._idle
    resume, resumed = frame.resume, []
    frame.resume = lambda: resumed.append(1) or resume()
    x[:], y[:] = 0, 0
    program.run(pointers(x, y), threads)
    assert len(resumed) > 10
    want_x, want_y = np.zeros_like(x), np.zeros_like(y)
    for _ in range(5):
        want_x, want_y = mixed(mixed(want_x, 1), 3), mixed(want_y, 2)
    np.testing.assert_array_equal(x, want_x)
    np.testing.assert_array_equal(y, want_y)


def paused_run(monkeypatch, at_pause):
    """A program of many tasks on two threads; `at_pause` is called at each pause of a run."""
    monkeypatch.setattr(module, "_PAUSE_NS", 0)
    cells = np.zeros(2000, INDEX)
    builder = ProgramBuilder(arguments=1)
    builder.region([step("spin", [builder.argument(0)], [20_000], 2000, LARGE, grain=1)])
    program = builder.build()
    program.run(pointers(cells), 2)  # the pool has a worker now, and the program a frame
    (frame,) = program._idle
    resume = frame.resume

    def resumed() -> int:
        at_pause(cells)
        return resume()

    frame.resume = resumed
    cells[:] = 0
    return program, cells


def test_others_go_on_while_a_run_pauses(monkeypatch):
    progress = []

    def at_pause(cells):
        before = np.count_nonzero(cells)
        time.sleep(0.02)
        progress.append(np.count_nonzero(cells) - before)

    program, cells = paused_run(monkeypatch, at_pause)
    program.run(pointers(cells), 2)
    assert np.count_nonzero(cells) == 2000
    assert sum(progress) > 1000 > len(progress)


def test_an_error_in_a_pause_ends_the_region_and_leaves_the_pool_free(monkeypatch):
    def at_pause(cells):
        raise KeyboardInterrupt

    program, cells = paused_run(monkeypatch, at_pause)
    with pytest.raises(KeyboardInterrupt):
        program.run(pointers(cells), 2)
    done = np.count_nonzero(cells)
    time.sleep(0.05)
    assert 0 < np.count_nonzero(cells) == done < 2000  # nobody works on
    assert pool._words[POOL["BUSY"] // 4] == 0
    (frame,) = program._idle
    frame.resume = partial(executor().resume, frame.memory.ctypes.data)
    program.run(pointers(cells), 2)
    assert np.count_nonzero(cells) == 2000


FORKED = """
    import os
    import numpy as np
    from tests.runtime import test_program_runs as runs
    from weft.errors import CancelledError

    children = []

    def at_pause(cells):
        if not children:
            children.append(os.fork())

    program, cells = runs.paused_run(runs.pytest.MonkeyPatch(), at_pause)
    try:
        program.run(runs.pointers(cells), 2)
        code = 2
    except CancelledError as error:
        code = 3 if "before a fork" in str(error) else 4
    if children == [0]:
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 3
    assert code == 2 and np.count_nonzero(cells) == 2000
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_run_that_a_child_was_forked_from_is_not_ended_by_the_child():
    script = [sys.executable, "-c", textwrap.dedent(FORKED)]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_run_on_arrays_uses_their_memory():
    builder = ProgramBuilder(arguments=1)
    builder.region([step("mix", [builder.argument(0)], [5], 100)])
    x = np.arange(100, dtype=INDEX)
    want = mixed(x, 5)
    assert module.knows_arrays() and builder.build().run_arrays([x])
    np.testing.assert_array_equal(x, want)


def test_a_run_on_arrays_that_are_not_packed_does_nothing():
    builder = ProgramBuilder(arguments=2)
    builder.region([step("mix", [builder.argument(k)], [5], 50) for k in range(2)])
    program = builder.build()
    x, y = np.arange(100, dtype=INDEX), np.arange(100, dtype=INDEX)
    assert not program.run_arrays([x, y[::2]])
    np.testing.assert_array_equal(x, np.arange(100))
    np.testing.assert_array_equal(y, np.arange(100))
    assert program.run_arrays([x, y])


def test_a_brief_program_is_a_function_of_arrays():
    builder = ProgramBuilder(arguments=2)
    builder.region([step("mix", [builder.argument(k)], [5], 50) for k in range(2)])
    call = builder.build().as_function()
    x, y = np.arange(50, dtype=INDEX), np.arange(100, dtype=INDEX)
    assert call is not None
    assert call(x, y[::2]) == module.REFUSED
    assert call(x) == call() == call(x, x, x) == module.REFUSED
    np.testing.assert_array_equal(x, np.arange(50))
    assert call(x, y) == module.DONE
    np.testing.assert_array_equal(x, mixed(np.arange(50, dtype=INDEX), 5))
    np.testing.assert_array_equal(y[:50], x)


def test_what_is_long_calls_python_or_uses_threads_is_no_function():
    def written(write):
        builder = ProgramBuilder(arguments=1)
        write(builder, builder.argument(0))
        return builder.build()

    def repeated(builder, slot):
        with builder.loop(2):
            builder.region([step("mix", [slot], [5], 50)])

    for write in (
        repeated,
        lambda builder, slot: builder.region([step("mix", [slot], [5], 50, LARGE)]),
        lambda builder, slot: builder.copy(slot, slot, 1 << 30),
        lambda builder, slot: builder.host(print),
    ):
        assert written(write).as_function() is None
    few = written(lambda builder, slot: builder.region([step("mix", [slot], [5], 50, 10.0)]))
    assert few.as_function() is not None


def test_a_function_of_arrays_goes_on_after_a_pause_and_says_when_a_kernel_failed(monkeypatch):
    monkeypatch.setattr(module, "_PAUSE_NS", 0)
    builder = ProgramBuilder(arguments=2)
    out, failing = builder.argument(0), builder.argument(1)
    for _ in range(20):
        builder.region([step("add", [out], [1])])
    builder.region([step("fail", [failing], [7, 0])])
    call = builder.build().as_function()
    total, code = array(0), array(0)
    assert call is not None and call(total, code) == module.DONE
    assert total[0] == 20
    code[0] = 3
    assert call(total, code) == module.FAILED
    code[0] = 0
    assert call(total, code) == module.DONE
