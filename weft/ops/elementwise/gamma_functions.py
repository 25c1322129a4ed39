"""The gamma function and its kin: beta, polygamma, zeta and the incomplete integrals.

All take real floats; integers become the default float first. Values come from SciPy. Where a
derivative has no closed form and no numbers of its own (`gamma_slope`), asking for it raises.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.lazy import LazyAttribute, LazyModule
from weft.core.common.parameters import as_integer
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import Array
from weft.core.tensor.tensor import Tensor
from weft.errors import MissingRuleError
from weft.ops.base import Example, Operation, Tangents, call
from weft.ops.elementwise.arithmetic import add, subtract, where
from weft.ops.elementwise.comparison import less
from weft.ops.elementwise.elementary import exp
from weft.ops.elementwise.gamma_slope import slope_by_shape
from weft.ops.elementwise.special_functions import (
    KernelFunction,
    OrderedFunction,
    SpecialFunction,
    xlog1py,
    xlogy,
)
from weft.ops.families import BinaryOperation, ElementwiseOperation, align, as_tensors, cast

special = LazyModule("scipy.special")

_SERIES = "its series takes as many terms as its operands ask for"


class Gamma(SpecialFunction):
    """The gamma function: (x - 1)! for whole x; NaN at negative whole numbers."""

    ufunc = LazyAttribute("scipy.special", "gamma")
    sample = "p"

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return y * digamma(x)


class Lgamma(KernelFunction):
    """The logarithm of |gamma(x)|; inf at 0 and at negative whole numbers."""

    ufunc = LazyAttribute("scipy.special", "gammaln")
    sample = "p"

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return digamma(x)


class Digamma(KernelFunction):
    """The derivative of lgamma."""

    ufunc = LazyAttribute("scipy.special", "digamma")
    sample = "p"

    def derivative(self, x: Tensor, y: Tensor) -> Any:
        return polygamma(1, x)


class Polygamma(OrderedFunction):
    """A derivative of digamma."""

    sample = "p"
    examples = (Example({"order": 1}), Example({"order": 2}))

    def eval(self, x: Array, *, order: int) -> Array:
        return np.asarray(special.polygamma(order, x), x.dtype)

    def derivative(self, x: Tensor, y: Tensor, **params: Any) -> Any:
        return self.apply(x, order=params["order"] + 1)


class Beta(BinaryOperation):
    """gamma(x1) gamma(x2) / gamma(x1 + x2)."""

    ufunc = LazyAttribute("scipy.special", "beta")
    domain = "floating"
    sample = "pp"
    reasons = SpecialFunction.reasons

    def derivatives(self, x: Tensor, y: Tensor, out: Tensor) -> tuple[Any, Any]:
        both = digamma(x + y)
        return out * (digamma(x) - both), out * (digamma(y) - both)


class Betaln(BinaryOperation):
    """The logarithm of |beta(x1, x2)|, precise for large operands."""

    ufunc = LazyAttribute("scipy.special", "betaln")
    domain = "floating"
    sample = "pp"
    reasons = SpecialFunction.reasons

    def derivatives(self, x: Tensor, y: Tensor, out: Tensor) -> tuple[Any, Any]:
        both = digamma(x + y)
        return digamma(x) - both, digamma(y) - both


class Undifferentiable(ElementwiseOperation):
    """The operand itself; a derivative that would pass through it raises."""

    work = 0
    examples = (Example({"function": "gammainc", "operand": 0}),)
    reasons = {
        "vjp": "its purpose is to refuse derivatives",
        "jvp": "its purpose is to refuse derivatives",
    }

    def eval(self, x: Array, *, function: str, operand: int) -> Array:
        return np.array(x)

    def body(self, s: Any, x: Any, *, function: str, operand: int) -> Any:
        return x

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        raise self.refusal("jvp", **params)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        raise self.refusal("vjp", **params)

    def refusal(self, rule: str, *, function: str, operand: int) -> MissingRuleError:
        """The error that names the function the operand was given to."""
        return MissingRuleError(
            f"{function}: operand {operand}: no {rule} rule: this derivative has no closed form"
            "\nhint: wf.stop_gradient(x) keeps derivatives out"
        )


class Zeta(BinaryOperation):
    """Hurwitz' zeta function of (s, a)."""

    domain = "floating"
    constants = (0,)
    sample = "gp"
    reasons = {"kernel": _SERIES}

    def eval(self, exponent: Array, x: Array) -> Array:
        result: Array = special.zeta(exponent, x)
        return result

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        exponent, x = primals
        return None if tangents[1] is None else tangents[1] * self.slope(exponent, x)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        exponent, x = primals
        return FUNCTIONS["zeros_like"](exponent), ct * self.slope(exponent, x)

    def slope(self, exponent: Tensor, x: Tensor) -> Any:
        """The derivative by the second operand."""
        return -exponent * zeta_op(exponent + 1, x)


class GammaincSlope(BinaryOperation):
    """The derivative of the lower incomplete gamma function of (a, x) by a."""

    domain = "floating"
    constants = (0,)
    sample = "pp"
    reasons = {"kernel": _SERIES}

    def eval(self, a: Array, x: Array) -> Array:
        return slope_by_shape(a, x).astype(np.result_type(a, x))

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        return None if tangents[1] is None else tangents[1] * self.slope(*primals)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return FUNCTIONS["zeros_like"](primals[0]), ct * self.slope(*primals)

    def slope(self, a: Tensor, x: Tensor) -> Any:
        """The derivative by x: that of the integrand at x by a."""
        density = exp(xlogy(a - 1, x) - x - lgamma(a))
        return xlogy(density, x) - density * digamma(a)


class IncompleteGamma(BinaryOperation):
    """A regularized integral of the gamma function's integrand, of (a, x)."""

    domain = "floating"
    sample = "pp"
    selective = True
    reasons = {"kernel": _SERIES}
    direction = 1

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        by_a, by_x = tangents
        moved = None if by_a is None else by_a * self.by_shape(*primals)
        if by_x is None:
            return moved
        along = by_x * self.density(*primals)
        return along if moved is None else moved + along

    def vjp(
        self, primals: Any, out: Any, ct: Any, needed: Any = (True, True), **params: Any
    ) -> Tangents:
        by_a = ct * self.by_shape(*primals) if needed[0] else None
        return by_a, ct * self.density(*primals) if needed[1] else None

    def by_shape(self, a: Tensor, x: Tensor) -> Any:
        """The derivative by a, which has none by a itself."""
        name = {"function": f"derivative of {self.name}", "operand": 0}
        return self.direction * gammainc_slope_op(call(undifferentiable, (a,), name), x)

    def density(self, a: Tensor, x: Tensor) -> Any:
        """The integrand at x, negative if the integral starts there."""
        return self.direction * exp(xlogy(a - 1, x) - x - lgamma(a))


class Gammainc(IncompleteGamma):
    """The integral from 0 to x."""

    ufunc = LazyAttribute("scipy.special", "gammainc")


class Gammaincc(IncompleteGamma):
    """The integral from x to infinity."""

    ufunc = LazyAttribute("scipy.special", "gammaincc")
    direction = -1


class Betainc(Operation):
    """The regularized integral of the beta function's integrand from 0 to x, of (a, b, x)."""

    factors = "..., ..., ... -> ..."
    constants = (0, 1)
    ufunc = LazyAttribute("scipy.special", "betainc")
    sample = "ppq"
    reasons = {"kernel": _SERIES}

    def eval(self, a: Array, b: Array, x: Array) -> Array:
        result: Array = special.betainc(a, b, x)
        return result

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        return None if tangents[2] is None else tangents[2] * self.density(*primals)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        zeros = FUNCTIONS["zeros_like"]
        return zeros(primals[0]), zeros(primals[1]), ct * self.density(*primals)

    def density(self, a: Tensor, b: Tensor, x: Tensor) -> Tensor:
        """The integrand at x."""
        return exp(xlogy(a - 1, x) + xlog1py(b - 1, -x) - betaln(a, b))


gamma, lgamma, digamma, beta, betaln = Gamma(), Lgamma(), Digamma(), Beta(), Betaln()
polygamma_op, zeta_op, undifferentiable = Polygamma(), Zeta(), Undifferentiable()
gammainc_op, gammaincc_op, gammainc_slope_op = Gammainc(), Gammaincc(), GammaincSlope()
betainc_op = Betainc()

gammaln, psi = lgamma, digamma


_LARGEST_ORDER = 2**53  # the order is computed with as a float


@public
def polygamma(n: Any, x: Any, /) -> Tensor:
    """The n-th derivative of digamma at x, for a whole number n >= 0."""
    order = as_integer("polygamma", "n", n, 0, _LARGEST_ORDER)
    return digamma(x) if order == 0 else polygamma_op.apply(x, order=order)


@public
def multigammaln(a: Any, d: int, /) -> Tensor:
    """The logarithm of the gamma function of d by d matrices; NaN for a below (d - 1) / 2."""
    count = as_integer("multigammaln", "d", d, 1)
    terms = (lgamma(subtract(a, k / 2)) for k in range(count))
    made = add(sum(terms, start=0), count * (count - 1) / 4 * math.log(math.pi))
    return where(less(a, (count - 1) / 2), math.nan, made)


@public
def zeta(x1: Any, x2: Any = 1.0, /) -> Tensor:
    """Hurwitz' zeta function: the sum of 1 / (k + x2)**x1 over k = 0, 1, …; Riemann's for x2 = 1.

    A derivative exists by x2 alone.
    """
    return _with_fixed("zeta", zeta_op, x1, x2)


@public
def gammainc(a: Any, x: Any, /) -> Tensor:
    """The regularized lower incomplete gamma function; by a it can be differentiated once."""
    return gammainc_op(a, x)


@public
def gammaincc(a: Any, x: Any, /) -> Tensor:
    """1 - gammainc(a, x), precise in the tail; by a it can be differentiated once."""
    return gammaincc_op(a, x)


@public
def betainc(a: Any, b: Any, x: Any, /) -> Tensor:
    """The regularized incomplete beta function; a derivative exists by x alone."""
    return _with_fixed("betainc", betainc_op, a, b, x)


def _with_fixed(name: str, op: Operation, *args: Any) -> Tensor:
    """Call `op` so that a derivative by any operand but the last one raises."""
    tensors = as_tensors(name, *args)
    dtype = beta.compute_dtype(dtypes.promote_all(*(t.dtype for t in tensors), op=name))
    *fixed, last = (cast(t, dtype) for t in tensors)
    held = (
        call(undifferentiable, (t,), {"function": name, "operand": i}) for i, t in enumerate(fixed)
    )
    result: Tensor = call(op, align(name, (*held, last)), {})
    return result


__all__ = [
    "beta",
    "betainc",
    "betaln",
    "digamma",
    "gamma",
    "gammainc",
    "gammaincc",
    "gammaln",
    "lgamma",
    "multigammaln",
    "polygamma",
    "psi",
    "zeta",
]
