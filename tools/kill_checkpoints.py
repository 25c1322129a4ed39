"""Kill processes that save checkpoints, at random instants, and see that nothing is lost.

Usage: python tools/kill_checkpoints.py [--kills 200] [--seed N] [--folder PATH]

A child saves in a loop and says on a pipe which step is safe. After each `kill -9` the newest
complete checkpoint must load, all its tensors must carry one step number, it must be at least as
new as the last step that was said to be safe, and the next save must clear away what was left.
The ways to save take turns: by step, in the background, over one path, and by two processes.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft.core.common.files import PARTIAL

SAVES = 4  # a kill comes within the time of that many saves
ELEMENTS = 20_000


def tree_of(step: int) -> dict[str, Any]:
    """Tensors of several sizes and dtypes that all carry the step number."""
    names = {"weights": np.float32, "moments": np.float64, "counts": np.int64}
    held = {name: wf.tensor(np.full(ELEMENTS, step, dtype)) for name, dtype in names.items()}
    return {"step": step, "held": held, "small": [wf.tensor(np.full(3, step, np.int32))]}


def number_in(tree: Any) -> int:
    """The step number that every tensor carries; an error if there are two."""
    numbers = {tree["step"]}
    for tensor in (*tree["held"].values(), *tree["small"]):
        numbers |= set(np.unique(tensor.numpy()).astype(int).tolist())
    if len(numbers) != 1:
        raise SystemExit(f"a checkpoint mixes steps: {sorted(numbers)}")
    return int(numbers.pop())


def save_steps(folder: Path, first: int, report: Callable[[int], None]) -> None:
    """Save one step after the other."""
    checkpoints = wf.checkpoints.Checkpoints(folder)
    for step in range(first, sys.maxsize):
        checkpoints.save(step, tree_of(step))
        report(step)


def save_in_background(folder: Path, first: int, report: Callable[[int], None]) -> None:
    """The same, each save in a thread of its own."""
    checkpoints = wf.checkpoints.Checkpoints(folder)
    for step in range(first, sys.maxsize):
        checkpoints.save_async(step, tree_of(step)).wait()
        report(step)


def save_over(folder: Path, first: int, report: Callable[[int], None]) -> None:
    """Replace one checkpoint again and again."""
    for step in range(first, sys.maxsize):
        wf.checkpoints.save(folder / "only", tree_of(step), step=step)
        report(step)


def save_by_two(folder: Path, first: int, report: Callable[[int], None]) -> None:
    """Save halves of tensors from two processes; the first one commits."""
    for step in range(first, sys.maxsize):
        described = wf.checkpoints.describe(tree_of(step))
        with wf.checkpoints.Draft(folder / f"step-{step:09d}") as draft:
            other = os.fork()
            wf.checkpoints.write_pieces(
                draft.folder, halves(described, int(other == 0)), rank=int(other == 0)
            )
            if other == 0:
                os._exit(0)
            os.waitpid(other, 0)
            draft.commit(described.structure, ranks=2, step=step)
        report(step)


def halves(described: Any, half: int) -> list[wf.checkpoints.Piece]:
    """The first or second half of each tensor."""
    pieces = []
    for name, tensor in described.tensors.items():
        middle = tensor.shape[0] // 2
        part = tensor.numpy()[middle:] if half else tensor.numpy()[:middle]
        pieces.append(wf.checkpoints.Piece(name, (half * middle,), part, tensor.shape))
    return pieces


def newest_step(folder: Path, way: Callable[..., None]) -> int:
    """The step number in the newest complete checkpoint, -1 if there is none."""
    if way is save_over:
        path = folder / "only"
        return number_in(wf.checkpoints.load(path)) if path.exists() else -1
    checkpoints = wf.checkpoints.Checkpoints(folder)
    if checkpoints.latest() is None:
        return -1
    for step in checkpoints.steps():  # the older ones are whole as well
        if number_in(checkpoints.restore(step=step)) != step:
            raise SystemExit(f"the checkpoint of step {step} holds another one")
    return number_in(checkpoints.restore())


def run_and_kill(folder: Path, way: Callable[..., None], first: int, delay: float) -> int:
    """Start a child, kill it after `delay` seconds; the last step it said is safe, -1 if none."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            way(folder, first, lambda step: os.write(writer, f"{step}\n".encode()))
        finally:
            os._exit(1)
    os.close(writer)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise SystemExit("the child failed before it was killed")
    with open(reader, "rb") as pipe:
        lines = pipe.read().split()
    return int(lines[-1]) if lines else -1


def leftovers(folder: Path) -> int:
    """How many partial folders there are."""
    return sum(name.endswith(PARTIAL) for name in os.listdir(folder))


def main() -> None:
    """Kill as often as asked, check after each kill, and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--folder", type=Path, default=None)
    chosen = parser.parse_args()
    seed = chosen.seed if chosen.seed is not None else int.from_bytes(os.urandom(4))
    draw = random.Random(seed)
    ways = (save_steps, save_in_background, save_over, save_by_two)
    newest = dict.fromkeys(ways, 0)
    left = ahead = 0
    with tempfile.TemporaryDirectory(dir=chosen.folder) as base:
        longest = {way: SAVES * save_once(Path(base) / way.__name__, way, 0) for way in ways}
        for kill in range(chosen.kills):
            way = ways[kill % len(ways)]
            folder = Path(base) / way.__name__
            safe = run_and_kill(folder, way, newest[way] + 1, draw.uniform(0.0, longest[way]))
            left += leftovers(folder) > 0
            found = newest_step(folder, way)
            if found < max(safe, newest[way]):
                raise SystemExit(
                    f"seed {seed}, kill {kill}: step {safe} was safe, {found} is there"
                )
            ahead += found > safe >= 0
            newest[way] = found
        for way in ways:
            folder = Path(base) / way.__name__
            save_once(folder, way, newest[way] + 1)
            if leftovers(folder):
                raise SystemExit(f"{way.__name__}: a save did not clear away what was left")
    steps = sum(newest.values())
    print(
        f"{chosen.kills} kills (seed {seed}), {steps} steps saved, nothing lost;"
        f" {left} kills left partial folders, after {ahead} the newest step was complete but not"
        " yet reported"
    )


def save_once(folder: Path, way: Callable[..., None], step: int) -> float:
    """Save a single step; how many seconds it took."""

    class Enough(Exception):
        """Raised by the first report."""

    def stop(_: int) -> None:
        raise Enough

    folder.mkdir(exist_ok=True)
    start = time.perf_counter()
    with suppress(Enough):
        way(folder, step, stop)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
