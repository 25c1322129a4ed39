"""Functions whose derivatives are compared with JAX's: rows for elementwise ones and reductions.

A row is a function written once for both libraries, and the point it is differentiated at. Edge
cases (ties, zeros, infinities, branches not taken) have rows of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import weft as wf

RNG = np.random.default_rng(11)
INF = np.inf


@dataclass(frozen=True)
class Row:
    """A function in both libraries and the point it is differentiated at.

    `theirs` is given where the spelling differs. `differs` is a reason to expect another derivative
    than JAX's; `expected` is then the cotangent for a cotangent of ones.
    """

    name: str
    ours: Callable[..., Any]
    args: tuple[Any, ...]
    theirs: Callable[..., Any] | None = None
    differs: str = ""
    expected: Any = None


class Weft:
    """What the rows call `m`, from weft."""

    def __getattr__(self, name: str) -> Any:
        return getattr(wf, name)


class Jax:
    """What the rows call `m`, from JAX: `jax.numpy`, then `jax.nn` and `jax.scipy.special`."""

    special_names = {
        "erfinv": jax.lax.erf_inv,
        "rsqrt": jax.lax.rsqrt,
        "scan": jax.lax.scan,
        "cond": jax.lax.cond,
        "cumprod": jnp.cumprod,
        "vmap": jax.vmap,
        "checkpoint": jax.checkpoint,
        "stop_gradient": jax.lax.stop_gradient,
        "fori_loop": jax.lax.fori_loop,
        "switch": jax.lax.switch,
    }

    def __getattr__(self, name: str) -> Any:
        for place in (jnp, jax.nn, jax.scipy.special):
            if name not in self.special_names and hasattr(place, name):
                return getattr(place, name)
        return self.special_names[name]


def real(*shape: int) -> Any:
    return RNG.uniform(-2, 2, shape)


def positive(*shape: int) -> Any:
    return RNG.uniform(0.2, 2, shape)


def unit(*shape: int) -> Any:
    return RNG.uniform(-0.9, 0.9, shape)


def cplx(*shape: int) -> Any:
    return RNG.uniform(-1, 1, shape) + 1j * RNG.uniform(-1, 1, shape)


def spd(n: int, kind: Callable[..., Any] = real) -> Any:
    a = kind(n, n)
    return a @ a.conj().T + n * np.eye(n)


def regular(n: int, kind: Callable[..., Any] = real) -> Any:
    return kind(n, n) + 4 * np.eye(n)


def array(*values: Any) -> Any:
    return np.array(values)


def plain(names: str, make: Callable[..., Any], *more: Any) -> list[Row]:
    """Rows for functions of one operand that both libraries call the same."""
    return [
        Row(name, lambda m, x, name=name: getattr(m, name)(x, *more), (make(3, 4),))
        for name in names.split()
    ]


ELEMENTWISE = [
    *plain("sin cos tan sinh cosh tanh asinh atan exp exp2 expm1 square negative abs sign", real),
    *plain("sigmoid relu relu6 elu selu silu softplus log_sigmoid", real),
    Row("gelu", lambda m, x: m.gelu(x), (real(5),), lambda m, x: jax.nn.gelu(x, approximate=False)),
    *plain("log log2 log10 log1p sqrt cbrt reciprocal rsqrt digamma gammaln", positive),
    *plain("asin acos atanh erf erfinv erfc", unit),
    *plain("logit", lambda *s: RNG.uniform(0.1, 0.9, s)),
    *plain("acosh", lambda *s: RNG.uniform(1.2, 3, s)),
    *plain("i0 i0e i1 i1e sinc", real),
    *plain("floor ceil round trunc", real),
    Row("leaky_relu", lambda m, x: m.leaky_relu(x, 0.1), (real(5),)),
    Row("celu", lambda m, x: m.celu(x, 1.3), (real(5),)),
    Row("add and broadcast", lambda m, x, y: x + y, (real(3, 1), real(4))),
    Row("multiply and broadcast", lambda m, x, y: x * y, (real(2, 3, 1), real(4))),
    Row("divide", lambda m, x, y: x / y, (real(4), positive(3, 1))),
    Row("remainder", lambda m, x, y: x % y, (array(5.3, -5.3, 2.2), array(2.0, 2.0, -0.7))),
    Row("fmod", lambda m, x, y: m.fmod(x, y), (array(5.3, -5.3, 2.2), array(2.0, 2.0, -0.7))),
    Row("atan2", lambda m, x, y: m.atan2(x, y), (real(6), real(6))),
    Row("hypot", lambda m, x, y: m.hypot(x, y), (real(6), real(6))),
    Row("logaddexp", lambda m, x, y: m.logaddexp(x, y), (real(6), real(6))),
    Row("logaddexp2", lambda m, x, y: m.logaddexp2(x, y), (real(6), real(6))),
    Row("copysign", lambda m, x, y: m.copysign(x, y), (real(6), real(6))),
    Row("xlogy", lambda m, x, y: m.xlogy(x, y), (real(6), positive(6))),
    Row("xlog1py", lambda m, x, y: m.xlog1py(x, y), (real(6), positive(6))),
    Row("maximum", lambda m, x, y: m.maximum(x, y), (real(3, 1), real(4))),
    Row("minimum", lambda m, x, y: m.minimum(x, y), (real(3, 1), real(4))),
    Row("float_power", lambda m, x, y: m.float_power(x, y), (positive(4), real(4))),
    Row("betaln", lambda m, x, y: m.betaln(x, y), (positive(4), positive(4))),
    Row("zeta", lambda m, q: m.zeta(m.full_like(q, 2.5), q), (array(1.5, 3.0),)),
    Row("polygamma", lambda m, x: m.polygamma(1, x), (positive(4),)),
    Row("gammainc", lambda m, x: m.gammainc(1.7, x), (positive(4),)),
    Row("gammaincc", lambda m, x: m.gammaincc(1.7, x), (positive(4),)),
    Row("betainc", lambda m, x: m.betainc(1.7, 0.8, x), (RNG.uniform(0.1, 0.9, 4),)),
    Row("ndtri", lambda m, x: m.ndtri(x), (RNG.uniform(0.1, 0.9, 4),)),
    Row("ndtr", lambda m, x: m.ndtr(x), (real(4),)),
    Row("log_ndtr", lambda m, x: m.log_ndtr(x), (array(-30.0, -3.0, 0.0, 3.0),)),
    Row("entr", lambda m, x: m.entr(x), (positive(4),)),
]

EDGES = [
    Row(
        "abs at 0",
        lambda m, x: m.abs(x),
        (array(-1.0, 0.0, 2.0),),
        differs="0 lies between the slopes on both sides; JAX gives 1",
        expected=[-1.0, 0.0, 1.0],
    ),
    Row("sign at 0", lambda m, x: m.sign(x), (array(-1.0, 0.0, 2.0),)),
    Row("relu at 0", lambda m, x: m.relu(x), (array(-1.0, 0.0, 2.0),)),
    Row("maximum of equals", lambda m, x, y: m.maximum(x, y), (array(1.0, 2.0), array(1.0, 3.0))),
    Row("minimum of equals", lambda m, x, y: m.minimum(x, y), (array(1.0, 2.0), array(1.0, 3.0))),
    Row("clip at its bounds", lambda m, x: m.clip(x, -1.0, 1.0), (array(-2.0, -1.0, 0.5, 1.0),)),
    Row(
        "clip by tensors", lambda m, x, a, b: m.clip(x, a, b), (real(5), -positive(5), positive(5))
    ),
    Row("0 ** 2", lambda m, x: x**2, (array(0.0, 1.0),)),
    Row("0 ** 1", lambda m, x: x**1, (array(0.0, 1.0),)),
    Row("0 ** 0", lambda m, x: x**0, (array(0.0, 1.0),)),
    Row("0. ** 2.", lambda m, x: x**2.0, (array(0.0, -1.5),)),
    Row(
        "0. ** 0.",
        lambda m, x: x**0.0,
        (array(0.0, 1.0),),
        differs="x ** 0 is 1 everywhere; JAX gives NaN",
        expected=[0.0, 0.0],
    ),
    Row("negative base, integer exponent", lambda m, x: x**3, (array(-2.0, -0.5),)),
    Row("negative exponent", lambda m, x: x**-2, (array(-2.0, 0.5),)),
    Row("pow by a tensor", lambda m, x, y: m.pow(x, y), (positive(4), real(4))),
    Row("exponent at base 0", lambda m, y: m.pow(m.zeros_like(y), y), (array(1.0, 2.0, 0.5),)),
    Row("2 ** x", lambda m, x: 2.0**x, (real(4),)),
    Row("sqrt at 0", lambda m, x: m.sqrt(x), (array(0.0, 4.0),)),
    Row("log at 0", lambda m, x: m.log(x), (array(0.0, 4.0),)),
    Row(
        "where with NaN in the branch not taken",
        lambda m, x: m.where(x > 0, m.sqrt(m.where(x > 0, x, 1.0)), 0.0),
        (array(-1.0, 0.0, 4.0),),
    ),
    Row(
        "where with a slope of infinity in the branch not taken",
        lambda m, x: m.where(x > 0, m.sqrt(x), 0.0),
        (array(0.0, 4.0),),
    ),
    Row("logsumexp with -inf", lambda m, x: m.logsumexp(x), (array(-INF, 0.0, 1.0),)),
    Row(
        "logsumexp of only -inf",
        lambda m, x: m.logsumexp(x),
        (array(-INF, -INF),),
        differs="terms without weight have no slope; JAX gives NaN",
        expected=[0.0, 0.0],
    ),
    Row(
        "norm at the origin",
        lambda m, x: m.linalg.norm(x),
        (array(0.0, 0.0),),
        differs="0 is a subgradient; JAX gives NaN",
        expected=[0.0, 0.0],
    ),
    Row(
        "hypot at the origin",
        lambda m, x: m.hypot(x, x),
        (array(0.0),),
        differs="0 is a subgradient; JAX gives NaN",
        expected=[0.0],
    ),
    Row(
        "singular values that repeat",
        lambda m, x: m.linalg.svd(x, full_matrices=False)[1].sum(),
        (np.eye(2),),
    ),
    Row("eigenvalues that repeat", lambda m, x: m.linalg.eigh(x)[0].sum(), (np.eye(2),)),
    Row(
        "logaddexp of -inf", lambda m, x, y: m.logaddexp(x, y), (array(-INF, 1.0), array(2.0, -INF))
    ),
    Row("softmax with -inf", lambda m, x: m.softmax(x), (array(-INF, 0.0, 1.0),)),
    Row(
        "log_softmax of large values", lambda m, x: m.log_softmax(x), (array(1000.0, 0.0, -1000.0),)
    ),
    Row("softplus of large values", lambda m, x: m.softplus(x), (array(-800.0, 0.0, 800.0),)),
    Row("xlogy at 0", lambda m, x, y: m.xlogy(x, y), (array(0.0, 1.0), array(0.5, 2.0))),
    Row("sinc at 0", lambda m, x: m.sinc(x), (array(0.0, 0.5),)),
    Row("prod with a zero", lambda m, x: m.prod(x), (array(2.0, 0.0, 3.0),)),
    Row("prod with two zeros", lambda m, x: m.prod(x), (array(0.0, 0.0, 3.0),)),
    Row("cumprod with a zero", lambda m, x: m.cumprod(x), (array(2.0, 0.0, 3.0, 4.0),)),
    Row("cumprod with two zeros", lambda m, x: m.cumprod(x), (array(2.0, 0.0, 0.0, 4.0),)),
    Row("max with ties", lambda m, x: m.max(x), (array(2.0, 1.0, 2.0),)),
    Row("min with ties", lambda m, x: m.min(x, axis=1), (array([2.0, 1.0, 1.0], [3.0, 3.0, 3.0]),)),
    Row("sort with ties", lambda m, x: m.sort(x), (array(2.0, 1.0, 2.0, 1.0),)),
    Row("var of equals", lambda m, x: m.var(x), (array(2.0, 2.0, 2.0),)),
    Row("norm of a vector", lambda m, x: m.linalg.norm(x), (real(4),)),
    Row("std", lambda m, x: m.std(x, axis=0), (real(3, 4),)),
    Row("atan2 on an axis", lambda m, x, y: m.atan2(x, y), (array(0.0, 1.0), array(-1.0, 0.0))),
    Row("hypot at one 0", lambda m, x, y: m.hypot(x, y), (array(0.0, 1.0), array(2.0, 0.0))),
    Row(
        "cast to float32 and back",
        lambda m, x: m.astype(m.astype(x, m.float32), m.float64) * x,
        (real(4),),
    ),
    Row(
        "cast to bfloat16 and back",
        lambda m, x: m.astype(m.astype(x, m.bfloat16), m.float64) * x,
        (real(4),),
    ),
    Row("stop_gradient", lambda m, x: m.stop_gradient(x) * x, (real(4),)),
    Row("nan_to_num", lambda m, x: m.nan_to_num(x), (array(np.nan, 1.0, INF),)),
    Row("nansum", lambda m, x: m.nansum(x), (array(np.nan, 1.0, 2.0),)),
    Row("nanmean", lambda m, x: m.nanmean(x), (array(np.nan, 1.0, 2.0),)),
    Row("nanvar", lambda m, x: m.nanvar(x), (array(np.nan, 1.0, 2.0),)),
]

REDUCTIONS = [
    Row("sum over axes", lambda m, x: m.sum(x, axis=(0, 2)), (real(2, 3, 4),)),
    Row("mean", lambda m, x: m.mean(x, axis=1, keepdims=True), (real(3, 4),)),
    Row("prod over an axis", lambda m, x: m.prod(x, axis=1), (real(3, 4),)),
    Row("max over an axis", lambda m, x: m.max(x, axis=-1), (real(3, 4),)),
    Row("var", lambda m, x: m.var(x, axis=1), (real(3, 4),)),
    Row("logsumexp", lambda m, x: m.logsumexp(x, axis=0), (real(3, 4),)),
    Row("softmax", lambda m, x: m.softmax(x, axis=0), (real(3, 4),)),
    Row("log_softmax", lambda m, x: m.log_softmax(x, axis=-1), (real(3, 4),)),
    Row("cumsum", lambda m, x: m.cumsum(x, axis=1), (real(3, 4),)),
    Row("cumprod", lambda m, x: m.cumprod(x, axis=0), (real(3, 4),)),
    Row(
        "cummax",
        lambda m, x: m.cummax(x, axis=0),
        (real(5, 4),),
        lambda m, x: jax.lax.cummax(x, axis=0),
    ),
    Row(
        "cummin",
        lambda m, x: m.cummin(x, axis=1),
        (real(3, 4),),
        lambda m, x: jax.lax.cummin(x, axis=1),
    ),
    Row(
        "logcumsumexp",
        lambda m, x: m.logcumsumexp(x, axis=1),
        (real(3, 4),),
        lambda m, x: jax.lax.cumlogsumexp(x, axis=1),
    ),
    Row("quantile", lambda m, x: m.quantile(x, 0.3), (real(7),)),
    Row("quantile, lower", lambda m, x: m.quantile(x, 0.3, method="lower"), (real(7),)),
    Row(
        "several quantiles", lambda m, x: m.quantile(x, np.array([0.1, 0.8]), axis=1), (real(3, 4),)
    ),
    Row("median of an even number", lambda m, x: m.median(x), (real(6),)),
    Row("median of an odd number", lambda m, x: m.median(x, axis=0), (real(5, 2),)),
    Row("percentile", lambda m, x: m.percentile(x, 25.0, axis=0), (real(5, 2),)),
    Row("ptp", lambda m, x: m.ptp(x, axis=0), (real(5, 2),)),
    Row("average", lambda m, x, w: m.average(x, weights=w), (real(5), positive(5))),
    Row("cov", lambda m, x: m.cov(x), (real(3, 6),)),
    Row("corrcoef", lambda m, x: m.corrcoef(x), (real(3, 6),)),
    Row("sort", lambda m, x: m.sort(x, axis=0), (real(4, 3),)),
    Row("sort descending", lambda m, x: m.sort(x, descending=True), (real(6),)),
    Row("top_k", lambda m, x: m.top_k(x, 2)[0], (real(3, 5),), lambda m, x: jax.lax.top_k(x, 2)[0]),
    Row("diff", lambda m, x: m.diff(x, n=2, axis=0), (real(5, 2),)),
    Row(
        "layer_norm",
        lambda m, x: m.layer_norm(x, (4,)),
        (real(3, 4),),
        lambda m, x: jax.nn.standardize(x, axis=-1, epsilon=1e-5),
    ),
]

OURS, THEIRS = Weft(), Jax()
