"""Steps of a reshard between processes, through the communicator."""

from __future__ import annotations

from weft.core.sharding.pieces import Pieces
from weft.core.sharding.steps import Step
from weft.errors import UnsupportedError


def carry_out(step: Step, pieces: Pieces) -> Pieces:
    """One step whose devices belong to several processes."""
    raise UnsupportedError(f"{step}: no communicator connects these processes")


def permuted(pieces: Pieces, axis: str, pairs: tuple[tuple[int, int], ...]) -> Pieces:
    """Pieces sent between devices of several processes."""
    raise UnsupportedError(f"ppermute over {axis}: no communicator connects these processes")
