"""Compiled code is compiled once: kept in memory for this process and on disk for the next.

The key is a hash of everything that decides the bytes: the text, the target, the versions of weft
and LLVM, and the sources of the compiler. The settings `cache_dir` and `cache_bytes` say where and
how much; a folder that cannot be used safely costs one warning and nothing else.
"""

from __future__ import annotations

import hashlib
import sys
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from weakref import WeakValueDictionary

from weft.config import settings
from weft.core.common.locks import lock_for
from weft.runtime.cpu.code_folder import CodeCounters, CodeFolder, default_folder
from weft.runtime.cpu.fingerprint import COMPILER_SOURCES, hash_of, state_of
from weft.runtime.cpu.jit import Loaded, Target, load_object

_MEMORY_BYTES = 32 << 20


class CodeCache:
    """Compiled code by key: what was used lately in memory, the rest in a folder."""

    def __init__(self, path: str, limit: int, memory_bytes: int = _MEMORY_BYTES) -> None:
        self.counters = CodeCounters()
        self.folder = CodeFolder(path, limit, self.counters)
        self.memory_bytes = memory_bytes
        self._recent: OrderedDict[str, bytes] = OrderedDict()
        self._recent_bytes = 0
        self._lock = lock_for(self, "_lock")

    def get(self, key: str) -> bytes | None:
        """The code under `key`, or None."""
        with self._lock:
            found = self._recent.get(key)
            if found is not None:
                self._recent.move_to_end(key)
        if found is None:
            found = self.folder.read(key)
            if found is None:
                self.counters.misses += 1
                return None
            self.counters.loaded += 1
            self._remember(key, found)
        self.counters.hits += 1
        return found

    def recent(self, key: str) -> bytes | None:
        """What this process made or read lately; to ask for it counts as nothing."""
        with self._lock:
            return self._recent.get(key)

    def put(self, key: str, code: bytes) -> None:
        """Keep `code` under `key`."""
        self._remember(key, code)
        self.folder.write(key, code)

    def _remember(self, key: str, code: bytes) -> None:
        with self._lock:
            self._recent_bytes += len(code) - len(self._recent.pop(key, b""))
            self._recent[key] = code
            while self._recent_bytes > self.memory_bytes:
                _, dropped = self._recent.popitem(last=False)
                self._recent_bytes -= len(dropped)


_made: dict[tuple[str, int], CodeCache] = {}  # one, for the settings as they are


def code_cache() -> CodeCache:
    """The cache that the settings ask for."""
    chosen = (settings.cache_dir or default_folder(), settings.cache_bytes)
    found = _made.get(chosen)
    if found is None:
        found = CodeCache(*chosen)
        _made.clear()
        _made[chosen] = found
    return found


def cached(text: str, target: Target, compile: Callable[[], bytes]) -> bytes:
    """The code of `text` for `target`: kept from before, or made by `compile` and kept."""
    store, key = code_cache(), key_of(text, target)
    code = store.get(key)
    if code is None:
        code = compile()
        store.put(key, code)
    return code


def key_of(text: str, target: Target) -> str:
    """The name of this compilation: equal names mean equal code."""
    parts = (text, target.triple, target.cpu, target.features, compiler_fingerprint())
    total = hashlib.sha256()
    for part in parts:
        raw = part.encode()
        total.update(len(raw).to_bytes(8, "little") + raw)
    return total.hexdigest()


@cache
def compiler_fingerprint() -> str:
    """A hash of what turns text into code: its sources, and the versions of what it stands on."""
    return _fingerprint(COMPILER_SOURCES)


@cache
def package_fingerprint() -> str:
    """A hash of all of weft: what decides which code a traced function becomes."""
    return _fingerprint(("",))


def _fingerprint(folders: tuple[str, ...]) -> str:
    """The hash of these sources, which is kept for as long as no file changes."""
    before = state_of(folders)
    folder = code_cache().folder
    kept = None if before is None else folder.read(before)
    if kept is not None:
        return kept.decode()
    found = hash_of(folders)
    if before is not None and state_of(folders) == before:
        folder.write(before, found.encode())
    return found


_linked: WeakValueDictionary[str, Loaded] = WeakValueDictionary()
# Two threads that link one code must get the same.
_linking = lock_for(sys.modules[__name__], "_linking")


def link(key: str, code: bytes) -> Loaded:
    """The code kept under `key` in this process: mapped now, unless a program uses it already."""
    with _linking:
        found = _linked.get(key)
        if found is None:
            found = _linked[key] = load_object(code)
        return found


def linked(key: str) -> tuple[Loaded | None, bool]:
    """The code under `key`, None if it is not kept; and whether it had to be mapped."""
    found = _linked.get(key)
    if found is not None:
        return found, False
    code = code_cache().get(key)
    return (None if code is None else link(key, code)), True
