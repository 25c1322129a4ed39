"""The ordered fold behind reductions between ranks: one ufunc call for each member, in order.

Arrays of narrow floats are added in float32 and rounded after every step; that is what NumPy and
ml_dtypes do for `a + b`, so a loop of such additions gives the same bits.
"""

from __future__ import annotations

import contextvars
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.common.types import Array
from weft.errors import ArgumentError

FOLDS: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def fold_function(kind: str, op: str) -> Any:
    """The ufunc of a kind of reduction."""
    found = FOLDS.get(kind)
    if found is None:
        raise ArgumentError(f"{op}: kind {kind!r} is not one of {', '.join(FOLDS)}")
    return found


class Folder:
    """Folds without NumPy's warnings: an overflow is a value here, as in every op of weft.

    Entering a context that already ignores them costs a tenth of `np.errstate`. A context cannot be
    entered twice, so a folder serves one thread at a time.
    """

    def __init__(self) -> None:
        self._quiet = contextvars.copy_context()
        self._run = self._quiet.run
        self._run(np.seterr, all="ignore")

    def fold(self, function: Any, arrays: Sequence[Array], out: Array | None = None) -> Array:
        """((a0 ∘ a1) ∘ a2)… as a new array, or in `out`; there are at least two."""
        if out is not None:
            if len(arrays) == 2:
                found: Array = self._run(function, arrays[0], arrays[1], out)
                return found
            return self.fold_into(function, arrays, out)
        first = arrays[0]
        if first.ndim == 1 and len(arrays) == 2:  # no scalar, and no question of memory order
            result: Array = self._run(function, first, arrays[1])
            return result
        return self.fold_into(function, arrays, np.empty(first.shape, first.dtype))

    def fold_into(self, function: Any, arrays: Sequence[Array], out: Array) -> Array:
        """The fold in memory that is given."""
        run = self._run
        run(function, arrays[0], arrays[1], out)
        for array in arrays[2:]:
            if function is np.multiply and out.dtype.kind == "c":
                # NumPy rounds a product of one complex number otherwise when it is done in place.
                out[...] = run(function, out, array)
            else:
                run(function, out, array, out)
        return out


def piece_bounds(length: int, pieces: int, position: int) -> tuple[int, int]:
    """Where piece `position` of `length` entries begins and ends: the first ones are one longer.

    >>> [piece_bounds(5, 3, i) for i in range(3)]
    [(0, 2), (2, 4), (4, 5)]
    """
    least, longer = divmod(length, pieces)
    start = position * least + min(position, longer)
    return start, start + least + (position < longer)
