"""Sliding windows and their transpose: one concept under pooling, unfold and fold.

`Window` shows every place of a window over the last axes; `OverlapAdd` puts such windows back,
adding where they overlap. Each is the other's transpose.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.factors import Factors
from weft.core.common.parameters import as_integers, shown
from weft.core.common.slots import public
from weft.core.common.types import Array, Shape, TensorType
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, AxisError, ShapeError
from weft.ops.axes import normalize_axes
from weft.ops.base import Example, Linear, Operation, Tangents, call
from weft.ops.families import LogicalShapeOperation
from weft.ops.view.transpose import moveaxis


def window_counts(space: Shape, window: Shape, strides: Shape, dilation: Shape) -> Shape:
    """How many places a window fits along each axis."""
    counts = []
    for axis, (size, width, step, d) in enumerate(
        zip(space, window, strides, dilation, strict=True)
    ):
        span = (width - 1) * d + 1
        if span > size or width == 0:
            raise ShapeError(
                f"space axis {axis}: a window of {span} does not fit size {size}"
                "\nhint: padding makes room"
            )
        counts.append((size - span) // step + 1)
    return tuple(counts)


def taps(window: Shape, places: Shape, strides: Shape, dilation: Shape) -> Any:
    """Each point of the window with the slices of space it sees, in row-major order."""
    for point in product(*map(range, window)):
        where = tuple(
            slice(w * d, w * d + (count - 1) * step + 1, step)
            for w, count, step, d in zip(point, places, strides, dilation, strict=True)
        )
        yield point, where


def _names(rank: int) -> tuple[list[str], list[str], list[str]]:
    space, places, window = ([f"{letter}{k}" for k in range(rank)] for letter in "spw")
    return space, places, window


class Window(LogicalShapeOperation):
    """Every place of a sliding window: `... (space) -> ... (places) (window)`."""

    examples = (
        Example({"window": (3,), "strides": (1,), "dilation": (1,)}, ((6,),)),
        Example({"window": (2,), "strides": (2,), "dilation": (3,)}, ((8,),)),
        Example({"window": (2, 3), "strides": (1, 2), "dilation": (2, 1)}, ((4, 6),)),
    )

    def index(self, x: TensorType, *, window: Shape, strides: Shape, dilation: Shape) -> Factors:
        rank = len(window)
        if x.rank < rank:
            raise ShapeError(f"operand 0: expected at least {rank} axes, got {x.rank}")
        space, places, inner = _names(rank)
        counts = window_counts(x.shape[x.rank - rank :], window, strides, dilation)
        extents = dict(zip([*places, *inner], counts + window, strict=True))
        text = f"... {' '.join(space)} -> ... {' '.join([*places, *inner])}"
        return Factors.parse(text, (x.rank,), extents, " ".join([*space, *places, *inner]))

    def eval(self, x: Array, *, window: Shape, strides: Shape, dilation: Shape) -> Array:
        rank = len(window)
        places = window_counts(x.shape[x.ndim - rank :], window, strides, dilation)
        # Window axes lie outermost in memory, so that reducing them runs over long rows.
        out = np.empty(window + x.shape[: x.ndim - rank] + places, x.dtype)
        for point, where in taps(window, places, strides, dilation):
            out[point] = x[(..., *where)]
        return np.moveaxis(out, range(rank), range(-rank, 0))

    def at(
        self,
        s: Any,
        index: Any,
        read: Any,
        x: TensorType,
        *,
        window: Shape,
        strides: Shape,
        dilation: Shape,
    ) -> Any:
        rank = len(window)
        lead, places, point = index[: -2 * rank], index[-2 * rank : -rank], index[-rank:]
        where = (
            p * step + w * d for p, step, w, d in zip(places, strides, point, dilation, strict=True)
        )
        return read(0, (*lead, *where))

    def vjp(
        self, primals: Any, out: Any, ct: Any, *, window: Shape, strides: Shape, dilation: Shape
    ) -> Tangents:
        (x,) = primals
        space = x.shape[x.ndim - len(window) :]
        params = {"space": space, "strides": strides, "dilation": dilation}
        return (call(overlap_add_op, (ct,), params),)


class OverlapAdd(Operation):
    """Windows added back into space where they came from: the transpose of `Window`."""

    linear = Linear.JOINTLY
    examples = (
        Example({"space": (6,), "strides": (1,), "dilation": (1,)}, ((4, 3),)),
        Example({"space": (9,), "strides": (2,), "dilation": (3,)}, ((3, 2),)),
        Example({"space": (4, 6), "strides": (1, 2), "dilation": (2, 1)}, ((2, 2, 2, 3),)),
    )

    def index(self, x: TensorType, *, space: Shape, strides: Shape, dilation: Shape) -> Factors:
        rank = len(space)
        if x.rank < 2 * rank:
            raise ShapeError(f"operand 0: expected at least {2 * rank} axes, got {x.rank}")
        names, places, inner = _names(rank)
        counts = window_counts(space, x.shape[x.rank - rank :], strides, dilation)
        found = x.shape[x.rank - 2 * rank : x.rank - rank]
        if counts != found:
            raise ShapeError(f"operand 0: space {space} has places {counts}, not {found}")
        text = f"... {' '.join([*places, *inner])} -> ... {' '.join(names)}"
        extents = dict(zip(names, space, strict=True))
        return Factors.parse(text, (x.rank,), extents, " ".join([*names, *places, *inner]))

    def eval(self, x: Array, *, space: Shape, strides: Shape, dilation: Shape) -> Array:
        rank = len(space)
        places, window = x.shape[x.ndim - 2 * rank : x.ndim - rank], x.shape[x.ndim - rank :]
        out = np.zeros(x.shape[: x.ndim - 2 * rank] + space, x.dtype)
        for point, where in taps(window, places, strides, dilation):
            out[(..., *where)] += x[(..., *point)]
        return out

    def at(
        self,
        s: Any,
        index: Any,
        read: Any,
        x: TensorType,
        *,
        space: Shape,
        strides: Shape,
        dilation: Shape,
    ) -> Any:
        rank = len(space)
        places = x.shape[len(x.shape) - 2 * rank : len(x.shape) - rank]
        lead, point = index[: len(index) - rank], index[len(index) - rank :]
        zero = s.const(0, dtypes.float32 if dtypes.is_narrow(x.dtype) else x.dtype)

        def term(*window: Any) -> Any:
            inside: Any = True
            source = []
            for i, w, step, d, count in zip(point, window, strides, dilation, places, strict=True):
                place = (i - w * d) // step
                inside = s.bit_and(inside, s.equal((i - w * d) % step, 0))
                inside = s.bit_and(inside, s.bit_and(s.less(-1, place), s.less(place, count)))
                source.append(s.min(s.max(place, 0), count - 1))
            return s.select(inside, read(0, (*lead, *source, *window)), zero)

        return s.reduce("add", x.shape[len(x.shape) - rank :], term)

    def vjp(
        self, primals: Any, out: Any, ct: Any, *, space: Shape, strides: Shape, dilation: Shape
    ) -> Tangents:
        (x,) = primals
        window = x.shape[x.ndim - len(space) :]
        return (
            call(window_op, (ct,), {"window": window, "strides": strides, "dilation": dilation}),
        )


window_op, overlap_add_op = Window(), OverlapAdd()


def per_axis(op: str, what: str, value: Any, rank: int, least: int = 1) -> Shape:
    """One integer for each space axis, from a single one or a sequence."""
    listed = as_integers(op, what, value)
    if len(listed) == 1:
        listed *= rank
    if len(listed) != rank:
        raise ArgumentError(f"{op}: {what}: {len(listed)} values for {rank} axes ({shown(value)})")
    if min(listed, default=least) < least:
        raise ArgumentError(f"{op}: {what} must be at least {least}, got {shown(value)}")
    return listed


@public
def sliding_windows(
    x: Any, /, window: Any, axis: Any = None, *, stride: Any = 1, dilation: Any = 1
) -> Tensor:
    """All places of a window that slides along axes; the window's own axes come last.

    >>> sliding_windows(to_tensor([1, 2, 3, 4]), 2, 0).tolist()
    [[1, 2], [2, 3], [3, 4]]
    """
    tensor = to_tensor(x, op="sliding_windows")
    axes = normalize_axes(
        "sliding_windows", range(tensor.ndim) if axis is None else axis, tensor.ndim
    )
    rank = len(axes)
    if rank == 0:
        raise AxisError(f"sliding_windows: no axis to slide along (shape {tensor.shape})")
    params = {
        "window": per_axis("sliding_windows", "window", window, rank),
        "strides": per_axis("sliding_windows", "stride", stride, rank),
        "dilation": per_axis("sliding_windows", "dilation", dilation, rank),
    }
    made = call(window_op, (moveaxis(tensor, axes, range(-rank, 0)),), params)
    return moveaxis(made, range(-2 * rank, -rank), axes)


__all__ = [
    "sliding_windows",
]
