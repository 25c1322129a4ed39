"""What each scalar instruction of the loop IR means, in NumPy: one exact answer for every operand.

An `instruction` takes scalars and vectors of lanes alike. Functions such as `exp` are computed one
lane at a time, so that how many lanes run together can never show.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from weft.compiler.loops import Value
from weft.core.common.types import DType
from weft.testing.loops import Reference

_NARROW = {np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)}
_SINGLE = np.dtype(np.float32)


def _smaller(x: Any, y: Any) -> Any:
    """The smaller, or the first NaN; -0.0 is less than 0.0."""
    below = (y < x) | (y == x) & _is_negative(y)
    return np.where((x == x) & (below | (y != y)), y, x)


def _larger(x: Any, y: Any) -> Any:
    """The larger, or the first NaN; -0.0 is less than 0.0."""
    above = (x < y) | (x == y) & _is_negative(x)
    return np.where((x == x) & (above | (y != y)), y, x)


def _is_negative(x: Any) -> Any:
    return np.signbit(x) if np.asarray(x).dtype.kind not in "biu" else np.bool_(False)


def _whole(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: x if x.dtype.kind in "biu" else function(x)


_PLAIN: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": np.floor_divide,
    "rem": np.fmod,
    "min": _smaller,
    "max": _larger,
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor,
    "bit_not": np.bitwise_not,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "less": np.less,
    "less_equal": np.less_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "floor": _whole(np.floor),
    "ceil": _whole(np.ceil),
    "trunc": _whole(np.trunc),
    "round": _whole(np.rint),
    "select": np.where,
}


def instruction(x: Value) -> Callable[..., Any]:
    """What computes a value from its operands, each a scalar or a vector of lanes."""
    if x.op in _PLAIN:
        return _plain(x)
    if x.op == "cast":
        return lambda a: cast(np.asarray(a), x.dtype)[()]
    if x.op == "bitcast":
        return lambda a: np.asarray(a).view(x.dtype)[()]
    if x.op == "call":
        return lambda *args: _by_lane(lambda *lane: Reference.call(x.data, *lane), args, x.dtype)
    if x.op == "rarely":
        return lambda condition, *both: tuple(
            np.where(condition, *pair)[()] for pair in zip(both[: x.data], both[x.data :])
        )
    if x.op == "item":
        return lambda whole: whole[x.data]
    assert x.op in _OTHERS, f"no such scalar instruction: {x.op}"
    return _OTHERS[x.op]


def _plain(x: Value) -> Callable[..., Any]:
    function, dtype = _PLAIN[x.op], x.dtype
    widens = x.op != "select" and any(a.dtype in _NARROW for a in x.args)

    def run(*args: Any) -> Any:
        if widens:
            args = tuple(a.astype(_SINGLE) if a.dtype in _NARROW else a for a in args)
        found = function(*args)
        return found[()] if found.dtype is dtype else found.astype(dtype)[()]

    return run


def _compress(mask: Any, x: Any) -> Any:
    """The lanes that hold, then the others, which nobody may rely on, the last one first."""
    mask, lanes = np.broadcast_arrays(mask, x)
    return np.concatenate([lanes[mask], lanes[~mask][::-1]])


def _by_lane(function: Callable[..., Any], args: tuple[Any, ...], dtype: DType) -> Any:
    lanes = np.broadcast_arrays(*args)
    found = [function(*lane) for lane in zip(*(a.ravel() for a in lanes), strict=True)]
    return np.asarray(found, dtype).reshape(lanes[0].shape)[()]


def _dot(dtype: Any, x: Any, y: Any, z: Any) -> Any:
    """z plus the products of all numbers of this dtype in a word, of lanes or of one word each."""
    words = np.broadcast_arrays(*(np.asarray(a, np.int32) for a in (x, y)))
    left, right = (np.ascontiguousarray(a)[..., None].view(dtype).astype(np.int32) for a in words)
    return (np.sum(left * right, -1, dtype=np.int32) + z)[()]


def fma(x: Any, y: Any, z: Any) -> Any:
    """x · y + z rounded once; integers wrap."""
    dtype = np.asarray(z).dtype
    if dtype.kind in "biu":
        return x * y + z
    if dtype == _SINGLE and np.isfinite(x).all() and np.isfinite(y).all() and np.isfinite(z).all():
        return _fused_singles(x, y, z)
    return _by_lane(_fused, (x, y, z), dtype)


def _fused_singles(x: Any, y: Any, z: Any) -> Any:
    """Finite float32: the product is a float64, and so is the sum, rounded to an odd last bit."""
    exact, z = np.multiply(x, y, dtype=np.float64), np.asarray(z, np.float64)
    total = exact + z
    part = total - exact
    lost = (exact - (total - part)) + (z - part)
    is_even = np.asarray(total).view(np.int64) & 1 == 0
    towards = np.copysign(np.inf, lost)
    odd = np.where((lost != 0) & is_even, np.nextafter(total, towards), total)
    return odd.astype(_SINGLE)[()]


def _fused(x: Any, y: Any, z: Any) -> Any:
    if not np.isfinite([x, y]).all() or x == 0 or y == 0:
        return x * y + z
    if not np.isfinite(z):
        return z + z.dtype.type(0)  # a NaN that is quiet
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    return _rounded(exact, x.dtype) if exact else x * y + z


def _rounded(exact: Fraction, dtype: DType) -> Any:
    """The nearest float, ties to even, found among the neighbours of a first guess."""
    try:
        guess = np.asarray(float(exact)).astype(dtype)[()]
    except OverflowError:  # beyond the largest float64
        return dtype.type(np.inf if exact > 0 else -np.inf)
    if not np.isfinite(guess):
        return guess
    near = [
        guess,
        np.nextafter(guess, dtype.type(-np.inf)),
        np.nextafter(guess, dtype.type(np.inf)),
    ]
    bits = np.dtype(f"u{dtype.itemsize}")
    near = [n for n in near if np.isfinite(n)]
    return min(near, key=lambda n: (abs(Fraction(float(n)) - exact), int(n.view(bits)) & 1))


def cast(x: Any, dtype: DType) -> Any:
    """Convert an array: floats round, float to integer truncates and saturates, NaN becomes 0."""
    if dtype == np.bool_:
        return x != 0
    if dtype.kind not in "iu" or x.dtype.kind in "biu":
        return x.astype(dtype)
    wide = x.astype(np.float64)
    limits = np.iinfo(dtype)
    inside = np.where((wide > limits.min) & (wide < float(limits.max)), wide, 0)
    found = inside.astype(dtype)
    found = np.where(wide >= float(limits.max), dtype.type(limits.max), found)
    return np.where(wide <= float(limits.min), dtype.type(limits.min), found)


_OTHERS: dict[str, Callable[..., Any]] = {
    "opaque": lambda x: x,
    "fma": fma,
    "dot4": partial(_dot, np.int8),
    "dot2": partial(_dot, np.int16),
    "turned": lambda *vectors: tuple(np.stack(vectors).T),
    "compress": _compress,
}

_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "mul": operator.mul,
    "min": _smaller,
    "max": _larger,
    "and": operator.and_,
    "or": operator.or_,
    "last": lambda x, y: y,
}


def combine(name: str, x: Any, y: Any) -> Any:
    """Two values met by a reduction's combine, `x` the earlier one."""
    dtype = np.asarray(x).dtype
    if dtype in _NARROW:
        x, y = np.asarray(x).astype(_SINGLE), np.asarray(y).astype(_SINGLE)
    return np.asarray(_COMBINE[name](x, y)).astype(dtype, copy=False)[()]


def is_better(name: str, x: Any, y: Any) -> Any:
    """Whether `y` replaces the earlier `x` under argmax or argmin: NaN is extreme, ties stay."""
    beyond = np.less(x, y) if name == "argmax" else np.less(y, x)
    return (x == x) & (beyond | (y != y))
