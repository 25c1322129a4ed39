"""Protocols, the CPU backend's raw memory, clients bound to devices, defaults."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

import weft as wf
from weft.config import settings
from weft.core.common.context import current_device
from weft.core.common.device import CPU, as_device
from weft.errors import (
    ArgumentError,
    BackendError,
    DeviceError,
    DeviceMismatchError,
    DTypeError,
    OutOfMemoryError,
)
from weft.runtime import (
    Allocator,
    CpuRuntime,
    DefaultRuntime,
    Device,
    ParallelismConfig,
    Runtime,
    RuntimeClient,
    client,
    registry,
)
from weft.runtime.cpu.client import quietly
from weft.runtime.cuda import driver
from weft.runtime.registry import runtime
from weft.runtime.webgpu import driver as webgpu


@pytest.mark.promise("S4.3")
def test_the_cpu_backend_keeps_the_protocols():
    backend = runtime("cpu")
    assert isinstance(backend, CpuRuntime)
    assert isinstance(backend, Runtime)
    assert isinstance(backend.allocator, Allocator)
    assert isinstance(backend.default_client(CPU), RuntimeClient)
    assert not isinstance(object(), Runtime)
    assert not isinstance(backend, RuntimeClient)


@pytest.mark.promise("S4.4")
def test_a_device_has_an_id_and_a_name():
    backend = runtime("cpu")
    assert isinstance(CPU, Device)
    assert backend.name == "cpu"
    assert backend.default_device() is CPU
    assert [d.name for d in backend.devices()] == [f"cpu:{i}" for i in range(8)]
    assert [d.id for d in backend.devices()] == list(range(8))


@pytest.mark.promise("S4.5")
def test_raw_memory_is_allocated_filled_copied_read_and_given_back():
    backend = CpuRuntime()
    a, b = backend.allocate(100, CPU), backend.allocate(100, CPU)
    backend.copy_to_device(bytes(range(100)), a, CPU)
    backend.copy_within_device(a, b, 50, CPU)
    target = bytearray(50)
    backend.copy_from_device(b, target, CPU)
    assert bytes(target) == bytes(range(50))
    values = np.arange(10.0)
    backend.copy_to_device(values, a, CPU)
    back = np.empty(10)
    backend.copy_from_device(a, back, CPU)
    np.testing.assert_array_equal(back, values)
    for handle in (a, b):
        backend.deallocate(handle, CPU)
    assert backend.allocator.stats().live_blocks == 0


def test_raw_copies_stay_inside_their_memory():
    backend = CpuRuntime()
    small = backend.allocate(8, CPU)
    with pytest.raises(ArgumentError, match="9 bytes do not fit"):
        backend.copy_to_device(bytes(9), small, CPU)
    with pytest.raises(ArgumentError):
        backend.copy_from_device(small, bytearray(9), CPU)
    with pytest.raises(ArgumentError):
        backend.copy_within_device(small, small, -1, CPU)
    backend.deallocate(small, CPU)
    with pytest.raises(DeviceError, match="given back"):
        backend.copy_to_device(b"12345678", small, CPU)
    with pytest.raises(DeviceError, match="already released"):
        backend.deallocate(small, CPU)


@pytest.mark.promise("S4.6")
def test_the_default_runtime_is_the_cpus():
    assert DefaultRuntime is CpuRuntime
    assert client().device is CPU
    client().synchronize()


@pytest.mark.promise("S4.7")
def test_a_client_has_every_function():
    c = wf.client("cpu")
    a, b = wf.ones((2, 3)), wf.ones((2, 3))
    assert c.add(a, b).tolist() == [[2.0] * 3] * 2
    assert c.sum(a, [0], False).tolist() == [2.0] * 3
    assert c.sum(a, [0], True).shape == (1, 3)
    assert c.zeros((2,)).device is c.device
    assert c.add.__name__ == "add" and c.add.__doc__
    with pytest.raises(AttributeError, match="nonsense"):
        c.nonsense()


@pytest.mark.promise("S4.8")
@pytest.mark.parametrize(
    "mix",
    [
        lambda a, b: a + b,
        lambda a, b: a @ b.T,
        lambda a, b: wf.where(a > 0, a, b),
        lambda a, b: wf.concat([a, b]),
        lambda a, b: wf.stack([a, b]),
        lambda a, b: wf.maximum(a, b),
        lambda a, b: a == b,
        lambda a, b: wf.client("cpu:1").add(a, a),
        lambda a, b: a.at[0].set(b[0]),
        lambda a, b: wf.grad(lambda v: wf.sum(v * b))(a),
        lambda a, b: wf.vmap(lambda u, v: u * v)(a, b),
        lambda a, b: wf.jvp(lambda v: v * b, (a,), (a,)),
    ],
)
def test_mixing_devices_raises_and_never_copies(mix):
    a, b = wf.ones((2, 3), device="cpu:0"), wf.ones((2, 3), device="cpu:1")
    with pytest.raises(DeviceMismatchError) as caught:
        mix(a, b)
    assert "cpu:0" in str(caught.value) and "cpu:1" in str(caught.value)
    assert "to_device" in str(caught.value)
    large = wf.tensor(np.ones((300, 300), np.float32))
    with pytest.raises(DeviceMismatchError):
        (large * 2) + wf.ones((300, 300), device="cpu:2")


@pytest.mark.promise("S4.1")
def test_the_same_code_runs_on_each_logical_device():
    for number in range(8):
        x = wf.arange(6, dtype="float32", device=f"cpu:{number}").reshape(2, 3)
        y = wf.grad(lambda v: wf.sum(v @ v.T))(x)
        assert y.device.name == f"cpu:{number}"
        np.testing.assert_array_equal(
            y.to_device("cpu").numpy(), wf.ones((2, 2)).numpy() @ x.numpy() * 2
        )


def test_moving_between_logical_devices_copies():
    x = wf.ones(3)
    y = x.to_device("cpu:5")
    assert y.device.name == "cpu:5" and y.storage != x.storage
    assert x.to_device("cpu:0") is x


@pytest.mark.promise("S4.2")
@pytest.mark.parametrize("kind", ["webgpu", "quantum:3"])
def test_an_absent_backend_says_what_to_install(kind, monkeypatch):
    if kind == "webgpu":
        monkeypatch.setitem(sys.modules, "wgpu", None)  # it may be installed here
        monkeypatch.setattr(webgpu, "gpu", lambda number=0: webgpu.WebGpu())
        monkeypatch.delitem(registry._runtimes, kind, raising=False)
        monkeypatch.delitem(registry._clients, as_device(kind), raising=False)
    with pytest.raises(BackendError, match="not installed") as caught:
        wf.zeros(3, device=kind)
    assert f"weft[{kind.split(':')[0]}]" in str(caught.value)
    with pytest.raises(ImportError):
        wf.ones(3).to_device(kind)
    assert wf.zeros(3).tolist() == [0.0] * 3


def test_a_package_without_an_adapter_is_no_device(monkeypatch):
    def none_offered(number=0):
        raise BackendError("webgpu: no adapter")

    monkeypatch.setattr(webgpu, "is_available", lambda: True)
    monkeypatch.setattr(webgpu, "gpu", none_offered)
    monkeypatch.delitem(registry._runtimes, "webgpu", raising=False)
    assert "webgpu" in wf.available_backends()
    kinds = {device.kind for device in wf.__array_namespace_info__().devices()}
    assert "cpu" in kinds and "webgpu" not in kinds


@pytest.mark.skipif(driver.is_available(), reason="a GPU is here")
def test_a_gpu_needs_its_driver_and_nothing_else():
    for _ in range(2):
        with pytest.raises(BackendError, match=r"cuda: (.|\n)*driver"):
            wf.zeros(3, device="cuda")
    assert "cuda" not in wf.available_backends()


@pytest.mark.parametrize(
    "make",
    [
        lambda d: wf.zeros(3, device=d),
        lambda d: wf.arange(100_000, device=d),
        lambda d: wf.arange(3, device=d),
        lambda d: wf.tensor([1.0], device=d),
        lambda d: wf.asarray(np.ones(3), device=d),
        lambda d: wf.ones(3).to_device(d),
        wf.client,
    ],
)
def test_a_device_number_that_does_not_exist_is_refused_at_the_call(make):
    with pytest.raises(DeviceError, match="cpu:99"):
        make("cpu:99")


@pytest.mark.parametrize(
    "name", ["", "cpu:", "cpu:-1", "cpu:x", "1cpu", "c p u", 3, None, 2.5, "cpu:²"]
)
def test_what_is_no_device_is_refused(name):
    if name == "cpu:":
        assert as_device(name) is CPU
        return
    with pytest.raises(DeviceError):
        as_device(name)


def test_the_default_device_is_used_by_creation_functions():
    with wf.default_device("cpu:2"):
        made = (
            wf.zeros(1),
            wf.tensor([1.0]),
            wf.arange(3),
            wf.asarray(np.ones(2)),
            wf.full((2,), 7),
        )
        assert {x.device.name for x in made} == {"cpu:2"}
        with wf.default_device("cpu:3"):
            assert wf.zeros(1).device.name == "cpu:3"
        assert current_device().name == "cpu:2"
    assert wf.zeros(1).device is CPU


def test_a_default_can_be_set_for_good_and_is_restored_by_the_block_it_opens():
    setting = wf.default_dtype("float64")
    try:
        assert wf.zeros(1).dtype == np.float64
        assert wf.tensor([1.5]).dtype == np.float64
    finally:
        with setting:
            pass
    assert wf.zeros(1).dtype == np.float32
    with pytest.raises(DTypeError, match="int32"):
        wf.default_dtype("int32")


def test_defaults_fill_in_what_is_missing():
    assert wf.defaults() == (np.dtype("float32"), CPU)
    assert wf.defaults("int8", "cpu:1") == (np.dtype("int8"), as_device("cpu:1"))
    like = wf.zeros(1, dtype="float16", device="cpu:4")
    with wf.defaults_like(like):
        assert wf.defaults() == (np.dtype("float16"), as_device("cpu:4"))
    with wf.defaults_like(wf.arange(3, device="cpu:4")):
        assert wf.defaults() == (np.dtype("float32"), as_device("cpu:4"))


def test_devices_are_values_that_survive_pickling():
    assert as_device("cpu") is as_device("cpu:0") is CPU
    assert repr(as_device("cpu:1")) == "Device('cpu:1')"


def test_the_number_of_logical_devices_is_a_setting():
    before = settings.logical_devices
    settings.logical_devices = 12
    try:
        assert wf.zeros(1, device="cpu:11").device.name == "cpu:11"
    finally:
        settings.logical_devices = before


def test_parallelism_is_configured_and_checked():
    c = client("cpu:7")
    c.parallelism = ParallelismConfig(threads=4, chunk=1024)
    assert c.parallelism.threads == 4
    for bad in ({"threads": 0}, {"chunk": 0}, {"threads": 1.5}, {"threads": True}):
        with pytest.raises(ArgumentError):
            ParallelismConfig(**bad)


def test_threads_and_chunks_change_no_bit():
    x = wf.tensor(np.random.default_rng(0).normal(size=(300, 300)), device="cpu:6")
    c = client("cpu:6")
    before = c.parallelism
    results = []
    for config in (ParallelismConfig(1), ParallelismConfig(3, 7), ParallelismConfig(2, 1 << 20)):
        c.parallelism = config
        results.append(wf.sum(wf.sin(x) @ x).numpy().tobytes())
    c.parallelism = before
    assert len(set(results)) == 1


def test_floating_point_trouble_warns_nobody():
    x = wf.tensor([0.0, -1.0, np.inf])
    assert np.isnan((x / x).numpy()[0])
    assert np.isnan(wf.sqrt(x).numpy()[1])
    assert np.isinf((wf.tensor(np.full(100_000, 3e38, np.float32)) * 2).numpy()).all()


def test_kernels_may_be_interrupted_by_code_that_runs_kernels():
    def kernel():
        return (wf.tensor([1.0, 2.0]) + wf.tensor([1.0, 0.0])).tolist()

    assert quietly()(kernel) == [2.0, 2.0]
    found = []
    thread = threading.Thread(target=lambda: found.append(quietly()(kernel)))
    thread.start()
    thread.join()
    assert found == [[2.0, 2.0]]


def test_a_request_beyond_all_memory_is_an_error_of_ours():
    with pytest.raises(OutOfMemoryError):
        runtime("cpu").allocate(2**60, CPU)
    with pytest.raises(MemoryError):
        runtime("cpu").allocate(-1, CPU)
