"""Updates of rows, many of one place among them: each place meets its own in order."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.gpu.comparison import agree

RNG = np.random.default_rng(0)
SHAPES = [((100, 64), 1000), ((7, 300), 900), ((1, 65), 50), ((3000, 70), 5), ((30, 8, 9), 777)]


@pytest.mark.parametrize("how", ["add", "set", "max", "multiply"])
@pytest.mark.parametrize(("shape", "count"), SHAPES, ids=str)
def test_updates_of_rows_are_made_in_order(shape, count, how, device):
    table, updates = (RNG.normal(size=s).astype(np.float32) for s in (shape, (count, *shape[1:])))
    places = RNG.integers(-shape[0], shape[0], count, np.int32)

    def changed(place):
        function = wf.compile(lambda w, i, g: getattr(w.at[i], how)(g))
        return function(*(wf.tensor(x, device=place) for x in (table, places, updates))).host()

    assert agree([changed(device)], [changed("cpu")], device)


def test_a_position_out_of_range_is_refused_and_the_next_call_is_not(device):
    table, updates = wf.zeros((4, 64), device=device), wf.ones((2, 64), device=device)
    add = wf.compile(lambda places: table.at[places].add(updates))
    with pytest.raises(wf.errors.IndexingError, match="4 is out of range"):
        add(wf.tensor([1, 4], device=device)).host()
    assert add(wf.tensor([1, 3], device=device)).host().sum() == 128
