"""The header that opens each block between two ranks: what the sender is doing, as JSON.

Two ranks meet in the same collective if their headers agree. Headers are made once for each kind of
call and compared as bytes; they are read only where sizes may differ, or when something is wrong.
"""

from __future__ import annotations

import functools
import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from weft.core.common.dtypes import as_dtype, name_of
from weft.core.common.types import DType, Shape, TensorType

_LENGTH = struct.Struct("<I")
_ALIGNMENT = 16  # of what follows a header
_MEMBERS_LISTED = 64
_TEXT_SHOWN = 512


@dataclass(frozen=True, slots=True)
class Header:
    """What a rank tells another one about the collective it has come to."""

    op: str
    common: tuple[str, ...]  # what every member must say alike
    carries: tuple[TensorType, ...] = ()  # what the block brings
    expects: tuple[TensorType, ...] = ()  # what it wants to be brought; who exchanges says all

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that it brings."""
        return sum(carried.nbytes for carried in self.carries)

    def fits(self, other: Header) -> bool:
        """Whether two ranks with these headers can go on together."""
        if self.op != other.op or self.common != other.common:
            return False
        told = self.op == "exchange"
        pairs = ((self.expects, other.carries), (other.expects, self.carries))
        return all(wanted == brought or not (wanted or told) for wanted, brought in pairs)

    def __str__(self) -> str:
        words = [self.op, *self.common]
        if self.carries:
            words.append(f"{'sends ' * (self.op == 'exchange')}{', '.join(map(str, self.carries))}")
        if self.expects:
            words.append(f"expects {', '.join(map(str, self.expects))}")
        return " ".join(words)


@functools.lru_cache(maxsize=4096)
def encode(header: Header) -> bytes:
    """The header as it travels: its length, JSON, and padding that aligns what follows."""
    content = [header.op, header.common, _plain(header.carries), _plain(header.expects)]
    text = json.dumps(content).encode()
    padding = -(_LENGTH.size + len(text)) % _ALIGNMENT
    return _LENGTH.pack(_LENGTH.size + len(text) + padding) + text + b" " * padding


@functools.lru_cache(maxsize=1024)
def decode(block: bytes) -> Header:
    """The header that `encode` wrote."""
    op, common, carries, expects = json.loads(block[_LENGTH.size :])
    return Header(op, tuple(common), _types(carries), _types(expects))


def header_bytes(block: memoryview) -> bytes:
    """The bytes of the header at the start of a block."""
    return bytes(block[: _LENGTH.unpack_from(block)[0]])


def members_text(members: Sequence[int]) -> str:
    """Members in a header: all of them, or a fingerprint if there are very many."""
    listed = ", ".join(map(str, members))
    if len(members) <= _MEMBERS_LISTED:
        return f"of ranks {listed}"
    return f"of {len(members)} ranks {hashlib.sha256(listed.encode()).hexdigest()[:16]}"


def short_text(text: str) -> str:
    """A user's text in a header: itself, or its start and a fingerprint."""
    if len(text) <= _TEXT_SHOWN:
        return repr(text)
    return f"{text[:_TEXT_SHOWN]!r}… {hashlib.sha256(text.encode()).hexdigest()}"


def type_of(shape: Shape, dtype: DType, op: str) -> TensorType:
    """Shape and dtype as a header holds them; a dtype that weft does not have is an error."""
    return TensorType(tuple(int(n) for n in shape), as_dtype(dtype, op=op))


def _plain(types: Sequence[TensorType]) -> list[list[object]]:
    return [[name_of(each.dtype), each.shape] for each in types]


def _types(plain: list[tuple[str, list[int]]]) -> tuple[TensorType, ...]:
    return tuple(TensorType(tuple(shape), as_dtype(name)) for name, shape in plain)
