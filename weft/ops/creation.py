"""Make tensors: from values, from a range, from shapes; copy and move them."""

from __future__ import annotations

from operator import index as as_int
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.context import current_device, default_float, defaults
from weft.core.common.device import Device, as_device
from weft.core.common.factors import Factors
from weft.core.common.slots import public
from weft.core.common.types import Array, DType, Shape, TensorType
from weft.core.tensor import dlpack
from weft.core.tensor.convert import (
    checked,
    scalar,
    to_array,
    to_tensor,
    wrap,
    wrap_shared,
)
from weft.core.tensor.impl import TensorImpl
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DeviceError, InteropError, OutOfMemoryError, ShapeError
from weft.ops.base import Example, Linear, Operation, Tangents, call
from weft.ops.families import broadcast, cast
from weft.ops.view.join import stack
from weft.runtime.registry import client

_LARGEST = 2**47


class Copy(Operation):
    """The same elements in memory of their own, in row-major order."""

    factors = "... -> ..."
    linear = Linear.JOINTLY
    work = 0
    widen = False

    def eval(self, x: Array) -> Array:
        return np.array(x, order="C", copy=True)

    def body(self, s: Any, x: Any) -> Any:
        return x

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return (ct,)


class Arange(Operation):
    """`start + i·step` for i below `size`, computed in the widest number of the dtype's kind."""

    reasons = {"vjp": "has no operands", "jvp": "has no operands"}
    examples = (
        Example(
            {"start": 2, "step": 3, "size": 4, "dtype": dtypes.int64, "device": as_device("cpu")}
        ),
    )

    def index(self, **params: Any) -> Factors:
        return Factors.parse("-> n", (), {"n": params["size"]}, "n")

    def infer(self, *types: TensorType, **params: Any) -> TensorType:
        return TensorType((params["size"],), params["dtype"])

    def eval(self, *, start: Any, step: Any, size: int, dtype: DType, device: Device) -> Array:
        if dtypes.is_integer(dtype):
            return _steps(int(start), int(step), size, dtype)
        return (float(start) + np.arange(size) * float(step)).astype(dtype)

    def at(self, s: Any, index: Any, read: Any, *types: Any, **params: Any) -> Any:
        wide = np.dtype("float64") if dtypes.is_floating(params["dtype"]) else params["dtype"]
        i = s.cast(index[0], wide)
        start, step = (s.const(params[name], wide) for name in ("start", "step"))
        return s.cast(s.add(start, s.mul(i, step)), params["dtype"])


def _steps(start: int, step: int, size: int, dtype: DType) -> Array:
    """Integers modulo 2⁶⁴, so that every start and step of the dtype is exact."""
    wide = np.arange(size, dtype=np.uint64) * np.uint64(step % (1 << 64))
    return (wide + np.uint64(start % (1 << 64))).astype(dtype)


copy_op, arange_op = Copy(), Arange()


@public
def copy_of(x: Any, /) -> Tensor:
    """A copy in memory of its own."""
    return call(copy_op, (to_tensor(x, op="copy_of"),), {})  # type: ignore[no-any-return]


@public
def contiguous(x: Any, /) -> Tensor:
    """`x` itself if its memory is row-major, else a row-major copy."""
    tensor = to_tensor(x, op="contiguous")
    if tensor.owner is None and tensor.is_realized and tensor.layout.is_contiguous:
        return tensor
    return copy_of(tensor)


@public
def tensor(data: Any, dtype: Any = None, device: Any = None, *, copy: bool | None = True) -> Tensor:
    """A new tensor from numbers, nested lists, arrays or tensors; always a copy by default.

    >>> tensor([[1, 2], [3, 4]]).shape
    (2, 2)
    """
    return asarray(data, dtype=dtype, device=device, copy=copy)


@public
def constant(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor that holds these values."""
    return asarray(data, dtype=dtype, device=device, copy=True)


@public
def asarray(
    obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None
) -> Tensor:
    """A tensor of `obj`, sharing its memory where that is possible and `copy` does not forbid it."""
    target = None if dtype is None else dtypes.as_dtype(dtype, default_float=default_float())
    where = None if device is None else as_device(device)
    if isinstance(obj, Tensor):
        return _from_tensor(obj, target, where, copy)
    if not isinstance(obj, np.ndarray) and hasattr(obj, "__dlpack__"):
        return (
            from_dlpack(obj, device=device, copy=copy)
            if target is None
            else cast(from_dlpack(obj, device=device, copy=copy), target)
        )
    place = current_device() if where is None else where
    if not isinstance(obj, np.ndarray) and hasattr(obj, "__array__"):
        obj = np.asarray(obj)
    if isinstance(obj, np.ndarray):
        return _from_array(obj, target, place, copy)
    if isinstance(obj, list | tuple) and _holds_tensor(obj):
        joined = stack([asarray(x, dtype=target, device=where) for x in obj])
        return joined if target is None else cast(joined, target)
    if copy is False:
        raise ArgumentError(f"asarray: {type(obj).__name__} cannot become a tensor without a copy")
    return _placed(to_array(obj, target, "asarray"), place)


def _from_tensor(
    x: Tensor, dtype: DType | None, device: Device | None, copy: bool | None
) -> Tensor:
    moved = x if device is None else to_device(x, device)
    result = moved if dtype is None else cast(moved, dtype)
    if result is x and copy:
        return copy_of(x)
    if result is not x and copy is False:
        raise ArgumentError("asarray: another dtype or device needs a copy, and copy=False")
    return result


def _from_array(array: Array, dtype: DType | None, device: Device, copy: bool | None) -> Tensor:
    plain = checked(array.view(np.ndarray), "asarray")
    if dtype is not None and dtype != plain.dtype:
        if copy is False:
            raise ArgumentError(f"asarray: {plain.dtype} to {dtype} needs a copy, and copy=False")
        return cast(wrap_shared(plain, device), dtype)
    if copy:
        return _placed(np.array(plain, order="C", copy=True), device)
    return wrap_shared(plain, device) if device.kind == "cpu" else _placed(plain, device)


def _placed(array: Array, device: Device) -> Tensor:
    if device.kind == "cpu":
        client(device)
        return wrap(array, device)
    data = client(device).to_device(array)
    return Tensor(TensorImpl(array.shape, array.dtype, device, data))


def _holds_tensor(obj: Any) -> bool:
    return any(
        isinstance(x, Tensor) or (isinstance(x, list | tuple) and _holds_tensor(x)) for x in obj
    )


@public
def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor over another library's memory, shared unless `copy` is True."""
    if not hasattr(x, "__dlpack__"):
        raise InteropError(f"from_dlpack: {type(x).__name__} has no __dlpack__")
    place = current_device() if device is None else as_device(device)
    array, shared, _ = dlpack.from_capsule_or_object(x, device=None, copy=copy)
    return wrap_shared(array, place) if shared else _placed(array, place)


@public
def to_device(x: Any, device: Any, /, *, stream: Any = None) -> Tensor:
    """The tensor on another device; a copy unless it is there already."""
    if stream is not None:
        raise ArgumentError(f"to_device: streams are not used here, got {stream!r}")
    tensor = to_tensor(x, op="to_device")
    place = as_device(device)
    if tensor.device is place:
        return tensor
    if tensor.owner is not None:
        raise DeviceError(
            "to_device: a tensor inside a transform stays on its device"
            "\nhint: move the inputs before calling the transformed function"
        )
    return _placed(np.array(tensor.host(), order="C", copy=True), place)


def shape_tuple(op: str, shape: Any) -> Shape:
    """A user-given shape as a tuple of legal sizes."""
    try:
        sizes = tuple(map(as_int, shape)) if np.iterable(shape) else (as_int(shape),)
    except TypeError:
        raise ShapeError(f"{op}: sizes must be integers, got {shape!r}") from None
    if min(sizes, default=0) < 0:
        raise ShapeError(f"{op}: a size is negative ({sizes})")
    total = 1
    for size in sizes:
        total *= size
    if total > _LARGEST:
        raise OutOfMemoryError(f"{op}: shape {sizes} has {total} elements, more than any memory")
    return sizes


@public
def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of one repeated value; its dtype is the value's own unless given."""
    sizes = shape_tuple("full", shape)
    place = current_device() if device is None else as_device(device)
    if dtype is None:
        value = asarray(fill_value, device=place)
    elif isinstance(fill_value, Tensor):
        value = cast(fill_value, dtypes.as_dtype(dtype, default_float=default_float()))
    else:
        target = dtypes.as_dtype(dtype, default_float=default_float())
        value = _placed(np.asarray(scalar(fill_value, target, place, "full").host()), place)
    if value.shape != ():
        raise ShapeError(f"full: fill_value must have no axes, got shape {value.shape}")
    return copy_of(broadcast(value, sizes)) if sizes else value


@public
def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of zeros."""
    found, place = defaults(dtype, device)
    return full(shape, 0, dtype=found, device=place)


@public
def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of ones."""
    found, place = defaults(dtype, device)
    return full(shape, 1, dtype=found, device=place)


@public
def zeros_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros of another tensor's shape, dtype and device."""
    like = to_tensor(x, op="zeros_like")
    return zeros(like.shape, dtype=dtype or like.dtype, device=device or like.device)


@public
def ones_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones of another tensor's shape, dtype and device."""
    like = to_tensor(x, op="ones_like")
    return ones(like.shape, dtype=dtype or like.dtype, device=device or like.device)


@public
def arange(
    start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """Evenly spaced numbers from `start` (0 when only one is given) up to but without `stop`."""
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise ArgumentError("arange: step is 0")
    whole = all(isinstance(v, int | np.integer) for v in (start, stop, step))
    natural = dtypes.int64 if whole else default_float()
    target = natural if dtype is None else dtypes.as_dtype(dtype, default_float=default_float())
    if whole:
        size = max(0, -((int(start) - int(stop)) // int(step)))
    else:
        size = max(0, int(np.ceil((float(stop) - float(start)) / float(step))))
    shape_tuple("arange", size)
    place = current_device() if device is None else as_device(device)
    params = {"start": start, "step": step, "size": size, "dtype": target, "device": place}
    return call(arange_op, (), params)  # type: ignore[no-any-return]


__all__ = [
    "arange",
    "asarray",
    "constant",
    "contiguous",
    "copy_of",
    "from_dlpack",
    "full",
    "ones",
    "ones_like",
    "tensor",
    "to_device",
    "zeros",
    "zeros_like",
]
