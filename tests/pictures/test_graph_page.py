"""Pages of graphs: well-formed, escaped, complete, and true to what is compiled."""

from __future__ import annotations

import json
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import weft as wf
from weft.errors import ArgumentError, ConcretizationError, WeftError
from weft.transforms.pictures.layers import rows_of

VOID = {"meta", "input"}
X = wf.ones((16, 32))
W = wf.ones((32, 32))


class Page(HTMLParser):
    """Reads a page: what its elements are, whether they close, and the pictures in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"
        self.scenes = {each["name"]: each for each in json.loads(self.texts["graph"])}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        name = self.tags[-1][1].get("id") if self.tags else None
        if name:
            self.texts[name] = self.texts.get(name, "") + data

    def boxes(self, scene: str, kind: str) -> list[dict[str, Any]]:
        return [box for box in self.scenes[scene]["boxes"] if box["kind"] == kind]


@pytest.fixture
def draw(tmp_path: Path):
    def drawn(function: Any, *args: Any, **keywords: Any) -> Page:
        path = tmp_path / "graph.html"
        assert wf.visualize(function)(*args, path=path, **keywords) == str(path)
        return Page(path.read_text("utf-8"))

    return drawn


def program(x: wf.Tensor, w: wf.Tensor) -> Any:
    h = wf.softmax(x @ w)

    def step(carry: wf.Tensor, row: wf.Tensor) -> Any:
        return wf.tanh(carry @ w + row), carry.sum()

    carry, sums = wf.scan(step, h[0], h)
    return wf.cond(carry.sum() > 0, lambda c: c * 2, wf.sin, carry), sums


def names(boxes: list[dict[str, Any]]) -> list[str]:
    return sorted(box["text"][0] for box in boxes)


def test_every_call_of_the_program_is_on_the_page_with_its_type_line_and_cost(draw) -> None:
    page = draw(program, X, W)
    trace = wf.trace(program, X, W)
    body = next(n for n in trace.nodes if n.name == "scan").params["body"]
    branches = next(n for n in trace.nodes if n.name == "switch").params["branches"]
    nodes = [n for each in (trace, body, *branches) for n in each.nodes]
    assert names(page.boxes("program", "call")) == sorted(n.name for n in nodes)
    matmul = next(b for b in page.boxes("program", "call") if b["text"][0] == "matmul")
    details = dict(map(tuple, matmul["details"]))
    assert matmul["text"][1] == "float32[16,32]"
    assert matmul["text"][2].startswith("test_graph_page.py:")
    assert details["source"].endswith("h = wf.softmax(x @ w)")
    assert details["arithmetic"] == "32.8 kFLOP"
    assert details["bytes, if run alone"] == "8.0 KiB"
    assert details["operands"] == "float32[16,32], float32[32,32]"


def test_inputs_captures_constants_and_outputs_are_boxes(draw) -> None:
    bias = wf.ones(32)
    page = draw(lambda x, w: ((x @ w + bias) * 3.5, x), X, W)
    for scene in ("program", "kernels"):
        assert names(page.boxes(scene, "input")) == ["w", "x"]
        assert names(page.boxes(scene, "capture")) == ["bias"]
        assert names(page.boxes(scene, "constant")) == ["constant 3.5"]
        assert names(page.boxes(scene, "output")) == ["output 0", "output 1"]


def test_kernels_are_the_groups_of_the_compiler_with_their_times(draw) -> None:
    function = wf.compile(program)
    page = draw(function, X, W)
    told = function.explain(X, W)
    kernels = page.boxes("kernels", "kernel")
    listed = [name for box in kernels for name in dict(box["details"])["kernels"].split(", ")]
    assert f"kernels {len(listed)}," in told
    assert all(f"{name}: " in told for name in listed)
    assert all(re.search(r"calls, ≈ [\d.]+ (ns|µs|ms)", box["text"][1]) for box in kernels)
    softmax = next(box for box in kernels if box["text"][0].startswith("reduce_max_subtract_exp"))
    boxes = page.scenes["kernels"]["boxes"]
    inside = {boxes[n]["text"][0] for row in softmax["rows"] for n in row}
    assert {"reduce_max", "subtract", "exp", "reduce_sum", "divide", "reshape"} <= inside
    assert f"arena of {dict(page.scenes['kernels']['totals'])['arena']}" in told


def test_loops_multiply_times_and_hold_their_kernels(draw) -> None:
    page = draw(program, X, W)
    boxes = page.scenes["kernels"]["boxes"]
    body = next(box for box in boxes if box["kind"] == "body" and "step" in box["text"][0])
    assert boxes[body["parent"]]["text"][0] == "scan"
    inside = [boxes[n] for row in body["rows"] for n in row]
    kernels = [box for box in inside if box["kind"] == "kernel"]
    assert kernels and all("× 16" in box["text"][1] for box in kernels)
    assert {"branches 0: sin", "branches 1: <lambda>"} <= {
        box["text"][0] for box in boxes if box["kind"] == "body"
    }


@pytest.mark.parametrize("scene", ["program", "kernels"])
def test_every_box_lies_once_in_the_rows_of_its_parent_and_lines_point_down(draw, scene) -> None:
    page = draw(wf.grad(lambda x, w: program(x, w)[1].sum()), X, W)
    found = page.scenes[scene]
    placed: list[int] = []
    for number, holder in [(-1, found["root"]), *enumerate(found["boxes"])]:
        row_of = {n: k for k, row in enumerate(holder.get("rows", [])) for n in row}
        placed += row_of
        assert all(found["boxes"][n]["parent"] == number for n in row_of)
        assert all(row_of[a] < row_of[b] for a, b in holder.get("links", []))
    assert sorted(placed) == list(range(len(found["boxes"])))


def test_shardings_are_shown_and_pieces_have_names(draw) -> None:
    mesh = wf.DeviceMesh("grid", (2, 2), ("data", "model"))
    w = W.shard(mesh, wf.P(None, "model"))
    page = draw(lambda x: (x @ w).sum(axis=1), X.shard(mesh, wf.P("data")))
    assert list(page.scenes) == ["program", "kernels"]
    lines = {box["text"][0]: box["text"] for box in page.scenes["program"]["boxes"]}
    assert "[data, model]" in lines["matmul"]
    assert "[data] pending sum over model" in lines["reduce_sum"]
    assert "[data, ·]" in lines["x"] and "[·, model]" in lines["w"]
    assert names(page.boxes("kernels", "input")) == ["x (data=0)", "x (data=1)"]
    assert names(page.boxes("kernels", "capture")) == ["w (model=0)", "w (model=1)"]


def test_random_states_and_host_calls_are_told_apart(draw) -> None:
    def noisy(x: wf.Tensor) -> wf.Tensor:
        wf.print("{}", x.sum())
        return x + wf.normal((32,))

    page = draw(noisy, X)
    assert names(page.boxes("kernels", "state")) == ["generator 0: count", "generator 0: key"]
    assert len(page.boxes("kernels", "host")) == 1
    assert dict(page.scenes["kernels"]["totals"])["host calls"] == "1"


def test_nothing_in_a_name_becomes_markup(draw) -> None:
    evil = "</script><script>alert(1)</script>&amp;\"'><img src=x onerror=alert(2)>"

    def function(**given: wf.Tensor) -> wf.Tensor:
        return wf.sin(given[evil])

    function.__name__ = evil
    page = draw(function, **{evil: X})
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert "img" not in [tag for tag, _ in page.tags]
    assert any(
        evil in value for box in page.boxes("program", "input") for _, value in box["details"]
    )


def test_the_page_loads_nothing_and_runs_one_script(draw) -> None:
    page = draw(wf.sin, X)
    assert not [a for _, attrs in page.tags for a in attrs if a in ("src", "href", "onclick")]
    policy = next(a["content"] for _, a in page.tags if "http-equiv" in a)
    assert "default-src 'none'" in policy and "'sha256-" in policy


def test_nothing_runs_and_a_compiled_function_is_not_traced_again(tmp_path: Path) -> None:
    seen = []
    function = wf.compile(lambda x: seen.append(1) or wf.sin(x) * 2)
    function(X)
    wf.visualize(function)(X, path=tmp_path / "a.html")
    wf.visualize(function)(X, path=tmp_path / "b.html")
    assert len(seen) == 1 and function.stats.traces == 1
    assert (tmp_path / "a.html").read_text() == (tmp_path / "b.html").read_text()


def test_what_cannot_be_traced_or_written_says_why(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="visualize: function must be a function, got 3"):
        wf.visualize(3)
    with pytest.raises(ArgumentError, match="visualize: path must be a path, got 3"):
        wf.visualize(wf.sin)(X, path=3)
    with pytest.raises(ArgumentError, match=r"visualize: .*nowhere.* cannot be written"):
        wf.visualize(wf.sin)(X, path=tmp_path / "nowhere" / "graph.html")
    with pytest.raises(ConcretizationError):
        wf.visualize(lambda x: x if x.sum() > 0 else -x)(X, path=tmp_path / "graph.html")
    with pytest.raises(WeftError):
        wf.visualize(wf.sin)("text", path=tmp_path / "graph.html")
    assert not list(tmp_path.iterdir())


def test_a_large_graph_starts_folded(draw) -> None:
    def deep(x: wf.Tensor) -> wf.Tensor:
        for _ in range(40):
            x = wf.softmax(x @ W)
        return x

    page = draw(deep, X)
    assert len(page.scenes["kernels"]["boxes"]) > 300
    assert not any(box["open"] for box in page.boxes("kernels", "kernel"))
    assert all(box["open"] for box in draw(program, X, W).boxes("kernels", "kernel"))


@pytest.mark.parametrize("seed", range(20))
def test_rows_hold_every_box_once_and_respect_lines(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randrange(1, 60)
    edges = [(a, b) for b in range(count) for a in rng.sample(range(b), min(b, rng.randrange(3)))]
    rows = rows_of(count, edges, [10.0] * count, widest=45)
    assert sorted(n for row in rows for n in row) == list(range(count))
    place = {n: k for k, row in enumerate(rows) for n in row}
    assert all(place[a] < place[b] for a, b in edges)
    assert max(map(len, rows)) <= 4


def test_rows_of_a_cycle_hold_every_box() -> None:
    rows = rows_of(4, [(0, 1), (1, 2), (2, 0), (2, 3)], [1.0] * 4)
    assert sorted(n for row in rows for n in row) == [0, 1, 2, 3]
