"""`visualize`: a function's graph as a page; `visualize_sharding`: who holds what of a tensor."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from weft.compiler.function import CompiledFunction
from weft.core.common.lazy import LazyModule
from weft.core.common.parameters import as_function, shown
from weft.core.common.slots import public
from weft.errors import ArgumentError
from weft.transforms.compile import compile

if TYPE_CHECKING:
    from weft.transforms.pictures.pieces import ShardingPicture

_page = LazyModule("weft.transforms.pictures.page")
_pieces = LazyModule("weft.transforms.pictures.pieces")


@public
def visualize(function: Callable[..., Any], /) -> Callable[..., str]:
    """`wf.visualize(f)(*args, path="graph.html")`: the graph of `f` as one page for a browser.

    The page shows the program as it was traced, with shapes, dtypes, lines of your source, costs
    and shardings, and what is compiled of it: the calls that become one kernel lie in one box with
    its estimated time. Boxes fold, a field searches, the page needs no network. Nothing runs; the
    function is traced and compiled as by `wf.compile`, and one that is compiled already shows what
    it has. The path is returned. (A parameter of your own called `path` must be given by position.)
    """
    as_function("visualize", "function", function)
    compiled = function if isinstance(function, CompiledFunction) else compile(function)

    @wraps(function)
    def drawn(*args: Any, path: str | os.PathLike[str] = "graph.html", **keywords: Any) -> str:
        where = _as_path("visualize", "path", path)
        _write("visualize", where, _page.graph_page(compiled, args, keywords))
        return where

    return drawn


@public
def visualize_sharding(
    x: Any,
    /,
    *,
    mesh: Any = None,
    spec: Any = None,
    html: str | os.PathLike[str] | None = None,
    width: int | None = None,
) -> ShardingPicture:
    """Print who holds what of a tensor over a mesh: `wf.visualize_sharding(x)`.

    Instead of a tensor, a shape with `mesh` and `spec` will do: nothing is computed or read. Pieces
    are drawn to scale; devices that hold the same piece share a box, pending reductions are named.
    Of more than two axes the first two that are split are drawn. `width` is the number of columns
    to print (the terminal's by default); with `html="page.html"` a page is written instead. In a
    notebook the picture is shown as the result of the cell.
    """
    where = None if html is None else _as_path("visualize_sharding", "html", html)
    made: ShardingPicture = _pieces.picture(x, mesh, spec)
    if where is None:
        made.show(width)
    else:
        _write("visualize_sharding", where, made.page())
    return made


def _as_path(op: str, name: str, value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise ArgumentError(f"{op}: {name} must be a path, got {shown(value)}")
    return os.fsdecode(value)


def _write(op: str, path: str, page: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(page)
    except (OSError, ValueError) as error:  # a ValueError is for a name that no file can have
        raise ArgumentError(f"{op}: {path!r} cannot be written ({error})") from error
