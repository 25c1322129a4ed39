"""Masks of positions: where they stand after a rewrite, and that no bit changes."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.compiler.test_rewrite import checked, edge_values, names, op


def below(x) -> wf.Tensor:
    """A mask of positions: places no later than the row's."""
    rows, columns = x.shape
    return wf.arange(rows)[:, None] >= wf.arange(columns)


def edge_square(dtype) -> np.ndarray:
    return np.resize(edge_values(dtype), (12, 12))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_masks_of_positions_come_after_what_makes_zeros_of_the_hidden(dtype):
    later = [
        lambda x: wf.exp(wf.where(below(x), x, -np.inf)),
        lambda x: wf.where(below(x), x, 0) * 0.125,
        lambda x: wf.astype(wf.where(below(x), x, 0), wf.bfloat16),
        lambda x: wf.astype(3 * wf.exp(wf.where(below(x), x, -np.inf)), wf.float16),
        lambda x: op("short_exp2")(wf.where(below(x), x, -np.inf)),
        lambda x: op("short_power", scale=0.5)(wf.where(below(x), x, -np.inf), wf.ones_like(x)),
    ]
    for function in later:
        made, _ = checked(function, edge_square(np.dtype(dtype)))
        assert names(made)[-1] == "where"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: wf.exp(wf.where(below(x), x, 0)),
        lambda x: wf.exp(wf.where(x > 1, x, -np.inf)),
        lambda x: wf.where(below(x), x, 0) * -2,
        lambda x: wf.where(below(x), x, 0) * np.inf,
        lambda x: wf.where(below(x), x, 1) * 2,
        lambda x: wf.where(below(x), x, 0) * x,
        lambda x: wf.astype(wf.where(below(x), x, -0.0), wf.bfloat16),
        lambda x: wf.astype(wf.where(below(x), x, 0), wf.float64),
    ],
)
def test_other_masks_stay_where_they_are(function):
    made, _ = checked(function, edge_square(np.dtype(np.float32)))
    assert names(made)[-1] != "where"
