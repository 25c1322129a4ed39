"""Entering weft: Python numbers, nested lists, NumPy arrays and DLPack objects become tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from reprlib import repr as short_repr
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.context import current_device, default_float
from weft.core.common.device import CPU, Device
from weft.core.common.parameters import as_real, shown
from weft.core.common.slots import FUNCTIONS, place
from weft.core.common.types import Array, DType, TensorType
from weft.core.tensor import dlpack
from weft.core.tensor.impl import TensorImpl
from weft.core.tensor.tensor import Tensor
from weft.errors import CastError, ConversionError, DTypeError

PYTHON_SCALARS = (bool, int, float, complex)
FITS_EVERYWHERE = 127  # the largest int8
EXACT_EVERYWHERE = 448.0  # the largest float8_e4m3: no dtype overflows up to here


def wrap(array: Array, device: Device) -> Tensor:
    """A tensor of values that nobody else writes to: the array itself, or a copy on its device."""
    data = array if device is CPU else place(array, device)
    return Tensor(TensorImpl.realized(data, TensorType(array.shape, array.dtype), device))


def wrap_shared(array: Array, device: Device) -> Tensor:
    """A tensor over memory that another library may change: its readers run at the call."""
    tensor = wrap(array, device)
    tensor._impl.shared = tensor._impl.data is array
    return tensor


def scalar(value: Any, dtype: DType, device: Device, op: str = "constant") -> Tensor:
    """A number as a tensor with no axes; `CastError` where the dtype cannot hold it."""
    kind = type(value)
    if kind is float and dtype.kind not in "iu":
        if -EXACT_EVERYWHERE <= value <= EXACT_EVERYWHERE:
            return wrap(np.array(value, dtype), device)
    elif kind is int:
        if 0 <= value <= FITS_EVERYWHERE and dtype.kind in "fiu":
            return wrap(np.array(value, dtype), device)
        dtypes.check_scalar_fits(value, dtype, op)
    elif kind not in PYTHON_SCALARS and not isinstance(value, np.generic):
        raise ConversionError(f"{op}: {_complaint(value, None)}")
    return wrap(to_array(value, dtype, op), device)


def to_tensor(
    value: Any, *, like: Device | None = None, beside: tuple[Any, ...] = (), op: str = "asarray"
) -> Tensor:
    """`value` as a tensor of its natural dtype, sharing memory where it can.

    It is made on the device `like`, or on that of the first tensor `beside` it. A list of numbers
    beside float64 keeps all their digits.
    """
    if isinstance(value, Tensor):
        return value
    device = like or device_of(*beside) or current_device()
    if type(value) in PYTHON_SCALARS:
        return wrap(to_array(value, None, op), device)
    if isinstance(value, np.ndarray):
        return wrap_shared(checked(value, op).view(np.ndarray), device)
    if holds_tensor(value):  # it is where its tensors are
        joined: Tensor = FUNCTIONS["asarray"](value)
        return joined
    if not isinstance(value, np.generic) and _is_foreign(value):
        # What lies on a GPU stays there: weft never moves data in silence.
        there = hasattr(value, "__dlpack__") and dlpack.device_of(value)[0] == dlpack.CUDA_KIND
        made: Tensor = FUNCTIONS["asarray"](value, device=None if there else device)
        return made
    return wrap(to_array(value, None, op, beside), device)


def device_of(*values: Any) -> Device | None:
    """The device of the first tensor among values, or in lists of them; None if there is none."""
    for value in values:
        if isinstance(value, Tensor):
            return value.device
        if isinstance(value, list | tuple) and (found := device_of(*value)) is not None:
            return found
    return None


def to_tensors(op: str, *values: Any) -> list[Tensor]:
    """Values as tensors of their natural dtypes; numbers and lists follow the tensors."""
    return [to_tensor(value, beside=values, op=op) for value in values]


def as_number(
    op: str,
    name: str,
    value: Any,
    low: float | None = None,
    high: float | None = None,
    beside: tuple[Any, ...] = (),
) -> Any:
    """A real parameter that enters arithmetic: a Python number, or a tensor, which stays one.

    The limits are for numbers: reading a tensor would cut it from its derivative. An array becomes
    a tensor on the device of what is `beside` it.
    """
    if isinstance(value, Tensor):
        return value
    if type(value) in (int, float):
        as_real(op, name, value, low, high)
        return value
    if isinstance(value, np.ndarray | np.generic) or _is_foreign(value):
        return to_tensor(value, beside=beside, op=f"{op}: {name}")
    raise DTypeError(f"{op}: {name} must be a number or a tensor, got {shown(value)}")


def known(value: Any) -> Array | None:
    """The value as an array where reading it costs nothing and is allowed; else None."""
    if not isinstance(value, Tensor):
        return None if holds_tensor(value) else np.asarray(value)
    ready = value.is_realized and value.device.kind == "cpu"
    return value.host() if ready else None


def is_known(value: Any, rule: Callable[[Any], Any]) -> bool:
    """Whether a number or a tensor without axes follows a rule, as far as it can be looked at."""
    seen = known(value)
    return seen is not None and seen.shape == () and bool(rule(seen))


def holds_tensor(value: Any) -> bool:
    """Whether a nested sequence has a tensor somewhere: it is stacked then, not read."""
    if not isinstance(value, list | tuple):
        return False
    nested = False
    for kind in set(map(type, value)):  # few, however many numbers there are
        if issubclass(kind, Tensor):
            return True
        nested = nested or issubclass(kind, list | tuple)
    return nested and any(map(holds_tensor, value))


def _is_foreign(value: Any) -> bool:
    return hasattr(value, "__dlpack__") or hasattr(value, "__array__")


def checked(array: Array, op: str) -> Array:
    """The array itself if weft can represent it; an error that says why not otherwise."""
    masked = sys.modules.get("numpy.ma")  # nobody has a masked array before it is imported
    if masked is not None and isinstance(array, masked.MaskedArray):
        raise ConversionError(
            f"{op}: a masked array would lose its mask\nhint: fill it first, array.filled(value)"
        )
    dtypes.as_dtype(array.dtype, op=op)
    return array


def to_array(value: Any, dtype: DType | None, op: str, beside: tuple[Any, ...] = ()) -> Array:
    """Python numbers and nested sequences as a new NumPy array, with weft's default dtypes."""
    if isinstance(value, np.generic):
        found = checked(np.array(value), op)
        return found if dtype is None else converted(found, dtype, op)
    try:
        found = np.array(value)
    except (ValueError, TypeError) as error:
        raise ConversionError(f"{op}: {_complaint(value, error)}") from None
    except OverflowError:
        raise _no_integer(value, op) from None
    if found.dtype.kind in "fO" and _only_integers(value):
        found = _wide_integers(value, dtype, op)
    if found.dtype.kind in "OSUmM":
        raise ConversionError(f"{op}: {_complaint(value, None)}")
    target = natural_dtype(found, value, op, beside) if dtype is None else dtype
    return converted(found, target, op)


def converted(found: Array, target: DType, op: str) -> Array:
    """Values that the user wrote, in the dtype the user asked for; `CastError` if one is lost."""
    source = found.dtype
    if source == target:
        return found
    if not found.size:
        return np.empty(found.shape, target)
    if source.kind not in "biufcV" or source.names is not None:
        raise ConversionError(f"{op}: {source} values are not numbers")
    if source.kind == "c" and not dtypes.is_complex(target):
        raise DTypeError(f"{op}: complex values do not fit {target}\nhint: take their .real first")
    if target.kind in "iu" and source.kind in "iuf":
        if source.kind == "f" and not np.isfinite(found).all():
            raise CastError(f"{op}: NaN and infinity do not fit {target}")
        for extreme in (int(found.min()), int(found.max())):
            dtypes.check_scalar_fits(extreme, target, op)
    with np.errstate(all="ignore"):
        return found.astype(target)


def _only_integers(value: Any) -> bool:
    """Whether a nested sequence is of Python integers: NumPy makes floats of very large ones."""
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_only_integers, value))
    return type(value) is int


def _wide_integers(value: Any, dtype: DType | None, op: str) -> Array:
    """Integers of which some need uint64: NumPy makes floats of them beside smaller ones."""
    wanted = np.uint64 if dtype is None or dtype.kind in "iu" else np.float64
    try:
        return np.array(value, wanted)
    except OverflowError:
        raise _no_integer(value, op) from None


def _no_integer(value: Any, op: str) -> CastError:
    return CastError(f"{op}: no integer dtype holds all these values ({_short(value)})")


def natural_dtype(found: Array, value: Any, op: str, beside: tuple[Any, ...] = ()) -> DType:
    """The dtype of data given without one: Python's kinds map to weft's defaults.

    What meets float64 becomes it in any case: it is read as such, not rounded before.
    """
    if _has_typed_leaf(value) or found.dtype.kind == "b":
        return dtypes.as_dtype(found.dtype, op=op)
    if found.dtype.kind in "iu":
        return found.dtype if found.dtype == np.uint64 else np.dtype(np.int64)
    kind = dtypes.float64 if is_double(value) or is_double(beside) else default_float()
    if found.dtype.kind == "f":
        return kind
    if found.dtype.kind == "c":
        return dtypes.complex_of(kind)
    return dtypes.as_dtype(found.dtype, op=op)


def _has_typed_leaf(value: Any) -> bool:
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return isinstance(value, np.generic | np.ndarray) or _is_buffer(value)


def is_double(value: Any) -> bool:
    """Whether a tensor or an array is of float64 or complex128, or a sequence holds such a one."""
    if isinstance(value, list | tuple):
        kinds = set(map(type, value))
        return not kinds.issubset(PYTHON_SCALARS) and any(map(is_double, value))
    typed = isinstance(value, Tensor | np.ndarray | np.generic)
    return typed and value.dtype in (dtypes.float64, dtypes.complex128)


def is_array(value: Any) -> bool:
    """Whether something holds elements that another library knows to read."""
    return _is_foreign(value) or _is_buffer(value)


def _is_buffer(value: Any) -> bool:
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


def _complaint(value: Any, error: Exception | None) -> str:
    if isinstance(value, list | tuple):
        return (
            f"the nested sequence is ragged or holds what is no number ({_short(value)})"
            "\nhint: every row must have the same length"
        )
    what = f" ({error})" if error else ""
    return f"cannot make a tensor of {type(value).__name__} {_short(value)}{what}"


def _short(value: Any) -> str:
    """The beginning of a value's text; Python refuses to print very large integers."""
    if type(value) is int and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    return short_repr(value)
