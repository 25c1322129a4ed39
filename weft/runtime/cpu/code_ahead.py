"""Compile modules while the next ones are being written, on as many cores as there are.

LLVM lets go of Python's lock, so other threads compile what is written while one writes on. When
all is written, the one that wrote compiles too: everybody takes the longest module that is left, so
that nobody is late with a long one. Until then threads get Python's lock sooner than they usually
do, since one that has to wait for it compiles nothing.

A job may ask for a draft: code that is made in a third of the time and runs slower. Who wants to
begin takes it, and has the code itself made `later`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.core.common.lazy import LazyModule
from weft.errors import WeftError
from weft.runtime.cpu.code_cache import CodeCache, code_cache, key_of
from weft.runtime.cpu.jit import Target, compile_text, tuned
from weft.runtime.cpu.pool import available_cores

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_futures = LazyModule("concurrent.futures")  # which refuses to load while Python shuts down

_MOST_THREADS = 16  # each takes memory, and few graphs have more modules
_lock = threading.RLock()  # held by who changes what follows, or a job
_changed = threading.Condition(_lock)
_unfinished: dict[str, Job] = {}  # what other threads were asked for, by key
_threads: list[ThreadPoolExecutor] = []  # one, once it is needed
_patient: list[ThreadPoolExecutor] = []  # the same, for what is made later
_waiting: set[int] = set()  # threads that take part until what they need is done
_hurrying: list[int] = []  # threads that put a program together
_HURRY = 1e-4  # seconds after which a thread is made to let go of Python's lock
_MEANWHILE = 0.05  # seconds from a draft to the code, at least,
_PATIENCE = 2.0  # and until it is made, whoever hurries
_usual: list[float] = []  # what it was before, while it is that


@dataclass(eq=False)
class Job:
    """A module whose code is being made, or will be."""

    text: str
    target: Target
    key: str  # under which the code is kept
    cache: CodeCache
    code: bytes | None = None
    error: Exception | None = None
    maker: tuple[int, int] | None = None  # the process and the thread that make it
    drafts: bool = False  # whether a draft is worth making before the code
    draft: bytes | None = None

    @property
    def is_done(self) -> bool:
        """Whether the code is there, or cannot be made."""
        return self.code is not None or self.error is not None

    @property
    def is_usable(self) -> bool:
        """Whether there is at least a draft, or nothing can be made."""
        return self.is_done or self.draft is not None

    @property
    def is_left(self) -> bool:
        """Whether this thread may make it: nobody does, or who did is not there any more."""
        if self.is_done or self.maker is None:
            return not self.is_done
        return self.maker[0] != os.getpid() or self.maker[1] == threading.get_ident()


def begin(text: str, target: Target, *, drafts: bool = False) -> Job:
    """Have a module compiled, unless it was before: at once, if there is a core for it.

    With `drafts` other threads make a draft, and the code is left to `finish` or `later`.
    """
    key, cache = key_of(text, target), code_cache()
    known = cache.get(key)
    with _lock:
        if known is None and key in _unfinished:
            return _unfinished[key]
        job = Job(text, target, key, cache, known, drafts=drafts)
        if known is None and _extra_threads() > 0:
            _unfinished[key] = job
            _set_pace()  # before a thread begins to wait for Python's lock
            _ask_a_thread(_make_one, _threads, _extra_threads())
    return job


def has_help() -> bool:
    """Whether other threads compile what is begun, while this one goes on."""
    return _extra_threads() > 0


def is_idle() -> bool:
    """Whether a module that is begun now is compiled at once."""
    with _lock:
        return len(_unfinished) < _extra_threads()


def finish(jobs: Sequence[Job], *, drafts: bool = False) -> list[bytes]:
    """The object code of each module, in whose making this thread takes part.

    With `drafts` it may be a draft, of jobs that were begun so.
    """
    thread = threading.get_ident()
    try:
        with _lock:
            _waiting.add(thread)
            _set_pace()
        while (job := _next_of(jobs, drafts)) is not None:
            _make(job, drafts)
    finally:  # what an interrupt leaves here, the next one of this thread takes away
        with _lock:
            _waiting.discard(thread)
            _set_pace()
    for job in jobs:
        if job.error is not None:
            raise job.error
    found = (job.draft if job.code is None else job.code for job in jobs)
    return [code for code in found if code is not None]


def later(jobs: Sequence[Job], then: Callable[[], None]) -> None:
    """Have the code made of which there are only drafts, by another thread, and `then` called.

    That is after a while, in which drafts may run, and not while others are `hurrying`; or when the
    process ends. Where the code cannot be made, drafts stay what there is.
    """
    due = time.monotonic() + _MEANWHILE

    def make() -> None:
        threading.main_thread().join(max(due - time.monotonic(), 0.0))
        with _lock:
            _changed.wait_for(lambda: not _hurrying, _PATIENCE)
        finish(jobs)
        then()

    with _lock:
        _ask_a_thread(make, _patient, 1)


@contextmanager
def hurrying() -> Iterator[None]:
    """Inside, somebody waits for a program: what can be made later is left for later."""
    thread = threading.get_ident()
    with _lock:
        _hurrying.append(thread)
    try:
        yield
    finally:
        with _lock:
            _hurrying.remove(thread)
            _changed.notify_all()


def _extra_threads() -> int:
    return min(available_cores() - 1, _MOST_THREADS)


def _ask_a_thread(work: Callable[[], None], threads: list[ThreadPoolExecutor], most: int) -> None:
    """Have one of these other threads do something, when it is free."""
    with suppress(RuntimeError):  # no thread can be started: who waits makes all
        if not threads:
            threads.append(_futures.ThreadPoolExecutor(most, "weft-compiler"))
        threads[0].submit(work)


def _set_pace() -> None:
    """While there are jobs, hand Python's lock around sooner, and leave the options of LLVM set."""
    tuned.stay(bool(_unfinished or _waiting))
    if _unfinished and not _usual and sys.getswitchinterval() > _HURRY:
        _usual.append(sys.getswitchinterval())
        sys.setswitchinterval(_HURRY)
    elif not _unfinished and _usual:
        usual = _usual.pop()
        if round(sys.getswitchinterval() / _HURRY, 3) == 1.0:  # nobody else has set it
            sys.setswitchinterval(usual)


def _next_of(jobs: Iterable[Job], drafts: bool) -> Job | None:
    """A job that nobody makes, for this thread; None when all are done, which it waits for."""
    with _lock:
        while left := [j for j in jobs if not (j.is_usable if drafts else j.is_done)]:
            found = _longest_left(left)
            if found is not None:
                return found
            _changed.wait()
    return None


def _longest_left(jobs: Iterable[Job]) -> Job | None:
    """The longest of those that nobody makes, which is now for this thread to make."""
    found = max((job for job in jobs if job.is_left), key=lambda job: len(job.text), default=None)
    if found is not None:
        found.maker = os.getpid(), threading.get_ident()
    return found


def _make_one() -> None:
    """What another thread does for each job, if it is not too late."""
    with _lock:
        job = _longest_left(_unfinished.values())
    if job is not None:
        _make(job, drafts=True)


def _make(job: Job, drafts: bool) -> None:
    """Compile one module; who waits for it gets the code, a draft if it wants one, or the error."""
    code: bytes | None = None
    draft: bytes | None = None
    error: Exception | None = None
    try:
        code = job.cache.recent(job.key)  # another job may have had the same text
        if code is None and job.drafts and drafts:
            draft = compile_text(job.text, job.target, draft=True)
        elif code is None:
            made = compile_text(job.text, job.target)
            job.cache.put(job.key, made)
            code = made
    except (RuntimeError, MemoryError, WeftError) as raised:
        error = raised
    finally:
        with _lock:
            job.code, job.error, job.maker = code, error, None  # left to others, if interrupted
            job.draft = draft or job.draft
            _unfinished.pop(job.key, None)
            _set_pace()
            _changed.notify_all()


def _reset_after_fork() -> None:
    """Start a child without threads, which do not live through a fork, and with a free lock."""
    global _lock, _changed
    _lock = threading.RLock()
    _changed = threading.Condition(_lock)
    _threads.clear()
    _patient.clear()
    _unfinished.clear()
    _waiting.clear()
    _hurrying.clear()
    _set_pace()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
