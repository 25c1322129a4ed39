"""Products that four warps of a GPU take together: layouts, sizes, where they lie, and PTX."""

from __future__ import annotations

from dataclasses import replace
from operator import add, floordiv, mod, mul, xor

import numpy as np
import pytest

import weft as wf
from tests.compiler.gpu_results import different
from tests.compiler.test_squares import OLD, on_gpu, operands
from weft.compiler import gpu_code
from weft.compiler.emit_ptx import emit_ptx, gpu_target
from weft.compiler.loops import Squares, Value, every, integer, literal
from weft.compiler.passes.items import GROUPS, Limits
from weft.compiler.squares import CHUNK, ROW, swirled
from weft.compiler.verify import verify
from weft.core.common.dtypes import bfloat16
from weft.core.tensor.tracing import trace
from weft.testing.gpu_programs import planned

HOPPER = Limits(tiles=(), groups=GROUPS, room=227 * 1024)


def grouped(function, *arrays, limits=HOPPER) -> list[Squares]:
    """The statements of a program's kernels for warps that multiply together."""
    kernels = planned(trace(function, *map(wf.asarray, arrays)), limits).kernels
    found = [s for k in kernels for s in every(verify(k, scheduled=True).body)]
    return [s for s in found if isinstance(s, Squares) and s.together]


@pytest.fixture
def by_groups(monkeypatch):
    """An emulated GPU of this kind multiplies by such tiles alone."""
    cuda = gpu_code._LANGUAGES["cuda"]
    of = lambda gpu: HOPPER if gpu.capability == (9, 0) else cuda.limits(gpu)  # noqa: E731
    monkeypatch.setitem(gpu_code._LANGUAGES, "cuda", replace(cuda, limits=of))


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("shape", [(128, 64, 128), (136, 200, 264), (64, 72, 40)], ids=str)
@pytest.mark.parametrize("dtype", [bfloat16, np.float16], ids=["bfloat16", "float16"])
def test_products_of_groups_are_those_of_each_thread(by_groups, dtype, shape, turned):
    rows, depth, columns = shape
    sizes = (
        (depth, rows) if turned[0] else (rows, depth),
        ((columns, depth) if turned[1] else (depth, columns)),
    )
    arrays = operands(dtype, *sizes)
    function = lambda a, b: (a.mT if turned[0] else a) @ (b.mT if turned[1] else b)  # noqa: E731
    assert grouped(function, *arrays)
    (found,), (expected,) = on_gpu(function, arrays), on_gpu(function, arrays, OLD)
    assert different(found, expected) == 0


@pytest.mark.parametrize("tile", GROUPS, ids=lambda t: f"{t.rows}x{t.columns}")
def test_every_tile_and_what_follows_a_product(by_groups, monkeypatch, tile):
    monkeypatch.setattr(f"{__name__}.HOPPER", replace(HOPPER, groups=(tile,)))
    a, b, bias = operands(bfloat16, (2, 72, 136), (2, 136, 72), (72,))
    function = lambda a, b, bias: wf.relu(a @ b + bias)  # noqa: E731
    assert grouped(function, a, b, bias, limits=replace(HOPPER, groups=(tile,)))
    (found,), (expected,) = on_gpu(function, (a, b, bias)), on_gpu(function, (a, b, bias), OLD)
    assert different(found, expected) == 0


def number(x: Value) -> int:
    """What an expression of numbers comes to."""
    ops = {"add": add, "mul": mul, "floordiv": floordiv, "rem": mod, "bit_xor": xor}
    return int(literal(x)) if x.op == "const" else ops[x.op](*map(number, x.args))


def test_chunks_of_rows_change_places():
    for deep in (True, False):
        for row in range(16):
            for place in range(ROW):
                point, depth = (row, place) if deep else (place, row)
                at = number(swirled(integer(point), integer(depth), deep, ROW * ROW))
                chunk = (place // CHUNK) ^ (row % 8)
                assert at == row * ROW + chunk * CHUNK + place % CHUNK
    assert number(swirled(integer(ROW + 1), integer(0), False, 4096)) == 4096 + 1


def test_factors_that_are_computed_go_another_way():
    a = b = wf.zeros((2048, 2048), dtype="bfloat16")
    both = replace(HOPPER, squares=gpu_code.CUDA.squares)
    assert grouped(lambda a, b: a @ b, a, b, limits=both)
    assert not grouped(lambda a, b: wf.relu(a) @ b, a, b, limits=both)
    assert not grouped(lambda a, b: a[:, 1:] @ b[1:], a, b, limits=both)


@pytest.mark.parametrize("dtype", [bfloat16, np.float16], ids=["bfloat16", "float16"])
def test_ptx_of_hopper_alone_has_such_products(dtype):
    a, b = operands(dtype, (128, 128), (128, 128))
    program = planned(trace(lambda a, b: a @ b, *map(wf.asarray, (a, b))), HOPPER)
    text = emit_ptx(program.kernels, gpu_target((9, 0)))
    word = "bf16" if dtype == bfloat16 else "f16"
    assert ".target sm_90a" in text
    assert f"k16.f32.{word}.{word}" in text and "fence.proxy.async.shared::cta" in text
    assert ".align 1024" in text
    for capability in ((8, 0), (8, 9), (10, 0)):
        assert "sm_90a" not in gpu_target(capability).cpu
        gpu = type("Gpu", (), {"capability": capability, "shared": 227 * 1024, "nbytes": 1 << 33})
        assert not gpu_code._with_squares(gpu).groups


@pytest.mark.parametrize("features", [8, 24, 20, 64])
@pytest.mark.parametrize("turned", [False, True], ids=["factor", "turned"])
@pytest.mark.parametrize("dtype", [bfloat16, np.float32], ids=["bfloat16", "float32"])
def test_merged_heads_are_read_by_vectors(by_groups, dtype, features, turned):
    heads, length = 5, 72
    width = heads * features
    a, b = operands(dtype, (2, heads, length, features), (2 * length if turned else width, 40))

    def function(a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
        merged = wf.permute_dims(a, (0, 2, 1, 3)).reshape(2 * length, width)
        return (merged.mT if turned else merged) @ b

    if dtype == bfloat16:
        assert bool(grouped(function, a, b)) == (features % 8 == 0)
    cuda = gpu_code.CUDA
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.HOPPER", replace(HOPPER, tiles=cuda.tiles, squares=cuda.squares))
        (found,), (expected,) = on_gpu(function, (a, b)), on_gpu(function, (a, b), OLD)
    assert different(found, expected) == 0
    if dtype == np.float32:
        assert different(found, function(wf.asarray(a), wf.asarray(b)).host()) == 0
