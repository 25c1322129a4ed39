"""`compile`: one trace for each kind of call, the same values as the plain function."""

from __future__ import annotations

import dataclasses
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import weft as wf
from weft.compiler import function as compiled_function
from weft.core.graph.graph import GRAPH
from weft.errors import ArgumentError, IndexingError, MutationError


def counted(function):
    """The function, and a list that grows each time its Python runs."""
    runs = []

    def counting(*args, **keywords):
        runs.append(1)
        return function(*args, **keywords)

    return counting, runs


@pytest.fixture
def x():
    return wf.tensor([1.0, 2.0, 3.0, 4.0])


@pytest.mark.promise("S3.18")
def test_the_first_call_traces_and_later_calls_run_no_python(x):
    function, runs = counted(lambda a: wf.sin(a) * 2)
    compiled = wf.compile(function)
    for value in (x, x + 1, x * 3):
        np.testing.assert_array_equal(compiled(value).numpy(), (wf.sin(value) * 2).numpy())
    assert len(runs) == 1
    stats = compiled.stats
    assert (stats.traces, stats.compilations, stats.misses, stats.hits) == (1, 1, 1, 2)


@pytest.mark.promise("S3.19")
def test_calls_that_nobody_needs_and_equal_calls_are_counted_and_dropped(x):
    def f(a):
        wf.exp(a)
        return wf.sin(a) + wf.sin(a)

    compiled = wf.compile(f)
    compiled(x)
    stats = compiled.stats
    assert (stats.dead, stats.shared) == (1, 1)
    assert stats.nodes_before == 4
    assert [node.op.name for node in compiled.lower(x).nodes].count("sin") == 1


@pytest.mark.promise("S3.20")
def test_the_graph_that_was_simplified_is_what_is_compiled(x):
    compiled = wf.compile(lambda a: (wf.exp(a), wf.sin(a))[1])
    compiled(x)
    assert [node.op.name for node in compiled.lower(x).nodes] == ["sin"]
    assert compiled.stats.nodes_after == 1


@pytest.mark.promise("S3.21")
def test_shapes_dtypes_structure_statics_and_defaults_make_kinds_of_calls(x):
    def f(a, n=1):
        return wf.add(a["v"] if isinstance(a, dict) else a, n)

    compiled = wf.compile(f, static_argnames="n")
    kinds = [
        lambda: compiled(x),
        lambda: compiled(x[:2]),
        lambda: compiled(x.astype("float64")),
        lambda: compiled({"v": x}),
        lambda: compiled(x, n=2),
        lambda: compiled(x.to_device("cpu:1")),
    ]
    for count, kind in enumerate(kinds, 1):
        kind()
        kind()
        assert compiled.stats.traces == count
    with wf.default_dtype("float64"):
        compiled(x)
    assert compiled.stats.traces == len(kinds) + 1
    assert compiled(x, 2).tolist() == compiled(x, n=2).tolist()


@pytest.mark.promise("S3.22")
def test_random_draws_differ_from_call_to_call_and_are_those_of_the_plain_function():
    def f():
        return wf.uniform((3,)), wf.random.generator().normal((2,))

    compiled = wf.compile(f)
    for seed in (3, 4):
        wf.random.seed(seed)
        plain = [[y.tolist() for y in f()] for _ in range(4)]
        state = wf.random.get_state().tolist()
        wf.random.seed(seed)
        assert [[y.tolist() for y in compiled()] for _ in range(4)] == plain
        assert wf.random.get_state().tolist() == state
    assert compiled.stats.traces == 1


@pytest.mark.promise("S3.23")
def test_a_captured_tensor_is_looked_up_again_at_each_call(x):
    weight = wf.tensor([1.0, 1.0, 1.0, 1.0])
    compiled = wf.compile(lambda a: a * weight)
    assert compiled(x).tolist() == [1, 2, 3, 4]
    weight += 1
    assert compiled(x).tolist() == [2, 4, 6, 8]
    weight[0] = 10.0
    assert compiled(x).tolist() == [10, 4, 6, 8]
    weight = wf.zeros(4)
    assert compiled(x).tolist() == [0, 0, 0, 0]
    assert compiled.stats.traces == 1
    weight = wf.tensor([[1.0], [2.0]])
    assert compiled(x).tolist() == [[1, 2, 3, 4], [2, 4, 6, 8]]
    assert compiled.stats.traces == 2
    assert "captured tensor weight: was float32[4], now float32[2,1]" in compiled.why_recompiled()


def test_variables_that_held_one_tensor_may_part(x):
    weight = wf.ones(4)
    average = unread = weight
    compiled = wf.compile(lambda a: a * weight + 10 * a * average if unread is not None else a)
    for _ in range(3):  # the general way in, and the quick one
        assert compiled(x).tolist() == [11, 22, 33, 44]
    weight = wf.full(4, 2.0)
    for _ in range(3):
        assert compiled(x).tolist() == [12, 24, 36, 48]
    assert compiled.why_recompiled() == [
        "captured tensor average: weight is no longer the same one"
    ]
    average = wf.full(4, 3.0)
    assert compiled(x).tolist() == [32, 64, 96, 128]
    average = weight
    assert compiled(x).tolist() == [22, 44, 66, 88]


@pytest.mark.promise("S3.26")
def test_the_promised_names_are_there():
    assert wf.jit is wf.compile
    assert isinstance(wf.compile(lambda: 1), wf.CompiledFunction)
    assert isinstance(wf.compile(lambda: 1).stats, wf.CompilationStats)
    with pytest.raises(dataclasses.FrozenInstanceError):
        wf.compile(lambda: 1).stats.traces = 3


GLOBAL = wf.tensor([1.0, 1.0])


def test_a_global_tensor_bound_anew_is_seen_also_by_functions_that_are_called():
    global GLOBAL

    def helper(a):
        return a + GLOBAL

    compiled = wf.compile(lambda a: helper(a) * 2)
    assert compiled(wf.ones(2)).tolist() == [4, 4]
    GLOBAL = wf.tensor([2.0, 3.0])
    assert compiled(wf.ones(2)).tolist() == [6, 8]


def test_a_tensor_in_an_object_is_seen_when_it_is_assigned_to(x):
    layer = SimpleNamespace(weight=wf.ones(4))
    compiled = wf.compile(lambda a: a * layer.weight)
    compiled(x)
    layer.weight += 1
    assert compiled(x).tolist() == [2, 4, 6, 8]


def test_two_handles_on_one_value_stay_apart(x):
    first = wf.ones(4)
    second = wf.reshape(first, (4,))
    compiled = wf.compile(lambda a: a * first + second)
    compiled(x)
    second += 10
    assert compiled(x).tolist() == [12, 13, 14, 15]


@pytest.mark.parametrize("inner", ["grad", "scan", "vmap", "jvp", "checkpoint", "cond"])
def test_captures_inside_other_transforms_are_looked_up_again(inner, x):
    weight = wf.ones(4)
    functions = {
        "grad": lambda a: wf.grad(lambda b: (b * b * weight).sum())(a),
        "scan": lambda a: wf.scan(lambda c, _: (c * weight, None), a, None, length=2)[0],
        "vmap": lambda a: wf.vmap(lambda b: b * weight)(wf.stack([a, a])),
        "jvp": lambda a: wf.jvp(lambda b: b * weight, (a,), (a,))[1],
        "checkpoint": lambda a: wf.checkpoint(lambda b: b * weight)(a),
        "cond": lambda a: wf.cond(a.sum() > 0, lambda b: b * weight, lambda b: b, a),
    }
    compiled = wf.compile(functions[inner])
    compiled(x)
    weight += 2
    np.testing.assert_allclose(compiled(x).numpy(), functions[inner](x).numpy())
    assert compiled.stats.traces == 1


def test_constants_of_the_function_are_no_captures(x):
    compiled = wf.compile(lambda a: a + wf.tensor([1.0, 2.0, 3.0, 4.0]) * 2)
    assert compiled(x).tolist() == [3, 6, 9, 12]
    assert len(compiled.trace(x).inputs) - len(compiled.trace(x).captures) == 1


def test_an_array_of_numpy_found_outside_is_compiled_in(x):
    outside = np.ones(4, np.float32)
    compiled = wf.compile(lambda a: a * outside)
    compiled(x)
    outside[:] = 5
    assert compiled(x).tolist() == [1, 2, 3, 4]


def test_assigning_to_an_outer_tensor_inside_is_refused(x):
    outer = wf.ones(4)

    def f(a):
        outer[0] = 5.0
        return a

    with pytest.raises(MutationError, match="made outside compile"):
        wf.compile(f)(x)
    assert outer.tolist() == [1, 1, 1, 1]


def test_why_recompiled_says_what_changed(x):
    compiled = wf.compile(lambda a, n=0, **more: a + n, static_argnames="n")
    calls = [
        (lambda: compiled(x), None),
        (lambda: compiled(x[:3]), "argument a: axis 0 was 4, now 3"),
        (lambda: compiled(x[:3].astype("float64")), "argument a: dtype was float32, now float64"),
        (lambda: compiled(x[:3], n=1), "argument a: dtype was float64, now float32"),
        (lambda: compiled(x[:1], n=1), "argument a: axis 0 was 3, now 1"),
        (lambda: compiled(x[:1], n=2), "static argument n: 1 -> 2"),
        (lambda: compiled(x[:3], n=2, b=x), "structure: b is new"),
        (lambda: compiled(x[:3], n=2, b=1.5), "argument b: was float32[4], now a Python float"),
        (lambda: compiled(x.reshape(2, 2)), "structure: b is gone"),
        (lambda: compiled(x[0]), "argument a: shape was (2, 2), now ()"),
    ]
    for call, reason in calls:
        call()
        assert reason is None or reason in compiled.why_recompiled(), compiled.why_recompiled()
    with wf.default_dtype("float64"):
        compiled(x[0])
    assert compiled.why_recompiled()[-1] == "default dtype: was float32, now float64"


def test_the_cache_is_bounded_and_the_oldest_kind_goes_first(x):
    compiled = wf.compile(lambda a: a * 2, cache_size=2)
    for size in (1, 2, 1, 3, 1, 2):
        assert compiled(wf.ones(size)).tolist() == [2.0] * size
    stats = compiled.stats
    assert (stats.traces, stats.evictions, stats.hits) == (4, 2, 2)
    assert "this kind of call had left the cache" not in compiled.why_recompiled()
    compiled.clear_cache()
    compiled(wf.ones(1))
    assert compiled.stats.traces == 5


def test_the_graph_counts_compilations(x):
    before = GRAPH.counters.compilations
    compiled = wf.compile(lambda a: a * 2)
    compiled(x)
    compiled(x)
    assert GRAPH.counters.compilations == before + 1


def test_trace_lower_and_explain_show_the_graph(x, capsys):
    compiled = wf.compile(lambda a: wf.sin(a))
    assert "sin" in str(compiled.trace(x))
    assert "sin" in str(compiled.lower(x))
    text = compiled.explain(x)
    assert text and text in capsys.readouterr().out


def test_effects_happen_at_every_call_in_order(x, capsys):
    seen = []

    def f(a):
        wf.print("first {}", a[0])
        wf.callback(lambda v: (seen.append(float(v[1])), ())[1], (), a * 2)
        wf.print("second {}", a[1])
        return a + 1

    compiled = wf.compile(f)
    compiled(x)
    compiled(x + 1)
    assert capsys.readouterr().out.split("\n")[:4] == [
        "first 1.0",
        "second 2.0",
        "first 2.0",
        "second 3.0",
    ]
    assert seen == [4.0, 6.0]


def test_a_call_that_fails_prints_once(x, capsys):
    def pick(a, i):
        wf.print("sum {}", a.sum())
        return a[i] * 2

    compiled = wf.compile(pick)
    for _ in range(2):
        with pytest.raises(IndexingError, match="index 4 is out of range"):
            compiled(x, wf.tensor([4])).numpy()
        assert capsys.readouterr().out == "sum 10.0\n"


def test_a_failure_while_tracing_leaves_everything_usable(x):
    fail = [True]

    def f(a):
        if fail:
            raise KeyError("mine")
        return a + 1

    compiled = wf.compile(f)
    with pytest.raises(KeyError, match="mine"):
        compiled(x)
    fail.clear()
    assert compiled(x).tolist() == [2, 3, 4, 5]
    assert (x + 1).tolist() == [2, 3, 4, 5]


def test_a_failure_while_running_names_the_line(x):
    def broken(_):
        raise RuntimeError("host")

    compiled = wf.compile(lambda a: wf.callback(broken, ((), "float32"), a))
    with pytest.raises(RuntimeError, match="host") as caught:
        compiled(x)
    assert any("test_compile.py" in note for note in caught.value.__notes__)


def test_recursion_ends_with_static_arguments_or_says_that_it_would_not(x):
    @wf.compile(static_argnums=1)
    def power(a, n):
        return a if n == 1 else a * power(a, n - 1)

    assert power(x, 4).tolist() == [1, 16, 81, 256]

    @wf.compile
    def endless(a):
        return endless(a)

    with pytest.raises(ArgumentError, match="calls itself"):
        endless(x)


def test_threads_that_call_first_compile_once(x):
    def slow(a):
        runs.append(1)
        time.sleep(0.05)
        return a * 2

    runs: list[int] = []
    compiled = wf.compile(slow)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(compiled(x).tolist())) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[2, 4, 6, 8]] * 4
    assert len(runs) == compiled.stats.compilations == 1


def test_a_kernel_may_call_what_is_compiled_while_another_thread_traces_and_reads():
    begun, tracing = threading.Event(), threading.Event()
    x, found = wf.ones(20_000), []
    outer = x * 3

    def kernel(a):
        begun.set()
        assert tracing.wait(20)
        return wf.compile(lambda x: x * 2)(wf.asarray(a)).numpy()

    @wf.compile
    def reads(x):
        tracing.set()
        return x + outer.numpy()[5]

    pending = wf.call_custom_kernel(kernel, x + 1, result_type=x.type)
    reader = threading.Thread(target=lambda: found.append(pending.numpy()[0]), daemon=True)
    reader.start()
    assert begun.wait(20)
    tracer = threading.Thread(target=lambda: found.append(reads(wf.ones(3))[0].item()), daemon=True)
    tracer.start()
    for thread in (reader, tracer):
        thread.join(20)
    assert sorted(found) == [4, 4]


class Searching:
    """Stands for `gc`, and remembers what is asked of it."""

    def __init__(self, frozen=0):
        self.asked = []
        self.frozen = frozen

    def __getattr__(self, name):
        return lambda: self.asked.append(name) or name == "isenabled"

    def get_freeze_count(self):
        return self.frozen


def searching(monkeypatch, spared, frozen=0):
    """What two phases of compiling ask of `gc`, of which so many are `spared` a search."""
    stand_in = Searching(frozen)
    monkeypatch.setattr(compiled_function, "gc", stand_in)
    monkeypatch.setattr(compiled_function, "_spared", [None] * spared)
    for _ in range(2):
        with compiled_function._undisturbed():
            stand_in.asked.append("compiles")
    return stand_in.asked


PHASE = ["isenabled", "disable", "compiles"]
AGED = [*PHASE, "freeze", "unfreeze", "enable"]


def test_what_compiling_made_is_not_searched_for_cycles(monkeypatch):
    assert searching(monkeypatch, 9) == AGED + AGED


def test_after_some_compilations_cycles_are_searched_for_as_ever(monkeypatch):
    assert searching(monkeypatch, 1) == [*AGED, *PHASE, "enable"]


def test_what_others_have_frozen_stays_frozen(monkeypatch):
    assert searching(monkeypatch, 9, frozen=5) == [*PHASE, "enable"] * 2
