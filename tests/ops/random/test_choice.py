"""Choices by weights that only a compiled function could meet: eager calls refuse them."""

import numpy as np
import pytest

import weft as wf
from weft.errors import WeftError

BAD = [[0.0, 0.0, 0.0], [np.nan, 1.0, 1.0], [np.inf, 1.0, 1.0]]


@pytest.mark.parametrize("weights", BAD)
def test_positions_are_refused_or_in_range(weights):
    key, p = wf.random.key(0), wf.tensor(weights)
    with pytest.raises(WeftError, match="choice: p"):
        wf.random.choice(key, 3, (50,), p=p)
    drawn = wf.compile(lambda p: wf.random.choice(key, 3, (50,), p=p))(p)
    assert set(drawn.tolist()) <= {0, 1, 2}
