"""Hashes of weft's own sources: what is kept on disk is used only by the weft that made it.

Reading every source takes longer than loading a program, so `state_of` tells in a fraction of that
time whether they are still the files whose hash is known.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator

import ml_dtypes
import numpy as np

from weft.core.common.lazy import LazyModule

COMPILER_SOURCES = ("compiler", "ops/functions", "runtime/cpu")  # that turn text into code
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_SETTLED_NS = 2_000_000_000  # the clock of a file system may stand still for a while
_llvmlite = LazyModule("llvmlite")


def hash_of(folders: tuple[str, ...]) -> str:
    """A hash of the contents of all sources in these folders of weft, and of versions."""
    total = hashlib.sha256(_versions())
    for name, entry in _sources(folders):
        with open(entry.path, "rb") as file:
            content = file.read()
        total.update(f"{name} {len(content)}\n".encode() + content)
    return total.hexdigest()


def state_of(folders: tuple[str, ...]) -> str | None:
    """A hash that differs once one of these files has changed; None if one has just done so."""
    rows = []
    newest = 0
    for name, entry in _sources(folders):
        found = entry.stat()
        newest = max(newest, found.st_ctime_ns, found.st_mtime_ns)
        times = (found.st_mtime_ns, found.st_ctime_ns)
        rows.append((name, found.st_dev, found.st_ino, found.st_size, *times))
    if newest > time.time_ns() - _SETTLED_NS:
        return None
    return hashlib.sha256(_versions() + repr((_PACKAGE, rows)).encode()).hexdigest()


def _sources(folders: tuple[str, ...]) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """The files and their names, in an order that does not depend on the file system."""
    for folder in folders:
        entries = sorted(os.scandir(os.path.join(_PACKAGE, folder)), key=lambda e: e.name)
        for each in entries:
            name = f"{folder}/{each.name}" if folder else each.name
            if each.name.endswith(".py"):
                yield name, each
            elif each.name != "__pycache__" and each.is_dir(follow_symlinks=False):
                yield from _sources((name,))


def _versions() -> bytes:
    """Python, and the libraries whose arithmetic or code generation ends up in programs."""
    libraries = (np.__version__, ml_dtypes.__version__, _llvmlite.__version__)
    return f"{sys.version} {libraries}\n".encode()
