"""Saving while the program goes on: the values are held at the call, the disk is written to later.

Tensors never change, so holding them is enough; memory that others may write to is copied.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from weft.checkpoints.pieces import Piece
from weft.checkpoints.sharded import pieces_of
from weft.checkpoints.store import PathLike, checked_metadata, write
from weft.checkpoints.structure import describe
from weft.core.common.files import as_path
from weft.core.common.parameters import as_integer
from weft.errors import StorageError, WeftError
from weft.runtime.communicator import world

_log = logging.getLogger("weft")


class Saving:
    """A save that is under way; `wait()` returns when the checkpoint is complete, or raises.

    A failure is logged as well, for programs that never wait. The interpreter does not exit before
    the save has ended. Processes that save together meet while they do: theirs has ended when the
    call returns.
    """

    def __init__(self, path: PathLike, work: Callable[[], None]) -> None:
        self.path = as_path("save", path)
        self._work = work
        self._error: WeftError | None = StorageError(
            f"save: {path}: broke off before the checkpoint was complete"
            "\nhint: the thread that saved has printed a traceback"
        )
        self._thread = threading.Thread(target=self._run, name=f"weft save {path}")
        self._thread.start()
        if world().size > 1:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._work()
        except WeftError as error:
            self._error = error
            _log.error("saving %s in the background failed: %s", self.path, error)
        else:
            self._error = None

    @property
    def done(self) -> bool:
        """Whether the save has ended, well or not."""
        return not self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> Path:
        """Wait until the checkpoint is complete and give its path; raise what went wrong."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise StorageError(f"wait: {self.path}: not saved after {timeout} seconds")
        if self._error is not None:
            raise self._error
        return self.path


def save_async(
    path: PathLike,
    tree: Any,
    *,
    step: int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Saving:
    """Save a tree as `save` does, in the background; the values are those of this moment."""
    pieces, structure = snapshot(tree)
    number = None if step is None else as_integer("save", "step", step, low=0)
    notes = checked_metadata(metadata)
    return Saving(path, lambda: write(path, pieces, structure, step=number, metadata=notes))


def snapshot(tree: Any) -> tuple[list[Piece], Any]:
    """The values of a tree as they are now, and its structure."""
    described = describe(tree)
    return pieces_of(described.tensors, lasting=True), described.structure
