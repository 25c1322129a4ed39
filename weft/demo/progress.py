"""How training goes: a bar on a terminal where rich is installed, elsewhere plain lines."""

from __future__ import annotations

import importlib.util
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, Self

from weft.core.common.lazy import LazyModule
from weft.runtime.communicator import world

_rich = LazyModule("rich.progress")
_LINES = 40  # that a whole run prints without a bar
_WINDOW = 30  # steps that a rate is the mean of


class Progress(ABC):
    """A display of steps from `first` to `last`, each of which is `tokens` characters."""

    def __init__(self, first: int, last: int, tokens: int) -> None:
        self.first, self.last, self.tokens = first, last, tokens
        self._times: deque[float] = deque(maxlen=_WINDOW + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        return None

    def rate(self) -> float:
        """Characters a second over the last steps; called once a step, 0 after the first."""
        self._times.append(time.perf_counter())
        steps = len(self._times) - 1
        return steps * self.tokens / (self._times[-1] - self._times[0]) if steps else 0.0

    @abstractmethod
    def update(self, step: int, loss: float) -> None:
        """Show that a step has been taken."""

    @abstractmethod
    def say(self, text: str) -> None:
        """Show a line that stays."""


class Lines(Progress):
    """A line now and then."""

    def update(self, step: int, loss: float) -> None:
        """Print a line if it is time for one."""
        rate = self.rate()
        every = max(1, self.last // _LINES)
        if step % every and step != self.last and step != self.first + 1:
            return
        left = (self.last - step) * self.tokens / rate if rate else 0.0
        speed = f"  {rate:6.0f} tokens/s  {left:3.0f} s left" if rate else "  compiled"
        self.say(f"step {step:4d}/{self.last}  loss {loss:.4f}{speed}")

    def say(self, text: str) -> None:
        """Print it."""
        print(text, flush=True)


class Bar(Progress):
    """A bar with loss, speed and time left."""

    def __init__(self, first: int, last: int, tokens: int) -> None:
        super().__init__(first, last, tokens)
        fields = ("step {task.completed}/{task.total}", "loss {task.fields[loss]:.4f}")
        self._bar: Any = _rich.Progress(
            _rich.BarColumn(),
            *map(_rich.TextColumn, (*fields, "{task.fields[rate]:.0f} tokens/s")),
            _rich.TimeRemainingColumn(),
        )
        self._task = self._bar.add_task("", total=last, completed=first, loss=0.0, rate=0.0)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._bar.stop()

    def update(self, step: int, loss: float) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=step, loss=loss, rate=self.rate())

    def say(self, text: str) -> None:
        """Print it above the bar."""
        self._bar.console.print(text, markup=False, highlight=False)


class Silence(Progress):
    """Nothing: one process of several speaks."""

    def update(self, step: int, loss: float) -> None:
        """Say nothing."""

    def say(self, text: str) -> None:
        """Say nothing."""


def progress(first: int, last: int, tokens: int, *, silent: bool = False) -> Progress:
    """The display that suits where this process prints to."""
    if silent:
        return Silence(first, last, tokens)
    # A launcher of ranks shows them a terminal that is none.
    is_terminal = sys.stdout.isatty() and world().size == 1
    has_bar = is_terminal and importlib.util.find_spec("rich") is not None
    return (Bar if has_bar else Lines)(first, last, tokens)
