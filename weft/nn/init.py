"""Initial values: functions of (key, shape, dtype) that make a tensor.

Shapes are (outputs, inputs, window…), as weights have them. Glorot (also Xavier) keeps the size of
values in both directions, He (Kaiming) that of values behind a relu, LeCun that of values forward.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any, TypeAlias

import weft as wf
from weft.core.common import dtypes
from weft.core.common.context import default_float
from weft.core.common.parameters import as_choice
from weft.core.common.peers import refuse as _refuse
from weft.core.tensor.convert import device_of
from weft.errors import ShapeError

Initializer: TypeAlias = Callable[..., wf.Tensor]
_STD_OF_TRUNCATED = 0.87962566103423978  # of a standard normal cut off at -2 and 2


def fans(shape: Any) -> tuple[int, int]:
    """How many values each output sums, and how many outputs each input reaches."""
    if len(shape) < 2:
        raise ShapeError(
            f"init: expected a weight (outputs, inputs, window…), got shape {tuple(shape)}"
            "\nhint: a bias takes zeros, constant or normal"
        )
    window = prod(shape[2:])
    return shape[1] * window, shape[0] * window


def constant(value: float) -> Initializer:
    """The same number everywhere."""

    def make(key: Any, shape: Any, dtype: Any = None) -> wf.Tensor:
        return wf.full(shape, value, dtype=dtype or default_float(), device=device_of(key))

    return make


def zeros() -> Initializer:
    """Zeros."""
    return constant(0.0)


def ones() -> Initializer:
    """Ones."""
    return constant(1.0)


def normal(std: float = 1.0, mean: float = 0.0) -> Initializer:
    """Normally distributed numbers."""

    def make(key: Any, shape: Any, dtype: Any = None) -> wf.Tensor:
        return wf.random.normal(key, shape, dtype, mean, std)

    return make


def uniform(low: float = -1.0, high: float = 1.0) -> Initializer:
    """Evenly distributed numbers from `low` to `high`."""

    def make(key: Any, shape: Any, dtype: Any = None) -> wf.Tensor:
        return wf.random.uniform(key, shape, dtype, low, high)

    return make


def truncated_normal(
    std: float = 1.0, mean: float = 0.0, low: float = -2.0, high: float = 2.0
) -> Initializer:
    """Normal numbers cut off at `low` and `high` standard deviations from the mean."""

    def make(key: Any, shape: Any, dtype: Any = None) -> wf.Tensor:
        return wf.random.truncated_normal(key, low, high, shape, dtype) * std + mean

    return make


def orthogonal(gain: float = 1.0) -> Initializer:
    """A matrix (outputs, all inputs) whose rows or columns are orthonormal, times `gain`."""

    def make(key: Any, shape: Any, dtype: Any = None) -> wf.Tensor:
        rows, columns = fans(shape)[1] // prod(shape[2:]), prod(shape[1:])
        tall = (max(rows, columns), min(rows, columns))
        kind = dtypes.as_dtype(dtype or default_float(), op="orthogonal")
        wide = dtypes.float32 if dtypes.is_narrow(kind) else kind
        found: Any = wf.linalg.qr(wf.random.normal(key, tall, wide))
        turned: Any = found.Q * wf.sign(wf.diagonal(found.R))  # each such matrix equally likely
        matrix = turned if rows >= columns else wf.matrix_transpose(turned)
        return wf.astype(wf.reshape(matrix, shape) * gain, kind)

    return make


def variance_scaling(
    scale: float = 1.0, mode: str = "fan_in", distribution: str = "normal"
) -> Initializer:
    """Numbers of variance scale / n, n being the "fan_in", "fan_out" or "fan_avg" of the shape.

    `distribution` is "normal", "uniform" or "truncated_normal".
    """
    as_choice("variance_scaling", "mode", mode, ("fan_in", "fan_out", "fan_avg"))
    kinds = ("normal", "uniform", "truncated_normal")
    as_choice("variance_scaling", "distribution", distribution, kinds)

    def make(key: Any, shape: Any, dtype: Any = None) -> wf.Tensor:
        inputs, outputs = fans(shape)
        count = {"fan_in": inputs, "fan_out": outputs, "fan_avg": (inputs + outputs) / 2}[mode]
        std = (scale / max(count, 1)) ** 0.5
        if distribution == "uniform":
            return uniform(-(3**0.5) * std, 3**0.5 * std)(key, shape, dtype)
        if distribution == "normal":
            return normal(std)(key, shape, dtype)
        return truncated_normal(std / _STD_OF_TRUNCATED)(key, shape, dtype)

    return make


def glorot_normal(gain: float = 1.0) -> Initializer:
    """Normal numbers of variance gain² · 2 / (inputs + outputs)."""
    return variance_scaling(gain**2, "fan_avg", "normal")


def glorot_uniform(gain: float = 1.0) -> Initializer:
    """Even numbers of variance gain² · 2 / (inputs + outputs)."""
    return variance_scaling(gain**2, "fan_avg", "uniform")


def he_normal(gain: float = 2**0.5, mode: str = "fan_in") -> Initializer:
    """Normal numbers of variance gain² / inputs; the gain is the one for relu."""
    return variance_scaling(gain**2, mode, "normal")


def he_uniform(gain: float = 2**0.5, mode: str = "fan_in") -> Initializer:
    """Even numbers of variance gain² / inputs; the gain is the one for relu."""
    return variance_scaling(gain**2, mode, "uniform")


def lecun_normal() -> Initializer:
    """Truncated normal numbers of variance 1 / inputs."""
    return variance_scaling(1.0, "fan_in", "truncated_normal")


def lecun_uniform() -> Initializer:
    """Even numbers of variance 1 / inputs."""
    return variance_scaling(1.0, "fan_in", "uniform")


xavier_normal, xavier_uniform = glorot_normal, glorot_uniform
kaiming_normal, kaiming_uniform = he_normal, he_uniform

__all__ = [
    "Initializer",
    "constant",
    "fans",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "kaiming_normal",
    "kaiming_uniform",
    "lecun_normal",
    "lecun_uniform",
    "normal",
    "ones",
    "orthogonal",
    "truncated_normal",
    "uniform",
    "variance_scaling",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
]


def __dir__() -> list[str]:
    return sorted(__all__)


if not _TYPE_CHECKING:  # checkers know which names there are
    __getattr__ = _refuse("weft.nn.init")
