"""The user's line: where outside weft a call was made.

A position is (code object, instruction offset): cheap to take, resolved to a file and line only
when somebody asks, and it keeps no frame alive.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import NamedTuple

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_internal: dict[str, bool] = {}  # by file: a string's hash is cached, a code object's is not


class Position(NamedTuple):
    """A place in the user's program."""

    code: CodeType
    offset: int
    spare: bool = False  # computed for rows, too, whose results nobody takes

    @property
    def line(self) -> int:
        """The line number, found from the instruction offset."""
        for start, end, line in self.code.co_lines():
            if start <= self.offset < end and line is not None:
                return line
        return self.code.co_firstlineno

    @property
    def text(self) -> str:
        """The source line itself, if the file can be read."""
        return linecache.getline(self.code.co_filename, self.line).strip()

    def __str__(self) -> str:
        return f"{self.code.co_filename}:{self.line}"


_spare: ContextVar[bool] = ContextVar("weft_spare", default=False)
_blame: ContextVar[Position | None] = ContextVar("weft_blame", default=None)
_wanted: ContextVar[int] = ContextVar("weft_positions", default=0)  # by how many blocks
positions_wanted: Callable[[], int] = _wanted.get
blame, unblame = _blame.set, _blame.reset  # what `blamed` does, for code that is called very often


class blamed:
    """Inside, whatever is computed is put down to `position`: the line a backward pass is for."""

    __slots__ = ("_position", "_token")

    def __init__(self, position: Position | None) -> None:
        self._position = position

    def __enter__(self) -> None:
        if self._position is not None:
            self._token = _blame.set(self._position)

    def __exit__(self, *_: object) -> None:
        if self._position is not None:
            _blame.reset(self._token)


@contextmanager
def spare() -> Iterator[None]:
    """Inside, results may be of rows that nobody takes: so positions say."""
    token = _spare.set(True)
    try:
        yield
    finally:
        _spare.reset(token)


@contextmanager
def keeping_positions() -> Iterator[None]:
    """Inside, tapes remember the user's line of every op (it costs a little)."""
    keep_positions(1)
    try:
        yield
    finally:
        keep_positions(-1)


def keep_positions(blocks: int) -> None:
    """Have tapes remember lines for one block more, or one less."""
    _wanted.set(max(0, _wanted.get() + blocks))


def user_position(depth: int = 2) -> Position | None:
    """The innermost position outside weft, looking from `depth` frames up."""
    blame = _blame.get()
    if blame is not None:
        return blame._replace(spare=True) if _spare.get() else blame
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        code = frame.f_code
        inside = _internal.get(code.co_filename)
        if inside is None:
            inside = code.co_filename.startswith((_PACKAGE, "<frozen", "<string>"))
            if len(_internal) > 100_000:
                _internal.clear()
            _internal[code.co_filename] = inside
        if not inside:
            return Position(code, frame.f_lasti, _spare.get())
        frame = frame.f_back
    return None


def describe(position: Position | None) -> str:
    """`file:line: source`, for error messages and listings."""
    if position is None:
        return "<unknown line>"
    return f"{position}: {position.text}" if position.text else str(position)
