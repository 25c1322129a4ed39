"""Rows put together of a few parts are written out, with what the parts are computed of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from tests.compiler.bits import assert_same, interpreted, lowered_kernels, native
from weft.compiler.lift import form_of
from weft.compiler.loops import Loop, every
from weft.compiler.passes.unroll import STEPS, unrolled_steps
from weft.compiler.pipeline import schedule
from weft.compiler.point import DTYPES, STACKED
from weft.core.common import dtypes

RNG = np.random.default_rng(33)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def check(function: Any, *given: Any) -> None:
    """Compiled and interpreted give one and the same, on any number of threads."""
    trace = wf.trace(function, *map(wf.tensor, given))
    program, want = native(trace), interpreted(trace, given)
    for threads in (1, 2):
        assert_same(program.run(list(given), threads), want)


def turned(q: Any) -> Any:
    """Rotations of unit quaternions: nine elements of a matrix."""
    w, x, y, z = (q[..., k] for k in range(4))
    rows = (
        *(1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        *(2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        *(2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return wf.stack(rows, -1).reshape(*q.shape[:-1], 3, 3)


def homogeneous(x: Any) -> Any:
    return wf.concatenate([x, wf.ones((*x.shape[:-1], 1))], -1)


PROGRAMS = {
    "cross": (lambda a, b: wf.cross(a, b), (normal(50, 3), normal(50, 3))),
    "rotations": (turned, (normal(40, 4),)),
    "homogeneous": (homogeneous, (normal(30, 3),)),
    "times": (lambda a, w: wf.stack([a, a * a], -1) * w, (normal(70), normal(70, 2))),
    "polar": (lambda r, t: wf.stack([r * wf.cos(t), r * wf.sin(t)], -1), (normal(9, 8),) * 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_row_and_its_parts_are_one_kernel_with_the_same_bits(name: str) -> None:
    function, given = PROGRAMS[name]
    assert len(lowered_kernels(function, *given)) == 1
    check(function, *given)


@pytest.mark.parametrize("dtype", sorted(DTYPES, key=dtypes.name_of), ids=dtypes.name_of)
def test_parts_of_every_dtype_and_size(dtype: Any) -> None:
    for sizes in [(1, 1), (3, 1), (2, 0, 3), (1,) * STACKED, (3, 3, 3, 3, 3), (1,) * (STACKED + 1)]:
        for lead in [(5,), (0,), (1,), (2, 3)]:
            given = [RNG.integers(0, 2, (*lead, size)).astype(dtype) for size in sizes]
            check(lambda *given: wf.concatenate(given, -1), *given)


def test_slopes_of_rows_are_those_of_their_parts() -> None:
    a, b = normal(20, 3), normal(20, 3)
    check(wf.grad(lambda a, b: (wf.cross(a, b) ** 2).sum()), a, b)
    check(wf.grad(lambda q: (turned(q)[:, 0] ** 3).sum()), normal(20, 4))


def test_what_others_need_too_is_computed_once() -> None:
    def shared(x: Any) -> Any:
        y = wf.exp(x)
        return wf.stack([y, wf.sin(y)], -1), y

    assert len(lowered_kernels(shared, normal(64))) == 2
    check(shared, normal(64))


def test_a_part_that_is_the_same_for_many_rows_is_computed_before() -> None:
    def spread(x: Any, y: Any) -> Any:
        angle = wf.broadcast_to(wf.sin(y) + wf.cos(y), x.shape)
        return wf.stack([x, angle], -1)

    x, y = normal(40, 30), normal(30)
    assert len(lowered_kernels(spread, x, y)) == 2
    check(spread, x, y)


def test_a_part_that_rows_read_again_and_again_is_computed_before() -> None:
    def windows(x: Any) -> Any:
        costly = wf.exp(x) * wf.sin(x)
        return wf.stack([costly[k : len(x) - 3 + k] for k in range(4)], -1)

    assert len(lowered_kernels(windows, normal(100))) == 2
    check(windows, normal(100))


def test_a_row_that_is_put_together_where_it_is_read_does_not_take_its_parts_along() -> None:
    def spread(x: Any, y: Any) -> Any:
        return homogeneous(wf.exp(x) * wf.sin(x))[None] * y

    x, y = normal(40, 3), normal(30, 1, 1)
    assert len(lowered_kernels(spread, x, y)) == 2
    check(spread, x, y)


def test_rows_are_read_by_sums_and_products() -> None:
    def function(x: Any, y: Any, w: Any) -> Any:
        rows = wf.stack([x + y, x - y, x * y], -1)
        return rows.sum(-1), rows @ w, wf.argmax(rows, axis=-1), rows[..., 1], rows.sum(0)

    check(function, normal(33), normal(33), normal(3, 5))


def test_loops_of_few_steps_inside_each_other_are_written_out() -> None:
    (kernel,) = lowered_kernels(
        lambda a, b: a[:, :, None] * b[:, None], normal(90, 3), normal(90, 3)
    )
    (made,) = schedule(kernel)
    kinds = [s.kind for s in every(made.body) if isinstance(s, Loop)]
    assert kinds[1:] == ["unroll", "unroll"]
    for k in (2, 3, 5, STEPS, STEPS + 1):
        check(lambda a, b: a[:, :, None] * b[:, None], normal(40, k), normal(40, k))


def test_how_many_steps_are_written_out_is_part_of_a_form() -> None:
    def form(rows: int, k: int) -> Any:
        (kernel,) = lowered_kernels(
            lambda a, b: a[:, :, None] * b[:, None], normal(rows, k), normal(rows, k)
        )
        assert unrolled_steps(kernel) == ({k} if k <= STEPS else set())
        return form_of(kernel).key

    assert form(90, 3) == form(70, 3) != form(90, 4)
    assert form(90, STEPS + 1) == form(90, STEPS + 2)


def test_axes_that_become_one_loop_are_not_written_out() -> None:
    (kernel,) = lowered_kernels(lambda a: a * 2 + 1, normal(90, 3)[::2])
    assert not unrolled_steps(kernel)
