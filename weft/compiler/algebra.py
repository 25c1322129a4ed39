"""Rules of arithmetic that hold bit by bit: for -0.0, infinities and NaN (but for its payload) too.

What holds in the reals only is not here: x + 0.0 is not x (-0.0 becomes 0.0), x * 0.0 is not 0.0,
x - x is not 0.0, and a complex x * 1 is not x (inf * 0 is NaN). The integers' rules are modulo 2ⁿ.
"""

from __future__ import annotations

from math import copysign, frexp
from typing import Any

import ml_dtypes
import numpy as np

from weft.compiler.calls import Call, Calls, Rule
from weft.core.common import dtypes
from weft.core.common.types import Array, DType, TensorType
from weft.core.graph.node import Ref

IDENTITIES = (
    "checkpoint_name",
    "copy",
    "kept",
    "narrow_back",
    "positive",
    "probe",
    "stop_gradient",
    "undifferentiable",
)
MOST_POWER = 64  # of an integer that is written out as products
MANY = 1 << 14  # elements that are worth a kernel more
REDUCTIONS = ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_any", "reduce_all")
_POSITIONS = frozenset(
    ["arange", "reshape", "broadcast_to", "cast", "add", "subtract", "bitwise_and"]
    + ["less", "less_equal", "greater", "greater_equal"]
)
_ROUNDINGS = ("floor", "ceil", "trunc", "round")
_SIGNED_REALS = frozenset((*dtypes.SIGNED, *dtypes.FLOATING))


def same(calls: Calls, call: Call) -> Ref | None:
    """The op gives its first operand's values: copy, positive, stop_gradient."""
    return calls.fitted(call.inputs[0], call)


def add_nothing(calls: Calls, call: Call) -> Ref | None:
    """x + (-0.0) is x; so is x + 0 for integers."""
    for x, y in (call.inputs, call.inputs[::-1]):
        number = calls.number(y)
        if number is not None and _is_zero(number, -1.0):
            return calls.fitted(x, call)
    return None


def add_negative(calls: Calls, call: Call) -> Ref | None:
    """x + (-y) is x - y, and (-x) + y is y - x."""
    for x, y in (call.inputs, call.inputs[::-1]):
        negative = calls.made_by(y, "negative")
        if negative is not None:
            return calls.call("subtract", (x, negative.inputs[0]), {}, call.like)
    return None


def subtract_nothing(calls: Calls, call: Call) -> Ref | None:
    """x - 0.0 is x."""
    number = calls.number(call.inputs[1])
    if number is not None and _is_zero(number, 1.0):
        return calls.fitted(call.inputs[0], call)
    return None


def subtract_negative(calls: Calls, call: Call) -> Ref | None:
    """x - (-y) is x + y."""
    negative = calls.made_by(call.inputs[1], "negative")
    if negative is None:
        return None
    return calls.call("add", (call.inputs[0], negative.inputs[0]), {}, call.like)


def itself_is_nothing(calls: Calls, call: Call) -> Ref | None:
    """x - x and x ^ x are 0 for integers; inf - inf is not."""
    if call.inputs[0] == call.inputs[1] and not dtypes.is_inexact(call.kind.dtype):
        return calls.filled(0, call)
    return None


def multiply_by_one(calls: Calls, call: Call) -> Ref | None:
    """x * 1 is x; for integers x * 0 is 0."""
    if dtypes.is_complex(call.kind.dtype):
        return None
    for x, y in (call.inputs, call.inputs[::-1]):
        number = calls.number(y)
        if number is None:
            continue
        if number == 1:
            return calls.fitted(x, call)
        if dtypes.is_integer(call.kind.dtype) and number == 0:
            return calls.filled(0, call)
    return None


def multiply_negatives(calls: Calls, call: Call) -> Ref | None:
    """(-x) * (-y) is x * y."""
    x, y = (calls.made_by(ref, "negative") for ref in call.inputs)
    if x is None or y is None:
        return None
    return calls.call("multiply", (x.inputs[0], y.inputs[0]), {}, call.like)


def divide_by_power_of_two(calls: Calls, call: Call) -> Ref | None:
    """x / 1 is x; x / 2ⁿ is x * 2⁻ⁿ: the quotient is the same real number, rounded once."""
    x, y = call.inputs
    number = calls.number(y)
    if number is None or not dtypes.is_floating(call.kind.dtype):
        return None
    if number == 1:
        return calls.fitted(x, call)
    if call.kind.dtype not in (dtypes.float32, dtypes.float64) or not _inverts(number):
        return None
    inverse = calls.number_of(1 / float(number), y, call.like.device)
    if inverse is None:
        return None
    product = calls.call("multiply", (x, inverse), {}, call.like)
    return calls.fitted(product, call)


def divide_integers_by_one(calls: Calls, call: Call) -> Ref | None:
    """x // 1 is x for integers."""
    number = calls.number(call.inputs[1])
    if number is not None and dtypes.is_integer(call.kind.dtype) and number == 1:
        return calls.fitted(call.inputs[0], call)
    return None


def remainder_of_one(calls: Calls, call: Call) -> Ref | None:
    """x % 1 is 0 for integers."""
    number = calls.number(call.inputs[1])
    if number is not None and dtypes.is_integer(call.kind.dtype) and number == 1:
        return calls.filled(0, call)
    return None


def integer_power(calls: Calls, call: Call) -> Ref | None:
    """x ** 3 is x * (x * x) for integers, which wrap alike; floats have their own `pow`."""
    number = calls.number(call.inputs[1])
    if number is None or not dtypes.is_integer(call.kind.dtype) or not 0 < number <= MOST_POWER:
        return None
    rest, made = int(number), None
    power = calls.fitted(call.inputs[0], call)
    while power is not None:
        if rest % 2:
            made = calls.call("multiply", (power, made), {}, call.like) if made else power
        rest //= 2
        if not rest:
            return made
        power = calls.call("square", (power,), {}, call.like)
    return None


def twice(calls: Calls, call: Call) -> Ref | None:
    """Done twice it is undone: -(-x), ~(~x), conj(conj(x))."""
    inner = calls.made_by(call.inputs[0], call.op.name)
    return None if inner is None else inner.inputs[0]


def round_whole(calls: Calls, call: Call) -> Ref | None:
    """What is whole already is not changed by rounding it again."""
    same_op = (call.op.name,) if dtypes.is_complex(call.kind.dtype) else _ROUNDINGS
    return None if calls.made_by(call.inputs[0], *same_op) is None else call.inputs[0]


def abs_of_sign(calls: Calls, call: Call) -> Ref | None:
    """||x|| is |x|; so is |-x|, but for complex numbers, and unsigned ones, which wrap."""
    if calls.made_by(call.inputs[0], "abs") is not None:
        return call.inputs[0]
    inner = calls.made_by(call.inputs[0], "negative")
    if inner is None or call.source_kind(0).dtype not in _SIGNED_REALS:
        return None
    return calls.call("abs", inner.inputs, {}, call.like)


def either_is_same(calls: Calls, call: Call) -> Ref | None:
    """max(x, x), min(x, x), x & x and x | x are x."""
    return call.inputs[0] if call.inputs[0] == call.inputs[1] else None


def bits_with_constant(calls: Calls, call: Call) -> Ref | None:
    """x & 0 is 0, x & ~0 is x, x | 0 is x, x | ~0 is ~0, x ^ 0 is x."""
    name = call.op.name
    for x, y in (call.inputs, call.inputs[::-1]):
        number = calls.number(y)
        if number is None:
            continue
        empty, full = not number.any(), not (~number).any()
        if (empty and name != "bitwise_and") or (full and name == "bitwise_and"):
            return calls.fitted(x, call)
        if (empty and name == "bitwise_and") or (full and name == "bitwise_or"):
            return calls.fitted(y, call)
    return None


def shift_by_nothing(calls: Calls, call: Call) -> Ref | None:
    """x << 0 and x >> 0 are x."""
    number = calls.number(call.inputs[1])
    return calls.fitted(call.inputs[0], call) if number is not None and number == 0 else None


def choose_known(calls: Calls, call: Call) -> Ref | None:
    """where(True, x, y) is x, where(False, x, y) is y, where(m, x, x) is x."""
    mask, x, y = call.inputs
    number = calls.number(mask)
    if number is not None:
        return calls.fitted(x if number else y, call)
    return calls.fitted(x, call) if x == y else None


def part_of_complex(calls: Calls, call: Call) -> Ref | None:
    """The real part of complex(a, b) is a, the imaginary part b."""
    inner = calls.made_by(call.inputs[0], "complex")
    if inner is None:
        return None
    return calls.fitted(inner.inputs[0 if call.op.name == "real" else 1], call)


def cast_to_same(calls: Calls, call: Call) -> Ref | None:
    """A cast to the dtype that is there already."""
    return call.inputs[0] if call.source_kind(0).dtype == call.kind.dtype else None


def cast_of_cast(calls: Calls, call: Call) -> Ref | None:
    """Two casts are one if the first loses nothing, or if both cut integers."""
    inner = calls.made_by(call.inputs[0], "cast")
    if inner is None:
        return None
    node, slot = inner.inputs[0]
    if not _cast_at_once(node.types[slot].dtype, inner.types[0].dtype, call.kind.dtype):
        return None
    return calls.call("cast", (inner.inputs[0],), {"dtype": call.kind.dtype}, call.like)


def cast_twice(calls: Calls, call: Call) -> Ref | None:
    """What a dtype holds of x, or of exp(x): a cast there and one back. Memory has the narrow."""
    given = call.inputs
    if call.op.name == "narrow_exp":
        if call.kind.dtype not in (dtypes.float32, dtypes.float64):
            return None  # others are rounded once, and not after each part
        power = calls.call("short_power", given, {"scale": call.params["scale"]}, call.like)
        given = (calls.call("short_exp2", (power,), {}, call.like),)
    narrow = calls.call("cast", given, {"dtype": call.params["dtype"]}, call.like)
    return calls.call("cast", (narrow,), {"dtype": call.kind.dtype}, call.like)


def mask_later(calls: Calls, call: Call) -> Ref | None:
    """f(where(mask, x, n)) is where(mask, f(x), f(n)) for a mask of positions, if f(n) is known.

    That is so for exp(-inf), a power that is -inf, 0 times a number and a narrower 0. What masks
    hide is then known to be 0 where it is read: products leave it out.
    """
    ref, others = call.inputs[0], call.inputs[1:]
    if call.op.name == "multiply" and calls.made_by(ref, "where") is None:
        ref, others = call.inputs[1], call.inputs[:1]
    mask = calls.made_by(ref, "where")
    factors = [calls.number(other) for other in others]
    if (
        mask is None
        or mask.types[0].shape != call.kind.shape
        or not _is_of_positions(mask.inputs[0])
    ):
        return None
    number = calls.number(mask.inputs[2])
    hidden = None if number is None else _hidden(call, number, factors)
    if hidden is None:
        return None
    kind = TensorType((), call.kind.dtype)
    held = calls.constant(np.array(hidden, kind.dtype), kind, call.like.device)
    if held is None:
        return None
    inner = calls.call(call.op.name, (mask.inputs[1], *others), call.params, call.like)
    return calls.call("where", (mask.inputs[0], inner, held), {}, call.like)


def _hidden(call: Call, number: Array, factors: list[Array | None]) -> float | None:
    """What a call makes of a number, times positive ones if there are others: 0.0, or -inf."""
    if not dtypes.is_floating(call.kind.dtype):
        return None
    if call.op.name in ("exp", "short_exp2", "short_power"):
        given = -np.inf if call.op.name == "short_power" else 0.0
        return given if number == -np.inf else None
    if call.op.name == "cast":
        narrower = dtypes.is_narrow(call.kind.dtype) and not dtypes.is_narrow(number.dtype)
        known = narrower and dtypes.is_floating(number.dtype)
    else:
        known = all(x is not None and 0 < x < np.inf for x in factors)
    return 0.0 if known and _is_zero(number, 1.0) else None


def _is_of_positions(mask: Ref) -> bool:
    """Whether a mask compares places along axes, and numbers, and nothing else."""
    stack = [mask[0]]
    while stack:
        node = stack.pop()
        if node.op is None:
            if node.types[0].size != 1:
                return False
        elif node.op.name not in _POSITIONS:
            return False
        else:
            stack.extend(source for source, _ in node.inputs)
    return True


def _cast_at_once(first: DType, between: DType, last: DType) -> bool:
    if holds(between, first):
        # Floats saturate where integers wrap, and round to narrow floats by ways of their own: an
        # integer skips the float only if it survives.
        as_float = dtypes.is_integer(first) and dtypes.is_inexact(between)
        apart = as_float and (dtypes.is_integer(last) or dtypes.is_narrow(last))
        return not apart or holds(last, first)
    if all(map(dtypes.is_integer, (first, between, last))):
        return first.itemsize >= between.itemsize >= last.itemsize
    return False


def holds(wide: DType, narrow: DType) -> bool:
    """Whether every value of one dtype is a value of the other.

    >>> holds(dtypes.float64, dtypes.int32), holds(dtypes.float32, dtypes.int32)
    (True, False)
    """
    if wide == narrow or dtypes.is_bool(narrow):
        return True
    if dtypes.is_bool(wide) or (dtypes.is_complex(narrow) and not dtypes.is_complex(wide)):
        return False
    if dtypes.is_complex(wide):
        parts = dtypes.real_of(narrow) if dtypes.is_complex(narrow) else narrow
        return holds(dtypes.real_of(wide), parts)
    if dtypes.is_integer(wide):
        if not dtypes.is_integer(narrow):
            return False
        outer, inner = np.iinfo(wide), np.iinfo(narrow)
        return bool(outer.min <= inner.min and outer.max >= inner.max)
    describe: Any = ml_dtypes.finfo  # untyped there
    limits = describe(wide)
    if dtypes.is_integer(narrow):
        digits = int(np.iinfo(narrow).max).bit_length()
        return bool(limits.nmant + 1 >= digits and float(limits.max) >= 2.0**digits)
    other = describe(narrow)
    return bool(
        limits.nmant >= other.nmant
        and float(limits.max) >= float(other.max)
        and float(limits.smallest_subnormal) <= float(other.smallest_subnormal)
    )


def rows_first(calls: Calls, call: Call) -> Ref | None:
    """Over the last axes and others, between which some stay: over the last ones, then the others.

    Kernels combine in this order anyway; in two of them memory is read from end to end. Products of
    complex numbers are NumPy's, in an order of its own.
    """
    axes, kind = call.params["axes"], call.source_kind(0)
    run = 0
    while run - 1 in axes:
        run -= 1
    others = tuple(axis - run for axis in axes if axis < run)
    apart = bool(run and others) and -min(axes) > len(axes)
    is_numpys = dtypes.is_complex(kind.dtype) and call.op.name == "reduce_prod"
    if not apart or kind.size < MANY or dtypes.is_narrow(kind.dtype) or is_numpys:
        return None
    rows = calls.call(call.op.name, call.inputs, {"axes": tuple(range(run, 0))}, call.like)
    return calls.call(call.op.name, (rows,), {"axes": others}, call.like)


def _is_zero(number: Array, sign: float) -> bool:
    """Whether a number is the zero of this sign, in both parts; integers have one zero."""
    if number != 0:
        return False
    if not dtypes.is_inexact(number.dtype):
        return True
    parts = (number.real, number.imag) if dtypes.is_complex(number.dtype) else (number,)
    return all(copysign(1.0, float(part)) == sign for part in parts)


def _inverts(number: Array) -> bool:
    """Whether a float is a power of two whose inverse is a normal float of its dtype."""
    value = float(number)
    if not np.isfinite(value) or abs(frexp(value)[0]) != 0.5:
        return False
    limits = np.finfo(number.dtype)
    return bool(float(limits.tiny) <= abs(1 / value) <= float(limits.max))


ALGEBRA: dict[str, tuple[Rule, ...]] = {
    **dict.fromkeys(IDENTITIES, (same,)),
    "add": (add_nothing, add_negative),
    "subtract": (subtract_nothing, itself_is_nothing, subtract_negative),
    "multiply": (multiply_by_one, multiply_negatives, mask_later),
    "divide": (divide_by_power_of_two,),
    "floor_divide": (divide_integers_by_one,),
    **dict.fromkeys(("remainder", "fmod"), (remainder_of_one,)),
    "pow": (integer_power,),
    **dict.fromkeys(("negative", "bitwise_invert", "conj"), (twice,)),
    **dict.fromkeys(_ROUNDINGS, (round_whole,)),
    "abs": (abs_of_sign,),
    **dict.fromkeys(("maximum", "minimum", "fmax", "fmin"), (either_is_same,)),
    **dict.fromkeys(("bitwise_and", "bitwise_or"), (either_is_same, bits_with_constant)),
    "bitwise_xor": (itself_is_nothing, bits_with_constant),
    **dict.fromkeys(("bitwise_left_shift", "bitwise_right_shift"), (shift_by_nothing,)),
    "where": (choose_known,),
    **dict.fromkeys(("real", "imag"), (part_of_complex,)),
    "cast": (cast_to_same, cast_of_cast, mask_later),
    **dict.fromkeys(("exp", "short_exp2", "short_power"), (mask_later,)),
    **dict.fromkeys(("narrow_ahead", "narrow_exp"), (cast_twice,)),
    **dict.fromkeys(REDUCTIONS, (rows_first,)),
}
