"""Distinct elements in a number that is known beforehand, so that they can be traced.

Elements are sorted; one that differs from the one before it opens a new place, and all up to the
next such go there.
"""

from __future__ import annotations

from weft.core.common import dtypes
from weft.core.common.slots import FUNCTIONS
from weft.core.tensor.tensor import Tensor
from weft.ops.base import call
from weft.ops.gather import scatter_add_op, scatter_set_op
from weft.ops.order import argsort, cumsum, take_along_axis

_PLACES = {"indexed": 1, "rest": 0, "picks": 1, "mode": "clip"}


def distinct(
    x: Tensor, size: int, fill: Tensor | None, merged: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of a flat tensor that is not empty: `size` distinct elements in order, where each is first,
    which of them each element is, and how often each is there.

    What is missing is `fill` (the smallest element if None); `merged` makes all NaNs one.
    """
    order = argsort(x)
    ordered = take_along_axis(x, order)
    before, here = ordered[:-1], ordered[1:]
    differs = before != here
    if merged and dtypes.is_floating(x.dtype):
        differs = differs & ((before == before) | (here == here))
    first = FUNCTIONS["ones"]((1,), dtype=dtypes.bool_, device=x.device)
    opens = FUNCTIONS["concat"]([first, differs])
    place = cumsum(FUNCTIONS["astype"](opens, dtypes.int64), axis=0) - 1
    inverse = _put(FUNCTIONS["zeros_like"](place), order, place)
    start = ordered[0] if fill is None else FUNCTIONS["reshape"](fill, ())
    spare = FUNCTIONS["broadcast_to"](start, (size + 1,))  # what is too much goes to the last one
    empty = FUNCTIONS["zeros"]((size + 1,), dtype=dtypes.int64, device=x.device)
    target = FUNCTIONS["where"](opens, place, size)
    values, found = _put(spare, target, ordered)[:size], _put(empty, target, order)[:size]
    ones = FUNCTIONS["ones_like"](place)
    at = FUNCTIONS["expand_dims"](place, -1)
    counts = call(scatter_add_op, (empty, at, ones), _PLACES)[:size]
    return values, found, inverse, counts


def _put(x: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """`x` with values at places; those past the end go to the last place."""
    return call(scatter_set_op, (x, FUNCTIONS["expand_dims"](places, -1), values), _PLACES)
