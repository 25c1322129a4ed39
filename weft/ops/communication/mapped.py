"""Collectives over an axis that `vmap` has named: all values are at hand, each slice takes its own.

What a slice gets is that of a device whose piece it is (`named`).
"""

from __future__ import annotations

import numpy as np

from weft.core.common.slots import FUNCTIONS
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.ops.communication.named import checked_pairs
from weft.ops.indexing import getitem
from weft.ops.named_axis import axis_index, gather_axis, named_axis_size
from weft.ops.view.reshape import reshape
from weft.ops.view.transpose import moveaxis


def joined(op: str, x: Tensor, name: str, axis: int) -> Tensor:
    """All values behind each other along `axis`."""
    return _merged(gather_axis(op, x, name), axis)


def own_part(op: str, x: Tensor, name: str, axis: int) -> Tensor:
    """This slice's part along `axis` of what is the same for every slice."""
    count = named_axis_size(op, name)
    at = x.ndim + axis
    parts = reshape(x, (*x.shape[:at], count, x.shape[at] // count, *x.shape[at + 1 :]))
    return getitem(moveaxis(parts, at, 0), axis_index(name))


def swapped(op: str, x: Tensor, name: str, axis: int, split: int) -> Tensor:
    """Part j along `split` goes to slice j; what arrives is joined along `axis`."""
    return _merged(own_part(op, gather_axis(op, x, name), name, split), axis)


def sent(op: str, x: Tensor, name: str, pairs: object) -> Tensor:
    """The value of the slice that sends to this one, or zeros."""
    count = named_axis_size(op, name)
    senders = np.full(count, -1)
    for source, target in checked_pairs(op, pairs, count):
        senders[target] = source
    rows = gather_axis(op, x, name)
    sender = getitem(to_tensor(senders, like=rows.device), axis_index(name))
    found = getitem(rows, FUNCTIONS["maximum"](sender, 0))
    value: Tensor = FUNCTIONS["where"](sender >= 0, found, FUNCTIONS["zeros_like"](found))
    return value


def _merged(rows: Tensor, axis: int) -> Tensor:
    """What lies along the leading axis, behind each other along `axis`."""
    at = rows.ndim + axis - 1
    moved = moveaxis(rows, 0, at)
    length = moved.shape[at] * moved.shape[at + 1]
    return reshape(moved, (*moved.shape[:at], length, *moved.shape[at + 2 :]))
