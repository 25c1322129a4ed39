"""A few columns are reduced side by side, each in its own order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from tests.compiler.bits import SPECIAL, assert_same, interpreted, lowered_kernels, native
from weft.compiler.lift import form_of
from weft.compiler.loops import Loop, Reduce, every
from weft.compiler.passes.beside import FEW, LONG, beside
from weft.compiler.pipeline import schedule
from weft.testing.ir import run_kernel

RNG = np.random.default_rng(17)
FUNCTIONS = {
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(0),
    "max": lambda x: x.max(0),
    "min": lambda x: x.min(0),
    "prod": lambda x: wf.prod(x, axis=0),
    "any": lambda x: (x > 1).any(0),
    "count": lambda x: wf.count_nonzero(x > 0, axis=0),
    "argmax": lambda x: wf.argmax(x, axis=0),
    "squares": lambda x: wf.sqrt((x * x).sum(0)) + 1,
    "var": lambda x: wf.var(x, axis=0),
    "two": lambda x: (x.sum(0), x.max(0)),
}


def columns(rows: int, count: int) -> Any:
    """Rows with zeros of both signs, infinities and NaN among them."""
    made = RNG.standard_normal((rows, count))
    some = RNG.integers(0, 40, made.shape) == 0
    made[some] = RNG.choice([x for x in SPECIAL if abs(x) < 1e38 or x != x], some.sum())
    return made.astype(np.float32)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 8, 9])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_columns_have_the_bits_of_each_on_its_own(name: str, count: int) -> None:
    for rows in (0, 1, LONG - 1, LONG, 333, 20_000):
        if rows == 0 and name in ("max", "min", "argmax", "two"):
            continue
        x = columns(rows, count)
        trace = wf.trace(FUNCTIONS[name], wf.tensor(x))
        assert_same(native(trace).run([x], 2), interpreted(trace, [x]))


@pytest.mark.parametrize("shape, axis", [((4, 300, 3), 1), ((300, 2, 3), 0), ((300, 3, 2), (0, 1))])
def test_columns_inside_other_axes(shape: tuple[int, ...], axis: Any) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    trace = wf.trace(lambda x: x.sum(axis), wf.tensor(x))
    assert_same(native(trace).run([x], 2), interpreted(trace, [x]))


@pytest.mark.parametrize("name", ["sum", "max", "argmax", "squares"])
def test_one_reduction_means_what_many_mean(name: str) -> None:
    x = columns(LONG, 3)
    (kernel,) = lowered_kernels(FUNCTIONS[name], x)
    made = beside(kernel)
    (reduce,) = (s for s in every(made.body) if isinstance(s, Reduce))
    assert len(reduce.parts) == 3
    assert not any(isinstance(s, Loop) for s in made.body)
    outputs = [np.zeros(3, b.dtype) for b in kernel.buffers if b.mode != "read"]
    constants = [np.ones(1, b.dtype) for b in kernel.buffers[1:] if b.mode == "read"]
    one, other = (run_kernel(k, [x.ravel(), *constants, *outputs], ()) for k in (kernel, made))
    for a, b in zip(one, other, strict=True):
        assert a.tobytes() == b.tobytes()


def test_only_few_long_adjacent_columns_are_taken() -> None:
    def is_taken(x: Any, function: Any = FUNCTIONS["sum"]) -> bool:
        return any(beside(kernel) is not kernel for kernel in lowered_kernels(function, x))

    assert all(is_taken(columns(500, count)) for count in FEW)
    assert not is_taken(columns(500, 4)) and not is_taken(columns(500, 8))
    assert not is_taken(columns(LONG - 1, 3))
    assert not is_taken(columns(3, 500), lambda x: x.sum(1))  # whose points are neighbours


def test_how_many_columns_there_are_is_part_of_a_form() -> None:
    (three,), (other,), (five,) = (
        lowered_kernels(FUNCTIONS["sum"], columns(rows, count))
        for rows, count in ((90, 3), (80, 3), (90, 5))
    )
    assert form_of(three).key == form_of(other).key != form_of(five).key
    assert len(schedule(three)) == 1
