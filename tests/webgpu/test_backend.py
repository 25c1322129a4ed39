"""What only the WebGPU backend has: words, submissions, few buffers, and no int64 but positions."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import weft as wf
from weft.errors import DeviceError, InteropError
from weft.runtime.webgpu import driver


@pytest.fixture
def x():
    return wf.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], device="webgpu")


def steps(compiled, *args) -> list[str]:
    """The kinds of steps of a compiled function: `kernel`, or the name of a call."""
    words = [line.split() for line in compiled.explain(*args).split("\n")]
    kinds = [w for w in words if w and w[0] in ("kernel", "call")]
    return [w[0] if w[0] == "kernel" else w[1] for w in kinds]


def test_there_is_one_device():
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


def test_memory_that_cannot_be_shared_says_so(x):
    with pytest.raises(InteropError, match="to_device"):
        np.from_dlpack(x)
