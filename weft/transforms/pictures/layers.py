"""Put boxes into rows: every line points down, and lines that belong together lie close.

A box's row is the length of the longest path to it; boxes without operands are moved down to those
that use them. Within rows, boxes are sorted by the mean place of their neighbours, a few times.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

_SWEEPS = 6


def rows_of(
    count: int, edges: Iterable[tuple[int, int]], widths: Sequence[float], widest: float = 2400.0
) -> list[list[int]]:
    """Rows of the boxes 0 … `count` - 1, none wider than `widest` if it has two boxes.

    >>> rows_of(4, [(0, 1), (1, 3), (2, 3)], [10, 10, 10, 10])
    [[0], [1, 2], [3]]
    """
    lines = sorted({(a, b) for a, b in edges if a != b})
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for a, b in lines:
        after[a].append(b)
        before[b].append(a)
    depth = _depths(before, after)
    rows: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for box, row in enumerate(depth):
        rows[row].append(box)
    for sweep in range(_SWEEPS):
        _sort_rows(rows, before if sweep % 2 == 0 else after, down=sweep % 2 == 0)
    return [part for row in rows if row for part in _split(row, widths, widest)]


def _depths(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> list[int]:
    """The row of each box; a cycle is cut at its earliest box."""
    waiting = [len(sources) for sources in before]
    depth = [0] * len(before)
    done = [False] * len(before)
    ready = [box for box, number in enumerate(waiting) if number == 0]
    earliest = 0
    for _ in before:
        while not ready:
            if not done[earliest]:
                ready.append(earliest)
            earliest += 1
        box = heapq.heappop(ready)
        done[box] = True
        for user in after[box]:
            waiting[user] -= 1
            if not done[user]:
                depth[user] = max(depth[user], depth[box] + 1)
                if waiting[user] == 0:
                    heapq.heappush(ready, user)
    for box, users in enumerate(after):
        if not before[box] and users:
            depth[box] = max(min(depth[user] for user in users) - 1, 0)
    return depth


def _sort_rows(rows: list[list[int]], near: Sequence[Sequence[int]], down: bool) -> None:
    """Sort each row by the mean place of its neighbours in the rows that were sorted before."""
    place = {box: (number + 0.5) / len(row) for row in rows for number, box in enumerate(row)}
    for row in rows if down else rows[::-1]:
        want = {
            box: sum(place[other] for other in near[box]) / len(near[box])
            if near[box]
            else place[box]
            for box in row
        }
        row.sort(key=want.__getitem__)
        place.update((box, (number + 0.5) / len(row)) for number, box in enumerate(row))


def _split(row: list[int], widths: Sequence[float], widest: float) -> list[list[int]]:
    """A row as several where it is too wide; boxes of one row never need each other."""
    parts: list[list[int]] = [[]]
    total = 0.0
    for box in row:
        if parts[-1] and total + widths[box] > widest:
            parts.append([])
            total = 0.0
        parts[-1].append(box)
        total += widths[box]
    return parts
