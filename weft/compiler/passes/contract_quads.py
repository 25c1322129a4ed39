"""Products of int8 that are summed in int32: four points of the depth at a time.

Where a processor multiplies four bytes with four others and adds everything up in one instruction
(`dot4`), a factor is packed as int32 of four bytes each, and the depth is a quarter as long.
Integers wrap, so nothing of this shows. Bytes beyond the depth are 0.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.compiler.build import Builder
from weft.compiler.loops import Value, value
from weft.compiler.passes.contract_match import Product
from weft.compiler.polynomial import add, divide, is_multiple, known, multiply, smaller, subtract
from weft.compiler.rebuild import Scope, substitute_value

_BYTE, _UNSIGNED, _WORD = np.dtype(np.int8), np.dtype(np.uint8), np.dtype(np.int32)
FOUR = 4


def in_quads(scope: Scope, product: Product) -> Product:
    """The product with four points of the depth in one, if its factors are bytes; else itself."""
    columns = known(product.column[1])
    if columns == 1 or not (_is_byte(product.left) and _is_byte(product.right)):
        return product
    depth, extent = product.depth
    deep = scope.variable("quad")
    left, right = (_quad(x.args[0], depth, extent, deep) for x in (product.left, product.right))
    count = divide(add(extent, FOUR - 1), FOUR)
    return replace(product, depth=(deep, count), left=left, right=right, quads=True)


def _is_byte(x: Value) -> bool:
    return x.op == "cast" and x.dtype == _WORD and x.args[0].dtype == _BYTE


def _quad(x: Value, depth: Value, extent: Value, deep: Value) -> Value:
    """Four bytes of a factor, the first one lowest."""
    s = Builder()
    found: Value | None = None
    for i in range(FOUR):
        at = add(multiply(deep, FOUR), i)
        inside = at if is_multiple(extent, FOUR) else smaller(at, subtract(extent, 1))
        byte = s.bitcast(substitute_value(x, {depth: inside}), _UNSIGNED)
        if inside is not at:
            byte = s.select(s.less(at, extent), byte, s.const(0, _UNSIGNED))
        wide = s.shift_left(s.cast(byte, _WORD), s.const(8 * i, _WORD))
        found = wide if found is None else s.bit_or(found, wide)
    assert found is not None
    return found


def dot4(x: Value, y: Value, total: Value) -> Value:
    """total + the products of four bytes of x with those of y."""
    return value("dot4", (x, y, total), total.dtype)
