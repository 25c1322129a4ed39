"""Scheduled kernels in machine code give the bits that the interpreter finds by definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft as wf
from tests.compiler import example_kernels
from tests.compiler.example_kernels import EXAMPLES, TAILS, Example
from tests.compiler.native_kernels import Compiled
from weft.compiler.kernels import evaluate
from weft.compiler.native import Native
from weft.compiler.pipeline import schedule
from weft.compiler.rebuild import values_of
from weft.testing.ir import run_kernel

NATIVE = [
    name
    for name, make in EXAMPLES.items()
    if not any(x.op == "call" for x in values_of(make().kernel.body))
]


def run_native(example: Example, vector_bytes: int) -> list:
    kernels = schedule(example.kernel, vector_bytes=vector_bytes)
    named = [replace(kernel, name=f"kernel{k}") for k, kernel in enumerate(kernels)]
    code = Compiled(named)
    arrays = example.arrays()
    given = len(arrays)
    for kernel in named:
        if "partials" in kernel.notes:
            dtype, elements = kernel.notes["partials"]
            if not isinstance(elements, int):
                elements = evaluate(elements, example.parameters)
            arrays.append(np.zeros(elements, dtype))
        tasks = evaluate(kernel.notes["tasks"], example.parameters)
        code(kernel.name, arrays, example.parameters, end=tasks)
    return arrays[:given]


def assert_same(example: Example, vector_bytes: int = 16) -> None:
    expected = run_kernel(example.kernel, example.arrays(), example.parameters)
    for k, (a, b) in enumerate(zip(run_native(example, vector_bytes), expected, strict=True)):
        assert a.tobytes() == b.tobytes(), f"buffer {k}"


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("vector_bytes", [16, 64])
def test_machine_code_gives_the_same_bits(name, vector_bytes):
    assert_same(EXAMPLES[name](), vector_bytes)


LARGE = {
    "elementwise": lambda: example_kernels.elementwise(9000),
    "broadcast of long rows": lambda: example_kernels.broadcast(2, 5000),
    "transpose": lambda: example_kernels.transpose(100, 96),
    "transpose, sizes given": lambda: example_kernels.transpose(70, 70, True),
    "full sum": lambda: example_kernels.full_sum(70000),
    "full sum, sizes given": lambda: example_kernels.full_sum(70001, flexible=True),
    "sum of products": lambda: example_kernels.sum_of_products(700, 100),
    "column sums": lambda: example_kernels.column_sum(4100, 20),
    "column sums, sizes given": lambda: example_kernels.column_sum(2100, 20, flexible=True),
    "wide column sums": lambda: example_kernels.column_sum(70, 300),
    "transposed rows": lambda: example_kernels.transposed_rows(300, 100),
    "argmax of ties": lambda: example_kernels.extreme(1, 70000, "argmax", example_kernels.ties),
    "two parts": lambda: example_kernels.two_parts(1, 70000),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_kernels_give_the_same_bits(name):
    assert_same(LARGE[name]())


@pytest.mark.slow
@pytest.mark.parametrize("n", TAILS)
def test_tails_of_every_size_give_the_same_bits(n):
    assert_same(example_kernels.row_sum(3, n))
    assert_same(example_kernels.extreme(2, n, "argmin", example_kernels.ties))
    assert_same(example_kernels.column_sum(n, 5))


def test_long_rows_are_walked_whole_where_that_leaves_tasks():
    first, _ = schedule(example_kernels.column_sum(1000, 1000).kernel)
    assert evaluate(first.notes["tasks"], ()) == 8
    assert min(local.length for local in first.locals if local.length) == 1000
    first, _ = schedule(example_kernels.column_sum(500, 1000).kernel)
    assert evaluate(first.notes["tasks"], ()) == 8
    assert min(local.length for local in first.locals if local.length) == 512


@pytest.mark.parametrize("general", [False, True])
def test_few_points_are_no_tasks_of_their_own(general):
    outer = wf.trace(
        lambda x, y: x[:, :, None] * y[:, None], wf.ones((5000, 3)), wf.ones((5000, 3))
    )
    (call,) = Native(outer, general=general).steps
    assert call.request.tasks(0) == 5000
