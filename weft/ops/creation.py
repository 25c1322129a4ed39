"""Make tensors: from values, from other libraries' memory, from shapes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.context import current_device, default_float, defaults
from weft.core.common.device import Device, as_device
from weft.core.common.factors import Factors
from weft.core.common.handler import current
from weft.core.common.parameters import (
    LARGEST,
    as_flag,
    as_integer,
    as_integers,
    check_constant,
    check_elements,
    shown,
)
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import Array, DType, Shape, TensorType
from weft.core.tensor import dlpack
from weft.core.tensor.convert import (
    PYTHON_SCALARS,
    checked,
    device_of,
    holds_tensor,
    to_array,
    to_tensor,
    wrap,
    wrap_shared,
)
from weft.core.tensor.number import Number
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias
from weft.errors import (
    ArgumentError,
    CastError,
    ConversionError,
    DTypeError,
    InteropError,
    OutOfMemoryError,
    ShapeError,
)
from weft.ops.base import Example, Operation, call
from weft.ops.families import broadcast, cast
from weft.ops.foreign import from_gpu, gpu_of
from weft.ops.placement import copied, copy_of, placed, to_device
from weft.ops.ready import light_elements
from weft.ops.view.join import stack
from weft.runtime.registry import memory_elsewhere


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # a system that does not say
        return LARGEST


_PHYSICAL = _physical_memory()


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
        wide = np.arange(size, dtype=np.float64)
        wide *= float(step)
        wide += float(start)
        return wide.astype(dtype, copy=False)

    def at(self, s: Any, index: Any, read: Any, *types: Any, **params: Any) -> Any:
        wide = np.dtype("float64") if dtypes.is_floating(params["dtype"]) else params["dtype"]
        i = s.cast(index[0], wide)
        start, step = (s.const(params[name], wide) for name in ("start", "step"))
        return s.cast(s.add(start, s.mul(i, step)), params["dtype"])


def _steps(start: int, step: int, size: int, dtype: DType) -> Array:
    """Integers modulo 2⁶⁴, so that every start and step of the dtype is exact."""
    wide = np.arange(size, dtype=np.uint64)
    if step != 1:
        wide *= np.uint64(step % (1 << 64))
    if start:
        wide += np.uint64(start % (1 << 64))
    return wide.view(dtype) if dtype.itemsize == 8 else wide.astype(dtype)


arange_op = Arange()


@public
def copy(x: Any, /) -> Tensor:
    """A copy in memory of its own, in row-major order."""
    return copy_of(x)


@public
def contiguous(x: Any, /) -> Tensor:
    """`x` itself if its memory is row-major, else a row-major copy."""
    tensor = to_tensor(x, op="contiguous")
    if tensor.owner is None and tensor.is_realized and tensor.layout.is_contiguous:
        return tensor
    return copy_of(tensor)


@public
def ascontiguousarray(x: Any, /, dtype: Any = None) -> Tensor:
    """A tensor of `x` with row-major memory and at least one axis; copied only if it must be."""
    found: Tensor = FUNCTIONS["atleast_1d"](asarray(x, dtype))
    return contiguous(found)


@public
def tensor(
    data: Any,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    *,
    copy: bool | None = True,
) -> Tensor:
    """A new tensor from numbers, nested lists, arrays or tensors; always a copy by default.

    With `requires_grad`, `backward` finds its gradient.

    >>> tensor([[1, 2], [3, 4]]).shape
    (2, 2)
    """
    made = asarray(data, dtype=dtype, device=device, copy=copy)
    if as_flag("tensor", "requires_grad", requires_grad):
        made.requires_grad = True
    return made


array = tensor


@public
def constant(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor that holds these values."""
    return asarray(data, dtype=dtype, device=device, copy=True)


@public
def asarray(
    obj: Any, /, dtype: Any = None, *, device: Any = None, copy: bool | None = None
) -> Tensor:
    """A tensor of `obj`, sharing its memory where that is possible and `copy` does not forbid it.

    A list that holds tensors is stacked, and stays differentiable.
    """
    target = None if dtype is None else dtypes.as_dtype(dtype, default_float=default_float())
    where = None if device is None else as_device(device)
    copy = None if copy is None else as_flag("asarray", "copy", copy)
    if isinstance(obj, Tensor):
        return _from_tensor(obj, target, where, copy)
    if not isinstance(obj, np.ndarray | np.generic):
        if hasattr(obj, "__dlpack__"):
            found = from_dlpack(obj, device=device, copy=copy)
            return _from_tensor(found, target, None, None if copy else copy)
        if hasattr(obj, "__array__"):
            obj = np.asarray(obj)
    place = current_device() if where is None else where
    if isinstance(obj, np.ndarray):
        return _from_array(obj, target, place, copy)
    if copy is False:
        raise ArgumentError(f"asarray: {type(obj).__name__} cannot become a tensor without a copy")
    if holds_tensor(obj):
        joined = _stacked(obj)
        return _from_tensor(joined, target, where, None)
    return placed(to_array(obj, target, "asarray"), place)


asanyarray = asarray


def _stacked(obj: Any) -> Tensor:
    parts = [_stacked(x) if holds_tensor(x) else x for x in obj]
    try:
        return stack(parts)
    except ShapeError as error:
        raise ConversionError(f"asarray: the nested sequence is ragged ({error})") from None


def _from_tensor(
    x: Tensor, dtype: DType | None, device: Device | None, copy: bool | None
) -> Tensor:
    moved = x if device is None else to_device(x, device)
    result = moved if dtype is None else cast(moved, dtype, "asarray")
    if type(result) is Number:
        return alias(result)
    if result is x and copy:
        return copy_of(x)
    if result is not x and copy is False:
        raise ArgumentError("asarray: another dtype or device needs a copy, and copy=False")
    return result


def _from_array(data: Array, dtype: DType | None, device: Device, copy: bool | None) -> Tensor:
    plain = checked(data, "asarray").view(np.ndarray)
    if dtype is not None and dtype != plain.dtype:
        if copy is False:
            raise ArgumentError(f"asarray: {plain.dtype} to {dtype} needs a copy, and copy=False")
        return cast(wrap_shared(plain, device), dtype, "asarray")
    if copy:
        return copied(plain, device)
    return wrap_shared(plain, device) if device.kind == "cpu" else placed(plain, device)


@public
def from_numpy(data: Any, /) -> Tensor:
    """A tensor over a NumPy array's memory, without a copy."""
    if not isinstance(data, np.ndarray):
        raise ConversionError(f"from_numpy: expected a NumPy array, got {type(data).__name__}")
    return asarray(data, copy=False)


@public
def frombuffer(
    buffer: Any, /, dtype: Any = float, count: int = -1, offset: int = 0, *, device: Any = None
) -> Tensor:
    """One axis of numbers over the memory of an object with a buffer (`bytes`, `array`…)."""
    target = dtypes.as_dtype(dtype, op="frombuffer", default_float=default_float())
    number = as_integer("frombuffer", "count", count, -1, LARGEST)
    start = as_integer("frombuffer", "offset", offset, 0, LARGEST)
    try:
        data = np.frombuffer(buffer, target, number, start)
    except (ValueError, TypeError, AttributeError, BufferError) as error:
        raise ConversionError(f"frombuffer: {error}") from None
    return asarray(data, device=device)


@public
def fromiter(iter: Any, /, dtype: Any, count: int = -1, *, device: Any = None) -> Tensor:
    """One axis of the numbers an iterable gives: all of them, or the first `count`."""
    target = dtypes.as_dtype(dtype, op="fromiter", default_float=default_float())
    number = as_integer("fromiter", "count", count, -1, LARGEST)
    if not isinstance(iter, Iterable) or getattr(iter, "shape", None) == ():
        raise ConversionError(f"fromiter: expected an iterable, got {type(iter).__name__}")
    items = list(iter) if number < 0 else list(islice(iter, number))
    if len(items) < number:
        raise ArgumentError(f"fromiter: {number} numbers are asked for, {len(items)} are there")
    found = asarray(items, dtype=target, device=device)
    if found.ndim != 1:
        raise ShapeError(f"fromiter: an item has shape {found.shape[1:]}, it must be a number")
    return found


@public
def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor over another library's memory, shared unless `copy` is True.

    Memory of a GPU stays there if no `device` is named. What does not lie row by row there is
    copied by the GPU.
    """
    if not hasattr(x, "__dlpack__"):
        raise InteropError(f"from_dlpack: {type(x).__name__} has no __dlpack__")
    copy = None if copy is None else as_flag("from_dlpack", "copy", copy)
    home = gpu_of(x)
    if home is not None:
        return from_gpu(x, home, None if device is None else as_device(device), copy)
    place = (device_of(x) or current_device()) if device is None else as_device(device)
    array, shared, _ = dlpack.from_capsule_or_object(x, device=None, copy=copy)
    return wrap_shared(array, place) if shared else placed(array, place)


def shape_tuple(op: str, shape: Any, held: bool = True) -> Shape:
    """A user-given shape as a tuple of legal sizes; memory must have room where it is `held`."""
    try:
        sizes = as_integers(op, "shape", shape)
    except DTypeError:
        raise ShapeError(f"{op}: sizes must be integers, got {shown(shape)}") from None
    if min(sizes, default=0) < 0:
        raise ShapeError(f"{op}: a size is negative ({sizes})")
    if held:
        check_elements(op, sizes)
    return sizes


def check_memory(op: str, shape: Shape, dtype: DType) -> None:
    """Refuse at once what this machine could never hold; where only shapes count, any will do."""
    nbytes = prod(shape) * dtype.itemsize
    if nbytes > _PHYSICAL and nbytes > memory_elsewhere() and current() is None:
        raise OutOfMemoryError(
            f"{op}: shape {shape} of {dtypes.name_of(dtype)} takes {nbytes} bytes;"
            f" this machine has {_PHYSICAL}"
        )


def _fill(op: str, value: Any, dtype: Any, device: Device) -> Tensor:
    """The value of a constant tensor, with no axes; it must survive the conversion to `dtype`."""
    target = None if dtype is None else dtypes.as_dtype(dtype, op=op, default_float=default_float())
    if target is None or type(value) not in PYTHON_SCALARS:
        found = asarray(value, dtype=target, device=device)
    else:
        found = placed(_exact(op, value, target), device)
    if found.shape != ():
        raise ShapeError(f"{op}: fill_value must have no axes, got shape {found.shape}")
    return found


def _exact(op: str, value: Any, dtype: DType) -> Array:
    dtypes.check_scalar_fits(value, dtype, op)
    kind = "c" if dtypes.is_complex(dtype) else "i" if dtypes.is_integer(dtype) else "f"
    if (type(value) is complex and kind != "c") or (
        type(value) is float and kind == "i" and not value.is_integer()
    ):
        raise CastError(f"{op}: {value!r} does not fit {dtypes.name_of(dtype)}")
    with np.errstate(over="ignore"):
        if kind == "i":
            dtypes.check_scalar_fits(int(value), dtype, op)  # also if it was a float
            return np.asarray(int(value), dtype)
        return np.asarray(float(value) if type(value) is int else value).astype(dtype)


@public
def full(shape: Any, fill_value: Any, dtype: Any = None, *, device: Any = None) -> Tensor:
    """A tensor of one repeated value; its dtype is the value's own unless given."""
    return _full("full", shape, fill_value, dtype, device)


def _full(op: str, shape: Any, fill_value: Any, dtype: Any, device: Any) -> Tensor:
    sizes = shape_tuple(op, shape)
    if device is None and type(fill_value) not in PYTHON_SCALARS:
        device = device_of(fill_value)
    place = current_device() if device is None else as_device(device)
    value = _fill(op, fill_value, dtype, place)
    check_memory(op, sizes, value.dtype)
    data = value._impl.data
    if (
        type(data) is np.ndarray
        and current() is None
        and not isinstance(fill_value, Tensor)
        and prod(sizes) <= light_elements()
    ):
        made = np.empty(sizes, value.dtype)
        made.fill(data[()])
        return wrap(made, place)
    return copy_of(broadcast(value, sizes))


@public
def zeros(shape: Any, dtype: Any = None, *, device: Any = None) -> Tensor:
    """A tensor of zeros."""
    found, place = defaults(dtype, device)
    return _full("zeros", shape, 0, found, place)


@public
def ones(shape: Any, dtype: Any = None, *, device: Any = None) -> Tensor:
    """A tensor of ones."""
    found, place = defaults(dtype, device)
    return _full("ones", shape, 1, found, place)


@public
def empty(shape: Any, dtype: Any = None, *, device: Any = None) -> Tensor:
    """A tensor whose values do not matter. They are zeros, so that runs repeat themselves."""
    found, place = defaults(dtype, device)
    return _full("empty", shape, 0, found, place)


@public
def full_like(
    x: Any, /, fill_value: Any, dtype: Any = None, *, device: Any = None, shape: Any = None
) -> Tensor:
    """One value repeated in another tensor's shape (or one that is given), dtype and device."""
    return _like("full_like", x, fill_value, dtype, device, shape)


@public
def zeros_like(x: Any, /, dtype: Any = None, *, device: Any = None, shape: Any = None) -> Tensor:
    """Zeros of another tensor's shape (or one that is given), dtype and device."""
    return _like("zeros_like", x, 0, dtype, device, shape)


@public
def ones_like(x: Any, /, dtype: Any = None, *, device: Any = None, shape: Any = None) -> Tensor:
    """Ones of another tensor's shape (or one that is given), dtype and device."""
    return _like("ones_like", x, 1, dtype, device, shape)


@public
def empty_like(x: Any, /, dtype: Any = None, *, device: Any = None, shape: Any = None) -> Tensor:
    """A tensor like `zeros_like`'s whose values do not matter: zeros."""
    return _like("empty_like", x, 0, dtype, device, shape)


def _like(op: str, x: Any, value: Any, dtype: Any, device: Any, shape: Any) -> Tensor:
    """Only shape, dtype, device and layout of `x` are used: nothing is differentiated or read."""
    like = to_tensor(x, beside=(value,), op=op)
    made = _full(
        op,
        like.shape if shape is None else shape,
        value,
        like.dtype if dtype is None else dtype,
        like.device if device is None else device,
    )
    if like._impl.owner is None or device is not None or shape is not None:
        return made
    if (spec := like.sharding).mesh is None:
        return made
    laid_out: Tensor = FUNCTIONS["shard"](made, spec.mesh, spec.settled)
    return laid_out


@public
def arange(
    start: Any, /, stop: Any = None, step: Any = 1, dtype: Any = None, *, device: Any = None
) -> Tensor:
    """Evenly spaced numbers from `start` (0 when only one is given) up to but without `stop`.

    >>> arange(2, 8, 3).tolist()
    [2, 5]
    """
    if stop is None:
        start, stop = 0, start
    for name, value in (("start", start), ("step", step)):  # where it stops only decides how many
        check_constant("arange", name, value)
    first, end, gap = (_number("arange", value) for value in (start, stop, step))
    whole = all(isinstance(v, int) for v in (first, end, gap))
    natural = dtypes.int64 if whole else default_float()
    target = natural if dtype is None else dtypes.as_dtype(dtype, default_float=default_float())
    if not (dtypes.is_integer(target) or dtypes.is_floating(target)):
        raise DTypeError(f"arange: no meaning for {dtypes.name_of(target)} (takes real numbers)")
    size = _count(first, end, gap)
    shape_tuple("arange", size)
    check_memory("arange", (size,), target)
    if size and dtypes.is_integer(target):
        for extreme in (int(first), int(first) + (size - 1) * int(gap)):
            dtypes.check_scalar_fits(extreme, target, "arange")
    place = current_device() if device is None else as_device(device)
    params: dict[str, Any] = {
        "start": first,
        "step": gap,
        "size": size,
        "dtype": target,
        "device": place,
    }
    if current() is None and size <= light_elements():
        return placed(arange_op.eval(**params), place)
    result: Tensor = call(arange_op, (), params)
    return result


def _number(op: str, value: Any) -> int | float:
    """A real number that a parameter was given as: Python's, NumPy's, or a tensor with no axes."""
    if isinstance(value, Tensor | np.ndarray | np.generic) and value.shape == ():
        value = value.item()
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value
    raise DTypeError(f"{op}: expected a real number, got {shown(value)}")


def _count(first: Any, end: Any, gap: Any) -> int:
    if gap == 0:
        raise ArgumentError("arange: step is 0")
    if all(isinstance(v, int) for v in (first, end, gap)):
        return max(0, -int((first - end) // gap))
    try:
        exact = (float(end) - float(first)) / float(gap)
    except OverflowError:
        raise ArgumentError("arange: an integer is past every float") from None
    if math.isnan(exact):
        raise ArgumentError(f"arange: no numbers lie between {first} and {end} in steps of {gap}")
    if math.isinf(exact) and exact > 0:
        raise OutOfMemoryError(f"arange: from {first} to {end} in steps of {gap} never ends")
    return 0 if exact < 0 else math.ceil(exact)


__all__ = [
    "arange",
    "array",
    "asanyarray",
    "asarray",
    "ascontiguousarray",
    "constant",
    "contiguous",
    "copy",
    "empty",
    "empty_like",
    "from_dlpack",
    "from_numpy",
    "frombuffer",
    "fromiter",
    "full",
    "full_like",
    "ones",
    "ones_like",
    "tensor",
    "zeros",
    "zeros_like",
]
