"""A backend in another package works through an entry point, with no change to weft."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

import weft as wf
from weft.core.common.slots import OPS
from weft.core.graph import GRAPH
from weft.errors import (
    BackendError,
    DeviceError,
    DeviceMismatchError,
    InteropError,
    UnsupportedDTypeError,
    UnsupportedError,
)
from weft.ops.base import call
from weft.runtime import registry
from weft.runtime.interface import Runtime, RuntimeClient
from weft.testing.samples import calls, operands

PACKAGE = Path(__file__).parent.parent / "mock_backend"


@pytest.fixture(scope="module", autouse=True)
def mock_package(tmp_path_factory):
    """What `pip install tests/mock_backend` would leave behind: the package and its metadata."""
    site = tmp_path_factory.mktemp("site")
    info = site / "weft_mock-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: weft-mock\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[weft.backends]\nmock = weft_mock:MockRuntime\n")
    added = [str(site), str(PACKAGE)]
    sys.path[:0] = added
    importlib.invalidate_caches()
    yield
    GRAPH.flush()
    for path in added:
        sys.path.remove(path)
    registry._runtimes.pop("mock", None)
    for device in [d for d in registry._clients if d.kind == "mock"]:
        del registry._clients[device]
    importlib.invalidate_caches()


@pytest.fixture
def x():
    return wf.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], device="mock")


@pytest.mark.promise("S4.43")
def test_a_backend_is_found_by_its_entry_point():
    assert "mock" in registry.available_backends()
    found = registry.runtime("mock")
    assert isinstance(found, Runtime)
    assert isinstance(registry.client("mock:1"), RuntimeClient)
    assert registry.client("mock") is registry.client("mock:0")
    assert not isinstance(wf.zeros(3, device="mock").data(), np.ndarray)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + x,
        lambda x: 2 * x - 1.5,
        lambda x: x @ x.T,
        lambda x: x.sum(axis=0),
        lambda x: x.T,
        lambda x: x[1, ::-1],
        lambda x: x.reshape(3, 2),
        lambda x: wf.flip(x).broadcast_to((4, 2, 3)),
        lambda x: wf.where(x > 2, x, 0.0),
        lambda x: wf.concat([x, x], axis=1),
        lambda x: x * np.ones(3, np.float32),
        lambda x: np.full((2, 1), 2.0, np.float32) * x,
        lambda x: wf.grad(lambda v: wf.sum(wf.sin(v) * v))(x),
        lambda x: wf.grad(lambda v: wf.sum(v[0, 1:] ** 2))(x),
        lambda x: wf.vmap(lambda row: row / row.sum())(x),
        lambda x: wf.jvp(lambda v: v * v, (x,), (x,))[1],
        lambda x: wf.zeros_like(x) + wf.arange(3, dtype="float32", device=x.device),
        lambda x: x.astype("int32"),
        lambda x: x.astype("bfloat16") + 1,
    ],
    ids=lambda f: "",
)
def test_the_same_code_gives_the_same_values_there(x, function):
    there, here = function(x), function(x.to_device("cpu"))
    assert there.device.name == "mock:0"
    assert there.dtype == here.dtype
    np.testing.assert_allclose(
        there.numpy().astype("f8"), here.numpy().astype("f8"), rtol=1e-6, atol=1e-6
    )


def test_calls_are_recorded_there_too_and_run_at_the_read():
    x = wf.tensor(np.ones((200, 200), np.float32), device="mock")
    client = registry.client("mock")
    y = wf.sum(wf.sin(x))
    before = len(client.executed)
    assert not y.is_realized
    y.item()
    assert client.executed[before:] == ["sin", "reduce_sum"]


def test_realize_waits_for_the_device(x):
    before = registry.client("mock").synchronized
    wf.realize(x + 1)
    assert registry.client("mock").synchronized == before + 1


def test_data_moves_only_when_asked_and_comes_back_the_same(x):
    home = x.to_device("cpu")
    assert home.device.name == "cpu:0" and isinstance(home.data(), np.ndarray)
    assert home.to_device("mock:1").device.name == "mock:1"
    np.testing.assert_array_equal(home.numpy(), x.numpy())
    assert "device=mock:0" in repr(x)


def test_mixing_its_tensors_with_others_raises(x):
    for other in (wf.ones(3), wf.ones(3, device="mock:1")):
        for mix in (lambda a, b: a + b, lambda a, b: a @ b, lambda a, b: wf.where(a > 0, a, b)):
            with pytest.raises(DeviceMismatchError, match="hint"):
                mix(x, other)


def test_a_dtype_it_lacks_is_refused_at_the_call(x):
    with pytest.raises(UnsupportedDTypeError, match="float64"):
        wf.zeros(3, dtype="float64", device="mock")
    with pytest.raises(UnsupportedDTypeError, match="cast: backend mock has no complex64"):
        x.astype("complex64")
    large = wf.tensor(np.ones((200, 200), np.float32), device="mock")
    with pytest.raises(UnsupportedDTypeError):
        (large + 1).astype("float64")


def test_an_op_it_lacks_is_refused_at_the_call(x):
    with pytest.raises(UnsupportedError, match="sort: backend mock"):
        wf.sort(x)


def test_its_client_has_every_function_bound_to_the_device(x):
    client = wf.client("mock")
    assert client.add(x, x).tolist() == (2 * x).tolist()
    assert client.zeros((2,)).device.name == "mock:0"
    with pytest.raises(DeviceMismatchError):
        client.add(x, wf.ones(3))


def test_memory_that_cannot_be_shared_says_so(x):
    with pytest.raises(InteropError):
        np.from_dlpack(x)


def test_a_device_that_does_not_exist_is_named():
    with pytest.raises(DeviceError, match=r"mock:2.*mock:0, mock:1"):
        wf.zeros(3, device="mock:2")


def test_the_report_lists_its_memory_and_its_allocator(x):
    report = wf.memory_report()
    assert any(a.device == "mock:0" and a.nbytes == 24 for a in report.allocations)
    assert "mock" in report.allocators


def test_an_entry_point_that_cannot_be_loaded_is_a_backend_error(tmp_path, monkeypatch):
    info = tmp_path / "weft_broken-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: weft-broken\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(
        "[weft.backends]\nabsent = no_such_module:Thing\nwrong = builtins:object\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for kind in ("absent", "wrong"):
        with pytest.raises(BackendError, match=f"backend '{kind}'"):
            wf.zeros(3, device=kind)


def every_example():
    return [
        pytest.param(kind, op, example, id=f"{kind}-{op}-{number}")
        for kind in ("cpu", "mock")
        for op in OPS.values()
        for number, example in enumerate(calls(op))
    ]


@pytest.mark.promise("S4.41")
@pytest.mark.parametrize(("kind", "op", "example"), every_example())
def test_every_op_runs_on_every_backend_or_is_refused_by_name(kind, op, example):
    arrays = operands(op, example, np.random.default_rng(0))
    if kind == "mock":  # it has no 64-bit floats
        arrays = [a.astype(np.float32) if a.dtype == np.float64 else a for a in arrays]
    params = {
        k: registry.client(kind).device if k == "device" else v for k, v in example.params.items()
    }
    try:
        tensors = tuple(wf.asarray(a, device=kind) for a in arrays)
        result = call(op, tensors, params)
        for each in result if isinstance(result, tuple) else (result,):
            assert each.device.kind == kind
            assert each.numpy().shape == each.shape
    except (UnsupportedError, UnsupportedDTypeError) as error:
        assert kind != "cpu"
        assert "mock" in str(error)
        assert op.name in str(error) or "to_device" in str(error)


@pytest.mark.promise("S4.22")
@pytest.mark.parametrize("name", sorted(OPS))
def test_a_primitive_has_a_kernel_on_every_backend_and_they_agree(name):
    op = OPS[name]
    rng = np.random.default_rng(5)
    for example in calls(op):
        arrays = operands(op, example, rng)
        if not arrays:
            continue
        try:
            moved = [wf.asarray(a, device="mock") for a in arrays]
            found = call(op, tuple(moved), example.params)
        except (UnsupportedError, UnsupportedDTypeError):
            continue  # the mock says which kernels it lacks: see the completeness test
        here = call(op, tuple(map(wf.asarray, arrays)), example.params)
        for a, b in zip(
            *((r if isinstance(r, tuple) else (r,)) for r in (found, here)), strict=True
        ):
            np.testing.assert_array_equal(a.host(), b.host())


COMPOSITES = {
    "softmax": lambda x: wf.softmax(x, axis=-1),
    "layer_norm": lambda x: wf.layer_norm(x, (3,)),
    "logsumexp": lambda x: wf.logsumexp(x, axis=0),
    "unfold": lambda x: wf.sliding_window_view(x, 2, axis=1),
    "gelu": lambda x: wf.gelu(x),
}


@pytest.mark.promise("S4.23")
@pytest.mark.parametrize("name", COMPOSITES)
def test_a_composite_is_one_algorithm_over_primitives(name, x):
    trace = wf.trace(COMPOSITES[name], x)
    assert name not in OPS
    assert trace.nodes and all(node.op in OPS.values() for node in trace.nodes)


@pytest.mark.promise("S4.24")
@pytest.mark.parametrize("name", COMPOSITES)
def test_the_same_algorithm_runs_on_every_backend(name, x):
    there = wf.trace(COMPOSITES[name], x)
    here = wf.trace(COMPOSITES[name], x.to_device("cpu"))
    assert [n.op for n in there.nodes] == [n.op for n in here.nodes]


@pytest.mark.promise("S4.25")
@pytest.mark.parametrize("name", COMPOSITES)
def test_and_gives_the_same_results_there(name, x):
    there = COMPOSITES[name](x).host()  # by NumPy: functions are rounded in another way
    here = COMPOSITES[name](x.to_device("cpu")).host()
    np.testing.assert_allclose(there, here, rtol=1e-6, atol=1e-7)
