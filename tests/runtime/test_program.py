"""Programs: what is written runs, in order, the same on any number of threads."""

from __future__ import annotations

import ctypes
import gc
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.program_kernels import INDEX, mixed, pointers, step
from weft.errors import ArgumentError, CancelledError, IndexingError, WeftError
from weft.runtime.cpu import program as module
from weft.runtime.cpu.program_builder import ProgramBuilder

ROOT = Path(__file__).parents[2]
LARGE = 1e9  # a cost that makes a region parallel


def array(*values: int) -> np.ndarray:
    return np.array(values, INDEX)


def test_an_empty_program_runs():
    ProgramBuilder(arguments=0).build().run([])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_run_with_too_few_or_too_many_addresses_is_refused(count):
    program = ProgramBuilder(arguments=2).build()
    with pytest.raises(ArgumentError, match="takes 2 addresses"):
        program.run([0] * count)
    program.run([0, 0])


@pytest.mark.parametrize("cost", [0.0, LARGE], ids=["serial", "parallel"])
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("tasks", [0, 1, 2, 7, 1000, 4099])
def test_every_task_of_a_step_runs_once_on_any_number_of_threads(cost, threads, tasks):
    x = np.arange(5000, dtype=INDEX)
    want = x.copy()
    want[:tasks] = mixed(x[:tasks], 5)
    builder = ProgramBuilder(arguments=1)
    slot = builder.argument(0)
    builder.region([step("mix", [slot], [5], tasks, cost)])
    builder.build().run(pointers(x), threads)
    np.testing.assert_array_equal(x, want)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_region_of_many_steps_runs_every_task_of_each(threads, fresh_seed):
    random = np.random.default_rng(fresh_seed)
    sizes = random.integers(0, 400, 60)
    arrays = [random.integers(0, 1 << 60, n) for n in sizes]
    wants = [mixed(mixed(x, k), k) for k, x in enumerate(arrays)]
    builder = ProgramBuilder(arguments=len(arrays))
    steps = [
        step("mix", [builder.argument(k)], [k], x.size, cost, grain)
        for k, (x, cost, grain) in enumerate(
            zip(arrays, random.uniform(0, 1e6, 60), random.integers(0, 50, 60).tolist())
        )
    ]
    builder.region(steps)
    builder.region(steps[::-1])
    builder.build().run(pointers(*arrays), threads)
    for x, want in zip(arrays, wants):
        np.testing.assert_array_equal(x, want)


def test_slots_are_arguments_with_offsets_constants_and_scratch():
    constant, given = array(10), array(0, 3)
    builder = ProgramBuilder(arguments=1)
    out, second = builder.argument(0), builder.argument(0, offset=8)
    fixed, scratch, more = builder.constant(constant.ctypes.data), *map(builder.scratch, (8, 8))
    builder.region([step("fold", [fixed, second, scratch])])
    builder.region([step("fold", [scratch, fixed, more])])
    builder.copy(out, more, 8)
    builder.build().run(pointers(given))
    assert given.tolist() == [(10 * 31 + 3) * 31 + 10, 3]


@pytest.mark.parametrize("trips", [0, 1, 2, 9])
@pytest.mark.parametrize("cost", [0.0, LARGE])
def test_a_loop_repeats_its_body_with_double_buffered_carries(trips, cost):
    x, carry, other = array(7, 8), array(1, 2), array(0, 0)
    builder = ProgramBuilder(arguments=3)
    slots = [builder.argument(k) for k in range(3)]
    with builder.loop(trips):
        builder.region([step("fold", [slots[1], slots[0], slots[2]], tasks=2, cost_ns=cost)])
        builder.swap(slots[1], slots[2])
    out = builder.argument(1)
    builder.copy(out, slots[1], 16)
    program = builder.build()
    want = [1, 2]
    for _ in range(trips):
        want = [want[0] * 31 + 7, want[1] * 31 + 8]
    for _ in range(2):  # the table is as at first in every run
        carry[:] = (1, 2)
        program.run(pointers(x, carry, other))
        assert carry.tolist() == want


@pytest.mark.parametrize("dtype", "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64".split())
def test_a_trip_count_is_read_from_memory(dtype):
    for trips in (0, 1, 100):
        count, total = np.array([77, trips]).astype(dtype), array(0)
        builder = ProgramBuilder(arguments=2)
        slot, out = builder.argument(0), builder.argument(1)
        with builder.loop(builder.read(slot, dtype, offset=count.itemsize)):
            builder.region([step("add", [out], [2])])
        builder.build().run(pointers(count, total))
        assert total[0] == 2 * int(count[1])


def test_negative_trip_counts_read_from_memory_mean_no_trip():
    count, total = np.array([-3], np.int8), array(0)
    builder = ProgramBuilder(arguments=2)
    slot, out = builder.argument(0), builder.argument(1)
    with builder.loop(builder.read(slot, "int8")):
        builder.region([step("add", [out], [2])])
    builder.build().run(pointers(count, total))
    assert total[0] == 0


def test_only_integers_can_be_read():
    builder = ProgramBuilder(arguments=1)
    with pytest.raises(ArgumentError, match="float32 is no integer"):
        builder.read(builder.argument(0), np.float32)


@pytest.mark.parametrize("backward", [False, True])
def test_a_scan_sees_one_slice_of_xs_and_ys_in_each_iteration(backward):
    length, width = 6, 3
    xs = np.arange(length * width, dtype=INDEX).reshape(length, width)
    ys, carry, other = np.zeros_like(xs), array(1, 2, 3), array(0, 0, 0)
    stride = width * 8
    sign, offset = (-stride, (length - 1) * stride) if backward else (stride, 0)
    builder = ProgramBuilder(arguments=4)
    all_x, all_y, now, then = (builder.argument(k) for k in range(4))
    x, y = builder.pointer(), builder.pointer()
    with builder.loop(length) as t:
        builder.advance(x, all_x, t, sign, offset)
        builder.advance(y, all_y, t, sign, offset)
        builder.region([step("fold", [now, x, then], tasks=width)])
        builder.copy(y, then, stride)
        builder.swap(now, then)
    builder.build().run(pointers(xs, ys, carry, other))
    want = np.zeros_like(xs)
    value = array(1, 2, 3)
    for t in range(length)[:: -1 if backward else 1]:
        value = want[t] = value * 31 + xs[t]
    np.testing.assert_array_equal(ys, want)


def test_nested_loops_start_their_inner_counter_anew():
    seen, cell = np.zeros((3, 4, 2), INDEX), array(0)
    builder = ProgramBuilder(arguments=2)
    out, row, place = builder.argument(0), builder.pointer(), builder.pointer()
    total = builder.argument(1)
    with builder.loop(3) as i:
        builder.advance(row, out, i, 4 * 16)
        with builder.loop(4) as j:
            builder.advance(place, row, j, 16)
            builder.store(i, place)
            builder.store(j, place, offset=8)
            builder.region([step("add", [total], [1])])
    builder.build().run(pointers(seen, cell))
    np.testing.assert_array_equal(seen, np.moveaxis(np.indices((3, 4)), 0, -1))
    assert cell[0] == 12


@pytest.mark.parametrize("start", [0, 5, 99])
def test_a_while_loop_ends_when_its_predicate_is_false(start):
    x = array(start)
    builder = ProgramBuilder(arguments=1)
    slot, predicate = builder.argument(0), builder.scratch(1)
    with builder.while_() as loop:
        builder.region([step("less", [slot, predicate], [40])])
        loop.check(predicate)
        builder.region([step("add", [slot], [7])])
    builder.region([step("add", [slot], [1000])])
    builder.build().run(pointers(x))
    while start < 40:
        start += 7
    assert x[0] == start + 1000


@pytest.mark.parametrize("index", [-5, 0, 1, 2, 3, 1 << 30])
def test_a_branch_runs_the_case_of_its_index_or_the_nearest(index):
    which, total = np.array([index], np.int32), array(0)
    builder = ProgramBuilder(arguments=2)
    slot, out = builder.argument(0), builder.argument(1)
    with builder.branch(builder.read(slot, "int32")) as case:
        for amount in (1, 20, 300):
            with case():
                builder.region([step("add", [out], [amount])])
    builder.region([step("add", [out], [5000])])
    builder.build().run(pointers(which, total))
    assert total[0] == 5000 + (1, 20, 300)[min(max(index, 0), 2)]


def test_branches_in_loops_in_branches_run():
    flags, total = np.array([1, 0, 1, 1], np.bool_), array(0)
    builder = ProgramBuilder(arguments=2)
    slot, out, flag = builder.argument(0), builder.argument(1), builder.pointer()
    with builder.branch(builder.read(slot, "bool")) as outer:
        with outer():
            builder.region([step("add", [out], [10**6])])
        with outer(), builder.loop(4) as t:
            builder.advance(flag, slot, t, 1)
            with builder.branch(builder.read(flag, "bool")) as inner:
                with inner():
                    builder.region([step("add", [out], [100])])
                with inner():
                    builder.region([step("add", [out], [1])])
    builder.build().run(pointers(flags, total))
    assert total[0] == 103


def test_python_is_called_inside_loops_and_sees_the_slots_of_the_moment():
    xs, total = np.arange(5, dtype=INDEX), array(0)
    seen = []

    def note(x: int, out: int) -> None:
        seen.append(((x - xs.ctypes.data) // 8, int(total[0])))
        total[0] += 100

    builder = ProgramBuilder(arguments=2)
    slot, out, x = builder.argument(0), builder.argument(1), builder.pointer()
    with builder.loop(2), builder.loop(3) as t:
        builder.advance(x, slot, t, 8)
        builder.region([step("add", [out], [1])])
        builder.host(note, [x, out])
    program = builder.build()
    program.run(pointers(xs, total))
    assert seen == [(k % 3, 101 * k + 1) for k in range(6)]


def test_what_a_host_function_raises_ends_the_run_and_the_next_run_is_clean():
    total = array(0)
    fuse = [True]

    def burn() -> None:
        if fuse.pop():
            raise IndexingError("take: position 7: out of range")

    builder = ProgramBuilder(arguments=1)
    out = builder.argument(0)
    builder.region([step("add", [out], [1])])
    builder.host(burn)
    builder.region([step("add", [out], [10])])
    program = builder.build()
    with pytest.raises(IndexingError, match="position 7"):
        program.run(pointers(total))
    assert total[0] == 1
    fuse.append(False)
    program.run(pointers(total))
    assert total[0] == 12


class Doubles(module.Avoidable):
    """Doubles a number in Python once, natively from then on, unless native code has to stop."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.calls = 0
        self.abandoned: list[tuple[int, ...]] = []
        routine = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 3)
        self.routine = routine(self.native)
        self.record = array(ctypes.cast(self.routine, ctypes.c_void_p).value)

    def native(self, record: int, source: int, target: int) -> int:
        assert record == self.record.ctypes.data
        answer = self.answers.pop() if self.answers else 0
        if answer == 0:
            word(target).value = 2 * word(source).value
        return answer

    def __call__(self, source: int, target: int) -> None:
        self.calls += 1
        word(target).value = 2 * word(source).value
        self.door[0] = self.record.ctypes.data
        if self.calls == 3:
            raise KeyboardInterrupt

    def use(self, door: np.ndarray) -> None:
        self.door = door

    def abandon(self, *addresses: int) -> None:
        self.abandoned.append(addresses)


def word(address: int) -> ctypes.c_int64:
    return ctypes.c_int64.from_address(address)


def test_a_door_spares_the_call_of_python_unless_native_code_has_to_stop():
    doubles = Doubles()
    x, total = array(1), array(0)
    builder = ProgramBuilder(arguments=2)
    given, out = builder.argument(0), builder.argument(1)
    with builder.loop(3):
        builder.host(doubles, [given, out])
        builder.copy(given, out, 8)
    program = builder.build()
    program.run(pointers(x, total))
    assert (doubles.calls, x[0]) == (1, 8)
    doubles.answers = [0, 2, 0]
    program.run(pointers(x, total))
    assert (doubles.calls, x[0]) == (2, 64)
    doubles.answers = [2]
    with pytest.raises(KeyboardInterrupt):
        program.run(pointers(x, total))
    assert doubles.abandoned == [tuple(pointers(x, total))]
    program.run(pointers(x, total), profile=program.profile())
    assert doubles.calls == 6  # profiles see every call


def test_a_host_function_may_run_the_program_it_is_part_of():
    total, depth = array(0), []

    def again() -> None:
        if len(depth) < 4:
            depth.append(1)
            program.run(pointers(total))

    builder = ProgramBuilder(arguments=1)
    out = builder.argument(0)
    builder.host(again)
    builder.region(
        [step("mix", [out], [3], 1), step("spin", [builder.scratch(80)], [10], 10, LARGE)]
    )
    program = builder.build()
    program.run(pointers(total))
    want = array(0)
    for _ in range(5):
        want = mixed(want, 3)
    assert total[0] == want[0]


@pytest.mark.parametrize("cost", [0.0, LARGE])
def test_a_status_stops_the_run_and_becomes_the_error_its_builder_chose(cost):
    total, code = array(0), array(3)
    builder = ProgramBuilder(arguments=2)
    out, failing = builder.argument(0), builder.argument(1)
    builder.region([step("add", [out], [1])])
    builder.region([step("fail", [failing], [41, 50], 100, cost)])
    builder.region([step("add", [out], [10])])
    program = builder.build(failure=lambda code, detail: IndexingError(f"gather: {code} {detail}"))
    with pytest.raises(IndexingError, match="gather: 3 41"):
        program.run(pointers(total, code))
    assert total[0] == 1
    code[0] = 0
    program.run(pointers(total, code))
    assert total[0] == 12


def test_a_status_without_a_meaning_is_still_an_error():
    builder = ProgramBuilder(arguments=1)
    builder.region([step("fail", [builder.argument(0)], [2, 0])])
    code = array(9)
    with pytest.raises(WeftError, match=r"status 9 \(detail 2\)"):
        builder.build().run(pointers(code))


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
        builder.region([step("mix", [slots[0]], [3], 64)])
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
