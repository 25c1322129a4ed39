"""Patches of images as columns, and back: `nn.unfold` and `nn.fold`, torch's im2col and col2im."""

from __future__ import annotations

from math import prod
from typing import Any

from weft.core.common.parameters import as_integers
from weft.core.common.types import Shape
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ShapeError
from weft.ops.base import call
from weft.ops.padding import pad
from weft.ops.view.reshape import reshape
from weft.ops.view.slice import narrow
from weft.ops.view.transpose import moveaxis
from weft.ops.view.window import overlap_add_op, per_axis, window_counts, window_op


def unfold(x: Any, window: Any, *, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """The patches of `x` (N, C, space…) that a window sees, as columns (N, C · window, places).

    `wf.unfold` slides along one axis; `fold` puts patches back.

    >>> unfold([[[[1, 2, 3], [4, 5, 6]]]], 2).tolist()
    [[[1, 2], [2, 3], [4, 5], [5, 6]]]
    """
    image = to_tensor(x, op="unfold")
    if image.ndim < 3:
        raise ShapeError(f"unfold: expected (N, C, space…), got {image.shape}")
    rank = image.ndim - 2
    sizes, steps, spacing = _window("unfold", rank, window, stride, dilation)
    widths = [(n, n) for n in per_axis("unfold", "padding", padding, rank, 0)]
    params = {"window": sizes, "strides": steps, "dilation": spacing}
    made = call(window_op, (pad(image, [(0, 0), (0, 0), *widths]),), params)
    columns = moveaxis(made, range(-rank, 0), range(2, 2 + rank))  # N C window… places…
    batch, features, places = *image.shape[:2], made.shape[2 : 2 + rank]
    return reshape(columns, (batch, features * prod(sizes), prod(places)))


def fold(
    x: Any,
    output_size: Any,
    window: Any,
    *,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Tensor:
    """Columns (N, C · window, places) added up to images (N, C, output_size…): `unfold` turned.

    Elements that several patches hold are summed.

    >>> fold([[[1, 2], [2, 3], [4, 5], [5, 6]]], (2, 3), 2).tolist()
    [[[[1, 4, 3], [4, 10, 6]]]]
    """
    columns = to_tensor(x, op="fold")
    space = as_integers("fold", "output_size", output_size, 1)
    rank = len(space)
    sizes, steps, spacing = _window("fold", rank, window, stride, dilation)
    edges = per_axis("fold", "padding", padding, rank, 0)
    whole = tuple(n + 2 * edge for n, edge in zip(space, edges, strict=True))
    places = window_counts(whole, sizes, steps, spacing)
    if columns.ndim != 3 or columns.shape[1] % prod(sizes) or columns.shape[2] != prod(places):
        raise ShapeError(
            f"fold: expected (N, C · {prod(sizes)}, {prod(places)}) for space {space} and window"
            f" {sizes}, got {columns.shape}"
        )
    batch, features = columns.shape[0], columns.shape[1] // prod(sizes)
    parts = reshape(columns, (batch, features, *sizes, *places))
    turned = moveaxis(parts, range(2, 2 + rank), range(-rank, 0))
    params = {"space": whole, "strides": steps, "dilation": spacing}
    made: Tensor = call(overlap_add_op, (turned,), params)
    for axis, (edge, size) in enumerate(zip(edges, space, strict=True), 2):
        made = narrow(made, axis, edge, size)
    return made


def _window(
    op: str, rank: int, window: Any, stride: Any, dilation: Any
) -> tuple[Shape, Shape, Shape]:
    """A window's sizes, steps and spacing along each axis of space."""
    parts = (("window", window), ("stride", stride), ("dilation", dilation))
    sizes, steps, spacing = (per_axis(op, name, value, rank) for name, value in parts)
    return sizes, steps, spacing


__all__: list[str] = []
