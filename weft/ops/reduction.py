"""Reductions over axes: sums, products, extrema, positions of extrema."""

from __future__ import annotations

import builtins
from typing import Any, ClassVar

import numpy as np

from weft.core.common import dtypes
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import Array, DType, Shape
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import DTypeError, ShapeError
from weft.ops.axes import reduced_axes
from weft.ops.base import Example, Linear, Tangents, call
from weft.ops.families import ReduceOperation, cast
from weft.ops.view.broadcast import broadcast_op
from weft.ops.view.reshape import reshape_op


class ReduceSum(ReduceOperation):
    """Sum over axes."""

    linear = Linear.JOINTLY

    def eval(self, x: Array, *, axes: Shape) -> Array:
        return np.add.reduce(x, axes, dtype=x.dtype)

    def vjp(self, primals: Any, out: Any, ct: Any, *, axes: Shape) -> Tangents:
        return (spread(ct, primals[0].shape, axes),)


class ReduceExtremum(ReduceOperation):
    """The largest or smallest element over axes; ties share the derivative equally."""

    def body(self, s: Any, x: Any, **params: Any) -> Any:
        return x

    def share(self, x: Tensor, out: Tensor, axes: Shape) -> Tensor:
        """For each element, the part of the derivative that is its own."""
        hit = cast(x == spread(out, x.shape, axes), x.dtype)
        count = call(reduce_sum_op, (hit,), {"axes": axes})
        return hit / spread(count, x.shape, axes)

    def jvp(self, primals: Any, tangents: Any, out: Any, *, axes: Shape) -> Any:
        part = tangents[0] * self.share(primals[0], out, axes)
        return call(reduce_sum_op, (part,), {"axes": axes})

    def vjp(self, primals: Any, out: Any, ct: Any, *, axes: Shape) -> Tangents:
        (x,) = primals
        return (spread(ct, x.shape, axes) * self.share(x, out, axes),)


class ReduceMax(ReduceExtremum):
    """The largest element over axes; NaN if there is one."""

    combine = "max"

    def eval(self, x: Array, *, axes: Shape) -> Array:
        return np.maximum.reduce(x, axes)


class ReduceMin(ReduceExtremum):
    """The smallest element over axes; NaN if there is one."""

    combine = "min"

    def eval(self, x: Array, *, axes: Shape) -> Array:
        return np.minimum.reduce(x, axes)


class ArgExtremum(ReduceOperation):
    """The position of an extremum along one axis; the first one wins, NaN counts as extreme."""

    whole = "r1 r2 r3 r4"
    examples = (Example({"axes": (-1,)}), Example({"axes": (-2,)}))
    reasons: ClassVar[dict[str, str]] = {
        "vjp": "the result is an integer position",
        "jvp": "the result is an integer position",
    }
    better: ClassVar[str] = ""

    def dtype(self, *found: DType, **params: Any) -> DType:
        return dtypes.int64

    def body(self, s: Any, x: Any, **params: Any) -> Any:
        raise self.missing("body")

    def at(self, s: Any, index: Any, read: Any, x: Any, *, axes: Shape) -> Any:
        (axis,) = axes
        cut = len(x.shape) + axis

        def element(k: Any) -> Any:
            return read(0, (*index[:cut], k, *index[cut:]))

        return s.reduce(self.better, (x.shape[axis],), lambda k: (element(k), k))


class Argmax(ArgExtremum):
    """Position of the largest element along one axis."""

    better = "argmax"

    def eval(self, x: Array, *, axes: Shape) -> Array:
        return np.argmax(x, axes[0])


class Argmin(ArgExtremum):
    """Position of the smallest element along one axis."""

    better = "argmin"

    def eval(self, x: Array, *, axes: Shape) -> Array:
        return np.argmin(x, axes[0])


reduce_sum_op, reduce_max_op, reduce_min_op = ReduceSum(), ReduceMax(), ReduceMin()
argmax_op, argmin_op = Argmax(), Argmin()


def spread(x: Tensor, shape: Shape, axes: Shape) -> Tensor:
    """Undo a reduction's shape: put the reduced axes back by repeating."""
    depth = -builtins.min(axes, default=0)
    core = tuple(1 if k - depth in axes else n for k, n in enumerate(shape[len(shape) - depth :]))
    full = shape[len(shape) - depth :]
    opened = call(reshape_op, (x,), {"rank": depth - len(axes), "shape": core})
    return call(broadcast_op, (opened,), {"rank": depth, "shape": full})  # type: ignore[no-any-return]


def reduce(
    op: ReduceOperation, x: Tensor, axis: Any, keepdims: bool, name: str | None = None
) -> Tensor:
    """Perform a reduction over user-given axes; no axes at all is the identity."""
    axes = reduced_axes(name or op.name, axis, x.ndim)
    result = call(op, (x,), {"axes": axes}) if axes else x
    if keepdims and axes:
        kept = tuple(1 if i - x.ndim in axes else n for i, n in enumerate(x.shape))
        return FUNCTIONS["reshape"](result, kept)  # type: ignore[no-any-return]
    return result


@public
def sum(x: Any, /, axis: Any = None, keepdims: bool = False, *, dtype: Any = None) -> Tensor:
    """Sum over axes (all when none is given); small integers are summed as 64-bit ones."""
    tensor = to_tensor(x, op="sum")
    if dtype is None:
        target = dtypes.accumulation_dtype(tensor.dtype)
    else:
        target = dtypes.as_dtype(dtype, op="sum")
    return reduce(reduce_sum_op, cast(tensor, target), axis, keepdims, "sum")


@public
def max(x: Any, /, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The largest element over axes."""
    return _extremum(reduce_max_op, "max", x, axis, keepdims)


@public
def min(x: Any, /, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The smallest element over axes."""
    return _extremum(reduce_min_op, "min", x, axis, keepdims)


def _extremum(op: ReduceOperation, name: str, x: Any, axis: Any, keepdims: bool) -> Tensor:
    tensor = to_tensor(x, op=name)
    if dtypes.is_complex(tensor.dtype):
        raise DTypeError(f"{name}: complex numbers have no order")
    for i in reduced_axes(name, axis, tensor.ndim):
        if tensor.shape[i] == 0:
            raise ShapeError(
                f"{name}: axis {i + tensor.ndim} is empty and has no {name}imum"
                f" (shape {tensor.shape})"
            )
    return reduce(op, tensor, axis, keepdims, name)


@public
def argmax(x: Any, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Position of the largest element along an axis, or in the flattened tensor."""
    return _position(argmax_op, "argmax", x, axis, keepdims)


@public
def argmin(x: Any, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Position of the smallest element along an axis, or in the flattened tensor."""
    return _position(argmin_op, "argmin", x, axis, keepdims)


def _position(op: ReduceOperation, name: str, x: Any, axis: int | None, keepdims: bool) -> Tensor:
    tensor = to_tensor(x, op=name)
    if dtypes.is_complex(tensor.dtype):
        raise DTypeError(f"{name}: complex numbers have no order")
    searched = tensor if axis is not None else FUNCTIONS["reshape"](tensor, (-1,))
    (along,) = reduced_axes(name, 0 if axis is None else axis, searched.ndim)
    if searched.shape[along] == 0:
        raise ShapeError(f"{name}: nothing to search along axis {axis} of shape {tensor.shape}")
    result = reduce(op, searched, along, keepdims, name)
    if axis is None and keepdims:
        return FUNCTIONS["reshape"](result, (1,) * tensor.ndim)  # type: ignore[no-any-return]
    return result


__all__ = [
    "argmax",
    "argmin",
    "max",
    "min",
    "sum",
]
