"""Compile several modules at once, in processes of their own: LLVM runs in one thread of each.

A worker reads a target and a text from its input and writes object code, each as a length and
bytes. It stops when its input ends, which the end of this process brings about, or when nothing has
come for a while. Whatever goes wrong with a worker, its module is compiled here instead.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path

from weft.runtime.cpu.jit import Target, compile_text

IDLE_SECONDS = 30.0  # a worker that hears nothing for so long stops
PATIENCE = 300.0  # seconds after which a worker that has not answered is given up
WORTH_SECONDS = 1.0  # a worker needs most of this to start
SECONDS_PER_CHARACTER = 2e-6  # of LLVM IR, as kernels have it
_LENGTH_BYTES = 8
_LONGEST = 1 << 31
_DONE, _FAILED = b"\0", b"\1"
_ROOT = str(Path(__file__).parents[3])


class Worker:
    """A process that compiles, and the pipes to it."""

    def __init__(self) -> None:
        code = (
            f"import sys; sys.path.insert(0, {_ROOT!r}); "
            "from weft.runtime.cpu.code_workers import serve; serve()"
        )
        # In a session of its own, an interrupt from the keyboard reaches this process alone.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # a forked child that closes the pipe has nothing to send
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def compile(self, text: str, target: Target) -> bytes | None:
        """The object code, or None where the worker could not make it; an error if it is gone."""
        assert self.process.stdin is not None and self.process.stdout is not None
        requests, replies = self.process.stdin.fileno(), self.process.stdout.fileno()
        _send(requests, json.dumps(astuple(target)).encode())
        _send(requests, text.encode())
        reply = _receive(replies, PATIENCE)
        return reply[1:] if reply[:1] == _DONE else None

    def stop(self) -> None:
        """End the process now."""
        self.process.kill()
        self.forget()
        self.process.wait()

    def forget(self) -> None:
        """Close the pipes; the worker stops when it sees that."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


_workers: list[Worker] = []
_lock = threading.Lock()  # one call at a time uses the workers; another compiles for itself


def compile_many(texts: list[str], target: Target) -> list[bytes]:
    """The object code of each module, on several cores where that is faster."""
    count = min(cores(), len(texts)) - 1
    seconds = sum(map(len, texts)) * SECONDS_PER_CHARACTER
    if count < 1 or seconds < WORTH_SECONDS or not sys.executable:
        return [compile_text(text, target) for text in texts]
    return compile_apart(texts, target, count)


def compile_apart(texts: list[str], target: Target, count: int) -> list[bytes]:
    """The object code of each module, by `count` workers and this thread."""
    if not _lock.acquire(blocking=False):
        return [compile_text(text, target) for text in texts]
    try:
        return _shared_out(texts, target, _started(count))
    finally:
        _lock.release()


def _shared_out(texts: list[str], target: Target, workers: list[Worker]) -> list[bytes]:
    # The longest first, so that no one is left with a long one at the end.
    waiting = deque(sorted(range(len(texts)), key=lambda i: len(texts[i]), reverse=True))
    made: dict[int, bytes] = {}

    def use(worker: Worker) -> None:
        while (number := _next(waiting)) is not None:
            try:
                code = worker.compile(texts[number], target)
            except (OSError, EOFError, ValueError):
                worker.stop()
                return
            if code is not None:  # else compiled again below, where its error has a reader
                made[number] = code

    threads = [threading.Thread(target=use, args=(worker,), daemon=True) for worker in workers]
    try:
        for thread in threads:
            thread.start()
        while (number := _next(waiting)) is not None:
            made[number] = compile_text(texts[number], target)
        for thread in threads:
            thread.join(2 * PATIENCE)
    finally:
        for worker, thread in zip(workers, threads, strict=True):
            if thread.is_alive():  # interrupted, or stuck: the thread cleans up when its pipe ends
                worker.process.kill()
    return [
        made[number] if number in made else compile_text(text, target)
        for number, text in enumerate(texts)
    ]


def _next(waiting: deque[int]) -> int | None:
    try:
        return waiting.popleft()
    except IndexError:
        return None


def _started(count: int) -> list[Worker]:
    """As many workers as that, if the system lets them start."""
    for worker in [each for each in _workers if not each.alive]:
        worker.stop()
        _workers.remove(worker)
    with suppress(OSError):
        while len(_workers) < count:
            _workers.append(Worker())
    return _workers[:count]


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def stop_workers() -> None:
    """End every worker; later calls start new ones."""
    while _workers:
        _workers.pop().stop()


def serve() -> None:
    """The worker's side: compile what comes in until nothing does."""
    incoming, outgoing = 0, os.dup(1)
    os.dup2(2, 1)  # what a library prints must not look like an answer
    with suppress(OSError, EOFError):
        while True:
            target = Target(*json.loads(_receive(incoming, IDLE_SECONDS)))
            text = _receive(incoming, PATIENCE).decode()
            try:
                reply = _DONE + compile_text(text, target)
            except RuntimeError:
                reply = _FAILED
            _send(outgoing, reply)


def _send(pipe: int, data: bytes) -> None:
    rest = memoryview(len(data).to_bytes(_LENGTH_BYTES, "little") + data)
    while rest:
        rest = rest[os.write(pipe, rest) :]


def _receive(pipe: int, seconds: float) -> bytes:
    """The next message; `TimeoutError` if it is not there in time, `EOFError` if it never comes."""
    deadline = time.monotonic() + seconds
    length = int.from_bytes(_exactly(pipe, _LENGTH_BYTES, deadline), "little")
    if length > _LONGEST:
        raise EOFError(f"a message of {length} bytes is none")
    return _exactly(pipe, length, deadline)


def _exactly(pipe: int, count: int, deadline: float) -> bytes:
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    found = bytearray()
    while len(found) < count:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError(f"{len(found)} of {count} bytes came in time")
        part = os.read(pipe, count - len(found))
        if not part:
            raise EOFError(f"the pipe ended after {len(found)} of {count} bytes")
        found += part
    return bytes(found)


def _reset_after_fork() -> None:
    """The workers belong to the parent: the child lets go of their pipes and starts its own."""
    global _lock
    _lock = threading.Lock()
    for worker in _workers:
        worker.forget()
        worker.process.returncode = 0  # it is not this process's child to wait for
    _workers.clear()


atexit.register(stop_workers)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
