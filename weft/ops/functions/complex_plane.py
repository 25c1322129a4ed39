"""Functions of complex numbers, given and returned as their parts: exp, log, sqrt, 1/z, z/|z|.

Special values are those of C99, annex G. Errors are a few units of the last digit of the result's
size; where one part is far smaller than the other, it may be less precise than that.
"""

from __future__ import annotations

import math
from typing import TypeAlias

from weft.ops.functions import logarithm, power, trigonometric
from weft.ops.functions.exponential import exp as exp_of_real
from weft.ops.functions.exponential import exponential
from weft.ops.functions.number import Number, choose, rarely

Parts: TypeAlias = tuple[Number, Number]

_SCALED = {32: 176.0, 64: 1418.0}  # two powers of two, both finite, scale exp up to here
_NEAR = (0.6, 2.5)  # sizes whose logarithm is taken of what they differ by from 1
_LN2 = math.log(2)


def exp(x: Number, y: Number) -> Parts:
    """e to the power x + iy, finite where a factor that is not stands beside a small one."""
    limit = _SCALED[x.format.width]
    turned = trigonometric.cos(y), trigonometric.sin(y)
    size, n = exponential(x.clamp(-limit, limit))
    first, second = n.powers_of_two()
    # Small parts are made large before they are rounded.
    usual = tuple(part * first * size * second for part in turned)
    real, imag = rarely(~(abs(x) <= limit), lambda: _exp_far(x, y, *usual), usual)
    return real, choose(y.equals(0.0), y, imag)


def _exp_far(x: Number, y: Number, real: Number, imag: Number) -> Parts:
    """exp where x is so large that `real` and `imag` lack a factor, or infinite, or NaN."""
    limit = _SCALED[x.format.width]
    rest = exp_of_real((x - limit).wrap("max", 0.0))
    is_angle = (y - y).equals(0.0)
    is_nothing = x.equals(-math.inf)
    real = choose(is_angle, real * rest, choose(x.equals(math.inf), math.inf, real))
    imag = choose(is_angle, imag * rest, imag)
    unsigned = is_nothing & ~is_angle
    return choose(unsigned, 0.0, real), choose(unsigned, 0.0, imag)


def log(x: Number, y: Number) -> Parts:
    """The logarithm of the size, and the angle."""
    a, b = abs(x), abs(y)
    large, small = a.wrap("max", b), a.wrap("min", b)
    up = 2 * x.format.digits
    factor, power_of_factor = _into_range(large, 2, up)
    size = power.hypot(a * factor, b * factor)
    far = logarithm.log(size) - power_of_factor * _LN2
    near = 0.5 * logarithm.log1p((large - 1.0).fma(large + 1.0, small * small))
    is_near = (size > _NEAR[0]) & (size < _NEAR[1])
    return choose(is_near, near, far), trigonometric.atan2(y, x)


def sqrt(x: Number, y: Number) -> Parts:
    """The square root whose real part is not negative."""
    a, b = abs(x), abs(y)
    up = 2 * x.format.digits
    factor, power_of_factor = _into_range(a.wrap("max", b), 4, up)
    back = choose(power_of_factor > 0.0, math.ldexp(1.0, -up // 2), x.like(1.0))
    back = choose(power_of_factor < 0.0, 4.0, back)
    p, q = a * factor, b * factor
    major = ((p + power.hypot(p, q)) * 0.5).sqrt()
    minor = choose(major.equals(0.0), 0.0, q / (major + major))
    is_endless = b.equals(math.inf)
    parts = [choose(is_endless, math.inf, part * back) for part in (major, minor)]
    is_left = x < 0.0
    real, imag = choose(is_left, parts[1], parts[0]), choose(is_left, parts[0], parts[1])
    return real, imag.signed_like(y)


def reciprocal(x: Number, y: Number) -> Parts:
    """1 / (x + iy), by Smith's method."""
    is_wide = abs(y) <= abs(x)
    major, minor = choose(is_wide, x, y), choose(is_wide, y, x)
    ratio = minor / major
    size = major + minor * ratio
    return choose(is_wide, 1.0, ratio) / size, -(choose(is_wide, ratio, 1.0) / size)


def sign(x: Number, y: Number) -> Parts:
    """The number of size 1 in the same direction; a single infinite part is all of it."""
    factor, _ = _into_range(abs(x).wrap("max", abs(y)), 2, 2 * x.format.digits)
    parts = x * factor, y * factor
    size = power.hypot(*parts)
    is_zero = x.equals(0.0) & y.equals(0.0)
    unknown = x.is_nan() | y.is_nan()
    found = (_share(*parts, size), _share(*parts[::-1], size))
    real, imag = (choose(is_zero, 0.0, choose(unknown, math.nan, part)) for part in found)
    return real, imag


def _share(part: Number, other: Number, size: Number) -> Number:
    """One part of a number over its size."""
    infinite, outdone = abs(part).equals(math.inf), abs(other).equals(math.inf)
    usual = part / size
    alone = part.like(1.0).signed_by(part)
    return choose(infinite, choose(outdone, usual, alone), choose(outdone, 0.0, usual))


def _into_range(size: Number, down: int, up: int) -> Parts:
    """A power of two that makes huge numbers smaller and tiny ones larger, and its exponent."""
    form = size.format
    is_huge = size > math.ldexp(1.0, form.bias - 1)
    is_tiny = size < math.ldexp(form.smallest, form.digits)
    exponent = choose(is_tiny, float(up), choose(is_huge, float(-down), size.like(0.0)))
    smaller = choose(is_huge, math.ldexp(1.0, -down), size.like(1.0))
    return choose(is_tiny, math.ldexp(1.0, up), smaller), exponent
