"""Tensors that follow a rule: evenly spaced numbers, grids of positions, one-hot vectors."""

from __future__ import annotations

from collections.abc import Callable
from operator import index as as_int
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.context import default_float
from weft.core.common.device import as_device
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import Array, DType
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ops.creation import arange, asarray, shape_tuple
from weft.ops.elementwise.arithmetic import where
from weft.ops.families import as_tensors, broadcast, cast
from weft.ops.view.broadcast import broadcast_arrays
from weft.ops.view.join import stack
from weft.ops.view.reshape import expand_dims, reshape
from weft.ops.view.transpose import moveaxis


@public
def linspace(
    start: Any,
    stop: Any,
    /,
    num: int = 50,
    *,
    dtype: Any = None,
    device: Any = None,
    endpoint: bool = True,
    axis: int = 0,
) -> Tensor:
    """`num` evenly spaced numbers from `start` to `stop`, which `endpoint=False` leaves out.

    Tensors for `start` and `stop` are differentiable and give a new axis at `axis`.
    """
    count = _amount("linspace", num)
    place = None if device is None else as_device(device)
    if isinstance(start, Tensor) or isinstance(stop, Tensor):
        line = moveaxis(_between(start, stop, count, endpoint), 0, axis)
        return asarray(line, dtype=dtype, device=place)
    low, high = np.asarray(start), np.asarray(stop)
    if low.dtype.kind not in "biufc" or high.dtype.kind not in "biufc":
        raise DTypeError(f"linspace: expected numbers, got {start!r} and {stop!r}")
    is_complex = "c" in (low.dtype.kind, high.dtype.kind)
    natural = dtypes.complex_of(default_float()) if is_complex else default_float()
    target = natural if dtype is None else dtypes.as_dtype(dtype, default_float=default_float())
    if is_complex and not dtypes.is_complex(target):
        raise DTypeError(f"linspace: complex numbers do not fit {dtypes.name_of(target)}")
    with np.errstate(all="ignore"):
        wide = np.linspace(low, high, count, endpoint=endpoint, axis=axis)
        made: Array = np.floor(wide) if dtypes.is_integer(target) else wide
        return asarray(made.astype(target), device=place)


def _amount(op: str, num: Any) -> int:
    try:
        count = as_int(num)
    except TypeError:
        raise DTypeError(f"{op}: num must be an integer, got {num!r}") from None
    if count < 0:
        raise ArgumentError(f"{op}: num is negative ({count})")
    shape_tuple(op, count)
    return count


def _between(start: Any, stop: Any, count: int, endpoint: bool) -> Tensor:
    """Points between two tensors along a new first axis."""
    low, high = broadcast_arrays(*as_tensors("linspace", start, stop))
    dtype = dtypes.promote(low.dtype, high.dtype, op="linspace")
    dtype = dtype if dtypes.is_inexact(dtype) else default_float()
    low, high = cast(low, dtype), cast(high, dtype)
    steps = max(count - 1 if endpoint else count, 1)
    place = reshape(arange(count, device=low.device), (count, *(1,) * low.ndim))
    part = cast(place, dtypes.real_of(dtype)) / steps
    line = low * (1 - part) + high * part
    return where(place == count - 1, high, line) if endpoint and count > 1 else line


@public
def logspace(
    start: Any,
    stop: Any,
    /,
    num: int = 50,
    *,
    base: Any = 10.0,
    dtype: Any = None,
    device: Any = None,
    endpoint: bool = True,
) -> Tensor:
    """`base` to the power of evenly spaced exponents."""
    exponents = linspace(start, stop, num, dtype=_wide(start, stop), endpoint=endpoint)
    made = FUNCTIONS["pow"](base, exponents)
    target = dtypes.promote(default_float(), _inexact(start, stop)) if dtype is None else dtype
    return asarray(made, dtype=target, device=device)


@public
def geomspace(
    start: Any,
    stop: Any,
    /,
    num: int = 50,
    *,
    dtype: Any = None,
    device: Any = None,
    endpoint: bool = True,
) -> Tensor:
    """Numbers from `start` to `stop` of which each is the same multiple of the one before."""
    low, high = (complex(_value("geomspace", v)) for v in (start, stop))
    if 0 in (low, high):
        raise ArgumentError(f"geomspace: start and stop must not be 0 ({start}, {stop})")
    count = _amount("geomspace", num)
    made: Array = np.geomspace(low, high, count, endpoint=endpoint)
    is_complex = any(isinstance(v, complex) for v in (start, stop))
    if not is_complex and low.real * high.real > 0:
        made = np.geomspace(low.real, high.real, count, endpoint=endpoint)
    elif not is_complex:
        raise ArgumentError(f"geomspace: start and stop differ in sign ({start}, {stop})")
    natural = dtypes.complex_of(default_float()) if is_complex else default_float()
    target = natural if dtype is None else dtypes.as_dtype(dtype, default_float=default_float())
    return asarray(made.astype(target), device=device)


def _value(op: str, value: Any) -> complex:
    if isinstance(value, Tensor | np.ndarray | np.generic):
        value = value.item()
    if not isinstance(value, int | float | complex):
        raise DTypeError(f"{op}: expected a number, got {value!r}")
    return value


def _inexact(start: Any, stop: Any) -> DType:
    complex_given = any(
        isinstance(v, complex) or (hasattr(v, "dtype") and v.dtype.kind == "c")
        for v in (start, stop)
    )
    return dtypes.complex64 if complex_given else default_float()


def _wide(start: Any, stop: Any) -> DType | None:
    """float64 for plain numbers, so that the result is rounded once; tensors keep theirs."""
    if isinstance(start, Tensor) or isinstance(stop, Tensor):
        return None
    return dtypes.complex128 if dtypes.is_complex(_inexact(start, stop)) else dtypes.float64


@public
def meshgrid(*arrays: Any, indexing: str = "xy") -> tuple[Tensor, ...]:
    """Coordinate grids from coordinate vectors; `xy` puts the second vector's axis first."""
    if indexing not in ("xy", "ij"):
        raise ArgumentError(f"meshgrid: indexing must be 'xy' or 'ij', got {indexing!r}")
    vectors = [to_tensor(x, op="meshgrid") for x in arrays]
    for position, vector in enumerate(vectors):
        if vector.ndim > 1:
            raise ShapeError(
                f"meshgrid: operand {position} must have one axis, got shape {vector.shape}"
            )
    count = len(vectors)
    order = list(range(count))
    if indexing == "xy" and count > 1:
        order[:2] = [1, 0]
    opened = [
        reshape(v, (*(1,) * axis, v.size, *(1,) * (count - axis - 1)))
        for axis, v in zip(order, vectors, strict=True)
    ]
    return broadcast_arrays(*opened)


@public
def indices(dimensions: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """The positions of a grid: result `[k]` holds each element's position along axis k."""
    sizes = shape_tuple("indices", dimensions)
    target = dtypes.int64 if dtype is None else dtypes.as_dtype(dtype, op="indices")
    grids = [
        broadcast(
            reshape(
                arange(size, dtype=target, device=device), (size, *(1,) * (len(sizes) - k - 1))
            ),
            sizes,
        )
        for k, size in enumerate(sizes)
    ]
    if not grids:
        return FUNCTIONS["zeros"]((0,), dtype=target, device=device)  # type: ignore[no-any-return]
    return stack(grids)


@public
def fromfunction(
    function: Callable[..., Any], shape: Any, /, *, dtype: Any = None, device: Any = None
) -> Any:
    """`function` of the grids of positions: `fromfunction(lambda i, j: i + j, (2, 3))`."""
    sizes = shape_tuple("fromfunction", shape)
    target = default_float() if dtype is None else dtypes.as_dtype(dtype, op="fromfunction")
    grid = indices(sizes, dtype=target, device=device)
    return function(*(grid[k] for k in range(len(sizes))))


@public
def one_hot(x: Any, num_classes: int, /, *, axis: int = -1, dtype: Any = None) -> Tensor:
    """Vectors that are 1 at position `x` and 0 elsewhere; a position out of range gives all 0."""
    places = to_tensor(x, op="one_hot")
    if not dtypes.is_integer(places.dtype):
        raise DTypeError(f"one_hot: positions must be integers, got {places.dtype}")
    target = default_float() if dtype is None else dtypes.as_dtype(dtype, op="one_hot")
    (count,) = shape_tuple("one_hot", num_classes)
    classes = arange(count, device=places.device)
    hot = cast(expand_dims(cast(places, dtypes.int64), -1) == classes, target)
    return moveaxis(hot, -1, axis)


__all__ = [
    "fromfunction",
    "geomspace",
    "indices",
    "linspace",
    "logspace",
    "meshgrid",
    "one_hot",
]
