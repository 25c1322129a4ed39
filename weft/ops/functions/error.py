"""The error function, its complement and its inverse."""

from __future__ import annotations

import math

from weft.ops.functions.exponential import exponential, exponential_double
from weft.ops.functions.logarithm import Reduced, natural, reduce, reduce_one_plus
from weft.ops.functions.number import Number, choose, coefficients, evaluate, polynomial, scale
from weft.ops.functions.split import divide, fast_two_sum, multiply, two_product, two_sum

_ERF_END = {32: 4.0, 64: 6.0}  # from here on erf is 1
_ERFC_END = {32: 10.2, 64: 27.3}  # from here on erfc is 0
_ERFINV_ENDS = {32: (5.0,), 64: (6.25, 16.0)}
_ERFINV_PARTS = {"ERFINV_MIDDLE": 3.0, "ERFINV_TAIL": 5.0}


def central(x: Number) -> Number:
    """erf(x) for |x| up to 1; any number beyond."""
    z = (x * x).wrap("min", 1.0)
    return x + x * evaluate("ERF", z)


def erf(x: Number) -> Number:
    """2/√π times the integral of exp(-t²) from 0 to x."""
    size = abs(x)
    small = central(size)
    shifted = size.clamp(1.0, _ERF_END[x.format.width]) - 1.0
    large = 1.0 - exponential(evaluate("LOG_ERFC", shifted)).collapse()
    return choose(size < 1.0, small, large).signed_like(x)


def erfc(x: Number) -> Number:
    """1 - erf(x), precise for large x."""
    size = abs(x).wrap("min", _ERFC_END[x.format.width])
    square = two_product(size, size)
    t = (size - 4.0) / (size + 4.0)
    y, n = exponential_double(-square.high, -square.low)
    first, *others = coefficients("ERFC", t)
    series = fast_two_sum(t.like(first), t * polynomial(t, tuple(others)))
    quotient = divide(series, two_sum(t.like(1.0), 2.0 * size))
    value = scale(multiply(y, quotient).collapse(), n)
    value = choose(x < 0.0, 2.0 - value, value)
    return choose((x > -1.0) & (x < 0.5), 1.0 - central(x), value)


def erfinv(x: Number) -> Number:
    """The number whose error function is x; NaN outside [-1, 1]."""
    size = abs(x)
    inside = choose(size < 1.0, size, 0.0)
    # w = -log(1 - x²); for large x the difference 1 - x is exact.
    large = inside > 0.5
    small = reduce_one_plus(-(inside * inside))
    product = reduce((1.0 - inside) * (1.0 + inside))
    w = -natural(Reduced(choose(large, product.f, small.f), choose(large, product.k, small.k)))
    root = w.sqrt()
    ends = _ERFINV_ENDS[x.format.width]
    ratio = evaluate("ERFINV_CENTER", w - 2.5)
    for (name, center), end in zip(_ERFINV_PARTS.items(), ends, strict=False):
        ratio = choose(w > end, evaluate(name, root - center), ratio)
    value = choose(size.equals(1.0), math.inf, inside * ratio)
    return choose(size <= 1.0, value, math.nan).signed_like(x)
