"""Locks that a forked child finds free: a thread that is not in the child may hold the old ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

_makers: WeakKeyDictionary[Any, dict[str, Callable[[], Any]]] = WeakKeyDictionary()


def lock_for(owner: Any, name: str, make: Callable[[], Any] = RLock) -> Any:
    """A lock that is to be `owner.name`, where a forked child will find a new one.

    The owner may be a module. Whoever holds the lock through the fork goes on with the old one.
    """
    _makers.setdefault(owner, {})[name] = make
    return make()


def _renew() -> None:
    for owner, makers in list(_makers.items()):
        for name, make in makers.items():
            setattr(owner, name, make())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
