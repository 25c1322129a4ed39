"""What only the CUDA backend has: launches together, and memory of its own size."""

from __future__ import annotations

import ctypes

import pytest

import weft as wf
from weft.compiler.gpu_chains import LEAST, Chains
from weft.errors import OutOfMemoryError


class Recorder:
    """A driver that says what it was asked to start, and where."""

    chains = True

    def __init__(self):
        self.started = []

    def prepare(self, number, table):
        def start():
            self.started.append((number, list(table)))
            return 0

        return start

    def chain(self, starts):
        self.started.append("chain")
        return lambda: max(start() for start in starts)


def test_launches_are_one_call_where_memory_lies_as_before():
    gpu, table = Recorder(), (ctypes.c_uint64 * 2)()
    chains = Chains(gpu, [gpu.prepare(number, table) for number in range(LEAST)], table)
    made = 0
    for address in (1, 2, 1, 2, 1, 3):
        table[0] = address
        gpu.started.clear()
        chains.run()
        made += gpu.started.count("chain")
        assert [x for x in gpu.started if x != "chain"] == [(n, [address, 0]) for n in range(LEAST)]
    assert made == 2  # for what came again
    gpu.started.clear()
    few = Chains(gpu, [gpu.prepare(0, table)], table)
    for _ in range(3):
        few.run()
    assert gpu.started == [(0, [3, 0])] * 3


def test_what_a_gpu_can_hold_is_not_refused_for_the_hosts_sake(gpu, monkeypatch):
    monkeypatch.setattr("weft.ops.creation._PHYSICAL", 1000)
    assert wf.zeros((20, 20), device="cuda").sum().item() == 0.0
    with pytest.raises(OutOfMemoryError):
        wf.zeros((gpu.nbytes, 2), device="cuda")
