"""Joins of many pieces: each is copied where it belongs, by kernels that like pieces share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from tests.compiler.bits import assert_same, interpreted, native
from weft.compiler.fuse import Fusion
from weft.compiler.loops import every, expressions, walk
from weft.compiler.point import DTYPES, FEW_PIECES
from weft.compiler.scatter import lower
from weft.compiler.steps import Call
from weft.compiler.translate import regions
from weft.core.common import dtypes

RNG = np.random.default_rng(21)
SIZES = (3, 0, 1, 17, 5, 64, 33, 2)


def pieces(axis: int, dtype: Any = np.float32, rest: tuple[int, ...] = (4, 6)) -> list[Any]:
    """Arrays of different sizes along an axis, one of them empty."""
    shapes = [(*rest[:axis], size, *rest[axis:]) for size in SIZES]
    return [RNG.integers(0, 2, shape).astype(dtype) for shape in shapes]


def joined(axis: int) -> Any:
    return lambda *given: wf.concatenate(given, axis)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_pieces_come_one_after_another_along_any_axis_on_any_number_of_threads(axis):
    given = pieces(axis)
    trace = wf.trace(joined(axis), *map(wf.tensor, given))
    program = native(trace)
    for threads in (1, 2, 4):
        assert_same(program.run(given, threads), [np.concatenate(given, axis)])


@pytest.mark.parametrize("dtype", sorted(DTYPES, key=dtypes.name_of), ids=dtypes.name_of)
def test_pieces_of_every_dtype_are_joined(dtype):
    given = pieces(0, dtype)
    trace = wf.trace(joined(0), *map(wf.tensor, given))
    assert_same(native(trace).run(given, 2), interpreted(trace, given))


def test_pieces_are_read_through_views_and_what_is_cheap_is_computed_on_the_way():
    x = RNG.standard_normal((6, 10)).astype(np.float32)

    def function(xp: Any, x: Any) -> Any:
        parts = [x, x[::-1], x.T.reshape(6, 10), x[1:4, ::1], x + 1, x[:, ::-1] * 2, x[2:2]]
        return xp.concatenate(parts)

    found = wf.compile(lambda x: function(wf, x))(wf.tensor(x))
    assert np.array_equal(found.host(), function(np, x))


def test_a_join_is_read_by_whatever_comes_next():
    xs = [RNG.standard_normal((n, 8)).astype(np.float32) for n in (3, 1, 7, 2, 4, 8)]
    w = RNG.standard_normal((8, 5)).astype(np.float32)

    def function(w: Any, *xs: Any) -> Any:
        x = wf.concatenate(xs)
        return x @ w, x.sum(-1), wf.softmax(x), wf.exp(x) * 2, x[4:9], x.reshape(-1, 4).max(0)

    given = [w, *xs]
    trace = wf.trace(function, *map(wf.tensor, given))
    assert_same(native(trace).run(given, 2), interpreted(trace, given))


def test_joins_of_nothing_and_of_one_array_many_times():
    empty, one = np.zeros((0, 3), np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)
    for part in (empty, one):
        for axis in (0, 1):
            found = wf.compile(lambda x, axis=axis: wf.concatenate([x] * 9, axis))(wf.tensor(part))
            assert np.array_equal(found.host(), np.concatenate([part] * 9, axis))


def test_joins_are_mapped_and_differentiated():
    xs = [RNG.standard_normal((5, n)).astype(np.float32) for n in (2, 3, 1, 4, 2, 6)]
    shared, mapped = xs[0][0], [wf.tensor(x) for x in xs[1:]]
    run = wf.compile(wf.vmap(lambda s, *xs: wf.concatenate([s, *xs]), in_axes=(None, *[0] * 5)))
    expected = np.concatenate([np.broadcast_to(shared, (5, 2)), *xs[1:]], 1)
    assert np.array_equal(run(wf.tensor(shared), *mapped).host(), expected)
    slopes = wf.compile(
        wf.grad(lambda *xs: (wf.concatenate(xs, 1) ** 2).sum(), argnums=tuple(range(6)))
    )(*map(wf.tensor, xs))
    for slope, x in zip(slopes, xs, strict=True):
        assert np.array_equal(slope.host(), 2 * x)


@pytest.mark.parametrize("count", [FEW_PIECES, FEW_PIECES + 1])
def test_many_pieces_are_kernels_without_a_choice(count):
    trace = wf.trace(joined(0), *[wf.ones(100)] * count)
    fusion = Fusion(trace.nodes, trace.outputs)
    (group,) = fusion.groups
    made = lower(fusion, group, {})
    points = [x for each in made for s in every(each.kernel.body) for x in walk(*expressions(s))]
    is_chosen = any(x.op == "select" for x in points)
    assert (len(made), is_chosen) == ((1, True) if count <= FEW_PIECES else (count, False))


def test_pieces_of_one_shape_share_their_code(monkeypatch):
    monkeypatch.setattr(wf.config.settings, "cache_bytes", 0)
    program = native(wf.trace(joined(0), *[wf.ones(100)] * 50))
    calls = [step for step in program.steps if isinstance(step, Call)]
    assert len(calls) == 50
    assert len(regions(program.steps)) == 1  # pieces do not wait for each other
    assert len({id(call.request.compiled) for call in calls}) <= 4


def test_what_reads_a_join_waits_for_all_of_its_pieces():
    def function(*xs: wf.Tensor) -> wf.Tensor:
        return wf.exp(wf.concatenate(xs)) + wf.concatenate([*xs[1:], xs[0]])

    given = [RNG.standard_normal(30).astype(np.float32) for _ in range(9)]
    trace = wf.trace(function, *map(wf.tensor, given))
    program, expected = native(trace), interpreted(trace, given)
    assert len(regions(program.steps)) == 2
    for threads in (1, 2, 4):
        assert_same(program.run(given, threads), expected)


# -- a few pieces of many rows: loops of their own -----------------------------------------------


def turned_pairs(xp: Any, x: Any, c: Any, s: Any) -> Any:
    """Rotated halves of rows, as position embeddings are."""
    a, b = xp.split(x, 2, axis=-1)
    return xp.concatenate([a * c - b * s, a * s + b * c], -1)


def kernels_of(function: Any, *given: Any) -> Any:
    trace = wf.trace(function, *map(wf.tensor, given))
    program = native(trace)
    for threads in (1, 2, 4):
        assert_same(program.run(given, threads), interpreted(trace, given))
    return program.counts.kernels


def test_computed_pieces_are_one_kernel_without_choices():
    x = RNG.standard_normal((3, 40, 10)).astype(np.float32)
    given = x, *(RNG.standard_normal((40, 5)).astype(np.float32) for _ in range(2))
    function = lambda *args: turned_pairs(wf, *args)  # noqa: E731
    assert kernels_of(function, *given) == 1
    trace = wf.trace(function, *map(wf.tensor, given))
    fusion = Fusion(trace.nodes, trace.outputs)
    (made,) = (kernel for group in fusion.groups for kernel in lower(fusion, group, {}))
    values = walk(*(x for s in every(made.kernel.body) for x in expressions(s)))
    assert not [x for x in values if x.op == "select"]


@pytest.mark.parametrize("axis", [1, 2, 3])
@pytest.mark.parametrize("sizes", [(4, 3), (1, 7, 2), (5, 1, 1, 6), (0, 4, 3), (2, 0, 0, 1)])
def test_computed_pieces_along_any_axis(axis, sizes):
    shape = [3, 5, 4, 6]
    given = []
    for size in sizes:
        shape[axis] = size
        given.append(RNG.standard_normal(shape).astype(np.float32))

    def function(*xs: Any) -> Any:
        return wf.concatenate([wf.exp(x) * k for k, x in enumerate(xs, 1)], axis) + 1

    assert kernels_of(function, *given) == 1


@pytest.mark.parametrize("axis", [-1, -2, -3])
@pytest.mark.parametrize("rows", [2, 70])
def test_pieces_that_a_map_leaves_alone_are_the_same_in_every_row(axis, rows):
    shape = [3, 5, 4]
    shape[axis] = 2
    x = wf.tensor(RNG.standard_normal((rows, 3, 5, 4)).astype(np.float32))
    alone = wf.tensor(RNG.standard_normal(shape).astype(np.float32))
    function = wf.vmap(lambda x: wf.concatenate([wf.exp(x), wf.exp(alone), alone], axis) + 1)
    assert_same([wf.compile(function)(x).host()], [function(x).host()])


def test_what_others_need_of_a_piece_is_computed_once():
    x = RNG.standard_normal((100, 8)).astype(np.float32)

    def function(x: Any) -> Any:
        y = wf.exp(x)
        return wf.concatenate([y, x * 2], -1), y.sum(-1)

    assert kernels_of(function, x) > 1


def test_a_join_of_computed_joins_computes_nothing_twice():
    x = RNG.standard_normal((100, 6)).astype(np.float32)

    def function(x: Any) -> Any:
        inner = wf.concatenate([wf.exp(x), wf.sin(x)], -1)
        return wf.concatenate([inner[:, ::-1], wf.tanh(x)], -1)

    assert kernels_of(function, x) == 2


def test_a_join_that_is_reshaped_reduced_or_multiplied():
    x = RNG.standard_normal((96, 6)).astype(np.float32)
    join = lambda x: wf.concatenate([wf.exp(x), x * 2], -1)  # noqa: E731
    for after in (
        lambda y: y.reshape(12, 96) + 1,
        lambda y: y.sum(-1),
        lambda y: y.sum(0),
        lambda y: y.T @ y,
        lambda y: y[:, 3:9] * y[:, :6],
        lambda y: wf.softmax(y, -1),
    ):
        assert kernels_of(lambda x, after=after: after(join(x)), x) <= 3


def test_a_result_is_not_written_over_what_later_pieces_read():
    x = RNG.standard_normal((200, 8)).astype(np.float32)

    def step(x: Any) -> Any:
        a, b = wf.split(x, 2, axis=-1)
        return wf.concatenate([b + 1, a * b], -1) + x

    def function(x: Any) -> Any:
        for _ in range(4):
            x = step(x)
        return x

    kernels_of(function, x)
    donated = wf.compile(function, donate_argnums=(0,))
    assert np.array_equal(donated(wf.tensor(x)).host(), function(wf.tensor(x)).host())


def test_rows_that_are_too_few_to_share_are_joined_as_a_choice():
    given = [RNG.standard_normal((2, 40_000)).astype(np.float32) for _ in range(2)]
    kernels_of(lambda *xs: wf.concatenate(xs, -1) * 2, *given)


# -- pads that repeat elements -------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize("widths", [1, (2, 0), ((0, 0), (3, 1)), ((7, 9), (1, 12))], ids=str)
def test_pads_that_repeat_are_numpys_and_have_slopes(mode, widths):
    x = RNG.standard_normal((4, 5))
    function = lambda x: wf.pad(x, widths, mode=mode)  # noqa: E731
    wanted = np.pad(x, widths, mode=mode)
    assert np.array_equal(function(wf.tensor(x)).host(), wanted)
    assert np.array_equal(wf.compile(function)(wf.tensor(x)).host(), wanted)
    weights = RNG.standard_normal(wanted.shape)
    slope = wf.compile(wf.grad(lambda x: (function(x) * weights).sum()))(wf.tensor(x)).host()
    places = np.pad(np.arange(x.size).reshape(x.shape), widths, mode=mode)
    expected = np.bincount(places.ravel(), weights.ravel(), minlength=x.size).reshape(x.shape)
    np.testing.assert_allclose(slope, expected, rtol=1e-12, atol=1e-12)


def test_ramps_to_tensors_are_numpys_and_carry_derivatives():
    x, ends, move = RNG.standard_normal((3, 4)), RNG.standard_normal((2, 2)), np.eye(2)

    def function(ends: wf.Tensor) -> wf.Tensor:
        return wf.pad(x, ((1, 2), (2, 3)), "linear_ramp", end_values=ends)

    pads = [np.pad(x, ((1, 2), (2, 3)), "linear_ramp", end_values=e) for e in (ends, ends + move)]
    value, slope = wf.compile(lambda ends: wf.jvp(function, ends, wf.asarray(move)))(ends)
    np.testing.assert_allclose(value.host(), pads[0], rtol=1e-12)
    np.testing.assert_allclose(slope.host(), pads[1] - pads[0], rtol=1e-12, atol=1e-12)
    mapped = wf.vmap(function)(wf.asarray([ends, ends + move]))
    np.testing.assert_allclose(mapped.host(), pads, rtol=1e-12)
