"""Composed functions that are called again and again on small tensors become one compiled call.

Op by op, the median of sixteen numbers is twenty calls, each of which costs more than its
arithmetic. Calls of one kind (the same shapes, dtypes and other arguments) are compiled once they
have taken about as long as compiling takes, so that it pays at the latest when they come as often
again. No bit changes, and nothing is compiled where somebody watches: inside of transforms, for
tensors that are differentiated, spread over a mesh or on another device.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import wraps
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from weft.config import settings
from weft.core.common.device import CPU
from weft.core.common.events import watchers
from weft.core.common.frozen import freeze
from weft.core.common.handler import current
from weft.core.common.slots import FUNCTIONS
from weft.core.tensor.tensor import Tensor
from weft.errors import WeftError
from weft.ops.naming import named
from weft.ops.ready import light_elements

F = TypeVar("F", bound=Callable[..., Any])

MOST = 256  # kinds of calls of a function that are remembered
_TENSOR = object()  # in a key: one of the compiled function's arguments
_STATIC = (int, float, complex, bool, str, type(None), np.generic, np.dtype, type)


class _Kind:
    """Calls that one compiled function serves: seconds they took so far, and what runs them."""

    __slots__ = ("fails", "run", "spent")

    def __init__(self) -> None:
        self.spent, self.fails = 0.0, False
        self.run: Callable[..., Any] | None = None


def often(function: F) -> F:
    """A function of tensors that is compiled for the kinds of small calls that come often.

    It must be pure, and its results new tensors whose shapes follow from those it is given.
    """
    kinds: dict[Hashable, _Kind] = {}
    plain = named(function)

    @wraps(function)
    def called(*args: Any, **keywords: Any) -> Any:
        tensors: list[Tensor] = []
        key = None if watchers or current() is not None else _key(args, keywords, tensors)
        if key is None:
            return plain(*args, **keywords)
        kind = kinds.get(key)
        if kind is None:
            if len(kinds) >= MOST:
                kinds.clear()
            kind = kinds[key] = _Kind()
        if kind.run is not None:
            return kind.run(*tensors)
        start = perf_counter()
        made = plain(*args, **keywords)
        kind.spent += perf_counter() - start
        if 1000 * kind.spent > settings.often_ms > 0 and not kind.fails:
            _compile(kind, function, args, keywords, tensors)
        return made

    return called  # type: ignore[return-value]


def _key(args: tuple[Any, ...], keywords: dict[str, Any], tensors: list[Tensor]) -> Hashable:
    """What calls of one kind have in common, or None; `tensors` takes those that are given."""
    key: list[Hashable] = [len(args), *keywords]
    fits = all(_enter(value, key, tensors) for value in (*args, *keywords.values()))
    return tuple(key) if fits and tensors else None


def _enter(value: Any, key: list[Hashable], tensors: list[Tensor]) -> bool:
    """Add an argument to a key; says if it can be: a small tensor that is there, or a constant."""
    kind = type(value)
    if kind is Tensor:
        impl = value._impl
        if type(impl.data) is not np.ndarray or impl.size > light_elements():
            return False
        if impl.owner is not None or impl.spec is not None or impl.device is not CPU:
            return False
        tensors.append(value)
        key += (_TENSOR, impl.shape, impl.dtype)
        return True
    if kind is tuple or kind is list:
        key.append((kind, len(value)))
        return all(_enter(each, key, tensors) for each in value)
    key.append(freeze(value))
    return isinstance(value, _STATIC)


def _compile(
    kind: _Kind,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    keywords: dict[str, Any],
    tensors: list[Tensor],
) -> None:
    """Have calls of a kind run compiled from now on, if they can be."""
    given = _without_tensors((args, tuple(keywords.values())))

    def whole(*now: Tensor) -> Any:
        own, named = _with_tensors(given, iter(now))
        return function(*own, **dict(zip(keywords, named, strict=True)))

    whole.__name__ = function.__name__
    run = FUNCTIONS["compile"](whole)
    try:
        run(*tensors)
    except WeftError:  # what it does depends on values
        kind.fails = True
    else:
        kind.run = run


def _without_tensors(value: Any) -> Any:
    if type(value) is tuple or type(value) is list:
        return type(value)(map(_without_tensors, value))
    return _TENSOR if type(value) is Tensor else value


def _with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    if type(value) is tuple or type(value) is list:
        return type(value)([_with_tensors(each, tensors) for each in value])
    return next(tensors) if value is _TENSOR else value
