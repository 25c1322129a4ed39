"""Bits of integers, and truth values.

`bitwise_*` act on the bits of integers and on bools; shifts act on integers alone. `logical_*` take
any dtype: a number is true unless it is 0 (so NaN is true).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.slots import public
from weft.core.common.types import DType
from weft.core.tensor.convert import to_tensor, to_tensors
from weft.core.tensor.tensor import Tensor
from weft.ops.elementwise.comparison import equal, not_equal
from weft.ops.families import BinaryOperation, UnaryOperation

_INTEGERS = "bBhHiIlLqQ"
_REASONS = {
    "vjp": "integers and bools carry no derivative",
    "jvp": "integers and bools carry no derivative",
}
_UNSIGNED = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}


class BitwiseOperation(BinaryOperation):
    """Combines the bits of two integers, or two bools."""

    domain = "bits"
    direct = "?" + _INTEGERS
    sample = "nn"
    reasons = _REASONS


class BitwiseAnd(BitwiseOperation):
    """x1 & x2: bits that both have."""

    ufunc = np.bitwise_and

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.bit_and(x, y)


class BitwiseOr(BitwiseOperation):
    """x1 | x2: bits that either has."""

    ufunc = np.bitwise_or

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.bit_or(x, y)


class BitwiseXor(BitwiseOperation):
    """x1 ^ x2: bits that one has and the other has not."""

    ufunc = np.bitwise_xor

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.bit_xor(x, y)


class Shift(BinaryOperation):
    """Moves bits; a count that is negative or reaches the width moves every bit out."""

    domain = "integer"
    direct = _INTEGERS
    sample = "nn"
    reasons = _REASONS

    def counted(self, s: Any, x: Any, y: Any) -> tuple[Any, Any]:
        """Whether the count lies inside the width, and a count that always does."""
        width = 8 * x.dtype.itemsize
        unsigned = _UNSIGNED[x.dtype.itemsize]
        inside = s.less(s.bitcast(y, unsigned), s.const(width, unsigned))
        return inside, s.bit_and(y, s.const(width - 1, y.dtype))


class BitwiseLeftShift(Shift):
    """x1 << x2; 0 where the count is negative or not below the width of the dtype."""

    ufunc = np.left_shift

    def body(self, s: Any, x: Any, y: Any) -> Any:
        inside, count = self.counted(s, x, y)
        return s.select(inside, s.shift_left(x, count), s.const(0, x.dtype))


class BitwiseRightShift(Shift):
    """x1 >> x2, keeping the sign; 0, or -1 for negative x1, where the count is negative or not
    below the width of the dtype.
    """

    ufunc = np.right_shift

    def body(self, s: Any, x: Any, y: Any) -> Any:
        inside, count = self.counted(s, x, y)
        zero = s.const(0, x.dtype)
        sign = zero
        if x.dtype in dtypes.SIGNED:
            sign = s.select(s.less(x, zero), s.const(-1, x.dtype), zero)
        return s.select(inside, s.shift_right(x, count), sign)


class BitwiseInvert(UnaryOperation):
    """~x: every bit of an integer flipped; the other truth value of a bool."""

    ufunc = np.invert
    domain = "bits"
    sample = "n"
    reasons = _REASONS

    def body(self, s: Any, x: Any) -> Any:
        return s.bit_not(x)


class BitwiseCount(UnaryOperation):
    """How many bits of |x| are set, as uint8."""

    ufunc = np.bitwise_count
    domain = "integer"
    sample = "n"
    reasons = _REASONS

    def dtype(self, *found: DType, **params: Any) -> DType:
        return dtypes.uint8

    def body(self, s: Any, x: Any) -> Any:
        unsigned = _UNSIGNED[x.dtype.itemsize]
        width = 8 * x.dtype.itemsize
        # Neighbouring counts are added in fields of twice the size, until one field is left.
        counts = s.bitcast(s.abs(x) if x.dtype in dtypes.SIGNED else x, unsigned)
        size = 1
        while size < width:
            ones = ((1 << width) - 1) // ((1 << size) + 1)
            mask, step = s.const(ones, unsigned), s.const(size, unsigned)
            low, high = s.bit_and(counts, mask), s.bit_and(s.shift_right(counts, step), mask)
            counts = s.add(low, high)
            size *= 2
        return s.cast(counts, dtypes.uint8)


bitwise_and, bitwise_or, bitwise_xor = BitwiseAnd(), BitwiseOr(), BitwiseXor()
bitwise_left_shift, bitwise_right_shift = BitwiseLeftShift(), BitwiseRightShift()
bitwise_invert, bitwise_count = BitwiseInvert(), BitwiseCount()

bitwise_not = invert = bitwise_invert
left_shift, right_shift = bitwise_left_shift, bitwise_right_shift
popcount = bitwise_count


def _truths(op: str, *args: Any) -> list[Tensor]:
    """Which elements are true; Python numbers go where the tensors beside them are."""
    tensors = to_tensors(op, *args)
    return [t if dtypes.is_bool(t.dtype) else not_equal(t, 0) for t in tensors]


@public
def logical_and(x1: Any, x2: Any, /) -> Tensor:
    """Whether both are true, elementwise; a number is true unless it is 0."""
    return bitwise_and(*_truths("logical_and", x1, x2))


@public
def logical_or(x1: Any, x2: Any, /) -> Tensor:
    """Whether either is true, elementwise; a number is true unless it is 0."""
    return bitwise_or(*_truths("logical_or", x1, x2))


@public
def logical_xor(x1: Any, x2: Any, /) -> Tensor:
    """Whether exactly one is true, elementwise; a number is true unless it is 0."""
    return bitwise_xor(*_truths("logical_xor", x1, x2))


@public
def logical_not(x: Any, /) -> Tensor:
    """Whether x is false, elementwise; a number is false only if it is 0."""
    tensor = to_tensor(x, op="logical_not")
    return bitwise_invert(tensor) if dtypes.is_bool(tensor.dtype) else equal(tensor, 0)


__all__ = [
    "bitwise_and",
    "bitwise_count",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "invert",
    "left_shift",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "popcount",
    "right_shift",
]
