"""Assignment: point a handle at a new value, and let views and their base see it.

`y = x[0]; y[1] = 5` changes `x`, and `x[0] = 7` changes `y`, as in NumPy: a basic-index view knows its
base and its index. Values themselves never change, so everything stays differentiable.
"""

from __future__ import annotations

import weakref
from typing import Any

from weft.core.common.handler import Handler, current
from weft.core.common.slots import FUNCTIONS
from weft.errors import DTypeError, MutationError, ShapeError


def link(base: Any, view: Any, index: Any) -> None:
    """Remember that `view` is `base[index]` with a basic index.

    The base is held weakly while it has one view: once the base's handle is gone nobody can see it.
    With a second view it is held strongly, because the views see each other through it.
    """
    views = [ref for ref in getattr(base, "_views", ()) if ref() is not None]
    view._index = index
    view._base = base if views else weakref.ref(base)
    for ref in views:
        if (sibling := ref()) is not None:
            sibling._base = base
    base._views = [*views, weakref.ref(view)]


def base_of(tensor: Any) -> Any:
    """The tensor this one is a basic-index view of, or None."""
    base = getattr(tensor, "_base", None)
    return base() if isinstance(base, weakref.ref) else base


def assign(tensor: Any, value: Any, op: str) -> Any:
    """Rebind `tensor` to `value`, which must have its shape and dtype; returns `tensor`."""
    if value.shape != tensor.shape:
        raise ShapeError(
            f"{op}: result of shape {value.shape} cannot be assigned to shape {tensor.shape}"
        )
    if value.dtype != tensor.dtype:
        raise DTypeError(
            f"{op}: result of dtype {value.dtype} cannot be assigned to dtype {tensor.dtype}"
            f"\nhint: cast explicitly, or write x = x … instead"
        )
    _rebind(tensor, value, op)
    return tensor


def _rebind(tensor: Any, value: Any, op: str) -> None:
    base = base_of(tensor)
    if base is not None:
        _rebind(base, FUNCTIONS["index_set"](base, tensor._index, value), op)
        return
    _check_scope(tensor, value._impl.owner, op)
    tensor._impl = value._impl
    _refresh(tensor)


def _refresh(base: Any) -> None:
    for ref in getattr(base, "_views", ()):
        if (view := ref()) is not None:
            view._impl = FUNCTIONS["getitem"](base, view._index)._impl
            _refresh(view)


def _check_scope(tensor: Any, owner: Handler | None, op: str) -> None:
    """A handle from outside a transform may not come to hold a value that ends with it."""
    scope: Handler | None = getattr(tensor, "_scope", None)
    handler = scope
    while owner is not None and handler is not owner:
        if handler is None:
            where = type(current() or owner).__name__.lower()
            raise MutationError(
                f"{op}: a tensor made outside {where} cannot be assigned a value from inside it"
                f"\nhint: return the new value, or copy the tensor inside first"
            )
        handler = handler.outer
