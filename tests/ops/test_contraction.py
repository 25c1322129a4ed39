import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.errors import ArgumentError, AxisError, DTypeError, ShapeError

NUMBERS = [
    np.dtype(name)
    for name in ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
    + ["float16", "float32", "float64", "complex64", "complex128"]
] + [np.dtype(ml_dtypes.bfloat16)]
SHAPES = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 1, 2, 3), (1, 6, 3, 4)),
    ((6, 2, 3), (5, 6, 3, 4)),
    ((2, 0), (0, 4)),
    ((0, 3), (3, 4)),
    ((0, 2, 3), (3, 4)),
    ((1, 1), (1, 1)),
]


def draw(shape, dtype=np.float64, seed=0):
    rng = np.random.default_rng([seed, *shape])
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 5, shape).astype(dtype)
    values = rng.integers(-8, 8, shape) / 4
    if np.dtype(dtype).kind == "c":
        return (values + 1j * rng.integers(-8, 8, shape)).astype(dtype)
    return values.astype(dtype)


def same(got, want, tolerance=1e-12):
    want = np.asarray(want)
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(
        got.numpy().astype(wide), want.astype(wide), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_matmul_is_numpys_for_every_dtype_and_shape(left, right, dtype):
    a, b = draw(left, dtype), draw(right, dtype, 1)
    if dtype.kind in "Vf" and dtype.itemsize == 2:
        want = np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(dtype)
    else:
        want = np.matmul(a, b)
    same(wf.matmul(a, b), want)


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)], ids=str)
def test_narrow_floats_accumulate_in_float32(dtype):
    ones = np.ones(5000, dtype)
    got = wf.matmul(ones, ones * dtype.type(0.5))
    assert float(got.astype(wf.float32).item()) == pytest.approx(2500, rel=2**-8)
    assert float(wf.vecdot(ones, ones).astype(wf.float32).item()) == pytest.approx(5000, rel=2**-8)


def test_matmul_of_views_with_negative_strides_is_numpys():
    a, b = draw((4, 6)), draw((6, 4), seed=1)
    same(wf.matmul(a[::-1, ::-2], b[::2, ::-1]), a[::-1, ::-2] @ b[::2, ::-1])
    batch = draw((3, 4, 6))
    same(wf.matmul(batch.swapaxes(0, 1), b), batch.swapaxes(0, 1) @ b)


def test_matmul_passes_nan_and_infinity_on():
    a = np.array([[np.nan, 1.0], [np.inf, -0.0]])
    with np.errstate(invalid="ignore"):
        same(wf.matmul(a, np.eye(2)), a @ np.eye(2))


@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_matmul_has_the_gradient_of_a_bilinear_map(left, right):
    a, b = draw(left), draw(right, seed=1)
    out, pullback = wf.vjp(wf.matmul, a, b)
    ct = np.cos(np.arange(out.size, dtype=float)).reshape(out.shape)
    by_a, by_b = pullback(ct)
    assert (by_a.shape, by_b.shape) == (left, right)
    for direction, gradient, moved in (
        (draw(left, seed=2), by_a, lambda d: d @ b),
        (draw(right, seed=3), by_b, lambda d: a @ d),
    ):
        assert np.sum(gradient.numpy() * direction) == pytest.approx(np.sum(ct * moved(direction)))


def test_a_batch_that_only_one_operand_has_is_contracted_in_one_product():
    x, w = draw((5, 4, 3)), draw((3, 2), seed=1)
    _, pullback = wf.vjp(wf.matmul, x, w)
    ct = draw((5, 4, 2), seed=2)
    _, by_w = pullback(ct)
    same(by_w, np.einsum("bmk,bmn->kn", x, ct))
    mapped = wf.vmap(wf.matmul, in_axes=(0, None))(x, w)
    same(mapped, x @ w)


def test_mistakes_of_matmul_name_operand_and_axis():
    with pytest.raises(ShapeError, match=r"matmul: operand 1, axis 0: factor 'k' is 3 here but 2"):
        wf.matmul(np.ones((4, 2)), np.ones((3, 5)))
    with pytest.raises(ShapeError, match="matmul: operands need an axis"):
        wf.matmul(np.ones(()), np.ones(3))
    with pytest.raises(ShapeError, match=r"matmul: .*does not broadcast"):
        wf.matmul(np.ones((2, 3, 3)), np.ones((4, 3, 3)))
    with pytest.raises(DTypeError, match="bool is not a number"):
        wf.matmul(np.ones((2, 2), bool), np.ones((2, 2), bool))


AXES = [
    ((3, 4, 5), (4, 5, 2), 2),
    ((3, 4), (5,), 0),
    ((3, 4, 5), (5, 4, 2), ((1, 2), (1, 0))),
    ((3, 4, 5), (2, 4), (1, 1)),
    ((3, 4, 5), (2, 4), (-2, -1)),
    ((0, 3), (3, 2), 1),
    ((2, 0), (0, 2), 1),
]


@pytest.mark.parametrize("dtype", ["int32", "float64", "complex64"])
@pytest.mark.parametrize(("left", "right", "axes"), AXES)
def test_tensordot_is_numpys(left, right, axes, dtype):
    a, b = draw(left, dtype), draw(right, dtype, 1)
    same(wf.tensordot(a, b, axes=axes), np.tensordot(a, b, axes=axes), 1e-5)


def test_mistakes_of_tensordot_are_named():
    a = np.ones((2, 3))
    with pytest.raises(ShapeError, match="tensordot: operand 1, axis 0: size 2 here but 3"):
        wf.tensordot(a, a, axes=1)
    with pytest.raises(ShapeError, match="cannot contract 3 axes"):
        wf.tensordot(a, a, axes=3)
    with pytest.raises(ArgumentError, match="1 axes of operand 0, 2 of operand 1"):
        wf.tensordot(a, a, axes=((0,), (0, 1)))
    with pytest.raises(AxisError, match="given twice"):
        wf.tensordot(a, a, axes=((0, 0), (0, 1)))


@pytest.mark.parametrize("dtype", NUMBERS[:-1], ids=str)
@pytest.mark.parametrize(
    ("name", "left", "right"),
    [
        ("vecdot", (2, 3), (2, 3)),
        ("vecdot", (5, 1, 3), (4, 3)),
        ("vecdot", (2, 0), (2, 0)),
        ("dot", (), (2, 3)),
        ("dot", (3,), (3,)),
        ("dot", (2, 3), (3,)),
        ("dot", (2, 3), (4, 3, 5)),
        ("inner", (2, 3), (4, 3)),
        ("inner", (), (3,)),
        ("outer", (2,), (3,)),
        ("outer", (2, 2), (3, 0)),
        ("vdot", (2, 3), (3, 2)),
        ("matvec", (5, 2, 3), (3,)),
        ("matvec", (2, 3), (5, 3)),
        ("vecmat", (5, 2), (2, 3)),
        ("vecmat", (2,), (5, 2, 3)),
    ],
)
def test_products_of_vectors_are_numpys(name, left, right, dtype):
    a, b = draw(left, dtype), draw(right, dtype, 1)
    tolerance = 2e-3 if dtype == np.float16 else 1e-5
    same(getattr(wf, name)(a, b), getattr(np, name)(a, b), tolerance)


def test_vecdot_reduces_any_axis_and_conjugates_its_first_operand():
    a = draw((2, 3, 4), "complex128")
    b = draw((2, 3, 4), "complex128", 1)
    for axis in (0, 1, -1, -3):
        same(wf.vecdot(a, b, axis=axis), np.sum(a.conj() * b, axis))


@pytest.mark.parametrize(
    ("name", "left", "right"),
    [
        ("vecdot", (2, 3), (2, 4)),
        ("vecdot", (), (2,)),
        ("dot", (2, 3), (2,)),
        ("inner", (2, 3), (2, 2)),
        ("vdot", (2, 3), (5,)),
        ("matvec", (2, 3), (2,)),
        ("matvec", (3,), (3,)),
        ("vecmat", (3,), (2, 3)),
    ],
)
def test_products_of_vectors_refuse_shapes_that_do_not_fit(name, left, right):
    with pytest.raises(ShapeError, match=f"{name}: "):
        getattr(wf, name)(np.ones(left), np.ones(right))


@pytest.mark.slow
@given(st.data())
def test_matmul_broadcasts_any_batches(data):
    full = data.draw(st.lists(st.integers(0, 3), max_size=3))
    m, k, n = (data.draw(st.integers(0, 3)) for _ in range(3))

    def lead():
        cut = data.draw(st.integers(0, len(full)))
        return tuple(size if data.draw(st.booleans()) else 1 for size in full[cut:])

    a, b = draw((*lead(), m, k)), draw((*lead(), k, n), seed=1)
    same(wf.matmul(a, b), a @ b)


def test_a_batch_of_rows_times_a_matrix_without_columns_is_empty():
    same(wf.matmul(np.ones((3, 1, 2)), np.ones((2, 0))), np.ones((3, 1, 0)))
