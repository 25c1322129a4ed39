"""Assignment: point a handle at a new value, and let views and their base see it.

`y = x[0]; y[1] = 5` changes `x`, and `x[0] = 7` changes `y`, as in NumPy: a basic-index view knows
its base and its index. Values that anybody has seen never change, so everything stays
differentiable; one that nobody has read since the last assignment is written on.
"""

from __future__ import annotations

import weakref
from operator import index as as_int
from types import EllipsisType
from typing import Any, TypeVar

from weft.core.common.handler import Handler, current
from weft.core.common.slots import FUNCTIONS
from weft.core.tensor.impl import Unread
from weft.errors import DTypeError, MutationError, ShapeError

T = TypeVar("T")

_STAYS = frozenset((int, type(None), EllipsisType))
_FEW = 8  # views up to this number are not worth a search for dead ones


def alias(tensor: T) -> T:
    """Another handle on the same value: assigning to one leaves the other as it is."""
    handle: Any = tensor
    made: Any = type(handle)(handle._impl)
    if current() is not None:
        made._origin = getattr(handle, "_origin", handle)
    result: T = made
    return result


def origin_of(tensor: T) -> T:
    """The handle whose value this one was made to share, if it still has that value."""
    handle: Any = tensor
    origin: Any = getattr(handle, "_origin", handle)
    found: T = origin if origin._impl is handle._impl else handle
    return found


def link(base: Any, view: Any, index: Any) -> None:
    """Remember that `view` is `base[index]` with a basic index.

    A base is held weakly while nobody could see it through this view: it has no other view, and is
    no view itself. Otherwise it is held strongly, since assignments travel through it.
    """
    whole = type(index) is tuple
    view._index = tuple([settled(entry) for entry in index]) if whole else settled(index)
    views = _slot(base, "_views", [])
    count = len(views)
    if count <= 2 or (count > _FEW and count & (count - 1) == 0):
        # At every doubling: on average the search costs a constant for each view.
        views[:] = [ref for ref in views if ref() is not None]
        for ref in views:
            if (sibling := ref()) is not None:
                sibling._base = base
    seen = views or _slot(base, "_base", None) is not None
    view._base = base if seen else weakref.ref(base)
    views.append(weakref.ref(view))


def settled(entry: Any) -> Any:
    """An entry of a basic index as it is now: tensors in slices may be assigned to later."""
    kind = type(entry)
    if kind in _STAYS:
        return entry
    if kind is slice:
        start, stop, step = entry.start, entry.stop, entry.step
        if type(start) in _STAYS and type(stop) in _STAYS and type(step) in _STAYS:
            return entry
        return slice(settled(start), settled(stop), settled(step))
    return as_int(entry)


def _slot(tensor: Any, name: str, default: Any) -> Any:
    """What a slot holds, which is set now if it was not: the next time that is seen sooner."""
    try:
        return getattr(tensor, name)
    except AttributeError:
        setattr(tensor, name, default)
        return default


def base_of(tensor: Any) -> Any:
    """The tensor this one is a basic-index view of, or None."""
    base = _slot(tensor, "_base", None)
    return base() if isinstance(base, weakref.ref) else base


def assign(tensor: Any, value: Any, op: str) -> Any:
    """Rebind `tensor` to `value`, which must have its shape and dtype; returns `tensor`."""
    value._impl.settle()  # its handle may be somebody's
    _check_fits(tensor, value, op)
    base = base_of(tensor)
    if base is None:
        _rebind(tensor, value, op)
    else:
        put(base, tensor._index, value, op)
    return tensor


def _check_fits(tensor: Any, value: Any, op: str) -> None:
    if value.shape != tensor.shape:
        raise ShapeError(
            f"{op}: result of shape {value.shape} cannot be assigned to shape {tensor.shape}"
        )
    if value.dtype != tensor.dtype:
        raise DTypeError(
            f"{op}: result of dtype {value.dtype} cannot be assigned to dtype {tensor.dtype}"
            f"\nhint: cast explicitly, or write x = x … instead"
        )


def put(tensor: Any, index: Any, value: Any, op: str) -> None:
    """Assign to part of a tensor: written on its memory, if nobody else can see that."""
    while True:  # from a view to its base, which may be a view
        if type(tensor._impl) is Unread and FUNCTIONS["write_on"](tensor, index, value):
            _refresh(tensor)
            return
        if _is_there(tensor, index, value):
            return
        value = FUNCTIONS["index_set"](tensor, index, value)
        value = FUNCTIONS["laid_out_like"](value, tensor)
        _check_fits(tensor, value, op)
        base = base_of(tensor)
        if base is None:
            _rebind(tensor, value, op)
            return
        tensor, index = base, tensor._index


def _is_there(tensor: Any, index: Any, value: Any) -> bool:
    """Whether a value is the view of this very place, as in the second half of `x[i:j] += 1`."""
    if type(value) is not type(tensor) or base_of(value) is not tensor:
        return False
    plain = current() is None and not getattr(tensor, "_wants_grad", False)
    return plain and _is_same(value._index, index)


def _is_same(x: Any, y: Any) -> bool:
    """Whether two indices of Python's own types are equal."""
    kind = type(x)
    if kind is not type(y):
        return False
    if kind is tuple:
        return len(x) == len(y) and all(map(_is_same, x, y))
    if kind is slice:
        return all(map(_is_same, (x.start, x.stop, x.step), (y.start, y.stop, y.step)))
    return x is None or x is Ellipsis or (kind is int and x == y)


def _rebind(tensor: Any, value: Any, op: str) -> None:
    """Point a handle that is no view at another value."""
    scopes = _chain(current())
    if scopes:
        _check_scope(tensor, scopes[0], op)
    if getattr(tensor, "_wants_grad", False):
        value._impl.settle()
        FUNCTIONS["renew_leaf"](tensor, value, op)
    else:
        tensor._impl = value._impl
    _refresh(tensor)


def _refresh(tensor: Any) -> None:
    """Let views, and views of views, see what their base is now."""
    bases = [tensor]
    while bases:
        base = bases.pop()
        for ref in _slot(base, "_views", []):
            if (view := ref()) is not None:
                view._impl = FUNCTIONS["getitem"](base, view._index)._impl
                bases.append(view)


def _check_scope(tensor: Any, scope: Handler, op: str) -> None:
    """Inside a transform only handles that were made inside it may be assigned to."""
    live = _chain(scope)
    made = max(_chain(getattr(tensor, "_scope", None)), _chain(tensor._impl.owner), key=len)
    # A transform that has ended leaves its results to the one around it.
    home = next((handler for handler in made if handler in live), None)
    if home is not scope:
        raise MutationError(
            f"{op}: a tensor made outside {scope.title} cannot be assigned to inside it"
            f"\nhint: return the new value, or copy the tensor inside first"
        )


def _chain(handler: Handler | None) -> list[Handler]:
    """A handler and all outside it, innermost first; those that only look on do not count."""
    found = []
    while handler is not None:
        if not handler.transparent:
            found.append(handler)
        handler = handler.outer
    return found
