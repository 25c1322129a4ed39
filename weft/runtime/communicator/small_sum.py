"""Small sums between ranks of one host: a record that native code does them by, and its lock."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from types import TracebackType

import numpy as np

from weft.core.common.types import DType
from weft.runtime.communicator.signals import signals
from weft.runtime.communicator.sum_text import PLACE, fold_name

_BUSY_SECONDS = 50e-6
_WORD = 8


class Turnstile:
    """Lets one collective of a process run at a time, those that run without Python included."""

    def __init__(self) -> None:
        self._words = np.array([0, 1], np.int64)
        self.lock: int = self._words.ctypes.data
        self.open: int = self.lock + _WORD
        self._native = signals()

    def __enter__(self) -> None:
        while not self._native.claim(self.lock):
            time.sleep(_BUSY_SECONDS)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """Let the next one in."""
        self._native.store(self.lock, 0)

    def shut(self) -> None:
        """Let native code begin no further collective."""
        self._native.store(self.open, 0)


class Adder:
    """One kind of small sum; `run(source, target)` takes addresses, and answers as `add_up`."""

    def __init__(
        self,
        turnstile: Turnstile,
        head: bytes,
        kind: tuple[str, int, int],  # the function that folds, elements, bytes
        position: int,
        table: int,
        blocks: Sequence[int],
    ) -> None:
        native = signals()
        self.turnstile = turnstile
        self._head = np.frombuffer(head, np.uint8)
        fold, count, nbytes = kind
        words = {
            **{"ROUTINE": native.address("add_up"), "OPEN": turnstile.open, "LOCK": turnstile.lock},
            **{"POSTED": 0, "HEAD": self._head.ctypes.data, "HEAD_BYTES": len(head)},
            **{"BYTES": nbytes, "FOLD": native.address(fold), "COUNT": count},
            **{"POSITION": position, "TABLE": table},
        }
        ordered = sorted(words, key=PLACE.__getitem__)
        self._words = np.array([*(words[name] for name in ordered), *blocks], np.int64)
        self.record: int = self._words.ctypes.data
        self.run: Callable[[int, int], int] = functools.partial(native.add_up, self.record)

    def is_posted(self, target: int) -> bool:
        """Whether the sum for this result was begun and not ended."""
        return int(self._words[PLACE["POSTED"]]) == target

    def give_up(self) -> None:
        """Forget a sum that was begun, and let other collectives in."""
        self._words[PLACE["POSTED"]] = 0
        self.turnstile.leave()


def folding(dtype: DType, size: int) -> tuple[str, int, int] | None:
    """How native code adds arrays of a dtype and size, if it can: function, elements, bytes."""
    parts = 2 if dtype.kind == "c" else 1
    name = f"float{dtype.itemsize * 4}" if parts == 2 else dtype.name
    found = fold_name(name)
    return None if found is None or not size else (found, size * parts, size * dtype.itemsize)
