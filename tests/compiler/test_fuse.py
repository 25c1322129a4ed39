"""What runs together, and what does not because it would be slower."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft.compiler.native import Native


def steps_of(function, *arrays):
    tensors = [wf.tensor(a) for a in arrays]
    return Native(wf.trace(function, *tensors)).steps


def test_a_short_epilogue_runs_with_its_matrix_product():
    a = np.ones((64, 64), np.float32)
    assert len(steps_of(lambda x, y, z: wf.maximum(x @ y + z, 0.0), a, a, a[0])) == 1


@pytest.mark.parametrize("function", [wf.tanh, wf.exp, wf.gelu])
def test_a_long_epilogue_leaves_the_registers_to_the_product(function):
    a = np.ones((64, 64), np.float32)
    assert len(steps_of(lambda x, y: function(x @ y), a, a)) == 2


def test_random_numbers_of_one_key_are_computed_in_one_kernel():
    key = wf.random.key(0).data()
    assert len(steps_of(lambda k: wf.random.normal(k, (1000,)), key)) == 1


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_places_of_extremes_are_counted_in_32_bits(name):
    (call,) = steps_of(lambda x: getattr(x, name)(1), np.ones((64, 100), np.float32))
    (kernel,) = call.request.compiled.kernels
    assert next(x.dtype for x in kernel.locals if x.dtype.kind == "i") == np.int32
    assert call.written[0].kind.dtype == np.int64
