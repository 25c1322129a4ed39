"""Matrix products and what is spelled with them: `tensordot`, `vecdot`, `dot`, `inner`, `outer`…

There is one primitive, `Matmul`. Narrow floats accumulate in float32 and integers wrap, since every
function here reaches that primitive instead of multiplying and summing on its own.
"""

from __future__ import annotations

import sys
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.handler import current
from weft.core.common.parameters import as_integer, as_sequence, is_sequence
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import Array, DType, Shape, TensorType
from weft.core.tensor.impl import TensorImpl
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ops.axes import normalize_axes, normalize_axis
from weft.ops.base import Example, Linear, Operation, Tangents, call
from weft.ops.families import as_tensors, broadcast, broadcast_shape, cast
from weft.ops.often import often
from weft.ops.ready import Pairs, Ready
from weft.ops.view.reshape import reshape
from weft.ops.view.transpose import moveaxis, permute_dims, permute_op
from weft.runtime.cpu.client import kernel_of


class Matmul(Pairs, Operation):
    """Matrix product over the last two axes."""

    factors = "... m k, ... k n -> ... m n"
    linear = Linear.EACH
    examples = (Example({}, ((2, 4), (4, 6))),)
    work = 2
    kernel_from = 1 << 14  # NumPy has plain loops for integers

    def eval(self, a: Array, b: Array) -> Array:
        lead = broadcast_shape(self.name, a.shape[:-2], b.shape[:-2])
        out = np.empty(lead + (a.shape[-2], b.shape[-1]), np.result_type(a, b))
        self.write(out, a, b)
        return out

    def write(self, out: Array, a: Array, b: Array) -> None:
        if a.shape[-1] == 1 == b.shape[-2]:
            np.multiply(a, b, out=out)  # an outer product, batched or not
        elif b.ndim == 2 < a.ndim and a.flags.c_contiguous and a.size and b.size:
            rows = out.reshape(-1, out.shape[-1])  # one product instead of one per batch
            np.matmul(a.reshape(-1, a.shape[-1]), b, out=rows)
        else:
            np.matmul(a, b, out=out)

    def body(self, s: Any, a: Any, b: Any) -> Any:
        return s.mul(a, b)

    def is_exact(self, *found: DType, **params: Any) -> bool:
        return dtypes.is_integer(found[0])

    def look(self, shapes: tuple[Shape, ...], dtype: DType) -> Ready:
        """Also of vectors, which are rows on the left and columns on the right."""
        a, b = shapes
        never = (None, TensorType(a, dtype), sys.maxsize)
        if dtype.char not in "fd" or not (0 < len(a) <= 2 and 0 < len(b) <= 2) or a[-1] != b[0]:
            return never
        left, right = (a if len(a) == 2 else (1, *a)), (b if len(b) == 2 else (*b, 1))
        whole = (left[0], right[1])
        operands = TensorType(left, dtype), TensorType(right, dtype)
        kernel = kernel_of(self, operands, {}, (TensorType(whole, dtype),))
        if kernel is None:
            return never
        kind = TensorType(a[:-1] + b[1:], dtype)
        size = max(operands[0].size, operands[1].size, kind.size)
        if kind.shape == whole:
            return kernel, kind, size

        def product(x: Array, y: Array) -> Array | None:
            made = kernel(x.reshape(left), y.reshape(right))
            return None if made is None else made.reshape(kind.shape)

        return product, kind, size

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        a, b = primals
        left, right = ct.ndim - a.ndim, ct.ndim - b.ndim
        # Batch axes that only the other operand has are contracted together with n or m.
        by_a = call(self, (fold(ct, left, -1), swap(fold(b, left - right, -1))), {})
        by_b = call(self, (swap(fold(a, right - left, -2)), fold(ct, right, -2)), {})
        return by_a, by_b


def fold(x: Tensor, extra: int, axis: int) -> Tensor:
    """Merge the first `extra` axes into `axis`, outermost first."""
    if extra <= 0:
        return x
    moved = moveaxis(x, range(extra), range(axis - extra, axis))
    at = moved.ndim + axis
    merged = prod(moved.shape[at - extra : at + 1])
    return reshape(moved, (*moved.shape[: at - extra], merged, *moved.shape[at + 1 :]))


def swap(x: Tensor) -> Tensor:
    """The last two axes exchanged."""
    return call(permute_op, (x,), {"axes": (-1, -2)})


matmul_op = Matmul()


_dtype_of = attrgetter("_impl.dtype")


def numbers(op: str, *args: Any) -> tuple[Tensor, ...]:
    """Operands of a product as tensors of one numeric dtype."""
    tensors = as_tensors(op, *args)
    if len({*map(_dtype_of, tensors)}) == 1 and tensors[0].dtype.kind != "b":
        return tensors
    dtype = dtypes.promote_all(*(t.dtype for t in tensors), op=op)
    if dtypes.is_bool(dtype):
        raise DTypeError(f"{op}: bool is not a number\nhint: cast with x.astype(…) first")
    return tuple(cast(t, dtype) for t in tensors)


def product_of(op: str, left: Tensor, right: Tensor) -> Tensor:
    """The matrix product of tensors with at least two axes whose k agree; batches broadcast."""
    lead = broadcast_shape(op, left.shape[:-2], right.shape[:-2])
    left, right = (_fit_lead(t, lead) for t in (left, right))
    return call(matmul_op, (left, right), {})


def _fit_lead(x: Tensor, lead: Shape) -> Tensor:
    """Stretch size-1 batch axes; missing ones may stay missing."""
    mine = lead[len(lead) - (x.ndim - 2) :]
    return broadcast(x, mine + x.shape[-2:])


def _are_plain(a: TensorImpl, b: TensorImpl) -> bool:
    """Whether these are matrices of one numeric dtype that fit, as they usually are."""
    same = a.dtype is b.dtype and a.dtype.kind != "b" and len(a.shape) == 2 == len(b.shape)
    return same and a.shape[1] == b.shape[0]


@public
def matmul(x1: Any, x2: Any, /) -> Tensor:
    """Matrix product; vectors are rows on the left and columns on the right, batches broadcast."""
    if type(x1) is Tensor and type(x2) is Tensor:
        found = matmul_op.directly(x1, x2) if current() is None else None
        if found is not None:
            return found
        if _are_plain(x1._impl, x2._impl):
            return call(matmul_op, (x1, x2), {})
    a, b = numbers("matmul", x1, x2)
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError(f"matmul: operands need an axis (shapes {a.shape}, {b.shape})")
    row, column = a.ndim == 1, b.ndim == 1
    left = reshape(a, (1, a.shape[0])) if row else a
    right = reshape(b, (b.shape[0], 1)) if column else b
    if left.shape[-1] != right.shape[-2]:
        raise ShapeError(
            f"matmul: operand 1, axis {0 if column else right.ndim - 2}: factor 'k' is"
            f" {right.shape[-2]} here but {left.shape[-1]} before (shapes {a.shape}, {b.shape})"
        )
    result = product_of("matmul", left, right)
    if not row and not column:
        return result
    sizes = result.shape
    return reshape(result, sizes[:-2] + sizes[-2:-1] * (not row) + sizes[-1:] * (not column))


@public
@often
def tensordot(x1: Any, x2: Any, /, axes: Any = 2) -> Tensor:
    """Contract axes: the last `axes` of `x1` with the first of `x2`, or two listed sequences."""
    a, b = numbers("tensordot", x1, x2)
    left, right = _contracted_axes(a, b, axes)
    for i, j in zip(left, right, strict=True):
        if a.shape[i] != b.shape[j]:
            raise ShapeError(
                f"tensordot: operand 1, axis {j}: size {b.shape[j]} here but {a.shape[i]} on axis"
                f" {i} of operand 0 (shapes {a.shape}, {b.shape})"
            )
    rows = [i for i in range(a.ndim) if i not in left]
    columns = [j for j in range(b.ndim) if j not in right]
    kept_a, kept_b = tuple(a.shape[i] for i in rows), tuple(b.shape[j] for j in columns)
    inner = prod(a.shape[i] for i in left)
    m = reshape(permute_dims(a, [*rows, *left]), (prod(kept_a), inner))
    n = reshape(permute_dims(b, [*right, *columns]), (inner, prod(kept_b)))
    return reshape(call(matmul_op, (m, n), {}), kept_a + kept_b)


def _contracted_axes(a: Tensor, b: Tensor, axes: Any) -> tuple[Shape, Shape]:
    if not is_sequence(axes):
        count = as_integer("tensordot", "axes", axes)
        if not 0 <= count <= min(a.ndim, b.ndim):
            raise ShapeError(
                f"tensordot: cannot contract {count} axes (shapes {a.shape}, {b.shape})"
            )
        return tuple(range(a.ndim - count, a.ndim)), tuple(range(count))
    pair = as_sequence("tensordot", "axes", axes)
    if len(pair) != 2:
        raise ArgumentError(f"tensordot: axes must be a number or a pair, got {axes!r}")
    left, right = (
        normalize_axes("tensordot", listed, t.ndim) for listed, t in zip(pair, (a, b), strict=True)
    )
    if len(left) != len(right):
        raise ArgumentError(f"tensordot: {len(left)} axes of operand 0, {len(right)} of operand 1")
    return left, right


@public
def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Tensor:
    """Sum of conj(x1) · x2 along one axis; the other axes broadcast."""
    a, b = numbers("vecdot", x1, x2)
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError(f"vecdot: operands need an axis (shapes {a.shape}, {b.shape})")
    axis = as_integer("vecdot", "axis", axis)
    if axis >= 0:
        rank = max(a.ndim, b.ndim)
        axis = normalize_axis("vecdot", axis, rank) - rank
    i, j = (normalize_axis("vecdot", axis, t.ndim) for t in (a, b))
    _same_size("vecdot", a, i, b, j)
    if a.ndim == 1 == b.ndim:
        return matmul(_conjugate(a), b)
    left = moveaxis(_conjugate(a), i, -1)
    right = moveaxis(b, j, -1)
    result = product_of(
        "vecdot",
        reshape(left, (*left.shape[:-1], 1, left.shape[-1])),
        reshape(right, (*right.shape, 1)),
    )
    return reshape(result, result.shape[:-2])


def _same_size(op: str, a: Tensor, i: int, b: Tensor, j: int) -> None:
    if a.shape[i] != b.shape[j]:
        raise ShapeError(
            f"{op}: operand 1, axis {j}: size {b.shape[j]} here but {a.shape[i]} before"
            f" (shapes {a.shape}, {b.shape})"
        )


def _conjugate(x: Tensor) -> Tensor:
    return FUNCTIONS["conj"](x) if dtypes.is_complex(x.dtype) else x


@public
def dot(x1: Any, x2: Any, /) -> Tensor:
    """NumPy's dot: the last axis of `x1` with the last but one (or only) axis of `x2`."""
    a, b = numbers("dot", x1, x2)
    if a.ndim == 0 or b.ndim == 0:
        return a * b
    j = max(b.ndim - 2, 0)
    _same_size("dot", a, a.ndim - 1, b, j)
    if a.ndim <= 2 and b.ndim <= 2:
        return matmul(a, b)
    return tensordot(a, b, axes=((a.ndim - 1,), (j,)))


@public
@often
def inner(x1: Any, x2: Any, /) -> Tensor:
    """Sum of products over the last axes of both; all other axes are kept."""
    a, b = numbers("inner", x1, x2)
    if a.ndim == 0 or b.ndim == 0:
        return a * b
    _same_size("inner", a, a.ndim - 1, b, b.ndim - 1)
    return tensordot(a, b, axes=((-1,), (-1,)))


@public
@often
def outer(x1: Any, x2: Any, /) -> Tensor:
    """Every product of an element of `x1` with one of `x2`; operands are flattened."""
    a, b = numbers("outer", x1, x2)
    return reshape(a, (a.size, 1)) * reshape(b, (b.size,))


@public
@often
def vdot(x1: Any, x2: Any, /) -> Tensor:
    """Sum of conj(x1) · x2 over all elements of the flattened operands."""
    a, b = numbers("vdot", x1, x2)
    if a.size != b.size:
        raise ShapeError(f"vdot: {a.size} elements and {b.size} (shapes {a.shape}, {b.shape})")
    return vecdot(reshape(a, (a.size,)), reshape(b, (b.size,)))


@public
def matvec(x1: Any, x2: Any, /) -> Tensor:
    """Matrices `... m n` times vectors `... n`; batches broadcast."""
    a, b = numbers("matvec", x1, x2)
    if a.ndim < 2 or b.ndim < 1:
        raise ShapeError(f"matvec: needs a matrix and a vector (shapes {a.shape}, {b.shape})")
    _same_size("matvec", a, a.ndim - 1, b, b.ndim - 1)
    result = product_of("matvec", a, reshape(b, (*b.shape, 1)))
    return reshape(result, result.shape[:-1])


@public
def vecmat(x1: Any, x2: Any, /) -> Tensor:
    """Vectors `... m`, conjugated, times matrices `... m n`; batches broadcast."""
    a, b = numbers("vecmat", x1, x2)
    if a.ndim < 1 or b.ndim < 2:
        raise ShapeError(f"vecmat: needs a vector and a matrix (shapes {a.shape}, {b.shape})")
    _same_size("vecmat", a, a.ndim - 1, b, b.ndim - 2)
    row = _conjugate(a)
    result = product_of("vecmat", reshape(row, (*row.shape[:-1], 1, row.shape[-1])), b)
    return reshape(result, (*result.shape[:-2], result.shape[-1]))


__all__ = [
    "dot",
    "inner",
    "matmul",
    "matvec",
    "outer",
    "tensordot",
    "vdot",
    "vecdot",
    "vecmat",
]
