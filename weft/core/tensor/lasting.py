"""Arrays whose values are known to last: what was made of them need not be made again.

Values of tensors never change, but memory does: it is given away to compiled functions, and handed
out to other libraries. `watch` gives a mark that `is_watched` knows as long as the array lives and
neither has happened.
"""

from __future__ import annotations

import weakref

from weft.core.common.types import Array


class Mark:
    """Stands for the values that an array had when it was watched."""

    __slots__ = ("array", "root")

    def __init__(self, array: Array, root: Array) -> None:
        key = id(array)
        self.root = id(root)
        self.array = weakref.ref(array, lambda reference: _ended(key, reference))


_marks: dict[int, Mark] = {}  # by id of the array


def watch(array: Array, root: Array) -> Mark:
    """The mark of an array over memory that `root` answers for."""
    return _marks.setdefault(id(array), Mark(array, root))


def is_watched(array: Array, mark: Mark) -> bool:
    """Whether an array has the values that it had when it was given this mark."""
    return _marks.get(id(array)) is mark


def forget(array: Array) -> None:
    """Take the mark of an array away: its memory is about to have other values."""
    _marks.pop(id(array), None)


def forget_all_of(root: Array) -> None:
    """Take the marks of all arrays of one allocation away."""
    for key, mark in list(_marks.items()):
        if mark.root == id(root):
            _marks.pop(key, None)


def _ended(key: int, reference: weakref.ref[Array]) -> None:
    mark = _marks.get(key)
    if mark is not None and mark.array is reference:
        _marks.pop(key, None)
