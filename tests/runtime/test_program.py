"""Programs: what is written runs, in order, the same on any number of threads."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.runtime.program_kernels import INDEX, LARGE, array, mixed, pointers, step
from weft.errors import ArgumentError, IndexingError, WeftError
from weft.runtime.cpu import program as module
from weft.runtime.cpu.executor_layout import REGION_WORDS
from weft.runtime.cpu.pool_text import MOST_RANGES
from weft.runtime.cpu.program_builder import UNWATCHED_NS, ProgramBuilder


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


@pytest.mark.parametrize("threads", [1, 2, 4, MOST_RANGES + 3])
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


def test_brief_regions_that_follow_each_other_are_one_instruction_and_keep_their_order():
    def written(cost, between):
        builder = ProgramBuilder(arguments=1)
        slot = builder.argument(0)
        with builder.loop(3):
            for number in range(4):
                builder.region([step("mix", [slot], [number], 1, cost)])
                if between:
                    builder.copy(slot, slot, 8)
        return builder.build()

    want = array(0)
    for number in (*range(4),) * 3:
        want = mixed(want, number)
    programs = [written(0.0, False), written(UNWATCHED_NS, False), written(0.0, True)]
    for program in programs:
        total = array(0)
        program.run(pointers(total))
        assert total[0] == want[0]
    brief, watched, apart = (len(program.encoded.code) for program in programs)
    assert brief + 3 * REGION_WORDS == watched < apart


def test_a_status_without_a_meaning_is_still_an_error():
    builder = ProgramBuilder(arguments=1)
    builder.region([step("fail", [builder.argument(0)], [2, 0])])
    code = array(9)
    with pytest.raises(WeftError, match=r"status 9 \(detail 2\)"):
        builder.build().run(pointers(code))
