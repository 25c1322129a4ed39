"""`profile`: what ran, when, on which thread, and how close it came to what the machine can do."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import wraps
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any

from weft.core.common.events import Event, told, watchers
from weft.core.common.lazy import LazyModule
from weft.core.common.locks import lock_for
from weft.core.common.parameters import as_function, shown
from weft.core.graph.graph import GRAPH
from weft.errors import ArgumentError
from weft.runtime.cpu import jit

if TYPE_CHECKING:
    from weft.compiler.peaks import Peaks
    from weft.transforms.usage import Row

_json = LazyModule("json")
_peaks = LazyModule("weft.compiler.peaks")
_timeline = LazyModule("weft.transforms.timeline")
_usage = LazyModule("weft.transforms.usage")
MOST_EVENTS = 1 << 20  # that one profile keeps


class profile:
    """`with wf.profile("trace.json") as p: …`, then `print(p)`: a timeline and a table.

    While it is open, everything that any thread of the process runs is recorded: kernels on each
    thread, runs of compiled programs, ops that run by themselves, host calls, phases of compiling,
    and regions that you name. The file is a timeline for Perfetto (ui.perfetto.dev); it is written
    when the block ends, also when it ends by an exception. The table has, for each name, calls,
    time, rates, and the share of the time that the machine's measured peaks would allow. Functions
    such as `exp` count the operations they are computed with.

    Calls that are recorded but have not run are run when the block begins, so as not to be counted,
    and when it ends, so as to be. Profiles may be nested or open in several threads: each records
    all that runs while it is open. Used as a decorator, or entered again, it adds to what it has.

    >>> with profile() as p, profile.region("forward"):
    ...     pass
    >>> [(row.kind, row.name) for row in p.rows]
    [('region', 'forward')]
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        if not isinstance(path, str | os.PathLike | None):
            raise ArgumentError(
                f"profile: path must be a path or None, got {shown(path)}"
                "\nhint: as a decorator it is written @wf.profile()"
            )
        self.path = path
        self._events: list[Event] = []
        self._refused = 0  # events for which there was no room
        self._threads: dict[int, str] = {}
        self._details: dict[int, dict[str, Any]] = {}
        self._lock = lock_for(self, "_lock")
        self._depth = 0
        self._began: int | None = None
        self._opened = 0
        self._closed_ns = 0

    @staticmethod
    def region(name: str) -> AbstractContextManager[None]:
        """`with wf.profile.region("forward"): …` — the block's time under a name of yours."""
        if not isinstance(name, str):
            raise ArgumentError(f"profile: region: the name must be a string, got {shown(name)}")
        return told("region", name)

    def __enter__(self) -> profile:
        if not self._depth:
            GRAPH.flush()
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self._opened = perf_counter_ns()
                self._began = self._opened if self._began is None else self._began
                watchers.append(self._record)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None and self._depth == 1:
                GRAPH.flush()
        finally:
            self._close()

    def _close(self) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth:
                return
            watchers.remove(self._record)
            self._closed_ns += perf_counter_ns() - self._opened
        if self.path is not None:
            self.save(self.path)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function; its calls are profiled."""
        as_function("profile", "function", function)

        @wraps(function)
        def profiled(*args: Any, **keywords: Any) -> Any:
            with self:
                return function(*args, **keywords)

        return profiled

    def _record(self, event: Event) -> None:
        if len(self._events) >= MOST_EVENTS:
            self._refused += 1
            return
        if event.thread >= 0 and event.thread not in self._threads:
            self._threads[event.thread] = threading.current_thread().name
        if event.start_ns < self._opened:  # it began before anybody watched
            event = replace(event, start_ns=self._opened)
        self._events.append(event)

    @property
    def events(self) -> tuple[Event, ...]:
        """What was recorded, in the order in which it ended."""
        return tuple(self._events)

    @property
    def lost(self) -> int:
        """How many events there was no room for: the oldest of a run, the latest of the profile."""
        runs = [e for e in self.events if e.kind == "run"]
        return self._refused + sum(int(self._told(e)["lost"]) for e in runs)

    @property
    def seconds(self) -> float:
        """How long the profile has been open."""
        with self._lock:
            running = perf_counter_ns() - self._opened if self._depth else 0
            return (self._closed_ns + running) / 1e9

    @property
    def rows(self) -> list[Row]:
        """The table as data: a row for each kind and name, regions last."""
        found: list[Row] = _usage.rows_of(self.events, self._told, _machine())
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline, as JSON in Chrome's trace format; missing folders are made."""
        made = _timeline.timeline(self.events, self._threads, self._began or 0, self._told)
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            _json.dump(made, file)

    def _told(self, event: Event) -> dict[str, Any]:
        """An event's details, worked out once."""
        if event.details is None:
            return {}
        found = self._details.get(id(event.details))
        if found is None:
            found = self._details[id(event.details)] = event.details()
        return found

    def __str__(self) -> str:
        seconds, lost, machine = self.seconds, self.lost, _machine()
        lines = [
            f"{seconds * 1e3:.3f} ms, {len(self._events)} events"
            + (f", {lost} more were lost" if lost else ""),
            _usage.table(self.rows, seconds * 1e9, machine is not None),
        ]
        return "\n".join(lines if machine is None else [*lines, f"peaks: {machine}"])


def _machine() -> Peaks | None:
    """What the machine can do, where kernels can be compiled at all."""
    return _peaks.peaks() if jit.available() else None


__all__ = ["profile"]
