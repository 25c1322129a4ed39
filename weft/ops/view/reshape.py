"""Reshape and what is spelled with it: squeeze, expand_dims, flatten."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from operator import index as as_int
from operator import methodcaller
from typing import Any

import numpy as np

from weft.core.common.factors import Factors, reshape_factors
from weft.core.common.handler import current
from weft.core.common.parameters import as_flag, check_elements, is_sequence, shown
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import Array, Shape, TensorType
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.layout import Layout
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias
from weft.errors import ShapeError
from weft.ops.axes import normalize_axes, normalize_axis
from weft.ops.base import Example, Tangents, call
from weft.ops.families import LogicalShapeOperation

_INTEGERS = {int}


class Reshape(LogicalShapeOperation):
    """Give the last `rank` axes the sizes of `shape`, in row-major order."""

    view = True
    examples = (
        Example({"rank": 2, "shape": (8, 3)}),
        Example({"rank": 1, "shape": (2, 3)}),
        Example({"rank": 2, "shape": (6, 4)}),
    )

    def index(self, x: TensorType, *, rank: int, shape: Shape) -> Factors:
        core = x.shape[len(x.shape) - rank :]
        text, extents, whole = reshape_factors(core, resolve(core, shape))
        left, right = text.split("->")
        return Factors.parse(f"... {left} -> ... {right}", (x.rank,), extents, whole)

    def eval(self, x: Array, *, rank: int, shape: Shape) -> Array:
        lead = x.shape[: x.ndim - rank]
        return x.reshape(lead + resolve(x.shape[x.ndim - rank :], shape))

    def repeated(self, types: Any, params: dict[str, Any]) -> Callable[..., Any]:
        (x,), rank, shape = types, params["rank"], params["shape"]
        core = x.shape[x.rank - rank :]
        return methodcaller("reshape", x.shape[: x.rank - rank] + resolve(core, shape))

    def _transform_shard_kwargs(self, shard: Any, **params: Any) -> dict[str, Any]:
        return {**params, "shape": trailing(shard.result(), len(params["shape"]))}

    def is_view(self, array: Any, **params: Any) -> bool:
        rank, shape = params["rank"], params["shape"]
        full = array.shape[: array.ndim - rank] + resolve(array.shape[array.ndim - rank :], shape)
        strides = tuple(step // array.itemsize for step in array.strides)
        return Layout(array.shape, strides).reshape(full) is not None

    def at(self, s: Any, index: Any, read: Any, x: TensorType, *, rank: int, shape: Shape) -> Any:
        core = x.shape[len(x.shape) - rank :]
        sizes = resolve(core, shape)
        lead = tuple(index[: len(index) - len(sizes)])
        flat = 0
        for size, i in zip(sizes, index[len(lead) :], strict=True):
            flat = flat * size + i
        inner: list[Any] = []
        for size in reversed(core):
            inner.insert(0, flat % size)
            flat = flat // size
        return read(0, (*lead, *inner))

    def vjp(self, primals: Any, out: Any, ct: Any, *, rank: int, shape: Shape) -> Tangents:
        (x,) = primals
        return (call(self, (ct,), {"rank": len(shape), "shape": x.shape[x.ndim - rank :]}),)


def trailing(shape: Shape, count: int) -> Shape:
    """The last `count` sizes."""
    return shape[len(shape) - count :]


def resolve(core: Shape, shape: Shape) -> Shape:
    """`shape` with its -1 filled in."""
    if -1 not in shape:
        return shape
    known = prod(size for size in shape if size != -1)
    return tuple(prod(core) // known if size == -1 else size for size in shape)


reshape_op = Reshape()


@public
def reshape(x: Any, /, shape: Any, *, copy: bool | None = None) -> Tensor:
    """The same elements in another shape; one size may be -1. Copies only when it must.

    >>> reshape(to_tensor([1, 2, 3, 4]), (2, -1)).shape
    (2, 2)
    """
    tensor = to_tensor(x, op="reshape")
    target = checked_shape("reshape", tensor.shape, shape)
    if copy is None:
        return _reshape(tensor, target)
    if not as_flag("reshape", "copy", copy):
        return view(tensor, target)
    result: Tensor = FUNCTIONS["copy_of"](_reshape(tensor, target))
    return result


@public
def view(x: Any, /, shape: Any) -> Tensor:
    """Reshape without copying; raises `NotContiguousError` where memory order forbids it.

    The tensor is computed first, since its memory decides. Inside a transform this is `reshape`.
    """
    tensor = to_tensor(x, op="view")
    target = checked_shape("view", tensor.shape, shape)
    if tensor.owner is None and not tensor._impl.traced and current() is None:
        tensor.layout.view(target)
    return _reshape(tensor, target)


def _reshape(x: Tensor, shape: Shape) -> Tensor:
    if shape == x.shape:
        return alias(x)
    return call(reshape_op, (x,), {"rank": x.ndim, "shape": shape})


def sizes_of(op: str, shape: Any) -> Shape:
    """A user-given shape, or a single size, as a tuple of integers."""
    if type(shape) is tuple and {*map(type, shape)} == _INTEGERS:
        return shape
    try:
        return tuple(map(as_int, shape)) if np.iterable(shape) else (as_int(shape),)
    except TypeError:
        raise ShapeError(f"{op}: sizes must be integers, got {shown(shape)}") from None


def checked_shape(op: str, old: Shape, shape: Any) -> Shape:
    """A requested shape as a tuple with -1 resolved, or an error naming both shapes."""
    sizes = sizes_of(op, shape)
    count = prod(old)
    if sizes and prod(sizes) == count and min(sizes) > 0:
        return sizes
    unknown = sizes.count(-1)
    known = prod(size for size in sizes if size != -1)
    fits = known == count if not unknown else known > 0 and count % known == 0
    if unknown > 1 or min(sizes, default=0) < -1 or not fits:
        raise ShapeError(
            f"{op}: {count} elements of shape {old} do not fit shape {sizes}"
            + ("\nhint: only one size may be -1" if unknown > 1 else "")
        )
    if not count:
        check_elements(op, sizes)
    return resolve(old, sizes)


@public
def squeeze(x: Any, /, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """Remove axes of size 1: the given ones, or all when none is given."""
    tensor = to_tensor(x, op="squeeze")
    if axis is None:
        axes = tuple(i for i, size in enumerate(tensor.shape) if size == 1)
    else:
        axes = normalize_axes("squeeze", axis, tensor.ndim)
    for i in axes:
        if tensor.shape[i] != 1:
            raise ShapeError(f"squeeze: axis {i} has size {tensor.shape[i]}, not 1 {tensor.shape}")
    return _reshape(tensor, tuple(n for i, n in enumerate(tensor.shape) if i not in axes))


@public
def expand_dims(x: Any, /, axis: int | tuple[int, ...] = 0) -> Tensor:
    """Insert axes of size 1 at these positions of the result."""
    tensor = to_tensor(x, op="expand_dims")
    given: Any = axis
    listed = tuple(given) if type(given) is not int and is_sequence(given) else (given,)
    count = len(listed)
    axes = normalize_axes("expand_dims", listed, tensor.ndim + count)
    sizes = iter(tensor.shape)
    return _reshape(
        tensor, tuple(1 if i in axes else next(sizes) for i in range(tensor.ndim + count))
    )


@public
def unsqueeze(x: Any, /, axis: int) -> Tensor:
    """Insert one axis of size 1 at this position of the result."""
    return expand_dims(x, axis)


@public
def flatten(x: Any, /, start: int = 0, end: int = -1) -> Tensor:
    """Merge the axes from `start` to `end` (both included) into one."""
    tensor = to_tensor(x, op="flatten")
    if tensor.ndim == 0:
        return _reshape(tensor, (1,))
    first, last = (normalize_axis("flatten", i, tensor.ndim) for i in (start, end))
    middle = prod(tensor.shape[first : last + 1])
    return _reshape(tensor, (*tensor.shape[:first], middle, *tensor.shape[last + 1 :]))


@public
def ravel(x: Any, /) -> Tensor:
    """All elements along one axis."""
    return reshape(x, (-1,))


@public
def unflatten(x: Any, /, axis: int, sizes: Any) -> Tensor:
    """Split one axis into several."""
    tensor = to_tensor(x, op="unflatten")
    i = normalize_axis("unflatten", axis, tensor.ndim)
    parts = checked_shape("unflatten", (tensor.shape[i],), sizes)
    return _reshape(tensor, (*tensor.shape[:i], *parts, *tensor.shape[i + 1 :]))


__all__ = [
    "expand_dims",
    "flatten",
    "ravel",
    "reshape",
    "squeeze",
    "unflatten",
    "unsqueeze",
    "view",
]
