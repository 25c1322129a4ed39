"""Comparisons of each element, extrema of two operands, and closeness.

A comparison is bool and carries no derivative. NaN compares unequal to everything, itself included,
and wins in `maximum` and `minimum`; `fmax` and `fmin` ignore it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.parameters import as_flag
from weft.core.common.slots import FUNCTIONS, public
from weft.core.tensor.convert import as_number, to_tensor
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias
from weft.errors import ArgumentError, ShapeError
from weft.ops.base import Tangents
from weft.ops.elementwise.arithmetic import where
from weft.ops.families import BinaryOperation, as_tensors, broadcast_shape, cast
from weft.ops.naming import named
from weft.ops.often import often

_REAL = "bBhHiIlLqQfd"


class Comparison(BinaryOperation):
    """Compares two operands after promoting them."""

    domain = "ordered"
    result = "bool"
    direct = "?" + _REAL
    reasons = {"vjp": "the result is bool", "jvp": "the result is bool"}


class Equal(Comparison):
    """x1 == x2, elementwise; NaN equals nothing."""

    ufunc = np.equal
    domain = "any"
    direct = "?" + _REAL + "FD"

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.equal(x, y)


class NotEqual(Comparison):
    """x1 != x2, elementwise; NaN differs from everything."""

    ufunc = np.not_equal
    domain = "any"
    direct = "?" + _REAL + "FD"

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.not_equal(x, y)


class Less(Comparison):
    """x1 < x2, elementwise."""

    ufunc = np.less

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.less(x, y)


class LessEqual(Comparison):
    """x1 <= x2, elementwise."""

    ufunc = np.less_equal

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.less_equal(x, y)


class Greater(Comparison):
    """x1 > x2, elementwise."""

    ufunc = np.greater

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.less(y, x)


class GreaterEqual(Comparison):
    """x1 >= x2, elementwise."""

    ufunc = np.greater_equal

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.less_equal(y, x)


class Extremum(BinaryOperation):
    """Chooses one of two operands; where they are equal, each gets half of the derivative."""

    domain = "real"
    direct = _REAL

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        x, y = primals
        moved, other = tangents
        parts = [None if moved is None else _share(moved, x, y, out)]
        parts.append(None if other is None else _share(other, y, x, out))
        found = [part for part in parts if part is not None]
        return found[0] if len(found) == 1 else found[0] + found[1]

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        x, y = primals
        return _share(ct, x, y, out), _share(ct, y, x, out)


def _share(t: Tensor, mine: Tensor, other: Tensor, out: Tensor) -> Tensor:
    """What of `t` belongs to an operand: all if it was chosen, half at a tie, else nothing."""
    return where(mine == out, where(other == out, 0.5 * t, t), 0)


class Maximum(Extremum):
    """The larger of x1 and x2, elementwise; NaN if either is NaN. Ties share the derivative."""

    ufunc = np.maximum

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.max(x, y)


class Minimum(Extremum):
    """The smaller of x1 and x2, elementwise; NaN if either is NaN. Ties share the derivative."""

    ufunc = np.minimum

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.min(x, y)


class Fmax(Extremum):
    """The larger of x1 and x2; NaN only if both are NaN. Ties share the derivative."""

    ufunc = np.fmax

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return _ignoring_nan(s, x, y, s.max(x, y))


class Fmin(Extremum):
    """The smaller of x1 and x2; NaN only if both are NaN. Ties share the derivative."""

    ufunc = np.fmin

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return _ignoring_nan(s, x, y, s.min(x, y))


def _ignoring_nan(s: Any, x: Any, y: Any, chosen: Any) -> Any:
    return s.select(s.not_equal(x, x), y, s.select(s.not_equal(y, y), x, chosen))


equal, not_equal = Equal(), NotEqual()
less, less_equal, greater, greater_equal = Less(), LessEqual(), Greater(), GreaterEqual()
maximum, minimum, fmax, fmin = Maximum(), Minimum(), Fmax(), Fmin()


@public
@named
def clip(
    x: Any, /, min: Any = None, max: Any = None, *, a_min: Any = None, a_max: Any = None
) -> Tensor:
    """Hold every element between `min` and `max`; None is no bound, and NaN stays NaN.

    Bounds are numbers or tensors that broadcast. If `min` exceeds `max`, the result is `max`. An
    element that equals a bound shares the derivative with it. NumPy's `a_min` and `a_max` are other
    names for the bounds.

    >>> clip([-2.0, 0.5, 3.0], 0, 1).tolist()
    [0.0, 0.5, 1.0]
    """
    min, max = _bound("min", min, a_min), _bound("max", max, a_max)
    held = to_tensor(x, beside=(min, max), op="clip")
    if min is not None:
        held = maximum(held, min)
    if max is not None:
        held = minimum(held, max)
    return alias(held) if held is x else held


def _bound(name: str, value: Any, other: Any) -> Any:
    """What is given for a bound under one of its two names."""
    if value is not None and other is not None:
        raise ArgumentError(f"clip: {name} and a_{name} mean the same\nhint: give one of them")
    return other if value is None else value


@public
@often
def isclose(
    x1: Any, x2: Any, /, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Whether |x1 - x2| <= atol + rtol·|x2|, elementwise; equal infinities are close."""
    rtol = as_number("isclose", "rtol", rtol, low=0, beside=(x1, x2))
    atol = as_number("isclose", "atol", atol, low=0, beside=(x1, x2))
    x, y = as_tensors("isclose", x1, x2)
    dtype = dtypes.promote(x.dtype, y.dtype, op="isclose")
    if not dtypes.is_inexact(dtype):
        dtype = dtypes.float64  # differences of integers must neither wrap around nor round early
    x, y = cast(x, dtype), cast(y, dtype)
    size = FUNCTIONS["abs"]
    near = size(x - y) <= atol + rtol * size(y)
    close: Tensor = (near & FUNCTIONS["isfinite"](y)) | (x == y)
    if as_flag("isclose", "equal_nan", equal_nan):
        close = close | ((x != x) & (y != y))
    return close


@public
@often
def allclose(
    x1: Any, x2: Any, /, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Whether `isclose` holds for every pair of elements, as a bool tensor with no axes."""
    close = isclose(x1, x2, rtol=rtol, atol=atol, equal_nan=equal_nan)
    result: Tensor = FUNCTIONS["all"](close)
    return result


@public
def array_equal(x1: Any, x2: Any, /, equal_nan: bool = False) -> Tensor:
    """Whether two tensors have one shape and equal elements, as a bool tensor with no axes."""
    x, y = as_tensors("array_equal", x1, x2)
    if x.shape != y.shape:
        return to_tensor(False, like=x.device)
    same = equal(x, y)
    if as_flag("array_equal", "equal_nan", equal_nan):
        same = same | ((x != x) & (y != y))
    result: Tensor = FUNCTIONS["all"](same)
    return result


@public
def array_equiv(x1: Any, x2: Any, /) -> Tensor:
    """Whether two tensors broadcast together and are equal then, as a bool tensor with no axes."""
    x, y = as_tensors("array_equiv", x1, x2)
    try:
        broadcast_shape("array_equiv", x.shape, y.shape)
    except ShapeError:
        return to_tensor(False, like=x.device)
    result: Tensor = FUNCTIONS["all"](equal(x, y))
    return result


clamp = clip

__all__ = [
    "allclose",
    "array_equal",
    "array_equiv",
    "clamp",
    "clip",
    "equal",
    "fmax",
    "fmin",
    "greater",
    "greater_equal",
    "isclose",
    "less",
    "less_equal",
    "maximum",
    "minimum",
    "not_equal",
]
