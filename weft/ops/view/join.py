"""Put elements beside others: pad and concatenate."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.factors import Factors
from weft.core.common.parameters import as_sequence, check_elements
from weft.core.common.slots import FUNCTIONS, OPS, public
from weft.core.common.types import Array, Shape, TensorType
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, ShapeError
from weft.ops.axes import normalize_axis
from weft.ops.base import Example, Tangents, call
from weft.ops.families import LogicalShapeOperation, as_tensors, broadcast_shape, cast
from weft.ops.often import often
from weft.ops.view.reshape import expand_dims, reshape
from weft.ops.view.slice import slice_axes


class Pad(LogicalShapeOperation):
    """Put `fill` below, above and between the elements of the last axes; negative widths crop."""

    examples = (
        Example({"low": (1,), "high": (2,), "interior": (0,)}, ((6,), ())),
        Example({"low": (2, -1), "high": (0, 1), "interior": (1, 0)}, ((4, 6), ())),
        Example({"low": (-3,), "high": (-2,), "interior": (1,)}, ((6,), ())),
    )

    def index(
        self, x: TensorType, fill: TensorType, *, low: Shape, high: Shape, interior: Shape
    ) -> Factors:
        core = x.shape[len(x.shape) - len(low) :]
        sizes = padded_shape(core, low, high, interior)
        check_elements(self.name, sizes)
        left, right, extents = [], [], {}
        for k, size in enumerate(sizes):
            same = (low[k], high[k], interior[k]) == (0, 0, 0)
            left.append(f"i{k}")
            right.append(f"i{k}" if same else f"o{k}")
            if not same:
                extents[f"o{k}"] = size
        text = f"... {' '.join(left)}, ... -> ... {' '.join(right)}"
        whole = " ".join([n for n in left if n not in right] + list(extents))
        return Factors.parse(text, (x.rank, fill.rank), extents, whole)

    def eval(self, x: Array, fill: Array, *, low: Shape, high: Shape, interior: Shape) -> Array:
        core = x.shape[x.ndim - len(low) :]
        lead = broadcast_shape(self.name, x.shape[: x.ndim - len(low)], fill.shape)
        sizes = padded_shape(core, low, high, interior)
        out: Array = np.empty(lead + sizes, x.dtype)
        out[...] = fill.reshape(fill.shape + (1,) * len(low))
        source: list[Any] = [...]
        target: list[Any] = [...]
        for size, full, below, gap in zip(core, sizes, low, interior, strict=True):
            step = gap + 1
            first = max(0, -(below // step))  # the first element whose place is not cropped
            count = max(0, min(size, (full - 1 - below) // step + 1) - first)
            source.append(slice(first, first + count))
            place = below + first * step
            target.append(slice(place, place + count * step, step) if count else slice(0))
        out[tuple(target)] = x[tuple(source)]
        return out

    def at(
        self,
        s: Any,
        index: Any,
        read: Any,
        x: TensorType,
        fill: TensorType,
        *,
        low: Shape,
        high: Shape,
        interior: Shape,
    ) -> Any:
        lead = len(index) - len(low)
        core = x.shape[len(x.shape) - len(low) :]
        inside: Any = True
        source = []
        for i, size, below, gap in zip(index[lead:], core, low, interior, strict=True):
            place = (i - below) // (gap + 1)
            inside = s.bit_and(inside, s.equal((i - below) % (gap + 1), 0))
            inside = s.bit_and(inside, s.bit_and(s.less(-1, place), s.less(place, size)))
            source.append(s.min(s.max(place, 0), max(size - 1, 0)))
        if 0 in core:
            return read(1, index[:lead])
        return s.select(inside, read(0, (*index[:lead], *source)), read(1, index[:lead]))

    def vjp(
        self, primals: Any, out: Any, ct: Any, *, low: Shape, high: Shape, interior: Shape
    ) -> Tangents:
        x, fill = primals
        core = x.shape[x.ndim - len(low) :]
        zero = FUNCTIONS["zeros_like"](fill)
        crop = {
            "low": tuple(-n for n in low),
            "high": tuple(-n for n in high),
            "interior": (0,) * len(low),
        }
        cropped = call(self, (ct, zero), crop)
        steps = tuple(gap + 1 for gap in interior)
        inner = slice_axes(cropped, (0,) * len(low), core, steps)
        total = OPS["reduce_sum"]
        axes = {"axes": tuple(range(-len(low), 0))}
        return inner, call(total, (ct,), axes) - call(total, (inner,), axes)


def padded_shape(core: Shape, low: Shape, high: Shape, interior: Shape) -> Shape:
    """Sizes after padding; cropping more than there is raises."""
    sizes = tuple(
        below + size + max(size - 1, 0) * gap + above
        for size, below, above, gap in zip(core, low, high, interior, strict=True)
    )
    if min(sizes, default=0) < 0:
        raise ShapeError(f"pad: widths {low}, {high} crop more than shape {core} has")
    return sizes


class Concat(LogicalShapeOperation):
    """Join operands along `axis` (negative)."""

    examples = (
        Example({"axis": -1}, ((4, 6), (4, 2), (4, 0))),
        Example({"axis": -2}, ((4, 6), (1, 6))),
    )

    def index(self, *types: TensorType, axis: int) -> Factors:
        rest = [f"r{k}" for k in range(-axis - 1)]
        terms = [" ".join(["...", f"n{i}", *rest]) for i in range(len(types))]
        text = f"{', '.join(terms)} -> {' '.join(['...', 'o', *rest])}"
        sizes = [t.shape[axis] for t in types]
        whole = " ".join(["o", *(f"n{i}" for i in range(len(types)))])
        return Factors.parse(text, [t.rank for t in types], {"o": sum(sizes)}, whole)

    def eval(self, *arrays: Array, axis: int) -> Array:
        leads = {a.shape[: a.ndim + axis] for a in arrays}
        if len(leads) == 1:
            return np.concatenate(arrays, axis)
        lead = broadcast_shape(self.name, *leads)
        full = [np.broadcast_to(a, lead + a.shape[a.ndim + axis :]) for a in arrays]
        return np.concatenate(full, axis)

    def at(self, s: Any, index: Any, read: Any, *types: TensorType, axis: int) -> Any:
        result: Any = None
        start = 0
        for operand, kind in enumerate(types):
            size = kind.shape[axis]
            if size:
                source = list(index)
                source[axis] = s.min(s.max(index[axis] - start, 0), size - 1)
                value = read(operand, tuple(source))
                here = s.less_equal(start, index[axis])
                result = value if result is None else s.select(here, value, result)
            start += size
        return read(0, index) if result is None else result  # nobody asks for what is not there

    def vjp(self, primals: Any, out: Any, ct: Any, *, axis: int) -> Tangents:
        parts, start = [], 0
        rest = ct.shape[ct.ndim + axis + 1 :]
        for x in primals:
            size = x.shape[axis]
            zeros, ones = (0,) * len(rest), (1,) * len(rest)
            parts.append(slice_axes(ct, (start, *zeros), (size, *rest), (1, *ones)))
            start += size
        return tuple(parts)


pad_op, concat_op = Pad(), Concat()


def joined_tensors(op: str, arrays: Any) -> tuple[Tensor, ...]:
    """The operands of a join as tensors of one dtype."""
    if isinstance(arrays, Tensor):
        raise ArgumentError(f"{op}: expected a sequence of tensors, got one tensor")
    tensors = as_tensors(op, *as_sequence(op, "arrays", arrays))
    if not tensors:
        raise ArgumentError(f"{op}: needs at least one tensor")
    dtype = dtypes.promote_all(*(t.dtype for t in tensors), op=op)
    return tuple(cast(t, dtype) for t in tensors)


@public
def concat(arrays: Any, /, axis: int | None = 0) -> Tensor:
    """Join tensors along an existing axis; `axis=None` joins them flattened."""
    tensors = joined_tensors("concat", arrays)
    if axis is None:
        tensors, axis = tuple(reshape(t, (-1,)) for t in tensors), 0
    rank = tensors[0].ndim
    for operand, t in enumerate(tensors):
        if t.ndim != rank:
            raise ShapeError(
                f"concat: operand {operand} has {t.ndim} axes, operand 0 has {rank}"
                f" (shapes {', '.join(str(u.shape) for u in tensors)})"
            )
    i = normalize_axis("concat", axis, rank)
    for operand, t in enumerate(tensors):
        for k, (size, first) in enumerate(zip(t.shape, tensors[0].shape, strict=True)):
            if k != i and size != first:
                raise ShapeError(
                    f"concat: operand {operand}, axis {k}: size {size} here but {first} before"
                    f" (joining along axis {i})"
                )
    return call(concat_op, tensors, {"axis": i - rank})


@public
@often
def stack(arrays: Any, /, axis: int = 0) -> Tensor:
    """Join tensors of one shape along a new axis."""
    tensors = joined_tensors("stack", arrays)
    for operand, t in enumerate(tensors):
        if t.shape != tensors[0].shape:
            raise ShapeError(
                f"stack: operand {operand} has shape {t.shape}, operand 0 {tensors[0].shape}"
            )
    i = normalize_axis("stack", axis, tensors[0].ndim + 1)
    return concat([expand_dims(t, i) for t in tensors], axis=i)


__all__ = [
    "concat",
    "stack",
]
