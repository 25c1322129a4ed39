"""HTML from values: what is not `Markup` already is escaped, so no name can become a tag.

Notebook displays and pages are put together from `element` and `tree` alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from weft.core.common.lazy import LazyModule

_html = LazyModule("html")


class Markup(str):
    """Text that is HTML; every other text is escaped when it becomes part of one."""

    __slots__ = ()


def markup(value: object) -> Markup:
    """A value as HTML.

    >>> markup("a < b"), markup(Markup("<b>bold</b>"))
    ('a &lt; b', '<b>bold</b>')
    """
    return value if isinstance(value, Markup) else Markup(_html.escape(str(value)))


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """An element; attributes that are None are left out, `class_` is written `class`.

    >>> element("td", "x < y", class_="number")
    '<td class="number">x &lt; y</td>'
    """
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_html.escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{given}>{joined(children)}</{tag}>")


def joined(children: Iterable[object]) -> Markup:
    """Several values, one after the other, as HTML."""
    return Markup("".join(map(markup, children)))


def tree(label: object, children: Iterable[Markup] = (), *, opened: bool = False) -> Markup:
    """A label that folds its children away; children are trees themselves.

    >>> tree("model", [tree("bias")])
    '<details><summary>model</summary><div style="margin-left:1.2em">bias</div></details>'
    """
    inside = list(children)
    if not inside:
        return markup(label)
    rows = [element("div", child, style="margin-left:1.2em") for child in inside]
    return element("details", element("summary", label), *rows, open="" if opened else None)
