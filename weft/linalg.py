"""Linear algebra: `wf.linalg`, as the array API and NumPy name it.

Functions work on the last two axes and batch over the others. Integers become the default float.
All are differentiable in both modes where the mathematics allows it; complex derivatives follow the
bilinear pairing, as `wf.vjp` does everywhere.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.core.common import dtypes
from weft.core.common.parameters import as_choice, as_flag, as_integer, as_real, as_sequence
from weft.core.common.peers import refuse
from weft.core.common.types import Shape
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ops.axes import normalize_axes
from weft.ops.base import call, call_multiple
from weft.ops.contraction import matmul, numbers, outer, tensordot, vecdot
from weft.ops.creation import zeros
from weft.ops.decompositions import (
    eig_op,
    eigh_op,
    eigvals_op,
    eigvalsh_op,
    qr_complete_op,
    qr_op,
    svd_full_op,
    svd_op,
    svdvals_op,
)
from weft.ops.diagonals import block_diag, toeplitz, tril, triu
from weft.ops.diagonals import diagonal as diagonal_along
from weft.ops.elementwise.arithmetic import add, divide, multiply, square, where
from weft.ops.elementwise.bitwise import logical_and, logical_not
from weft.ops.elementwise.comparison import greater
from weft.ops.elementwise.complex_parts import conj, isnan, real
from weft.ops.families import as_tensors, broadcast, cast
from weft.ops.linalg import (
    adjoint,
    det_op,
    expm_op,
    identity_like,
    identity_mask,
    inv_op,
    pinv_op,
    slogdet_op,
    sqrtm_op,
)
from weft.ops.manipulation import cross as cross_along
from weft.ops.manipulation import kron
from weft.ops.norms import matrix_norm, norm, vector_norm
from weft.ops.often import often
from weft.ops.reduction import any as any_over
from weft.ops.reduction import max as max_over
from weft.ops.reduction import min as min_over
from weft.ops.reduction import sum as sum_over
from weft.ops.systems import (
    CholeskyFactor,
    LUFactor,
    LUResult,
    cho_factor,
    cho_solve,
    cholesky,
    lu,
    lu_factor,
    lu_solve,
    matrices,
    promoted,
    solve,
    solve_triangular,
)
from weft.ops.view.join import concat
from weft.ops.view.reshape import expand_dims, reshape
from weft.ops.view.slice import narrow
from weft.ops.view.transpose import matrix_transpose, moveaxis
from weft.transforms.custom import custom_vjp
from weft.transforms.iterative import CGResult, GMRESResult, cg, gmres


class QRResult(NamedTuple):
    """Orthonormal columns and an upper triangular matrix."""

    Q: Tensor
    R: Tensor


class SVDResult(NamedTuple):
    """Left vectors, singular values, and right vectors as rows."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class PolarResult(NamedTuple):
    """Orthonormal columns (or rows) and a Hermitian matrix without negative eigenvalues."""

    U: Tensor
    P: Tensor


class EighResult(NamedTuple):
    """Real eigenvalues in ascending order and orthonormal eigenvectors as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class EigResult(NamedTuple):
    """Complex eigenvalues and eigenvectors of norm 1 as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class SlogdetResult(NamedTuple):
    """Sign of a determinant and logarithm of its absolute value."""

    sign: Tensor
    logabsdet: Tensor


class LstsqResult(NamedTuple):
    """Least squares: solution, sums of squared residuals, rank, singular values."""

    x: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


def qr(x: Any, /, mode: str = "reduced") -> Any:
    """Q and R with x = Q R; "complete" makes Q square, "r" gives R alone."""
    a = matrices("qr", x)
    as_choice("qr", "mode", mode, ("reduced", "complete", "r"))
    rows, columns = a.shape[-2:]
    if mode == "complete" and rows > columns:
        return QRResult(*call_multiple(qr_complete_op, (a,), {}))
    if rows >= columns:
        result = QRResult(*call_multiple(qr_op, (a,), {}))
        return result.R if mode == "r" else result
    # The first square block decides Q; it then turns the remaining columns.
    q, first = call_multiple(qr_op, (narrow(a, -1, 0, rows),), {})
    rest = matmul(adjoint(q), narrow(a, -1, rows, columns - rows))
    r = concat([first, rest], axis=-1)
    return r if mode == "r" else QRResult(q, r)


def svd(x: Any, /, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """U, S and Vh with x = U diag(S) Vh; derivatives need `full_matrices=False` or a square x."""
    a = matrices("svd", x)
    if not as_flag("svd", "compute_uv", compute_uv):
        return svdvals(a)
    full = as_flag("svd", "full_matrices", full_matrices) and a.shape[-1] != a.shape[-2]
    return SVDResult(*call_multiple(svd_full_op if full else svd_op, (a,), {}))


def svdvals(x: Any, /) -> Tensor:
    """Singular values in descending order."""
    return call(svdvals_op, (matrices("svdvals", x),), {})


def polar(x: Any, /, side: str = "right") -> PolarResult:
    """U and P with x = U P, or with x = P U for the side "left".

    U is the matrix nearest to x whose columns (rows, if x is wide) are orthonormal, and P Hermitian
    without negative eigenvalues. Derivatives need a matrix of full rank.

    >>> [t.tolist() for t in polar([[0.0, -2.0], [2.0, 0.0]])]
    [[[0.0, -1.0], [1.0, 0.0]], [[2.0, 0.0], [0.0, 2.0]]]
    """
    a = matrices("polar", x)
    as_choice("polar", "side", side, ("right", "left"))
    if a.shape[-2] < a.shape[-1]:
        u = adjoint(_orthonormal(adjoint(a)))
    else:
        u = _orthonormal(a)
    p = matmul(adjoint(u), a) if side == "right" else matmul(a, adjoint(u))
    return PolarResult(u, (p + adjoint(p)) / 2)


@custom_vjp
def _orthonormal(a: Tensor) -> Tensor:
    """The matrix nearest to a tall one whose columns are orthonormal."""
    u, _, vh = svd(a, full_matrices=False)
    return matmul(u, vh)


def _orthonormal_back(saved: Any, ct: Any) -> tuple[Tensor]:
    # dU = U X + (1 - U Uᴴ) dA P⁻¹ where P X + X P = Uᴴ dA - dAᴴ U: it has no gaps of singular
    # values as the derivative of svd does, which has none where two are equal.
    a, u = saved
    p, g = matmul(adjoint(u), a), conj(ct)
    along = matmul(adjoint(u), g)
    found = matmul(u, _sylvester(p, along - adjoint(along)))
    if a.shape[-2] > a.shape[-1]:
        found = found + matmul(g - matmul(u, along), call(inv_op, (p,), {"strict": False}))
    return (conj(found),)


@custom_vjp
def _sylvester(p: Tensor, r: Tensor) -> Tensor:
    """The X with P X + X P = R for a Hermitian P."""
    values, vectors = eigh(p)
    turned = matmul(matmul(adjoint(vectors), r), vectors)
    sums = expand_dims(values, -1) + expand_dims(values, -2)
    return matmul(matmul(vectors, turned / sums), adjoint(vectors))


def _sylvester_back(saved: Any, ct: Any) -> tuple[Tensor, Tensor]:
    p, x = saved
    by_r, turned = _sylvester(matrix_transpose(p), ct), matrix_transpose(x)
    return -(matmul(by_r, turned) + matmul(turned, by_r)), by_r


_orthonormal.defvjp(lambda a: (u := _orthonormal(a), (a, u)), _orthonormal_back)
_sylvester.defvjp(lambda p, r: (x := _sylvester(p, r), (p, x)), _sylvester_back)


def eigh(x: Any, /, UPLO: str | None = None) -> EighResult:
    """Eigenvalues and eigenvectors of a Hermitian matrix.

    `UPLO` "L" or "U" reads one triangle only; by default the Hermitian part (x + xᴴ)/2 is taken.
    """
    return EighResult(*call_multiple(eigh_op, (_from_triangle("eigh", x, UPLO),), {}))


def eigvalsh(x: Any, /, UPLO: str | None = None) -> Tensor:
    """Eigenvalues of a Hermitian matrix in ascending order; `UPLO` as for `eigh`."""
    return call(eigvalsh_op, (_from_triangle("eigvalsh", x, UPLO),), {})


def _from_triangle(name: str, x: Any, triangle: str | None) -> Tensor:
    a = matrices(name, x, square=True)
    if triangle is None:
        return a
    as_choice(name, "UPLO", triangle, ("L", "U"))
    strict = tril(a, k=-1) if triangle == "L" else triu(a, k=1)
    diagonal = where(identity_mask(a), real(a), 0)
    return add(add(strict, adjoint(strict)), diagonal)


def eig(x: Any, /) -> EigResult:
    """Complex eigenvalues and eigenvectors of a general matrix."""
    return EigResult(*call_multiple(eig_op, (matrices("eig", x, square=True),), {}))


def eigvals(x: Any, /) -> Tensor:
    """Complex eigenvalues of a general matrix, in no particular order."""
    return call(eigvals_op, (matrices("eigvals", x, square=True),), {})


def det(x: Any, /) -> Tensor:
    """The determinant; singular matrices give 0 and have a derivative."""
    return call(det_op, (matrices("det", x, square=True),), {})


def slogdet(x: Any, /) -> SlogdetResult:
    """Sign and logarithm of the absolute value of the determinant; singular gives (0, -inf)."""
    return SlogdetResult(*call_multiple(slogdet_op, (matrices("slogdet", x, square=True),), {}))


def inv(x: Any, /) -> Tensor:
    """The inverse; a singular matrix raises `ArgumentError`."""
    return call(inv_op, (matrices("inv", x, square=True),), {"strict": True})


def _cutoff(x: Tensor) -> float:
    """The relative size from which on singular values count, by default."""
    return max(x.shape[-2:], default=1) * dtypes.finfo(x.dtype).eps


def pinv(x: Any, /, rcond: Any = None, *, rtol: Any = None) -> Tensor:
    """The Moore-Penrose inverse; singular values up to `rtol` times the largest count as zero.

    `rcond` is NumPy's older word for `rtol`.
    """
    a = matrices("pinv", x)
    if rcond is not None:
        if rtol is not None:
            raise ArgumentError("pinv: rcond and rtol mean the same\nhint: give one of them")
        rtol = rcond
    if rtol is None or isinstance(rtol, int | float):
        cutoff = _cutoff(a) if rtol is None else as_real("pinv", "rtol", rtol, decides=True)
        return call(pinv_op, (a,), {"rtol": cutoff})
    u, s, vh = svd(a, full_matrices=False)
    kept = _kept("pinv", s, rtol)
    weights = where(kept, 1 / where(kept, s, 1), 0)
    return matmul(adjoint(vh), multiply(expand_dims(weights, -1), adjoint(u)))


def _kept(name: str, s: Tensor, rtol: Any) -> Tensor:
    """Which singular values are larger than `rtol` times the largest."""
    largest = max_over(s, axis=-1, keepdims=True)
    return greater(s, _limits(name, "rtol", s, rtol) * largest)


def _limits(name: str, parameter: str, s: Tensor, value: Any) -> Tensor:
    """A limit of singular values for each matrix."""
    limit = to_tensor(value, beside=(s,), op=f"{name}: {parameter}")
    if not dtypes.is_floating(limit.dtype) and not dtypes.is_integer(limit.dtype):
        kind = dtypes.name_of(limit.dtype)
        raise DTypeError(f"{name}: {parameter} must be a real number, got {kind}")
    return expand_dims(cast(limit, s.dtype), -1)


def matrix_rank(x: Any, /, tol: Any = None, *, rtol: Any = None) -> Tensor:
    """How many singular values are larger than `rtol` times the largest, or than `tol` itself.

    >>> matrix_rank([[3.0, 0.0], [0.0, 0.1]], tol=0.5).item()
    1
    """
    a = matrices("matrix_rank", x)
    if tol is not None and rtol is not None:
        raise ArgumentError(
            "matrix_rank: tol and rtol are both given"
            "\nhint: tol is a singular value, rtol a part of the largest"
        )
    s = svdvals(a)
    if 0 in a.shape[-2:]:
        return zeros(s.shape[:-1], dtype=dtypes.int64, device=a.device)
    if tol is not None:
        return sum_over(greater(s, _limits("matrix_rank", "tol", s, tol)), axis=-1)
    return sum_over(_kept("matrix_rank", s, _cutoff(a) if rtol is None else rtol), axis=-1)


def matrix_power(x: Any, n: int, /) -> Tensor:
    """The matrix multiplied n times with itself; the inverse for negative n, by squaring."""
    (a,) = numbers("matrix_power", x)
    if isinstance(n, bool) or not isinstance(n, int):
        raise ArgumentError(f"matrix_power: the exponent must be an integer, got {n!r}")
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ShapeError(f"matrix_power: the matrix must be square (shape {a.shape})")
    if n < 0:
        a = inv(a)
    result, square, left = None, a, abs(n)
    while left:
        if left % 2:
            result = square if result is None else matmul(result, square)
        left //= 2
        square = matmul(square, square) if left else square
    if result is None:
        return broadcast(identity_like(a), a.shape)
    return alias(result) if result is x else result


def cond(x: Any, /, p: Any = None) -> Tensor:
    """How much solving with this matrix can magnify errors, in the norm `p` (2 by default)."""
    a = matrices("cond", x)
    if p is None or (isinstance(p, int | float) and p in (2, -2)):
        s = svdvals(a)
        large, small = max_over(s, axis=-1), min_over(s, axis=-1)
        found = divide(*((small, large) if p == -2 else (large, small)))
    else:
        inverse = call(inv_op, (matrices("cond", a, square=True),), {"strict": False})
        found = multiply(matrix_norm(a, ord=p), matrix_norm(inverse, ord=p))
    # 0/0 and 0·∞ are a singular matrix; NaN in the matrix itself stays NaN.
    undefined = logical_and(isnan(found), logical_not(any_over(isnan(a), axis=(-2, -1))))
    return where(undefined, float("inf"), found)


def lstsq(a: Any, /, b: Any, rcond: float | None = None) -> LstsqResult:
    """The x of least norm that makes |a @ x - b| least.

    Residuals are the sums of squares of b - a @ x for each column, and empty where `a` has no more
    rows than columns. Singular values up to `rcond` times the largest count as zero.
    """
    left, right = promoted("lstsq", a, b)
    left = matrices("lstsq", left)
    vector = right.ndim == 1
    columns = expand_dims(right, -1) if vector else right
    if columns.ndim < 2 or columns.shape[-2] != left.shape[-2]:
        raise ShapeError(f"lstsq: rows do not fit (shapes {left.shape}, {right.shape})")
    cutoff = _cutoff(left) if rcond is None else as_real("lstsq", "rcond", rcond, decides=True)
    x = matmul(pinv(left, rtol=cutoff), columns)
    if left.shape[-2] > left.shape[-1]:
        residuals = square(vector_norm(columns - matmul(left, x), axis=-2))
    else:
        residuals = zeros((0,), dtype=dtypes.real_of(left.dtype), device=left.device)
    solution = reshape(x, x.shape[:-1]) if vector else x
    return LstsqResult(solution, residuals, matrix_rank(left, rtol=cutoff), svdvals(left))


def expm(x: Any, /) -> Tensor:
    """The exponential of a matrix: 1 + x + x²/2 + …"""
    return call(expm_op, (matrices("expm", x, square=True),), {})


def sqrtm(x: Any, /) -> Tensor:
    """The principal square root of a matrix, complex: `real` of it where x has no eigenvalue < 0.

    A singular matrix has no derivative here, and some have no root: that raises.
    """
    matrix = matrices("sqrtm", x, square=True)
    return call(sqrtm_op, (cast(matrix, dtypes.complex_of(matrix.dtype)),), {})


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Tensor:
    """The cross product of vectors of three elements along `axis`; other axes broadcast."""
    return cross_along(x1, x2, axis=as_integer("cross", "axis", axis))


def diagonal(x: Any, /, *, offset: int = 0) -> Tensor:
    """The elements of a diagonal of the last two axes; above the main one for a positive offset."""
    return diagonal_along(x, offset, -2, -1)


@often
def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """The sum of a diagonal of the last two axes; small integers are summed as 64-bit ones."""
    return sum_over(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def multi_dot(arrays: Any, /) -> Tensor:
    """The product of a chain of matrices in the cheapest order; the ends may be vectors."""
    chain = list(as_tensors("multi_dot", *as_sequence("multi_dot", "arrays", arrays)))
    if len(chain) < 2:
        raise ArgumentError(f"multi_dot: at least two matrices are needed, got {len(chain)}")
    for k, t in enumerate(chain):
        if t.ndim != 2 and not (t.ndim == 1 and k in (0, len(chain) - 1)):
            raise ShapeError(f"multi_dot: operand {k}: expected a matrix (shape {t.shape})")
    first = 1 if chain[0].ndim == 1 else chain[0].shape[0]
    last = 1 if chain[-1].ndim == 1 else chain[-1].shape[-1]
    sizes = [first, *(t.shape[0] for t in chain[1:]), last]
    return _chained(chain, _best_cuts(sizes), 0, len(chain) - 1)


def tensorinv(a: Any, /, ind: int = 2) -> Tensor:
    """The inverse of `a` as a map from its axes after the first `ind` to those before.

    `tensordot(tensorinv(a, ind), b, ind)` is what `tensorsolve(a, b)` gives.
    """
    tensor = to_tensor(a, op="tensorinv")
    cut = as_integer("tensorinv", "ind", ind, low=1)
    rows, columns = tensor.shape[:cut], tensor.shape[cut:]
    return reshape(inv(_flattened("tensorinv", tensor, rows, columns)), columns + rows)


def tensorsolve(a: Any, /, b: Any, axes: Any = None) -> Tensor:
    """The x with `tensordot(a, x, x.ndim)` = b; `axes` of `a` are moved to its end first."""
    left, right = promoted("tensorsolve", a, b)
    if axes is not None:
        moved = normalize_axes("tensorsolve", axes, left.ndim)
        left = moveaxis(left, moved, tuple(range(-len(moved), 0)))
    rows, columns = left.shape[: right.ndim], left.shape[right.ndim :]
    matrix = _flattened("tensorsolve", left, rows, columns)
    if right.size != prod(rows):
        raise ShapeError(f"tensorsolve: shapes do not fit ({left.shape}, {right.shape})")
    return reshape(solve(matrix, reshape(right, (-1,))), columns)


def _flattened(name: str, x: Tensor, rows: Shape, columns: Shape) -> Tensor:
    """`x` as a square matrix, or an error that names the function."""
    if prod(rows) != prod(columns):
        raise ShapeError(
            f"{name}: axes {rows} and {columns} of shape {x.shape} are of different sizes"
            f" ({prod(rows)} and {prod(columns)})"
        )
    return reshape(x, (prod(rows), prod(columns)))


def _best_cuts(sizes: list[int]) -> dict[tuple[int, int], int]:
    """For each run of the chain, after which matrix to cut it for the fewest multiplications."""
    count = len(sizes) - 1
    price = {(i, i): 0 for i in range(count)}
    cuts = {}
    for span in range(1, count):
        for i in range(count - span):
            j = i + span
            options = [
                (price[i, k] + price[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k)
                for k in range(i, j)
            ]
            price[i, j], cuts[i, j] = min(options)
    return cuts


def _chained(chain: list[Tensor], cuts: dict[tuple[int, int], int], i: int, j: int) -> Tensor:
    if i == j:
        return chain[i]
    k = cuts[i, j]
    return matmul(_chained(chain, cuts, i, k), _chained(chain, cuts, k + 1, j))


__all__ = [
    "CGResult",
    "CholeskyFactor",
    "EigResult",
    "EighResult",
    "GMRESResult",
    "LUFactor",
    "LUResult",
    "LstsqResult",
    "PolarResult",
    "QRResult",
    "SVDResult",
    "SlogdetResult",
    "block_diag",
    "cg",
    "cho_factor",
    "cho_solve",
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "expm",
    "gmres",
    "inv",
    "kron",
    "lstsq",
    "lu",
    "lu_factor",
    "lu_solve",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "polar",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "sqrtm",
    "svd",
    "svdvals",
    "tensordot",
    "tensorinv",
    "tensorsolve",
    "toeplitz",
    "trace",
    "vecdot",
    "vector_norm",
]


if not TYPE_CHECKING:  # checkers know which names there are
    __getattr__ = refuse("weft.linalg")


def __dir__() -> list[str]:
    return sorted(__all__)
