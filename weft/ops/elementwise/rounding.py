"""Rounding, signs, and the parts a float is made of.

Rounding leaves integers as they are. Step functions have derivative 0 wherever they have one, and 0
is what they give at the steps too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.parameters import as_integer
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import Array, DType
from weft.core.tensor.convert import to_tensor, to_tensors
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias
from weft.errors import ArgumentError, DTypeError
from weft.ops.base import Example, Linear, Operation, Tangents, call
from weft.ops.elementwise.arithmetic import fmod, where
from weft.ops.families import BinaryOperation, UnaryOperation, align, as_tensors, cast
from weft.ops.naming import named


class StepFunction(UnaryOperation):
    """Constant between its steps, so that no derivative flows."""

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        return None

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return (None,)


class Rounding(StepFunction):
    """Rounds floats; integers are whole already."""

    domain = "floating"

    def __call__(self, x: Any, /) -> Tensor:
        tensor = to_tensor(x, op=self.name)
        return alias(tensor) if dtypes.is_integer(tensor.dtype) else super().__call__(tensor)


class Floor(Rounding):
    """The largest whole number that is not above x."""

    ufunc = np.floor

    def body(self, s: Any, x: Any) -> Any:
        return s.floor(x)


class Ceil(Rounding):
    """The smallest whole number that is not below x."""

    ufunc = np.ceil

    def body(self, s: Any, x: Any) -> Any:
        return s.ceil(x)


class Trunc(Rounding):
    """The whole part of x: rounded toward zero."""

    ufunc = np.trunc

    def body(self, s: Any, x: Any) -> Any:
        return s.trunc(x)


class Round(Rounding):
    """The nearest whole number, ties to even; complex numbers are rounded part by part."""

    ufunc = np.rint
    domain = "inexact"
    examples = (Example({}), Example({}, sample="c"))

    def body(self, s: Any, x: Any) -> Any:
        if dtypes.is_complex(x.dtype):
            return s.complex(s.round(s.real(x)), s.round(s.imag(x)))
        return s.round(x)


class Sign(UnaryOperation):
    """-1, 0 or 1 as x is negative, zero or positive; z / |z| for complex numbers, NaN for NaN."""

    ufunc = np.sign
    examples = (Example({}), Example({}, sample="c"))

    def eval(self, x: Array) -> Array:
        found: Array = np.sign(x)
        if x.dtype.kind == "c":  # NumPy overlooks a NaN beside an infinite part
            found = np.where(np.isnan(x), x.dtype.type(complex(np.nan, np.nan)), found)
        return found

    def body(self, s: Any, x: Any) -> Any:
        if dtypes.is_complex(x.dtype):
            return s.call("sign", x)
        zero, one = s.const(0, x.dtype), s.const(1, x.dtype)
        negative = s.const(-1, x.dtype) if x.dtype not in dtypes.UNSIGNED else zero
        sign = s.select(s.less(x, zero), negative, s.select(s.less(zero, x), one, zero))
        return s.select(s.equal(x, x), sign, x)

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        (x,), (t,) = primals, tangents
        if not dtypes.is_complex(x.dtype):
            return None
        conj, real = FUNCTIONS["conj"], FUNCTIONS["real"]
        return self.over_size(x, t - out * real(conj(out) * t))

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        (x,) = primals
        if not dtypes.is_complex(x.dtype):
            return (None,)
        conj, real = FUNCTIONS["conj"], FUNCTIONS["real"]
        return (self.over_size(x, ct - conj(out) * real(ct * out)),)

    def over_size(self, x: Tensor, turned: Tensor) -> Tensor:
        """`turned / |x|`, and 0 at the origin."""
        size = FUNCTIONS["abs"](where(x == 0, 1, x))
        return where(x == 0, 0, turned / size)


class Signbit(UnaryOperation):
    """Whether the sign bit is set: true for negative numbers and for -0.0."""

    ufunc = np.signbit
    domain = "real"
    result = "bool"
    reasons = {"vjp": "the result is bool", "jvp": "the result is bool"}

    def body(self, s: Any, x: Any) -> Any:
        if dtypes.is_integer(x.dtype):
            return s.less(x, s.const(0, x.dtype))
        return s.less(s.call("copysign", s.const(1, x.dtype), x), s.const(0, x.dtype))


class Copysign(BinaryOperation):
    """The size of x1 with the sign of x2, also where that is the sign of a zero or a NaN."""

    ufunc = np.copysign
    domain = "floating"
    direct = "fd"

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.call("copysign", x, y)

    def derivatives(self, x: Tensor, y: Tensor, out: Tensor) -> tuple[Any, Any]:
        kept = where(signbit(x) == signbit(y), 1, -1)
        return cast(kept, x.dtype), None


class Nextafter(BinaryOperation):
    """The next float of x1's dtype after x1 in the direction of x2."""

    ufunc = np.nextafter
    domain = "floating"
    direct = "fd"
    widen = False
    reasons = {
        "vjp": "a step between neighbouring floats has no derivative",
        "jvp": "a step between neighbouring floats has no derivative",
    }

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.call("nextafter", x, y)

    def is_exact(self, *found: DType, **params: Any) -> bool:
        # Of equal zeros C gives the second one, NumPy's float16 the first.
        return found[0] != dtypes.float16


class Ldexp(Operation):
    """x1 * 2**x2 for an integer x2, rounded once."""

    factors = "..., ... -> ..."
    linear = Linear.JOINTLY
    constants = (1,)
    kernel_from = 1 << 14  # NumPy scales element by element
    sample = "fn"

    def eval(self, x: Array, exponent: Array) -> Array:
        return np.ldexp(x, exponent)

    def body(self, s: Any, x: Any, exponent: Any) -> Any:
        return s.call("ldexp", x, exponent)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return ldexp(ct, primals[1]), None


class Exponent(UnaryOperation):
    """The integer e for which 0.5 <= |x| / 2**e < 1, as int32; 0 for 0, infinities and NaN."""

    domain = "floating"
    kernel_from = 1 << 14
    reasons = {"vjp": "the result is an integer", "jvp": "the result is an integer"}

    def dtype(self, *found: DType, **params: Any) -> DType:
        return dtypes.int32

    def eval(self, x: Array) -> Array:
        return np.where(np.isfinite(x), np.frexp(x)[1], np.int32(0))

    def body(self, s: Any, x: Any) -> Any:
        double = x.dtype == dtypes.float64
        unsigned, mantissa, bias = (dtypes.uint64, 52, 1022) if double else (dtypes.uint32, 23, 126)
        size = s.abs(x)
        smallest = s.const(dtypes.finfo(x.dtype).smallest_normal, x.dtype)
        tiny = s.less(size, smallest)
        scaled = s.select(tiny, s.mul(size, s.const(2.0**mantissa, x.dtype)), size)
        bits = s.shift_right(s.bitcast(scaled, unsigned), s.const(mantissa, unsigned))
        shift = s.select(tiny, s.const(bias + mantissa, dtypes.int32), s.const(bias, dtypes.int32))
        found, zero = s.sub(s.cast(bits, dtypes.int32), shift), s.const(0, dtypes.int32)
        usual = s.less(size, s.const(float("inf"), x.dtype))
        return s.select(usual, s.select(s.equal(size, s.const(0, x.dtype)), zero, found), zero)


_DECIMALS = 308  # 10**308 is the last power of ten among the floats

floor, ceil, trunc, rint = Floor(), Ceil(), Trunc(), Round()
sign, signbit, copysign, nextafter = Sign(), Signbit(), Copysign(), Nextafter()
ldexp_op, exponent_op = Ldexp(), Exponent()


@public
def round(x: Any, /, decimals: int = 0) -> Tensor:
    """Round to `decimals` decimal places, ties to even; negative ones round to tens and more.

    >>> round([0.5, 1.5, 2.5]).tolist()
    [0.0, 2.0, 2.0]
    """
    decimals = as_integer("round", "decimals", decimals, -_DECIMALS, _DECIMALS)
    if not decimals:
        return rint(x)
    tensor = to_tensor(x, op="round")
    if dtypes.is_integer(tensor.dtype):
        return _rounded_integers(tensor, 10**-decimals) if decimals < 0 else alias(tensor)
    scale = 10.0 ** abs(decimals)
    scaled = tensor / scale if decimals < 0 else tensor * scale
    whole = rint(scaled)
    rounded = whole * scale if decimals < 0 else whole / scale
    # What the scale carries past the dtype's range has no digits there to round.
    result: Tensor = FUNCTIONS["where"](FUNCTIONS["isfinite"](scaled), rounded, tensor)
    return result


def _rounded_integers(x: Tensor, step: int) -> Tensor:
    """Integers as multiples of a step, ties to an even one."""
    if step > np.iinfo(x.dtype).max:
        name = dtypes.name_of(x.dtype)
        raise ArgumentError(
            f"round: {name} has no room for {step}\nhint: cast to a wider integer or a float first"
        )
    whole: Any = FUNCTIONS["floor_divide"](x, step)
    rest = x - whole * step
    half = step // 2
    up = (rest > half) | ((rest == half) & (whole % 2 == 1))
    made: Tensor = (whole + FUNCTIONS["astype"](up, x.dtype)) * step
    return made


@public
def ldexp(x1: Any, x2: Any, /) -> Tensor:
    """x1 * 2**x2 for an integer x2, rounded once; a derivative flows to x1 alone."""
    x, exponent = to_tensors("ldexp", x1, x2)
    if not dtypes.is_integer(exponent.dtype):
        raise DTypeError(
            f"ldexp: operand 1: the exponent must be an integer, got"
            f" {dtypes.name_of(exponent.dtype)}\nhint: x * wf.exp2(y) takes floats"
        )
    x = cast(x, copysign.compute_dtype(x.dtype))
    result: Tensor = call(ldexp_op, align("ldexp", (x, cast(exponent, dtypes.int64))), {})
    return result


@public
@named
def frexp(x: Any, /) -> tuple[Tensor, Tensor]:
    """Split into (mantissa, exponent): x = mantissa * 2**exponent with 0.5 <= |mantissa| < 1.

    The exponent is int32; zeros, infinities and NaN are their own mantissa.
    """
    tensor = to_tensor(x, op="frexp")
    tensor = cast(tensor, copysign.compute_dtype(tensor.dtype))
    exponent: Tensor = call(exponent_op, (tensor,), {})
    return ldexp(tensor, -exponent), exponent


@public
@named
def modf(x: Any, /) -> tuple[Tensor, Tensor]:
    """Split into (fraction, whole part), both with the sign of x.

    Derivatives flow through the fraction.
    """
    tensor = to_tensor(x, op="modf")
    tensor = cast(tensor, copysign.compute_dtype(tensor.dtype))
    fraction = where(FUNCTIONS["isinf"](tensor), copysign(0.0, tensor), fmod(tensor, 1))
    return fraction, trunc(tensor)


@public
@named
def heaviside(x1: Any, x2: Any, /) -> Tensor:
    """0 where x1 is negative, 1 where it is positive, x2 where it is zero, NaN where it is NaN."""
    x, at_zero = as_tensors("heaviside", x1, x2)
    dtype = copysign.compute_dtype(dtypes.promote(x.dtype, at_zero.dtype, op="heaviside"))
    x, at_zero = cast(x, dtype), cast(at_zero, dtype)
    step = where(x != x, x, cast(x > 0, dtype))
    return where(x == 0, at_zero, step)


fix, around = trunc, round

__all__ = [
    "around",
    "ceil",
    "copysign",
    "fix",
    "floor",
    "frexp",
    "heaviside",
    "ldexp",
    "modf",
    "nextafter",
    "rint",
    "round",
    "sign",
    "signbit",
    "trunc",
]
