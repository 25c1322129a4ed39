"""Compare a function and its gradients with torch's, in float64."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf

torch = pytest.importorskip("torch", reason="torch is the oracle")


def close(a, b, tolerance=1e-9):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


def agrees(ours, theirs, *arrays, tolerance=1e-9):
    """Values are equal, and so are the gradients for an uneven cotangent."""
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    expected = theirs(*tensors)
    got, pullback = wf.vjp(ours, *arrays)
    assert got.shape == tuple(expected.shape)
    close(got.numpy(), expected.detach().numpy(), tolerance)
    cotangent = np.cos(np.arange(got.size, dtype=float)).reshape(got.shape)
    gradients = torch.autograd.grad(expected, tensors, torch.tensor(cotangent), allow_unused=True)
    for mine, other in zip(pullback(cotangent), gradients, strict=True):
        close(mine.numpy(), 0 if other is None else other.numpy(), tolerance)


def draw(*shape, seed=0):
    """Normal numbers, the same each time."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape)
