"""Orthogonal and spectral factors of matrices: QR, singular values, eigenvalues and vectors.

Vectors are determined only up to a sign or a phase, and not at all where values coincide; there the
derivative of the vectors is infinite or NaN. Values alone are ops of their own, whose derivatives
exist at coinciding values too.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from weft.core.autograd.tape import filled
from weft.core.common import dtypes
from weft.core.common.factors import Factors
from weft.core.common.types import Array, DType, TensorType
from weft.core.tensor.convert import wrap
from weft.core.tensor.tensor import Tensor
from weft.errors import ShapeError
from weft.ops.base import Example, Tangents, Types, call, call_multiple
from weft.ops.contraction import matmul, swap
from weft.ops.diagonals import tril
from weft.ops.elementwise.arithmetic import where
from weft.ops.elementwise.complex_parts import abs, conj, real
from weft.ops.families import cast
from weft.ops.linalg import (
    adjoint,
    diagonal_matrix,
    diagonal_of,
    hermitian,
    hermitian_part,
    identity_mask,
    solve_op,
    solve_triangular,
)
from weft.ops.matrices import MatrixOperation, lapack
from weft.ops.order import take_along_axis
from weft.ops.reduction import argmax
from weft.ops.reduction import sum as sum_over
from weft.ops.view.reshape import expand_dims


def over_gaps(x: Tensor, values: Tensor) -> Tensor:
    """x[i, j] / (values[j] - values[i]) off the diagonal, zero on it."""
    gaps = expand_dims(values, -2) - expand_dims(values, -1)
    here = identity_mask(x)
    return where(here, 0, x / where(here, 1, gaps))


def imaginary_diagonal(x: Tensor) -> Tensor:
    """The diagonal's imaginary part, times i, as a matrix; zero for real matrices."""
    diagonal = diagonal_of(x)
    return diagonal_matrix(diagonal - real(diagonal))


class Qr(MatrixOperation):
    """Q with orthonormal columns and upper triangular R, A = Q R; A is tall or square."""

    square = False
    multiple = True
    factors = "... n m -> ... n m, ... k m"
    whole = "n m k"
    examples = (
        Example({}, ((4, 4),), "m"),
        Example({}, ((4, 2),)),
        Example({}, ((3, 2),), "c"),
    )

    def index(self, a: TensorType, **params: Any) -> Factors:
        return Factors.parse(self.factors, (a.rank,), {"k": a.shape[-1]}, self.whole)

    def dtype(self, *found: DType, **params: Any) -> tuple[DType, DType]:
        return found[0], found[0]

    def infer(self, *types: TensorType, **params: Any) -> Types:
        found = super().infer(*types, **params)
        if types[0].shape[-2] < types[0].shape[-1]:
            raise ShapeError(f"{self}: operand 0: more columns than rows (shape {types[0].shape})")
        return found

    def eval(self, a: Array) -> tuple[Array, Array]:
        q, r = np.linalg.qr(a)
        return q, r

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        q, r = out
        pushed = swap(solve_triangular(r, swap(tangents[0]), lower=False, transpose=True))
        inner = matmul(adjoint(q), pushed)
        below = tril(inner, k=-1)
        rest = inner - (below - adjoint(below)) - imaginary_diagonal(inner)
        return pushed - matmul(q, rest), matmul(rest, r)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        q, r = out
        by_q, by_r = ct
        rest = matmul(by_r, swap(r)) - matmul(swap(q), by_q)
        inner = rest - tril(rest - adjoint(rest), k=-1) - imaginary_diagonal(rest)
        pushed = by_q + matmul(conj(q), inner)
        return (swap(solve_triangular(r, swap(pushed), lower=False)),)


class QrComplete(MatrixOperation):
    """Square unitary Q and R of A's shape, A = Q R."""

    square = False
    multiple = True
    factors = "... n m -> ... n k, ... n m"
    whole = "n m k"
    examples = (Example({}, ((4, 2),)),)
    reasons: ClassVar[dict[str, str]] = {
        **MatrixOperation.reasons,
        "vjp": "the added columns of Q are not determined by the matrix; use mode='reduced'",
        "jvp": "the added columns of Q are not determined by the matrix; use mode='reduced'",
    }

    def index(self, a: TensorType, **params: Any) -> Factors:
        return Factors.parse(self.factors, (a.rank,), {"k": a.shape[-2]}, self.whole)

    def dtype(self, *found: DType, **params: Any) -> tuple[DType, DType]:
        return found[0], found[0]

    def eval(self, a: Array) -> tuple[Array, Array]:
        q, r = np.linalg.qr(a, "complete")
        return q, r


class Svd(MatrixOperation):
    """U, singular values in descending order, and Vᴴ, A = U diag(S) Vᴴ, with min(n, m) columns."""

    square = False
    multiple = True
    sparse = True  # values alone have derivatives where vectors have none
    factors = "... n m -> ... n k, ... k, ... k m"
    whole = "n m k"
    examples = (
        Example({}, ((3, 3),), "m"),
        Example({}, ((4, 2),)),
        Example({}, ((2, 4),)),
    )

    def index(self, a: TensorType, **params: Any) -> Factors:
        return Factors.parse(self.factors, (a.rank,), {"k": min(a.shape[-2:])}, self.whole)

    def dtype(self, *found: DType, **params: Any) -> tuple[DType, DType, DType]:
        return found[0], dtypes.real_of(found[0]), found[0]

    def eval(self, a: Array) -> tuple[Array, Array, Array]:
        u, s, vh = lapack(unfit("svd"), np.linalg.svd, a, full_matrices=False)
        return u, s, vh

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        u, s, vh = out
        (da,) = tangents
        v, row, column = adjoint(vh), expand_dims(s, -2), expand_dims(s, -1)
        inner = matmul(matmul(adjoint(u), da), v)
        right, left = inner * row, column * inner
        turn_u = over_gaps(right + adjoint(right), s * s) + imaginary_diagonal(inner) / row
        turn_v = over_gaps(left + adjoint(left), s * s)
        du, dv = matmul(u, turn_u), matmul(v, turn_v)
        n, m = da.shape[-2:]
        if n > m:
            moved = matmul(da, v)
            du = du + (moved - matmul(u, matmul(adjoint(u), moved))) / row
        if m > n:
            moved = matmul(adjoint(da), u)
            dv = dv + (moved - matmul(v, matmul(vh, moved))) / row
        return du, real(diagonal_of(inner)), adjoint(dv)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        u, s, vh = out
        if ct[0] is None and ct[2] is None:
            return (conj(matmul(u * expand_dims(ct[1], -2), vh)),)
        ct = filled(out, ct)
        by_u, by_s, by_v = ct[0], ct[1], adjoint(ct[2])
        v_turned, row, column = conj(vh), expand_dims(s, -2), expand_dims(s, -1)
        turn_u, turn_v = matmul(swap(u), by_u), matmul(v_turned, by_v)
        right, left = over_gaps(turn_u, s * s), over_gaps(turn_v, s * s)
        inner = (
            (right + adjoint(right)) * row
            + column * (left + adjoint(left))
            + cast(diagonal_matrix(by_s), u.dtype)
            + imaginary_diagonal(turn_u) / row
        )
        total = matmul(matmul(conj(u), inner), v_turned)
        n, m = primals[0].shape[-2:]
        if n > m:
            part = by_u / row
            part = part - matmul(conj(u), matmul(swap(u), part))
            total = total + matmul(part, v_turned)
        if m > n:
            part = by_v / row
            part = part - matmul(swap(vh), matmul(v_turned, part))
            total = total + matmul(conj(u), adjoint(part))
        return (total,)


def unfit(name: str) -> str:
    """What is said when LAPACK's iteration fails."""
    return f"{name}: no convergence: a matrix holds NaN, infinity or extreme values"


class SvdFull(MatrixOperation):
    """U and Vᴴ square and unitary, and the min(n, m) singular values."""

    square = False
    multiple = True
    factors = "... n m -> ... n l, ... k, ... j m"
    whole = "n m k l j"
    examples = (Example({}, ((4, 2),)),)
    reasons: ClassVar[dict[str, str]] = {
        **MatrixOperation.reasons,
        "vjp": "the added vectors are not determined by the matrix; use full_matrices=False",
        "jvp": "the added vectors are not determined by the matrix; use full_matrices=False",
    }

    def index(self, a: TensorType, **params: Any) -> Factors:
        n, m = a.shape[-2:]
        extents = {"l": n, "k": min(n, m), "j": m}
        return Factors.parse(self.factors, (a.rank,), extents, self.whole)

    def dtype(self, *found: DType, **params: Any) -> tuple[DType, DType, DType]:
        return found[0], dtypes.real_of(found[0]), found[0]

    def eval(self, a: Array) -> tuple[Array, Array, Array]:
        u, s, vh = lapack(unfit("svd"), np.linalg.svd, a, full_matrices=True)
        return u, s, vh


class Svdvals(MatrixOperation):
    """Singular values in descending order."""

    square = False
    whole = "n m k"
    examples = (
        Example({}, ((3, 3),), "m"),
        Example({}, ((4, 2),)),
        Example({}, ((2, 3),), "c"),
    )

    def index(self, a: TensorType, **params: Any) -> Factors:
        extents = {"k": min(a.shape[-2:])}
        return Factors.parse("... n m -> ... k", (a.rank,), extents, self.whole)

    def dtype(self, *found: DType, **params: Any) -> DType:
        return dtypes.real_of(found[0])

    def eval(self, a: Array) -> Array:
        return np.asarray(lapack(unfit("svdvals"), np.linalg.svd, a, compute_uv=False))

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        u, _, vh = call_multiple(svd_op, primals, {})
        return real(diagonal_of(matmul(matmul(adjoint(u), tangents[0]), adjoint(vh))))

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        u, _, vh = call_multiple(svd_op, primals, {})
        return (conj(matmul(u * expand_dims(ct, -2), vh)),)


class Eigh(MatrixOperation):
    """Ascending eigenvalues and orthonormal eigenvectors (columns) of (A + Aᴴ)/2."""

    multiple = True
    sparse = True  # values alone have derivatives where vectors have none
    factors = "... n m -> ... m, ... n m"
    examples = (Example({}, ((4, 4),), "s"), Example({}, ((3, 3),), "m"))

    def dtype(self, *found: DType, **params: Any) -> tuple[DType, DType]:
        return dtypes.real_of(found[0]), found[0]

    def eval(self, a: Array) -> tuple[Array, Array]:
        values, vectors = lapack(unfit("eigh"), np.linalg.eigh, hermitian_part(a))
        return values, vectors

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        values, vectors = out
        inner = matmul(matmul(adjoint(vectors), hermitian(tangents[0])), vectors)
        return real(diagonal_of(inner)), matmul(vectors, over_gaps(inner, values))

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        values, vectors = out
        if ct[1] is None:
            turned = matmul(conj(vectors) * expand_dims(ct[0], -2), swap(vectors))
            return (hermitian(turned),)
        by_values, by_vectors = filled(out, ct)
        inner = over_gaps(matmul(swap(vectors), by_vectors), values)
        inner = inner + cast(diagonal_matrix(by_values), inner.dtype)
        return (hermitian(matmul(matmul(conj(vectors), inner), swap(vectors))),)


class Eigvalsh(MatrixOperation):
    """Ascending eigenvalues of (A + Aᴴ)/2."""

    factors = "... n m -> ... m"
    examples = (Example({}, ((4, 4),), "s"), Example({}, ((3, 3),), "c"))

    def dtype(self, *found: DType, **params: Any) -> DType:
        return dtypes.real_of(found[0])

    def eval(self, a: Array) -> Array:
        return np.asarray(lapack(unfit("eigvalsh"), np.linalg.eigvalsh, hermitian_part(a)))

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        _, vectors = call_multiple(eigh_op, primals, {})
        moved = matmul(hermitian(tangents[0]), vectors)
        return real(sum_over(conj(vectors) * moved, axis=-2))

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        _, vectors = call_multiple(eigh_op, primals, {})
        return (hermitian(matmul(conj(vectors) * expand_dims(ct, -2), swap(vectors))),)


class Eig(MatrixOperation):
    """Complex eigenvalues and eigenvectors (columns of norm 1, largest element real)."""

    multiple = True
    sparse = True  # values alone have derivatives where vectors have none
    factors = "... n m -> ... m, ... n m"
    examples = (Example({}, ((4, 4),), "m"), Example({}, ((3, 3),), "c"))

    def dtype(self, *found: DType, **params: Any) -> tuple[DType, DType]:
        return (dtypes.complex_of(found[0]),) * 2

    def eval(self, a: Array) -> tuple[Array, Array]:
        values, vectors = lapack(unfit("eig"), np.linalg.eig, a)
        made = dtypes.complex_of(a.dtype)
        return values.astype(made, copy=False), vectors.astype(made, copy=False)

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        values, vectors = out
        pushed = matmul(cast(tangents[0], vectors.dtype), vectors)
        inner = call(solve_op, (vectors, pushed), {})
        raw = matmul(vectors, over_gaps(inner, values))
        # Norm and phase stay: Re(vᴴ dv) = 0, and the largest element of v stays real.
        length = real(sum_over(conj(vectors) * raw, axis=-2, keepdims=True))
        place = self._largest(vectors)
        twist = take_along_axis(raw, place, axis=-2)
        twist = (twist - real(twist)) / take_along_axis(vectors, place, axis=-2)
        return diagonal_of(inner), raw - vectors * (length + twist)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        values, vectors = out
        if ct[1] is None:
            return (_pulled(primals[0], vectors, diagonal_matrix(ct[0])),)
        by_values, by_vectors = filled(out, ct)
        place = self._largest(vectors)
        along = sum_over(by_vectors * vectors, axis=-2, keepdims=True)
        twist = (along - real(along)) / take_along_axis(vectors, place, axis=-2)
        rows = wrap(np.arange(vectors.shape[-2])[:, None], vectors.device)
        raw = by_vectors - real(along) * conj(vectors) - where(rows == place, twist, 0)
        inner = over_gaps(matmul(swap(vectors), raw), values) + diagonal_matrix(by_values)
        return (_pulled(primals[0], vectors, inner),)

    def _largest(self, vectors: Tensor) -> Tensor:
        """The place of each column's largest element, which LAPACK makes real."""
        return argmax(abs(vectors), axis=-2, keepdims=True)


def _pulled(a: Tensor, vectors: Tensor, inner: Tensor) -> Tensor:
    """V⁻ᵀ M Vᵀ, the transpose of A → V⁻¹ A V; real where A is."""
    found: Tensor = call(solve_op, (swap(vectors), matmul(inner, swap(vectors))), {})
    return found if dtypes.is_complex(a.dtype) else cast(real(found), a.dtype)


class Eigvals(MatrixOperation):
    """Complex eigenvalues, in no particular order."""

    factors = "... n m -> ... m"
    examples = (Example({}, ((4, 4),), "m"), Example({}, ((3, 3),), "c"))

    def dtype(self, *found: DType, **params: Any) -> DType:
        return dtypes.complex_of(found[0])

    def eval(self, a: Array) -> Array:
        # The same LAPACK routine as for the vectors, so that derivatives meet the same order.
        return eig_op.eval(a)[0]

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        _, vectors = call_multiple(eig_op, primals, {})
        pushed = matmul(cast(tangents[0], vectors.dtype), vectors)
        return diagonal_of(call(solve_op, (vectors, pushed), {}))

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        _, vectors = call_multiple(eig_op, primals, {})
        return (_pulled(primals[0], vectors, diagonal_matrix(ct)),)


qr_op, qr_complete_op = Qr(), QrComplete()
svd_op, svd_full_op, svdvals_op = Svd(), SvdFull(), Svdvals()
eigh_op, eigvalsh_op, eig_op, eigvals_op = Eigh(), Eigvalsh(), Eig(), Eigvals()


__all__: list[str] = []
