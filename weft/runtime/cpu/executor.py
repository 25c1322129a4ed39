"""The executor as functions: compiled once, kept on disk, called through ctypes.

The calls release Python's lock, so other Python threads go on while a program runs.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from weft.runtime.cpu.builtin import function_of
from weft.runtime.cpu.code_cache import cached
from weft.runtime.cpu.executor_text import executor_text
from weft.runtime.cpu.jit import Loaded, compile_text, host_target, load_object

_CALIBRATION_NS = 1_000_000
_SECOND_NS = 1_000_000_000


class Executor(NamedTuple):
    """The native routines: frames and pools are given by address."""

    start: Callable[[int], int]  # run the program of a frame from its beginning
    start_arrays: Callable[[int], int]  # the same, of a frame that was given arrays
    call: Callable[[Any], Callable[..., int]]  # a frame's memory as a function of arrays
    arrays: Callable[[Any], Callable[..., Any]]  # a record of `handles` as a function
    tensors: Callable[[Any], Callable[..., Any]]
    resume: Callable[[int], int]  # go on where the frame says
    close: Callable[[int], None]  # end what the frame has left open
    worker: Callable[[int, int], None]  # serve a pool until it is stopped
    stop: Callable[[int], None]  # send the workers of a pool home
    ticks: Callable[[], int]  # the processor's clock
    tick_rate: float  # ticks per nanosecond
    code: Loaded  # holds the routines in memory


_made: list[Executor] = []  # two threads may both make it: the first counts, both stay in memory


def executor() -> Executor:
    """The executor of this process."""
    if not _made:
        _made.append(_loaded())
    return _made[0]


def _loaded() -> Executor:
    target = host_target()
    # The key holds the sources that the text is written by, so that only a miss has to write it.
    code = load_object(
        cached("executor", target, lambda: compile_text(executor_text(target.triple), target))
    )
    word, address = ctypes.c_int64, ctypes.c_void_p
    routine = ctypes.CFUNCTYPE(word, address)
    clock = ctypes.CFUNCTYPE(word)
    ticks = clock(code.address("ticks"))
    return Executor(
        start=routine(code.address("start")),
        start_arrays=routine(code.address("start_arrays")),
        call=partial(function_of, code.address("call")),
        arrays=partial(function_of, code.address("arrays")),
        tensors=partial(function_of, code.address("tensors")),
        resume=routine(code.address("resume")),
        close=ctypes.CFUNCTYPE(None, address)(code.address("close")),
        worker=ctypes.CFUNCTYPE(None, address, word)(code.address("worker")),
        stop=ctypes.CFUNCTYPE(None, address)(code.address("stop")),
        ticks=ticks,
        tick_rate=_tick_rate(ticks, clock(code.address("tick_rate"))()),
        code=code,
    )


def _tick_rate(ticks: Callable[[], int], per_second: int) -> float:
    """Ticks per nanosecond: what the processor says, or else what a millisecond shows."""
    if per_second:
        return per_second / _SECOND_NS
    began, first = time.perf_counter_ns(), ticks()
    while (passed := time.perf_counter_ns() - began) < _CALIBRATION_NS:
        pass
    return (ticks() - first) / passed
