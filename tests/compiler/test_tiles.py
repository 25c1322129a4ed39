"""Products by instructions on tiles or words: their schedule, their meaning, and their code."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft as wf
from weft.compiler.emit_cpu import emit
from weft.compiler.fuse import Fusion
from weft.compiler.kernels import KernelStore
from weft.compiler.lift import form_of, lift
from weft.compiler.loops import Kernel, Tiles, every
from weft.compiler.passes.contract_blocks import using_path
from weft.compiler.passes.contract_shared import packing_of
from weft.compiler.polynomial import known
from weft.compiler.program_key import program_key
from weft.compiler.rewrite import rewrite
from weft.compiler.scatter import lower
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
PAIRS = Target(PLAIN.triple, "znver4", f"{FEATURES},+avx512bf16")
QUADS = Target(PLAIN.triple, "icelake-server", f"{FEATURES},+avx512vnni")
INT8 = np.dtype(np.int8)
SMALL = 3000  # products of which the kernel is also run as it was lowered
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
    if x.dtype == BFLOAT:
        return x @ y
    return wf.astype(x, wf.int32) @ wf.astype(y, wf.int32)


def scheduled(kernel: Kernel, path: str = "", target: Target = TILES) -> Kernel:
    """The kernel as it runs on a processor, one with tiles unless told otherwise."""
    with using_target(target):
        if path:
            with using_path(path):
                (made,) = KernelStore.scheduled(kernel)
        else:
            (made,) = KernelStore.scheduled(kernel)
    return verify(made, scheduled=True)


def has_tiles(kernel: Kernel) -> bool:
    return any(isinstance(s, Tiles) for s in every(kernel.body))


def assembly(kernel: Kernel, target: Target = TILES) -> str:
    return emit_assembly(emit([kernel], target), target.triple, target.cpu, target.features)


def check(
    dtype: Any,
    size: tuple[int, int, int],
    left: str,
    right: str,
    path: str = "",
    target: Target = TILES,
) -> None:
    rows, columns, depth = size
    a, b = random((rows, depth), dtype, 1), random((depth, columns), dtype, 2)
    turned = [layout == "transposed" for layout in (left, right)]
    given = [
        np.ascontiguousarray(x.T) if turn else x for x, turn in zip((a, b), turned, strict=True)
    ]

    def function(*factors: wf.Tensor) -> wf.Tensor:
        pairs = zip(factors, turned, strict=True)
        return product(*(wf.permute_dims(x, (1, 0)) if turn else x for x, turn in pairs))

    with using_target(target):
        kernel = verify(kernel_of(function, *given))
    made = scheduled(kernel, path, target)
    assert has_tiles(made)
    want = multiply(a, b, pairs=target is PAIRS).astype(BFLOAT if dtype == BFLOAT else np.int32)
    for each in (kernel, made) if rows * columns * depth < SMALL else (made,):
        empty = np.zeros(rows * columns, want.dtype)
        (*_, found) = run_kernel(each, [*(x.ravel() for x in given), empty])
        assert found.tobytes() == want.tobytes(), (size, left, right, each is made)


@pytest.mark.slow
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_products_of_bfloat16_are_summed_as_tiles_sum(left: str, right: str) -> None:
    for size in [(1, 1, 1), (20, 18, 33), (1, 19, 40), (19, 2, 33), (5, 0, 4), (4, 5, 0)]:
        check(BFLOAT, size, left, right)


@pytest.mark.parametrize("target", [TILES, PAIRS], ids=["tiles", "pairs"])
def test_blocks_pieces_and_edges_change_no_bit(target: Target) -> None:
    check(BFLOAT, (17, 33, 70), "plain", "transposed", "pieces", target)
    check(BFLOAT, (33, 65, 40), "transposed", "plain", "pieces", target)


@pytest.mark.slow
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_products_of_bfloat16_are_summed_pair_by_pair(left: str, right: str) -> None:
    for size in [(1, 1, 1), (20, 18, 33), (1, 19, 40), (19, 2, 33), (5, 0, 4), (4, 5, 0)]:
        check(BFLOAT, size, left, right, "", PAIRS)
    check(BFLOAT, (3, 2, 270), left, right, "", PAIRS)


@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("target", [TILES, QUADS], ids=["tiles", "quads"])
def test_products_of_int8_go_by_tiles_where_they_are_large_enough(
    target: Target, left: str, right: str
) -> None:
    check(INT8, (17, 19, 70), left, right, "", target)


def test_four_bytes_at_a_time_are_exact_at_the_ends_of_their_range() -> None:
    extremes = np.array([-128, -128, 127, 127, -128, 127, 0, -1], np.int8)
    x, y = np.resize(extremes, (17, 130)), np.resize(extremes[::-1], (130, 40))
    with using_target(QUADS):
        kernel = kernel_of(product, x, y)
    for path in ("", "pieces"):
        made = scheduled(kernel, path, QUADS)
        (*_, found) = run_kernel(made, [x.ravel(), y.ravel(), np.zeros(17 * 40, np.int32)])
        assert found.tobytes() == (x.astype(np.int32) @ y.astype(np.int32)).tobytes()


@pytest.mark.parametrize(
    ("dtype", "size", "layouts", "lasting", "target"),
    [
        (BFLOAT, (33, 70, 96), ("plain", "plain"), (), TILES),
        (BFLOAT, (70, 40, 70), ("transposed", "transposed"), (1,), TILES),
        (INT8, (66, 33, 140), ("plain", "transposed"), (), TILES),
        (INT8, (17, 18, 64), ("transposed", "plain"), (1,), TILES),
        (INT8, (66, 33, 140), ("plain", "transposed"), (), QUADS),
        (INT8, (17, 18, 64), ("transposed", "plain"), (1,), QUADS),
    ],
    ids=str,
)
def test_a_right_factor_that_is_packed_before_changes_no_bit(
    dtype, size, layouts, lasting, target
) -> None:
    rows, columns, depth = size
    a, b = random((rows, depth), dtype, 1), random((depth, columns), dtype, 2)
    given = [x if how == "plain" else x.T.copy() for x, how in zip((a, b), layouts, strict=True)]

    def function(*factors: wf.Tensor) -> wf.Tensor:
        pairs = zip(factors, layouts, strict=True)
        return product(*(x if how == "plain" else x.mT for x, how in pairs))

    with using_target(target), using_path("shared"):
        kernel = kernel_of(function, *given)
        packing = packing_of(kernel, 64, frozenset(lasting))
        kernels = [*KernelStore.scheduled(kernel, packing=packing)]
    first, second = (verify(k, scheduled=True) for k in (kernels[::-1] if lasting else kernels))
    assert has_tiles(second) and not has_tiles(first)
    (_, words) = first.notes["kept" if lasting else "partials"]
    want = multiply(a, b).astype(BFLOAT if dtype == BFLOAT else np.int32)
    buffers = [*(x.ravel() for x in given), np.zeros(rows * columns, want.dtype)]
    buffers.append(np.full(known(words), -1, np.int32))
    for each in (first, second):
        buffers = run_kernel(each, buffers)
        assembly(each, target)
    assert buffers[2].tobytes() == want.tobytes()


def test_one_kernel_serves_all_sizes_a_batch_and_what_follows() -> None:
    a, b = random((2, 3, 40), BFLOAT, 1), random((2, 40, 5), BFLOAT, 2)
    with using_target(TILES):
        kernel = kernel_of(lambda x, y: wf.relu(x @ y), a, b)
    form = form_of(kernel)
    lifted, parameters = lift(kernel, form, frozenset(range(len(form.literals))))
    made = scheduled(lifted)
    empty = np.zeros(2 * 3 * 5, BFLOAT)
    (*_, found) = run_kernel(made, [a.ravel(), b.ravel(), empty], parameters)
    want = np.array([multiply(x, y).astype(BFLOAT) for x, y in zip(a, b, strict=True)])
    assert found.tobytes() == np.maximum(want, BFLOAT.type(0)).tobytes()


@pytest.mark.parametrize(("dtype", "name"), [(BFLOAT, "tdpbf16ps"), (INT8, "tdpbssd")], ids=str)
def test_the_code_has_the_instructions_and_gives_the_tiles_back(dtype: Any, name: str) -> None:
    x = np.zeros((256, 256), dtype)
    with using_target(TILES):
        kernel = kernel_of(product, x, x)
    text = assembly(scheduled(kernel))
    assert text.count(name) == 4
    assert text.count("ldtilecfg") == text.count("tilerelease") == 1


@pytest.mark.parametrize("rows", [1, 8, 256])
def test_pairs_have_their_instruction_and_no_tiles(rows: int) -> None:
    with using_target(PAIRS):
        kernel = kernel_of(product, np.zeros((rows, 256), BFLOAT), np.zeros((256, 256), BFLOAT))
    text = assembly(scheduled(kernel, target=PAIRS), PAIRS)
    assert text.count("vdpbf16ps") == 16 * 2 * min(rows, 8)
    assert "tile" not in text
    with pytest.raises(UnsupportedError, match="no pairs of bfloat16"):
        emit([scheduled(kernel, target=PAIRS)], PLAIN)


@pytest.mark.parametrize(("rows", "high"), [(16, 8), (64, 12)])
def test_quads_have_their_instruction(rows: int, high: int) -> None:
    with using_target(QUADS):
        kernel = kernel_of(product, np.zeros((rows, 256), INT8), np.zeros((256, 256), INT8))
    text = assembly(scheduled(kernel, target=QUADS), QUADS)
    assert text.count("vpdpbusd") == 16 * 2 * high
    with pytest.raises(UnsupportedError, match="no quads of int8"):
        emit([scheduled(kernel, target=QUADS)], PLAIN)


@pytest.mark.parametrize(
    ("cpu", "less", "words"),
    [
        ("sapphirerapids", "none", {False}),
        ("sapphirerapids", "amx", set()),
        ("znver5", "none", {False}),
        ("znver5", "amx", {True}),
        ("cooperlake", "amx", {True}),
        ("znver5", "a", set()),
    ],
)
def test_tiles_go_before_pairs_and_pairs_only_where_they_are_fast(
    cpu: str, less: str, words: set[bool]
) -> None:
    x = np.zeros((64, 64), BFLOAT)
    target = Target(TILES.triple, cpu, f"{TILES.features},+avx512bf16").without(less)
    with using_target(target):
        made = scheduled(kernel_of(product, x, x), target=target)
    assert {s.words for s in every(made.body) if isinstance(s, Tiles)} == words


def test_a_processor_without_tiles_widens_and_refuses_them() -> None:
    x = np.zeros((64, 64), BFLOAT)
    with using_target(PLAIN):
        plain = kernel_of(product, x, x)
        (made,) = KernelStore.scheduled(plain)
    assert not has_tiles(made)
    assert "vfmadd" in assembly(made, PLAIN)
    with using_target(TILES):
        tiled = kernel_of(product, x, x)
    assert form_of(tiled).key != form_of(plain).key
    with pytest.raises(UnsupportedError, match="no tiles of bfloat16"):
        emit([scheduled(tiled)], PLAIN)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (Target(PLAIN.triple, "icelake-server", f"{FEATURES},+avx512vnni"), "vpdpbusd"),
        (Target(PLAIN.triple, "alderlake", "+avx,+avx2,+fma,+avxvnni"), "vpdpbusd"),
        (PLAIN, "vpmaddwd"),
        (Target(PLAIN.triple, "haswell", "+avx,+avx2,+fma"), "vpmaddwd"),
        (PLAIN.baseline(), "pmaddwd"),
    ],
)
def test_bytes_are_multiplied_several_at_a_time_without_tiles(target: Target, name: str) -> None:
    x = np.zeros((64, 64), np.int8)
    with using_target(target):
        (made,) = KernelStore.scheduled(kernel_of(product, x, x))
    text = assembly(made, target)
    assert f"\t{name}\t" in text
    assert "pmulld" not in text


def test_the_name_of_a_program_tells_processors_with_tiles_apart() -> None:
    trace = wf.trace(product, *[wf.asarray(np.zeros((4, 4), BFLOAT))] * 2)
    keys = []
    for target in (PLAIN, TILES):
        with using_target(target):
            keys.append(program_key(trace, [False, False], False)[0])
    assert keys[0] != keys[1]


def test_factors_that_were_cast_by_hand_are_products_of_float32() -> None:
    x = np.zeros((64, 64), BFLOAT)
    with using_target(TILES):
        kernel = kernel_of(lambda x, y: wf.astype(x, wf.float32) @ wf.astype(y, wf.float32), x, x)
    assert not has_tiles(scheduled(kernel))


def test_a_product_of_a_few_bfloat16_goes_by_tiles_too() -> None:
    x = wf.asarray(np.zeros((2, 2), BFLOAT))
    graph = wf.trace(lambda x: x @ x + x, x)
    with using_target(PLAIN):
        assert is_small(graph.nodes, graph.outputs)
    with using_target(TILES):
        assert not is_small(graph.nodes, graph.outputs)


def test_every_second_product_is_added_apart_and_small_numbers_are_none() -> None:
    ones = np.ones((1, 5), BFLOAT)
    column = np.array([2.0**24, 1, 0, 1, 2.0**-130], np.float32).astype(BFLOAT)[:, None]
    assert multiply(ones, column)[0, 0] == np.float32(2.0**24 + 2)
    assert multiply(ones[:, :1], column[4:])[0, 0] == 0
    third = np.array([[2.0**24]], np.float32)
    assert multiply(ones[:, 1:2], column[1:2], third)[0, 0] == 2.0**24


def test_of_a_pair_the_second_product_is_added_first_and_pieces_are_added_up() -> None:
    ones = np.ones((1, 514), BFLOAT)
    column = np.zeros((514, 1), BFLOAT)
    column[1:4, 0] = 2.0**24, -(2.0**24), 1
    assert multiply(ones, column, pairs=True)[0, 0] == 0
    column[1:4, 0] = 2.0**24, 1, -(2.0**24)
    assert multiply(ones, column, pairs=True)[0, 0] == 1
    column[2:4, 0] = 0
    column[256:, 0] = 1
    assert multiply(ones, column, pairs=True)[0, 0] == 2.0**24 + 258
    assert multiply(ones[:, :1], np.full((1, 1), 2.0**-130, BFLOAT), pairs=True)[0, 0] == 0
