"""Where the time went: events of a profile added up by name, as rows and as a table.

Events of a thread lie inside each other. What is put down to an op, a host call, a run or a phase
of compiling is its own time, without what lies inside; a region is given all of its time. A kernel
is given the time in which some thread ran it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.compiler.cost import Work
from weft.compiler.peaks import Peaks
from weft.core.common.events import Event

_WORKING = frozenset({"op", "host", "kernel", "run"})
_WIDEST = 44  # characters of a name in the table
_COLUMNS = ("kind", "name", "calls", "total ms", "mean µs", "GFLOP/s", "GB/s", "roofline", "time")


@dataclass
class Row:
    """What all events of one kind and name took together."""

    kind: str  # kernel, op, host, run, compile or region
    name: str
    calls: float = 0.0
    nanoseconds: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    least_ns: float = 0.0  # what the machine's peaks would allow
    spans: list[tuple[float, float]] = field(default_factory=list, repr=False)

    def cells(self, wall_ns: float, known: bool) -> tuple[str, ...]:
        """The row of the table; `known`: whether the machine's peaks are."""
        spent = max(self.nanoseconds, 1.0)
        calls = round(self.calls)
        return (
            self.kind,
            self.name if len(self.name) <= _WIDEST else f"{self.name[: _WIDEST - 1]}…",
            str(calls),
            f"{self.nanoseconds / 1e6:.3f}",
            f"{self.nanoseconds / 1e3 / max(calls, 1):.2f}",
            f"{self.flops / spent:.2f}" if self.flops else "",
            f"{self.bytes / spent:.2f}" if self.bytes else "",
            f"{self.least_ns / spent:.0%}" if self.least_ns and known else "",
            f"{self.nanoseconds / max(wall_ns, 1.0):.1%}",
        )


def rows_of(
    events: Sequence[Event],
    details: Callable[[Event], dict[str, Any]],
    peaks: Peaks | None,
) -> list[Row]:
    """A row for each kind and name, what took longest first and regions last."""
    rows: dict[tuple[str, str], Row] = {}
    for event, kind, own_ns, works in _nested(events):
        row = rows.setdefault((kind, event.name), Row(kind, event.name))
        row.calls += event.share
        if kind == "kernel":
            row.spans.append((event.start_ns, event.end_ns))
        else:
            row.nanoseconds += event.end_ns - event.start_ns if kind == "region" else own_ns
        if works and kind in ("kernel", "op", "host"):
            _add_work(row, event, details(event), peaks)
    for row in rows.values():
        row.nanoseconds += _covered(row.spans)
    return sorted(rows.values(), key=lambda row: (row.kind == "region", -row.nanoseconds))


def table(rows: Sequence[Row], wall_ns: float, known: bool) -> str:
    """The rows as text, in columns."""
    cells = [_COLUMNS, *(row.cells(wall_ns, known) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = (0, 1)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def _add_work(row: Row, event: Event, known: dict[str, Any], peaks: Peaks | None) -> None:
    work = Work(known["flops"], known["read"], known["written"])
    row.flops += event.share * work.flops
    row.bytes += event.share * work.moved
    if peaks is not None and not known.get("elsewhere"):
        wide = known["dtype"] in ("float64", "int64", "complex128")
        row.least_ns += event.share * peaks.nanoseconds(work, wide=wide)


@dataclass
class _Open:
    event: Event
    kind: str
    inside_ns: float = 0.0
    works: bool = True  # whether the work is its own and not that of what lies inside


def _nested(events: Iterable[Event]) -> Iterable[tuple[Event, str, float, bool]]:
    """Each event with its kind, its own time, and whether the work it names is its own."""
    threads: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        threads[event.thread].append(event)
    for found in threads.values():
        stack: list[_Open] = []
        for event in sorted(found, key=lambda e: (e.start_ns, -e.end_ns)):
            while stack and stack[-1].event.end_ns <= event.start_ns:
                yield _closed(stack)
            around = stack[-1] if stack else None
            hosted = event.kind == "op" and around is not None and around.kind == "run"
            stack.append(_Open(event, "host" if hosted else event.kind))
            if around is not None:
                around.works = around.works and event.kind not in _WORKING
        while stack:
            yield _closed(stack)


def _closed(stack: list[_Open]) -> tuple[Event, str, float, bool]:
    done = stack.pop()
    spent = done.event.end_ns - done.event.start_ns
    if stack:
        stack[-1].inside_ns += spent
    return done.event, done.kind, max(spent - done.inside_ns, 0.0), done.works


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """How much time lies in at least one of these spans."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total
