"""`wf.linalg`: kept factors, conjugate gradients and matrices made of parts, beside SciPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg

import weft as wf
from weft.errors import ArgumentError, DTypeError, ShapeError, TreeError

L = wf.linalg
DTYPES = [np.float32, np.float64, np.complex64, np.complex128]


def drawn(*shape, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    made = rng.normal(size=shape) + (
        1j * rng.normal(size=shape) if dtype().imag.dtype != dtype else 0
    )
    return made.astype(dtype)


def positive(*shape, dtype=np.float64):
    a = drawn(*shape, dtype=dtype)
    return a @ np.conj(np.swapaxes(a, -1, -2)) + np.eye(shape[-1], dtype=dtype)


def close(found, want, tolerance=1e-9):
    assert found.shape == np.shape(want)
    np.testing.assert_allclose(found.numpy(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("n", [1, 3, 7])
def test_cholesky_factors_solve_as_scipys_do(n, dtype, lower):
    a, b = positive(n, n, dtype=dtype), drawn(n, 2, dtype=dtype)
    want, _ = scipy.linalg.cho_factor(a, lower)
    factor = L.cho_factor(a, lower=lower)
    close(factor.c, np.tril(want) if lower else np.triu(want))
    for right in (b, b[:, 0]):
        close(L.cho_solve(factor, right), scipy.linalg.cho_solve((want, lower), right))
        close(L.cho_solve((factor.c, lower), right), np.linalg.solve(a, right))


@pytest.mark.parametrize("trans", [0, 1, 2])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("n", [1, 3, 7])
def test_lu_factors_solve_as_scipys_do(n, dtype, trans):
    a, b = drawn(n, n, dtype=dtype), drawn(n, 2, dtype=dtype)
    factor, want = L.lu_factor(a), scipy.linalg.lu_factor(a)
    close(factor.lu, want[0])
    for right in (b, b[:, 0]):
        close(L.lu_solve(factor, right, trans=trans), scipy.linalg.lu_solve(want, right, trans))


@pytest.mark.parametrize("trans", [0, 1])
def test_kept_factors_broadcast_batches(trans):
    a, b = positive(2, 1, 4, 4), drawn(3, 4, 5)
    turned = np.swapaxes(a, -1, -2) if trans else a
    close(L.lu_solve(L.lu_factor(a), b, trans=trans), np.linalg.solve(turned, b))
    close(L.cho_solve(L.cho_factor(a), b), np.linalg.solve(a, b))
    each = wf.vmap(lambda a: L.lu_solve(L.lu_factor(a), b[0]))(a[:, 0])
    close(each, np.linalg.solve(a[:, 0], b[0]))


@pytest.mark.parametrize(
    "way",
    [
        lambda a, b: L.cho_solve(L.cho_factor(a), b),
        lambda a, b: L.lu_solve(L.lu_factor(a), b),
        lambda a, b: L.cg(a, b, tol=1e-14).x,
        lambda a, b: L.cg(lambda v: a @ v, b, tol=1e-14).x,
        lambda a, b: L.gmres(a, b, tol=1e-14).x,
        lambda a, b: L.gmres(lambda v: a @ v, b, tol=1e-14, M=np.eye(4)).x,
    ],
    ids=["cholesky", "lu", "cg", "cg of a function", "gmres", "gmres of a function"],
)
def test_each_way_to_solve_has_the_derivatives_of_solve(way):
    a, b = wf.asarray(positive(4, 4)), wf.asarray(drawn(4, seed=1))

    def value(solve):
        def of(a, b):
            return wf.sum(solve((a + a.T) / 2, b) ** 3)  # all take the symmetric part

        return of

    for transform in (
        lambda f: wf.grad(f, argnums=(0, 1)),
        lambda f: wf.hessian(f, argnums=1),
        lambda f: wf.grad(lambda a, b: wf.sum(wf.sin(wf.grad(f)(a, b)))),
        lambda f: lambda a, b: wf.jvp(f, (a, b), (a, b)),
        lambda f: wf.compile(wf.grad(f)),
        lambda f: lambda a, b: wf.vmap(wf.grad(f), in_axes=(None, 0))(a, wf.stack([b, 2 * b])),
    ):
        found, want = transform(value(way))(a, b), transform(value(L.solve))(a, b)
        for x, y in zip(wf.tree_leaves(found), wf.tree_leaves(want), strict=True):
            close(x, y.numpy(), 1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_conjugate_gradients_meet_the_tolerance(dtype):
    a, b = positive(6, 6, dtype=dtype), drawn(6, 2, dtype=dtype)
    for start, near in ((None, None), (b, np.diag(1 / np.diag(a)).astype(dtype))):
        x, info = L.cg(a, b, start, M=near, tol=1e-5)
        assert x.dtype == dtype and info.item() == 0
        assert np.linalg.norm(a @ x.numpy() - b) <= 1.1e-5 * np.linalg.norm(b)
    assert L.cg(a, b, maxiter=1).info.item() == 1
    assert L.cg(a, np.zeros_like(b)).x.numpy().any() == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_minimal_residuals_meet_the_tolerance(dtype):
    a, b = drawn(12, 12, dtype=dtype) + 10 * np.eye(12, dtype=dtype), drawn(12, dtype=dtype)
    for start, near, restart in ((None, None, 20), (b, np.linalg.inv(a), 20), (None, None, 3)):
        x, info = L.gmres(a, b, start, M=near, restart=restart)
        assert x.dtype == dtype and info.item() == 0
        assert np.linalg.norm(a @ x.numpy() - b) <= 1.1e-5 * np.linalg.norm(b)
    assert L.gmres(a, np.zeros_like(b)).x.numpy().any() == 0
    assert L.gmres(np.roll(np.eye(5), 1, 0), np.arange(5.0), restart=2, maxiter=3).info.item() == 3


@pytest.mark.parametrize("solve", [L.cg, L.gmres])
def test_what_could_not_even_begin_is_not_called_solved(solve):
    assert solve([[2.0]], [1.0], maxiter=0).info.item() == 1
    assert solve([[float("nan")]], [1.0]).info.item() == 1
    assert solve([[2.0]], [1.0], [0.5], maxiter=0).info.item() == 0


def test_derivatives_of_minimal_residuals_solve_the_transposed_system():
    for dtype in (np.float64, np.complex128):
        a, b = drawn(5, 5, dtype=dtype) + 5 * np.eye(5), drawn(5, dtype=dtype)

        def slopes(solve, a=a, b=b):
            return wf.grad(lambda a, b: wf.sum(wf.sin(solve(a, b)).real), argnums=(0, 1))(a, b)

        for x, y in zip(slopes(lambda a, b: L.gmres(a, b, tol=1e-14).x), slopes(L.solve)):
            close(x, y.numpy())


def test_conjugate_gradients_take_trees():
    b = {"a": wf.tensor([2.0, 4.0]), "b": (wf.tensor([[6.0]]),)}
    x, info = L.cg(lambda t: wf.tree_map(lambda v: v * 2, t), b)
    assert x["a"].tolist() == [1, 2] and x["b"][0].tolist() == [[3]] and info.item() == 0


@pytest.mark.parametrize("shapes", [((3,), None), ((1,), (4,)), ((3,), (5,)), ((4,), (1,))])
@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.complex128])
def test_toeplitz_is_scipys(shapes, dtype):
    rng = np.random.default_rng(0)
    c, r = (None if s is None else rng.normal(size=s) * 9 for s in shapes)
    c = (c + 1j).astype(dtype) if dtype == np.complex128 else c.astype(dtype)
    r = None if r is None else r.astype(dtype)
    want = scipy.linalg.toeplitz(c) if r is None else scipy.linalg.toeplitz(c, r)
    assert L.toeplitz(c, r).dtype == dtype
    close(L.toeplitz(c, r), want)
    close(
        wf.vmap(L.toeplitz)(np.stack([c, 2 * c])),
        np.stack([scipy.linalg.toeplitz(x * c) for x in (1, 2)]),
    )
    close(L.toeplitz(np.stack([c, c])), np.stack([scipy.linalg.toeplitz(c)] * 2))


def test_block_diag_is_scipys():
    parts = [drawn(2, 3), drawn(3), np.float64(7), drawn(1, 1), np.zeros((0, 2))]
    close(L.block_diag(*parts), scipy.linalg.block_diag(*parts))
    batch = L.block_diag(drawn(4, 2, 2), np.eye(1))
    assert batch.shape == (4, 3, 3) and batch[1, 2].tolist() == [0, 0, 1]
    grown = wf.grad(lambda x: wf.sum(L.block_diag(x, x * 2) ** 2))(wf.ones((1, 2)))
    assert grown.tolist() == [[10, 10]]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: L.cho_solve(np.eye(2), np.ones(2)), TreeError, r"cho_solve: factor: .*\(c, lower"),
        (lambda: L.cho_solve((np.eye(2), True), np.ones(3)), ShapeError, "size 3 does not fit"),
        (lambda: L.lu_factor(np.ones((2, 3))), ShapeError, "lu_factor: the matrix must be square"),
        (lambda: L.lu_solve(L.lu_factor(np.eye(2)), np.ones(2), trans=3), ArgumentError, "trans"),
        (lambda: L.block_diag(), ArgumentError, "block_diag: at least one"),
        (lambda: L.toeplitz(1.0), ShapeError, "toeplitz: c and r need an axis"),
        (lambda: L.cg(np.ones((2, 3)), np.ones(2)), ShapeError, "cg: a: expected a square matrix"),
        (lambda: L.gmres(np.ones((2, 3)), np.ones(2)), ShapeError, "gmres: a: expected a square"),
        (lambda: L.gmres(np.eye(2), np.ones(2), restart=0), ArgumentError, "gmres: restart"),
        (lambda: L.cg(lambda v: v[:1], np.ones(2)), ShapeError, r"cg: a: shapes .*\(1,\)"),
        (lambda: L.cg(lambda v: (v, v), np.ones(2)), TreeError, "cg: a: structure"),
        (lambda: L.cg(lambda v: v * 1j, np.ones(2)), DTypeError, "cg: a: complex128.*\n.*cast b"),
        (lambda: L.cg(np.eye(2), np.ones(2), np.ones(3)), ShapeError, "cg: x0: shapes"),
        (lambda: L.cg(np.eye(2), np.ones(2), tol=-1), ArgumentError, "cg: tol"),
    ],
)  # fmt: skip
def test_mistakes_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("solve", [wf.linalg.cg, wf.linalg.gmres])
@pytest.mark.parametrize("scale", [1e-40, 1e-25, 1e25, 3e37])
def test_iterations_take_numbers_of_any_size(solve: Any, scale: float) -> None:
    b = np.array([6.0, 7.0], np.float32) * np.float32(scale)
    x, info = solve([[4.0, 1.0], [1.0, 3.0]], wf.tensor(b))
    assert info.item() == 0
    np.testing.assert_allclose(x.numpy() / np.float32(scale), [1.0, 2.0], rtol=1e-4)
