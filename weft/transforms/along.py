"""Functions of vectors, or of a tensor and an axis, applied to tensors of any rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.core.common.parameters import as_function, as_integers, shown
from weft.core.common.slots import public
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, ShapeError
from weft.ops.axes import normalize_axis
from weft.ops.creation import copy_of
from weft.ops.view.reshape import expand_dims
from weft.ops.view.transpose import moveaxis
from weft.transforms.vmap import vmap


@public
def apply_along_axis(
    func1d: Callable[..., Any], axis: int, x: Any, /, *args: Any, **keywords: Any
) -> Tensor:
    """`func1d(row, …)` for every vector along an axis; axes of its result stand in that place.

    The function is mapped with `vmap`: it runs once for all vectors, so it must be made of
    functions of weft and cannot read values. Further arguments are handed to it as they are.

    >>> apply_along_axis(lambda row: row[::-1] * 2, 1, to_tensor([[1, 2], [3, 4]])).tolist()
    [[4, 2], [8, 6]]
    """
    as_function("apply_along_axis", "func1d", func1d)
    tensor = to_tensor(x, op="apply_along_axis")
    i = normalize_axis("apply_along_axis", axis, tensor.ndim)

    def function(row: Tensor) -> Tensor:
        return _answer("apply_along_axis", func1d(row, *args, **keywords))

    mapped: Callable[[Tensor], Tensor] = function
    for _ in range(tensor.ndim - 1):
        mapped = vmap(mapped)
    found = mapped(moveaxis(tensor, i, -1))
    behind = tensor.ndim - 1 - i
    return moveaxis(found, tuple(range(i, i + behind)), tuple(range(-behind, 0)))


@public
def apply_over_axes(func: Callable[..., Any], x: Any, /, axes: Any) -> Tensor:
    """`func(x, axis)` for one axis after the other; an axis it removes comes back with size 1."""
    as_function("apply_over_axes", "func", func)
    tensor = to_tensor(x, op="apply_over_axes")
    rank, found = tensor.ndim, tensor
    for axis in as_integers("apply_over_axes", "axes", axes):
        i = normalize_axis("apply_over_axes", axis, rank)
        made = _answer("apply_over_axes", func(found, i))
        found = expand_dims(made, i) if made.ndim == rank - 1 else made
        if found.ndim != rank:
            raise ShapeError(
                f"apply_over_axes: a result of {rank} or {rank - 1} axes is expected, got shape"
                f" {made.shape}"
            )
    return copy_of(found) if found is x else found


def _answer(op: str, value: Any) -> Tensor:
    """What a function gave: one tensor, or what can become one."""
    if value is None or isinstance(value, dict | set | str):
        raise ArgumentError(f"{op}: the function must give a tensor, got {shown(value)}")
    return to_tensor(value, op=op)


__all__ = [
    "apply_along_axis",
    "apply_over_axes",
]
