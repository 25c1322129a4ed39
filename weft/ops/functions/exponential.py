"""Exponentials: exp, exp2, expm1, and the sigmoid.

x = n log 2 + r with |r| at most half of log 2, so that exp(x) = 2**n exp(r) and a short polynomial
serves. `Exponential` keeps n apart: callers multiply first and scale once, at the end.
"""

from __future__ import annotations

from typing import NamedTuple

from weft.ops.functions.number import Number, choose, evaluate, power_of_two, scale
from weft.ops.functions.split import Double, constant, fast_two_sum, multiply, parts, two_sum

# Beyond these every result is infinite or zero; inside, n stays within what `scale` takes.
_RANGE = {32: (-105.0, 90.0), 64: (-746.0, 711.0)}
_RANGE2 = {32: (-151.0, 129.0), 64: (-1077.0, 1025.0)}


class Exponential(NamedTuple):
    """y * 2**n."""

    y: Number
    n: Number

    def collapse(self) -> Number:
        """The float nearest to it, infinite or denormal where it must be."""
        return scale(self.y, self.n)


def reduce(x: Number) -> tuple[Number, Number, Number]:
    """(n, a, b): x = n log 2 + a - b with a exact, for x in range."""
    form = x.format
    exponent_digits = form.width - form.digits  # what n needs
    (log2_e,) = parts("LOG2_E", form.digits)
    high, low = parts("LN2", form.digits - exponent_digits - 1, form.digits)
    n = (x * log2_e).round()
    return n, x - n * high, n * low


def exponential(x: Number) -> Exponential:
    """exp(x)."""
    n, a, b = reduce(x.clamp(*_RANGE[x.format.width]))
    r = a - b
    return Exponential(1.0 + (r + r * r * evaluate("EXP", r)), n.to_integer())


def exponential_double(x: Number, low: Number) -> tuple[Double, Number]:
    """(y, n): exp(x + low) = y * 2**n, where low is a correction to x and y has double length."""
    n, a, b = reduce(x.clamp(*_RANGE[x.format.width]))
    r = a - (b - low)
    return fast_two_sum(r.like(1.0), r + r * r * evaluate("EXP", r)), n.to_integer()


def exp(x: Number) -> Number:
    """e to the power x."""
    return exponential(x).collapse()


def exp_up_to(x: Number, limit: float) -> Number:
    """e to the power x for x from 0 to `limit`, which is also taken for what lies beyond.

    The power of two is a normal number there, so one product scales.
    """
    n, a, b = reduce(x.wrap("min", limit))
    r = a - b
    return (1.0 + (r + r * r * evaluate("EXP", r))) * power_of_two(n.to_integer())


def exp2(x: Number) -> Number:
    """2 to the power x."""
    x = x.clamp(*_RANGE2[x.format.width])
    n = x.round()
    r = x - n
    return scale(1.0 + r * evaluate("EXP2", r), n.to_integer())


def exp2_double(x: Double) -> Exponential:
    """2 to the power x, x of double length: wrong by hardly more than its last rounding."""
    high = x.high.clamp(*_RANGE2[x.high.format.width])
    low = choose(high.equals(x.high), x.low, 0.0)
    n = high.round()
    r = multiply(fast_two_sum(high - n, low), constant("LN2", high))
    rest = r.low + r.high * r.high * evaluate("EXP", r.high)
    start = fast_two_sum(r.high.like(1.0), r.high)
    return Exponential(start.high + (start.low + rest), n.to_integer())


def expm1_scaled(x: Number, shift: int) -> Number:
    """(exp(x) - 1) * 2**shift."""
    form = x.format
    lowest = -(form.digits + 3.0) * 0.7  # exp(x) no longer counts
    n, a, b = reduce(x.clamp(lowest, _RANGE[form.width][1]))
    reduced = fast_two_sum(a, -b)
    r = reduced.high
    # (exp(r) - 1) + (1 - 2**-n), the second of which is exact in double length.
    rest = reduced.low + r * r * evaluate("EXP", r)
    n = n.to_integer()
    offset = two_sum(r.like(1.0), -power_of_two((-n).wrap("max", 1 - form.bias)))
    total = two_sum(offset.high, r)
    return scale(total.high + (total.low + (offset.low + rest)), n + shift)


def expm1(x: Number) -> Number:
    """e**x - 1, precise near zero."""
    return choose(abs(x) < x.format.smallest, x, expm1_scaled(x, 0))


def sigmoid(x: Number) -> Number:
    """1 / (1 + exp(-x))."""
    e = exp(-abs(x))
    return choose(x < 0.0, e, 1.0) / (1.0 + e)
