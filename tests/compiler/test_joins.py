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
