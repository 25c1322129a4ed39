"""The order in which kernels walk memory: along rows, in tiles, and ahead of themselves."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.compiler.example_kernels import transpose
from tests.compiler.kernel_parts import Example
from tests.compiler.native_kernels import Compiled
from tests.compiler.reduction_kernels import column_sum, layer_norm
from weft.compiler.kernels import evaluate
from weft.compiler.loops import Ahead, every
from weft.compiler.pipeline import schedule


def by_definition(x: np.ndarray) -> np.ndarray:
    """Sums down columns: blocks of 32 rows in order, then the balanced tree."""
    blocks = []
    for start in range(0, len(x), 32):
        total = np.full(x.shape[1], -0.0, x.dtype)
        for row in x[start : start + 32]:
            total = total + row
        blocks.append(total)

    def tree(parts: list[np.ndarray]) -> np.ndarray:
        if len(parts) == 1:
            return parts[0]
        half = 1 << (len(parts) - 1).bit_length() - 1
        return tree(parts[:half]) + tree(parts[half:])

    return tree(blocks)


@pytest.mark.parametrize("shape", [(2048, 8192), (300, 6000), (100, 4096), (96, 700), (65, 520)])
@pytest.mark.parametrize("shift", [0, 3, 1024])
def test_sums_down_columns_are_the_same_wherever_the_rows_begin(
    shape: tuple[int, int], shift: int
) -> None:
    size = shape[0] * shape[1]
    memory = np.random.default_rng(0).standard_normal(size + shift).astype(np.float32)
    rows = memory[shift:].reshape(shape)
    found = wf.compile(lambda x: x.sum(0))(wf.asarray(rows))
    np.testing.assert_array_equal(np.asarray(found), by_definition(rows))


def test_large_running_values_keep_a_distance_from_what_is_read() -> None:
    (first, *_) = schedule(column_sum(4096, 8192).kernel)
    arrays = [x for x in first.locals if x.length == 8192]
    assert arrays and all(first.buffers[x.beside or 0].mode == "read" for x in arrays)
    (small,) = schedule(column_sum(60, 200).kernel)
    assert all(x.beside is None for x in small.locals)


@pytest.mark.parametrize("shape", [(40, 512), (40, 1100), (512, 40), (1100, 1030), (33, 300)])
def test_a_transpose_of_any_shape_moves_every_element(shape: tuple[int, int]) -> None:
    x = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(np.asarray(wf.compile(lambda x: x.T)(wf.tensor(x))), x.T)


def test_tiles_of_long_rows_are_wide() -> None:
    (wide,) = schedule(transpose(512, 64).kernel)
    (narrow,) = schedule(transpose(300, 64).kernel)
    assert [x.length for x in wide.locals if x.length] == [256 * 16]
    assert [x.length for x in narrow.locals if x.length] == [32 * 32]


def test_a_row_that_is_read_again_leaves_time_to_fetch_the_next_one() -> None:
    (kernel,) = schedule(layer_norm(64, 1024).kernel, vector_bytes=16)
    (fetched,) = [s for s in every(kernel.body) if isinstance(s, Ahead)]
    assert fetched.source.op == "load"
    (short,) = schedule(layer_norm(64, 70).kernel, vector_bytes=16)
    assert not any(isinstance(s, Ahead) for s in every(short.body))


def tasks_and_bits(example: Example, vector_bytes: int) -> tuple[int, list[bytes]]:
    """How many tasks a kernel has for vectors of this width, and what it writes."""
    (kernel,) = schedule(example.kernel, vector_bytes=vector_bytes)
    arrays = [np.random.default_rng(0).normal(size=n).astype(np.float32) for n in example.sizes]
    tasks = evaluate(kernel.notes["tasks"], example.parameters)
    Compiled([kernel])(kernel.name, arrays, example.parameters, tasks)
    return tasks, [a.tobytes() for a in arrays]


@pytest.mark.parametrize("shape", [(64, 128), (128, 512), (96, 300), (256, 40)])
def test_the_widest_vectors_take_two_short_rows_at_a_time(shape: tuple[int, int]) -> None:
    (alone, expected), (paired, found) = (tasks_and_bits(layer_norm(*shape), n) for n in (16, 64))
    assert paired * 2 == alone
    assert found == expected


@pytest.mark.parametrize("shape", [(65, 128), (64, 1024), (16, 1000)])
def test_long_rows_and_odd_numbers_of_them_stay_alone(shape: tuple[int, int]) -> None:
    (alone, expected), (wide, found) = (tasks_and_bits(layer_norm(*shape), n) for n in (16, 64))
    assert (wide, found) == (alone, expected)
