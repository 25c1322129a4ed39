"""Losses: a number for how far predictions are from targets.

Each gives one loss for each element or example, then `reduction` says what becomes of them: "mean",
"sum" or "none".
"""

from __future__ import annotations

from math import log as log_of
from math import pi
from typing import Any

from weft.core.common import dtypes
from weft.core.common.parameters import as_choice, as_flag, as_integer
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import DType, Shape
from weft.core.tensor.convert import as_number, is_known, to_tensor, to_tensors
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ops.axes import normalize_axis
from weft.ops.base import call
from weft.ops.elementwise.arithmetic import where
from weft.ops.elementwise.elementary import exp, log
from weft.ops.families import as_tensors, broadcast_shape, cast
from weft.ops.gather import gather_op
from weft.ops.naming import named
from weft.ops.norms import inexact, vector_norm
from weft.ops.often import often
from weft.ops.reduction import reduce, reduce_sum_op
from weft.ops.view.reshape import reshape
from weft.ops.view.transpose import moveaxis

_MANY = 1 << 18  # scores that are rather not all written, to read few of them


def reduced(op: str, losses: Tensor, reduction: str, count: Any = None) -> Tensor:
    """Losses as they are, their sum, or their mean (over `count` where it is not their number)."""
    as_choice(op, "reduction", reduction, ("mean", "sum", "none"))
    if reduction == "none":
        return losses
    if reduction == "sum":
        return reduce(reduce_sum_op, losses, None, False)
    total: Any = reduce(reduce_sum_op, cast(losses, _wide(losses.dtype)), None, False)
    return cast(total / (losses.size if count is None else count), losses.dtype)


def _wide(dtype: DType) -> DType:
    """The dtype that a mean is taken in: sums of many numbers leave the range of narrow floats."""
    return dtypes.float32 if dtypes.is_narrow(dtype) else dtype


def _pair(op: str, prediction: Any, target: Any, *beside: Any) -> tuple[Any, Any]:
    """Prediction and target as floats of one shape; they follow tensors `beside` them."""
    x, y = as_tensors(op, prediction, target, beside=beside)
    x, y = inexact(op, x), inexact(op, y)
    if x.shape != y.shape:
        raise ShapeError(
            f"{op}: prediction {x.shape} and target {y.shape} differ in shape"
            "\nhint: broadcast one of them on purpose"
        )
    return x, y


@public
@often
def mse_loss(prediction: Any, /, target: Any, *, reduction: str = "mean") -> Tensor:
    """Squared differences."""
    x, y = _pair("mse_loss", prediction, target)
    return reduced("mse_loss", (x - y) * (x - y), reduction)


@public
def l1_loss(prediction: Any, /, target: Any, *, reduction: str = "mean") -> Tensor:
    """Absolute differences."""
    x, y = _pair("l1_loss", prediction, target)
    return reduced("l1_loss", FUNCTIONS["abs"](x - y), reduction)


@public
def smooth_l1_loss(
    prediction: Any, /, target: Any, *, beta: float | Tensor = 1.0, reduction: str = "mean"
) -> Tensor:
    """Squared differences over 2·beta below `beta`, absolute ones less beta/2 above."""
    beta = as_number("smooth_l1_loss", "beta", beta, low=0, beside=(prediction, target))
    x, y = _pair("smooth_l1_loss", prediction, target)
    if not isinstance(beta, Tensor):
        if beta == 0:
            return l1_loss(prediction, target, reduction=reduction)
        return reduced("smooth_l1_loss", _huber(x - y, beta) / beta, reduction)
    is_zero = beta == 0
    found = _huber(x - y, beta) / where(is_zero, 1, beta)
    return reduced("smooth_l1_loss", where(is_zero, FUNCTIONS["abs"](x - y), found), reduction)


@public
@often
def huber_loss(
    prediction: Any, /, target: Any, *, delta: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """Half the squared differences below `delta`, growing linearly above."""
    delta = as_number("huber_loss", "delta", delta, beside=(prediction, target))
    if is_known(delta, lambda v: v <= 0):
        raise ArgumentError(f"huber_loss: delta must be positive, got {delta}")
    x, y = _pair("huber_loss", prediction, target)
    return reduced("huber_loss", _huber(x - y, delta), reduction)


def _huber(difference: Any, delta: Any) -> Any:
    size = FUNCTIONS["abs"](difference)
    inside = size < delta
    small: Any = where(inside, difference, 0)  # the slope of an infinite square would be NaN
    return where(inside, 0.5 * small * small, delta * (size - 0.5 * delta))


@public
@often
def cross_entropy(
    logits: Any,
    /,
    target: Any,
    *,
    weight: Any = None,
    ignore_index: int | None = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    axis: int = 1,
) -> Tensor:
    """Cross entropy of unnormalised scores and targets, which are classes or probabilities.

    Classes are integers of the shape of `logits` without its class axis (`axis`, or the only one of
    a single example); probabilities are floats of its full shape.
    """
    x, name = inexact("cross_entropy", logits, target, weight), "cross_entropy"
    classes = normalize_axis(name, 0 if x.ndim == 1 else axis, x.ndim)
    label_smoothing = as_number(name, "label_smoothing", label_smoothing, 0, 1, (x,))
    scores: Any = moveaxis(FUNCTIONS["log_softmax"](x, classes), classes, -1)
    y: Any = to_tensor(target, beside=(x,), op=name)
    if dtypes.is_integer(y.dtype):
        in_rows = scores.size >= _MANY
        return _class_loss(
            name, scores, y, weight, ignore_index, label_smoothing, reduction, in_rows
        )
    if y.shape != x.shape:
        text = f"{name}: target {y.shape} for logits {x.shape}"
        hint = f"\nhint: classes are integers, these are {dtypes.name_of(y.dtype)}: use astype"
        raise ShapeError(text + (hint if y.shape == scores.shape[:-1] else ""))
    count = x.shape[classes]
    spread = moveaxis(inexact(name, y), classes, -1) * (1 - label_smoothing)
    terms = (spread + label_smoothing / max(count, 1)) * scores
    if weight is not None:
        terms = terms * _class_weight(name, weight, count, x)
    losses: Any = -reduce(reduce_sum_op, terms, -1, False)
    return reduced(name, losses, reduction)


def _class_weight(op: str, weight: Any, count: int, scores: Tensor) -> Any:
    given = inexact(op, weight, scores)
    if given.shape != (count,):
        raise ShapeError(f"{op}: weight: expected shape ({count},), got {given.shape}")
    return given


def _class_loss(
    op: str,
    scores: Any,
    target: Any,
    weight: Any,
    ignore_index: int | None,
    smoothing: Any,
    reduction: str,
    in_rows: bool = False,
) -> Tensor:
    """Negative log-probabilities (… classes) picked by integer targets.

    They may be picked `in_rows`, as they are computed: then nobody needs all of them at once.
    """
    if not dtypes.is_integer(target.dtype):
        raise DTypeError(f"{op}: target classes are integers, got {dtypes.name_of(target.dtype)}")
    if target.shape != scores.shape[:-1]:
        raise ShapeError(
            f"{op}: target {target.shape} for {scores.shape[-1]} classes of {scores.shape[:-1]}"
            + _hint_for(target.shape, scores.shape)
        )
    kept, safe = _kept_classes(op, cast(target, dtypes.int64), ignore_index)
    losses = -(_picked_in_rows if in_rows else _picked)(op, scores, safe)
    rows = None
    if weight is not None:
        by_class = _class_weight(op, weight, scores.shape[-1], scores)
        rows = _picked(op, by_class, safe, shared=True)
        losses = losses * rows
    if isinstance(smoothing, Tensor) or smoothing:
        all_classes = scores if weight is None else scores * by_class
        uniform: Any = -reduce(reduce_sum_op, all_classes, -1, False) / scores.shape[-1]
        losses = (1 - smoothing) * losses + smoothing * uniform
    losses = where(kept, losses, 0)
    if reduction != "mean":
        return reduced(op, losses, reduction)
    counted = where(kept, 1.0 if rows is None else rows, 0.0)
    total = reduce(reduce_sum_op, cast(counted, _wide(scores.dtype)), None, False)
    return reduced(op, losses, reduction, total)


def _hint_for(target: Shape, scores: Shape) -> str:
    """What may have been meant by a target that does not fit scores (… classes)."""
    if len(target) == len(scores):
        return "\nhint: a target has one integer for each row; cross_entropy takes floats as shares"
    if len(scores) > 2 and target == (scores[0], scores[-1], *scores[1:-2]):
        return "\nhint: classes are axis 1 unless axis=-1 says that they come last"
    return ""


def _kept_classes(op: str, target: Any, ignore_index: int | None) -> tuple[Any, Any]:
    """Which targets count, and the classes they name."""
    if ignore_index is None:
        kept = target == target
    else:
        kept = target != as_integer(op, "ignore_index", ignore_index)
    return kept, where(kept, target, 0)


def _picked(op: str, table: Any, classes: Any, shared: bool = False) -> Any:
    """The entry of each row (or of one shared row) that its class names: none from the end."""
    indices = reshape(classes, (*classes.shape, 1))
    picks = classes.ndim if shared else 0
    params = {"indexed": 1, "rest": 0, "picks": picks, "mode": f"{op}: target"}
    return call(gather_op, (table, indices), params)


def _picked_in_rows(op: str, table: Any, classes: Any) -> Any:
    """The same entry of each row, as a sum over the row in which every other term is -0.0."""
    count = table.shape[-1]
    wide = dtypes.int32 if count < 1 << 31 else dtypes.int64
    places: Any = FUNCTIONS["arange"](count, dtype=wide, device=table.device)
    known = _picked(op, places, classes, shared=True)  # a class that there is not is an error
    terms = where(reshape(known, (*known.shape, 1)) == places, table, -0.0)
    return reduce(reduce_sum_op, terms, -1, False)


@public
def nll_loss(
    log_probabilities: Any,
    /,
    target: Any,
    *,
    weight: Any = None,
    ignore_index: int | None = -100,
    reduction: str = "mean",
    axis: int = 1,
) -> Tensor:
    """Negative log-likelihood of integer classes, given log-probabilities along `axis`."""
    x = inexact("nll_loss", log_probabilities, target, weight)
    classes = normalize_axis("nll_loss", 0 if x.ndim == 1 else axis, x.ndim)
    scores, y = moveaxis(x, classes, -1), to_tensor(target, like=x.device, op="nll_loss")
    return _class_loss("nll_loss", scores, y, weight, ignore_index, 0.0, reduction)


@public
def binary_cross_entropy(
    probability: Any, /, target: Any, *, weight: Any = None, reduction: str = "mean"
) -> Tensor:
    """Cross entropy of probabilities of "yes" and targets in [0, 1]; logarithms stop at -100."""
    p, y = _pair("binary_cross_entropy", probability, target)
    losses = -(y * _bounded_log(p) + (1 - y) * _bounded_log(1 - p))
    return reduced(
        "binary_cross_entropy", _weighted("binary_cross_entropy", losses, weight), reduction
    )


def _bounded_log(p: Any) -> Any:
    zero = p == 0
    found: Any = log(where(zero, 1, p))
    return where(zero | (found < -100), -100, found)


def _weighted(op: str, losses: Any, weight: Any, name: str = "weight") -> Any:
    return losses if weight is None else losses * _beside(op, name, weight, losses)


def _beside(op: str, name: str, value: Any, losses: Any) -> Any:
    """Numbers that broadcast with losses, of which they make no more."""
    given = to_tensor(value, beside=(losses,), op=f"{op}: {name}")
    if broadcast_shape(f"{op}: {name}", losses.shape, given.shape) != losses.shape:
        raise ShapeError(
            f"{op}: {name}: {given.shape} would make more of losses of shape {losses.shape}"
            "\nhint: reshape one of them, such as weight[:, None]"
        )
    return given


@public
def binary_cross_entropy_with_logits(
    logits: Any,
    /,
    target: Any,
    *,
    weight: Any = None,
    pos_weight: Any = None,
    reduction: str = "mean",
) -> Tensor:
    """Cross entropy of sigmoid(logits) and targets in [0, 1], stable for any logit."""
    name = "binary_cross_entropy_with_logits"
    x, y = _pair(name, logits, target)
    softplus = FUNCTIONS["softplus"]
    yes = _weighted(name, softplus(-x), pos_weight, "pos_weight")
    losses = y * yes + (1 - y) * softplus(x)
    return reduced(name, _weighted(name, losses, weight), reduction)


@public
def kl_div(
    log_probability: Any, /, target: Any, *, log_target: bool = False, reduction: str = "mean"
) -> Tensor:
    """Divergence of target probabilities from predicted log-probabilities, element by element.

    `reduction` may also be "batchmean": the sum divided by the size of the first axis.
    """
    x, y = _pair("kl_div", log_probability, target)
    if as_flag("kl_div", "log_target", log_target):
        terms = exp(y) * (y - x)
    else:
        positive = y > 0
        terms = where(positive, y * (log(where(positive, y, 1)) - x), 0)
    as_choice("kl_div", "reduction", reduction, ("mean", "sum", "none", "batchmean"))
    if reduction == "batchmean":
        return reduced("kl_div", terms, "mean", max(x.shape[0] if x.ndim else 1, 1))
    return reduced("kl_div", terms, reduction)


@public
@named
def cosine_similarity(x1: Any, x2: Any, /, *, axis: int = 1, eps: float = 1e-8) -> Tensor:
    """Cosine of the angle between vectors along an axis; norms below `eps` count as `eps`."""
    eps = as_number("cosine_similarity", "eps", eps, beside=(x1, x2))
    a, b = (inexact("cosine_similarity", x) for x in as_tensors("cosine_similarity", x1, x2))
    left, right = (_at_least(vector_norm(t, axis=axis, keepdims=True), eps) for t in (a, b))
    product: Any = (a / left) * (b / right)
    return reduce(reduce_sum_op, product, axis, False, "cosine_similarity")


def _at_least(x: Any, low: float) -> Any:
    return where(x > low, x, low)


@public
@named
def pairwise_distance(
    x1: Any, x2: Any, /, *, p: float = 2.0, eps: float = 1e-6, keepdims: bool = False
) -> Tensor:
    """The `p`-norm of x1 − x2 + eps along the last axis: the distance of each pair of vectors."""
    a, b = (inexact("pairwise_distance", x) for x in as_tensors("pairwise_distance", x1, x2))
    eps = as_number("pairwise_distance", "eps", eps, beside=(a,))
    return vector_norm(a - b + eps, axis=-1, ord=p, keepdims=keepdims)


@public
@named
def cosine_embedding_loss(
    x1: Any, x2: Any, target: Any, /, *, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """1 − cosine for target 1; what the cosine exceeds `margin` by for target −1."""
    x1, x2, y = to_tensors("cosine_embedding_loss", x1, x2, target)
    margin = as_number("cosine_embedding_loss", "margin", margin, beside=(x1,))
    cosine: Any = cosine_similarity(x1, x2, axis=-1)
    y = _beside("cosine_embedding_loss", "target", y, cosine)
    losses = where(y == 1, 1 - cosine, FUNCTIONS["relu"](cosine - margin))
    return reduced("cosine_embedding_loss", losses, reduction)


@public
def hinge_loss(prediction: Any, /, target: Any, *, reduction: str = "mean") -> Tensor:
    """max(0, 1 − target · prediction) for targets ±1."""
    x, y = _pair("hinge_loss", prediction, target)
    return reduced("hinge_loss", FUNCTIONS["relu"](1 - x * y), reduction)


@public
def hinge_embedding_loss(
    prediction: Any, /, target: Any, *, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """The distance itself for target 1, max(0, margin − distance) for target −1."""
    x, y = _pair("hinge_embedding_loss", prediction, target)
    margin = as_number("hinge_embedding_loss", "margin", margin, beside=(x,))
    losses = where(y == 1, x, FUNCTIONS["relu"](margin - x))
    return reduced("hinge_embedding_loss", losses, reduction)


@public
def soft_margin_loss(prediction: Any, /, target: Any, *, reduction: str = "mean") -> Tensor:
    """log(1 + e^(−target · prediction)) for targets ±1."""
    x, y = _pair("soft_margin_loss", prediction, target)
    return reduced("soft_margin_loss", FUNCTIONS["softplus"](-x * y), reduction)


@public
def margin_ranking_loss(
    x1: Any, x2: Any, target: Any, /, *, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """max(0, margin − target · (x1 − x2)): target 1 wants `x1` larger, −1 smaller."""
    name = "margin_ranking_loss"
    a, b = _pair(name, x1, x2, target)
    margin = as_number(name, "margin", margin, beside=(a,))
    losses = FUNCTIONS["relu"](margin - _beside(name, "target", target, a) * (a - b))
    return reduced("margin_ranking_loss", losses, reduction)


@public
def multi_margin_loss(
    scores: Any,
    /,
    target: Any,
    *,
    p: int = 1,
    margin: float = 1.0,
    weight: Any = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean of max(0, margin − score of the class + other scores)^p over all classes (N, C)."""
    name = "multi_margin_loss"
    x: Any = inexact(name, scores, target, weight)
    y: Any = to_tensor(target, beside=(x,), op=name)
    if not dtypes.is_integer(y.dtype):
        raise DTypeError(f"{name}: target classes are integers, got {dtypes.name_of(y.dtype)}")
    if x.ndim not in (1, 2) or y.shape != x.shape[:-1]:
        raise ShapeError(f"{name}: scores (N, C), target (N): {x.shape}, {y.shape}")
    margin = as_number(name, "margin", margin, beside=(x,))
    power = as_choice(name, "p", p, (1, 2))
    classes, count = cast(y, dtypes.int64), x.shape[-1]
    own = reshape(_picked(name, x, classes), (*y.shape, 1))
    over: Any = FUNCTIONS["relu"](margin - own + x)
    terms = over * over if power == 2 else over
    if weight is not None:
        by_class = _class_weight(name, weight, count, x)
        terms = terms * reshape(_picked(name, by_class, classes, shared=True), (*y.shape, 1))
    others = FUNCTIONS["arange"](count, device=x.device) != reshape(classes, (*y.shape, 1))
    losses: Any = reduce(reduce_sum_op, where(others, terms, 0), -1, False)
    return reduced(name, losses / max(count, 1), reduction)


@public
def multilabel_soft_margin_loss(
    logits: Any, /, target: Any, *, weight: Any = None, reduction: str = "mean"
) -> Tensor:
    """The mean over classes (last axis) of cross entropies of sigmoid(logits) and 0 or 1."""
    name = "multilabel_soft_margin_loss"
    x, y = _pair(name, logits, target)
    if not x.ndim:
        raise ShapeError(f"{name}: expected (…, C), got shape {x.shape}")
    each = binary_cross_entropy_with_logits(x, y, weight=weight, reduction="none")
    return reduced(name, FUNCTIONS["mean"](each, axis=-1), reduction)


@public
def triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    /,
    *,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """max(0, distance to the positive − distance to the negative + margin), last axis.

    With `swap`, the negative is as far away as it is from the nearer of anchor and positive.
    """
    a, close = _pair("triplet_margin_loss", anchor, positive, negative)
    _, far = _pair("triplet_margin_loss", a, negative)
    margin = as_number("triplet_margin_loss", "margin", margin, beside=(a,))
    eps = as_number("triplet_margin_loss", "eps", eps, beside=(a,))
    near: Any = vector_norm(a - close + eps, axis=-1, ord=p)
    apart: Any = vector_norm(a - far + eps, axis=-1, ord=p)
    if as_flag("triplet_margin_loss", "swap", swap):
        apart = FUNCTIONS["minimum"](apart, vector_norm(close - far + eps, axis=-1, ord=p))
    losses = FUNCTIONS["relu"](near - apart + margin)
    return reduced("triplet_margin_loss", losses, reduction)


@public
def poisson_nll_loss(
    prediction: Any,
    /,
    target: Any,
    *,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """Negative log-likelihood of counts; `full` adds Stirling's term for counts above 1."""
    x, y = _pair("poisson_nll_loss", prediction, target)
    eps = as_number("poisson_nll_loss", "eps", eps, beside=(x,))
    is_log = as_flag("poisson_nll_loss", "log_input", log_input)
    losses: Any = exp(x) - y * x if is_log else x - y * log(x + eps)
    if as_flag("poisson_nll_loss", "full", full):
        safe: Any = where(y > 1, y, 1)
        stirling = safe * log(safe) - safe + 0.5 * log(2 * pi * safe)
        losses = losses + where(y > 1, stirling, 0)
    return reduced("poisson_nll_loss", losses, reduction)


@public
def gaussian_nll_loss(
    mean: Any,
    /,
    target: Any,
    variance: Any,
    *,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Negative log-likelihood of a normal distribution; variances below `eps` count as `eps`.

    There is one variance for each element, for each row of the last axis, or for all.
    """
    x, y = _pair("gaussian_nll_loss", mean, target, variance)
    eps = as_number("gaussian_nll_loss", "eps", eps, beside=(x,))
    var = _at_least(_variance_of(x, inexact("gaussian_nll_loss", variance, x)), eps)
    losses = 0.5 * (log(var) + (x - y) * (x - y) / var)
    if as_flag("gaussian_nll_loss", "full", full):
        losses = losses + 0.5 * log_of(2 * pi)
    return reduced("gaussian_nll_loss", losses, reduction)


def _variance_of(mean: Tensor, variance: Tensor) -> Tensor:
    """Variances that broadcast with the mean; those of rows may come without the last axis."""
    if variance.ndim and variance.shape == mean.shape[:-1]:
        return reshape(variance, (*variance.shape, 1))
    if variance.shape not in ((), mean.shape, (*mean.shape[:-1], 1)):
        raise ShapeError(
            f"gaussian_nll_loss: variance {variance.shape} for a mean {mean.shape}"
            f"\nhint: expected {mean.shape}, or {mean.shape[:-1]}: one for each row"
        )
    return variance


__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "hinge_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "pairwise_distance",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
]
