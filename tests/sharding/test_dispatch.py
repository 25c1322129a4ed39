"""What an op over a mesh costs beside the work of its pieces."""

from __future__ import annotations

from time import perf_counter

import numpy as np

import weft as wf
from tests.sharding.layouts import laid_out
from weft import P
from weft.ops.communication import mesh as over_mesh

LINE = wf.DeviceMesh("line", (4,), ("x",))


def best(function, calls=200, rounds=15) -> float:
    times = []
    for _ in range(rounds):
        start = perf_counter()
        for _ in range(calls):
            function()
        times.append(perf_counter() - start)
    return min(times)


def test_a_small_sharded_call_costs_little_more_than_its_pieces() -> None:
    array = np.ones((8, 8))
    pieces = [wf.tensor(array[i : i + 2]) for i in range(0, 8, 2)]
    x, y = laid_out(array, LINE, P("x")), laid_out(array, LINE, P("x"))
    dense = best(lambda: [piece + piece for piece in pieces])
    assert best(lambda: x + y) < 5 * dense


def test_a_repeated_call_is_planned_once() -> None:
    x = laid_out(np.ones((12, 5)), LINE, P("x"))

    def step(x):
        return wf.softmax(wf.tanh(x * 3 + 1) @ x.mT, axis=0)

    step(x)
    known = dict(over_mesh._plans)
    step(x + 1.0 * x)
    step(x)
    assert len(over_mesh._plans) <= len(known) + 2  # the sum and the product of the last call
