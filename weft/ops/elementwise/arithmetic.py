"""Arithmetic on each element: Python's operators, powers, remainders, casts and choice.

Integers wrap around on overflow. An integer divided by zero, and its remainder, is 0, without a
warning. Bools are no numbers: arithmetic on them raises, casting them does not.
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np

from weft.core.common import dtypes
from weft.core.common.context import default_float
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import Array, DType
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError
from weft.ops.base import Example, Linear, Operation, Tangents, call
from weft.ops.families import (
    BinaryOperation,
    ElementwiseOperation,
    UnaryOperation,
    align,
    as_tensors,
    cast,
)
from weft.ops.naming import named

_INTEGERS = "bBhHiIlLqQ"
_DIVISIONS = 1 << 16  # elements from which they run on a kernel: NumPy divides them one by one
_NUMBERS = _INTEGERS + "fdFD"
_SHORT = (dtypes.float16, dtypes.float8_e4m3, dtypes.float8_e5m2)  # 1 / y may be out of range


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
    sample = "fp"

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.div(x, y)

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        left, right = tangents
        moved = None if right is None else right * out
        total = left if moved is None else -moved if left is None else left - moved
        return _over(total, primals[1])

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        left = _over(ct, primals[1])
        return left, -(left * out)


def _over(t: Any, y: Any) -> Any:
    """t / y: where y is one number for a row, but that is divided; both need one product more."""
    return t / y if y.dtype in _SHORT else t * (1 / y)


class FloorDivide(BinaryOperation):
    """The quotient rounded down, x1 // x2, as in Python; an integer divided by zero is 0.

    Infinities are treated as Python and NumPy do: `inf // 2` is NaN, `1 // -inf` is -1.
    """

    ufunc = np.floor_divide
    direct = _INTEGERS + "fd"
    domain = "real"
    kernel_from = _DIVISIONS
    heavy = True

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.floordiv(x, y)

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        return None

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return None, None


class Remainder(BinaryOperation):
    """What `x1 // x2` leaves, x1 % x2, with the sign of x2; an integer modulo zero is 0."""

    ufunc = np.remainder
    direct = _INTEGERS + "fd"
    domain = "real"
    kernel_from = _DIVISIONS
    heavy = True

    def body(self, s: Any, x: Any, y: Any) -> Any:
        rest, zero = s.rem(x, y), s.const(0, x.dtype)
        opposite = s.not_equal(s.less(rest, zero), s.less(y, zero))
        moved = s.select(opposite, s.add(rest, y), rest)
        # A zero remainder takes the divisor's sign; the integers have one zero only.
        nothing = zero if dtypes.is_integer(x.dtype) else s.call("copysign", zero, y)
        return s.select(s.equal(rest, zero), nothing, moved)

    def derivatives(self, x: Tensor, y: Tensor, out: Tensor) -> tuple[Any, Any]:
        return FUNCTIONS["ones_like"](out), -floor_divide(x, y)


class Fmod(BinaryOperation):
    """What division rounded toward zero leaves, with the sign of x1, as C's fmod."""

    ufunc = np.fmod
    direct = _INTEGERS + "fd"
    domain = "real"
    kernel_from = _DIVISIONS
    heavy = True

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.rem(x, y)

    def derivatives(self, x: Tensor, y: Tensor, out: Tensor) -> tuple[Any, Any]:
        return FUNCTIONS["ones_like"](out), -FUNCTIONS["trunc"](x / y)


class Negative(UnaryOperation):
    """-x, elementwise; unsigned integers wrap around."""

    ufunc = np.negative
    linear = Linear.JOINTLY

    def body(self, s: Any, x: Any) -> Any:
        return s.neg(x)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return (-ct,)


class Positive(UnaryOperation):
    """+x: a copy of x."""

    ufunc = np.positive
    linear = Linear.JOINTLY
    work = 0

    def body(self, s: Any, x: Any) -> Any:
        return x

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return (ct,)


class Square(UnaryOperation):
    """x * x, elementwise."""

    ufunc = np.square

    def body(self, s: Any, x: Any) -> Any:
        return s.mul(x, x)

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return 2 * x


class Reciprocal(UnaryOperation):
    """1 / x, elementwise; integers become floats first."""

    ufunc = np.reciprocal
    domain = "inexact"
    sample = "p"

    def body(self, s: Any, x: Any) -> Any:
        if dtypes.is_complex(x.dtype):
            return s.call("reciprocal", x)
        return s.div(s.const(1, x.dtype), x)

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return -y * y


def _power(x: Array, y: Array, out: Array | None = None) -> Array:
    """`np.power` that also takes negative exponents of integers: 1/x**|y| rounded toward zero."""
    if x.dtype.kind != "i" or not (np.asarray(y) < 0).any():
        return np.power(x, y, out=out)
    inverse = np.where(np.abs(x) == 1, np.where(y % 2 == 0, 1, x), 0)
    result = np.where(y < 0, inverse, np.power(x, np.maximum(y, 0))).astype(x.dtype)
    if out is None:
        return result
    out[...] = result
    return out


def _integer_power(s: Any, x: Any, y: Any) -> Any:
    """Powers by repeated squaring, as scalar instructions."""
    zero, one = s.const(0, x.dtype), s.const(1, x.dtype)
    result, factor, rest = one, x, y
    for _ in range(8 * x.dtype.itemsize):
        odd = s.equal(s.bit_and(rest, one), one)
        result = s.select(odd, s.mul(result, factor), result)
        factor, rest = s.mul(factor, factor), s.shift_right(rest, one)
    if x.dtype not in dtypes.SIGNED:
        return result
    unit = s.select(s.equal(s.bit_and(y, one), one), x, one)
    is_unit = s.equal(s.abs(x), one)
    return s.select(s.less(y, zero), s.select(is_unit, unit, zero), result)


class Pow(BinaryOperation):
    """x1 to the power x2, elementwise; `x ** 2` and `x ** 3` are products, `x ** 0.5` is a root,
    and `x ** -1` is 1 / x.

    Exponents that are Python numbers are meant; the cube is a product where it rounds as well as a
    power does, not of narrow floats. Integers wrap around; with a negative exponent they give
    1/x**|y| rounded toward zero, and 0 at zero. x**0 is 1 and its derivative by x is 0; at x1 = 0
    the derivative by the exponent is 0.
    """

    ufunc = staticmethod(_power)
    direct = "fd"
    sample = "pf"

    def __call__(self, x1: Any, x2: Any, /) -> Tensor:
        if type(x2) is int and x2 == 2 and isinstance(x1, Tensor) and not dtypes.is_bool(x1.dtype):
            return square(x1)
        if type(x2) is int and x2 == 3 and isinstance(x1, Tensor) and _has_cube(x1.dtype):
            return square(x1) * x1
        if type(x2) in (int, float) and isinstance(x1, Tensor) and dtypes.is_floating(x1.dtype):
            if x2 == -1:
                return reciprocal(x1)
            if type(x2) is float and x2 == 0.5:
                return where(x1 == -np.inf, np.inf, FUNCTIONS["sqrt"](x1) + 0.0)  # that of -0 is 0
        return super().__call__(x1, x2)

    def eval(self, x: Array, y: Array) -> Array:
        return _power(x, y)

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return _integer_power(s, x, y) if dtypes.is_integer(x.dtype) else s.call("pow", x, y)

    def derivatives(self, x: Tensor, y: Tensor, out: Tensor) -> tuple[Any, Any]:
        no_slope = (y == 0) & ~FUNCTIONS["isfinite"](1 / x)  # 0 · x⁻¹ would be NaN
        by_base = where(no_slope, 0, y * pow(where(no_slope, 1, x), y - 1))
        by_exponent = where(x == 0, 0, FUNCTIONS["log"](where(x == 0, 1, x)) * out)
        return by_base, by_exponent


def _has_cube(dtype: DType) -> bool:
    """Whether two products of this dtype give a cube as exact as a power is."""
    return dtypes.is_integer(dtype) or (dtypes.is_floating(dtype) and not dtypes.is_narrow(dtype))


class Gcd(BinaryOperation):
    """The greatest common divisor of two integers, never negative; gcd(0, 0) is 0."""

    ufunc = np.gcd
    direct = _INTEGERS
    domain = "integer"
    sample = "nn"
    reasons = {
        "vjp": "integers carry no derivative",
        "jvp": "integers carry no derivative",
        "kernel": "Euclid's algorithm takes as many steps as its operands ask for",
    }


class Lcm(BinaryOperation):
    """The least common multiple of two integers, never negative; 0 if either is 0."""

    ufunc = np.lcm
    direct = _INTEGERS
    domain = "integer"
    sample = "nn"
    reasons = Gcd.reasons


class Cast(ElementwiseOperation):
    """Convert to another dtype.

    Floats become integers by truncation; what does not fit saturates, and NaN is 0. Integers of
    fewer bits keep the low bits. Any number but 0 (so NaN too) is True. A complex number gives its
    real part. Floats are rounded once, to nearest, ties to even.
    """

    domain = "any"
    linear = Linear.JOINTLY
    widen = False
    examples = (
        Example({"dtype": np.dtype("float64")}),
        Example({"dtype": np.dtype("complex128")}),
        Example({"dtype": np.dtype("float64")}, sample="c"),
    )

    def dtype(self, *found: DType, **params: Any) -> DType:
        result: DType = params["dtype"]
        return result

    def is_large(self, x: Any, *, dtype: DType) -> bool:
        saturates = dtypes.is_floating(x.dtype) and dtypes.is_integer(dtype)
        if saturates or dtypes.is_narrow(dtype):
            return bool(x.size >= 1 << 14)  # NumPy goes element by element
        return super().is_large(x, dtype=dtype)

    def eval(self, x: Array, *, dtype: DType) -> Array:
        if dtypes.is_complex(x.dtype) and not dtypes.is_complex(dtype):
            x = (x != 0) if dtypes.is_bool(dtype) else x.real
        if dtypes.is_integer(dtype) and dtypes.is_floating(x.dtype):
            return _saturate(x, dtype)
        if dtypes.is_complex(dtype) and dtypes.is_narrow(x.dtype):
            x = x.astype(np.float32)
        if dtypes.is_narrow(dtype) and dtype != dtypes.float16 and x.dtype.itemsize == 8:
            x = _odd_float32(x)
        return x.astype(dtype)

    def body(self, s: Any, x: Any, *, dtype: DType) -> Any:
        if dtypes.is_bool(dtype):
            return s.not_equal(x, s.const(0, x.dtype))
        if dtypes.is_complex(x.dtype) and not dtypes.is_complex(dtype):
            x = s.real(x)
        return s.cast(x, dtype)

    def vjp(self, primals: Any, out: Any, ct: Any, *, dtype: DType) -> Tangents:
        x = primals[0]
        if not dtypes.is_inexact(x.dtype):
            return (None,)
        if dtypes.is_complex(ct.dtype) and not dtypes.is_complex(x.dtype):
            ct = FUNCTIONS["real"](ct)
        return (cast(ct, x.dtype),)


class NarrowAhead(ElementwiseOperation):
    """What a narrower dtype holds of the operand, as wide as before; cotangents pass unrounded."""

    linear = Linear.JOINTLY
    examples = (Example({"dtype": np.dtype("float64")}),)

    def eval(self, x: Array, *, dtype: DType) -> Array:
        return cast_op.eval(cast_op.eval(x, dtype=dtype), dtype=x.dtype)

    def body(self, s: Any, x: Any, *, dtype: DType) -> Any:
        return s.cast(s.cast(x, dtype), x.dtype)

    def vjp(self, primals: Any, out: Any, ct: Any, *, dtype: DType) -> Tangents:
        return (ct,)


class NarrowBack(ElementwiseOperation):
    """The operand itself; its cotangent is rounded to what a narrower dtype holds.

    So products that differentiate a product of narrow factors have such factors too.
    """

    linear = Linear.JOINTLY
    work = 0
    examples = NarrowAhead.examples

    def eval(self, x: Array, *, dtype: DType) -> Array:
        return np.array(x)

    def body(self, s: Any, x: Any, *, dtype: DType) -> Any:
        return x

    def vjp(self, primals: Any, out: Any, ct: Any, *, dtype: DType) -> Tangents:
        return (call(narrow_ahead_op, (ct,), {"dtype": dtype}),)


def _saturate(x: Array, dtype: DType) -> Array:
    """Floats as integers: truncated, held inside the dtype's range, NaN is 0."""
    wide = np.asarray(x.astype(np.float64))
    limits = np.iinfo(dtype)
    low, high = float(limits.min), float(limits.max)  # 2**63 - 1 is not a float: `high` is 2**63
    top, bottom, missing = wide >= high, wide <= low, np.isnan(wide)
    result = np.where(top | bottom | missing, 0, wide).astype(dtype)
    result[top] = limits.max
    result[bottom] = limits.min
    return result


def _odd_float32(x: Array) -> Array:
    """float64 as float32 rounded to odd, so that rounding again gives what rounding once would."""
    wide = x.astype(np.float64)
    near = np.atleast_1d(wide.astype(np.float32))
    bits = near.view(np.uint32)
    # Truncate toward zero where rounding went away from it; then mark what is not exact as odd.
    bits -= (np.abs(near) > np.abs(wide)).astype(np.uint32)
    bits |= ((near != wide) & np.isfinite(near)).astype(np.uint32)
    return near.reshape(x.shape)


class Where(Operation):
    """Elements of x1 where the condition holds, of x2 elsewhere."""

    sample = "bff"
    factors = "..., ..., ... -> ..."
    linear = Linear.JOINTLY
    constants = (0,)
    kernel_from = 1 << 14  # NumPy goes through masks element by element
    light = True
    widen = False
    selective = True

    def dtype(self, *found: DType, **params: Any) -> DType:
        return found[1]

    def eval(self, condition: Array, x: Array, y: Array) -> Array:
        return np.where(condition, x, y)

    def write(self, out: Array, condition: Array, x: Array, y: Array) -> None:
        out[...] = y
        np.copyto(out, x, where=condition)

    def body(self, s: Any, condition: Any, x: Any, y: Any) -> Any:
        return s.select(condition, x, y)

    def vjp(self, primals: Any, out: Any, ct: Any, *, needed: Any = (True,) * 3) -> Tangents:
        condition = primals[0]
        x = where(condition, ct, 0) if needed[1] else None
        return None, x, where(condition, 0, ct) if needed[2] else None


add, subtract, multiply, divide = Add(), Subtract(), Multiply(), Divide()
floor_divide, remainder, fmod = FloorDivide(), Remainder(), Fmod()
negative, positive, square, reciprocal = Negative(), Positive(), Square(), Reciprocal()
pow, gcd, lcm = Pow(), Gcd(), Lcm()
cast_op, where_op = Cast(), Where()
narrow_ahead_op, narrow_back_op = NarrowAhead(), NarrowBack()

sub, mul, div, true_divide, neg = subtract, multiply, divide, divide, negative
power, mod = pow, remainder


@overload
def where(condition: Any, x1: Any, x2: Any, /) -> Tensor: ...


@overload
def where(
    condition: Any, /, *, size: int | None = None, fill_value: int = 0
) -> tuple[Tensor, ...]: ...


@public
def where(
    condition: Any,
    x1: Any = None,
    x2: Any = None,
    /,
    *,
    size: int | None = None,
    fill_value: int = 0,
) -> Any:
    """Elements of `x1` where `condition` holds, of `x2` elsewhere; all three broadcast.

    A condition alone gives the places where it holds: see `nonzero`, also for `size`.
    """
    if x1 is None and x2 is None:
        return FUNCTIONS["nonzero"](condition, size=size, fill_value=fill_value)
    if size is not None:
        raise ArgumentError(f"where: size={size} is for a condition alone")
    if x1 is None or x2 is None:
        raise ArgumentError(
            "where: one of two values is missing\nhint: a condition alone gives positions"
        )
    if type(condition) is Tensor and type(x1) is Tensor and type(x2) is Tensor:
        c, a, b = condition._impl, x1._impl, x2._impl
        if c.dtype is dtypes.bool_ and a.dtype is b.dtype and c.shape == a.shape == b.shape:
            return call(where_op, (condition, x1, x2), {})
    mask = to_tensor(condition, beside=(x1, x2), op="where")
    if not dtypes.is_bool(mask.dtype):
        raise DTypeError(f"where: the condition must be bool, got {dtypes.name_of(mask.dtype)}")
    left, right = as_tensors("where", x1, x2, beside=(mask,))
    dtype = dtypes.promote(left.dtype, right.dtype, op="where")
    operands = align("where", (mask, cast(left, dtype), cast(right, dtype)))
    result: Tensor = call(where_op, operands, {})
    return result


@public
def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """Convert to another dtype: floats to integers truncate and saturate, NaN becomes 0.

    >>> astype([300.7, -5.0, float("nan")], "uint8").tolist()
    [255, 0, 0]
    """
    tensor = to_tensor(x, op="astype")
    target = dtypes.as_dtype(dtype, op="astype", default_float=default_float())
    if device is not None:
        tensor = FUNCTIONS["to_device"](tensor, device)
    if tensor.dtype == target:
        return FUNCTIONS["copy_of"](tensor) if copy else tensor
    return cast(tensor, target)


@public
@named
def divmod(x1: Any, x2: Any, /) -> tuple[Tensor, Tensor]:
    """`(x1 // x2, x1 % x2)`."""
    return floor_divide(x1, x2), remainder(x1, x2)


@public
@named
def float_power(x1: Any, x2: Any, /) -> Tensor:
    """`pow`, but integers become floats first: `float_power(2, -1)` is 0.5."""
    base, exponent = as_tensors("float_power", x1, x2)
    dtype = dtypes.promote(base.dtype, exponent.dtype, op="float_power")
    if dtypes.is_integer(dtype):
        base, exponent = cast(base, default_float()), cast(exponent, default_float())
    return pow(base, exponent)


@public
@named
def lerp(start: Any, /, end: Any, weight: Any) -> Tensor:
    """The point that lies `weight` of the way from `start` to `end`; both ends are met exactly."""
    first, last, share = as_tensors("lerp", start, end, weight)
    step = last - first
    return where(share < 0.5, first + share * step, last - (1 - share) * step)


__all__ = [
    "add",
    "astype",
    "div",
    "divide",
    "divmod",
    "float_power",
    "floor_divide",
    "fmod",
    "gcd",
    "lcm",
    "lerp",
    "mod",
    "mul",
    "multiply",
    "neg",
    "negative",
    "positive",
    "pow",
    "power",
    "reciprocal",
    "remainder",
    "square",
    "sub",
    "subtract",
    "true_divide",
    "where",
]
