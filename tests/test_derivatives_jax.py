"""Derivatives of public functions against JAX's, in both modes, in float64 and complex128.

One row for each function. Where weft means to differ from JAX the row says so and gives the answer
that weft defends.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf
from tests.derivative_rows import (
    EDGES,
    ELEMENTWISE,
    INF,
    OURS,
    REDUCTIONS,
    THEIRS,
    Row,
    array,
    cplx,
    real,
    regular,
    spd,
)

MOVES = [
    Row("reshape", lambda m, x: m.reshape(x, (2, 6)), (real(3, 4),)),
    Row("transpose", lambda m, x: m.permute_dims(x, (2, 0, 1)), (real(2, 3, 4),)),
    Row("flip", lambda m, x: m.flip(x, axis=1), (real(3, 4),)),
    Row("roll", lambda m, x: m.roll(x, 2, axis=1), (real(3, 4),)),
    Row("tile", lambda m, x: m.tile(x, (2, 1)), (real(3, 4),)),
    Row("repeat", lambda m, x: m.repeat(x, 2, axis=1), (real(3, 4),)),
    Row("pad", lambda m, x: m.pad(x, ((1, 0), (2, 1))), (real(3, 4),)),
    Row(
        "pad, values",
        lambda m, x, v: m.pad(x, ((1, 0), (2, 1)), constant_values=v),
        (real(3, 4), real(2, 2)),
    ),
    Row(
        "pad, value of a side",
        lambda m, x, v: m.pad(x, ((1, 2), (2, 1)), constant_values=((v[0], 0.5),)),
        (real(3, 4), real(1)),
    ),
    Row("pad, reflect", lambda m, x: m.pad(x, ((1, 2),), mode="reflect"), (real(5),)),
    Row("pad, edge", lambda m, x: m.pad(x, ((1, 2),), mode="edge"), (real(5),)),
    Row("pad, wrap", lambda m, x: m.pad(x, ((1, 2),), mode="wrap"), (real(5),)),
    Row("concat", lambda m, x, y: m.concat([x, y, x], axis=1), (real(2, 3), real(2, 1))),
    Row("stack", lambda m, x, y: m.stack([x, y], axis=1), (real(3), real(3))),
    Row("split", lambda m, x: tuple(m.split(x, 3)), (real(6, 2),)),
    Row("tril", lambda m, x: m.tril(x, k=1), (real(3, 4),)),
    Row("triu", lambda m, x: m.triu(x), (real(3, 4),)),
    Row("diag", lambda m, x: m.diag(x), (real(3),)),
    Row("diagonal", lambda m, x: m.diagonal(x, offset=1), (real(3, 4),)),
    Row("rot90", lambda m, x: m.rot90(x), (real(3, 4),)),
    Row("kron", lambda m, x, y: m.kron(x, y), (real(2, 2), real(2, 3))),
    Row("slices with steps", lambda m, x: x[::-2, 1:3], (real(5, 4),)),
    Row("repeated indices", lambda m, x: x[np.array([0, 2, 0, 0])], (real(4, 2),)),
    Row(
        "two index arrays", lambda m, x: x[np.array([0, 2, 0]), np.array([1, 1, 1])], (real(4, 2),)
    ),
    Row(
        "index arrays apart",
        lambda m, x: x[np.array([0, 1]), :, np.array([1, 1])],
        (real(2, 3, 4),),
    ),
    Row("a mask that is known", lambda m, x: x[np.array([True, False, True])], (real(3, 2),)),
    Row("take", lambda m, x: m.take(x, np.array([2, 0, 2]), axis=1), (real(3, 4),)),
    Row(
        "take_along_axis",
        lambda m, x: m.take_along_axis(x, m.asarray(np.array([[0, 0], [2, 1]])), axis=1),
        (real(2, 3),),
    ),
    Row("at set", lambda m, x, v: x.at[np.array([2, 0])].set(v), (real(4, 2), real(2, 2))),
    Row("at add, repeated", lambda m, x, v: x.at[np.array([1, 1, 0])].add(v), (real(4), real(3))),
    Row(
        "at multiply",
        lambda m, x, v: x.at[np.array([1, 2])].multiply(v),
        (real(4), real(2)),
        lambda m, x, v: x.at[np.array([1, 2])].multiply(v, unique_indices=True),
    ),
    Row(
        "at multiply, repeated",
        lambda m, v: m.ones(2, dtype=m.float64).at[np.array([1, 1])].multiply(v),
        (array([2.0, 5.0]).reshape(-1),),
        differs="JAX has no rule for repeated places",
        expected=[5.0, 2.0],
    ),
    Row("at max", lambda m, x, v: x.at[np.array([1, 2])].max(v), (real(4), real(2))),
    Row("at min, repeated", lambda m, x, v: x.at[np.array([1, 1])].min(v), (real(4), real(2))),
    Row(
        "segment_sum",
        lambda m, x: m.segment_sum(x, np.array([0, 2, 0, 1]), 3),
        (real(4, 2),),
        lambda m, x: jax.ops.segment_sum(x, np.array([0, 2, 0, 1]), 3),
    ),
    Row(
        "segment_max",
        lambda m, x: m.segment_max(x, np.array([0, 2, 0, 1]), 3),
        (real(4, 2),),
        lambda m, x: jax.ops.segment_max(x, np.array([0, 2, 0, 1]), 3),
    ),
    Row("select", lambda m, x, y: m.select([x > 1, x > 0], [x * y, y], x), (real(6), real(6))),
    Row(
        "interpolate, bilinear",
        lambda m, x: m.interpolate(x, size=(6, 8), mode="bilinear"),
        (real(1, 2, 3, 4),),
        lambda m, x: jax.image.resize(x, (1, 2, 6, 8), "bilinear", antialias=False),
    ),
]

CONTRACTIONS = [
    Row("matmul", lambda m, x, y: x @ y, (real(2, 3, 4), real(4, 5))),
    Row("matmul of vectors", lambda m, x, y: x @ y, (real(4), real(4))),
    Row("matmul, batched both", lambda m, x, y: m.matmul(x, y), (real(3, 1, 2, 4), real(5, 4, 2))),
    Row("outer", lambda m, x, y: m.outer(x, y), (real(3), real(4))),
    Row("tensordot", lambda m, x, y: m.tensordot(x, y, axes=2), (real(2, 3, 4), real(3, 4, 5))),
    Row("vecdot", lambda m, x, y: m.vecdot(x, y), (real(3, 4), real(4))),
    Row("cross", lambda m, x, y: m.linalg.cross(x, y), (real(2, 3), real(2, 3))),
    Row("einsum", lambda m, x, y: m.einsum("bij,bjk->bik", x, y), (real(2, 3, 4), real(2, 4, 2))),
    Row(
        "einsum of three",
        lambda m, x, y, z: m.einsum("ij,jk,k->i", x, y, z),
        (real(2, 3), real(3, 4), real(4)),
    ),
    Row("einsum with a diagonal", lambda m, x: m.einsum("ii->i", x), (real(3, 3),)),
    Row("einsum with a trace", lambda m, x, y: m.einsum("ii,j->j", x, y), (real(3, 3), real(2))),
    Row(
        "einsum with an ellipsis",
        lambda m, x, y: m.einsum("...i,...i->...", x, y),
        (real(2, 3), real(3)),
    ),
    Row("convolve", lambda m, x, y: m.convolve(x, y), (real(6), real(3))),
    Row("correlate", lambda m, x, y: m.correlate(x, y, mode="same"), (real(6), real(3))),
    Row(
        "conv1d",
        lambda m, x, k: m.conv1d(x, k, stride=2, padding=1),
        (real(2, 3, 7), real(4, 3, 3)),
        lambda m, x, k: jax.lax.conv_general_dilated(x, k, (2,), [(1, 1)]),
    ),
    Row(
        "conv2d",
        lambda m, x, k: m.conv2d(x, k, stride=2, padding=1, dilation=2, groups=2),
        (real(2, 4, 6, 7), real(6, 2, 2, 3)),
        lambda m, x, k: jax.lax.conv_general_dilated(
            x, k, (2, 2), [(1, 1), (1, 1)], rhs_dilation=(2, 2), feature_group_count=2
        ),
    ),
    Row(
        "conv_transpose2d",
        lambda m, x, k: m.conv_transpose2d(x, k, stride=2),
        (real(1, 2, 3, 4), real(2, 3, 2, 3)),
        lambda m, x, k: jax.lax.conv_general_dilated(
            x,
            jnp.flip(jnp.swapaxes(k, 0, 1), (2, 3)),
            (1, 1),
            [(1, 1), (2, 2)],
            lhs_dilation=(2, 2),
        ),
    ),
    Row(
        "max_pool2d",
        lambda m, x: m.max_pool2d(x, 2),
        (real(1, 2, 4, 6),),
        lambda m, x: jax.lax.reduce_window(
            x, -INF, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"
        ),
    ),
    Row(
        "overlapping max_pool2d",
        lambda m, x: m.max_pool2d(x, 3, stride=1),
        (real(1, 1, 4, 6),),
        lambda m, x: jax.lax.reduce_window(
            x, -INF, jax.lax.max, (1, 1, 3, 3), (1, 1, 1, 1), "VALID"
        ),
    ),
    Row(
        "avg_pool2d",
        lambda m, x: m.avg_pool2d(x, 2),
        (real(1, 2, 4, 6),),
        lambda m, x: (
            jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 1, 2, 2), (1, 1, 2, 2), "VALID") / 4
        ),
    ),
    Row(
        "attention",
        lambda m, q, k, v: m.scaled_dot_product_attention(q, k, v, is_causal=True),
        (real(2, 4, 3), real(2, 4, 3), real(2, 4, 3)),
        lambda m, q, k, v: attention(q, k, v),
    ),
]


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqd,bkd->bqk", q, k) / np.sqrt(q.shape[-1])
    scores = jnp.where(np.tril(np.ones((4, 4), bool)), scores, -INF)
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), v)


def hermitian(m: Any, x: Any) -> Any:
    return (x + m.conj(m.matrix_transpose(x))) / 2


def through_eigh(m: Any, x: Any) -> Any:
    w, v = m.linalg.eigh(hermitian(m, x))
    return (v * m.tanh(w)[None, :]) @ m.conj(m.matrix_transpose(v)), w


def through_svd(m: Any, x: Any) -> Any:
    u, s, vh = m.linalg.svd(x, full_matrices=False)
    return (u * m.sin(s)[None, :]) @ vh, s


def through_eig(m: Any, x: Any) -> Any:
    w, v = (
        m.linalg.eig(x)
        if m is OURS
        else jax.lax.linalg.eig(x, compute_left_eigenvectors=False, enable_eigvec_derivs=True)
    )
    return (v * m.exp(w)[None, :]) @ m.linalg.inv(v)


def through_qr(m: Any, x: Any) -> Any:
    q, r = m.linalg.qr(x)
    return q, r


LINALG = [
    Row("cholesky", lambda m, x: m.linalg.cholesky(hermitian(m, x)), (spd(4),)),
    Row("complex cholesky", lambda m, x: m.linalg.cholesky(hermitian(m, x)), (spd(3, cplx),)),
    Row("qr of a tall matrix", through_qr, (real(5, 3),)),
    Row("qr of a square matrix", through_qr, (real(3, 3),)),
    Row("complex qr", through_qr, (cplx(4, 3),)),
    Row("svd", through_svd, (real(4, 3),)),
    Row("svd of a wide matrix", through_svd, (real(3, 5),)),
    Row("complex svd", through_svd, (cplx(4, 3),)),
    Row("singular values", lambda m, x: m.linalg.svd(x, compute_uv=False), (real(4, 3),)),
    Row("eigh", through_eigh, (real(4, 4),)),
    Row("complex eigh", through_eigh, (cplx(4, 4),)),
    Row("eigvalsh", lambda m, x: m.linalg.eigvalsh(hermitian(m, x)), (real(4, 4),)),
    Row("eig", through_eig, (cplx(3, 3),)),
    Row("solve", lambda m, a, b: m.linalg.solve(a, b), (regular(3), real(3, 2))),
    Row("solve for a vector", lambda m, a, b: m.linalg.solve(a, b), (regular(3), real(3))),
    Row("complex solve", lambda m, a, b: m.linalg.solve(a, b), (regular(3, cplx), cplx(3, 2))),
    Row(
        "solve_triangular",
        lambda m, a, b: m.linalg.solve_triangular(a, b, lower=True),
        (regular(3), real(3, 2)),
        lambda m, a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True),
    ),
    Row("det", lambda m, x: m.linalg.det(x), (regular(3),)),
    Row("complex det", lambda m, x: m.linalg.det(x), (regular(3, cplx),)),
    Row("slogdet", lambda m, x: m.linalg.slogdet(x)[1], (regular(3),)),
    Row("inv", lambda m, x: m.linalg.inv(x), (regular(3),)),
    Row("pinv", lambda m, x: m.linalg.pinv(x), (real(4, 3),)),
    Row("lstsq", lambda m, a, b: m.linalg.lstsq(a, b)[0], (real(5, 3), real(5, 2))),
    Row("matrix_power", lambda m, x: m.linalg.matrix_power(x, 3), (real(3, 3),)),
    Row("inverse matrix_power", lambda m, x: m.linalg.matrix_power(x, -2), (regular(3),)),
    Row(
        "expm", lambda m, x: m.linalg.expm(x), (real(3, 3),), lambda m, x: jax.scipy.linalg.expm(x)
    ),
    Row(
        "multi_dot",
        lambda m, a, b, c: m.linalg.multi_dot([a, b, c]),
        (real(2, 5), real(5, 3), real(3, 2)),
    ),
    Row("trace", lambda m, x: m.linalg.trace(x), (real(3, 4),)),
    Row("frobenius norm", lambda m, x: m.linalg.norm(x, axis=(0, 1)), (real(3, 4),)),
    Row("nuclear norm", lambda m, x: m.linalg.norm(x, ord="nuc", axis=(0, 1)), (real(3, 4),)),
    Row("spectral norm", lambda m, x: m.linalg.norm(x, ord=2, axis=(0, 1)), (real(3, 4),)),
    Row("norm of order 1", lambda m, x: m.linalg.norm(x, ord=1), (real(4),)),
    Row("norm of order 3", lambda m, x: m.linalg.norm(x, ord=3), (real(4),)),
    Row("norm of order infinity", lambda m, x: m.linalg.norm(x, ord=np.inf), (real(4),)),
]

FOURIER = [
    Row("fft", lambda m, x: m.fft.fft(x), (cplx(2, 5),)),
    Row("fft of reals", lambda m, x: m.fft.fft(x), (real(2, 5),)),
    Row("fft, padded and cut", lambda m, x: m.fft.fft(x, n=4, axis=0), (cplx(5, 3),)),
    Row("ifft", lambda m, x: m.fft.ifft(x, norm="ortho"), (cplx(6),)),
    Row("rfft", lambda m, x: m.fft.rfft(x), (real(2, 6),)),
    Row("rfft of an odd length", lambda m, x: m.fft.rfft(x), (real(2, 5),)),
    Row("irfft", lambda m, x: m.fft.irfft(x), (cplx(2, 4),)),
    Row("irfft of an odd length", lambda m, x: m.fft.irfft(x, n=5), (cplx(2, 3),)),
    Row("fft2", lambda m, x: m.fft.fft2(x), (cplx(3, 4),)),
    Row("rfftn", lambda m, x: m.fft.rfftn(x), (real(2, 3, 4),)),
    Row("irfftn", lambda m, x: m.fft.irfftn(x), (cplx(2, 3, 4),)),
    Row("hfft", lambda m, x: m.fft.hfft(x), (cplx(4),)),
    Row("fftshift", lambda m, x: m.fft.fftshift(x), (real(5),)),
]

COMPLEX = [
    *[
        Row(f"complex {name}", lambda m, x, name=name: getattr(m, name)(x), (cplx(4),))
        for name in [
            "abs",
            "real",
            "imag",
            "conj",
            "angle",
            "exp",
            "log",
            "sqrt",
            "sin",
            "cos",
            "tanh",
            "square",
            "reciprocal",
            "sinh",
            "cosh",
            "tan",
            "log1p",
            "expm1",
        ]
    ],
    Row(
        "complex sign",
        lambda m, x: m.sign(x),
        (array(3 + 4j),),
        differs="z/|z| turns with z; JAX gives 0",
        expected=[(1 - 3 * (3 - 4j) / 25) / 5],
    ),
    Row("complex abs at 0", lambda m, x: m.abs(x), (array(0j, 1 + 1j),)),
    Row("complex multiply", lambda m, x, y: x * y, (cplx(4), cplx(4))),
    Row("complex divide", lambda m, x, y: x / y, (cplx(4), cplx(4))),
    Row("real times complex", lambda m, x, y: x * y, (real(4), cplx(4))),
    Row("complex pow", lambda m, x, y: x**y, (cplx(4), cplx(4))),
    Row("complex pow by an integer", lambda m, x: x**3, (cplx(4),)),
    Row("complex matmul", lambda m, x, y: x @ y, (cplx(2, 3), cplx(3, 2))),
    Row("complex sum and prod", lambda m, x: m.sum(x) * m.prod(x), (cplx(4),)),
    Row("complex var", lambda m, x: m.var(x), (cplx(4),)),
    Row("complex norm", lambda m, x: m.linalg.norm(x), (cplx(4),)),
    Row("complex vecdot", lambda m, x, y: m.vecdot(x, y), (cplx(3), cplx(3))),
    Row("squared modulus", lambda m, x: m.real(x * m.conj(x)), (cplx(4),)),
    Row("cast of reals to complex", lambda m, x: m.astype(x, m.complex128) * (1 + 2j), (real(4),)),
    Row(
        "complex from parts",
        lambda m, x, y: m.complex(x, y) ** 2,
        (real(4), real(4)),
        lambda m, x, y: jax.lax.complex(x, y) ** 2,
    ),
]

CONTROL = [
    Row(
        "scan",
        lambda m, c, xs: m.scan(lambda c, x: (m.sin(c * x), c + x), c, xs),
        (array(0.5), real(5)),
    ),
    Row(
        "scan backwards",
        lambda m, c, xs: m.scan(lambda c, x: (c * x, c), c, xs, reverse=True),
        (array(0.5), real(5)),
    ),
    Row("cond", lambda m, x: m.cond(x[0] > 0, m.sin, m.cos, x), (array(0.5, 2.0),)),
    Row("switch", lambda m, x: m.switch(1, [m.sin, m.cos, m.exp], x), (real(3),)),
    Row("fori_loop", lambda m, x: m.fori_loop(0, 4, lambda i, c: m.sin(c) * x, x), (real(3),)),
    Row("checkpoint", lambda m, x: m.checkpoint(lambda x: m.sin(m.exp(x)) * x)(x), (real(3),)),
    Row("vmap", lambda m, x, y: m.vmap(lambda a: a @ y)(x), (real(4, 3), real(3))),
]

ROWS = [
    *ELEMENTWISE,
    *EDGES,
    *REDUCTIONS,
    *MOVES,
    *CONTRACTIONS,
    *LINALG,
    *FOURIER,
    *COMPLEX,
    *CONTROL,
]


def seeded(arrays: list[Any]) -> list[Any]:
    """Directions of the same types, the same in both libraries."""
    rng = np.random.default_rng(5)
    made = [rng.uniform(-1, 1, a.shape) for a in arrays]
    return [
        (m + 1j * rng.uniform(-1, 1, a.shape) if a.dtype.kind == "c" else m).astype(a.dtype)
        for m, a in zip(made, arrays, strict=True)
    ]


def jax_derivatives(row: Row) -> tuple[list[Any], list[Any], list[Any]]:
    with jax.enable_x64(True):
        args = tuple(map(jnp.asarray, row.args))
        function = row.theirs or row.ours
        run = lambda *xs: jax.tree.leaves(function(THEIRS, *xs))  # noqa: E731
        moves = tuple(map(jnp.asarray, seeded(list(row.args))))

        @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
        def derive(args: Any, moves: Any) -> Any:
            values, pullback = jax.vjp(run, *args)
            return values, pullback(seeded(values)), jax.jvp(run, args, moves)[1]

        return tuple([np.asarray(x) for x in part] for part in derive(args, moves))


def weft_derivatives(row: Row) -> tuple[list[Any], list[Any], list[Any]]:
    args = tuple(map(wf.asarray, row.args))
    run = lambda *xs: wf.tree_leaves(row.ours(OURS, *xs))  # noqa: E731
    values, pullback = wf.vjp(run, *args)
    pulled = pullback(list(map(wf.asarray, seeded([v.numpy() for v in values]))))
    pushed = wf.jvp(run, args, tuple(map(wf.asarray, seeded(list(row.args)))))[1]
    return tuple([x.numpy() for x in part] for part in (values, pulled, pushed))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.slow
def test_values_and_derivatives_are_those_of_jax(row: Row) -> None:
    if row.differs:
        args = tuple(map(wf.asarray, row.args))
        value, pullback = wf.vjp(lambda *xs: row.ours(OURS, *xs), *args)
        (found,) = pullback(wf.ones_like(value))
        np.testing.assert_allclose(found.numpy(), row.expected, err_msg=row.differs)
        return
    kinds = ("value", "reverse mode", "forward mode")
    for kind, found, expected in zip(
        kinds, weft_derivatives(row), jax_derivatives(row), strict=True
    ):
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype, kind
            np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9, err_msg=kind)


def test_no_row_is_there_twice() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names) >= 150
