"""Products by instructions on tiles: their schedule, their meaning, and the code made of them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft as wf
from weft.compiler.emit_cpu import emit
from weft.compiler.fuse import Fusion
from weft.compiler.kernels import KernelStore
from weft.compiler.loops import Kernel, Tiles, every, integer
from weft.compiler.passes.contract_blocks import using_path
from weft.compiler.rewrite import rewrite
from weft.compiler.scatter import lower
from weft.compiler.show import show
from weft.compiler.small import is_small
from weft.compiler.verify import verify
from weft.errors import UnsupportedError
from weft.runtime.cpu.jit import Target, emit_assembly, using_target
from weft.testing.ir import run_kernel
from weft.testing.tiles import multiply

BFLOAT = np.dtype(ml_dtypes.bfloat16)
FEATURES = "+avx,+avx2,+fma,+f16c,+avx512f,+avx512bw,+avx512vl,+avx512dq"
PLAIN = Target("x86_64-unknown-linux-gnu", "x86-64-v4", FEATURES)
TILES = Target(PLAIN.triple, "sapphirerapids", f"{FEATURES},+amx-tile,+amx-bf16,+amx-int8")
SIZES = [(1, 1, 1), (3, 5, 40), (17, 20, 33), (33, 40, 70), (40, 17, 64), (5, 0, 4), (4, 5, 0)]
LAYOUTS = ["plain", "transposed"]


def random(shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    made = np.random.default_rng(seed)
    if dtype == np.int8:
        return made.integers(-128, 128, shape).astype(np.int8)
    return made.standard_normal(shape).astype(np.float32).astype(dtype)


def kernel_of(function: Any, *arrays: Any) -> Kernel:
    """The one kernel that lowering makes of a function, on a processor with tiles."""
    graph = rewrite(wf.trace(function, *map(wf.asarray, arrays)))[0]
    fusion = Fusion(graph.nodes, graph.outputs)
    (kernel,) = [each.kernel for group in fusion.groups for each in lower(fusion, group, {})]
    return kernel


def product(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
    return x @ y if x.dtype == BFLOAT else x.astype(wf.int32) @ y.astype(wf.int32)


def run(kernel: Kernel, *arrays: Any) -> Any:
    """What a kernel with one result, its last buffer, computes."""
    size = kernel.notes.get("size", 1)
    given = [np.ascontiguousarray(a).ravel() for a in arrays]
    return run_kernel(kernel, [*given, np.zeros(size, kernel.buffers[-1].dtype)])[-1]


def check(dtype: Any, size: tuple[int, int, int], left: str, right: str, path: str = "") -> None:
    rows, columns, depth = size
    a, b = random((rows, depth), dtype, 1), random((depth, columns), dtype, 2)
    stored = [np.ascontiguousarray(x.T) if layout == "transposed" else x
              for x, layout in ((a, left), (b, right))]

    def function(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        x = wf.permute_dims(x, (1, 0)) if left == "transposed" else x
        return product(x, wf.permute_dims(y, (1, 0)) if right == "transposed" else y)

    with using_target(TILES):
        kernel = verify(kernel_of(function, *stored))
        if path:
            with using_path(path):
                (made,) = KernelStore.scheduled(kernel)
        else:
            (made,) = KernelStore.scheduled(kernel)
    verify(made, scheduled=True)
    want = multiply(a, b).astype(BFLOAT if dtype == BFLOAT else np.int32)
    for each in (kernel, made):
        buffers = [*(x.ravel() for x in stored), np.zeros(rows * columns, want.dtype)]
        (*_, found) = run_kernel(each, buffers)
        assert found.tobytes() == want.tobytes(), (size, left, right, each is made)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_products_of_bfloat16_are_summed_as_tiles_sum(
    size: tuple[int, int, int], left: str, right: str
) -> None:
    check(BFLOAT, size, left, right)
