"""Strided slices and flips: any start, length and step, as views with any stride."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.autograd.tape import Addend
from weft.core.common.factors import Factors
from weft.core.common.parameters import as_integer
from weft.core.common.slots import OPS, public
from weft.core.common.types import Array, Shape, TensorType
from weft.core.tensor.convert import scalar, to_tensor
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias
from weft.errors import IndexingError
from weft.ops.axes import normalize_axes, normalize_axis
from weft.ops.base import Example, Tangents, call
from weft.ops.families import LogicalShapeOperation, broadcast, broadcast_shape

LARGE, FEW = 1 << 11, 16  # elements of an operand, and times fewer of a slice: added in place


class Slice(LogicalShapeOperation):
    """Elements `starts + i·steps`, i below `lengths`, of each of the last axes."""

    view = True
    examples = (
        Example({"starts": (1,), "lengths": (2,), "steps": (1,)}, ((6,), (2,))),
        Example({"starts": (0, 4), "lengths": (2, 3), "steps": (2, -2)}, ((4, 6), (2, 3))),
    )

    def index(self, x: TensorType, *, starts: Shape, lengths: Shape, steps: Shape) -> Factors:
        core = x.shape[len(x.shape) - len(starts) :]
        left, right, extents = [], [], {}
        for k, (size, triple) in enumerate(
            zip(core, zip(starts, lengths, steps, strict=True), strict=True)
        ):
            whole_axis = triple == (0, size, 1)
            left.append(f"i{k}")
            right.append(f"i{k}" if whole_axis else f"o{k}")
            if not whole_axis:
                extents[f"o{k}"] = triple[1]
        text = f"... {' '.join(left)} -> ... {' '.join(right)}"
        cut = [n for n in left if n not in right] + list(extents)
        return Factors.parse(text, (x.rank,), extents, " ".join(cut))

    def eval(self, x: Array, *, starts: Shape, lengths: Shape, steps: Shape) -> Array:
        picks = (
            slice(start, None if end < 0 else end, step) if length else slice(0)
            for start, length, step in zip(starts, lengths, steps, strict=True)
            for end in [start + length * step]
        )
        return x[(..., *picks)]

    def at(
        self,
        s: Any,
        index: Any,
        read: Any,
        x: TensorType,
        *,
        starts: Shape,
        lengths: Shape,
        steps: Shape,
    ) -> Any:
        lead = len(index) - len(starts)
        inner = (
            start + step * i for start, step, i in zip(starts, steps, index[lead:], strict=True)
        )
        return read(0, (*index[:lead], *inner))

    def _transform_shard_kwargs(self, shard: Any, **params: Any) -> dict[str, Any]:
        local = shard.result()
        return {**params, "lengths": local[len(local) - len(params["lengths"]) :]}

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Any:
        (x,) = primals

        def onto(total: Tensor | None) -> Tensor:
            if total is None:
                return self._padded(x, ct, **params)
            if total.sharding.mesh is not None:
                return total + self._padded(x, ct, **params)
            return call(slice_update_op, (total, call(self, (total,), params) + ct), params)

        few = x.size >= LARGE and FEW * ct.size <= x.size
        return (Addend(x.shape, onto) if few else onto(None),)

    def _padded(
        self, x: Tensor, ct: Tensor, *, starts: Shape, lengths: Shape, steps: Shape
    ) -> Tensor:
        """The cotangent with zeros around it."""
        core = x.shape[x.ndim - len(starts) :]
        backward = tuple(k - len(steps) for k, step in enumerate(steps) if step < 0)
        if backward:
            ct = call(flip_op, (ct,), {"axes": backward})
        low, high, interior = [], [], []
        for size, start, length, step in zip(core, starts, lengths, steps, strict=True):
            first = start if step > 0 or not length else start + (length - 1) * step
            covered = (length - 1) * abs(step) + 1 if length else 0
            low.append(first if length else 0)
            high.append(size - low[-1] - covered)
            interior.append(abs(step) - 1)
        zero = scalar(0, ct.dtype, ct.device)
        widths = {"low": tuple(low), "high": tuple(high), "interior": tuple(interior)}
        return call(OPS["pad"], (ct, zero), widths)


class Flip(LogicalShapeOperation):
    """Reverse the order along `axes`."""

    view = True
    examples = (Example({"axes": (-1,)}), Example({"axes": (-2, -1)}))

    def index(self, x: TensorType, *, axes: tuple[int, ...]) -> Factors:
        names = [f"n{k}" for k in range(-min(axes), 0, -1)]
        turned = " ".join(f"n{-a}" for a in axes)
        text = f"... {' '.join(names)} -> ... {' '.join(names)}"
        return Factors.parse(text, (x.rank,), whole=turned)

    def eval(self, x: Array, *, axes: tuple[int, ...]) -> Array:
        return np.flip(x, axes)

    def at(self, s: Any, index: Any, read: Any, x: TensorType, *, axes: tuple[int, ...]) -> Any:
        source = list(index)
        for axis in axes:
            source[axis] = x.shape[axis] - 1 - index[axis]
        return read(0, tuple(source))

    def vjp(self, primals: Any, out: Any, ct: Any, *, axes: tuple[int, ...]) -> Tangents:
        return (call(self, (ct,), {"axes": axes}),)


class SliceUpdate(LogicalShapeOperation):
    """x with the slice `starts + i·steps` of its last axes replaced by a window."""

    examples = Slice.examples

    def index(
        self, x: TensorType, window: TensorType, *, starts: Shape, lengths: Shape, steps: Shape
    ) -> Factors:
        core = x.shape[len(x.shape) - len(starts) :]
        names, parts, extents = [], [], {}
        for k, (size, length) in enumerate(zip(core, lengths, strict=True)):
            covered = (starts[k], length, steps[k]) == (0, size, 1)
            names.append(f"i{k}")
            parts.append(f"i{k}" if covered else f"w{k}")
            if not covered:
                extents[f"w{k}"] = length
        text = f"... {' '.join(names)}, ... {' '.join(parts)} -> ... {' '.join(names)}"
        cut = [n for n in names if n not in parts] + list(extents)
        return Factors.parse(text, (x.rank, window.rank), extents, " ".join(cut))

    def eval(
        self, x: Array, window: Array, *, starts: Shape, lengths: Shape, steps: Shape
    ) -> Array:
        count = len(starts)
        lead = broadcast_shape(
            self.name, x.shape[: x.ndim - count], window.shape[: window.ndim - count]
        )
        out = np.array(np.broadcast_to(x, lead + x.shape[x.ndim - count :]), order="C", copy=True)
        slice_op.eval(out, starts=starts, lengths=lengths, steps=steps)[...] = window
        return out

    def at(
        self,
        s: Any,
        index: Any,
        read: Any,
        x: TensorType,
        window: TensorType,
        *,
        starts: Shape,
        lengths: Shape,
        steps: Shape,
    ) -> Any:
        lead = len(index) - len(starts)
        if 0 in lengths:
            return read(0, index)
        inside: Any = True
        source = []
        for i, start, length, step in zip(index[lead:], starts, lengths, steps, strict=True):
            place = (i - start) // step
            inside = s.bit_and(inside, s.equal((i - start) % step, 0))
            inside = s.bit_and(inside, s.bit_and(s.less(-1, place), s.less(place, length)))
            source.append(s.min(s.max(place, 0), length - 1))
        return s.select(inside, read(1, (*index[:lead], *source)), read(0, index))

    def _transform_shard_kwargs(self, shard: Any, **params: Any) -> dict[str, Any]:
        local = shard.operand(1)
        return {**params, "lengths": local[len(local) - len(params["lengths"]) :]}

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        hole = broadcast(scalar(0, ct.dtype, ct.device), params["lengths"])
        return call(self, (ct, hole), params), call(slice_op, (ct,), params)


slice_op, flip_op, slice_update_op = Slice(), Flip(), SliceUpdate()


def slice_axes(x: Tensor, starts: Shape, lengths: Shape, steps: Shape) -> Tensor:
    """Slice the last axes; axes that are taken whole at the front are left to batch."""
    skip = x.ndim - len(starts)
    first = 0
    while first < len(starts) and (starts[first], lengths[first], steps[first]) == (
        0,
        x.shape[skip + first],
        1,
    ):
        first += 1
    if first == len(starts):
        return x
    params = {"starts": starts[first:], "lengths": lengths[first:], "steps": steps[first:]}
    return call(slice_op, (x,), params)


@public
def narrow(x: Any, /, axis: int, start: int, length: int) -> Tensor:
    """`length` elements of one axis from `start` on, as a view."""
    tensor = to_tensor(x, op="narrow")
    i = normalize_axis("narrow", axis, tensor.ndim)
    size = tensor.shape[i]
    start, length = as_integer("narrow", "start", start), as_integer("narrow", "length", length)
    first = start + size if start < 0 else start
    if not (0 <= first <= size and 0 <= length <= size - first):
        raise IndexingError(
            f"narrow: axis {i}: {length} elements from {start} exceed its size {size}"
        )
    rest = tensor.shape[i + 1 :]
    zeros, ones = (0,) * len(rest), (1,) * len(rest)
    part = slice_axes(tensor, (first, *zeros), (length, *rest), (1, *ones))
    return alias(tensor) if part is tensor else part


@public
def flip(x: Any, /, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """Reverse the order along the given axes, or along all."""
    tensor = to_tensor(x, op="flip")
    chosen = range(tensor.ndim) if axis is None else normalize_axes("flip", axis, tensor.ndim)
    axes = tuple(sorted(i - tensor.ndim for i in chosen))
    return call(flip_op, (tensor,), {"axes": axes}) if axes else alias(tensor)


__all__ = [
    "flip",
    "narrow",
]
