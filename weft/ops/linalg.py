"""Matrices: factors of positive definite and general ones, systems, determinants, inverses.

Every op works on the last two axes and batches over the others; LAPACK (through NumPy and SciPy) is
the reference. Derivatives follow the bilinear pairing Re(Σ ct·t): the transpose of X → A X B is
ct → Aᵀ ct Bᵀ, and that of X → Xᴴ is ct → ctᴴ. Rules are made of ops, so they can be differentiated.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.factors import Factors
from weft.core.common.lazy import LazyModule
from weft.core.common.types import Array, DType, Shape, TensorType
from weft.core.tensor.convert import wrap
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError
from weft.ops import few
from weft.ops.base import Example, Operation, Tangents, call
from weft.ops.contraction import matmul, swap
from weft.ops.creation import zeros
from weft.ops.diagonals import diagonal, tril, triu
from weft.ops.elementwise.arithmetic import where
from weft.ops.elementwise.complex_parts import conj, real
from weft.ops.families import broadcast_shape
from weft.ops.manipulation import roll
from weft.ops.matrices import FewRowsOperation, MatrixOperation, lapack, singular_text
from weft.ops.order import take_along_axis
from weft.ops.reduction import sum as sum_over
from weft.ops.sorting import argsort_op
from weft.ops.view.join import concat
from weft.ops.view.reshape import expand_dims
from weft.ops.view.slice import slice_axes

scipy_linalg = LazyModule("scipy.linalg")


def adjoint(x: Tensor) -> Tensor:
    """The conjugate transpose."""
    return conj(swap(x))


def hermitian(x: Tensor) -> Tensor:
    """(x + xᴴ) / 2. It is its own transpose under the pairing, so derivatives use it too."""
    both: Tensor = (x + adjoint(x)) * 0.5
    return both


def hermitian_part(a: Array) -> Array:
    """The same of an array."""
    return np.asarray((a + np.conj(a.mT)) * a.dtype.type(0.5))


def identity_mask(x: Tensor) -> Tensor:
    """True on the diagonal of the last two axes."""
    return wrap(np.eye(*x.shape[-2:], dtype=bool), x.device)


def diagonal_of(x: Tensor) -> Tensor:
    """The diagonal of the last two axes."""
    return diagonal(x, 0, -2, -1)


def diagonal_matrix(x: Tensor) -> Tensor:
    """Square matrices with `x` on the diagonal and zeros elsewhere."""
    mask = wrap(np.eye(x.shape[-1], dtype=bool), x.device)
    return where(mask, expand_dims(x, -2), 0)


def identity_like(x: Tensor) -> Tensor:
    """The identity of the last axis's size, without batch axes."""
    return wrap(np.eye(x.shape[-1], dtype=x.dtype), x.device)


def on_matrices(x: Tensor) -> Tensor:
    """A value for each matrix, shaped to multiply matrices."""
    return expand_dims(expand_dims(x, -1), -1)


class Cholesky(FewRowsOperation):
    """The lower triangular L with L Lᴴ = (A + Aᴴ)/2."""

    most = 12
    factors = "... n m -> ... n m"
    examples = (Example({}, ((4, 4),), "s"),)
    problem = (
        "cholesky: a matrix is not positive definite"
        "\nhint: add a small multiple of the identity, or use wf.linalg.eigh"
    )

    def few(self, s: Any, a: few.Matrix) -> few.Found:
        return few.factor(s, a)

    def lapack(self, a: Array) -> Array:
        result: Array = lapack(self.problem, np.linalg.cholesky, hermitian_part(a))
        return result

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        even = hermitian(tangents[0])
        half = solve_triangular(out, even)  # L⁻¹ dS, then (L⁻¹ (L⁻¹ dS)ᴴ)ᴴ = L⁻¹ dS L⁻ᴴ
        return matmul(out, half_lower(adjoint(solve_triangular(out, adjoint(half)))))

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        inner = half_lower(matmul(swap(out), ct))
        left = solve_triangular(out, inner, transpose=True)  # L⁻ᵀ M, then (L⁻ᵀ M) L̄⁻¹
        right = swap(solve_triangular(conj(out), swap(left), transpose=True))
        return (hermitian(right),)


def half_lower(x: Tensor) -> Tensor:
    """The lower triangle with half of the diagonal: Φ, the half of a Hermitian matrix."""
    half: Tensor = tril(x) - where(identity_mask(x), x * 0.5, 0)
    return half


class TriangularSolve(FewRowsOperation):
    """X with A X = B, or Aᵀ X = B; only one triangle of A is read."""

    most = 16
    factors = "... n m, ... n k -> ... m k"
    examples = (
        Example({"lower": True, "unit_diagonal": False, "transpose": False}, ((4, 4), (4, 2)), "l"),
        Example({"lower": True, "unit_diagonal": True, "transpose": True}, ((3, 3), (3, 2)), "l"),
        Example({"lower": False, "unit_diagonal": False, "transpose": True}, ((3, 3), (3, 4)), "m"),
        Example({"lower": False, "unit_diagonal": False, "transpose": False}, ((2, 2),) * 2, "cc"),
    )

    def few(
        self,
        s: Any,
        a: few.Matrix,
        b: few.Matrix,
        *,
        lower: bool,
        unit_diagonal: bool,
        transpose: bool,
    ) -> few.Found:
        if transpose:
            a, lower = [list(column) for column in zip(*a, strict=True)], not lower
        return few.substituted(s, a, b, lower=lower, unit_diagonal=unit_diagonal)

    def eval(self, a: Array, b: Array, **params: Any) -> Array:
        zeros = np.argwhere(np.diagonal(a, 0, -2, -1) == 0)
        if zeros.size and b.size and not params["unit_diagonal"]:
            raise ArgumentError(
                f"triangular_solve: a matrix is singular (diagonal element {zeros[0, -1]} is 0)"
            )
        return super().eval(a, b, **params)

    def lapack(
        self, a: Array, b: Array, *, lower: bool, unit_diagonal: bool, transpose: bool
    ) -> Array:
        lead = broadcast_shape(self.name, a.shape[:-2], b.shape[:-2])
        a = np.broadcast_to(a, lead + a.shape[-2:])
        out = np.array(np.broadcast_to(b, lead + b.shape[-2:]), copy=True, order="C")
        if out.size == 0:
            return out
        # Not LAPACK's trtrs: OpenBLAS wakes its threads for that one however small the matrix is.
        # Xᵀ Aᵀ = Bᵀ: BLAS reads columns, which rows are when transposed, so that nothing is copied.
        (trsm,) = scipy_linalg.get_blas_funcs(("trsm",), (a, b))
        options = {"side": 1, "lower": not lower, "trans_a": transpose, "diag": unit_diagonal}
        for i in np.ndindex(lead):
            out[i] = trsm(1.0, a[i].T, out[i].T, overwrite_b=True, **options).T
        return out

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        a, _ = primals
        da, db = tangents
        moved = None if da is None else self._triangle(da, params)
        if moved is not None:
            push = -matmul(swap(moved) if params["transpose"] else moved, out)
            db = push if db is None else db + push
        return call(self, (a, db), params)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        a, _ = primals
        back = call(self, (a, ct), {**params, "transpose": not params["transpose"]})
        first, second = (out, back) if params["transpose"] else (back, out)
        return self._triangle(-matmul(first, swap(second)), params), back

    def _triangle(self, x: Tensor, params: dict[str, Any]) -> Tensor:
        """The part of the matrix that is read."""
        beyond = 1 if params["unit_diagonal"] else 0
        return tril(x, k=-beyond) if params["lower"] else triu(x, k=beyond)


class Solve(FewRowsOperation):
    """X with A X = B."""

    most = 8
    factors = "... n m, ... n k -> ... m k"
    examples = (
        Example({}, ((4, 4), (4, 2)), "mf"),
        Example({}, ((3, 3), (3, 1)), "cc"),
    )
    problem = singular_text("solve")

    def few(self, s: Any, a: few.Matrix, b: few.Matrix) -> few.Found:
        return few.solved(s, a, b)

    def lapack(self, a: Array, b: Array) -> Array:
        result: Array = lapack(self.problem, np.linalg.solve, a, b)
        return result

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        a, _ = primals
        da, db = tangents
        if da is not None:
            push = -matmul(da, out)
            db = push if db is None else db + push
        return call(self, (a, db), {})

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        back = call(self, (swap(primals[0]), ct), {})
        return -matmul(back, swap(out)), back


class Inv(FewRowsOperation):
    """A⁻¹; with `strict` off, singular matrices give infinities instead of an error."""

    most = 6
    factors = "... n m -> ... m n"
    examples = (
        Example({"strict": True}, ((4, 4),), "m"),
        Example({"strict": True}, ((2, 2),), "c"),
    )
    problem = singular_text("inv")

    def few(self, s: Any, a: few.Matrix, *, strict: bool) -> few.Found:
        found, bad = few.inverse(s, a)
        if strict:
            return found, bad
        infinity = s.const(np.inf, a[0][0].dtype)
        return [[s.select(bad, infinity, x) for x in row] for row in found], None

    def lapack(self, a: Array, *, strict: bool) -> Array:
        if strict:
            result: Array = lapack(self.problem, np.linalg.inv, a)
            return result
        out = np.empty_like(a)
        for i in np.ndindex(a.shape[:-2]):
            try:
                out[i] = np.linalg.inv(a[i])
            except np.linalg.LinAlgError:
                out[i] = np.inf
        return out

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        return -matmul(matmul(out, tangents[0]), out)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        turned = swap(out)
        return (-matmul(matmul(turned, ct), turned),)


class Det(FewRowsOperation):
    """The determinant; its derivative, the adjugate, exists for singular matrices too."""

    core = 0
    factors = "... n m -> ..."
    examples = (Example({}, ((4, 4),), "m"), Example({}, ((3, 3),), "c"))

    def few(self, s: Any, a: few.Matrix) -> few.Found:
        return [[few.determinant(s, a)]], None

    def lapack(self, a: Array) -> Array:
        return np.asarray(np.linalg.det(a))

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        return trace_of_product(call(adjugate_op, primals, {}), tangents[0])

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return (on_matrices(ct) * swap(call(adjugate_op, primals, {})),)


def trace_of_product(a: Tensor, b: Tensor) -> Tensor:
    """tr(A B) without the product."""
    return sum_over(swap(a) * b, axis=(-2, -1))


class Adjugate(FewRowsOperation):
    """The matrix of cofactors, transposed: det(A) A⁻¹ where that exists.

    Its own derivative is a polynomial up to three rows. For more it divides by the determinant, so
    it is infinite or NaN at singular matrices.
    """

    factors = "... n m -> ... m n"
    examples = (Example({}, ((4, 4),), "m"), Example({}, ((3, 3),), "c"))

    def few(self, s: Any, a: few.Matrix) -> few.Found:
        return few.cofactors(s, a), None

    def lapack(self, a: Array) -> Array:
        u, s, vh = lapack("adjugate: a matrix holds NaN or infinity", np.linalg.svd, a)
        below = np.ones_like(s)
        above = np.ones_like(s)
        below[..., 1:] = np.cumprod(s[..., :-1], axis=-1)
        above[..., :-1] = np.flip(np.cumprod(np.flip(s[..., 1:], -1), axis=-1), -1)
        turn = np.asarray(np.linalg.det(u) * np.linalg.det(vh))[..., None, None]
        product = (np.conj(vh.mT) * (below * above)[..., None, :]) @ np.conj(u.mT)
        return np.asarray(turn * product, dtype=a.dtype)

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        (da,) = tangents
        if out.shape[-1] <= 3:
            return swap(_moved_cofactors(primals[0], da))
        turned = on_matrices(trace_of_product(out, da)) * out - matmul(matmul(out, da), out)
        return turned / on_matrices(call(det_op, primals, {}))

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        if out.shape[-1] <= 3:
            return (_moved_cofactors(primals[0], swap(ct)),)
        ct = ct / on_matrices(call(det_op, primals, {}))
        turned = swap(out)
        pairing = on_matrices(sum_over(ct * out, axis=(-2, -1)))
        return (pairing * turned - matmul(matmul(turned, ct), turned),)


def _moved_cofactors(a: Tensor, da: Tensor) -> Tensor:
    """The derivative of the cofactors of at most three rows; it is its own transpose."""
    if a.shape[-1] == 1:
        return where(False, da, 0)
    if a.shape[-1] == 2:
        return swap(call(adjugate_op, (da,), {}))

    def from_place(x: Tensor, i: int, j: int) -> Tensor:
        return roll(x, (-i, -j), (-2, -1))

    def products(x: Tensor, y: Tensor) -> Tensor:
        crossed = from_place(x, 1, 2) * from_place(y, 2, 1)
        return from_place(x, 1, 1) * from_place(y, 2, 2) - crossed

    return products(a, da) + products(da, a)


class Slogdet(MatrixOperation):
    """Sign (a unit complex number for complex matrices) and logarithm of |det A|."""

    factors = "... n m -> ..., ..."
    multiple = True
    examples = (Example({}, ((4, 4),), "m"), Example({}, ((3, 3),), "c"))

    def dtype(self, *found: DType, **params: Any) -> tuple[DType, DType]:
        return found[0], dtypes.real_of(found[0])

    def eval(self, a: Array) -> tuple[Array, Array]:
        sign, size = np.linalg.slogdet(a)
        return np.asarray(sign), np.asarray(size)

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        inverse = call(inv_op, primals, {"strict": True})
        moved = trace_of_product(inverse, tangents[0])
        if not dtypes.is_complex(moved.dtype):
            return None, moved
        return (moved - real(moved)) * out[0], real(moved)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        by_sign, by_size = ct
        turned = swap(call(inv_op, primals, {"strict": True}))
        if not dtypes.is_complex(turned.dtype):
            return (on_matrices(by_size) * turned,)
        # The sign turns by i·Im(W), W = tr(A⁻¹ dA): the transpose of z → i·Im(z) is itself.
        spun = by_sign * out[0]
        return (on_matrices(by_size + spun - real(spun)) * turned,)


class Pinv(MatrixOperation):
    """The Moore-Penrose inverse; singular values up to `rtol` times the largest count as zero."""

    square = False
    factors = "... n m -> ... m n"
    examples = (
        Example({"rtol": 1e-12}, ((4, 2),)),
        Example({"rtol": 1e-12}, ((2, 4),)),
        Example({"rtol": 1e-12}, ((3, 2),), "c"),
    )

    def eval(self, a: Array, *, rtol: float) -> Array:
        text = "pinv: a matrix holds NaN or infinity"
        result: Array = lapack(text, np.linalg.pinv, a, rcond=rtol)
        return result

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        # At constant rank dP = -P dA P + P Pᴴ dAᴴ (1 - A P) + (1 - P A) dAᴴ Pᴴ P (Golub, Pereyra).
        a, da, back = primals[0], tangents[0], adjoint(tangents[0])
        onto, along = self._complements(a, out)
        gain = adjoint(out)
        return (
            -matmul(matmul(out, da), out)
            + matmul(matmul(out, gain), matmul(back, onto))
            + matmul(matmul(along, back), matmul(gain, out))
        )

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        onto, along = map(conj, self._complements(primals[0], out))
        turned, gain, back = swap(out), adjoint(out), adjoint(ct)
        return (
            -matmul(matmul(turned, ct), turned)
            + matmul(matmul(onto, back), conj(matmul(out, gain)))
            + matmul(conj(matmul(gain, out)), matmul(back, along)),
        )

    def _complements(self, a: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
        """1 - A P and 1 - P A."""
        left, right = matmul(a, inverse), matmul(inverse, a)
        return identity_like(left) - left, identity_like(right) - right


class MatrixFunction(MatrixOperation):
    """A power series of a matrix, or what such series tend to."""

    factors = "... n m -> ... n m"

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        return frechet(self, primals[0], tangents[0])

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return (frechet(self, swap(primals[0]), ct),)


class Expm(MatrixFunction):
    """The exponential of a matrix."""

    examples = (Example({}, ((3, 3),)), Example({}, ((2, 2),), "c"))

    def eval(self, a: Array) -> Array:
        if a.size == 0:
            return a
        return np.asarray(scipy_linalg.expm(a), dtype=a.dtype)


class Sqrtm(MatrixFunction):
    """The principal square root of a complex matrix."""

    examples = (Example({}, ((3, 3),), "c"),)

    def eval(self, a: Array) -> Array:
        made = np.empty_like(a)
        for place in np.ndindex(a.shape[:-2]):
            made[place] = _root(a[place])
        return made


def _root(a: Array) -> Array:
    """The root of a triangular form, column by column (Björck and Hammarling, 1983)."""
    if a.size == 0 or not np.isfinite(a).all():
        return a * np.nan
    triangle, basis = scipy_linalg.schur(a, output="complex")
    root = np.diag(np.sqrt(np.diag(triangle)))
    for j in range(len(a)):
        for i in reversed(range(j)):
            rest = triangle[i, j] - root[i, i + 1 : j] @ root[i + 1 : j, j]
            both = root[i, i] + root[j, j]
            if both == 0 and rest != 0:
                raise ArgumentError("sqrtm: a singular matrix has no square root")
            root[i, j] = 0 if both == 0 else rest / both
    return np.asarray(basis @ root @ basis.conj().T, a.dtype)


def frechet(op: Operation, a: Tensor, direction: Tensor) -> Tensor:
    """The derivative of a function of matrices: the corner of f([[A, E], [0, A]])."""
    size = a.shape[-1]
    top = concat([a, direction], axis=-1)
    bottom = concat([a * 0, a], axis=-1)
    block = call(op, (concat([top, bottom], axis=-2),), {})
    return slice_axes(block, (0, size), (size, size), (1, 1))


class Lu(MatrixOperation):
    """Elimination with row exchanges, A[rows] = L U: L and U in one matrix, and the rows."""

    square = False
    multiple = True
    examples = (
        Example({}, ((4, 4),), "m"),
        Example({}, ((4, 2),)),
        Example({}, ((2, 4),), "c"),
    )

    def index(self, a: TensorType, **params: Any) -> Factors:
        return Factors.parse("... n m -> ... n m, ... n", (a.rank,), whole=self.whole)

    def dtype(self, *found: DType, **params: Any) -> tuple[DType, DType]:
        return found[0], dtypes.int64

    def eval(self, a: Array) -> tuple[Array, Array]:
        packed = np.array(a, copy=True, order="C")
        rows = np.empty(a.shape[:-1], np.int64)
        rows[...] = np.arange(a.shape[-2])
        if a.size:
            (getrf,) = scipy_linalg.get_lapack_funcs(("getrf",), (a,))
            for i in np.ndindex(a.shape[:-2]):
                packed[i], exchanges, _ = getrf(a[i])
                order = list(range(a.shape[-2]))
                for k, other in enumerate(exchanges.tolist()):
                    order[k], order[other] = order[other], order[k]
                rows[i] = order
        return packed, rows

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        packed, rows = out
        left, right = self._squares(packed)
        moved = take_along_axis(tangents[0], expand_dims(rows, -1), axis=-2)
        inner = solve_triangular(left, moved, unit_diagonal=True)
        inner = swap(solve_triangular(right, swap(inner), lower=False, transpose=True))
        return matmul(left, tril(inner, k=-1)) + matmul(triu(inner), right), None

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        packed, rows = out
        left, right = self._squares(packed)
        inner = tril(matmul(swap(left), ct[0]), k=-1) + triu(matmul(ct[0], swap(right)))
        inner = solve_triangular(left, inner, unit_diagonal=True, transpose=True)
        moved = swap(solve_triangular(right, swap(inner), lower=False))
        back = call(argsort_op, (rows,), {"descending": False})
        return (take_along_axis(moved, expand_dims(back, -1), axis=-2),)

    def _squares(self, packed: Tensor) -> tuple[Tensor, Tensor]:
        """L and U completed to square matrices by the identity."""
        n, m = packed.shape[-2:]
        k = min(n, m)
        left = slice_axes(packed, (0, 0), (n, k), (1, 1))
        right = slice_axes(packed, (0, 0), (k, m), (1, 1))
        left = _completed(tril(left, k=-1), n)
        return where(identity_mask(left), 1, left), _completed(triu(right), m, from_place=k)


def _completed(x: Tensor, size: int, from_place: int | None = None) -> Tensor:
    """Zeros appended until the matrix is square; ones on the diagonal from a place on."""
    for axis in (-2, -1):
        missing = size - x.shape[axis]
        if missing:
            shape: list[int] = list(x.shape[-2:])
            shape[axis] = missing
            x = concat([x, _zeros_beside(x, tuple(shape))], axis=axis)
    if from_place is None or from_place == size:
        return x
    ones = np.diag(np.arange(size) >= from_place)
    return where(wrap(ones, x.device), 1, x)


def _zeros_beside(x: Tensor, core: Shape) -> Tensor:
    return zeros(x.shape[:-2] + core, dtype=x.dtype, device=x.device)


cholesky_op, triangular_solve_op, solve_op, inv_op = Cholesky(), TriangularSolve(), Solve(), Inv()
det_op, adjugate_op, slogdet_op = Det(), Adjugate(), Slogdet()
pinv_op, expm_op, sqrtm_op, lu_op = Pinv(), Expm(), Sqrtm(), Lu()


def solve_triangular(
    a: Tensor,
    b: Tensor,
    *,
    lower: bool = True,
    unit_diagonal: bool = False,
    transpose: bool = False,
) -> Tensor:
    """X with A X = B (or Aᵀ X = B) for matrices A and B that have their dtype and batch axes."""
    params = {"lower": lower, "unit_diagonal": unit_diagonal, "transpose": transpose}
    return call(triangular_solve_op, (a, b), params)


__all__: list[str] = []
