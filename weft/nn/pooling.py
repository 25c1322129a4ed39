"""Pools and resizing as layers: they hold no tensors, and can stand in a `Sequential`.

Windows, strides and paddings are those of the functions: `wf.max_pool2d` and its neighbours.
"""

from __future__ import annotations

from typing import Any, ClassVar

import weft as wf
from weft.core.common.parameters import as_flag, as_integer, is_sequence, shown
from weft.errors import ArgumentError
from weft.nn.inputs import given_to
from weft.nn.module import Module, static
from weft.ops.view.window import per_axis


class _Pool(Module):
    """What pools with a sliding window share."""

    kernel_size: tuple[int, ...] = static()
    stride: tuple[int, ...] = static()
    padding: tuple[int, ...] = static()
    ceil_mode: bool = static()

    rank: ClassVar[int]

    def _make(self, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool) -> None:
        kind, rank = type(self).__name__, self.rank
        self.kernel_size = per_axis(kind, "kernel_size", kernel_size, rank)
        self.stride = per_axis(kind, "stride", kernel_size if stride is None else stride, rank)
        self.padding = per_axis(kind, "padding", padding, rank, 0)
        self.ceil_mode = as_flag(kind, "ceil_mode", ceil_mode)


class _MaxPool(_Pool):
    """The largest element of each window."""

    dilation: tuple[int, ...] = static()
    return_indices: bool = static()

    def __init__(
        self,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] | None = None,
        padding: int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> None:
        kind = type(self).__name__
        self._make(kernel_size, stride, padding, ceil_mode)
        self.dilation = per_axis(kind, "dilation", dilation, self.rank)
        self.return_indices = as_flag(kind, "return_indices", return_indices)

    def __call__(self, x: Any) -> Any:
        """Maxima of windows of (N, C, space…), or of one example without N.

        With `return_indices` also where they were, for a layer that undoes the pool.
        """
        pool = (wf.max_pool1d, wf.max_pool2d, wf.max_pool3d)[self.rank - 1]
        window = (self.kernel_size, self.stride, self.padding, self.dilation)
        return pool(given_to(self, x), *window, self.ceil_mode, self.return_indices)


class _MaxUnpool(Module):
    """The elements of a max pool put back where they were, zeros elsewhere."""

    kernel_size: tuple[int, ...] = static()
    stride: tuple[int, ...] = static()
    padding: tuple[int, ...] = static()

    rank: ClassVar[int]

    def __init__(
        self,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] | None = None,
        padding: int | tuple[int, ...] = 0,
    ) -> None:
        kind, rank = type(self).__name__, self.rank
        self.kernel_size = per_axis(kind, "kernel_size", kernel_size, rank)
        self.stride = per_axis(kind, "stride", kernel_size if stride is None else stride, rank)
        self.padding = per_axis(kind, "padding", padding, rank, 0)

    def __call__(self, x: Any, indices: Any, output_size: Any = None) -> wf.Tensor:
        """What was pooled to `x`, by the `indices` of the pool: (N, C, space…), or without N."""
        unpool = (wf.max_unpool1d, wf.max_unpool2d, wf.max_unpool3d)[self.rank - 1]
        return unpool(x, indices, self.kernel_size, self.stride, self.padding, output_size)


class _AvgPool(_Pool):
    """The mean of each window."""

    count_include_pad: bool = static()

    def __init__(
        self,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] | None = None,
        padding: int | tuple[int, ...] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        self._make(kernel_size, stride, padding, ceil_mode)
        kind = type(self).__name__
        self.count_include_pad = as_flag(kind, "count_include_pad", count_include_pad)

    def __call__(self, x: Any) -> wf.Tensor:
        """Means of windows of (N, C, space…), or of one example without N."""
        pool = (wf.avg_pool1d, wf.avg_pool2d, wf.avg_pool3d)[self.rank - 1]
        window = (self.kernel_size, self.stride, self.padding, self.ceil_mode)
        return pool(given_to(self, x), *window, self.count_include_pad)


class _AdaptivePool(Module):
    """A pool whose windows share space out among as many places as are wanted."""

    output_size: tuple[int | None, ...] = static()

    rank: ClassVar[int]
    functions: ClassVar[tuple[Any, ...]]

    def __init__(self, output_size: Any) -> None:
        kind, rank = type(self).__name__, self.rank
        given = output_size if is_sequence(output_size) else (output_size,) * rank
        self.output_size = tuple(
            None if n is None else as_integer(kind, "output_size", n, 1) for n in given
        )
        if len(self.output_size) != rank:
            raise ArgumentError(f"{kind}: output_size: {shown(output_size)} for {rank} axes")

    def __call__(self, x: Any) -> wf.Tensor:
        """(N, C, space…), or one example without N, with the wanted space; None keeps an axis."""
        pool = self.functions[self.rank - 1]
        made: wf.Tensor = pool(given_to(self, x), self.output_size)
        return made


class _AdaptiveAvgPool(_AdaptivePool):
    """Means over even windows."""

    functions: ClassVar[tuple[Any, ...]] = (
        wf.adaptive_avg_pool1d,
        wf.adaptive_avg_pool2d,
        wf.adaptive_avg_pool3d,
    )


class _AdaptiveMaxPool(_AdaptivePool):
    """Maxima over even windows."""

    functions: ClassVar[tuple[Any, ...]] = (
        wf.adaptive_max_pool1d,
        wf.adaptive_max_pool2d,
        wf.adaptive_max_pool3d,
    )


class MaxPool1d(_MaxPool):
    """The largest element of each window over (N, C, L)."""

    rank: ClassVar[int] = 1


class MaxPool2d(_MaxPool):
    """The largest element of each window over (N, C, H, W)."""

    rank: ClassVar[int] = 2


class MaxPool3d(_MaxPool):
    """The largest element of each window over (N, C, D, H, W)."""

    rank: ClassVar[int] = 3


class MaxUnpool1d(_MaxUnpool):
    """The elements of a max pool over (N, C, L) where they were.

    >>> pool = MaxPool1d(2, return_indices=True)
    >>> MaxUnpool1d(2)(*pool(wf.tensor([[1.0, 5.0, 4.0, 2.0]]))).tolist()
    [[0.0, 5.0, 4.0, 0.0]]
    """

    rank: ClassVar[int] = 1


class MaxUnpool2d(_MaxUnpool):
    """The elements of a max pool over (N, C, H, W) where they were."""

    rank: ClassVar[int] = 2


class MaxUnpool3d(_MaxUnpool):
    """The elements of a max pool over (N, C, D, H, W) where they were."""

    rank: ClassVar[int] = 3


class AvgPool1d(_AvgPool):
    """The mean of each window over (N, C, L)."""

    rank: ClassVar[int] = 1


class AvgPool2d(_AvgPool):
    """The mean of each window over (N, C, H, W)."""

    rank: ClassVar[int] = 2


class AvgPool3d(_AvgPool):
    """The mean of each window over (N, C, D, H, W)."""

    rank: ClassVar[int] = 3


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """Means of (N, C, L) over windows that give the wanted size."""

    rank: ClassVar[int] = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """Means of (N, C, H, W) over windows that give the wanted size."""

    rank: ClassVar[int] = 2


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """Means of (N, C, D, H, W) over windows that give the wanted size."""

    rank: ClassVar[int] = 3


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """Maxima of (N, C, L) over windows that give the wanted size."""

    rank: ClassVar[int] = 1


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """Maxima of (N, C, H, W) over windows that give the wanted size."""

    rank: ClassVar[int] = 2


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """Maxima of (N, C, D, H, W) over windows that give the wanted size."""

    rank: ClassVar[int] = 3


class Upsample(Module):
    """Space of another size, as `wf.interpolate` makes it."""

    size: Any = static()
    scale_factor: Any = static()
    mode: str = static()
    align_corners: bool = static()

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool = False,
    ) -> None:
        self.size, self.scale_factor = (
            tuple(v) if isinstance(v, list) else v for v in (size, scale_factor)
        )
        self.mode = mode
        self.align_corners = as_flag("Upsample", "align_corners", align_corners)

    def __call__(self, x: Any) -> wf.Tensor:
        """`x` (N, C, space…), resized."""
        how = (self.size, self.scale_factor, self.mode, self.align_corners)
        return wf.interpolate(given_to(self, x), *how)
