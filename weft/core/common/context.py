"""Context-local defaults: the dtype and device a creation function uses when none is given.

Threads start with the library's defaults (float32 on `cpu:0`); asyncio tasks inherit them.
"""

from __future__ import annotations

from contextvars import ContextVar
from types import TracebackType
from typing import Any, Generic, TypeVar

import numpy as np

from weft.core.common import dtypes
from weft.core.common.device import CPU, Device, as_device
from weft.core.common.parameters import shown
from weft.core.common.slots import place
from weft.core.common.types import DType
from weft.errors import ArgumentError, DTypeError

T = TypeVar("T")


class Layers(Generic[T]):
    """A context-local value that blocks change; those of generators may end in any order.

    A layer says who laid it, the value, and whether it ends with a block or holds for good.
    """

    def __init__(self, name: str, default: T) -> None:
        self._layers: ContextVar[tuple[tuple[object, T, bool], ...]]
        self._layers = ContextVar(name, default=((None, default, True),))

    def get(self) -> T:
        """The value that holds here."""
        return self._layers.get()[-1][1]

    def change(self, owner: object, value: T) -> None:
        """Have `value` hold from here on, instead of what was to hold for good before."""
        layers = self._layers.get()
        kept = layers if layers[-1][2] else layers[:-1]
        self._layers.set((*kept, (owner, value, False)))

    def begin(self, owner: object, value: T) -> None:
        """Begin a block; what its owner has changed for good ends with it."""
        kept = [each for each in self._layers.get() if each[0] is not owner or each[2]]
        self._layers.set((*kept, (owner, value, True)))

    def end(self, owner: object) -> None:
        """End the last block of this owner, with what was changed for good inside."""
        layers = self._layers.get()
        places = [i for i, (who, _, is_block) in enumerate(layers) if who is owner and is_block]
        if places:  # a generator that has gone to another thread has none here
            rest = layers[places[-1] + 1 :]
            kept = rest[1:] if rest and not rest[0][2] else rest
            self._layers.set(layers[: places[-1]] + kept)


_dtype: Layers[DType] = Layers("weft_default_dtype", dtypes.float32)
_device: Layers[Device] = Layers("weft_default_device", CPU)


class Setting(Generic[T]):
    """A default that was changed: keeps holding, or ends with the `with` block it opens."""

    def __init__(self, *changes: tuple[Layers[Any], Any]) -> None:
        self._changes = changes
        for variable, value in changes:
            variable.change(self, value)

    def __enter__(self) -> None:
        for variable, value in self._changes:
            variable.begin(self, value)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for variable, _ in self._changes:
            variable.end(self)


def default_float() -> DType:
    """The float dtype used when nothing else decides."""
    return _dtype.get()


def current_device() -> Device:
    """The device used when nothing else decides."""
    return _device.get()


def default_dtype(dtype: Any) -> Setting[DType]:
    """Make `dtype` the default float: from here on, or inside `with default_dtype(…):`.

    >>> with default_dtype("float64"):
    ...     default_float().name
    'float64'
    >>> default_float().name
    'float32'
    """
    found = dtypes.as_dtype(dtype)
    if not dtypes.is_floating(found):
        raise DTypeError(f"default_dtype: expected a real floating dtype, got {found.name}")
    return Setting((_dtype, found))


def default_device(device: Any) -> Setting[Device]:
    """Make `device` the default: from here on, or inside `with default_device(…):`."""
    found = as_device(device)
    place(np.empty(0, np.float32), found)  # there must be such a device
    return Setting((_device, found))


def defaults(dtype: Any = None, device: Any = None) -> tuple[DType, Device]:
    """Fill in what was not given: the dtype and device a creation function would use."""
    return (
        default_float() if dtype is None else dtypes.as_dtype(dtype, default_float=default_float()),
        current_device() if device is None else as_device(device),
    )


def defaults_like(tensor: Any) -> Setting[Any]:
    """Create new tensors on `tensor`'s device, and with its dtype if that is a float."""
    if not (hasattr(tensor, "device") and hasattr(tensor, "dtype")):
        raise ArgumentError(f"defaults_like: expected a tensor, got {shown(tensor)}")
    changes: list[tuple[Layers[Any], Any]] = [(_device, as_device(tensor.device))]
    found = dtypes.as_dtype(tensor.dtype, op="defaults_like")
    if dtypes.is_floating(found):
        changes.append((_dtype, found))
    return Setting(*changes)


__all__ = [
    "default_device",
    "default_dtype",
    "defaults",
    "defaults_like",
]
