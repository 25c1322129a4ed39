"""A whole run: begin or go on, train, look at unseen text, save, and show what was learned."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft import nn
from weft.demo.folder import CAN_DRAW, Folder
from weft.demo.progress import Progress, progress
from weft.demo.sampling import generate
from weft.demo.training import Settings, State, Training
from weft.errors import ArgumentError, StorageError
from weft.runtime.communicator import world

INTERRUPTED = 130  # what a shell expects after Ctrl-C
PROFILED = range(3, 6)  # steps of a run that are recorded, after those that compile
SAMPLE_LENGTH = 400
PROMPT = "Of Man's first disobedience, and the fruit"


def run(
    settings: Settings,
    out: Path,
    mesh: wf.DeviceMesh | None = None,
    *,
    fresh: bool = False,
    sample_only: bool = False,
) -> int:
    """Train in `out`, or go on there, and show a sample; the exit status is returned."""
    training, folder = Training(settings, mesh), Folder(out, settings)
    if fresh:
        folder.checkpoints.clear()
    state = folder.restore(training.first_state())
    if sample_only and not state.step:
        raise ArgumentError(
            f"demo: {out}: holds no model yet\nhint: train one, without --sample-only"
        )
    _say(_introduction(training, state, out))
    if state.step < settings.steps and not sample_only:
        with interruptible() as is_interrupted:
            train(training, folder, state, is_interrupted)
        _finish(folder, state)
        if state.step < settings.steps:
            _say(f"interrupted after step {state.step}; the same command goes on from there")
            return INTERRUPTED
        _say(f"loss {state.losses[-1]:.4f}, on unseen text {state.validation[-1]:.4f}")
    _say(f"\n{sample(training, state)}")
    return 0


def train(training: Training, folder: Folder, state: State, is_interrupted: Any) -> None:
    """Take steps until the last one, or until somebody asks to stop."""
    settings, began, recorded = training.settings, state.step, wf.profile()
    tokens = settings.batch * settings.context
    with progress(began, settings.steps, tokens, silent=not _speaks()) as shown:
        for batch in training.batches(state):
            is_recorded = state.step - began in PROFILED
            with recorded if is_recorded else nullcontext():
                loss = training.advance(state, batch)
            shown.update(state.step, loss)
            if state.step - began == PROFILED.stop and _speaks():
                with telling(shown, "not written"):
                    folder.write_profile(recorded)
                    folder.draw_graph(training.step, training.arguments(state, batch))
            if state.step in settings.looks:
                found = training.look(state)
                shown.say(f"step {state.step:4d}  loss on unseen text {found:.4f}")
                with telling(shown, "not saved"):
                    folder.save(state)
            if state.step == settings.steps or is_interrupted():
                return


@contextmanager
def telling(shown: Progress, what: str) -> Iterator[None]:
    """Inside, a disk that is full is told and then left: there may be room when it matters."""
    try:
        yield
    except StorageError as error:
        shown.say(f"{what}: {error}\ntraining goes on, older checkpoints are untouched")


def _finish(folder: Folder, state: State) -> None:
    """Save the last state, wait for it, and draw."""
    with suppress(StorageError):  # of the save before this one
        folder.save(state)
    try:
        folder.checkpoints.wait()
    except StorageError:
        _say(f"step {state.step} could not be saved; complete: {folder.checkpoints.steps()}")
        raise
    if _speaks():
        drawn = folder.draw_losses(state)
        _say(f"wrote {drawn}" + ("" if CAN_DRAW else " (a picture needs matplotlib)"))


def sample(training: Training, state: State, count: int = SAMPLE_LENGTH) -> str:
    """A prompt and what the model makes of it."""
    text, key = training.text, wf.random.fold_in(training.model_key, 1)
    prompt = wf.tensor(text.encode(PROMPT)[None])
    drawn = generate(state.model, prompt, key, count=count)
    return PROMPT + text.decode(drawn)


@contextmanager
def interruptible() -> Iterator[Any]:
    """Inside, the first Ctrl-C only asks to stop: `asked()` tells every process so at once."""
    asked: list[int] = []
    ranks = world()

    def ask(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    def is_asked() -> bool:
        if ranks.size == 1:
            return bool(asked)
        mine = np.array([len(asked)])
        return bool(ranks.all_reduce(mine, "max", tuple(range(ranks.size)))[0])

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, ask) for number in numbers]
    try:
        yield is_asked
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _introduction(training: Training, state: State, out: Path) -> str:
    settings, ranks = training.settings, world().size
    where = "one device" if training.mesh is None else f"mesh {training.mesh}"
    lines = [
        f"A GPT of {nn.parameter_count(state.model):,} parameters in {settings.layers} layers"
        f" learns to write like Milton: {len(training.text):,} characters,"
        f" {settings.steps} steps of {settings.batch} × {settings.context}.",
        f"{where}{f', {ranks} processes' if ranks > 1 else ''}, {settings.dtype}; folder {out}",
    ]
    if state.step >= settings.steps:
        lines.append(f"the run is finished ({state.step} steps); --fresh begins anew")
    elif state.step:
        lines.append(f"going on from step {state.step}")
    return "\n".join(lines)


def _speaks() -> bool:
    return world().rank == 0


def _say(text: str) -> None:
    if _speaks():
        print(text, flush=True)
