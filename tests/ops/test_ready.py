"""Small calls that come again run as they did the first time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.eager import run as run_kernel
from weft.config import settings
from weft.ops import dispatch, ready
from weft.ops.elementwise.arithmetic import multiply
from weft.ops.elementwise.elementary import sin
from weft.runtime.cpu import client

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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shapes", [((37,), (37,)), ((5, 37), (37,)), ((37,), (37, 3))])
def test_products_of_vectors_have_the_bits_of_matrices_and_of_compiled_code(dtype, shapes) -> None:
    draws = np.random.default_rng(0)
    a, b = (draws.normal(size=shape).astype(dtype) for shape in shapes)
    rows = wf.asarray(a if a.ndim == 2 else a[None])
    columns = wf.asarray(b if b.ndim == 2 else b[:, None])
    want = (rows @ columns).numpy().reshape(a.shape[:-1] + b.shape[1:])
    strided = np.repeat(a, 2, -1)[..., ::2]
    compiled = wf.compile(lambda x, y: x @ y)
    for x in (a, a, strided):
        for found in (wf.asarray(x) @ wf.asarray(b), compiled(wf.asarray(x), wf.asarray(b))):
            assert found.shape == want.shape and found.dtype == dtype
            np.testing.assert_array_equal(found.numpy(), want)


def test_products_that_do_not_fit_are_an_error_at_every_call() -> None:
    for _ in range(2):
        with pytest.raises(wf.errors.ShapeError, match="matmul: operand 1, axis 0"):
            wf.ones(3) @ wf.ones(4)


def test_a_product_at_the_call_is_differentiated_inside_a_transform() -> None:
    x, y = wf.asarray(VALUES[0]), wf.asarray(VALUES[1])
    assert (x @ y).is_realized
    np.testing.assert_allclose(wf.grad(lambda x: x @ y)(x).numpy(), VALUES[1])


def test_a_view_of_shared_memory_is_shared_at_every_call() -> None:
    mine = VALUES.copy()
    x = wf.asarray(mine)
    for _ in range(3):
        assert x.reshape(6, 4)._impl.shared and x.T._impl.shared
        assert not wf.asarray(mine, copy=True).reshape(6, 4)._impl.shared


def test_large_calls_have_the_bits_of_numpy_however_operands_lie() -> None:
    draws = np.random.default_rng(0)
    a, b = (draws.normal(size=(1024, 513)).astype(np.float32) for _ in range(2))
    transposed = np.asfortranarray(a)
    for x, y in ((a, b), (transposed, b), (a, b[:1]), (a, b[0])):
        left, right = wf.asarray(x, copy=True), wf.asarray(y, copy=True)
        np.testing.assert_array_equal((left + right).numpy(), x + y)
        np.testing.assert_array_equal((left > right).numpy(), x > y)
        np.testing.assert_array_equal((-left).numpy(), -x)


def _whole(n: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(n).integers(-n, n, shape)


POSITIONS = _whole(300, 300, 300)
LARGE = {
    "where": (lambda c, x: wf.where(c, x, x[:1]), lambda c, x: np.where(c, x, x[:1])),
    "cumsum": (lambda c, x: wf.cumsum(x, axis=0), lambda c, x: np.cumsum(x, 0)),
    "cumprod": (lambda c, x: wf.cumprod(x, axis=1), lambda c, x: np.cumprod(x, 1)),
    "argmax": (lambda c, x: wf.argmax(x, axis=0), lambda c, x: np.argmax(x, 0)),
    "argmin": (lambda c, x: wf.argmin(x, axis=1), lambda c, x: np.argmin(x, 1)),
    "remainder": (lambda c, x: x % 7, lambda c, x: x % 7),
    "floor_divide": (lambda c, x: x // x[:1], lambda c, x: _quietly(np.floor_divide, x, x[:1])),
    "matmul": (lambda c, x: x @ x.T, lambda c, x: x @ x.T),
    "cast": (lambda c, x: x.astype("float16"), lambda c, x: x.astype("float16")),
    "gather": (
        lambda c, x: wf.take_along_axis(x, wf.asarray(POSITIONS, copy=True), axis=1),
        lambda c, x: np.take_along_axis(x, POSITIONS, 1),
    ),
}


def _quietly(function: Any, *args: Any) -> Any:
    with np.errstate(all="ignore"):
        return function(*args)


@pytest.mark.parametrize("name", LARGE)
def test_large_calls_that_numpy_takes_element_by_element_run_on_kernels(monkeypatch, name) -> None:
    ran = []

    def run(op: Any, *rest: Any) -> Any:
        ran.append(str(op))
        return run_kernel(op, *rest)

    monkeypatch.setattr(client, "run_kernel", run)
    function, reference = LARGE[name]
    x = _whole(50, 300, 3000 if name.startswith("arg") else 300)
    for each in (x, np.asfortranarray(x), x.astype(np.float32)):
        if name == "matmul" and each.dtype == np.float32:
            continue  # sums have an order of weft's own
        c, given = x > 0, wf.asarray(each, copy=True)
        ran.clear()
        found = function(wf.asarray(c, copy=True), given).numpy()
        assert name in ran
        np.testing.assert_array_equal(found, _quietly(reference, c, each))


@pytest.mark.parametrize("function", [wf.add, wf.multiply, wf.floor, wf.frexp, wf.ldexp])
def test_narrow_floats_and_their_digits_run_on_kernels(monkeypatch, function) -> None:
    ran = []
    monkeypatch.setattr(client, "run_kernel", lambda *call: ran.append(1) or run_kernel(*call))
    x = (_whole(50, 200, 200) / 4).astype(np.float16)
    count = {wf.add: 2, wf.multiply: 2}.get(function, 1)
    rest = [np.int32(3)] if function is wf.ldexp else []
    flipped = [wf.asarray(x, copy=True)[::-1]] * count
    found = function(*flipped, *map(wf.asarray, rest))
    want = getattr(np, function.__name__)(*[x[::-1]] * count, *rest)
    for made, expected in zip(wf.tree_leaves(found), wf.tree_leaves(want), strict=True):
        np.testing.assert_array_equal(made.numpy(), expected)
    assert ran


def test_a_gather_of_long_slices_or_few_positions_is_numpys(monkeypatch) -> None:
    monkeypatch.setattr(client, "run_kernel", None)
    x = np.random.default_rng(0).normal(size=(500, 100))
    for positions in (_whole(400, 1000), _whole(400, 20)):
        found = wf.take(wf.asarray(x, copy=True), wf.asarray(positions, copy=True), axis=0)
        np.testing.assert_array_equal(found.numpy(), x[positions])
    flat = wf.asarray(x.ravel(), copy=True)[wf.asarray(positions, copy=True)]
    np.testing.assert_array_equal(flat.numpy(), x.ravel()[positions])
