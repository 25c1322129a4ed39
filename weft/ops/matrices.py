"""What ops on whole matrices have in common; matrices of a few rows have kernels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from weft.core.common import dtypes
from weft.core.common.types import Array, DType, Shape, TensorType
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ops.base import Operation, Types
from weft.ops.families import broadcast_shape
from weft.ops.few import MOST, TOGETHER, Found, Matrix
from weft.ops.functions.numpy_scalars import NumpyScalars


class MatrixOperation(Operation):
    """An op on whole matrices; `square` ones refuse others."""

    square: ClassVar[bool] = True
    whole = "n m"
    reasons: ClassVar[dict[str, str]] = {
        "kernel": "a factorisation is a sequence of dependent steps, not a loop nest"
    }

    def infer(self, *types: TensorType, **params: Any) -> Types:
        found = super().infer(*types, **params)
        rows, columns = types[0].shape[-2:]
        if self.square and rows != columns:
            raise ShapeError(
                f"{self}: operand 0: the matrix must be square (shape {types[0].shape})"
            )
        if not dtypes.is_inexact(types[0].dtype):
            raise DTypeError(f"{self}: no meaning for {dtypes.name_of(types[0].dtype)}")
        return found


class FewRowsOperation(MatrixOperation):
    """An op that is computed element by element for real matrices of a few rows, else by LAPACK."""

    core: ClassVar[int] = 2  # axes of the result for each matrix
    most: ClassVar[int] = MOST  # rows of a matrix that is computed element by element
    problem: ClassVar[str] = ""  # what is said of a matrix for which there is no result
    reasons: ClassVar[dict[str, str]] = {
        "kernel": "many rows are a sequence of dependent steps, not a loop nest"
    }

    @abstractmethod
    def few(self, s: Any, *matrices: Any, **params: Any) -> Found:
        """The elements of the result, in scalar instructions, and whether there is no result."""

    @abstractmethod
    def lapack(self, *arrays: Any, **params: Any) -> Array:
        """The result for any matrices."""

    def is_few(self, *shapes: Shape) -> bool:
        """Whether matrices of these shapes are computed element by element."""
        return shapes[0][-1] <= self.most and all(min(shape[-2:]) > 0 for shape in shapes)

    def by_column(self, *shapes: Shape) -> bool:
        """Whether right sides are solved for one by one: each is on its own, so bits are equal."""
        return len(shapes) > 1 and shapes[1][-2] * shapes[1][-1] > TOGETHER

    def is_exact(self, *found: DType, **params: Any) -> bool:
        return any(map(dtypes.is_complex, found))  # else a kernel is quicker where there is one

    def eval(self, *arrays: Any, **params: Any) -> Array:
        real = not any(dtypes.is_complex(a.dtype) for a in arrays)
        if not (real and self.is_few(*(a.shape for a in arrays))):
            return self.lapack(*arrays, **params)
        return self._by_elements(*arrays, **params)

    def _by_elements(self, *arrays: Any, **params: Any) -> Array:
        """The result in NumPy's instructions."""
        alone = self.by_column(*(a.shape for a in arrays))
        matrices = [_rows(a) for a in arrays]
        if alone:  # all right sides of a system lie along one more axis
            given = [[x[..., None] for x in row] for row in matrices[0]]
            matrices = [given, [[row] for row in np.moveaxis(arrays[1], -2, 0)]]
        found, bad = self.few(NumpyScalars, *matrices, **params)
        if bad is not None and np.any(bad):
            raise ArgumentError(self.problem)
        lead = broadcast_shape(self.name, *(a.shape[:-2] for a in arrays))
        columns = arrays[1].shape[-1] if alone else len(found[0])
        made = np.empty((*lead, len(found), columns), arrays[0].dtype)
        for i, row in enumerate(found):
            for j, x in enumerate(row):
                made[..., i, slice(None) if alone else j] = x
        return made if self.core else made[..., 0, 0]


def _rows(a: Array) -> Matrix:
    """The elements of matrices, each with the axes of the batch."""
    return [list(row) for row in np.moveaxis(a, (-2, -1), (0, 1))]


def lapack(problem: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call NumPy's linear algebra; its complaint becomes an error in our words."""
    try:
        return function(*args, **options)
    except np.linalg.LinAlgError:
        raise ArgumentError(problem) from None


def singular_text(name: str) -> str:
    """What is said of a matrix that has no inverse."""
    return f"{name}: a matrix is singular\nhint: wf.linalg.pinv and wf.linalg.lstsq take any matrix"
