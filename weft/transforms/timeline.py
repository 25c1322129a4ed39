"""Events as a timeline in Chrome's trace format, which Perfetto (ui.perfetto.dev) opens.

Each Python thread and each worker of the pool is a track; what lies inside something else is drawn
below it. Times are microseconds since the profile began.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from weft.core.common.events import Event

_WORKERS = 1000  # tracks of workers come after those of Python threads


def timeline(
    events: Iterable[Event],
    threads: Mapping[int, str],
    began_ns: float,
    details: Callable[[Event], dict[str, Any]],
) -> dict[str, Any]:
    """The trace as an object for `json.dump`; `threads` names the Python threads."""
    process = os.getpid()
    numbers = {thread: number for number, thread in enumerate(threads)}
    names = {number: threads[thread] for thread, number in numbers.items()}
    rows = []
    for event in events:
        track = _WORKERS - event.thread if event.thread < 0 else numbers[event.thread]
        names.setdefault(track, f"weft-worker-{-event.thread}")
        rows.append(
            {
                "name": event.name,
                "cat": event.kind,
                "ph": "X",
                "ts": (event.start_ns - began_ns) / 1e3,
                "dur": (event.end_ns - event.start_ns) / 1e3,
                "pid": process,
                "tid": track,
                "args": details(event),
            }
        )
    labels = [_label(process, 0, "process_name", name="weft")]
    for track, name in names.items():
        labels.append(_label(process, track, "thread_name", name=name))
        labels.append(_label(process, track, "thread_sort_index", sort_index=track))
    return {"traceEvents": [*labels, *rows], "displayTimeUnit": "ns"}


def _label(process: int, track: int, what: str, **value: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "ts": 0, "pid": process, "tid": track, "args": value}
