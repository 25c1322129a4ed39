"""Derivatives of public functions against JAX's, in both modes, in float64 and complex128.

One row for each function; edge cases (ties, zeros, infinities, branches not taken) have rows of their
own. Where weft means to differ from JAX the row says so and gives the answer that weft defends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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

    special_names = {"erfinv": jax.lax.erf_inv, "rsqrt": jax.lax.rsqrt, "scan": jax.lax.scan,
                     "cond": jax.lax.cond, "cumprod": jnp.cumprod, "vmap": jax.vmap,
                     "checkpoint": jax.checkpoint, "stop_gradient": jax.lax.stop_gradient,
                     "fori_loop": jax.lax.fori_loop, "switch": jax.lax.switch}

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
    Row("abs at 0", lambda m, x: m.abs(x), (array(-1.0, 0.0, 2.0),),
        differs="0 lies between the slopes on both sides; JAX gives 1", expected=[-1.0, 0.0, 1.0]),
    Row("sign at 0", lambda m, x: m.sign(x), (array(-1.0, 0.0, 2.0),)),
    Row("relu at 0", lambda m, x: m.relu(x), (array(-1.0, 0.0, 2.0),)),
    Row("maximum of equals", lambda m, x, y: m.maximum(x, y), (array(1.0, 2.0), array(1.0, 3.0))),
    Row("minimum of equals", lambda m, x, y: m.minimum(x, y), (array(1.0, 2.0), array(1.0, 3.0))),
    Row("clip at its bounds", lambda m, x: m.clip(x, -1.0, 1.0), (array(-2.0, -1.0, 0.5, 1.0),)),
    Row("clip by tensors", lambda m, x, a, b: m.clip(x, a, b), (real(5), -positive(5), positive(5))),
    Row("0 ** 2", lambda m, x: x**2, (array(0.0, 1.0),)),
    Row("0 ** 1", lambda m, x: x**1, (array(0.0, 1.0),)),
    Row("0 ** 0", lambda m, x: x**0, (array(0.0, 1.0),)),
    Row("0. ** 2.", lambda m, x: x**2.0, (array(0.0, -1.5),)),
    Row("0. ** 0.", lambda m, x: x**0.0, (array(0.0, 1.0),),
        differs="x ** 0 is 1 everywhere; JAX gives NaN", expected=[0.0, 0.0]),
    Row("negative base, integer exponent", lambda m, x: x**3, (array(-2.0, -0.5),)),
    Row("negative exponent", lambda m, x: x**-2, (array(-2.0, 0.5),)),
    Row("pow by a tensor", lambda m, x, y: m.pow(x, y), (positive(4), real(4))),
    Row("exponent at base 0", lambda m, y: m.pow(m.zeros_like(y), y), (array(1.0, 2.0, 0.5),)),
    Row("2 ** x", lambda m, x: 2.0**x, (real(4),)),
    Row("sqrt at 0", lambda m, x: m.sqrt(x), (array(0.0, 4.0),)),
    Row("log at 0", lambda m, x: m.log(x), (array(0.0, 4.0),)),
    Row("where with NaN in the branch not taken",
        lambda m, x: m.where(x > 0, m.sqrt(m.where(x > 0, x, 1.0)), 0.0), (array(-1.0, 0.0, 4.0),)),
    Row("where with a slope of infinity in the branch not taken",
        lambda m, x: m.where(x > 0, m.sqrt(x), 0.0), (array(0.0, 4.0),)),
    Row("logsumexp with -inf", lambda m, x: m.logsumexp(x), (array(-INF, 0.0, 1.0),)),
    Row("logsumexp of only -inf", lambda m, x: m.logsumexp(x), (array(-INF, -INF),),
        differs="terms without weight have no slope; JAX gives NaN", expected=[0.0, 0.0]),
    Row("norm at the origin", lambda m, x: m.linalg.norm(x), (array(0.0, 0.0),),
        differs="0 is a subgradient; JAX gives NaN", expected=[0.0, 0.0]),
    Row("hypot at the origin", lambda m, x: m.hypot(x, x), (array(0.0),),
        differs="0 is a subgradient; JAX gives NaN", expected=[0.0]),
    Row("singular values that repeat", lambda m, x: m.linalg.svd(x, full_matrices=False)[1].sum(),
        (np.eye(2),)),
    Row("eigenvalues that repeat", lambda m, x: m.linalg.eigh(x)[0].sum(), (np.eye(2),)),
    Row("logaddexp of -inf", lambda m, x, y: m.logaddexp(x, y), (array(-INF, 1.0), array(2.0, -INF))),
    Row("softmax with -inf", lambda m, x: m.softmax(x), (array(-INF, 0.0, 1.0),)),
    Row("log_softmax of large values", lambda m, x: m.log_softmax(x), (array(1000.0, 0.0, -1000.0),)),
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
    Row("cast to float32 and back", lambda m, x: m.astype(m.astype(x, m.float32), m.float64) * x,
        (real(4),)),
    Row("cast to bfloat16 and back", lambda m, x: m.astype(m.astype(x, m.bfloat16), m.float64) * x,
        (real(4),)),
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
    Row("cummax", lambda m, x: m.cummax(x, axis=0), (real(5, 4),),
        lambda m, x: jax.lax.cummax(x, axis=0)),
    Row("cummin", lambda m, x: m.cummin(x, axis=1), (real(3, 4),),
        lambda m, x: jax.lax.cummin(x, axis=1)),
    Row("logcumsumexp", lambda m, x: m.logcumsumexp(x, axis=1), (real(3, 4),),
        lambda m, x: jax.lax.cumlogsumexp(x, axis=1)),
    Row("quantile", lambda m, x: m.quantile(x, 0.3), (real(7),)),
    Row("quantile, lower", lambda m, x: m.quantile(x, 0.3, method="lower"), (real(7),)),
    Row("several quantiles", lambda m, x: m.quantile(x, np.array([0.1, 0.8]), axis=1), (real(3, 4),)),
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
    Row("layer_norm", lambda m, x: m.layer_norm(x, (4,)), (real(3, 4),),
        lambda m, x: jax.nn.standardize(x, axis=-1, epsilon=1e-5)),
]

MOVES = [
    Row("reshape", lambda m, x: m.reshape(x, (2, 6)), (real(3, 4),)),
    Row("transpose", lambda m, x: m.permute_dims(x, (2, 0, 1)), (real(2, 3, 4),)),
    Row("flip", lambda m, x: m.flip(x, axis=1), (real(3, 4),)),
    Row("roll", lambda m, x: m.roll(x, 2, axis=1), (real(3, 4),)),
    Row("tile", lambda m, x: m.tile(x, (2, 1)), (real(3, 4),)),
    Row("repeat", lambda m, x: m.repeat(x, 2, axis=1), (real(3, 4),)),
    Row("pad", lambda m, x: m.pad(x, ((1, 0), (2, 1))), (real(3, 4),)),
    Row("pad, reflect", lambda m, x: m.pad(x, ((1, 2),), mode="reflect"), (real(5),)),
    Row("pad, edge", lambda m, x: m.pad(x, ((1, 2),), mode="edge"), (real(5),)),
    Row("pad, wrap", lambda m, x: m.pad(x, ((1, 2),), mode="wrap"), (real(5),)),
    Row("concat", lambda m, x, y: m.concat([x, y, x], axis=1), (real(2, 3), real(2, 1))),
    Row("stack", lambda m, x, y: m.stack([x, y], axis=1), (real(3), real(3))),
    Row("split", lambda m, x: tuple(m.split(x, 3)), (real(6, 2),)),
    Row("tril", lambda m, x: m.tril(x, k=1), (real(3, 4),)),
    Row("triu", lambda m, x: m.triu(x), (real(3, 4),)),
    Row("diag", lambda m, x: m.diag(x), (real(3),)),
    Row("diagonal", lambda m, x: m.diagonal(x, offset=1), (real(3, 4),)),
    Row("rot90", lambda m, x: m.rot90(x), (real(3, 4),)),
    Row("kron", lambda m, x, y: m.kron(x, y), (real(2, 2), real(2, 3))),
    Row("slices with steps", lambda m, x: x[::-2, 1:3], (real(5, 4),)),
    Row("repeated indices", lambda m, x: x[np.array([0, 2, 0, 0])], (real(4, 2),)),
    Row("two index arrays", lambda m, x: x[np.array([0, 2, 0]), np.array([1, 1, 1])], (real(4, 2),)),
    Row("index arrays apart", lambda m, x: x[np.array([0, 1]), :, np.array([1, 1])], (real(2, 3, 4),)),
    Row("a mask that is known", lambda m, x: x[np.array([True, False, True])], (real(3, 2),)),
    Row("take", lambda m, x: m.take(x, np.array([2, 0, 2]), axis=1), (real(3, 4),)),
    Row("take_along_axis",
        lambda m, x: m.take_along_axis(x, m.asarray(np.array([[0, 0], [2, 1]])), axis=1),
        (real(2, 3),)),
    Row("at set", lambda m, x, v: x.at[np.array([2, 0])].set(v), (real(4, 2), real(2, 2))),
    Row("at add, repeated", lambda m, x, v: x.at[np.array([1, 1, 0])].add(v), (real(4), real(3))),
    Row("at multiply", lambda m, x, v: x.at[np.array([1, 2])].multiply(v), (real(4), real(2)),
        lambda m, x, v: x.at[np.array([1, 2])].multiply(v, unique_indices=True)),
    Row("at multiply, repeated", lambda m, v: m.ones(2).at[np.array([1, 1])].multiply(v),
        (array([2.0, 5.0]).reshape(-1),),
        differs="JAX has no rule for repeated places", expected=[5.0, 2.0]),
    Row("at max", lambda m, x, v: x.at[np.array([1, 2])].max(v), (real(4), real(2))),
    Row("at min, repeated", lambda m, x, v: x.at[np.array([1, 1])].min(v), (real(4), real(2))),
    Row("segment_sum",
        lambda m, x: m.segment_sum(x, np.array([0, 2, 0, 1]), 3), (real(4, 2),),
        lambda m, x: jax.ops.segment_sum(x, np.array([0, 2, 0, 1]), 3)),
    Row("segment_max",
        lambda m, x: m.segment_max(x, np.array([0, 2, 0, 1]), 3), (real(4, 2),),
        lambda m, x: jax.ops.segment_max(x, np.array([0, 2, 0, 1]), 3)),
    Row("select", lambda m, x, y: m.select([x > 1, x > 0], [x * y, y], x), (real(6), real(6))),
    Row("interpolate, bilinear",
        lambda m, x: m.interpolate(x, size=(6, 8), mode="bilinear"), (real(1, 2, 3, 4),),
        lambda m, x: jax.image.resize(x, (1, 2, 6, 8), "bilinear", antialias=False)),
]

CONTRACTIONS = [
    Row("matmul", lambda m, x, y: x @ y, (real(2, 3, 4), real(4, 5))),
    Row("matmul of vectors", lambda m, x, y: x @ y, (real(4), real(4))),
    Row("matmul, batched both", lambda m, x, y: m.matmul(x, y), (real(3, 1, 2, 4), real(5, 4, 2))),
    Row("outer", lambda m, x, y: m.outer(x, y), (real(3), real(4))),
    Row("tensordot", lambda m, x, y: m.tensordot(x, y, axes=2), (real(2, 3, 4), real(3, 4, 5))),
    Row("vecdot", lambda m, x, y: m.vecdot(x, y), (real(3, 4), real(4))),
    Row("cross", lambda m, x, y: m.linalg.cross(x, y), (real(2, 3), real(2, 3))),
    Row("einsum", lambda m, x, y: m.einsum("bij,bjk->bik", x, y), (real(2, 3, 4), real(2, 4, 2))),
    Row("einsum of three", lambda m, x, y, z: m.einsum("ij,jk,k->i", x, y, z),
        (real(2, 3), real(3, 4), real(4))),
    Row("einsum with a diagonal", lambda m, x: m.einsum("ii->i", x), (real(3, 3),)),
    Row("einsum with a trace", lambda m, x, y: m.einsum("ii,j->j", x, y), (real(3, 3), real(2))),
    Row("einsum with an ellipsis", lambda m, x, y: m.einsum("...i,...i->...", x, y),
        (real(2, 3), real(3))),
    Row("convolve", lambda m, x, y: m.convolve(x, y), (real(6), real(3))),
    Row("correlate", lambda m, x, y: m.correlate(x, y, mode="same"), (real(6), real(3))),
    Row("conv1d",
        lambda m, x, k: m.conv1d(x, k, stride=2, padding=1), (real(2, 3, 7), real(4, 3, 3)),
        lambda m, x, k: jax.lax.conv_general_dilated(x, k, (2,), [(1, 1)])),
    Row("conv2d",
        lambda m, x, k: m.conv2d(x, k, stride=2, padding=1, dilation=2, groups=2),
        (real(2, 4, 6, 7), real(6, 2, 2, 3)),
        lambda m, x, k: jax.lax.conv_general_dilated(
            x, k, (2, 2), [(1, 1), (1, 1)], rhs_dilation=(2, 2), feature_group_count=2)),
    Row("conv_transpose2d",
        lambda m, x, k: m.conv_transpose2d(x, k, stride=2), (real(1, 2, 3, 4), real(2, 3, 2, 3)),
        lambda m, x, k: jax.lax.conv_general_dilated(
            x, jnp.flip(jnp.swapaxes(k, 0, 1), (2, 3)), (1, 1), [(1, 1), (2, 2)],
            lhs_dilation=(2, 2))),
    Row("max_pool2d",
        lambda m, x: m.max_pool2d(x, 2), (real(1, 2, 4, 6),),
        lambda m, x: jax.lax.reduce_window(
            x, -INF, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")),
    Row("overlapping max_pool2d",
        lambda m, x: m.max_pool2d(x, 3, stride=1), (real(1, 1, 4, 6),),
        lambda m, x: jax.lax.reduce_window(
            x, -INF, jax.lax.max, (1, 1, 3, 3), (1, 1, 1, 1), "VALID")),
    Row("avg_pool2d",
        lambda m, x: m.avg_pool2d(x, 2), (real(1, 2, 4, 6),),
        lambda m, x: jax.lax.reduce_window(
            x, 0.0, jax.lax.add, (1, 1, 2, 2), (1, 1, 2, 2), "VALID") / 4),
    Row("attention",
        lambda m, q, k, v: m.scaled_dot_product_attention(q, k, v, is_causal=True),
        (real(2, 4, 3), real(2, 4, 3), real(2, 4, 3)),
        lambda m, q, k, v: attention(q, k, v)),
]


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqd,bkd->bqk", q, k) / np.sqrt(q.shape[-1])
    scores = jnp.where(np.tril(np.ones((4, 4), bool)), scores, -INF)
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), v)


def hermitian(m: Any, x: Any) -> Any:
    return (x + m.conj(m.matrix_transpose(x))) / 2


def through_eigh(m: Any, x: Any) -> Any:
    w, v = m.linalg.eigh(hermitian(m, x))
    return (v * m.tanh(w)[None, :]) @ m.conj(m.matrix_transpose(v)), w


def through_svd(m: Any, x: Any) -> Any:
    u, s, vh = m.linalg.svd(x, full_matrices=False)
    return (u * m.sin(s)[None, :]) @ vh, s


def through_eig(m: Any, x: Any) -> Any:
    w, v = m.linalg.eig(x) if m is OURS else jax.lax.linalg.eig(
        x, compute_left_eigenvectors=False, enable_eigvec_derivs=True)
    return (v * m.exp(w)[None, :]) @ m.linalg.inv(v)


def through_qr(m: Any, x: Any) -> Any:
    q, r = m.linalg.qr(x)
    return q, r


LINALG = [
    Row("cholesky", lambda m, x: m.linalg.cholesky(hermitian(m, x)), (spd(4),)),
    Row("complex cholesky", lambda m, x: m.linalg.cholesky(hermitian(m, x)), (spd(3, cplx),)),
    Row("qr of a tall matrix", through_qr, (real(5, 3),)),
    Row("qr of a square matrix", through_qr, (real(3, 3),)),
    Row("complex qr", through_qr, (cplx(4, 3),)),
    Row("svd", through_svd, (real(4, 3),)),
    Row("svd of a wide matrix", through_svd, (real(3, 5),)),
    Row("complex svd", through_svd, (cplx(4, 3),)),
    Row("singular values", lambda m, x: m.linalg.svd(x, compute_uv=False), (real(4, 3),)),
    Row("eigh", through_eigh, (real(4, 4),)),
    Row("complex eigh", through_eigh, (cplx(4, 4),)),
    Row("eigvalsh", lambda m, x: m.linalg.eigvalsh(hermitian(m, x)), (real(4, 4),)),
    Row("eig", through_eig, (cplx(3, 3),)),
    Row("solve", lambda m, a, b: m.linalg.solve(a, b), (regular(3), real(3, 2))),
    Row("solve for a vector", lambda m, a, b: m.linalg.solve(a, b), (regular(3), real(3))),
    Row("complex solve", lambda m, a, b: m.linalg.solve(a, b), (regular(3, cplx), cplx(3, 2))),
    Row("solve_triangular",
        lambda m, a, b: m.linalg.solve_triangular(a, b, lower=True), (regular(3), real(3, 2)),
        lambda m, a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True)),
    Row("det", lambda m, x: m.linalg.det(x), (regular(3),)),
    Row("complex det", lambda m, x: m.linalg.det(x), (regular(3, cplx),)),
    Row("slogdet", lambda m, x: m.linalg.slogdet(x)[1], (regular(3),)),
    Row("inv", lambda m, x: m.linalg.inv(x), (regular(3),)),
    Row("pinv", lambda m, x: m.linalg.pinv(x), (real(4, 3),)),
    Row("lstsq", lambda m, a, b: m.linalg.lstsq(a, b)[0], (real(5, 3), real(5, 2))),
    Row("matrix_power", lambda m, x: m.linalg.matrix_power(x, 3), (real(3, 3),)),
    Row("inverse matrix_power", lambda m, x: m.linalg.matrix_power(x, -2), (regular(3),)),
    Row("expm", lambda m, x: m.linalg.expm(x), (real(3, 3),),
        lambda m, x: jax.scipy.linalg.expm(x)),
    Row("multi_dot", lambda m, a, b, c: m.linalg.multi_dot([a, b, c]),
        (real(2, 5), real(5, 3), real(3, 2))),
    Row("trace", lambda m, x: m.linalg.trace(x), (real(3, 4),)),
    Row("frobenius norm", lambda m, x: m.linalg.norm(x, axis=(0, 1)), (real(3, 4),)),
    Row("nuclear norm", lambda m, x: m.linalg.norm(x, ord="nuc", axis=(0, 1)), (real(3, 4),)),
    Row("spectral norm", lambda m, x: m.linalg.norm(x, ord=2, axis=(0, 1)), (real(3, 4),)),
    Row("norm of order 1", lambda m, x: m.linalg.norm(x, ord=1), (real(4),)),
    Row("norm of order 3", lambda m, x: m.linalg.norm(x, ord=3), (real(4),)),
    Row("norm of order infinity", lambda m, x: m.linalg.norm(x, ord=np.inf), (real(4),)),
]

FOURIER = [
    Row("fft", lambda m, x: m.fft.fft(x), (cplx(2, 5),)),
    Row("fft of reals", lambda m, x: m.fft.fft(x), (real(2, 5),)),
    Row("fft, padded and cut", lambda m, x: m.fft.fft(x, n=4, axis=0), (cplx(5, 3),)),
    Row("ifft", lambda m, x: m.fft.ifft(x, norm="ortho"), (cplx(6),)),
    Row("rfft", lambda m, x: m.fft.rfft(x), (real(2, 6),)),
    Row("rfft of an odd length", lambda m, x: m.fft.rfft(x), (real(2, 5),)),
    Row("irfft", lambda m, x: m.fft.irfft(x), (cplx(2, 4),)),
    Row("irfft of an odd length", lambda m, x: m.fft.irfft(x, n=5), (cplx(2, 3),)),
    Row("fft2", lambda m, x: m.fft.fft2(x), (cplx(3, 4),)),
    Row("rfftn", lambda m, x: m.fft.rfftn(x), (real(2, 3, 4),)),
    Row("irfftn", lambda m, x: m.fft.irfftn(x), (cplx(2, 3, 4),)),
    Row("hfft", lambda m, x: m.fft.hfft(x), (cplx(4),)),
    Row("fftshift", lambda m, x: m.fft.fftshift(x), (real(5),)),
]

COMPLEX = [
    *[
        Row(f"complex {name}", lambda m, x, name=name: getattr(m, name)(x), (cplx(4),))
        for name in "abs real imag conj angle exp log sqrt sin cos tanh square reciprocal sinh"
        " cosh tan log1p expm1".split()
    ],
    Row("complex sign", lambda m, x: m.sign(x), (array(3 + 4j),),
        differs="z/|z| turns with z; JAX gives 0", expected=[(1 - 3 * (3 - 4j) / 25) / 5]),
    Row("complex abs at 0", lambda m, x: m.abs(x), (array(0j, 1 + 1j),)),
    Row("complex multiply", lambda m, x, y: x * y, (cplx(4), cplx(4))),
    Row("complex divide", lambda m, x, y: x / y, (cplx(4), cplx(4))),
    Row("real times complex", lambda m, x, y: x * y, (real(4), cplx(4))),
    Row("complex pow", lambda m, x, y: x**y, (cplx(4), cplx(4))),
    Row("complex pow by an integer", lambda m, x: x**3, (cplx(4),)),
    Row("complex matmul", lambda m, x, y: x @ y, (cplx(2, 3), cplx(3, 2))),
    Row("complex sum and prod", lambda m, x: m.sum(x) * m.prod(x), (cplx(4),)),
    Row("complex var", lambda m, x: m.var(x), (cplx(4),)),
    Row("complex norm", lambda m, x: m.linalg.norm(x), (cplx(4),)),
    Row("complex vecdot", lambda m, x, y: m.vecdot(x, y), (cplx(3), cplx(3))),
    Row("squared modulus", lambda m, x: m.real(x * m.conj(x)), (cplx(4),)),
    Row("cast of reals to complex", lambda m, x: m.astype(x, m.complex128) * (1 + 2j), (real(4),)),
    Row("complex from parts", lambda m, x, y: m.complex(x, y) ** 2, (real(4), real(4)),
        lambda m, x, y: jax.lax.complex(x, y) ** 2),
]

CONTROL = [
    Row("scan", lambda m, c, xs: m.scan(lambda c, x: (m.sin(c * x), c + x), c, xs),
        (array(0.5), real(5))),
    Row("scan backwards", lambda m, c, xs: m.scan(lambda c, x: (c * x, c), c, xs, reverse=True),
        (array(0.5), real(5))),
    Row("cond", lambda m, x: m.cond(x[0] > 0, m.sin, m.cos, x), (array(0.5, 2.0),)),
    Row("switch", lambda m, x: m.switch(1, [m.sin, m.cos, m.exp], x), (real(3),)),
    Row("fori_loop", lambda m, x: m.fori_loop(0, 4, lambda i, c: m.sin(c) * x, x), (real(3),)),
    Row("checkpoint", lambda m, x: m.checkpoint(lambda x: m.sin(m.exp(x)) * x)(x), (real(3),)),
    Row("vmap", lambda m, x, y: m.vmap(lambda a: a @ y)(x), (real(4, 3), real(3))),
]

ROWS = [*ELEMENTWISE, *EDGES, *REDUCTIONS, *MOVES, *CONTRACTIONS, *LINALG, *FOURIER, *COMPLEX,
        *CONTROL]
OURS, THEIRS = Weft(), Jax()


def seeded(arrays: list[Any]) -> list[Any]:
    """Directions of the same types, the same in both libraries."""
    rng = np.random.default_rng(5)
    made = [rng.uniform(-1, 1, a.shape) for a in arrays]
    return [
        (m + 1j * rng.uniform(-1, 1, a.shape) if a.dtype.kind == "c" else m).astype(a.dtype)
        for m, a in zip(made, arrays, strict=True)
    ]


def jax_derivatives(row: Row) -> tuple[list[Any], list[Any], list[Any]]:
    with jax.enable_x64(True):
        args = tuple(map(jnp.asarray, row.args))
        function = row.theirs or row.ours
        run = lambda *xs: jax.tree.leaves(function(THEIRS, *xs))  # noqa: E731
        moves = tuple(map(jnp.asarray, seeded(list(row.args))))

        @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
        def derive(args: Any, moves: Any) -> Any:
            values, pullback = jax.vjp(run, *args)
            return values, pullback(seeded(values)), jax.jvp(run, args, moves)[1]

        return tuple([np.asarray(x) for x in part] for part in derive(args, moves))


def weft_derivatives(row: Row) -> tuple[list[Any], list[Any], list[Any]]:
    args = tuple(map(wf.asarray, row.args))
    run = lambda *xs: wf.tree_leaves(row.ours(OURS, *xs))  # noqa: E731
    values, pullback = wf.vjp(run, *args)
    pulled = pullback(list(map(wf.asarray, seeded([v.numpy() for v in values]))))
    pushed = wf.jvp(run, args, tuple(map(wf.asarray, seeded(list(row.args)))))[1]
    return tuple([x.numpy() for x in part] for part in (values, pulled, pushed))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_values_and_derivatives_are_those_of_jax(row: Row) -> None:
    if row.differs:
        args = tuple(map(wf.asarray, row.args))
        value, pullback = wf.vjp(lambda *xs: row.ours(OURS, *xs), *args)
        (found,) = pullback(wf.ones_like(value))
        np.testing.assert_allclose(found.numpy(), row.expected, err_msg=row.differs)
        return
    kinds = ("value", "reverse mode", "forward mode")
    for kind, found, expected in zip(
        kinds, weft_derivatives(row), jax_derivatives(row), strict=True
    ):
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype, kind
            np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9, err_msg=kind)


def test_no_row_is_there_twice() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names) >= 150
