"""The primitives of order: sorting and selecting along the last axis.

All of them mean one stable order: smaller elements first, or larger ones, equal ones as they came;
both zeros are equal, and so are all NaNs, which come last unless said otherwise.
"""

from __future__ import annotations

from abc import abstractmethod
from math import prod
from typing import Any, ClassVar

import numpy as np

from weft.core.common import dtypes
from weft.core.common.factors import Factors
from weft.core.common.slots import FUNCTIONS
from weft.core.common.types import Array, DType, TensorType
from weft.core.tensor.tensor import Tensor
from weft.ops.base import Example, Operation, Tangents, call
from weft.ops.gather import scatter_add_op

_DIRECTIONS = (Example({"descending": False}), Example({"descending": True}))


class Ordering(Operation):
    """An op that puts each row of the last axis in order."""

    factors = "... n -> ... n"
    whole = "n"
    kernel_from = 1024
    widen = False
    reasons: ClassVar[dict[str, str]] = {
        "kernel": "its kernels sort whole rows; no element is computed on its own"
    }

    def asked(self, *, descending: bool) -> dict[str, bool]:
        """What a kernel is to give: positions or values, in which order."""
        return {"positions": True, "descending": descending}

    def eval(self, x: Array, **params: Any) -> Array:
        made = self.ordered(x.reshape(prod(x.shape[:-1]), x.shape[-1]), **params)
        return made.reshape(*x.shape[:-1], made.shape[-1])

    @abstractmethod
    def ordered(self, x: Array, **params: Any) -> Array:
        """The same for the rows of a matrix: NumPy sorts arrays of up to 32 axes."""


class Argsort(Ordering):
    """Positions that sort the last axis; equal elements keep their order, NaN comes last."""

    examples = _DIRECTIONS
    reasons: ClassVar[dict[str, str]] = {
        "vjp": "the result is an integer position",
        "jvp": "the result is an integer position",
        **Ordering.reasons,
    }

    def dtype(self, *found: DType, **params: Any) -> DType:
        return dtypes.int64

    def ordered(self, x: Array, *, descending: bool) -> Array:  # type: ignore[override]
        x = _comparable(x)
        if not descending:
            return np.argsort(x, kind="stable")
        order = _largest_first(x)
        if not dtypes.is_inexact(x.dtype):
            return order
        late = np.take_along_axis(np.isnan(x), order, -1)
        return np.take_along_axis(order, np.argsort(late, kind="stable"), -1)


def _comparable(x: Array) -> Array:
    """Narrow floats widened, since NumPy sorts few of them."""
    return x.astype(np.float32) if dtypes.is_narrow(x.dtype) else x


def _largest_first(x: Array) -> Array:
    """Positions from the largest element to the smallest; NaN first, equal ones in order."""
    backward = np.argsort(np.flip(x, -1), kind="stable")
    return np.asarray(x.shape[-1] - 1 - np.flip(backward, -1))


class Sort(Ordering):
    """Elements in order along the last axis; NaN comes last in either direction."""

    examples = _DIRECTIONS

    def asked(self, *, descending: bool) -> dict[str, bool]:
        """What a kernel is to give: values."""
        return {"positions": False, "descending": descending}

    def ordered(self, x: Array, *, descending: bool) -> Array:  # type: ignore[override]
        if not descending and not dtypes.is_narrow(x.dtype):
            return np.sort(x, kind="stable")
        order = argsort_op.ordered(x, descending=descending)
        return np.take_along_axis(x, order, -1)

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        order = call(argsort_op, primals, params)
        return FUNCTIONS["take_along_axis"](tangents[0], order)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return (put_back(ct, call(argsort_op, primals, params)),)


class TopPositions(Ordering):
    """Positions of the k most extreme elements of the last axis, the most extreme first."""

    factors = "... n -> ... k"
    examples = (
        Example({"k": 3, "largest": True}),
        Example({"k": 2, "largest": False}),
    )
    reasons = Argsort.reasons

    def index(self, *types: TensorType, k: int, **params: Any) -> Factors:
        return Factors.parse("... n -> ... k", [t.rank for t in types], {"k": k}, "n k")

    def dtype(self, *found: DType, **params: Any) -> DType:
        return dtypes.int64

    def asked(self, *, k: int, largest: bool) -> dict[str, bool]:  # type: ignore[override]
        """What a kernel is to give: positions, NaN as the largest of all."""
        return {"positions": True, "descending": largest, "missing_first": largest}

    def ordered(self, x: Array, *, k: int, largest: bool) -> Array:  # type: ignore[override]
        x = _comparable(x)
        order = _largest_first(x) if largest else np.argsort(x, kind="stable")
        return order[..., :k]


argsort_op, sort_op, top_positions_op = Argsort(), Sort(), TopPositions()


def put_back(ct: Tensor, places: Tensor) -> Tensor:
    """Elements added up at their places along the last axis: `take_along_axis` transposed."""
    at = FUNCTIONS["expand_dims"](places, -1)
    zeros = FUNCTIONS["zeros_like"](ct)
    params = {"indexed": 1, "rest": 0, "picks": 1, "mode": "clip"}
    return call(scatter_add_op, (zeros, at, ct), params)
