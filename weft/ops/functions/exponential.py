"""Exponentials: exp, exp2, expm1, and the sigmoid.

x = n log 2 + r with |r| at most half of log 2, so that exp(x) = 2**n exp(r) and a short polynomial
serves. `Exponential` keeps n apart: callers multiply first and scale once, at the end.
"""

from __future__ import annotations

from typing import NamedTuple

from weft.ops.functions.number import (
    Number,
    Whole,
    choose,
    coefficients,
    evaluate,
    nearest,
    polynomial,
)
from weft.ops.functions.split import Double, constant, fast_two_sum, multiply, parts

# Beyond these every result is infinite or zero; inside, two powers of two scale it.
_RANGE = {32: (-105.0, 90.0), 64: (-746.0, 711.0)}
_RANGE2 = {32: (-151.0, 129.0), 64: (-1077.0, 1025.0)}
# The same where nothing but the product is wanted: both powers of the lowest n are 0. Products that
# nearly reach the smallest numbers take processors a hundred times as long as others.
_FAR = {32: (-176.0, 90.0), 64: (-1418.0, 711.0)}
_FAR2 = {32: (-254.0, 129.0), 64: (-2046.0, 1025.0)}
_SHORT = (-126.0, 129.0)  # where n is lowest, its power is 0
_MIDDLE = 192.0  # beside which numbers have 16 digits after the point
_LN2_DIGITS = {32: (24,), 64: (53, 53)}
_EXPM1_END = {32: 89.5, 64: 710.5}  # half of expm1 is infinite from here on


class Exponential(NamedTuple):
    """y * 2**n."""

    y: Number
    n: Whole

    def collapse(self) -> Number:
        """The float nearest to it, infinite or denormal where it must be."""
        first, second = self.n.powers_of_two()
        return self.y * first * second


def reduce_exponent(x: Number, extra: int, sign: float = 1.0) -> tuple[Whole, Number, float]:
    """(n, a, b): x = sign n (log 2) + a, less n b, with a exact, for x in range."""
    form = x.format
    exponent_digits = form.width - form.digits  # what n needs
    (log2_e,) = parts("LOG2_E", form.digits)
    high, low = parts("LN2", form.digits - exponent_digits - 1, form.digits)
    n = nearest(x, sign * log2_e, extra)
    return n, n.value().fma(-sign * high, x), sign * low


def exponential(x: Number, biases: int = 2, sign: float = 1.0) -> Exponential:
    """exp(x), or of -x, for x in range; with one bias, where 2**n is a normal number."""
    n, a, b = reduce_exponent(x, biases * x.format.bias, sign)
    r = n.value().fma(-b, a)
    terms = (1.0, 1.0, *coefficients("EXP", r))
    return Exponential(polynomial(r, tuple(c * sign**i for i, c in enumerate(terms))), n)


def exponential_minus_twice(x: Number) -> tuple[Number, Whole]:
    """(p, n): exp(-2x) = 2**n (1 + p) for moderate x, with one power of two; p keeps its digits.

    Where n is large, exp(-2x) hardly counts beside 1: few digits of log 2 serve.
    """
    form = x.format
    (log2_e,) = parts("LOG2_E", form.digits)
    high, *low = parts("LN2", *_LN2_DIGITS[form.width])
    n = nearest(x, -2 * log2_e, form.bias)
    r = n.value().fma(0.5 * high, x)  # exp(-2x) = 2**n exp(-2r), but for the low digits
    terms = tuple(c * (-2.0) ** (i + 2) for i, c in enumerate(coefficients("EXP", r)))
    if not low:
        return (r * r).fma(polynomial(r, terms), -2.0 * r), n
    return r.fma(-2.0, (r * r).fma(polynomial(r, terms), n.value() * -low[0])), n


def exponential_double(x: Number, low: Number) -> tuple[Double, Whole]:
    """(y, n): exp(x + low) = y * 2**n, where low is a correction to x and y has double length."""
    n, a, b = reduce_exponent(x.clamp(*_RANGE[x.format.width]), 2 * x.format.bias)
    r = a + n.value().fma(-b, low)
    return fast_two_sum(r.like(1.0), (r * r).fma(evaluate("EXP", r), r)), n


def exp(x: Number) -> Number:
    """e to the power x."""
    return exponential(x.clamp(*_FAR[x.format.width])).collapse()


def short_power(x: Number, factor: Number, top: Number) -> Number:
    """x·factor - top with few digits after the point, which do not depend on a whole `top`."""
    if x.format.width > 32:
        return x.fma(factor, -top)
    return x.fma(factor, _MIDDLE) - (top + _MIDDLE)


def short_exp2(x: Number) -> Number:
    """2 to the power x in the digits that a float of 16 bits shows; what is below 2**-125 is 0."""
    form = x.format
    if form.width > 32:
        return exp2(x)
    x = x.clamp(*_SHORT)
    n = nearest(x, 1.0, form.bias - 1)  # of whose power half is a normal number, or 0
    r = x - n.value()
    terms = (1.0, *coefficients("SHORT_EXP2", r))
    return polynomial(r, tuple(2 * c for c in terms)) * n.power_of_two()


def exp2(x: Number) -> Number:
    """2 to the power x."""
    x = x.clamp(*_FAR2[x.format.width])
    n = nearest(x, 1.0, 2 * x.format.bias)
    r = x - n.value()
    return Exponential(polynomial(r, (1.0, *coefficients("EXP2", r))), n).collapse()


def exp2_double(x: Double) -> Exponential:
    """2 to the power x, x of double length: wrong by hardly more than its last rounding."""
    high = x.high.clamp(*_RANGE2[x.high.format.width])
    low = choose(high.equals(x.high), x.low, 0.0)
    n = nearest(high, 1.0, 2 * high.format.bias)
    r = multiply(fast_two_sum(high - n.value(), low), constant("LN2", high))
    rest = (r.high * r.high).fma(evaluate("EXP", r.high), r.low)
    start = fast_two_sum(r.high.like(1.0), r.high)
    return Exponential(start.high + (start.low + rest), n)


def expm1_quarter(x: Number) -> Number:
    """(exp(x) - 1) / 4, finite wherever sinh(x) is; not for denormal results."""
    form = x.format
    lowest = -(form.digits + 3.0) * 0.7  # exp(x) no longer counts
    n, a, b = reduce_exponent(x.clamp(lowest, _EXPM1_END[form.width]), form.bias - 2)
    lost = n.value() * b
    r = a - lost
    # exp(x) - 1 is 2**n (exp(r) - 1) + (2**n - 1), and exp(r) - 1 is r and a small rest.
    rest = (r * r).fma(evaluate("EXP", r), (a - r) - lost)
    quarter = n.power_of_two()
    return quarter.fma(rest, quarter.fma(r, quarter - 0.25))


def expm1(x: Number) -> Number:
    """e**x - 1, precise near zero."""
    return choose(abs(x) < 8 * x.format.smallest, x, 4.0 * expm1_quarter(x))


def sigmoid(x: Number) -> Number:
    """1 / (1 + exp(-x))."""
    form = x.format
    low, _ = _RANGE[form.width]
    y, n = exponential(x.clamp(low, -low), sign=-1.0)
    first, second = n.powers_of_two()
    # Both terms of the sum are divided by `first`, so that neither overflows.
    inverse = (((2 * form.bias) << form.fraction) - first.bits()).from_bits()
    return inverse / y.fma(second, inverse)
