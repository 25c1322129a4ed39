"""When each kernel of a program ran, and on which thread: a ring of records that runs fill.

Programs that are not given a profile pay one well-predicted branch per kernel call.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from weft.runtime.cpu.executor import executor
from weft.runtime.cpu.executor_layout import PROFILE_HEADER, PROFILE_WORDS


class Timing(NamedTuple):
    """One call of a kernel, or one chunk of it; times are those of `time.perf_counter_ns`."""

    name: str
    step: int  # its place among the program's names
    thread: int  # 0 is the thread that called `run`
    start_ns: float
    end_ns: float


class Profile:
    """The last `capacity` kernel calls of the runs it was given to; a power of two is best."""

    def __init__(self, names: tuple[str, ...], capacity: int) -> None:
        self.names = names
        self.capacity = 1 << max(capacity - 1, 0).bit_length()
        self._memory = np.zeros(PROFILE_HEADER + PROFILE_WORDS * self.capacity, np.int64)
        self._memory[1] = self.capacity - 1
        self.address: int = self._memory.ctypes.data
        self._origin = _both_clocks()

    @property
    def calls(self) -> int:
        """How many kernel calls were recorded; those before the last `capacity` are gone."""
        return int(self._memory[0])

    def clear(self) -> None:
        """Forget what was recorded."""
        self._memory[0] = 0

    def timings(self) -> list[Timing]:
        """What was recorded, in order of start."""
        ticks, nanoseconds = self._origin
        now_ticks, now_nanoseconds = _both_clocks()
        scale = (now_nanoseconds - nanoseconds) / (now_ticks - ticks)
        records = self._memory[PROFILE_HEADER:].reshape(-1, PROFILE_WORDS)
        kept = records[: min(self.calls, self.capacity)].tolist()
        return [
            Timing(
                self.names[step],
                step,
                thread,
                nanoseconds + (start - ticks) * scale,
                nanoseconds + (end - ticks) * scale,
            )
            for start, end, thread, step in sorted(kept)
        ]


def _both_clocks() -> tuple[int, int]:
    """The processor's clock and Python's at one moment."""
    return executor().ticks(), time.perf_counter_ns()
