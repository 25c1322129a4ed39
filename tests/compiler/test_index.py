"""Arithmetic on indices: what is a number becomes one, whichever way slices run."""

import numpy as np
import pytest

import weft as wf
from tests.compiler.bits import arrays_of, assert_same, compiled, interpreted
from weft.compiler.index import Index, axis


@pytest.mark.parametrize("divisor", [-7, -2, -1, 1, 2, 7])
def test_numbers_are_divided_as_python_divides_them(divisor):
    for number in range(-20, 20):
        assert (Index({}, number) // divisor).constant == number // divisor
        assert (Index({}, number) % divisor).constant == number % divisor
    assert (axis("i", 5) * 14 // divisor) * divisor == axis("i", 5) * 14


@pytest.mark.parametrize("step", [-3, -2, -1, 2])
@pytest.mark.parametrize("shape", [(5,), (4, 6), (200, 300)])
def test_a_slice_that_runs_backward_is_replaced_in_graphs_of_any_size(shape, step):
    x = np.arange(np.prod(shape)).reshape(shape)

    def function(x):
        y = x + 1
        y[..., ::step] = x[..., ::step] * 100
        return y

    trace = wf.trace(function, wf.tensor(x))
    arrays = arrays_of(trace, (x,))
    found = compiled(trace, arrays)
    assert_same(found, interpreted(trace, arrays))
    assert_same(found, [function(x)])
