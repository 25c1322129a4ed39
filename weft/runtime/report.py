"""What is alive: `memory_report()` lists allocations, who made them, and what allocators hold.

Tensors that share memory are one entry. An `OutOfMemoryError` carries the head of this report.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core.common.source import Position, describe
from weft.core.common.types import TensorType
from weft.core.graph.graph import GRAPH
from weft.core.graph.node import OutputRefs
from weft.core.tensor.impl import TensorImpl, Unread
from weft.core.tensor.sharing import root_of
from weft.runtime.registry import registered_runtimes

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Allocation:
    """One piece of memory, and the tensors that lie in it."""

    nbytes: int
    device: str
    tensors: tuple[TensorType, ...]
    made_at: Position | None  # known from 64 KiB on

    def __str__(self) -> str:
        types = ", ".join(map(str, self.tensors[:3]))
        more = f" and {len(self.tensors) - 3} more" if len(self.tensors) > 3 else ""
        where = f"  {describe(self.made_at)}" if self.made_at else ""
        return f"{show_bytes(self.nbytes):>10}  {self.device:7} {types}{more}{where}"


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """What was alive when the report was made, the largest allocation first."""

    allocations: tuple[Allocation, ...]
    allocators: dict[str, Any]  # backend → what its allocator says of itself
    pending: int  # recorded calls that have not run

    @property
    def nbytes(self) -> int:
        """Bytes of all allocations."""
        return sum(a.nbytes for a in self.allocations)

    def head(self, count: int = _SHOWN) -> str:
        """The totals and the largest `count` allocations, one a line."""
        rows = [
            f"{show_bytes(self.nbytes)} alive in {len(self.allocations)} allocations, "
            f"{self.pending} recorded calls pending"
        ]
        rows += [f"  {allocation}" for allocation in self.allocations[:count]]
        if len(self.allocations) > count:
            rest = sum(a.nbytes for a in self.allocations[count:])
            rows.append(f"  … {len(self.allocations) - count} more, {show_bytes(rest)}")
        rows += [f"allocator of {name}: {stats}" for name, stats in self.allocators.items()]
        return "\n".join(rows)

    def __str__(self) -> str:
        return self.head()


def memory_report() -> MemoryReport:
    """Everything alive in this process: allocations, their tensors, and the lines that made them.

    >>> report = memory_report()
    >>> report.nbytes >= 0
    True
    """
    roots: dict[tuple[str, int], tuple[Any, list[TensorType], list[Position | None]]] = {}
    for data, kind, device, position in _living():
        root = root_of(data) if isinstance(data, np.ndarray) else data
        _, kinds, positions = roots.setdefault((device, id(root)), (root, [], []))
        kinds.append(kind)
        positions.append(position)
    allocations = [
        Allocation(_size(root), device, tuple(kinds), next(filter(None, positions), None))
        for (device, _), (root, kinds, positions) in roots.items()
    ]
    allocations.sort(key=lambda a: -a.nbytes)
    stats = {
        backend.name: allocator.stats()
        for backend in registered_runtimes()
        if (allocator := getattr(backend, "allocator", None)) is not None
    }
    return MemoryReport(tuple(allocations), stats, GRAPH.pending)


def _living() -> Iterator[tuple[Any, TensorType, str, Position | None]]:
    """Each value that is in memory: data, type, device, and the line that made it."""
    nodes = []
    seen = set()
    for thing in gc.get_objects():
        # A native routine may have made a tensor and not have filled it yet.
        if type(thing) is TensorImpl and getattr(thing, "data", None) is not None:
            seen.add(id(thing.data))
            yield thing.data, thing.type, thing.device.name, thing.maker
        elif type(thing) is Unread and getattr(thing, "payload", None) is not None:
            yield thing.payload, thing.type, thing.device.name, thing.maker
        elif type(thing) is OutputRefs and thing.results is not None:
            nodes.append(thing)
    for node in nodes:  # values that only a recorded call still needs
        for data, kind in zip(node.results or (), node.types, strict=False):
            if id(data) not in seen:
                seen.add(id(data))
                yield data, kind, node.device.name, node.position


def _size(root: Any) -> int:
    return int(root.nbytes)


def show_bytes(count: int) -> str:
    """Bytes as people read them.

    >>> show_bytes(3 * 1024 * 1024)
    '3.0 MiB'
    """
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {unit}" if unit != "B" else f"{count} B"
        size /= 1024
    return f"{size:.1f} TiB"


__all__ = [
    "memory_report",
]
