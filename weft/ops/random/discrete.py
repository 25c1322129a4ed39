"""Integers, coins, categories, permutations and choices."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.parameters import as_flag, as_integer
from weft.core.common.types import DType, Shape
from weft.core.tensor.convert import known, to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, CastError, DTypeError, ShapeError
from weft.ops import reduction
from weft.ops.axes import normalize_axis
from weft.ops.creation import arange, shape_tuple
from weft.ops.elementwise.arithmetic import where
from weft.ops.elementwise.comparison import minimum
from weft.ops.elementwise.elementary import log
from weft.ops.families import broadcast, broadcast_shape, cast
from weft.ops.order import argsort, cumsum, take_along_axis, top_k
from weft.ops.random.continuous import (
    draw_shape,
    float_dtype,
    open_uniform,
    parameters,
    raw_bits,
    require,
    standard_gumbel,
    unit_uniform,
    working,
)
from weft.ops.random.state import as_key, streams
from weft.ops.reduction import argmax
from weft.ops.search import searchsorted
from weft.ops.view.reshape import reshape
from weft.ops.view.transpose import moveaxis


def bernoulli(key: Any, p: Any = 0.5, shape: Any = None) -> Tensor:
    """True with probability p: never for 0, always for 1."""
    found, dtype = as_key("bernoulli", key), float_dtype("bernoulli", None, p)
    wide = working(dtype)
    sizes, (chance,) = parameters("bernoulli", found, shape, wide, p)
    require("bernoulli", "p", p, lambda x: (x >= 0) & (x <= 1), "in [0, 1]")
    result: Tensor = open_uniform(found, sizes, wide) < chance
    return result


def rademacher(key: Any, shape: Any = (), dtype: Any = None) -> Tensor:
    """-1 or 1, each with probability ½; int64 unless asked otherwise."""
    found, sizes = as_key("rademacher", key), shape_tuple("rademacher", shape)
    target = dtypes.int64 if dtype is None else dtypes.as_dtype(dtype, op="rademacher")
    if target in dtypes.UNSIGNED or not (dtypes.is_integer(target) or dtypes.is_inexact(target)):
        raise DTypeError(f"rademacher: {dtypes.name_of(target)} has no -1")
    return cast(cast(raw_bits(found, sizes, 1), dtypes.int64) * 2 - 1, target)


def randint(key: Any, shape: Any, minval: Any, maxval: Any, dtype: Any = None) -> Tensor:
    """Uniform integers from minval up to but without maxval; int64 unless asked otherwise.

    The number of values times a random fraction of 64 bits (128 for 64-bit dtypes), rounded down:
    no probability is off by more than 2⁻³² (2⁻⁶⁴) of itself, and nothing is ever rejected.

    Ends without a value between them are refused where they are known. Where they are computed in
    a compiled or mapped function, the integers of such a range may be any.
    """
    found, sizes = as_key("randint", key), shape_tuple("randint", shape)
    target = dtypes.int64 if dtype is None else dtypes.as_dtype(dtype, op="randint")
    if not dtypes.is_integer(target):
        raise DTypeError(f"randint: the dtype must be an integer, got {dtypes.name_of(target)}")
    _require_range(minval, maxval, target)
    word = dtypes.uint64 if target.itemsize == 8 else dtypes.uint32
    size = 8 * word.itemsize
    low, high = (_as_word(v, found, word) for v in (minval, maxval))
    draw_shape("randint", sizes, low.shape, high.shape)
    span = broadcast(high - low, sizes)  # modulo 2^size: 0 stands for all of the words
    upper, lower = (raw_bits(k, sizes, size) for k in streams(found, 2))
    first, carried = _product(upper, span, size)
    total = carried + _product(lower, span, size)[0]
    offset = first + cast(total < carried, word)
    return cast(broadcast(low, sizes) + where(span == 0, upper, offset), target)


def _as_word(value: Any, key: Tensor, word: DType) -> Tensor:
    """An end of the range modulo 2^size."""
    if isinstance(value, int | np.integer):
        number = np.asarray(int(value) % (1 << 8 * word.itemsize)).astype(word)
        return to_tensor(number, like=key.device)
    tensor = to_tensor(value, like=key.device, op="randint")
    if not dtypes.is_integer(tensor.dtype):
        name = dtypes.name_of(tensor.dtype)
        raise DTypeError(f"randint: minval and maxval must be integers, got {name}")
    return cast(tensor, word)


def _require_range(minval: Any, maxval: Any, dtype: DType) -> None:
    for name, value in (("minval", minval), ("maxval", maxval)):
        if not isinstance(value, Tensor | np.ndarray):
            as_integer("randint", name, value)
    low, high = known(minval), known(maxval)
    if low is None or high is None:
        return
    if low.dtype.kind not in "iuO" or high.dtype.kind not in "iuO":
        raise DTypeError(
            f"randint: minval and maxval must be integers, got {low.dtype}, {high.dtype}"
        )
    broadcast_shape("randint", low.shape, high.shape)
    if not np.all(low < high):
        raise ArgumentError(
            f"randint: minval must be below maxval, got {minval!r:.40} and {maxval!r:.40}"
        )
    limits = dtypes.iinfo(dtype)
    if low.size and (low.min() < limits.min or high.max() > limits.max + 1):
        raise CastError(
            f"randint: the range [{low.min()}, {high.max()}) does not fit {dtypes.name_of(dtype)}"
        )


def _product(x: Tensor, y: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The high and the low word of x·y, by halves that do not overflow."""
    half = size // 2
    mask = (1 << half) - 1
    (x1, x0), (y1, y0) = ((v >> half, v & mask) for v in (x, y))
    corner = x0 * y0
    middle = x1 * y0 + (corner >> half)
    other = x0 * y1 + (middle & mask)
    return x1 * y1 + (middle >> half) + (other >> half), x * y


def categorical(key: Any, logits: Any, axis: int = -1, shape: Any = None) -> Tensor:
    """Positions along an axis of logits, with probabilities softmax(logits); int64.

    `shape` is that of the result; it must end in what the other axes of logits broadcast to.
    """
    found = as_key("categorical", key)
    wide = working(float_dtype("categorical", None, logits))
    scores = cast(to_tensor(logits, like=found.device, op="categorical"), wide)
    place = normalize_axis("categorical", axis, scores.ndim)
    last = moveaxis(scores, place, -1)
    if last.shape[-1] == 0:
        raise ShapeError(f"categorical: no categories along axis {axis} of shape {scores.shape}")
    sizes = draw_shape("categorical", shape, last.shape[:-1])
    noise = standard_gumbel(found, (*sizes, last.shape[-1]), wide)
    return argmax(noise + broadcast(last, noise.shape), axis=-1)


def permutation(key: Any, x: Any, axis: int = 0, independent: bool = False) -> Tensor:
    """A random order of an axis of x, or of 0 … x-1 for an integer x.

    Slices move as a whole; with `independent`, each line along the axis has an order of its own.
    """
    found = as_key("permutation", key)
    independent = as_flag("permutation", "independent", independent)
    if _is_count(x):
        return _order(found, _population("permutation", x))
    tensor = to_tensor(x, like=found.device, op="permutation")
    place = normalize_axis("permutation", axis, tensor.ndim)
    if independent and tensor.ndim > 1:
        lines = moveaxis(tensor, place, -1)
        order = argsort(raw_bits(found, lines.shape, 64), axis=-1)
        return moveaxis(take_along_axis(lines, order, axis=-1), -1, place)
    return _take(tensor, _order(found, tensor.shape[place]), place)


shuffle = permutation


def _order(key: Tensor, size: int, count: int | None = None) -> Tensor:
    """Positions sorted by 64 random bits each, all or the first `count`.

    Two are equal with probability below size² 2⁻⁶⁵.
    """
    bits = raw_bits(key, (size,), 64)
    return argsort(bits, axis=-1) if count is None else top_k(bits, count, largest=False)[1]


def _take(x: Tensor, positions: Tensor, axis: int) -> Tensor:
    index = (slice(None),) * axis + (positions,)
    result: Tensor = x[index]
    return result


def _is_count(x: Any) -> bool:
    """Whether a number is given in place of the elements: an integer, or an array without axes."""
    return isinstance(x, int | np.integer) or getattr(x, "shape", None) == ()


def _population(op: str, size: Any) -> int:
    return shape_tuple(op, as_integer(op, "the number of elements", size, low=0))[0]


def choice(
    key: Any, a: Any, shape: Any = (), replace: bool = True, p: Any = None, axis: int = 0
) -> Tensor:
    """Random elements of a along an axis (or of 0 … a-1), with or without repetition.

    `p` gives each element's probability, up to a common factor; without it all are equal.
    """
    found, sizes = as_key("choice", key), shape_tuple("choice", shape)
    replace = as_flag("choice", "replace", replace)
    tensor: Tensor | None = None
    if _is_count(a):
        size, place = _population("choice", a), 0
    else:
        tensor = to_tensor(a, like=found.device, op="choice")
        place = normalize_axis("choice", axis, tensor.ndim)
        size = tensor.shape[place]
    count = int(np.prod(sizes, dtype=np.int64))
    if count and (size == 0 or (not replace and count > size)):
        how = "" if replace else " without repetition"
        raise ArgumentError(f"choice: {count} elements of {size} cannot be chosen{how}")
    weights = None if p is None else _weights(found, p, size, 1 if replace else count)
    positions = _positions(found, size, sizes, count, replace, weights)
    return positions if tensor is None else _take(tensor, positions, place)


def _weights(key: Tensor, p: Any, size: int, needed: int) -> Tensor:
    weights = to_tensor(p, like=key.device, op="choice")
    if weights.shape != (size,):
        raise ShapeError(f"choice: p must have shape ({size},), got {weights.shape}")
    require("choice", "p", p, lambda x: (x >= 0) & (x < np.inf), "non-negative and finite")
    values = known(p)
    if not size:
        return cast(weights, dtypes.float64, "choice")
    if values is not None and np.count_nonzero(values) < needed:
        raise ArgumentError(
            f"choice: p has {np.count_nonzero(values)} positive entries, {needed} are needed"
        )
    # float64 has digits for many elements; over the largest, no sum of them overflows.
    wide = cast(weights, dtypes.float64, "choice")
    result: Tensor = wide / reduction.max(wide)
    return result


def _positions(
    key: Tensor, size: int, sizes: Shape, count: int, replace: bool, weights: Tensor | None
) -> Tensor:
    if not count:
        result: Tensor = arange(0, device=key.device).reshape(sizes)
        return result
    if weights is None:
        if replace:
            return randint(key, sizes, 0, size)
        return reshape(_order(key, size, count), sizes)
    if not replace:  # the largest of ln p + Gumbel noise come in the order of successive draws
        scores = log(weights) + standard_gumbel(key, (size,), weights.dtype)
        return reshape(top_k(scores, count)[1], sizes)
    reached = cumsum(weights, axis=-1)
    drawn = unit_uniform(key, sizes, weights.dtype) * reached[-1]
    # Weights that nobody could refuse, such as zeros alone, reach nowhere.
    return minimum(searchsorted(reached, drawn, side="right"), size - 1)
