"""Activation functions of each element, and gated pairs of them.

All are composed of elementary functions. At a kink the derivative is the one of the flat side: relu
has slope 0 at 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.context import default_float
from weft.core.common.parameters import as_choice
from weft.core.common.slots import public
from weft.core.tensor.convert import as_number, is_known, known, to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ops.axes import normalize_axis
from weft.ops.elementwise.arithmetic import where
from weft.ops.elementwise.complex_parts import abs as absolute
from weft.ops.elementwise.elementary import exp, expm1, log1p, sigmoid, tanh
from weft.ops.elementwise.special_functions import normal_share, tanh_share
from weft.ops.families import UnaryOperation, cast
from weft.ops.naming import named
from weft.ops.view.reshape import reshape
from weft.ops.view.slice import narrow


def _real(op: str, x: Any, *beside: Any) -> Tensor:
    """A real tensor."""
    tensor = to_tensor(x, beside=beside, op=op)
    if dtypes.is_complex(tensor.dtype) or dtypes.is_bool(tensor.dtype):
        raise DTypeError(f"{op}: takes real numbers, got {dtypes.name_of(tensor.dtype)}")
    return tensor


def _float(op: str, x: Any, *beside: Any) -> Tensor:
    """A real tensor of floats; integers become the default float."""
    tensor = _real(op, x, *beside)
    return tensor if dtypes.is_floating(tensor.dtype) else cast(tensor, default_float())


class Relu(UnaryOperation):
    """x where it is positive, else 0; the derivative at 0 is 0."""

    domain = "real"

    def eval(self, x: Any, **params: Any) -> Any:
        return np.maximum(x, x.dtype.type(0))

    def body(self, s: Any, x: Any) -> Any:
        return s.max(x, s.const(0, x.dtype))

    def derivative(self, x: Tensor, y: Tensor) -> Tensor:
        return cast(y > 0, y.dtype)


relu = Relu()


@public
@named
def relu6(x: Any, /) -> Tensor:
    """x between 0 and 6, clipped beyond."""
    return hardtanh(x, 0, 6)


@public
def hardtanh(x: Any, /, low: float = -1.0, high: float = 1.0) -> Tensor:
    """x between `low` and `high`, clipped beyond."""
    t = _float("hardtanh", x, low, high)
    low = as_number("hardtanh", "low", low, beside=(t,))
    high = as_number("hardtanh", "high", high, beside=(t,))
    ends = [end for end in (known(low), known(high)) if end is not None and end.shape == ()]
    if len(ends) == 2 and not ends[0] < ends[1]:
        raise ArgumentError(f"hardtanh: low {float(ends[0])} is not below high {float(ends[1])}")
    return where(t <= low, low, where(t >= high, high, t))


@public
@named
def leaky_relu(x: Any, /, negative_slope: float = 0.01) -> Tensor:
    """x where it is positive, `negative_slope` · x elsewhere."""
    t = _float("leaky_relu", x, negative_slope)
    slope = as_number("leaky_relu", "negative_slope", negative_slope, beside=(t,))
    return where(t > 0, t, t * slope)


@public
def prelu(x: Any, weight: Any, /) -> Tensor:
    """`leaky_relu` with a learned slope: one number, or one for each feature (axis 1)."""
    t, slope = _float("prelu", x, weight), _float("prelu", weight, x)
    if slope.size != 1:
        features = t.shape[1] if t.ndim > 1 else t.size
        if slope.shape != (features,):
            raise ShapeError(f"prelu: weight: expected 1 or {features} slopes, got {slope.shape}")
        slope = reshape(slope, (features, *(1,) * (t.ndim - 2)))
    else:
        slope = reshape(slope, ())
    return where(t > 0, t, t * slope)


def _exponential_below(t: Any, alpha: float = 1.0) -> Any:
    """alpha · (e^t − 1) where t ≤ 0; positive t are replaced by 0 so that nothing overflows."""
    return alpha * expm1(where(t > 0, 0, t))


@public
@named
def elu(x: Any, /, alpha: float = 1.0) -> Tensor:
    """x where it is positive, alpha · (e^x − 1) elsewhere."""
    t = _float("elu", x, alpha)
    return where(t > 0, t, _exponential_below(t, as_number("elu", "alpha", alpha, beside=(t,))))


@public
@named
def selu(x: Any, /) -> Tensor:
    """Scaled `elu` that keeps mean 0 and variance 1 of its input."""
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    return scale * elu(x, alpha)


@public
def celu(x: Any, /, alpha: float = 1.0) -> Tensor:
    """x where it is positive, alpha · (e^(x/alpha) − 1) elsewhere."""
    alpha = as_number("celu", "alpha", alpha, beside=(x,))
    if is_known(alpha, lambda v: v == 0):
        raise ArgumentError("celu: alpha must not be 0")
    t = _float("celu", x, alpha)
    return where(t > 0, t, _exponential_below(t / alpha, alpha))


@public
def gelu(x: Any, /, approximate: str = "none") -> Tensor:
    """x · Φ(x) with the normal distribution Φ; `approximate="tanh"` is the usual formula for it."""
    t = _float("gelu", x)
    if as_choice("gelu", "approximate", approximate, ("none", "tanh")) == "tanh":
        return t * tanh_share(t)
    return t * normal_share(t)


@public
def silu(x: Any, /) -> Tensor:
    """x · sigmoid(x), also called swish."""
    t = _float("silu", x)
    return t * sigmoid(t)


@public
def swish(x: Any, /) -> Tensor:
    """x · sigmoid(x), also called silu."""
    return silu(x)


@public
def softplus(x: Any, /, beta: float = 1.0) -> Tensor:
    """log(1 + e^(beta·x)) / beta, without overflow."""
    beta = as_number("softplus", "beta", beta, beside=(x,))
    if is_known(beta, lambda v: v == 0):
        raise ArgumentError("softplus: beta must not be 0")
    t = _float("softplus", x, beta) * beta
    above = where(t > 0, t, 0)
    return (above + log1p(exp(where(t > 0, -t, t)))) / beta


@public
def mish(x: Any, /) -> Tensor:
    """x · tanh(softplus(x))."""
    t = _float("mish", x)
    return t * tanh(softplus(t))


@public
def softsign(x: Any, /) -> Tensor:
    """x / (1 + |x|)."""
    t = _float("softsign", x)
    return t / (1 + absolute(t))


@public
def hard_sigmoid(x: Any, /) -> Tensor:
    """x/6 + 1/2 between 0 and 1, clipped beyond."""
    t = _float("hard_sigmoid", x)
    return where(t <= -3, 0, where(t >= 3, 1, t / 6 + 0.5))


@public
def hard_swish(x: Any, /) -> Tensor:
    """x · hard_sigmoid(x)."""
    t = _float("hard_swish", x)
    low, high = t <= -3, t >= 3
    inside = where(low | high, 0, t)  # the slope of an infinite square would be NaN
    return where(low, 0, where(high, t, inside * (inside + 3) / 6))


@public
def tanhshrink(x: Any, /) -> Tensor:
    """x − tanh(x)."""
    t = _float("tanhshrink", x)
    return t - tanh(t)


@public
@named
def softshrink(x: Any, /, threshold: float = 0.5) -> Tensor:
    """x moved toward 0 by `threshold`, stopping at 0."""
    t = _float("softshrink", x, threshold)
    threshold = as_number("softshrink", "threshold", threshold, beside=(t,))
    return where(t > threshold, t - threshold, where(t < -threshold, t + threshold, t * 0))


@public
@named
def hardshrink(x: Any, /, threshold: float = 0.5) -> Tensor:
    """x where |x| exceeds `threshold`, else 0."""
    t = _float("hardshrink", x, threshold)
    inside = absolute(t) <= as_number("hardshrink", "threshold", threshold, beside=(t,))
    return where(inside, 0, t)


@public
@named
def threshold(x: Any, /, level: float, value: float) -> Tensor:
    """x where it exceeds `level`, else `value`."""
    t = _float("threshold", x, level, value)
    level = as_number("threshold", "level", level, beside=(t,))
    value = as_number("threshold", "value", value, beside=(t,))
    return where(t <= level, value, t)


def _halves(op: str, x: Any, axis: int) -> tuple[Tensor, Tensor]:
    t = _float(op, x)
    i = normalize_axis(op, axis, t.ndim)
    if t.shape[i] % 2:
        raise ShapeError(f"{op}: axis {i} of shape {t.shape} has no two halves")
    half = t.shape[i] // 2
    return narrow(t, i, 0, half), narrow(t, i, half, half)


@public
def glu(x: Any, /, axis: int = -1) -> Tensor:
    """First half of an axis times the sigmoid of the second half."""
    a, b = _halves("glu", x, axis)
    return a * sigmoid(b)


@public
def swiglu(x: Any, /, axis: int = -1) -> Tensor:
    """`silu` of the first half of an axis times the second half."""
    a, b = _halves("swiglu", x, axis)
    return silu(a) * b


__all__ = [
    "celu",
    "elu",
    "gelu",
    "glu",
    "hard_sigmoid",
    "hard_swish",
    "hardshrink",
    "hardtanh",
    "leaky_relu",
    "mish",
    "prelu",
    "relu",
    "relu6",
    "selu",
    "silu",
    "softplus",
    "softshrink",
    "softsign",
    "swiglu",
    "swish",
    "tanhshrink",
    "threshold",
]
