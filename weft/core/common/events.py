"""What runs and when, told to whoever watches: `watchers` is empty unless somebody measures.

Whatever takes time looks at `watchers` once and, if there are any, tells them an `Event` when it
has ended. Watchers are of the whole process: they are told what every thread does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, TypeAlias

Details: TypeAlias = Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that took time; times are those of `time.perf_counter_ns`."""

    kind: str  # region, run, kernel, host, op or compile
    name: str
    start_ns: float
    end_ns: float
    thread: int  # as `threading.get_native_id` says; -n is worker n of the pool
    details: Details | None = None  # asked for when the event is shown, not while things run
    share: float = 1.0  # of a call: threads tell each chunk of a kernel on its own


watchers: list[Callable[[Event], None]] = []


def tell(event: Event) -> None:
    """Tell every watcher."""
    for watcher in tuple(watchers):
        watcher(event)


@contextmanager
def told(kind: str, name: str, details: Details | None = None) -> Iterator[None]:
    """Tell watchers how long the block took, if there are any when it ends."""
    start = perf_counter_ns()
    try:
        yield
    finally:
        if watchers:
            end = perf_counter_ns()
            tell(Event(kind, name, start, end, threading.get_native_id(), details))
