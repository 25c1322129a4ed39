"""Random tensors without a key: each call takes a fresh key of the global generator."""

from __future__ import annotations

from typing import Any

from weft.core.common.context import default_device, defaults
from weft.core.common.slots import public
from weft.core.tensor.tensor import Tensor
from weft.ops.placement import to_device
from weft.ops.random import continuous
from weft.ops.random.state import next_key


def _fresh(device: Any) -> Tensor:
    place = defaults(device=device)[1]
    with default_device(place):  # where a traced state is to be
        fresh = next_key(place)
    return fresh if fresh.device is place else to_device(fresh, place)


@public
def uniform(
    shape: Any = (), low: Any = 0.0, high: Any = 1.0, dtype: Any = None, device: Any = None
) -> Tensor:
    """Uniform floats in [low, high) from the global generator.

    >>> uniform((2, 3)).shape
    (2, 3)
    """
    return continuous.uniform(_fresh(device), shape, dtype, low, high)


@public
def gaussian(
    shape: Any = (), mean: Any = 0.0, std: Any = 1.0, dtype: Any = None, device: Any = None
) -> Tensor:
    """Normal floats of a mean and a standard deviation from the global generator."""
    return continuous.normal(_fresh(device), shape, dtype, mean, std)


@public
def normal(
    shape: Any = (), mean: Any = 0.0, std: Any = 1.0, dtype: Any = None, device: Any = None
) -> Tensor:
    """Normal floats of a mean and a standard deviation from the global generator."""
    return continuous.normal(_fresh(device), shape, dtype, mean, std)


@public
def rand(*shape: int, dtype: Any = None, device: Any = None) -> Tensor:
    """Uniform floats in [0, 1) from the global generator: `rand(2, 3)`."""
    return continuous.uniform(_fresh(device), shape, dtype)


@public
def randn(*shape: int, dtype: Any = None, device: Any = None) -> Tensor:
    """Standard normal floats from the global generator: `randn(2, 3)`."""
    return continuous.normal(_fresh(device), shape, dtype)


__all__ = ["gaussian", "normal", "rand", "randn", "uniform"]
