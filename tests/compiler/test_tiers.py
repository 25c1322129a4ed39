"""When recorded graphs are compiled, what is computed then, and what a failure leaves behind."""

from __future__ import annotations

import gc
import threading
import traceback
import weakref

import numpy as np
import pytest

import weft as wf
from tests.compiler.bits import assert_same
from weft.compiler import tier
from weft.config import settings
from weft.core.graph.graph import GRAPH
from weft.errors import IndexingError


@pytest.fixture(autouse=True)
def lazy(monkeypatch):
    """Everything is recorded, and no graph has been seen."""
    monkeypatch.setattr(settings, "small_elements", 0)
    monkeypatch.setattr(tier, "_seen", type(tier._seen)())
    monkeypatch.setattr(tier, "_compiled", type(tier._compiled)())


def counted():
    return GRAPH.counters.executions, GRAPH.counters.compilations


def chain(x):
    return wf.sum(wf.sin(x) * 2 + x, axis=-1)


def data(*shape):
    return wf.tensor(np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 7)


@pytest.mark.promise("S0.10")
@pytest.mark.promise("S0.12")
def test_a_forced_graph_is_compiled_at_the_first_read_and_not_before(monkeypatch):
    monkeypatch.setattr(settings, "compile_after", 0)
    executions, compilations = counted()
    y = chain(data(5, 6))
    assert counted() == (executions, compilations)
    y.numpy()
    assert counted() == (executions + 1, compilations + 1)
    y.numpy()
    assert counted() == (executions + 1, compilations + 1)
    chain(data(5, 6) + 0).numpy()
    assert counted() == (executions + 2, compilations + 2), "a call more is another graph"
    chain(data(5, 6)).numpy()
    assert counted() == (executions + 3, compilations + 2), "the first one was kept"


@pytest.mark.promise("S0.11")
@pytest.mark.promise("S0.12")
@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.numpy(),
        lambda x: x.tolist(),
        repr,
        lambda x: f"{x}",
        np.asarray,
        np.from_dlpack,
        lambda x: wf.realize(x),
    ],
    ids=["numpy", "tolist", "repr", "format", "asarray", "dlpack", "realize"],
)
def test_every_way_of_reading_compiles_and_runs_once(monkeypatch, read):
    monkeypatch.setattr(settings, "compile_after", 0)
    y = chain(data(4, 3))
    executions, compilations = counted()
    read(y)
    assert counted() == (executions + 1, compilations + 1)


def test_a_graph_is_interpreted_first_and_compiled_when_it_comes_again():
    executions, compilations = counted()
    results = []
    for times in range(3):
        results.append(chain(data(5, 6)).numpy())
        assert counted() == (executions + times + 1, compilations + (times > 0))
    assert_same(results[1:], results[:1] * 2)


def test_how_often_a_graph_must_come_is_a_setting(monkeypatch):
    monkeypatch.setattr(settings, "compile_after", 3)
    _, compilations = counted()
    for times in range(5):
        chain(data(5, 6)).numpy()
        assert counted()[1] == compilations + (times >= 3)


def test_a_large_graph_is_compiled_at_once(monkeypatch):
    monkeypatch.setattr(settings, "compile_elements", 100)
    monkeypatch.setattr(tier, "EACH", 45)
    _, compilations = counted()
    chain(data(3, 3)).numpy()
    chain(data(7, 7)).numpy()  # of many calls, each of them small
    assert counted()[1] == compilations
    chain(data(10, 10)).numpy()
    assert counted()[1] == compilations + 1


@pytest.mark.slow
def test_other_shapes_dtypes_and_parameters_are_other_graphs(monkeypatch):
    monkeypatch.setattr(settings, "compile_after", 0)
    _, compilations = counted()
    x = data(4, 6)
    graphs = [
        lambda: wf.sum(wf.sin(x), axis=0),
        lambda: wf.sum(wf.sin(x), axis=1),
        lambda: wf.sum(wf.sin(data(6, 4)), axis=0),
        lambda: wf.sum(wf.sin(wf.tensor(x.numpy().astype(np.float64))), axis=0),
    ]
    expected = [np.sin(x.numpy()).sum(0), np.sin(x.numpy()).sum(1)]
    found = [graph().numpy() for graph in graphs]
    assert counted()[1] == compilations + 4
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)
    assert [a.dtype for a in found] == [np.float32] * 3 + [np.float64]


def test_handles_that_are_alive_are_kept_and_dead_ones_are_not_computed(monkeypatch):
    monkeypatch.setattr(settings, "compile_after", 0)
    x = data(8, 8)
    kept = wf.sin(x)
    dead = wf.cos(x)
    middle = kept * 2
    y = middle + 1
    del dead, middle
    gc.collect()
    y.numpy()
    assert kept.is_realized
    (program,) = tier._compiled.values()
    names = [node.name for node in program._trace.nodes]
    assert names == ["sin", "multiply", "add"]
    assert len(program._outputs) == 2  # y and kept, not what lies between
    np.testing.assert_allclose(kept.numpy(), np.sin(x.numpy()), rtol=1e-6)


def test_results_that_share_work_which_nobody_holds_run_together(monkeypatch):
    monkeypatch.setattr(settings, "compile_after", 0)
    x = data(8, 8)

    def results():
        product = x @ x
        return wf.sin(product), wf.cos(product), wf.cos(product + 1) @ x

    made = results()
    executions, compilations = counted()
    found = [y.numpy() for y in made]
    assert counted() == (executions + 1, compilations + 1)
    assert_same(found, [y.numpy() for y in wf.realize(results())])


def test_gradients_that_are_read_one_by_one_take_one_way_back(monkeypatch):
    monkeypatch.setattr(settings, "compile_after", 0)
    weights = [data(8, 8) / 10 for _ in range(4)]

    def loss(weights):
        x = data(8, 8)
        for w in weights:
            x = wf.tanh(x @ w)
        return wf.sum(x)

    value, slopes = wf.value_and_grad(loss)(weights)
    gc.collect()
    executions, _ = counted()
    value.item()
    found = [slope.numpy() for slope in slopes]
    assert counted()[0] == executions + 1
    assert_same(found, [y.numpy() for y in wf.realize(wf.grad(loss)(weights))])


def test_results_that_share_nothing_or_what_is_kept_or_cheap_wait_for_their_own_reader(monkeypatch):
    monkeypatch.setattr(settings, "compile_after", 0)
    x = data(8, 8)
    product, cheap = x @ x, wf.exp(x)
    kept, light, apart = wf.sin(product) * 2, wf.sin(cheap) * 2, (x + 1) @ x
    others = wf.cos(product) * 2, wf.cos(cheap) * 2, (x + 2) @ x
    del cheap
    gc.collect()
    for y in (kept, light, apart):
        y.numpy()
    assert not any(y.is_realized for y in others)


def test_a_result_that_fails_does_not_fail_what_runs_with_it(monkeypatch):
    monkeypatch.setattr(settings, "compile_after", 0)
    x = data(8, 8)
    product = x @ x
    fine, wrong = wf.sin(product), wf.take(product, wf.tensor([3, 9]) + 0, axis=0)
    del product
    gc.collect()
    np.testing.assert_allclose(fine.numpy(), np.sin(x.numpy() @ x.numpy()), rtol=1e-4, atol=1e-4)
    with pytest.raises(IndexingError):
        wrong.numpy()


def test_a_flush_keeps_only_what_somebody_holds(monkeypatch):
    monkeypatch.setattr(settings, "compile_after", 0)
    monkeypatch.setattr(settings, "flush_limit", 8)
    y = data(4, 4)
    flushes = GRAPH.counters.flushes
    for _ in range(30):
        y = wf.sin(y) + 1
    assert GRAPH.counters.flushes > flushes
    assert tier._compiled
    for program in tier._compiled.values():
        assert len(program._outputs) < len(program._trace.nodes) / 2
    expected = data(4, 4).numpy()
    for _ in range(30):
        expected = np.sin(expected) + 1
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5)


def test_a_handle_that_dies_makes_another_graph_of_the_same_calls(monkeypatch):
    monkeypatch.setattr(settings, "compile_after", 0)
    x = data(3, 5)
    first = wf.exp(x)
    (first * 2).numpy()
    _, compilations = counted()
    (wf.exp(data(3, 5)) * 2).numpy()  # nobody holds the exponential now
    assert counted()[1] == compilations + 1
    assert first.is_realized


def test_a_failure_names_the_line_of_the_call_that_is_to_blame(monkeypatch):
    monkeypatch.setattr(settings, "compile_after", 0)
    x = data(6, 2)
    place = wf.tensor(np.array([1, 9]))
    for _ in range(2):  # compiled at the first read, found compiled at the second
        y = wf.sin(x)[place] + 1  # the call to blame
        z = wf.cos(x) * 2
        with pytest.raises(IndexingError) as caught:
            y.numpy()
        text = "".join(traceback.format_exception(caught.value))
        assert "the call to blame" in text
        assert "9" in str(caught.value)
        np.testing.assert_allclose(z.numpy(), np.cos(x.numpy()) * 2, rtol=1e-6)
    good = wf.sin(x)[wf.tensor(np.array([1, 5]))] + 1
    np.testing.assert_allclose(good.numpy(), np.sin(x.numpy())[[1, 5]] + 1, rtol=1e-6)


@pytest.mark.slow
def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(tier, "MOST_SEEN", 5)
    monkeypatch.setattr(tier, "MOST_GRAPHS", 3)
    for size in range(2, 12):
        for _ in range(2):
            chain(data(2, size)).numpy()
    assert len(tier._seen) <= 5
    assert len(tier._compiled) <= 3
    _, compilations = counted()
    chain(data(2, 11)).numpy()
    assert counted()[1] == compilations, "the latest are the ones that stay"


def test_a_recorded_graph_holds_no_data_of_its_first_run(monkeypatch):
    monkeypatch.setattr(settings, "compile_after", 0)
    x = data(300, 300)
    array = x.numpy()
    count = len(gc.get_referrers(array))
    chain(x).numpy()
    del x
    gc.collect()
    assert len(gc.get_referrers(array)) <= count


def test_host_ops_run_inside_compiled_graphs(monkeypatch):
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)

    def graph():
        t = wf.tensor(x)
        return wf.cumsum(wf.sort(wf.sin(t), axis=-1) * 2, axis=0) + t

    interpreted = graph().numpy()
    _, compilations = counted()
    found = graph().numpy()
    assert counted()[1] == compilations + 1
    assert_same([found], [interpreted])


VIEWS = {
    "transposed": lambda t: wf.matrix_transpose(t),
    "reversed": lambda t: t[::-1],
    "reversed columns": lambda t: t[:, ::-1],
    "every second": lambda t: t[::2, 1::3],
    "backwards by two": lambda t: t[::-2, ::-3],
    "broadcast": lambda t: wf.broadcast_to(t[:1], (40, 8)),
    "one column": lambda t: t[:, 3],
    "turned twice": lambda t: wf.matrix_transpose(t[::-1, ::-1]),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_strided_leaves_are_read_where_they_lie(monkeypatch, view):
    base = wf.tensor(np.random.default_rng(0).standard_normal((33, 8)).astype(np.float32))
    with monkeypatch.context() as at_once:
        at_once.setattr(settings, "small_elements", 1000)
        t = view(base)
    assert not t.data().flags.c_contiguous

    def graph():
        y = t * 2
        return wf.sum(wf.sin(t) * t, axis=-1), wf.flip(y, axis=0) + t, wf.reshape(y, (-1,)) + 1

    interpreted = [y.numpy() for y in graph()]
    _, compilations = counted()
    assert_same([y.numpy() for y in graph()], interpreted)
    assert counted()[1] > compilations


def test_threads_may_read_the_same_graph_at_once(monkeypatch):
    monkeypatch.setattr(settings, "compile_after", 0)
    expected = chain(data(20, 30)).numpy()
    found, errors = [], []

    def work():
        try:
            for _ in range(20):
                found.append(chain(data(20, 30)).numpy())
        except BaseException as error:  # of another thread: shown below
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not errors
    assert_same(found, [expected] * 80)


@pytest.mark.parametrize("elements", [0, 1 << 14])
def test_a_loop_alone_is_a_graph_however_small(monkeypatch, elements):
    monkeypatch.setattr(settings, "small_elements", elements)
    xs = data(5, 3)

    def loop():
        return wf.scan(lambda h, x: (wf.tanh(h * 0.5 + x), h), xs[0], xs)[0]

    _, compilations = counted()
    first = loop().numpy()
    assert counted()[1] == compilations, "it may never come again"
    second, third = loop().numpy(), loop().numpy()
    assert counted()[1] == compilations + 1
    assert_same([second, third], [first, first])


def test_a_loop_that_fails_says_so_when_it_is_read_in_every_run():
    x = data(4)
    for _ in range(3):
        found = wf.fori_loop(0, 6, lambda i, c: c + x[i], wf.zeros(()))
        with pytest.raises(IndexingError, match="index 4 is out of range"):
            found.numpy()
    assert wf.fori_loop(0, 4, lambda i, c: c + x[i], wf.zeros(())).numpy() == x.numpy().sum()


def test_derivatives_of_ones_own_are_not_remembered_and_their_functions_compiled_once():
    @wf.custom_vjp
    def doubled(x):
        return x * 2

    doubled.defvjp(lambda x: (doubled(x), x), lambda x, ct: (ct * x,))
    _, compilations = counted()
    held = []
    for number in range(4):
        x = data(5, 6) + number
        held.append(weakref.ref(x._impl.realize()))
        assert_same([doubled(x).numpy()], [x.numpy() * 2])
        del x
    gc.collect()
    assert counted()[1] == compilations + 1
    assert sum(each() is not None for each in held) <= 1
