"""Modules as text: each field on its own, tensors by dtype and shape, nothing computed."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.types import TensorType
from weft.core.tensor.tensor import Tensor

_WIDTH = 88  # columns that a module may fill before its fields get lines of their own


def text_of(value: Any) -> str:
    """A module, or anything a module holds, as readable text."""
    if isinstance(value, Tensor | np.ndarray | TensorType):
        sizes = ", ".join(map(str, value.shape))
        return f"{dtypes.name_of(value.dtype)}[{sizes}]"
    if isinstance(value, np.dtype):
        return repr(dtypes.name_of(value))
    if isinstance(value, dict):
        return _block("{", [f"{key!r}: {text_of(each)}" for key, each in value.items()], "}")
    if type(value) is list:
        return _block("[", [text_of(each) for each in value], "]")
    if type(value) is tuple:
        end = ",)" if len(value) == 1 else ")"
        return _block("(", [text_of(each) for each in value], end)
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    return repr(value)


def module_text(name: str, fields: dict[str, Any]) -> str:
    """A module's class and fields, on one line if they fit."""
    return _block(f"{name}(", [f"{key}={text_of(each)}" for key, each in fields.items()], ")")


def _block(opening: str, parts: list[str], closing: str) -> str:
    line = f"{opening}{', '.join(parts)}{closing}"
    if len(line) <= _WIDTH and "\n" not in line:
        return line
    inner = "".join(f"  {part},\n".replace("\n", "\n  ").rstrip(" ") for part in parts)
    return f"{opening}\n{inner}{closing.removeprefix(',')}"
