"""Continuous distributions as functions of random bits.

Everything is elementwise on `random_bits_op`, so a draw depends on (key, position) alone. Narrow
floats are computed in float32 and rounded once. Normals come from Box–Muller: logarithm, root and
cosine are accurate everywhere and reach 6.7 (float32) or 9.4 (float64) standard deviations.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log2, pi
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.context import default_float
from weft.core.common.types import Array, DType, Shape
from weft.core.tensor.convert import holds_tensor, known, to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ops.base import call
from weft.ops.creation import asarray, shape_tuple
from weft.ops.elementwise.arithmetic import where
from weft.ops.elementwise.comparison import maximum, minimum
from weft.ops.elementwise.complex_parts import isinf
from weft.ops.elementwise.elementary import cos, exp, log, log1p, sin, sqrt
from weft.ops.elementwise.special_functions import ndtr, ndtri
from weft.ops.families import broadcast_shape, cast
from weft.ops.random.bits import midpoint, random_bits_op
from weft.ops.random.state import as_key, streams


def require(op: str, name: str, value: Any, test: Callable[[Array], Any], what: str) -> None:
    """Refuse a parameter whose value is known and out of range; NaN is out of range."""
    array = known(value)
    if array is None:
        return
    wide = array.astype(np.float64) if dtypes.is_narrow(array.dtype) else array
    wrong = ~np.asarray(test(wide))
    if wrong.any():
        raise ArgumentError(f"{op}: {name} must be {what}, got {array[wrong].flat[0]}")


def float_dtype(op: str, dtype: Any, *parameters: Any) -> DType:
    """The float dtype of a draw: as asked, else that of the float parameters, else the default."""
    if dtype is None:
        given = [p.dtype for p in parameters if isinstance(p, Tensor | np.ndarray)]
        floats = [d for d in given if dtypes.is_floating(d)]
        return dtypes.promote_all(*floats, op=op) if floats else default_float()
    found = dtypes.as_dtype(dtype, op=op, default_float=default_float())
    if not dtypes.is_floating(found):
        raise DTypeError(f"{op}: draws are real floats, got dtype {dtypes.name_of(found)}")
    return found


def working(dtype: DType) -> DType:
    """The dtype a draw is computed in."""
    return dtypes.float64 if dtype == dtypes.float64 else dtypes.float32


def draw_shape(op: str, shape: Any, *shapes: Shape) -> Shape:
    """The shape asked for, which parameters must broadcast to; theirs if none is asked for."""
    together = broadcast_shape(op, *shapes)
    if shape is None:
        return together
    sizes = shape_tuple(op, shape)
    if broadcast_shape(op, sizes, together) != sizes:
        raise ShapeError(f"{op}: parameters of shape {together} do not broadcast to shape {sizes}")
    return sizes


def parameter(op: str, key: Tensor, dtype: DType, value: Any) -> Tensor:
    """A real parameter as a tensor; a number given without a dtype keeps all its digits."""
    tensor = to_tensor(value, like=key.device, op=op)
    if dtypes.is_complex(tensor.dtype) or dtypes.is_bool(tensor.dtype):
        raise DTypeError(f"{op}: parameters are real, got {dtypes.name_of(tensor.dtype)}")
    if isinstance(value, Tensor | np.ndarray) or holds_tensor(value):
        return cast(tensor, dtype)
    return asarray(value, dtype=dtype, device=key.device)


def parameters(
    op: str, key: Tensor, shape: Any, dtype: DType, *values: Any
) -> tuple[Shape, list[Tensor]]:
    """The shape of the draw, and parameters as tensors of a dtype, not broadcast yet."""
    tensors = [parameter(op, key, dtype, value) for value in values]
    return draw_shape(op, shape, *(t.shape for t in tensors)), tensors


def raw_bits(key: Tensor, shape: Shape, count: int, word: str = "mixed") -> Tensor:
    """Random integers below 2^count."""
    result: Tensor = call(random_bits_op, (key,), {"shape": shape, "bits": count, "word": word})
    return result


def open_uniform(key: Tensor, shape: Shape, dtype: DType, word: str = "mixed") -> Tensor:
    """Uniform in (0, 1), both ends left out, and dense near 0; float32 or float64."""
    size = 8 * dtype.itemsize
    return _middle(raw_bits(key, shape, size, word), size, dtype)


def signed_uniform(key: Tensor, shape: Shape, dtype: DType) -> tuple[Tensor, Tensor]:
    """A fair sign and, from the other bits, what `open_uniform` gives."""
    size = 8 * dtype.itemsize
    drawn = raw_bits(key, shape, size)
    sign = cast(drawn & 1, dtype) * 2 - 1
    return sign, _middle(drawn >> 1, size - 1, dtype)


def _middle(drawn: Tensor, size: int, dtype: DType, length: float = 1.0) -> Tensor:
    """An integer below 2^size as a float inside (0, length)."""
    return call(midpoint, (drawn,), {"bits": size, "length": length, "dtype": dtype})


def unit_uniform(key: Tensor, shape: Shape, dtype: DType) -> Tensor:
    """Multiples of the dtype's spacing below 1, in [0, 1): every one is exact."""
    digits = 1 - round(log2(dtypes.finfo(dtype).eps))
    result: Tensor = cast(raw_bits(key, shape, digits), dtype) * 2.0**-digits
    return result


def standard_normal(key: Tensor, shape: Shape, dtype: DType) -> Tensor:
    """Box–Muller with the cosine alone: one normal for each position; float32 or float64."""
    if dtype == dtypes.float64:
        near, around = streams(key, 2)
        turn, digits = raw_bits(around, shape, 52), 52
        radius = open_uniform(near, shape, dtype)
    else:
        turn, digits = raw_bits(key, shape, 23, "second"), 23
        radius = open_uniform(key, shape, dtype, "first")
    result: Tensor = sqrt(-2 * log(radius)) * cos(_middle(turn, digits, dtype, pi))
    return result


def bits(key: Any, shape: Any = (), dtype: Any = "uint32") -> Tensor:
    """Uniform random unsigned integers of a dtype's full range."""
    found, sizes = as_key("bits", key), shape_tuple("bits", shape)
    target = dtypes.as_dtype("uint32" if dtype is None else dtype, op="bits")
    if target not in dtypes.UNSIGNED:
        name = dtypes.name_of(target)
        raise DTypeError(f"bits: the dtype must be an unsigned integer, got {name}")
    return cast(raw_bits(found, sizes, 64 if target == dtypes.uint64 else 32), target)


def uniform(
    key: Any, shape: Any = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0
) -> Tensor:
    """Uniform floats in [minval, maxval); differentiable in both ends.

    An empty interval is refused where its ends are known; where they are computed in a compiled or
    mapped function, every number of it is minval.

    >>> from weft.ops.random.state import key
    >>> uniform(key(0), (2, 3)).shape
    (2, 3)
    """
    found = as_key("uniform", key)
    target = float_dtype("uniform", dtype, minval, maxval)
    sizes, (low, high) = parameters(
        "uniform", found, shape_tuple("uniform", shape), target, minval, maxval
    )
    _require_interval("uniform", minval, maxval)
    for name, value in (("minval", minval), ("maxval", maxval)):
        require("uniform", name, value, np.isfinite, "finite")
    unit = unit_uniform(found, sizes, target)
    if _are_zero_and_one(minval, maxval):
        return unit
    # The length may overflow, half of it does not.
    scale = cast(where(isinf(high - low), 0.5, 1.0), target)
    start = low * scale
    drawn = (start + unit * (high * scale - start)) / scale
    # What rounds up to the open end belongs to the closed one: then each float has its share.
    return where(drawn < high, drawn, low)


def _are_zero_and_one(first: Any, second: Any) -> bool:
    """Whether two parameters are plain numbers, 0 and 1."""
    plain = all(type(given) in (int, float) for given in (first, second))
    return plain and (first, second) == (0, 1)


def _require_interval(op: str, low: Any, high: Any) -> None:
    first, last = known(low), known(high)
    if first is not None and last is not None and not np.all(first < last):
        raise ArgumentError(f"{op}: minval must be below maxval, got {low!r:.40} and {high!r:.40}")


def normal(key: Any, shape: Any = (), dtype: Any = None, mean: Any = 0.0, std: Any = 1.0) -> Tensor:
    """Normal (Gaussian) floats; differentiable in mean and standard deviation."""
    found = as_key("normal", key)
    target = float_dtype("normal", dtype, mean, std)
    wide = working(target)
    sizes, (centre, spread) = parameters(
        "normal", found, shape_tuple("normal", shape), wide, mean, std
    )
    require("normal", "std", std, lambda x: x >= 0, "non-negative")
    drawn = standard_normal(found, sizes, wide)
    if not _are_zero_and_one(mean, std):  # no draw is -0.0, which 0 added to it would change
        drawn = drawn * spread + centre
    return cast(drawn, target)


def truncated_normal(
    key: Any, lower: Any, upper: Any, shape: Any = None, dtype: Any = None
) -> Tensor:
    """Standard normal floats given that they lie in [lower, upper]; differentiable in both.

    The quantile of a uniform draw between the two distribution values; an interval so far out that
    these underflow (beyond 13 in float32, 37 in float64) gives its end nearest to 0.
    """
    found = as_key("truncated_normal", key)
    target = float_dtype("truncated_normal", dtype, lower, upper)
    wide = working(target)
    sizes, (low, high) = parameters("truncated_normal", found, shape, wide, lower, upper)
    _require_interval("truncated_normal", lower, upper)
    # A positive interval is turned round: small distribution values keep their digits.
    turned = low > 0
    left, right = where(turned, -high, low), where(turned, -low, high)
    first, last = ndtr(left), ndtr(right)
    share = first + open_uniform(found, sizes, wide) * (last - first)
    drawn = where(last > 0, ndtri(where(last > 0, share, 0.5)), right)
    kept = maximum(minimum(drawn, right), left)
    return cast(where(turned, -kept, kept), target)


def _standard(
    op: str, key: Any, shape: Any, dtype: Any, make: Callable[[Tensor, Shape, DType], Tensor]
) -> Tensor:
    """A distribution without parameters, computed in the working dtype."""
    found, target = as_key(op, key), float_dtype(op, dtype)
    return cast(make(found, shape_tuple(op, shape), working(target)), target)


def standard_exponential(key: Tensor, shape: Shape, dtype: DType) -> Tensor:
    """Exponential with mean 1, never 0."""
    result: Tensor = -log(open_uniform(key, shape, dtype))
    return result


def standard_gumbel(key: Tensor, shape: Shape, dtype: DType) -> Tensor:
    """Gumbel; the uniform is dense where its long tail is."""
    result: Tensor = -log(-log1p(-open_uniform(key, shape, dtype)))
    return result


def exponential(key: Any, shape: Any = (), dtype: Any = None) -> Tensor:
    """Exponential floats with mean 1; multiply by a scale for another."""
    return _standard("exponential", key, shape, dtype, standard_exponential)


def gumbel(key: Any, shape: Any = (), dtype: Any = None) -> Tensor:
    """Standard Gumbel floats: distribution exp(-exp(-x))."""
    return _standard("gumbel", key, shape, dtype, standard_gumbel)


def laplace(key: Any, shape: Any = (), dtype: Any = None) -> Tensor:
    """Standard Laplace floats: density exp(-|x|) / 2."""

    def make(key: Tensor, shape: Shape, dtype: DType) -> Tensor:
        sign, u = signed_uniform(key, shape, dtype)
        result: Tensor = sign * -log(u)
        return result

    return _standard("laplace", key, shape, dtype, make)


def logistic(key: Any, shape: Any = (), dtype: Any = None) -> Tensor:
    """Standard logistic floats: distribution 1 / (1 + exp(-x))."""

    def make(key: Tensor, shape: Shape, dtype: DType) -> Tensor:
        sign, u = signed_uniform(key, shape, dtype)
        half = u * 0.5
        result: Tensor = sign * (log1p(-half) - log(half))
        return result

    return _standard("logistic", key, shape, dtype, make)


def cauchy(key: Any, shape: Any = (), dtype: Any = None) -> Tensor:
    """Standard Cauchy floats: density 1 / (π (1 + x²))."""

    def make(key: Tensor, shape: Shape, dtype: DType) -> Tensor:
        sign, u = signed_uniform(key, shape, dtype)
        angle = u * (pi / 2)
        result: Tensor = sign * cos(angle) / sin(angle)
        return result

    return _standard("cauchy", key, shape, dtype, make)


def maxwell(key: Any, shape: Any = (), dtype: Any = None) -> Tensor:
    """The length of a vector of three standard normals."""

    def make(key: Tensor, shape: Shape, dtype: DType) -> Tensor:
        parts = [standard_normal(k, shape, dtype) for k in streams(key, 3)]
        result: Tensor = sqrt(parts[0] ** 2 + parts[1] ** 2 + parts[2] ** 2)
        return result

    return _standard("maxwell", key, shape, dtype, make)


def _scaled(
    op: str, key: Any, shape: Any, dtype: Any, make: Callable[..., Tensor], **given: Any
) -> Tensor:
    """A function of an exponential draw and of positive parameters; differentiable in them."""
    found, target = as_key(op, key), float_dtype(op, dtype, *given.values())
    wide = working(target)
    sizes, tensors = parameters(op, found, shape, wide, *given.values())
    for name, value in given.items():
        require(op, name, value, lambda x: (x > 0) & (x < inf), "positive and finite")
    return cast(make(standard_exponential(found, sizes, wide), *tensors), target)


def pareto(key: Any, b: Any, shape: Any = None, dtype: Any = None) -> Tensor:
    """Pareto floats from 1 on: P(X > x) = x^-b."""
    return _scaled("pareto", key, shape, dtype, lambda e, b: exp(e / b), b=b)


def rayleigh(key: Any, scale: Any = 1.0, shape: Any = None, dtype: Any = None) -> Tensor:
    """Rayleigh floats: the length of two normals of standard deviation `scale`."""

    def make(e: Tensor, scale: Tensor) -> Tensor:
        result: Tensor = scale * sqrt(2 * e)
        return result

    return _scaled("rayleigh", key, shape, dtype, make, scale=scale)


def weibull_min(
    key: Any, scale: Any, concentration: Any, shape: Any = None, dtype: Any = None
) -> Tensor:
    """Weibull floats: P(X > x) = exp(-(x / scale)^concentration)."""

    def make(e: Tensor, scale: Tensor, concentration: Tensor) -> Tensor:
        result: Tensor = scale * exp(log(e) / concentration)
        return result

    return _scaled("weibull_min", key, shape, dtype, make, scale=scale, concentration=concentration)


def lognormal(key: Any, sigma: Any = 1.0, shape: Any = None, dtype: Any = None) -> Tensor:
    """The exponential of normals with standard deviation sigma."""
    found, target = as_key("lognormal", key), float_dtype("lognormal", dtype, sigma)
    wide = working(target)
    sizes, (spread,) = parameters("lognormal", found, shape, wide, sigma)
    require("lognormal", "sigma", sigma, lambda x: x >= 0, "non-negative")
    return cast(exp(standard_normal(found, sizes, wide) * spread), target)
