"""Calls at the edges of what kernels are for give the bits of the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.cuda.test_same_bits import same


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
