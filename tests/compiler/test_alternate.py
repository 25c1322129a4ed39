"""Rows of two, three and four elements: lanes that take one element each share an access."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from tests.compiler.bits import assert_same, interpreted, native
from weft.compiler.point import DTYPES
from weft.config import settings
from weft.core.common import dtypes

RNG = np.random.default_rng(5)
SIZES = [1, 2, 15, 16, 17, 31, 33, 64, 200]


def columns(x: Any) -> list[Any]:
    return [x[..., k] for k in range(x.shape[-1])]


def turned_round(x: Any) -> Any:
    """A row in the opposite order, each element with its neighbour."""
    parts = columns(x)[::-1]
    return wf.stack([a + b for a, b in zip(parts, [*parts[1:], parts[0]], strict=True)], -1)


def ends(x: Any) -> Any:
    """The first and the last element of a row: the others are not asked for."""
    return x[..., 0] - x[..., -1]


def beginning(x: Any) -> Any:
    """Elements of a row without its last one: nothing behind them may be read."""
    return x[..., 0] + x[..., x.shape[-1] // 2 - 1]


def all_with_all(x: Any) -> Any:
    """Sizes of the boxes in which two rows meet."""
    half = x.shape[-1] // 2
    low = wf.maximum(x[:20, None, :half], x[None, :, :half])
    high = wf.minimum(x[:20, None, half : 2 * half], x[None, :, half : 2 * half])
    return wf.maximum(high - low, 0).sum(-1)


FUNCTIONS = [turned_round, ends, beginning, all_with_all]


def check(function: Any, x: Any) -> None:
    trace = wf.trace(function, wf.tensor(x))
    wanted = interpreted(trace, (x,))
    program = native(trace)
    for threads in (1, 2, 4):
        assert_same(program.run((x,), threads), wanted)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("width", [2, 3, 4, 5])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_rows_of_few_elements(function, width, size):
    check(function, RNG.standard_normal((size, width)).astype(np.float32))


@pytest.mark.parametrize("dtype", sorted(DTYPES, key=dtypes.name_of), ids=dtypes.name_of)
@pytest.mark.parametrize("width", [2, 3, 4])
def test_rows_of_every_dtype(width, dtype):
    x = RNG.integers(0, 2, (67, width)).astype(dtype)
    check(lambda x: wf.stack(columns(x)[::-1], -1), x)
    if dtype != np.bool_:
        check(turned_round, x)


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_nothing_outside_of_memory_is_read(function, width, monkeypatch):
    monkeypatch.setattr(settings, "check_bounds", 1)
    for size in (1, 16, 17, 40):
        check(function, RNG.standard_normal((size, width)).astype(np.float32))


def test_rows_inside_longer_ones_begin_anywhere():
    x = RNG.standard_normal((70, 7)).astype(np.float32)
    for start in range(4):
        check(lambda x, start=start: turned_round(x[:, start : start + 3]), x)
        check(lambda x, start=start: ends(x.reshape(-1)[start : start + 480].reshape(160, 3)), x)


def test_a_row_is_written_over_itself():
    x = RNG.standard_normal((90, 3)).astype(np.float32)

    def function(x: Any) -> Any:
        for _ in range(3):
            x = wf.cross(x, turned_round(x)) + x
        return x

    check(function, x)
    given = wf.compile(function, donate_argnums=(0,))(wf.tensor(x))
    assert np.array_equal(given.host(), function(wf.tensor(x)).host())
