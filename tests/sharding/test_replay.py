"""A captured graph is replayed on tensors over any mesh, logical or physical; Python runs once."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.sharding.layouts import HALVES, MESHES, SQUARE, close, laid_out, random_spec, same
from weft import P

ROWS = np.random.default_rng(4).uniform(-1, 1, (6, 4))
WEIGHT = np.random.default_rng(5).uniform(-1, 1, (4, 4))


class Counted:
    """A function that counts how often its Python ran."""

    def __init__(self, function):
        self.function, self.runs = function, 0

    def __call__(self, *args):
        self.runs += 1
        return self.function(*args)


def layer(x, weight):
    y = wf.tanh(x @ weight)
    return wf.sum(y, axis=0), y[::-1], wf.softmax(y, axis=0)


def spread(mesh, seed=0):
    rng = np.random.default_rng(seed)
    return [laid_out(a, mesh, random_spec(rng, mesh, 2)) for a in (ROWS, WEIGHT)]


@pytest.mark.promise("S0.15")
def test_a_graph_captured_on_one_device_is_replayed_on_meshes() -> None:
    function = Counted(layer)
    trace = wf.trace(function, wf.tensor(ROWS), wf.tensor(WEIGHT))
    expected = layer(wf.tensor(ROWS), wf.tensor(WEIGHT))
    for number, mesh in enumerate(MESHES):
        close(trace.replay(*spread(mesh, number)), expected)
    assert function.runs == 1


@pytest.mark.promise("S0.16")
def test_a_graph_captured_on_a_mesh_is_replayed_on_one_device_and_on_other_meshes() -> None:
    function = Counted(layer)
    trace = wf.trace(function, *spread(HALVES))
    expected = layer(wf.tensor(ROWS), wf.tensor(WEIGHT))
    close(trace.replay(wf.tensor(ROWS), wf.tensor(WEIGHT)), expected)
    for number, mesh in enumerate(MESHES):
        close(trace.replay(*spread(mesh, number)), expected)
    assert function.runs == 1


@pytest.mark.promise("S0.17")
def test_a_graph_is_replayed_on_duals() -> None:
    function = Counted(layer)
    trace = wf.trace(function, wf.tensor(ROWS), wf.tensor(WEIGHT))
    x, weight = laid_out(ROWS, HALVES, P("x")), laid_out(WEIGHT, HALVES, P())
    duals = trace.replay(x.dual, weight.dual)
    assert function.runs == 1
    whole = np.tanh(ROWS @ WEIGHT)
    terms = [shard.tensor.numpy() for shard in duals[0].shards]
    close(terms[0], whole[:3].sum(axis=0))
    close(terms[0] + terms[1], whole.sum(axis=0))
    close([dual.logical for dual in duals], layer(wf.tensor(ROWS), wf.tensor(WEIGHT)))


@pytest.mark.promise("S0.18")
def test_a_deep_graph_is_replayed_without_recursion() -> None:
    def deep(x):
        for _ in range(1500):
            x = x * 0.999 + 0.001
        return x

    trace = wf.trace(deep, wf.tensor(ROWS))
    same(trace.replay(laid_out(ROWS, HALVES, P("x"))), [deep(wf.tensor(ROWS))])


@pytest.mark.promise("S3.24")
def test_a_compiled_function_takes_every_layout_and_runs_python_once_for_each() -> None:
    function = Counted(layer)
    compiled = wf.compile(function)
    expected = layer(wf.tensor(ROWS), wf.tensor(WEIGHT))
    for number, mesh in enumerate((HALVES, SQUARE)):
        inputs = spread(mesh, number)
        before = function.runs
        close(compiled(*inputs), expected)
        close(compiled(*inputs), expected)
        assert function.runs <= before + 1
    close(compiled(wf.tensor(ROWS), wf.tensor(WEIGHT)), expected)


@pytest.mark.slow
def test_a_tensor_over_a_mesh_may_be_captured() -> None:
    weight = laid_out(WEIGHT, HALVES, P(None, "x"))
    compiled = wf.compile(lambda x: wf.sin(x @ weight))
    for x in (wf.tensor(ROWS), laid_out(ROWS, HALVES, P("x"))):
        close(compiled(x), np.sin(ROWS @ WEIGHT))
