"""Order along an axis: sort, argsort and running combinations (cumulative ops)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from weft.core.common import dtypes
from weft.core.common.factors import Factors
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import Array, DType, TensorType
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import DTypeError
from weft.ops.axes import normalize_axis
from weft.ops.base import Example, Linear, Tangents, call
from weft.ops.families import LogicalAxisOperation, cast
from weft.ops.gather import gather_op


class AxisOrder(LogicalAxisOperation):
    """An op along one whole axis (negative) that keeps the shape."""

    widen = False

    def index(self, x: TensorType, *, axis: int, **params: Any) -> Factors:
        names = " ".join(["n", *(f"i{k}" for k in range(-axis - 1))])
        return Factors.parse(f"... {names} -> ... {names}", (x.rank,), whole="n")


class Argsort(AxisOrder):
    """Positions that sort an axis; equal elements keep their order, NaN comes last."""

    examples = (
        Example({"axis": -1, "descending": False}),
        Example({"axis": -2, "descending": True}),
    )
    reasons: ClassVar[dict[str, str]] = {
        "vjp": "the result is an integer position",
        "jvp": "the result is an integer position",
        "kernel": "sorting is not a loop nest over independent points",
    }

    def dtype(self, *found: DType, **params: Any) -> DType:
        return dtypes.int64

    def eval(self, x: Array, *, axis: int, descending: bool) -> Array:
        if dtypes.is_narrow(x.dtype):
            x = x.astype(np.float32)
        if not descending:
            return np.argsort(x, axis=axis, kind="stable")
        missing = np.isnan(x) if dtypes.is_inexact(x.dtype) else np.zeros(x.shape, bool)
        size = x.shape[axis]
        backward = np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
        order = size - 1 - backward
        late = np.take_along_axis(missing, order, axis)
        return np.take_along_axis(order, np.argsort(late, axis=axis, kind="stable"), axis)


class Sort(AxisOrder):
    """Elements in order along an axis; NaN comes last in either direction."""

    examples = Argsort.examples
    reasons: ClassVar[dict[str, str]] = {
        "kernel": "sorting is not a loop nest over independent points"
    }

    def eval(self, x: Array, *, axis: int, descending: bool) -> Array:
        if not descending and not dtypes.is_narrow(x.dtype):
            return np.sort(x, axis=axis, kind="stable")
        order = argsort_op.eval(x, axis=axis, descending=descending)
        return np.take_along_axis(x, order, axis)

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        order = call(argsort_op, primals, params)
        return FUNCTIONS["take_along_axis"](tangents[0], order, axis=params["axis"])

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        order = call(argsort_op, primals, params)
        places = call(argsort_op, (order,), {**params, "descending": False})
        return (FUNCTIONS["take_along_axis"](ct, places, axis=params["axis"]),)


class Cumulative(AxisOrder):
    """A running combination along an axis: `combine` of all elements up to each one."""

    widen = True
    ordered: ClassVar[str] = "n"  # the factor whose points are visited in order, carrying a value
    examples = (Example({"axis": -1}), Example({"axis": -2}))

    def body(self, s: Any, x: Any, **params: Any) -> Any:
        return x


class Cumsum(Cumulative):
    """Running sum along an axis."""

    linear = Linear.JOINTLY

    def eval(self, x: Array, *, axis: int) -> Array:
        return np.cumsum(x, axis=axis, dtype=x.dtype)

    def vjp(self, primals: Any, out: Any, ct: Any, *, axis: int) -> Tangents:
        flip = FUNCTIONS["flip"]
        return (flip(call(self, (flip(ct, axis=axis),), {"axis": axis}), axis=axis),)


argsort_op, sort_op, cumsum_op = Argsort(), Sort(), Cumsum()


@public
def sort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Elements in order along an axis. weft's sort is always stable; NaN comes last."""
    return _along(sort_op, "sort", x, axis, descending=descending)


@public
def argsort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Positions that sort an axis; always stable, NaN last."""
    return _along(argsort_op, "argsort", x, axis, descending=descending)


@public
def cumsum(x: Any, /, axis: int | None = None, *, dtype: Any = None) -> Tensor:
    """Running sum along an axis (of the flattened tensor when none is given)."""
    tensor = to_tensor(x, op="cumsum")
    if dtype is None:
        target = dtypes.accumulation_dtype(tensor.dtype)
    else:
        target = dtypes.as_dtype(dtype, op="cumsum")
    if axis is None:
        tensor, axis = FUNCTIONS["reshape"](tensor, (-1,)), 0
    return _along(cumsum_op, "cumsum", cast(tensor, target), axis)


def _along(op: AxisOrder, name: str, x: Any, axis: int, **params: Any) -> Tensor:
    tensor = to_tensor(x, op=name)
    if "descending" in params and dtypes.is_complex(tensor.dtype):
        raise DTypeError(f"{name}: complex numbers have no order")
    if tensor.ndim == 0 and axis in (-1, 0):
        return tensor if name != "argsort" else FUNCTIONS["zeros"]((), dtype=dtypes.int64)
    i = normalize_axis(name, axis, tensor.ndim)
    return call(op, (tensor,), {"axis": i - tensor.ndim, **params})  # type: ignore[no-any-return]


@public
def take_along_axis(x: Any, indices: Any, /, *, axis: int = -1, mode: str = "raise") -> Tensor:
    """Elements at given positions along one axis; the other axes broadcast."""
    tensor, places = to_tensor(x, op="take_along_axis"), to_tensor(indices, op="take_along_axis")
    i = normalize_axis("take_along_axis", axis, tensor.ndim)
    broadcast, moveaxis = FUNCTIONS["broadcast_to"], FUNCTIONS["moveaxis"]
    shape = FUNCTIONS["broadcast_shapes"](
        (*tensor.shape[:i], 1, *tensor.shape[i + 1 :]),
        (*places.shape[:i], 1, *places.shape[i + 1 :]),
    )
    full = broadcast(tensor, (*shape[:i], tensor.shape[i], *shape[i + 1 :]))
    at = broadcast(places, (*shape[:i], places.shape[i], *shape[i + 1 :]))
    at = FUNCTIONS["expand_dims"](moveaxis(at, i, -1), -1)
    params = {"indexed": 1, "rest": 0, "picks": 1, "mode": mode}
    from_last = moveaxis(full, i, -1)
    found = call(gather_op, (from_last, cast(at, dtypes.int64)), params)
    return moveaxis(found, -1, i)  # type: ignore[no-any-return]


__all__ = [
    "argsort",
    "cumsum",
    "sort",
    "take_along_axis",
]
