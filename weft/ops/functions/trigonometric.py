"""Circular functions: sin, cos, tan, and their inverses.

x = n π/2 + r with |r| at most π/4, r in double length. Up to a moderate |x| the multiples of π/2
are taken off in pieces that multiply n exactly (Cody and Waite); beyond, x is multiplied by the
binary digits of 2/π that matter, in integers (Payne and Hanek). Every finite x is served.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from weft.ops.functions.coefficients import TWO_OVER_PI
from weft.ops.functions.number import (
    Number,
    choose,
    evaluate,
    nearest,
    rarely,
)
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
# Where the first pieces of π/2 still multiply n exactly: digits of n, then of each piece.
_MODERATE = {32: (12, (12, 12, 12, 24)), 64: (20, (33, 33, 53))}


class Angle(NamedTuple):
    """quadrant * π/2 + rest, the quadrant counted modulo 4."""

    quadrant: Number
    rest: Double


def near(x: Number, double: bool) -> Angle:
    """The angle of a moderate x; without `double` the rest has no low part."""
    pieces = parts("HALF_PI", *_MODERATE[x.format.width][1], down=True)  # so that -0.0 stays
    whole = nearest(x, x.format.round(2 / math.pi), 0)
    n, high, low = whole.value(), x, x.like(0.0)
    for piece in pieces[:-1]:
        if double:
            high, error = two_sum(high, n * -piece)
            low = low + error
        else:
            high = n.fma(-piece, high)
    last = n.fma(-pieces[-1], low if double else high)
    return Angle(whole.sum.bits(), two_sum(high, last) if double else Double(last, low))


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


def angle(x: Number, double: bool) -> Angle:
    """The angle of x; NaN for infinity. Without `double` the rest has no low part."""
    limit = math.ldexp(1.0, _MODERATE[x.format.width][0])
    size = abs(x)
    large = size > limit

    def slow() -> tuple[Number, ...]:
        quadrant, rest = far(choose(large, size, limit))
        parts = rest if double else (rest.collapse(),)
        signed = [choose(x < 0.0, -part, part) for part in parts]
        signed[0] = choose(size.equals(math.inf), math.nan, signed[0])
        return choose(x < 0.0, -quadrant, quadrant), *signed

    fast = near(x, double)
    usual = fast.rest if double else fast.rest[:1]
    quadrant, high, *low = rarely(large, slow, (fast.quadrant, *usual))
    return Angle(quadrant, Double(high, low[0] if low else high.like(0.0)))


def sine(r: Double) -> Double:
    """sin(r) for |r| up to π/4."""
    z = r.high * r.high
    cubic = (r.high * z).fma(evaluate("SIN", z), r.low * z.fma(-0.5, 1.0))
    return fast_two_sum(r.high, cubic)


def cosine(r: Double) -> Double:
    """cos(r) for |r| up to π/4."""
    z = r.high * r.high
    half = 0.5 * z
    start = fast_two_sum(half.like(1.0), -half)
    rest = (z * z).fma(evaluate("COS", z), -(r.high * r.low))
    return fast_two_sum(start.high, start.low + rest)


def circular(x: Number, shift: int) -> Number:
    """sin of x, `shift` quadrants further on."""
    quadrant, (r, _) = angle(x, double=False)
    z = r * r
    odd = (r * z).fma(evaluate("SIN", z), r).signed_like(r)  # of -0.0 too
    even = (z * z).fma(evaluate("COS", z), z.fma(-0.5, 1.0))
    quadrant = quadrant + shift if shift else quadrant
    value = choose((quadrant & 1).differs(0), even, odd)
    return (value.bits() ^ ((quadrant & 2) << (x.format.width - 2))).from_bits()


def sin(x: Number) -> Number:
    """The sine of x radians."""
    return circular(x, 0)


def cos(x: Number) -> Number:
    """The cosine of x radians."""
    return circular(x, 1)


def tan(x: Number) -> Number:
    """The tangent of x radians."""
    quadrant, rest = angle(x, double=True)
    odd = (quadrant & 1).differs(0)
    s, c = sine(rest), cosine(rest)
    numerator = Double(choose(odd, -c.high, s.high), choose(odd, -c.low, s.low))
    denominator = Double(choose(odd, s.high, c.high), choose(odd, s.low, c.low))
    value = divide(numerator, denominator).collapse()
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
    series = z * evaluate("ATAN", z)
    half, rest = pair("HALF_PI", form)
    start = choose(steep, t.like(half), choose(flat, t.like(0.0), half / 2))
    correction = choose(steep, t.like(rest), choose(flat, t.like(0.0), rest / 2))
    return start + (t + t.fma(series, correction))


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
