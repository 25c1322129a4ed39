"""Convolution: one primitive, valid correlation; everything else is padding and shapes around it.

Groups are a leading axis of input and kernel. A transposed convolution spreads its input out
(interior padding) and correlates it with the turned kernel.
"""

from __future__ import annotations

from itertools import product
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from weft.core.common import dtypes
from weft.core.common.factors import Factors
from weft.core.common.parameters import as_choice, as_integer
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import Array, DType, Shape, TensorType
from weft.core.tensor.convert import scalar
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, ShapeError
from weft.ops.base import Cost, Example, Linear, Operation, Tangents, call
from weft.ops.contraction import numbers
from weft.ops.families import broadcast
from weft.ops.view.join import pad_op
from weft.ops.view.reshape import reshape
from weft.ops.view.slice import flip_op, slice_axes
from weft.ops.view.transpose import moveaxis, permute_op
from weft.ops.view.window import per_axis, taps, window_counts

_MOST_PHASES = 8  # of a convolution whose input is spread out
_FEW_PLACES = 256  # below this many results a batch is joined into one matrix product


class Conv(Operation):
    """Correlate `... c (space)`, padded with zeros, with kernels `... o c (window)`.

    `low` and `high` are zeros before and after each axis; negative ones crop. Grouped convolution
    is this op with groups as a leading axis of both operands.
    """

    linear = Linear.EACH
    work = 2
    examples = (
        Example(
            {"strides": (1,), "dilation": (1,), "low": (0,), "high": (0,)}, ((2, 6), (3, 2, 2))
        ),
        Example(
            {"strides": (2,), "dilation": (2,), "low": (1,), "high": (2,)}, ((2, 8), (3, 2, 2))
        ),
        Example(
            {"strides": (2, 1), "dilation": (1, 2), "low": (-1, 2), "high": (2, -1)},
            ((2, 5, 6), (3, 2, 2, 3)),
        ),
    )

    def index(
        self,
        x: TensorType,
        kernel: TensorType,
        *,
        strides: Shape,
        dilation: Shape,
        low: Shape,
        high: Shape,
    ) -> Factors:
        rank = len(strides)
        space, window, result = ([f"{letter}{k}" for k in range(rank)] for letter in "hkr")
        text = f"... c {' '.join(space)}, ... o c {' '.join(window)} -> ... o {' '.join(result)}"
        sizes = tuple(
            max(n + below + above, 0)
            for n, below, above in zip(x.shape[-rank:], low, high, strict=True)
        )
        places = window_counts(sizes, kernel.shape[-rank:], strides, dilation)
        extents = dict(zip(result, places, strict=True))
        whole = " ".join([*space, *window, *result])
        return Factors.parse(text, (x.rank, kernel.rank), extents, whole)

    def eval(
        self,
        x: Array,
        kernel: Array,
        *,
        strides: Shape,
        dilation: Shape,
        low: Shape,
        high: Shape,
    ) -> Array:
        rank = len(strides)
        window = kernel.shape[-rank:]
        if any((*low, *high)):
            widths = {"low": low, "high": high, "interior": (0,) * rank}
            x = pad_op.eval(x, np.zeros((), x.dtype), **widths)
        places = window_counts(x.shape[-rank:], window, strides, dilation)
        lead, lead_kernel = x.shape[: -rank - 1], kernel.shape[: -rank - 2]
        features, points = kernel.shape[-rank - 2], prod(kernel.shape[-rank - 1 :])
        flat = kernel.reshape((*lead_kernel, features, points))
        joined = bool(lead) and not lead_kernel and prod(places) < _FEW_PLACES
        columns = _columns(x, window, places, strides, dilation, joined)
        made = np.matmul(flat, columns)
        if joined:
            return np.moveaxis(made.reshape((features, *lead, *places)), 0, len(lead))
        return np.asarray(made.reshape(made.shape[:-1] + places))

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
        low: Shape,
        high: Shape,
    ) -> Any:
        rank = len(strides)
        *lead, o = index[: len(index) - rank]
        places = index[len(index) - rank :]
        sizes = x.shape[len(x.shape) - rank :]

        def term(c: Any, *window: Any) -> Any:
            steps = zip(places, strides, window, dilation, low, strict=True)
            where = [p * step + w * d - below for p, step, w, d, below in steps]
            element = self.element(s, where, sizes, x.dtype, lambda at: read(0, (*lead, c, *at)))
            return s.mul(element, read(1, (*lead, o, c, *window)))

        return s.reduce("add", kernel.shape[-rank - 1 :], term)

    @staticmethod
    def element(s: Any, where: Any, sizes: Shape, dtype: DType, read: Any) -> Any:
        """The image at a position; zero outside it."""
        zero = s.const(0, dtypes.float32 if dtypes.is_narrow(dtype) else dtype)
        if 0 in sizes:
            return zero
        inside: Any = True
        source = []
        for i, size in zip(where, sizes, strict=True):
            inside = s.bit_and(inside, s.bit_and(s.less(-1, i), s.less(i, size)))
            source.append(s.min(s.max(i, 0), size - 1))
        return s.select(inside, read(source), zero)

    def is_exact(self, *found: DType, **params: Any) -> bool:
        return not dtypes.is_floating(found[0])

    def cost(self, *types: TensorType, **params: Any) -> Any:
        x, kernel = types
        made = self.infer(x, kernel, **params)
        assert isinstance(made, TensorType)
        terms = kernel.size // max(kernel.shape[-len(params["strides"]) - 2], 1)
        return Cost(2 * made.size * terms, x.nbytes + kernel.nbytes + made.nbytes)

    def vjp(
        self,
        primals: Any,
        out: Any,
        ct: Any,
        *,
        strides: Shape,
        dilation: Shape,
        low: Shape,
        high: Shape,
    ) -> Tangents:
        x, kernel = primals
        return (
            self._by_input(x, kernel, ct, strides, dilation, low),
            self._by_kernel(x, kernel, ct, strides, dilation, low),
        )

    def _by_input(
        self, x: Tensor, kernel: Tensor, ct: Tensor, strides: Shape, dilation: Shape, low: Shape
    ) -> Tensor:
        """Correlate the spread-out cotangent with the turned kernel."""
        rank = len(strides)
        if 0 in x.shape[-rank:]:
            nothing: Tensor = FUNCTIONS["zeros_like"](x)
            return nothing
        sizes = zip(
            x.shape[-rank:],
            kernel.shape[-rank:],
            ct.shape[-rank:],
            strides,
            dilation,
            low,
            strict=True,
        )
        before, after = [], []
        for size, window, count, step, d, below in sizes:
            before.append((window - 1) * d - below)
            after.append(size + below - ((count - 1) * step + 1))
        turned = _swap_features(_turned(kernel, rank), rank)
        return spread_out(ct, turned, strides, dilation, tuple(before), tuple(after))

    def _by_kernel(
        self, x: Tensor, kernel: Tensor, ct: Tensor, strides: Shape, dilation: Shape, low: Shape
    ) -> Tensor:
        """Correlate the input with the cotangent; batch axes the kernel lacks are contracted."""
        rank = len(strides)
        extra = (ct.ndim - rank - 1) - (kernel.ndim - rank - 2)
        x = broadcast(x, ct.shape[: ct.ndim - rank - 1] + x.shape[x.ndim - rank - 1 :])
        image, pattern = (
            moveaxis(reshape(t, (prod(t.shape[:extra]), *t.shape[extra:])), 0, -rank - 1)
            for t in (x, ct)
        )  # lead c batch (space) and lead o batch (result)
        image = moveaxis(image, -rank - 2, 0)  # c leads: a batch axis that the pattern lacks
        sizes = zip(
            x.shape[-rank:],
            kernel.shape[-rank:],
            ct.shape[-rank:],
            strides,
            dilation,
            low,
            strict=True,
        )
        high = tuple(
            (window - 1) * d + (count - 1) * step + 1 - size - below
            for size, window, count, step, d, below in sizes
        )  # as many places as the kernel has points
        widths = {"strides": dilation, "dilation": strides, "low": low, "high": high}
        return moveaxis(call(self, (image, pattern), widths), 0, -rank - 1)


def _columns(
    x: Array, window: Shape, places: Shape, strides: Shape, dilation: Shape, joined: bool
) -> Array:
    """One row for each point of a kernel (c, window), one column for each place (or all joined).

    Whatever there is less of, points or places, is looped over; the rest are long copies.
    """
    rank = len(window)
    lead, c = x.shape[: -rank - 1], x.shape[-rank - 1]
    points, count = c * prod(window), prod(places)
    if count < prod(window):
        turned = np.empty((*lead, *places, c, *window), x.dtype)
        filled = np.moveaxis(turned, -rank - 1, len(lead))
        for place, where in taps(places, window, dilation, strides):
            filled[(*(slice(None),) * (len(lead) + 1), *place)] = x[(..., *where)]
        rows = (prod(lead) * count,) if joined else (*lead, count)
        return turned.reshape((*rows, points)).swapaxes(-1, -2)
    shape = (c, *window, *lead, *places) if joined else (*lead, c, *window, *places)
    columns = np.empty(shape, x.dtype)
    inner = range(len(lead), len(lead) + rank + 1)
    filled = np.moveaxis(columns, range(rank + 1), inner) if joined else columns
    for point, where in taps(window, places, strides, dilation):
        filled[(*(slice(None),) * (len(lead) + 1), *point)] = x[(..., *where)]
    return columns.reshape((points, prod(lead) * count) if joined else (*lead, points, count))


def _turned(kernel: Tensor, rank: int) -> Tensor:
    """The kernel with its window reversed."""
    return call(flip_op, (kernel,), {"axes": tuple(range(-rank, 0))})


def _swap_features(kernel: Tensor, rank: int) -> Tensor:
    """Exchange the output and input features of a kernel."""
    axes = (-rank - 1, -rank - 2, *range(-rank, 0))
    return call(permute_op, (kernel,), {"axes": axes})


def padded(
    x: Tensor, low: Shape, high: Shape, interior: Shape | None = None, fill: Any = 0
) -> Tensor:
    """`x` with `fill` around (and between) the elements of its last axes."""
    gaps = (0,) * len(low) if interior is None else interior
    if not any((*low, *high, *gaps)):
        return x
    widths = {"low": low, "high": high, "interior": gaps}
    return call(pad_op, (x, scalar(fill, x.dtype, x.device)), widths)


conv_op = Conv()


def spread_out(
    x: Tensor, kernel: Tensor, steps: Shape, dilation: Shape, low: Shape, high: Shape
) -> Tensor:
    """Correlate `x`, its elements `steps` apart and zeros around and between, with a kernel.

    Places whose distance is a multiple of the steps see the same points of the kernel: each such
    phase is a convolution of `x` itself, so zeros in between are never multiplied.
    """
    rank = len(steps)
    if prod(steps) > _MOST_PHASES or any(
        gcd(n, d) > 1 for n, d in zip(steps, dilation, strict=True)
    ):
        x = padded(x, low, high, tuple(step - 1 for step in steps))
        nothing = (0,) * rank
        widths = {"strides": (1,) * rank, "dilation": dilation, "low": nothing, "high": nothing}
        return call(conv_op, (x, kernel), widths)
    if prod(steps) == 1:
        widths = {"strides": (1,) * rank, "dilation": dilation, "low": low, "high": high}
        return call(conv_op, (x, kernel), widths)
    axes = [
        _phases(*each)
        for each in zip(
            x.shape[-rank:], kernel.shape[-rank:], steps, dilation, low, high, strict=True
        )
    ]
    counts = tuple(count for _, count, _ in axes)
    parts = [
        _phase(x, kernel, phase, dilation) for phase in product(*(found for found, *_ in axes))
    ]
    lead = next(part.shape[: part.ndim - rank] for part in parts if part is not None)
    zeros = FUNCTIONS["zeros"]((*lead, *counts), dtype=x.dtype, device=x.device)
    whole = FUNCTIONS["stack"]([zeros if part is None else part for part in parts], axis=-1)
    whole = reshape(whole, (*lead, *counts, *steps))
    whole = moveaxis(whole, range(-rank, 0), range(1 - 2 * rank, 1, 2) if rank > 1 else (-1,))
    whole = reshape(whole, (*lead, *(n * step for n, step in zip(counts, steps, strict=True))))
    return slice_axes(whole, (0,) * rank, tuple(size for *_, size in axes), (1,) * rank)


def _phases(
    size: int, window: int, step: int, d: int, low: int, high: int
) -> tuple[list[_Phase], int, int]:
    """What each phase of one axis is; how many places each has, and how many all have."""
    places = low + (size - 1) * step + 1 + high - (window - 1) * d
    count = -(-places // step)
    found = []
    for r in range(step):
        first = next((w for w in range(min(step, window)) if (r + w * d - low) % step == 0), None)
        if first is None:
            found.append(_Phase(0, 0, step, 0, 0))
            continue
        points = -(-(window - first) // step)
        start = (r + first * d - low) // step  # of the first place, in elements
        end = start + count - 1 + (points - 1) * d
        found.append(_Phase(first, points, step, -start, end - (size - 1)))
    return found, count, places


class _Phase(NamedTuple):
    """Points of a kernel, `step` apart, that every place of a phase sees."""

    first: int
    points: int
    step: int
    low: int
    high: int


def _phase(x: Tensor, kernel: Tensor, phase: tuple[_Phase, ...], dilation: Shape) -> Tensor | None:
    """The places of one phase; None where no point of the kernel meets an element."""
    if any(p.points == 0 for p in phase):
        return None
    first, points, steps = (tuple(p[k] for p in phase) for k in range(3))
    widths = {
        "strides": (1,) * len(phase),
        "dilation": dilation,
        "low": tuple(p.low for p in phase),
        "high": tuple(p.high for p in phase),
    }
    return call(conv_op, (x, slice_axes(kernel, first, points, steps)), widths)


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
    low, high = _widths(op, padding, image.shape[2:], weights.shape[2:], strides, spacing)
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


def _widths(
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
        (offset,) = numbers(op, bias)
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
    weights = _swap_features(_turned(weights, rank), rank)
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
def convolve(x1: Any, x2: Any, /, mode: str = "full") -> Tensor:
    """Discrete convolution of two vectors; `mode` is "full", "same" or "valid" as in NumPy."""
    a, b = _vectors("convolve", x1, x2, mode)
    if b.size > a.size:
        a, b = b, a
    return _correlated(a, _turned(b, 1), mode)


@public
def correlate(x1: Any, x2: Any, /, mode: str = "valid") -> Tensor:
    """Cross-correlation of two vectors, `x2` conjugated; `mode` as in `convolve`."""
    a, b = _vectors("correlate", x1, x2, mode)
    if dtypes.is_complex(b.dtype):
        b = FUNCTIONS["conj"](b)
    if b.size > a.size:
        return _turned(_correlated(b, a, mode), 1)
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
