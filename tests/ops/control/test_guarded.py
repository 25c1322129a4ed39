"""Rows of a map that a plain call would not have run are not checked, and do no harm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.errors import IndexingError

TABLE = np.array([3.0, 1.0, 4.0, 1.5, 9.0], np.float32)
NEXT = np.array([0, 2, -1, 1, 3])  # the first one leads to itself


def looked_up(i: Any) -> Any:
    table = wf.tensor(TABLE)
    return wf.cond(i < 5, lambda i: table[i], lambda i: wf.tensor(-1.0), i)


def written(i: Any) -> Any:
    table = wf.tensor(TABLE)
    return wf.cond(i < 5, lambda i: table.at[i].set(0.5).sum(), lambda i: wf.tensor(-1.0), i)


def added_up(i: Any) -> Any:
    table = wf.tensor(TABLE)
    return wf.while_loop(
        lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1] + table[s[0]]), (i, wf.tensor(0.0))
    )[1]


def in_a_scan(i: Any) -> Any:
    def steps(i: Any) -> Any:
        return wf.scan(lambda c, k: (c + wf.tensor(TABLE)[i - k], None), wf.tensor(0.0), KS)[0]

    return wf.cond(i < 5, steps, lambda i: wf.tensor(-1.0), i)


def in_a_branch_of_a_branch(i: Any) -> Any:
    table = wf.tensor(TABLE)
    inner = lambda i: wf.cond(i > 2, lambda i: table[i], lambda i: table[i + 1], i)  # noqa: E731
    return wf.cond(i < 5, inner, lambda i: wf.tensor(-1.0), i)


def followed(i: Any) -> Any:
    places = wf.tensor(NEXT)

    def count(i: Any) -> Any:
        step = lambda s: (places[s[0]], s[1] + 1)  # noqa: E731
        return wf.while_loop(lambda s: s[0] >= 0, step, (i, wf.tensor(0)))[1]

    return wf.cond((i > 0) & (i < 5), count, lambda i: wf.tensor(-1), i)


KS = wf.arange(2)
FUNCTIONS = [looked_up, written, added_up, in_a_scan, in_a_branch_of_a_branch, followed]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_rows_that_are_not_taken_are_not_checked(function: Callable[[Any], Any]) -> None:
    rows = wf.tensor([1, 3, 7, 4])
    want = [function(i).item() for i in rows]
    assert wf.vmap(function)(rows).tolist() == want
    assert wf.compile(wf.vmap(function))(rows).tolist() == want
    twice = wf.vmap(wf.vmap(function))(rows.reshape((2, 2)))
    assert twice.reshape((-1,)).tolist() == want


@pytest.mark.parametrize("function", [looked_up, in_a_scan, in_a_branch_of_a_branch])
def test_rows_that_are_taken_are_checked(function: Callable[[Any], Any]) -> None:
    with pytest.raises(IndexingError, match=r"index -[89] is out of range"):
        wf.vmap(function)(wf.tensor([1, -9, 7])).numpy()


def test_a_row_whose_loop_goes_on_is_checked() -> None:
    with pytest.raises(IndexingError, match=r"index -9 is out of range"):
        wf.vmap(added_up)(wf.tensor([1, 7, -9])).numpy()


def test_derivatives_of_rows_that_are_not_taken_are_zero() -> None:
    def function(table: Any, i: Any) -> Any:
        return wf.cond(i < 5, lambda i: table[i] ** 2, lambda i: table[0] * 0, i)

    def total(table: Any) -> Any:
        return wf.vmap(function, in_axes=(None, 0))(table, wf.tensor([1, 7, 2])).sum()

    assert wf.grad(total)(wf.tensor(TABLE)).tolist() == [0.0, 2.0, 8.0, 0.0, 0.0]
