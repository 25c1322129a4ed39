"""Many updates of few integers: threads share them, and no bit depends on how many there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from tests.compiler.bits import assert_same, interpreted, native
from weft.compiler.fuse import Fusion
from weft.compiler.pipeline import schedule
from weft.compiler.scatter import lower
from weft.compiler.verify import verify

RNG = np.random.default_rng(5)
COUNT = (1 << 16) + 77


def met(combine: str, dtype: Any) -> Any:
    def function(numbers: Any, updates: Any) -> Any:
        start = wf.full((300,), 3, dtype=dtype)
        return wf.index_update(start, (numbers,), updates, combine)

    return function


def kernels(trace: Any) -> tuple[Any, ...]:
    """What the updates are scheduled as."""
    fusion = Fusion(trace.nodes, trace.outputs)
    (group,) = (g for g in fusion.groups if g.kind == "scatter")
    made = schedule(lower(fusion, group, {})[-1].kernel)
    for kernel in made:
        verify(kernel)
    return made


@pytest.mark.parametrize("combine", ["add", "min", "max"])
@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64"])
def test_integers_meet_alike_for_any_number_of_threads(combine, dtype):
    numbers = RNG.integers(0, 300, COUNT)
    updates = RNG.integers(0, 200, COUNT).astype(dtype)
    trace = wf.trace(met(combine, dtype), wf.tensor(numbers), wf.tensor(updates))
    program, expected = native(trace), interpreted(trace, [numbers, updates])
    assert len(kernels(trace)) == 2
    for threads in (1, 2, 4):
        assert_same(program.run([numbers, updates], threads), expected)


@pytest.mark.parametrize("length", [1, 500, 1000])
@pytest.mark.parametrize("count", [COUNT, COUNT + 3, 1 << 16, 1000])
def test_numbers_are_counted(count, length):
    numbers = RNG.integers(-5, 1005, count)
    found = wf.compile(lambda x: wf.bincount(x, length=length))(wf.tensor(numbers))
    inside = numbers[(numbers >= 0) & (numbers < length)]
    assert np.array_equal(np.asarray(found), np.bincount(inside, minlength=length))


@pytest.mark.parametrize(("places", "arrays"), [(300, 4), (1500, 2), (3000, 1)])
def test_a_task_has_as_many_arrays_as_the_nearest_cache_holds(places, arrays):
    count = 3 << 16
    trace = wf.trace(lambda x: wf.bincount(x, length=places - 1), wf.tensor(np.zeros(count, int)))
    first, _ = kernels(trace)
    (own,) = (local for local in first.locals if local.name == "own")
    assert own.length == arrays * places


def test_floats_meet_in_order_on_one_thread():
    numbers, updates = RNG.integers(0, 300, COUNT), RNG.standard_normal(COUNT).astype(np.float32)
    trace = wf.trace(met("add", "float32"), wf.tensor(numbers), wf.tensor(updates))
    program = native(trace)
    assert len(kernels(trace)) == 1
    assert_same(program.run([numbers, updates], 2), interpreted(trace, [numbers, updates]))
