"""Elementary functions of each element: exponentials, logarithms, roots, trigonometry.

They take floats and, where the function has one meaning there, complex numbers (principal branches
as in C99); integers become the default float first.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from weft.core.common import dtypes
from weft.core.common.lazy import LazyAttribute, LazyModule
from weft.core.common.slots import public
from weft.core.common.types import Array
from weft.core.tensor.tensor import Tensor
from weft.ops.base import Example, Tangents
from weft.ops.elementwise.arithmetic import multiply, narrow_ahead_op, negative, where
from weft.ops.families import BinaryOperation, ElementwiseOperation, UnaryOperation
from weft.ops.naming import named

special = LazyModule("scipy.special")

_LN2, _LN10, _LOG2_E = math.log(2), math.log(10), math.log2(math.e)


class FloatFunction(UnaryOperation):
    """A function of floats (and complex numbers); integers are converted first."""

    domain = "inexact"
    examples: ClassVar[tuple[Example, ...]] = (Example({}), Example({}, sample="c"))

    def body(self, s: Any, x: Any) -> Any:
        return s.call(self.name, x)


class Exp(FloatFunction):
    """e to the power x, elementwise."""

    ufunc = np.exp

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return y


class ShortExp2(ElementwiseOperation):
    """2 to the power x in the digits that floats of 16 bits show; tiny results are 0."""

    domain = "floating"
    examples = (Example({}),)

    def eval(self, x: Array) -> Array:
        return np.exp2(x)

    def body(self, s: Any, x: Any) -> Any:
        return s.call("short_exp2", x)

    def jvp(self, primals: Any, tangents: Any, out: Any) -> Any:
        return tangents[0] * out * _LN2

    def vjp(self, primals: Any, out: Any, ct: Any) -> Tangents:
        return (ct * out * _LN2,)


class ShortPower(ElementwiseOperation):
    """The power of 2 that is e to the power scale·x, less `top`, which holds whole numbers.

    Of float32 it has few digits after the point, which do not depend on `top`.
    """

    domain = "floating"
    sample = "ff"
    constants = (1,)
    examples = (Example({"scale": 0.5}),)

    def eval(self, x: Array, top: Array, *, scale: float, **params: Any) -> Array:
        wide = x if dtypes.is_inexact(x.dtype) else x.astype(np.float64)
        return np.asarray(wide * wide.dtype.type(scale * _LOG2_E) - top)

    def body(self, s: Any, x: Any, top: Any, *, scale: float, **params: Any) -> Any:
        return s.call("short_power", x, s.const(scale * _LOG2_E, x.dtype), top)

    def jvp(self, primals: Any, tangents: Any, out: Any, *, scale: float, **params: Any) -> Any:
        return tangents[0] * (scale * _LOG2_E)

    def vjp(self, primals: Any, out: Any, ct: Any, *, scale: float, **params: Any) -> Tangents:
        return ct * (scale * _LOG2_E), None


class NarrowExp(ShortPower):
    """What a narrower dtype holds of e to the power scale·x, divided by 2**top, as wide as x.

    It is its own derivative, so that nothing wider has to be kept for that. `top` holds whole
    numbers; whatever it is, results have the same digits.
    """

    examples = (Example({"scale": 0.5, "dtype": np.dtype("float64")}),)

    def eval(self, x: Array, top: Array, *, scale: float, **params: Any) -> Array:
        power = np.exp2(super().eval(x, top, scale=scale))
        return narrow_ahead_op.eval(power, **params)

    def body(self, s: Any, x: Any, top: Any, *, scale: float, **params: Any) -> Any:
        power = s.call("short_exp2", super().body(s, x, top, scale=scale))
        return narrow_ahead_op.body(s, power, **params)

    def jvp(self, primals: Any, tangents: Any, out: Any, *, scale: float, **params: Any) -> Any:
        return tangents[0] * out * scale

    def vjp(self, primals: Any, out: Any, ct: Any, *, scale: float, **params: Any) -> Tangents:
        return ct * out * scale, None


short_exp2_op, short_power_op, narrow_exp_op = ShortExp2(), ShortPower(), NarrowExp()


class Exp2(FloatFunction):
    """2 to the power x, elementwise."""

    ufunc = np.exp2

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return y * _LN2


def _expm1(x: Array, out: Array | None = None) -> Array:
    found: Array = np.asarray(np.expm1(x, out=out))
    if x.dtype.kind == "c":  # NumPy multiplies infinity by zero there
        np.copyto(found, np.exp(x) - 1, where=~np.isfinite(x))
    return found


class Expm1(FloatFunction):
    """e**x - 1, precise near zero."""

    ufunc = staticmethod(_expm1)

    def eval(self, x: Array) -> Array:
        return _expm1(x)

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return exp(x)


class _Logarithm(FloatFunction):
    """A function whose derivative is 1 / `divisor`: a slope over it stays in a narrow range."""

    @abstractmethod
    def divisor(self, x: Tensor, y: Tensor) -> Any:
        """1 / f'(x), given x and y = f(x)."""

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return 1 / self.divisor(x, y)

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        return tangents[0] / self.divisor(primals[0], out)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return (ct / self.divisor(primals[0], out),)


class Log(_Logarithm):
    """Natural logarithm, elementwise; NaN for negative floats."""

    ufunc = np.log
    sample = "p"

    def divisor(self, x: Tensor, y: Tensor) -> Any:
        return x


class Log2(_Logarithm):
    """Logarithm to base 2, elementwise."""

    ufunc = np.log2
    sample = "p"

    def divisor(self, x: Tensor, y: Tensor) -> Any:
        return x * _LN2


class Log10(_Logarithm):
    """Logarithm to base 10, elementwise."""

    ufunc = np.log10
    sample = "p"

    def divisor(self, x: Tensor, y: Tensor) -> Any:
        return x * _LN10


def _log1p(x: Array, out: Array | None = None) -> Array:
    if x.dtype.kind != "c":
        return np.log1p(x, out=out)
    # NumPy's complex log1p adds 1 first and so loses small real parts; SciPy's does not, but it
    # loses the sign of a zero imaginary part.
    found: Array = np.asarray(special.log1p(x, out=out))
    found.imag = np.copysign(found.imag, x.imag)
    return found


class Log1p(_Logarithm):
    """log(1 + x), precise near zero."""

    ufunc = staticmethod(_log1p)
    sample = "p"

    def eval(self, x: Array) -> Array:
        return _log1p(x)

    def divisor(self, x: Tensor, y: Tensor) -> Any:
        return 1 + x


class Sqrt(FloatFunction):
    """Square root, elementwise; NaN for negative floats, and the derivative at 0 is inf."""

    ufunc = np.sqrt
    sample = "p"

    def body(self, s: Any, x: Any) -> Any:
        return s.sqrt(x)

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return 0.5 / y


def _rsqrt(x: Array, out: Array | None = None) -> Array:
    return np.divide(1, np.sqrt(x), out=out)


class Rsqrt(FloatFunction):
    """1 / sqrt(x), elementwise."""

    ufunc = staticmethod(_rsqrt)
    sample = "p"

    def eval(self, x: Array) -> Array:
        return _rsqrt(x)

    def body(self, s: Any, x: Any) -> Any:
        return s.div(s.const(1, x.dtype), s.sqrt(x))

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return -0.5 * y / x


class Cbrt(FloatFunction):
    """The real cube root, elementwise; negative for negative x."""

    ufunc = np.cbrt
    domain = "floating"
    sample = "p"
    examples = ()

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return 1 / (3 * y * y)


class Sigmoid(FloatFunction):
    """1 / (1 + exp(-x)), elementwise."""

    ufunc = LazyAttribute("scipy.special", "expit")
    domain = "floating"
    examples = ()

    def body(self, s: Any, x: Any) -> Any:
        return s.call("sigmoid", x)

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return y * (1 - y)


class Sin(FloatFunction):
    """Sine of x in radians, elementwise."""

    ufunc = np.sin

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return cos(x)


class Cos(FloatFunction):
    """Cosine of x in radians, elementwise."""

    ufunc = np.cos

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return -sin(x)


class Tan(FloatFunction):
    """Tangent of x in radians, elementwise."""

    ufunc = np.tan
    sample = "u"

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return 1 + y * y


class Asin(FloatFunction):
    """The angle in [-π/2, π/2] whose sine is x; NaN for floats outside [-1, 1]."""

    ufunc = np.arcsin
    sample = "u"

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return rsqrt((1 - x) * (1 + x))


class Acos(FloatFunction):
    """The angle in [0, π] whose cosine is x; NaN for floats outside [-1, 1]."""

    ufunc = np.arccos
    sample = "u"

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return -rsqrt((1 - x) * (1 + x))


class Atan(FloatFunction):
    """The angle in [-π/2, π/2] whose tangent is x."""

    ufunc = np.arctan

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return 1 / (1 + x * x)


class Sinh(FloatFunction):
    """Hyperbolic sine, elementwise."""

    ufunc = np.sinh

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return cosh(x)


class Cosh(FloatFunction):
    """Hyperbolic cosine, elementwise."""

    ufunc = np.cosh

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return sinh(x)


class Tanh(FloatFunction):
    """Hyperbolic tangent, elementwise."""

    ufunc = np.tanh

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return (1 - y) * (1 + y)


class Asinh(FloatFunction):
    """The number whose hyperbolic sine is x."""

    ufunc = np.arcsinh

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return rsqrt(1 + x * x)


class Acosh(FloatFunction):
    """The number >= 0 whose hyperbolic cosine is x; NaN for floats below 1."""

    ufunc = np.arccosh
    sample = "g"

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        # Two roots, not the root of the product: only this is right left of the imaginary axis.
        return rsqrt(x - 1) * rsqrt(x + 1)


class Atanh(FloatFunction):
    """The number whose hyperbolic tangent is x; NaN for floats outside [-1, 1]."""

    ufunc = np.arctanh
    sample = "u"

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return 1 / ((1 - x) * (1 + x))


class BinaryFloatFunction(BinaryOperation):
    """A function of two real floats; integers are converted first."""

    domain = "floating"
    direct = "fd"

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.call(self.name, x, y)


class Atan2(BinaryFloatFunction):
    """The angle of the point (x2, x1), in [-π, π]; NaN derivatives at the origin."""

    ufunc = np.arctan2

    def derivatives(self, x: Tensor, y: Tensor, out: Tensor) -> tuple[Any, Any]:
        radius = hypot(x, y)  # dividing twice keeps large and small points in range
        return y / radius / radius, -x / radius / radius


class Hypot(BinaryFloatFunction):
    """sqrt(x1² + x2²) without overflow; the derivative at the origin is 0."""

    ufunc = np.hypot

    def derivatives(self, x: Tensor, y: Tensor, out: Tensor) -> tuple[Any, Any]:
        radius = where(out == 0, 1, out)
        return x / radius, y / radius


def _difference(x: Tensor, y: Tensor) -> Tensor:
    """x - y, where equal infinities differ by 0."""
    difference = x - y
    return where((x == y) & (difference != difference), 0, difference)


class Logaddexp(BinaryFloatFunction):
    """log(exp(x1) + exp(x2)) without overflow; equal infinities share the derivative."""

    ufunc = np.logaddexp

    def derivatives(self, x: Tensor, y: Tensor, out: Tensor) -> tuple[Any, Any]:
        difference = _difference(x, y)
        return sigmoid(difference), sigmoid(-difference)


class Logaddexp2(BinaryFloatFunction):
    """log2(2**x1 + 2**x2) without overflow; equal infinities share the derivative."""

    ufunc = np.logaddexp2

    def derivatives(self, x: Tensor, y: Tensor, out: Tensor) -> tuple[Any, Any]:
        difference = _difference(x, y) * _LN2
        return sigmoid(difference), sigmoid(-difference)


exp, exp2, expm1 = Exp(), Exp2(), Expm1()
log, log2, log10, log1p = Log(), Log2(), Log10(), Log1p()
sqrt, rsqrt, cbrt, sigmoid = Sqrt(), Rsqrt(), Cbrt(), Sigmoid()
sin, cos, tan, asin, acos, atan = Sin(), Cos(), Tan(), Asin(), Acos(), Atan()
sinh, cosh, tanh, asinh, acosh, atanh = Sinh(), Cosh(), Tanh(), Asinh(), Acosh(), Atanh()
atan2, hypot, logaddexp, logaddexp2 = Atan2(), Hypot(), Logaddexp(), Logaddexp2()

arcsin, arccos, arctan, arctan2 = asin, acos, atan, atan2
arcsinh, arccosh, arctanh = asinh, acosh, atanh


@public
@named
def deg2rad(x: Any, /) -> Tensor:
    """Degrees as radians."""
    return multiply(x, math.pi / 180)


@public
@named
def rad2deg(x: Any, /) -> Tensor:
    """Radians as degrees."""
    return multiply(x, 180 / math.pi)


@public
def log_sigmoid(x: Any, /) -> Tensor:
    """log(sigmoid(x)), precise for every x."""
    return negative(logaddexp(negative(x), 0))


radians, degrees = deg2rad, rad2deg

__all__ = [
    "acos",
    "acosh",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "cos",
    "cosh",
    "deg2rad",
    "degrees",
    "exp",
    "exp2",
    "expm1",
    "hypot",
    "log",
    "log1p",
    "log2",
    "log10",
    "log_sigmoid",
    "logaddexp",
    "logaddexp2",
    "rad2deg",
    "radians",
    "rsqrt",
    "sigmoid",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
]
