"""Convolution: one primitive, correlation; everything else is shapes around it.

Groups are a leading axis of input and kernel. A transposed convolution spreads its input out and
correlates it with the turned kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.parameters import as_choice, as_integer
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import Shape
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, ShapeError
from weft.ops.base import call
from weft.ops.contraction import numbers
from weft.ops.nn.correlation import conv_op, spread_out, swap_features, turned
from weft.ops.often import often
from weft.ops.view.reshape import reshape
from weft.ops.view.window import per_axis


@public
def conv(
    x: Any,
    kernel: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Correlate `x` (N, C, space…) with `kernel` (O, C/groups, window…); N may be absent.

    `padding` is a number, one for each axis, (low, high) pairs, "valid", or "same": with "same" the
    result has ceil(size / stride) places along each axis.
    """
    (found,) = numbers("conv", kernel)
    return _conv("conv", x, found, bias, found.ndim - 2, stride, padding, dilation, groups)


@public
def conv1d(
    x: Any,
    kernel: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Correlate `x` (N, C, L) with `kernel` (O, C/groups, K); see `conv`."""
    return _conv("conv1d", x, kernel, bias, 1, stride, padding, dilation, groups)


@public
def conv2d(
    x: Any,
    kernel: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Correlate `x` (N, C, H, W) with `kernel` (O, C/groups, KH, KW); see `conv`."""
    return _conv("conv2d", x, kernel, bias, 2, stride, padding, dilation, groups)


@public
def conv3d(
    x: Any,
    kernel: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Correlate `x` (N, C, D, H, W) with `kernel` (O, C/groups, KD, KH, KW); see `conv`."""
    return _conv("conv3d", x, kernel, bias, 3, stride, padding, dilation, groups)


def _conv(
    op: str,
    x: Any,
    kernel: Any,
    bias: Any,
    rank: int,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> Tensor:
    image, weights, batched = _operands(op, x, kernel, rank)
    outputs, inputs = weights.shape[:2]
    groups = as_integer(op, "groups", groups, low=1)
    _check_groups(op, groups, inputs * groups, image.shape[1], outputs)
    strides, spacing = (
        per_axis(op, what, value, rank)
        for what, value in (("stride", stride), ("dilation", dilation))
    )
    low, high = padding_widths(op, padding, image.shape[2:], weights.shape[2:], strides, spacing)
    if groups > 1:
        image = reshape(image, (image.shape[0], groups, inputs, *image.shape[2:]))
        weights = reshape(weights, (groups, outputs // groups, *weights.shape[1:]))
    widths = {"strides": strides, "dilation": spacing, "low": low, "high": high}
    try:
        made = call(conv_op, (image, weights), widths)
    except ShapeError as error:
        raise ShapeError(str(error).replace("conv:", f"{op}:", 1)) from None
    if groups > 1:
        made = reshape(made, (made.shape[0], outputs, *made.shape[3:]))
    return _finish(op, made, bias, rank, batched)


def _operands(op: str, x: Any, kernel: Any, rank: int) -> tuple[Tensor, Tensor, bool]:
    """Image and kernel of one dtype; the image gets a batch axis if it has none."""
    image, weights = numbers(op, x, kernel)
    if rank < 1 or weights.ndim != rank + 2:
        raise ShapeError(
            f"{op}: operand 1: a kernel has {max(rank, 1) + 2} axes (features, features, window…),"
            f" got shape {weights.shape}"
        )
    if image.ndim not in (rank + 1, rank + 2):
        raise ShapeError(
            f"{op}: operand 0: expected (N, C, space…) or (C, space…) with {rank} space axes, got"
            f" shape {image.shape}"
        )
    batched = image.ndim == rank + 2
    return (image if batched else reshape(image, (1, *image.shape))), weights, batched


def _check_groups(op: str, groups: int, expected: int, found: int, split: int) -> None:
    if split % groups:
        raise ArgumentError(f"{op}: {split} features cannot be split into {groups} groups")
    if expected != found:
        raise ShapeError(
            f"{op}: operand 0 has {found} features, the kernel expects {expected}"
            f" (in {groups} groups)"
        )


def padding_widths(
    op: str, padding: Any, space: Shape, window: Shape, strides: Shape, dilation: Shape
) -> tuple[Shape, Shape]:
    """Padding below and above each space axis."""
    rank = len(space)
    if isinstance(padding, str):
        if padding.lower() == "valid":
            return (0,) * rank, (0,) * rank
        if padding.lower() != "same":
            raise ArgumentError(f"{op}: padding is 'same', 'valid' or widths, got {padding!r}")
        totals = [
            max((-(-n // step) - 1) * step + (k - 1) * d + 1 - n, 0)
            for n, k, step, d in zip(space, window, strides, dilation, strict=True)
        ]
        low = tuple(total // 2 for total in totals)
        return low, tuple(total - below for total, below in zip(totals, low, strict=True))
    if np.iterable(padding) and any(np.iterable(p) for p in padding):
        pairs = [per_axis(op, "padding", pair, 2, 0) for pair in padding]
        if len(pairs) != rank:
            raise ArgumentError(f"{op}: padding: {len(pairs)} pairs for {rank} axes ({padding!r})")
        return tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
    both = per_axis(op, "padding", padding, rank, 0)
    return both, both


def _finish(op: str, made: Tensor, bias: Any, rank: int, batched: bool) -> Tensor:
    """Add the bias and take the batch axis away again."""
    if bias is not None:
        (offset,) = numbers(op, to_tensor(bias, beside=(made,), op=op))
        features = made.shape[1]
        if offset.shape != (features,):
            raise ShapeError(f"{op}: bias: expected shape ({features},), got {offset.shape}")
        made = made + reshape(offset, (features, *(1,) * rank))
    return made if batched else reshape(made, made.shape[1:])


@public
def conv_transpose1d(
    x: Any,
    kernel: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """The transpose of `conv1d`: `x` (N, C, L) and `kernel` (C, O/groups, K)."""
    return _conv_transpose(
        "conv_transpose1d", (x, kernel, bias), 1, stride, padding, output_padding, dilation, groups
    )


@public
def conv_transpose2d(
    x: Any,
    kernel: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """The transpose of `conv2d`: `x` (N, C, H, W) and `kernel` (C, O/groups, KH, KW)."""
    return _conv_transpose(
        "conv_transpose2d", (x, kernel, bias), 2, stride, padding, output_padding, dilation, groups
    )


@public
def conv_transpose3d(
    x: Any,
    kernel: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """The transpose of `conv3d`: `x` (N, C, D, H, W) and `kernel` (C, O/groups, KD, KH, KW)."""
    return _conv_transpose(
        "conv_transpose3d", (x, kernel, bias), 3, stride, padding, output_padding, dilation, groups
    )


def _conv_transpose(
    op: str,
    operands: tuple[Any, Any, Any],
    rank: int,
    stride: Any,
    padding: Any,
    output_padding: Any,
    dilation: Any,
    groups: int,
) -> Tensor:
    x, kernel, bias = operands
    image, weights, batched = _operands(op, x, kernel, rank)
    inputs, outputs = weights.shape[:2]
    groups = as_integer(op, "groups", groups, low=1)
    _check_groups(op, groups, inputs, image.shape[1], inputs)
    strides = per_axis(op, "stride", stride, rank)
    spacing = per_axis(op, "dilation", dilation, rank)
    crop = per_axis(op, "padding", padding, rank, 0)
    beyond = per_axis(op, "output_padding", output_padding, rank, 0)
    if any(extra >= max(pair) for extra, *pair in zip(beyond, strides, spacing, strict=True)):
        raise ArgumentError(
            f"{op}: output_padding {beyond} must be smaller than stride {strides} or dilation"
            f" {spacing}"
        )
    spans = tuple((k - 1) * d for k, d in zip(weights.shape[2:], spacing, strict=True))
    low = tuple(span - p for span, p in zip(spans, crop, strict=True))
    high = tuple(below + extra for below, extra in zip(low, beyond, strict=True))
    _check_room(op, image.shape[2:], strides, spans, low, high)
    weights = reshape(weights, (groups, inputs // groups, *weights.shape[1:]))
    weights = swap_features(turned(weights, rank), rank)
    image = reshape(image, (image.shape[0], groups, inputs // groups, *image.shape[2:]))
    made = spread_out(image, weights, strides, spacing, low, high)
    made = reshape(made, (made.shape[0], groups * outputs, *made.shape[3:]))
    return _finish(op, made, bias, rank, batched)


def _check_room(
    op: str, space: Shape, strides: Shape, spans: Shape, low: Shape, high: Shape
) -> None:
    """Refuse padding that crops a transposed convolution away."""
    sizes = tuple(
        (n - 1) * step + 1 + below + above - span
        for n, step, span, below, above in zip(space, strides, spans, low, high, strict=True)
    )
    if min(sizes) < 1:
        raise ShapeError(f"{op}: padding leaves nothing of the space {space} (sizes {sizes})")


@public
@often
def convolve(x1: Any, x2: Any, /, mode: str = "full") -> Tensor:
    """Discrete convolution of two vectors; `mode` is "full", "same" or "valid" as in NumPy."""
    a, b = _vectors("convolve", x1, x2, mode)
    if b.size > a.size:
        a, b = b, a
    return _correlated(a, turned(b, 1), mode)


@public
@often
def correlate(x1: Any, x2: Any, /, mode: str = "valid") -> Tensor:
    """Cross-correlation of two vectors, `x2` conjugated; `mode` as in `convolve`."""
    a, b = _vectors("correlate", x1, x2, mode)
    if dtypes.is_complex(b.dtype):
        b = FUNCTIONS["conj"](b)
    if b.size > a.size:
        return turned(_correlated(b, a, mode), 1)
    return _correlated(a, b, mode)


def _vectors(op: str, x1: Any, x2: Any, mode: str) -> tuple[Tensor, Tensor]:
    a, b = numbers(op, x1, x2)
    for operand, x in enumerate((a, b)):
        if x.ndim > 1 or x.size == 0:
            raise ShapeError(f"{op}: operand {operand}: expected a non-empty vector, got {x.shape}")
    as_choice(op, "mode", mode, ("full", "same", "valid"))
    return reshape(a, (a.size,)), reshape(b, (b.size,))


def _correlated(long: Tensor, short: Tensor, mode: str) -> Tensor:
    reach = short.size - 1
    before = {"full": reach, "same": short.size // 2, "valid": 0}[mode]
    after = {"full": reach, "same": reach - before, "valid": 0}[mode]
    image, kernel = reshape(long, (1, -1)), reshape(short, (1, 1, short.size))
    widths = {"strides": (1,), "dilation": (1,), "low": (before,), "high": (after,)}
    made: Tensor = call(conv_op, (image, kernel), widths)
    return reshape(made, (made.shape[-1],))


__all__ = [
    "conv",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convolve",
    "correlate",
]
