"""Kernels for blocks and threads give every bit that the kernel they come from gives."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler import example_kernels
from tests.compiler.example_kernels import EXAMPLES, Example
from weft.compiler.passes import blocks_updates
from weft.compiler.pipeline_gpu import CUDA, WEBGPU, stages_gpu
from weft.compiler.verify import verify
from weft.errors import UnsupportedError
from weft.testing.ir import run_kernel

pytestmark = pytest.mark.slow  # the interpreter runs every thread of every block

SOME = """elementwise; elementwise float64; broadcast; packed; transpose; two stores; row sums
softmax; layer norm; column sums; outer and last; argmin of ties; argmax of few; two parts
running sum; gather of numbers; kept row; report; sum of products, odd rows"""
UPDATES = ["scatter", "scatter of numbers", "scatter, the last wins"]
NAMES = [name.strip() for line in SOME.splitlines() for name in line.split(";")]


def run(kernels, example: Example, backward: bool = False) -> list:
    buffers = example.arrays()
    given, scratch = len(buffers), None
    for kernel in kernels:
        wanted = kernel.notes.get("scratch", ())
        if scratch is None or len(wanted) > len(scratch):
            scratch = [np.zeros(elements, dtype) for dtype, elements in wanted]
        made = run_kernel(kernel, [*buffers[:given], *scratch], (), backward)
        buffers, scratch = made[:given], made[given:]
    return buffers


def bits(arrays) -> list[bytes]:
    return [np.asarray(a).tobytes() for a in arrays]


def prove(example: Example, limits) -> tuple:
    expected = bits(run((example.kernel,), example))
    for _, kernels in stages_gpu(example.kernel, limits):
        for kernel in kernels:
            verify(kernel)
    for kernel in kernels:
        verify(kernel, scheduled=True)
    assert bits(run(kernels, example)) == expected
    assert bits(run(kernels, example, backward=True)) == expected, "threads share something"
    return kernels


@pytest.mark.parametrize("limits", [CUDA, WEBGPU], ids=["cuda", "webgpu"])
@pytest.mark.parametrize("name", NAMES)
def test_blocks_and_threads_keep_every_bit(name, limits):
    prove(EXAMPLES[name](), limits)


@pytest.mark.parametrize("n", [1, 17, 512, 513, 1024, 1500])
def test_rows_of_any_length_keep_every_bit(n):
    prove(example_kernels.row_sum(3, n), CUDA)


def test_long_rows_are_reduced_in_parts_by_two_kernels():
    kernels = prove(example_kernels.full_sum(33_001), CUDA)
    assert [k.notes["blocks"] for k in kernels] == [2, 1]


@pytest.mark.parametrize("shape", [(129, 3), (256, 33), (1100, 2)])
def test_columns_are_shared_by_the_threads_of_a_block(shape):
    (kernel,) = prove(example_kernels.column_sum(*shape), CUDA)
    assert any(local.shared for local in kernel.locals)


def test_chunks_of_many_blocks_keep_every_bit():
    tight = type(CUDA)(threads=64, shared=1024, lanes=4)
    prove(example_kernels.full_sum(6_000), tight)
    prove(example_kernels.row_sum(1, 3000), tight)


@pytest.mark.parametrize("name", UPDATES)
def test_threads_share_updates_and_each_element_meets_its_own_in_order(name, monkeypatch):
    monkeypatch.setattr(blocks_updates, "THREADS", 40)
    monkeypatch.setattr(blocks_updates, "CHUNK", 16)
    (kernel,) = prove(EXAMPLES[name](), CUDA)
    assert any(local.shared for local in kernel.locals)


@pytest.mark.parametrize("name", UPDATES)
def test_blocks_list_the_updates_of_their_rows_in_order(name, monkeypatch):
    for setting, number in (("ROW", 0), ("LOOKS", 2), ("BLOCKS", 3), ("EACH", 1)):
        monkeypatch.setattr(blocks_updates, setting, number)
    (kernel,) = prove(EXAMPLES[name](), CUDA)
    assert any(local.name == "list" for local in kernel.locals)


def test_a_kernel_whose_steps_depend_on_each_other_is_refused():
    with pytest.raises(UnsupportedError, match="depend on each other"):
        list(stages_gpu(EXAMPLES["scatter by a register"]().kernel))


@pytest.mark.parametrize("shape", [(33, 34), (8, 70), (64, 32)])
def test_what_lies_along_another_axis_is_read_in_squares(shape):
    (kernel,) = prove(example_kernels.transpose(*shape), CUDA)
    assert any(local.shared for local in kernel.locals)
