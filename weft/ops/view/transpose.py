"""Reorder axes: permute and what is spelled with it."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import Any

import numpy as np

from weft.core.common.factors import Factors
from weft.core.common.slots import public
from weft.core.common.types import Array, TensorType
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias
from weft.errors import ArgumentError, AxisError, ShapeError
from weft.ops.axes import normalize_axes, normalize_axis
from weft.ops.base import Example, Tangents, call
from weft.ops.families import LogicalShapeOperation


class Permute(LogicalShapeOperation):
    """Reorder the last axes: result axis i (of those) is operand axis `axes[i]`, negative."""

    view = True
    examples = (Example({"axes": (-1, -2)}), Example({"axes": (-2, -1, -3)}, ((2, 3, 4),)))

    def index(self, x: TensorType, *, axes: tuple[int, ...]) -> Factors:
        names = {a: f"i{-a}" for a in axes}
        left = " ".join(names[a] for a in sorted(axes))
        right = " ".join(names[a] for a in axes)
        return Factors.parse(f"... {left} -> ... {right}", (x.rank,))

    def eval(self, x: Array, *, axes: tuple[int, ...]) -> Array:
        lead = range(x.ndim - len(axes))
        return np.transpose(x, (*lead, *(x.ndim + a for a in axes)))

    def repeated(self, types: Any, params: dict[str, Any]) -> Callable[..., Any]:
        rank, axes = types[0].rank, params["axes"]
        return methodcaller("transpose", (*range(rank - len(axes)), *(rank + a for a in axes)))

    def at(self, s: Any, index: Any, read: Any, x: TensorType, *, axes: tuple[int, ...]) -> Any:
        lead = len(index) - len(axes)
        source = list(index)
        for position, axis in enumerate(axes):
            source[axis] = index[lead + position]
        return read(0, tuple(source))

    def vjp(self, primals: Any, out: Any, ct: Any, *, axes: tuple[int, ...]) -> Tangents:
        return (call(self, (ct,), {"axes": inverse(axes)}),)


def inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that undoes this one."""
    count = len(axes)
    places = {axis + count: position for position, axis in enumerate(axes)}
    return tuple(places[i] - count for i in range(count))


permute_op = Permute()


@public
def permute_dims(x: Any, /, axes: Any) -> Tensor:
    """Reorder the axes: result axis i is `axes[i]` of `x`."""
    tensor = to_tensor(x, op="permute_dims")
    order = normalize_axes("permute_dims", axes, tensor.ndim)
    if len(order) != tensor.ndim:
        raise AxisError(f"permute_dims: {len(order)} axes given for {tensor.ndim} ({axes})")
    if order == tuple(range(tensor.ndim)):
        return alias(tensor)
    kept = 0  # leading axes that stay are batch to the op
    while order[kept] == kept:
        kept += 1
    moved = tuple(axis - tensor.ndim for axis in order[kept:])
    return call(permute_op, (tensor,), {"axes": moved})


@public
def swapaxes(x: Any, /, axis1: int, axis2: int) -> Tensor:
    """Exchange two axes."""
    tensor = to_tensor(x, op="swapaxes")
    i, j = (normalize_axis("swapaxes", a, tensor.ndim) for a in (axis1, axis2))
    order = list(range(tensor.ndim))
    order[i], order[j] = j, i
    return permute_dims(tensor, order)


@public
def transpose(x: Any, /, *places: Any, axes: Any = None) -> Tensor:
    """Reverse the axes (none given), swap two, or reorder all: `axes` is a tuple of all."""
    tensor = to_tensor(x, op="transpose")
    if axes is not None:
        if places:
            raise ArgumentError(f"transpose: axes are given twice, as {places} and {axes}")
        return permute_dims(tensor, axes)
    if not places or (len(places) == 1 and places[0] is None):
        return permute_dims(tensor, range(tensor.ndim - 1, -1, -1))
    if len(places) == 1:
        return permute_dims(tensor, places[0])
    if len(places) == 2:
        return swapaxes(tensor, *places)
    return permute_dims(tensor, places)


@public
def matrix_transpose(x: Any, /) -> Tensor:
    """Swap the last two axes."""
    tensor = to_tensor(x, op="matrix_transpose")
    if tensor.ndim < 2:
        raise ShapeError(f"matrix_transpose: needs at least 2 axes, got shape {tensor.shape}")
    return swapaxes(tensor, -1, -2)


@public
def matrix_transpose_of_2d(x: Any, /) -> Tensor:
    """The transpose of a matrix (`x.T`); other ranks are refused as the standard asks."""
    tensor = to_tensor(x, op="T")
    if tensor.ndim != 2:
        raise ShapeError(
            f"T: is for two axes, got shape {tensor.shape}\nhint: x.mT swaps the last two axes"
        )
    return swapaxes(tensor, 0, 1)


@public
def moveaxis(x: Any, /, source: Any, destination: Any) -> Tensor:
    """Move axes to new positions; the others keep their order."""
    tensor = to_tensor(x, op="moveaxis")
    sources = normalize_axes("moveaxis", source, tensor.ndim)
    targets = normalize_axes("moveaxis", destination, tensor.ndim)
    if len(sources) != len(targets):
        raise AxisError(f"moveaxis: {len(sources)} sources, {len(targets)} destinations")
    order = [i for i in range(tensor.ndim) if i not in sources]
    for target, axis in sorted(zip(targets, sources, strict=True)):
        order.insert(target, axis)
    return permute_dims(tensor, order)


__all__ = [
    "matrix_transpose",
    "moveaxis",
    "permute_dims",
    "swapaxes",
    "transpose",
]
