"""Pieces as boxes of text, to scale as far as their labels allow.

With `rich` installed and a terminal to print on, boxes are coloured; the text is the same.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import NamedTuple

from weft.core.common.lazy import LazyModule
from weft.transforms.pictures.pieces import Piece, ShardingPicture, colour_of

_console = LazyModule("rich.console")
_text = LazyModule("rich.text")
_MOST_ROWS = 12
_MOST_COLUMNS = 12
_LINES = 3  # of text for a row of mean size, where all rows are drawn
_LINE = dict(zip("─│┌┬┐├┼┤└┴┘…×≈·", "-|+++++++++.x~.", strict=True))
_COLOURS = (
    "white on dark_blue", "black on khaki1", "white on dark_green", "black on light_pink1",
    "white on purple4", "black on pale_green1", "white on dark_red", "black on sky_blue1",
    "white on grey35", "black on orange1", "white on deep_pink4", "black on aquamarine1",
)  # fmt: skip


class _Span(NamedTuple):
    """Text, and the number of its colour if it has one."""

    text: str
    colour: int | None = None


def show(picture: ShardingPicture, width: int | None) -> None:
    """Print a picture as wide as the terminal, or as asked."""
    columns = width or max(20, shutil.get_terminal_size((80, 24)).columns)
    lines = list(_lines(picture, columns))
    if find_spec("rich") is None:
        sys.stdout.write(_encodable("\n".join(_plain(line) for line in lines) + "\n"))
        return
    console = _console.Console(file=sys.stdout, width=columns, highlight=False)
    for line in lines:
        made = _text.Text(no_wrap=True, overflow="crop")
        for span in line:
            style = "" if span.colour is None else _COLOURS[span.colour]
            made.append(_encodable(span.text), style)
        console.print(made, soft_wrap=True)


def text(picture: ShardingPicture, width: int) -> str:
    """A picture as plain text."""
    return "\n".join(_plain(line) for line in _lines(picture, width))


def _plain(line: Sequence[_Span]) -> str:
    return "".join(span.text for span in line).rstrip()


def _encodable(text: str) -> str:
    """The text in characters that the terminal has."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return "".join(_LINE.get(letter, letter) for letter in text)
    return text


def _lines(picture: ShardingPicture, width: int) -> Iterator[list[_Span]]:
    yield from _wrapped(picture.title, width)
    if picture.shape:
        yield from _grid(picture, width)
    else:
        yield from _wrapped(f"held by {picture.holders()}", width)
    for note in picture.notes:
        yield from _wrapped(note, width)


def _wrapped(sentence: str, width: int) -> Iterator[list[_Span]]:
    """A sentence in lines of at most `width` columns."""
    line = ""
    for word in sentence.split(" "):
        if line and len(line) + 1 + len(word) > width:
            yield [_Span(line)]
            line = "  "
        line = f"{line}{' ' if line.strip() else ''}{word}"
        while len(line) > width:
            yield [_Span(line[:width])]
            line = line[width:]
    yield [_Span(line)]


def _grid(picture: ShardingPicture, width: int) -> Iterator[list[_Span]]:
    down, _ = picture.axes
    rows = picture.pieces(down, _MOST_ROWS)
    heads = ["" if down is None else _range(row) for row in rows]
    margin = max(map(len, heads)) + 1 if down is not None else 0
    columns, least = _columns(picture, rows, width - margin)
    widths = _shares([*map(_size, columns)], width - margin - len(columns) - 1, least)
    lines = _LINES * len(rows) if 1 < len(rows) < _MOST_ROWS else len(rows)
    heights = _shares([*map(_size, rows)], lines, 1)
    yield [_Span(" " * margin + _header(columns, widths))]
    yield [_Span(" " * margin + _rule("┌┬┐", widths))]
    for i, row in enumerate(rows):
        if i:
            yield [_Span(" " * margin + _rule("├┼┤", widths))]
        labels = [_label(picture, row, column) for column in columns]
        cells = [_fitted(label, size) for label, size in zip(labels, widths, strict=True)]
        colours = [
            None if row is None or column is None else colour_of(i, j)
            for j, column in enumerate(columns)
        ]
        height = max(heights[i], max(map(len, cells)))
        for line in range(height):
            name = heads[i] if line == (height - 1) // 2 else ""
            spans = [_Span(f"{name:<{margin}}│")]
            for cell, size, colour in zip(cells, widths, colours, strict=True):
                number = line - (height - len(cell)) // 2
                inside = cell[number] if 0 <= number < len(cell) else ""
                spans += [_Span(inside.center(size), colour), _Span("│")]
            yield spans
    yield [_Span(" " * margin + _rule("└┴┘", widths))]


def _columns(
    picture: ShardingPicture, rows: Sequence[Piece | None], space: int
) -> tuple[list[Piece | None], int]:
    """As many columns as their labels leave room for, and how wide the narrowest must be."""
    for most in range(_MOST_COLUMNS, 2, -1):
        columns = picture.pieces(picture.axes[1], most)
        parts = [part for row in rows for c in columns for part in _parts(_label(picture, row, c))]
        least = max(len(part.rstrip()) for part in (*parts, *map(_range, columns)))
        if len(columns) * (least + 1) + 1 <= space:
            return columns, least
    return columns, max(1, (space - 1) // len(columns) - 1)


def _label(picture: ShardingPicture, row: Piece | None, column: Piece | None) -> str:
    if row is None or column is None:
        return "…"
    empty = " (empty)" if not row.size or not column.size else ""
    return picture.holders(row, column) + empty


def _size(piece: Piece | None) -> int:
    return 0 if piece is None else piece.size


def _range(piece: Piece | None) -> str:
    return "…" if piece is None else f"{piece.start}:{piece.end}"


def _header(columns: Sequence[Piece | None], widths: Sequence[int]) -> str:
    found = [_range(c).center(w)[:w] for c, w in zip(columns, widths, strict=True)]
    return (" " + " ".join(found)).rstrip()


def _rule(corners: str, widths: Sequence[int]) -> str:
    return corners[0] + corners[1].join("─" * w for w in widths) + corners[2]


def _shares(sizes: Sequence[int], total: int, least: int) -> list[int]:
    """`total` cells shared out by size, none getting fewer than `least`."""
    spare = max(0, total - least * len(sizes))
    whole = sum(sizes)
    if not whole:
        return [least] * len(sizes)
    # What exceeds the least is shared so that sizes keep their proportions where they can.
    wanted = [max(0.0, size / whole * total - least) for size in sizes]
    scale = min(1.0, spare / sum(wanted)) if sum(wanted) else 0.0
    return [least + int(want * scale) for want in wanted]


def _fitted(label: str, width: int) -> list[str]:
    """A label in lines that fit a box, at most four."""
    lines = [""]
    for part in _parts(label):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    found = [line.rstrip() for line in lines]
    if len(found) > 4:
        found = [*found[:3], "…"]
    return [line if len(line) <= width else line[: width - 1] + "…" for line in found]


def _parts(label: str) -> list[str]:
    """What a label may be broken into: after commas and spaces."""
    return label.replace(",", ",\0").replace(" ", " \0").split("\0")
