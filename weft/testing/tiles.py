"""How tiles and pairs multiply, in NumPy: the order of additions, what counts as 0, bit for bit.

`multiply` takes whole matrices. The depth is cut in groups of 64 bytes, filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from weft.compiler.loops import PIECE
from weft.core.common.dtypes import bfloat16
from weft.core.common.types import Array

BYTES = 64  # of the depth in one group
WORD = 4  # bytes of a word of the right factor
_SMALLEST = np.float32(2.0**-126)  # normal
_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)


def multiply(left: Array, right: Array, sums: Array | None = None, pairs: bool = False) -> Array:
    """`sums` (0 if there are none) and left · right: bfloat16 in float32, integers in int32.

    With `pairs`, products of bfloat16 are added two by two.
    """
    depth, group = left.shape[1], BYTES // left.dtype.itemsize
    beyond = -depth % group
    left = np.pad(left, ((0, 0), (0, beyond)))
    right = np.pad(right, ((0, beyond), (0, 0)))
    if left.dtype != bfloat16:
        start: Any = 0 if sums is None else sums
        return np.asarray(left.astype(np.int32) @ right.astype(np.int32) + start, np.int32)
    x, y = (_without_small(a.astype(_SINGLE)) for a in (left, right))
    if pairs:
        return _in_pairs(x, y, sums)
    shape = (left.shape[0], right.shape[1])
    found = np.zeros(shape, _SINGLE) if sums is None else _without_small(sums)
    with np.errstate(all="ignore"):
        for start in range(0, depth, group):
            part = slice(start, start + group)
            found = _added(found, _group(x[:, part], y[part]))
    return found


def _group(x: Array, y: Array) -> Array:
    """One number for each sum: products at even places in order, plus those at odd ones."""
    depth = x.shape[1]
    return _added(*(_chain(x, y, range(first, depth, 2)) for first in (0, 1)))


def _in_pairs(x: Array, y: Array, sums: Array | None) -> Array:
    """Each piece of the depth adds one number: its products in order, but odd places first."""
    found = sums
    with np.errstate(all="ignore"):
        for start in range(0, max(x.shape[1], 1), PIECE):
            stop = min(start + PIECE, x.shape[1])
            places = [at for k in range(start, stop, 2) for at in (k + 1, k)]
            piece = _chain(x, y, places)
            found = piece if found is None else found + piece
    assert found is not None
    return found


def _chain(x: Array, y: Array, places: Iterable[int]) -> Array:
    """The products at some places of the depth, each added to those before, from 0."""
    total = np.zeros((x.shape[0], y.shape[1]), _SINGLE)
    for k in places:
        product = x[:, k : k + 1].astype(_DOUBLE) * y[k : k + 1].astype(_DOUBLE)  # exact
        total = _rounded(total.astype(_DOUBLE), product)
    return total


def _added(x: Array, y: Array) -> Array:
    return _without_small(x + y)


def _rounded(x: Array, y: Array) -> Array:
    """x + y of float64 rounded once to float32: to odd in float64 first, so nothing is lost."""
    total = x + y
    part = total - x
    error = (x - (total - part)) + (y - part)
    even = (total.view(np.int64) & 1) == 0
    moved = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    exact = np.where(np.isfinite(error) & (error != 0) & even, moved, total)
    return _without_small(exact.astype(_SINGLE))


def _without_small(x: Array) -> Array:
    """Numbers below the smallest normal one as zeros of their sign."""
    return np.where(np.abs(x) < _SMALLEST, np.copysign(np.float32(0), x), x)
