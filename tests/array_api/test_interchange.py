"""Arrays come and go: DLPack, devices, asarray with and without a copy, astype."""

import array_api_strict
import numpy as np
import pytest

import weft as wf
from tests.array_api.draws import ALL, NUMERIC

EVERY = pytest.mark.parametrize("name", ALL)
SHAPES = [(), (0,), (3,), (2, 3), (2, 0, 3)]


def sample(name: str, shape: tuple[int, ...] = (2, 3)) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(name)


@EVERY
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dlpack_brings_a_tensor_to_weft_and_other_libraries(name, shape):
    x = wf.asarray(sample(name, shape), copy=True)
    for read in (wf.from_dlpack, np.from_dlpack, array_api_strict.from_dlpack):
        found = read(x)
        assert found.shape == shape
        np.testing.assert_array_equal(np.asarray(found), sample(name, shape))


@EVERY
def test_dlpack_brings_arrays_of_other_libraries(name):
    array = sample(name)
    for source in (array, array_api_strict.asarray(array)):
        found = wf.from_dlpack(source)
        assert (type(found), found.dtype, found.shape) == (wf.Tensor, array.dtype, array.shape)
        np.testing.assert_array_equal(found.numpy(), array)


def test_dlpack_views_keep_their_strides():
    x = wf.asarray(sample("int32"))
    np.testing.assert_array_equal(np.from_dlpack(x.mT[::2]), sample("int32").T[::2])


def test_from_dlpack_copies_as_asked():
    array = sample("float32")
    shared, copied = wf.from_dlpack(array, copy=False), wf.from_dlpack(array, copy=True)
    array[0, 0] = 9
    assert shared[0, 0] == 9
    assert copied[0, 0] == 0


def test_from_dlpack_goes_to_the_device_asked_for():
    x = wf.zeros(3)
    assert wf.from_dlpack(x, device=x.device).device == x.device


def test_dlpack_exports_take_the_keywords_of_the_standard():
    x = wf.zeros(3)
    assert x.__dlpack_device__() == (1, 0)
    capsule = x.__dlpack__(stream=None, max_version=(1, 0), dl_device=(1, 0), copy=True)
    assert "dltensor_versioned" in repr(capsule)
    assert '"dltensor"' in repr(x.__dlpack__(copy=True))
    for wrong in ({"dl_device": (2, 0)}, {"stream": 1}):
        with pytest.raises(BufferError):
            x.__dlpack__(**wrong)


def test_what_speaks_no_dlpack_is_refused():
    with pytest.raises(BufferError, match="__dlpack__"):
        wf.from_dlpack(3)


@EVERY
def test_to_device_keeps_values_on_every_device_named_or_given(name):
    x = wf.asarray(sample(name))
    for device in (x.device, str(x.device)):
        moved = x.to_device(device)
        assert moved.device == x.device
        np.testing.assert_array_equal(moved.numpy(), x.numpy())


def test_an_unknown_device_raises():
    with pytest.raises(wf.errors.WeftError, match="nowhere"):
        wf.zeros(1).to_device("nowhere")


@EVERY
@pytest.mark.parametrize("copy", [True, None, False])
def test_asarray_of_a_tensor_copies_as_asked(name, copy):
    x = wf.asarray(sample(name), copy=True)
    found = wf.asarray(x, copy=copy)
    x[0, 0] = x[0, 1] if name != "bool" else True
    changed = bool(found[0, 0] == x[0, 0])
    assert changed is not copy


@EVERY
def test_asarray_of_a_numpy_array_copies_as_asked(name):
    array = sample(name)
    copied, shared = wf.asarray(array, copy=True), wf.asarray(array, copy=False)
    array[0, 0] = True if name == "bool" else 7
    assert copied[0, 0] == 0
    assert shared[0, 0] == array[0, 0].item()


def test_asarray_without_a_copy_raises_where_one_is_needed():
    x = wf.zeros(2)
    for obj, keywords in ((x, {"dtype": wf.float64}), ([1.0, 2.0], {}), (1.0, {})):
        with pytest.raises(ValueError, match="copy"):
            wf.asarray(obj, copy=False, **keywords)


def test_asarray_reads_whatever_the_standard_names():
    class Exports:
        def __dlpack__(self, **keywords):
            return sample("int8").__dlpack__(**keywords)

        def __dlpack_device__(self):
            return (1, 0)

    expected = sample("int8").tolist()
    for obj in (Exports(), memoryview(sample("int8")), array_api_strict.asarray(sample("int8"))):
        found = wf.asarray(obj)
        assert (found.dtype, found.tolist()) == (wf.int8, expected)
    assert wf.asarray([wf.asarray(1), wf.asarray(2)]).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("obj", "dtype"),
    [
        (True, "bool"),
        (1, "int64"),
        (1.0, "float32"),
        (1j, "complex64"),
        ([True, False], "bool"),
        ([1, 2.5], "float32"),
        ([1, 1j], "complex64"),
        ([[1], [2]], "int64"),
        ([], "float32"),
    ],
)
def test_python_numbers_have_default_dtypes(obj, dtype):
    assert wf.asarray(obj).dtype == getattr(wf, dtype)


@pytest.mark.parametrize("value", [[1, 2**63], [[2**64 - 1], [0]], 2**64 - 1], ids=str)
def test_integers_past_int64_are_exact_beside_small_ones(value):
    found = wf.asarray(value, dtype=wf.uint64)
    assert (found.dtype, found.tolist()) == (wf.uint64, value)
    assert wf.asarray(value).dtype == wf.uint64


def test_integers_that_no_dtype_holds_raise_unless_a_float_is_asked_for():
    for value in ([-1, 2**63], [1, 2**64]):
        with pytest.raises(OverflowError, match="no integer dtype holds all"):
            wf.asarray(value)
        assert wf.asarray(value, dtype=wf.float64).tolist() == [float(v) for v in value]


@EVERY
@pytest.mark.parametrize("value", [0, 1, True, 3])
def test_asarray_gives_a_python_number_the_dtype_asked_for(name, value):
    found = wf.asarray(value, dtype=getattr(wf, name))
    assert found.dtype == getattr(wf, name)
    assert found == (bool(value) if name == "bool" else value)


@pytest.mark.parametrize("name", NUMERIC)
def test_astype_copies_unless_told_that_it_need_not(name):
    x = wf.asarray(sample(name), copy=True)
    copied, same = wf.astype(x, x.dtype), wf.astype(x, x.dtype, copy=False)
    x[0, 0] = 5
    assert copied[0, 0] == 0
    assert same[0, 0] == 5


def test_astype_takes_a_device():
    x = wf.asarray([1.5, 2.5])
    found = wf.astype(x, wf.int32, device=x.device)
    assert (found.dtype, found.device, found.tolist()) == (wf.int32, x.device, [1, 2])


def test_astype_of_complex_to_real_raises():
    with pytest.raises(TypeError, match="imaginary part"):
        wf.astype(wf.asarray([1j]), wf.float32)


@EVERY
def test_bool_of_a_number_is_that_it_is_not_zero(name):
    assert wf.astype(wf.asarray(sample(name, (3,))), wf.bool).tolist() == [False, True, True]


def test_reshape_copies_as_asked():
    x = wf.asarray(sample("float32"), copy=True)
    copied, shared = wf.reshape(x, (6,), copy=True), wf.reshape(x, (6,), copy=False)
    assert shared.shape == copied.shape == (6,)
    x[0, 0] = 9
    assert copied[0] == 0
    with pytest.raises(ValueError):
        wf.reshape(x.mT, (6,), copy=False)
