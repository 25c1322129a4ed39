"""Object code mapped into this process by weft itself: loading LLVM takes longer than linking.

Only what kernels and the executor are made of is understood, which is little: code, constants,
tables of addresses, and calls of C's library. `mapped` gives None for anything else, which is left
to LLVM's linker. Pages are written first and executed afterwards, never both.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import struct
import sys
from typing import NamedTuple

_ELF = b"\x7fELF\x02\x01"  # of 64 bits, little end first
_MACHINES = {"x86_64": 62, "aarch64": 183}
_PROGRAM, _SYMBOLS, _RELOCATIONS = 1, 2, 4  # types of sections
_WRITE, _ALLOCATE = 1, 2  # flags of sections
_STUB = {  # a jump to the address that follows
    "x86_64": bytes.fromhex("ff25020000009090"),
    "aarch64": bytes.fromhex("5000005800021fd6"),
}
_STUB_BYTES = 16
_LOW12 = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}  # parts of addresses, in such units


class _Foreign(Exception):
    """Something that this linker does not know."""


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


class Image:
    """Object code in memory; addresses are valid while this is alive."""

    def __init__(self, pages: mmap.mmap, addresses: dict[str, int]) -> None:
        self._pages = pages
        self._addresses = addresses

    def address(self, name: str) -> int:
        """Where the function `name` begins."""
        if name not in self._addresses:
            raise KeyError(f"jit: {name}: not found in this object code")
        return self._addresses[name]


def mapped(code: bytes) -> Image | None:
    """Object code ready to run; None where LLVM has to link it."""
    if not can_map():
        return None
    try:
        return _Linker(code).image()
    except (_Foreign, struct.error, IndexError, ValueError, OSError):
        return None


@functools.cache
def can_map() -> bool:
    """Whether this system is one whose object code is understood, and lets it run."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return False
    try:
        pages, start = _pages(mmap.PAGESIZE)
        _protect(start, len(pages))
    except OSError:
        return False
    return True


class _Linker:
    """Puts the sections of an object side by side and makes them refer to each other."""

    def __init__(self, code: bytes) -> None:
        self.code = code
        self.machine = platform.machine()
        kind, machine = struct.unpack_from("<HH", code, 16)
        if code[:6] != _ELF or kind != 1 or machine != _MACHINES[self.machine]:
            raise _Foreign
        (start,) = struct.unpack_from("<Q", code, 40)
        size, count, _ = struct.unpack_from("<HHH", code, 58)
        self.sections = [
            _Section(*struct.unpack_from("<IIQQQQIIQQ", code, start + i * size))
            for i in range(count)
        ]
        self.places: dict[int, int] = {}  # of sections, in the image
        self.stubs: dict[str, int] = {}  # of functions that are elsewhere
        self.end = 0
        self._lay_out(code[self.sections[struct.unpack_from("<H", code, 62)[0]].offset :])
        self._read_symbols()

    def _lay_out(self, names: bytes) -> None:
        for number, each in enumerate(self.sections):
            name = names[each.name : names.index(b"\0", each.name)]
            if not each.flags & _ALLOCATE or name == b".eh_frame" or not each.size:
                continue
            if each.kind != _PROGRAM or (each.flags & _WRITE and name != b".data.rel.ro"):
                raise _Foreign
            align = max(each.align, 1)
            self.places[number] = -(-self.end // align) * align
            self.end = self.places[number] + each.size

    def _read_symbols(self) -> None:
        (table,) = [each for each in self.sections if each.kind == _SYMBOLS]
        names = self.code[self.sections[table.link].offset :]
        self.symbols: list[tuple[str, int, int]] = []  # name, section, and place in it
        for i in range(table.size // 24):
            found = struct.unpack_from("<IBBHQQ", self.code, table.offset + 24 * i)
            name = names[found[0] : names.index(b"\0", found[0])].decode()
            self.symbols.append((name, found[3], found[4]))

    def image(self) -> Image:
        """The whole, with every reference resolved."""
        wanted = []
        for each in self.sections:
            if each.kind == _RELOCATIONS and each.info in self.places:
                for i in range(each.size // 24):
                    at, what, more = struct.unpack_from("<QQq", self.code, each.offset + 24 * i)
                    place = self._target(*self.symbols[what >> 32])
                    wanted.append((self.places[each.info] + at, what & 0xFFFFFFFF, place + more))
        content = bytearray(self.end)
        for number, start in self.places.items():
            each = self.sections[number]
            content[start : start + each.size] = self.code[each.offset : each.offset + each.size]
        for name, start in self.stubs.items():
            stub = _STUB[self.machine] + struct.pack("<Q", _function(name))
            content[start : start + _STUB_BYTES] = stub
        pages, base = _pages(len(content))
        write = _write_x86 if self.machine == "x86_64" else _write_arm
        for at, kind, place in wanted:
            write(content, base, at, kind, place)
        pages[:] = bytes(content)
        _protect(base, len(content))
        known = self.places
        return Image(pages, {n: base + known[s] + at for n, s, at in self.symbols if s in known})

    def _target(self, name: str, section: int, at: int) -> int:
        """Where in the image a symbol is: a function that is elsewhere is a jump to it."""
        if section in self.places:
            return self.places[section] + at
        if section or not name:
            raise _Foreign
        if name not in self.stubs:
            _function(name)
            self.stubs[name] = -(-self.end // _STUB_BYTES) * _STUB_BYTES
            self.end = self.stubs[name] + _STUB_BYTES
        return self.stubs[name]


def _write_x86(content: bytearray, base: int, at: int, kind: int, place: int) -> None:
    if kind == 1:
        struct.pack_into("<Q", content, at, base + place)
    elif kind in (2, 4):
        struct.pack_into("<i", content, at, place - at)
    else:
        raise _Foreign


def _write_arm(content: bytearray, base: int, at: int, kind: int, place: int) -> None:
    if kind == 257:
        struct.pack_into("<Q", content, at, base + place)
        return
    if kind == 261:
        struct.pack_into("<i", content, at, place - at)
        return
    (word,) = struct.unpack_from("<I", content, at)
    if kind in (282, 283):  # jumps and calls
        word = word & 0xFC000000 | (place - at) >> 2 & 0x03FFFFFF
    elif kind == 275:  # how many pages away
        pages = ((base + place) >> 12) - ((base + at) >> 12)
        word = word & 0x9F00001F | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    elif kind in _LOW12:  # where in the page
        word = word & ~(0xFFF << 10) | ((base + place) & 0xFFF) >> _LOW12[kind] << 10
    else:
        raise _Foreign
    struct.pack_into("<I", content, at, word)


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@functools.cache
def _function(name: str) -> int:
    """Where a function of C's library is."""
    try:
        found = getattr(_library(), name)
    except AttributeError:
        raise _Foreign from None
    return int(ctypes.cast(found, ctypes.c_void_p).value or 0)


def _pages(size: int) -> tuple[mmap.mmap, int]:
    """Memory for code, and where it is."""
    pages = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return pages, ctypes.addressof(ctypes.c_char.from_buffer(pages))


def _protect(start: int, size: int) -> None:
    """Make pages code; Linux lets processors forget what they had fetched from there."""
    protect = _library().mprotect
    protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    if protect(start, size, mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "mprotect")
