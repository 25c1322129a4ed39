"""Who holds what: grids of text for a few layouts, notes, widths, colours, and HTML."""

from __future__ import annotations

import io
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest

import weft as wf
from weft import P
from weft.errors import ArgumentError, ShardingError, WeftError
from weft.transforms.pictures import pieces, terminal

GRID = wf.DeviceMesh("grid", (2, 2), ("data", "model"))
LINE = wf.DeviceMesh("line", (4,), ("x",))


def text(x, width: int = 46, **keywords) -> str:
    return pieces.picture(x, keywords.get("mesh"), keywords.get("spec")).text(width)


def check(found: str, expected: str) -> None:
    assert found.splitlines() == expected.strip("\n").splitlines()


def test_a_matrix_split_both_ways() -> None:
    check(
        text(wf.ones((8, 6)).shard(GRID, P("data", "model"))),
        """
float32[8,6] over grid(data=2, model=2):
  [data, model]
             0:3                 3:6
    ┌───────────────────┬───────────────────┐
    │                   │                   │
0:4 │       cpu:0       │       cpu:1       │
    │                   │                   │
    ├───────────────────┼───────────────────┤
    │                   │                   │
4:8 │       cpu:2       │       cpu:3       │
    │                   │                   │
    └───────────────────┴───────────────────┘
each device holds 4 × 3, 48 B
""",
    )


def test_devices_with_the_same_piece_share_a_box() -> None:
    found = text((8, 6), mesh=GRID, spec=P(None, "model"))
    assert "cpu:0,2" in found and "cpu:1,3" in found
    assert "the same along data=2: 2 copies" in found
    check(
        text((4,), 30, mesh=GRID, spec=P("data")),
        """
4 over grid(data=2, model=2):
  [data]
      0:2           2:4
┌─────────────┬─────────────┐
│   cpu:0,1   │   cpu:2,3   │
└─────────────┴─────────────┘
each device holds 2
the same along model=2: 2
  copies
""",
    )


def test_uneven_pieces_are_to_scale() -> None:
    check(
        text(wf.ones(10).shard(LINE, P("x")), 50),
        """
float32[10] over line(x=4): [x]
      0:3           3:6         6:8       8:10
┌─────────────┬─────────────┬─────────┬─────────┐
│    cpu:0    │    cpu:1    │  cpu:2  │  cpu:3  │
└─────────────┴─────────────┴─────────┴─────────┘
each device holds at most 3, 12 B
""",
    )
    rows = text((10, 1), mesh=LINE, spec=P("x")).split("├")
    assert [part.count("\n") for part in rows[1:3]] == [4, 3]


def test_pending_reductions_are_named() -> None:
    x = wf.ones((8, 6)).shard(GRID, P(None, "model")) @ wf.ones((6, 4)).shard(GRID, P("model"))
    found = text(x, 80)
    assert "[·, ·] pending sum over model" in found
    assert "pending sum along model: each of 2 devices holds one term" in found
    assert "the same along data=2: 2 copies" in found


def test_of_more_axes_the_first_two_split_ones_are_drawn() -> None:
    cube = wf.DeviceMesh("cube", (2, 2, 2), ("a", "b", "c"))
    found = text((3, 4, 6, 8), 100, mesh=cube, spec=P(None, "a", "b", "c"))
    assert "0:2 " in found and "0:3" in found and "0:4" not in found
    assert "cpu:0,1" in found and "cpu:6,7" in found
    assert "axis 3 is split along c=2 as well" in found


def test_pieces_without_elements_are_told() -> None:
    found = text((2, 3), mesh=LINE, spec=P("x"))
    assert "cpu:2 (empty)" in found and "at most 1 × 3" in found
    assert "(empty)" in text((0, 3), mesh=LINE, spec=P())


def test_numbers_and_tensors_on_no_mesh() -> None:
    assert "held by cpu:0-3" in text((), mesh=GRID)
    plain = text(wf.ones((2, 3)))
    assert plain.startswith("float32[2,3] on cpu:0") and "0:3" in plain


@pytest.mark.parametrize("width", [20, 33, 80, 200])
@pytest.mark.parametrize("spec", [P("data", "model"), P(None, ("data", "model")), P("model")])
def test_no_line_is_wider_than_asked(width: int, spec: P) -> None:
    pod = wf.DeviceMesh("pod", (64, 32), ("data", "model"))
    found = text((8192, 4096, 3), width, mesh=pod, spec=spec)
    assert max(map(len, found.splitlines())) <= width
    assert len(found.splitlines()) < 80


def test_thousands_of_devices_are_summarised_at_once() -> None:
    pod = wf.DeviceMesh("pod", (128, 64), ("data", "model"))
    began = time.perf_counter()
    found = text((8192,), 60, mesh=pod, spec=P("model"))
    assert time.perf_counter() - began < 5
    assert "cpu:0,64," in found and "(128" in found and "devices)" in found
    assert "8064:8192" in found and len(found.splitlines()) < 12


def test_without_rich_the_same_text_is_printed(monkeypatch, capsys) -> None:
    for found in (None, terminal.find_spec("rich")):
        monkeypatch.setattr(terminal, "find_spec", lambda name, found=found: found)
        wf.visualize_sharding((8, 6), mesh=GRID, spec=P("data", "model"), width=46)
        printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        assert printed == text((8, 6), mesh=GRID, spec=P("data", "model")).splitlines()


def test_a_terminal_without_box_characters_gets_plain_ones(monkeypatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii"))
    wf.visualize_sharding((8, 6), mesh=GRID, spec=P("data", "model"), width=46)
    sys.stdout.flush()
    found = raw.getvalue().decode("ascii")
    assert "+---" in found and "| " in found and "cpu:3" in found


def test_neighbouring_boxes_have_different_colours() -> None:
    for i in range(12):
        for j in range(12):
            here = pieces.colour_of(i, j)
            assert here not in (pieces.colour_of(i + 1, j), pieces.colour_of(i, j + 1))
    assert len(terminal._COLOURS) == 12


def test_a_terminal_gets_colours(monkeypatch) -> None:
    pytest.importorskip("rich", reason="colours need rich")

    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", Terminal())
    wf.visualize_sharding((8, 6), mesh=GRID, spec=P("data", "model"), width=46)
    assert "\x1b[" in sys.stdout.getvalue() and "cpu:3" in sys.stdout.getvalue()


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs) -> None:
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_is_written_and_a_notebook_gets_a_table(tmp_path: Path, capsys) -> None:
    path = tmp_path / "page.html"
    made = wf.visualize_sharding((8, 6), mesh=GRID, spec=P("data", "model"), html=path)
    assert capsys.readouterr().out == ""
    page = path.read_text("utf-8")
    assert Tags(page).seen.count("td") == 4 and "cpu:3" in page and "0:4" in page
    assert Tags(made._repr_html_()).seen.count("td") == 4
    assert repr(made) == "<sharding of 8×6 over grid(data=2, model=2): [data, model]>"


def test_names_of_meshes_are_escaped() -> None:
    mesh = wf.DeviceMesh("<script>", (2,), ("<b>",))
    page = pieces.picture((4,), mesh, P("<b>"))._repr_html_()
    assert not {"script", "b"} & set(Tags(page).seen) and "&lt;script&gt;" in page


def test_a_layout_can_be_tried_on_a_tensor() -> None:
    found = text(wf.ones((8, 6)), mesh=GRID, spec=P("data"))
    assert found.startswith("float32[8,6] over grid") and "cpu:2,3" in found
    spec = wf.ShardingSpec.of(GRID, P("model"), 2)
    assert "cpu:0,2" in text((8, 6), spec=spec)


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "message"),
    [
        (("x",), {}, ArgumentError, "expected a tensor or a shape, got 'x'"),
        (((8, 6),), {}, ArgumentError, "a shape needs a mesh and a spec"),
        (((8, 6),), {"mesh": 3}, ArgumentError, "mesh must be a DeviceMesh, got 3"),
        (((8, -6),), {"mesh": GRID}, WeftError, "shape must be at least 0, got -6"),
        (((8,),), {"mesh": GRID, "spec": P("a")}, ShardingError, "no axis 'a'"),
        (((8,),), {"mesh": GRID, "spec": P("data", "model")}, ShardingError, "more entries than"),
        (((8,),), {"mesh": GRID, "width": 3}, ArgumentError, "width must be from 20 to"),
        (((8,),), {"mesh": GRID, "html": 3}, ArgumentError, "html must be a path, got 3"),
        (
            ((8,),),
            {"spec": wf.ShardingSpec.of(GRID, P("data"), 2)},
            ShardingError,
            "is for 2 axes, the shape has 1",
        ),
    ],
)
def test_mistakes_are_told(arguments, keywords, error, message) -> None:
    with pytest.raises(error, match=message):
        wf.visualize_sharding(*arguments, **keywords)


def test_a_notebook_shows_the_result_of_the_cell_instead_of_text(monkeypatch, capsys) -> None:
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    made = wf.visualize_sharding((8, 6), mesh=GRID, spec=P("data"))
    assert capsys.readouterr().out == "" and "cpu:2,3" in made._repr_html_()
    shell.kernel = None
    wf.visualize_sharding((8, 6), mesh=GRID, spec=P("data"))
    assert "cpu:2,3" in capsys.readouterr().out
