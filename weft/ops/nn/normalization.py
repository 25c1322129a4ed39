"""Normalisation layers, dropout and attention: composites over reductions and products.

Statistics of narrow floats are taken in float32 and the result is rounded once.
"""

from __future__ import annotations

from math import e, inf, log2, prod
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.parameters import as_flag, as_integer, as_integers
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import DType, Shape
from weft.core.tensor.convert import as_number, is_known, to_tensor
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ops.axes import normalize_axis
from weft.ops.base import call
from weft.ops.contraction import product_of, swap
from weft.ops.elementwise.arithmetic import narrow_ahead_op, narrow_back_op, where
from weft.ops.elementwise.elementary import exp, narrow_exp_op
from weft.ops.families import broadcast_shape, cast
from weft.ops.naming import named
from weft.ops.norms import inexact, vector_norm
from weft.ops.often import often
from weft.ops.random.continuous import gumbel
from weft.ops.random.discrete import bernoulli
from weft.ops.reduction import reduce, reduce_max_op, reduce_sum_op
from weft.ops.view.reshape import reshape


def _wide(op: str, x: Any, *beside: Any) -> tuple[Any, DType]:
    """A real tensor in the dtype its statistics are taken in, and the dtype of the result."""
    tensor = inexact(op, x, *beside)
    if dtypes.is_complex(tensor.dtype):
        raise DTypeError(f"{op}: takes real numbers, got {dtypes.name_of(tensor.dtype)}")
    wide = dtypes.float32 if dtypes.is_narrow(tensor.dtype) else tensor.dtype
    return cast(tensor, wide), tensor.dtype


def _mean(t: Any, axes: Any) -> Any:
    total: Any = reduce(reduce_sum_op, t, axes, True)
    return total / max(prod(t.shape[i] for i in axes), 1)


def _inverse_root(variance: Any) -> Any:
    """What a whole row is multiplied by: one division for all its elements."""
    return 1 / FUNCTIONS["sqrt"](variance)


@public
@named
def normalize(x: Any, /, p: float = 2, axis: Any = 1, eps: float = 1e-12) -> Tensor:
    """Divide by the `p`-norm along an axis, or by `eps` where the norm is smaller."""
    t = inexact("normalize", x, eps)
    eps = as_number("normalize", "eps", eps, beside=(t,))
    size: Any = vector_norm(t, axis=axis, keepdims=True, ord=p)
    return t / where(size > eps, size, eps)


@public
@often
def layer_norm(
    x: Any, /, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    """Mean 0 and variance 1 over the last axes, whose shape is given; then scale and shift."""
    t, dtype = _wide("layer_norm", x, weight, bias)
    axes = _last_axes("layer_norm", t.shape, normalized_shape)
    made = _standard("layer_norm", t, axes, eps)
    return _affine("layer_norm", made, weight, bias, t.shape[t.ndim - len(axes) :], dtype)


def _last_axes(op: str, shape: Shape, wanted: Any) -> Shape:
    sizes = as_integers(op, "normalized_shape", wanted)
    if not sizes or shape[len(shape) - len(sizes) :] != sizes or len(sizes) > len(shape):
        raise ShapeError(f"{op}: shape {shape} does not end with normalized_shape {sizes}")
    return tuple(range(-len(sizes), 0))


def _standard(op: str, t: Any, axes: Shape, eps: float) -> Any:
    """Mean 0 and variance 1 over axes."""
    eps = as_number(op, "eps", eps, beside=(t,))
    centred = t - _mean(t, axes)
    return centred * _inverse_root(_mean(centred * centred, axes) + eps)


def _affine(op: str, t: Any, weight: Any, bias: Any, shape: Shape, dtype: DType) -> Tensor:
    """Scale and shift by tensors of the given shape, then round to the dtype of the input."""
    for what, value in (("weight", weight), ("bias", bias)):
        if value is None:
            continue
        factor = inexact(op, value, t)
        if factor.size != prod(shape) or (factor.ndim > 1 and factor.shape != shape):
            raise ShapeError(f"{op}: {what}: expected shape {shape}, got {factor.shape}")
        factor = cast(reshape(factor, shape), t.dtype)
        t = t * factor if what == "weight" else t + factor
    return cast(t, dtype)


@public
@often
def rms_norm(
    x: Any, /, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> Tensor:
    """Divide by the root mean square over the last axes; `eps` is the dtype's own by default."""
    t, dtype = _wide("rms_norm", x, weight)
    axes = _last_axes("rms_norm", t.shape, normalized_shape)
    small: Any = dtypes.finfo(dtype).eps
    if eps is not None:
        small = as_number("rms_norm", "eps", eps, beside=(t,))
    made = t * _inverse_root(_mean(t * t, axes) + small)
    return _affine("rms_norm", made, weight, None, t.shape[t.ndim - len(axes) :], dtype)


def _features(op: str, t: Any) -> int:
    if t.ndim < 2:
        raise ShapeError(f"{op}: expected (N, C, …), got shape {t.shape}")
    result: int = t.shape[1]
    return result


@public
@often
def group_norm(
    x: Any, /, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    """Normalise each group of features of `x` (N, C, …) on its own; then scale and shift."""
    t, dtype = _wide("group_norm", x, weight, bias)
    features = _features("group_norm", t)
    groups = as_integer("group_norm", "groups", groups, low=1)
    if features % groups:
        raise ArgumentError(f"group_norm: {features} features cannot be split into {groups} groups")
    split = reshape(t, (t.shape[0], groups, features // groups, *t.shape[2:]))
    made = _standard("group_norm", split, tuple(range(2 - split.ndim, 0)), eps)
    shape = (features, *(1,) * (t.ndim - 2))
    return _affine("group_norm", reshape(made, t.shape), weight, bias, shape, dtype)


@public
def instance_norm(x: Any, /, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    """Normalise each feature of each example of `x` (N, C, …) over its space axes."""
    t, dtype = _wide("instance_norm", x, weight, bias)
    features = _features("instance_norm", t)
    if t.ndim < 3:
        raise ShapeError(f"instance_norm: expected (N, C, space…), got shape {t.shape}")
    made = _standard("instance_norm", t, tuple(range(2 - t.ndim, 0)), eps)
    shape = (features, *(1,) * (t.ndim - 2))
    return _affine("instance_norm", made, weight, bias, shape, dtype)


@public
def batch_norm(
    x: Any,
    /,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    *,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Normalise each feature of `x` (N, C, …); gives (result, running mean, running variance).

    In training the statistics are the batch's own, and the running ones move toward them by
    `momentum` (the variance without bias); otherwise the running ones are used and stay.
    """
    t, dtype = _wide("batch_norm", x, running_mean, running_var, weight, bias)
    features = _features("batch_norm", t)
    shape = (features, *(1,) * (t.ndim - 2))
    eps, momentum = (
        as_number("batch_norm", what, value, beside=(t,))
        for what, value in (("eps", eps), ("momentum", momentum))
    )
    if (running_mean is None) != (running_var is None):
        raise ArgumentError("batch_norm: give both running statistics, or none")
    if not as_flag("batch_norm", "training", training):
        if running_mean is None:
            raise ArgumentError("batch_norm: running statistics are needed outside training")
        mean, var = (
            cast(reshape(inexact("batch_norm", s, t), shape), t.dtype)
            for s in (running_mean, running_var)
        )
        made = (t - mean) * _inverse_root(var + eps)
        made = _affine("batch_norm", made, weight, bias, shape, dtype)
        return made, running_mean, running_var
    axes = (-t.ndim, *range(2 - t.ndim, 0))
    count = prod(t.shape[i] for i in axes)
    if count < 2:
        raise ShapeError(f"batch_norm: one value for each feature has no variance {t.shape}")
    mean = _mean(t, axes)
    centred = t - mean
    var = _mean(centred * centred, axes)
    made = _affine("batch_norm", centred * _inverse_root(var + eps), weight, bias, shape, dtype)
    if running_mean is None:
        return made, None, None
    return (
        made,
        _moved(running_mean, mean, momentum),
        _moved(running_var, var * (count / (count - 1)), momentum),
    )


def _moved(running: Any, found: Any, momentum: float) -> Tensor:
    """A running statistic moved toward the batch's; it carries no derivative."""
    old = inexact("batch_norm", running, found)
    new = cast(reshape(FUNCTIONS["stop_gradient"](found), old.shape), old.dtype)
    return old + momentum * (new - old)


@public
def local_response_norm(
    x: Any, /, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """Divide by (k + alpha · mean of squares of `size` features around) to the power beta."""
    t, dtype = _wide("local_response_norm", x)
    features = _features("local_response_norm", t)
    if t.ndim < 3:
        raise ShapeError(f"local_response_norm: expected (N, C, space…), got shape {t.shape}")
    size = as_integer("local_response_norm", "size", size, low=1)
    alpha, beta, k = (
        as_number("local_response_norm", what, value, beside=(t,))
        for what, value in (("alpha", alpha), ("beta", beta), ("k", k))
    )
    rows = reshape(t * t, (t.shape[0], 1, features, prod(t.shape[2:])))
    around = FUNCTIONS["avg_pool2d"](_padded_rows(rows, size), (size, 1), 1)
    return cast(t / (reshape(around, t.shape) * alpha + k) ** beta, dtype)


def _padded_rows(rows: Any, size: int) -> Any:
    zeros = FUNCTIONS["zeros"]
    lead, width = rows.shape[:2], rows.shape[3]
    low, high = (
        zeros((*lead, n, width), dtype=rows.dtype, device=rows.device)
        for n in (size // 2, (size - 1) // 2)
    )
    return FUNCTIONS["concat"]([low, rows, high], axis=2)


@public
def dropout(x: Any, /, rate: float | Tensor, key: Any) -> Tensor:
    """Set elements to 0 with probability `rate` and scale the others up, so that the mean stays."""
    t = inexact("dropout", x, key)
    rate = as_number("dropout", "rate", rate, beside=(t,))
    if is_known(rate, lambda v: not 0 <= v < 1):
        raise ArgumentError(f"dropout: rate must be in [0, 1), got {rate}")
    if not isinstance(rate, Tensor) and rate == 0:
        return alias(t)
    return where(bernoulli(key, 1 - rate, t.shape), t / (1 - rate), 0)


@public
def gumbel_softmax(
    logits: Any, /, key: Any, tau: Any = 1.0, *, hard: bool = False, axis: int = -1
) -> Tensor:
    """A random choice by `logits` that has a derivative: a softmax of logits with Gumbel noise.

    The lower `tau`, the closer to a choice of one. `hard` gives the choice itself, 0 or 1, with the
    derivative of the soft one.
    """
    scores: Any = inexact("gumbel_softmax", logits, key)
    if dtypes.is_complex(scores.dtype):
        raise DTypeError("gumbel_softmax: complex logits have no order")
    i = normalize_axis("gumbel_softmax", axis, scores.ndim)
    if not isinstance(tau, Tensor) and not as_number("gumbel_softmax", "tau", tau) > 0:
        raise ArgumentError(f"gumbel_softmax: tau must be positive, got {tau}")
    noisy = (scores + gumbel(key, scores.shape, scores.dtype)) / tau
    soft = FUNCTIONS["softmax"](noisy, axis=i)
    if not as_flag("gumbel_softmax", "hard", hard):
        return cast(soft, scores.dtype)
    chosen = FUNCTIONS["argmax"](noisy, axis=i)
    made = FUNCTIONS["one_hot"](chosen, scores.shape[i], axis=i, dtype=soft.dtype)
    return cast(made + (soft - FUNCTIONS["stop_gradient"](soft)), scores.dtype)


@public
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    dropout_rate: float = 0.0,
    dropout_key: Any = None,
) -> Tensor:
    """Mix values (… S V) by how well queries (… L E) match keys (… S E).

    A bool mask says what may be seen, a float mask is added to the scores; `is_causal` hides later
    positions. A query that may see nothing gives zeros. With `enable_gqa` each key and value head
    (axis -3) serves several query heads. `dropout_rate` of the weights are dropped by a key.
    """
    name = "scaled_dot_product_attention"
    (q, dtype), (k, _), (v, _) = (_wide(name, x, query, key, value) for x in (query, key, value))
    if min(q.ndim, k.ndim, v.ndim) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ShapeError(
            f"{name}: query … L E, key … S E, value … S V (shapes {q.shape}, {k.shape}, {v.shape})"
        )
    if as_flag(name, "enable_gqa", enable_gqa):
        k, v = (_shared_heads(name, q, x) for x in (k, v))
    parts, total = _mixing(name, dtype, q, k, mask, is_causal, scale, dropout_rate, dropout_key)
    # Dividing the mixed values takes fewer divisions than dividing the weights.
    return cast(_product(name, dtype, parts, v) / total, dtype)


def attention_weights(
    query: Any,
    key: Any,
    mask: Any = None,
    *,
    is_causal: bool = False,
    enable_gqa: bool = False,
    dropout_rate: float = 0.0,
    dropout_key: Any = None,
) -> Tensor:
    """The weights (… L S) by which `scaled_dot_product_attention` mixes values."""
    name = "attention_weights"
    (q, dtype), (k, _) = (_wide(name, x, query, key) for x in (query, key))
    k = _shared_heads(name, q, k) if enable_gqa else k
    parts, total = _mixing(name, dtype, q, k, mask, is_causal, None, dropout_rate, dropout_key)
    return cast(parts / total, dtype)


def _mixing(
    name: str,
    dtype: DType,
    q: Any,
    k: Any,
    mask: Any,
    is_causal: bool,
    scale: Any,
    dropout_rate: float,
    dropout_key: Any,
) -> tuple[Any, Any]:
    """Weights of values before they are divided, and what divides them."""
    factor = (q.shape[-1] or 1) ** -0.5 if scale is None else scale
    factor = as_number(name, "scale", factor, beside=(q,))
    scores: Any
    if dtype == q.dtype:  # queries are fewer than scores
        scores = product_of(name, q * factor, swap(k))
    else:  # what is narrow in memory is multiplied as such
        scores = _product(name, dtype, q, swap(k))
    seen: Any = None
    if as_flag(name, "is_causal", is_causal):
        seen = _earlier(q.shape[-2], k.shape[-2], q.device)
    given: Any = None if mask is None else to_tensor(mask, like=scores.device, op=name)
    if dtype != q.dtype and not (
        _is_scale(factor) and (given is None or dtypes.is_bool(given.dtype))
    ):
        scores, factor = scores * factor, 1.0
    if given is not None:
        scores, seen = _masked(name, scores, seen, given)
    if dtype == q.dtype:
        parts, total = _weights(scores, seen)
    else:
        parts, total = _narrow_weights(scores, seen, dtype, factor)
    if type(dropout_rate) is not float or dropout_rate:
        if dropout_key is None:
            raise ArgumentError(f"{name}: dropout_rate {dropout_rate} needs a dropout_key")
        rate = as_number(name, "dropout_rate", dropout_rate, beside=(q,))
        if is_known(rate, lambda v: not 0 <= v < 1):
            raise ArgumentError(f"{name}: dropout_rate must be in [0, 1), got {rate}")
        parts = where(bernoulli(dropout_key, 1 - rate, parts.shape), parts, 0)
        if dtype != q.dtype:  # those that stay are as narrow as before
            parts = call(narrow_ahead_op, (parts,), {"dtype": dtype})
        total = total * (1 - rate)
    return parts, total


def _product(name: str, dtype: DType, x: Any, y: Any) -> Any:
    """The product of tensors that hold values of a dtype; half as wide, its cotangent is so too.

    Then products that differentiate it have narrow factors as well.
    """
    found: Any = product_of(name, x, y)
    is_half = dtype.itemsize == 2 and dtype != x.dtype
    return call(narrow_back_op, (found,), {"dtype": dtype}) if is_half else found


def _earlier(queries: int, keys: int, device: Any) -> Any:
    """Which keys come no later than each query: computed from positions, so it takes no memory."""
    arange = FUNCTIONS["arange"]
    first, second = (arange(n, dtype=np.int32, device=device) for n in (queries, keys))
    return reshape(first, (queries, 1)) >= second


def _shared_heads(op: str, q: Any, x: Any) -> Any:
    """Repeat each key or value head for the query heads it serves."""
    if min(q.ndim, x.ndim) < 3 or x.shape[-3] == 0 or q.shape[-3] % x.shape[-3]:
        raise ShapeError(f"{op}: heads of {x.shape} cannot serve the heads of {q.shape}")
    times = q.shape[-3] // x.shape[-3]
    lead, heads, tail = x.shape[:-3], x.shape[-3], x.shape[-2:]
    opened = reshape(x, (*lead, heads, 1, *tail))
    spread = FUNCTIONS["broadcast_to"](opened, (*lead, heads, times, *tail))
    return reshape(spread, (*lead, heads * times, *tail))


def _is_scale(factor: Any) -> bool:
    """Whether the largest of some numbers times a factor is the largest one times it."""
    return isinstance(factor, int | float) and 0 < factor < inf


def _masked(op: str, scores: Any, seen: Any, given: Any) -> tuple[Any, Any]:
    """Scores and what may be seen of them, with a mask."""
    if broadcast_shape(op, scores.shape, given.shape) != scores.shape:
        raise ShapeError(f"{op}: mask of shape {given.shape} for scores {scores.shape}")
    if dtypes.is_bool(given.dtype):
        return scores, given if seen is None else seen & given
    if not dtypes.is_floating(given.dtype):
        raise DTypeError(
            f"{op}: mask: expected bools or floats, got {dtypes.name_of(given.dtype)}"
            "\nhint: mask != 0 makes bools of zeros and ones"
        )
    return scores + cast(given, scores.dtype), seen


def _weights(scores: Any, seen: Any) -> tuple[Any, Any]:
    """The weights of a softmax over the last axis before they are divided, and what divides them.

    Where nothing is seen weights are 0, whatever stands beside them. A row of such only has 1 for
    its divisor, and so has a row of -inf.
    """
    shape = (*scores.shape[:-1], 1)
    if scores.shape[-1] == 0:
        return scores, FUNCTIONS["ones"](shape, dtype=scores.dtype, device=scores.device)
    if seen is not None:
        scores = where(seen, scores, -inf)
    top: Any = reduce(reduce_max_op, FUNCTIONS["stop_gradient"](scores), -1, True)
    parts: Any = exp(scores - where(top == -inf, 0, top))
    if seen is not None:
        parts = where(seen, parts, 0)
    total: Any = reduce(reduce_sum_op, parts, -1, True)
    return parts, where(total == 0, 1, total)


def _narrow_weights(scores: Any, seen: Any, dtype: DType, scale: float) -> tuple[Any, Any]:
    """The same, of weights as narrow as values are: so units for narrow matrices can mix them.

    They are divided by a power of two and not by the largest: so they have the same digits whatever
    it is, and need not wait for it. What is not seen is hidden before the exponential, whose result
    alone derivatives need.
    """
    if scores.shape[-1] == 0:
        return _weights(scores, seen)
    scores = scores if seen is None else where(seen, scores, -inf)
    top: Any = reduce(reduce_max_op, FUNCTIONS["stop_gradient"](scores), -1, True)
    whole: Any = FUNCTIONS["ceil"](top * (scale * log2(e)))
    whole = FUNCTIONS["broadcast_to"](where(abs(top) < inf, whole, 0), scores.shape)
    parts: Any = call(narrow_exp_op, (scores, whole), {"scale": scale, "dtype": dtype})
    total: Any = reduce(reduce_sum_op, parts, -1, True)
    return parts, where(total == 0, 1, total)


__all__ = [
    "batch_norm",
    "dropout",
    "group_norm",
    "gumbel_softmax",
    "instance_norm",
    "layer_norm",
    "local_response_norm",
    "normalize",
    "rms_norm",
    "scaled_dot_product_attention",
]
