"""Contractions: matrix products and convolution."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.factors import Factors
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import Array, Shape, TensorType
from weft.core.tensor.convert import scalar
from weft.core.tensor.tensor import Tensor
from weft.errors import DTypeError, ShapeError
from weft.ops.base import Cost, Example, Linear, Operation, Tangents, call
from weft.ops.families import as_tensors, broadcast, broadcast_shape, cast
from weft.ops.view.join import pad_op
from weft.ops.view.slice import flip_op
from weft.ops.view.transpose import permute_op


class Matmul(Operation):
    """Matrix product over the last two axes."""

    factors = "... m k, ... k n -> ... m n"
    linear = Linear.EACH
    examples = (Example({}, ((2, 4), (4, 6))),)
    work = 2

    def eval(self, a: Array, b: Array) -> Array:
        return np.matmul(a, b)

    def body(self, s: Any, a: Any, b: Any) -> Any:
        return s.mul(a, b)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        a, b = primals
        return call(self, (ct, swap(b)), {}), call(self, (swap(a), ct), {})


def swap(x: Tensor) -> Tensor:
    """The last two axes exchanged."""
    return call(permute_op, (x,), {"axes": (-1, -2)})  # type: ignore[no-any-return]


class Conv(Operation):
    """Correlate `... c (space)` with kernels `... o c (window)`, without padding.

    Grouped convolution is this op with groups as a leading axis of both operands; padding and
    transposed convolution are `pad` (with interior) before it.
    """

    linear = Linear.EACH
    work = 2
    examples = (
        Example({"strides": (1,), "dilation": (1,)}, ((2, 6), (3, 2, 2))),
        Example({"strides": (2,), "dilation": (2,)}, ((2, 8), (3, 2, 2))),
        Example({"strides": (2, 1), "dilation": (1, 2)}, ((2, 5, 6), (3, 2, 2, 3))),
    )

    def index(
        self, x: TensorType, kernel: TensorType, *, strides: Shape, dilation: Shape
    ) -> Factors:
        rank = len(strides)
        space, window, result = ([f"{letter}{k}" for k in range(rank)] for letter in "hkr")
        text = f"... c {' '.join(space)}, ... o c {' '.join(window)} -> ... o {' '.join(result)}"
        sizes = window_counts(x.shape[-rank:], kernel.shape[-rank:], strides, dilation)
        extents = dict(zip(result, sizes, strict=True))
        whole = " ".join([*space, *window, *result])
        return Factors.parse(text, (x.rank, kernel.rank), extents, whole)

    def eval(self, x: Array, kernel: Array, *, strides: Shape, dilation: Shape) -> Array:
        rank = len(strides)
        spans = tuple((k - 1) * d + 1 for k, d in zip(kernel.shape[-rank:], dilation, strict=True))
        axes = tuple(range(-rank, 0))
        windows = np.lib.stride_tricks.sliding_window_view(x, spans, axes)
        places = tuple(slice(None, None, step) for step in strides)
        points = tuple(slice(None, None, step) for step in dilation)
        windows = windows[(..., *places, *points)]
        letters = "hijk"[:rank], "xyzw"[:rank]
        text = f"...c{letters[0]}{letters[1]},...oc{letters[1]}->...o{letters[0]}"
        return np.einsum(text, windows, kernel, optimize=True)

    def at(
        self,
        s: Any,
        index: Any,
        read: Any,
        x: TensorType,
        kernel: TensorType,
        *,
        strides: Shape,
        dilation: Shape,
    ) -> Any:
        rank = len(strides)
        *lead, o = index[: len(index) - rank]
        places = index[len(index) - rank :]

        def term(c: Any, *window: Any) -> Any:
            where = [
                p * step + w * d
                for p, step, w, d in zip(places, strides, window, dilation, strict=True)
            ]
            return s.mul(read(0, (*lead, c, *where)), read(1, (*lead, o, c, *window)))

        return s.reduce("add", kernel.shape[-rank - 1 :], term)

    def cost(self, *types: TensorType, **params: Any) -> Any:
        x, kernel = types
        made = self.infer(x, kernel, **params)
        terms = kernel.size // max(kernel.shape[-len(params["strides"]) - 2], 1)
        flops = 2 * made.size * terms  # type: ignore[union-attr]
        return Cost(flops, x.nbytes + kernel.nbytes + made.nbytes)

    def vjp(self, primals: Any, out: Any, ct: Any, *, strides: Shape, dilation: Shape) -> Tangents:
        x, kernel = primals
        return (
            self._by_input(x, kernel, ct, strides, dilation),
            self._by_kernel(x, kernel, ct, strides, dilation),
        )

    def _by_input(
        self, x: Tensor, kernel: Tensor, ct: Tensor, strides: Shape, dilation: Shape
    ) -> Tensor:
        """Correlate the spread-out cotangent with the turned kernel."""
        rank = len(strides)
        sizes = zip(x.shape[-rank:], kernel.shape[-rank:], ct.shape[-rank:], strides, dilation)
        low, high = [], []
        for size, window, count, step, d in sizes:
            span = (window - 1) * d
            low.append(span)
            high.append(size - ((count - 1) * step + 1))
        widths = {
            "low": tuple(low),
            "high": tuple(high),
            "interior": tuple(step - 1 for step in strides),
        }
        spread = call(pad_op, (ct, scalar(0, ct.dtype, ct.device)), widths)
        turned = call(flip_op, (kernel,), {"axes": tuple(range(-rank, 0))})
        turned = _swap_features(turned, rank)
        return call(self, (spread, turned), {"strides": (1,) * rank, "dilation": dilation})  # type: ignore[no-any-return]

    def _by_kernel(
        self, x: Tensor, kernel: Tensor, ct: Tensor, strides: Shape, dilation: Shape
    ) -> Tensor:
        """Correlate the input with the cotangent; batch axes the kernel lacks are contracted."""
        rank, reshape, moveaxis = len(strides), FUNCTIONS["reshape"], FUNCTIONS["moveaxis"]
        extra = (ct.ndim - rank - 1) - (kernel.ndim - rank - 2)
        x = broadcast(x, ct.shape[: ct.ndim - rank - 1] + x.shape[x.ndim - rank - 1 :])
        image, pattern = (
            moveaxis(reshape(t, (-1, *t.shape[extra:])), 0, -rank - 1) for t in (x, ct)
        )  # lead c batch (space) and lead o batch (result)
        lead = image.shape[: image.ndim - rank - 1]
        pattern = FUNCTIONS["expand_dims"](pattern, -rank - 3)
        pattern = broadcast(pattern, lead + pattern.shape[pattern.ndim - rank - 2 :])
        found = call(self, (image, pattern), {"strides": dilation, "dilation": strides})
        window = kernel.shape[-rank:]
        found = FUNCTIONS["getitem"](found, (..., *(slice(0, n) for n in window)))
        return _swap_features(found, rank)


def _swap_features(kernel: Tensor, rank: int) -> Tensor:
    """Exchange the output and input features of a kernel."""
    axes = (-rank - 1, -rank - 2, *range(-rank, 0))
    return call(permute_op, (kernel,), {"axes": axes})  # type: ignore[no-any-return]


def window_counts(space: Shape, window: Shape, strides: Shape, dilation: Shape) -> Shape:
    """How many places a window fits along each axis."""
    counts = []
    for axis, (size, width, step, d) in enumerate(
        zip(space, window, strides, dilation, strict=True)
    ):
        span = (width - 1) * d + 1
        if span > size or width == 0:
            raise ShapeError(f"space axis {axis}: a window of {span} does not fit size {size}")
        counts.append((size - span) // step + 1)
    return tuple(counts)


matmul_op, conv_op = Matmul(), Conv()


@public
def matmul(x1: Any, x2: Any, /) -> Tensor:
    """Matrix product; vectors are rows on the left and columns on the right, batches broadcast."""
    a, b = as_tensors("matmul", x1, x2)
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError(f"matmul: operands need an axis (shapes {a.shape}, {b.shape})")
    dtype = dtypes.promote(a.dtype, b.dtype, op="matmul")
    if dtypes.is_bool(dtype):
        raise DTypeError("matmul: bool is not a number\nhint: cast with x.astype(…) first")
    a, b = cast(a, dtype), cast(b, dtype)
    row, column = a.ndim == 1, b.ndim == 1
    reshape = FUNCTIONS["reshape"]
    left = reshape(a, (1, -1)) if row else a
    right = reshape(b, (-1, 1)) if column else b
    if left.shape[-1] != right.shape[-2]:
        raise ShapeError(
            f"matmul: operand 1, axis {0 if column else right.ndim - 2}: factor 'k' is"
            f" {right.shape[-2]} here but {left.shape[-1]} before (shapes {a.shape}, {b.shape})"
        )
    lead = broadcast_shape("matmul", left.shape[:-2], right.shape[:-2])
    left, right = (_fit_lead(t, lead) for t in (left, right))
    result = call(matmul_op, (left, right), {})
    if row or column:
        kept = (
            result.shape[:-2] + result.shape[-2:-1] * (not row) + result.shape[-1:] * (not column)
        )
        return reshape(result, kept)  # type: ignore[no-any-return]
    return result  # type: ignore[no-any-return]


def _fit_lead(x: Tensor, lead: Shape) -> Tensor:
    """Stretch size-1 batch axes; missing ones may stay missing."""
    mine = lead[len(lead) - (x.ndim - 2) :]
    return broadcast(x, mine + x.shape[-2:])


__all__ = [
    "matmul",
]
