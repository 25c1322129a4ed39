"""Circular functions: sin, cos, tan, and their inverses.

x = n π/2 + r with |r| at most π/4, r in double length. Up to a moderate |x| the multiples of π/2
are taken off in pieces that multiply n exactly (Cody and Waite); beyond, x is multiplied by the
binary digits of 2/π that matter, in integers (Payne and Hanek). Every finite x is served.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from weft.ops.functions.coefficients import TWO_OVER_PI
from weft.ops.functions.number import Number, choose, evaluate, rarely
from weft.ops.functions.split import (
    Double,
    constant,
    divide,
    fast_two_sum,
    multiply,
    pair,
    parts,
    two_sum,
)

_TABLE_BITS = 1280
# Where the pieces of π/2 still multiply n exactly: digits of n, then of each piece.
_MODERATE = {32: (12, (12, 12, 12, 24)), 64: (20, (33, 33, 53))}


class Angle(NamedTuple):
    """quadrant * π/2 + rest, the quadrant counted modulo 4."""

    quadrant: Number
    rest: Double


def near(x: Number) -> Angle:
    """The angle of a moderate x."""
    pieces = parts("HALF_PI", *_MODERATE[x.format.width][1])
    n = (x * x.format.round(2 / math.pi)).round()
    rest = Double(x - n * pieces[0], x.like(0.0))
    for piece in pieces[1:-1]:
        total = two_sum(rest.high, -(n * piece))
        rest = Double(total.high, rest.low + total.low)
    return Angle(n.to_integer(), two_sum(rest.high, rest.low - n * pieces[-1]))


def high_product(x: Number, y: Number) -> Number:
    """The upper word of the product of two unsigned words."""
    half = x.format.width // 2
    mask = (1 << half) - 1
    x_low, x_high, y_low, y_high = x & mask, x >> half, y & mask, y >> half
    middle = x_high * y_low + ((x_low * y_low) >> half)
    other = x_low * y_high + (middle & mask)
    return x_high * y_high + (middle >> half) + (other >> half)


def window(position: Number) -> list[Number]:
    """Three words of a word of zeros and the digits of 2/π, from an unsigned bit position on."""
    form = position.format
    width = form.width
    mask = (1 << width) - 1
    reach = (form.bias - form.fraction - 2 + width) // width  # words that a position may skip
    words = [
        position.like((TWO_OVER_PI >> (_TABLE_BITS - width * i)) & mask) for i in range(reach + 4)
    ]
    index = position >> (width.bit_length() - 1)
    step = 1 << (reach.bit_length() - 1)
    while step:
        skip = (index & step).differs(0)
        last = len(words) - 1  # no position reaches beyond it
        words = [choose(skip, words[min(i + step, last)], words[i]) for i in range(step + 3)]
        step //= 2
    shift = position & (width - 1)
    # A shift by the whole width is no shift: the neighbour is first moved by one.
    return [(words[i] << shift) | ((words[i + 1] >> 1) >> ((width - 1) - shift)) for i in range(3)]


def far(x: Number) -> Angle:
    """The angle of a large finite x > 0."""
    form = x.format
    width, fraction = form.width, form.fraction
    bits = x.bits().cast(form.unsigned)
    significand = (bits & ((1 << fraction) - 1)) | (1 << fraction)
    # x = significand 2**e; digits of 2/π before position e - 2 give whole turns.
    position = (bits >> fraction) - (form.bias + fraction + 2 - width)
    first, second, third = window(position)
    low = significand * third
    middle = significand * second
    carried = middle + high_product(significand, third)
    top = significand * first + high_product(significand, second)
    top = top + choose(carried < middle, top.like(1), 0)
    quadrant = (top + (1 << (width - 3))) >> (width - 2)
    words = [
        (top << 2) | (carried >> (width - 2)),
        (carried << 2) | (low >> (width - 2)),
    ]
    negative = (words[0] >> (width - 1)).differs(0)
    half = width // 2
    pieces: list[Number] = []
    for word in (choose(negative, ~word, word) for word in words):
        for piece in (word >> half, word & ((1 << half) - 1)):
            weight = math.ldexp(1.0, -half * (len(pieces) + 1))
            pieces.append(piece.to_float() * weight)
    start = fast_two_sum(pieces[0], pieces[1])
    rest = fast_two_sum(start.high, (start.low + pieces[2]) + pieces[3])
    angle = multiply(rest, constant("HALF_PI", x))
    return Angle(
        quadrant.cast(form.signed),
        Double(choose(negative, -angle.high, angle.high), choose(negative, -angle.low, angle.low)),
    )


def angle(x: Number) -> Angle:
    """The angle of x >= 0; NaN for infinity."""
    digits = _MODERATE[x.format.width][0]
    large = x > math.ldexp(1.0, digits)

    def slow() -> tuple[Number, ...]:
        found = far(choose(large, x, math.ldexp(1.0, digits)))
        return found.quadrant, *found.rest

    fast = near(choose(large, x.like(0.0), x))
    quadrant, high, low = rarely(large, slow, (fast.quadrant, *fast.rest))
    return Angle(quadrant, Double(choose(x.equals(math.inf), math.nan, high), low))


def sine(r: Double) -> Double:
    """sin(r) for |r| up to π/4."""
    z = r.high * r.high
    cubic = r.high * z * evaluate("SIN", z)
    return fast_two_sum(r.high, cubic + r.low * (1.0 - 0.5 * z))


def cosine(r: Double) -> Double:
    """cos(r) for |r| up to π/4."""
    z = r.high * r.high
    half = 0.5 * z
    start = fast_two_sum(half.like(1.0), -half)
    return fast_two_sum(start.high, start.low + (z * z * evaluate("COS", z) - r.high * r.low))


def circular(found: Angle, shift: int) -> Number:
    """sin of the angle, `shift` quadrants further on."""
    quadrant = found.quadrant + shift
    odd = (quadrant & 1).differs(0)
    value = choose(odd, cosine(found.rest).collapse(), sine(found.rest).collapse())
    return choose((quadrant & 2).differs(0), -value, value)


def sin(x: Number) -> Number:
    """The sine of x radians."""
    value = circular(angle(abs(x)), 0)
    value = choose(x.negative_bit(), -value, value)
    return choose(abs(x) < math.sqrt(x.format.smallest), x, value)


def cos(x: Number) -> Number:
    """The cosine of x radians."""
    return circular(angle(abs(x)), 1)


def tan(x: Number) -> Number:
    """The tangent of x radians."""
    found = angle(abs(x))
    odd = (found.quadrant & 1).differs(0)
    s, c = sine(found.rest), cosine(found.rest)
    numerator = Double(choose(odd, -c.high, s.high), choose(odd, -c.low, s.low))
    denominator = Double(choose(odd, s.high, c.high), choose(odd, s.low, c.low))
    value = divide(numerator, denominator).collapse()
    value = choose(x.negative_bit(), -value, value)
    return choose(abs(x) < math.sqrt(x.format.smallest), x, value)


def half_turn(x: Number) -> tuple[Double, Double]:
    """sin(πx) and cos(πx) for 0 <= x <= ½."""
    beyond = x > 0.25
    r = multiply(Double(choose(beyond, 0.5 - x, x), x.like(0.0)), constant("PI", x))
    s, c = sine(r), cosine(r)
    swapped = [
        Double(choose(beyond, a.high, b.high), choose(beyond, a.low, b.low))
        for a, b in ((c, s), (s, c))
    ]
    return swapped[0], swapped[1]


def arc(y: Number, x: Number) -> Number:
    """The angle of the point (x, y), both >= 0, not both 0 or infinite."""
    form = y.format
    low, high = form.round(math.sqrt(2) - 1), form.round(math.sqrt(2) + 1)
    steep, flat = y > x * high, y <= x * low
    numerator = choose(steep, -x, choose(flat, y, y - x))
    denominator = choose(steep, y, choose(flat, x, y + x))
    t = numerator / denominator
    z = t * t
    series = t * z * evaluate("ATAN", z)
    half, rest = pair("HALF_PI", form)
    start = choose(steep, t.like(half), choose(flat, t.like(0.0), half / 2))
    correction = choose(steep, t.like(rest), choose(flat, t.like(0.0), rest / 2))
    return start + (t + (series + correction))


def atan(x: Number) -> Number:
    """The angle whose tangent is x."""
    size = abs(x)
    # 1 / size would be denormal for the largest numbers; the angle is the same.
    size = choose(size > math.ldexp(1.0, 64), math.ldexp(1.0, 64), size)
    value = choose(size < math.ldexp(1.0, -40), size, arc(size, size.like(1.0)))
    return value.signed_like(x)


def atan2(y: Number, x: Number) -> Number:
    """The angle of the point (x, y), between -π and π."""
    form = y.format
    a, b = abs(y), abs(x)
    equal = a.equals(b)
    # Scaled so that sums do not overflow and comparisons do not round to zero.
    largest = a.wrap("max", b)
    factor = choose(largest > math.ldexp(1.0, form.bias - 3), y.like(0.125), 1.0)
    factor = choose(largest < 2.0**-64, 2.0**64, factor)
    found = arc(choose(equal, 1.0, a * factor), choose(equal, 1.0, b * factor))
    backward = x.negative_bit()
    found = choose(largest.equals(0.0), 0.0, found)
    high, low = pair("PI", form)
    found = choose(backward, (high - found) + low, found)
    found = choose(y.is_nan() | x.is_nan(), math.nan, found)
    return found.signed_like(y)


def asin_series(x: Number) -> tuple[Number, Number, Number]:
    """(large, t, t³…): asin(t) = t + t³… for t = |x|, or sqrt((1 - |x|) / 2) where |x| > ½."""
    size = abs(x)
    large = size > 0.5
    z = choose(large, (1.0 - size) * 0.5, size * size)
    t = choose(large, z.sqrt(), size)
    return large, t, t * z * evaluate("ASIN", z)


def asin(x: Number) -> Number:
    """The angle between -π/2 and π/2 whose sine is x; NaN beyond 1."""
    large, t, series = asin_series(x)
    high, low = pair("HALF_PI", x.format)
    value = choose(large, high - (2.0 * t - (low - 2.0 * series)), t + series)
    return value.signed_like(x)


def acos(x: Number) -> Number:
    """The angle between 0 and π whose cosine is x; NaN beyond 1."""
    large, t, series = asin_series(x)
    negative = x.negative_bit()
    half, half_low = pair("HALF_PI", x.format)
    signed = choose(negative, -t, t)
    small = half - (signed - (half_low - choose(negative, -series, series)))
    outer = 2.0 * (t + series)
    value = choose(negative, 2.0 * half - (2.0 * t - 2.0 * (half_low - series)), outer)
    return choose(large, value, small)
