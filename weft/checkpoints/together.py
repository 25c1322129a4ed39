"""Processes that save together: what fails on one of them fails on all, at the same point."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from weft.errors import StorageError, WeftError
from weft.runtime.communicator import world


@contextmanager
def together(op: str) -> Iterator[None]:
    """Run the block on every process; when one of them fails, all raise once all have come."""
    failure: WeftError | None = None
    try:
        yield
    except WeftError as error:
        failure = error
    ranks = world()
    if ranks.size > 1:
        told = np.frombuffer(("" if failure is None else str(failure)).encode(), np.uint8)
        answers = ranks.all_gather(told, tuple(range(ranks.size)))
        if failure is None:
            _raise_first(op, [answer.tobytes().decode() for answer in answers])
    if failure is not None:
        raise failure


def _raise_first(op: str, answers: list[str]) -> None:
    for rank, message in enumerate(answers):
        if message:
            raise StorageError(f"{op}: rank {rank} could not: {message}")


def told_by_first(text: str) -> str:
    """The text that the first process gives, on every process."""
    ranks = world()
    if ranks.size == 1:
        return text
    mine = np.frombuffer(text.encode(), np.uint8) if ranks.rank == 0 else None
    return ranks.broadcast(mine, 0, tuple(range(ranks.size))).tobytes().decode()
