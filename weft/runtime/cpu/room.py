"""Room for the compiler: LLVM ends the process if it finds no memory, and Python may do so too.

Only where the system limits what a process may map does memory run out so; there one thread
compiles at a time, after it has seen that there is as much as it will need.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from weft.core.common.lazy import LazyModule
from weft.core.common.locks import lock_for

LEAST = 32 << 20  # bytes that are needed to compile anything,
EACH = 256  # and for each character of a module

_resource = LazyModule("resource")
_lock = lock_for(sys.modules[__name__], "_lock")


@contextmanager
def room_for(text: str) -> Iterator[None]:
    """Inside, LLVM finds the memory to compile a module; MemoryError if it would not."""
    with _lock if _is_limited() else nullcontext():
        ask_for_room(len(text))
        yield


def ask_for_room(characters: int = 0) -> None:
    """Raise MemoryError if a module of so many characters could not be compiled."""
    if _is_limited():
        try:
            mmap.mmap(-1, LEAST + EACH * characters).close()
        except OSError as error:
            raise MemoryError("no room for the compiler") from error


def _is_limited() -> bool:
    if os.name != "posix":
        return False
    return bool(_resource.getrlimit(_resource.RLIMIT_AS)[0] != _resource.RLIM_INFINITY)
