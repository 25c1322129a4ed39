"""How a tensor prints: its values when they can be read, what it stands for when they cannot."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.lazy import LazyModule

_LIMIT = 1000
_html = LazyModule("html")


def text(tensor: Any) -> str:
    """`tensor([[1., 2.]], dtype=float32)`; an abstract tensor shows its type and owner."""
    extra = "" if tensor.device.name == "cpu:0" else f", device={tensor.device.name}"
    impl = tensor._impl
    while impl.owner is not None:
        if impl.spec is not None and impl.owner.ambient:
            extra = f"{extra}, sharding={impl.spec}"
            if not impl.owner.holds(impl.payload):
                part = impl.owner.part(impl.payload)
                return f"tensor<{tensor.type}{extra}, of which here: {part}>"
            break
        outside = impl.owner.primal(impl.payload)
        if outside is None or impl.owner.hides_axis:
            return f"tensor<{tensor.type}{extra}, inside {type(tensor.owner).__name__.lower()}>"
        impl = outside._impl
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


def html(tensor: Any) -> str:
    """A small table: type, device, bytes, and the values when they can be read."""
    rows = {
        "shape": " × ".join(map(str, tensor.shape)) or "scalar",
        "dtype": dtypes.name_of(tensor.dtype),
        "device": tensor.device.name,
        "bytes": f"{tensor.nbytes:,}",
    }
    cells = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows.items())
    return f"<table>{cells}</table><pre>{_html.escape(text(tensor))}</pre>"
