"""The page of a graph: one file with its own style and script, which loads nothing else.

What is drawn travels as JSON; the script puts it on the page as text, never as markup. The page's
content policy lets this one script run and nothing else.
"""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from weft.compiler.explain import show_count, show_time
from weft.compiler.function import CompiledFunction
from weft.compiler.specialization import Specialization
from weft.core.common.markup import Markup, element
from weft.core.graph.trace import Trace
from weft.core.sharding.pieces import local_coordinates
from weft.runtime.report import show_bytes
from weft.transforms.pictures.kernels import Kernels, kernels_of
from weft.transforms.pictures.scene import Box, Given, Scene, constant_name, scene_of

MOST_OPEN = 300  # boxes beyond which a graph is drawn with all that folds folded

_HERE = Path(__file__).parent
_LEGEND = {
    "input": "argument",
    "capture": "captured tensor",
    "constant": "constant",
    "state": "state of a random generator",
    "call": "call",
    "host": "call that runs in Python",
    "kernel": "calls that become one kernel",
    "body": "subgraph",
    "output": "result",
}


@dataclass(frozen=True)
class _Views:
    """The pictures of one function; the first is the one to show."""

    name: str
    scenes: tuple[Scene, ...]


def graph_page(compiled: CompiledFunction, args: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    """The page for a call of a compiled function; nothing runs."""
    found = compiled.prepared(args, keywords)
    kernels = kernels_of(found.executable)
    program = scene_of("program", found.program.trace, _inputs(found), None)
    program.totals = _totals(found.program.trace, kernels)
    lowered = found.lower()
    fused = scene_of("kernels", lowered, _lowered_inputs(found, lowered), kernels)
    fused.totals = _totals(lowered, kernels)
    split = found.parts is not None
    return page(_Views(compiled.name, (program, fused) if split else (fused, program)))


def _inputs(found: Specialization) -> list[Given]:
    """What the inputs of the traced program are."""
    program = found.program
    given = [
        Given("input", path, leaf.spec)
        for path, leaf in zip(found.paths, found.signature.leaves, strict=True)
    ]
    for number, _ in enumerate(program.slots):
        given += [Given("state", f"generator {number}: {part}") for part in ("key", "count")]
    given += [Given("capture", each.name, each.spec) for each in program.captures]
    return given + _constants(program.trace)


def _lowered_inputs(found: Specialization, lowered: Trace) -> list[Given]:
    """What the inputs of the compiled graph are: over a mesh, one for each piece."""
    given: list[Given] = []
    count = len(found.program.trace.captures)
    own = _inputs(found)
    for each in own[: len(own) - count]:
        if each.spec is None:
            given.append(each)
            continue
        axes = each.spec.varying
        for at in local_coordinates(each.spec.mesh, axes):
            place = ", ".join(f"{axis}={k}" for axis, k in zip(axes, at, strict=True))
            given.append(Given(each.kind, f"{each.name} ({place})" if place else each.name))
    return given + _constants(lowered)


def _constants(trace: Trace) -> list[Given]:
    """The constants of a trace, with their value where it is one number."""
    return [Given("constant", constant_name(x.data())) for x in trace.captures]


def _totals(trace: Trace, kernels: Kernels | None) -> list[tuple[str, str]]:
    """What stands above a picture: its calls, and what one run of the program takes."""
    calls = str(len(trace.nodes))
    if kernels is None:
        return [("calls", calls), ("kernels", "none: each call runs on its reference")]
    return [
        ("calls", calls),
        ("kernels", str(kernels.count)),
        ("host calls", str(len(kernels.hosts))),
        ("arithmetic", f"{show_count(kernels.work.flops)}FLOP"),
        ("read", show_bytes(kernels.work.read)),
        ("written", show_bytes(kernels.work.written)),
        ("arena", show_bytes(kernels.arena)),
        ("estimated time", f"≈ {show_time(kernels.nanoseconds)} on one thread"),
    ]


def page(views: _Views) -> str:
    """One HTML page with these pictures."""
    script = (_HERE / "graph.js").read_text("utf-8")
    style = (_HERE / "graph.css").read_text("utf-8")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    legend = element(
        "ul",
        *(element("li", element("i", class_=kind), text) for kind, text in _LEGEND.items()),
        id="legend",
    )
    head = element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        element("title", f"{views.name} — weft"),
        element("style", Markup(style)),
    )
    body = element(
        "body",
        element("header", element("h1", views.name), _controls(), element("dl", id="totals")),
        element("main", element("div", element("div", id="world"), id="stage")),
        element("aside", element("div", id="details"), legend),
        element("script", _json(views), type="application/json", id="graph"),
        element("script", Markup(script)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _controls() -> Markup:
    buttons = {"fold": "fold all", "unfold": "unfold all", "fit": "fit"}
    return element(
        "nav",
        element("span", id="views"),
        Markup('<input id="find" type="search" placeholder="search (Enter: next)">'),
        element("output", id="found"),
        *(element("button", text, id=name, type="button") for name, text in buttons.items()),
    )


def _json(views: _Views) -> Markup:
    """The pictures as data; no text in it can end the element it lies in."""
    text = json.dumps([_scene(scene) for scene in views.scenes], separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _scene(scene: Scene) -> dict[str, Any]:
    opened = len(scene.boxes) <= MOST_OPEN
    return {
        "name": scene.name,
        "totals": scene.totals,
        "root": _box(scene.root, opened=True),
        "boxes": [_box(box, opened) for box in scene.boxes],
        "lines": scene.lines,
    }


def _box(box: Box, opened: bool) -> dict[str, Any]:
    made: dict[str, Any] = {
        "kind": box.kind,
        "text": box.lines,
        "parent": box.parent,
        "w": round(box.width),
        "h": round(box.height),
        "details": box.details,
    }
    if box.rows:
        made |= {"rows": box.rows, "links": box.links, "open": opened}
    return made
