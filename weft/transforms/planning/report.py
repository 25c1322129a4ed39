"""`Plan`: a prediction to read (`print`), to keep (`to_json`) or to open in a browser (`html`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from weft.core.common.lazy import LazyModule
from weft.core.common.spec import DeviceMesh, Link, ShardingSpec
from weft.core.common.types import TensorType
from weft.core.sharding.profiles import DeviceProfile
from weft.transforms.planning.evaluate import Costs, Evaluation, Move, Placement
from weft.transforms.planning.solver import Solution, size_text

_html: Any = LazyModule("html")
_json: Any = LazyModule("json")

_SHOWN = 16  # rows of a table in the text form; the other forms have all


class Named(NamedTuple):
    """An argument or result: its path, its type, and where it lies."""

    path: str
    type: TensorType
    spec: ShardingSpec

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of one device's piece."""
        return self.spec.local_shape(self.type.shape)


class Collective(NamedTuple):
    """Collectives of one kind along one mesh axis, together, for one device and one run."""

    kind: str
    mesh_axis: str
    calls: int
    bytes: float
    seconds: float


class Transfer(NamedTuple):
    """One collective: what it moves, how long it takes, and the line it is for."""

    kind: str
    mesh_axis: str
    type: TensorType
    bytes: float
    seconds: float
    source: str


@dataclass(frozen=True)
class Plan:
    """What a function will cost on a mesh. `str()` is a table."""

    name: str
    mesh: DeviceMesh
    device: DeviceProfile
    links: Mapping[str, Link]
    auto: bool
    compute: float  # seconds
    communication: float  # seconds; compute and communication are taken not to overlap
    memory: int  # bytes of one device at the peak
    flops: float  # of one device
    inputs: tuple[Named, ...]
    outputs: tuple[Named, ...]
    collectives: tuple[Collective, ...]
    transfers: tuple[Transfer, ...]  # the longest first
    solution: Solution

    @classmethod
    def of(
        cls,
        name: str,
        costs: Costs,
        placement: Placement,
        found: Evaluation,
        solution: Solution,
        inputs: tuple[Named, ...],
        outputs: tuple[Named, ...],
        *,
        auto: bool,
    ) -> Plan:
        """The plan that tells of an evaluated placement."""
        transfers = sorted(
            _transfers(costs, placement, found.moves), key=lambda each: -each.seconds
        )
        return cls(
            name,
            costs.problem.mesh,
            costs.profile,
            costs.fabric.links,
            auto,
            sum(found.compute),
            found.communication,
            found.peak,
            found.flops,
            inputs,
            outputs,
            _summed(transfers),
            tuple(transfers),
            solution,
        )

    @property
    def seconds(self) -> float:
        """Predicted time of one run."""
        return self.compute + self.communication

    def __str__(self) -> str:
        return "\n".join(_text(self))

    def __repr__(self) -> str:
        return f"<plan of {self.name}: {_time(self.seconds)}, {size_text(self.memory)} a device>"

    def to_json(self) -> str:
        """Everything as JSON: times in seconds, sizes in bytes, for one device and one run."""
        text: str = _json.dumps(_data(self))
        return text

    def html(self, path: str | Path) -> None:
        """Write a page that needs nothing else; open it in a browser."""
        Path(path).write_text(_page(self), encoding="utf-8")


def _transfers(costs: Costs, placement: Placement, moves: Sequence[Move]) -> Iterator[Transfer]:
    nodes, fabric = costs.problem.nodes, costs.fabric
    for move in moves:
        users = [use.node for use in move.users if use.node >= 0]
        for step in move.steps:
            if step.kind == "slice":
                continue
            reduces = step.kind in ("all_reduce", "reduce_scatter")
            made = _origin(costs, placement, move.ref[0], step.axis)
            blamed = made if reduces or not users else users[0]
            yield Transfer(
                step.kind,
                step.axis,
                costs.problem.type(move.ref),
                fabric.traffic(step),
                fabric.seconds(step),
                nodes[blamed].source,
            )


def _origin(costs: Costs, placement: Placement, v: int, axis: str) -> int:
    """The call that left a reduction pending, from one that carries it."""
    while True:
        for k, layout in enumerate(placement.strategies[v].inputs):
            if any(axis == waiting for waiting, _ in layout.pending):
                v = costs.problem.nodes[v].inputs[k][0]
                break
        else:
            return v


def _summed(transfers: Sequence[Transfer]) -> tuple[Collective, ...]:
    groups: dict[tuple[str, str], list[Transfer]] = defaultdict(list)
    for each in transfers:
        groups[each.kind, each.mesh_axis].append(each)
    rows = [
        Collective(*key, len(all_), sum(t.bytes for t in all_), sum(t.seconds for t in all_))
        for key, all_ in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _data(plan: Plan) -> dict[str, Any]:
    def named(each: Named) -> dict[str, Any]:
        return {
            "path": each.path,
            "shape": each.type.shape,
            "dtype": each.type.dtype.name,
            "axes": each.spec.axes,
            "local_shape": each.local_shape,
        }

    mesh = plan.mesh
    return {
        "format": "weft plan",
        "version": 1,
        "name": plan.name,
        "mesh": {"name": mesh.name, "shape": mesh.shape, "axis_names": mesh.axis_names},
        "device": plan.device.name,
        "links": {
            axis: {"bandwidth": link.bandwidth, "latency": link.latency}
            for axis, link in plan.links.items()
        },
        "auto": plan.auto,
        "seconds": plan.seconds,
        "compute": plan.compute,
        "communication": plan.communication,
        "memory": plan.memory,
        "flops": plan.flops,
        "gap": plan.solution.gap,
        "solve_seconds": plan.solution.solve_seconds,
        "inputs": [named(each) for each in plan.inputs],
        "outputs": [named(each) for each in plan.outputs],
        "collectives": [each._asdict() for each in plan.collectives],
        "transfers": [each._asdict() | {"type": str(each.type)} for each in plan.transfers],
    }


def _summary(plan: Plan) -> list[tuple[str, str]]:
    mesh, device = plan.mesh, plan.device
    parts = f"compute {_time(plan.compute)}, communication {_time(plan.communication)}"
    rate = plan.flops / plan.seconds / 1e12 if plan.seconds else 0.0
    excess = "" if plan.memory <= device.memory else ": does not fit"
    links = ", ".join(f"{a} {link.bandwidth / 1e9:.3g} GB/s" for a, link in plan.links.items())
    rows = [
        ("predicted time", f"{_time(plan.seconds)} ({parts}; no overlap assumed)"),
        ("memory a device", f"{size_text(plan.memory)} of {size_text(device.memory)}{excess}"),
        ("arithmetic a device", f"{plan.flops:.3g} operations, {rate:.3g} T a second"),
        ("devices", f"{mesh.size} of {device.name}; links {links}"),
    ]
    if plan.auto:
        solution = plan.solution
        rows.append(
            ("solver", f"{solution.solve_seconds:.1f} s, within {solution.gap:.2%} of the best")
        )
    return rows


def _tables(plan: Plan) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """Titles, heads and rows of the tables every form shows."""
    sums: list[tuple[str, ...]] = [
        (c.kind, c.mesh_axis, str(c.calls), size_text(c.bytes), _time(c.seconds))
        for c in plan.collectives
    ]
    alike: dict[Transfer, int] = Counter(plan.transfers)
    longest: list[tuple[str, ...]] = [
        (t.kind, t.mesh_axis, str(n), str(t.type), size_text(t.bytes), _time(t.seconds), t.source)
        for t, n in sorted(alike.items(), key=lambda each: -each[1] * each[0].seconds)
    ]

    def named(listed: Sequence[Named]) -> list[tuple[str, ...]]:
        local = [TensorType(each.local_shape, each.type.dtype) for each in listed]
        return [
            (each.path, str(each.type), str(each.spec), str(piece))
            for each, piece in zip(listed, local, strict=True)
            if each.type.size > 1
        ]

    places = ("name", "type", "split", "piece")
    return [
        ("collectives", ("kind", "axis", "calls", "bytes sent", "time"), sums),
        (
            "longest collectives",
            ("kind", "axis", "calls", "tensor", "bytes each", "time each", "line"),
            longest,
        ),
        ("arguments", places, named(plan.inputs)),
        ("results", places, named(plan.outputs)),
    ]


def _text(plan: Plan) -> Iterator[str]:
    mesh = plan.mesh
    grid = ", ".join(f"{a}={n}" for a, n in zip(mesh.axis_names, mesh.shape, strict=True))
    yield f"plan of {plan.name} on mesh {mesh.name!r} ({grid})"
    for name, value in _summary(plan):
        yield f"  {name:<20} {value}"
    for title, head, rows in _tables(plan):
        if not rows:
            yield f"{title}: none"
            continue
        listed = [head, *rows[: 8 if title == "longest collectives" else _SHOWN]]
        widths = [max(len(row[i]) for row in listed) for i in range(len(head))]
        yield f"{title}:"
        for row in listed:
            cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
            yield f"  {'  '.join(cells)}".rstrip()
        if len(rows) >= len(listed):
            yield f"  … and {len(rows) - len(listed) + 1} more"


_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
  color: #222; background: #fff; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818; } }
table { border-collapse: collapse; margin: 0 0 1.5rem; }
th, td { text-align: left; padding: 0.15rem 1rem 0.15rem 0; vertical-align: top; }
th { border-bottom: 1px solid #999; font-weight: 600; }
td { font-family: ui-monospace, monospace; font-size: 13px; }
.bar { display: flex; height: 1.2rem; margin: 0.5rem 0 1.5rem; }
.bar div { background: #3b7dd8; } .bar div + div { background: #d8843b; }
"""


def _page(plan: Plan) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{_html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    title = _html.escape(f"plan of {plan.name} on mesh {plan.mesh.name!r} {plan.mesh.shape}")
    total = plan.seconds or 1.0
    bar = "".join(
        f'<div style="width:{100 * part / total:.2f}%" title="{name} {_time(part)}"></div>'
        for name, part in (("compute", plan.compute), ("communication", plan.communication))
    )
    summary = "".join(row(each, "td") for each in _summary(plan))
    body = [f"<h1>{title}</h1>", f"<table>{summary}</table>", f'<div class="bar">{bar}</div>']
    for name, head, rows in _tables(plan):
        listed = row(head, "th") + "".join(row(each, "td") for each in rows)
        body.append(f"<h2>{name}</h2><table>{listed}</table>")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(body)}</body></html>"
    )


def _time(seconds: float) -> str:
    """Seconds as people read them.

    >>> _time(0.00123)
    '1.23 ms'
    """
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns" if seconds else "0 s"
