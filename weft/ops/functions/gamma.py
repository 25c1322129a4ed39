"""The logarithm of the gamma function, and its derivative.

A polynomial serves an interval of about length 1; recurrences bring other small arguments there,
Stirling's series serves large ones, and reflection the negative ones.
"""

from __future__ import annotations

import math

from weft.ops.functions.logarithm import log
from weft.ops.functions.number import Number, choose, evaluate
from weft.ops.functions.split import constant, divide, multiply, pair
from weft.ops.functions.trigonometric import half_turn

_LARGE = 8.5


def valley(x: Number) -> Number:
    """log(gamma(x)) for x around its least value, between the zeros 1 and 2."""
    high, low = pair("DIGAMMA_ZERO", x.format)
    least, rest = pair("LGAMMA_LEAST", x.format)
    u = (x - high) - low
    return least + (u * u * evaluate("LGAMMA_VALLEY", u) + rest)


def lgamma_positive(x: Number) -> Number:
    """log(gamma(x)) for x > 0."""
    large = x > _LARGE
    small = choose(large, 2.0, x)
    # gamma(x) = gamma(v + 2) times or over a product of factors, |v| at most ½.
    n = small.round().wrap("max", 0.0)
    v = small - n
    below = choose(n.equals(0.0), small * (small + 1.0), choose(n.equals(1.0), small, 1.0))
    above = x.like(1.0)
    for i in range(1, int(_LARGE) - 1):
        above = above * choose(n > i + 1.5, small - float(i), 1.0)
    logarithm = log(choose(large, x, choose(n < 1.5, below, above)))
    start = v * evaluate("LGAMMA", v)
    near = choose(n < 1.5, start - logarithm, start + logarithm)
    near = choose((small > 1.2) & (small < 1.7), valley(small), near)
    inverse = 1.0 / choose(large, x, 16.0)
    series = inverse * evaluate("STIRLING", inverse * inverse)
    rest = 0.5 * math.log(2 * math.pi) - 0.5
    far = (x - 0.5) * (logarithm - 1.0) + (rest + series)
    return choose(large, choose(x.equals(math.inf), x, far), near)


def lgamma(x: Number) -> Number:
    """log(|gamma(x)|); infinite at 0 and at negative whole numbers."""
    size = abs(x)
    value = lgamma_positive(size)
    fraction = abs(size - size.round())
    # gamma(-x) gamma(x) = -π / (x sin(πx))
    reflected = -log(size * half_turn(fraction)[0].collapse() * (1 / math.pi)) - value
    reflected = choose(fraction.equals(0.0), math.inf, reflected)
    tiny = size < math.ldexp(1.0, -x.format.digits - 8)
    value = choose(x < 0.0, reflected, value)
    value = choose(size.equals(math.inf), size, value)
    return choose(tiny, -log(size), value)


def digamma_positive(x: Number) -> Number:
    """digamma(x) for x > 0."""
    large = x >= 5.0
    base = choose(large, 1.5, x)
    # The sum of 1 / (x - 1), 1 / (x - 2), … as one fraction; -1 / x where x < 1.
    numerator, denominator = x.like(0.0), x.like(1.0)
    current = base
    for _ in range(3):
        shift = current >= 2.0
        lower = current - 1.0
        numerator = choose(shift, numerator * lower + denominator, numerator)
        denominator = choose(shift, denominator * lower, denominator)
        current = choose(shift, lower, current)
    below = base < 1.0
    numerator = choose(below, -1.0, numerator)
    denominator = choose(below, base, denominator)
    high, low = pair("DIGAMMA_ZERO", x.format)
    offset = choose(below, (base - (high - 1.0)) - low, (current - high) - low)
    v = choose(below, base - 0.5, current - 1.5)
    near = offset * evaluate("DIGAMMA", v) + numerator / denominator
    inverse = 1.0 / choose(large, x, 16.0)
    z = inverse * inverse
    far = log(choose(large, x, 16.0)) - (0.5 * inverse + z * evaluate("DIGAMMA_SERIES", z))
    return choose(large, far, near)


def digamma(x: Number) -> Number:
    """The derivative of lgamma; infinite at 0, NaN at negative whole numbers."""
    negative = x < 0.0
    value = digamma_positive(choose(negative, 1.0 - x, x))
    # digamma(1 - x) - digamma(x) = π / tan(πx)
    r = x - x.round()
    sine, cosine = half_turn(abs(r))
    cotangent = multiply(divide(cosine, sine), constant("PI", x))
    signed = choose(r < 0.0, value + cotangent.high, value - cotangent.high)
    reflected = choose(r < 0.0, signed + cotangent.low, signed - cotangent.low)
    reflected = choose(r.equals(0.0), math.nan, reflected)
    value = choose(negative, reflected, value)
    tiny = abs(x) < math.ldexp(1.0, -x.format.digits - 8)
    return choose(tiny, -1.0 / x, value)
