"""Where lower layers reach upper ones without importing them.

Operators on tensors look ops and functions up here by name; the layers above fill the tables when
they are imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from weft.core.common.keywords import hinting

F = TypeVar("F", bound=Callable[..., Any])

Place = Callable[[Any, Any], Any]

OPS: dict[str, Any] = {}
FUNCTIONS: dict[str, Callable[..., Any]] = {}


_place: list[Place] = []


def install_placement(function: Place) -> None:
    """Say how a host array becomes the data of a device; the layer of backends calls this once."""
    _place[:] = [function]


def place(array: Any, device: Any) -> Any:
    """`array` as data of `device`, or an error when there is no such device."""
    return _place[0](array, device)


def public(function: F) -> F:
    """Enter a user-facing function into `FUNCTIONS` under its own name."""
    told = hinting(function)
    FUNCTIONS[function.__name__] = told
    return told
