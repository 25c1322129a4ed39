"""What a run leaves in its folder: checkpoints to go on from, and files to look at."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft.checkpoints import Checkpoints, open_checkpoint
from weft.core.common.files import reporting
from weft.core.common.lazy import LazyModule
from weft.demo.training import Settings, State
from weft.errors import ArgumentError

_figure = LazyModule("matplotlib.figure")
CAN_DRAW = importlib.util.find_spec("matplotlib") is not None


class Folder:
    """The folder of one run; several processes write their checkpoints together."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path, self.settings = path, settings
        self.checkpoints = Checkpoints(path / "checkpoints", keep=2)
        probe = path / ".writable"
        with reporting("demo", path):  # better now than after minutes of training
            probe.write_bytes(b"weft")
            probe.unlink(missing_ok=True)

    def save(self, state: State) -> None:
        """Save a state in the background; what went wrong with the save before is raised then."""
        try:
            self.checkpoints.wait()
        finally:
            self.checkpoints.save_async(state.step, state, {"settings": asdict(self.settings)})

    def restore(self, first: State) -> State:
        """The newest state that was saved, laid out as `first`; that one if there is none."""
        newest = self.checkpoints.latest()
        if newest is None:
            return first
        self._check(open_checkpoint(self.checkpoints.path(newest)).metadata.get("settings", {}))
        found: State = self.checkpoints.restore(first, newest)
        found.losses, found.validation = found.losses.copy(), found.validation.copy()
        return found

    def _check(self, saved: dict[str, Any]) -> None:
        mine = asdict(self.settings)
        other = [f"{k} was {saved.get(k)}, is {v}" for k, v in mine.items() if saved.get(k) != v]
        if other:
            raise ArgumentError(
                f"demo: {self.path}: holds a run with other settings ({'; '.join(other)})"
                "\nhint: --fresh begins anew, --out FOLDER leaves that run alone"
            )

    def draw_losses(self, state: State) -> Path:
        """`loss.png`, or `loss.csv` where matplotlib is not installed."""
        steps = np.arange(1, state.step + 1)
        looks = self.settings.looks
        if not CAN_DRAW:
            held = dict(zip(looks, state.validation.tolist(), strict=True))
            rows = [(i, state.losses[i - 1], held.get(i, "")) for i in steps.tolist()]
            return self._written("loss.csv", lambda path: _write_table(path, rows))
        figure = _figure.Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        axes.plot(steps, state.losses[: state.step], linewidth=1, label="training")
        axes.plot(looks, state.validation, "o-", label="text never seen")
        axes.set(xlabel="step", ylabel="loss (nats a character)", title="Paradise Lost, by a GPT")
        axes.legend()
        return self._written("loss.png", lambda path: figure.savefig(path, dpi=120))

    def write_profile(self, profile: wf.profile) -> Path:
        """`profile.json`: a timeline for ui.perfetto.dev."""
        return self._written("profile.json", profile.save)

    def draw_graph(self, step: Any, arguments: Any) -> Path | None:
        """`graph.html`: the graph of a step, for a browser; None where weft cannot draw it."""
        visualize = getattr(wf, "visualize", None)
        if visualize is None:
            return None
        return self._written("graph.html", lambda path: visualize(step)(*arguments, path=path))

    def _written(self, name: str, write: Callable[[Path], Any]) -> Path:
        path = self.path / name
        with reporting("demo", path):
            write(path)
        return path


def _write_table(path: Path, rows: list[tuple[Any, ...]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("step", "training", "validation"), *rows])
