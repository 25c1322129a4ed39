"""The primitive of convolution: correlation of a padded image with a kernel.

Its derivatives are correlations too. An input that is spread out, with zeros between its elements,
is taken phase by phase.
"""

from __future__ import annotations

from itertools import product
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from weft.core.common import dtypes
from weft.core.common.factors import Factors
from weft.core.common.slots import FUNCTIONS
from weft.core.common.types import Array, DType, Shape, TensorType
from weft.core.tensor.convert import scalar
from weft.core.tensor.tensor import Tensor
from weft.ops.base import Cost, Example, Linear, Operation, Tangents, call
from weft.ops.families import broadcast
from weft.ops.view.join import pad_op
from weft.ops.view.reshape import reshape
from weft.ops.view.slice import flip_op, slice_axes
from weft.ops.view.transpose import moveaxis, permute_op
from weft.ops.view.window import taps, window_counts

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
        shapes = (t.shape[-rank:] for t in (x, kernel, ct))
        sizes = zip(*shapes, strides, dilation, low, strict=True)
        before, after = [], []
        for size, window, count, step, d, below in sizes:
            before.append((window - 1) * d - below)
            after.append(size + below - ((count - 1) * step + 1))
        other = swap_features(turned(kernel, rank), rank)
        return spread_out(ct, other, strides, dilation, tuple(before), tuple(after))

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
        shapes = (t.shape[-rank:] for t in (x, kernel, ct))
        sizes = zip(*shapes, strides, dilation, low, strict=True)
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


def turned(kernel: Tensor, rank: int) -> Tensor:
    """The kernel with its window reversed."""
    return call(flip_op, (kernel,), {"axes": tuple(range(-rank, 0))})


def swap_features(kernel: Tensor, rank: int) -> Tensor:
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
    phase is a convolution of `x` itself, so zeros in between are never multiplied. Many phases are
    features of one convolution.
    """
    rank = len(steps)
    if prod(steps) > _MOST_PHASES and set(dilation) == {1}:
        return _phases_as_features(x, kernel, steps, low, high)
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


def _phases_as_features(x: Tensor, kernel: Tensor, steps: Shape, low: Shape, high: Shape) -> Tensor:
    """`spread_out` as one convolution, whose result has each feature once for each phase.

    The place q sees, of element (q - low + step - 1) // step and of those after it, the points of
    the kernel that are `step` apart; kernels are filled up with zeros, so that all have as many.
    """
    rank = len(steps)
    window, sizes = kernel.shape[-rank:], x.shape[-rank:]
    points = tuple(-(-n // step) for n, step in zip(window, steps, strict=True))
    fill = tuple(n * step - k for n, step, k in zip(points, steps, window, strict=True))
    parts = padded(kernel, (0,) * rank, fill)
    apart = tuple(n for pair in zip(points, steps, strict=True) for n in pair)
    parts = reshape(parts, (*kernel.shape[:-rank], *apart))
    between = tuple(range(1 - 2 * rank, 0, 2))
    parts = call(flip_op, (parts,), {"axes": between})
    first, counts, below, above, places = [], [], [], [], []
    for size, k, n, step, before, after in zip(
        sizes, window, points, steps, low, high, strict=True
    ):
        places.append(before + (size - 1) * step + 1 + after - (k - 1))
        start, end = step - 1 - before, places[-1] + step - 2 - before
        counts.append(end // step - start // step + 1)
        first.append(start % step)
        below.append(-(start // step))
        above.append(counts[-1] + n - 1 - size - below[-1])
    parts = moveaxis(parts, between, range(-2 * rank - 1, -rank - 1))
    *lead, outputs = parts.shape[: -2 * rank - 1]
    parts = reshape(parts, (*lead, outputs * prod(steps), *parts.shape[-rank - 1 :]))
    ones = (1,) * rank
    widths = {"strides": ones, "dilation": ones, "low": tuple(below), "high": tuple(above)}
    made = call(conv_op, (x, parts), widths)
    made = reshape(made, (*made.shape[: -rank - 1], outputs, *steps, *counts))
    made = moveaxis(made, range(-2 * rank, -rank), between)
    whole = (n * step for n, step in zip(counts, steps, strict=True))
    made = reshape(made, (*made.shape[: -2 * rank], *whole))
    return slice_axes(made, tuple(first), tuple(places), ones)


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
