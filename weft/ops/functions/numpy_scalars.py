"""Scalar instructions as NumPy ufuncs on whole arrays, each in the operands' own dtype.

What a kernel computes here is what any backend computes that keeps IEEE 754 and does not contract
products and sums: the reference for its bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.ops.functions.expand import expand
from weft.ops.functions.fused import fma

_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "mul": np.multiply,
    "max": lambda x, y: larger(x, y),
    "min": lambda x, y: smaller(x, y),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}


def smaller(x: Any, y: Any) -> Any:
    """The smaller of two, NaN if either is; -0.0 is less than 0.0, which NumPy leaves open."""
    found = np.minimum(x, y)
    if found.dtype.kind in "biu":
        return found
    return np.where((x == 0) & (y == 0), -(-x + -y), found)[()]


def larger(x: Any, y: Any) -> Any:
    """The larger of two, NaN if either is; 0.0 is greater than -0.0."""
    found = np.maximum(x, y)
    if found.dtype.kind in "biu":
        return found
    return np.where((x == 0) & (y == 0), x + y, found)[()]


def _whole(function: Callable[[Any], Any]) -> Any:
    return staticmethod(lambda x: x if x.dtype.kind in "biu" else function(x))


class NumpyScalars:
    """Builds nothing: runs each instruction at once on arrays, or NumPy scalars, of one dtype."""

    add, sub, mul, div = np.add, np.subtract, np.multiply, np.divide
    floordiv, rem, neg, abs = np.floor_divide, np.fmod, np.negative, np.abs
    sqrt, floor, ceil = np.sqrt, _whole(np.floor), _whole(np.ceil)
    trunc, round = _whole(np.trunc), _whole(np.rint)
    min, max = staticmethod(lambda x, y: smaller(x, y)), staticmethod(lambda x, y: larger(x, y))
    fma = staticmethod(fma)
    bit_and, bit_or, bit_xor = np.bitwise_and, np.bitwise_or, np.bitwise_xor
    bit_not = np.bitwise_not
    shift_left, shift_right = np.left_shift, np.right_shift
    less, less_equal, equal, not_equal = np.less, np.less_equal, np.equal, np.not_equal
    select = staticmethod(np.where)
    real, imag = staticmethod(np.real), staticmethod(np.imag)

    @staticmethod
    def const(value: Any, dtype: Any) -> Any:
        """A literal."""
        return np.asarray(value, dtype)[()]

    @staticmethod
    def cast(x: Any, dtype: Any) -> Any:
        """Convert: floats round to nearest, float to integer truncates and saturates."""
        target = np.dtype(dtype)
        if x.dtype.kind in "biuc" or target.kind not in "iu":
            return x.astype(target)
        limits = np.iinfo(target)
        high = x.dtype.type(limits.max)  # rounds up to a power of two where digits are short
        inside = (x >= x.dtype.type(limits.min)) & (x < high)
        found = np.where(inside, x, 0).astype(target)
        found = np.where(x >= high, target.type(limits.max), found)
        return np.where(x < x.dtype.type(limits.min), target.type(limits.min), found)

    @staticmethod
    def bitcast(x: Any, dtype: Any) -> Any:
        """The same bits read as another dtype of equal width."""
        return x.view(dtype)

    @classmethod
    def call(cls, function: str, *args: Any) -> Any:
        """A function of floats, in scalar instructions."""
        with np.errstate(all="ignore"):
            return expand(cls(), function, *args)

    @staticmethod
    def complex(real: Any, imag: Any) -> Any:
        """A complex number of its parts."""
        found = np.empty(np.broadcast(real, imag).shape, np.result_type(real, np.complex64))
        found.real, found.imag = real, imag
        return found[()]

    @staticmethod
    def reduce(combine: str, extents: tuple[int, ...], term: Callable[..., Any]) -> Any:
        """`term` combined over all points, in row-major order."""
        first, *others = (term(*point) for point in itertools.product(*map(range, extents)))
        total = first
        for value in others:
            total = _COMBINE[combine](total, value)
        return total
