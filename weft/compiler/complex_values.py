"""Complex numbers as pairs of real values: the loop IR and its passes know real numbers only.

Products and quotients are defined here, for every tier: each product and each sum is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.compiler.index import Index
from weft.compiler.loops import Value, const, get, load, value
from weft.core.common import dtypes
from weft.core.common.types import DType
from weft.errors import UnsupportedDTypeError


def paired(real: Value, imag: Value) -> Value:
    """The complex number with these parts: no instruction, it reaches no statement."""
    return value("complex", (real, imag), dtypes.complex_of(real.dtype))


def parts(x: Value) -> tuple[Value, ...]:
    """The real values that a number consists of; memory holds them side by side."""
    return x.args if x.dtype.kind == "c" else (x,)


def whole(found: Sequence[Value]) -> Value:
    """The number that consists of these values."""
    return found[0] if len(found) == 1 else paired(*found)


def count(dtype: DType) -> int:
    """How many real values a number of a dtype consists of."""
    return 2 if dtypes.is_complex(dtype) else 1


def literal_of(number: Any, dtype: DType) -> Value:
    """A complex literal."""
    exact = np.asarray(number).astype(dtype)
    part = dtypes.real_of(dtype)
    return paired(const(exact.real, part), const(exact.imag, part))


def loaded(buffer: int, place: Index, dtype: DType) -> Value:
    """The element of a buffer at `place`, counted in whole numbers."""
    if not dtypes.is_complex(dtype):
        return load(buffer, place.value, dtype)
    part = dtypes.real_of(dtype)
    return paired(*(load(buffer, (place * 2 + k).value, part) for k in range(2)))


def stand_in(number: int, dtype: DType) -> Value:
    """A number that nobody has computed."""
    part = dtypes.real_of(dtype)
    return whole([get(2 * number + k, part) for k in range(count(dtype))])


def computed(s: Any, op: str, *args: Value) -> Value:
    """An instruction on complex numbers, in instructions on their parts."""
    if op not in _INSTRUCTIONS:
        raise UnsupportedDTypeError(f"{op}: no kernel: complex numbers have no such instruction")
    return _INSTRUCTIONS[op](s, *args)


def _each(op: str) -> Callable[..., Value]:
    """An instruction that treats both parts alike."""

    def made(s: Any, *args: Value) -> Value:
        run = getattr(s, op)
        return paired(run(*[x.args[0] for x in args]), run(*[x.args[1] for x in args]))

    return made


def _equal(s: Any, x: Value, y: Value) -> Value:
    found: Value = s.bit_and(s.equal(x.args[0], y.args[0]), s.equal(x.args[1], y.args[1]))
    return found


def _not_equal(s: Any, x: Value, y: Value) -> Value:
    found: Value = s.bit_or(s.not_equal(x.args[0], y.args[0]), s.not_equal(x.args[1], y.args[1]))
    return found


def _multiply(s: Any, x: Value, y: Value) -> Value:
    real = s.sub(s.mul(x.args[0], y.args[0]), s.mul(x.args[1], y.args[1]))
    return paired(real, s.add(s.mul(x.args[0], y.args[1]), s.mul(x.args[1], y.args[0])))


def _divide(s: Any, x: Value, y: Value) -> Value:
    """Smith's method; over 0 each part is divided by it, so that it is infinite or NaN."""
    first, second = s.abs(y.args[0]), s.abs(y.args[1])
    is_wide = s.less_equal(second, first)
    major, minor = s.select(is_wide, y.args[0], y.args[1]), s.select(is_wide, y.args[1], y.args[0])
    one, other = s.select(is_wide, x.args[0], x.args[1]), s.select(is_wide, x.args[1], x.args[0])
    ratio = s.div(minor, major)
    nothing = s.const(0, y.args[0].dtype)
    is_nothing = s.bit_and(s.equal(first, nothing), s.equal(second, nothing))
    size = s.select(is_nothing, nothing, s.add(major, s.mul(minor, ratio)))
    scale = s.div(s.const(1, y.args[0].dtype), size)
    along, across = s.add(one, s.mul(other, ratio)), s.mul(one, ratio)
    turned = s.select(is_wide, s.sub(other, across), s.sub(across, other))
    return paired(
        s.mul(s.select(is_nothing, x.args[0], along), scale),
        s.mul(s.select(is_nothing, x.args[1], turned), scale),
    )


_INSTRUCTIONS: dict[str, Callable[..., Value]] = {
    "add": _each("add"),
    "sub": _each("sub"),
    "neg": _each("neg"),
    "mul": _multiply,
    "div": _divide,
    "equal": _equal,
    "not_equal": _not_equal,
    "sqrt": lambda s, x: s.call("sqrt", x),
}
