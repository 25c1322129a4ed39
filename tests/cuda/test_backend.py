"""What only the CUDA backend has: launches together, and memory of its own size."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import weft as wf
from weft.compiler.gpu_chains import LEAST, Chains, Link, waits
from weft.errors import OutOfMemoryError


class Recorder:
    """A driver that says what it was asked to start, and where."""

    chains = True

    def __init__(self):
        self.started = []

    def link(self, number, table):
        def start():
            self.started.append((number, list(table)))
            return 0

        return Link(start, (), ())

    def chain(self, starts, waits):
        self.started.append("chain")
        return lambda: max(start() for start in starts)


def test_launches_are_one_call_where_memory_lies_as_before():
    gpu, table = Recorder(), (ctypes.c_uint64 * 2)()
    chains = Chains(gpu, [gpu.link(number, table) for number in range(LEAST)], table)
    made = 0
    for address in (1, 2, 1, 2, 1, 3):
        table[0] = address
        gpu.started.clear()
        chains.run()
        made += gpu.started.count("chain")
        assert [x for x in gpu.started if x != "chain"] == [(n, [address, 0]) for n in range(LEAST)]
    assert made == 2  # for what came again
    gpu.started.clear()
    few = Chains(gpu, [gpu.link(0, table)], table)
    for _ in range(3):
        few.run()
    assert gpu.started == [(0, [3, 0])] * 3


def waiting(*launches):
    """What launches wait for; each has the places that it reads, and those that it writes."""
    table, links = [], []
    for launch in launches:
        touched = []
        for places in launch:
            touched.append(tuple((len(table) + k, nbytes) for k, (_, nbytes) in enumerate(places)))
            table += [address for address, _ in places]
        links.append(Link(lambda: 0, *touched))
    return waits(links, table)


A, B, C, D, BOTH, EMPTY = (0, 8), (8, 8), (16, 8), (24, 8), (4, 8), (0, 0)


def test_launches_wait_for_what_they_read():
    assert waiting([[], [A]], [[], [B]], [[A], [C]], [[B, C], [D]]) == [[], [], [0], [2, 1]]


def test_launches_wait_until_what_they_write_was_read():
    assert waiting([[], [A]], [[A], [B]], [[A], [C]], [[], [A]]) == [[], [0], [0], [2, 1]]


def test_launches_wait_for_memory_that_lies_partly_in_theirs():
    assert waiting([[], [A]], [[], [B]], [[BOTH], [C]], [[], [BOTH]]) == [[], [], [1, 0], [2]]


def test_launches_do_not_wait_for_those_that_others_wait_for():
    assert waiting([[], [A]], [[A], [A]], [[A], [B]], [[B, A], [C]]) == [[], [0], [1], [2]]


def test_nothing_waits_for_memory_without_bytes():
    assert waiting([[], [EMPTY]], [[EMPTY], [A]], [[EMPTY], [B]]) == [[], [], []]


def test_what_a_gpu_can_hold_is_not_refused_for_the_hosts_sake(gpu, monkeypatch):
    monkeypatch.setattr("weft.ops.creation._PHYSICAL", 1000)
    assert wf.zeros((20, 20), device="cuda").sum().item() == 0.0
    with pytest.raises(OutOfMemoryError):
        wf.zeros((gpu.nbytes, 2), device="cuda")


def test_launches_that_run_in_another_order_give_the_bits_of_the_processor(gpu):
    rng = np.random.default_rng(0)
    layers = [rng.normal(size=(24, 24)).astype(np.float32) for _ in range(3)]
    rows = rng.normal(size=(40, 24)).astype(np.float32)

    def loss(layers, x):
        for w in layers:
            x = wf.tanh(wf.softmax(x @ w) @ w.T)
        return wf.sum(x * x)

    def found(step, device):
        value, slopes = step(*wf.tree_map(lambda a: wf.tensor(a, device=device), (layers, rows)))
        return [value.numpy(), *(slope.numpy() for slope in slopes)]

    step = wf.compile(wf.value_and_grad(loss))
    expected = found(step, "cpu")
    for _ in range(6):  # by the third time addresses have come again
        for x, y in zip(found(step, "cuda"), expected, strict=True):
            np.testing.assert_array_equal(x, y)
