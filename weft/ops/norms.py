"""Norms of vectors and matrices. At zero, where a norm has a kink, the derivative is zero."""

from __future__ import annotations

import builtins
from typing import Any

from weft.core.common import dtypes
from weft.core.common.context import default_float
from weft.core.common.keywords import hinting
from weft.core.common.parameters import as_flag, as_real, shown
from weft.core.common.slots import public
from weft.core.common.types import DType
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, AxisError, DTypeError, ShapeError
from weft.ops.axes import normalize_axes
from weft.ops.base import call
from weft.ops.decompositions import svdvals_op
from weft.ops.elementwise.arithmetic import add, pow, square, where
from weft.ops.elementwise.comparison import equal
from weft.ops.elementwise.complex_parts import abs, imag, real
from weft.ops.elementwise.elementary import sqrt
from weft.ops.families import as_tensors, cast
from weft.ops.often import often
from weft.ops.reduction import max as max_over
from weft.ops.reduction import min as min_over
from weft.ops.reduction import sum as sum_over
from weft.ops.view.reshape import expand_dims
from weft.ops.view.transpose import moveaxis

_INFINITY = float("inf")


def inexact(name: str, x: Any, *beside: Any) -> Tensor:
    """`x` as a tensor of floats or complex numbers; integers become the default float."""
    tensor = to_tensor(x, beside=beside, op=name)
    if dtypes.is_bool(tensor.dtype):
        raise DTypeError(f"{name}: bool is not a number\nhint: cast with x.astype(…) first")
    return tensor if dtypes.is_inexact(tensor.dtype) else cast(tensor, default_float())


def _widened(name: str, x: Any) -> tuple[Tensor, DType]:
    """The operand, narrow floats as float32 since squares leave their range; the result's dtype."""
    tensor = inexact(name, x)
    result = dtypes.real_of(tensor.dtype)
    return (cast(tensor, dtypes.float32) if dtypes.is_narrow(tensor.dtype) else tensor), result


@hinting
@often
def vector_norm(
    x: Any, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, ord: Any = 2
) -> Tensor:
    """The `ord`-norm of the vectors along `axis` (of all elements when none is given).

    >>> vector_norm([3.0, 4.0]).item()
    5.0
    """
    tensor, result = _widened("vector_norm", x)
    return cast(_vector_norm(tensor, axis, keepdims, _order("vector_norm", ord)), result)


def _order(name: str, ord: Any) -> float:
    if isinstance(ord, bool) or not isinstance(ord, int | float):
        raise ArgumentError(f"{name}: ord must be a number for vectors, got {ord!r}")
    return as_real(name, "ord", ord)


def _vector_norm(x: Tensor, axis: Any, keepdims: bool, ord: float) -> Tensor:
    if ord == 2:
        return _root(sum_over(_square(x), axis=axis, keepdims=keepdims), 0.5)
    if ord == 0:
        return sum_over(cast(x != 0, dtypes.real_of(x.dtype)), axis=axis, keepdims=keepdims)
    size: Tensor = abs(x)
    if ord == _INFINITY:
        return _largest(size, axis, keepdims)
    if ord == -_INFINITY:
        return min_over(size, axis=axis, keepdims=keepdims)
    if ord == 1:
        return sum_over(size, axis=axis, keepdims=keepdims)
    return _root(sum_over(pow(size, ord), axis=axis, keepdims=keepdims), 1 / ord)


def _largest(size: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The maximum of sizes, which are not negative: 0 where there is none."""
    function = max_over if size.size else sum_over
    return function(size, axis=axis, keepdims=keepdims)


def _square(x: Tensor) -> Tensor:
    """|x|² without a root, so that it is smooth at zero."""
    if not dtypes.is_complex(x.dtype):
        return square(x)
    return add(square(real(x)), square(imag(x)))


def _root(x: Tensor, power: float) -> Tensor:
    """x to a power, with derivative zero at zero."""
    if power < 0:
        return pow(x, power)
    zero = equal(x, 0)
    safe = where(zero, 1, x)
    root = sqrt(safe) if power == 0.5 else pow(safe, power)
    return where(zero, 0, root)


@often
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Tensor:
    """The norm of the matrices in the last two axes: "fro", "nuc", ±1, ±2 or ±inf."""
    tensor, result = _widened("matrix_norm", x)
    if tensor.ndim < 2:
        raise ShapeError(f"matrix_norm: needs at least 2 axes, got shape {tensor.shape}")
    found = _matrix_norm(tensor, ord)
    if as_flag("matrix_norm", "keepdims", keepdims):
        found = expand_dims(expand_dims(found, -1), -1)
    return cast(found, result)


def _matrix_norm(x: Tensor, ord: Any) -> Tensor:
    if not isinstance(ord, str | int | float | None):
        raise _unknown_order(ord)
    if ord is None or ord == "fro":
        return _vector_norm(x, (-2, -1), False, 2.0)
    if ord == "nuc":
        return sum_over(call(svdvals_op, (x,), {}), axis=-1)
    if isinstance(ord, bool) or ord not in (1, -1, 2, -2, _INFINITY, -_INFINITY):
        raise _unknown_order(ord)
    extreme = _largest if ord > 0 else min_over
    if builtins.abs(ord) == 2:
        return extreme(call(svdvals_op, (x,), {}), axis=-1)
    summed = -2 if builtins.abs(ord) == 1 else -1
    return extreme(sum_over(abs(x), axis=summed), axis=-1)


def _unknown_order(ord: Any) -> ArgumentError:
    legal = "'fro', 'nuc', 1, -1, 2, -2, inf and -inf"
    return ArgumentError(f"matrix_norm: ord is one of {legal}, got {shown(ord)}")


@public
@often
def norm(
    x: Any,
    /,
    ord: Any = None,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
) -> Tensor:
    """NumPy's norm: of vectors along one axis, of matrices along two, of all elements if none."""
    tensor, result = _widened("norm", x)
    if axis is None and (ord is None or tensor.ndim == 1):
        return cast(
            _vector_norm(tensor, None, keepdims, _order("norm", 2 if ord is None else ord)), result
        )
    axes = normalize_axes("norm", range(tensor.ndim) if axis is None else axis, tensor.ndim)
    if len(axes) == 1:
        order = _order("norm", 2 if ord is None else ord)
        return cast(_vector_norm(tensor, axes[0], keepdims, order), result)
    if len(axes) != 2:
        raise AxisError(f"norm: one axis or two, got {len(axes)} (shape {tensor.shape})")
    found = _matrix_norm(moveaxis(tensor, axes, (-2, -1)), ord)
    if as_flag("norm", "keepdims", keepdims):
        for i in sorted(axes):
            found = expand_dims(found, i)
    return cast(found, result)


@public
@often
def cdist(x1: Any, x2: Any, /, p: float = 2.0) -> Tensor:
    """The `p`-norm of the difference of each row of `x1` (…, n, d) and each of `x2` (…, m, d).

    Distances are those of differences, exact for points that are close, and have slope 0 at 0.

    >>> cdist([[0.0, 0.0]], [[3.0, 4.0], [6.0, 8.0]]).tolist()
    [[5.0, 10.0]]
    """
    first, second = as_tensors("cdist", x1, x2)
    if first.ndim < 2 or second.ndim < 2 or first.shape[-1] != second.shape[-1]:
        raise ShapeError(f"cdist: expected (…, n, d), (…, m, d), got {first.shape}, {second.shape}")
    if as_real("cdist", "p", p) < 0:
        raise ArgumentError(f"cdist: p must be at least 0, got {p}")
    rows, columns = inexact("cdist", expand_dims(first, -2)), expand_dims(second, -3)
    return vector_norm(rows - columns, axis=-1, ord=p)


__all__ = [
    "cdist",
]
