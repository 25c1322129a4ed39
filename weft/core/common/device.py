"""Devices as values: a kind of backend and a number, written `cpu:0`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from weft.errors import DeviceError


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """One device. Equal devices are the same object, so `is` compares them.

    >>> as_device("cpu:1").name
    'cpu:1'
    >>> as_device("cpu") is as_device("cpu:0")
    True
    """

    kind: str
    id: int

    @property
    def name(self) -> str:
        """`kind:id`, as users write it."""
        return f"{self.kind}:{self.id}"

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Device({self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return as_device, (self.name,)


@cache
def _intern(kind: str, number: int) -> Device:
    return Device(kind, number)


@lru_cache(maxsize=1024)
def _parse(text: str) -> Device:
    kind, _, number = text.partition(":")
    if not kind.isidentifier() or (number and not number.isdecimal()):
        raise DeviceError(f"device: cannot read {text!r}\nhint: write 'cpu', 'cpu:1', 'cuda:0' …")
    return _intern(kind, int(number or 0))


def as_device(device: Any) -> Device:
    """The `Device` for a device or a name such as `"cpu:1"`."""
    if isinstance(device, Device):
        return device
    if isinstance(device, str):
        return _parse(device)
    raise DeviceError(f"device: expected a Device or a string such as 'cpu:0', got {device!r}")


CPU = as_device("cpu:0")


__all__ = [
    "Device",
]
