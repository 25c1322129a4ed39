"""Convolutions over one, two or three axes of space, and their transposes, with torch's weights."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

import weft as wf
from weft.core.common.parameters import as_choice, as_flag, as_integers
from weft.errors import ArgumentError, ShapeError
from weft.nn.init import Initializer
from weft.nn.inputs import divided, given_to, keys_of, sizes, uniform_within
from weft.nn.module import Module, static
from weft.ops.nn.convolution import padding_widths

_PADS = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}  # what wf.pad calls them


def _per_axis(kind: str, name: str, value: Any, rank: int, low: int = 1) -> tuple[int, ...]:
    given = as_integers(kind, name, value, low)
    if len(given) not in (1, rank):
        raise ArgumentError(f"{kind}: {name}: expected 1 or {rank} numbers, got {value!r}")
    return given * rank if len(given) == 1 else given


class _Convolution(Module):
    """What convolutions and their transposes share."""

    weight: wf.Tensor
    bias: wf.Tensor | None
    stride: tuple[int, ...] = static()
    padding: Any = static()
    dilation: tuple[int, ...] = static()
    groups: int = static()

    rank: ClassVar[int]
    transposed: ClassVar[bool] = False

    def _make(
        self,
        features: tuple[int, int],
        window: Any,
        bias: bool,
        key: wf.Tensor,
        init: Initializer | None,
        dtype: Any,
    ) -> None:
        """Draw weight and bias; `features` are inputs and outputs."""
        kind = type(self).__name__
        inputs, outputs = sizes(kind, in_channels=features[0], out_channels=features[1])
        split_inputs = divided(kind, "in_channels", inputs, "groups", self.groups)
        split_outputs = divided(kind, "out_channels", outputs, "groups", self.groups)
        kernel = _per_axis(kind, "kernel_size", window, self.rank)
        lead = (inputs, split_outputs) if self.transposed else (outputs, split_inputs)
        drawn = uniform_within((lead[1] * prod(kernel)) ** -0.5)
        first, second = keys_of(key, 2)
        self.weight = (init or drawn)(first, (*lead, *kernel), dtype)
        self.bias = drawn(second, (outputs,), dtype) if as_flag(kind, "bias", bias) else None

    @property
    def kernel_size(self) -> tuple[int, ...]:
        """The window's size along each axis of space."""
        return self.weight.shape[-self.rank :]

    @property
    def in_channels(self) -> int:
        """How many features an input has."""
        lead = self.weight.shape[-self.rank - 2]
        return lead if self.transposed else self.weight.shape[-self.rank - 1] * self.groups

    def _checked(self, x: Any) -> wf.Tensor:
        kind = type(self).__name__
        tensor = given_to(self, x)
        channels, rank = self.in_channels, self.rank
        fits = tensor.ndim in (rank + 1, rank + 2) and tensor.shape[-rank - 1] == channels
        if not fits:
            space = ", ".join(("L", "HW", "DHW")[rank - 1])
            last = tensor.ndim > 1 and tensor.shape[-1] == channels
            hint = "\nhint: features come before space: wf.moveaxis(x, -1, 1)" if last else ""
            raise ShapeError(
                f"{kind}: x: expected shape (N, {channels}, {space}) or ({channels}, {space}),"
                f" got {tensor.shape}{hint}"
            )
        return tensor


class _Conv(_Convolution):
    """A convolution of any rank."""

    padding_mode: str = static()

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: Any = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        key: wf.Tensor,
        init: Initializer | None = None,
        dtype: Any = None,
    ) -> None:
        kind, rank = type(self).__name__, self.rank
        self.padding_mode = as_choice(kind, "padding_mode", padding_mode, ("zeros", *_PADS))
        self.stride = _per_axis(kind, "stride", stride, rank)
        if isinstance(padding, str):
            self.padding = as_choice(kind, "padding", padding, ("same", "valid"))
        else:
            self.padding = _per_axis(kind, "padding", padding, rank, 0)
        self.dilation = _per_axis(kind, "dilation", dilation, rank)
        (self.groups,) = sizes(kind, groups=groups)
        self._make((in_channels, out_channels), kernel_size, bias, key, init, dtype)

    def __call__(self, x: Any) -> wf.Tensor:
        """Correlate (N, in_channels, space…), or one example without N, with the weight."""
        x, padding = self._checked(x), self.padding
        if self.padding_mode != "zeros":
            x, padding = self._padded(x), 0
        return wf.conv(
            x,
            self.weight,
            self.bias,
            stride=self.stride,
            padding=padding,
            dilation=self.dilation,
            groups=self.groups,
        )

    def _padded(self, x: wf.Tensor) -> wf.Tensor:
        """The input with more of itself around it."""
        space, name = x.shape[-self.rank :], type(self).__name__
        given = (self.padding, space, self.kernel_size, self.stride, self.dilation)
        around = zip(*padding_widths(name, *given), strict=True)
        none = [(0, 0)] * (x.ndim - self.rank)
        return wf.pad(x, [*none, *around], mode=_PADS[self.padding_mode])


class _ConvTranspose(_Convolution):
    """A transposed convolution of any rank."""

    output_padding: tuple[int, ...] = static()

    transposed: ClassVar[bool] = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] = 0,
        output_padding: int | tuple[int, ...] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | tuple[int, ...] = 1,
        *,
        key: wf.Tensor,
        init: Initializer | None = None,
        dtype: Any = None,
    ) -> None:
        kind, rank = type(self).__name__, self.rank
        self.stride = _per_axis(kind, "stride", stride, rank)
        self.padding = _per_axis(kind, "padding", padding, rank, 0)
        self.output_padding = _per_axis(kind, "output_padding", output_padding, rank, 0)
        self.dilation = _per_axis(kind, "dilation", dilation, rank)
        (self.groups,) = sizes(kind, groups=groups)
        self._make((in_channels, out_channels), kernel_size, bias, key, init, dtype)

    def __call__(self, x: Any) -> wf.Tensor:
        """The transpose of the convolution, of (N, in_channels, space…) or one example."""
        function = (wf.conv_transpose1d, wf.conv_transpose2d, wf.conv_transpose3d)[self.rank - 1]
        return function(
            self._checked(x),
            self.weight,
            self.bias,
            stride=self.stride,
            padding=self.padding,
            output_padding=self.output_padding,
            dilation=self.dilation,
            groups=self.groups,
        )


class Conv1d(_Conv):
    """Convolution over (N, C, L); the weight is (outputs, inputs / groups, window)."""

    rank: ClassVar[int] = 1


class Conv2d(_Conv):
    """Convolution over (N, C, H, W); the weight is (outputs, inputs / groups, window…)."""

    rank: ClassVar[int] = 2


class Conv3d(_Conv):
    """Convolution over (N, C, D, H, W); the weight is (outputs, inputs / groups, window…)."""

    rank: ClassVar[int] = 3


class ConvTranspose1d(_ConvTranspose):
    """The transpose of `Conv1d`; the weight is (inputs, outputs / groups, window)."""

    rank: ClassVar[int] = 1


class ConvTranspose2d(_ConvTranspose):
    """The transpose of `Conv2d`; the weight is (inputs, outputs / groups, window…)."""

    rank: ClassVar[int] = 2


class ConvTranspose3d(_ConvTranspose):
    """The transpose of `Conv3d`; the weight is (inputs, outputs / groups, window…)."""

    rank: ClassVar[int] = 3
