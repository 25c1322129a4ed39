"""Pieces as HTML: a table to scale, for notebooks and pages; it has neither script nor links."""

from __future__ import annotations

from weft.core.common.markup import Markup, element
from weft.transforms.pictures.pieces import Piece, ShardingPicture, colour_of

_MOST = 16
_FAINT = "opacity:.6;font-weight:normal;padding:2px 6px;white-space:nowrap"
_WIDTH, _HEIGHT = 640, 240  # pixels for all boxes together


def html(picture: ShardingPicture) -> Markup:
    """The picture as part of a page."""
    notes = [element("div", note, style="opacity:.75") for note in picture.notes]
    body = _table(picture) if picture.shape else element("div", f"held by {picture.holders()}")
    title = element("div", picture.title, style="font-weight:600")
    return element("div", title, body, *notes, style="font:13px/1.5 sans-serif")


def page(picture: ShardingPicture) -> str:
    """The picture as a page of its own."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        element("title", f"{picture.title} — weft"),
    )
    return f"<!DOCTYPE html>\n{element('html', head, element('body', html(picture)), lang='en')}\n"


def _table(picture: ShardingPicture) -> Markup:
    down, across = picture.axes
    rows = picture.pieces(down, _MOST)
    columns = picture.pieces(across, _MOST)
    corner = [] if down is None else [element("th")]
    heads = [element("th", _range(column), style=_FAINT) for column in columns]
    body = [
        element(
            "tr",
            *([] if down is None else [element("th", _range(row), style=_FAINT)]),
            *(_cell(picture, (i, j), row, column) for j, column in enumerate(columns)),
        )
        for i, row in enumerate(rows)
    ]
    return element(
        "table",
        element("tr", *corner, *heads),
        *body,
        style="border-collapse:collapse;margin:6px 0",
    )


def _cell(
    picture: ShardingPicture, place: tuple[int, int], row: Piece | None, column: Piece | None
) -> Markup:
    if row is None or column is None:
        return element("td", "…", style="text-align:center;padding:2px 8px")
    down, across = picture.axes
    height = 30 if down is None else max(22, _HEIGHT * row.size // max(1, picture.shape[down]))
    width = 60 if across is None else max(48, _WIDTH * column.size // max(1, picture.shape[across]))
    hue = colour_of(*place) * 30
    style = (
        f"width:{width}px;height:{height}px;text-align:center;padding:2px 8px;color:#111;"
        f"border:1px solid #444;background:hsl({hue},60%,80%)"
    )
    empty = " (empty)" if not row.size or not column.size else ""
    return element("td", picture.holders(row, column) + empty, style=style)


def _range(piece: Piece | None) -> str:
    return "…" if piece is None else f"{piece.start}:{piece.end}"
