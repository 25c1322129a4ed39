"""Arithmetic on each element: the operators of Python, powers, extrema, casts and choice."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import Array, DType
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import DTypeError
from weft.ops.base import Example, Linear, Operation, Tangents, call
from weft.ops.families import (
    BinaryOperation,
    ElementwiseOperation,
    UnaryOperation,
    align,
    as_tensors,
    cast,
)

_NUMBERS = "bBhHiIlLqQfdFD"


class Add(BinaryOperation):
    """x1 + x2, elementwise."""

    ufunc = np.add
    direct = _NUMBERS
    linear = Linear.JOINTLY

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.add(x, y)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return ct, ct


class Subtract(BinaryOperation):
    """x1 - x2, elementwise."""

    ufunc = np.subtract
    direct = _NUMBERS
    linear = Linear.JOINTLY

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.sub(x, y)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return ct, -ct


class Multiply(BinaryOperation):
    """x1 * x2, elementwise."""

    ufunc = np.multiply
    direct = _NUMBERS
    linear = Linear.EACH

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.mul(x, y)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        x, y = primals
        return ct * y, ct * x


class Divide(BinaryOperation):
    """x1 / x2, elementwise; integers are divided as floats."""

    ufunc = np.divide
    direct = "fdFD"
    domain = "inexact"

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.div(x, y)

    def derivatives(self, x: Tensor, y: Tensor, out: Tensor) -> tuple[Any, Any]:
        return 1 / y, -out / y


class Negative(UnaryOperation):
    """-x, elementwise."""

    ufunc = np.negative
    linear = Linear.JOINTLY

    def body(self, s: Any, x: Any) -> Any:
        return s.neg(x)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return (-ct,)


class Pow(BinaryOperation):
    """x1 to the power x2, elementwise; at x1 = 0 the derivative by the exponent is 0."""

    ufunc = np.power
    direct = "fd"
    sample = "pf"

    def eval(self, x: Array, y: Array, **params: Any) -> Any:
        if x.dtype.kind == "i" and (np.asarray(y) < 0).any():
            return _integer_power(x, y)
        return np.power(x, y)

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.call("pow", x, y)

    def derivatives(self, x: Tensor, y: Tensor, out: Tensor) -> tuple[Any, Any]:
        where, log = FUNCTIONS["where"], FUNCTIONS["log"]
        by_base = where(y == 0, 0, y * x ** where(y == 0, 1, y - 1))
        by_exponent = where(x == 0, 0, log(where(x == 0, 1, x)) * out)
        return by_base, by_exponent


def _integer_power(x: Array, y: Array) -> Array:
    """1/x**|y| rounded toward zero: ±1 for x = ±1, else 0."""
    sign = np.where(y % 2 == 0, 1, x)
    negative = np.where(np.abs(x) == 1, sign, 0).astype(x.dtype)
    return np.where(y < 0, negative, np.power(x, np.maximum(y, 0))).astype(x.dtype)


class Cast(ElementwiseOperation):
    """Convert to another dtype; floats become integers by truncation, saturating, NaN is 0."""

    domain = "any"
    linear = Linear.JOINTLY
    widen = False
    examples = (Example({"dtype": np.dtype("float64")}),)

    def dtype(self, *found: DType, **params: Any) -> DType:
        return params["dtype"]  # type: ignore[no-any-return]

    def eval(self, x: Array, *, dtype: DType) -> Array:
        if dtypes.is_integer(dtype) and dtypes.is_inexact(x.dtype):
            return _saturate(x, dtype)
        if dtypes.is_complex(x.dtype) and not dtypes.is_complex(dtype):
            x = (x != 0) if dtypes.is_bool(dtype) else x.real
        return x.astype(dtype)

    def body(self, s: Any, x: Any, *, dtype: DType) -> Any:
        return s.cast(x, dtype)

    def vjp(self, primals: Any, out: Any, ct: Any, *, dtype: DType) -> Tangents:
        x = primals[0]
        if not dtypes.is_inexact(x.dtype):
            return (None,)
        if dtypes.is_complex(ct.dtype) and not dtypes.is_complex(x.dtype):
            ct = FUNCTIONS["real"](ct)
        return (cast(ct, x.dtype),)


def _saturate(x: Array, dtype: DType) -> Array:
    real = x.real if dtypes.is_complex(x.dtype) else x
    wide = np.trunc(real.astype(np.float64))
    limits = np.iinfo(dtype)
    with np.errstate(invalid="ignore"):
        inside = wide.clip(float(limits.min), float(limits.max)).astype(dtype)
    top, bottom = wide >= float(limits.max), wide <= float(limits.min)
    result = np.where(top, limits.max, np.where(bottom, limits.min, inside)).astype(dtype)
    return np.where(np.isnan(wide), 0, result).astype(dtype)


class Where(Operation):
    """Elements of x1 where the condition holds, of x2 elsewhere."""

    sample = "bff"
    factors = "..., ..., ... -> ..."
    linear = Linear.JOINTLY
    constants = (0,)
    widen = False

    def dtype(self, *found: DType, **params: Any) -> DType:
        return found[1]

    def eval(self, condition: Array, x: Array, y: Array) -> Array:
        return np.where(condition, x, y)

    def body(self, s: Any, condition: Any, x: Any, y: Any) -> Any:
        return s.select(condition, x, y)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        condition = primals[0]
        return None, where(condition, ct, 0), where(condition, 0, ct)


class Atan2(BinaryOperation):
    """The angle of the point (x2, x1), in (-π, π]."""

    ufunc = np.arctan2
    direct = "fd"
    domain = "floating"

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.call("atan2", x, y)

    def derivatives(self, x: Tensor, y: Tensor, out: Tensor) -> tuple[Any, Any]:
        square = x * x + y * y
        return y / square, -x / square


add, subtract, multiply, divide = Add(), Subtract(), Multiply(), Divide()
negative, pow, atan2 = Negative(), Pow(), Atan2()
cast_op, where_op = Cast(), Where()


@public
def where(condition: Any, x1: Any, x2: Any, /) -> Tensor:
    """Elements of `x1` where `condition` holds, of `x2` elsewhere; all three broadcast."""
    mask = to_tensor(condition, op="where")
    if not dtypes.is_bool(mask.dtype):
        raise DTypeError(f"where: the condition must be bool, got {dtypes.name_of(mask.dtype)}")
    if not isinstance(x1, Tensor) and not isinstance(x2, Tensor):
        x1, x2 = (to_tensor(v, like=mask.device, op="where") for v in (x1, x2))
    left, right = as_tensors("where", x1, x2)
    dtype = dtypes.promote(left.dtype, right.dtype, op="where")
    operands = align("where", (mask, cast(left, dtype), cast(right, dtype)))
    return call(where_op, operands, {})  # type: ignore[no-any-return]


@public
def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """Convert to another dtype."""
    tensor = to_tensor(x, op="astype")
    target = dtypes.as_dtype(dtype, op="astype")
    if device is not None:
        tensor = FUNCTIONS["to_device"](tensor, device)
    if tensor.dtype == target:
        return FUNCTIONS["copy_of"](tensor) if copy else tensor  # type: ignore[no-any-return]
    return cast(tensor, target)


__all__ = [
    "add",
    "astype",
    "atan2",
    "divide",
    "multiply",
    "negative",
    "pow",
    "subtract",
    "where",
]
