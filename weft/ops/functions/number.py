"""A scalar with operators, so that formulas read as formulas.

`Number` pairs a builder of scalar instructions with one of its operands; each operator emits one
instruction of the operand's dtype. `Format` says how that dtype lays out its bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from weft.ops.functions.coefficients import COEFFICIENTS
from weft.ops.scalars import Scalars


@dataclass(frozen=True)
class Format:
    """A binary floating-point format and the integers of its width."""

    width: int
    digits: int  # of the significand, the leading one included
    bias: int
    floating: np.dtype[Any]
    signed: np.dtype[Any]
    unsigned: np.dtype[Any]

    @property
    def fraction(self) -> int:
        """Stored digits of the significand."""
        return self.digits - 1

    @property
    def smallest(self) -> float:
        """The smallest normal number."""
        return math.ldexp(1.0, 1 - self.bias)

    def round(self, value: float) -> float:
        """The nearest number of this format."""
        return float(np.asarray(value, self.floating))


FORMATS = {
    width: Format(
        width, digits, bias, np.dtype(f"f{size}"), np.dtype(f"i{size}"), np.dtype(f"u{size}")
    )
    for width, digits, bias, size in ((32, 24, 127, 4), (64, 53, 1023, 8))
}


class Number:
    """A scalar operand and the builder that made it; operators emit instructions."""

    __slots__ = ("s", "value")

    def __init__(self, s: Scalars, value: Any) -> None:
        self.s = s
        self.value = value

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the operand."""
        dtype: np.dtype[Any] = np.dtype(self.value.dtype)
        return dtype

    @property
    def format(self) -> Format:
        """The layout of the operand's width, be it a float or an integer."""
        return FORMATS[8 * self.dtype.itemsize]

    def like(self, value: Number | float) -> Number:
        """A literal of this number's dtype."""
        if isinstance(value, Number):
            return value
        return Number(self.s, self.s.const(value, self.dtype))

    def wrap(self, instruction: str, *others: Number | float) -> Number:
        """One instruction on this number and others of its dtype."""
        values = [x.value if isinstance(x, Number) else self.like(x).value for x in others]
        return Number(self.s, getattr(self.s, instruction)(self.value, *values))

    def __add__(self, other: Number | float) -> Number:
        return self.wrap("add", other)

    def __radd__(self, other: float) -> Number:
        return self.like(other).wrap("add", self)

    def __sub__(self, other: Number | float) -> Number:
        return self.wrap("sub", other)

    def __rsub__(self, other: float) -> Number:
        return self.like(other).wrap("sub", self)

    def __mul__(self, other: Number | float) -> Number:
        return self.wrap("mul", other)

    def __rmul__(self, other: float) -> Number:
        return self.like(other).wrap("mul", self)

    def __truediv__(self, other: Number | float) -> Number:
        return self.wrap("div", other)

    def __rtruediv__(self, other: float) -> Number:
        return self.like(other).wrap("div", self)

    def __neg__(self) -> Number:
        return self.wrap("neg")

    def __abs__(self) -> Number:
        return self.wrap("abs")

    def __and__(self, other: Number | int) -> Number:
        return self.wrap("bit_and", other)

    def __or__(self, other: Number | int) -> Number:
        return self.wrap("bit_or", other)

    def __xor__(self, other: Number | int) -> Number:
        return self.wrap("bit_xor", other)

    def __invert__(self) -> Number:
        return self.wrap("bit_not")

    def __lshift__(self, count: Number | int) -> Number:
        return self.wrap("shift_left", count)

    def __rshift__(self, count: Number | int) -> Number:
        return self.wrap("shift_right", count)

    def __lt__(self, other: Number | float) -> Number:
        return self.wrap("less", other)

    def __le__(self, other: Number | float) -> Number:
        return self.wrap("less_equal", other)

    def __gt__(self, other: Number | float) -> Number:
        return self.like(other).wrap("less", self)

    def __ge__(self, other: Number | float) -> Number:
        return self.like(other).wrap("less_equal", self)

    def fma(self, factor: Number | float, term: Number | float) -> Number:
        """This number times a factor plus a term, rounded once."""
        return self.wrap("fma", factor, term)

    def equals(self, other: Number | float) -> Number:
        """Whether the values are equal."""
        return self.wrap("equal", other)

    def differs(self, other: Number | float) -> Number:
        """Whether the values differ."""
        return self.wrap("not_equal", other)

    def is_nan(self) -> Number:
        """Whether this is not a number."""
        return self.differs(self)

    def sqrt(self) -> Number:
        """The square root, rounded correctly."""
        return self.wrap("sqrt")

    def round(self) -> Number:
        """The nearest whole number, still a float."""
        return self.wrap("round")

    def clamp(self, low: float, high: float) -> Number:
        """This number moved into [low, high]; NaN stays."""
        return self.wrap("max", low).wrap("min", high)

    def cast(self, dtype: Any) -> Number:
        """The value in another dtype."""
        return Number(self.s, self.s.cast(self.value, dtype))

    def to_float(self) -> Number:
        """An integer as a float of its width."""
        return self.cast(self.format.floating)

    def bits(self) -> Number:
        """The bits of a float as a signed integer."""
        return Number(self.s, self.s.bitcast(self.value, self.format.signed))

    def from_bits(self) -> Number:
        """The float with this integer's bits."""
        return Number(self.s, self.s.bitcast(self.value, self.format.floating))

    def signed_like(self, other: Number) -> Number:
        """This magnitude with the sign bit of another float."""
        lowest = -(1 << (self.format.width - 1))
        return ((self.bits() & ~lowest) | (other.bits() & lowest)).from_bits()

    def signed_by(self, other: Number) -> Number:
        """This number, whose sign bit is not set, with the sign bit of another float."""
        return (self.bits() | (other.bits() & -(1 << (self.format.width - 1)))).from_bits()

    def negative_bit(self) -> Number:
        """Whether the sign bit of a float is set: true of -0.0."""
        return self.bits() < 0


def choose(condition: Number, x: Number | float, y: Number | float) -> Number:
    """`x` where the condition holds, else `y`; one of them is a `Number`."""
    like = x if isinstance(x, Number) else y
    assert isinstance(like, Number)
    s = condition.s
    return Number(s, s.select(condition.value, like.like(x).value, like.like(y).value))


def rarely(
    condition: Number, slow: Callable[[], tuple[Number, ...]], fast: tuple[Number, ...]
) -> tuple[Number, ...]:
    """`slow()` where the condition holds, else `fast`.

    A builder with a method `rarely(condition, thunk, values)` may skip the slow instructions where
    no lane asks for them; others compute both and select.
    """
    s = condition.s
    skip = getattr(s, "rarely", None)
    if skip is None:
        pairs = zip(slow(), fast, strict=True)
        return tuple(choose(condition, a, b) for a, b in pairs)
    values = skip(
        condition.value, lambda: tuple(x.value for x in slow()), tuple(x.value for x in fast)
    )
    return tuple(Number(s, value) for value in values)


def coefficients(name: str, x: Number) -> tuple[float, ...]:
    """The polynomial called `name` for the format of `x`."""
    return COEFFICIENTS[name, x.format.width]


def polynomial(x: Number, terms: tuple[float, ...]) -> Number:
    """Horner's rule; the constant comes first."""
    value = x.like(terms[-1])
    for term in terms[-2::-1]:
        value = value.fma(x, term)
    return value


def by_pairs(x: Number, terms: tuple[float, ...]) -> Number:
    """Horner's rule on pairs of terms: half as many steps wait for one another."""
    pairs = [x.fma(terms[i + 1], terms[i]) for i in range(0, len(terms) - 1, 2)]
    value = x.like(terms[-1]) if len(terms) % 2 else pairs.pop()
    square = x * x
    for pair in reversed(pairs):
        value = value.fma(square, pair)
    return value


def evaluate(name: str, x: Number) -> Number:
    """The fitted polynomial called `name` at `x`."""
    return polynomial(x, coefficients(name, x))


def power_of_two(n: Number) -> Number:
    """2**n as a float, for an integer n within the exponents of normal numbers."""
    form = n.format
    return ((n + form.bias) << form.fraction).from_bits()


class Whole(NamedTuple):
    """A whole number n: a float so large that it has no fraction, whose low bits are n + `extra`.

    With the bias of exponents for `extra`, shifted bits are powers of two.
    """

    sum: Number
    extra: int

    def value(self) -> Number:
        """n as a float."""
        return self.sum - (math.ldexp(1.5, self.sum.format.fraction) + self.extra)

    def power_of_two(self) -> Number:
        """2**n, where `extra` is the bias and the power a normal number."""
        return (self.sum.bits() << self.sum.format.fraction).from_bits()

    def powers_of_two(self) -> tuple[Number, Number]:
        """Two of about equal size whose product is 2**n, where `extra` is the bias twice."""
        fraction, bits = self.sum.format.fraction, self.sum.bits()
        first = (bits << (fraction - 1)) & -(1 << fraction)
        return first.from_bits(), ((bits << fraction) - first).from_bits()


def nearest(x: Number, factor: float, extra: int) -> Whole:
    """The whole number nearest to x * factor, which must be far below the reach of all digits.

    One instruction: conversions cost more, and some processors lack them for vectors.
    """
    return Whole(x.fma(factor, math.ldexp(1.5, x.format.fraction) + extra), extra)


def scale(y: Number, n: Number) -> Number:
    """y * 2**n for an integer n, in two steps so that results may overflow or be denormal."""
    half = n >> 1
    return y * power_of_two(half) * power_of_two(n - half)
