"""The exact remainder of floats in LLVM IR, and the division that rounds down.

LLVM's own `frem` calls a library. Here the significand is divided as an integer, as many digits at
a time as 64 bits hold, by a function that is part of the module and called for each lane. Vectors
whose quotients have no more digits than a float are divided as floats: a quotient is rounded to
the whole number above it at most, and what is left of `x` has few enough digits to be exact.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.compiler.emit_text import Code, Writer

_FUNCTION = """\
define internal {real} @{function}({real} %x, {real} %y) noinline nounwind {{
entry:
  %xb = bitcast {real} %x to {bits}
  %yb = bitcast {real} %y to {bits}
  %ax = and {bits} %xb, {magnitude}
  %ay = and {bits} %yb, {magnitude}
  %sign = xor {bits} %xb, %ax
  %x.bad = icmp uge {bits} %ax, {infinity}
  %y.bad = icmp ugt {bits} %ay, {infinity}
  %y.zero = icmp eq {bits} %ay, 0
  %bad1 = or i1 %x.bad, %y.bad
  %bad = or i1 %bad1, %y.zero
  br i1 %bad, label %none, label %finite
none:
  %nan = fadd {real} %x, %y
  %is = fcmp uno {real} %nan, %nan
  %made = select i1 %is, {real} %nan, {real} 0x7FF8000000000000
  ret {real} %made
finite:
  %less = icmp ult {bits} %ax, %ay
  br i1 %less, label %same, label %divide
same:
  ret {real} %x
divide:
  %xe0 = lshr {bits} %ax, {fraction}
  %ye0 = lshr {bits} %ay, {fraction}
  %xf = and {bits} %ax, {digits}
  %yf = and {bits} %ay, {digits}
  %x.low = icmp eq {bits} %xe0, 0
  %y.low = icmp eq {bits} %ye0, 0
  %xh = or {bits} %xf, {hidden}
  %yh = or {bits} %yf, {hidden}
  %xn = select i1 %x.low, {bits} %xf, {bits} %xh
  %yn = select i1 %y.low, {bits} %yf, {bits} %yh
  %xe = select i1 %x.low, {bits} 1, {bits} %xe0
  %ye = select i1 %y.low, {bits} 1, {bits} %ye0
  %gap0 = sub {bits} %xe, %ye
  %xw = zext {bits} %xn to {wide}
  %yw = zext {bits} %yn to {wide}
  %gap = zext {bits} %gap0 to {wide}
  %first = urem {wide} %xw, %yw
  br label %loop
loop:
  %rest = phi {wide} [ %first, %divide ], [ %next, %step ]
  %left = phi {wide} [ %gap, %divide ], [ %fewer, %step ]
  %more = icmp ne {wide} %left, 0
  br i1 %more, label %step, label %scale
step:
  %short = icmp ult {wide} %left, {chunk}
  %count = select i1 %short, {wide} %left, {wide} {chunk}
  %moved = shl {wide} %rest, %count
  %next = urem {wide} %moved, %yw
  %fewer = sub {wide} %left, %count
  br label %loop
scale:
  %number = uitofp {wide} %rest to {real}
  %normal = icmp ugt {bits} %ye, {fraction}
  %high0 = sub {bits} %ye, {fraction}
  %high = shl {bits} %high0, {fraction}
  %low0 = sub {bits} %ye, 1
  %low1 = select i1 %normal, {bits} 0, {bits} %low0
  %low = shl {bits} 1, %low1
  %unit0 = select i1 %normal, {bits} %high, {bits} %low
  %unit = bitcast {bits} %unit0 to {real}
  %size = fmul {real} %number, %unit
  %size.bits = bitcast {real} %size to {bits}
  %signed = or {bits} %size.bits, %sign
  %result = bitcast {bits} %signed to {real}
  ret {real} %result
}}"""

_VECTOR = """\
define internal {type} @{function}({type} %x, {type} %y) noinline nounwind {{
entry:
  %ax = call {type} @llvm.fabs.{suffix}({type} %x)
  %ay = call {type} @llvm.fabs.{suffix}({type} %y)
  %quotient = fdiv {type} %ax, %ay
  %short = fcmp olt {type} %quotient, {most}
  %finite = fcmp olt {type} %ay, {infinity}
  %plain = and {mask} %short, %finite
  %all = call i1 @llvm.vector.reduce.and.v{lanes}i1({mask} %plain)
  br i1 %all, label %fast, label %slow
fast:
  %whole = call {type} @llvm.trunc.{suffix}({type} %quotient)
  %less = fneg {type} %whole
  %rest = call {type} @llvm.fma.{suffix}({type} %less, {type} %ay, {type} %ax)
  %past = fcmp olt {type} %rest, zeroinitializer
  %back = fadd {type} %rest, %ay
  %size = select {mask} %past, {type} %back, {type} %rest
  %made = call {type} @llvm.copysign.{suffix}({type} %size, {type} %x)
  ret {type} %made
slow:
{each}
  ret {type} {last}
}}"""


def _function(name: str) -> str:
    width, fraction = (32, 23) if name == "float" else (64, 52)
    bits = f"i{width}"
    text = _FUNCTION.format(
        function=f"weft.remainder.{name}",
        real=name,
        bits=bits,
        wide="i64",
        magnitude=(1 << (width - 1)) - 1,
        infinity=(1 << (width - 1)) - (1 << fraction),
        fraction=fraction,
        digits=(1 << fraction) - 1,
        hidden=1 << fraction,
        chunk=63 - fraction,  # a rest is shorter than the divisor: fraction + 1 digits
    )
    return text if width == 32 else _without_widening(text)


def _without_widening(text: str) -> str:
    """Where the bits are 64 already, `zext i64 %x to i64` is written as an addition of nothing."""
    lines = []
    for line in text.splitlines():
        name, found, rest = line.partition(" = zext i64 ")
        lines.append(f"{name} = add i64 {rest.removesuffix(' to i64')}, 0" if found else line)
    return "\n".join(lines)


def remainder(c: Code, native: frozenset[str], x: str, y: str, name: str) -> str:
    """What is left of `x` when a whole number of `y` is taken away; it has the sign of `x`."""
    function = f"weft.remainder.{name}"
    if function not in c.writer.functions:
        c.writer.functions[function] = _function(name)
    if c.lanes == 1 or not {"round", "fma"} <= native:
        return c.each(function, name, x, y)
    whole, kind = f"{function}.{c.lanes}", c.type(name)
    if whole not in c.writer.functions:
        c.writer.functions[whole] = _of_vectors(c, name, whole)
    return c.writer.let(f"call {kind} @{whole}({kind} {x}, {kind} {y})")


def _of_vectors(c: Code, name: str, function: str) -> str:
    """The function of so many lanes; where floats do not do, it calls that of one for each."""
    suffix = f"v{c.lanes}f{32 if name == 'float' else 64}"
    kind, mask = c.type(name), c.type("i1")
    for base, operands in (("fabs", 1), ("trunc", 1), ("copysign", 2), ("fma", 3)):
        kinds = ", ".join([kind] * operands)
        c.writer.declarations[f"declare {kind} @llvm.{base}.{suffix}({kinds})"] = None
    c.writer.declarations[f"declare i1 @llvm.vector.reduce.and.v{c.lanes}i1({mask})"] = None
    slow = Code(Writer(), c.lanes)
    last = slow.each(f"weft.remainder.{name}", name, "%x", "%y")
    return _VECTOR.format(
        function=function,
        type=kind,
        mask=mask,
        lanes=c.lanes,
        suffix=suffix,
        most=c.number(2.0 ** (24 if name == "float" else 53), name),
        infinity=c.number(float("inf"), name),
        each="\n".join(slow.writer.lines),
        last=last,
    )


def floor_divide(
    c: Code, native: frozenset[str], x: str, y: str, name: str, floor: Callable[[str], str]
) -> str:
    """The quotient rounded down, from the exact remainder, so that no rounding crosses a whole."""
    zero, one = c.number(0.0, name), c.number(1.0, name)
    rest = remainder(c, native, x, y, name)
    quotient = c.op("fdiv", name, c.op("fsub", name, x, rest), y)
    differ = c.op("xor", "i1", c.compare("olt", name, y, zero), c.compare("olt", name, rest, zero))
    below = c.op("and", "i1", c.compare("une", name, rest, zero), differ)
    quotient = c.select(below, name, c.op("fsub", name, quotient, one), quotient)
    whole = floor(quotient)
    short = c.compare("ogt", name, c.op("fsub", name, quotient, whole), c.number(0.5, name))
    whole = c.select(short, name, c.op("fadd", name, whole, one), whole)
    plain = c.op("fdiv", name, x, y)
    nothing = c.intrinsic("copysign", name, zero, plain)
    found = c.select(c.compare("une", name, quotient, zero), name, whole, nothing)
    return c.select(c.compare("oeq", name, y, zero), name, plain, found)
