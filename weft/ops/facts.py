"""What is known of a value before its elements are: axes, sizes, and the kind of its numbers.

Nothing is read or recorded, so the answers are Python's own under every transform.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.device import CPU
from weft.core.common.slots import public
from weft.core.common.types import Shape
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.number import Number
from weft.ops.axes import normalize_axes


@public
def ndim(x: Any, /) -> int:
    """The number of axes."""
    return to_tensor(x, like=CPU, op="ndim").ndim


@public
def shape(x: Any, /) -> Shape:
    """The sizes of the axes.

    >>> shape([[1, 2, 3]])
    (1, 3)
    """
    return to_tensor(x, like=CPU, op="shape").shape


@public
def size(x: Any, /, axis: Any = None) -> int:
    """The number of elements, in all or along the given axes."""
    sizes = to_tensor(x, like=CPU, op="size").shape
    if axis is None:
        return prod(sizes)
    return prod(sizes[i] for i in normalize_axes("size", axis, len(sizes)))


@public
def isscalar(x: Any, /) -> bool:
    """Whether `x` is a number of Python's or NumPy's, or text; a tensor with no axes is not."""
    return type(x) is Number or bool(np.isscalar(x))


@public
def isrealobj(x: Any, /) -> bool:
    """Whether the dtype of `x` is not complex."""
    return not dtypes.is_complex(to_tensor(x, like=CPU, op="isrealobj").dtype)


@public
def iscomplexobj(x: Any, /) -> bool:
    """Whether the dtype of `x` is complex, whatever its values are."""
    return dtypes.is_complex(to_tensor(x, like=CPU, op="iscomplexobj").dtype)


__all__ = [
    "iscomplexobj",
    "isrealobj",
    "isscalar",
    "ndim",
    "shape",
    "size",
]
