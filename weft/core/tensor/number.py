"""`Number`: a Python number whose value is not known yet: an argument of a compiled function.

It keeps a number's manners: in Python's precision among numbers, and weak beside a tensor, whose
dtype it takes. Handed to anything that wants a tensor it is one, of the dtype `asarray` would give.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.context import default_float
from weft.core.common.handler import perform
from weft.core.common.slots import FUNCTIONS, OPS
from weft.core.common.types import DType
from weft.core.tensor.convert import PYTHON_SCALARS, scalar
from weft.core.tensor.tensor import Tensor

WIDE: dict[type, DType] = {
    bool: np.dtype(np.bool_),
    int: np.dtype(np.int64),
    float: np.dtype(np.float64),
    complex: np.dtype(np.complex128),
}
_RANK = {kind: rank for rank, kind in enumerate(PYTHON_SCALARS)}
_KINDS = {"b": bool, "i": int, "f": float, "c": complex}
_OF_BITS = ("bitwise_and", "bitwise_or", "bitwise_xor")


class Number(Tensor):
    """A number that a run will give; `python` is its type, `wide` its value in full precision."""

    __slots__ = ("python", "used", "wide")

    python: type
    wide: Tensor
    used: list[DType] | None  # dtypes an input was taken as, so that callers can check its range

    def __new__(cls, impl: Any) -> Any:
        """A copy of the handle is no number: what an op is given has settled on a dtype."""
        return Tensor(impl)

    @classmethod
    def of(cls, python: type, wide: Tensor, used: list[DType] | None = None) -> Number:
        """The number behind a tensor of Python's own precision."""
        made: Number = object.__new__(cls)
        made.python, made.wide, made.used = python, wide, used
        natural = dtypes.weak_dtype(python, default_float(), default_float())
        settled = wide if python in (bool, int) else made.weakly(natural)
        Tensor.__init__(made, settled._impl)
        return made

    def weakly(self, dtype: DType) -> Tensor:
        """The number in the dtype of what it meets."""
        if self.used is not None:
            self.used.append(dtype)
        if dtype == self.wide.dtype:
            return self.wide
        result: Tensor = perform(OPS["cast"], (self.wide,), {"dtype": dtype})
        return result

    def _binary(self, name: str, other: Any, swapped: bool = False) -> Any:
        kind = type(other)
        if kind is not Number and kind not in PYTHON_SCALARS:
            if not isinstance(other, Tensor | np.ndarray | np.generic | list | tuple):
                return NotImplemented
            return FUNCTIONS[name](other, self) if swapped else FUNCTIONS[name](self, other)
        common = self._meeting(name, other, swapped)
        mine, theirs = _as(self, common, self), _as(other, common, self)
        found: Tensor = FUNCTIONS[name](theirs, mine) if swapped else FUNCTIONS[name](mine, theirs)
        return Number.of(_KINDS[found.dtype.kind], found)

    def _meeting(self, name: str, other: Any, swapped: bool) -> type:
        """The Python type in which two numbers meet."""
        kind: type = max(self.python, python_type(other), key=_RANK.__getitem__)
        if name == "divide" and kind in (bool, int):
            return float
        negative = name == "pow" and not swapped and type(other) is int and other < 0
        if negative and kind in (bool, int):
            return float
        return int if kind is bool and name not in _OF_BITS else kind

    def _in_place(self, name: str, other: Any) -> Any:
        return self._binary(name, other)

    def _unary(self, name: str) -> Number:
        kind = int if self.python is bool else self.python
        found: Tensor = FUNCTIONS[name](_as(self, kind, self))
        return Number.of(_KINDS[found.dtype.kind], found)

    def __neg__(self) -> Any:
        return self._unary("negative")

    def __pos__(self) -> Any:
        return self._unary("positive")

    def __abs__(self) -> Any:
        return self._unary("abs")

    def __invert__(self) -> Any:
        return self._unary("bitwise_invert")

    __hash__ = object.__hash__


def python_type(value: Any) -> type:
    """The Python type of a number, known or not."""
    return value.python if type(value) is Number else type(value)


def weak_tensor(value: Any, dtype: DType, device: Any, op: str) -> Tensor:
    """A number, known or not, as a tensor of the dtype and the device it takes beside others."""
    if type(value) is not Number:
        return scalar(value, dtype, device, op)
    result: Tensor = value.weakly(dtype)
    if result.device is not device and result.sharding.mesh is None:
        result = FUNCTIONS["to_device"](result, device)
    return result


def _as(value: Any, kind: type, beside: Number) -> Tensor:
    wide = WIDE[kind]
    if type(value) is not Number:
        return scalar(value, wide, beside.device)
    if value.wide.dtype == wide:
        return value.wide
    result: Tensor = perform(OPS["cast"], (value.wide,), {"dtype": wide})
    return result


_OPERATORS = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "pow",
    "matmul": "matmul",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}
_COMPARISONS = {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}


def _operator(name: str, swapped: bool) -> Any:
    def method(self: Number, other: Any) -> Any:
        return self._binary(name, other, swapped)

    return method


# Python asks a subclass's reflected operator first, but only where the subclass has one of its own.
for _short, _name in _OPERATORS.items():
    setattr(Number, f"__{_short}__", _operator(_name, False))
    setattr(Number, f"__r{_short}__", _operator(_name, True))
for _short, _name in _COMPARISONS.items():
    setattr(Number, f"__{_short}__", _operator(_name, False))
