"""Numbers of double length: unevaluated sums of two floats, for the steps that need more digits.

`high + low` with |low| at most about a unit of `high`. What a product loses to rounding is one
fused instruction.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from weft.ops.functions.coefficients import CONSTANTS
from weft.ops.functions.number import Format, Number


class Double(NamedTuple):
    """The sum of two floats."""

    high: Number
    low: Number

    def collapse(self) -> Number:
        """The nearest float."""
        return self.high + self.low


@cache
def parts(name: str, *digits: int, down: bool = False) -> tuple[float, ...]:
    """A constant as a sum of floats, each of so many binary digits; `down`: all are positive."""
    whole, _, fraction = CONSTANTS[name].partition(".")
    rest, unit = int(whole + fraction), 10 ** len(fraction)  # what is left is their quotient
    found = []
    for count in digits:
        places = count - math.frexp(rest / unit)[1]  # binary ones behind the point
        assert places >= 0, f"{name} has more than {count} digits before the point"
        rest <<= places
        part, left = divmod(rest, unit)
        if not down and (2 * left > unit or (2 * left == unit and part % 2)):
            part += 1
        found.append(math.ldexp(part, -places))
        rest, unit = rest - part * unit, unit << places
    return tuple(found)


def pair(name: str, form: Format) -> tuple[float, float]:
    """A constant in double length."""
    high, low = parts(name, form.digits, form.digits)
    return high, low


def constant(name: str, like: Number) -> Double:
    """A constant in double length, as numbers."""
    high, low = pair(name, like.format)
    return Double(like.like(high), like.like(low))


def two_sum(x: Number, y: Number) -> Double:
    """x + y and its rounding error."""
    total = x + y
    part = total - x
    return Double(total, (x - (total - part)) + (y - part))


def fast_two_sum(x: Number, y: Number) -> Double:
    """x + y and its rounding error, where |x| >= |y| or x is 0."""
    total = x + y
    return Double(total, y - (total - x))


def two_product(x: Number, y: Number) -> Double:
    """x * y and its rounding error."""
    product = x * y
    return Double(product, x.fma(y, -product))


def add(x: Double, y: Double) -> Double:
    """x + y, for terms that do not cancel."""
    total = two_sum(x.high, y.high)
    return fast_two_sum(total.high, total.low + (x.low + y.low))


def multiply(x: Double, y: Double) -> Double:
    """x * y."""
    product = two_product(x.high, y.high)
    return fast_two_sum(product.high, x.low.fma(y.high, x.high.fma(y.low, product.low)))


def divide(x: Double, y: Double) -> Double:
    """x / y, where 1 / y neither overflows nor is denormal."""
    inverse = 1.0 / y.high
    quotient = x.high * inverse
    back = two_product(quotient, y.high)
    rest = ((x.high - back.high) - back.low) + quotient.fma(-y.low, x.low)
    return fast_two_sum(quotient, rest * inverse)
