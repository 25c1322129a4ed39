"""Where lower layers reach upper ones without importing them.

Operators on tensors look ops and functions up here by name; the layers above fill the tables when
they are imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

OPS: dict[str, Any] = {}
FUNCTIONS: dict[str, Callable[..., Any]] = {}


def public(function: F) -> F:
    """Enter a user-facing function into `FUNCTIONS` under its own name."""
    FUNCTIONS[function.__name__] = function
    return function
