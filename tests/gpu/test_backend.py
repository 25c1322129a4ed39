"""What a GPU's backend promises: devices, memory, messages, and calls that run on the host."""

from __future__ import annotations

import gc
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import weft as wf
from weft.core.graph import GRAPH
from weft.errors import (
    DeviceError,
    DeviceMismatchError,
    DonatedTensorError,
    IndexingError,
    OutOfMemoryError,
)
from weft.runtime.gpu.array import GpuArray
from weft.runtime.interface import Runtime, RuntimeClient


@pytest.fixture
def x(device):
    return wf.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], device=device)


def test_it_is_a_backend_like_any_other(x, device):
    assert device in wf.available_backends()
    assert isinstance(wf.client(device), RuntimeClient)
    assert isinstance(wf.runtime.runtime(device), Runtime)
    assert x.device.name == f"{device}:0" and isinstance(x.data(), GpuArray)
    assert f"device={device}:0" in repr(x)
    assert wf.client(device).add(x, x).tolist() == [[2.0, 4.0, 6.0], [8.0, 10.0, 12.0]]


def test_data_moves_only_when_asked(x, device):
    home = x.to_device("cpu")
    assert isinstance(home.data(), np.ndarray) and home.tolist() == x.tolist()
    for mix in (lambda: x + home, lambda: x @ home.T, lambda: wf.where(x > 0, x, home)):
        with pytest.raises(DeviceMismatchError, match="hint"):
            mix()


def test_a_device_that_does_not_exist_is_named(device):
    with pytest.raises(DeviceError, match=rf"{device}:99.*{device}:0"):
        wf.zeros(3, device=f"{device}:99")


def test_memory_goes_back_when_the_last_tensor_drops(gpu, device):
    gc.collect()
    before = gpu.stats().live_bytes
    x = wf.tensor(np.ones((100, 100), np.float32), device=device)
    y = x.reshape(10_000)
    assert gpu.stats().live_bytes == before + 40_000  # both lie there
    del x
    assert gpu.stats().live_bytes == before + 40_000
    assert y.sum().item() == 10_000.0
    del y
    gc.collect()
    assert gpu.stats().live_bytes <= before + 64  # numbers that stay


def test_a_run_leaves_nothing_behind_but_its_results(gpu, device):
    step = wf.compile(lambda x: (wf.softmax(x @ x.T) @ x).sum(axis=0))
    x = wf.tensor(np.ones((100, 50), np.float32), device=device)
    kept = [step(x)]
    gc.collect()
    before = gpu.stats().live_bytes
    for _ in range(5):
        kept.append(step(x))
    assert gpu.stats().live_bytes - before == 5 * 200


def test_graphs_are_fused_and_run_when_a_value_is_read(gpu, device):
    x = wf.tensor(np.ones((300, 300), np.float32), device=device)
    for _ in range(3):
        y = wf.sum(wf.sin(x) * 2 + 1)
        assert not y.is_realized
        y.item()
    compilations = GRAPH.counters.compilations
    wf.sum(wf.sin(x) * 2 + 1).item()
    assert GRAPH.counters.compilations == compilations
    compiled = wf.compile(lambda x: wf.softmax(wf.sin(x) * 2 + 1))
    compiled(x)
    assert compiled.stats.kernels == 1
    assert compiled.explain(x).count("kernel ") == 1 and "call" not in compiled.explain(x)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_position_out_of_range_raises_as_on_the_cpu(x, compiled, dtype, device):
    function = lambda x, i: wf.take(x * 2, i, axis=0) + 1  # noqa: E731
    function = wf.compile(function) if compiled else function
    good, bad = (wf.tensor(i, dtype=dtype, device=device) for i in ([1, 0], [0, 2]))
    with pytest.raises(IndexingError) as there:
        function(x, bad).host()
    with pytest.raises(IndexingError) as here:
        function(x.to_device("cpu"), bad.to_device("cpu")).host()
    assert str(there.value).split("\n")[0] == str(here.value).split("\n")[0]
    assert function(x, good).tolist() == [[9.0, 11.0, 13.0], [3.0, 5.0, 7.0]]


def test_what_has_no_kernel_runs_on_the_host_and_a_profile_says_so(x):
    ordered = wf.compile(lambda x: wf.linalg.qr(x * 2)[1] + 1)
    ordered(x)
    assert "call qr on the host: no kernel for a GPU" in ordered.explain(x)
    with wf.profile() as profile:
        ordered(x)
    kinds = {(row.kind, row.name) for row in profile.rows}
    assert ("host", "qr") in kinds
    assert any(kind == "kernel" for kind, _ in kinds)
    assert "qr" in str(profile)


def test_numbers_are_arguments_and_draws_differ(x, device):
    compiled = wf.compile(lambda x, s: x * s)
    assert compiled(x, 2.0).tolist() == [[2.0, 4.0, 6.0], [8.0, 10.0, 12.0]]
    assert compiled(x, 3.0)[0, 0].item() == 3.0
    assert compiled.stats.traces == 1
    noisy = wf.compile(lambda x: x + wf.normal(x.shape))
    with wf.default_device(device):
        assert noisy(x).tolist() != noisy(x).tolist()


def test_donated_tensors_are_gone(x):
    step = wf.compile(lambda x: x * 2, donate_argnums=0)
    assert step(x).tolist() == [[2.0, 4.0, 6.0], [8.0, 10.0, 12.0]]
    with pytest.raises(DonatedTensorError):
        x.host()


def test_numbers_that_a_compiled_function_gives_are_there_too(x, device):
    with wf.default_device(device):
        _, number = wf.compile(lambda x: (x * 2, 2.5))(x)
    assert number.item() == 2.5 and isinstance(number.data(), GpuArray)


def test_callbacks_see_host_arrays(x, capsys, device):
    with wf.default_device(device):
        wf.compile(lambda x: wf.print("sum {}", x.sum()) or x * 2)(x).host()
    assert "21" in capsys.readouterr().out


def test_tensors_are_pickled_and_copied(x):
    assert pickle.loads(pickle.dumps(x)).tolist() == x.tolist()
    y = x.copy()
    y[0, 0] = 9.0
    assert x[0, 0].item() == 1.0 and y[0, 0].item() == 9.0


def test_modules_and_optimisers_work_there(device):
    with wf.default_device(device):
        model = wf.nn.Linear(3, 2, key=wf.random.key(0))
        optimizer = wf.optim.adam(1e-2)
        x, y = wf.ones((8, 3)), wf.zeros((8, 2))
        state = optimizer.init(model)

        @wf.compile
        def step(model, state):
            value, slopes = wf.value_and_grad(lambda m: wf.mean((m(x) - y) ** 2))(model)
            changes, state = optimizer.update(slopes, state, model)
            return value, wf.optim.apply(model, changes), state

        losses = []
        for _ in range(20):
            value, model, state = step(model, state)
            losses.append(value.item())
    assert losses[-1] < losses[0] and model.weight.device.name == f"{device}:0"


def test_too_much_memory_is_refused_and_the_device_stays_usable(x, device):
    with pytest.raises(OutOfMemoryError, match=device):
        (wf.zeros((1 << 21, 1), device=device) + wf.zeros((1, 1 << 17), device=device)).host()
    assert (x + 1)[0, 0].item() == 2.0


def test_a_program_may_be_called_by_a_callback_inside_of_it(x, device):
    depth = []

    def again(value):
        if not depth:
            depth.append(1)
            assert step(wf.tensor(10 * np.ones((2, 3), np.float32), device=device)).sum() == 240.0
        return value

    @wf.compile
    def step(x):
        y = x * 2
        z = wf.callback(again, ((2, 3), "float32"), y)
        return y + z

    assert step(x).tolist() == [[4.0, 8.0, 12.0], [16.0, 20.0, 24.0]]


def test_a_report_opens_no_gpu_that_nobody_uses(x, monkeypatch, device):
    runtime = wf.runtime.runtime(device)
    assert 0 in runtime.allocator.gpus
    monkeypatch.setattr(runtime.gpus, "gpu", None)  # nothing can be opened now
    assert wf.memory_report().allocators[device].live_bytes > 0


def test_threads_share_the_device(device):
    step = wf.compile(lambda x: wf.sum(x * 2 + 1, axis=0))
    arrays = [np.full((20, 30), k, np.float32) for k in range(24)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda a: step(wf.tensor(a, device=device)).host(), arrays))
    for number, result in enumerate(found):
        assert np.array_equal(result, np.full(30, 20 * (2 * number + 1), np.float32))
