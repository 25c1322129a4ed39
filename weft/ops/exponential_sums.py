"""Sums of exponentials over axes, and what is divided by them, without overflow.

Exponents are measured from the largest along the axes, so that none of them is above 0.
"""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

from weft.core.common import dtypes
from weft.core.common.parameters import as_flag
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import DType
from weft.core.tensor.convert import to_tensors
from weft.core.tensor.tensor import Tensor
from weft.errors import DTypeError
from weft.ops import reduction
from weft.ops.axes import reduced_axes
from weft.ops.elementwise.arithmetic import where
from weft.ops.elementwise.elementary import exp, log
from weft.ops.families import align, cast
from weft.ops.often import often
from weft.ops.statistics import float_of, others
from weft.ops.view.reshape import reshape


def _level(x: Tensor, axis: Any) -> Tensor:
    """What exponents are measured from, held constant: the largest along the axes."""
    real = FUNCTIONS["real"](x) if dtypes.is_complex(x.dtype) else x
    result: Tensor = FUNCTIONS["stop_gradient"](reduction.max(real, axis, True))
    return result


@overload
def logsumexp(
    x: Any,
    /,
    axis: Any = ...,
    keepdims: bool = ...,
    *,
    b: Any = ...,
    return_sign: Literal[False] = ...,
    where: Any = ...,
) -> Tensor: ...


@overload
def logsumexp(
    x: Any,
    /,
    axis: Any = ...,
    keepdims: bool = ...,
    *,
    b: Any = ...,
    return_sign: Literal[True],
    where: Any = ...,
) -> tuple[Tensor, Tensor]: ...


@public
@often
def logsumexp(
    x: Any,
    /,
    axis: Any = None,
    keepdims: bool = False,
    *,
    b: Any = None,
    return_sign: bool = False,
    where: Any = None,
) -> Any:
    """Logarithm of the sum of exponentials over axes (and in a mask), without overflow.

    Nothing, or nothing but -inf, gives -inf (with derivative 0). `b` are factors of the
    exponentials: the logarithm of a negative sum is NaN, but with `return_sign` the result is a
    pair, the logarithm of the sum's absolute value and its sign.

    >>> size, sign = logsumexp([0.0, 0.0], b=[1.0, -3.0], return_sign=True)
    >>> print(f"{sign.item()} * {exp(size).item():.3f}")
    -1.0 * 2.000
    """
    flag = as_flag("logsumexp", "return_sign", return_sign)
    factors: Tensor | None = None
    if b is None:
        tensor, target = float_of("logsumexp", x)
    else:
        given = align("logsumexp", tuple(to_tensors("logsumexp", x, b)))
        kind = dtypes.promote_all(*(t.dtype for t in given), op="logsumexp")
        (tensor, target), (factors, _) = (float_of("logsumexp", cast(t, kind)) for t in given)
    kept = reduction.selected("logsumexp", tensor, where, -np.inf)
    found, total = _log_of_sum(kept, factors, axis, flag)
    if not as_flag("logsumexp", "keepdims", keepdims):
        axes = reduced_axes("logsumexp", axis, tensor.ndim)
        rest = tuple(tensor.shape[i] for i in others(axes, tensor.ndim))
        found, total = reshape(found, rest), reshape(total, rest)
    if not flag:
        return cast(found, target)
    return cast(found, dtypes.real_of(target)), cast(FUNCTIONS["sign"](total), target)


def _log_of_sum(
    x: Tensor, factors: Tensor | None, axis: Any, absolute: bool
) -> tuple[Tensor, Tensor]:
    """The logarithm of a sum or of its absolute value, and a number of the sum's sign."""
    if any(x.shape[i] == 0 for i in reduced_axes("logsumexp", axis, x.ndim)):
        total = reduction.sum(x, axis, True)
        return (FUNCTIONS["real"](total) if absolute else total) - np.inf, total
    counted = x if factors is None else where(factors == 0, -np.inf, x)
    top = _level(counted, axis)
    top = where(top - top == 0, top, 0)  # an infinite level would make inf - inf
    if factors is None:
        total = reduction.sum(exp(x - top), axis, True)
    else:
        total = reduction.sum(_scaled(x - top, factors), axis, True)
    size = FUNCTIONS["abs"](total) if absolute else total
    empty = size == 0
    return where(empty, -np.inf, log(where(empty, 1, size)) + top), total


def _scaled(exponent: Tensor, factors: Tensor) -> Tensor:
    """Exponentials times factors; a factor 0 gives 0, whatever it is that would overflow."""
    largest = float(np.log(np.finfo(exponent.dtype).max))
    above = FUNCTIONS["real"](exponent) if dtypes.is_complex(exponent.dtype) else exponent
    lost = FUNCTIONS["logical_and"](factors == 0, FUNCTIONS["logical_not"](above < largest))
    return factors * exp(where(lost, 0, exponent))


@public
@often
def softmax(x: Any, /, axis: Any = -1, *, dtype: Any = None, where: Any = None) -> Tensor:
    """Exponentials divided by their sum along an axis (or axes), without overflow.

    A row of nothing but -inf, or with +inf in it, gives NaN. `where` is a mask of the elements that
    count; the others give 0.

    >>> softmax([1.0, 5.0, 1.0], where=[True, False, True]).tolist()
    [0.5, 0.0, 0.5]
    """
    if where is not None:
        kept, mask, kind = _counting("softmax", x, axis, dtype, where)
        return reduction.selected("softmax", softmax(kept, axis, dtype=kind), mask, 0)
    tensor, target = float_of("softmax", x, dtype)
    if _is_empty("softmax", tensor, axis):
        return cast(exp(tensor), target)
    powers = exp(tensor - _level(tensor, axis))
    return cast(powers * (1 / reduction.sum(powers, axis, True)), target)


@public
@often
def log_softmax(x: Any, /, axis: Any = -1, *, dtype: Any = None, where: Any = None) -> Tensor:
    """Logarithm of `softmax`, exact where the softmax itself would underflow.

    `where` is a mask of the elements that count; the others give -inf.
    """
    if where is not None:
        kept, mask, kind = _counting("log_softmax", x, axis, dtype, where)
        made = log_softmax(kept, axis, dtype=kind)
        return reduction.selected("log_softmax", made, mask, -np.inf)
    tensor, target = float_of("log_softmax", x, dtype)
    if _is_empty("log_softmax", tensor, axis):
        return cast(exp(tensor), target)
    shifted = tensor - _level(tensor, axis)
    return cast(shifted - log(reduction.sum(exp(shifted), axis, True)), target)


def _counting(name: str, x: Any, axis: Any, dtype: Any, mask: Any) -> tuple[Tensor, Tensor, DType]:
    """`x` with -inf outside a mask (0 along axes where all is outside), the mask, and the dtype."""
    tensor, target = float_of(name, x, dtype)
    axes = reduced_axes(name, axis, tensor.ndim)
    kept = reduction.selected(name, FUNCTIONS["ones_like"](tensor, dtype=bool), mask, False)
    fill = where(reduction.any(kept, axes, True), -np.inf, 0.0)
    return where(kept, tensor, cast(fill, tensor.dtype)), kept, target


def _is_empty(name: str, x: Tensor, axis: Any) -> bool:
    if dtypes.is_complex(x.dtype):
        raise DTypeError(f"{name}: complex numbers have no order")
    return any(x.shape[i] == 0 for i in reduced_axes(name, axis, x.ndim))


__all__ = ["log_softmax", "logsumexp", "softmax"]
