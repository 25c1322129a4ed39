"""Bags of rows of a table: their sums, means and maxima, without an order among them."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.parameters import as_choice, as_flag, as_integer, shown
from weft.core.common.slots import FUNCTIONS, public
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ops import reduction
from weft.ops.creation import arange
from weft.ops.elementwise.arithmetic import where
from weft.ops.elementwise.comparison import maximum
from weft.ops.families import cast
from weft.ops.selection import embedding, segment_max, segment_sum
from weft.ops.view.reshape import expand_dims


@public
def embedding_bag(
    table: Any,
    ids: Any,
    /,
    offsets: Any = None,
    mode: str = "mean",
    *,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The mean, sum or maximum (`mode`) of rows of a table for each bag of `ids`.

    Bags lie along the last axis of `ids`; or `ids` are one row, in which `offsets` say where each
    bag begins (and where the last one ends, with `include_last_offset`). `per_sample_weights` are
    factors of the rows of a sum. The id `padding_idx` stands for nothing. An empty bag gives zeros.

    >>> embedding_bag([[1.0, 2.0], [3.0, 4.0]], [[0, 1], [1, 1]]).tolist()
    [[2.0, 3.0], [3.0, 4.0]]
    """
    as_choice("embedding_bag", "mode", mode, ("sum", "mean", "max"))
    given = to_tensor(table, beside=(ids, offsets, per_sample_weights), op="embedding_bag")
    places = _ids(ids, given, offsets)
    rows = embedding(_wide(given), places)
    if per_sample_weights is not None:
        rows = rows * expand_dims(_factors(per_sample_weights, rows, places, mode), -1)
    counts = None
    if padding_idx is not None:
        size = given.shape[0]
        nothing = as_integer("embedding_bag", "padding_idx", padding_idx, -size, size - 1) % size
        counts = places != nothing
    bags = None
    if offsets is not None:
        last = as_flag("embedding_bag", "include_last_offset", include_last_offset)
        bags = _bags(offsets, places, last)
    elif include_last_offset:
        raise ArgumentError("embedding_bag: include_last_offset was given without offsets")
    return cast(_folded(rows, counts, bags, mode), given.dtype)


def _ids(ids: Any, table: Tensor, offsets: Any) -> Tensor:
    """The ids as int64, in as many axes as bags are told by."""
    if isinstance(ids, list | tuple) and not len(ids):
        ids = np.zeros(0, np.int64)
    places = to_tensor(ids, like=table.device, op="embedding_bag: ids")
    if not dtypes.is_integer(places.dtype):
        kind = dtypes.name_of(places.dtype)
        raise DTypeError(f"embedding_bag: ids must be integers, got {kind}")
    if table.ndim != 2 or not dtypes.is_floating(table.dtype):
        raise DTypeError(f"embedding_bag: table: expected a matrix of floats, got {table.type}")
    if offsets is None and places.ndim < 2:
        raise ShapeError(
            f"embedding_bag: ids of shape {places.shape} are no bags"
            "\nhint: give offsets, or ids[None] for one bag"
        )
    if offsets is not None and places.ndim != 1:
        raise ShapeError(f"embedding_bag: offsets are for ids in one row, got {places.shape}")
    return cast(places, dtypes.int64)


def _wide(x: Tensor) -> Tensor:
    return cast(x, dtypes.float32) if dtypes.is_narrow(x.dtype) else x


def _factors(weights: Any, rows: Tensor, places: Tensor, mode: str) -> Tensor:
    """What rows are multiplied by."""
    if mode != "sum":
        raise ArgumentError(
            f"embedding_bag: per_sample_weights are for the mode 'sum', not {mode!r}"
        )
    factors = to_tensor(weights, beside=(rows,), op="embedding_bag: per_sample_weights")
    if factors.shape != places.shape:
        raise ShapeError(
            f"embedding_bag: per_sample_weights of shape {factors.shape} for ids {places.shape}"
        )
    return cast(factors, rows.dtype)


def _bags(offsets: Any, places: Tensor, last: bool) -> tuple[Tensor, int]:
    """The bag of each id, and how many bags there are."""
    starts = to_tensor(offsets, like=places.device, op="embedding_bag: offsets")
    if starts.ndim != 1 or not dtypes.is_integer(starts.dtype):
        raise DTypeError(
            f"embedding_bag: offsets: expected integers along one axis, got {starts.type}"
        )
    if starts.shape[0] <= last:
        raise ShapeError(f"embedding_bag: {starts.shape[0]} offsets begin no bag")
    count = starts.shape[0] - last
    if starts.owner is None or starts.is_realized:  # inside of transforms only shapes are known
        seen = starts.host()
        whole = places.shape[0]
        wrong = seen[-1] != whole if last else seen[-1] > whole
        if wrong or seen[0] != 0 or (seen[1:] < seen[:-1]).any():
            raise ArgumentError(
                f"embedding_bag: offsets must go up from 0 to {whole}, the number of ids,"
                f"{'' if last else ' at the most,'} got {shown(seen.tolist())}"
            )
    positions = arange(places.shape[0], device=places.device)
    found = FUNCTIONS["searchsorted"](cast(starts, dtypes.int64)[:count], positions, "right") - 1
    return found, count


def _folded(rows: Tensor, counts: Any, bags: tuple[Tensor, int] | None, mode: str) -> Tensor:
    """Rows of each bag made one, of those that count."""
    floor = -np.inf if mode == "max" else 0
    kept = rows if counts is None else where(expand_dims(counts, -1), rows, floor)
    axis = rows.ndim - 2

    def total(x: Tensor) -> Tensor:
        return reduction.sum(x, axis) if bags is None else segment_sum(x, *bags)

    if mode == "sum":
        return total(kept)
    if counts is None:
        counts = FUNCTIONS["ones"](rows.shape[:-1], dtype=bool, device=rows.device)
    number = expand_dims(total(cast(counts, rows.dtype)), -1)
    if mode == "mean":
        return total(kept) / maximum(number, 1)
    if bags is None:
        top = reduction.max(kept, axis, initial=-np.inf)
    else:
        top = segment_max(kept, *bags)
    return where(number == 0, 0, top)


__all__ = ["embedding_bag"]
