"""`explain` says what runs; `estimate` and `peaks` say about how long it takes."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import weft as wf
from weft.compiler.cost import Work, estimate, lanes, work_of
from weft.compiler.explain import kernel_of, show_count, show_time, space_of
from weft.compiler.native import Native
from weft.compiler.peak_kernels import block, copies, products, sums
from weft.compiler.peaks import SIZES, Peaks, best, peaks
from weft.compiler.verify import verify
from weft.runtime.cpu.program_builder import PARALLEL_NS


def native(function, *args) -> Native:
    return Native(wf.trace(function, *args))


def explained(function, *args, **options) -> str:
    return wf.compile(function, **options).explain(*args)


def test_kernels_are_named_with_their_calls_space_and_memory(capsys):
    def f(x, w):
        return (x @ w) * 2 + 1

    text = explained(f, wf.ones((256, 128)), wf.ones((128, 64)))
    assert capsys.readouterr().out == text + "\n"
    first, region, name, space, numbers, *rest = text.split("\n")
    assert first == "f: kernels 1, regions 1, host calls 0"
    assert region.strip().startswith("region 0, ")
    assert name.strip() == "matmul_multiply_add: matmul, multiply, add"
    assert re.fullmatch(r" +256 x 64 x 128; tasks \d+, lanes \d+", space)
    assert "160.0 KiB read, 64.0 KiB written" in numbers
    assert re.search(r"MFLOP; [\d.]+ µs on 1 thread, [\d.]+ µs on \d+$", numbers)
    totals = "\n".join(rest)
    for word in ("memory: arena of 0 B", "work: ", "time: at least", "peaks: 1 thread: "):
        assert word in totals


def test_loops_and_branches_are_indented_and_host_calls_have_their_line():
    def f(x):
        c, ys = wf.scan(
            lambda c, row: (wf.tanh(c + row), wf.logcumsumexp(c, axis=0)), wf.zeros(100), x
        )
        return wf.cond(c.sum() > 0, lambda y: y * 2, lambda y: y - 1, ys), c

    rows = explained(f, wf.ones((50, 100))).split("\n")
    at = rows.index("  scan, 50 times:")
    inside = rows[at + 1 : rows.index("  copy 400 B", at)]
    assert all(row.startswith("    ") for row in inside)
    assert any(row.startswith("    host call logcumsumexp(float32[100])  # ") for row in inside)
    assert any("add_tanh: add, tanh" in row for row in inside)
    assert [row for row in rows if row.startswith("  branch")] == ["  branch 0:", "  branch 1:"]
    assert rows[0].endswith("host calls 1")


def test_a_while_loop_shows_its_condition_and_its_body():
    def f(x):
        return wf.while_loop(lambda x: x.sum() < 1e6, lambda x: x * 2 + 1, x)

    rows = explained(f, wf.ones(1000)).split("\n")
    assert "  while:" in rows and "  do:" in rows


def test_what_runs_in_a_loop_counts_for_each_turn():
    def f(x):
        return wf.scan(lambda c, row: (wf.tanh(c + row), ()), wf.zeros(1000), x)[0]

    def flops(count: int) -> float:
        text = explained(f, wf.ones((count, 1000)))
        (found,) = re.findall(r"work: ([\d.]+) MFLOP", text)
        return float(found)

    assert flops(80) == pytest.approx(2 * flops(40), rel=0.01)


def test_memory_that_is_used_again_is_named():
    text = explained(lambda x: x * 2 + 1, wf.ones((256, 128)), donate_argnums=0)
    assert "in place: float32[256,128] over float32[256,128] (input)" in text
    assert "results in the memory of others: 1" in text
    assert "in place" not in explained(lambda x: x * 2 + 1, wf.ones((256, 128)))


def test_loops_are_shown_when_asked_for(capsys):
    compiled = wf.compile(lambda x: x.sum(-1) * 2)
    plain = compiled.explain(wf.ones((64, 512)))
    text = compiled.explain(wf.ones((64, 512)), loops=True)
    assert text.startswith(plain) and "kernel reduce_sum_multiply" in text
    assert "across[add]" in text and "across" not in plain


def test_kernels_of_one_name_are_told_apart():
    made = native(lambda x, y: (wf.cumsum(x, -1), wf.cumsum(y, -1)), wf.ones((30, 40)), wf.ones(99))
    assert list(made.calls) == ["cumsum", "cumsum.2"]
    assert "cumsum.2: cumsum" in made.explain()


def test_work_is_counted_by_the_calls_of_a_kernel():
    (call,) = native(lambda a, b: a @ b, wf.ones((64, 32)), wf.ones((32, 16))).steps
    assert work_of(call) == Work(2 * 64 * 32 * 16, 4 * (64 * 32 + 32 * 16), 4 * 64 * 16)
    assert space_of(call) == (64, 16, 32)
    (call,) = native(lambda a: a.sum(-1), wf.ones((64, 100))).steps
    assert work_of(call) == Work(6400, 4 * 6400, 4 * 64)
    assert space_of(call) == (64, 100)


def test_a_function_counts_what_it_is_computed_with():
    (call,) = native(wf.exp, wf.ones(5000)).steps
    assert 10 * 5000 < work_of(call).flops < 100 * 5000
    (call,) = native(lambda a: wf.flip(a), wf.ones((50, 60))).steps
    assert work_of(call).flops == 0


def test_few_rows_of_a_large_table_are_no_large_read():
    indices = wf.tensor(np.arange(10))
    made = native(lambda t, i: wf.take(t, i, axis=0), wf.ones((100_000, 8)), indices)
    assert sum(estimate(call) for call in made.steps) < PARALLEL_NS


@pytest.mark.parametrize("size", [32, 64, 256])
def test_a_product_is_estimated_by_all_of_its_points(size):
    made = native(lambda a, b: a @ b, wf.ones((size, size)), wf.ones((size, size)))
    *packing, call = made.steps
    points = size**3
    assert 0.01 * points < estimate(call) < 0.5 * points + 1000
    assert all(estimate(each) < 0.2 * estimate(call) for each in packing)


def test_estimates_grow_with_the_work():
    def of(function, *args) -> float:
        return sum(estimate(call) for call in native(function, *args).steps)

    assert of(wf.exp, wf.ones(20_000)) > 3 * of(lambda x: x + 1, wf.ones(20_000))
    assert of(wf.exp, wf.ones(40_000)) > 1.9 * of(wf.exp, wf.ones(20_000))
    assert of(lambda x: x + 1, wf.ones(1000)) < PARALLEL_NS < of(wf.exp, wf.ones(100_000))


def test_lanes_are_those_of_the_widest_vector_loop():
    (call,) = native(lambda x: x + 1, wf.ones(4096)).steps
    assert lanes(kernel_of(call)) >= 4
    (call,) = native(lambda x: wf.cumsum(x, -1), wf.ones(4096)).steps
    assert lanes(kernel_of(call)) == 1


def test_the_kernels_that_measure_obey_the_rules_of_kernels():
    given = [products("float64", np.dtype("f8"), 2), sums(4), copies(8)]
    for kernel in (*given, block("block", np.dtype("f4"), 4, 8, 3)):
        verify(kernel)


def test_peaks_are_measured_and_kept():
    one, every = peaks(1), peaks()
    assert one is peaks(1)
    assert 0.5 < one.float64 <= one.float32 < 10_000
    assert len(one.read) == len(one.write) == len(SIZES)
    assert all(0.1 < rate < 100_000 for rate in (*one.read, *one.write))
    assert every.float32 >= one.float32 and every.threads >= 1


def test_the_least_time_is_that_of_arithmetic_or_of_memory():
    machine = Peaks(1, 10.0, 5.0, (8.0, 4.0, 2.0, 1.0), (4.0, 2.0, 1.0, 0.5))
    assert machine.nanoseconds(Work(1000, 80, 40)) == 100
    assert machine.nanoseconds(Work(1000, 80, 40), wide=True) == 200
    assert machine.nanoseconds(Work(10, 8000, 4000)) == 2000
    assert machine.nanoseconds(Work(0, 1 << 30, 0)) == 1 << 30


def test_the_best_of_several_measurements_counts():
    slow = Peaks(2, 10.0, 5.0, (8.0, 4.0, 2.0, 1.0), (4.0, 2.0, 1.0, 0.5))
    other = replace(slow, float32=20.0, read=(1.0, 9.0, 1.0, 1.0))
    found = best([slow, other])
    assert (found.float32, found.float64, found.read) == (20.0, 5.0, (8.0, 9.0, 2.0, 1.0))


def test_numbers_are_written_for_people():
    assert (show_count(0), show_count(1500), show_count(3e12)) == ("0 ", "1.5 k", "3 T")
    assert (show_time(0.5), show_time(1500), show_time(2e9)) == ("0.5 ns", "1.5 µs", "2 s")
