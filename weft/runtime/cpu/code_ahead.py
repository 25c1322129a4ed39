"""Compile modules while the next ones are being written.

LLVM lets go of Python's lock, so one thread compiles what is written while another writes on. What
it has not begun when all is written is compiled by those who wait for it, with workers' help.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from weft.runtime.cpu.code_cache import cached, cached_many
from weft.runtime.cpu.code_workers import compile_many, cores
from weft.runtime.cpu.jit import Target, compile_text

_compilers: list[ThreadPoolExecutor] = []  # one thread, since LLVM runs in one at a time
_latest: list[Future[bytes]] = []  # what it was asked for last


@dataclass(frozen=True, eq=False)
class Job:
    """A module whose code is being made, or will be."""

    text: str
    target: Target
    code: Future[bytes] | None = None  # None: nobody has been asked to make it
    process: int = field(default_factory=os.getpid)

    def is_left(self) -> bool:
        """Whether nobody makes the code in this process; from now on nobody will."""
        return self.code is None or self.process != os.getpid() or self.code.cancel()


def begin(text: str, target: Target) -> Job:
    """Have a module compiled in the background, if there is a core for it."""
    if cores() < 2:
        return Job(text, target)
    if not _compilers:
        _compilers.append(ThreadPoolExecutor(1, "weft-compiler"))
    code = _compilers[0].submit(cached, text, target, lambda: compile_text(text, target))
    _latest[:] = [code]
    return Job(text, target, code)


def is_idle() -> bool:
    """Whether a module that is begun now is compiled at once."""
    return cores() > 1 and all(code.done() for code in _latest)


def finish(jobs: Sequence[Job]) -> list[bytes]:
    """The object code of each module; they are all for one target."""
    left = [job for job in jobs if job.is_left()]
    made: dict[Job, bytes] = {}
    if left:
        target = left[0].target
        texts = [job.text for job in left]
        codes = cached_many(texts, target, lambda missing: compile_many(missing, target))
        made.update(zip(left, codes, strict=True))
    for job in jobs:
        if job not in made:
            assert job.code is not None
            made[job] = job.code.result()
    return [made[job] for job in jobs]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_compilers.clear)  # threads do not live through a fork
    os.register_at_fork(after_in_child=_latest.clear)
