"""Exponentials y * 2**n, be 2**n out of reach: one instruction of AVX-512.

Elsewhere two powers of about equal size are made of the bits of a whole number, and two products
taken. Only the second one can round, so the bits are the same. What is nothing is not computed:
processors take long for results near the smallest numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.compiler.emit_bits import places
from weft.compiler.emit_scalars import by_avx512
from weft.compiler.emit_text import Code, type_of
from weft.compiler.loops import Value, const, integer_of
from weft.ops.functions.number import FORMATS

LEAST, MOST = 16, 64  # bytes of a vector that the instruction takes
_SIZES = (4, 8)  # bytes of a number


def scaled(c: Code, x: Value, text_of: Callable[[Value], str]) -> str | None:
    """A product y * first * second, by powers of two that one number is the exponent of, or None.

    See `weft.ops.functions.number.Whole` for that number. Here y is about 1: a polynomial's value.
    """
    size = x.dtype.itemsize
    product, second = x.args
    if product.op != "mul" or size not in _SIZES or c.lanes * size < LEAST:
        return None
    form = FORMATS[8 * size]
    y, first = product.args
    if y.op != "fma" or y.args[2] is not const(1, x.dtype):
        return None
    whole = _whole(first, second, form.fraction)
    if whole is None or whole.dtype != x.dtype:
        return None
    name, base = type_of(x.dtype), math.ldexp(1.5, form.fraction) + 2 * form.bias
    exponent = c.op("fsub", name, text_of(whole), c.number(base, name))
    made = _called(c, text_of(y), exponent, name, size)
    is_some = c.compare("uge", name, exponent, c.number(-(form.bias + form.fraction), name))
    return c.select(is_some, name, made, c.number(0.0, name))


def _whole(first: Value, second: Value, fraction: int) -> Value | None:
    """The number whose `powers_of_two` these are, if they are."""
    if first.op != "bitcast" or second.op != "bitcast":
        return None
    (low,), (rest,) = first.args, second.args
    if (low.op, rest.op) != ("bit_and", "sub") or rest.args[1] is not low:
        return None
    half, whole = low.args[0], rest.args[0]
    if half.op != "shift_left" or whole.op != "shift_left" or half.args[0] is not whole.args[0]:
        return None
    given = (low.args[1], half.args[1], whole.args[1])
    if any(x.op != "const" for x in given):
        return None
    bits = whole.args[0]
    is_exponent = [integer_of(x) for x in given] == [-(1 << fraction), fraction - 1, fraction]
    return bits.args[0] if is_exponent and bits.op == "bitcast" else None


def _called(c: Code, y: str, exponent: str, name: str, size: int) -> str:
    if c.lanes * size > MOST:
        return _by_halves(c, y, exponent, name, size)
    return by_avx512(c, "scalef", [y, exponent], name, size)


def _by_halves(c: Code, y: str, exponent: str, name: str, size: int) -> str:
    kind, half = c.type(name), Code(c.writer, c.lanes // 2)
    made = []
    for first in (0, half.lanes):
        mask = places(range(first, first + half.lanes))
        few, of = (
            c.writer.let(f"shufflevector {kind} {x}, {kind} poison, {mask}") for x in (y, exponent)
        )
        made.append(_called(half, few, of, name, size))
    low, high = (f"{half.type(name)} {x}" for x in made)
    return c.writer.let(f"shufflevector {low}, {high}, {places(range(c.lanes))}")
