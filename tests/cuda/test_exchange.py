"""Memory of a GPU is exchanged with other libraries without a copy, both ways."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import weft as wf
from weft.core.tensor import dlpack
from weft.core.tensor.sharing import is_shared
from weft.errors import DeviceMismatchError, InteropError
from weft.runtime.cuda import driver
from weft.testing.emulated_gpu import EmulatedGpu

LARGE = (100, 300)
DTYPES = ["float32", "float64", "int32", "bool", "complex64", "float16", "bfloat16", "float8_e4m3"]


@pytest.fixture
def emulated(gpu):
    if not isinstance(gpu, EmulatedGpu):
        pytest.skip("looks into memory of an emulated GPU from the host")
    return gpu


class Producer:
    """Another library's array on `cuda:0`: memory of the host, where emulated GPUs work."""

    def __init__(self, array, *, old=False, device=(2, 0)):
        self.array, self.old, self.device = array, old, device
        self.streams = []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, **keywords):
        if self.old and keywords:
            raise TypeError("unexpected keywords")
        self.streams.append(stream)
        capsule = self.array.__dlpack__(**keywords)
        tensor = dlpack._Parcel.of(capsule).tensor
        tensor.device_kind, tensor.device_number = 2, 0
        return capsule


def seen(x, **keywords):
    """What a consumer sees of a tensor, as an array over its memory."""
    parcel = dlpack._Parcel.of(x.__dlpack__(max_version=(1, 0), **keywords))
    assert parcel.device == (2, 0)
    with parcel.placed_on(dlpack.CPU_DEVICE):
        return dlpack._view_of(parcel), parcel.flags


def on_gpu(array):
    return wf.tensor(array, device="cuda")


def packed(shape, dtype="float32"):
    """An array that begins where kernels can read it."""
    raw = np.zeros(int(np.prod(shape)) * np.dtype(dtype).itemsize + 64, np.uint8)
    start = -raw.ctypes.data % 64
    array = raw[start : raw.size - 64 + start].view(dtype).reshape(shape)
    array[...] = np.arange(array.size).reshape(shape)
    return array


# -- export --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_capsule_goes_to_weft_and_back_without_a_copy(dtype):
    x = on_gpu(np.arange(6).reshape(2, 3)).astype(dtype)
    y = wf.from_dlpack(x)
    assert (y.dtype, y.device, y.shape) == (x.dtype, x.device, x.shape)
    assert y.data().address == x.data().address
    assert is_shared(x.data()) and is_shared(y.data())
    assert y.tolist() == x.tolist()


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (5,), (2, 1, 4)])
def test_every_shape_is_exported(shape):
    x = on_gpu(np.ones(shape, np.float32))
    assert x.__dlpack_device__() == (2, 0)
    assert wf.from_dlpack(x).shape == shape
    assert wf.from_dlpack(x, copy=False).tolist() == x.tolist()


def test_what_others_write_is_seen_and_changes_no_earlier_result(emulated):
    base = on_gpu(np.ones(LARGE, np.float32))
    view = base.reshape(-1)
    pending = base + 1
    there, _ = seen(base)
    later = [base * 3, view * 4, wf.grad(lambda v: wf.sum(v * v))(base)]
    there[...] = 50
    assert (pending.numpy() == 2).all()
    for y, value in zip(later, (3, 4, 2), strict=True):
        assert (y.numpy() == value).all()
    assert (base.numpy() == 50).all() and (view + 1).numpy()[0] == 51


def test_readers_of_what_was_not_handed_out_wait_as_ever():
    x = on_gpu(np.ones(LARGE, np.float32))
    assert not (x + 1).is_realized
    seen(x, copy=True)
    np.from_dlpack(x, device="cpu")
    assert not is_shared(x.data()) and not (x + 1).is_realized
    seen(x)
    assert is_shared(x.data()) and (x + 1).is_realized


def test_numbers_that_stay_on_the_device_are_not_handed_out(emulated):
    x, y = (on_gpu(np.array([7.5], np.float32)) for _ in range(2))
    there, _ = seen(x)
    there[...] = 1
    assert x.item() == 1 and y.item() == 7.5
    assert (on_gpu(np.array([1.0], np.float32)) * 7.5).item() == 7.5
    assert on_gpu(np.array([7.5], np.float32)).item() == 7.5


def test_a_number_that_a_compiled_function_gives_is_the_caller_s(emulated):
    with wf.default_device("cuda"):
        constant = wf.compile(lambda x: (x + 2.5, 2.5))
        x = wf.zeros(3)
        there, _ = seen(constant(x)[1])
        there[...] = 50
        assert constant(x)[1].item() == 2.5 and constant(x)[0].tolist() == [2.5] * 3


def test_memory_lives_as_long_as_somebody_holds_it(emulated):
    gc.collect()
    before = emulated.stats().live_bytes
    x = on_gpu(np.ones(LARGE, np.float32))
    there, _ = seen(x)
    x[0, 0] = 5.0  # the tensor has another value, and memory, from now on
    assert (there == 1).all() and x[0, 0].item() == 5
    del x
    gc.collect()
    assert emulated.stats().live_bytes >= before + there.nbytes
    assert (there == 1).all()
    del there
    gc.collect()
    assert emulated.stats().live_bytes <= before + 64
    capsule = on_gpu(np.ones(LARGE, np.float32)).__dlpack__()
    assert emulated.stats().live_bytes >= before + 120_000
    del capsule  # that nobody has taken
    gc.collect()
    assert emulated.stats().live_bytes <= before + 64


@pytest.mark.parametrize(
    ("stream", "at_once", "at_the_end"),
    [(None, 0, 0), (1, 0, 0), (-1, 0, 1), (2, 1, 1), (0xDEAD00, 1, 1)],
)
def test_a_consumer_on_another_stream_sees_finished_work(emulated, stream, at_once, at_the_end):
    x = on_gpu(np.ones(3, np.float32))
    seen(x)
    start = emulated.synchronized
    capsule = x.__dlpack__(stream=stream)
    assert emulated.synchronized == start + at_once
    del capsule  # the memory is not used again before the consumer's work is done
    assert emulated.synchronized == start + at_once + at_the_end


@pytest.mark.parametrize("stream", [0, -2, "1", 1.5])
def test_what_is_no_stream_is_refused(stream):
    with pytest.raises(InteropError, match="hint"):
        on_gpu(np.ones(3)).__dlpack__(stream=stream)


def test_copies_are_made_where_they_are_asked_for(emulated):
    x = on_gpu(np.arange(6, dtype=np.float32))
    there, flags = seen(x, copy=True)
    assert flags & dlpack.IS_COPIED
    there[...] = 50
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    home = np.from_dlpack(x, device="cpu")
    assert home.tolist() == x.tolist() and not is_shared(x.data())
    for refused in (
        {"dl_device": (1, 0), "copy": False},
        {"dl_device": (2, 7)},
        {"dl_device": (8, 0)},
    ):
        with pytest.raises(InteropError):
            x.__dlpack__(**refused)
    assert seen(x, dl_device=(2, 0))[0].ctypes.data == x.data().address


def test_versions_are_those_the_consumer_knows():
    x = on_gpu(np.ones(3, np.float32))
    assert dlpack._Parcel.of(x.__dlpack__()).versioned is None
    assert dlpack._Parcel.of(x.__dlpack__(max_version=(1, 0))).versioned.major == 1


# -- import --------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [wf.from_dlpack, wf.asarray, lambda x: wf.asarray(x, copy=False)])
def test_packed_memory_is_used_where_it_lies(emulated, make):
    array = packed(LARGE)
    producer = Producer(array)
    x = make(producer)
    assert producer.streams == [1]
    assert x.device.name == "cuda:0" and x.data().address == array.ctypes.data
    results = [x + 1, wf.sin(x), x.reshape(-1) * 2, wf.grad(lambda v: wf.sum(v * v))(x)]
    expected = [array + 1, np.sin(array), array.reshape(-1) * 2, array * 2]
    array[...] = 50
    for y, value in zip(results, expected, strict=True):
        np.testing.assert_allclose(y.numpy(), value, 1e-6, 1e-6)
    assert (x + 1).numpy()[0, 0] == 51


def test_what_the_producer_writes_does_not_reach_what_was_handed_through(emulated):
    array = packed(LARGE)
    x = wf.from_dlpack(Producer(array))
    through = wf.compile(lambda x: (x, x + 1, wf.while_loop(lambda v: v[0, 0] > 1, wf.sin, x)))
    constant = wf.compile(lambda y: y + x)
    found = [y for _ in range(4) for y in through(x)] + [wf.checkpoint(lambda v: v)(x)]
    found.append(wf.while_loop(lambda v: v[0, 0] > 1, wf.sin, x))
    assigned = wf.zeros(LARGE, device="cuda")
    assigned[:] = x
    found.append(assigned)
    sums = [constant(wf.zeros(LARGE, device="cuda")) for _ in range(2)]
    before = [y.numpy().copy() for y in found + sums]
    array[...] = 50
    for y, value in zip(found + sums, before, strict=True):
        np.testing.assert_array_equal(y.numpy(), value)
    assert (through(x)[1].numpy() == 51).all()


@pytest.mark.parametrize("copy", [None, True])
@pytest.mark.parametrize("device", [None, "cuda:0", "cpu:0"])
@pytest.mark.parametrize(
    "cut",
    [
        lambda a: a.T,
        lambda a: a.transpose(1, 0, 2),
        lambda a: a[:, 1:5],
        lambda a: a[1:, ::3, 1],
        lambda a: a[::-1, :, ::-2],
        lambda a: np.broadcast_to(a[1, 1], (3, 4)),
        lambda a: a.reshape(-1)[1:],
        lambda a: a.reshape(-1)[1::2],
    ],
)
def test_what_does_not_lie_row_by_row_is_copied_there(emulated, cut, device, copy):
    array = packed((6, 8, 4), "float64")
    part = cut(array)
    x = wf.from_dlpack(Producer(part), device=device, copy=copy)
    expected = part.copy()
    array[...] = -1
    np.testing.assert_array_equal(x.numpy(), expected)
    assert x.shape == part.shape and not is_shared(x.data())
    assert x.device.name == (device or "cuda:0")
    with pytest.raises(InteropError, match="copy=False"):
        wf.from_dlpack(Producer(part), copy=False)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1)])
def test_every_shape_is_imported(emulated, shape):
    array = packed(shape, "int32")
    assert wf.from_dlpack(Producer(array), copy=False).tolist() == array.tolist()


@pytest.mark.parametrize("old", [False, True])
def test_a_copy_is_of_its_own(emulated, old):
    array = packed((2, 3))
    producer = Producer(array, old=old)
    wf.from_dlpack(producer)
    assert producer.streams == [1]
    for x in (
        wf.from_dlpack(Producer(array, old=old), copy=True),
        wf.from_dlpack(Producer(array, old=old), device="cpu"),
        wf.from_dlpack(Producer(array, old=old), device="cuda:1"),
        wf.tensor(Producer(array, old=old)),
        wf.asarray(Producer(array, old=old), dtype="float64"),
    ):
        assert not is_shared(x.data())
        array += 1
        assert (x.numpy() == array - 1).all()
        array -= 1
    for keywords in ({"device": "cpu"}, {"device": "cuda:1"}):
        with pytest.raises(InteropError, match="copy=False"):
            wf.from_dlpack(Producer(array), copy=False, **keywords)
    with pytest.raises(ValueError, match="copy=False"):
        wf.asarray(Producer(array), dtype="float64", copy=False)


def test_borrowed_memory_is_kept_and_let_go(emulated):
    class Owner(np.ndarray):
        pass

    array = packed((2, 3)).view(Owner)
    alive = weakref.ref(array)
    stats = emulated.stats()
    x = wf.from_dlpack(Producer(array))
    del array
    y = x.reshape(6)
    del x
    gc.collect()
    assert alive() is not None and y.tolist() == [0, 1, 2, 3, 4, 5]
    assert emulated.stats().live_bytes <= stats.live_bytes + 64
    waited = emulated.synchronized
    del y
    gc.collect()
    assert alive() is None and not emulated._lent
    assert emulated.synchronized > waited  # the producer may use it again on another stream
    assert emulated.stats().frees == emulated.stats().allocations - len(emulated._held)


def test_read_only_memory_stays_read_only(emulated):
    array = packed((2, 3))
    array.flags.writeable = False
    x = wf.from_dlpack(Producer(array))
    assert x.__cuda_array_interface__["data"] == (array.ctypes.data, True)
    assert seen(x)[1] & dlpack.READ_ONLY
    with pytest.raises(InteropError, match="max_version"):
        x.__dlpack__()


def test_operands_stay_where_they_are(emulated):
    array = packed((2, 3))
    there = on_gpu(np.ones((2, 3), np.float32))
    assert wf.add(there, Producer(array)).tolist() == (array + 1).tolist()
    assert wf.sin(Producer(array)).device.name == "cuda:0"
    with pytest.raises(DeviceMismatchError, match="to_device"):
        wf.add(wf.ones((2, 3)), Producer(array))


def test_other_libraries_are_read_inside_transforms(emulated):
    array = packed((2, 3))
    x = on_gpu(np.ones((2, 3), np.float32))
    slope = wf.grad(lambda v: wf.sum(v * wf.asarray(Producer(array.T)).T))(x)
    np.testing.assert_array_equal(slope.numpy(), array)
    mapped = wf.vmap(lambda row: row + wf.from_dlpack(Producer(array[1])))(x)
    np.testing.assert_array_equal(mapped.numpy(), 1 + array[[1, 1]])


@pytest.mark.parametrize("turned", [False, True])
def test_compiled_functions_keep_what_they_saw_when_they_were_traced(emulated, turned):
    array = packed((2, 3))
    x = on_gpu(np.ones((2, 3), np.float32))

    def function(v):
        seen = wf.from_dlpack(Producer(array.T if turned else array))
        assert seen.owner is None  # how it came is no part of the function
        return v + (seen.T if turned else seen)

    compiled, expected = wf.compile(function), array + 1
    for _ in range(3):
        np.testing.assert_array_equal(compiled(x).numpy(), expected)
        array += 1


def test_what_cannot_be_imported_says_why(emulated):
    class Refuses(Producer):
        def __dlpack__(self, **keywords):
            raise BufferError("it requires a gradient")

    class Elsewhere(Producer):
        def __dlpack_device__(self):
            return (2, 1)

    array = packed((2, 3))
    with pytest.raises(InteropError, match="Refuses refuses to export: it requires a gradient"):
        wf.from_dlpack(Refuses(array))
    with pytest.raises(InteropError, match=r"says that it is on cuda:1, its capsule .* cuda:0"):
        wf.from_dlpack(Elsewhere(array))
    for device in ((2, 99), (10, 0)):  # a GPU that is not here, and one of another maker
        with pytest.raises(InteropError, match="not host memory\nhint"):
            wf.from_dlpack(Producer(array, device=device))


# -- __cuda_array_interface__ --------------------------------------------------------------


def test_only_tensors_on_a_gpu_have_the_interface_of_cuda(gpu):
    x = on_gpu(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert x.__cuda_array_interface__ == {
        "shape": (2, 3),
        "typestr": "<f4",
        "data": (x.data().address, False),
        "version": 3,
        "strides": None,
        "stream": 1,
    }
    assert is_shared(x.data())
    assert wf.zeros((0, 2), device="cuda").__cuda_array_interface__["data"][0] == 0
    assert not hasattr(wf.ones(3), "__cuda_array_interface__")
    with pytest.raises(InteropError, match=r"bfloat16\nhint.*from_dlpack"):
        _ = x.astype("bfloat16").__cuda_array_interface__


def test_a_tensor_keeps_what_others_read_through_it(emulated):
    x = on_gpu(np.ones(LARGE, np.float32))
    address = x.__cuda_array_interface__["data"][0]
    x[0, 0] = 5.0
    gc.collect()
    assert address in emulated._held
    assert x.__cuda_array_interface__["data"][0] != address
    del x
    gc.collect()
    assert address not in emulated._held


# -- a real GPU ----------------------------------------------------------------------------

real = pytest.mark.skipif(not driver.is_available(), reason="no GPU is here")


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is an optional peer")


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy", reason="cupy is an optional peer")


@real
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "complex64", "bfloat16", "float16"])
def test_torch_and_weft_share_memory(torch, dtype):
    x = on_gpu(np.arange(6).reshape(2, 3)).astype(dtype)
    there = torch.from_dlpack(x)
    assert there.dtype == getattr(torch, dtype) and there.device.type == "cuda"
    assert there.data_ptr() == x.data().address
    there.fill_(1)
    assert x.tolist() == [[1, 1, 1], [1, 1, 1]]
    back = wf.from_dlpack(torch.ones((2, 3), dtype=there.dtype, device="cuda"))
    assert back.dtype == x.dtype and back.device.name == "cuda:0" and back.tolist() == x.tolist()
    made = torch.arange(6, device="cuda").reshape(2, 3).to(there.dtype)
    y = wf.asarray(made)
    assert y.data().address == made.data_ptr()
    assert y.tolist() == made.tolist()
    assert wf.asarray(made.T).tolist() == made.T.tolist()
    made.fill_(1)
    assert y.tolist() == x.tolist()


@real
def test_memory_of_torch_is_kept_and_let_go(torch, gpu):
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    made = torch.ones(1 << 20, device="cuda")
    x = wf.from_dlpack(made)
    del made
    gc.collect()
    assert torch.cuda.memory_allocated() == before + (4 << 20)
    assert (x + 1).sum().item() == 2 << 20
    del x
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    live = gpu.stats().live_bytes
    there = torch.from_dlpack(on_gpu(np.ones(1 << 20, np.float32)))
    gc.collect()
    assert gpu.stats().live_bytes == live + (4 << 20) and there.sum().item() == 1 << 20
    del there
    gc.collect()
    assert gpu.stats().live_bytes == live


@real
def test_streams_of_torch_see_finished_work(torch):
    x = on_gpu(np.ones((2048, 2048), np.float32))
    product = wf.compile(lambda x: x @ x)
    product(x)
    side = torch.cuda.Stream()
    for _ in range(5):
        y = product(x)
        with torch.cuda.stream(side):
            there = torch.from_dlpack(y)
            assert (there == 2048).all().item()
            made = torch.ones((2048, 2048), device="cuda") @ torch.ones((2048, 2048), device="cuda")
            z = wf.from_dlpack(made)
        assert (z.sum() / 2048).item() == 2048 * 2048
        del y, there, made, z


@real
def test_weft_trains_on_batches_of_torch(torch):
    generator = torch.Generator("cuda").manual_seed(0)
    goal = torch.randn((8, 1), device="cuda", generator=generator)
    weight = wf.zeros((8, 1), device="cuda")

    @wf.compile
    def step(weight, x, y):
        value, slope = wf.value_and_grad(lambda w: wf.mean((x @ w - y) ** 2))(weight)
        return value, weight - 0.1 * slope

    reference = torch.zeros((8, 1), device="cuda", requires_grad=True)
    for _ in range(100):
        x = torch.randn((64, 8), device="cuda", generator=generator)
        y = x @ goal
        value, weight = step(weight, wf.from_dlpack(x), wf.from_dlpack(y))
        loss = ((x @ reference - y) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            reference -= 0.1 * reference.grad
            reference.grad = None
    assert value.item() < 1e-4
    found = torch.from_dlpack(weight)
    torch.testing.assert_close(found, reference.detach(), rtol=1e-3, atol=1e-3)


@real
def test_cupy_and_weft_share_memory(cupy):
    x = on_gpu(np.arange(6, dtype=np.float32).reshape(2, 3))
    for there in (cupy.asarray(x), cupy.from_dlpack(x)):
        assert there.data.ptr == x.data().address
        there += 1
    assert x.tolist() == [[2, 3, 4], [5, 6, 7]]
    made = cupy.arange(12.0).reshape(3, 4)
    y = wf.from_dlpack(made)
    assert y.data().address == made.data.ptr
    made *= 2
    assert y.tolist() == made.tolist()
    for part in (made.T, made[:, ::2], made[::-1]):
        assert wf.from_dlpack(part).tolist() == part.tolist()
