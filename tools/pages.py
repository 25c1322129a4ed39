"""Run the code on the documentation's pages, and keep what is printed beneath it true.

    python tools/pages.py             # run everything; say where a page is wrong
    python tools/pages.py --update    # write what the code prints into the `output` blocks

The `python` blocks of a page run in order, with shared names. A block marked `python raises` must
end in an error, which counts as printed. An `output` block holds what the block above it prints; in
one marked `output varies`, numbers may differ; one marked `output sample` is what it was on one
machine, and is written only when it is empty. Tables with a column headed `weft` are code, too:
every `code` span in that column runs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import linecache
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.errors import WeftError

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
HEADER = "weft"  # of the column of a table whose cells are code

_FENCE = re.compile(r"^```(python|output)([^\n]*)\n(.*?)^```$", re.S | re.M)
_TABLE = re.compile(r"^\|[^\n]*\n\|[-| :]+\n(?:\|[^\n]*\n?)+", re.M)
_NUMBER = re.compile(r"\d[\d,.]*(e[-+]?\d+)?")


class PageError(Exception):
    """A page says what is not so."""


@dataclass(frozen=True)
class Block:
    """A fenced block: where its text lies in the page, and on which line it begins."""

    kind: str
    mark: str
    text: str
    start: int
    end: int
    line: int


def blocks(page: str) -> Iterator[Block]:
    """The `python` and `output` blocks of a page, and the code of its tables, in order."""
    found = []
    for match in _FENCE.finditer(page):
        kind, mark, text = match.groups()
        place = match.start(3)
        line = page.count("\n", 0, place) + 1
        found.append(Block(kind, mark.strip(), text, place, match.end(3), line))
    for table in _TABLE.finditer(page):
        for line, code in _cells(table.group()):
            at = page.count("\n", 0, table.start()) + line
            found.append(Block("cell", "", code, table.start(), table.start(), at))
    yield from sorted(found, key=lambda block: (block.start, block.line))


def _cells(table: str) -> Iterator[tuple[int, str]]:
    """The code spans in the column that is headed `weft`, with their lines in the table."""
    rows = [_split(row) for row in table.splitlines()]
    if HEADER not in rows[0]:
        return
    column = rows[0].index(HEADER)
    for number, row in enumerate(rows[2:], 3):
        for code in re.findall(r"`([^`]+)`", row[column]):
            yield number, code.replace("\\|", "|")


def _split(row: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip())[1:-1]]


def run(path: Path) -> str:
    """Run a page; the result is the page with the output it really has."""
    page, names, printed = path.read_text(), {"__name__": "__page__"}, ""
    done, made = 0, []
    # Messages quote lines of the page by its name alone, whatever folder it is in.
    linecache.cache[path.name] = (len(page), None, page.splitlines(keepends=True), path.name)
    for block in blocks(page):
        if block.kind == "output":
            kept = "sample" in block.mark and block.text
            made += [page[done : block.start], block.text if kept else printed]
            done = block.end
        else:
            printed = _execute(block, path, names)
    return "".join([*made, page[done:]])


def _execute(block: Block, path: Path, names: dict[str, Any]) -> str:
    where = f"{path.name}:{block.line}"
    code = compile("\n" * (block.line - 1) + block.text, path.name, "exec", dont_inherit=True)
    seen = io.StringIO()
    with contextlib.redirect_stdout(seen):
        try:
            exec(code, names)
        except WeftError as error:
            if block.mark != "raises":
                raise
            print(f"{type(error).__name__}: {error}")
        else:
            if block.mark == "raises":
                raise PageError(f"{where}: this block should raise, and does not")
    return seen.getvalue()


def differences(path: Path) -> list[str]:
    """Where a page's output is not what its code prints."""
    old, new = path.read_text(), run(path)
    wrong = []
    for said, real in zip(_outputs(old), _outputs(new), strict=True):
        if _essence(said) != _essence(real):
            wrong.append(f"{path.name}:{said.line}: the code prints\n{real.text}")
    return wrong


def _essence(output: Block) -> str:
    """What must not differ: lines of a page move when it is edited."""
    text = re.sub(r"(\w+\.md):\d+:", r"\1:", output.text)
    return _NUMBER.sub("0", text) if "varies" in output.mark else text


def _outputs(page: str) -> list[Block]:
    return [block for block in blocks(page) if block.kind == "output"]


def main() -> int:
    """Check all pages, or write their output anew."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--update", action="store_true")
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES)
    options = parser.parse_args()
    wrong: list[str] = []
    for path in options.pages:
        start = time.perf_counter()
        if options.update:
            path.write_text(run(path))
            path.write_text(run(path))  # once more: messages name lines, which have moved
        else:
            wrong += differences(path)
        print(f"{time.perf_counter() - start:6.1f} s  {path.name}")
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
