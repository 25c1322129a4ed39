"""A folder of checkpoints, one for each step that was saved, of which the newest are kept."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from weft.checkpoints.background import Saving, snapshot
from weft.checkpoints.pieces import Piece
from weft.checkpoints.sharded import pieces_of
from weft.checkpoints.store import PathLike, checked_metadata, is_complete, load, write
from weft.checkpoints.structure import describe
from weft.checkpoints.together import together
from weft.core.common.files import as_path, clear_leftovers, reporting, retire
from weft.core.common.parameters import as_integer
from weft.errors import StorageError
from weft.runtime.communicator import world

_STEP: Final = re.compile(r"step-([0-9]{9,18})")


class Checkpoints:
    """Checkpoints by step in `folder`, of which the newest `keep` stay (all with `keep=None`).

    A process may be killed at any instant: the newest complete checkpoint is there and loads. Where
    several processes run, all of them save and restore the same steps. A `with` block ends when
    what it saves in the background is on disk.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints = Checkpoints(folder)
    ...     checkpoints.save(1, {"rate": 0.1})
    ...     checkpoints.latest(), checkpoints.restore()
    (1, {'rate': 0.1})
    """

    def __init__(self, folder: PathLike, keep: int | None = 3) -> None:
        self.folder = Path(os.path.abspath(as_path("Checkpoints", folder)))
        self.keep = None if keep is None else as_integer("Checkpoints", "keep", keep, low=1)
        self._saving: Saving | None = None
        with reporting("Checkpoints", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.wait()

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step is, or would be."""
        return self.folder / f"step-{_number(step):09d}"

    def save(self, step: int, tree: Any, metadata: Mapping[str, Any] | None = None) -> None:
        """Save a tree as the checkpoint of `step`; returns when it is safe on disk."""
        self.wait()
        described = describe(tree)
        self._write(_number(step), pieces_of(described.tensors), described.structure, metadata)

    def save_async(self, step: int, tree: Any, metadata: Mapping[str, Any] | None = None) -> Saving:
        """Save in the background; one save at a time, so this waits for the one before it."""
        self.wait()
        pieces, structure = snapshot(tree)
        number, notes = _number(step), checked_metadata(metadata)
        self._saving = Saving(
            self.path(number), lambda: self._write(number, pieces, structure, notes)
        )
        return self._saving

    def wait(self) -> None:
        """Wait for a save in the background; raise what went wrong with it."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.wait()

    def _write(
        self, step: int, pieces: list[Piece], structure: Any, metadata: Mapping[str, Any] | None
    ) -> None:
        is_first = world().rank == 0
        with together("save"), reporting("save", self.folder):
            if is_first:
                clear_leftovers(self.folder, ".step-")
        write(self.path(step), pieces, structure, step=step, metadata=metadata)
        with together("save"):
            if is_first:
                self._prune(step)

    def _prune(self, newest: int) -> None:
        """Remove the oldest; what was saved just now stays even if its number is a low one."""
        if self.keep is None:
            return
        others = [step for step in self._named() if step != newest]
        with reporting("save", self.folder):
            for step in others[: max(0, len(others) - (self.keep - 1))]:
                retire(self.path(step))

    def clear(self) -> None:
        """Remove all checkpoints of the folder, complete or not."""
        self.wait()
        with together("clear"), reporting("clear", self.folder):
            if world().rank == 0:
                for step in self._named():
                    retire(self.path(step))

    def _named(self) -> list[int]:
        with reporting("Checkpoints", self.folder):
            names = os.listdir(self.folder)
        found = (_STEP.fullmatch(name) for name in names)
        return sorted(int(match[1]) for match in found if match)

    def steps(self) -> list[int]:
        """The steps whose checkpoints are complete, the oldest first."""
        return [step for step in self._named() if is_complete(self.path(step))]

    def latest(self) -> int | None:
        """The newest step whose checkpoint is complete; None if there is none."""
        seen = None
        while (named := self._named()) != seen:  # others may save and remove meanwhile
            for step in reversed(named):
                if is_complete(self.path(step)):
                    return step
            seen = named
        return None

    def restore(self, like: Any = None, step: int | None = None, *, strict: bool = True) -> Any:
        """Load the checkpoint of `step`, or the newest one, into the structure of `like`.

        With `strict=False`, into those leaves of `like` that were saved: see `load`.
        """
        self.wait()
        if step is not None:
            if not self.path(step).is_dir():
                raise StorageError(
                    f"restore: {self.folder}: there is no checkpoint of step {step}"
                    f" (there are {self.steps()})"
                )
            return load(self.path(step), like, strict=strict)
        while (newest := self.latest()) is not None:
            try:
                return load(self.path(newest), like, strict=strict)
            except StorageError:
                if self.path(newest).is_dir():
                    raise  # otherwise it had to go, as there are newer ones
        raise StorageError(
            f"restore: {self.folder}: there is no checkpoint\nhint: latest() is None then"
        )


def _number(step: Any) -> int:
    """A step that a name can hold."""
    return as_integer("Checkpoints", "step", step, 0, 10**18 - 1)
