"""Complex numbers and their parts; sizes; and which numbers are NaN, infinite or finite.

Derivatives of functions that are not holomorphic follow JAX: a cotangent `ct` of a complex number
pairs with a tangent `t` as the real part of `ct * t`, without conjugation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.context import default_float
from weft.core.common.parameters import as_flag
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import Array, DType
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias
from weft.errors import DTypeError
from weft.ops.base import Example, Linear, Tangents
from weft.ops.elementwise.arithmetic import where
from weft.ops.elementwise.elementary import atan2
from weft.ops.elementwise.rounding import sign
from weft.ops.families import BinaryOperation, UnaryOperation, broadcast_shape, cast
from weft.ops.naming import named


class Abs(UnaryOperation):
    """The size of x: |x|; its derivative at 0 is 0. The smallest signed integer stays negative."""

    ufunc = np.absolute
    result = "real"
    examples = (Example({}), Example({}, sample="c"))

    def body(self, s: Any, x: Any) -> Any:
        if dtypes.is_complex(x.dtype):
            return s.call("hypot", s.real(x), s.imag(x))
        return s.abs(x)

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        (x,), (t,) = primals, tangents
        if dtypes.is_complex(x.dtype):
            return real(t * conj(sign(x)))
        return t * sign(x)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        (x,) = primals
        return (ct * conj(sign(x)),)


class ComplexPart(UnaryOperation):
    """A linear function of the parts of a complex number."""

    domain = "complex"
    linear = Linear.JOINTLY
    sample = "c"
    work = 0


class Real(ComplexPart):
    """The real part; a real tensor is its own."""

    result = "real"

    def __call__(self, x: Any, /) -> Tensor:
        tensor = to_tensor(x, op=self.name)
        return super().__call__(tensor) if dtypes.is_complex(tensor.dtype) else tensor

    def eval(self, x: Array) -> Array:
        return x.real.copy()

    def body(self, s: Any, x: Any) -> Any:
        return s.real(x)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return (complex(ct, 0),)


class Imag(ComplexPart):
    """The imaginary part; 0 for a real tensor."""

    result = "real"

    def __call__(self, x: Any, /) -> Tensor:
        tensor = to_tensor(x, op=self.name)
        if dtypes.is_complex(tensor.dtype):
            return super().__call__(tensor)
        result: Tensor = FUNCTIONS["zeros_like"](tensor)
        return result

    def eval(self, x: Array) -> Array:
        return x.imag.copy()

    def body(self, s: Any, x: Any) -> Any:
        return s.imag(x)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return (complex(0, -ct),)


class Conj(ComplexPart):
    """The complex conjugate; a real tensor is its own."""

    ufunc = np.conjugate

    def __call__(self, x: Any, /) -> Tensor:
        tensor = to_tensor(x, op=self.name)
        return super().__call__(tensor) if dtypes.is_complex(tensor.dtype) else alias(tensor)

    def body(self, s: Any, x: Any) -> Any:
        return s.complex(s.real(x), s.neg(s.imag(x)))

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return (conj(ct),)


class Complex(BinaryOperation):
    """The complex number with real part x1 and imaginary part x2."""

    domain = "floating"
    linear = Linear.JOINTLY
    work = 0

    def dtype(self, *found: DType, **params: Any) -> DType:
        return dtypes.complex_of(found[-1])

    def eval(self, x: Array, y: Array) -> Array:
        shape = broadcast_shape(self.name, x.shape, y.shape)
        result = np.empty(shape, dtypes.complex_of(np.promote_types(x.dtype, y.dtype)))
        result.real, result.imag = x, y
        return result

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.complex(x, y)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        x, y = primals  # narrow floats have no complex counterpart: the parts come back wider
        return cast(real(ct), x.dtype), cast(-imag(ct), y.dtype)


class Predicate(UnaryOperation):
    """A question about each element."""

    domain = "any"
    result = "bool"
    reasons = {"vjp": "the result is bool", "jvp": "the result is bool"}


class Isnan(Predicate):
    """Whether x, or a part of it, is NaN."""

    ufunc = np.isnan

    def body(self, s: Any, x: Any) -> Any:
        return s.not_equal(x, x)


class Isinf(Predicate):
    """Whether x, or a part of it, is infinite."""

    ufunc = np.isinf

    def body(self, s: Any, x: Any) -> Any:
        if dtypes.is_complex(x.dtype):
            return s.bit_or(self.body(s, s.real(x)), self.body(s, s.imag(x)))
        if not dtypes.is_floating(x.dtype):
            return s.const(False, dtypes.bool_)
        return s.equal(s.abs(x), s.const(float("inf"), x.dtype))


class Isfinite(Predicate):
    """Whether x, with all its parts, is neither infinite nor NaN."""

    ufunc = np.isfinite

    def body(self, s: Any, x: Any) -> Any:
        if dtypes.is_complex(x.dtype):
            return s.bit_and(self.body(s, s.real(x)), self.body(s, s.imag(x)))
        if not dtypes.is_floating(x.dtype):
            return s.const(True, dtypes.bool_)
        return s.less(s.abs(x), s.const(float("inf"), x.dtype))


abs, real, imag, conj, complex = Abs(), Real(), Imag(), Conj(), Complex()
isnan, isinf, isfinite = Isnan(), Isinf(), Isfinite()

absolute, conjugate = abs, conj


@public
def angle(x: Any, /, deg: bool = False) -> Tensor:
    """The angle of a complex number in [-π, π], or in degrees; 0 or π for a real one."""
    tensor = to_tensor(x, op="angle")
    found = atan2(imag(tensor), real(tensor))
    return FUNCTIONS["rad2deg"](found) if as_flag("angle", "deg", deg) else found


@public
@named
def isposinf(x: Any, /) -> Tensor:
    """Whether x is +inf; x must be real."""
    result: Tensor = FUNCTIONS["bitwise_and"](isinf(x), FUNCTIONS["greater"](x, 0))
    return result


@public
@named
def isneginf(x: Any, /) -> Tensor:
    """Whether x is -inf; x must be real."""
    result: Tensor = FUNCTIONS["bitwise_and"](isinf(x), FUNCTIONS["less"](x, 0))
    return result


@public
def iscomplex(x: Any, /) -> Tensor:
    """Whether an element has an imaginary part that is not 0."""
    result: Tensor = FUNCTIONS["not_equal"](imag(x), 0)
    return result


@public
def isreal(x: Any, /) -> Tensor:
    """Whether the imaginary part of an element is 0."""
    result: Tensor = FUNCTIONS["equal"](imag(x), 0)
    return result


@public
def fabs(x: Any, /) -> Tensor:
    """The size of real numbers, as floats: integers become the default float."""
    tensor = to_tensor(x, op="fabs")
    if dtypes.is_complex(tensor.dtype):
        raise DTypeError("fabs: takes real numbers\nhint: wf.abs takes complex ones")
    return abs(tensor if dtypes.is_floating(tensor.dtype) else cast(tensor, default_float()))


@public
def nan_to_num(
    x: Any, /, *, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Replace NaN by `nan` and infinities by numbers: None is the dtype's largest or smallest.

    No derivative flows where an element was replaced.
    """
    tensor = to_tensor(x, op="nan_to_num")
    if dtypes.is_complex(tensor.dtype):
        parts = (real(tensor), imag(tensor))
        return complex(*(nan_to_num(p, nan=nan, posinf=posinf, neginf=neginf) for p in parts))
    if not dtypes.is_floating(tensor.dtype):
        return alias(tensor)
    limits = dtypes.finfo(tensor.dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    finite = where(isposinf(tensor), high, where(isneginf(tensor), low, tensor))
    return where(isnan(tensor), nan, finite)


__all__ = [
    "abs",
    "absolute",
    "angle",
    "complex",
    "conj",
    "conjugate",
    "fabs",
    "imag",
    "iscomplex",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "isreal",
    "nan_to_num",
    "real",
]
