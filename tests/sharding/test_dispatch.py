"""What an op over a mesh costs beside the work of its pieces."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np

import weft as wf
from tests.sharding.layouts import MESHES, close, laid_out, random_spec
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


def energy(x):
    return wf.sum(wf.tanh(x @ x.mT))


def test_threads_may_work_on_sharded_tensors_at_the_same_time() -> None:
    failures = []

    def work(seed):
        rng = np.random.default_rng(seed)
        try:
            for mesh in MESHES * 3:
                array = rng.normal(size=(5, 4))
                x = laid_out(array, mesh, random_spec(rng, mesh, 2))
                close(wf.grad(energy)(x), wf.grad(energy)(wf.tensor(array)))
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_pieces_live_no_longer_than_what_needs_them() -> None:
    x = laid_out(np.ones((8, 4)), LINE, P("x"))
    made = wf.tanh(x @ x.mT)
    pieces = [weakref.ref(piece._impl) for piece in made._impl.payload.pieces.parts.values()]
    assert len(pieces) == 4
    wf.sum(made).item()
    del made
    gc.collect()
    assert all(piece() is None for piece in pieces)
