"""Powers and roots: pow, cbrt, rsqrt, hypot.

x**y is 2 to the power y log2(x), the product carried in double length: an error in it grows with
its size in the result. The special cases are those of IEEE 754.
"""

from __future__ import annotations

import math

from weft.ops.functions.exponential import exp2_double
from weft.ops.functions.logarithm import log2_double, mantissa
from weft.ops.functions.number import Number, choose, evaluate, scale
from weft.ops.functions.split import Double, multiply, two_product


def is_whole(y: Number) -> Number:
    """Whether y is a whole number."""
    return y.wrap("trunc").equals(y)


def is_odd(y: Number) -> Number:
    """Whether y is an odd whole number."""
    half = 0.5 * y
    return is_whole(y) & half.wrap("trunc").differs(half)


def magnitude(size: Number, y: Number) -> Number:
    """size**y for ordinary size > 0."""
    form = y.format
    # Beyond this |y| the result is 0, 1 or infinite, and stays so.
    limit = math.ldexp(1.0, form.digits + 12)
    product = multiply(log2_double(size), Double(y.clamp(-limit, limit), y.like(0.0)))
    return exp2_double(product).collapse()


def pow(x: Number, y: Number) -> Number:
    """x to the power y."""
    size = abs(x)
    infinite = size.equals(math.inf)
    empty = size.equals(0.0)
    value = magnitude(choose(infinite | empty, 1.0, size), y)
    grows = choose(infinite, y, -y)  # the sign of the exponent of 0 or infinity
    value = choose(infinite | empty, choose(grows > 0.0, math.inf, y.like(0.0)), value)
    endless = abs(y).equals(math.inf)
    away = choose(y > 0.0, size - 1.0, 1.0 - size)
    value = choose(endless, choose(away > 0.0, math.inf, y.like(0.0)), value)
    value = choose(x.negative_bit() & is_odd(y), -value, value)
    impossible = (x < 0.0) & ~is_whole(y) & ~infinite
    value = choose(impossible | x.is_nan() | y.is_nan(), math.nan, value)
    return choose(x.equals(1.0) | y.equals(0.0) | (endless & size.equals(1.0)), 1.0, value)


def cbrt(x: Number) -> Number:
    """The real cube root; negative for negative x."""
    size = abs(x)
    m, k = mantissa(choose(size > 0.0, size, 1.0))
    # k = 3 third + rest, the rest 0, 1 or 2: n / 3 is n 21846 / 2**16 for small n >= 0.
    third = (((k + 3 * x.format.bias) * 21846) >> 16) - x.format.bias
    rest = k - third * 3
    m = choose(rest.equals(0), m, choose(rest.equals(1), 2.0 * m, 4.0 * m))
    root = evaluate("CBRT", m)
    for _ in range(1 if x.format.width == 32 else 2):  # Halley's iteration triples the digits
        cube = root * root * root
        root = root * ((cube + 2.0 * m) / (2.0 * cube + m))
    square = two_product(root, root)
    cube_error = (m / root - square.high) - square.low
    root = root + cube_error * root / (3.0 * square.high)
    value = scale(root, third).signed_like(x)
    return choose((size > 0.0) & size.differs(math.inf), value, x)


def rsqrt(x: Number) -> Number:
    """1 / sqrt(x)."""
    return 1.0 / x.sqrt()


def hypot(x: Number, y: Number) -> Number:
    """sqrt(x² + y²) without overflow."""
    a, b = abs(x), abs(y)
    largest, smallest = a.wrap("max", b), a.wrap("min", b)
    ratio = smallest / choose(largest > 0.0, largest, 1.0)
    value = largest * (1.0 + ratio * ratio).sqrt()
    return choose(a.equals(math.inf) | b.equals(math.inf), math.inf, value)
