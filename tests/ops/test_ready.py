"""Small calls that come again run as they did the first time."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft.config import settings
from weft.ops import dispatch, ready
from weft.ops.elementwise.arithmetic import multiply
from weft.ops.elementwise.elementary import sin

VALUES = np.linspace(-3, 3, 24, dtype=np.float32).reshape(4, 6)


@pytest.mark.parametrize("op", [wf.sin, wf.negative, lambda x: x**x, lambda x: x + x])
def test_calls_on_any_layout_give_the_bits_of_the_first(op) -> None:
    layouts = (VALUES, np.asfortranarray(VALUES), np.repeat(VALUES, 2, 1)[:, ::2])
    found = [op(wf.asarray(x)).numpy() for x in (*layouts, *layouts)]
    for each in found[1:]:
        np.testing.assert_array_equal(each, found[0])


def test_complex_products_of_strided_operands_round_as_packed_ones() -> None:
    z = (VALUES[:2] + 1j * VALUES[2:]).astype(np.complex64)
    strided = np.repeat(z, 2, 1)[:, ::2]
    for _ in range(2):
        want = multiply(wf.asarray(z), wf.asarray(z)).numpy()
        np.testing.assert_array_equal(multiply(*[wf.asarray(strided)] * 2).numpy(), want)


def test_the_limit_of_small_calls_holds_at_every_call(monkeypatch) -> None:
    x = wf.asarray(VALUES, copy=True)
    assert (sin(x) + x).is_realized
    monkeypatch.setattr(settings, "small_elements", 8)
    assert not sin(x).is_realized and not (x + x).is_realized and not (x + 1.0).is_realized


def test_shapes_that_do_not_broadcast_are_an_error_at_every_call() -> None:
    for _ in range(2):
        with pytest.raises(wf.errors.ShapeError, match="add: operand 1"):
            wf.ones(3) + wf.ones(4)


def test_a_bounded_number_of_calls_is_remembered(monkeypatch) -> None:
    monkeypatch.setattr(ready, "_MOST", 4)
    ready.CALLS.clear()
    for n in range(1, 12):
        assert (wf.ones(n) + wf.ones(n)).shape == (n,)
        assert len(ready.CALLS) <= 4


def test_plans_of_calls_are_bounded_and_made_again(monkeypatch) -> None:
    monkeypatch.setattr(dispatch, "_PREPARED_LIMIT", 3)
    dispatch._prepared.clear()
    for n in (*range(2, 9), *range(2, 9)):
        x = np.linspace(0, 1, n, dtype=np.float32)
        np.testing.assert_allclose(wf.sum(wf.asarray(x)).item(), x.sum(), rtol=1e-6)
        assert len(dispatch._prepared) <= 3


def test_parameters_that_only_bits_tell_apart_have_plans_of_their_own() -> None:
    x = wf.zeros(2)
    for fill in (0.0, -0.0, 0.0, -0.0):
        made = wf.pad(x, (1, 0), constant_values=fill).numpy()
        assert np.signbit(made[0]) == np.signbit(fill)


def test_a_position_out_of_range_is_an_error_at_every_call() -> None:
    x = wf.asarray(VALUES)
    for _ in range(3):
        with pytest.raises(wf.errors.IndexingError):
            wf.take(x, wf.asarray(np.array([99])), axis=0)


def test_a_number_beside_a_scalar_gives_the_bits_of_a_row() -> None:
    values = np.random.default_rng(0).normal(size=200)
    row = wf.logaddexp(wf.asarray(values), 0.0).numpy()
    each = [wf.logaddexp(wf.asarray(x), 0.0).item() for x in values]
    np.testing.assert_array_equal(np.array(each), row)
