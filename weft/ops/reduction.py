"""Reductions over axes: sums, products, extrema, truth, and positions of extrema.

Every function takes `axis` (None for all axes, a number or a tuple) and `keepdims`. Sums and
products of small integers are computed as 64-bit ones; extrema of nothing are an error.
"""

from __future__ import annotations

import builtins
from dataclasses import replace
from math import prod as prod_of
from typing import Any, ClassVar

import numpy as np

from weft.core.common import dtypes
from weft.core.common.context import default_float
from weft.core.common.factors import Factors
from weft.core.common.parameters import as_flag
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import Array, DType, Shape, TensorType
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ops.axes import normalize_axis, reduced_axes
from weft.ops.base import Example, Linear, Tangents, call
from weft.ops.families import ReduceOperation, broadcast_shape, cast, fitting
from weft.ops.naming import named
from weft.ops.order import cumprod_op, delayed
from weft.ops.view.broadcast import broadcast_op
from weft.ops.view.reshape import reshape_op

_CUBE = ((2, 3, 4),)


class ReduceSum(ReduceOperation):
    """Sum over axes."""

    linear = Linear.JOINTLY

    def eval(self, x: Array, *, axes: Shape) -> Array:
        return np.asarray(np.add.reduce(x, axes, dtype=x.dtype))

    def vjp(self, primals: Any, out: Any, ct: Any, *, axes: Shape) -> Tangents:
        return (spread(ct, primals[0].shape, axes),)


class ReduceProd(ReduceOperation):
    """Product over axes; the derivative by an element is the product of all others."""

    combine = "mul"

    def eval(self, x: Array, *, axes: Shape) -> Array:
        return np.asarray(np.multiply.reduce(x, axes, dtype=x.dtype))

    def jvp(self, primals: Any, tangents: Any, out: Any, *, axes: Shape) -> Any:
        part = tangents[0] * _others(primals[0], axes)
        return call(reduce_sum_op, (part,), {"axes": axes})

    def vjp(self, primals: Any, out: Any, ct: Any, *, axes: Shape) -> Tangents:
        (x,) = primals
        return (spread(ct, x.shape, axes) * _others(x, axes),)


class ReduceTruth(ReduceOperation):
    """Combines bools over axes."""

    sample = "b"
    reasons: ClassVar[dict[str, str]] = {"vjp": "the result is bool", "jvp": "the result is bool"}


class ReduceAny(ReduceTruth):
    """Whether some element over axes is true."""

    combine = "or"

    def eval(self, x: Array, *, axes: Shape) -> Array:
        return np.asarray(np.logical_or.reduce(x, axes))


class ReduceAll(ReduceTruth):
    """Whether every element over axes is true."""

    combine = "and"

    def eval(self, x: Array, *, axes: Shape) -> Array:
        return np.asarray(np.logical_and.reduce(x, axes))


class ReduceExtremum(ReduceOperation):
    """The largest or smallest element over axes; ties share the derivative equally."""

    def hits(self, x: Tensor, out: Tensor, axes: Shape) -> tuple[Tensor, Tensor]:
        """1 for each element that is the extremum and 0 for others; how many there are."""
        hit = cast(x == spread(out, x.shape, axes), x.dtype)
        return hit, call(reduce_sum_op, (hit,), {"axes": axes})

    def jvp(self, primals: Any, tangents: Any, out: Any, *, axes: Shape) -> Any:
        hit, count = self.hits(primals[0], out, axes)
        return call(reduce_sum_op, (tangents[0] * hit,), {"axes": axes}) / count

    def vjp(self, primals: Any, out: Any, ct: Any, *, axes: Shape) -> Tangents:
        (x,) = primals
        hit, count = self.hits(x, out, axes)
        return (spread(ct / count, x.shape, axes) * hit,)


class ReduceMax(ReduceExtremum):
    """The largest element over axes; NaN if there is one."""

    combine = "max"

    def eval(self, x: Array, *, axes: Shape) -> Array:
        return np.asarray(np.maximum.reduce(x, axes))


class ReduceMin(ReduceExtremum):
    """The smallest element over axes; NaN if there is one."""

    combine = "min"

    def eval(self, x: Array, *, axes: Shape) -> Array:
        return np.asarray(np.minimum.reduce(x, axes))


class ArgExtremum(ReduceOperation):
    """The position of an extremum along one axis; the first one wins, NaN counts as extreme."""

    examples = (Example({"axes": (-1,)}), Example({"axes": (-2,)}), Example({"axes": (-3,)}, _CUBE))
    reasons: ClassVar[dict[str, str]] = {
        "vjp": "the result is an integer position",
        "jvp": "the result is an integer position",
    }
    better: ClassVar[str] = ""
    kernel_from = 1 << 19  # NumPy takes columns one by one, rows at the speed of kernels
    light = False

    def index(self, x: TensorType, *, axes: tuple[int, ...], **params: Any) -> Factors:
        return replace(super().index(x, axes=axes), whole=frozenset({f"r{-axes[0]}"}))

    def dtype(self, *found: DType, **params: Any) -> DType:
        return dtypes.int64

    def body(self, s: Any, x: Any, **params: Any) -> Any:
        raise self.missing("body")

    def is_exact(self, *found: DType, **params: Any) -> bool:
        return True

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
        return np.asarray(np.argmax(x, axes[0]))


class Argmin(ArgExtremum):
    """Position of the smallest element along one axis."""

    better = "argmin"

    def eval(self, x: Array, *, axes: Shape) -> Array:
        return np.asarray(np.argmin(x, axes[0]))


reduce_sum_op, reduce_prod_op = ReduceSum(), ReduceProd()
reduce_max_op, reduce_min_op = ReduceMax(), ReduceMin()
reduce_any_op, reduce_all_op = ReduceAny(), ReduceAll()
argmax_op, argmin_op = Argmax(), Argmin()


def spread(x: Tensor, shape: Shape, axes: Shape) -> Tensor:
    """Undo a reduction's shape: put the reduced axes back by repeating."""
    depth = -builtins.min(axes, default=0)
    core = tuple(1 if k - depth in axes else n for k, n in enumerate(shape[len(shape) - depth :]))
    full = shape[len(shape) - depth :]
    opened = call(reshape_op, (x,), {"rank": depth - len(axes), "shape": core})
    return call(broadcast_op, (opened,), {"rank": depth, "shape": full})


def _others(x: Tensor, axes: Shape) -> Tensor:
    """For each element, the product over axes of all other elements; nothing is divided."""
    flip, moveaxis, reshape = FUNCTIONS["flip"], FUNCTIONS["moveaxis"], FUNCTIONS["reshape"]
    last = tuple(range(-len(axes), 0))
    moved = moveaxis(x, axes, last)
    size = prod_of(x.shape[i] for i in axes)
    row = reshape(moved, (*moved.shape[: moved.ndim - len(axes)], size))
    along = {"axis": -1}
    before = delayed(call(cumprod_op, (row,), along), -1, 1)
    after = flip(delayed(call(cumprod_op, (flip(row, axis=-1),), along), -1, 1), axis=-1)
    result: Tensor = moveaxis(reshape(before * after, moved.shape), last, axes)
    return result


def reduce(
    op: ReduceOperation, x: Tensor, axis: Any, keepdims: bool, name: str | None = None
) -> Tensor:
    """Perform a reduction over user-given axes; no axes at all is a copy."""
    axes = reduced_axes(name or op.name, axis, x.ndim)
    if not axes:
        found: Tensor = FUNCTIONS["copy_of"](x)
        return found
    result: Tensor = call(op, (x,), {"axes": axes})
    if keepdims is False or not as_flag(name or op.name, "keepdims", keepdims):
        return result
    return with_axes(result, x.shape, axes)


def with_axes(x: Tensor, shape: Shape, axes: Shape) -> Tensor:
    """A reduction's result with the reduced axes (negative) put back as size 1."""
    result: Tensor = FUNCTIONS["reshape"](x, kept_shape(shape, axes))
    return result


def kept_shape(shape: Shape, axes: Shape) -> Shape:
    """A shape whose given axes (negative) have size 1."""
    return tuple(1 if i - len(shape) in axes else n for i, n in enumerate(shape))


@public
def sum(
    x: Any,
    /,
    axis: Any = None,
    keepdims: bool = False,
    *,
    dtype: Any = None,
    initial: Any = None,
    where: Any = None,
) -> Tensor:
    """Sum over axes (all when none is given); small integers are summed as 64-bit ones.

    `where` is a mask of the elements that count, `initial` a number that the sum begins with.

    >>> sum([1, 2, 3], where=[True, False, True]).item()
    4
    """
    made = _accumulated(reduce_sum_op, "sum", x, axis, keepdims, dtype, where)
    return _begun("sum", "add", made, initial)


@public
def prod(
    x: Any,
    /,
    axis: Any = None,
    keepdims: bool = False,
    *,
    dtype: Any = None,
    initial: Any = None,
    where: Any = None,
) -> Tensor:
    """Product over axes (all when none is given); small integers multiply as 64-bit ones.

    `where` is a mask of the elements that count, `initial` a number that the product begins with.
    """
    made = _accumulated(reduce_prod_op, "prod", x, axis, keepdims, dtype, where)
    return _begun("prod", "multiply", made, initial)


def _begun(name: str, step: str, made: Tensor, initial: Any) -> Tensor:
    """A reduction that begins with a number: one more step, if there is one."""
    if initial is None:
        return made
    found: Tensor = FUNCTIONS[step](made, _first(name, made, initial))
    return found


def _first(name: str, x: Tensor, initial: Any) -> Tensor:
    """What a reduction begins with, in the dtype of its result."""
    found = fitting(f"{name}: initial", x, initial)
    if found.shape != ():
        raise ShapeError(f"{name}: initial must have no axes, got shape {found.shape}")
    return found


def selected(name: str, x: Tensor, where: Any, fill: Any) -> Tensor:
    """`x` with `fill` outside a mask; all of `x` if there is none."""
    if where is None:
        return x
    mask = to_tensor(where, like=x.device, op=f"{name}: where")
    if not dtypes.is_bool(mask.dtype):
        raise DTypeError(f"{name}: where: expected a mask of bools, got {mask.type}")
    if broadcast_shape(name, mask.shape, x.shape) != x.shape:
        raise ShapeError(f"{name}: where: a mask of shape {mask.shape} for shape {x.shape}")
    found: Tensor = FUNCTIONS["where"](mask, x, fill)
    return found


def _accumulated(
    op: ReduceOperation, name: str, x: Any, axis: Any, keepdims: bool, dtype: Any, where: Any
) -> Tensor:
    tensor = to_tensor(x, op=name)
    if dtype is None:
        target = dtypes.accumulation_dtype(tensor.dtype)
    else:
        target = dtypes.as_dtype(dtype, op=name, default_float=default_float())
    if dtypes.is_bool(target):
        raise DTypeError(f"{name}: bool is not a number\nhint: use wf.any or wf.all")
    counted = selected(name, cast(tensor, target, name), where, 0 if name == "sum" else 1)
    return reduce(op, counted, axis, keepdims, name)


@public
def any(x: Any, /, axis: Any = None, keepdims: bool = False, *, where: Any = None) -> Tensor:
    """Whether some element over axes (and in a mask) is true (not zero; NaN is true)."""
    return reduce(
        reduce_any_op, selected("any", _truth("any", x), where, False), axis, keepdims, "any"
    )


@public
def all(x: Any, /, axis: Any = None, keepdims: bool = False, *, where: Any = None) -> Tensor:
    """Whether every element over axes (and in a mask) is true (not zero; NaN is true)."""
    return reduce(
        reduce_all_op, selected("all", _truth("all", x), where, True), axis, keepdims, "all"
    )


def _truth(name: str, x: Any) -> Tensor:
    return cast(to_tensor(x, op=name), dtypes.bool_)


@public
def count_nonzero(x: Any, /, axis: Any = None, keepdims: bool = False) -> Tensor:
    """How many elements over axes are not zero (NaN is not)."""
    counted = cast(_truth("count_nonzero", x), dtypes.int64)
    return reduce(reduce_sum_op, counted, axis, keepdims, "count_nonzero")


@public
def max(
    x: Any,
    /,
    axis: Any = None,
    keepdims: bool = False,
    *,
    initial: Any = None,
    where: Any = None,
) -> Tensor:
    """The largest element over axes; NaN if there is one.

    `initial` stands beside the elements, of which there may be none then; `where`, a mask of those
    that count, needs it.
    """
    return _extremum(reduce_max_op, "max", x, axis, keepdims, initial, where)


@public
def min(
    x: Any,
    /,
    axis: Any = None,
    keepdims: bool = False,
    *,
    initial: Any = None,
    where: Any = None,
) -> Tensor:
    """The smallest element over axes; NaN if there is one. `initial` and `where` are as in `max`.

    >>> min([3, 1, 2], initial=9, where=[True, False, True]).item()
    2
    """
    return _extremum(reduce_min_op, "min", x, axis, keepdims, initial, where)


@public
@named
def minmax(x: Any, /, axis: Any = None, keepdims: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest and the largest element over axes, in this order.

    >>> [v.item() for v in minmax([3, 1, 2])]
    [1, 3]
    """
    return min(x, axis, keepdims), max(x, axis, keepdims)


def _extremum(
    op: ReduceOperation,
    name: str,
    x: Any,
    axis: Any,
    keepdims: bool,
    initial: Any = None,
    where: Any = None,
) -> Tensor:
    tensor = to_tensor(x, op=name)
    check_ordered(name, tensor)
    if initial is None:
        if where is not None:
            raise ArgumentError(
                f"{name}: where may leave nothing, which has no {name}imum"
                "\nhint: initial=… stands there then, such as initial=-wf.inf"
            )
        for i in reduced_axes(name, axis, tensor.ndim):
            if tensor.shape[i] == 0:
                raise ShapeError(
                    f"{name}: axis {i + tensor.ndim} is empty and has no {name}imum"
                    f" (shape {tensor.shape})"
                )
        return reduce(op, tensor, axis, keepdims, name)
    first = _first(name, tensor, initial)
    counted = selected(name, tensor, where, first)
    axes = reduced_axes(name, axis, tensor.ndim)
    if 0 in (tensor.shape[i] for i in axes):
        left = [n for i, n in enumerate(tensor.shape) if i - tensor.ndim not in axes]
        kept = kept_shape(tensor.shape, axes) if as_flag(name, "keepdims", keepdims) else left
        none: Tensor = FUNCTIONS["broadcast_to"](first, tuple(kept))
        return none
    step = f"{name}imum"
    if dtypes.is_bool(tensor.dtype):
        step = "logical_or" if name == "max" else "logical_and"
    return _begun(name, step, reduce(op, counted, axis, keepdims, name), first)


def check_ordered(name: str, x: Tensor) -> None:
    """Refuse complex numbers."""
    if dtypes.is_complex(x.dtype):
        raise DTypeError(f"{name}: complex numbers have no order")


@public
def argmax(x: Any, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Position of the largest element along an axis, or in the flattened tensor.

    Of equal elements the first counts; NaN counts as larger than every number.
    """
    return _position(argmax_op, "argmax", x, axis, keepdims)


@public
def argmin(x: Any, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Position of the smallest element along an axis, or in the flattened tensor.

    Of equal elements the first counts; NaN counts as smaller than every number.
    """
    return _position(argmin_op, "argmin", x, axis, keepdims)


def _position(op: ReduceOperation, name: str, x: Any, axis: int | None, keepdims: bool) -> Tensor:
    tensor = to_tensor(x, op=name)
    check_ordered(name, tensor)
    searched = tensor if axis is not None else FUNCTIONS["reshape"](tensor, (-1,))
    along = normalize_axis(name, 0 if axis is None else axis, searched.ndim)
    if searched.shape[along] == 0:
        raise ShapeError(f"{name}: nothing to search along axis {axis} of shape {tensor.shape}")
    result = reduce(op, searched, along, keepdims, name)
    if axis is None and keepdims:
        found: Tensor = FUNCTIONS["reshape"](result, (1,) * tensor.ndim)
        return found
    return result


reduce_sum = FUNCTIONS["reduce_sum"] = sum
amax = FUNCTIONS["amax"] = max
amin = FUNCTIONS["amin"] = min


__all__ = [
    "all",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "count_nonzero",
    "max",
    "min",
    "minmax",
    "prod",
    "reduce_sum",
    "sum",
]
