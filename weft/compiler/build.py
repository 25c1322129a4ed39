"""`Builder`: scalar instructions as values of the loop IR.

An op's `body` runs once with a `Builder`, and what it returns is the expression a kernel computes.
Literals are folded where the result is exact whatever the target: index arithmetic, and choices
whose condition is known, be it because of the intervals that operands lie in. A complex number is
its two parts, and an instruction on it becomes instructions on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.compiler import affine
from weft.compiler.complex_values import computed, literal_of, paired
from weft.compiler.intervals import decided
from weft.compiler.loops import BINARY, BOOL, COMPARISONS, INDEX, Value, const, literal, value
from weft.core.common import dtypes
from weft.core.common.types import DType
from weft.errors import UnsupportedDTypeError, UnsupportedError
from weft.ops.functions.expand import expand
from weft.ops.functions.numpy_scalars import NumpyScalars

KEPT = frozenset({"short_exp2"})  # functions of float32 that some GPUs have an instruction for
_FLOAT = np.dtype(np.float32)
_FOLDED = (BINARY | COMPARISONS) - {"div", "shift_left", "shift_right"}


class Builder:
    """Makes values; operands are values, or Python numbers beside a value of their dtype."""

    def operand(self, x: Any) -> Any:
        """What an instruction takes for `x`; a builder of richer operands overrides this."""
        return x

    def const(self, number: Any, dtype: Any) -> Value:
        """A literal."""
        target = np.dtype(dtype)
        return literal_of(number, target) if target.kind == "c" else const(number, target)

    def cast(self, x: Any, dtype: Any) -> Value:
        """Convert: floats round to nearest, float to integer truncates and saturates."""
        (found,), target = self._operands(x), np.dtype(dtype)
        if found.dtype == target:
            return found
        if target.kind == "c":
            part = dtypes.real_of(target)
            return paired(self.cast(self.real(found), part), self.cast(self.imag(found), part))
        if found.dtype.kind == "c":
            raise UnsupportedDTypeError(f"cast: {target} has no room for an imaginary part")
        if found.op == "const" and found.dtype.kind in "biu":
            return const(NumpyScalars.cast(literal(found), target), target)
        return value("cast", (found,), target)

    def bitcast(self, x: Any, dtype: Any) -> Value:
        """The same bits read as another dtype of equal width."""
        (x,), target = self._operands(x), np.dtype(dtype)
        if x.dtype.itemsize != target.itemsize:
            raise UnsupportedDTypeError(f"bitcast: {x.dtype} and {target} differ in width")
        if x.op == "const":
            return value("const", (), target, x.data)
        return x if x.dtype == target else value("bitcast", (x,), target)

    def add(self, x: Any, y: Any) -> Value:
        """x + y."""
        return self._binary("add", x, y)

    def sub(self, x: Any, y: Any) -> Value:
        """x - y."""
        return self._binary("sub", x, y)

    def mul(self, x: Any, y: Any) -> Value:
        """x * y."""
        return self._binary("mul", x, y)

    def div(self, x: Any, y: Any) -> Value:
        """x / y of floats."""
        return self._floating("div", self._binary("div", x, y))

    def floordiv(self, x: Any, y: Any) -> Value:
        """The quotient, rounded down; 0 for integers over 0."""
        return self._binary("floordiv", x, y)

    def rem(self, x: Any, y: Any) -> Value:
        """What the quotient, rounded toward zero, leaves; 0 for integers over 0."""
        return self._binary("rem", x, y)

    def neg(self, x: Any) -> Value:
        """-x."""
        return self._unary("neg", x)

    def abs(self, x: Any) -> Value:
        """The magnitude."""
        (x,) = self._operands(x)
        return x if x.dtype.kind in "bu" else self._unary("abs", x)

    def sqrt(self, x: Any) -> Value:
        """The square root of a float."""
        return self._floating("sqrt", self._unary("sqrt", x))

    def floor(self, x: Any) -> Value:
        """The nearest whole number that is not greater."""
        return self._rounded("floor", x)

    def ceil(self, x: Any) -> Value:
        """The nearest whole number that is not less."""
        return self._rounded("ceil", x)

    def trunc(self, x: Any) -> Value:
        """The nearest whole number toward zero."""
        return self._rounded("trunc", x)

    def round(self, x: Any) -> Value:
        """The nearest whole number, ties to even."""
        return self._rounded("round", x)

    def min(self, x: Any, y: Any) -> Value:
        """The smaller; NaN if either is NaN; -0.0 is less than 0.0."""
        return self._binary("min", x, y)

    def max(self, x: Any, y: Any) -> Value:
        """The larger; NaN if either is NaN; -0.0 is less than 0.0."""
        return self._binary("max", x, y)

    def fma(self, x: Any, y: Any, z: Any) -> Value:
        """x * y + z, rounded once."""
        x, y, z = self._operands(x, y, z)
        return value("fma", (x, y, z), x.dtype)

    def bit_and(self, x: Any, y: Any) -> Value:
        """Bits set in both."""
        return self._binary("bit_and", x, y)

    def bit_or(self, x: Any, y: Any) -> Value:
        """Bits set in either."""
        return self._binary("bit_or", x, y)

    def bit_xor(self, x: Any, y: Any) -> Value:
        """Bits set in one of them."""
        return self._binary("bit_xor", x, y)

    def bit_not(self, x: Any) -> Value:
        """Bits not set."""
        return self._unary("bit_not", x)

    def shift_left(self, x: Any, y: Any) -> Value:
        """x * 2**y; 0 where y is not less than the width."""
        return self._binary("shift_left", x, y)

    def shift_right(self, x: Any, y: Any) -> Value:
        """x / 2**y rounded down; where y is not less than the width, 0 or -1."""
        return self._binary("shift_right", x, y)

    def less(self, x: Any, y: Any) -> Value:
        """x < y."""
        return self._binary("less", x, y, BOOL)

    def less_equal(self, x: Any, y: Any) -> Value:
        """x <= y."""
        return self._binary("less_equal", x, y, BOOL)

    def equal(self, x: Any, y: Any) -> Value:
        """x == y."""
        return self._binary("equal", x, y, BOOL)

    def not_equal(self, x: Any, y: Any) -> Value:
        """x != y: true of NaN."""
        return self._binary("not_equal", x, y, BOOL)

    def select(self, condition: Any, x: Any, y: Any) -> Value:
        """`x` where the condition holds, else `y`."""
        (decides,), (one, other) = self._operands(condition), self._operands(x, y)
        if one.dtype.kind == "c":
            both = zip(one.args, other.args, strict=True)
            return paired(*(self.select(decides, *part) for part in both))
        if decides.op == "const":
            return one if literal(decides) else other
        return one if one is other else value("select", (decides, one, other), one.dtype)

    def rarely(
        self, condition: Any, slow: Callable[[], tuple[Any, ...]], fast: tuple[Any, ...]
    ) -> tuple[Value, ...]:
        """`slow()` where the condition holds, else `fast`; a branch skips it where nobody asks."""
        (condition,), usual = self._operands(condition), self._operands(*fast)
        if condition.op == "const" and not literal(condition):
            return usual
        seldom = self._operands(*slow())
        if condition.op == "const":
            return seldom
        both = value("rarely", (condition, *seldom, *usual), usual[0].dtype, len(usual))
        return tuple(value("item", (both,), x.dtype, k) for k, x in enumerate(usual))

    def call(self, function: str, *args: Any) -> Value:
        """A function of floats, in scalar instructions; those that may be one are kept as calls."""
        operands = self._operands(*args)
        if operands[0].dtype.kind in "biu":
            raise UnsupportedDTypeError(
                f"{function}: operand 0: expected a float, got {operands[0].dtype}"
            )
        if function in KEPT and operands[0].dtype == _FLOAT:
            return value("call", operands, _FLOAT, function)
        found: Value = expand(self, function, *operands)
        return found

    def complex(self, real: Any, imag: Any) -> Value:
        """The number with these parts."""
        return paired(*self._operands(real, imag))

    def real(self, x: Any) -> Value:
        """The real part; a real number is its own."""
        (found,) = self._operands(x)
        return found.args[0] if found.dtype.kind == "c" else found

    def imag(self, x: Any) -> Value:
        """The imaginary part; 0 of a real number."""
        (x,) = self._operands(x)
        return x.args[1] if x.dtype.kind == "c" else const(0, x.dtype)

    def reduce(self, combine: str, extents: tuple[int, ...], term: Callable[..., Any]) -> Value:
        """Refused here: a reduction is a statement, and only a lowering makes statements."""
        raise UnsupportedError(f"reduce: {combine}: not an expression of one point")

    def _operands(self, *xs: Any) -> tuple[Value, ...]:
        """Values of one dtype: Python numbers take it from the values beside them."""
        if all([type(x) is Value for x in xs]):
            return xs
        found = [self.operand(x) for x in xs]
        given = [x.dtype for x in found if isinstance(x, Value)]
        dtype = given[0] if given else _dtype_of(found[0])
        return tuple(x if isinstance(x, Value) else self.const(x, dtype) for x in found)

    def _unary(self, op: str, x: Any) -> Value:
        (x,) = self._operands(x)
        if x.dtype.kind == "c":
            return computed(self, op, x)
        if x.op == "const" and x.dtype == INDEX:
            return const(getattr(NumpyScalars, op)(literal(x)), INDEX)
        return value(op, (x,), x.dtype)

    def _rounded(self, op: str, x: Any) -> Value:
        (x,) = self._operands(x)
        if x.dtype.kind == "c":
            raise UnsupportedDTypeError(f"{op}: no kernel: complex numbers are not rounded whole")
        return x if x.dtype.kind in "biu" else value(op, (x,), x.dtype)

    def _binary(self, op: str, x: Any, y: Any, dtype: DType | None = None) -> Value:
        x, y = self._operands(x, y)
        if x.dtype != y.dtype:
            raise UnsupportedDTypeError(f"{op}: operands differ: {x.dtype} and {y.dtype}")
        if x.dtype.kind == "c":
            return computed(self, op, x, y)
        if x.dtype == INDEX:
            if op in ("add", "sub", "mul"):
                found: Value = getattr(affine, op)(x, y)
                return found
            folded = _fold(op, x, y, dtype or INDEX)
            if folded is not None:
                return folded
        elif op in COMPARISONS:
            known = decided(op, x, y)
            if known is not None:
                return const(known, BOOL)
        return value(op, (x, y), dtype or x.dtype)

    @staticmethod
    def _floating(op: str, made: Value) -> Value:
        if made.dtype.kind in "biu":
            raise UnsupportedDTypeError(f"{op}: operand 0: expected a float, got {made.dtype}")
        return made


def _dtype_of(x: Any) -> DType:
    found = np.asarray(x).dtype
    return INDEX if found.kind in "iu" else found


def _fold(op: str, x: Value, y: Value, dtype: DType) -> Value | None:
    """An instruction on indices whose result is known."""
    divides = op in ("floordiv", "rem")
    if y.op != "const" or op not in _FOLDED or (divides and literal(y) == 0):
        return None
    if x.op == "const":
        with np.errstate(over="ignore"):
            return const(getattr(NumpyScalars, op)(literal(x), literal(y)), dtype)
    if divides and literal(y) == 1:
        return x if op == "floordiv" else const(0, INDEX)
    return None
