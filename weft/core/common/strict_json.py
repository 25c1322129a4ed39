"""JSON from a file that nobody vouches for."""

from __future__ import annotations

from typing import Any

from weft.core.common.lazy import LazyModule
from weft.errors import FormatError

_json = LazyModule("json")


def parse_json(raw: bytes, what: str) -> Any:
    """The value that `raw` spells, or `FormatError`; NaN and names that occur twice are no JSON."""
    try:
        return _json.loads(raw.decode(), object_pairs_hook=_unique, parse_constant=_refuse)
    except RecursionError:
        raise FormatError(f"{what}: is nested too deeply") from None
    except ValueError as error:
        raise FormatError(f"{what}: is no JSON: {error!s:.120}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {name!r:.60} occurs twice")
        found[name] = value
    return found


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
