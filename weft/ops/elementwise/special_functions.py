"""Special functions of each element: error functions, logarithms that meet zeros, Bessel functions.

All take real floats; integers become the default float first. Values come from SciPy.
"""

from __future__ import annotations

import builtins
import math
from typing import Any, ClassVar

from weft.core.common import dtypes
from weft.core.common.lazy import LazyAttribute, LazyModule
from weft.core.common.slots import public
from weft.core.common.types import Array
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.ops.base import Example, Tangents, call
from weft.ops.elementwise.arithmetic import remainder, square, where
from weft.ops.elementwise.complex_parts import abs, real
from weft.ops.elementwise.elementary import exp, log, log1p, sigmoid, sin
from weft.ops.elementwise.rounding import rint, sign
from weft.ops.families import (
    BinaryOperation,
    ElementwiseOperation,
    UnaryOperation,
    as_tensors,
    cast,
)
from weft.ops.naming import named
from weft.ops.often import often

special = LazyModule("scipy.special")

_HALF_ROOT_PI = math.sqrt(math.pi) / 2
_ROOT_TWO_PI = math.sqrt(2 * math.pi)
_ROOT_TWO_OVER_PI = math.sqrt(2 / math.pi)
_TANH_SCALE, _TANH_CUBE = math.sqrt(8 / math.pi), 0.044715
_SINC_TERMS = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(9))


class SpecialFunction(UnaryOperation):
    """A function of real floats; integers are converted first."""

    domain = "floating"
    reasons = {"kernel": "its values come from SciPy, on the host"}


class KernelFunction(SpecialFunction):
    """A special function that kernels can call by its name."""

    def body(self, s: Any, x: Any) -> Any:
        return s.call(self.name, x)


class Erf(KernelFunction):
    """The error function: 2/√π times the integral of exp(-t²) from 0 to x."""

    ufunc = LazyAttribute("scipy.special", "erf")

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return exp(-square(x)) / _HALF_ROOT_PI


class Erfc(KernelFunction):
    """1 - erf(x), precise for large x."""

    ufunc = LazyAttribute("scipy.special", "erfc")

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return -exp(-square(x)) / _HALF_ROOT_PI


class Erfcx(SpecialFunction):
    """exp(x²) erfc(x), which does not underflow for large x."""

    ufunc = LazyAttribute("scipy.special", "erfcx")

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return 2 * x * y - 1 / _HALF_ROOT_PI


class Ndtr(KernelFunction):
    """The probability that a normal variable lies below x, precise for small ones."""

    ufunc = LazyAttribute("scipy.special", "ndtr")

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return exp(-0.5 * square(x)) / _ROOT_TWO_PI


class NormalShare(KernelFunction):
    """The share of a normal distribution that lies below x, to the last digits of 1.

    Small shares have fewer digits: `ndtr` has all of them, at several times the cost.
    """

    ufunc = LazyAttribute("scipy.special", "ndtr")

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return exp(-0.5 * square(x)) / _ROOT_TWO_PI


class TanhShare(KernelFunction):
    """(1 + tanh(√(2/π) (x + 0.044715 x³))) / 2, which is close to `normal_share`.

    Small shares have fewer digits: `sigmoid` of twice the argument of tanh has all of them.
    """

    def eval(self, x: Any, **params: Any) -> Any:
        scale = x.dtype.type(_TANH_SCALE)
        return special.expit(x * (scale + scale * x.dtype.type(_TANH_CUBE) * (x * x)))

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return y * (1 - y) * (_TANH_SCALE + 3 * _TANH_CUBE * _TANH_SCALE * square(x))


class Erfinv(KernelFunction):
    """The number whose error function is x; NaN outside [-1, 1]."""

    ufunc = LazyAttribute("scipy.special", "erfinv")
    sample = "u"

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return _HALF_ROOT_PI * exp(square(y))


class Erfcinv(SpecialFunction):
    """The number y for which erfc(y) is x; NaN outside [0, 2]."""

    ufunc = LazyAttribute("scipy.special", "erfcinv")
    sample = "q"

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return -_HALF_ROOT_PI * exp(square(y))


class Ndtri(SpecialFunction):
    """The number below which a normal variable lies with probability x."""

    ufunc = LazyAttribute("scipy.special", "ndtri")
    sample = "q"

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return _ROOT_TWO_PI * exp(square(y) / 2)


class LogNdtr(SpecialFunction):
    """The logarithm of the probability that a normal variable lies below x, precise in the tail."""

    ufunc = LazyAttribute("scipy.special", "log_ndtr")

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        low = x < 0  # there the logarithms of density and share are large, and nearly equal
        density = exp(-square(where(low, 0, x)) / 2 - where(low, 0, y)) / _ROOT_TWO_PI
        return where(low, _ROOT_TWO_OVER_PI / erfcx(where(low, -x, 0) * math.sqrt(0.5)), density)


class Logit(SpecialFunction):
    """log(x / (1 - x)), the inverse of sigmoid; NaN outside [0, 1]."""

    ufunc = LazyAttribute("scipy.special", "logit")
    sample = "q"

    def body(self, s: Any, x: Any) -> Any:
        one, two = (s.const(n, x.dtype) for n in (1, 2))
        far = s.call("log", s.div(x, s.sub(one, x)))
        near = s.mul(two, s.call("atanh", s.sub(s.mul(two, x), one)))  # exact digits around ½
        quarter = s.const(0.25, x.dtype)
        middle = s.less(s.abs(s.sub(x, s.const(0.5, x.dtype))), quarter)
        return s.select(middle, near, far)

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return 1 / (x * (1 - x))


class Exp1(SpecialFunction):
    """The integral of exp(-t) / t from x to infinity; NaN for negative floats."""

    ufunc = LazyAttribute("scipy.special", "exp1")
    sample = "p"

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return -exp(-x) / x


class Expi(SpecialFunction):
    """The integral of exp(t) / t from -infinity to x; -inf at 0."""

    ufunc = LazyAttribute("scipy.special", "expi")
    sample = "p"

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return exp(x) / x


class OrderedFunction(ElementwiseOperation):
    """A function of one float from a family that a whole number counts."""

    domain = "floating"
    reasons = {"kernel": "no polynomial serves every order"}

    def derivative(self, x: Tensor, y: Tensor, **params: Any) -> Any:
        """f'(x), given x and y = f(x)."""
        raise self.missing("vjp")

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        return tangents[0] * self.derivative(primals[0], out, **params)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return (ct * self.derivative(primals[0], out, **params),)

    def apply(self, x: Any, **params: Any) -> Tensor:
        """The function of `x`, converted to a float if need be."""
        tensor = to_tensor(x, op=self.name)
        result: Tensor = call(self, (cast(tensor, self.compute_dtype(tensor.dtype)),), params)
        return result


class BesselI(OrderedFunction):
    """A modified Bessel function of the first kind, or exp(-|x|) times it."""

    examples = (
        Example({"order": 0, "scaled": False}),
        Example({"order": 1, "scaled": False}),
        Example({"order": 0, "scaled": True}),
        Example({"order": 1, "scaled": True}),
    )

    def eval(self, x: Array, *, order: int, scaled: bool) -> Array:
        result: Array
        if order < 2:
            own = (special.i0, special.i1, special.i0e, special.i1e)[order + 2 * scaled]
            result = own(x)
        else:
            result = (special.ive if scaled else special.iv)(order, x)
        return result

    def derivative(self, x: Tensor, y: Tensor, **params: Any) -> Any:
        order, scaled = params["order"], params["scaled"]
        below, above = (
            self.apply(x, order=n, scaled=scaled) for n in (builtins.abs(order - 1), order + 1)
        )
        slope = (below + above) / 2
        return slope - sign(x) * y if scaled else slope


class BesselJ(OrderedFunction):
    """A Bessel function of the first kind."""

    examples = (Example({"order": 0}), Example({"order": 1}))

    def eval(self, x: Array, *, order: int) -> Array:
        result: Array
        result = (special.j0, special.j1)[order](x) if order < 2 else special.jv(order, x)
        return result

    def derivative(self, x: Tensor, y: Tensor, **params: Any) -> Any:
        order = params["order"]
        if order == 0:
            return -self.apply(x, order=1)
        return (self.apply(x, order=order - 1) - self.apply(x, order=order + 1)) / 2


class TimesLogarithm(BinaryOperation):
    """x1 times a logarithm of x2, and 0 where x1 is 0 unless x2 is NaN."""

    domain = "floating"
    direct = "fd"
    sample = "fp"
    logarithm: ClassVar[str]

    def body(self, s: Any, x: Any, y: Any) -> Any:
        zero = s.const(0, x.dtype)
        silent = s.bit_and(s.equal(x, zero), s.equal(y, y))
        return s.select(silent, zero, s.mul(x, s.call(self.logarithm, y)))


class Xlogy(TimesLogarithm):
    """x1 * log(x2), and 0 where x1 is 0 unless x2 is NaN."""

    ufunc = LazyAttribute("scipy.special", "xlogy")
    logarithm = "log"

    def derivatives(self, x: Tensor, y: Tensor, out: Tensor) -> tuple[Any, Any]:
        return log(y), x / where((x == 0) & (y == 0), 1, y)


class Xlog1py(TimesLogarithm):
    """x1 * log1p(x2), and 0 where x1 is 0 unless x2 is NaN."""

    ufunc = LazyAttribute("scipy.special", "xlog1py")
    logarithm = "log1p"

    def derivatives(self, x: Tensor, y: Tensor, out: Tensor) -> tuple[Any, Any]:
        return log1p(y), x / where((x == 0) & (y == -1), 1, 1 + y)


erf, erfc, erfcx, erfinv, erfcinv = Erf(), Erfc(), Erfcx(), Erfinv(), Erfcinv()
ndtr, normal_share, tanh_share = Ndtr(), NormalShare(), TanhShare()
ndtri, log_ndtr, logit = Ndtri(), LogNdtr(), Logit()
xlogy, xlog1py, bessel_i, bessel_j = Xlogy(), Xlog1py(), BesselI(), BesselJ()
exp1, expi = Exp1(), Expi()

expit = sigmoid


@public
@named
def entr(x: Any, /) -> Tensor:
    """-x log(x), 0 at 0 and -inf below."""
    amount = to_tensor(x, op="entr")
    return where(amount < 0, -math.inf, xlogy(-amount, where(amount < 0, 1, amount)))


@public
def rel_entr(x1: Any, x2: Any, /) -> Tensor:
    """x1 log(x1 / x2): 0 where x1 is 0 and x2 is not negative, else inf out of range."""
    p, q = as_tensors("rel_entr", x1, x2)
    inside = (p > 0) & (q > 0)
    above, below = where(inside, p, 1), where(inside, q, 1)
    ratio = above / below
    exact = (ratio >= dtypes.finfo(ratio.dtype).smallest_normal) & (ratio < math.inf)
    near = xlogy(p, where(exact, above, 1) / where(exact, below, 1))
    made = where(exact, near, above * (log(above) - log(below)))
    outside = where((p == 0) & (q >= 0), 0.0, math.inf)
    found: Tensor = where(inside, made, cast(outside, made.dtype))
    return where((p != p) | (q != q), math.nan, found)


@public
def j0(x: Any, /) -> Tensor:
    """The Bessel function of the first kind of order 0."""
    return bessel_j.apply(x, order=0)


@public
def j1(x: Any, /) -> Tensor:
    """The Bessel function of the first kind of order 1."""
    return bessel_j.apply(x, order=1)


@public
def i0(x: Any, /) -> Tensor:
    """The modified Bessel function of the first kind of order 0."""
    return bessel_i.apply(x, order=0, scaled=False)


@public
def i1(x: Any, /) -> Tensor:
    """The modified Bessel function of the first kind of order 1."""
    return bessel_i.apply(x, order=1, scaled=False)


@public
def i0e(x: Any, /) -> Tensor:
    """exp(-|x|) times `i0(x)`."""
    return bessel_i.apply(x, order=0, scaled=True)


@public
def i1e(x: Any, /) -> Tensor:
    """exp(-|x|) times `i1(x)`."""
    return bessel_i.apply(x, order=1, scaled=True)


@public
@often
def sinc(x: Any, /) -> Tensor:
    """sin(πx) / (πx): 1 at 0, 0 at other whole numbers; derivatives of every order are right at 0.

    Narrow floats are computed in float32 and rounded once.
    """
    given = to_tensor(x, op="sinc")
    dtype = sin.compute_dtype(given.dtype)
    tensor = cast(given, dtypes.float32 if dtypes.is_narrow(dtype) else dtype)
    near = abs(tensor) < 0.15
    # Around 0 the Taylor series: a constant chosen by `where` would lose the higher derivatives.
    z = square(where(near, tensor, 0) * math.pi)
    series = z * _SINC_TERMS[-1] + _SINC_TERMS[-2]
    for term in _SINC_TERMS[-3::-1]:
        series = series * z + term
    away = where(near, 1, tensor)
    whole = rint(real(away))
    odd = remainder(whole, 2) == 1
    wave = sin((away - whole) * math.pi)  # the difference is exact
    return cast(where(near, series, where(odd, -wave, wave) / (away * math.pi)), dtype)


__all__ = [
    "entr",
    "erf",
    "erfc",
    "erfcinv",
    "erfcx",
    "erfinv",
    "exp1",
    "expi",
    "expit",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "j0",
    "j1",
    "log_ndtr",
    "logit",
    "ndtr",
    "ndtri",
    "rel_entr",
    "sinc",
    "xlog1py",
    "xlogy",
]
