"""`profile`: what it records, the file it writes, the table it prints, and how it nests."""

from __future__ import annotations

import json
import sys
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler import watched
from weft.core.common import events

KINDS = {"kernel", "run", "op", "compile", "region"}


@pytest.fixture(autouse=True)
def nobody_watches():
    assert not events.watchers
    yield
    assert not events.watchers


def read(path) -> list[dict[str, Any]]:
    trace = json.loads(path.read_text())
    assert set(trace) == {"traceEvents", "displayTimeUnit"}
    return trace["traceEvents"]


def names(profile, kind: str) -> list[str]:
    return [row.name for row in profile.rows if row.kind == kind]


def layer(x, w):
    return (x @ w) * 2 + 1


def test_the_file_is_a_trace_that_viewers_open(tmp_path):
    compiled = wf.compile(layer)
    path = tmp_path / "new" / "trace.json"
    with wf.profile(path) as p, p.region("outer"):
        compiled(wf.ones((64, 32)), wf.ones((32, 16)))
    rows = read(path)
    spans = [row for row in rows if row["ph"] == "X"]
    labels = [row for row in rows if row["ph"] == "M"]
    assert len(spans) + len(labels) == len(rows)
    for row in spans:
        assert set(row) == {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"}
        assert row["ts"] >= 0 and row["dur"] >= 0 and row["cat"] in KINDS
    named = {row["tid"]: row["args"]["name"] for row in labels if row["name"] == "thread_name"}
    assert {row["tid"] for row in spans} == set(named)
    assert named[0] == threading.current_thread().name
    assert [row["args"] for row in labels if row["name"] == "process_name"] == [{"name": "weft"}]
    (kernel,) = [row for row in spans if row["cat"] == "kernel"]
    assert kernel["name"] == "matmul_multiply_add"
    assert kernel["args"]["ops"] == "matmul, multiply, add"
    assert kernel["args"]["flops"] > 2 * 64 * 32 * 16
    assert kernel["args"]["read"] >= 4 * (64 * 32 + 32 * 16)
    assert kernel["args"]["written"] == 4 * 64 * 16
    assert "test_profile.py" in kernel["args"]["line"] and "x @ w" in kernel["args"]["line"]
    phases = [row["name"] for row in spans if row["cat"] == "compile"]
    assert {"trace", "fuse", "lower"} <= set(phases)


def test_events_of_a_thread_lie_inside_each_other():
    compiled = wf.compile(layer)
    with wf.profile() as p, p.region("outer"), wf.profile.region("inner"):
        compiled(wf.ones((64, 32)), wf.ones((32, 16)))
    found = {event.kind: event for event in p.events if event.kind != "compile"}
    regions = {event.name: event for event in p.events if event.kind == "region"}
    order = [found["kernel"], found["run"], regions["inner"], regions["outer"]]
    for inside, around in pairwise(order):
        assert around.start_ns <= inside.start_ns <= inside.end_ns <= around.end_ns
    assert 0 < sum(row.nanoseconds for row in p.rows if row.kind != "region") < 1e9 * p.seconds


def test_the_table_has_its_columns_and_the_machine():
    compiled = wf.compile(layer)
    compiled(wf.ones((64, 32)), wf.ones((32, 16)))
    with wf.profile() as p:
        for _ in range(3):
            compiled(wf.ones((64, 32)), wf.ones((32, 16)))
    text = str(p)
    head, columns, *_, machine = text.split("\n")
    assert "ms" in head and "events" in head and "lost" not in head
    assert columns.split("  ")[0] == "kind"
    for name in ("name", "calls", "total ms", "mean µs", "GFLOP/s", "GB/s", "roofline", "time"):
        assert name in columns
    assert machine.startswith("peaks: ") and "GFLOP/s" in machine and "GB/s" in machine
    (row,) = [row for row in p.rows if row.kind == "kernel"]
    assert (row.name, row.calls) == ("matmul_multiply_add", 3)
    assert row.flops > 3 * 2 * 64 * 32 * 16 and row.least_ns > 0 and row.bytes > 0
    (line,) = [line for line in text.split("\n") if line.startswith("kernel")]
    assert line.split()[:3] == ["kernel", "matmul_multiply_add", "3"]
    assert line.count("%") == 2


def test_each_turn_of_a_loop_is_a_call_of_its_kernels():
    def loop(x):
        return wf.scan(lambda c, row: (wf.tanh(c + row), c.sum()), wf.zeros(100), x)

    compiled = wf.compile(loop)
    with wf.profile() as p:
        compiled(wf.ones((50, 100)))
    calls = {row.name: round(row.calls) for row in p.rows if row.kind == "kernel"}
    assert calls["add_tanh"] == 50 and calls["reduce_sum"] == 50


def test_a_run_with_more_calls_than_the_ring_holds_says_so(monkeypatch):
    monkeypatch.setattr(watched, "CAPACITY", 16)
    monkeypatch.setattr(watched, "_rings", [])
    compiled = wf.compile(lambda c, x: wf.scan(lambda c, r: (wf.tanh(c + r), ()), c, x)[0])
    with wf.profile() as p:
        compiled(wf.ones(100), wf.ones((50, 100)))
    assert p.lost == 34 and "34 more were lost" in str(p)
    assert sum(event.kind == "kernel" for event in p.events) == 16


def test_a_profile_that_is_full_counts_what_it_leaves_out(monkeypatch):
    monkeypatch.setattr(sys.modules[wf.profile.__module__], "MOST_EVENTS", 2)
    with wf.profile() as p:
        for _ in range(5):
            with p.region("r"):
                pass
    assert (len(p.events), p.lost) == (2, 3)


def test_a_call_of_python_is_a_host_call_with_its_line(tmp_path):
    compiled = wf.compile(lambda x: wf.logcumsumexp(x * 2) + 1)
    with wf.profile(tmp_path / "t.json") as p:
        compiled(wf.ones(1000))
    assert names(p, "host") == ["logcumsumexp"] and "logcumsumexp" not in names(p, "op")
    (row,) = [row for row in read(tmp_path / "t.json") if row["name"] == "logcumsumexp"]
    assert "wf.logcumsumexp(x * 2)" in row["args"]["line"]
    assert row["args"]["shapes"] == "float32[1000] -> float32[1000]"


def test_eager_ops_are_recorded_each_with_its_line():
    x = wf.ones((4, 3))
    before = [wf.exp(x), x + x, x * 2.0, -x]  # kernels are compiled here
    with wf.profile() as p:
        inside = [wf.exp(x), x + x, x * 2.0, -x]
        column = x[:, :1] + x[:1]
        total = wf.cumsum(x, axis=0)
    for a, b in zip(before, inside, strict=True):
        assert a.tolist() == b.tolist()
    assert column.shape == (4, 3) and total.shape == (4, 3)
    ops = {row.name: row for row in p.rows if row.kind == "op"}
    assert {"add", "multiply", "negative"} <= set(ops)
    assert (ops["add"].calls, ops["add"].flops) == (2, 24)
    assert "exp" in names(p, "run")
    lines = [event.details()["line"] for event in p.events if event.name == "multiply"]
    assert len(lines) == 1 and "x * 2.0" in lines[0]


def test_a_shape_mistake_is_reported_as_ever():
    with wf.profile(), pytest.raises(wf.errors.ShapeError):
        wf.ones(3) + wf.ones(4)


def test_recorded_calls_run_inside_the_block_that_made_them(monkeypatch):
    monkeypatch.setattr(wf.config.settings, "compile_after", 1 << 30)  # one call after another
    early = wf.ones((300, 300)) * 3
    with wf.profile() as p:
        late = wf.ones((300, 300)) + 1
        assert not late.is_realized
    assert early.is_realized and late.is_realized
    assert "add" in {row.name for row in p.rows}
    assert "multiply" not in {row.name for row in p.rows}
    lines = [e.details()["line"] for e in p.events if e.name == "add" and e.kind == "op"]
    assert all("late = " in line for line in lines)


def test_parallel_kernels_are_told_by_each_worker(monkeypatch, tmp_path):
    monkeypatch.setattr(wf.config.settings, "threads", 2)
    compiled = wf.compile(lambda x: wf.exp(x) * 2 + wf.tanh(x))
    x = wf.tensor(np.linspace(0, 1, 2_000_000, dtype=np.float32))
    with wf.profile(tmp_path / "t.json") as p:
        for _ in range(20):
            compiled(x)
    (row,) = [row for row in p.rows if row.kind == "kernel"]
    assert round(row.calls) == 20
    rows = read(tmp_path / "t.json")
    labels = {row["tid"]: row["args"]["name"] for row in rows if row["name"] == "thread_name"}
    tracks = {row["tid"] for row in rows if row.get("cat") == "kernel"}
    assert 0 in tracks and len(tracks) > 1  # the pool may have more workers: any of them may help
    assert all(labels[track] == f"weft-worker-{track - 1000}" for track in tracks - {0})


def test_an_exception_closes_the_profile_and_writes_the_file(tmp_path):
    p = wf.profile(tmp_path / "t.json")
    with pytest.raises(KeyError, match="mine"), p, p.region("failing"):
        raise KeyError("mine")
    assert names(p, "region") == ["failing"]
    assert [row["name"] for row in read(tmp_path / "t.json") if row["ph"] == "X"] == ["failing"]


def test_a_kernel_that_fails_leaves_what_ran_before():
    compiled = wf.compile(lambda x: wf.callback(lambda a: 1 / 0, wf.ones(3).type, x + 1))
    with wf.profile() as p, pytest.raises(ZeroDivisionError):
        compiled(wf.ones(3))
    assert len(names(p, "run")) == 1 and len(names(p, "kernel")) == 1


def test_nested_profiles_each_record_what_runs_while_they_are_open():
    with wf.profile() as outer:
        with wf.profile.region("first"):
            pass
        with wf.profile() as inner, inner.region("second"):
            pass
    assert sorted(names(outer, "region")) == ["first", "second"]
    assert names(inner, "region") == ["second"]


def test_a_profile_records_all_threads_and_names_them(tmp_path):
    compiled = wf.compile(layer)
    x, w = wf.ones((64, 32)), wf.ones((32, 16))
    compiled(x, w)

    def work():
        with wf.profile.region("worked"):
            for _ in range(20):
                compiled(x, w)

    with wf.profile(tmp_path / "t.json") as p:
        threads = [threading.Thread(target=work, name=f"mine-{i}") for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (row,) = [row for row in p.rows if row.kind == "kernel"]
    assert round(row.calls) == 80
    rows = read(tmp_path / "t.json")
    labels = {row["args"]["name"] for row in rows if row["name"] == "thread_name"}
    mine = {label for label in labels if not label.startswith("weft-worker-")}
    assert mine == {f"mine-{i}" for i in range(4)}
    assert sum(row["name"] == "worked" for row in rows) == 4


def test_profiles_open_in_two_threads_are_independent():
    barrier = threading.Barrier(2)
    made: list[Any] = []

    def work(name: str):
        with wf.profile() as p:
            barrier.wait()
            with p.region(name):
                pass
            barrier.wait()
        made.append(p)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [sorted(names(p, "region")) for p in made] == [["a", "b"]] * 2


def test_as_a_decorator_it_adds_up_calls_even_those_inside_themselves(tmp_path):
    p = wf.profile(tmp_path / "t.json")

    @p
    def count(n: int) -> int:
        with p.region("turn"):
            return 0 if n == 0 else 1 + count(n - 1)

    assert count(2) == 2 and count(1) == 1
    (row,) = p.rows
    assert (row.name, row.calls) == ("turn", 5)
    assert sum(row["name"] == "turn" for row in read(tmp_path / "t.json")) == 5
    assert count.__name__ == "count"


def test_a_region_that_began_before_the_profile_is_cut_there():
    with wf.profile.region("early"):
        p = wf.profile()
        p.__enter__()
    p.__exit__(None, None, None)
    (event,) = p.events
    assert 0 <= event.end_ns - event.start_ns <= p.seconds * 1e9


@pytest.mark.parametrize("path", [3, lambda x: x, b"bytes"])
def test_a_path_that_is_none_is_refused(path):
    with pytest.raises(wf.errors.ArgumentError, match="profile: path must be a path"):
        wf.profile(path)


def test_a_region_needs_a_name():
    with pytest.raises(wf.errors.ArgumentError, match="profile: region: the name"):
        wf.profile.region(3)  # type: ignore[arg-type]
