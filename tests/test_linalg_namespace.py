"""`wf.linalg`: the array API's and NumPy's functions, by value, by signature and by message."""

from __future__ import annotations

import inspect
from itertools import pairwise

import array_api_strict
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.errors import ArgumentError, AxisError, DTypeError, ShapeError
from weft.testing import check_grads

L = wf.linalg
DTYPES = [np.int32, np.float32, np.float64, np.complex64, np.complex128]


def drawn(*shape, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    made = rng.uniform(-4, 4, shape)
    if np.issubdtype(dtype, np.complexfloating):
        made = made + 1j * rng.uniform(-4, 4, shape)
    return made.astype(dtype)


def close(a, b, tolerance=1e-9):
    found = a.numpy() if isinstance(a, wf.Tensor) else np.asarray(a)
    assert found.shape == np.shape(b)
    np.testing.assert_allclose(found, np.asarray(b), rtol=tolerance, atol=tolerance)


def tolerance(dtype):
    return 1e-10 if dtype in (np.float64, np.complex128) else 2e-4


STANDARD = [
    name
    for name in array_api_strict.linalg.__all__
    if inspect.isfunction(getattr(array_api_strict.linalg, name))
]


@pytest.mark.parametrize("name", STANDARD)
def test_every_function_of_the_standard_takes_the_standards_arguments(name):
    wanted = inspect.signature(getattr(array_api_strict.linalg, name)).parameters
    found = inspect.signature(getattr(L, name)).parameters
    for parameter in wanted.values():
        assert parameter.name in found
        assert found[parameter.name].default == parameter.default
        if parameter.kind is parameter.POSITIONAL_ONLY:
            assert found[parameter.name].kind is parameter.POSITIONAL_ONLY
    extra = [p for p in found.values() if p.name not in wanted]
    assert all(p.default is not p.empty for p in extra)


@pytest.mark.parametrize("name", L.__all__)
def test_every_public_name_exists_and_is_documented(name):
    assert getattr(L, name).__doc__


def test_results_have_the_standards_fields():
    a = np.eye(2)
    assert L.qr(a)._fields == ("Q", "R")
    assert L.svd(a)._fields == ("U", "S", "Vh")
    assert L.eigh(a)._fields == L.eig(a)._fields == ("eigenvalues", "eigenvectors")
    assert L.slogdet(a)._fields == ("sign", "logabsdet")


@pytest.mark.parametrize("ord", ["fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_matrix_norms_are_numpys(ord, dtype):
    a = drawn(2, 4, 3, dtype=dtype)
    want = np.linalg.matrix_norm(a, ord=ord)
    assert L.matrix_norm(a, ord=ord).dtype == (
        np.float32 if dtype == np.int32 else np.zeros((), dtype).real.dtype
    )
    close(L.matrix_norm(a, ord=ord), want, tolerance(dtype))
    close(L.matrix_norm(a, ord=ord, keepdims=True), want[..., None, None], tolerance(dtype))


@pytest.mark.parametrize("ord", [0, 1, 2, 3, 0.5, -1, np.inf, -np.inf])
@pytest.mark.parametrize("axis", [None, 1, (0, 2), -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_vector_norms_are_numpys(ord, axis, keepdims):
    for dtype in DTYPES:
        a = drawn(2, 3, 4, dtype=dtype)
        wide = a.astype(np.float64) if dtype == np.int32 else a
        with np.errstate(divide="ignore"):
            want = np.linalg.vector_norm(wide, ord=ord, axis=axis, keepdims=keepdims)
        close(L.vector_norm(a, ord=ord, axis=axis, keepdims=keepdims), want, tolerance(dtype))


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((5,), {}),
        ((3, 4), {}),
        ((2, 3, 4), {}),
        ((5,), {"ord": 1}),
        ((3, 4), {"ord": "nuc"}),
        ((3, 4), {"ord": 1}),
        ((2, 3, 4), {"axis": 1}),
        ((2, 3, 4), {"axis": (2, 0), "ord": 1}),
        ((2, 3, 4), {"axis": (2, 0), "keepdims": True}),
        ((2, 3, 4), {"axis": 1, "ord": np.inf, "keepdims": True}),
    ],
)
def test_norm_is_numpys(shape, options):
    a = drawn(*shape)
    close(L.norm(a, **options), np.linalg.norm(a, **options))


def test_the_gradient_of_a_norm_at_zero_is_zero():
    assert wf.grad(L.vector_norm)(np.zeros(3)).tolist() == [0, 0, 0]
    assert wf.grad(L.matrix_norm)(np.zeros((2, 2))).tolist() == [[0, 0], [0, 0]]


def test_norms_of_narrow_floats_do_not_overflow_on_the_way():
    a = np.full(4, 300, np.float16)  # 300² is beyond float16
    assert L.vector_norm(a).dtype == np.float16
    assert L.vector_norm(a).item() == 600


def test_norms_pass_nan_and_infinity_on():
    assert np.isnan(L.vector_norm(np.array([1.0, np.nan])).item())
    assert L.vector_norm(np.array([1.0, -np.inf])).item() == np.inf


@pytest.mark.parametrize("p", [None, 2, -2, "fro", "nuc", 1, -1, np.inf, -np.inf])
def test_cond_is_numpys(p):
    a = drawn(2, 3, 3) + 5 * np.eye(3)
    close(L.cond(a, p), np.linalg.cond(a, p))


@pytest.mark.parametrize("a", [np.zeros((2, 2)), np.diag([1.0, 0.0])], ids=["zero", "singular"])
@pytest.mark.parametrize("p", [None, 1])
def test_cond_of_a_singular_matrix_is_infinite(p, a):
    assert L.cond(a, p).item() == np.inf


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [-3, -1, 0, 1, 2, 5])
def test_matrix_power_is_numpys(dtype, n):
    a = (np.array([[2, 1], [1, 3]]) + np.zeros((2, 1, 1))).astype(dtype)
    want = np.linalg.matrix_power(a, n)
    close(L.matrix_power(a, n), want, tolerance(dtype))
    assert L.matrix_power(a, n).dtype == (np.float32 if dtype == np.int32 and n < 0 else dtype)


def test_matrix_rank_counts_what_is_not_negligible():
    a = np.stack([np.diag([1.0, 1e-3, 0]), np.ones((3, 3)), np.zeros((3, 3)), np.eye(3)])
    assert L.matrix_rank(a).tolist() == [2, 1, 0, 3]
    assert L.matrix_rank(a, rtol=0.01).tolist() == [1, 1, 0, 3]
    assert L.matrix_rank(a, rtol=np.array([0.01, 0.01, 0.01, 2.0])).tolist() == [1, 1, 0, 0]
    assert L.matrix_rank(np.zeros((2, 0, 3))).tolist() == [0, 0]
    assert L.matrix_rank(a).dtype == np.int64
    assert L.matrix_rank(a, 2.0).tolist() == [0, 1, 0, 0]
    assert L.matrix_rank(a, tol=np.array([1e-4, 1, 1, 1])).tolist() == [2, 1, 0, 0]


def test_pinv_takes_a_tolerance_for_each_matrix():
    a = np.stack([np.diag([1.0, 1e-3]), np.diag([1.0, 1e-3])])
    want = np.linalg.pinv(a, rcond=np.array([1e-1, 1e-6]))
    close(L.pinv(a, rtol=np.array([1e-1, 1e-6])), want)
    close(L.pinv(a, rtol=1e-1), np.linalg.pinv(a, rcond=1e-1))
    close(L.pinv(a, 1e-1), np.linalg.pinv(a, 1e-1))
    close(L.pinv(a, rcond=np.array([1e-1, 1e-6])), want)


@pytest.mark.parametrize(
    ("dtype", "shape", "side"),
    [
        (np.int32, (3, 3), "right"),
        (np.float32, (4, 2), "right"),
        (np.float64, (4, 2), "left"),
        (np.complex64, (2, 4), "left"),
        (np.complex128, (2, 4), "right"),
        (np.complex128, (3, 3), "left"),
        (np.float64, (2, 0), "left"),
    ],
)
def test_polar_is_scipys(dtype, shape, side):
    a = drawn(2, *shape, dtype=dtype)
    found = L.polar(a, side)
    assert found._fields == ("U", "P")
    wide = a.astype(np.float32) if dtype == np.int32 else a
    for k in range(2 if a.size else 0):
        for ours, theirs in zip(found, scipy.linalg.polar(wide[k], side), strict=True):
            close(ours[k], theirs, 10 * tolerance(dtype))
    left, right = found if side == "right" else found[::-1]
    close(left @ right, wide, 10 * tolerance(dtype))


@pytest.mark.parametrize(
    ("a", "side", "order"),
    [
        (np.eye(3), "right", 2),
        (np.diag([2.0, 2.0, -1.0]), "left", 1),
        (drawn(4, 2), "right", 1),
        (drawn(2, 3, dtype=np.complex128), "left", 1),
    ],
    ids=["identity", "equal", "tall", "complex"],
)
def test_polar_has_derivatives_also_where_singular_values_are_equal(a, side, order):
    check_grads(lambda x: L.polar(x, side), (a,), order=order, atol=1e-5, rtol=1e-5)


def test_slopes_of_polar_map_and_compile():
    a, slope = wf.asarray(drawn(2, 2, 2)), wf.grad(lambda x: wf.sum(L.polar(x).U[0]))
    close(wf.vmap(slope)(a)[1], slope(a[1]).numpy())
    close(wf.compile(slope)(a[1]), slope(a[1]).numpy())


@pytest.mark.parametrize("shape", [(5, 3), (3, 3), (3, 5)])
@pytest.mark.parametrize("columns", [(), (2,)])
def test_lstsq_is_numpys(shape, columns):
    a, b = drawn(*shape), drawn(shape[0], *columns, seed=1)
    x, residuals, rank, s = L.lstsq(a, b)
    want = np.linalg.lstsq(a, b)
    close(x, want[0])
    close(residuals, want[1])
    assert rank.item() == want[2]
    close(s, want[3])


def test_lstsq_of_a_deficient_matrix_has_the_least_norm():
    a, b = np.ones((4, 2)), np.array([1.0, 2, 3, 4])
    close(L.lstsq(a, b).x, np.linalg.lstsq(a, b)[0])
    assert L.lstsq(a, b).rank.item() == 1


@pytest.mark.parametrize("uplo", ["L", "U"])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_eigh_reads_only_the_triangle_that_is_named(uplo, dtype):
    a = drawn(2, 3, 3, dtype=dtype)
    close(L.eigvalsh(a, UPLO=uplo), np.linalg.eigvalsh(a, uplo))
    close(L.eigh(a, UPLO=uplo).eigenvalues, np.linalg.eigh(a, uplo).eigenvalues)


@pytest.mark.parametrize("shapes", [((2, 3, 3), (2, 3, 4)), ((3, 3), (3,)), ((2, 3, 3), (3,))])
def test_solve_is_numpys(shapes):
    a, b = drawn(*shapes[0]) + 9 * np.eye(3), drawn(*shapes[1], seed=1)
    close(L.solve(a, b), np.linalg.solve(a, b))


def test_solve_broadcasts_batches_of_either_side():
    a, b = drawn(4, 1, 3, 3) + 9 * np.eye(3), drawn(1, 2, 3, 2, seed=1)
    close(L.solve(a, b), np.linalg.solve(a, b))
    close(L.solve(a[0, 0], b), np.linalg.solve(a[0, 0], b))


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_numpys(dtype):
    a, b = drawn(4, 3, dtype=dtype), drawn(4, 3, dtype=dtype, seed=1)
    close(L.cross(a, b), np.linalg.cross(a, b), tolerance(dtype))
    close(L.cross(a[0], b), np.linalg.cross(a[0], b), tolerance(dtype))
    close(L.cross(a.T, b.T, axis=0), np.linalg.cross(a.T, b.T, axis=0), tolerance(dtype))
    close(L.vecdot(a, b), np.linalg.vecdot(a, b), tolerance(dtype))
    close(L.outer(a[0], b[1]), np.linalg.outer(a[0], b[1]), tolerance(dtype))
    close(L.tensordot(a, b, axes=2), np.linalg.tensordot(a, b, axes=2), tolerance(dtype))
    close(L.matmul(a, L.matrix_transpose(b)), a @ b.T, tolerance(dtype))
    chain = [a, b.T, a]
    close(L.multi_dot(chain), np.linalg.multi_dot(chain), 10 * tolerance(dtype))


@pytest.mark.parametrize("axes", [(0, 1, 2), (0, -1, 0), (-3, 1, -2)])
def test_cross_takes_vectors_along_axes_of_each_operand(axes):
    a = np.moveaxis(drawn(4, 5, 3), -1, axes[0])
    b = np.moveaxis(drawn(4, 5, 3, seed=1), -1, axes[1])
    close(wf.cross(a, b, *axes), np.cross(a, b, *axes))
    named = {"axisa": axes[0], "axisb": axes[1], "axisc": axes[2]}
    close(wf.vmap(lambda a, b: wf.cross(a, b, **named))(a[None], b[None])[0], np.cross(a, b, *axes))
    close(wf.cross(a, a, *axes, axis=axes[0]), np.cross(a, a, axis=axes[0]))
    with pytest.raises(ShapeError, match="cross: operand 1, axis 0: size must be 3, got 4"):
        wf.cross(a, drawn(4, 5, 3), axes[0], 0)


@given(
    rows=st.integers(0, 4),
    columns=st.integers(0, 4),
    offset=st.integers(-5, 5),
    lead=st.sampled_from([(), (2,), (0,)]),
)
def test_diagonal_and_trace_are_numpys(rows, columns, offset, lead):
    a = drawn(*lead, rows, columns)
    close(L.diagonal(a, offset=offset), np.linalg.diagonal(a, offset=offset))
    close(L.trace(a, offset=offset), np.linalg.trace(a, offset=offset))


def test_trace_sums_small_integers_in_64_bits():
    a = np.eye(3, dtype=np.int8) * 100
    assert L.trace(a).item() == 300
    assert L.trace(a).dtype == np.int64
    assert L.trace(a, dtype=np.float32).dtype == np.float32


@given(sizes=st.lists(st.integers(1, 6), min_size=3, max_size=7))
def test_multi_dot_gives_the_product_in_any_order(sizes):
    chain = [drawn(n, m, seed=k) for k, (n, m) in enumerate(pairwise(sizes))]
    close(L.multi_dot(chain), np.linalg.multi_dot(chain) if len(chain) > 1 else chain[0], 1e-7)


def test_multi_dot_takes_vectors_at_the_ends():
    a, b, c = drawn(3), drawn(3, 4), drawn(4, seed=2)
    close(L.multi_dot([a, b, c]), np.linalg.multi_dot([a, b, c]))


def test_integers_become_the_default_float():
    a = np.array([[2, 1], [1, 3]])
    assert L.inv(a).dtype == L.det(a).dtype == L.cholesky(a).dtype == np.float32
    with wf.default_dtype(np.float64):
        assert L.inv(a).dtype == np.float64


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: L.inv(np.ones(3)), ShapeError, "inv: needs at least 2 axes"),
        (lambda: L.det(np.ones((2, 3))), ShapeError, "det: the matrix must be square"),
        (lambda: L.inv(np.ones((2, 2), bool)), DTypeError, "inv: bool is not a number"),
        (lambda: L.solve(np.eye(2), np.ones(3)), ShapeError, "solve: operand 1, axis 0: size 3"),
        (lambda: L.solve(np.eye(2), 1.0), ShapeError, "solve: operand 1 needs an axis"),
        (lambda: L.qr(np.eye(2), mode="raw"), ArgumentError, "qr: mode must be one of"),
        (lambda: L.eigh(np.eye(2), UPLO="X"), ArgumentError, "eigh: UPLO must be one of 'L', 'U'"),
        (lambda: L.matrix_norm(np.eye(2), ord=3), ArgumentError, "matrix_norm: ord is one of"),
        (lambda: L.vector_norm(np.ones(2), ord="fro"), ArgumentError, "ord must be a number"),
        (lambda: L.vector_norm(np.ones(2), axis=1), AxisError, "axis 1 is out of range"),
        (lambda: L.norm(np.ones((2, 2, 2)), ord=2), AxisError, "norm: one axis or two, got 3"),
        (lambda: L.matrix_power(np.eye(2), 1.5), ArgumentError, "exponent must be an integer"),
        (lambda: L.matrix_power(np.ones((2, 3)), 2), ShapeError, "matrix_power: the matrix must"),
        (lambda: L.cross(np.ones(2), np.ones(2)), ShapeError, "cross: operand 0, axis -1: size"),
        (lambda: L.multi_dot([np.eye(2)]), ArgumentError, "at least two matrices"),
        (lambda: L.lstsq(np.eye(2), np.ones(3)), ShapeError, "lstsq: rows do not fit"),
        (lambda: L.diagonal(np.ones(2)), ShapeError, "diagonal: needs at least 2 axes"),
        (lambda: L.polar(np.eye(2), "both"), ArgumentError, "polar: side must be one of"),
        (lambda: L.polar(np.ones(3)), ShapeError, "polar: needs at least 2 axes"),
        (lambda: L.pinv(np.eye(2), 1, rtol=1), ArgumentError, "rcond and rtol mean the same"),
        (lambda: L.matrix_rank(np.eye(2), 1, rtol=1), ArgumentError, "tol and rtol are both"),
        (lambda: L.matrix_rank(np.eye(2), 1j), DTypeError, "matrix_rank: tol must be a real"),
    ],
)
def test_mistakes_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_cond_of_nan_is_nan():
    assert np.isnan(L.cond(np.full((2, 2), np.nan), 1).item())
