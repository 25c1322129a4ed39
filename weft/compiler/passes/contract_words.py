"""Products of short integers that are summed in int32: several points of the depth at a time.

A processor multiplies four bytes with four others and adds everything up in one instruction
(`dot4`), or at least two numbers of 16 bits (`dot2`), which bytes are as well. A factor is packed
as int32 of so many numbers each, and the depth is a quarter or half as long. Integers wrap, so
nothing of this shows. Numbers beyond the depth are 0.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

import numpy as np

from weft.compiler.build import Builder
from weft.compiler.loops import Value, value
from weft.compiler.passes.contract_match import Axis, Product
from weft.compiler.polynomial import add, divide, is_multiple, known, multiply, smaller, subtract
from weft.compiler.rebuild import Scope, substitute_value
from weft.core.common.types import DType

_WORD = np.dtype(np.int32)


@dataclass(frozen=True)
class _Words:
    """How the numbers of a word are multiplied: by what, and what they are."""

    instruction: str
    dtype: DType
    unsigned: DType

    @property
    def points(self) -> int:
        """How many numbers are in a word."""
        return _WORD.itemsize // self.dtype.itemsize

    def hold(self, x: Value) -> bool:
        """Whether a factor is a number as short as these."""
        short = x.op == "cast" and x.dtype == _WORD and x.args[0].dtype.kind in "iu"
        return short and np.can_cast(x.args[0].dtype, self.dtype)

    def packed(self, x: Value, depth: Axis, deep: Value) -> Value:
        """A word of a factor, the first number lowest."""
        s, (variable, extent) = Builder(), depth
        found: Value | None = None
        for i in range(self.points):
            at = add(multiply(deep, self.points), i)
            inside = at if is_multiple(extent, self.points) else smaller(at, subtract(extent, 1))
            number = s.cast(substitute_value(x.args[0], {variable: inside}), self.dtype)
            number = s.bitcast(number, self.unsigned)
            if inside is not at:
                number = s.select(s.less(at, extent), number, s.const(0, self.unsigned))
            up = s.const(8 * self.dtype.itemsize * i, _WORD)
            wide = s.shift_left(s.cast(number, _WORD), up)
            found = wide if found is None else s.bit_or(found, wide)
        assert found is not None
        return found


_ALL = (  # those of the most numbers first
    _Words("dot4", np.dtype(np.int8), np.dtype(np.uint8)),
    _Words("dot2", np.dtype(np.int16), np.dtype(np.uint16)),
)


def in_words(scope: Scope, product: Product, native: Set[str]) -> Product:
    """The product with several points of the depth in one, if it can be; else itself.

    `native` names the instructions that there are.
    """
    factors = product.left, product.right
    fitting = (w for w in _ALL if w.instruction in native and all(map(w.hold, factors)))
    words = next(fitting, None)
    if words is None or known(product.column[1]) == 1:
        return product
    deep = scope.variable("word")
    left, right = (words.packed(x, product.depth, deep) for x in factors)
    count = divide(add(product.depth[1], words.points - 1), words.points)
    return replace(product, depth=(deep, count), left=left, right=right, words=words.instruction)


def dot(name: str, x: Value, y: Value, total: Value) -> Value:
    """total + the products of the numbers of x with those of y."""
    return value(name, (x, y, total), total.dtype)
