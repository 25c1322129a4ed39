"""How a tensor prints: its values when they can be read, what it stands for when they cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.markup import Markup, element
from weft.core.common.types import Array

_LIMIT = 1000
_FIRST, _LAST = 5, 4  # rows and columns of a table, where there are more than ten
_NUMBER = "text-align:right;padding:1px 8px;font-family:monospace"
_FAINT = "opacity:.55;font-weight:normal;text-align:right;padding:1px 8px"


def text(tensor: Any) -> str:
    """`tensor([[1., 2.]], dtype=float32)`; an abstract tensor shows its type and owner."""
    unread, extra = _described(tensor)
    if unread is not None:
        return unread
    array = tensor.host()
    prefix = "tensor("
    body = np.array2string(
        array if array.dtype.kind != "V" else array.astype(np.float32),
        separator=", ",
        prefix=prefix,
        threshold=_LIMIT,
    )
    shape = f", shape={tensor.shape}" if array.size == 0 or array.size > _LIMIT else ""
    return f"{prefix}{body}{shape}, dtype={dtypes.name_of(tensor.dtype)}{extra})"


def _described(tensor: Any) -> tuple[str | None, str]:
    """What stands for a tensor whose values cannot be read here; what is said beside values."""
    extra = "" if tensor.device.name == "cpu:0" else f", device={tensor.device.name}"
    impl = tensor._impl
    while impl.owner is not None:
        if impl.spec is not None and impl.owner.ambient:
            extra = f"{extra}, sharding={impl.spec}"
            if not impl.owner.holds(impl.payload):
                part = impl.owner.part(impl.payload)
                return f"tensor<{tensor.type}{extra}, of which here: {part}>", extra
            break
        outside = impl.owner.primal(impl.payload)
        if outside is None or impl.owner.hides_axis:
            return f"tensor<{tensor.type}{extra}, inside {tensor.owner.title}>", extra
        impl = outside._impl
    return None, extra


def html(tensor: Any) -> Markup:
    """Type, place, bytes, and a table of at most ten by ten values where they can be read."""
    spec = tensor.sharding
    where = tensor.device.name if spec.mesh is None else f"{spec} over {spec.mesh}"
    facts = (
        " × ".join(map(str, tensor.shape)) or "scalar",
        where,
        f"{tensor.nbytes:,} bytes",
    )
    head = element(
        "div",
        element("b", dtypes.name_of(tensor.dtype)),
        *(element("span", f" · {fact}", style="opacity:.75") for fact in facts),
    )
    unread, _ = _described(tensor)
    if unread is not None:
        return element("div", head, element("pre", unread))
    return element("div", head, *_values(tensor.host()))


def _values(array: Array) -> list[Markup]:
    """The values as a table: of more than two axes, the first matrix of the last two."""
    if array.size == 0:
        return []
    leading = array.ndim - 2
    note = []
    if leading > 0:
        place = ", ".join(["0"] * leading + [":", ":"])
        note = [element("div", f"[{place}]", style="opacity:.55")]
        array = array[(0,) * leading]
    rows = array.reshape((1, -1)) if array.ndim < 2 else array
    across, down = _chosen(rows.shape[1]), _chosen(rows.shape[0])
    heads = [element("th", _label(j), style=_FAINT) for j in across]
    body = [
        element(
            "tr",
            *([element("th", _label(i), style=_FAINT)] if array.ndim == 2 else []),
            *(element("td", _cell(rows, i, j), style=_NUMBER) for j in across),
        )
        for i in down
    ]
    if array.ndim == 0:
        return [element("table", *body)]
    corner = [element("th")] if array.ndim == 2 else []
    return [*note, element("table", element("tr", *corner, *heads), *body)]


def _chosen(size: int) -> Sequence[int]:
    """The positions that a table shows; -1 stands for those left out."""
    if size <= _FIRST + _LAST + 1:
        return range(size)
    return [*range(_FIRST), -1, *range(size - _LAST, size)]


def _label(position: int) -> str:
    return "…" if position < 0 else str(position)


def _cell(rows: Array, i: int, j: int) -> str:
    if i < 0 or j < 0:
        return "…"
    value = rows[i, j]
    if rows.dtype.kind == "V":
        value = np.float32(value)
    return f"{value:.6g}" if value.dtype.kind in "fc" else str(value)
