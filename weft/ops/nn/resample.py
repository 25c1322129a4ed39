"""Resampling: interpolation to another size, pixel shuffles and sampling on a grid.

Interpolation is separable: along each axis every result element is a weighted sum of a few elements
at constant positions. Coordinates follow torch, including `align_corners`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import floor
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.parameters import (
    as_choice,
    as_finite,
    as_flag,
    as_integer,
    as_integers,
    is_sequence,
    shown,
)
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import Array, Shape
from weft.core.tensor.convert import to_tensor, to_tensors, wrap
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ops.base import call
from weft.ops.contraction import matmul, swap
from weft.ops.creation import check_memory
from weft.ops.elementwise.arithmetic import where
from weft.ops.families import cast
from weft.ops.gather import gather_op
from weft.ops.nn.pooling import mean_along, taken
from weft.ops.norms import inexact
from weft.ops.reduction import reduce, reduce_sum_op
from weft.ops.statistics import float_of
from weft.ops.view.broadcast import broadcast_to
from weft.ops.view.join import stack
from weft.ops.view.reshape import reshape
from weft.ops.view.transpose import moveaxis, permute_dims
from weft.ops.view.window import per_axis

_RANKS = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}
_ANY_RANK = ("nearest", "nearest-exact", "area")
_CUBIC = -0.75  # Keys' parameter, as torch and OpenCV have it


@public
def interpolate(
    x: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool = False,
    antialias: bool = False,
) -> Tensor:
    """Resize the space axes of `x` (N, C, space…) to `size`, or by `scale_factor`.

    Modes: nearest, nearest-exact, area (any number of space axes), linear, bilinear, bicubic,
    trilinear. With `align_corners` the first and last elements keep their places. With `antialias`
    each element of a smaller image is a mean of all that it covers, as Pillow has it.
    """
    tensor = to_tensor(x, op="interpolate")
    rank = tensor.ndim - 2
    as_choice("interpolate", "mode", mode, (*_ANY_RANK, *_RANKS))
    if rank < 1 or _RANKS.get(mode, rank) != rank:
        raise ShapeError(
            f"interpolate: mode {mode!r} takes (N, C, space…) with {_RANKS.get(mode, 'some')} space"
            f" axes, got shape {tensor.shape}"
        )
    align_corners = as_flag("interpolate", "align_corners", align_corners)
    antialias = as_flag("interpolate", "antialias", antialias)
    if mode in _ANY_RANK and (align_corners or antialias):
        word = "align_corners" if align_corners else "antialias"
        raise ArgumentError(f"interpolate: {word} has no meaning for mode {mode!r}")
    if antialias and align_corners:
        raise ArgumentError("interpolate: antialias and align_corners exclude each other")
    if not mode.startswith("nearest") and not dtypes.is_inexact(tensor.dtype):
        raise DTypeError(f"interpolate: mode {mode!r} needs floats, got {tensor.dtype}")
    if 0 in tensor.shape[2:]:
        raise ShapeError(f"interpolate: a space axis is empty (shape {tensor.shape})")
    wanted, scales = _sizes(tensor.shape[2:], size, scale_factor)
    check_memory("interpolate", (*tensor.shape[:2], *wanted), tensor.dtype)
    for k, (count, scale) in enumerate(zip(wanted, scales, strict=True)):
        if antialias:
            tensor = _covered(tensor, k + 2, count, scale, mode == "bicubic")
        else:
            tensor = _resized(tensor, k + 2, count, scale, mode, align_corners)
    return tensor


def _sizes(space: Shape, size: Any, factor: Any) -> tuple[Shape, list[float]]:
    """The wanted sizes, and how far a step of the result reaches in the input."""
    rank = len(space)
    if (size is None) == (factor is None):
        raise ArgumentError("interpolate: give either size or scale_factor")
    if size is not None:
        wanted = per_axis("interpolate", "size", size, rank)
        return wanted, [n / count for n, count in zip(space, wanted, strict=True)]
    listed = tuple(factor) if is_sequence(factor) else (factor,) * rank
    factors = [as_finite("interpolate", "scale_factor", f) for f in listed]
    if len(factors) != rank or min(factors) <= 0:
        raise ArgumentError(f"interpolate: scale_factor {shown(factor)} for {rank} space axes")
    wanted = tuple(floor(n * f) for n, f in zip(space, factors, strict=True))
    if min(wanted) < 1:
        raise ArgumentError(f"interpolate: scale_factor {shown(factor)} leaves nothing of {space}")
    return wanted, [1 / f for f in factors]


def _resized(x: Any, axis: int, count: int, scale: float, mode: str, align: bool) -> Any:
    size = x.shape[axis]
    steps = np.arange(count)
    if mode == "area":
        wide, target = float_of("interpolate", x)
        return cast(mean_along(wide, axis, count), target)
    if mode == "nearest":
        return _nearest(x, axis, np.minimum(np.floor(steps * scale), size - 1))
    if mode == "nearest-exact":
        return _nearest(x, axis, np.minimum(np.floor((steps + 0.5) * scale), size - 1))
    if align:
        source = steps * ((size - 1) / (count - 1) if count > 1 else 0.0)
    else:
        source = (steps + 0.5) * scale - 0.5
    if mode == "bicubic":
        return _weighted(x, axis, *_cubic_taps(source, size))
    return _weighted(x, axis, *_linear_taps(np.maximum(source, 0), size))


def _nearest(x: Any, axis: int, positions: Array) -> Any:
    """Elements at constant positions of one axis: a view, if each comes equally often in turn."""
    lead, size, rest = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    times = len(positions) // max(size, 1)
    if not np.array_equal(positions, np.repeat(np.arange(size), times)):
        return taken(x, axis, positions)
    wide = broadcast_to(reshape(x, (*lead, size, 1, *rest)), (*lead, size, times, *rest))
    return reshape(wide, (*lead, size * times, *rest))


def _covered(x: Any, axis: int, count: int, scale: float, cubic: bool) -> Any:
    """Means of all elements that each place covers, by the kernel stretched to its width."""
    size, stretch = x.shape[axis], max(scale, 1.0)
    centre, reach = scale * (np.arange(count) + 0.5), (2 if cubic else 1) * stretch
    first = np.maximum((centre - reach + 0.5).astype(int), 0)
    past = np.minimum((centre + reach + 0.5).astype(int), size)
    positions = first[:, None] + np.arange((past - first).max())
    away = np.abs(positions + 0.5 - centre[:, None]) / stretch
    kernel = _smooth(away) if cubic else np.maximum(1 - away, 0)
    weights = np.where(positions < past[:, None], kernel, 0)
    weights /= weights.sum(1, keepdims=True)
    found = taken(x, axis, np.minimum(positions, size - 1))
    factors = weights.astype(x.dtype).reshape((*weights.shape, *(1,) * (x.ndim - axis - 1)))
    return reduce(reduce_sum_op, found * wrap(factors, x.device), axis + 1, False)


def _smooth(t: Array) -> Array:
    """The cubic kernel that Pillow shrinks images by: Keys' parameter is −1/2."""
    near, far = (1.5 * t - 2.5) * t * t + 1, ((-0.5 * t + 2.5) * t - 4) * t + 2
    return np.where(t < 1, near, np.where(t < 2, far, 0))


def _linear_taps(source: Array, size: int) -> tuple[Array, Array]:
    first = np.minimum(np.floor(source), size - 1)
    part = np.clip(source - first, 0, 1)
    positions = np.stack([first, np.minimum(first + 1, size - 1)], 1)
    return positions, np.stack([1 - part, part], 1)


def _cubic_taps(source: Array, size: int) -> tuple[Array, Array]:
    first = np.floor(source)
    part = source - first
    positions = np.clip(first[:, None] + np.arange(-1, 3), 0, size - 1)
    return positions, np.stack(_cubic(part), 1)


def _near(t: Any) -> Any:
    """The cubic kernel for distances up to 1."""
    return ((_CUBIC + 2) * t - (_CUBIC + 3)) * t * t + 1


def _far(t: Any) -> Any:
    """The cubic kernel for distances between 1 and 2."""
    return ((_CUBIC * t - 5 * _CUBIC) * t + 8 * _CUBIC) * t - 4 * _CUBIC


def _weighted(x: Any, axis: int, positions: Array, weights: Array) -> Any:
    """Sums of elements at `positions` (count, taps) of one axis, times weights."""
    rest = (1,) * (x.ndim - axis - 1)
    total: Any = None
    for places, factors in zip(positions.T, weights.T, strict=True):
        found: Any = taken(x, axis, places)
        term = found * wrap(factors.astype(x.dtype).reshape((-1, *rest)), x.device)
        total = term if total is None else total + term
    return total


@public
def pixel_shuffle(x: Any, factor: int) -> Tensor:
    """Move features into space: (…, C·r², H, W) becomes (…, C, H·r, W·r)."""
    t = _planes("pixel_shuffle", x)
    factor = as_integer("pixel_shuffle", "factor", factor, low=1)
    *lead, features, height, width = t.shape
    if features % factor**2:
        raise ShapeError(f"pixel_shuffle: {features} features are no multiple of {factor}²")
    kept = features // factor**2
    split = reshape(t, (*lead, kept, factor, factor, height, width))
    base = len(lead)
    order = [*range(base + 1), base + 3, base + 1, base + 4, base + 2]
    return reshape(permute_dims(split, order), (*lead, kept, height * factor, width * factor))


@public
def pixel_unshuffle(x: Any, factor: int) -> Tensor:
    """Move space into features: (…, C, H·r, W·r) becomes (…, C·r², H, W)."""
    t = _planes("pixel_unshuffle", x)
    factor = as_integer("pixel_unshuffle", "factor", factor, low=1)
    *lead, features, height, width = t.shape
    if height % factor or width % factor:
        raise ShapeError(f"pixel_unshuffle: {height} × {width} is no multiple of {factor}")
    rows, columns = height // factor, width // factor
    split = reshape(t, (*lead, features, rows, factor, columns, factor))
    base = len(lead)
    order = [*range(base + 1), base + 2, base + 4, base + 1, base + 3]
    return reshape(permute_dims(split, order), (*lead, features * factor**2, rows, columns))


def _planes(op: str, x: Any) -> Tensor:
    tensor = to_tensor(x, op=op)
    if tensor.ndim < 3:
        raise ShapeError(f"{op}: expected (…, C, H, W), got shape {tensor.shape}")
    return tensor


@public
def grid_sample(
    x: Any,
    grid: Any,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Tensor:
    """Read `x` (N, C, H, W) at positions `grid` (N, H', W', 2), which are (x, y) in [-1, 1].

    Volumes (N, C, D, H, W) are read at (x, y, z). Outside, `padding_mode` reads zeros, the border,
    or the reflection. `mode` is "bilinear" (of volumes trilinear), "nearest" or, for images,
    "bicubic". Differentiable in both.
    """
    image: Any
    places: Any
    image, places = to_tensors("grid_sample", x, grid)
    as_choice("grid_sample", "mode", mode, ("bilinear", "nearest", "bicubic"))
    as_choice("grid_sample", "padding_mode", padding_mode, tuple(_BRING))
    _check_grid(image, places, mode)
    places, space = cast(places, image.dtype), image.shape[2:]
    points = [  # the grid names the last axis of space first
        _unnormalized(places[..., len(space) - 1 - k], size, align_corners)
        for k, size in enumerate(space)
    ]
    moved = moveaxis(image, 1, -1)  # N space… C

    def inward(k: int, v: Any) -> Any:
        return _BRING[padding_mode](v, space[k], align_corners)

    if mode == "bicubic":
        return moveaxis(_bicubic(moved, points, inward), -1, 1)
    inside = [inward(k, v) for k, v in enumerate(points)]
    if mode == "nearest":
        found = _read(moved, [FUNCTIONS["round"](v) for v in inside])
    else:
        found = _linear(moved, inside)
    return moveaxis(found, -1, 1)


def _check_grid(image: Tensor, places: Tensor, mode: str) -> None:
    """Images and grids of images, or volumes and grids of volumes."""
    rank = image.ndim - 2
    fits = rank in (2, 3) and places.ndim == image.ndim and places.shape[-1] == rank
    if not fits or 0 in image.shape[2:]:
        raise ShapeError(
            "grid_sample: expected (N, C, H, W) and (N, H, W, 2), or (N, C, D, H, W) and"
            f" (N, D, H, W, 3), got {image.shape} and {places.shape}"
        )
    if image.shape[0] != places.shape[0]:
        raise ShapeError(f"grid_sample: batches {image.shape[0]} and {places.shape[0]} differ")
    if mode == "bicubic" and rank == 3:
        raise ArgumentError("grid_sample: mode 'bicubic' is for images, not for volumes")


@public
def affine_grid(theta: Any, size: Any, align_corners: bool = False) -> Tensor:
    """Where each pixel of images `size` (N, C, H, W) lies after maps `theta` (N, 2, 3).

    Volumes (N, C, D, H, W) take maps (N, 3, 4). The result (N, H, W, 2), or (N, D, H, W, 3), is for
    `grid_sample`, with the same `align_corners`.
    """
    maps: Any = inexact("affine_grid", theta)
    shape = as_integers("affine_grid", "size", size, 0)
    rank = len(shape) - 2
    fits = rank in (2, 3) and maps.ndim == 3 and maps.shape[1:] == (rank, rank + 1)
    if not fits or shape[0] != maps.shape[0]:
        raise ShapeError(
            "affine_grid: expected theta (N, 2, 3) and size (N, C, H, W), or (N, 3, 4) and"
            f" (N, C, D, H, W), got {maps.shape} and {shape}"
        )
    as_flag("affine_grid", "align_corners", align_corners)
    space = shape[2:]
    lines = np.meshgrid(*(_centres(n, align_corners) for n in space), indexing="ij")
    points = np.stack([*lines[::-1], np.ones(space)], axis=-1)
    flat = cast(wrap(points.reshape(-1, rank + 1), maps.device), maps.dtype)
    return reshape(matmul(flat, swap(maps)), (shape[0], *space, rank))


def _centres(count: int, align_corners: bool) -> Array:
    """The places of pixels from -1 to 1: their centres, or with the first and last at the ends."""
    if align_corners:
        return np.linspace(-1, 1, count) if count > 1 else np.zeros(count)
    return (2 * np.arange(count) + 1) / max(count, 1) - 1


def _linear(image: Any, points: list[Any]) -> Any:
    """The elements around each position, two along each axis, each by how near it is."""
    below = [FUNCTIONS["stop_gradient"](FUNCTIONS["floor"](v)) for v in points]
    total: Any = None
    for corner in product((0, 1), repeat=len(points)):
        at = [v + step for v, step in zip(below, corner, strict=True)]
        near: Any = None
        for v, c in zip(points, at, strict=True):
            part = 1 - FUNCTIONS["abs"](v - c)
            near = part if near is None else near * part
        term = _read(image, at) * reshape(near, (*near.shape, 1))
        total = term if total is None else total + term
    return total


def _bicubic(image: Any, points: list[Any], inward: Callable[[int, Any], Any]) -> Any:
    """The sixteen elements around each position by the cubic kernel, each brought inside first."""

    def taps(k: int) -> list[tuple[Any, Any]]:
        below = FUNCTIONS["stop_gradient"](FUNCTIONS["floor"](points[k]))
        weights = _cubic(points[k] - below)
        return [(inward(k, below + step - 1), weight) for step, weight in enumerate(weights)]

    total: Any = None
    across = taps(1)
    for r, by_row in taps(0):
        for c, by_column in across:
            near = by_row * by_column
            term = _read(image, [r, c]) * reshape(near, (*near.shape, 1))
            total = term if total is None else total + term
    return total


def _cubic(part: Any) -> tuple[Any, Any, Any, Any]:
    """What four neighbours weigh, at this part of the way from the second to the third."""
    return _far(part + 1), _near(part), _near(1 - part), _far(2 - part)


def _read(image: Any, places: list[Any]) -> Any:
    """Elements of (N, space…, C) at whole positions, one for each axis of space; zero outside."""
    inside: Any = None
    for v, size in zip(places, image.shape[1:-1], strict=True):
        within = (v >= 0) & (v <= size - 1)
        inside = within if inside is None else inside & within
    safe = [cast(where(inside, v, 0), dtypes.int64) for v in places]
    params = {"indexed": len(safe), "rest": 1, "picks": len(safe), "mode": "raise"}
    found = call(gather_op, (image, stack(safe, axis=-1)), params)
    return where(reshape(inside, (*inside.shape, 1)), found, 0)


def _unnormalized(v: Any, size: int, align: bool) -> Any:
    """[-1, 1] to element positions: the centres of the end elements, or their outer edges."""
    return (v + 1) / 2 * (size - 1) if align else ((v + 1) * size - 1) / 2


def _clipped(v: Any, size: int, align: bool) -> Any:
    return where(v <= 0, 0, where(v >= size - 1, size - 1, v))


def _reflected(v: Any, size: int, align: bool) -> Any:
    """Positions folded back at the ends, then kept on the elements."""
    low, span = (0.0, size - 1.0) if align else (-0.5, float(size))
    if span == 0:
        return v * 0
    away = FUNCTIONS["abs"](v - low)
    turns = FUNCTIONS["stop_gradient"](FUNCTIONS["floor"](away / span))
    rest = away - turns * span
    even = turns - 2 * FUNCTIONS["floor"](turns / 2) == 0
    return _clipped(where(even, rest + low, span - rest + low), size, align)


_BRING: dict[str, Callable[[Any, int, bool], Any]] = {
    "zeros": lambda v, size, align: v,
    "border": _clipped,
    "reflection": _reflected,
}


__all__ = [
    "affine_grid",
    "grid_sample",
    "interpolate",
    "pixel_shuffle",
    "pixel_unshuffle",
]
