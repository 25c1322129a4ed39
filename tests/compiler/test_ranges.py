"""Updates of rows: threads share the rows, and every element meets its updates in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from tests.compiler.bits import assert_same, interpreted, native
from weft.compiler.fuse import Fusion
from weft.compiler.passes.ranges import TASKS
from weft.compiler.pipeline import schedule
from weft.compiler.polynomial import known
from weft.compiler.scatter import lower
from weft.compiler.verify import verify

RNG = np.random.default_rng(3)


def updated(how: str, rows: int, width: int) -> Any:
    def function(places: Any, updates: Any) -> Any:
        return wf.index_update(wf.ones((rows, width)), (places,), updates, how)

    return function


@pytest.mark.parametrize("how", ["add", "max", "set"])
@pytest.mark.parametrize(("rows", "width"), [(37, 100), (5, 260), (4, 300)])
def test_rows_meet_their_updates_in_order_for_any_number_of_threads(how, rows, width):
    places = RNG.integers(-rows, rows, 3000)
    updates = RNG.standard_normal((3000, width)).astype(np.float32)
    trace = wf.trace(updated(how, rows, width), wf.tensor(places), wf.tensor(updates))
    program, expected = native(trace), interpreted(trace, [places, updates])
    for threads in (1, 2, 4):
        assert_same(program.run([places, updates], threads), expected)


@pytest.mark.parametrize(("count", "tasks"), [(3000, TASKS), (30, 1)])
def test_many_updates_of_wide_rows_are_several_tasks(count, tasks):
    places, updates = RNG.integers(0, 50, count), np.ones((count, 128), np.float32)
    trace = wf.trace(updated("add", 50, 128), wf.tensor(places), wf.tensor(updates))
    fusion = Fusion(trace.nodes, trace.outputs)
    (group,) = (g for g in fusion.groups if g.kind == "scatter")
    (made,) = schedule(lower(fusion, group, {})[-1].kernel)
    verify(made)
    assert known(made.notes["tasks"]) == tasks


def test_a_place_outside_is_still_refused():
    places, updates = np.full(3000, 50), np.ones((3000, 128), np.float32)
    function = wf.compile(updated("add", 50, 128))
    with pytest.raises(IndexError):
        function(wf.tensor(places), wf.tensor(updates))
