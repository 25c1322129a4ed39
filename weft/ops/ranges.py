"""Tensors that follow a rule: evenly spaced numbers, grids of positions, one-hot vectors."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from typing import Any, Literal, overload

import numpy as np

from weft.core.common import dtypes
from weft.core.common.context import default_float
from weft.core.common.device import CPU, as_device
from weft.core.common.parameters import (
    as_choice,
    as_flag,
    as_function,
    as_integer,
    check_constant,
    shown,
)
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import Array, DType
from weft.core.tensor.convert import converted, device_of, holds_tensor, to_tensor, to_tensors
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ops.axes import normalize_axis
from weft.ops.creation import arange, asarray, check_memory, shape_tuple
from weft.ops.elementwise.arithmetic import where
from weft.ops.families import as_tensors, broadcast, broadcast_shape, cast
from weft.ops.naming import named
from weft.ops.often import often
from weft.ops.view.broadcast import broadcast_arrays
from weft.ops.view.join import concat, stack
from weft.ops.view.reshape import expand_dims, reshape
from weft.ops.view.transpose import moveaxis


@overload
def linspace(
    start: Any,
    stop: Any,
    num: int = ...,
    endpoint: bool = ...,
    retstep: Literal[False] = ...,
    dtype: Any = ...,
    axis: int = ...,
    *,
    device: Any = ...,
) -> Tensor: ...


@overload
def linspace(
    start: Any,
    stop: Any,
    num: int = ...,
    endpoint: bool = ...,
    *,
    retstep: Literal[True],
    dtype: Any = ...,
    axis: int = ...,
    device: Any = ...,
) -> tuple[Tensor, Tensor]: ...


@public
@named
def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    device: Any = None,
) -> Any:
    """`num` evenly spaced numbers from `start` to `stop`, which `endpoint=False` leaves out.

    Tensors for `start` and `stop` are differentiable and give a new axis at `axis`. With `retstep`
    the result is a pair: the numbers, and the distance between two of them.

    >>> numbers, distance = linspace(0, 1, 5, retstep=True)
    >>> distance.item()
    0.25
    """
    count, closed = _amount("linspace", num), as_flag("linspace", "endpoint", endpoint)
    gives_step = as_flag("linspace", "retstep", retstep)
    place = None if device is None else as_device(device)
    if any(isinstance(end, Tensor) or holds_tensor(end) for end in (start, stop)):
        low, high = _ends(start, stop)
        line = moveaxis(_between(low, high, count, closed), 0, axis)
        made = asarray(line, dtype=dtype, device=place)
        if not gives_step:
            return made
        step = (high - low) / (_steps(count, closed) or nan)
        target = made.dtype if dtypes.is_inexact(made.dtype) else step.dtype
        return made, asarray(step, dtype=target, device=place)
    numbers, distance = _numbers(start, stop, count, closed, dtype, axis)
    made = asarray(numbers, device=place)
    return (made, asarray(distance, device=place)) if gives_step else made


def _numbers(
    start: Any, stop: Any, count: int, closed: bool, dtype: Any, axis: int
) -> tuple[Array, Array]:
    """Points between two arrays along a new axis, and the distance between them."""
    low, high = _plain("start", start), _plain("stop", stop)
    shape = broadcast_shape("linspace", low.shape, high.shape)
    place_of_new = normalize_axis("linspace", axis, len(shape) + 1)
    is_complex = "c" in (low.dtype.kind, high.dtype.kind)
    natural = dtypes.complex_of(default_float()) if is_complex else default_float()
    target = natural if dtype is None else dtypes.as_dtype(dtype, default_float=default_float())
    if is_complex and not dtypes.is_complex(target):
        raise DTypeError(f"linspace: complex numbers do not fit {dtypes.name_of(target)}")
    check_memory(
        "linspace",
        (count, *(size or 1 for size in shape)),
        dtypes.complex128 if is_complex else dtypes.float64,
    )
    with np.errstate(all="ignore"):
        wide, step = np.linspace(low, high, count, closed, retstep=True, axis=place_of_new)
        made: Array = np.floor(wide) if dtypes.is_integer(target) else wide
        kind = target if dtypes.is_inexact(target) else natural
        steps = np.broadcast_to(step, shape)  # one NaN stands for all where there is no step
        return converted(made, target, "linspace"), converted(steps, kind, "linspace")


def _plain(name: str, value: Any) -> Array:
    """One end of a range as NumPy computes with it: Python's floats in float64."""
    seen = to_tensor(value, like=CPU, op=f"linspace: {name}").host()
    if dtypes.is_narrow(seen.dtype):
        return seen.astype(np.float32)
    return seen if isinstance(value, np.ndarray | np.generic) else np.asarray(value)


def _amount(op: str, num: Any) -> int:
    count = as_integer(op, "num", num, low=0)
    shape_tuple(op, count)
    return count


def _steps(count: int, endpoint: bool) -> int:
    """How many steps there are from the start to the stop of a line."""
    return max(count - 1 if endpoint else count, 0)


def _ends(start: Any, stop: Any) -> tuple[Tensor, Tensor]:
    """The start and the stop of a line, in one shape and one dtype."""
    low, high = broadcast_arrays(*as_tensors("linspace", start, stop))
    dtype = dtypes.promote(low.dtype, high.dtype, op="linspace")
    dtype = dtype if dtypes.is_inexact(dtype) else default_float()
    return cast(low, dtype), cast(high, dtype)


def _between(low: Tensor, high: Tensor, count: int, endpoint: bool) -> Tensor:
    """Points between two tensors along a new first axis."""
    place = reshape(arange(count, device=low.device), (count, *(1,) * low.ndim))
    part = cast(place, dtypes.real_of(low.dtype)) / max(_steps(count, endpoint), 1)
    line = low * (1 - part) + high * part
    return where(place == count - 1, high, line) if endpoint and count > 1 else line


@public
@named
def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: Any = 10.0,
    dtype: Any = None,
    *,
    device: Any = None,
) -> Tensor:
    """`base` to the power of evenly spaced exponents."""
    beside = None if device_of(start, stop) else device_of(base)
    wide = _wide(start, stop)
    exponents = linspace(start, stop, num, dtype=wide, endpoint=endpoint, device=beside)
    made = FUNCTIONS["pow"](base, exponents)
    if dtype is None and wide is not None:
        dtype = dtypes.promote(default_float(), _inexact(start, stop))
    return asarray(made, dtype=dtype, device=device)


@public
def geomspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    dtype: Any = None,
    *,
    device: Any = None,
) -> Tensor:
    """Numbers from `start` to `stop` of which each is the same multiple of the one before."""
    endpoint = as_flag("geomspace", "endpoint", endpoint)
    low, high = _value("geomspace", "start", start), _value("geomspace", "stop", stop)
    if 0 in (low, high):
        raise ArgumentError(f"geomspace: start and stop must not be 0 ({start}, {stop})")
    count = _amount("geomspace", num)
    check_memory("geomspace", (count,), dtypes.complex128)
    is_complex = any(isinstance(v, complex) for v in (start, stop))
    with np.errstate(all="ignore"):
        if is_complex:
            made: Array = np.geomspace(low, high, count, endpoint=endpoint)
        elif (low.real < 0) == (high.real < 0):
            made = np.geomspace(low.real, high.real, count, endpoint=endpoint)
        else:
            raise ArgumentError(f"geomspace: start and stop differ in sign ({start}, {stop})")
    natural = dtypes.complex_of(default_float()) if is_complex else default_float()
    target = natural if dtype is None else dtypes.as_dtype(dtype, default_float=default_float())
    place = device_of(start, stop) if device is None else device
    return asarray(converted(made, target, "geomspace"), device=place)


def _value(op: str, name: str, value: Any) -> complex:
    check_constant(op, name, value)
    if isinstance(value, Tensor | np.ndarray | np.generic) and value.shape == ():
        value = value.item()
    if not isinstance(value, int | float | complex):
        raise DTypeError(f"{op}: expected a number, got {shown(value)}")
    try:
        return complex(value)
    except OverflowError:
        raise ArgumentError(f"{op}: {shown(value)} is past every float") from None


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
@often
def meshgrid(*arrays: Any, indexing: str = "xy", sparse: bool = False) -> tuple[Tensor, ...]:
    """Coordinate grids from coordinate vectors; `xy` puts the second vector's axis first.

    With `sparse` each grid keeps size 1 along the axes of the others, for which it broadcasts.
    """
    as_choice("meshgrid", "indexing", indexing, ("xy", "ij"))
    vectors = to_tensors("meshgrid", *arrays)
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
    return tuple(opened) if as_flag("meshgrid", "sparse", sparse) else broadcast_arrays(*opened)


class Grid:
    """Coordinate grids from slices: `mgrid[0:3, 0:1:5j]`; 5j asks for 5 numbers with both ends.

    `mgrid` gives all in one tensor, `ogrid` each with size 1 along the axes of the others.
    """

    __slots__ = ("_sparse", "name")

    def __init__(self, name: str, sparse: bool) -> None:
        self.name = name
        self._sparse = sparse

    def __getitem__(self, index: Any) -> Any:
        given = index if isinstance(index, tuple) else (index,)
        lines = [_line(self.name, f"axis {axis}", each) for axis, each in enumerate(given)]
        if not isinstance(index, tuple):
            return lines[0]
        target = dtypes.promote_all(*(line.dtype for line in lines), op=self.name)
        grids = meshgrid(
            *(cast(line, target) for line in lines), indexing="ij", sparse=self._sparse
        )
        return grids if self._sparse else stack(grids)


def _line(name: str, where: str, part: Any, device: Any = None) -> Tensor:
    """The numbers of a slice: a range, or for an imaginary step so many with both ends."""
    if not isinstance(part, slice) or part.stop is None:
        raise ArgumentError(
            f"{name}: {where}: expected a slice with an end, got {part!r}"
            f"\nhint: wf.{name}[0:3, 0:1:5j]"
        )
    start, step = 0 if part.start is None else part.start, 1 if part.step is None else part.step
    if isinstance(step, complex):
        return linspace(start, part.stop, int(abs(step)), device=device)
    return arange(start, part.stop, step, device=device)


mgrid, ogrid = Grid("mgrid", sparse=False), Grid("ogrid", sparse=True)


class Joined:
    """Tensors, numbers and slices in brackets, joined: `r_[0:3, 7, x]`; 0:1:5j are 5 numbers.

    `r_` joins along the first axis, `c_` along the last, where a vector is a column.
    """

    __slots__ = ("_columns", "name")

    def __init__(self, name: str, columns: bool) -> None:
        self.name = name
        self._columns = columns

    def __getitem__(self, index: Any) -> Tensor:
        given = index if isinstance(index, tuple) else (index,)
        if not given:
            raise ArgumentError(f"{self.name}: there is nothing to join")
        device = device_of(*given)
        parts = [self._part(place, each, device) for place, each in enumerate(given)]
        shaped = [self._shaped(t) for t in as_tensors(self.name, *parts)]
        return concat(shaped, axis=-1 if self._columns else 0)

    def _part(self, place: int, part: Any, device: Any) -> Any:
        if isinstance(part, str):
            raise ArgumentError(
                f"{self.name}: operand {place}: text such as {part!r} is not understood"
                "\nhint: wf.concat and wf.stack take an axis"
            )
        if isinstance(part, slice):
            return _line(self.name, f"operand {place}", part, device)
        return part

    def _shaped(self, x: Tensor) -> Tensor:
        least = 2 if self._columns else 1
        return x if x.ndim >= least else reshape(x, (-1, *(1,) * (least - 1)))


r_, c_ = Joined("r_", columns=False), Joined("c_", columns=True)


class Index:
    """What stands in brackets, as a value: `x[s_[1:, ::2]]` is `x[1:, ::2]`."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        return index


s_ = Index()


@public
def ix_(*args: Any) -> tuple[Tensor, ...]:
    """Positions along each axis, shaped so that `x[ix_(i, j)]` is every pair of them.

    A mask stands for the positions where it holds, and is read.

    >>> [places.shape for places in ix_([0, 2], [1, 3, 4])]
    [(2, 1), (1, 3)]
    """
    found = [_open_positions(place, each, args) for place, each in enumerate(args)]
    rank = len(found)
    return tuple(reshape(t, (1,) * i + (-1,) + (1,) * (rank - 1 - i)) for i, t in enumerate(found))


def _open_positions(place: int, given: Any, beside: tuple[Any, ...]) -> Tensor:
    if isinstance(given, list | tuple | range) and not len(given):
        given = np.zeros(0, np.int64)
    tensor = to_tensor(given, beside=beside, op="ix_")
    if tensor.ndim != 1:
        raise ShapeError(f"ix_: operand {place}: needs one axis, got shape {tensor.shape}")
    if dtypes.is_bool(tensor.dtype):
        tensor = FUNCTIONS["flatnonzero"](tensor)
    if not dtypes.is_integer(tensor.dtype):
        name = dtypes.name_of(tensor.dtype)
        raise DTypeError(f"ix_: operand {place}: positions must be integers or bools, got {name}")
    return tensor


@public
def indices(dimensions: Any, /, dtype: Any = None, *, device: Any = None) -> Tensor:
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
        result: Tensor = FUNCTIONS["zeros"]((0,), dtype=target, device=device)
        return result
    return stack(grids)


@public
def fromfunction(
    function: Callable[..., Any], /, shape: Any, *, dtype: Any = None, device: Any = None
) -> Any:
    """`function` of the grids of positions: `fromfunction(lambda i, j: i + j, (2, 3))`."""
    as_function("fromfunction", "function", function)
    sizes = shape_tuple("fromfunction", shape)
    target = default_float() if dtype is None else dtypes.as_dtype(dtype, op="fromfunction")
    grid = indices(sizes, dtype=target, device=device)
    return function(*(grid[k] for k in range(len(sizes))))


@public
def one_hot(x: Any, /, num_classes: int, *, axis: int = -1, dtype: Any = None) -> Tensor:
    """Vectors that are 1 at position `x` and 0 elsewhere; a position out of range gives all 0."""
    places = to_tensor(x, op="one_hot")
    if not dtypes.is_integer(places.dtype):
        raise DTypeError(f"one_hot: positions must be integers, got {places.dtype}")
    target = default_float() if dtype is None else dtypes.as_dtype(dtype, op="one_hot")
    count = as_integer("one_hot", "num_classes", num_classes, low=0)
    shape_tuple("one_hot", (*places.shape, count))
    classes = arange(count, device=places.device)
    hot = cast(expand_dims(cast(places, dtypes.int64), -1) == classes, target)
    return moveaxis(hot, -1, axis)


__all__ = [
    "c_",
    "fromfunction",
    "geomspace",
    "indices",
    "ix_",
    "linspace",
    "logspace",
    "meshgrid",
    "mgrid",
    "ogrid",
    "one_hot",
    "r_",
    "s_",
]
