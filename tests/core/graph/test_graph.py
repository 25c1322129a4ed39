"""Recording and running: what waits, what runs, what is freed, and what failure leaves behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import weft as wf
from weft.config import settings
from weft.core.common.frozen import freeze
from weft.core.common.types import TensorType
from weft.core.graph import (
    GRAPH,
    ComputeGraph,
    apply_to_operations,
    get_all_impls_topological,
    get_operations_topological,
)
from weft.errors import ArgumentError, IndexingError
from weft.ops.base import Operation, call
from weft.runtime.registry import runtime

LARGE = (256, 256)


@pytest.fixture(autouse=True)
def nothing_pending():
    gc.collect()
    GRAPH.flush()


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """These tests count calls one by one; `tests/compiler/test_tiers.py` is about whole graphs."""
    monkeypatch.setattr(settings, "compile_after", 1 << 30)
    monkeypatch.setattr(settings, "compile_elements", 1 << 60)


@pytest.fixture
def limits():
    before = settings.flush_limit, settings.flush_bytes, settings.small_elements
    yield settings
    settings.flush_limit, settings.flush_bytes, settings.small_elements = before


def large(value: float = 1.0) -> wf.Tensor:
    return wf.tensor(np.full(LARGE, value, np.float32))


def stats():
    return runtime("cpu").allocator.stats()


class Failing(Operation):
    """Refuses to run as long as it is told to."""

    factors = "... -> ..."
    reasons = {"vjp": "a test", "jvp": "a test", "kernel": "a test"}
    fails = True

    def eval(self, x):
        if type(self).fails:
            raise IndexingError("failing: told to fail")
        return x * 2


@pytest.fixture(scope="module")
def failing():
    made = object.__new__(Failing)
    made.name = made.__name__ = "failing"
    return made


@pytest.mark.promise("S0.10")
def test_nothing_runs_before_a_read_and_a_read_runs_once():
    x = large()
    executions, compilations = GRAPH.counters.executions, GRAPH.counters.compilations
    y = wf.sin(x) * 2 + x
    assert not y.is_realized
    assert GRAPH.counters.executions == executions
    y.numpy()
    assert GRAPH.counters.executions == executions + 1
    y.numpy()
    float(y[0, 0])
    assert GRAPH.counters.executions == executions + 1
    assert GRAPH.counters.compilations == compilations


@pytest.mark.promise("S0.11")
@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.numpy(),
        lambda x: x.tolist(),
        repr,
        np.asarray,
        np.from_dlpack,
        lambda x: bool((x == x).all()),
        lambda x: x.sum().item(),
        wf.realize,
    ],
    ids=["numpy", "tolist", "repr", "asarray", "dlpack", "bool", "item", "realize"],
)
def test_every_way_of_reading_runs_what_was_recorded(read):
    y = large() + 1
    before = GRAPH.counters.executions
    read(y)
    assert GRAPH.counters.executions == before + 1


def test_operands_are_checked_at_the_call_though_it_runs_later():
    x = large()
    with pytest.raises(wf.errors.ShapeError):
        x + wf.tensor(np.ones((3, 5), np.float32))


def test_small_operands_run_at_once_and_the_setting_says_what_small_is(limits):
    x = wf.tensor(np.ones(100, np.float32))
    assert (x + 1).is_realized
    limits.small_elements = 99
    assert not (wf.sum(x * x) + 1).is_realized


def test_views_of_data_are_there_at_once():
    x = large()
    for view in (x.T, x[3:7], x.reshape(-1), x.flip(), x.broadcast_to((2, *LARGE))):
        assert view.is_realized
        assert view.storage == x.storage


def test_realize_runs_all_tensors_of_its_trees_in_one_go_and_gives_them_back():
    x = large()
    a, b = x + 1, x * 3
    before = GRAPH.counters.executions
    tree = {"a": a, "rest": [b, 5, None]}
    assert wf.realize(tree) is tree
    assert GRAPH.counters.executions == before + 1
    assert a.is_realized and b.is_realized
    first, second = wf.realize(a, [b])
    assert first is a and second[0] is b


def test_realize_inside_a_transform_computes_the_value_behind():
    seen = []

    def f(x):
        y = wf.realize(x * 3)
        seen.append(y._impl.innermost().is_realized)
        return y.sum()

    wf.grad(f)(large())
    assert seen == [True]


@pytest.mark.slow
def test_a_chain_of_a_hundred_thousand_calls_runs_without_recursion(limits):
    limits.flush_limit = 1_000_000
    limits.small_elements = 0
    x = y = wf.tensor(np.ones(2, np.float32))
    for _ in range(100_000):
        y = y + x
    assert GRAPH.pending >= 100_000
    assert y.tolist() == [100_001.0] * 2


@pytest.mark.slow
def test_a_long_chain_that_nobody_reads_can_be_dropped(limits):
    limits.flush_limit = 1_000_000
    limits.small_elements = 0
    x = y = wf.tensor(np.ones(2, np.float32))
    before = GRAPH.counters.nodes_run
    for _ in range(100_000):
        y = y * x
    del y
    gc.collect()
    assert GRAPH.pending == 0
    assert GRAPH.counters.nodes_run == before


@pytest.mark.slow
def test_ten_thousand_unread_steps_need_no_more_memory_than_a_few():
    x, decay = large(), large(0.5)
    y = x
    before = stats()
    for _ in range(10_000):
        y = y * decay + x
    assert stats().peak_bytes - max(before.peak_bytes, before.live_bytes) <= 8 * x.nbytes
    assert GRAPH.pending <= 2 * settings.flush_limit
    np.testing.assert_allclose(y.numpy(), 2.0)


def test_flushing_keeps_the_values_of_live_handles_and_skips_dead_ones(limits):
    limits.flush_limit = 64
    x = large()
    kept = []
    for i in range(300):
        y = x + float(i)
        if i % 50 == 0:
            kept.append((i, y))
    assert GRAPH.counters.flushes > 0
    for i, y in kept:
        assert y.numpy()[0, 0] == 1 + i
    assert GRAPH.pending <= 128


def test_data_held_by_waiting_calls_is_bounded(limits):
    x = large()
    limits.flush_bytes = 8 * x.nbytes
    total = large(0.0)
    before = GRAPH.counters.flushes
    for i in range(100):
        total = total + wf.tensor(np.full(LARGE, float(i), np.float32))
    assert GRAPH.counters.flushes - before >= 5
    assert total.numpy()[0, 0] == sum(range(100))


def test_what_is_only_repeated_along_an_axis_holds_no_data(limits):
    x = large()
    limits.flush_bytes = 8 * x.nbytes
    before = GRAPH.counters.flushes
    difference = x[:, None] - x[None]
    assert not difference.is_realized
    assert GRAPH.counters.flushes == before
    assert (difference * difference).sum().numpy() == 0


def test_equal_calls_share_a_node_but_every_result_is_its_own():
    x = large()
    a, b = x + 1, x + 1
    assert a._impl.node is b._impl.node
    assert a._impl.node is not (x + 1.5)._impl.node
    assert a._impl is not b._impl
    before = GRAPH.counters.nodes_run
    assert a.numpy()[0, 0] == b.numpy()[0, 0] == 2
    assert GRAPH.counters.nodes_run == before + 1


def test_dead_results_of_a_shared_node_are_forgotten():
    x = large()
    kept = wf.sin(x)
    for _ in range(1000):
        wf.sin(x)
    assert len(kept._impl.node.outputs) <= 32


def test_keys_tell_apart_what_equality_does_not():
    values = [0.0, -0.0, 0, False, None, "0", (0,), [0], 0j, -0j, complex(0, -0.0)]
    values += [float("nan"), np.float64(0.0), np.float64(-0.0), np.float32(0.0), np.int64(0)]
    keys = {freeze(value) for value in values}
    assert len(keys) == len(values) - (repr(-0j) == repr(0j))
    assert freeze({"a": (1, 2.5), "b": [True]}) == freeze({"b": [True], "a": (1, 2.5)})
    assert freeze(float("nan")) == freeze(float("nan"))


def test_running_cuts_the_edges_so_intermediates_are_freed():
    x = large()
    y = x
    for _ in range(20):
        y = wf.sqrt(y) + x
    before = stats()
    y.numpy()
    after = stats()
    assert after.live_blocks == before.live_blocks + 1
    assert after.allocations - before.allocations == 40
    assert y._impl.node.inputs == () and y._impl.node.key is None


def test_one_of_several_results_does_not_keep_the_others_alive():
    class Both(Failing):
        """x + 1 and x + 2."""

        factors = "... -> ..., ..."
        multiple = True

        def dtype(self, *found, **params):
            return found * 2

        def eval(self, x):
            return x + 1, x + 2

    both = object.__new__(Both)
    both.name = both.__name__ = "both"
    first, second = call(both, (large(),), {})
    first.numpy()
    other = weakref.ref(first._impl.node or second._impl.node)
    array = weakref.ref(second.numpy().base)
    del second
    assert other() is None and array() is None
    assert first.numpy()[0, 0] == 2


def test_a_failure_names_the_users_line_and_leaves_the_rest_usable(failing):
    x = large()
    good = x + 1
    bad = call(failing, (good,), {})  # this very line
    worse = bad * 2
    for _ in range(2):
        with pytest.raises(IndexingError) as caught:
            worse.numpy()
        (note,) = [n for n in caught.value.__notes__ if "failing" in n]
        assert "test_graph.py" in note and "# this very line" in note
    assert good.numpy()[0, 0] == 2
    assert x.numpy()[0, 0] == 1
    assert (good * 2).numpy()[0, 0] == 4
    Failing.fails = False
    try:
        assert worse.numpy()[0, 0] == 8
    finally:
        Failing.fails = True


def test_a_failing_call_does_not_break_an_unrelated_loop(failing, limits):
    limits.flush_limit = 16
    x = large()
    bad = call(failing, (x,), {})
    after = bad + 1
    y = x
    for _ in range(200):
        y = y + x
    assert y.numpy()[0, 0] == 201
    with pytest.raises(IndexingError):
        after.numpy()


def test_many_threads_record_and_read_at_once(limits):
    limits.flush_limit = 32
    shared = large()
    common = wf.sin(shared)
    expected = np.sin(np.float32(1.0))
    failures = []

    def work(seed: int) -> None:
        try:
            y = common
            for i in range(60):
                y = y + shared * float(seed)
                if i % 20 == 7:
                    y.numpy()
            np.testing.assert_allclose(y.numpy()[0, 0], expected + 60 * seed, rtol=1e-5)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_recording_goes_on_while_another_thread_runs_a_kernel():
    started, release = threading.Event(), threading.Event()

    class Slow(Failing):
        def eval(self, x):
            started.set()
            assert release.wait(20)
            return x

    slow = object.__new__(Slow)
    slow.name = slow.__name__ = "slow"
    x = large()
    y = call(slow, (x,), {})
    runner = threading.Thread(target=y.numpy)
    runner.start()
    assert started.wait(20)
    z = x + 1  # would wait for ever if recording needed the lock of the run
    assert not z.is_realized
    release.set()
    runner.join()
    assert z.numpy()[0, 0] == 2


def test_a_kernel_may_itself_record_read_and_flush(limits):
    limits.flush_limit = 4
    x = large()
    aside = x * 7

    class Busy(Failing):
        leaf = False
        runs = 0

        def eval(self, a):
            type(self).runs += 1
            y = x
            for _ in range(20):
                y = y + x
            return a * (y.numpy()[0, 0] + aside.numpy()[0, 0])

    busy = object.__new__(Busy)
    busy.name = busy.__name__ = "busy"
    z = call(busy, (x,), {})
    after = z + aside
    assert after.numpy()[0, 0] == 28 + 7
    assert Busy.runs == 1


@pytest.mark.parametrize("compile_after", [0, 100])
def test_a_kernel_that_reads_its_own_result_is_told_so(monkeypatch, compile_after):
    monkeypatch.setattr(settings, "compile_after", compile_after)
    x, calls, held = large(), [], []

    def endless(a):
        calls.append(1)
        assert len(calls) < 10
        return held[0].numpy()

    held.append(wf.call_custom_kernel(endless, x * 2, result_type=x.type))
    with pytest.raises(ArgumentError, match="reads the call's own result"):
        (held[0] + 1).numpy()
    assert (x * 2 + 1).numpy()[0, 0] == 3


def test_kernels_that_read_each_other_are_told_so():
    x, held = large(), []
    for other in (1, 0):
        read = lambda a, other=other: held[other].numpy()  # noqa: E731
        held.append(wf.call_custom_kernel(read, x, result_type=x.type))
    with pytest.raises(ArgumentError, match="reads the call's own result"):
        held[0].numpy()


FORK = """
import os, signal, sys, threading, warnings
import weft as wf
from weft.core.graph import GRAPH

warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of any fork beside threads
y = wf.ones((300, 300)) + 1
held, release = threading.Event(), threading.Event()

def hold():
    with GRAPH._run_lock, GRAPH._table_lock:
        held.set()
        release.wait(20)

holder = threading.Thread(target=hold)
holder.start()
assert held.wait(20)
child = os.fork()
if child == 0:
    signal.alarm(20)  # a child that hangs shall not hang its parent
    os._exit(0 if (y * 2).numpy()[0, 0] == 4 else 1)
release.set()
holder.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert y.numpy()[0, 0] == 2
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_can_go_on_computing():
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=60)


@pytest.mark.promise("S0.19")
def test_inside_the_physical_context_ops_run_at_once_and_lazy_values_are_readable():
    x = large()
    lazy = x + 1
    with GRAPH.context() as graph:
        assert graph is GRAPH
        y = lazy * 2
        assert y.is_realized
        assert y.numpy()[0, 0] == 4


@pytest.mark.promise("S0.20")
def test_inside_the_physical_context_nothing_is_recorded():
    x = large()
    recorded = GRAPH.counters.recorded
    with GRAPH.context():
        wf.sin(x) + x
    assert GRAPH.counters.recorded == recorded


@pytest.mark.promise("S0.21")
def test_leaving_the_physical_context_restores_recording_also_on_an_exception():
    x = large()
    with pytest.raises(KeyError), GRAPH.context():
        raise KeyError
    recorded = GRAPH.counters.recorded
    y = x + 5
    assert not y.is_realized
    assert GRAPH.counters.recorded == recorded + 1


def test_topological_order_puts_inputs_before_users():
    x = large()
    a = x + 1
    b = a * 2
    c = a + b
    order = get_operations_topological([c._impl.node])
    names = [node.name for node in order if node.op is not None]
    assert names[-1] == "add" and len(names) == 3
    places = {node: i for i, node in enumerate(order)}
    for node in order:
        assert all(places[source] < places[node] for source, _ in node.inputs)
    impls = get_all_impls_topological([c._impl.node])
    assert [a._impl, b._impl, c._impl] == [i for i in impls if i in (a._impl, b._impl, c._impl)]
    seen = []
    apply_to_operations([c._impl.node], seen.append)
    assert seen == order


def test_a_graph_of_ones_own_has_its_own_limit():
    graph = ComputeGraph(flush_limit=7)
    assert graph.flush_limit == 7
    assert ComputeGraph().flush_limit == settings.flush_limit
    assert graph.pending == 0


def test_traced_tensors_are_recorded_however_small_and_untraced_ones_are_not():
    x = wf.traced(wf.tensor([1.0, 2.0]))
    y = x * 2
    assert not y.is_realized
    z = wf.untraced({"y": y})["y"]
    assert z.is_realized and (z + 1).is_realized
    assert y.tolist() == [2.0, 4.0]


def test_later_writes_to_the_memory_of_an_untraced_tensor_do_not_reach_its_readers():
    source = np.ones(200_000)
    x = wf.untraced(wf.asarray(source))
    y = x + x
    source[:] = 5
    assert y.numpy()[0] == 2
    assert x.numpy()[0] == 5


def test_nodes_hold_no_frames():
    class Witness:
        pass

    def build():
        witness = Witness()
        ref = weakref.ref(witness)
        return large() + 1, ref

    y, ref = build()
    assert ref() is None
    assert y._impl.node.types == (TensorType(LARGE, np.dtype("float32")),)
