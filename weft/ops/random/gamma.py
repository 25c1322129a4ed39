"""The gamma family: gamma, beta, Dirichlet, chi-square, Student t, F, Wishart; and normal vectors.

Gamma draws use Marsaglia and Tsang's method ("A simple method for generating gamma variables",
2000) with a fixed number of candidates for each position, of which the first accepted one is taken:
no loop depends on values, so draws are the same alone, mapped or compiled.
"""

from __future__ import annotations

import math
from math import inf
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.slots import FUNCTIONS
from weft.core.common.types import Array, DType, Shape
from weft.core.tensor.tensor import Tensor
from weft.errors import ShapeError
from weft.ops import reduction
from weft.ops.base import Operation, Tangents, call
from weft.ops.creation import arange, ones
from weft.ops.elementwise.arithmetic import where
from weft.ops.elementwise.elementary import exp, log, sqrt
from weft.ops.families import broadcast, cast
from weft.ops.linalg import cholesky_op
from weft.ops.order import take_along_axis
from weft.ops.random.continuous import (
    draw_shape,
    float_dtype,
    open_uniform,
    parameter,
    parameters,
    require,
    standard_normal,
    working,
)
from weft.ops.random.state import as_key, streams
from weft.ops.reduction import argmax
from weft.ops.view.reshape import expand_dims
from weft.ops.view.transpose import matrix_transpose

# A candidate is refused with probability at most 0.049, so all of them with at most 4e-11. Then
# the first one stands, which is nearly right: it has the Wilson–Hilferty approximation's law.
_CANDIDATES = 8
_SMALLEST = 1e-18  # of a sum: terms below it are left out


class GammaDraw(Operation):
    """A draw of the gamma law of shape a, given as (a, draw); its derivative by a is implicit.

    The draw moves so that as much of the law stays below it: dx/da = -(∂F/∂a) / (∂F/∂x).
    """

    factors = "..., ... -> ..."
    work = 0
    widen = False
    constants = (1,)
    reasons = {
        "vjp": "it is given, as that of the law's quantile: the value alone has none",
        "jvp": "it is given, as that of the law's quantile: the value alone has none",
    }

    def eval(self, a: Array, x: Array) -> Array:
        return np.array(np.broadcast_arrays(a, x)[1])

    def body(self, s: Any, a: Any, x: Any) -> Any:
        return x

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        return None if tangents[0] is None else tangents[0] * quantile_slope(primals[0], out)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return ct * quantile_slope(primals[0], out), FUNCTIONS["zeros_like"](primals[1])


gamma_draw_op = GammaDraw()


def quantile_slope(a: Tensor, x: Tensor) -> Tensor:
    """How far a quantile x > 0 of the gamma law moves for each unit of its shape a.

    With cₙ = xⁿ / (a (a+1) … (a+n)), F(a, x) = xᵃ e⁻ˣ / Γ(a) Σ cₙ, so that
    dx/da = x Σ cₙ (ψ(a) - ln x + 1/a + … + 1/(a+n)). In the upper tail terms cancel: float64.
    """
    shape, place = cast(a, dtypes.float64), cast(x, dtypes.float64)
    level = FUNCTIONS["digamma"](shape) - log(place)
    first = 1 / shape

    def step(state: Any) -> Any:
        n, term, harmonic, total, mass = state
        term = where(term > _SMALLEST * mass, term * place / (shape + n), 0)
        harmonic = harmonic + 1 / (shape + n)
        return n + 1, term, harmonic, total + term * (level + harmonic), mass + term

    start = (ones((), dtype=dtypes.float64, device=x.device), first, first)
    state = (*start, first * (level + first), first)
    found = FUNCTIONS["while_loop"](lambda state: reduction.any(state[1] > 0), step, state)
    return cast(place * found[3], x.dtype)


def first_accepted(candidates: Tensor, accepted: Tensor) -> Tensor:
    """Along the last axis, the first accepted candidate, or candidate 0 if there is none."""
    place = expand_dims(argmax(accepted, axis=-1), -1)
    result: Tensor = take_along_axis(candidates, place, axis=-1)[..., 0]
    return result


def _parts(key: Tensor, a: Tensor, shape: Shape, dtype: DType) -> tuple[Tensor, Tensor]:
    """(g, b) so that g·exp(b) has the gamma law: b lifts shapes below 1 to the next one."""
    normals, uniforms, powers = streams(key, 3)
    small = a < 1
    lifted = where(small, a + 1, a)
    d = FUNCTIONS["stop_gradient"](lifted) - 1 / 3
    wide = (*shape, _CANDIDATES)
    column = broadcast(expand_dims(d, -1), wide)
    z, u = standard_normal(normals, wide, dtype), open_uniform(uniforms, wide, dtype)
    x = 1 + z / sqrt(9 * column)
    positive = x > 0
    v = where(positive, x, 1) ** 3
    accepted = positive & (log(u) < 0.5 * z * z + column * (1 - v + log(v)))
    lift = log(open_uniform(powers, shape, dtype)) / where(small, a, 1)
    drawn = call(gamma_draw_op, (lifted, d * first_accepted(v, accepted)), {})
    valid = (a > 0) & (a < inf)
    return where(valid, drawn, float("nan")), where(small, lift, 0)


def _draw(
    op: str, key: Any, shape: Any, dtype: Any, **given: Any
) -> tuple[Tensor, Shape, list[Tensor], DType, DType]:
    """Checked arguments of a function whose parameters are all positive."""
    found, target = as_key(op, key), float_dtype(op, dtype, *given.values())
    wide = working(target)
    sizes, tensors = parameters(op, found, shape, wide, *given.values())
    tensors = [broadcast(x, sizes) for x in tensors]
    for name, value in given.items():
        require(op, name, value, lambda x: (x > 0) & (x < inf), "positive and finite")
    return found, sizes, tensors, wide, target


def _gamma(key: Tensor, a: Tensor) -> Tensor:
    drawn, lift = _parts(key, a, a.shape, a.dtype)
    result: Tensor = drawn * exp(lift)
    return result


def _log_gamma(key: Tensor, a: Tensor) -> Tensor:
    drawn, lift = _parts(key, a, a.shape, a.dtype)
    result: Tensor = log(drawn) + lift
    return result


def gamma(key: Any, a: Any, shape: Any = None, dtype: Any = None) -> Tensor:
    """Gamma floats of shape parameter a and scale 1; differentiable by a.

    A parameter out of range gives NaN where its value cannot be read, inside vmap for instance.
    """
    found, _, (a,), _, target = _draw("gamma", key, shape, dtype, a=a)
    return cast(_gamma(found, a), target)


def loggamma(key: Any, a: Any, shape: Any = None, dtype: Any = None) -> Tensor:
    """Logarithms of gamma floats, which do not underflow for small a."""
    found, _, (a,), _, target = _draw("loggamma", key, shape, dtype, a=a)
    return cast(_log_gamma(found, a), target)


def beta(key: Any, a: Any, b: Any, shape: Any = None, dtype: Any = None) -> Tensor:
    """Beta floats in [0, 1]: density proportional to x^(a-1) (1-x)^(b-1)."""
    found, _, tensors, _, target = _draw("beta", key, shape, dtype, a=a, b=b)
    x, y = (_log_gamma(k, t) for k, t in zip(streams(found, 2), tensors, strict=True))
    top = where(x > y, x, y)
    x, y = exp(x - top), exp(y - top)
    return cast(x / (x + y), target)


def dirichlet(key: Any, alpha: Any, shape: Any = None, dtype: Any = None) -> Tensor:
    """Points of the simplex along a last axis as long as alpha's; `shape` is that of the batch."""
    found = as_key("dirichlet", key)
    target = float_dtype("dirichlet", dtype, alpha)
    weights = parameter("dirichlet", found, working(target), alpha)
    if weights.ndim == 0 or weights.shape[-1] == 0:
        raise ShapeError(f"dirichlet: alpha needs a last axis of weights, got {weights.shape}")
    batch = draw_shape("dirichlet", shape, weights.shape[:-1])
    require("dirichlet", "alpha", alpha, lambda x: (x > 0) & (x < inf), "positive and finite")
    full = broadcast(weights, (*batch, weights.shape[-1]))
    logs = _log_gamma(found, full)
    parts = exp(logs - reduction.max(logs, axis=-1, keepdims=True))
    return cast(parts / reduction.sum(parts, axis=-1, keepdims=True), target)


def chisquare(key: Any, df: Any, shape: Any = None, dtype: Any = None) -> Tensor:
    """Chi-square floats with df degrees of freedom."""
    found, _, (df,), _, target = _draw("chisquare", key, shape, dtype, df=df)
    return cast(2 * _gamma(found, df / 2), target)


def t(key: Any, df: Any, shape: Any = None, dtype: Any = None) -> Tensor:
    """Student's t floats with df degrees of freedom."""
    found, sizes, (df,), wide, target = _draw("t", key, shape, dtype, df=df)
    above, below = streams(found, 2)
    half = df / 2
    # exp of half the logarithm: small df may underflow the gamma draw but not its root
    drawn = standard_normal(above, sizes, wide) * sqrt(half)
    return cast(drawn * exp(-0.5 * _log_gamma(below, half)), target)


def f(key: Any, dfnum: Any, dfden: Any, shape: Any = None, dtype: Any = None) -> Tensor:
    """F floats: the ratio of two chi-squares, each divided by its degrees of freedom."""
    found, _, tensors, _, target = _draw("f", key, shape, dtype, dfnum=dfnum, dfden=dfden)
    halves = [df / 2 for df in tensors]
    above, below = (_log_gamma(k, h) for k, h in zip(streams(found, 2), halves, strict=True))
    return cast(exp(above - below) * (halves[1] / halves[0]), target)


def multivariate_normal(
    key: Any, mean: Any, cov: Any, shape: Any = None, dtype: Any = None
) -> Tensor:
    """Normal vectors of a mean and a positive definite covariance; differentiable in both.

    The last axis of `mean` and the last two of `cov` are the vector's; `shape` is the batch.
    """
    found, target = (
        as_key("multivariate_normal", key),
        float_dtype("multivariate_normal", dtype, mean, cov),
    )
    wide = working(target)
    centre, spread = (parameter("multivariate_normal", found, wide, x) for x in (mean, cov))
    if centre.ndim == 0 or spread.ndim < 2 or spread.shape[-2:] != (centre.shape[-1],) * 2:
        raise ShapeError(
            "multivariate_normal: mean is (…, n) and cov (…, n, n), got shapes"
            f" {centre.shape} and {spread.shape}"
        )
    batch = draw_shape("multivariate_normal", shape, centre.shape[:-1], spread.shape[:-2])
    noise = standard_normal(found, (*batch, centre.shape[-1]), wide)
    lower = call(cholesky_op, (spread,), {})
    moved = (lower @ expand_dims(noise, -1))[..., 0]
    return cast(broadcast(centre, moved.shape) + moved, target)


def wishart(key: Any, df: Any, scale: Any, shape: Any = None, dtype: Any = None) -> Tensor:
    """Wishart matrices, df degrees of freedom and positive definite scale, by Bartlett's method.

    The last two axes are the matrix's; df must exceed n - 1. Differentiable in both.
    """
    found, target = as_key("wishart", key), float_dtype("wishart", dtype, df, scale)
    wide = working(target)
    degrees, spread = (parameter("wishart", found, wide, x) for x in (df, scale))
    if spread.ndim < 2 or spread.shape[-1] != spread.shape[-2]:
        raise ShapeError(f"wishart: scale must be square, got shape {spread.shape}")
    n = spread.shape[-1]
    require("wishart", "df", df, lambda x: (x > n - 1) & (x < inf), f"above n - 1 = {n - 1}")
    batch = draw_shape("wishart", shape, degrees.shape, spread.shape[:-2])
    below, diagonal = streams(found, 2)
    places = arange(n, dtype=wide, device=found.device)
    half = (broadcast(expand_dims(degrees, -1), (*batch, 1)) - places) / 2
    root = math.sqrt(2) * exp(0.5 * _log_gamma(diagonal, half))
    row, column = expand_dims(places, -1), expand_dims(places, 0)
    normals = standard_normal(below, (*batch, n, n), wide)
    strict = where(row > column, normals, 0)
    factor = where(row == column, broadcast(expand_dims(root, -1), normals.shape), strict)
    half_product = call(cholesky_op, (spread,), {}) @ factor
    return cast(half_product @ matrix_transpose(half_product), target)
