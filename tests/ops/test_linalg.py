"""Matrix ops against LAPACK through NumPy and SciPy, and their derivatives against JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import weft as wf
from weft.core.common.slots import OPS
from weft.core.common.types import TensorType
from weft.errors import ArgumentError, DTypeError, MissingRuleError, ShapeError
from weft.ops.base import call

L = wf.linalg
FLOATS = [np.float32, np.float64, np.complex64, np.complex128]
WIDE = [np.float64, np.complex128]


def matrix(*shape, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    made = rng.uniform(-1, 1, shape)
    if np.issubdtype(dtype, np.complexfloating):
        made = made + 1j * rng.uniform(-1, 1, shape)
    return made.astype(dtype)


def square(n, *lead, dtype=np.float64, seed=0):
    return (matrix(*lead, n, n, dtype=dtype, seed=seed) + 2 * np.eye(n)).astype(dtype)


def positive(n, *lead, dtype=np.float64):
    a = square(n, *lead, dtype=dtype)
    return a @ np.conj(a.mT) + np.eye(n, dtype=dtype)


def close(a, b, tolerance=1e-9):
    if isinstance(a, tuple):
        for x, y in zip(a, b, strict=True):
            close(x, y, tolerance)
        return
    a = a.numpy() if isinstance(a, wf.Tensor) else np.asarray(a)
    np.testing.assert_allclose(a, np.asarray(b), rtol=tolerance, atol=tolerance)


def agree_with_jax(ours, theirs, *arrays, tolerance=1e-8):
    """Both modes: the pushed tangents and pulled cotangents are JAX's."""
    tangents = [np.cos(1 + 2 * a) for a in arrays]
    with jax.enable_x64(True):
        points = [jnp.asarray(a) for a in arrays]
        value, pullback = jax.vjp(jax.jit(theirs), *points)
        moves = [jnp.asarray(t) for t in tangents]
        pushed = jax.jit(lambda p, t: jax.jvp(theirs, p, t)[1])(tuple(points), tuple(moves))
        leaves, structure = jax.tree.flatten(value)
        cotangents = [np.sin(2 + np.arange(x.size)).reshape(x.shape) * (1 + 0j) for x in leaves]
        cotangents = [
            (c * (1 + 0.5j) if np.iscomplexobj(x) else c.real).astype(x.dtype)
            for c, x in zip(cotangents, leaves, strict=True)
        ]
        pulled = pullback(jax.tree.unflatten(structure, list(map(jnp.asarray, cotangents))))
        moves = [np.asarray(x) for x in jax.tree.leaves(pushed)]
        pulled = [np.asarray(x) for x in pulled]

    def plain(*args):
        found = ours(*args)
        return tuple(found) if isinstance(found, tuple) else (found,)

    got, push = wf.jvp(plain, arrays, tuple(tangents))
    close(got, tuple(np.asarray(x) for x in leaves), tolerance)
    close(push, tuple(moves), tolerance)
    _, pull = wf.vjp(plain, *arrays)
    close(tuple(pull(tuple(map(wf.asarray, cotangents)))), tuple(pulled), tolerance)


# One batched complex case each, since JAX compiles for most of a second: the laws cover real ones.
C = np.complex128
TALL = matrix(2, 4, 2, dtype=C)
SQUARE = square(3, 2, dtype=C)
SQUARES = (SQUARE, matrix(2, 3, 2, dtype=C, seed=1))
POSITIVE = positive(3, 2, dtype=C)
WIDE_MATRIX = matrix(2, 2, 4, dtype=C)


def adjoint_solve(a, b):
    return jax.lax.linalg.triangular_solve(
        a, b, left_side=True, lower=True, transpose_a=True, conjugate_a=True
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "arrays"),
    [
        (L.cholesky, jnp.linalg.cholesky, (POSITIVE,)),
        (L.qr, jnp.linalg.qr, (TALL,)),
        (L.eigh, jnp.linalg.eigh, (POSITIVE,)),
        (L.eigvals, jnp.linalg.eigvals, (SQUARE,)),
        (L.solve, jnp.linalg.solve, SQUARES),
        (
            lambda a, b: L.solve_triangular(a, b, lower=True, transpose=True, conjugate=True),
            adjoint_solve,
            SQUARES,
        ),
        (L.det, jnp.linalg.det, (SQUARE,)),
        (L.slogdet, jnp.linalg.slogdet, (SQUARE,)),
        (L.pinv, jnp.linalg.pinv, (TALL,)),
        (lambda x: L.lu(x)[1:], lambda x: jax.scipy.linalg.lu(x)[1:], (WIDE_MATRIX[0],)),
        (
            lambda x: L.matrix_norm(x, ord="nuc"),
            lambda x: jnp.linalg.matrix_norm(x, ord="nuc"),
            (TALL,),
        ),
        (
            lambda x: L.vector_norm(x, axis=-1, ord=3),
            lambda x: jnp.linalg.vector_norm(x, axis=-1, ord=3),
            (TALL,),
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.slow
def test_complex_derivatives_are_those_of_jax(ours, theirs, arrays):
    agree_with_jax(ours, theirs, *arrays)


@pytest.mark.parametrize("a", [SQUARE, TALL, WIDE_MATRIX], ids=["square", "tall", "wide"])
@pytest.mark.slow
def test_complex_derivatives_of_svd_are_those_of_jax(a):
    agree_with_jax(
        lambda x: L.svd(x, full_matrices=False),
        lambda x: jnp.linalg.svd(x, full_matrices=False),
        a,
    )


def test_expm_moves_by_its_frechet_derivative():
    a, t = square(3, dtype=C), matrix(3, 3, dtype=C, seed=4)
    value, pushed = wf.jvp(L.expm, (a,), (t,))
    close((value, pushed), scipy.linalg.expm_frechet(a, t))
    _, pullback = wf.vjp(L.expm, a)
    (pulled,) = pullback(t)
    close(pulled, scipy.linalg.expm_frechet(a.T, t)[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_sqrtm_is_scipys_and_moves_as_its_square_says(dtype):
    tolerance = 1e-4 if dtype == np.float32 else 1e-10
    a, t = matrix(2, 4, 4, dtype=dtype), matrix(2, 4, 4, dtype=dtype, seed=4)
    root, pushed = wf.jvp(L.sqrtm, (a,), (t,))
    assert root.dtype == np.result_type(dtype, np.complex64)
    close(root, np.stack([scipy.linalg.sqrtm(each) for each in a]), tolerance)
    close(pushed @ root + root @ pushed, t, tolerance)
    close(L.sqrtm(wf.zeros((2, 2))), np.zeros((2, 2)))
    with pytest.raises(wf.errors.ArgumentError, match="singular matrix has no square root"):
        L.sqrtm([[0.0, 1.0], [0.0, 0.0]]).numpy()


@pytest.mark.parametrize("dtype", WIDE)
def test_wide_qr_has_the_derivative_of_its_square_block(dtype):
    a = matrix(2, 4, dtype=dtype)
    t = matrix(2, 4, dtype=dtype, seed=3)
    step = 1e-6
    _, (dq, dr) = wf.jvp(lambda x: tuple(L.qr(x)), (a,), (t,))
    up, down = (np.linalg.qr(a + s * step * t) for s in (1, -1))
    close(dq, (up.Q - down.Q) / (2 * step), 1e-6)
    close(dr, (up.R - down.R) / (2 * step), 1e-6)


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (L.cholesky, positive),
        (L.inv, square),
        (L.det, square),
        (L.expm, square),
        (lambda x: L.sqrtm(x).real, positive),
        (L.pinv, square),
        (L.eigvalsh, positive),
        (L.svdvals, square),
        (lambda x: L.slogdet(x)[1], square),
        (lambda x: L.eigh(x)[1] ** 2, positive),
        (lambda x: L.qr(x)[1], square),
        (lambda x: L.svd(x)[0] ** 2, square),
        (lambda x: L.lu(x)[2], square),
        (lambda x: L.eigvals(x).real ** 2, square),
    ],
)
def test_second_derivatives_are_finite_differences_of_first_ones(function, make):
    a = make(3)
    t = matrix(3, 3, seed=5)

    def gradient(x):
        return wf.grad(lambda y: wf.sum(wf.sin(function(y))))(x)

    _, pushed = wf.jvp(gradient, (a,), (t,))
    step = 1e-5
    up, down = (gradient(a + s * step * t).numpy() for s in (1, -1))
    close(pushed, (up - down) / (2 * step), 1e-5)


def test_det_has_a_derivative_at_a_singular_matrix():
    a = np.diag([2.0, 3.0, 0.0])
    close(wf.grad(L.det)(a), np.diag([0.0, 0.0, 6.0]), 1e-12)
    assert L.det(np.zeros((2, 2))).item() == 0


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_det_of_few_rows_has_all_derivatives_at_singular_matrices(rows):
    a, step = np.outer(np.arange(rows), np.ones(rows)), matrix(rows, rows, dtype=np.float64)
    along = [np.linalg.det(a + t * step) for t in range(4)]
    expected = np.linalg.solve(np.vander(range(4), increasing=True), along)
    found, f = [], lambda t: L.det(a + t * wf.asarray(step))
    for times in (1, 1, 2, 6):
        found.append(f(np.float64(0)).item() / times)
        f = wf.grad(f)
    close(found, expected, 1e-12)


def test_values_have_derivatives_where_vectors_have_none():
    eye = np.eye(3)
    close(wf.grad(lambda x: wf.sum(L.eigvalsh(x)))(eye), eye)
    close(wf.grad(lambda x: wf.sum(L.svdvals(x)))(eye), eye)


def test_eigenvectors_move_as_lapack_moves_them():
    a, t = square(4, dtype=np.complex128), matrix(4, 4, dtype=np.complex128, seed=2)
    _, (dw, dv) = wf.jvp(lambda x: tuple(L.eig(x)), (a,), (t,))
    step = 1e-6
    up, down = (np.linalg.eig(a + s * step * t) for s in (1, -1))
    close(dw, (up.eigenvalues - down.eigenvalues) / (2 * step), 1e-6)
    close(dv, (up.eigenvectors - down.eigenvectors) / (2 * step), 1e-6)


@pytest.mark.parametrize("name", ["qr_complete", "svd_full"])
def test_a_completed_basis_has_no_derivative_and_says_so(name):
    op = OPS[name]
    with pytest.raises(MissingRuleError, match="not determined by the matrix"):
        wf.jvp(lambda x: call(op, (x,), {}), (matrix(4, 2),), (matrix(4, 2),))
    _, pullback = wf.vjp(lambda x: call(op, (x,), {})[0], matrix(4, 2))
    with pytest.raises(MissingRuleError, match=r"use (mode|full_matrices)"):
        pullback(np.ones((4, 4)))


@pytest.mark.parametrize("dtype", FLOATS)
class TestValuesInEveryDtype:
    def tolerance(self, dtype):
        return 2e-4 if dtype in (np.float32, np.complex64) else 1e-10

    def test_cholesky_multiplies_back(self, dtype):
        a = positive(4, 2, dtype=dtype)
        factor = L.cholesky(a).numpy()
        assert factor.dtype == dtype
        close(factor @ np.conj(factor.mT), a, self.tolerance(dtype))
        close(L.cholesky(a), np.linalg.cholesky(a), self.tolerance(dtype))

    @pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5)])
    def test_lu_multiplies_back(self, dtype, shape):
        a = matrix(2, *shape, dtype=dtype)
        p, left, right = (x.numpy() for x in L.lu(a))
        assert p.dtype == left.dtype == right.dtype == dtype
        close(p @ left @ right, a, self.tolerance(dtype))
        close(L.lu(a[0]), scipy.linalg.lu(a[0]), self.tolerance(dtype))

    @pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5)])
    @pytest.mark.parametrize("mode", ["reduced", "complete"])
    def test_qr_is_numpys(self, dtype, shape, mode):
        a = matrix(2, *shape, dtype=dtype)
        close(L.qr(a, mode=mode), np.linalg.qr(a, mode), self.tolerance(dtype))
        close(L.qr(a, mode="r"), np.linalg.qr(a, "r"), self.tolerance(dtype))

    @pytest.mark.parametrize("full", [True, False])
    @pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5)])
    def test_svd_is_numpys(self, dtype, shape, full):
        a = matrix(2, *shape, dtype=dtype)
        u, s, vh = L.svd(a, full_matrices=full)
        assert s.dtype == np.zeros((), dtype).real.dtype
        close((u, s, vh), np.linalg.svd(a, full), self.tolerance(dtype))
        close(L.svdvals(a), np.linalg.svdvals(a), self.tolerance(dtype))

    def test_eigenvectors_are_turned_into_multiples_of_themselves(self, dtype):
        a = positive(4, 2, dtype=dtype)
        w, v = (x.numpy() for x in L.eigh(a))
        close(a @ v, v * w[..., None, :], self.tolerance(dtype))
        close(np.conj(v.mT) @ v, np.broadcast_to(np.eye(4), a.shape), self.tolerance(dtype))
        b = square(4, 2, dtype=dtype)
        w, v = (x.numpy() for x in L.eig(b))
        assert w.dtype == v.dtype == np.result_type(dtype, np.complex64)
        close(b @ v, v * w[..., None, :], self.tolerance(dtype))

    @pytest.mark.parametrize("name", ["inv", "det", "slogdet", "pinv"])
    def test_inverses_and_determinants_are_numpys(self, dtype, name):
        a = square(4, 2, 3, dtype=dtype)
        close(getattr(L, name)(a), getattr(np.linalg, name)(a), self.tolerance(dtype))

    def test_expm_is_scipys(self, dtype):
        a = matrix(2, 3, 3, dtype=dtype)
        assert L.expm(a).dtype == dtype
        close(L.expm(a), scipy.linalg.expm(a), self.tolerance(dtype))

    def test_adjugate_is_determinant_times_inverse(self, dtype):
        a = square(4, 2, dtype=dtype)
        expected = np.linalg.det(a)[..., None, None] * np.linalg.inv(a)
        close(OPS["adjugate"](a), expected, 10 * self.tolerance(dtype))

    @pytest.mark.parametrize("lower", [True, False])
    @pytest.mark.parametrize("unit", [True, False])
    @pytest.mark.parametrize("transpose", [True, False])
    @pytest.mark.parametrize("rows", [4, 20])
    def test_triangular_solve_is_scipys(self, dtype, lower, unit, transpose, rows):
        a, b = square(rows, dtype=dtype) / rows, matrix(rows, 2, dtype=dtype, seed=1)
        options = {"lower": lower, "unit_diagonal": unit}
        close(
            L.solve_triangular(a, b, transpose=transpose, **options),
            scipy.linalg.solve_triangular(a, b, trans="T" if transpose else "N", **options),
            self.tolerance(dtype),
        )

    @pytest.mark.parametrize("trans", [0, 1, 2, "N", "T", "C"])
    def test_triangular_solve_takes_scipys_word_for_transposes(self, dtype, trans):
        a, b = square(4, dtype=dtype), matrix(4, 2, dtype=dtype, seed=1)
        want = scipy.linalg.solve_triangular(a, b, trans=trans)
        close(L.solve_triangular(a, b, trans=trans), want, self.tolerance(dtype))
        close(
            wf.compile(lambda a, b: L.solve_triangular(a, b, trans=trans))(a, b),
            want,
            self.tolerance(dtype),
        )
        rows = np.stack([b, 2 * b])
        found = wf.vmap(lambda b: L.solve_triangular(a, b, trans=trans))(rows)
        close(found, np.stack([want, 2 * want]), self.tolerance(dtype))


@pytest.mark.parametrize("trans", [1, 2])
def test_triangular_solve_with_transposes_has_jaxs_derivatives(trans):
    a, b = square(3), matrix(3, 2, seed=1)

    def ours(a, b):
        return wf.sum(L.solve_triangular(a, b, trans=trans, lower=True) ** 2)

    def theirs(a, b):
        found = jax.scipy.linalg.solve_triangular(a, b, trans=trans, lower=True)
        return (found**2).sum()

    with jax.enable_x64(True):
        wants = jax.jit(jax.grad(theirs, (0, 1)))(a, b)
    for found, want in zip(wf.grad(ours, (0, 1))(a, b), wants, strict=True):
        close(found, want, 1e-9)


def test_a_word_for_transposes_beside_flags_is_refused():
    with pytest.raises(ArgumentError, match="trans is 'T', and transpose or conjugate were"):
        L.solve_triangular(np.eye(2), np.ones(2), trans="T", transpose=True)
    with pytest.raises(ArgumentError, match="trans must be one of 0, 1, 2, 'N', 'T', 'C', got 3"):
        L.solve_triangular(np.eye(2), np.ones(2), trans=3)


@pytest.mark.parametrize("dtype", [wf.asarray(0.0, dtype=d).dtype for d in ("float16", "bfloat16")])
def test_narrow_floats_are_computed_in_float32_and_rounded(dtype):
    a = positive(3).astype(dtype)
    assert L.cholesky(a).dtype == L.inv(a).dtype == L.eigh(a).eigenvectors.dtype == dtype
    assert L.eigvals(a).dtype == np.complex64
    close(L.cholesky(a).numpy().astype(np.float32), np.linalg.cholesky(a.astype(np.float32)), 2e-2)


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 0), (0, 0), (1, 1)])
@pytest.mark.parametrize("name", ["cholesky", "inv", "det", "slogdet", "eigvalsh", "eigh", "expm"])
def test_empty_batches_and_matrices_keep_numpys_shapes(shape, name):
    a = np.zeros(shape) + np.eye(shape[-1])
    library = scipy.linalg if name == "expm" else np.linalg
    expected = getattr(library, name)(a)
    found = getattr(L, name)(a)
    for got, want in zip(
        found if isinstance(found, tuple) else (found,),
        expected if isinstance(expected, tuple) else (expected,),
        strict=True,
    ):
        assert got.shape == want.shape
        close(got, want)


@pytest.mark.parametrize("shape", [(0, 3, 2), (3, 0), (0, 3), (1, 1)])
def test_empty_rectangles_are_factored(shape):
    a = np.ones(shape)
    for mode in ("reduced", "complete"):
        close(L.qr(a, mode=mode), np.linalg.qr(a, mode))
    for full in (True, False):
        close(L.svd(a, full_matrices=full), np.linalg.svd(a, full))
    p, left, right = L.lu(a)
    assert (p.shape[-1], left.shape[-2], right.shape[-1]) == (shape[-2], shape[-2], shape[-1])
    assert L.pinv(a).shape == np.linalg.pinv(a).shape


def test_negative_strides_are_read_right():
    a = square(4)[::-1, ::-1]
    close(L.inv(a), np.linalg.inv(a))
    close(L.solve_triangular(a, a[:, ::-1]), scipy.linalg.solve_triangular(a, a[:, ::-1]))


def test_triangular_systems_of_any_layout_are_solved_and_left_as_they_are():
    a, b = square(24) / 24, matrix(2, 24, 3, seed=1)
    for layout in (a, a.T.copy().T, a[::-1, ::-1]):
        kept = layout.copy(), b.copy()
        expected = [scipy.linalg.solve_triangular(layout, x, lower=True) for x in b]
        close(L.solve_triangular(layout, b, lower=True), np.stack(expected))
        assert np.array_equal(layout, kept[0])
        assert np.array_equal(b, kept[1])


def test_only_the_hermitian_part_is_factored():
    a = positive(3) + np.triu(np.ones((3, 3)), 1)
    even = (a + a.T) / 2
    close(L.cholesky(a), np.linalg.cholesky(even))
    close(L.eigvalsh(a), np.linalg.eigvalsh(even))


@pytest.mark.parametrize(
    ("call_", "text"),
    [
        (lambda: L.cholesky(-np.eye(2)), "cholesky: a matrix is not positive definite"),
        (lambda: L.inv(np.zeros((2, 2))), "inv: a matrix is singular"),
        (lambda: L.solve(np.zeros((2, 2)), np.ones(2)), "solve: a matrix is singular"),
        (lambda: L.solve_triangular(np.zeros((2, 2)), np.ones(2)), "diagonal element 0 is 0"),
        (lambda: L.svd(np.full((2, 2), np.nan)), "svd: no convergence"),
        (lambda: L.eig(np.full((2, 2), np.nan)), "eig: no convergence"),
    ],
)
def test_matrices_that_cannot_be_factored_raise(call_, text):
    with pytest.raises(ArgumentError, match=text):
        call_()


def test_a_singular_gradient_raises_instead_of_being_wrong():
    with pytest.raises(ArgumentError, match="inv: a matrix is singular"):
        wf.grad(lambda x: L.slogdet(x)[1])(np.zeros((2, 2)))


def test_ops_refuse_rectangles_and_integers_when_types_are_inferred():
    with pytest.raises(ShapeError, match="cholesky: operand 0: the matrix must be square"):
        OPS["cholesky"].infer(TensorType((3, 2), np.dtype("float64")))
    with pytest.raises(ShapeError, match="qr: operand 0: more columns than rows"):
        OPS["qr"].infer(TensorType((2, 3), np.dtype("float64")))
    with pytest.raises(DTypeError, match="inv: no meaning for int64"):
        OPS["inv"].infer(TensorType((2, 2), np.dtype("int64")), strict=True)


def test_matrices_without_batch_axes_meet_batches_under_vmap():
    a, b = square(3), matrix(5, 3, 2)
    close(wf.vmap(L.solve, in_axes=(None, 0))(a, b), np.linalg.solve(a, b))
    many = square(3, 5)
    mapped = wf.vmap(wf.grad(L.det))(many)
    close(mapped, np.stack([wf.grad(L.det)(x).numpy() for x in many]))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_factor_of_what_is_unknown_is_unknown(size):
    a = np.eye(size)
    a[-1, -1] = np.nan
    for factor in (wf.linalg.cholesky, wf.compile(wf.linalg.cholesky)):
        found = factor(wf.tensor(a)).numpy()
        assert np.isnan(found[-1, -1])
        assert np.array_equal(found[:-1], np.eye(size)[:-1])
        with pytest.raises(ArgumentError, match="not positive definite"):
            factor(wf.tensor(np.diag([1.0] * (size - 1) + [0.0])))
