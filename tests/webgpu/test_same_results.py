"""The same code on a WebGPU device gives the results of the CPU: every op, and many programs.

Integers, moves and what runs on the host are the same bit for bit. A shader may round `fma`, a
division and a square root otherwise, so what is computed of float32 is as near as that allows.
"""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.cuda.test_same_bits import PROGRAMS, VALUES, every_example, on, results, same
from weft.testing.samples import operands

NEAR = 2.0**-18  # of the largest number in a result
PRODUCTS = ("softmax of a product", "einsum")  # which take long where a processor plays the GPU
NARROW = {"float64": "float32", "complex128": "complex64", "int64": "int32"}
SHADED = ("float16", "float32", "complex64")  # what shaders compute with, rounding


def near(found, expected) -> bool:
    """Equal, or as near as shaders promise; special numbers are where they should be."""
    assert found.shape == expected.shape and found.dtype == expected.dtype
    if found.dtype.name not in SHADED:
        return not found.size or same(found, expected)
    special = ~np.isfinite(expected)
    if not np.array_equal(found[special], expected[special], equal_nan=True):
        return False
    a, b = found[~special], expected[~special]
    scale = float(np.max(np.abs(b), initial=0.0))
    unit = NEAR if found.dtype != np.float16 else 2.0**-8
    return bool(np.all(np.abs(a - b) <= unit * max(scale, 1.0)))


@pytest.mark.parametrize(("op", "example"), every_example())
def test_every_op_gives_the_results_of_the_cpu(op, example):
    arrays = operands(op, example, np.random.default_rng(5))
    narrow = [a.astype(NARROW.get(a.dtype.name, a.dtype)) for a in arrays]
    for found, expected in zip(
        on("webgpu", op, example, narrow), on("cpu", op, example, narrow), strict=True
    ):
        assert found.device.name == "webgpu:0"
        assert near(found.host(), expected.host())


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_give_the_results_of_the_cpu(name, compiled):
    function, array = PROGRAMS[name]
    array = array[:60] if name in PRODUCTS else array
    function = wf.compile(function) if compiled else function
    expected = results(function, array, "cpu")
    for _ in range(2):
        found = results(function, array, "webgpu")
        assert all(near(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", VALUES)
def test_shapes_may_depend_on_values(name):
    function, array = VALUES[name]
    found, expected = (results(function, array, device) for device in ("webgpu", "cpu"))
    assert all(near(a, b) for a, b in zip(found, expected, strict=True))
