"""Logarithms: log, log2, log10, log1p and what is spelled with them.

x = 2**k (1 + f) with 1 + f between sqrt(½) and sqrt(2). log(1 + f) is a polynomial of f in float32;
with more digits a shorter one of s = f / (2 + f) pays for the division: 2 atanh(s).
`log2_double` carries double length for `pow`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from weft.ops.functions.exponential import exp, exp2
from weft.ops.functions.number import Number, choose, evaluate, power_of_two
from weft.ops.functions.split import (
    Double,
    add,
    constant,
    divide,
    fast_two_sum,
    multiply,
    pair,
    parts,
    two_product,
    two_sum,
)


class Reduced(NamedTuple):
    """2**k (1 + f), k a whole float."""

    f: Number
    k: Number


def mantissa(x: Number) -> tuple[Number, Number]:
    """(m, k): x = 2**k m with m between sqrt(½) and sqrt(2) and k an integer, for finite x > 0."""
    form = x.format
    tiny = x < form.smallest
    bits = choose(tiny, x * math.ldexp(1.0, form.digits), x).bits()
    root = int.from_bytes(form.floating.type(math.sqrt(0.5)).tobytes(), "little")
    k = (bits - root) >> form.fraction
    return (bits - (k << form.fraction)).from_bits(), k - choose(tiny, k.like(form.digits), 0)


def reduce(x: Number) -> Reduced:
    """The parts of a finite x > 0."""
    m, k = mantissa(x)
    return Reduced(m - 1.0, k.to_float())


def reduce_one_plus(x: Number) -> Reduced:
    """The parts of 1 + x, with the digits that the sum would round away."""
    total = two_sum(x.like(1.0), x)
    m, k = mantissa(total.high)
    # Where 2**-k is no normal number the lost digits no longer count.
    inverse = power_of_two((-k).wrap("max", -x.format.bias))
    return Reduced(total.low.fma(inverse, m - 1.0), k.to_float())


def quotient(f: Number, less: Number | float = 0.0) -> Number:
    """The part of log(1 + f) beyond f, negated, less a small number: log(1 + f) is f less this."""
    if f.format.width == 32:
        return (f * f).fma(evaluate("LOG", f), -less)
    s = f / (2.0 + f)
    z = s * s
    return s.fma(z.fma(-evaluate("LOG", z), f), -less)


def natural(reduced: Reduced) -> Number:
    """The logarithm to base e."""
    f, k = reduced
    high, low = parts("LN2", f.format.digits - 12, f.format.digits)
    return k.like(high).fma(k, f - quotient(f, k * low))


def based(reduced: Reduced, inverse: str, two: str) -> Number:
    """The logarithm to another base, of which the logarithms of e and 2 are named constants."""
    f, k = reduced
    form = f.format
    log = fast_two_sum(f, -quotient(f))
    high, low = pair(inverse, form)
    scaled = two_product(log.high, f.like(high))
    rest = log.low.fma(high, log.high.fma(low, scaled.low))
    k_high, k_low = parts(two, form.digits - 12, form.digits) if two else (1.0, 0.0)
    total = two_sum(k * k_high, scaled.high)
    return total.high + (total.low + k.fma(k_low, rest))


def guarded(x: Number, found: Number, zero: float = 0.0) -> Number:
    """The result for ordinary x, else what every logarithm gives: -inf at its zero, NaN below."""
    found = choose(x > zero, found, choose(x.equals(zero), -math.inf, found.like(math.nan)))
    return choose(x.equals(math.inf), x, found)


def log(x: Number) -> Number:
    """The natural logarithm."""
    return guarded(x, natural(reduce(x)))


def log2(x: Number) -> Number:
    """The logarithm to base 2."""
    return guarded(x, based(reduce(x), "LOG2_E", ""))


def log10(x: Number) -> Number:
    """The logarithm to base 10."""
    return guarded(x, based(reduce(x), "LOG10_E", "LOG10_2"))


def log1p(x: Number) -> Number:
    """log(1 + x), precise near zero."""
    found = guarded(x, natural(reduce_one_plus(x)), -1.0)
    return choose(abs(x) < x.format.smallest, x, found)


def log2_double(x: Number) -> Double:
    """The logarithm of a finite x > 0 to base 2, in double length."""
    f, k = reduce(x)
    zero = f.like(0.0)
    s = divide(Double(f, zero), fast_two_sum(f.like(2.0), f))
    z = multiply(s, s)
    high, low = pair("TWO_THIRDS", f.format)
    start = fast_two_sum(f.like(high), z.high * evaluate("LOG_TAIL", z.high))
    series = Double(start.high, start.low + low)
    cubic = multiply(multiply(series, z), s)
    total = add(Double(2.0 * s.high, 2.0 * s.low), cubic)
    return add(Double(k, zero), multiply(total, constant("LOG2_E", f)))


def log_sigmoid(x: Number) -> Number:
    """log(sigmoid(x)), precise in both tails."""
    return choose(x < 0.0, x, -0.0) - log1p(exp(-abs(x)))


def logaddexp(x: Number, y: Number) -> Number:
    """log(exp(x) + exp(y)) without overflow."""
    smaller = -abs(choose(x.equals(y), 0.0, x - y))
    return x.wrap("max", y) + log1p(exp(smaller))


def logaddexp2(x: Number, y: Number) -> Number:
    """log2(2**x + 2**y) without overflow."""
    smaller = -abs(choose(x.equals(y), 0.0, x - y))
    power = exp2(smaller)
    return x.wrap("max", y) + guarded(1.0 + power, based(reduce_one_plus(power), "LOG2_E", ""))
