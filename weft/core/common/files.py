"""Files and folders that appear whole or not at all.

What is being written lies beside its target under a hidden name that ends in `.partial`, locked by
its writer; it is synchronised with the disk and then renamed. A writer that dies leaves an unlocked
partial, which the next writer of the same target removes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from weft.core.common.lazy import LazyModule
from weft.core.common.parameters import shown
from weft.errors import ArgumentError, FormatError, StorageError

_fcntl = LazyModule("fcntl")  # absent where no file is ever locked
_shutil = LazyModule("shutil")

PARTIAL = ".partial"
CHUNK = 1 << 22  # bytes per write: a hash of them is taken while they are in cache
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2
_HERE = -100  # AT_FDCWD
_HINTS = {
    errno.ENOSPC: "the disk is full: free some space, or save elsewhere",
    errno.EDQUOT: "the disk quota is used up: free some space, or save elsewhere",
    errno.EFBIG: "a limit on file sizes was met: raise it (ulimit -f), or save elsewhere",
    errno.EROFS: "the file system is read-only: save elsewhere",
    errno.EACCES: "this user may not do that there: change the permissions, or choose another path",
    errno.EPERM: "this user may not do that there: change the permissions, or choose another path",
    errno.ENOENT: "nothing is there: check the path",
    errno.ENOTDIR: "a part of the path is a file where a folder is needed",
    errno.EEXIST: "something of another kind is there already: choose another path",
    errno.ENOTEMPTY: "something of another kind is there already: choose another path",
}


@contextmanager
def reporting(op: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Inside, what the operating system refuses is a `StorageError` that names op and path."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise storage_error(op, path, error) from error


def storage_error(op: str, path: str | os.PathLike[str], error: OSError) -> StorageError:
    """The error for `path`, with what can be done about it."""
    hint = _HINTS.get(error.errno or 0)
    reason = error.strerror or str(error)
    text = f"{op}: {os.fspath(path)}: {reason}" + (f"\nhint: {hint}" if hint else "")
    made = StorageError(text)
    made.errno = error.errno
    return made


def as_path(op: str, path: Any) -> Path:
    """The path that a user gives, if a file can have such a one."""
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str) or "\0" in name:
        raise ArgumentError(f"{op}: path: expected the name of a file or folder, got {shown(path)}")
    return Path(name)


def read_file(path: Path, limit: int, folder: int | None = None) -> bytes:
    """All bytes of a plain file of at most `limit` bytes; a link or a pipe is refused."""
    file = open_plain(path, follow=False, folder=folder)
    try:
        size = os.fstat(file).st_size
        if size > limit:
            raise FormatError(f"load: {path}: has {size} bytes, more than the {limit} allowed")
        parts = bytearray()
        while part := os.read(file, min(CHUNK, limit + 1 - len(parts))):
            parts += part
        return bytes(parts)
    finally:
        os.close(file)


def open_folder(path: Path) -> int:
    """A descriptor of a folder, which stays the same one when its name goes to another."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def open_plain(path: Path, *, follow: bool, folder: int | None = None) -> int:
    """A descriptor for reading a plain file; `follow` says whether `path` may be a link.

    With the descriptor of a `folder`, the file is looked up there by its last name.
    """
    # Without O_NONBLOCK opening a pipe would wait for its writer.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        file = os.open(path if folder is None else path.name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FormatError(f"load: {path}: is a link, not a plain file") from None
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise FormatError(f"load: {path}: is not a plain file")
    return file


def write_file(path: Path, parts: Iterable[bytes | memoryview], *, exclusive: bool = True) -> int:
    """Write a new file and wait until the disk has it; the number of bytes is returned."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if exclusive else os.O_TRUNC)
    file = os.open(path, flags, 0o666)
    try:
        written = 0
        for part in parts:
            written += _write_all(file, part)
        os.fsync(file)
        return written
    finally:
        os.close(file)


def write_atomically(op: str, path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file that appears under its name when it is complete."""
    with reporting(op, path):
        if path.is_dir():
            raise ArgumentError(f"{op}: {path}: is a folder\nhint: give the name of a file")
        partial = Partial(path, folder=False)
        try:
            write_file(partial.path, parts, exclusive=False)
            partial.commit()
        finally:
            partial.close()


def _write_all(file: int, part: bytes | memoryview) -> int:
    view = memoryview(part).cast("B")
    done = 0
    while done < len(view):
        done += os.write(file, view[done : done + CHUNK])
    return done


def sync_folder(path: Path) -> None:
    """Wait until the disk has the names in a folder."""
    folder = open_folder(path)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class Partial:
    """A folder or file being written beside `target`; `path` is its name until it is committed.

    The lock is held until `close`, so that no other process takes it for a leftover.
    """

    def __init__(self, target: Path, *, folder: bool) -> None:
        self.target = target
        clear_leftovers(target.parent, f".{target.name}.")
        while True:
            self.path = target.parent / f".{target.name}.{os.urandom(6).hex()}{PARTIAL}"
            if folder:
                os.mkdir(self.path)
            else:
                os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            try:
                self._lock = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:  # somebody cleared it away before it was locked
                continue
            _fcntl.flock(self._lock, _fcntl.LOCK_EX)
            if os.path.lexists(self.path):
                return
            os.close(self._lock)

    def commit(self) -> None:
        """Give the finished work its name; what had that name before is removed."""
        try:
            os.rename(self.path, self.target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            _exchange(self.path, self.target)  # a folder that holds something
        sync_folder(self.target.parent)
        remove(self.path)

    def close(self) -> None:
        """Release the lock; what was not committed is removed."""
        remove(self.path)
        os.close(self._lock)


def _exchange(one: Path, other: Path) -> None:
    """Swap two names in one step: at every instant both are there."""
    library = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    if library.renameat2(_HERE, names[0], _HERE, names[1], _EXCHANGE) != 0:
        number = ctypes.get_errno()
        if number == errno.EINVAL:
            raise StorageError(
                f"save: {other}: this file system cannot replace a folder in one step"
                "\nhint: save under a name that is not taken, then remove the old folder"
            )
        raise OSError(number, os.strerror(number), str(other))


def remove(path: Path) -> None:
    """Remove a file or folder if it is there; what cannot be removed stays as a leftover."""
    if path.is_dir() and not path.is_symlink():
        _shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def retire(path: Path) -> None:
    """Remove a folder such that it is never seen in part: it loses its name first."""
    hidden = path.parent / f".{path.name}.{os.urandom(6).hex()}{PARTIAL}"
    try:
        os.rename(path, hidden)
    except FileNotFoundError:
        return  # another process was faster
    remove(hidden)


def clear_leftovers(folder: Path, prefix: str) -> None:
    """Remove partials whose names begin with `prefix` and whose writers are gone."""
    for name in os.listdir(folder):
        if name.startswith(prefix) and name.endswith(PARTIAL):
            _clear(folder / name)


def _clear(path: Path) -> None:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        lock = os.open(path, flags)
    except OSError:
        return  # gone already, or not ours to open
    try:
        _fcntl.flock(lock, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
    except BlockingIOError:
        return  # its writer is alive
    else:
        remove(path)
    finally:
        os.close(lock)
