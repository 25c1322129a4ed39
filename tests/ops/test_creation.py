"""Creation: values, dtypes and devices against NumPy and the standard; what is refused, and how."""

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.core.common import dtypes
from weft.errors import (
    ArgumentError,
    CastError,
    ConversionError,
    DTypeError,
    OutOfMemoryError,
    ShapeError,
    UnsupportedDTypeError,
)

NUMERIC = [dt for dt in dtypes.ALL_DTYPES if dt != dtypes.bool_]


@pytest.mark.promise("S2.22")
def test_the_creation_functions_are_public_under_their_names():
    for name in ["full", "arange", "constant", "zeros", "ones"]:
        assert callable(getattr(wf, name))


@pytest.mark.promise("S2.22")
@pytest.mark.parametrize("dtype", dtypes.ALL_DTYPES, ids=dtypes.name_of)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), 4])
def test_constant_tensors_have_the_asked_shape_dtype_and_value(shape, dtype):
    for name, value in (("zeros", 0), ("ones", 1), ("empty", 0)):
        x = getattr(wf, name)(shape, dtype=dtype, device="cpu:1")
        assert x.shape == np.zeros(shape).shape
        assert x.dtype == dtype
        assert x.device.name == "cpu:1"
        assert (x.numpy() == np.asarray(value, dtype)).all()
        like = getattr(wf, f"{name}_like")(x)
        assert (like.dtype, like.shape, like.device) == (x.dtype, x.shape, x.device)
    assert (wf.full(shape, 1, dtype=dtype).numpy() == np.asarray(1, dtype)).all()
    assert wf.full_like(wf.ones(shape), 1, dtype=dtype).dtype == dtype


@pytest.mark.parametrize("given", [np.ones((300, 500), "f4"), np.ones((500, 300)).T[::-1]])
def test_large_copies_begin_where_lines_of_caches_do(given):
    for made in (wf.tensor(given), wf.tensor(given).to("cpu:1")):
        assert made.host().ctypes.data % 64 == 0
        assert np.array_equal(made.host(), given) and made.host().flags.c_contiguous
        assert not np.shares_memory(made.host(), given)


def test_default_dtypes():
    assert wf.zeros(2).dtype == wf.eye(2).dtype == wf.linspace(0, 1, 3).dtype == np.float32
    assert wf.full(2, 1).dtype == np.int64
    assert wf.full(2, True).dtype == np.bool_
    assert wf.full(2, 1.0).dtype == np.float32
    assert wf.full(2, 1j).dtype == np.complex64
    assert wf.arange(3).dtype == np.int64
    assert wf.arange(3.0).dtype == np.float32
    with wf.default_dtype("float64"):
        assert wf.zeros(2).dtype == wf.tensor([1.0]).dtype == wf.arange(1.0).dtype == np.float64


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(-7, 7).filter(bool))
def test_arange_of_integers_agrees_with_numpy(start, stop, step):
    np.testing.assert_array_equal(
        wf.arange(start, stop, step).numpy(), np.arange(start, stop, step)
    )


@given(st.floats(-20, 20), st.floats(-20, 20), st.floats(0.1, 5))
def test_arange_of_floats_agrees_with_numpy(start, stop, step):
    got = wf.arange(start, stop, step, dtype="float64").numpy()
    np.testing.assert_allclose(got, np.arange(start, stop, step), rtol=1e-12, atol=1e-12)


def test_arange_is_exact_at_the_ends_of_integer_dtypes():
    top = 2**64 - 1
    assert wf.arange(top - 2, top, dtype="uint64").tolist() == [top - 2, top - 1]
    assert wf.arange(-(2**63), -(2**63) + 2).tolist() == [-(2**63), -(2**63) + 1]


@pytest.mark.parametrize("endpoint", [True, False])
@pytest.mark.parametrize("num", [0, 1, 2, 7])
@pytest.mark.parametrize(("start", "stop"), [(0, 1), (3.5, -2), (1j, 2.0), (0.1, 0.3)])
def test_linspace_agrees_with_the_standard(start, stop, num, endpoint):
    got = wf.linspace(start, stop, num, endpoint=endpoint).numpy()
    is_complex = isinstance(start, complex)
    dtype = strict.complex64 if is_complex else strict.float32
    want = np.asarray(strict.linspace(start, stop, num, dtype=dtype, endpoint=endpoint))
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert got.dtype == want.dtype
    if endpoint and num > 1:
        assert got[-1] == got.dtype.type(stop)


def test_linspace_between_tensors_is_differentiable_and_exact_at_the_end():
    low, high = wf.tensor([0.0, 1.0]), wf.tensor([0.3, -7.1])
    line = wf.linspace(low, high, 11)
    np.testing.assert_array_equal(line[-1].numpy(), high.numpy())
    np.testing.assert_allclose(line.numpy(), np.linspace(low.numpy(), high.numpy(), 11), rtol=2e-6)
    slope = wf.grad(lambda h: wf.linspace(low, h, 3).sum())(high)
    np.testing.assert_allclose(slope.numpy(), [1.5, 1.5])


def test_logspace_of_tensors_has_their_dtype():
    ends = wf.asarray([-1.0, 0.0]), wf.asarray(np.array([1.0, 2.0]))
    found = wf.logspace(*ends, 3)
    assert found.dtype == wf.float64 and wf.logspace(ends[0], 1.0, 3).dtype == wf.float32
    np.testing.assert_allclose(found.numpy(), np.logspace([-1.0, 0.0], [1.0, 2.0], 3), rtol=1e-14)


def test_logspace_and_geomspace_agree_with_numpy():
    np.testing.assert_allclose(wf.logspace(0, 3, 4).numpy(), [1, 10, 100, 1000], rtol=1e-6)
    got = wf.logspace(0, 3, 5, base=2.0, endpoint=False, dtype="float64").numpy()
    np.testing.assert_allclose(got, np.logspace(0, 3, 5, base=2.0, endpoint=False))
    np.testing.assert_allclose(wf.geomspace(1, 256, 9).numpy(), np.geomspace(1, 256, 9), rtol=1e-6)
    np.testing.assert_allclose(wf.geomspace(-1, -8, 4).numpy(), [-1, -2, -4, -8], rtol=1e-6)
    with pytest.raises(ArgumentError, match="must not be 0"):
        wf.geomspace(0, 1)


@pytest.mark.parametrize("k", [-3, -1, 0, 2, 9])
@pytest.mark.parametrize(("rows", "columns"), [(3, None), (2, 4), (0, 3)])
def test_eye_and_tri_agree_with_numpy(rows, columns, k):
    np.testing.assert_array_equal(wf.eye(rows, columns, k=k).numpy(), np.eye(rows, columns, k))
    np.testing.assert_array_equal(wf.tri(rows, columns, k).numpy(), np.tri(rows, columns, k))
    np.testing.assert_array_equal(wf.identity(3, dtype="int8").numpy(), np.identity(3))


@pytest.mark.parametrize("indexing", ["xy", "ij"])
def test_meshgrid_agrees_with_numpy(indexing):
    vectors = [np.arange(3), np.arange(2), np.arange(4)]
    for count in (1, 2, 3):
        got = wf.meshgrid(*vectors[:count], indexing=indexing)
        want = np.meshgrid(*vectors[:count], indexing=indexing)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a.numpy(), b)
    with pytest.raises(ArgumentError, match="indexing must be one of 'xy', 'ij'"):
        wf.meshgrid([1], indexing="zz")


def test_grids_functions_of_positions_and_one_hot():
    np.testing.assert_array_equal(wf.indices((2, 3)).numpy(), np.indices((2, 3)))
    got = wf.fromfunction(lambda i, j: i * 10 + j, (2, 3))
    np.testing.assert_array_equal(got.numpy(), np.fromfunction(lambda i, j: i * 10 + j, (2, 3)))
    assert wf.one_hot([0, 2, 5], 3).tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert wf.one_hot([0, 2], 3, axis=0).shape == (3, 2)
    with pytest.raises(DTypeError, match="positions must be integers"):
        wf.one_hot([0.5], 3)


def test_a_list_of_tensors_is_stacked_and_differentiated():
    def f(x):
        return (
            wf.asarray([[x, 2.0 * x], [1.0, x * x]]) * wf.tensor([[1.0, 2.0], [3.0, 4.0]])
        ).sum()

    assert f(wf.tensor(3.0)).item() == 3 + 12 + 3 + 36
    assert wf.grad(f)(3.0).item() == 1 + 4 + 24
    assert wf.vmap(lambda x: wf.asarray([x, x]))(wf.tensor([1.0, 2.0])).shape == (2, 2)
    with pytest.raises(ConversionError, match="ragged"):
        wf.asarray([wf.ones(2), wf.ones(3)])


def test_asarray_shares_and_copies_as_asked():
    array = np.arange(3.0)
    assert wf.asarray(array).numpy().base is not None
    assert np.shares_memory(wf.asarray(array).numpy(), array)
    assert np.shares_memory(wf.from_numpy(array).numpy(), array)
    assert not np.shares_memory(wf.asarray(array, copy=True).numpy(), array)
    assert not np.shares_memory(wf.tensor(array).numpy(), array)
    assert not np.shares_memory(wf.array(array).numpy(), array)
    x = wf.asarray([1, 2])
    assert wf.asarray(x) is x
    assert wf.asarray(x, copy=True) is not x
    with pytest.raises(ArgumentError, match="copy=False"):
        wf.asarray(array, dtype="float32", copy=False)
    with pytest.raises(ArgumentError, match="without a copy"):
        wf.asarray([1, 2], copy=False)
    other = wf.from_dlpack(strict.asarray(array))
    assert np.shares_memory(other.numpy(), array)


def test_buffers_become_tensors():
    assert wf.frombuffer(b"\x01\x02\x03", "uint8", offset=1).tolist() == [2, 3]
    with pytest.raises(ConversionError, match="frombuffer"):
        wf.frombuffer(b"123", "float32")


def test_to_changes_dtype_or_device():
    x = wf.ones(2)
    assert x.to("float64").dtype == np.float64
    assert x.to(int).dtype == np.int64
    assert x.to("cpu:1").device.name == "cpu:1"
    assert x.to(wf.ones(1, dtype="int8", device="cpu:2")).device.name == "cpu:2"
    assert x.to("float32") is x
    assert x.to("float32", copy=True) is not x


def test_like_functions_need_the_shape_alone():
    def f(x):
        return (wf.ones_like(x) * x + wf.zeros_like(x) + wf.full_like(x, 2.0)).sum()

    assert wf.grad(f)(wf.tensor([1.0, 2.0])).tolist() == [1, 1]
    assert wf.vmap(lambda x: wf.zeros_like(x))(wf.ones((3, 2))).shape == (3, 2)
    assert wf.eval_shape(wf.ones_like, wf.ones((5,), dtype="int8")).dtype == np.int8


def test_like_functions_take_another_shape():
    x = wf.ones((5,), dtype="int8")
    found = wf.zeros_like(x, shape=(2, 3)), wf.ones_like(x, shape=4), wf.full_like(x, 7, shape=())
    assert [y.shape for y in found] == [(2, 3), (4,), ()]
    assert {y.dtype for y in found} == {x.dtype} and found[2].item() == 7
    assert wf.vmap(lambda x: wf.empty_like(x, shape=(3,)))(wf.ones((2, 5))).shape == (2, 3)
    mesh = wf.DeviceMesh("two", (2,), ("i",))
    assert wf.zeros_like(wf.ones(4).shard(mesh, wf.P("i")), shape=(3, 3)).sum().item() == 0


def test_full_takes_a_tensor_that_varies():
    assert wf.grad(lambda v: wf.full((2, 3), v).sum())(1.0).item() == 6
    got = wf.vmap(lambda v: wf.full((2,), v))(wf.tensor([1.0, 2.0]))
    assert got.tolist() == [[1, 1], [2, 2]]


REFUSED = [
    (lambda: wf.zeros((2**50,)), OutOfMemoryError, "zeros: shape"),
    (lambda: wf.ones((2**20, 2**20), dtype="float64"), OutOfMemoryError, "this machine has"),
    (lambda: wf.arange(2**60), OutOfMemoryError, "arange"),
    (lambda: wf.arange(0, float("inf")), OutOfMemoryError, "never ends"),
    (lambda: wf.zeros(-1), ShapeError, "a size is negative"),
    (lambda: wf.full((2, -3), 1), ShapeError, "full: a size is negative"),
    (lambda: wf.zeros(1.5), ShapeError, "sizes must be integers"),
    (lambda: wf.full((2,), [1, 2]), ShapeError, "fill_value must have no axes"),
    (lambda: wf.full((2,), 1.5, dtype="int32"), CastError, "full: 1.5 does not fit int32"),
    (lambda: wf.full((2,), float("nan"), dtype="int32"), CastError, "full: nan does not fit int32"),
    (lambda: wf.full((2,), 1j, dtype="float32"), CastError, "does not fit float32"),
    (lambda: wf.full((2,), 300, dtype="uint8"), CastError, "300 does not fit uint8"),
    (lambda: wf.full((2,), 300.0, dtype="uint8"), CastError, "300 does not fit uint8"),
    (lambda: wf.full((2,), 1e308, dtype="int16"), CastError, "does not fit int16"),
    (lambda: wf.full((2,), "a"), ConversionError, "asarray"),
    (lambda: wf.tensor([[1, 2], [3]]), ConversionError, "ragged"),
    (lambda: wf.tensor("abc"), ConversionError, "cannot make a tensor of str"),
    (lambda: wf.tensor(["a"]), ConversionError, "asarray"),
    (lambda: wf.tensor(object()), ConversionError, "cannot make a tensor of object"),
    (lambda: wf.tensor(None), ConversionError, "NoneType"),
    (lambda: wf.tensor(2**70), CastError, "asarray"),
    (lambda: wf.tensor([2**63, -1]), CastError, "asarray"),
    (lambda: wf.tensor(300, dtype="int8"), CastError, "300 does not fit int8"),
    (lambda: wf.arange(300, dtype="uint8"), CastError, "arange"),
    (lambda: wf.arange(1, 5, 0), ArgumentError, "arange: step is 0"),
    (lambda: wf.arange(float("nan")), ArgumentError, "arange"),
    (lambda: wf.arange(3, dtype="complex64"), DTypeError, "no meaning for complex64"),
    (lambda: wf.arange("a"), DTypeError, "expected a real number"),
    (lambda: wf.linspace(0, 1, -1), ArgumentError, "num must be at least 0"),
    (lambda: wf.linspace(0, 1, 2.5), DTypeError, "num must be an integer"),
    (lambda: wf.zeros(2, dtype="float128x"), UnsupportedDTypeError, "names no dtype"),
    (lambda: wf.from_numpy([1]), ConversionError, "expected a NumPy array"),
]


@pytest.mark.parametrize(("call", "kind", "text"), REFUSED)
def test_what_cannot_be_made_is_refused_with_a_reason(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


def test_shapes_alone_may_be_larger_than_memory():
    kind = wf.eval_shape(lambda: wf.zeros((10**6, 10**6)))
    assert kind.shape == (10**6, 10**6)
