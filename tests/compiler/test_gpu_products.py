"""Products of matrices in tiles for the blocks of a GPU give every bit that a CPU gives."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.compiler.gpu_results import different, on_cpu
from weft.compiler.emit_ptx import emit_ptx, gpu_target
from weft.compiler.passes import blocks_product
from weft.compiler.passes.items import Limits, Tile
from weft.compiler.pipeline_gpu import CUDA
from weft.compiler.verify import verify
from weft.core.tensor.tracing import trace
from weft.testing.emulated_gpu import use_emulated_gpu
from weft.testing.gpu_programs import planned
from weft.testing.ir import run_kernel

pytestmark = pytest.mark.slow  # the interpreter runs every thread of every block

THIN = Limits(tiles=(Tile(8, 8, 2, 4, 8), Tile(8, 4, 4, 2, 8)))
SMALL = Limits(tiles=(Tile(8, 8, 4, 4, 8),))
WIDE = Limits(tiles=(Tile(8, 16, 4, 8, 4),))
LONG = Limits(tiles=(Tile(2, 4, 1, 4, 32),))
FLAT = Limits(tiles=(Tile(8, 8, 4, 4, 8),), lanes=1)


def operands(*shapes, dtype=np.float32) -> list:
    rng = np.random.default_rng(len(shapes))
    if np.dtype(dtype).kind in "iu":
        return [rng.integers(0, 1 << 31, shape).astype(dtype) for shape in shapes]
    return [(rng.standard_normal(shape) * 3).astype(dtype) for shape in shapes]


def run(program, arrays, backward: bool) -> list:
    """The outputs, each kernel run by the interpreter."""
    memory = {b: np.zeros(b.size, b.dtype) for b in program.memory()}
    memory |= {b: b.data.reshape(-1) for b in program.memory() if b.data is not None}
    memory |= {b: a.reshape(-1) for b, a in zip(program.inputs, arrays, strict=True)}
    for launch in program.launches:
        found = run_kernel(launch.kernel, [memory[b] for b in launch.memory], (), backward)
        memory |= dict(zip(launch.memory, found, strict=True))
    kinds = program.trace.output_types
    return [memory[b].reshape(k.shape) for b, k in zip(program.outputs, kinds, strict=True)]


def prove(function, arrays, limits=SMALL, launches: int = 1) -> list:
    graph = trace(function, *map(wf.asarray, arrays))
    program = planned(graph, limits)
    assert len(program.kernels) == launches
    assert any(local.shared for local in program.kernels[0].locals), "no tile"
    for kernel in program.kernels:
        verify(kernel, scheduled=True)
    expected = on_cpu(graph, arrays)
    for backward in (False, True):
        for x, y in zip(run(program, arrays, backward), expected, strict=True):
            assert different(x, y) == 0
    return program.kernels


@pytest.mark.parametrize("limits", [SMALL, WIDE, FLAT], ids=["small", "wide", "flat"])
@pytest.mark.parametrize("shape", [(8, 8, 8), (16, 16, 8), (12, 8, 20), (9, 11, 13)], ids=str)
def test_products_of_any_size_keep_every_bit(shape, limits):
    m, k, n = shape
    prove(wf.matmul, operands((m, k), (k, n)), limits)


@pytest.mark.parametrize("shape", [(12, 12, 16), (9, 11, 10)], ids=str)
@pytest.mark.parametrize("way", ["left", "right", "both"])
def test_factors_may_lie_either_way(way, shape):
    m, k, n = shape
    a, b = operands((k, m) if way in ("left", "both") else (m, k), (k, n))
    b = np.ascontiguousarray(b.T) if way in ("right", "both") else b
    turn_left, turn_right = way in ("left", "both"), way in ("right", "both")
    prove(lambda a, b: (a.mT if turn_left else a) @ (b.mT if turn_right else b), [a, b])


@pytest.mark.parametrize("left, right", [((3, 9, 8), (3, 8, 12)), ((2, 2, 8, 9), (9, 8))], ids=str)
def test_batches_are_blocks_of_their_own(left, right):
    prove(wf.matmul, operands(left, right))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 16, 12), (2, 9, 8), (12, 16, 1)], ids=str)
def test_few_rows_and_few_columns_keep_every_bit(dtype, shape):
    m, k, n = shape
    prove(wf.matmul, operands((m, k), (k, n), dtype=dtype), THIN)


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int64])
@pytest.mark.parametrize("shape", [(8, 16, 12), (9, 10, 11)], ids=str)
def test_other_dtypes_keep_every_bit(dtype, shape):
    m, k, n = shape
    wide = Limits(tiles=(Tile(8, 16, 4, 8, 8),))
    prove(wf.matmul, operands((m, k), (k, n), dtype=dtype), wide)


def test_narrow_factors_are_widened_on_the_way():
    a, b = operands((12, 16), (16, 12))
    prove(lambda a, b: a.astype("float32") @ b, [a.astype(np.float16), b])


@pytest.mark.parametrize("depth", [256, 257, 520])  # one piece, two and three
def test_long_sums_are_taken_in_pieces(depth, monkeypatch):
    monkeypatch.setattr(blocks_product, "THREADS", 0)  # a GPU that is busy with any tile
    prove(wf.matmul, operands((2, depth), (depth, 4)), LONG)


@pytest.mark.parametrize("shape", [(2, 520, 4), (1, 300, 5)], ids=str)
def test_pieces_of_few_results_are_blocks_and_a_second_kernel_adds_them_up(shape):
    m, k, n = shape
    a, b, bias = operands((m, k), (k, n), (n,))
    prove(lambda a, b, bias: wf.maximum(a @ b + bias, 0.5), [a, b, bias], LONG, 2)


def test_batches_of_few_results_are_parted_too():
    prove(wf.matmul, operands((2, 2, 300), (2, 300, 4)), LONG, 2)


@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_are_products_of_what_a_window_sees(stride):
    image, weights = operands((1, 2, 5, 4), (4, 2, 3, 3))
    prove(lambda x, w: wf.conv(x, w, stride=stride, padding=1), [image, weights])


def test_a_sum_that_is_negative_zero_stays_that():
    a, b = np.full((8, 9), 1e-30, np.float32), np.full((9, 8), -1e-30, np.float32)
    found = on_cpu(trace(wf.matmul, wf.asarray(a), wf.asarray(b)), [a, b])
    assert np.signbit(found[0]).all() and not found[0].any()
    prove(wf.matmul, [a, b])


def test_what_is_not_a_number_stays_in_its_row_and_column():
    a, b = operands((10, 9), (9, 12))
    a[9, 8], b[8, 3], a[2, 2], b[1, 7] = np.inf, 0.0, np.nan, -np.inf
    prove(wf.matmul, [a, b])


@pytest.mark.parametrize("shape", [(12, 16, 12), (9, 10, 11)], ids=str)
def test_what_is_computed_before_and_after_is_part_of_the_kernel(shape):
    m, k, n = shape
    a, b, bias, other = operands((m, k), (k, n), (n,), (m, n))
    prove(
        lambda a, b, bias, other: wf.maximum((a * 0.5) @ b + bias, 0.0) + other,
        [a, b, bias, other],
    )


@pytest.mark.parametrize(
    "shape", [(64, 64, 64), (130, 300, 200), (129, 17, 5), (1, 700, 64), (1030, 300, 1028)], ids=str
)
def test_tiles_as_a_gpu_has_them_keep_every_bit(shape):
    m, k, n = shape
    arrays = operands((m, k), (k, n))
    with use_emulated_gpu():
        a, b = (wf.asarray(x, device="cuda:0") for x in arrays)
        found = (a @ b).numpy()
    (expected,) = on_cpu(trace(wf.matmul, *map(wf.asarray, arrays)), arrays)
    assert different(found, expected) == 0


def test_sums_of_few_products_are_left_as_they_were():
    a, b = operands((64, 4), (4, 64))
    (kernel,) = planned(trace(wf.matmul, wf.asarray(a), wf.asarray(b)), CUDA).kernels
    assert not any(local.shared for local in kernel.locals)


@pytest.mark.parametrize(
    "shape, rows, columns",
    [((4096, 64, 4096), 128, 128), ((1024, 1024, 1024), 128, 64), ((256, 256, 256), 32, 32)],
    ids=str,
)
def test_tiles_are_as_large_as_keeps_a_gpu_busy(shape, rows, columns):
    m, k, n = shape
    a, b = wf.zeros((m, k), dtype="float32"), wf.zeros((k, n), dtype="float32")
    (kernel,) = planned(trace(wf.matmul, a, b), CUDA).kernels
    assert kernel.notes["blocks"] == m // rows * (n // columns)


def ptx_of(function, *arrays) -> str:
    kernels = planned(trace(function, *map(wf.asarray, arrays)), CUDA).kernels
    return emit_ptx(kernels, gpu_target((9, 0)))


def test_sums_are_held_in_registers_and_factors_move_by_vectors():
    text = ptx_of(wf.matmul, *operands((2048, 512), (512, 2048)))
    assert ".local" not in text
    assert text.count("fma.rn.f32") == 16 * 64
    assert "ld.shared.b32" not in text and text.count("ld.shared.v4.b32") == 16 * 4
    assert "ld.global.b32" not in text and "ld.global.v4.b32" in text
    assert "st.global.b32" not in text and text.count("st.global.v4.b32") == 16
    assert ".minnctapersm 2" in text


def test_threads_wait_for_each_slab():
    text = ptx_of(wf.matmul, *operands((2048, 128), (128, 2048)))
    assert text.count("bar.sync") == 2  # after the first slab, and at the end of each turn


@pytest.mark.parametrize(("depth", "together"), [(64, 2), (4096, 1)])
def test_a_block_is_alone_on_a_multiprocessor_only_for_long_sums(depth, together):
    x, y = wf.zeros((8192, depth)), wf.zeros((depth, 8192))
    (kernel,) = planned(trace(lambda x, y: x @ y, x, y), CUDA).kernels
    assert kernel.notes["together"] == together
