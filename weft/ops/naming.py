"""Errors of composed functions: they name the function that was called, not an op inside of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from weft.core.common.slots import FUNCTIONS, OPS
from weft.errors import WeftError

F = TypeVar("F", bound=Callable[..., Any])


def named(function: F) -> F:
    """A function whose errors begin with its own name; it calls no function of the user's.

    >>> named(lambda: None).__name__
    '<lambda>'
    """
    name = function.__name__

    @wraps(function)
    def called(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except WeftError as error:
            speak_of(name, error)
            raise

    return called  # type: ignore[return-value]


def speak_of(name: str, error: WeftError) -> None:
    """Have the message of an op, or of another function of ops, begin with this name."""
    first, colon, rest = str(error).partition(": ")
    if colon and len(error.args) == 1 and _is_of_ops(first):
        error.args = (f"{name}: {rest}",)


def _is_of_ops(name: str) -> bool:
    """Whether a message that begins with this speaks of an op, and not of a transform."""
    found = FUNCTIONS.get(name)
    return name in OPS or (found is not None and found.__module__.startswith(__package__))
