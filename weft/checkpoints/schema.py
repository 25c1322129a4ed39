"""JSON from a file that nobody vouches for: each function gives what it names or `FormatError`."""

from __future__ import annotations

import re
from typing import Any

from weft.core.common.parameters import shown
from weft.core.common.types import Shape
from weft.errors import FormatError

_MOST_AXES = 64


def mapping(found: Any, where: str, names: tuple[str, ...]) -> dict[str, Any]:
    """A JSON object with exactly these names."""
    if not isinstance(found, dict) or found.keys() != set(names):
        raise FormatError(f"load: {where}: needs {', '.join(names)}, got {shown(found)}")
    return found


def sequence(found: Any, where: str, length: int | None = None) -> list[Any]:
    """A JSON array, of a given length."""
    if not isinstance(found, list) or length not in (None, len(found)):
        raise FormatError(f"load: {where}: {shown(found)} is no list of the right length")
    return found


def text(found: Any, where: str) -> str:
    """A string."""
    if not isinstance(found, str):
        raise FormatError(f"load: {where}: {shown(found)} is no text")
    return found


def digits(found: Any, where: str, length: int) -> str:
    """A hexadecimal number of a given length."""
    if not re.fullmatch(f"[0-9a-f]{{{length}}}", text(found, where)):
        raise FormatError(f"load: {where}: {shown(found)} is no number of {length} digits")
    return str(found)


def sizes(found: Any, where: str) -> Shape:
    """Integers from 0 on; True and 1.0 are none."""
    fits = isinstance(found, list) and len(found) <= _MOST_AXES
    if not fits or not all(type(size) is int and size >= 0 for size in found):
        raise FormatError(f"load: {where}: {shown(found)} is no list of sizes")
    return tuple(found)
