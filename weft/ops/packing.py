"""Bits as elements, and eight of them in a byte."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.parameters import as_choice, as_integer
from weft.core.common.slots import public
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import DTypeError
from weft.ops import reduction
from weft.ops.axes import normalize_axis
from weft.ops.creation import asarray, shape_tuple, zeros
from weft.ops.elementwise.bitwise import bitwise_and, bitwise_left_shift, bitwise_right_shift
from weft.ops.families import cast
from weft.ops.view.join import concat
from weft.ops.view.reshape import expand_dims, ravel, reshape
from weft.ops.view.slice import narrow
from weft.ops.view.transpose import moveaxis


def _shifts(op: str, bitorder: str, device: Any) -> Tensor:
    """How far each of a byte's bits stands from the lowest, in the order they have as elements."""
    as_choice(op, "bitorder", bitorder, ("big", "little"))
    order = np.arange(8, dtype=np.uint8)
    return asarray(order[::-1].copy() if bitorder == "big" else order, device=device)


def _last(op: str, x: Tensor, axis: int | None) -> tuple[Tensor, int]:
    """The axis that is meant as the last one (of the flattened tensor if None), and its place."""
    if axis is None:
        return ravel(x), 0
    i = normalize_axis(op, axis, x.ndim)
    return moveaxis(x, i, -1), i


def _fitted(op: str, bits: Tensor, count: int) -> Tensor:
    """The first `count` bits of the last axis, with zeros where there are fewer."""
    lead, size = bits.shape[:-1], bits.shape[-1]
    shape_tuple(op, (*lead, count))
    if count <= size:
        return narrow(bits, -1, 0, count)
    missing = zeros((*lead, count - size), dtype=bits.dtype, device=bits.device)
    return concat([bits, missing], axis=-1)


@public
def packbits(x: Any, /, axis: int | None = None, bitorder: str = "big") -> Tensor:
    """Bytes of eight elements each along an axis (of the flattened tensor if None): 0 is no bit.

    The first element is the highest bit, or the lowest if `bitorder` is "little"; the last byte is
    filled with zeros.

    >>> packbits([1, 0, 1]).tolist()
    [160]
    """
    tensor = to_tensor(x, op="packbits")
    if not (dtypes.is_integer(tensor.dtype) or dtypes.is_bool(tensor.dtype)):
        raise DTypeError(
            f"packbits: takes integers and bools, got {dtypes.name_of(tensor.dtype)}"
            "\nhint: compare first, as in packbits(x != 0)"
        )
    shifts = _shifts("packbits", bitorder, tensor.device)
    moved, i = _last("packbits", tensor, axis)
    bits = cast(cast(moved, dtypes.bool_), dtypes.uint8)
    whole = -(-bits.shape[-1] // 8)
    eights = reshape(_fitted("packbits", bits, 8 * whole), (*bits.shape[:-1], whole, 8))
    found = reduction.sum(bitwise_left_shift(eights, shifts), -1, dtype=dtypes.uint8)
    return moveaxis(found, -1, i)


@public
def unpackbits(
    x: Any, /, axis: int | None = None, count: int | None = None, bitorder: str = "big"
) -> Tensor:
    """The bits of uint8 numbers as elements 0 and 1 along an axis: what `packbits` put together.

    `count` is how many bits to give: zeros follow the last ones, and a negative number is how many
    of the last to leave out.

    >>> unpackbits(packbits([1, 0, 1]), count=3).tolist()
    [1, 0, 1]
    """
    tensor = to_tensor(x, op="unpackbits")
    if tensor.dtype != dtypes.uint8:
        raise DTypeError(f"unpackbits: takes uint8, got {dtypes.name_of(tensor.dtype)}")
    shifts = _shifts("unpackbits", bitorder, tensor.device)
    moved, i = _last("unpackbits", tensor, axis)
    ones = bitwise_and(bitwise_right_shift(expand_dims(moved, -1), shifts), 1)
    size = 8 * moved.shape[-1]
    bits = reshape(ones, (*moved.shape[:-1], size))
    if count is not None:
        wanted = as_integer("unpackbits", "count", count, low=-size)
        bits = _fitted("unpackbits", bits, wanted if wanted >= 0 else size + wanted)
    return moveaxis(bits, -1, i)


__all__ = [
    "packbits",
    "unpackbits",
]
