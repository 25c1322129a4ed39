"""Products that warps of a GPU take as small matrices: places, layouts, pieces and PTX."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft as wf
from tests.compiler.gpu_results import different, on_cpu
from tests.compiler.test_gpu_products import run
from weft.compiler.emit_ptx import emit_ptx, gpu_target
from weft.compiler.gpu_code import language_of
from weft.compiler.loops import Squares, every
from weft.compiler.passes import blocks_product
from weft.compiler.passes.items import Limits, Tile
from weft.compiler.pipeline_gpu import CUDA
from weft.compiler.verify import verify
from weft.core.common.dtypes import bfloat16
from weft.core.tensor.tracing import trace
from weft.testing.emulated_gpu import EmulatedGpu, use_emulated_gpu
from weft.testing.gpu_programs import planned

SMALL = Limits(tiles=(), squares=(Tile(16, 16, 2, 4, 32),), room=1 << 13)  # two slabs,
PAIR = Limits(  # or three and more; two warps
    tiles=(), squares=(Tile(16, 32, 2, 4, 32),), doubles=(Tile(16, 16, 1, 4, 8),)
)
DTYPES = [bfloat16, np.dtype(np.float16), np.dtype(np.float64)]
NAMES = ("bfloat16", "float16", "float64")
NARROW = {bfloat16: "m16n8k16.row.col.f32.bf16", DTYPES[1]: "m16n8k16.row.col.f32.f16"}
INSTRUCTIONS = {
    (8, 0): NARROW | {DTYPES[2]: "m8n8k4.row.col.f64"},
    (9, 0): NARROW | {DTYPES[2]: "m16n8k16.row.col.f64"},
}
OLD = (7, 5)
slow = pytest.mark.slow  # the interpreter runs every thread of every block


def operands(dtype, *shapes) -> list:
    rng = np.random.default_rng(len(shapes))
    return [rng.standard_normal(shape).astype(np.float32).astype(dtype) for shape in shapes]


def on_gpu(function, arrays, capability=(9, 0)) -> list:
    """The results of a GPU, which the processor plays; an older one sums in order."""
    with use_emulated_gpu() as (gpu,):
        gpu.capability = capability
        found = wf.compile(function)(*(wf.asarray(x, device="cuda") for x in arrays))
        return [found.host()]


def prove(function, arrays, limits=SMALL) -> None:
    """The interpreter, in any order of threads, gives the bits of sums in order."""
    graph = trace(function, *map(wf.asarray, arrays))
    program = planned(graph, limits)
    assert any(isinstance(s, Squares) for s in every(program.kernels[0].body))
    for kernel in program.kernels:
        verify(kernel, scheduled=True)
    expected = on_gpu(function, arrays, OLD)
    for backward in (False, True):
        for x, y in zip(run(program, arrays, backward), expected, strict=True):
            assert different(x, y) == 0


@slow
@pytest.mark.parametrize(
    ("shape", "dtype"), [((16, 24, 16), bfloat16), ((9, 19, 11), np.float64)], ids=str
)
def test_threads_in_any_order_give_the_bits_of_a_sum_in_order(shape, dtype):
    m, k, n = shape
    prove(wf.matmul, operands(dtype, (m, k), (k, n)), PAIR)


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
@pytest.mark.parametrize("way", ["", "left", "right", "both"])
@pytest.mark.parametrize("shape", [(128, 64, 128), (33, 47, 21), (5, 300, 200)], ids=str)
def test_products_of_any_size_whose_factors_lie_either_way(shape, way, dtype):
    m, k, n = shape
    turns = way in ("left", "both"), way in ("right", "both")
    given = operands(dtype, (k, m) if turns[0] else (m, k), (n, k) if turns[1] else (k, n))

    def function(a, b):
        return (a.mT if turns[0] else a) @ (b.mT if turns[1] else b)

    (found,), (expected,) = on_gpu(function, given), on_gpu(function, given, OLD)
    assert different(found, expected) == 0


@slow
def test_what_is_computed_before_and_after_is_part_of_the_kernel():
    a, b, bias, other = operands(bfloat16, (18, 32), (32, 20), (20,), (18, 20))
    prove(
        lambda a, b, bias, other: wf.maximum(wf.maximum(a, 0) @ b + bias, 0) + other,
        [a, b, bias, other],
    )


@slow
def test_batches_are_blocks_of_their_own():
    prove(wf.matmul, operands(bfloat16, (3, 9, 16), (3, 16, 8)))


@pytest.mark.parametrize("threads", [0, 256], ids=["a busy GPU", "an idle one"])
def test_long_sums_of_float64_are_taken_in_pieces(monkeypatch, threads):
    monkeypatch.setattr(blocks_product, "THREADS", threads)
    given = operands(np.float64, (8, 520), (520, 8))
    (found,), (expected,) = on_gpu(wf.matmul, given), on_cpu(trace(wf.matmul, *given), given)
    assert different(found, expected) == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("capability", INSTRUCTIONS, ids=str)
def test_a_gpu_multiplies_matrices_that_lie_either_way(capability, dtype, turned):
    a, b = operands(dtype, (2048, 256), (256, 2048))
    function = (lambda a, b: a.mT @ b.mT) if turned else wf.matmul
    given = (b, a) if turned else (a, b)
    limits = replace(CUDA, room=EmulatedGpu.shared)
    kernels = planned(trace(function, *map(wf.asarray, given)), limits).kernels
    text = emit_ptx(kernels, gpu_target(capability))
    assert ".local" not in text
    assert f"mma.sync.aligned.{INSTRUCTIONS[capability][dtype]}" in text
    assert ("ldmatrix" in text) is (dtype.itemsize == 2)
    assert "cp.async.cg" in text and "ld.global" not in text


def test_products_of_bytes_are_matrices_too():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, shape, np.int8) for shape in ((70, 90), (90, 50)))
    function = lambda a, b: a.astype("int32") @ b.astype("int32")  # noqa: E731
    kernels = planned(trace(function, *map(wf.asarray, (a, b))), CUDA).kernels
    assert "mma.sync.aligned.m16n8k32.row.col.s32.s8" in emit_ptx(kernels, gpu_target((9, 0)))
    (found,) = on_gpu(function, (a, b))
    assert np.array_equal(found, a.astype(np.int32) @ b.astype(np.int32))


def test_older_gpus_multiply_element_by_element():
    gpu = EmulatedGpu(0)
    assert language_of(gpu).limits(gpu).squares
    gpu.capability = OLD
    assert not language_of(gpu).limits(gpu).squares


def test_a_sum_of_few_products_is_no_matrix():
    kernels = planned(trace(wf.matmul, *operands(bfloat16, (64, 8), (8, 64))), CUDA).kernels
    assert not any(isinstance(s, Squares) for s in every(kernels[0].body))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depth": 24}, "no whole squares"),
        ({"rows": 1}, "no whole squares"),
        ({"sums": ()}, "squares of bfloat16 summed in"),
        ({"sums": (2,)}, "sums that are not kept"),
    ],
)
def test_the_verifier_knows_squares(change, message):
    (kernel,) = planned(trace(wf.matmul, *operands(bfloat16, (16, 32), (32, 16))), SMALL).kernels

    def changed(statements):
        return tuple(
            replace(s, **change)
            if isinstance(s, Squares)
            else replace(s, body=changed(s.body))
            if s.body
            else s
            for s in statements
        )

    verify(kernel, scheduled=True)
    with pytest.raises(AssertionError, match=message):
        verify(replace(kernel, body=changed(kernel.body)), scheduled=True)


def test_attention_mixes_narrow_values_by_narrow_weights():
    given = wf.zeros((2, 4, 64, 256), dtype="bfloat16")
    graph = trace(lambda x: wf.scaled_dot_product_attention(x, x, x, is_causal=True), given)
    scores, weights, mixed = planned(graph, CUDA).launches
    assert all(any(isinstance(s, Squares) for s in every(x.kernel.body)) for x in (scores, mixed))
    (written,) = [x for x in weights.memory if x in mixed.memory and x.size == 2 * 4 * 64 * 64]
    assert written.dtype == bfloat16


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_attention_is_differentiated_by_products_of_narrow_factors(dtype):
    given = [wf.ones((2, 4, 64, 32), dtype=dtype)] * 3
    total = lambda *x: wf.scaled_dot_product_attention(*x, is_causal=True).sum()  # noqa: E731
    launches = planned(trace(wf.grad(total, argnums=(0, 1, 2)), *given), CUDA).launches
    products = [x for x in launches if "matmul" in x.kernel.name]
    assert len(products) >= 5
    assert all(any(isinstance(s, Squares) for s in every(x.kernel.body)) for x in products)
    matrices = {m for x in launches for m in x.memory if m.size == 2 * 4 * 64 * 64}
    assert [m.dtype.itemsize for m in matrices].count(4) == 1, "scores alone are wide"


@pytest.mark.parametrize("cut", [np.s_[1:, 4:], np.s_[:64, :64], np.s_[1:, 1:65]], ids=str)
def test_rows_that_begin_anywhere_are_not_fetched_by_vectors(cut):
    a, b = operands(bfloat16, (65, 68), (64, 64))
    function = lambda a, b: a[cut] @ b  # noqa: E731
    (found,), (expected,) = on_gpu(function, (a, b)), on_gpu(function, (a, b), OLD)
    assert different(found, expected) == 0


def test_float64_products_of_narrower_factors_are_matrices_too():
    a, b = operands(np.float32, (40, 48), (48, 24))
    function = lambda a, b: a.astype("float64") @ b.astype("float64")  # noqa: E731
    (kernel,) = planned(trace(function, *map(wf.asarray, (a, b))), CUDA).kernels
    assert any(isinstance(s, Squares) for s in every(kernel.body))
    (found,), (expected,) = on_gpu(function, (a, b)), on_cpu(trace(function, a, b), (a, b))
    assert different(found, expected) == 0
