"""`cdist`: distances of all pairs of rows."""

import numpy as np
import pytest

import weft as wf
from tests.torch_oracle import agrees, draw, torch
from weft.errors import ArgumentError, ShapeError


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, np.inf])
def test_distances_are_torchs_with_their_gradients(p):
    x, y = draw(2, 5, 3), draw(2, 4, 3, seed=1)
    agrees(lambda x, y: wf.cdist(x, y, p), lambda x, y: torch.cdist(x, y, p), x, y)


def test_distances_broadcast_and_are_flat_where_points_meet():
    x = draw(5, 3)
    assert wf.cdist(np.stack([x, x]), x[:2]).shape == (2, 5, 2)
    assert np.isfinite(wf.grad(lambda x: wf.sum(wf.cdist(x, x)))(x).numpy()).all()
    near = np.array([[1e4], [1e4 + 1]], np.float32)
    assert wf.cdist(near, near).tolist() == [[0, 1], [1, 0]]
    assert wf.cdist([[1, 2]], [[1, 5]], 0).tolist() == [[1]]


def test_mistakes_are_named():
    with pytest.raises(ShapeError, match=r"cdist: .*\(2, 3\), \(2, 2\)"):
        wf.cdist(np.ones((2, 3)), np.ones((2, 2)))
    with pytest.raises(ArgumentError, match="cdist: p must be at least 0"):
        wf.cdist(np.ones((2, 3)), np.ones((2, 3)), -1)
