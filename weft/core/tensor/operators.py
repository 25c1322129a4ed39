"""Python's operators on tensors. Each looks its function up by name, so this file needs no op."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from weft.core.common.slots import FUNCTIONS
from weft.core.tensor.views import assign, link, put

_OPERANDS = (bool, int, float, complex, np.generic, np.ndarray, list, tuple)


def _has_ellipsis(index: Any) -> bool:
    return index is Ellipsis or (type(index) is tuple and any(e is Ellipsis for e in index))


class Operators:
    """Arithmetic, comparison and indexing with Python's syntax."""

    __slots__ = ()

    def _binary(self, name: str, other: Any, swapped: bool = False) -> Self:
        result: Self = NotImplemented
        if type(other) is type(self) or isinstance(other, _OPERANDS):
            function = FUNCTIONS[name]
            result = function(other, self) if swapped else function(self, other)
        return result

    def _in_place(self, name: str, other: Any) -> Self:
        result = self._binary(name, other)
        return result if result is NotImplemented else assign(self, result, f"in-place {name}")

    def __getitem__(self, index: Any) -> Self:
        found: Any = FUNCTIONS["getitem"](self, index)
        if FUNCTIONS["is_basic_index"](index) and (found._impl.shape or _has_ellipsis(index)):
            link(self, found, index)  # an element is a value, as in NumPy
        result: Self = found
        return result

    def __setitem__(self, index: Any, value: Any) -> None:
        put(self, index, value, "setitem")

    def __pos__(self) -> Self:
        result: Self = FUNCTIONS["positive"](self)
        return result

    def __neg__(self) -> Self:
        result: Self = FUNCTIONS["negative"](self)
        return result

    def __abs__(self) -> Self:
        result: Self = FUNCTIONS["abs"](self)
        return result

    def __invert__(self) -> Self:
        result: Self = FUNCTIONS["bitwise_invert"](self)
        return result

    def __divmod__(self, other: Any) -> tuple[Self, Self]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Self, Self]:
        return other // self, other % self

    def __add__(self, other: Any) -> Self:
        if type(other) is type(self):
            result: Self = FUNCTIONS["add"](self, other)
            return result
        return self._binary("add", other)

    def __radd__(self, other: Any) -> Self:
        return self._binary("add", other, swapped=True)

    def __iadd__(self, other: Any) -> Self:
        return self._in_place("add", other)

    def __sub__(self, other: Any) -> Self:
        if type(other) is type(self):
            result: Self = FUNCTIONS["subtract"](self, other)
            return result
        return self._binary("subtract", other)

    def __rsub__(self, other: Any) -> Self:
        return self._binary("subtract", other, swapped=True)

    def __isub__(self, other: Any) -> Self:
        return self._in_place("subtract", other)

    def __mul__(self, other: Any) -> Self:
        if type(other) is type(self):
            result: Self = FUNCTIONS["multiply"](self, other)
            return result
        return self._binary("multiply", other)

    def __rmul__(self, other: Any) -> Self:
        return self._binary("multiply", other, swapped=True)

    def __imul__(self, other: Any) -> Self:
        return self._in_place("multiply", other)

    def __truediv__(self, other: Any) -> Self:
        if type(other) is type(self):
            result: Self = FUNCTIONS["divide"](self, other)
            return result
        return self._binary("divide", other)

    def __rtruediv__(self, other: Any) -> Self:
        return self._binary("divide", other, swapped=True)

    def __itruediv__(self, other: Any) -> Self:
        return self._in_place("divide", other)

    def __floordiv__(self, other: Any) -> Self:
        return self._binary("floor_divide", other)

    def __rfloordiv__(self, other: Any) -> Self:
        return self._binary("floor_divide", other, swapped=True)

    def __ifloordiv__(self, other: Any) -> Self:
        return self._in_place("floor_divide", other)

    def __mod__(self, other: Any) -> Self:
        return self._binary("remainder", other)

    def __rmod__(self, other: Any) -> Self:
        return self._binary("remainder", other, swapped=True)

    def __imod__(self, other: Any) -> Self:
        return self._in_place("remainder", other)

    def __pow__(self, other: Any) -> Self:
        return self._binary("pow", other)

    def __rpow__(self, other: Any) -> Self:
        return self._binary("pow", other, swapped=True)

    def __ipow__(self, other: Any) -> Self:
        return self._in_place("pow", other)

    def __matmul__(self, other: Any) -> Self:
        return self._binary("matmul", other)

    def __rmatmul__(self, other: Any) -> Self:
        return self._binary("matmul", other, swapped=True)

    def __imatmul__(self, other: Any) -> Self:
        return self._in_place("matmul", other)

    def __and__(self, other: Any) -> Self:
        return self._binary("bitwise_and", other)

    def __rand__(self, other: Any) -> Self:
        return self._binary("bitwise_and", other, swapped=True)

    def __iand__(self, other: Any) -> Self:
        return self._in_place("bitwise_and", other)

    def __or__(self, other: Any) -> Self:
        return self._binary("bitwise_or", other)

    def __ror__(self, other: Any) -> Self:
        return self._binary("bitwise_or", other, swapped=True)

    def __ior__(self, other: Any) -> Self:
        return self._in_place("bitwise_or", other)

    def __xor__(self, other: Any) -> Self:
        return self._binary("bitwise_xor", other)

    def __rxor__(self, other: Any) -> Self:
        return self._binary("bitwise_xor", other, swapped=True)

    def __ixor__(self, other: Any) -> Self:
        return self._in_place("bitwise_xor", other)

    def __lshift__(self, other: Any) -> Self:
        return self._binary("bitwise_left_shift", other)

    def __rlshift__(self, other: Any) -> Self:
        return self._binary("bitwise_left_shift", other, swapped=True)

    def __ilshift__(self, other: Any) -> Self:
        return self._in_place("bitwise_left_shift", other)

    def __rshift__(self, other: Any) -> Self:
        return self._binary("bitwise_right_shift", other)

    def __rrshift__(self, other: Any) -> Self:
        return self._binary("bitwise_right_shift", other, swapped=True)

    def __irshift__(self, other: Any) -> Self:
        return self._in_place("bitwise_right_shift", other)

    def __lt__(self, other: Any) -> Self:
        return self._binary("less", other)

    def __le__(self, other: Any) -> Self:
        return self._binary("less_equal", other)

    def __gt__(self, other: Any) -> Self:
        return self._binary("greater", other)

    def __ge__(self, other: Any) -> Self:
        return self._binary("greater_equal", other)

    def __eq__(self, other: object) -> Any:
        return self._binary("equal", other)

    def __ne__(self, other: object) -> Any:
        return self._binary("not_equal", other)
