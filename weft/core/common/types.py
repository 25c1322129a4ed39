"""What is known of a tensor before its values: `TensorType` is a shape and a dtype."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]  # `numpy.typing` takes milliseconds to import
Shape: TypeAlias = tuple[int, ...]
DType: TypeAlias = np.dtype[Any]


class TensorType(NamedTuple):
    """Shape and dtype of a tensor.

    >>> print(TensorType((2, 3), np.dtype("float32")))
    float32[2,3]
    """

    shape: Shape
    dtype: DType

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a dense copy."""
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"


__all__ = [
    "TensorType",
]
