"""x * y + z rounded once, on arrays: what a processor's fused multiply-add gives, bit by bit.

The exact result is first written as a float and an error, or as three floats; the part that is
rounded before the last rounding is rounded to odd, so that nothing is rounded twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.common.lazy import LazyModule

_fractions = LazyModule("fractions")

# Here no step below overflows, and no error of a product falls below the smallest number.
_LARGEST, _SMALLEST = 2.0**990, 2.0**-900
_SPLITTER = 2.0**27 + 1


def fma(x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once; integers wrap."""
    dtype = np.result_type(x, y, z)
    if dtype.kind in "biu":
        return x * y + z
    with np.errstate(all="ignore"):
        return _double(x, y, z) if dtype == np.float64 else _narrow(x, y, z, dtype)


def _narrow(x: Any, y: Any, z: Any, dtype: Any) -> Any:
    """Of formats whose products are exact in float64."""
    product = np.asarray(x, np.float64) * np.asarray(y, np.float64)
    return _odd_sum(product, np.asarray(z, np.float64)).astype(dtype)[()]


def _double(x: Any, y: Any, z: Any) -> Any:
    x, y, z = np.broadcast_arrays(x, y, z)
    product = x * y
    size = np.abs(product)
    ordinary = (size <= _LARGEST) & (size >= _SMALLEST)
    ordinary &= (np.abs(x) <= _LARGEST) & (np.abs(y) <= _LARGEST) & (np.abs(z) <= _LARGEST)
    low = _error_of_product(x, y, product)
    total, rest = _two_sum(z, low)
    high, middle = _two_sum(product, total)
    found = np.where(ordinary, high + _odd_sum(middle, rest), product + z)
    exact = np.isfinite(x) & np.isfinite(y)  # the product: one that overflowed is no infinity
    found = np.where(exact & ~np.isfinite(z), z, found)
    plain = (x == 0) | (y == 0) | ~exact | ~np.isfinite(z)
    flat = found.reshape(-1)
    for i in np.flatnonzero(~ordinary & ~plain):
        flat[i] = _exactly(float(x.flat[i]), float(y.flat[i]), float(z.flat[i]))
    return found[()]


def _two_sum(x: Any, y: Any) -> tuple[Any, Any]:
    """x + y and its rounding error."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def _error_of_product(x: Any, y: Any, product: Any) -> Any:
    """What the rounding of the product left out: factors are split into halves of their digits."""
    x_high, y_high = (t - (t - a) for t, a in ((a * _SPLITTER, a) for a in (x, y)))
    x_low, y_low = x - x_high, y - y_high
    return x_low * y_low - (((product - x_high * y_high) - x_low * y_high) - x_high * y_low)


def _odd_sum(x: Any, y: Any) -> Any:
    """x + y in float64, an inexact sum rounded to the neighbour whose last digit is 1."""
    total, error = _two_sum(x, y)
    total = np.asarray(total)
    bits = total.view(np.int64)
    even = (bits & 1) == 0
    # One step outward, or inward: the bits of a float count like its magnitude.
    step = np.where((error > 0) ^ (bits < 0), 1, -1)
    inexact = (error != 0) & np.isfinite(error)
    return np.where(even & inexact, bits + step, bits).view(np.float64)


def _exactly(x: float, y: float, z: float) -> float:
    exact = _fractions.Fraction(x) * _fractions.Fraction(y) + _fractions.Fraction(z)
    if exact == 0:
        return x * y + z
    try:
        return float(exact)
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")
