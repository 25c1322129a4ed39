"""The communication log: what was moved between devices, how many bytes, for which line.

Collectives are entered when they are decided, at the call, before any data is read. One that a
`scan` holds is entered once, with the number of its rounds; those of a `while_loop` nobody knows.
Sums that a compiled graph carries out together are entered one by one, each with its own line.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from weft.core.common.source import Position, describe
from weft.core.common.spec import DeviceMesh, MeshAxes
from weft.core.common.types import Shape


@dataclass(frozen=True, slots=True)
class Communication:
    """One collective: `bytes` is what each device sends, `times` how often."""

    kind: str
    mesh: DeviceMesh
    axes: MeshAxes
    shape: Shape
    bytes: int
    reason: str = ""
    position: Position | None = None
    times: int = 1

    def __str__(self) -> str:
        often = f" {self.times} times" if self.times != 1 else ""
        where = f"  # {describe(self.position)}" if self.position else ""
        why = f" for {self.reason}" if self.reason else ""
        over = "+".join(self.axes)
        return f"{self.kind} over {over}: {self.shape}, {self.bytes} bytes{often}{why}{where}"


@dataclass
class CommunicationLog:
    """Collectives in the order in which they were decided."""

    entries: list[Communication] = field(default_factory=list)

    @property
    def kinds(self) -> list[str]:
        """The kinds of the collectives, in order."""
        return [entry.kind for entry in self.entries]

    @property
    def bytes(self) -> int:
        """What each device sends in all."""
        return sum(entry.bytes * entry.times for entry in self.entries)

    def count(self, kind: str) -> int:
        """How many collectives of a kind were decided; one in a loop counts once."""
        return self.kinds.count(kind)

    def __iter__(self) -> Iterator[Communication]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        return "\n".join(map(str, self.entries)) or "no communication"


_logs: ContextVar[tuple[CommunicationLog, ...]] = ContextVar("weft_communication", default=())


@contextmanager
def communication_log() -> Iterator[CommunicationLog]:
    """Watch what moves between devices: `with wf.communication_log() as log: …; print(log)`."""
    log = CommunicationLog()
    _logs.set((*_logs.get(), log))
    try:
        yield log
    finally:  # in any order, as blocks of generators end
        _logs.set(tuple(each for each in _logs.get() if each is not log))


_rounds: ContextVar[int] = ContextVar("weft_rounds", default=1)


@contextmanager
def repeated(times: int) -> Iterator[None]:
    """Inside, collectives are those of one round of a loop that has so many."""
    token = _rounds.set(_rounds.get() * times)
    try:
        yield
    finally:
        _rounds.reset(token)


@contextmanager
def unlogged() -> Iterator[None]:
    """Inside, nothing is entered: for trying out on shapes what will be done later."""
    token = _logs.set(())
    try:
        yield
    finally:
        _logs.reset(token)


def is_logging() -> bool:
    """Whether somebody watches."""
    return bool(_logs.get())


def enter(entry: Communication) -> None:
    """Tell everybody who watches."""
    rounds = _rounds.get()
    entry = entry if rounds == 1 else replace(entry, times=entry.times * rounds)
    for log in _logs.get():
        log.entries.append(entry)
