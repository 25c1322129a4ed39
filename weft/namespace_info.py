"""What the array API asks a namespace to say of itself, and its constants."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from weft.core.common import dtypes
from weft.core.common.context import current_device, default_float
from weft.core.common.device import Device, as_device
from weft.core.common.types import DType
from weft.errors import ArgumentError, BackendError
from weft.runtime.registry import available_backends, runtime

ARRAY_API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")
__array_api_version__ = "2025.12"

e, inf, nan, pi = math.e, math.inf, math.nan, math.pi
newaxis = None
bool = dtypes.bool_

_KINDS = (
    "bool",
    "signed integer",
    "unsigned integer",
    "integral",
    "real floating",
    "complex floating",
    "numeric",
)
_STANDARD = {
    "bool" if dtype == dtypes.bool_ else dtype.name: dtype
    for dtype in dtypes.ALL_DTYPES
    if dtype not in (dtypes.bfloat16, dtypes.float16, dtypes.float8_e4m3, dtypes.float8_e5m2)
}


class NamespaceInfo:
    """`__array_namespace_info__()`: capabilities, devices, dtypes."""

    def capabilities(self) -> dict[str, Any]:
        """What optional parts of the standard there are."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Device:
        """The device new arrays are made on."""
        return current_device()

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """The dtypes used when none is given."""
        return {
            "real floating": default_float(),
            "complex floating": dtypes.complex_of(default_float()),
            "integral": dtypes.int64,
            "indexing": dtypes.int64,
        }

    def devices(self) -> list[Device]:
        """Every device of the backends that can be used here."""
        found: list[Device] = []
        for kind in available_backends():
            with suppress(BackendError):  # its package is here, but no device
                found += runtime(kind).devices()
        return found

    def dtypes(
        self, *, device: Any = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, DType]:
        """The standard's dtypes, of one kind or of all."""
        if device is not None:
            as_device(device)
        if kind is None:
            return dict(_STANDARD)
        kinds = (kind,) if isinstance(kind, str) else kind
        for name in kinds:
            if name not in _KINDS:
                raise ArgumentError(f"dtypes: no kind {name!r} (there are {', '.join(_KINDS)})")
        return {n: d for n, d in _STANDARD.items() if dtypes.isdtype(d, kinds)}


def __array_namespace_info__() -> NamespaceInfo:
    """What this namespace can do, as the array API asks."""
    return NamespaceInfo()


__all__ = [
    "ARRAY_API_VERSIONS",
    "__array_api_version__",
    "__array_namespace_info__",
    "bool",
    "e",
    "inf",
    "nan",
    "newaxis",
    "pi",
]
