"""Discrete Fourier transforms along axes: complex to complex, real to half spectrum, and back.

Sizes are arbitrary; SciPy's pocketfft is the reference, and lengths of small prime factors have
kernels. `norm` says which direction carries the factor 1/n, as in NumPy. The matrix of the
transform is symmetric, so complex transforms are their own transposes; the real ones are each
other's, up to the weight of the mirrored frequencies.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from weft.core.common import dtypes
from weft.core.common.factors import Factors
from weft.core.common.lazy import LazyModule
from weft.core.common.types import Array, DType, TensorType
from weft.core.tensor.convert import wrap
from weft.core.tensor.tensor import Tensor
from weft.ops.base import Example, Linear, Tangents, call
from weft.ops.elementwise.complex_parts import conj
from weft.ops.families import LogicalAxisOperation, cast

scipy_fft = LazyModule("scipy.fft")

NORMS = ("backward", "ortho", "forward")
OPPOSITE = {"backward": "forward", "forward": "backward", "ortho": "ortho"}
PRIMES = (2, 3, 5, 7, 11, 13)  # factors of lengths that have kernels
_NO_LOOPS = {"kernel": "its kernels transform whole rows; no element is computed on its own"}


class FourierTransform(LogicalAxisOperation):
    """A transform whose kernels, if its lengths have any, are made by `compiler.fourier`."""

    linear = Linear.JOINTLY
    reasons: ClassVar[dict[str, str]] = _NO_LOOPS

    @abstractmethod
    def lengths(self, x: TensorType, **params: Any) -> tuple[int, ...]:
        """How many numbers each transform takes."""

    def is_smooth(self, x: TensorType, **params: Any) -> bool:
        """Whether all lengths have small prime factors only: then there are kernels."""
        return all(map(_is_smooth, self.lengths(x, **params)))

    def is_exact(self, *found: DType, **params: Any) -> bool:
        """Kernels and pocketfft add up in different orders."""
        return False


class ComplexTransform(FourierTransform):
    """A transform over `axes` (negative, ascending) that keeps shape and dtype."""

    examples = (
        Example({"axes": (-1,), "norm": "backward"}, ((4, 5),), "c"),
        Example({"axes": (-2,), "norm": "ortho"}, ((3, 4),), "c"),
        Example({"axes": (-3, -1), "norm": "forward"}, ((2, 4, 7),), "c"),
    )

    def index(self, x: TensorType, *, axes: tuple[int, ...], norm: str) -> Factors:
        names = " ".join(f"n{k}" for k in range(-axes[0], 0, -1))
        whole = " ".join(f"n{-axis}" for axis in axes)
        return Factors.parse(f"... {names} -> ... {names}", (x.rank,), whole=whole)

    def lengths(self, x: TensorType, **params: Any) -> tuple[int, ...]:
        return tuple(x.shape[axis] for axis in params["axes"])

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return (call(self, (ct,), params),)


class Fft(ComplexTransform):
    """Σⱼ x[j] e^(-2πi jk/n)."""

    def eval(self, x: Array, *, axes: tuple[int, ...], norm: str) -> Array:
        if len(axes) == 1 and x.size:  # the same stages, prepared in half the time
            return np.asarray(scipy_fft.fft(x, axis=axes[0], norm=norm))
        return np.asarray(scipy_fft.fftn(x, axes=axes, norm=norm)) if x.size else x


class Ifft(ComplexTransform):
    """Σⱼ x[j] e^(2πi jk/n), divided by n unless `norm` says otherwise."""

    def eval(self, x: Array, *, axes: tuple[int, ...], norm: str) -> Array:
        if len(axes) == 1 and x.size:
            return np.asarray(scipy_fft.ifft(x, axis=axes[0], norm=norm))
        return np.asarray(scipy_fft.ifftn(x, axes=axes, norm=norm)) if x.size else x


class Rfft(FourierTransform):
    """The first n//2 + 1 frequencies of a real axis; the others mirror them."""

    examples = (
        Example({"axis": -1, "norm": "backward"}, ((4, 5),)),
        Example({"axis": -2, "norm": "ortho"}, ((6, 4),)),
        Example({"axis": -1, "norm": "forward"}, ((1,),)),
    )

    def index(self, x: TensorType, *, axis: int, norm: str) -> Factors:
        return _one_axis(x, axis, x.shape[axis] // 2 + 1)

    def lengths(self, x: TensorType, **params: Any) -> tuple[int, ...]:
        return (x.shape[params["axis"]],)

    def dtype(self, *found: DType, **params: Any) -> DType:
        return dtypes.complex_of(found[0])

    def eval(self, x: Array, *, axis: int, norm: str) -> Array:
        if x.size:
            return np.asarray(scipy_fft.rfft(x, axis=axis, norm=norm))
        return np.empty(_resized(x, axis, x.shape[axis] // 2 + 1), dtypes.complex_of(x.dtype))

    def vjp(self, primals: Any, out: Any, ct: Any, *, axis: int, norm: str) -> Tangents:
        size = primals[0].shape[axis]
        weighed = conj(ct) * _mirror_weights(ct, size, axis, 0.5)
        params = {"axis": axis, "size": size, "norm": OPPOSITE[norm]}
        return (cast(call(irfft_op, (weighed,), params), primals[0].dtype),)


class Irfft(FourierTransform):
    """A real axis of length `size` from its first size//2 + 1 frequencies."""

    examples = (
        Example({"axis": -1, "size": 5, "norm": "backward"}, ((4, 3),), "c"),
        Example({"axis": -2, "size": 6, "norm": "ortho"}, ((4, 2),), "c"),
        Example({"axis": -1, "size": 1, "norm": "forward"}, ((1,),), "c"),
    )

    def index(self, x: TensorType, *, axis: int, size: int, norm: str) -> Factors:
        return _one_axis(x, axis, size)

    def lengths(self, x: TensorType, **params: Any) -> tuple[int, ...]:
        return (params["size"],)

    def dtype(self, *found: DType, **params: Any) -> DType:
        return dtypes.real_of(found[0])

    def eval(self, x: Array, *, axis: int, size: int, norm: str) -> Array:
        if x.size:
            return np.asarray(scipy_fft.irfft(x, size, axis=axis, norm=norm))
        return np.empty(_resized(x, axis, size), dtypes.real_of(x.dtype))

    def vjp(self, primals: Any, out: Any, ct: Any, *, axis: int, size: int, norm: str) -> Tangents:
        spectrum = call(rfft_op, (ct,), {"axis": axis, "norm": OPPOSITE[norm]})
        weighed = spectrum * _mirror_weights(spectrum, size, axis, 2.0)
        return (conj(weighed),)


def _is_smooth(n: int) -> bool:
    """Whether a length has no other prime factors than stages of kernels have."""
    for prime in PRIMES:
        while n and n % prime == 0:
            n //= prime
    return n == 1


def _one_axis(x: TensorType, axis: int, size: int) -> Factors:
    """Notation of an op that turns one axis into another of `size` elements."""
    rest = " ".join(f"i{k}" for k in range(-axis - 1))
    return Factors.parse(f"... n {rest} -> ... k {rest}", (x.rank,), {"k": size}, "n k")


def _resized(x: Array, axis: int, size: int) -> tuple[int, ...]:
    shape = list(x.shape)
    shape[axis] = size
    return tuple(shape)


def _mirror_weights(x: Tensor, size: int, axis: int, inner: float) -> Tensor:
    """1 for frequencies without a mirror image (0, and n/2 for even n), `inner` elsewhere."""
    weights = np.full(size // 2 + 1, inner, dtypes.real_of(x.dtype))
    weights[0] = 1
    if size % 2 == 0:
        weights[-1] = 1
    return wrap(weights.reshape((-1,) + (1,) * (-axis - 1)), x.device)


fft_op, ifft_op, rfft_op, irfft_op = Fft(), Ifft(), Rfft(), Irfft()


__all__: list[str] = []
