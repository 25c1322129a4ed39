"""Other libraries' words for parameters: errors that say how weft calls what was meant."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature, unwrap
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

# torch's, NumPy's and JAX's words for parameters, and weft's.
WORDS = {
    "axes": ("axis",),
    "axis": ("axes",),
    "dim": ("axis", "axes"),
    "dims": ("axis", "axes"),
    "interpolation": ("method",),
    "keep_dims": ("keepdims",),
    "keepdim": ("keepdims",),
    "unbiased": ("correction",),
}
# What others call arguments that have no name here, by their place.
_UNNAMED = {"a": 0, "arrays": 0, "input": 0, "seq": 0, "tensors": 0, "x": 0, "other": 1}
_ASKED_OF = frozenset(word for words in WORDS.values() for word in words)


def hinting(function: F) -> F:
    """A function that says, where a call names a parameter it has not, which one it has."""
    code = getattr(unwrap(function), "__code__", None)
    if code is None or _ASKED_OF.isdisjoint(code.co_varnames):
        return function

    @wraps(function)
    def called(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except TypeError as error:
            hint = _hint(function, keywords) if keywords else ""
            if hint and len(error.args) == 1 and "\nhint: " not in error.args[0]:
                error.args = (f"{error.args[0]}\nhint: {hint}",)
            raise

    return called  # type: ignore[return-value]


def _hint(function: Callable[..., Any], keywords: dict[str, Any]) -> str:
    """What to write instead of the first keyword that the function lacks, if that is known."""
    known = signature(function).parameters
    if any(p.kind is Parameter.VAR_KEYWORD for p in known.values()):
        return ""
    named = {n for n, p in known.items() if p.kind is not Parameter.POSITIONAL_ONLY}
    unnamed = [n for n, p in known.items() if p.kind is Parameter.POSITIONAL_ONLY]
    for word in keywords:
        if word in named:
            continue
        if word == "out":
            return "results have memory of their own: leave out= away"
        for ours in WORDS.get(word, ()):
            if ours in named:
                return f"{word} is called {ours} here"
        if _UNNAMED.get(word, len(unnamed)) < len(unnamed):
            return f"{word} has no name here: {function.__name__}({', '.join(unnamed)}, …)"
    return ""
