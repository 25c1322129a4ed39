"""Repeat elements without copying them: `broadcast_to` gives stride 0."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.common.factors import Factors
from weft.core.common.parameters import check_elements
from weft.core.common.slots import OPS, public
from weft.core.common.types import Array, Shape, TensorType
from weft.core.tensor.convert import to_tensor, to_tensors
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias
from weft.errors import ShapeError
from weft.ops.base import Example, Tangents, call
from weft.ops.families import LogicalShapeOperation, broadcast, broadcast_shape
from weft.ops.view.reshape import sizes_of, trailing


class BroadcastTo(LogicalShapeOperation):
    """Stretch the last `rank` axes to `shape`: size-1 and missing axes repeat."""

    view = True
    examples = (
        Example({"rank": 2, "shape": (2, 3, 4)}, ((3, 1),)),
        Example({"rank": 0, "shape": (2, 3)}, ((),)),
    )

    def index(self, x: TensorType, *, rank: int, shape: Shape) -> Factors:
        core = x.shape[len(x.shape) - rank :]
        new = len(shape) - rank
        sizes = zip(core, shape[max(new, 0) :], strict=False)
        if new < 0 or any(size not in (1, full) for size, full in sizes):
            raise ShapeError(f"cannot stretch shape {core} to {shape}")
        extents = {f"r{k}": size for k, size in enumerate(shape) if _repeats(k - new, core, size)}
        right = [f"r{k}" if f"r{k}" in extents else f"i{k}" for k in range(len(shape))]
        left = [n if n[0] == "i" else f"o{k}" for k, n in enumerate(right)][new:]
        ones = {n: 1 for n in left if n[0] == "o"}
        text = f"... {' '.join(left)} -> ... {' '.join(right)}"
        return Factors.parse(text, (x.rank,), extents | ones)

    def eval(self, x: Array, *, rank: int, shape: Shape) -> Array:
        lead = x.shape[: x.ndim - rank]
        padded = lead + (1,) * (len(shape) - rank) + x.shape[x.ndim - rank :]
        return np.broadcast_to(x.reshape(padded), lead + shape)

    def at(self, s: Any, index: Any, read: Any, x: TensorType, *, rank: int, shape: Shape) -> Any:
        core = x.shape[len(x.shape) - rank :]
        lead = tuple(index[: len(index) - len(shape)])
        inner = tuple(index[len(index) - rank :]) if rank else ()
        return read(0, lead + tuple(0 if n == 1 else i for n, i in zip(core, inner, strict=True)))

    def _transform_shard_kwargs(self, shard: Any, **params: Any) -> dict[str, Any]:
        return {**params, "shape": trailing(shard.result(), len(params["shape"]))}

    def vjp(self, primals: Any, out: Any, ct: Any, *, rank: int, shape: Shape) -> Tangents:
        (x,) = primals
        core = x.shape[x.ndim - rank :]
        new = len(shape) - rank
        axes = tuple(
            k - len(shape) for k, size in enumerate(shape) if _repeats(k - new, core, size)
        )
        if not axes:
            return (ct,)
        summed = call(OPS["reduce_sum"], (ct,), {"axes": axes})
        return (call(OPS["reshape"], (summed,), {"rank": len(shape) - len(axes), "shape": core}),)


def _repeats(axis: int, core: Shape, size: int) -> bool:
    return axis < 0 or (core[axis] == 1 and size != 1)


broadcast_op = BroadcastTo()


@public
def broadcast_to(x: Any, /, shape: Any) -> Tensor:
    """`x` stretched to `shape` by NumPy's rules, as a view."""
    tensor = to_tensor(x, op="broadcast_to")
    sizes = sizes_of("broadcast_to", shape)
    if len(sizes) < tensor.ndim:
        raise ShapeError(f"broadcast_to: shape {tensor.shape} has more axes than {sizes}")
    sizes = tuple(
        tensor.shape[k - len(sizes)] if size == -1 and k >= len(sizes) - tensor.ndim else size
        for k, size in enumerate(sizes)
    )
    if min(sizes, default=0) < 0:
        raise ShapeError(f"broadcast_to: a size is negative ({sizes})")
    check_elements("broadcast_to", sizes)
    new = len(sizes) - tensor.ndim
    for axis, (size, full) in enumerate(zip(tensor.shape, sizes[new:], strict=True)):
        if size not in (1, full):
            raise ShapeError(
                f"broadcast_to: axis {axis}: size {size} cannot be stretched to {full}"
                f" (shape {tensor.shape} to {sizes})"
            )
    return alias(tensor) if sizes == tensor.shape else broadcast(tensor, sizes)


@public
def broadcast_arrays(*arrays: Any) -> tuple[Tensor, ...]:
    """All arrays stretched to their common shape."""
    tensors = to_tensors("broadcast_arrays", *arrays)
    full = broadcast_shape("broadcast_arrays", *(t.shape for t in tensors)) if tensors else ()
    return tuple(broadcast_to(t, full) for t in tensors)


@public
def broadcast_shapes(*shapes: Any) -> Shape:
    """The shape that arrays of these shapes broadcast to."""
    found = [sizes_of("broadcast_shapes", shape) for shape in shapes]
    return broadcast_shape("broadcast_shapes", *found) if found else ()


__all__ = [
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
]
