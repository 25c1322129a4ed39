"""Windows that are folded again: gradients of pools are few kernels, with the bits of the rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from tests.compiler.bits import assert_same, interpreted, native
from weft.compiler.steps import HostCall

RNG = np.random.default_rng(11)
POOLS = [  # window, stride, padding, dilation, shape
    (2, 2, 0, 1, (2, 3, 8, 24)),
    (2, 2, 0, 1, (1, 2, 7, 37)),
    (3, 2, 1, 1, (2, 2, 9, 40)),
    (3, 2, 1, 1, (1, 1, 5, 5)),
    (3, 1, 1, 1, (2, 2, 6, 35)),
    (3, 3, 0, 1, (1, 2, 10, 50)),
    (2, 3, 1, 1, (1, 2, 10, 52)),
    (2, 1, 1, 2, (1, 2, 9, 33)),
    (5, 2, 2, 1, (1, 2, 11, 44)),
    (7, 3, 2, 1, (1, 2, 17, 23)),  # more elements than are written out
]


def ties(shape: tuple[int, ...], dtype: Any) -> Any:
    """Few different numbers, so that many windows have several largest ones."""
    return RNG.integers(-2, 3, shape).astype(dtype)


def both(pool: tuple[Any, ...]) -> Any:
    window, stride, padding, dilation, _ = pool

    def function(x: Any, ct: Any) -> Any:
        made, back = wf.vjp(lambda x: wf.max_pool2d(x, window, stride, padding, dilation), x)
        return (made, *back(ct))

    return function


def operands(pool: tuple[Any, ...], dtype: Any) -> tuple[Any, Any]:
    x = ties(pool[-1], dtype)
    made = wf.max_pool2d(wf.tensor(x), *pool[:-1])
    return x, RNG.standard_normal(made.shape).astype(dtype)


@pytest.mark.parametrize(
    ("pool", "dtype"),
    [*((pool, np.float32) for pool in POOLS), (POOLS[2], np.float16), (POOLS[3], np.float64)],
    ids=str,
)
def test_gradients_of_pools_have_one_meaning_for_any_number_of_threads(pool, dtype):
    x, ct = operands(pool, dtype)
    trace = wf.trace(both(pool), wf.tensor(x), wf.tensor(ct))
    program, expected = native(trace), interpreted(trace, [x, ct])
    for threads in (1, 2, 4):
        assert_same(program.run([x, ct], threads), expected)


@pytest.mark.parametrize("pool", POOLS[2:5], ids=str)
def test_windows_that_are_folded_again_are_never_written(pool):
    x, ct = operands(pool, np.float32)
    steps = native(wf.trace(both(pool), wf.tensor(x), wf.tensor(ct))).steps
    assert not any(isinstance(step, HostCall) for step in steps)
    assert len(steps) == 2  # the pool with the share of a largest element; and the sum of shares


def test_several_largest_elements_share_the_gradient():
    x = wf.tensor([[[3.0, 3.0, 1.0, 2.0]]])
    found = wf.compile(wf.grad(lambda x: wf.max_pool1d(x, 2).sum()))(x)
    assert found.tolist() == [[[0.5, 0.5, 0.0, 1.0]]]


def test_the_gradient_of_a_window_with_nan_is_nan():
    x = wf.tensor([[[1.0, np.nan, 1.0, 2.0]]])
    found = np.asarray(wf.compile(wf.grad(lambda x: wf.max_pool1d(x, 2).sum()))(x))
    assert np.isnan(found[0, 0, :2]).all() and found[0, 0, 2:].tolist() == [0.0, 1.0]
