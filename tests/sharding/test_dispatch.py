"""What an op over a mesh costs beside the work of its pieces."""

from __future__ import annotations

import numpy as np

import weft as wf
from tests.sharding.layouts import laid_out
from weft import P
from weft.ops.communication import mesh as over_mesh

LINE = wf.DeviceMesh("line", (4,), ("x",))


def test_a_repeated_call_is_planned_once() -> None:
    x = laid_out(np.ones((12, 5)), LINE, P("x"))

    def step(x):
        return wf.softmax(wf.tanh(x * 3 + 1) @ x.mT, axis=0)

    step(x)
    known = dict(over_mesh._plans)
    step(x + 1.0 * x)
    step(x)
    assert len(over_mesh._plans) <= len(known) + 2  # the sum and the product of the last call
