"""Functions of sampled curves: interpolation, slopes, areas, phases, and windows for spectra.

All are compositions, so they differentiate, batch, compile and shard as their parts do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import pi
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.context import default_float
from weft.core.common.device import Device
from weft.core.common.parameters import as_integer, as_real
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import DType
from weft.core.tensor.convert import PYTHON_SCALARS, device_of, is_double, to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, ShapeError
from weft.ops import reduction
from weft.ops.axes import normalize_axes, normalize_axis
from weft.ops.creation import ones
from weft.ops.elementwise.arithmetic import where
from weft.ops.families import as_tensors, cast
from weft.ops.naming import named
from weft.ops.often import often
from weft.ops.order import cumsum, diff
from weft.ops.placement import copy_of
from weft.ops.ranges import linspace
from weft.ops.search import searchsorted
from weft.ops.view.join import concat
from weft.ops.view.reshape import reshape
from weft.ops.view.slice import narrow
from weft.ops.view.transpose import moveaxis


def _floats(name: str, *args: Any, beside: tuple[Any, ...] = ()) -> tuple[Tensor, ...]:
    """Operands in one float (or complex) dtype; they follow tensors `beside` them."""
    found = as_tensors(name, *args, beside=beside)
    target = _float_dtype(name, found, beside)
    return tuple(cast(t, target) for t in found)


def _float_dtype(name: str, tensors: tuple[Tensor, ...], beside: tuple[Any, ...] = ()) -> DType:
    """The float (or complex) dtype of tensors; beside float64, integers become that."""
    dtype = dtypes.promote_all(*(t.dtype for t in tensors), op=name)
    if dtypes.is_inexact(dtype):
        return dtype
    return dtypes.float64 if any(map(is_double, beside)) else default_float()


@public
@often
def interp(
    x: Any, /, xp: Any, fp: Any, left: Any = None, right: Any = None, period: float | None = None
) -> Tensor:
    """Values at `x` of the line through the points (`xp`, `fp`), whose `xp` must ascend.

    Outside it is the first or last value, unless `left` or `right` is given. With `period`, points
    may come in any order and both ends meet.

    >>> interp([0.5, 3.0], [0.0, 1.0, 2.0], [0.0, 10.0, 20.0]).tolist()
    [5.0, 20.0]
    """
    places, values = as_tensors("interp", xp, fp, beside=(x,))
    dtype = _float_dtype("interp", (places, values))
    at, _ = as_tensors("interp", x, cast(places, dtypes.real_of(dtype)))
    dtype = dtypes.promote_all(at.dtype, dtype, op="interp")
    at, places = (cast(t, dtypes.real_of(dtype)) for t in (at, places))
    values = cast(values, dtype)
    if places.ndim != 1 or places.shape != values.shape:
        raise ShapeError(
            f"interp: xp and fp must be one axis each of one length, got {places.shape} and"
            f" {values.shape}"
        )
    if not places.size:
        raise ShapeError("interp: xp: there is no point to go through")
    if period is not None:
        at, places, values = _around(at, places, values, as_real("interp", "period", period))
    last = places.shape[0] - 1
    upper = FUNCTIONS["clip"](searchsorted(places, at, side="right"), min(1, last), last)
    lower = FUNCTIONS["maximum"](upper - 1, 0)
    taken = partial(FUNCTIONS["take"], mode="clip")  # there is nothing to check
    x0, x1, y0, y1 = (taken(t, i) for t in (places, values) for i in (lower, upper))
    width = x1 - x0
    share = (at - x0) / where(width == 0, 1.0, width)
    found = y0 + share * (y1 - y0)
    # Beside what is infinite or missing, values on points stay, and others are as NumPy has them.
    is_level = (at == x0) | (y0 == y1)
    from_above = where(is_level, y0, y1 + (share - 1) * (y1 - y0))
    found = where(FUNCTIONS["isnan"](found), from_above, found)
    found = where(at >= places[last], values[last], found)
    if right is not None:
        found = where(at > places[last], right, found)
    found = where(at < places[0], values[0] if left is None else left, found)
    return where(FUNCTIONS["isnan"](at), at, found)


def _around(at: Tensor, places: Tensor, values: Tensor, period: float) -> tuple[Tensor, ...]:
    """One turn in order, with the last point before it and the first behind it."""
    if period == 0:
        raise ArgumentError("interp: period must not be 0")
    period = abs(period)
    at, places = at % period, places % period
    order = FUNCTIONS["argsort"](places)
    places, values = (FUNCTIONS["take"](t, order, mode="clip") for t in (places, values))
    places = concat([places[-1:] - period, places, places[:1] + period])
    return at, places, concat([values[-1:], values, values[:1]])


@public
@often
def gradient(x: Any, /, *spacing: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Slopes by central differences along each axis; a tensor for one axis, else a list.

    `spacing` is one distance for all axes, or for each axis a distance or its coordinates. At the
    ends differences are one-sided, of first or second order.

    >>> gradient([0.0, 1.0, 4.0, 9.0]).tolist()
    [1.0, 2.0, 4.0, 5.0]
    """
    (tensor,) = _floats("gradient", x, beside=spacing)
    axes = tuple(range(tensor.ndim))
    if axis is not None:
        axes = normalize_axes("gradient", axis, tensor.ndim)
    if len(spacing) not in (0, 1, len(axes)):
        raise ArgumentError(
            f"gradient: expected 1 spacing or one for each of {len(axes)} axes, got {len(spacing)}"
        )
    edge_order = as_integer("gradient", "edge_order", edge_order, 1, 2)
    steps = spacing if len(spacing) == len(axes) else (spacing or (1.0,)) * len(axes)
    found = [_slope(tensor, i, step, edge_order) for i, step in zip(axes, steps, strict=True)]
    return found[0] if len(found) == 1 else found


def _slope(x: Tensor, axis: int, spacing: Any, order: int) -> Tensor:
    size = x.shape[axis]
    if size < order + 1:
        raise ShapeError(
            f"gradient: axis {axis}: {order + 1} elements are needed, the shape is {x.shape}"
        )
    at = moveaxis(x, axis, -1)
    (step,) = _floats("gradient", spacing, beside=(x,))
    if step.ndim > 1 or (step.ndim == 1 and step.shape[0] != size):
        raise ShapeError(
            f"gradient: axis {axis} of size {size} cannot have spacings of shape {step.shape}"
        )
    gaps = diff(step) if step.ndim else FUNCTIONS["broadcast_to"](step, (size - 1,))
    before, behind = gaps[:-1], gaps[1:]
    rises = diff(at) / gaps
    middle = (rises[..., :-1] * behind + rises[..., 1:] * before) / (before + behind)
    first, last = rises[..., :1], rises[..., -1:]
    if order == 2:
        first, last = _second_order(rises, gaps)
    return moveaxis(concat([first, middle, last], axis=-1), -1, axis)


def _second_order(rises: Tensor, gaps: Tensor) -> tuple[Tensor, Tensor]:
    """Slopes at both ends of the parabolas through the three points nearest to each."""
    bend = (rises[..., 1:2] - rises[..., :1]) / (gaps[:1] + gaps[1:2])
    other = (rises[..., -1:] - rises[..., -2:-1]) / (gaps[-1:] + gaps[-2:-1])
    return rises[..., :1] - bend * gaps[:1], rises[..., -1:] + other * gaps[-1:]


@public
@often
def trapezoid(y: Any, /, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Tensor:
    """The area under samples, by trapezoids: at coordinates `x`, or `dx` apart.

    >>> trapezoid([1.0, 2.0, 3.0]).item()
    4.0
    """
    (samples,) = _floats("trapezoid", y, beside=(x, dx))
    i = normalize_axis("trapezoid", axis, samples.ndim)
    size = samples.shape[i]
    pairs = narrow(samples, i, min(1, size), max(size - 1, 0)) + narrow(
        samples, i, 0, max(size - 1, 0)
    )
    if x is None:
        apart: Any = dx
        if not isinstance(dx, PYTHON_SCALARS):
            apart = to_tensor(dx, beside=(samples,), op="trapezoid")
        whole: Tensor = reduction.sum(pairs, i) * apart / 2
        return whole
    (places,) = _floats("trapezoid", x, beside=(samples,))
    if places.ndim == 1:
        places = reshape(places, (-1, *(1,) * (samples.ndim - 1 - i)))
    return reduction.sum(pairs * diff(places, axis=i - samples.ndim), i) / 2


@public
@often
def unwrap(
    p: Any, /, discont: float | None = None, axis: int = -1, *, period: float = 2 * pi
) -> Tensor:
    """Angles without jumps: multiples of `period` are added where neighbours differ by more."""
    tensor = to_tensor(p, op="unwrap")
    if not isinstance(period, int | np.integer) or isinstance(period, bool):
        period = as_real("unwrap", "period", period)
    if not dtypes.is_integer(tensor.dtype) or isinstance(period, float):
        (tensor,) = _floats("unwrap", tensor)
    i = normalize_axis("unwrap", axis, tensor.ndim)
    if tensor.shape[i] < 2:
        return copy_of(tensor)
    least = period / 2 if discont is None else as_real("unwrap", "discont", discont, decides=True)
    steps = diff(tensor, axis=i)
    half = period // 2 if dtypes.is_integer(tensor.dtype) else period / 2
    wrapped = (steps + half) % period - half
    if 2 * half == period:  # half a turn has two ways: the one of the step itself
        wrapped = where((wrapped == -half) & (steps > 0), half, wrapped)
    added = where(FUNCTIONS["abs"](steps) < least, 0, wrapped - steps)
    turns = cumsum(added, i, dtype=tensor.dtype)
    first = narrow(tensor, i, 0, 1)
    return concat([first, narrow(tensor, i, 1, tensor.shape[i] - 1) + turns], axis=i)


@public
@named
def ediff1d(x: Any, /, to_end: Any = None, to_begin: Any = None) -> Tensor:
    """Differences of neighbours of all elements, with others put before and behind them."""
    beside = (x, to_begin, to_end)
    before, flat, behind = (
        None if v is None else reshape(to_tensor(v, beside=beside, op="ediff1d"), (-1,))
        for v in (to_begin, x, to_end)
    )
    parts = (before, diff(flat), behind)
    return concat([part for part in parts if part is not None])


def _window(
    name: str, size: int, dtype: Any, shape: Callable[[Tensor], Tensor], like: Device | None = None
) -> Tensor:
    """A function of places from -1 to 1; a window of one sample is 1."""
    count = as_integer(name, "size", size, low=0)
    default = default_float()
    target = default if dtype is None else dtypes.as_dtype(dtype, op=name, default_float=default)
    if count == 1:
        return ones((1,), dtype=target, device=like)
    return cast(shape(linspace(-1.0, 1.0, count, dtype=target, device=like)), target)


def _cosines(*weights: float) -> Callable[[Tensor], Tensor]:
    """A sum of cosines over one turn."""

    def shape(at: Tensor) -> Tensor:
        turn = at * pi
        terms = [w * FUNCTIONS["cos"](k * turn) for k, w in enumerate(weights)]
        return reduction.sum(FUNCTIONS["stack"](terms), 0)

    return shape


@public
def hanning(size: int, /, *, dtype: Any = None) -> Tensor:
    """Hann's window: a raised cosine that begins and ends at 0."""
    return _window("hanning", size, dtype, _cosines(0.5, 0.5))


@public
def hamming(size: int, /, *, dtype: Any = None) -> Tensor:
    """Hamming's window: a raised cosine over a base of 0.08."""
    return _window("hamming", size, dtype, _cosines(0.54, 0.46))


@public
def blackman(size: int, /, *, dtype: Any = None) -> Tensor:
    """Blackman's window: a sum of three cosines that begins and ends at 0."""
    return _window("blackman", size, dtype, _cosines(0.42, 0.5, 0.08))


@public
def bartlett(size: int, /, *, dtype: Any = None) -> Tensor:
    """A triangle that begins and ends at 0."""
    return _window("bartlett", size, dtype, lambda at: 1.0 - FUNCTIONS["abs"](at))


@public
def kaiser(size: int, /, beta: Any, *, dtype: Any = None) -> Tensor:
    """Kaiser's window: `beta` trades the width of its peak in a spectrum for lower sides."""

    def shape(at: Tensor) -> Tensor:
        bessel = FUNCTIONS["i0"]
        (width,) = _floats("kaiser", beta)
        root = FUNCTIONS["sqrt"](FUNCTIONS["maximum"](1.0 - at * at, 0.0))
        found: Tensor = bessel(width * root) / bessel(width)
        return found

    return _window("kaiser", size, dtype, shape, device_of(beta))


__all__ = [
    "bartlett",
    "blackman",
    "ediff1d",
    "gradient",
    "hamming",
    "hanning",
    "interp",
    "kaiser",
    "trapezoid",
    "unwrap",
]
