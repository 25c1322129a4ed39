"""Discrete Fourier transforms: `wf.fft`, as the array API and NumPy name them.

Any length, any axes, zero-padded or cropped to `n` or `s`. `norm` places the factor 1/n: on the
inverse ("backward", the default), on the forward transform ("forward"), or its root on both
("ortho"). float32 gives complex64; integers become the default float first.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.context import current_device, default_float
from weft.core.common.device import as_device
from weft.core.common.handler import current
from weft.core.common.keywords import hinting
from weft.core.common.parameters import as_choice, as_finite, as_flag, as_integer, as_sequence
from weft.core.common.peers import refuse
from weft.core.tensor.convert import scalar, to_tensor
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias
from weft.errors import ArgumentError, AxisError, DTypeError, ShapeError
from weft.ops.axes import normalize_axes, normalize_axis
from weft.ops.base import call
from weft.ops.creation import asarray, check_memory, ones, zeros
from weft.ops.elementwise.arithmetic import divide, multiply, square
from weft.ops.elementwise.complex_parts import conj
from weft.ops.families import broadcast, cast
from weft.ops.fft import NORMS, OPPOSITE, ComplexTransform, fft_op, ifft_op, irfft_op, rfft_op
from weft.ops.nn.patches import fold
from weft.ops.padding import pad
from weft.ops.view.join import concat, pad_op
from weft.ops.view.reshape import reshape
from weft.ops.view.slice import narrow
from weft.ops.view.transpose import swapaxes
from weft.ops.view.window import sliding_windows

Axes = Sequence[int] | None
Norm = str | None  # None is "backward", as in NumPy


@hinting
def fft(x: Any, /, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """Fourier transform along one axis."""
    return _complex(fft_op, "fft", x, None if n is None else (n,), (axis,), norm)


@hinting
def ifft(x: Any, /, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """Inverse Fourier transform along one axis."""
    return _complex(ifft_op, "ifft", x, None if n is None else (n,), (axis,), norm)


@hinting
def fftn(
    x: Any, /, s: Sequence[int] | None = None, axes: Axes = None, norm: Norm = "backward"
) -> Tensor:
    """Fourier transform along several axes: the given ones, the last len(s), or all."""
    return _complex(fft_op, "fftn", x, s, axes, norm)


@hinting
def ifftn(
    x: Any, /, s: Sequence[int] | None = None, axes: Axes = None, norm: Norm = "backward"
) -> Tensor:
    """Inverse Fourier transform along several axes: the given ones, the last len(s), or all."""
    return _complex(ifft_op, "ifftn", x, s, axes, norm)


@hinting
def fft2(
    x: Any, /, s: Sequence[int] | None = None, axes: Axes = (-2, -1), norm: Norm = "backward"
) -> Tensor:
    """Fourier transform along two axes."""
    return _complex(fft_op, "fft2", x, s, axes, norm)


@hinting
def ifft2(
    x: Any, /, s: Sequence[int] | None = None, axes: Axes = (-2, -1), norm: Norm = "backward"
) -> Tensor:
    """Inverse Fourier transform along two axes."""
    return _complex(ifft_op, "ifft2", x, s, axes, norm)


@hinting
def rfft(x: Any, /, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """Fourier transform of a real tensor along one axis: its n//2 + 1 first frequencies."""
    return _real("rfft", x, None if n is None else (n,), (axis,), norm)


@hinting
def rfftn(
    x: Any, /, s: Sequence[int] | None = None, axes: Axes = None, norm: Norm = "backward"
) -> Tensor:
    """Fourier transform of a real tensor along several axes; the last one keeps s//2 + 1."""
    return _real("rfftn", x, s, axes, norm)


@hinting
def rfft2(
    x: Any, /, s: Sequence[int] | None = None, axes: Axes = (-2, -1), norm: Norm = "backward"
) -> Tensor:
    """Fourier transform of a real tensor along two axes; the last one keeps s//2 + 1."""
    return _real("rfft2", x, s, axes, norm)


@hinting
def irfft(x: Any, /, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The real tensor whose `rfft` this is; its length is `n`, or 2(m - 1) for m frequencies."""
    return _to_real("irfft", x, None if n is None else (n,), (axis,), norm)


@hinting
def irfftn(
    x: Any, /, s: Sequence[int] | None = None, axes: Axes = None, norm: Norm = "backward"
) -> Tensor:
    """The real tensor whose `rfftn` this is."""
    return _to_real("irfftn", x, s, axes, norm)


@hinting
def irfft2(
    x: Any, /, s: Sequence[int] | None = None, axes: Axes = (-2, -1), norm: Norm = "backward"
) -> Tensor:
    """The real tensor whose `rfft2` this is."""
    return _to_real("irfft2", x, s, axes, norm)


@hinting
def hfft(x: Any, /, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The real spectrum of a signal that has Hermitian symmetry, given by its first half."""
    chosen = _opposite("hfft", norm)
    turned = conj(_as_complex("hfft", x))
    return _to_real("hfft", turned, None if n is None else (n,), (axis,), chosen)


@hinting
def ihfft(x: Any, /, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The first half of the signal whose real spectrum this is: the inverse of `hfft`."""
    chosen = _opposite("ihfft", norm)
    return conj(_real("ihfft", x, None if n is None else (n,), (axis,), chosen))


def stft(
    x: Any,
    /,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    *,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
) -> Tensor:
    """Fourier transforms of `n_fft` samples at a time along the last axis: (…, frequency, frame).

    Frames are `hop_length` apart (a quarter of `n_fft`) and multiplied by `window`, `win_length`
    numbers in their middle (ones). With `center`, frame t is around sample t · hop_length, beyond
    the ends as `pad_mode` says. Real signals give n_fft//2 + 1 frequencies unless `onesided` is
    False. `normalized` divides by √n_fft. Names and meaning are torch's.

    >>> stft([1.0, 2.0, 3.0, 4.0], 4).shape
    (3, 5)
    """
    tensor = _as_float("stft", to_tensor(x, op="stft"))
    if not dtypes.is_complex(tensor.dtype):
        tensor = cast(tensor, dtypes.real_of(dtypes.complex_of(tensor.dtype)))
    size, hop, weights = _frame("stft", tensor, n_fft, hop_length, win_length, window)
    if tensor.ndim and as_flag("stft", "center", center):
        sides = [(0, 0)] * (tensor.ndim - 1) + [(size // 2, size // 2)]
        tensor = pad(tensor, sides, mode=pad_mode)
    if tensor.ndim == 0 or tensor.shape[-1] < size:
        raise ShapeError(f"stft: shape {tensor.shape} has no frame of n_fft = {size} samples")
    frames = multiply(sliding_windows(tensor, size, -1, stride=hop), weights)
    half = not dtypes.is_complex(tensor.dtype) if onesided is None else onesided
    norm = "ortho" if as_flag("stft", "normalized", normalized) else "backward"
    transform = rfft if as_flag("stft", "onesided", half) else fft
    return swapaxes(transform(frames, norm=norm), -1, -2)


def istft(
    x: Any,
    /,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    *,
    center: bool = True,
    normalized: bool = False,
    onesided: bool = True,
    length: int | None = None,
) -> Tensor:
    """The signal whose `stft` this is, or the one nearest to it; complex unless `onesided`.

    Frames are multiplied by the window again, added where they overlap, and divided by the sum of
    the squared windows, which must not be 0 anywhere. `length` cuts the signal or fills it up with
    zeros: frames alone do not say where it ended.
    """
    given = _as_complex("istft", x)
    real_dtype = dtypes.real_of(given.dtype)
    like = cast(zeros((), device=given.device), real_dtype)
    size, hop, weights = _frame("istft", like, n_fft, hop_length, win_length, window)
    half = as_flag("istft", "onesided", onesided)
    rows = size // 2 + 1 if half else size
    if given.ndim < 2 or given.shape[-2] != rows or given.shape[-1] == 0:
        raise ShapeError(
            f"istft: expected (…, {rows}, frames) for n_fft = {size}, got {given.shape}"
        )
    norm = "ortho" if as_flag("istft", "normalized", normalized) else "backward"
    spectra = swapaxes(given, -1, -2)
    frames = irfft(spectra, size, norm=norm) if half else ifft(spectra, norm=norm)
    summed = _overlapped(multiply(frames, weights), hop)
    shares = broadcast(square(weights), (given.shape[-1], size))
    edge = size // 2 if as_flag("istft", "center", center) else 0
    whole = summed.shape[-1] - 2 * edge
    wanted = whole if length is None else as_integer("istft", "length", length, low=1)
    kept = min(wanted, summed.shape[-1] - edge)
    envelope = narrow(_overlapped(shares, hop), -1, edge, kept)
    if current() is None and envelope.owner is None and not envelope.host().all():
        raise ArgumentError(
            "istft: the windows leave samples uncovered\nhint: take a shorter hop_length, or center"
        )
    made = divide(narrow(summed, -1, edge, kept), envelope)
    return _fitted(made, (made.ndim - 1,), (wanted,))


def _frame(
    name: str, like: Tensor, n_fft: Any, hop: Any, length: Any, window: Any
) -> tuple[int, int, Tensor]:
    """The size of a frame, the distance of frames, and the window widened to a frame."""
    size = as_integer(name, "n_fft", n_fft, low=1)
    step = as_integer(name, "hop_length", max(1, size // 4) if hop is None else hop, low=1)
    count = as_integer(name, "win_length", size if length is None else length, 1, size)
    dtype = dtypes.real_of(like.dtype) if dtypes.is_complex(like.dtype) else like.dtype
    if window is None:
        weights = ones(count, dtype=dtype, device=like.device)
    else:
        weights = cast(_as_float(name, to_tensor(window, beside=(like,), op=name)), dtype)
    if weights.shape != (count,):
        raise ShapeError(f"{name}: the window must have shape ({count},), got {weights.shape}")
    before = (size - count) // 2
    return size, step, pad(weights, (before, size - count - before))


def _overlapped(frames: Tensor, hop: int) -> Tensor:
    """Frames (…, count, size) added up at places that are `hop` apart."""
    *lead, count, size = frames.shape
    total = size + hop * (count - 1)
    columns = swapaxes(reshape(frames, (prod(lead), count, size)), -1, -2)
    return reshape(fold(columns, (total,), size, stride=hop), (*lead, total))


def fftfreq(n: int, /, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequencies of `fft`'s result for samples `d` apart: 0, 1, …, -2, -1 over n·d.

    >>> fftfreq(4, d=0.5).tolist()
    [0.0, 0.5, -1.0, -0.5]
    """
    size = _checked_size("fftfreq", n)
    steps = np.concatenate([np.arange((size + 1) // 2), np.arange(-(size // 2), 0)])
    return _frequencies("fftfreq", steps, size, d, dtype, device)


def rfftfreq(n: int, /, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequencies of `rfft`'s result for samples `d` apart: 0, 1, …, n//2 over n·d."""
    size = _checked_size("rfftfreq", n)
    return _frequencies("rfftfreq", np.arange(size // 2 + 1), size, d, dtype, device)


@hinting
def fftshift(x: Any, /, axes: int | Sequence[int] | None = None) -> Tensor:
    """Move frequency zero to the middle of the given axes, or of all."""
    return _shifted("fftshift", x, axes, forward=True)


@hinting
def ifftshift(x: Any, /, axes: int | Sequence[int] | None = None) -> Tensor:
    """Undo `fftshift`; for odd sizes the two differ by one place."""
    return _shifted("ifftshift", x, axes, forward=False)


def _complex(op: ComplexTransform, name: str, x: Any, s: Any, axes: Any, norm: Norm) -> Tensor:
    scale = _checked_norm(name, norm)
    tensor = _as_complex(name, x)
    chosen, sizes = _axes_and_sizes(name, tensor, s, axes)
    return _transformed(op, _fitted(tensor, chosen, sizes), chosen, scale)


def _transformed(op: ComplexTransform, x: Tensor, axes: Sequence[int], norm: str) -> Tensor:
    """Complex transform over axes counted from the left; none at all is the identity."""
    if not axes:
        return alias(x)
    params = {"axes": tuple(sorted(i - x.ndim for i in axes)), "norm": norm}
    return call(op, (x,), params)


def _real(name: str, x: Any, s: Any, axes: Any, norm: Norm) -> Tensor:
    scale = _checked_norm(name, norm)
    tensor = _as_float(name, to_tensor(x, op=name))
    if dtypes.is_complex(tensor.dtype):
        raise DTypeError(
            f"{name}: takes real tensors, got {dtypes.name_of(tensor.dtype)}"
            "\nhint: wf.fft.fft takes complex ones"
        )
    chosen, sizes = _axes_and_sizes(name, tensor, s, axes, at_least=1)
    fitted = _fitted(tensor, chosen, sizes)
    half = call(rfft_op, (fitted,), {"axis": chosen[-1] - tensor.ndim, "norm": scale})
    return _transformed(fft_op, half, chosen[:-1], scale)


def _to_real(name: str, x: Any, s: Any, axes: Any, norm: Norm) -> Tensor:
    scale = _checked_norm(name, norm)
    tensor = _as_complex(name, x)
    if s is None:
        chosen, sizes = _axes_and_sizes(name, tensor, None, axes, at_least=1)
        sizes = (*sizes[:-1], _checked_size(name, 2 * (sizes[-1] - 1), chosen[-1]))
    else:
        chosen, sizes = _axes_and_sizes(name, tensor, s, axes, at_least=1)
    fitted = _fitted(tensor, chosen, (*sizes[:-1], sizes[-1] // 2 + 1))
    whole = _transformed(ifft_op, fitted, chosen[:-1], scale)
    params = {"axis": chosen[-1] - tensor.ndim, "size": sizes[-1], "norm": scale}
    return call(irfft_op, (whole,), params)


def _checked_norm(name: str, norm: Any) -> str:
    if norm is None:
        return "backward"
    return str(as_choice(name, "norm", norm, NORMS))


def _opposite(name: str, norm: Norm) -> str:
    """The norm of the transform in the other direction."""
    return OPPOSITE[_checked_norm(name, norm)]


def _as_float(name: str, x: Tensor) -> Tensor:
    """`x` with a float or complex dtype; integers become the default float."""
    if dtypes.is_bool(x.dtype):
        raise DTypeError(f"{name}: bool is not a number\nhint: cast with x.astype(…) first")
    return x if dtypes.is_inexact(x.dtype) else cast(x, default_float())


def _as_complex(name: str, x: Any) -> Tensor:
    tensor = _as_float(name, to_tensor(x, op=name))
    return cast(tensor, dtypes.complex_of(tensor.dtype))


def _checked_size(name: str, n: Any, axis: int | None = None) -> int:
    where = "the length" if axis is None else f"axis {axis}: the length"
    size = as_integer(name, where, n, low=1)
    check_memory(name, (size,), dtypes.complex64)
    return size


def _axes_and_sizes(
    name: str, x: Tensor, s: Any, axes: Any, at_least: int = 0
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes to transform, counted from the left, and their lengths."""
    s = None if s is None else as_sequence(name, "s", s)
    if axes is None:
        count = x.ndim if s is None else len(s)
        if count > x.ndim:
            raise AxisError(f"{name}: {count} lengths for {x.ndim} axes (s {tuple(s)})")
        axes = range(x.ndim - count, x.ndim)
    chosen = normalize_axes(name, axes, x.ndim)
    if len(chosen) < at_least:
        raise AxisError(f"{name}: at least one axis is needed (shape {x.shape})")
    if s is not None and len(s) != len(chosen):
        raise ArgumentError(f"{name}: {len(s)} lengths for {len(chosen)} axes (s {tuple(s)})")
    wanted = [x.shape[i] for i in chosen] if s is None else s
    return chosen, tuple(_checked_size(name, n, i) for n, i in zip(wanted, chosen, strict=True))


def _fitted(x: Tensor, axes: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Crop each axis to its length, or fill it up with zeros."""
    change = [0] * x.ndim
    for axis, size in zip(axes, sizes, strict=True):
        change[axis] = size - x.shape[axis]
    first = next((i for i, by in enumerate(change) if by), None)
    if first is None:
        return x
    high = tuple(change[first:])
    none = (0,) * len(high)
    params = {"low": none, "high": high, "interior": none}
    return call(pad_op, (x, scalar(0, x.dtype, x.device)), params)


def _frequencies(name: str, steps: Any, size: int, d: Any, dtype: Any, device: Any) -> Tensor:
    target = default_float() if dtype is None else dtypes.as_dtype(dtype, op=name)
    if not dtypes.is_floating(target):
        raise DTypeError(f"{name}: dtype must be a real float, got {dtypes.name_of(target)}")
    step = as_finite(name, "d", d)
    if step == 0:
        raise ArgumentError(f"{name}: the distance d of the samples must not be 0")
    place = current_device() if device is None else as_device(device)
    return asarray((steps / (size * step)).astype(target), device=place)


def _shifted(name: str, x: Any, axes: Any, forward: bool) -> Tensor:
    tensor = to_tensor(x, op=name)
    chosen = range(tensor.ndim) if axes is None else normalize_axes(name, axes, tensor.ndim)
    for axis in chosen:
        size = tensor.shape[normalize_axis(name, axis, tensor.ndim)]
        cut = (size + 1) // 2 if forward else size // 2
        if cut not in (0, size):
            back, front = narrow(tensor, axis, cut, size - cut), narrow(tensor, axis, 0, cut)
            tensor = concat([back, front], axis=axis)
    return alias(tensor) if tensor is x else tensor


__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "istft",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
    "stft",
]


if not TYPE_CHECKING:  # checkers know which names there are
    __getattr__ = refuse("weft.fft")


def __dir__() -> list[str]:
    return sorted(__all__)
