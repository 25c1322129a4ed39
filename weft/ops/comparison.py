"""Comparisons of each element; the result is bool and carries no derivative."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.ops.families import BinaryOperation

_ORDERED = "?bBhHiIlLqQfd"


class Comparison(BinaryOperation):
    """Compares two operands after promoting them."""

    domain = "ordered"
    result = "bool"
    direct = _ORDERED
    reasons = {"vjp": "the result is bool", "jvp": "the result is bool"}


class Equal(Comparison):
    """x1 == x2, elementwise."""

    ufunc = np.equal
    domain = "any"

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.equal(x, y)


class NotEqual(Comparison):
    """x1 != x2, elementwise."""

    ufunc = np.not_equal
    domain = "any"

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.not_equal(x, y)


class Less(Comparison):
    """x1 < x2, elementwise."""

    ufunc = np.less

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.less(x, y)


class LessEqual(Comparison):
    """x1 <= x2, elementwise."""

    ufunc = np.less_equal

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.less_equal(x, y)


class Greater(Comparison):
    """x1 > x2, elementwise."""

    ufunc = np.greater

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.less(y, x)


class GreaterEqual(Comparison):
    """x1 >= x2, elementwise."""

    ufunc = np.greater_equal

    def body(self, s: Any, x: Any, y: Any) -> Any:
        return s.less_equal(y, x)


equal, not_equal = Equal(), NotEqual()
less, less_equal, greater, greater_equal = Less(), LessEqual(), Greater(), GreaterEqual()


__all__ = [
    "equal",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "not_equal",
]
