"""Scalar instructions in LLVM IR, each with one meaning on every target.

Integers wrap and never trap, floats are not contracted or reassociated, and no instruction becomes
a call of a library: what a target lacks is spelled in what it has.
"""

from __future__ import annotations

from functools import partial

from weft.compiler.emit_convert import bitcast, cast, narrow, widen
from weft.compiler.emit_fused import fused
from weft.compiler.emit_quotient import quotient
from weft.compiler.emit_remainder import floor_divide, remainder
from weft.compiler.emit_text import NARROW, Code, known_integer, type_of
from weft.compiler.loops import BOOL, COMPARISONS
from weft.core.common.dtypes import float32
from weft.core.common.types import DType
from weft.errors import UnsupportedDTypeError

_PREDICATE = {"less": "lt", "less_equal": "le", "equal": "eq", "not_equal": "ne"}
_BITS = {"bit_and": "and", "bit_or": "or", "bit_xor": "xor"}
_ROUNDING = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven"}
_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "neg": "fneg"}
_BOOL = {"add": "or", "mul": "and", "max": "or", "min": "and"} | _BITS

_FLOATS = 4  # in a register of NEON
_HIGH = 0x80808080 - (1 << 32)  # the highest bit of each byte
_RANGE = frozenset({16, 32, 64})  # bytes of a vector that AVX-512 finds the larger ones of
_PAIRS = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}  # by lanes


def instruction(
    c: Code, native: frozenset[str], op: str, args: list[str], source: DType, target: DType
) -> str:
    """One instruction on operands of dtype `source`; the result is of dtype `target`.

    `native` names what the target does itself: `half` (conversions), `round`, `fma`, `range`,
    `scale`, `wholes` (vectors of 64-bit integers as floats and back), `fnmadd`; and `overwrites`
    if sums of products go where the addend was.
    """
    if op == "cast":
        return cast(c, native, args[0], source, target)
    if op == "bitcast":
        return bitcast(c, args[0], source, target)
    if source in NARROW:
        return _narrow(c, native, op, args, source)
    if source.kind == "f":
        return _floating(c, native, op, args, source)
    if source == BOOL:
        return _boolean(c, op, args)
    return _integer(c, native, op, args, source)


def _refuse(op: str, dtype: DType) -> UnsupportedDTypeError:
    return UnsupportedDTypeError(f"{op}: no instruction for {dtype}")


def _narrow(c: Code, native: frozenset[str], op: str, args: list[str], dtype: DType) -> str:
    if op == "neg":
        return c.op("xor", "i16", args[0], c.number(-0x8000, "i16"))
    if op == "abs":
        return c.op("and", "i16", args[0], c.number(0x7FFF, "i16"))
    wide = [widen(c, native, x, dtype) for x in args]
    found = _floating(c, native, op, wide, float32)
    return found if op in COMPARISONS else narrow(c, native, found, dtype)


def _floating(c: Code, native: frozenset[str], op: str, args: list[str], dtype: DType) -> str:
    name = type_of(dtype)
    if op in _FLOAT:
        return c.op(_FLOAT[op], name, *args)
    if op in _PREDICATE:
        order = "u" if op == "not_equal" else "o"
        return c.compare(order + _PREDICATE[op], name, *args)
    if op in ("min", "max"):
        literal = any(x.startswith("splat") for x in args)  # of which LLVM knows more
        if "range" in native and c.lanes * dtype.itemsize in _RANGE and not literal:
            return _by_range(c, op, args, name, dtype.itemsize)
        return c.intrinsic(f"{op}imum", name, *args)
    if op == "sqrt":
        return c.intrinsic("sqrt", name, *args)
    if op == "abs":
        return c.intrinsic("fabs", name, *args)
    if op in _ROUNDING:
        return _whole(c, native, op, name, args[0])
    if op == "fma":
        return _fma(c, native, args, name)
    if op == "short_exp2" and op in native:
        return c.each("llvm.nvvm.ex2.approx.ftz.f", name, *args)
    if op == "rem":
        return remainder(c, native, args[0], args[1], name)
    if op == "floordiv":
        whole = partial(_whole, c, native, "floor", name)
        return floor_divide(c, native, args[0], args[1], name, whole)
    raise _refuse(op, dtype)


def _fma(c: Code, native: frozenset[str], args: list[str], name: str) -> str:
    if "fma" not in native:
        return fused(c, args, name)
    if "overwrites" in native:
        args = [args[0], _in_one_register(c, args[1], name), _from_memory(c, args[2], name)]
    found = c.intrinsic("fma", name, *args)
    if "fnmadd" in native and c.lanes == 1:
        # LLVM would negate factor and addend instead of the sum, whose 0 then has another sign.
        return c.intrinsic("arithmetic.fence", name, found)
    return found


def by_avx512(c: Code, instruction: str, args: list[str], name: str, size: int, *more: int) -> str:
    """An instruction of AVX-512 on two vectors that are no larger than a register, in all lanes."""
    kind, letter = c.type(name), "s" if size == 4 else "d"
    typed = [(kind, x) for x in args]
    typed += [("i32", str(x)) for x in more]
    typed += [(kind, args[0]), (f"i{max(c.lanes, 8)}", "-1")]
    typed += [("i32", "4")] if c.lanes * size == 64 else []  # rounds as ever
    called = f"@llvm.x86.avx512.mask.{instruction}.p{letter}.{8 * size * c.lanes}"
    kinds, given = ", ".join(k for k, _ in typed), ", ".join(f"{k} {x}" for k, x in typed)
    c.writer.declarations[f"declare {kind} {called}({kinds})"] = None
    return c.writer.let(f"call {kind} {called}({given})")


def _by_range(c: Code, op: str, args: list[str], name: str, size: int) -> str:
    """The larger or smaller of two by an instruction that knows signed zeros, but not NaN."""
    x, y = args
    found = by_avx512(c, "range", args, name, size, 5 if op == "max" else 4)
    either = c.compare("uno", name, x, y)
    return c.select(either, name, c.op("fadd", name, x, y), found)


def _from_memory(c: Code, addend: str, name: str) -> str:
    """A vector that a multiplication overwrites with its sum: if it is a literal, read each time.

    It would be copied from register to register each time, by those units that multiply.
    """
    if not addend.startswith("splat"):
        return addend
    kind, place = c.type(name), f"@weft.{name}{c.lanes}.{addend[:-1].rpartition(' ')[2]}"
    c.writer.declarations[f"{place} = internal constant {kind} {addend}, align 16"] = None
    return c.writer.let(f"load volatile {kind}, ptr {place}, align 16")


def _in_one_register(c: Code, factor: str, name: str) -> str:
    """A literal by which vectors are multiplied: if a float, read each time for all their parts.

    Polynomials need its register; it would be copied out of their way and back again.
    """
    if name != "float" or not factor.startswith("splat") or c.lanes % _FLOATS:
        return factor
    part, kind = _from_memory(Code(c.writer, _FLOATS), factor, name), f"<{_FLOATS} x {name}>"
    places = ", ".join(f"i32 {lane % _FLOATS}" for lane in range(c.lanes))
    return c.writer.let(f"shufflevector {kind} {part}, {kind} poison, <{c.lanes} x i32> <{places}>")


def _whole(c: Code, native: frozenset[str], op: str, name: str, x: str) -> str:
    """A float rounded to a whole number."""
    if "round" in native:
        return c.intrinsic(_ROUNDING[op], name, x)
    # Adding 2**digits rounds the fraction away, to the nearest; then step back where that is past.
    large, one = c.number(2.0**23 if name == "float" else 2.0**52, name), c.number(1.0, name)
    size = c.intrinsic("fabs", name, x)
    near = c.op("fsub", name, c.op("fadd", name, size, large), large)
    if op == "trunc":
        past = c.compare("ogt", name, near, size)
        near = c.select(past, name, c.op("fsub", name, near, one), near)
    elif op != "round":
        near = c.intrinsic("copysign", name, near, x)
        past = c.compare("ogt" if op == "floor" else "olt", name, near, x)
        back = c.op("fsub" if op == "floor" else "fadd", name, near, one)
        near = c.select(past, name, back, near)
    found = c.intrinsic("copysign", name, near, x)
    return c.select(c.compare("olt", name, size, large), name, found, x)


def _boolean(c: Code, op: str, args: list[str]) -> str:
    if op in _BOOL:
        return c.op(_BOOL[op], "i1", *args)
    if op == "bit_not":
        return c.op("xor", "i1", args[0], c.literal("true", "i1"))
    if op in _PREDICATE:
        order = "" if op in ("equal", "not_equal") else "u"
        return c.compare(order + _PREDICATE[op], "i1", *args)
    if op == "abs" or op in _ROUNDING:
        return args[0]
    raise _refuse(op, BOOL)


def _by_signs(c: Code, factors: list[str], total: str) -> str:
    """Four products of bytes where an instruction takes one factor as unsigned.

    That factor is 128 too large; what this adds is one for all factors that meet the other.
    """
    (x, y), kind = factors, c.type("i32")
    name = f"@llvm.x86.avx512.vpdpbusd.{32 * c.lanes}"
    c.writer.declarations[f"declare {kind} {name}({kind}, {kind}, {kind})"] = None
    high = c.number(_HIGH, "i32")
    shifted = c.op("xor", "i32", x, high)
    more = c.writer.let(f"call {kind} {name}({kind} {total}, {kind} {shifted}, {kind} {y})")
    none = c.number(0, "i32")
    beyond = c.writer.let(f"call {kind} {name}({kind} {none}, {kind} {high}, {kind} {y})")
    return c.op("sub", "i32", more, beyond)


def _dot2(c: Code, native: frozenset[str], args: list[str]) -> str:
    """Two products of 16 bits and their sum, added to a third."""
    *factors, total = args
    if "dot2" not in native or c.lanes not in _PAIRS:
        return _one_by_one(c, 2, factors, total)
    half, word = f"<{2 * c.lanes} x i16>", f"<{c.lanes} x i32>"
    name = f"@llvm.x86.{_PAIRS[c.lanes]}"
    c.writer.declarations[f"declare {word} {name}({half}, {half})"] = None
    x, y = (c.writer.let(f"bitcast {word} {factor} to {half}") for factor in factors)
    return c.op("add", "i32", total, c.writer.let(f"call {word} {name}({half} {x}, {half} {y})"))


def _one_by_one(c: Code, points: int, factors: list[str], total: str) -> str:
    """The products of the numbers of two words, each as an instruction of its own."""
    width = 32 // points
    for i in reversed(range(points)):
        up, down = (c.number(n, "i32") for n in (width * i, 32 - width))
        x, y = (c.op("ashr", "i32", c.op("shl", "i32", a, up), down) for a in factors)
        total = c.op("add", "i32", total, c.op("mul", "i32", x, y))
    return total


def _dot4(c: Code, native: frozenset[str], args: list[str]) -> str:
    """Four products of bytes and their sum: one instruction, or a byte at a time."""
    if "sdot" in native and c.lanes == 4:
        x, y = (c.writer.let(f"bitcast <4 x i32> {a} to <16 x i8>") for a in args[:2])
        name, kinds = "@llvm.aarch64.neon.sdot.v4i32.v16i8", "<4 x i32>, <16 x i8>, <16 x i8>"
        c.writer.declarations[f"declare <4 x i32> {name}({kinds})"] = None
        return c.writer.let(
            f"call <4 x i32> {name}(<4 x i32> {args[2]}, <16 x i8> {x}, <16 x i8> {y})"
        )
    *factors, total = args
    if "vnni" in native and c.lanes in (8, 16):
        return _by_signs(c, factors, total)
    return _one_by_one(c, 4, factors, total)


def _integer(c: Code, native: frozenset[str], op: str, args: list[str], dtype: DType) -> str:
    name, signed = type_of(dtype), dtype.kind == "i"
    if op in ("add", "sub", "mul"):
        return c.op(op, name, *args)
    if op in _BITS:
        return c.op(_BITS[op], name, *args)
    if op in _PREDICATE:
        order = "" if op in ("equal", "not_equal") else "s" if signed else "u"
        return c.compare(order + _PREDICATE[op], name, *args)
    if op in ("min", "max"):
        return c.intrinsic(("s" if signed else "u") + op, name, *args)
    if op in ("dot4", "dot2"):
        return (_dot4 if op == "dot4" else _dot2)(c, native, args)
    if op == "neg":
        return c.op("sub", name, c.number(0, name), *args)
    if op == "abs" and signed:
        return c.intrinsic("abs", name, *args, extra=", i1 false")
    if op == "abs" or op in _ROUNDING:
        return args[0]
    if op == "bit_not":
        return c.op("xor", name, args[0], c.number(-1, name))
    if op in ("shift_left", "shift_right"):
        return _shift(c, op, args, name, signed)
    if op in ("floordiv", "rem"):
        return _divide(c, native, op, args, name, signed)
    raise _refuse(op, dtype)


def _shift(c: Code, op: str, args: list[str], name: str, signed: bool) -> str:
    """A shift; counts that are negative, or not less than the width, shift everything out."""
    (x, y), width = args, int(name[1:])
    how = "shl" if op == "shift_left" else "ashr" if signed else "lshr"
    known = known_integer(y)
    if known is not None and 0 <= known < width:
        return c.op(how, name, x, y)
    short = c.compare("ult", name, y, c.number(width, name))
    if how == "ashr":
        return c.op(how, name, x, c.select(short, name, y, c.number(width - 1, name)))
    found = c.op(how, name, x, c.select(short, name, y, c.number(0, name)))
    return c.select(short, name, found, c.number(0, name))


def _divide(
    c: Code, native: frozenset[str], op: str, args: list[str], name: str, signed: bool
) -> str:
    """A division that gives 0 over 0, and wraps for the least number over -1."""
    (x, y), zero, one = args, c.number(0, name), c.number(1, name)
    known = known_integer(y)
    if known is not None and known > 0:
        return _divide_by(c, op, args, known, name, signed)
    none = c.compare("eq", name, y, zero)
    if not signed:
        safe = c.select(none, name, one, y)
        found = quotient(c, native, x, safe, name, signed)
        if op == "rem":
            return c.op("sub", name, x, c.op("mul", name, found, safe))  # nothing over 1
        return c.select(none, name, zero, found)
    flips = c.compare("eq", name, y, c.number(-1, name))
    safe = c.select(c.op("or", "i1", none, flips), name, one, y)
    found = quotient(c, native, x, safe, name, signed)
    rest = c.op("sub", name, x, c.op("mul", name, found, safe))
    if op == "rem":
        return rest  # over 1 nothing is left, which is the answer for 0 and -1 too
    differ = c.compare("slt", name, c.op("xor", name, rest, safe), zero)
    below = c.op("and", "i1", c.compare("ne", name, rest, zero), differ)
    lowered = c.op("add", name, found, c.convert("sext", below, "i1", name))
    turned = c.select(flips, name, c.op("sub", name, zero, x), lowered)
    return c.select(none, name, zero, turned)


def _divide_by(c: Code, op: str, args: list[str], by: int, name: str, signed: bool) -> str:
    """A division by a positive literal."""
    if op == "rem":
        return c.op("srem" if signed else "urem", name, *args)
    if not signed:
        return c.op("udiv", name, *args)
    if by & (by - 1) == 0:  # a shift rounds down
        return c.op("ashr", name, args[0], c.number(by.bit_length() - 1, name))
    found = c.op("sdiv", name, *args)
    rest = c.op("sub", name, args[0], c.op("mul", name, found, args[1]))
    below = c.compare("slt", name, rest, c.number(0, name))
    return c.op("add", name, found, c.convert("sext", below, "i1", name))
