"""Division of integers in vectors, by floats: processors divide integers one at a time.

Operands of up to 32 bits have an exact quotient in floats of twice as many digits or more: what is
left of the whole part is at least one part in `x`, which no rounding crosses. Those of 64 bits are
divided twice, each time by a little less than the quotient, until one more or none is missing.
"""

from __future__ import annotations

from weft.compiler.emit_text import Code

_FLOATS = {"i8": "float", "i16": "float", "i32": "double"}
_LESS = 1 - 2.0**-50  # more than conversions, the reciprocal and products round up together


def quotient(c: Code, native: frozenset[str], x: str, y: str, name: str, signed: bool) -> str:
    """`x` by `y`, rounded toward zero; `y` is never 0, nor -1 where `x` may be the least number."""
    kind = _FLOATS.get(name)
    if c.lanes > 1 and kind is not None:
        there, back = ("sitofp", "fptosi") if signed else ("uitofp", "fptoui")
        wide = [c.convert(there, each, name, kind) for each in (x, y)]
        return c.convert(back, c.op("fdiv", kind, *wide), kind, name)
    if c.lanes > 1 and "wholes" in native:
        if not signed:
            return _long(c, x, y)
        sizes = [c.intrinsic("abs", name, each, extra=", i1 false") for each in (x, y)]
        found = _long(c, *sizes)
        differ = c.compare("slt", name, c.op("xor", name, x, y), c.number(0, name))
        return c.select(differ, name, c.op("sub", name, c.number(0, name), found), found)
    return c.op("sdiv" if signed else "udiv", name, x, y)


def _long(c: Code, x: str, y: str) -> str:
    """The quotient of 64 bits without signs.

    The first part is too small by less than 2^15, the second by at most one, and neither is ever
    too large: what rests is exact.
    """
    name, kind = "i64", "double"
    by = c.op("fdiv", kind, c.number(_LESS, kind), c.convert("uitofp", y, name, kind))
    whole, rest = c.number(0, name), x
    for _ in range(2):
        product = c.op("fmul", kind, c.convert("uitofp", rest, name, kind), by)
        part = c.convert("fptoui", product, kind, name)
        rest = c.op("sub", name, rest, c.op("mul", name, part, y))
        whole = c.op("add", name, whole, part)
    enough = c.compare("uge", name, rest, y)
    return c.op("add", name, whole, c.convert("zext", enough, "i1", name))
