"""Conversions between dtypes in LLVM IR.

bfloat16 and float16 are rounded by the target's instructions where it has them, else by integer
arithmetic: nothing here calls a library.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from weft.compiler.emit_text import NARROW, Code, float_constant, type_of
from weft.compiler.loops import BOOL
from weft.core.common.dtypes import bfloat16, float8_e4m3, float8_e5m2, float32
from weft.core.common.types import DType

# Digits, the exponent's bias, the largest number, and infinity (0: there is none).
_BYTES = {float8_e4m3: (3, 7, 0x7E, 0), float8_e5m2: (2, 15, 0x7B, 0x7C)}
_NAN = {float8_e4m3: 0x7F, float8_e5m2: 0x7E}
_WIDTH = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}


def cast(c: Code, native: frozenset[str], x: str, source: DType, target: DType) -> str:
    """`x` of dtype `source` as dtype `target`."""
    if source == target:
        return x
    if source in NARROW:
        return _from_narrow(c, native, x, source, target)
    if target in NARROW:
        return _to_narrow(c, native, x, source, target)
    have, want = type_of(source), type_of(target)
    if target == BOOL:
        if source.kind == "f":
            return c.compare("une", have, x, c.number(0.0, have))
        return c.compare("ne", have, x, c.number(0, have))
    if source.kind == "f":
        if target.kind != "f":
            if "saturate" in native:
                return c.saturate(target.kind == "i", x, have, want)
            return _saturated(c, x, have, target)
        return c.convert("fpext" if want == "double" else "fptrunc", x, have, want)
    if target.kind == "f" and source == BOOL:  # a mask of vectors is no number yet
        return c.select(x, want, c.number(1.0, want), c.number(0.0, want))
    if target.kind == "f":
        return c.convert("sitofp" if source.kind == "i" else "uitofp", x, have, want)
    if _WIDTH[have] == _WIDTH[want]:
        return x
    if _WIDTH[have] > _WIDTH[want]:
        return c.convert("trunc", x, have, want)
    return c.convert("sext" if source.kind == "i" else "zext", x, have, want)


def _saturated(c: Code, x: str, have: str, target: DType) -> str:
    """A float as an integer where there is no instruction for it: what is out of range is replaced.

    The limits are powers of two, so they are floats; NaN is inside of nothing and becomes 0.
    """
    want, limits = type_of(target), np.iinfo(target)
    low, high = float(limits.min), float(limits.max) + 1.0
    above = c.compare("oge", have, x, c.number(high, have))
    inside = "oge" if limits.min else "ogt"
    reached = c.compare(inside, have, x, c.number(low if limits.min else -1.0, have))
    below = c.compare("olt", have, x, c.number(low, have))
    known = c.op("and", "i1", reached, c.compare("olt", have, x, c.number(high, have)))
    safe = c.select(known, have, x, c.number(0.0, have))
    found = c.convert("fptosi" if limits.min else "fptoui", safe, have, want)
    found = c.select(above, want, c.number(limits.max, want), found)
    return c.select(below, want, c.number(limits.min, want), found)


def bitcast(c: Code, x: str, source: DType, target: DType) -> str:
    """The bits of `x` read as another dtype of its width."""
    have, want = type_of(source), type_of(target)
    if have == want:
        return x
    if source == BOOL:
        return c.convert("zext", x, have, want)
    if target == BOOL:
        return c.compare("ne", have, x, c.number(0, have))
    return c.convert("bitcast", x, have, want)


def widen(c: Code, native: frozenset[str], x: str, dtype: DType) -> str:
    """A narrow float as a float32; exact."""
    if dtype.itemsize == 1:
        return _widen_byte(c, x, dtype)
    if dtype == bfloat16:
        bits = c.op("shl", "i32", c.convert("zext", x, "i16", "i32"), c.number(16, "i32"))
        return c.convert("bitcast", bits, "i32", "float")
    if "half" in native:
        return c.convert("fpext", c.convert("bitcast", x, "i16", "half"), "half", "float")
    return _widen_half(c, x)


def narrow(c: Code, native: frozenset[str], x: str, dtype: DType) -> str:
    """A float32 rounded to a narrow float, ties to even."""
    if dtype.itemsize == 1:
        return _narrow_byte(c, x, dtype)
    if dtype == bfloat16:
        if "bfloat" in native:
            return c.convert("bitcast", c.convert("fptrunc", x, "float", "bfloat"), "bfloat", "i16")
        return _narrow_bfloat(c, x)
    if "half" in native:
        return c.convert("bitcast", c.convert("fptrunc", x, "float", "half"), "half", "i16")
    return _narrow_half(c, x)


def _from_narrow(c: Code, native: frozenset[str], x: str, source: DType, target: DType) -> str:
    wide = widen(c, native, x, source)
    if target in NARROW:
        return narrow(c, native, wide, target)
    return cast(c, native, wide, float32, target)


def _to_narrow(c: Code, native: frozenset[str], x: str, source: DType, target: DType) -> str:
    if source.itemsize == 8 and source.kind == "f" and target != bfloat16:
        return narrow(c, native, _round_to_odd(c, x), target)
    return narrow(c, native, cast(c, native, x, source, float32), target)


def _round_to_odd(c: Code, x: str) -> str:
    """A double as a float that another rounding, to 22 digits or fewer, treats as the double.

    Of the two floats around a double that is not a float, take the one whose last bit is set.
    """
    near = c.convert("fptrunc", x, "double", "float")
    back = c.convert("fpext", near, "float", "double")
    bits = c.convert("bitcast", near, "float", "i32")
    even = c.compare("eq", "i32", c.op("and", "i32", bits, c.number(1, "i32")), c.number(0, "i32"))
    move = c.op("and", "i1", c.compare("one", "double", back, x), even)
    short = c.compare(
        "olt", "double", c.intrinsic("fabs", "double", back), c.intrinsic("fabs", "double", x)
    )
    step = c.select(short, "i32", c.number(1, "i32"), c.number(-1, "i32"))
    step = c.select(move, "i32", step, c.number(0, "i32"))
    return c.convert("bitcast", c.op("add", "i32", bits, step), "i32", "float")


def _narrow_bfloat(c: Code, x: str) -> str:
    bits = c.convert("bitcast", x, "float", "i32")
    high = c.op("lshr", "i32", bits, c.number(16, "i32"))
    odd = c.op("and", "i32", high, c.number(1, "i32"))
    rounded = c.op("add", "i32", c.op("add", "i32", bits, c.number(0x7FFF, "i32")), odd)
    rounded = c.op("lshr", "i32", rounded, c.number(16, "i32"))
    quiet = c.op("or", "i32", high, c.number(0x40, "i32"))
    found = c.select(c.compare("uno", "float", x, x), "i32", quiet, rounded)
    return c.convert("trunc", found, "i32", "i16")


def _widen_byte(c: Code, x: str, dtype: DType) -> str:
    """Put exponent and digits where a float has them; a product moves the exponent, exactly."""
    of = partial(c.number, name="i32")
    digits, bias, _, infinite = _BYTES[dtype]
    wide = c.convert("zext", x, "i8", "i32")
    size = c.op("and", "i32", wide, of(0x7F))
    bits = c.op("shl", "i32", size, of(23 - digits))
    scale = c.literal(float_constant((254 - bias) << 23), "float")
    moved = c.op("fmul", "float", c.convert("bitcast", bits, "i32", "float"), scale)
    found = c.convert("bitcast", moved, "float", "i32")
    if infinite:
        found = c.select(c.compare("eq", "i32", size, of(infinite)), "i32", of(0x7F800000), found)
    undefined = c.compare("ugt", "i32", size, of(infinite or 0x7E))
    found = c.select(undefined, "i32", of(0x7FC00000), found)
    sign = c.op("shl", "i32", c.op("and", "i32", wide, of(0x80)), of(24))
    return c.convert("bitcast", c.op("or", "i32", found, sign), "i32", "float")


def _narrow_byte(c: Code, x: str, dtype: DType) -> str:
    """Like `_narrow_half`: round the digits, or add a number whose last digit is the result's."""
    of = partial(c.number, name="i32")
    digits, bias, largest, infinite = _BYTES[dtype]
    drop = 23 - digits
    bits = c.convert("bitcast", x, "float", "i32")
    size = c.op("and", "i32", bits, of(0x7FFFFFFF))
    odd = c.op("and", "i32", c.op("lshr", "i32", size, of(drop)), of(1))
    half = (1 << (drop - 1)) - 1
    normal = c.op("add", "i32", c.op("add", "i32", size, of(half - ((127 - bias) << 23))), odd)
    normal = c.op("lshr", "i32", normal, of(drop))
    magic = (127 + drop - bias + 1) << 23
    shifted = c.op(
        "fadd",
        "float",
        c.convert("bitcast", size, "i32", "float"),
        c.literal(float_constant(magic), "float"),
    )
    tiny = c.op("sub", "i32", c.convert("bitcast", shifted, "float", "i32"), of(magic))
    found = c.select(c.compare("ult", "i32", size, of((128 - bias) << 23)), "i32", tiny, normal)
    beyond = infinite or 0x7F
    over = c.compare("ugt", "i32", found, of(largest))
    over = c.op("or", "i1", over, c.compare("uge", "i32", size, of(0x7F800000)))
    found = c.select(over, "i32", of(beyond), found)
    found = c.select(c.compare("uno", "float", x, x), "i32", of(_NAN[dtype]), found)
    sign = c.op("and", "i32", c.op("lshr", "i32", bits, of(24)), of(0x80))
    return c.convert("trunc", c.op("or", "i32", found, sign), "i32", "i8")


def _widen_half(c: Code, x: str) -> str:
    """Move the exponent; denormals become normal by subtracting the digit they lack."""
    of = partial(c.number, name="i32")
    wide = c.convert("zext", x, "i16", "i32")
    bits = c.op("shl", "i32", c.op("and", "i32", wide, of(0x7FFF)), of(13))
    exponent = c.op("and", "i32", bits, of(0x7C00 << 13))
    normal = c.op("add", "i32", bits, of((127 - 15) << 23))
    special = c.op("add", "i32", bits, of((255 - 31) << 23))
    raised = c.convert("bitcast", c.op("add", "i32", bits, of(113 << 23)), "i32", "float")
    one = c.literal(float_constant(113 << 23), "float")
    tiny = c.convert("bitcast", c.op("fsub", "float", raised, one), "float", "i32")
    found = c.select(c.compare("eq", "i32", exponent, of(0)), "i32", tiny, normal)
    found = c.select(c.compare("eq", "i32", exponent, of(0x7C00 << 13)), "i32", special, found)
    sign = c.op("shl", "i32", c.op("and", "i32", wide, of(0x8000)), of(16))
    return c.convert("bitcast", c.op("or", "i32", found, sign), "i32", "float")


def _narrow_half(c: Code, x: str) -> str:
    """Round the significand; denormals are rounded by adding a number of their last digit."""
    of = partial(c.number, name="i32")
    bits = c.convert("bitcast", x, "float", "i32")
    size = c.op("and", "i32", bits, of(0x7FFFFFFF))
    odd = c.op("and", "i32", c.op("lshr", "i32", size, of(13)), of(1))
    normal = c.op("add", "i32", c.op("add", "i32", size, of(0xFFF - (112 << 23))), odd)
    normal = c.op("lshr", "i32", normal, of(13))
    half = c.literal(float_constant(126 << 23), "float")
    shifted = c.op("fadd", "float", c.convert("bitcast", size, "i32", "float"), half)
    tiny = c.op("sub", "i32", c.convert("bitcast", shifted, "float", "i32"), of(126 << 23))
    found = c.select(c.compare("ult", "i32", size, of(113 << 23)), "i32", tiny, normal)
    found = c.select(c.compare("uge", "i32", size, of(143 << 23)), "i32", of(0x7C00), found)
    payload = c.op("lshr", "i32", c.op("and", "i32", size, of(0x7FFFFF)), of(13))
    quiet = c.op("or", "i32", payload, of(0x7E00))
    found = c.select(c.compare("uno", "float", x, x), "i32", quiet, found)
    sign = c.op("and", "i32", c.op("lshr", "i32", bits, of(16)), of(0x8000))
    return c.convert("trunc", c.op("or", "i32", found, sign), "i32", "i16")
