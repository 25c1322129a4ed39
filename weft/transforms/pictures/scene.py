"""A trace as boxes in boxes: calls, what is fused, subgraphs, inputs and outputs, and lines.

Every box knows its rows, so that whoever draws it only needs the sizes of what is inside. A kernel
is a box around its calls; a call with subgraphs is a box around them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.compiler.assemble import leaves
from weft.compiler.explain import show_count, show_time
from weft.core.common.source import Position, describe
from weft.core.graph.node import OutputRefs, Ref
from weft.core.graph.trace import Trace
from weft.runtime.report import show_bytes
from weft.transforms.pictures.kernels import Fused, Kernels
from weft.transforms.pictures.layers import rows_of

_LONGEST = 44  # characters of a line in a box
_LONGEST_DETAIL = 2000
_ROOT = -1


@dataclass
class Box:
    """One box; `rows` and `links` speak of the boxes directly inside."""

    number: int
    kind: str
    lines: list[str]
    parent: int = _ROOT
    details: list[tuple[str, str]] = field(default_factory=list)
    rows: list[list[int]] = field(default_factory=list)
    links: list[tuple[int, int]] = field(default_factory=list)

    @property
    def width(self) -> float:
        """Pixels across, by the length of the longest line."""
        return max(76.0, max(map(len, self.lines)) * 6.7 + 30)

    @property
    def height(self) -> float:
        """Pixels down."""
        return 15.0 * len(self.lines) + 12


@dataclass
class Scene:
    """All boxes of a graph, and the lines between them; the root's rows are those outside all."""

    name: str
    boxes: list[Box] = field(default_factory=list)
    lines: list[tuple[int, int]] = field(default_factory=list)
    root: Box = field(default_factory=lambda: Box(_ROOT, "root", [""]))
    totals: list[tuple[str, str]] = field(default_factory=list)

    def holder(self, number: int) -> Box:
        """A box by its number; the root has -1."""
        return self.root if number == _ROOT else self.boxes[number]


@dataclass(frozen=True)
class Given:
    """What is known of one input of a trace besides its type."""

    kind: str
    name: str
    spec: Any = None


def scene_of(name: str, trace: Trace, given: Sequence[Given], kernels: Kernels | None) -> Scene:
    """The boxes of a trace; `given` tells what its inputs are, `kernels` what is fused."""
    painter = _Painter(Scene(name), kernels)
    painter.graph(trace, _ROOT, given)
    return painter.scene


class _Painter:
    def __init__(self, scene: Scene, kernels: Kernels | None) -> None:
        self.scene = scene
        self.kernels = kernels

    def graph(self, trace: Trace, parent: int, given: Sequence[Given]) -> None:
        """All boxes of a trace inside `parent`, in rows."""
        known: dict[OutputRefs, int] = {}
        for node, what in zip(trace.inputs, given, strict=True):
            known[node] = self._input(node, what, parent)
        for node in leaves(trace):
            known[node] = self._input(node, Given("constant", _number(node)), parent)
        around = self._kernels(trace, parent)
        lines: list[tuple[int, int]] = []
        for node in trace.nodes:
            known[node] = self._call(node, around.get(node, parent))
            lines += [(source, known[node]) for source in _sources(node.inputs, known)]
        ends = []
        for number, ref in enumerate(trace.outputs):
            made = self._box("output", [f"output {number}", *_types(ref)], parent)
            made.details.append(("result of", ref[0].name))
            ends.append(made.number)
            lines.append((known[ref[0]], made.number))
        self.scene.lines += lines
        self._arrange(parent, [*known.values(), *around.values(), *ends], lines)

    def _box(self, kind: str, lines: Sequence[str], parent: int) -> Box:
        made = Box(len(self.scene.boxes), kind, [_short(line) for line in lines], parent)
        self.scene.boxes.append(made)
        return made

    def _input(self, node: OutputRefs, what: Given, parent: int) -> int:
        spec = what.spec if node.specs is None else node.specs[0]
        made = self._box(what.kind, [what.name, str(node.types[0]), *_laid([spec])], parent)
        made.details += [
            (what.kind, what.name),
            ("type", str(node.types[0])),
            ("bytes", show_bytes(node.types[0].nbytes)),
            ("device", node.device.name),
            *([] if spec is None else [("sharding", f"{spec} over {spec.mesh}")]),
        ]
        return made.number

    def _call(self, node: OutputRefs, parent: int) -> int:
        host = self.kernels is not None and node in self.kernels.hosts
        place = [] if node.position is None else [_place(node.position)]
        types = [str(kind) for kind in node.types[:3]]
        more = [f"and {len(node.types) - 3} more"] if len(node.types) > 3 else []
        lines = [node.name, *types, *more, *_laid(node.specs or ()), *place]
        made = self._box("host" if host else "call", lines, parent)
        made.details += _details(node)
        for label, inner in subgraphs(node):
            head = self._box("body", [label, f"{len(inner.nodes)} calls"], made.number)
            head.details.append(("subgraph of", node.name))
            count = len(inner.inputs) - len(inner.captures)
            self.graph(
                inner,
                head.number,
                [
                    Given("input", f"input {k}") if k < count else Given("capture", "captured")
                    for k in range(len(inner.inputs))
                ],
            )
            made.rows = [[*(made.rows[0] if made.rows else []), head.number]]
        return made.number

    # -- what is fused -----------------------------------------------------------------------

    def _kernels(self, trace: Trace, parent: int) -> dict[OutputRefs, int]:
        """A box for each kernel of a trace; which box each call belongs in."""
        if self.kernels is None:
            return {}
        fused = {node: self.kernels.of[node] for node in trace.nodes if node in self.kernels.of}
        fused |= _views(trace, fused, self.kernels.hosts)
        boxes: dict[Fused, int] = {}
        for node in trace.nodes:
            each = fused.get(node)
            if each is not None and each not in boxes:
                boxes[each] = self._kernel(each, parent)
        return {node: boxes[each] for node, each in fused.items()}

    def _kernel(self, each: Fused, parent: int) -> int:
        times = f" × {each.trips}" if each.trips > 1 else ""
        about = f"≈ {show_time(each.nanoseconds)}{times}"
        made = self._box("kernel", [each.names[0], f"{len(each.members)} calls, {about}"], parent)
        made.details += [
            ("kernels", ", ".join(each.names)),
            ("calls", ", ".join(node.name for node in each.members)),
            ("estimated time", f"{about}, on one thread"),
            ("arithmetic", f"{show_count(each.work.flops)}FLOP"),
            ("read", show_bytes(each.work.read)),
            ("written", show_bytes(each.work.written)),
        ]
        return made.number

    # -- rows --------------------------------------------------------------------------------

    def _arrange(
        self, parent: int, numbers: Sequence[int], lines: Sequence[tuple[int, int]]
    ) -> None:
        """Rows for boxes that are in `parent`, or in kernels there."""
        boxes = self.scene.boxes
        inside: dict[int, list[int]] = {parent: []}
        for number in sorted(set(numbers)):
            inside.setdefault(boxes[number].parent, []).append(number)
        links: dict[int, dict[tuple[int, int], None]] = {holder: {} for holder in inside}
        for line in lines:
            at, to = (boxes[number].parent for number in line)
            if at == to:
                links[at][line] = None
            else:
                a, b = (n if boxes[n].parent == parent else boxes[n].parent for n in line)
                links[parent][a, b] = None
        for holder, members in inside.items():
            index = {number: k for k, number in enumerate(members)}
            pairs = [(index[a], index[b]) for a, b in links[holder]]
            rows = rows_of(len(members), pairs, [boxes[n].width + 20 for n in members])
            box = self.scene.holder(holder)
            box.rows = [[members[k] for k in row] for row in rows]
            box.links = list(links[holder])


def _views(
    trace: Trace, fused: dict[OutputRefs, Fused], hosts: set[OutputRefs]
) -> dict[OutputRefs, Fused]:
    """Calls that no kernel owns, because readers read through them: in whose box they are drawn.

    A view between calls of one kernel belongs there; else it is drawn with its only reader.
    """
    loose = {
        node
        for node in trace.nodes
        if node not in fused and node not in hosts and not any(True for _ in subgraphs(node))
    }
    sources: dict[OutputRefs, set[Fused]] = {node: set() for node in loose}
    readers: dict[OutputRefs, dict[Fused | None, None]] = {node: {} for node in loose}
    for node, _ in trace.outputs:
        if node in loose:
            readers[node][None] = None
    for node in trace.nodes:
        for source, _ in node.inputs if node in loose else ():
            sources[node] |= sources.get(source, set())
            if source in fused:
                sources[node].add(fused[source])
    made: dict[OutputRefs, Fused] = {}
    for node in reversed(trace.nodes):
        for source, _ in node.inputs:
            if source in loose:
                readers[source] |= readers[node] if node in loose else {fused.get(node): None}
        if node in loose:
            between = [each for each in readers[node] if each is not None and each in sources[node]]
            alone = list(readers[node]) if len(readers[node]) == 1 else [None]
            chosen = (*between, *alone)[0]
            if chosen is not None:
                made[node] = chosen
    return made


def _sources(refs: Sequence[Ref], known: dict[OutputRefs, int]) -> list[int]:
    return list(dict.fromkeys(known[node] for node, _ in refs))


def subgraphs(node: OutputRefs) -> Iterator[tuple[str, Trace]]:
    """The traces among a call's parameters, with names: bodies of loops, branches."""
    for name, value in node.params.items():
        if isinstance(value, Trace):
            yield f"{name}: {value.name}", value
        elif isinstance(value, tuple) and value and isinstance(value[0], Trace):
            for number, each in enumerate(value):
                yield f"{name} {number}: {each.name}", each


def _details(node: OutputRefs) -> list[tuple[str, str]]:
    operands = [source.types[slot] for source, slot in node.inputs]
    cost = node.op.cost(*operands, **node.params)
    plain = {
        name: value
        for name, value in node.params.items()
        if not any(isinstance(each, Trace) for each in (value, *_items(value)))
    }
    found = [
        ("op", node.name),
        ("operands", ", ".join(map(str, operands)) or "none"),
        ("results", ", ".join(map(str, node.types)) or "none"),
        ("parameters", ", ".join(f"{name}={value!r}" for name, value in plain.items())),
        ("source", "" if node.position is None else describe(node.position)),
        ("arithmetic", f"{show_count(cost.flops)}FLOP"),
        ("bytes, if run alone", show_bytes(cost.bytes)),
        ("device", node.device.name),
    ]
    for slot, spec in enumerate(node.specs or ()):
        if spec is not None:
            where = f"sharding of result {slot}" if len(node.types) > 1 else "sharding"
            found.append((where, f"{spec} over {spec.mesh}"))
    return [(name, text[:_LONGEST_DETAIL]) for name, text in found if text]


def _number(leaf: OutputRefs) -> str:
    """How a node that holds data is called: by its value, where that is one number."""
    return constant_name(None if leaf.results is None else leaf.results[0])


def constant_name(data: Any) -> str:
    """What a box says of a constant: its value, if it is one number that is at hand."""
    if not isinstance(data, np.ndarray) or data.size != 1:
        return "constant"
    value = data.item()
    return f"constant {value:.6g}" if isinstance(value, float) else f"constant {value!r}"


def _items(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else ()


def _types(ref: Ref) -> list[str]:
    node, slot = ref
    spec = None if node.specs is None else node.specs[slot]
    return [str(node.types[slot]), *_laid([spec])]


def _laid(specs: Sequence[Any]) -> list[str]:
    """Different layouts as lines of a box: at most three, and none for a number on every device."""
    found = [str(spec) for spec in specs if spec is not None and (spec.axes or spec.pending)]
    return list(dict.fromkeys(found))[:3]


def _place(position: Position) -> str:
    return f"{os.path.basename(position.code.co_filename)}:{position.line}"


def _short(line: str) -> str:
    flat = " ".join(line.split())
    return flat if len(flat) <= _LONGEST else flat[: _LONGEST - 1] + "…"
