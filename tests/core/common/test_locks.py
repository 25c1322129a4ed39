"""Locks: threads that do not live in a forked child leave none of them locked there."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

import weft as wf
from weft.core.common.locks import _makers

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:This process"),  # which has threads
    pytest.mark.filterwarnings("ignore:os.fork"),  # other tests may have loaded JAX
]


def works() -> None:
    """Something of everything that takes a lock."""
    x = wf.arange(40_000.0)
    new = os.getpid() % 400  # so that every sum is exact
    assert wf.compile(lambda x: wf.sum(x * 0 + new))(x).item() == 40_000.0 * new
    assert wf.sum(wf.exp(x * 0) + x * 0).item() == 40_000.0
    assert wf.random.Generator(0).normal((3,)).shape == (3,)
    x[1] = 2.0
    weight = wf.ones(3)
    weight.requires_grad = True
    (weight * weight).sum().backward()
    assert x[1].item() == weight.grad[0].item() == 2.0
    assert gc.isenabled()


def in_a_child(work: Callable[[], None]) -> int:
    """How a forked child ends that does this."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]


def test_a_child_that_is_forked_while_a_thread_compiles_can_compile():
    begun, forked = threading.Event(), threading.Event()

    @wf.compile
    def slow(x):
        begun.set()
        forked.wait()
        return x + 1

    thread = threading.Thread(target=slow, args=(wf.ones(3),))
    thread.start()
    begun.wait()
    status = in_a_child(works)
    forked.set()
    thread.join()
    assert status == 0
    assert slow(wf.ones(3)).tolist() == [2.0, 2.0, 2.0]


def test_a_child_finds_every_lock_free():
    works()  # so that they are all there
    forked = threading.Event()
    threads = []
    for owner, names in list(_makers.items()):
        for name in names:
            held = threading.Event()
            threads.append(threading.Thread(target=hold, args=(getattr(owner, name), held, forked)))
            threads[-1].start()
            held.wait()
    status = in_a_child(works)
    forked.set()
    for thread in threads:
        thread.join()
    assert status == 0


def hold(lock: Any, held: threading.Event, forked: threading.Event) -> None:
    with lock:
        held.set()
        forked.wait()
