"""Functions of a float's bits: copysign, nextafter, ldexp."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.ops.functions.number import Number, choose, power_of_two
from weft.ops.scalars import Scalars


def copysign(s: Scalars, x: Any, y: Any) -> Any:
    """The magnitude of x with the sign bit of y."""
    dtype = np.dtype(x.dtype)
    integer = np.dtype(f"i{dtype.itemsize}")
    sign = s.const(np.iinfo(integer).min, integer)
    magnitude = s.bit_and(s.bitcast(x, integer), s.bit_not(sign))
    return s.bitcast(s.bit_or(magnitude, s.bit_and(s.bitcast(y, integer), sign)), dtype)


def nextafter(s: Scalars, x: Any, y: Any) -> Any:
    """The float next to x on the way to y."""
    dtype = np.dtype(x.dtype)
    integer = np.dtype(f"i{dtype.itemsize}")
    one, zero = s.const(1, integer), s.const(0, dtype)
    smallest = copysign(s, s.bitcast(one, dtype), y)
    bits = s.bitcast(x, integer)
    outward = s.equal(s.less(x, y), s.less(zero, x))
    step = s.bitcast(s.select(outward, s.add(bits, one), s.sub(bits, one)), dtype)
    found = s.select(s.equal(x, zero), smallest, step)
    found = s.select(s.equal(x, y), y, found)
    nan = s.bit_or(s.not_equal(x, x), s.not_equal(y, y))
    return s.select(nan, s.add(x, y), found)


def ldexp(x: Number, exponent: Number) -> Number:
    """x * 2**exponent for an integer exponent, rounded once."""
    form = x.format
    highest, lowest = form.bias, 1 - form.bias
    # Beyond this every result is 0 or infinite; a small integer dtype may not reach so far.
    far, limits = 3 * form.bias, np.iinfo(exponent.dtype)
    near = exponent.wrap("max", max(-far, int(limits.min))).wrap("min", min(far, int(limits.max)))
    n = near.cast(form.signed)
    for _ in range(2):
        # A step down that leaves all digits: only the last step may round.
        down = choose(n < lowest, n.like(lowest + form.digits), n)
        step = choose(n > highest, n.like(highest), down)
        x = x * power_of_two(step)
        n = n - step
    return x * power_of_two(n.wrap("max", lowest).wrap("min", highest))
