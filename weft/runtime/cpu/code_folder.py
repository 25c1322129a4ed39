"""A folder of compiled code that only its user can write and that many processes may share.

An entry is one file: a JSON header line, then the code. The header holds a code of authentication
under a random key of this user, so bytes that changed on disk are a miss and are never run. No
lock is held: files appear by renaming, vanish by unlinking, and losing a race costs a compilation.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from weft.core.common.lazy import LazyModule

_FORMAT = 1
_SUFFIX = ".code"
_KEY_FILE = "key"
_KEY_BYTES = 32
_WRITTEN_FILE = "written"  # one byte for each page that was stored since the last sweep
_PAGE = 4096  # what a file system gives to files: small entries cost this much too
_ABANDONED = 3600.0  # seconds after which an unfinished file has no writer any more
_HAS_OWNERS = hasattr(os, "geteuid")  # where files have none to check, nothing is kept on disk
# A link or a pipe in the folder is no entry.
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK if _HAS_OWNERS else 0

_logging = LazyModule("logging")


class CodeCounters:
    """What a cache of compiled code has done so far."""

    hits: int = 0
    loaded: int = 0  # hits that came from disk
    misses: int = 0
    stored: int = 0
    rejected: int = 0  # entries that did not authenticate
    evicted: int = 0


class _Untrusted(OSError):
    """A file that someone else may have written."""


class CodeFolder:
    """Compiled code on disk under hexadecimal keys, at most `limit` bytes of it.

    A folder that is not safe or not usable is left alone: one warning says why, reads are misses
    and writes do nothing.
    """

    def __init__(self, path: str, limit: int, counters: CodeCounters | None = None) -> None:
        self.path = os.path.abspath(os.path.expanduser(path))
        self.limit = limit
        self.counters = CodeCounters() if counters is None else counters
        self._reads = self._writes = limit > 0 and _HAS_OWNERS
        self._warned = False

    @property
    def is_used(self) -> bool:
        """Whether anything can be found or stored here."""
        return self._reads

    def read(self, key: str) -> bytes | None:
        """The code stored under `key`, or None; an entry that does not authenticate is removed."""
        if not self._reads:
            return None
        try:
            with _opened(self.path) as folder:
                return self._read(folder, key)
        except OSError as error:
            self._reads = self._writes = False
            self._warn(error)
            return None

    def write(self, key: str, code: bytes) -> None:
        """Store `code` under `key`; code of more than an eighth of the limit is not kept."""
        pages = -(-(len(code) + 256) // _PAGE)
        if not self._writes or pages * _PAGE > self.limit // 8:
            return
        try:
            with _opened(self.path) as folder:
                self._write(folder, key, code)
                self.counters.stored += 1
                self._count(folder, pages)
        except OSError as error:  # also a full or read-only disk: what is there can still be read
            self._writes = False
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            reason = error.strerror or str(error)
            log = _logging.getLogger("weft")
            log.warning("compiled code is not kept on disk: %s: %s", self.path, reason)

    def _read(self, folder: int, key: str) -> bytes | None:
        name = key + _SUFFIX
        try:
            data = _contents(folder, name)
        except FileNotFoundError:
            return None
        except _Untrusted:
            data = b""
        head, _, code = data.partition(b"\n")
        # Nothing of the file is parsed: the header is made anew and must be the same, byte by byte.
        if hmac.compare_digest(head, _header(_secret(folder), key, code)):
            with suppress(
                OSError
            ):  # read-only, or evicted meanwhile: the code is good all the same
                os.utime(name, dir_fd=folder, follow_symlinks=False)
            return code
        self.counters.rejected += 1
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        return None

    def _write(self, folder: int, key: str, code: bytes) -> None:
        # Without fsync a crash of the machine may leave a file cut short under the final name.
        # It does not authenticate, so it costs one compilation; waiting for the disk costs each.
        data = _header(_secret(folder), key, code) + b"\n" + code
        name = key + _SUFFIX
        with _new_file(folder, data) as fresh:
            os.rename(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)

    def _count(self, folder: int, pages: int) -> None:
        """Add to what all processes have stored since the last sweep; sweep after an eighth.

        A sweep leaves three quarters of the limit, so it is not exceeded before the next one.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | _SAFE
        written = os.open(_WRITTEN_FILE, flags, 0o600, dir_fd=folder)
        try:
            os.write(written, bytes(pages))
            if os.fstat(written).st_size * _PAGE > self.limit // 8:
                os.ftruncate(written, 0)
                self._sweep(folder)
        finally:
            os.close(written)

    def _sweep(self, folder: int) -> None:
        """Remove the entries used longest ago, and what writers that died have left."""
        entries: list[tuple[int, str, int]] = []
        total = 0
        old = time.time() - _ABANDONED
        for name in os.listdir(folder):
            try:
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if name.endswith(_SUFFIX):
                size = -(-found.st_size // _PAGE) * _PAGE
                entries.append((found.st_mtime_ns, name, size))
                total += size
            elif name.startswith(".") and found.st_mtime < old:
                _remove(folder, name)
        for _, name, size in sorted(entries):
            if total <= self.limit // 4 * 3:
                break
            _remove(folder, name)
            total -= size
            self.counters.evicted += 1


def default_folder() -> str:
    """Where compiled code lies unless a setting says otherwise: weft in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "weft")


@contextmanager
def _opened(path: str) -> Iterator[int]:
    """The folder, made if it is not there; an error that says why it must not be used."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        folder = os.open(path, flags)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        folder = os.open(path, flags)
    except OSError:
        if os.path.islink(path):
            raise PermissionError("it is a symbolic link") from None
        raise
    try:
        found = os.fstat(folder)
        if found.st_uid != os.geteuid():
            raise PermissionError("it belongs to another user")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError("other users may write to it")
        yield folder
    finally:
        os.close(folder)


def _contents(folder: int, name: str, private: bool = False) -> bytes:
    """All bytes of a plain file of this user; `private`: which nobody else may even read."""
    others = stat.S_IRWXG | stat.S_IRWXO if private else stat.S_IWGRP | stat.S_IWOTH
    try:
        number = os.open(name, os.O_RDONLY | _SAFE, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _Untrusted("it is a symbolic link") from None
        raise
    try:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode) or found.st_mode & others:
            raise _Untrusted("it is no plain file, or others may change it")
        if found.st_uid != os.geteuid():
            raise _Untrusted("it belongs to another user")
        with open(number, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(number)


@contextmanager
def _new_file(folder: int, data: bytes) -> Iterator[str]:
    """The name of a new file with these bytes; removed afterwards unless it was renamed."""
    name = f".{os.urandom(16).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE
    try:
        with open(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
            file.write(data)
        yield name
    finally:
        _remove(folder, name)


def _remove(folder: int, name: str) -> None:
    with suppress(FileNotFoundError, IsADirectoryError):
        os.unlink(name, dir_fd=folder)


def _secret(folder: int) -> bytes:
    """This user's key; a new one where there is none, or none that can be trusted.

    Entries under a lost key are rejected one by one when they are next asked for.
    """
    while True:
        try:
            found = _contents(folder, _KEY_FILE, private=True)
            if len(found) == _KEY_BYTES:
                return found
            os.unlink(_KEY_FILE, dir_fd=folder)
        except FileNotFoundError:
            pass
        except _Untrusted:
            os.unlink(_KEY_FILE, dir_fd=folder)
        # A link appears with all its bytes, and fails where another process was faster.
        with _new_file(folder, os.urandom(_KEY_BYTES)) as fresh, suppress(FileExistsError):
            os.link(fresh, _KEY_FILE, src_dir_fd=folder, dst_dir_fd=folder)


def _header(secret: bytes, key: str, code: bytes) -> bytes:
    """The line before the code."""
    fields = f'"format": {_FORMAT}, "key": "{key}", "bytes": {len(code)}'
    told = f"{{{fields}}}\n".encode()
    mac = hmac.new(secret, told + code, hashlib.sha256).hexdigest()
    return f'{{{fields}, "mac": "{mac}"}}'.encode()
