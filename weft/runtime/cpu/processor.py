"""What LLVM calls this processor, kept on disk: asking takes longer than all that is loaded then.

The key is what Linux tells of the processor, so that a folder which several machines share serves
each of them; elsewhere LLVM is asked every time.
"""

from __future__ import annotations

import functools
import platform
import sys
from contextlib import suppress

from weft.core.common.lazy import LazyModule

_code_cache = LazyModule("weft.runtime.cpu.code_cache")
_hashlib = LazyModule("hashlib")
_llvmlite = LazyModule("llvmlite")
_TELLING = (  # lines that say which processor it is; others change from time to time
    "Features",
    "flags",
    "CPU implementer",
    "CPU architecture",
    "CPU variant",
    "CPU part",
    "CPU revision",
    "vendor_id",
    "cpu family",
    "model",
    "stepping",
)
_ENOUGH = 1 << 14  # bytes that tell of the first core, on which LLVM asks too


@functools.cache
def _key() -> str | None:
    """The name of this processor's entry; None if it has none."""
    if sys.platform != "linux":
        return None
    with suppress(OSError, ImportError):
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            first = file.read(_ENOUGH).split("\n\n")[0]
        lines = [line for line in first.splitlines() if line.startswith(_TELLING)]
        whole = ("processor 1", platform.machine(), _llvmlite.__version__, lines)
        return _hashlib.sha256(repr(whole).encode()).hexdigest() if lines else None
    return None


def recall_processor() -> tuple[str, str, str] | None:
    """Triple, name and features, if an earlier process has asked."""
    key = _key()
    entry = None if key is None else _code_cache.code_cache().folder.read(key)
    if entry is None:
        return None
    triple, name, features = entry.decode().split("\n")
    return triple, name, features


def keep_processor(found: tuple[str, str, str]) -> None:
    """Remember what LLVM said."""
    key = _key()
    if key is not None:
        _code_cache.code_cache().folder.write(key, "\n".join(found).encode())
