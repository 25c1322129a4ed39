"""Systems of linear equations: solved at once, or by factors that are kept for many of them.

Matrices are the last two axes, all others are batch. What is solved by factors has the derivatives
of the factors, so it can be differentiated by the matrix as well.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from weft.core.common import dtypes
from weft.core.common.context import default_float
from weft.core.common.parameters import as_choice, as_flag, shown
from weft.core.common.types import Shape
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, ShapeError, TreeError
from weft.ops.base import call, call_multiple
from weft.ops.creation import arange
from weft.ops.diagonals import tril, triu
from weft.ops.elementwise.arithmetic import where
from weft.ops.elementwise.comparison import equal
from weft.ops.elementwise.complex_parts import conj
from weft.ops.families import as_tensors, broadcast, broadcast_shape, cast
from weft.ops.linalg import (
    adjoint,
    cholesky_op,
    identity_mask,
    lu_op,
    solve_op,
    triangular_solve_op,
)
from weft.ops.norms import inexact
from weft.ops.order import argsort, take_along_axis
from weft.ops.view.reshape import expand_dims, reshape
from weft.ops.view.slice import slice_axes

# SciPy's word for what is solved with: whether it is transposed, and whether conjugated.
_TRANS = {
    0: (False, False),
    1: (True, False),
    2: (True, True),
    "N": (False, False),
    "T": (True, False),
    "C": (True, True),
}


class LUResult(NamedTuple):
    """A permutation, a unit lower triangular and an upper triangular matrix: P @ L @ U."""

    P: Tensor
    L: Tensor
    U: Tensor


def matrices(name: str, x: Any, square: bool = False) -> Tensor:
    """`x` as matrices of floats or complex numbers, or an error that names the function."""
    tensor = inexact(name, x)
    if tensor.ndim < 2:
        raise ShapeError(f"{name}: needs at least 2 axes, got shape {tensor.shape}")
    if square and tensor.shape[-1] != tensor.shape[-2]:
        raise ShapeError(f"{name}: the matrix must be square (shape {tensor.shape})")
    return tensor


def system(name: str, x1: Any, x2: Any) -> tuple[Tensor, Tensor, bool]:
    """Matrix and right-hand sides of one dtype whose batch axes fit."""
    a, b = promoted(name, x1, x2)
    a = matrices(name, a, square=True)
    if b.ndim == 0:
        raise ShapeError(f"{name}: operand 1 needs an axis (shape {b.shape})")
    vector = b.ndim == 1
    right = expand_dims(b, -1) if vector else b
    if right.shape[-2] != a.shape[-1]:
        raise ShapeError(
            f"{name}: operand 1, axis {right.ndim - 2}: size {right.shape[-2]} does not fit the"
            f" matrix (shapes {a.shape}, {b.shape})"
        )
    lead = broadcast_shape(name, a.shape[:-2], right.shape[:-2])
    return _fit_lead(a, lead), _fit_lead(right, lead), vector


def _fit_lead(x: Tensor, lead: Shape) -> Tensor:
    """Stretch batch axes of size 1; missing ones may stay missing."""
    return broadcast(x, lead[len(lead) - (x.ndim - 2) :] + x.shape[-2:])


def promoted(name: str, *args: Any) -> tuple[Tensor, ...]:
    """Operands as tensors of one float or complex dtype."""
    tensors = as_tensors(name, *args)
    dtype = dtypes.promote_all(*(t.dtype for t in tensors), op=name)
    if dtypes.is_bool(dtype):
        raise DTypeError(f"{name}: bool is not a number\nhint: cast with x.astype(…) first")
    target = dtype if dtypes.is_inexact(dtype) else default_float()
    return tuple(cast(t, target) for t in tensors)


def cholesky(x: Any, /, *, upper: bool = False) -> Tensor:
    """The lower triangular L with L Lᴴ = x, or the upper U with Uᴴ U = x.

    Of a matrix that is not Hermitian the Hermitian part (x + xᴴ)/2 is taken.
    """
    factor: Tensor = call(cholesky_op, (matrices("cholesky", x, square=True),), {})
    return adjoint(factor) if as_flag("cholesky", "upper", upper) else factor


def solve(x1: Any, x2: Any, /) -> Tensor:
    """The x with x1 @ x = x2; a one-axis `x2` is one right-hand side for every matrix."""
    a, b, vector = system("solve", x1, x2)
    found: Tensor = call(solve_op, (a, b), {})
    return reshape(found, found.shape[:-1]) if vector else found


def solve_triangular(
    x1: Any,
    x2: Any,
    /,
    *,
    lower: bool = False,
    unit_diagonal: bool = False,
    transpose: bool = False,
    conjugate: bool = False,
    trans: int | str | None = None,
) -> Tensor:
    """The x with x1 @ x = x2 for triangular x1, of which the other triangle is not read.

    `transpose` and `conjugate` solve with x1ᵀ, its conjugate, or (both) its adjoint instead. SciPy
    says that with `trans`: 0 or "N" for x1, 1 or "T" for x1ᵀ, 2 or "C" for the adjoint.
    """
    if trans is not None:
        transpose, conjugate = _transposition(trans, transpose, conjugate)
    a, b, vector = system("solve_triangular", x1, x2)
    flags = {"lower": lower, "unit_diagonal": unit_diagonal, "transpose": transpose}
    params = {name: as_flag("solve_triangular", name, value) for name, value in flags.items()}
    if as_flag("solve_triangular", "conjugate", conjugate):
        a = conj(a)
    found: Tensor = call(triangular_solve_op, (a, b), params)
    return reshape(found, found.shape[:-1]) if vector else found


def _transposition(trans: Any, *flags: bool) -> tuple[bool, bool]:
    """Whether SciPy's `trans` transposes, and whether it conjugates."""
    as_choice("solve_triangular", "trans", trans, _TRANS)
    if any(flags):
        raise ArgumentError(
            f"solve_triangular: trans is {trans!r}, and transpose or conjugate were given too"
        )
    return _TRANS[trans]


def lu(x: Any, /) -> LUResult:
    """P, L and U with x = P L U, by elimination with row exchanges."""
    a = matrices("lu", x)
    packed, rows = call_multiple(lu_op, (a,), {})
    n, m = a.shape[-2:]
    k = min(n, m)
    left = tril(slice_axes(packed, (0, 0), (n, k), (1, 1)), k=-1)
    right = triu(slice_axes(packed, (0, 0), (k, m), (1, 1)))
    places = arange(n, device=a.device)
    order = equal(expand_dims(places, -1), expand_dims(rows, -2))
    return LUResult(cast(order, a.dtype), where(identity_mask(left), 1, left), right)


class CholeskyFactor(NamedTuple):
    """A triangular matrix, and whether it is the lower one."""

    c: Tensor
    lower: bool


class LUFactor(NamedTuple):
    """L below and U on and above the diagonal of one matrix, and the rows x[rows] = L U."""

    lu: Tensor
    rows: Tensor


def cho_factor(x: Any, /, *, lower: bool = False) -> CholeskyFactor:
    """The Cholesky factor of `x` for `cho_solve`; its other triangle is zero.

    >>> x = [[4.0, 2.0], [2.0, 5.0]]
    >>> cho_solve(cho_factor(x), [8.0, 8.0]).tolist()
    [1.5, 1.0]
    """
    factor: Tensor = call(cholesky_op, (matrices("cho_factor", x, square=True),), {})
    is_lower = as_flag("cho_factor", "lower", lower)
    return CholeskyFactor(factor if is_lower else adjoint(factor), is_lower)


def cho_solve(factor: Any, b: Any, /) -> Tensor:
    """The x with A @ x = b, by the factor that `cho_factor(A)` gave: (c, lower)."""
    c, lower = _parts("cho_solve", factor, "(c, lower)")
    is_lower = as_flag("cho_solve", "lower", lower)
    a, right, vector = system("cho_solve", c, b)
    first = {"lower": is_lower, "unit_diagonal": False, "transpose": not is_lower}
    last = {**first, "transpose": is_lower}
    middle = call(triangular_solve_op, (a if is_lower else conj(a), right), first)
    found: Tensor = call(triangular_solve_op, (conj(a) if is_lower else a, middle), last)
    return reshape(found, found.shape[:-1]) if vector else found


def lu_factor(x: Any, /) -> LUFactor:
    """The factors of `x` for `lu_solve`: L and U in one matrix, and the order of the rows.

    The second part is a permutation, x[rows] = L U, not LAPACK's list of exchanges.

    >>> lu_solve(lu_factor([[0.0, 2.0], [4.0, 2.0]]), [2.0, 6.0]).tolist()
    [1.0, 1.0]
    """
    return LUFactor(*call_multiple(lu_op, (matrices("lu_factor", x, square=True),), {}))


def lu_solve(factor: Any, b: Any, /, *, trans: int = 0) -> Tensor:
    """The x with A @ x = b, by the factors that `lu_factor(A)` gave.

    `trans` 1 solves with the transpose of A, 2 with its adjoint.
    """
    packed, rows = _parts("lu_solve", factor, "(lu, rows)")
    as_choice("lu_solve", "trans", trans, (0, 1, 2))
    a, right, vector = system("lu_solve", packed, b)
    a = conj(a) if trans == 2 else a
    below = {"lower": True, "unit_diagonal": True, "transpose": trans != 0}
    above = {"lower": False, "unit_diagonal": False, "transpose": trans != 0}
    lead = broadcast_shape("lu_solve", a.shape[:-2], right.shape[:-2])
    right = broadcast(right, (*lead, *right.shape[-2:]))
    order = broadcast(rows, (*lead, a.shape[-1]))
    if trans == 0:
        right = take_along_axis(right, expand_dims(order, -1), axis=-2)
    for params in (below, above) if trans == 0 else (above, below):
        right = call(triangular_solve_op, (a, right), params)
    if trans != 0:
        right = take_along_axis(right, expand_dims(argsort(order), -1), axis=-2)
    return reshape(right, right.shape[:-1]) if vector else right


def _parts(name: str, factor: Any, wanted: str) -> tuple[Any, Any]:
    """The two parts of what a factorisation gave."""
    if not isinstance(factor, tuple | list) or len(factor) != 2:
        raise TreeError(f"{name}: factor: expected the pair {wanted}, got {shown(factor)}")
    return factor[0], factor[1]


__all__: list[str] = []
