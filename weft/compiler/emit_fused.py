"""x * y + z rounded once, in LLVM IR, for processors that have no such instruction.

LLVM's own `fma` calls a library there. Products of float32 are exact in float64. For float64 a
function that is part of the module adds in integers of 128 bits, and is called for each lane.
"""

from __future__ import annotations

from weft.compiler.emit_text import Code

# Both terms are moved so that their first digit is bit 125: two bits are left for the sum, and what
# the smaller one loses at its end is kept as a last digit 1, which decides the rounding.
_FUNCTION = """\
define internal double @weft.fma.double(double %x, double %y, double %z) noinline nounwind {
entry:
  %xb = bitcast double %x to i64
  %yb = bitcast double %y to i64
  %zb = bitcast double %z to i64
  %ax = and i64 %xb, 9223372036854775807
  %ay = and i64 %yb, 9223372036854775807
  %az = and i64 %zb, 9223372036854775807
  %x.bad = icmp uge i64 %ax, 9218868437227405312
  %y.bad = icmp uge i64 %ay, 9218868437227405312
  %z.bad = icmp uge i64 %az, 9218868437227405312
  %x.zero = icmp eq i64 %ax, 0
  %y.zero = icmp eq i64 %ay, 0
  %z.zero = icmp eq i64 %az, 0
  %p1 = or i1 %x.bad, %y.bad
  %p2 = or i1 %x.zero, %y.zero
  %plain = or i1 %p1, %p2
  %product.rounded = fmul double %x, %y
  br i1 %plain, label %separate, label %product
product:
  br i1 %z.bad, label %endless, label %finite
endless:
  %z.quiet = fadd double %z, 0.0
  ret double %z.quiet
separate:
  %sum.rounded = fadd double %product.rounded, %z
  ret double %sum.rounded
finite:
  br i1 %z.zero, label %alone, label %exact
alone:
  ret double %product.rounded
exact:
  %xe0 = lshr i64 %ax, 52
  %ye0 = lshr i64 %ay, 52
  %ze0 = lshr i64 %az, 52
  %xf = and i64 %ax, 4503599627370495
  %yf = and i64 %ay, 4503599627370495
  %zf = and i64 %az, 4503599627370495
  %x.low = icmp eq i64 %xe0, 0
  %y.low = icmp eq i64 %ye0, 0
  %z.low = icmp eq i64 %ze0, 0
  %xh = or i64 %xf, 4503599627370496
  %yh = or i64 %yf, 4503599627370496
  %zh = or i64 %zf, 4503599627370496
  %xn = select i1 %x.low, i64 %xf, i64 %xh
  %yn = select i1 %y.low, i64 %yf, i64 %yh
  %zn = select i1 %z.low, i64 %zf, i64 %zh
  %xe = select i1 %x.low, i64 1, i64 %xe0
  %ye = select i1 %y.low, i64 1, i64 %ye0
  %ze = select i1 %z.low, i64 1, i64 %ze0
  %xw = zext i64 %xn to i128
  %yw = zext i64 %yn to i128
  %zw = zext i64 %zn to i128
  %p.raw = mul i128 %xw, %yw
  %p.zeros = call i128 @llvm.ctlz.i128(i128 %p.raw, i1 true)
  %z.zeros = call i128 @llvm.ctlz.i128(i128 %zw, i1 true)
  %p.shift = sub i128 %p.zeros, 2
  %z.shift = sub i128 %z.zeros, 2
  %p = shl i128 %p.raw, %p.shift
  %q = shl i128 %zw, %z.shift
  %p.shift64 = trunc i128 %p.shift to i64
  %z.shift64 = trunc i128 %z.shift to i64
  %pe0 = add i64 %xe, %ye
  %pe1 = sub i64 %pe0, 1075
  %pe = sub i64 %pe1, %p.shift64
  %qe = sub i64 %ze, %z.shift64
  %p.sign = xor i64 %xb, %yb
  %p.larger = icmp sge i64 %pe, %qe
  %big = select i1 %p.larger, i128 %p, i128 %q
  %small0 = select i1 %p.larger, i128 %q, i128 %p
  %e = select i1 %p.larger, i64 %pe, i64 %qe
  %e.small = select i1 %p.larger, i64 %qe, i64 %pe
  %sign0 = select i1 %p.larger, i64 %p.sign, i64 %zb
  %gap0 = sub i64 %e, %e.small
  %far = icmp ugt i64 %gap0, 127
  %gap1 = select i1 %far, i64 127, i64 %gap0
  %gap = zext i64 %gap1 to i128
  %small1 = lshr i128 %small0, %gap
  %back = shl i128 %small1, %gap
  %lost = icmp ne i128 %back, %small0
  %lost.bit = zext i1 %lost to i128
  %small = or i128 %small1, %lost.bit
  %differ = xor i64 %p.sign, %zb
  %opposite = icmp slt i64 %differ, 0
  %added = add i128 %big, %small
  %taken = sub i128 %big, %small
  %total0 = select i1 %opposite, i128 %taken, i128 %added
  %turned = icmp slt i128 %total0, 0
  %negated = sub i128 0, %total0
  %total = select i1 %turned, i128 %negated, i128 %total0
  %nothing = icmp eq i128 %total, 0
  br i1 %nothing, label %zero, label %round
zero:
  ret double 0.0
round:
  %flipped = xor i64 %sign0, -9223372036854775808
  %sign1 = select i1 %turned, i64 %flipped, i64 %sign0
  %sign = and i64 %sign1, -9223372036854775808
  %zeros = call i128 @llvm.ctlz.i128(i128 %total, i1 true)
  %zeros64 = trunc i128 %zeros to i64
  %cut.normal = sub i64 75, %zeros64
  %cut.denormal = sub i64 1, %e
  %is.normal = icmp sge i64 %cut.normal, %cut.denormal
  %cut0 = select i1 %is.normal, i64 %cut.normal, i64 %cut.denormal
  %beyond = icmp sgt i64 %cut0, 127
  %cut1 = select i1 %beyond, i64 127, i64 %cut0
  %longer = icmp slt i64 %cut1, 0
  %less = sub i64 0, %cut1
  %up0 = select i1 %longer, i64 %less, i64 0
  %down0 = select i1 %longer, i64 0, i64 %cut1
  %up = zext i64 %up0 to i128
  %down = zext i64 %down0 to i128
  %wide = shl i128 %total, %up
  %kept = lshr i128 %wide, %down
  %kept.back = shl i128 %kept, %down
  %rest = sub i128 %wide, %kept.back
  %unit = shl i128 1, %down
  %half = lshr i128 %unit, 1
  %above = icmp ugt i128 %rest, %half
  %middle0 = icmp eq i128 %rest, %half
  %cuts = icmp ne i64 %down0, 0
  %middle = and i1 %middle0, %cuts
  %odd0 = trunc i128 %kept to i1
  %tie = and i1 %middle, %odd0
  %grows0 = or i1 %above, %tie
  %grows = select i1 %beyond, i1 false, i1 %grows0
  %grown = zext i1 %grows to i64
  %digits0 = trunc i128 %kept to i64
  %digits = add i64 %digits0, %grown
  %exponent0 = add i64 %cut.normal, %e
  %exponent1 = sub i64 %exponent0, 1
  %exponent = select i1 %is.normal, i64 %exponent1, i64 0
  %over = icmp sgt i64 %exponent, 2046
  %exponent.bits = shl i64 %exponent, 52
  %size0 = add i64 %exponent.bits, %digits
  %size.over = icmp uge i64 %size0, 9218868437227405312
  %infinite = or i1 %over, %size.over
  %size = select i1 %infinite, i64 9218868437227405312, i64 %size0
  %result.bits = or i64 %size, %sign
  %result = bitcast i64 %result.bits to double
  ret double %result
}"""


def fused(c: Code, args: list[str], name: str) -> str:
    """x * y + z of floats or doubles, rounded once."""
    if name == "float":
        return _float(c, args)
    c.writer.functions["weft.fma.double"] = _FUNCTION
    c.writer.declarations["declare i128 @llvm.ctlz.i128(i128, i1)"] = None
    return c.each("weft.fma.double", "double", *args)


def _float(c: Code, args: list[str]) -> str:
    """The sum in float64, rounded to odd, so that rounding again is as if it were the first."""
    x, y, z = (c.convert("fpext", a, "float", "double") for a in args)
    product = c.op("fmul", "double", x, y)
    total = c.op("fadd", "double", product, z)
    part = c.op("fsub", "double", total, product)
    left = c.op("fsub", "double", product, c.op("fsub", "double", total, part))
    error = c.op("fadd", "double", left, c.op("fsub", "double", z, part))
    bits = c.convert("bitcast", total, "double", "i64")
    even = c.compare("eq", "i64", c.op("and", "i64", bits, c.number(1, "i64")), c.number(0, "i64"))
    inexact = c.compare("one", "double", error, c.number(0.0, "double"))
    outward = c.op(
        "xor",
        "i1",
        c.compare("ogt", "double", error, c.number(0.0, "double")),
        c.compare("slt", "i64", bits, c.number(0, "i64")),
    )
    step = c.select(outward, "i64", c.number(1, "i64"), c.number(-1, "i64"))
    step = c.select(c.op("and", "i1", even, inexact), "i64", step, c.number(0, "i64"))
    odd = c.convert("bitcast", c.op("add", "i64", bits, step), "i64", "double")
    return c.convert("fptrunc", odd, "double", "float")
