"""Whether IEEE 754 leaves a result no choice, so that NumPy's is everybody's.

Sums, quotients, roots, comparisons and moves are rounded one way; functions such as `exp` are not,
and neither are products, quotients and roots of complex numbers.
Where there is a choice, weft's own kernels decide, so that every tier gives the same bits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.types import DType
from weft.errors import WeftError
from weft.ops.functions.expand import BIT_FUNCTIONS

_BOOL = np.dtype(np.bool_)
_EXACT = frozenset({*BIT_FUNCTIONS, "sqrt", "ldexp"})


@lru_cache
def orders_zeros(dtype: DType) -> bool:
    """Whether NumPy's minimum and maximum put -0.0 before 0.0 here, as kernels do."""
    zeros = np.zeros(64, dtype)
    pairs = ((zeros, -zeros), (-zeros, zeros))
    return all(
        np.signbit(np.minimum(x, y).astype(np.float64)).all()
        and not np.signbit(np.maximum(x, y).astype(np.float64)).any()
        for x, y in pairs
    )


class Spy:
    """Follows an op's body through its instructions and notes whether it calls a function."""

    def __init__(self) -> None:
        self.called = False

    def const(self, number: Any, dtype: Any) -> Spied:
        """A literal."""
        return Spied(np.dtype(dtype))

    def cast(self, x: Any, dtype: Any) -> Spied:
        """Another dtype."""
        return Spied(np.dtype(dtype))

    bitcast = cast

    def select(self, condition: Any, x: Any, y: Any) -> Any:
        """One of two."""
        return x if isinstance(x, Spied) else y

    def call(self, function: str, *args: Any) -> Any:
        """A function: rounded as its author likes, but for a few."""
        self.called = self.called or function not in _EXACT
        return args[0]

    def mul(self, x: Any, y: Any) -> Any:
        """A product; of complex numbers, it is rounded more than once."""
        found = x if isinstance(x, Spied) else y
        self.called = self.called or found.dtype.kind == "c"
        return found

    div = mul

    def sqrt(self, x: Any) -> Any:
        """A root."""
        return self.mul(x, x)

    def complex(self, x: Any, y: Any) -> Spied:
        """A number of its parts."""
        return Spied(dtypes.complex_of(x.dtype))

    def real(self, x: Any) -> Spied:
        """A part."""
        return Spied(dtypes.real_of(x.dtype))

    imag = real

    def less(self, *args: Any) -> Spied:
        """A comparison."""
        return Spied(_BOOL)

    less_equal = equal = not_equal = less

    def min(self, x: Any, y: Any) -> Any:
        """A choice in which zeros may differ."""
        found = x if isinstance(x, Spied) else y
        floating = found.dtype.kind not in "biuc"
        self.called = self.called or (floating and not orders_zeros(found.dtype))
        return found

    max = min

    def __getattr__(self, instruction: str) -> Any:
        return lambda x, *others: x if isinstance(x, Spied) else others[0]


class Spied:
    """A value nobody computes."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype


def calls_functions(op: Any, found: tuple[DType, ...], params: dict[str, Any]) -> bool:
    """Whether the body of an elementwise op calls a function on operands of these dtypes."""
    spy = Spy()
    try:
        op.body(spy, *map(Spied, found), **params)
    except WeftError:  # no kernel: its reference is all there is
        return False
    return spy.called
