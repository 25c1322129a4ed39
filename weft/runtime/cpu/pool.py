"""The thread pool: Python threads that wait in native code for parallel regions.

There is one pool in a process. It starts when a region first needs it, grows when more threads are
asked for, is empty again after a fork, and is sent home when the interpreter exits. A region that
finds the pool busy, or empty, runs on the thread that called it; the result is the same.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading

import numpy as np

from weft.runtime.cpu.executor import executor
from weft.runtime.cpu.pool_text import POOL, POOL_BYTES

_SPIN_NS = 200_000  # how long who waits stays awake: longer than most gaps between two regions
_JOIN_SECONDS = 1.0
_LINE = 64
MOST_THREADS = 1024


def available_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Pool:
    """Native threads that share the chunks of parallel regions."""

    def __init__(self) -> None:
        self._memory = np.zeros(POOL_BYTES + _LINE, np.uint8)
        # Never freed: at exit a worker in the middle of a long chunk is not waited for.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._memory))
        start = -self._memory.ctypes.data % _LINE
        self._words = self._memory[start : start + POOL_BYTES].view(np.int32)
        self.address: int = self._words.ctypes.data
        self._threads: list[threading.Thread] = []
        self._lock = threading.RLock()  # a signal handler may run a program too
        self._closed = False
        self.cores = available_cores()

    @property
    def workers(self) -> int:
        """Threads there are beside the caller's."""
        return len(self._threads)

    def grow(self, threads: int) -> int:
        """Have `threads` threads, the caller's among them; the result is how many there are."""
        threads = min(threads, MOST_THREADS)
        with self._lock:
            if self._closed:
                return 1
            native = executor()
            self.cores = available_cores()
            crowded = threads > self.cores
            self._put("SPIN", 0 if crowded else int(_SPIN_NS * native.tick_rate))
            while len(self._threads) < threads - 1:
                number = len(self._threads) + 1
                thread = threading.Thread(
                    target=native.worker,
                    args=(self.address, number),
                    name=f"weft-worker-{number}",
                    daemon=True,
                )
                try:
                    thread.start()
                except RuntimeError:  # the system has no thread left, or Python is shutting down
                    break
                self._threads.append(thread)
            self._put("WORKERS", len(self._threads))
            return len(self._threads) + 1

    def stop(self) -> None:
        """Send the workers home and wait for them; regions run without them until `grow`."""
        with self._lock:
            self._send_home(None)
            self._put("STOP", 0)

    def _send_home(self, patience: float | None) -> None:
        threads, self._threads = self._threads, []
        if threads:
            self._put("WORKERS", 0)
            executor().stop(self.address)
        for thread in threads:
            thread.join(patience)

    def _put(self, field: str, value: int) -> None:
        place = POOL[field] // 4
        if field == "SPIN":
            self._words[place : place + 2].view(np.int64)[0] = value
        else:
            self._words[place] = value

    def _reset_after_fork(self) -> None:
        """Start the child without workers: threads do not live through a fork."""
        self._lock = threading.RLock()
        self._threads = []
        self._words[:] = 0
        self.cores = available_cores()

    def _close(self) -> None:
        """At exit: a worker in the middle of a long chunk is not waited for."""
        self._closed = True
        self._send_home(_JOIN_SECONDS / max(self.workers, 1))


pool = Pool()
atexit.register(pool._close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pool._reset_after_fork)
