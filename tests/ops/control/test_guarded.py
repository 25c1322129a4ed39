"""Rows of a map that a plain call would not have run are not checked, and do no harm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.errors import ArgumentError, IndexingError

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


def in_a_checkpoint(i: Any) -> Any:
    return wf.cond(
        i < 5, wf.checkpoint(lambda i: wf.tensor(TABLE)[i]), lambda i: wf.tensor(-1.0), i
    )


def by_a_rule(i: Any) -> Any:
    look = wf.custom_vjp(lambda i: wf.tensor(TABLE)[i])
    look.defvjp(lambda i: (look(i), None), lambda saved, ct: (None,))
    return wf.cond(i < 5, look, lambda i: wf.tensor(-1.0), i)


@pytest.mark.parametrize("function", [in_a_checkpoint, by_a_rule])
def test_positions_in_captured_functions_are_not_checked_in_rows_that_do_not_count(
    function: Any,
) -> None:
    found = wf.vmap(function)(wf.tensor([0, 4, 7]))
    assert found.tolist() == [3.0, 9.0, -1.0]
    with pytest.raises(IndexingError, match="index 7 is out of range"):
        wf.vmap(lambda i: function(i * 0 + 2) + wf.tensor(TABLE)[i])(wf.tensor([0, 7]))


MATRICES = np.array([[[2, 0.3], [0.3, 1.0]], [[0, 0], [0, 0]], [[-1, 0.0], [0, -2]]])
FACTORS: dict[str, Callable[..., Any]] = {
    "inv": wf.linalg.inv,
    "cholesky": wf.linalg.cholesky,
    "solve": lambda a: wf.linalg.solve(a, a + 1),
    "checkpoint": wf.checkpoint(wf.linalg.inv),
    "loop": lambda a: wf.fori_loop(0, 2, lambda _, c: wf.linalg.inv(c) * 0.5, a),
}


@pytest.mark.parametrize("name", FACTORS)
def test_matrices_in_rows_that_do_not_count_may_be_singular(name: str) -> None:
    def f(a: Any) -> Any:
        factor = lambda a: FACTORS[name](a).sum()  # noqa: E731
        return wf.cond(a[0, 0] > 1, factor, lambda a: wf.sin(a).sum(), a)

    a = wf.tensor(MATRICES)
    values, slopes = zip(*(wf.value_and_grad(f)(a[i]) for i in range(3)), strict=True)
    np.testing.assert_allclose(wf.vmap(f)(a).tolist(), [v.item() for v in values])
    for found in (wf.vmap(wf.grad(f))(a), wf.grad(lambda a: wf.vmap(f)(a).sum())(a)):
        np.testing.assert_allclose(found.numpy(), np.stack([s.numpy() for s in slopes]))


def test_a_singular_matrix_in_a_row_that_counts_is_refused() -> None:
    a = wf.tensor(MATRICES)
    f = lambda a: wf.cond(a[0, 0] < 1, wf.linalg.inv, lambda a: a, a)  # noqa: E731
    with pytest.raises(ArgumentError, match="inv: a matrix is singular"):
        wf.vmap(f)(a).numpy()
