"""Expand a named function into scalar instructions.

float32 and float64 are computed in their own arithmetic; float16 and bfloat16 in float32, rounded
once at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.errors import UnsupportedDTypeError, UnsupportedError
from weft.ops.functions import (
    bits,
    complex_plane,
    error,
    exponential,
    gamma,
    hyperbolic,
    logarithm,
    power,
    trigonometric,
)
from weft.ops.functions.number import Number
from weft.ops.scalars import Scalars

FUNCTIONS: dict[str, Callable[..., Number]] = {
    "exp": exponential.exp,
    "exp2": exponential.exp2,
    "short_exp2": exponential.short_exp2,
    "short_power": exponential.short_power,
    "expm1": exponential.expm1,
    "sigmoid": exponential.sigmoid,
    "log": logarithm.log,
    "log2": logarithm.log2,
    "log10": logarithm.log10,
    "log1p": logarithm.log1p,
    "log_sigmoid": logarithm.log_sigmoid,
    "logaddexp": logarithm.logaddexp,
    "logaddexp2": logarithm.logaddexp2,
    "sin": trigonometric.sin,
    "cos": trigonometric.cos,
    "tan": trigonometric.tan,
    "asin": trigonometric.asin,
    "acos": trigonometric.acos,
    "atan": trigonometric.atan,
    "atan2": trigonometric.atan2,
    "sinh": hyperbolic.sinh,
    "cosh": hyperbolic.cosh,
    "tanh": hyperbolic.tanh,
    "asinh": hyperbolic.asinh,
    "acosh": hyperbolic.acosh,
    "atanh": hyperbolic.atanh,
    "pow": power.pow,
    "sqrt": Number.sqrt,
    "rsqrt": power.rsqrt,
    "cbrt": power.cbrt,
    "hypot": power.hypot,
    "erf": error.erf,
    "erfc": error.erfc,
    "ndtr": error.ndtr,
    "normal_share": error.normal_share,
    "tanh_share": error.tanh_share,
    "erfinv": error.erfinv,
    "lgamma": gamma.lgamma,
    "digamma": gamma.digamma,
    "ldexp": bits.ldexp,
}
# Functions of complex numbers, on their parts.
COMPLEX_FUNCTIONS: dict[str, Callable[[Number, Number], tuple[Number, Number]]] = {
    "exp": complex_plane.exp,
    "log": complex_plane.log,
    "sqrt": complex_plane.sqrt,
    "reciprocal": complex_plane.reciprocal,
    "sign": complex_plane.sign,
}
# Functions of the bits, whatever the format.
BIT_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "copysign": bits.copysign,
    "nextafter": bits.nextafter,
}


def expand(s: Scalars, name: str, *args: Any) -> Any:
    """The function called `name` of operands of one float dtype, built from instructions of `s`."""
    dtype = np.dtype(args[0].dtype)
    if name in BIT_FUNCTIONS:
        return BIT_FUNCTIONS[name](s, *args)
    if dtype.kind == "c" and name in COMPLEX_FUNCTIONS:
        (x,) = args
        real, imag = COMPLEX_FUNCTIONS[name](Number(s, s.real(x)), Number(s, s.imag(x)))
        return s.complex(real.value, imag.value)
    if name not in FUNCTIONS:
        raise UnsupportedError(f"{name}: no kernel: it is not expanded into scalar instructions")
    if dtype.kind not in "fV":
        raise UnsupportedDTypeError(f"{name}: operand 0: expected a real float, got {dtype}")
    if dtype.itemsize >= 4:
        return FUNCTIONS[name](*(Number(s, x) for x in args)).value
    wide = np.dtype(np.float32)
    operands = (s.cast(x, wide) if np.dtype(x.dtype) == dtype else x for x in args)
    return s.cast(FUNCTIONS[name](*(Number(s, x) for x in operands)).value, dtype)
