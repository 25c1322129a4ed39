"""Calls at the edges of what kernels are for give the bits of the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.gpu.comparison import same
from weft.compiler import gpu_executable


def prove(function, *arrays) -> None:
    """The same results on both devices, eager and compiled."""
    for run in (function, wf.compile(function)):
        made = []
        for device in ("cpu", "cuda"):
            with wf.default_device(device):
                leaves = wf.tree_leaves(run(*(wf.tensor(a, device=device) for a in arrays)))
                made.append([leaf.host() for leaf in leaves])
        assert all(same(found, expected) for expected, found in zip(*made, strict=True))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
@pytest.mark.parametrize("shape", [(1, 76, 1), (3, 5, 4), (1, 300, 1), (5, 300, 6)])
def test_products_of_integers_have_any_size(shape, dtype):
    rng = np.random.default_rng(0)
    m, k, n = shape
    x, y = (rng.integers(0, 127, s).astype(dtype) for s in ((m, k), (k, n)))
    prove(wf.matmul, x, y)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_joining_empty_arrays_gives_an_empty_one(dtype):
    prove(lambda x: wf.concat([x, x], axis=1), np.zeros((2, 0), dtype))


def test_small_matrices_are_read_where_they_were_written():
    x = np.eye(4) + 0.1
    prove(lambda x: wf.linalg.cholesky(x * 2), x)
    prove(lambda x: wf.linalg.solve(x + 1, wf.permute_dims(x, (1, 0))), x)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_position_out_of_range_is_told_before_what_follows_from_it(device):
    seen = []

    def shown(x, i):
        y = x[i] * 2
        wf.callback(lambda v: seen.append(v) or (), (), y)
        return y

    i = np.array([0, 1, 9, 9])  # if 9 stood for 3, the matrix would be singular
    for function in (lambda x, i: wf.linalg.inv(x[i]), shown):
        with pytest.raises(wf.errors.IndexingError, match="index 9 is out of range"):
            wf.compile(function)(wf.tensor(np.eye(4), device=device), wf.tensor(i, device=device))
    assert not seen


def test_a_loop_does_not_begin_after_a_position_out_of_range(monkeypatch):
    begun, run = [], gpu_executable.run_call

    def noted(client, node, arrays):
        begun.append(node.name)
        return run(client, node, arrays)

    def climbed(x, i):
        step = wf.take(x, i) * 2  # if 9 stood for 1, it would never arrive
        return wf.while_loop(lambda s: (s < 10) & (s > -9), lambda s: s + step, wf.zeros_like(step))

    monkeypatch.setattr(gpu_executable, "run_call", noted)
    compiled = wf.compile(climbed)
    x = wf.tensor([1.0, -1.0], device="cuda")
    with pytest.raises(wf.errors.IndexingError, match="index 9 is out of range"):
        compiled(x, wf.tensor(9, device="cuda"))
    assert not begun
    assert compiled(x, wf.tensor(0, device="cuda")).item() == 10 and begun
