"""In and out of weft: NumPy, DLPack, buffers, pickles, text and Python numbers."""

from __future__ import annotations

import copy
import pickle
import sys
from itertools import pairwise

import numpy as np
import pytest

import weft as wf
from weft.core.common import dtypes
from weft.core.graph import GRAPH
from weft.errors import (
    ArgumentError,
    ConversionError,
    DifferentiationError,
    DTypeError,
    IndexingError,
    InteropError,
    WeftError,
)

LARGE = (300, 300)
each_dtype = pytest.mark.parametrize("dtype", dtypes.ALL_DTYPES, ids=dtypes.name_of)


def sample(dtype, shape=(2, 3)):
    count = int(np.prod(shape))
    return wf.tensor((np.arange(count) % 5).reshape(shape)).astype(dtype)


@each_dtype
def test_numpy_shares_memory_and_is_read_only(dtype):
    x = sample(dtype)
    array = x.numpy()
    assert array.dtype == dtype and array.shape == (2, 3)
    assert np.shares_memory(array, x.data())
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1


@each_dtype
def test_items_and_lists_are_python_numbers(dtype):
    x = sample(dtype)
    kind = {"b": bool, "i": int, "u": int, "c": complex}.get(dtype.kind, float)
    assert type(x[0, 1].item()) is kind
    assert x[0, 1].item() == 1
    assert x.item(1, 0) == (3 if kind is not bool else True)
    rows = x.tolist()
    assert all(type(v) is kind for row in rows for v in row)
    assert wf.tensor(3, dtype=dtype).tolist() == (3 if kind is not bool else True)


def test_item_of_several_elements_and_bad_indices_raise():
    with pytest.raises(ConversionError, match="6 elements"):
        sample("float32").item()
    for index in ((5, 0), (0, 0, 0), (0,)):
        with pytest.raises(IndexingError):
            sample("float32").item(*index)


def test_array_follows_dtype_and_copy():
    x = sample("float32")
    assert np.asarray(x).dtype == np.float32
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    fresh = np.array(x)
    fresh[0, 0] = 99
    assert x[0, 0].item() == 0
    assert np.shares_memory(np.asarray(x, copy=False), x.data())
    with pytest.raises((InteropError, ValueError)):  # NumPy's own where it takes the buffer
        np.asarray(x, dtype=np.int64, copy=False)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="__buffer__ needs Python 3.12 (PEP 688)")
def test_a_tensor_is_a_buffer():
    x = sample("float32")
    view = memoryview(x)
    assert view.readonly and view.shape == (2, 3) and view.format == "f"


def test_the_buffer_is_for_reading():
    x = sample("float32")
    assert x.__buffer__(0).tolist() == x.tolist()
    with pytest.raises(InteropError):
        x.__buffer__(1)
    with pytest.raises(InteropError, match="bfloat16"):
        sample("bfloat16").__buffer__(0)


@each_dtype
def test_dlpack_goes_to_weft_and_back_without_a_copy(dtype):
    x = sample(dtype)
    y = wf.from_dlpack(x)
    assert y.dtype == dtype and y.storage == x.storage
    np.testing.assert_array_equal(y.numpy(), x.numpy())


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bool", "complex64"])
def test_dlpack_goes_to_numpy_and_back_without_a_copy(dtype):
    x = sample(dtype)
    array = np.from_dlpack(x)
    assert np.shares_memory(array, x.data())
    assert wf.from_dlpack(array).storage == x.storage


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "complex64", "bfloat16", "float16"])
def test_dlpack_goes_to_torch_and_back_without_a_copy(dtype):
    torch = pytest.importorskip("torch", reason="torch is an optional peer")
    x = sample(dtype)
    there = torch.from_dlpack(x)
    assert there.dtype == getattr(torch, dtype)
    assert there.data_ptr() == x.storage.ptr
    back = wf.from_dlpack(there)
    assert back.dtype == x.dtype and back.layout == x.layout
    np.testing.assert_array_equal(back.numpy(), x.numpy())
    assert wf.from_dlpack(there.T).shape == (3, 2)


def test_what_lies_backwards_in_memory_goes_out_as_a_copy():
    x = wf.flip(sample("float32"))
    array = np.from_dlpack(x)
    assert array.flags.c_contiguous and not np.shares_memory(array, x.data())
    np.testing.assert_array_equal(array, x.numpy())
    in_place = np.from_dlpack(x, copy=False)
    assert np.shares_memory(in_place, x.data())


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "complex64", "bfloat16"])
def test_dlpack_goes_to_jax_and_back(dtype):
    jax = pytest.importorskip("jax", reason="jax is an optional oracle")
    x = sample(dtype)
    there = jax.numpy.from_dlpack(x)
    assert there.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(there), x.numpy())
    back = wf.from_dlpack(there)
    assert back.dtype == x.dtype
    np.testing.assert_array_equal(back.numpy(), x.numpy())
    np.testing.assert_array_equal(wf.asarray(there).numpy(), x.numpy())


def test_what_was_asked_of_imported_memory_does_not_change_with_it():
    array = np.ones(LARGE, np.float32)
    x = wf.asarray(array)
    view = x[10:]
    results = [x + 1, wf.sin(x), view * 2, wf.grad(lambda v: wf.sum(v * v))(x)]
    expected = [2, np.sin(np.float32(1)), 2, 2]
    array[...] = 50
    for y, value in zip(results, expected, strict=True):
        np.testing.assert_allclose(y.numpy(), value, rtol=1e-6)
    assert (x + 1).numpy()[0, 0] == 51


@pytest.mark.parametrize(
    "take", [lambda a: a, lambda a: wf.asarray(a), lambda a: wf.asarray(a)[0], lambda a: a[:1]]
)
def test_what_was_assigned_from_imported_memory_does_not_change_with_it(take):
    array = np.ones((2, 3), np.float32)
    x, y = wf.zeros((2, 3)), wf.zeros((2, 3))
    x[:] = take(array)
    y = y.at[...].set(take(array))
    array[...] = 50
    np.testing.assert_array_equal(x.numpy(), 1)
    np.testing.assert_array_equal(y.numpy(), 1)


def test_what_a_checkpoint_handed_through_does_not_change_with_imported_memory():
    array = np.ones(3, np.float32)
    y = wf.checkpoint(lambda x: x)(wf.asarray(array))
    array[...] = 50
    assert y.tolist() == [1, 1, 1]


@pytest.mark.parametrize("export", ["base", "view"])
def test_what_was_asked_of_exported_memory_does_not_change_with_it(export):
    base = wf.realize(wf.tensor(np.ones(LARGE, np.float32)) * 1)
    view = base[10:]
    pending = base + 1
    chained = wf.sin(view) * 2
    reshaped = base.T
    array = np.from_dlpack(base if export == "base" else view)
    assert array.flags.writeable
    later = [reshaped * 3, base * 4, view * 5]
    array[...] = 50
    np.testing.assert_array_equal(pending.numpy(), 2)
    np.testing.assert_allclose(chained.numpy(), 2 * np.sin(np.float32(1)))
    for y, value in zip(later, (3, 4, 5), strict=True):
        np.testing.assert_array_equal(y.numpy(), value)
    assert base.numpy()[20, 0] == 50


def _constants(x):
    made = wf.tensor([1.0, 2.0, 3.0])
    return x * 2, made, made[1:], made * 1, wf.tensor(3.0)


def _replayed(path):
    function = wf.compile(_constants)
    return lambda x: wf.vjp(function, x)[0]


def _loaded(path):
    wf.compile(_constants).export(path / "f", wf.ones(3))
    return wf.load_compiled(path / "f")


@pytest.mark.parametrize(
    "ready",
    [
        lambda path: wf.compile(_constants),
        _loaded,
        _replayed,
        lambda path: wf.compile(lambda x: wf.grad(lambda x: (x * _constants(x)[1]).sum())(x)[None]),
    ],
    ids=["compiled", "loaded", "replayed", "gradient"],
)
def test_constants_of_a_compiled_function_are_not_handed_out(ready, tmp_path):
    function, x = ready(tmp_path), wf.ones(3)
    before = [y.tolist() for y in function(x)]
    for number in range(len(before)):
        for _ in range(2):
            result = function(x)[number]
            array = np.from_dlpack(result)
            array[...] = 50
            assert result.tolist() == array.tolist()
            assert np.shares_memory(np.from_dlpack(result), array)
        assert [y.tolist() for y in function(x)] == before


def test_reading_through_numpy_shares_nothing_that_could_change():
    x = wf.realize(wf.tensor(np.ones(LARGE, np.float32)) * 1)
    x.numpy()
    recorded = GRAPH.counters.recorded
    assert not (x + 1).is_realized
    assert GRAPH.counters.recorded == recorded + 1


@each_dtype
@pytest.mark.parametrize(
    "view", [lambda x: x, lambda x: x.T, lambda x: x[:, ::-1], lambda x: x[:0]]
)
def test_pickles_and_copies_keep_values_dtype_and_device(dtype, view):
    x = view(sample(dtype))
    for y in (pickle.loads(pickle.dumps(x)), copy.copy(x), copy.deepcopy(x)):
        assert type(y) is wf.Tensor and y is not x
        assert y.dtype == x.dtype and y.shape == x.shape and y.device is x.device
        np.testing.assert_array_equal(y.numpy(), x.numpy())


def test_a_pickle_remembers_its_device_and_is_not_shared():
    y = pickle.loads(pickle.dumps(wf.ones(3, device="cpu:2")))
    assert y.device.name == "cpu:2" and not y._impl.shared
    assert pickle.loads(pickle.dumps(wf.sin)) is wf.sin


def test_a_copy_is_another_handle():
    x = wf.ones(3)
    for y in (copy.copy(x), copy.deepcopy(x), {"a": copy.deepcopy([x])}["a"][0]):
        y += 1
        assert x.tolist() == [1.0] * 3 and y.tolist() == [2.0] * 3


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: wf.tensor([1.0, 2.0]), "tensor([1., 2.], dtype=float32)"),
        (lambda: wf.tensor(3), "tensor(3, dtype=int64)"),
        (lambda: wf.tensor([True, False]), "tensor([ True, False], dtype=bool)"),
        (lambda: wf.tensor(1 + 2j), "tensor(1.+2.j, dtype=complex64)"),
        (lambda: wf.tensor([1.5], dtype="bfloat16"), "tensor([1.5], dtype=bfloat16)"),
        (lambda: wf.tensor([1.5], dtype="float8_e4m3"), "tensor([1.5], dtype=float8_e4m3)"),
        (lambda: wf.zeros((0, 3)), "tensor([], shape=(0, 3), dtype=float32)"),
        (lambda: wf.ones(2, device="cpu:1"), "tensor([1., 1.], dtype=float32, device=cpu:1)"),
        (lambda: wf.tensor([[1], [2]]), "tensor([[1],\n        [2]], dtype=int64)"),
    ],
)
def test_text_shows_values_dtype_and_an_unusual_device(make, text):
    assert repr(make()) == str(make()) == f"{make()}" == text


def test_large_tensors_are_summarised():
    text = repr(wf.ones((100, 100)))
    assert "..." in text and "shape=(100, 100)" in text and len(text) < 800


def test_text_inside_transforms():
    seen = []

    def f(x):
        seen.append(repr(x * 2))
        return wf.sum(x)

    x = wf.tensor([1.0, 2.0])
    wf.grad(f)(x)
    wf.jvp(f, (x,), (x,))
    wf.vmap(f)(wf.ones((3, 2)))
    wf.trace(f, x)
    assert seen[0] == seen[1] == "tensor([2., 4.], dtype=float32)"
    assert seen[2] == "tensor<float32[2], inside vmap>"
    assert seen[3] == "tensor<float32[2], inside trace>"


def test_notebooks_get_a_table():
    page = wf.tensor([[1.0, 2.0]])._repr_html_()
    assert "<table>" in page and "1 × 2" in page and "float32" in page and "8 bytes" in page
    pages = []
    wf.vmap(lambda x: pages.append(x._repr_html_()) or x)(wf.ones((2, 3)))
    assert "&lt;float32[3]" in pages[0]


def test_format_applies_to_single_elements():
    assert f"{wf.tensor(3.14159):.2f}" == "3.14"
    assert f"{wf.tensor([7]):04d}" == "0007"
    with pytest.raises(ConversionError):
        format(wf.ones(3), ".2f")


def test_single_elements_are_numbers():
    assert float(wf.tensor([2.5])) == 2.5
    assert int(wf.tensor(2.9)) == 2
    assert complex(wf.tensor(1 + 1j)) == 1 + 1j
    assert bool(wf.tensor([[3]])) and not bool(wf.tensor(0.0))
    assert [10, 20, 30][wf.tensor(1)] == 20
    assert float(wf.tensor(1.5, dtype="bfloat16")) == 1.5


@pytest.mark.parametrize(
    ("ask", "error", "text"),
    [
        (lambda: bool(wf.ones(2)), ConversionError, "ambiguous"),
        (lambda: bool(wf.zeros(0)), ConversionError, "0 elements"),
        (lambda: float(wf.ones(2)), ConversionError, "2 elements"),
        (lambda: int(wf.tensor(float("nan"))), ConversionError, "nan"),
        (lambda: int(wf.tensor(float("inf"))), ConversionError, "inf"),
        (lambda: float(wf.tensor(1j)), DTypeError, "complex"),
        (lambda: int(wf.tensor(1j)), DTypeError, "complex"),
        (lambda: [1, 2][wf.tensor(1.0)], ConversionError, "index"),
        (lambda: [1, 2][wf.tensor([1])], ConversionError, "index"),
        (lambda: len(wf.tensor(1)), ConversionError, "len"),
        (lambda: list(wf.tensor(1)), ConversionError, "iter"),
    ],
)
def test_what_is_no_single_number_raises(ask, error, text):
    with pytest.raises(error, match=text):
        ask()


def test_in_asks_for_an_element_whatever_the_number_of_axes():
    x = sample("int32")
    assert 4 in x and wf.tensor(4) in x and x[1].tolist() in x
    assert 7 not in x and "4" not in x and None not in x and 0 not in wf.zeros((0, 3))
    assert 1.0 in wf.ones(()) and wf.nan not in wf.tensor([wf.nan])


def test_iteration_gives_rows_and_len_counts_them():
    x = sample("int32")
    assert len(x) == 2
    assert [row.tolist() for row in x] == x.tolist()
    a, b = x
    assert (b - a).tolist() == [3, 3, -2]
    assert [(p.item(), q.item()) for p, q in pairwise(x[0])] == [(0, 1), (1, 2)]
    assert list(wf.zeros((0, 3))) == []
    np.testing.assert_allclose(
        wf.grad(lambda v: sum((row * row).sum() for row in v))(x.astype("float32")).numpy(),
        2 * x.numpy(),
    )


def test_the_array_namespace_is_weft():
    x = wf.ones(3)
    assert x.__array_namespace__() is wf
    assert x.__array_namespace__(api_version=wf.ARRAY_API_VERSIONS[0]) is wf
    with pytest.raises(ArgumentError):
        x.__array_namespace__(api_version="1999.01")


def test_numpy_functions_refuse_tensors_but_arrays_mix_with_them():
    x = wf.tensor([1.0, 2.0, 3.0])
    with pytest.raises(TypeError):
        np.sin(x)
    with pytest.raises(TypeError):
        np.add(np.ones(3), x)
    for y in (
        np.ones(3, np.float32) * x,
        x * np.ones(3, np.float32),
        np.float32(2) * x,
        np.ones(3) @ x,
    ):
        assert type(y) is wf.Tensor
    slope = wf.grad(lambda v: wf.sum(np.array([1.0, 2.0, 3.0], np.float32) * v))(x)
    assert slope.tolist() == [1.0, 2.0, 3.0]


def test_lists_mix_with_tensors_as_arrays_do():
    x = wf.tensor([1.0, 2.0])
    assert (x == [1, 3]).tolist() == [True, False] and (x != (1, 3)).tolist() == [False, True]
    assert (x + [1, 2]).tolist() == [2, 4] and ((3, 3) - x).tolist() == [2, 1]
    assert (x @ [1, 2]).item() == 5 and ([2, 3] * wf.tensor(3)).tolist() == [6, 9]
    assert wf.compile(lambda t: t == [1, 2])(2.0).tolist() == [False, True]
    x += [1, 1]
    assert x.tolist() == [2, 3]
    with pytest.raises(wf.errors.ShapeError, match="equal: operand 1"):
        x == [1, 2, 3]  # noqa: B015


DOUBLE = np.array([0.1, 0.7])


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x + [0.1, 0.7] - x,
        lambda x: wf.multiply([0.1, 0.7], x),
        lambda x: wf.where(wf.tensor([True, True]), [0.1, 0.7], x),
        lambda x: wf.where(wf.tensor([True, False]), 0.1, DOUBLE),
        lambda x: wf.concat([x[:0], [0.1, 0.7]]),
        lambda x: wf.stack([x, [0.1, 0.7]])[1],
        lambda x: wf.asarray([x, [0.1, 0.7]])[1],
        lambda x: wf.asarray([0.1, np.float64(0.7)]),
        lambda x: wf.asarray([[0.1, 0.7], DOUBLE])[0],
        lambda x: wf.real(wf.add(x * 0, [0.1 + 1j, 0.7])),
        lambda x: wf.einsum("i,i->i", x, [0.1, 0.7]),
        lambda x: wf.interp(DOUBLE, [0.0, 1.0], [0.0, 1.0]),
        lambda x: wf.trapezoid([[2.0, 0.0], [2.0, 0.0]], x=x[:, None] * [[0.0, 0.1], [0.0, 0.7]]),
        lambda x: wf.histogram(x, 1, range=(0.1, 0.7))[1],
        lambda x: wf.linalg.multi_dot([[0.1, 0.7], wf.eye(2, dtype="float64")]),
    ],
)
def test_numbers_in_lists_keep_their_digits_beside_float64(call):
    found = call(wf.ones(2, dtype="float64"))
    assert found.dtype == wf.float64
    np.testing.assert_allclose(found.numpy(), DOUBLE, rtol=1e-14)


def test_lists_beside_narrower_tensors_are_of_the_default_float():
    for dtype in ("float16", "float32", "int8"):
        assert (wf.ones(1, dtype=dtype) + [0.1]).dtype == wf.float32
    assert wf.asarray([0.1, np.float32(0.7)]).dtype == wf.float32


def test_python_rounds_tensors():
    assert round(wf.tensor(2.6789), 2).item() == pytest.approx(2.68)
    assert round(wf.tensor([0.5, 1.5])).tolist() == [0, 2]


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "std", "var", "max", "min"])
def test_numpy_reduces_tensors_to_tensors(name):
    x = wf.tensor([[1.0, 2.5], [3.0, -4.0]])
    reduce = getattr(np, name)
    for keywords in ({}, {"axis": 0}, {"axis": 1, "keepdims": True}):
        found = reduce(x, **keywords)
        assert type(found) is wf.Tensor
        np.testing.assert_allclose(found.numpy(), reduce(x.numpy(), **keywords), 1e-6)
    slope = wf.grad(lambda v: reduce(v))(x)
    assert wf.allclose(slope, wf.grad(getattr(wf, name))(x))
    with pytest.raises(ArgumentError, match=f"{name}: out"):
        reduce(x, out=np.zeros(()))


def test_numpy_asks_tensors_for_truth():
    x = wf.tensor([[1.0, 0.0], [3.0, 4.0]]) > 0
    assert not np.all(x) and np.any(x)
    assert np.all(x, axis=1).tolist() == [False, True]


@pytest.mark.parametrize(
    "function",
    [
        np.asarray,
        lambda v: np.concatenate([v, v]),
        lambda v: np.dot(v, v),
        lambda v: np.where(v, v, 0),
    ],
)
def test_numpy_is_refused_the_values_of_what_is_differentiated(function):
    x = wf.tensor([1.0, 2.0])
    with pytest.raises(DifferentiationError, match=r"grad: NumPy asks .*\n.*x\.numpy"):
        wf.grad(lambda v: wf.sum(wf.asarray(function(v)) + v))(x)
    with pytest.raises(DifferentiationError, match="jvp: NumPy asks"):
        wf.jvp(lambda v: wf.asarray(function(v)), (x,), (x,))
    with pytest.raises(DifferentiationError, match="grad: NumPy asks"):
        function(wf.requires_grad(x))
    constant = wf.grad(lambda v: wf.sum(wf.asarray(function(v.detach())) + wf.sum(v)))(x)
    assert (constant.numpy() > 0).all()


def test_dlpack_is_refused_the_values_of_what_is_differentiated():
    x = wf.tensor([1.0, 2.0])
    for function in (wf.from_dlpack, np.from_dlpack):
        with pytest.raises(DifferentiationError, match=r"grad: DLPack asks .*\n.*x\.detach"):
            wf.grad(lambda v, f=function: wf.sum(wf.asarray(f(v))))(x)
        with pytest.raises(DifferentiationError, match="DLPack asks"):
            function(wf.requires_grad(wf.ones(2)))
        assert np.asarray(function(wf.requires_grad(wf.ones(2)).detach())).tolist() == [1.0, 1.0]


def test_lists_of_tensors_become_tensors_without_losing_gradients():
    slope = wf.grad(lambda v: wf.sum(wf.add([v[0], v[1] * 2], 1.0)))(wf.tensor([1.0, 2.0]))
    assert slope.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "value",
    [
        "text", object(), {"a": 1}, [[1, 2], [3]], [1, "x"], [None], None, b"raw", {1, 2},
        np.array(["a"]), np.array([object()]), np.array(["2020-01-01"], "M8[D]"),
        np.ma.array([1, 2], mask=[0, 1]), np.zeros(2, "f4,i4"), np.ones(2, ">f4"),
        2**70, [1, 2**70], [2**63, -1], 10**400,
    ],
)  # fmt: skip
def test_what_is_no_tensor_is_refused_in_our_words(value):
    for make in (wf.asarray, wf.tensor, wf.sin):
        with pytest.raises(WeftError):
            make(value)


def test_numpy_reads_what_requires_a_gradient_where_none_is_kept():
    x = wf.ones(2)
    x.requires_grad = True
    with wf.no_grad():
        assert np.asarray(x).tolist() == [1, 1]
    with pytest.raises(DifferentiationError, match="NumPy asks"):
        np.asarray(x)
    assert x.numpy().tolist() == np.asarray(x.detach()).tolist() == [1, 1]
