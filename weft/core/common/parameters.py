"""Parameters as users write them: checked once, at the call, in words that name the parameter.

Each function takes the op, the parameter's name and the value, and gives the value in its plain
Python form; what is no integer, number, choice, flag or function is refused with what would be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from operator import index
from reprlib import repr as short_repr
from typing import Any

import numpy as np

from weft.core.common.handler import Handler, loses_derivative
from weft.errors import (
    ArgumentError,
    ConcretizationError,
    DifferentiationError,
    DTypeError,
    OutOfMemoryError,
    ShapeError,
)

LARGEST = 2**47  # elements of a tensor, or a count of any kind
MOST_AXES = 64  # that NumPy's arrays have
_LONGEST = 256  # bits of an integer that a message spells out


def shown(value: Any) -> str:
    """A value as a message shows it: arrays by shape and dtype, nothing computed or endless."""
    if type(value) is int and value.bit_length() > _LONGEST:
        return f"an integer of {value.bit_length()} bits"
    if hasattr(value, "dtype") and getattr(value, "shape", ()) != ():
        return f"{type(value).__name__} of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, list | tuple | dict | set) or not hasattr(value, "dtype"):
        return short_repr(value)
    return f"{type(value).__name__} of dtype {value.dtype}"


def as_integer(
    op: str, name: str, value: Any, low: int | None = None, high: int | None = None
) -> int:
    """An integer from `low` to `high`; bools and floats are none.

    >>> as_integer("tile", "count", 3, low=0)
    3
    """
    found: int = value if type(value) is int else _index(op, name, value)
    if (low is not None and found < low) or (high is not None and found > high):
        raise ArgumentError(f"{op}: {name} must be {_range(low, high)}, got {shown(found)}")
    return found


def _index(op: str, name: str, value: Any) -> int:
    try:
        if not isinstance(value, bool | np.bool_):
            return index(value)
    except ConcretizationError:
        raise
    except TypeError:
        pass
    raise DTypeError(f"{op}: {name} must be an integer, got {shown(value)}")


def _range(low: float | None, high: float | None) -> str:
    if high is None:
        return f"at least {low}"
    return f"at most {high}" if low is None else f"from {low} to {high}"


def as_integers(
    op: str, name: str, value: Any, low: int | None = None, high: int | None = None
) -> tuple[int, ...]:
    """Integers from one integer or a sequence of them."""
    if type(value) is int or not is_sequence(value):
        return (as_integer(op, name, value, low, high),)
    return tuple(as_integer(op, name, each, low, high) for each in value)


def check_elements(op: str, sizes: tuple[int, ...]) -> None:
    """Refuse a shape of more elements than any memory has; sizes beside a 0 count as well."""
    check_axes(op, sizes)
    total = 1
    for size in sizes:
        total *= size or 1
    if total > LARGEST:
        raise OutOfMemoryError(
            f"{op}: shape {shown(sizes)} has {shown(total)} elements, more than any memory"
        )


def check_axes(op: Any, sizes: tuple[int, ...]) -> None:
    """Refuse a shape of more axes than arrays have."""
    if len(sizes) > MOST_AXES:
        raise ShapeError(
            f"{op}: a tensor has at most {MOST_AXES} axes, and this one would have {len(sizes)}"
            " (each vmap around it counts)"
        )


def as_real(
    op: str,
    name: str,
    value: Any,
    low: float | None = None,
    high: float | None = None,
    decides: bool = False,
) -> float:
    """A real number from `low` to `high`, as a float; NaN only where no limit is given.

    A tensor that is differentiated is refused, for the float has no derivative, unless the number
    only `decides` something, so that its derivative is zero.
    """
    found: float = value if type(value) is float else _float(op, name, value, decides)
    if not (low is None or found >= low) or not (high is None or found <= high):
        raise ArgumentError(f"{op}: {name} must be {_range(low, high)}, got {found}")
    return found


def _float(op: str, name: str, value: Any, decides: bool) -> float:
    is_number = isinstance(value, int | float | np.integer | np.floating)
    dtype = getattr(value, "dtype", None)
    is_scalar = getattr(value, "shape", None) == () and getattr(dtype, "kind", "") in "iufV"
    if isinstance(value, bool) or not (is_number or is_scalar):
        raise DTypeError(f"{op}: {name} must be a real number, got {shown(value)}")
    if not decides:
        check_constant(op, name, value)
    try:
        return float(value)
    except ConcretizationError:
        raise
    except OverflowError:
        raise ArgumentError(f"{op}: {name} is past every float, got {shown(value)}") from None
    except (TypeError, ValueError):  # a structured scalar: NumPy's letter V holds those too
        raise DTypeError(f"{op}: {name} must be a real number, got {shown(value)}") from None


def check_constant(op: str, name: str, value: Any) -> None:
    """Refuse to read a float or complex number where a derivative by it is wanted."""
    owner = getattr(value, "owner", None)
    if not isinstance(owner, Handler) or value.dtype.kind not in "fcV":
        return
    if not loses_derivative(owner):
        return
    raise DifferentiationError(
        f"{op}: {name} is read as a number, which would carry no derivative of a tensor that"
        f" is differentiated here ({owner.title})"
        f"\nhint: wf.stop_gradient({name}) says that it is meant as a constant"
    )


def as_finite(
    op: str, name: str, value: Any, low: float | None = None, high: float | None = None
) -> float:
    """A real number that is neither infinite nor NaN."""
    found = as_real(op, name, value, low, high)
    if not math.isfinite(found):
        raise ArgumentError(f"{op}: {name} must be finite, got {found}")
    return found


def as_choice(op: str, name: str, value: Any, choices: Iterable[Any]) -> Any:
    """One of `choices`: strings, numbers or None.

    >>> as_choice("pad", "mode", "edge", ("constant", "edge"))
    'edge'
    """
    listed = tuple(choices)
    if isinstance(value, str | int | float | None) and value in listed:
        return value
    legal = ", ".join(map(repr, listed))
    raise ArgumentError(f"{op}: {name} must be one of {legal}, got {shown(value)}")


def as_flag(op: str, name: str, value: Any) -> bool:
    """True or False; 0 and 1 are taken for them."""
    if value is True or value is False:
        return bool(value)
    if isinstance(value, int | np.bool_ | np.integer) and value in (0, 1):
        return bool(value)
    raise DTypeError(f"{op}: {name} must be True or False, got {shown(value)}")


def as_function(op: str, name: str, value: Any) -> Callable[..., Any]:
    """Something that can be called."""
    if not callable(value):
        raise ArgumentError(f"{op}: {name} must be a function, got {shown(value)}")
    function: Callable[..., Any] = value
    return function


def is_sequence(value: Any) -> bool:
    """Whether a parameter holds several values: any iterable with an order, but no text."""
    if isinstance(value, str | bytes | bytearray | dict | set | type):
        return False
    return isinstance(value, Iterable) and getattr(value, "shape", None) != ()


def as_sequence(op: str, name: str, value: Any) -> tuple[Any, ...]:
    """The values of a list, a tuple, or any other iterable with an order."""
    if isinstance(value, tuple):
        return value
    if not is_sequence(value):
        raise DTypeError(f"{op}: {name} must be a sequence, got {shown(value)}")
    return tuple(value)
