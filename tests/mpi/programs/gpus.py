"""Check that a mesh of GPUs, which ranks share, gives the bits of a mesh of the processor."""

import numpy as np

import weft as wf
from weft import P
from weft.runtime.communicator import world
from weft.testing.emulated_gpu import use_emulated_gpu

X = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)


def loss(x, w):
    """A number that every device has a part in."""
    return wf.mean(wf.tanh(x @ w) ** 2)


def turned(x, w):
    """A loop whose carry lies over the mesh."""
    return wf.scan(lambda c, r: (wf.tanh(c @ w @ w.T + r), c.sum()), x, wf.arange(3.0))


def results(kind):
    """What some programs give on a mesh of devices of this kind."""
    mesh = wf.DeviceMesh("grid", (2, 2), ("data", "model"), kind)
    slopes = wf.value_and_grad(loss, argnums=(0, 1))
    with wf.default_device(f"{kind}:0"):
        x = wf.shard(wf.tensor(X), mesh, P("data"))
        w = wf.shard(wf.tensor(W), mesh, P(None, "model"))
        found = [function(x, w) for function in (slopes, wf.compile(slopes), turned)]
        return [leaf.reshard(P()).host() for leaf in wf.tree_leaves(found)]


with use_emulated_gpu(4):
    pairs = zip(results("cuda"), results("cpu"), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)
print(f"rank {world().rank} is done")
