"""What the WebGPU backend promises: devices, memory, order, messages, and what runs on the host."""

from __future__ import annotations

import gc
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import weft as wf
from weft.errors import (
    DeviceError,
    DeviceMismatchError,
    IndexingError,
    InteropError,
    OutOfMemoryError,
)
from weft.runtime.gpu.array import GpuArray
from weft.runtime.interface import Runtime, RuntimeClient
from weft.runtime.webgpu import driver


@pytest.fixture
def x():
    return wf.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], device="webgpu")


def steps(compiled, *args) -> list[str]:
    """The kinds of steps of a compiled function: `kernel`, or the name of a call."""
    words = [line.split() for line in compiled.explain(*args).split("\n")]
    kinds = [w for w in words if w and w[0] in ("kernel", "call")]
    return [w[0] if w[0] == "kernel" else w[1] for w in kinds]


def test_it_is_a_backend_like_any_other(x):
    assert "webgpu" in wf.available_backends()
    assert isinstance(wf.client("webgpu"), RuntimeClient)
    assert isinstance(wf.runtime.runtime("webgpu"), Runtime)
    assert x.device.name == "webgpu:0" and isinstance(x.data(), GpuArray)
    assert "device=webgpu:0" in repr(x)
    assert wf.client("webgpu").add(x, x).tolist() == [[2.0, 4.0, 6.0], [8.0, 10.0, 12.0]]


def test_data_moves_only_when_asked(x):
    home = x.to_device("cpu")
    assert isinstance(home.data(), np.ndarray) and home.tolist() == x.tolist()
    with pytest.raises(DeviceMismatchError, match="hint"):
        x + home


def test_a_device_that_does_not_exist_is_named():
    with pytest.raises(DeviceError, match=r"webgpu:1.*webgpu:0"):
        wf.zeros(3, device="webgpu:1")
    with pytest.raises(DeviceError, match="there is one"):
        driver.gpu(1)


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "bfloat16", "int64", "complex64"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 7), (0, 2)])
def test_arrays_of_every_dtype_lie_there_and_come_back(dtype, shape):
    numbers = np.random.default_rng(0).integers(0, 2, shape)
    x = wf.tensor(numbers, dtype=dtype)
    y = x.to_device("webgpu")
    assert y.dtype == x.dtype and np.array_equal(y.host(), x.host())
    assert np.array_equal((y == y).host(), np.ones(shape, bool))


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float32", "int64"])
def test_rows_that_fill_no_words_are_cut_and_joined(dtype):
    x = np.random.default_rng(1).integers(0, 2, (5, 3)).astype(dtype)
    total, rows = wf.scan(lambda c, row: (c | (row > 0), row), wf.zeros(3, "bool"), wf.tensor(x))
    with wf.default_device("webgpu"):
        there = wf.tensor(x)
        found = wf.scan(lambda c, row: (c | (row > 0), row), wf.zeros(3, "bool"), there)
    assert found[0].tolist() == total.tolist() and found[1].tolist() == rows.tolist() == x.tolist()


def test_raw_bytes_are_copied_whatever_their_number():
    runtime, device = wf.runtime.runtime("webgpu"), wf.client("webgpu").device
    a, b = runtime.allocate(11, device), runtime.allocate(11, device)
    runtime.copy_to_device(bytes(range(11)), a, device)
    runtime.copy_to_device(b"xyz", a, device)
    runtime.copy_within_device(a, b, 11, device)
    runtime.copy_within_device(a, b, 2, device)
    found = bytearray(11)
    runtime.copy_from_device(b, found, device)
    assert bytes(found) == b"xyz" + bytes(range(3, 11))


def test_memory_goes_back_when_the_last_tensor_drops(gpu):
    gc.collect()
    before = gpu.stats().live_bytes
    x = wf.tensor(np.ones((100, 100), np.float32), device="webgpu")
    y = x.reshape(10_000)
    assert gpu.stats().live_bytes == before + 40_000  # both lie there
    del x
    assert gpu.stats().live_bytes == before + 40_000
    assert y.sum().item() == 10_000.0
    del y
    gc.collect()
    assert gpu.stats().live_bytes <= before + 64  # numbers that stay


def test_a_run_leaves_nothing_behind_but_its_results(gpu):
    step = wf.compile(lambda x: (wf.softmax(x @ x.T) @ x).sum(axis=0))
    x = wf.tensor(np.ones((30, 50), np.float32), device="webgpu")
    kept = [step(x)]
    gc.collect()
    before = gpu.stats().live_bytes
    for _ in range(5):
        kept.append(step(x))
    assert gpu.stats().live_bytes - before == 5 * 200


def test_memory_that_is_used_again_is_written_after_it_was_read(gpu):
    results = []
    for number in range(300):  # nothing is read meanwhile: shaders wait in one submission
        x = wf.tensor(np.full((64, 64), number, np.float32), device="webgpu")
        results.append(wf.client("webgpu").add(x, x))
        del x
    assert [int(r[0, 0].item()) for r in results] == [2 * k for k in range(300)]


def test_buffers_are_given_back_to_the_system_and_kernels_still_find_theirs(gpu):
    double = wf.compile(lambda x: x * 2 + 1)
    for number in range(3):
        x = wf.tensor(np.full(1000, number, np.float32), device="webgpu")
        assert double(x)[999].item() == 2 * number + 1
        del x
        gc.collect()
        gpu._buffers.trim()
    assert gpu._buffers.kept == 0


def test_graphs_are_fused():
    x = wf.tensor(np.ones((30, 30), np.float32), device="webgpu")
    compiled = wf.compile(lambda x: wf.softmax(wf.sin(x) * 2 + 1))
    compiled(x)
    assert compiled.stats.kernels == 1 and steps(compiled, x) == ["kernel"]
    large = wf.tensor(np.ones((300, 300), np.float32), device="webgpu")
    y = wf.sum(large * 2 + 1)
    assert not y.is_realized and y.item() == 270_000.0


def test_only_what_shaders_cannot_compute_runs_on_the_host(x):
    def function(x):
        wide = wf.astype(x, "float64") * 2
        return wf.tanh(x * 2) + wf.astype(wide + 1, "float32") * x

    compiled = wf.compile(function)
    home = x.to_device("cpu")
    np.testing.assert_allclose(compiled(x).host(), function(home).host(), rtol=1e-6)
    assert set(steps(compiled, x)) == {"kernel", "cast", "multiply", "add"}


def test_kernels_of_too_many_buffers_are_cut_and_stay_on_the_device(gpu, monkeypatch):
    monkeypatch.setattr(gpu, "most_buffers", 4)
    xs = [wf.tensor(np.full(10, k, np.float32), device="webgpu") for k in range(8)]
    compiled = wf.compile(lambda *xs: sum(xs[1:], xs[0]))
    assert compiled(*xs).tolist() == [28.0] * 10
    with wf.profile() as profile:
        compiled(*xs).host()
    assert {row.kind for row in profile.rows if row.name == "add"} == {"kernel", "run"}


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_position_out_of_range_raises_as_on_the_cpu(x, compiled, dtype):
    function = lambda x, i: wf.take(x * 2, i, axis=0) + 1  # noqa: E731
    function = wf.compile(function) if compiled else function
    good, bad = (wf.tensor(i, dtype=dtype, device="webgpu") for i in ([1, 0], [0, 2]))
    with pytest.raises(IndexingError) as there:
        function(x, bad).host()
    with pytest.raises(IndexingError) as here:
        function(x.to_device("cpu"), bad.to_device("cpu")).host()
    assert str(there.value).split("\n")[0] == str(here.value).split("\n")[0]
    assert function(x, good).tolist() == [[9.0, 11.0, 13.0], [3.0, 5.0, 7.0]]


HUGE = 1 << 40


@pytest.mark.parametrize(
    ("function", "places", "on_device"),
    [
        (lambda x, i: wf.take(x, i, axis=0), [1, 0, -1], True),
        (lambda x, i: x[i, i + 1], [1, 0, -2], True),
        (
            lambda x, i: wf.take(x, i, axis=0, mode="clip"),
            [HUGE, -HUGE, HUGE + 1, 1 << 31, 0],
            True,
        ),
        (
            lambda x, i: wf.take(x, i - 5, axis=0, mode="clip"),
            [HUGE, -HUGE, 6, (1 << 31) + 5],
            True,
        ),
        (lambda x, i: wf.take(x, i, axis=0, mode="wrap"), [HUGE + 1, 3, -HUGE], False),
        (lambda x, i: wf.take(x, i * 2, axis=0, mode="clip"), [1 << 31, 1 << 63 - 1, 0], False),
        (lambda x, i: wf.take(x, i + i[::-1], axis=0), [HUGE, 0, -HUGE], False),
        (wf.grad(lambda x, i: wf.sum(wf.take(x, i, axis=0) ** 2)), [1, 0, 1, -1, 1], True),
        (lambda x, i: wf.put_along_axis(x, i[:, None], 9.0, axis=1), [1, -1], True),
        (lambda x, i: i == 3, [3, HUGE + 3, (1 << 32) + 3, 2], True),
        (lambda x, i: wf.astype(i, "float32"), [HUGE, 3], False),
        (lambda x, i: i + 1, [HUGE, 3, (1 << 31) - 1], False),
        (lambda x, i: wf.arange(0, HUGE, HUGE >> 3, device=i.device), [0], False),
        (lambda x, i: wf.arange(5, 500, 7, device=i.device), [0], True),
        (lambda x, i: wf.sum(wf.arange(100_000, device=i.device)), [0], False),
        (lambda x, i: wf.argmax(x, axis=1), [0], True),
        (lambda x, i: wf.sum(wf.astype(x, "int32") << 28), [0], False),
    ],
)
def test_shaders_follow_positions_and_compute_no_other_int64(x, function, places, on_device):
    i = wf.tensor(np.array(places, np.int64), device="webgpu")
    compiled = wf.compile(function)
    home = function(x.to_device("cpu"), i.to_device("cpu")).host()
    assert np.array_equal(compiled(x, i).host(), home)
    assert np.array_equal(function(x, i).host(), home)
    assert (set(steps(compiled, x, i)) == {"kernel"}) == on_device


def test_what_has_no_kernel_runs_on_the_host_and_a_profile_says_so(x):
    ordered = wf.compile(lambda x: wf.linalg.qr(x * 2)[1] + 1)
    ordered(x)
    with wf.profile() as profile:
        ordered(x)
    kinds = {(row.kind, row.name) for row in profile.rows}
    assert ("host", "qr") in kinds or ("op", "qr") in kinds
    assert any(kind == "kernel" for kind, _ in kinds)


def test_threads_share_the_device():
    step = wf.compile(lambda x: wf.sum(x * 2 + 1, axis=0))
    arrays = [np.full((20, 30), k, np.float32) for k in range(24)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda a: step(wf.tensor(a, device="webgpu")).host(), arrays))
    for number, result in enumerate(found):
        assert np.array_equal(result, np.full(30, 20 * (2 * number + 1), np.float32))


def test_callbacks_see_host_arrays(x, capsys):
    with wf.default_device("webgpu"):
        wf.compile(lambda x: wf.print("sum {}", x.sum()) or x * 2)(x).host()
    assert "21" in capsys.readouterr().out


def test_memory_that_cannot_be_shared_says_so(x):
    with pytest.raises(InteropError, match="to_device"):
        np.from_dlpack(x)


def test_tensors_are_pickled_and_copied(x):
    assert pickle.loads(pickle.dumps(x)).tolist() == x.tolist()
    y = x.copy()
    y[0, 0] = 9.0
    assert x[0, 0].item() == 1.0 and y[0, 0].item() == 9.0


def test_modules_and_optimisers_work_there():
    with wf.default_device("webgpu"):
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
        for _ in range(10):
            value, model, state = step(model, state)
            losses.append(value.item())
    assert losses[-1] < losses[0] and model.weight.device.name == "webgpu:0"


def test_too_much_memory_is_refused_and_the_device_stays_usable(x):
    with pytest.raises(OutOfMemoryError, match="webgpu"):
        (wf.zeros((1 << 21, 1), device="webgpu") + wf.zeros((1, 1 << 17), device="webgpu")).host()
    assert (x + 1)[0, 0].item() == 2.0
