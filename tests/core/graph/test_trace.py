"""A function as data: traced once, printed, replayed on other tensors, run on arrays."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft.core import driver_tensor_type, print_trace_graph
from weft.core.common.types import TensorType
from weft.core.graph.node import OutputRefs
from weft.core.tensor.tracing import Recorder
from weft.errors import ArgumentError, ConcretizationError, DeviceMismatchError, LeakedTensorError

calls = []


def model(x, w):
    calls.append(1)
    hidden = wf.tanh(x @ w)
    return {"out": wf.sum(hidden * 2), "hidden": hidden}


def arguments(seed: int = 0):
    rng = np.random.default_rng(seed)
    return wf.tensor(rng.normal(size=(4, 3))), wf.tensor(rng.normal(size=(3, 5)))


@pytest.mark.promise("S0.9")
def test_every_call_inside_a_trace_records_a_node_with_op_inputs_parameters_and_outputs():
    nodes = []

    class Watching(Recorder):
        def handle(self, op, args, params):
            made = super().handle(op, args, params)
            nodes.append((op, args, params, made))
            return made

    with Watching() as recorder:
        x = recorder.input(TensorType((2, 3), np.dtype("float32")), wf.Device("cpu", 0))
        y = wf.sum(x, axis=1)
    ((op, args, params, made),) = nodes
    node, slot = made._impl.payload
    assert isinstance(node, OutputRefs)
    assert node.op is op and node.params == params == {"axes": (-1,)}
    assert node.inputs == (args[0]._impl.payload,)
    assert node.types[slot] == y.type


def test_a_tape_node_carries_op_inputs_parameters_and_outputs():
    seen = []

    def f(x):
        y = wf.sum(x * x, axis=0)
        seen.append(y._impl.payload[0])
        return wf.sum(y)

    wf.grad(f)(wf.ones((2, 3)))
    (node,) = seen
    assert str(node.op) == "reduce_sum" and node.params == {"axes": (-2,)}
    assert node.primals[0].shape == (2, 3) and node.outs[0].shape == (3,)


@pytest.mark.promise("S0.15")
def test_a_trace_replayed_on_other_tensors_gives_their_values():
    trace = wf.trace(model, *arguments())
    other = arguments(1)
    expected = model(*other)
    hidden, out = trace.replay(*other)  # trees put the keys of a dict in order
    np.testing.assert_array_equal(out.numpy(), expected["out"].numpy())
    np.testing.assert_array_equal(hidden.numpy(), expected["hidden"].numpy())


@pytest.mark.promise("S0.16")
def test_replay_works_on_tensors_of_a_transform():
    trace = wf.trace(lambda x: wf.sum(wf.sin(x)), wf.ones(3))
    x = wf.tensor([0.1, 0.2, 0.3])
    slope = wf.grad(lambda v: trace.replay(v)[0])(x)
    np.testing.assert_allclose(slope.numpy(), np.cos(x.numpy()), rtol=1e-6)
    rows = wf.vmap(lambda v: trace.replay(v)[0])(wf.stack([x, 2 * x]))
    np.testing.assert_allclose(rows.numpy(), np.sin([x.numpy(), 2 * x.numpy()]).sum(1), rtol=1e-6)


@pytest.mark.promise("S0.17")
@pytest.mark.slow
def test_replay_does_not_recurse():
    def long(x):
        for _ in range(20_000):
            x = x + 1
        return x

    trace = wf.trace(long, wf.ones(2))
    assert len(trace.nodes) == 20_000
    assert trace.replay(wf.zeros(2))[0].tolist() == [20_000.0] * 2


@pytest.mark.promise("S0.18")
def test_the_users_python_runs_once():
    calls.clear()
    trace = wf.trace(model, *arguments())
    for seed in range(5):
        trace.replay(*arguments(seed))
        trace.run([x.numpy() for x in (*arguments(seed), *trace.captures)])
    assert len(calls) == 1


def test_run_works_on_arrays_and_lets_go_of_values_after_their_last_use():
    trace = wf.trace(lambda x: (x + 1) * (x + 1) - x, wf.ones(3))
    array = np.array([1.0, 2.0, 3.0], np.float32)
    (result,) = trace.run([array, *(x.numpy() for x in trace.captures)])
    np.testing.assert_array_equal(result, (array + 1) ** 2 - array)
    released = [source for ending in trace._last_uses for source in ending]
    assert len(released) == len(set(released)) == len(trace.nodes) - 1 + len(trace.inputs)


def test_wrong_numbers_of_tensors_are_refused():
    trace = wf.trace(lambda x, y: x * y, wf.ones(3), wf.ones(3))
    with pytest.raises(ArgumentError, match="2 inputs"):
        trace.replay(wf.ones(3))


def test_a_trace_prints_shapes_dtypes_parameters_captures_and_the_users_lines():
    w = wf.ones((3, 5))

    def f(x):
        return wf.sum(x @ w, axis=1)  # summed here

    text = print_trace_graph(wf.trace(f, wf.ones((4, 3))))
    assert text.splitlines()[0] == "f(%0: float32[4,3]) captures (%1: float32[3,5]):"
    assert "%2: float32[4,5] = matmul(%0, %1)" in text
    assert "= reduce_sum(%2, axes=(-1,))" in text
    assert "test_trace.py" in text and "# summed here" in text
    assert text.splitlines()[-1] == "  return %3"
    assert "test_trace" not in print_trace_graph(wf.trace(f, wf.ones((4, 3))), lines=False)


def test_a_trace_prints_shardings_where_tensors_have_them():
    trace = wf.trace(wf.sin, wf.ones((4, 3)))
    trace.nodes[0].specs = ("P(dp, None)",)
    assert "float32[4,3] @ P(dp, None) = sin(%0)" in str(trace)


def test_equal_calls_are_one_node_and_unused_ones_are_left_out():
    def f(x):
        wf.cos(x)
        return wf.sin(x) + wf.sin(x)

    assert [node.name for node in wf.trace(f, wf.ones(3)).nodes] == ["sin", "add"]


def test_a_value_read_inside_a_trace_raises_with_a_hint():
    with pytest.raises(ConcretizationError, match=r"wf\.where") as caught:
        wf.trace(lambda x: x if x.sum() > 0 else -x, wf.ones(3))
    assert "test_trace.py" in str(caught.value)


def test_a_tensor_of_an_ended_trace_is_refused_everywhere():
    kept = []
    wf.trace(lambda x: kept.append(x * 2) or x, wf.ones(3))
    with pytest.raises(LeakedTensorError, match="trace that has ended"):
        kept[0] + 1
    with pytest.raises(LeakedTensorError):
        wf.trace(lambda x: x + kept[0], wf.ones(3))
    with pytest.raises(LeakedTensorError):
        wf.grad(lambda x: wf.sum(x * kept[0]))(wf.ones(3))


def test_devices_are_checked_while_tracing():
    with pytest.raises(DeviceMismatchError):
        wf.trace(lambda x, y: x + y, wf.ones(3), wf.ones(3, device="cpu:1"))


def test_the_driver_type_has_the_device_and_the_hidden_axes():
    x = wf.ones((4, 3), device="cpu:1")
    assert str(driver_tensor_type(x)) == "float32[4,3] on cpu:1"
    seen = []
    wf.vmap(lambda row: seen.append(driver_tensor_type(row)) or row)(x)
    assert seen[0].shape == (4, 3) and seen[0].device is x.device
    assert driver_tensor_type(x._impl) == driver_tensor_type(x)


def test_eval_shape_computes_nothing():
    kind = wf.eval_shape(lambda x: x @ x, TensorType((10**6, 10**6), np.dtype("float32")))
    assert kind == TensorType((10**6, 10**6), np.dtype("float32"))
