"""Entering weft: Python numbers, nested lists, NumPy arrays and DLPack objects become tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.context import current_device, default_float
from weft.core.common.device import Device
from weft.core.common.types import Array, DType
from weft.core.tensor.impl import TensorImpl
from weft.core.tensor.tensor import Tensor
from weft.errors import CastError, ConversionError

PYTHON_SCALARS = (bool, int, float, complex)


def wrap(array: Array, device: Device) -> Tensor:
    """A tensor over memory that nobody else writes to."""
    return Tensor(TensorImpl(array.shape, array.dtype, device, array))


def wrap_shared(array: Array, device: Device) -> Tensor:
    """A tensor over memory that another library may change: its readers run at the call."""
    tensor = wrap(array, device)
    tensor._impl.shared = True
    return tensor


def scalar(value: Any, dtype: DType, device: Device, op: str = "constant") -> Tensor:
    """A Python number as a tensor with no axes."""
    if type(value) is int and dtype.kind in "iu":
        dtypes.check_scalar_fits(value, dtype, op)
    return wrap(np.array(value, dtype), device)


def to_tensor(value: Any, *, like: Device | None = None, op: str = "asarray") -> Tensor:
    """`value` as a tensor of its natural dtype, sharing memory where it can."""
    if isinstance(value, Tensor):
        return value
    device = current_device() if like is None else like
    if isinstance(value, np.ndarray):
        return wrap_shared(checked(value, op), device)
    return wrap(to_array(value, None, op), device)


def checked(array: Array, op: str) -> Array:
    """The array itself if weft has its dtype; an error that names the dtype otherwise."""
    dtypes.as_dtype(array.dtype, op=op)
    return array


def to_array(value: Any, dtype: DType | None, op: str) -> Array:
    """Python numbers and nested sequences as a new NumPy array, with weft's default dtypes."""
    if isinstance(value, np.generic):
        return np.array(checked(np.asarray(value), op), dtype)
    try:
        found = np.array(value)
    except (ValueError, TypeError) as error:
        raise ConversionError(f"{op}: {_complaint(value, error)}") from None
    except OverflowError:
        raise CastError(f"{op}: an integer does not fit any dtype ({value!r:.60})") from None
    if found.dtype == object:
        raise ConversionError(f"{op}: {_complaint(value, None)}")
    target = natural_dtype(found, value, op) if dtype is None else dtype
    if found.dtype.kind in "iu" and target.kind in "iu" and found.size:
        for extreme in (int(found.min()), int(found.max())):
            dtypes.check_scalar_fits(extreme, target, op)
    return found.astype(target, copy=False)


def natural_dtype(found: Array, value: Any, op: str) -> DType:
    """The dtype of data given without one: Python's kinds map to weft's defaults."""
    if _has_typed_leaf(value) or found.dtype.kind == "b":
        return dtypes.as_dtype(found.dtype, op=op)
    if found.dtype.kind in "iu":
        return found.dtype if found.dtype == np.uint64 else np.dtype(np.int64)
    if found.dtype.kind == "f":
        return default_float()
    if found.dtype.kind == "c":
        return dtypes.complex_of(default_float())
    return dtypes.as_dtype(found.dtype, op=op)


def _has_typed_leaf(value: Any) -> bool:
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return isinstance(value, np.generic | np.ndarray)


def _complaint(value: Any, error: Exception | None) -> str:
    if isinstance(value, list | tuple):
        return (
            f"the nested sequence is ragged or holds objects that are not numbers ({value!r:.60})"
            "\nhint: every row must have the same length"
        )
    what = f" ({error})" if error else ""
    return f"cannot make a tensor of {type(value).__name__} {value!r:.60}{what}"
