"""Hyperbolic functions and their inverses: exponentials and logarithms without cancellation."""

from __future__ import annotations

import math

from weft.ops.functions.exponential import (
    Exponential,
    expm1_quarter,
    exponential,
    exponential_minus_twice,
)
from weft.ops.functions.logarithm import Reduced, log1p, natural, reduce, reduce_one_plus
from weft.ops.functions.number import Number, choose

_TANH_IS_ONE = 40.0  # what lies beyond has a tangent that rounds to 1 in every format
_COSH_END = {32: 90.0, 64: 711.0}


def sinh(x: Number) -> Number:
    """The hyperbolic sine."""
    half = 2.0 * expm1_quarter(abs(x))  # (exp|x| - 1) / 2, finite where sinh is
    value = choose(half.equals(math.inf), half, half + half / half.fma(2.0, 1.0))
    return choose(abs(x) < math.sqrt(x.format.smallest), x, value.signed_like(x))


def cosh(x: Number) -> Number:
    """The hyperbolic cosine."""
    y, n = exponential(abs(x).wrap("min", _COSH_END[x.format.width]))
    half = Exponential(0.5 * y, n).collapse()
    return half + 0.25 / half


def tanh(x: Number) -> Number:
    """The hyperbolic tangent."""
    p, n = exponential_minus_twice(abs(x).wrap("min", _TANH_IS_ONE))
    power = n.power_of_two()
    # exp(-2x) is power + power * p: both sums are exact before their only rounding.
    above, below = 1.0 - power, 1.0 + power
    top, bottom = power.fma(-p, above), power.fma(p, below)
    found = top / bottom
    if x.format.width == 64:
        # What the sums lost; they add up to 2, so that 1 / bottom is (1 + found) / 2.
        lost, lost_below = power.fma(-p, above - top), power.fma(p, below - bottom)
        found = (-found).fma(lost_below, lost).fma(found.fma(0.5, 0.5), found)
    return found.signed_by(x)


def asinh(x: Number) -> Number:
    """The inverse of sinh."""
    size = abs(x)
    # Beyond this x² + 1 is x², and asinh is log(2x).
    large = size > math.ldexp(1.0, x.format.digits // 2 + 2)
    z = choose(large, 1.0, size * size)
    near = reduce_one_plus(size + z / (1.0 + (1.0 + z).sqrt()))
    far = reduce(size)
    value = natural(Reduced(choose(large, far.f, near.f), choose(large, far.k + 1.0, near.k)))
    value = choose(size.equals(math.inf), size, value)
    return choose(size < math.sqrt(x.format.smallest), x, value.signed_like(x))


def acosh(x: Number) -> Number:
    """The inverse of cosh; NaN below 1."""
    large = x > math.ldexp(1.0, x.format.digits // 2 + 2)
    t = choose(large, 1.0, x - 1.0)
    near = reduce_one_plus(t + (2.0 * t + t * t).sqrt())
    far = reduce(x)
    value = natural(Reduced(choose(large, far.f, near.f), choose(large, far.k + 1.0, near.k)))
    value = choose(x.equals(math.inf), x, value)
    return choose(x >= 1.0, value, math.nan)


def atanh(x: Number) -> Number:
    """The inverse of tanh; infinite at ±1, NaN beyond."""
    size = abs(x)
    twice = 2.0 * size
    argument = choose(size < 0.5, twice + twice * size / (1.0 - size), twice / (1.0 - size))
    value = (0.5 * log1p(argument)).signed_like(x)
    return choose(size < math.sqrt(x.format.smallest), x, value)
