"""Large products pack their factors once, in a kernel of its own, and have the bits of others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft as wf
from tests.compiler.fetching import fetched
from tests.compiler.native_kernels import Compiled
from tests.compiler.test_contract import Case, arrays, product
from weft.compiler.choice import Choice
from weft.compiler.emit_cpu import emit
from weft.compiler.kernels import evaluate
from weft.compiler.loops import (
    PIECE,
    Assign,
    Kernel,
    Loop,
    Statement,
    Store,
    every,
    value,
)
from weft.compiler.native import Native
from weft.compiler.passes.contract_blocks import Block, using_path
from weft.compiler.passes.contract_shared import Packing, contract_shared, packing_of
from weft.compiler.polynomial import known
from weft.compiler.rebuild import with_body
from weft.compiler.show import show
from weft.compiler.steps import Call
from weft.compiler.verify import verify
from weft.runtime.cpu.jit import Target, emit_assembly
from weft.testing.ir import run_kernel

RANDOM = np.random.default_rng(5)


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return RANDOM.standard_normal(shape).astype(dtype)


def kernels_of(native: Native) -> int:
    """How many functions the product of a program has."""
    (call, *_) = (c for c in native.calls.values() if isinstance(c, Call))
    return len(call.request.compiled.kernels)


def both_ways(function: Any, *arrays: Any, threads: int = 1) -> tuple[Any, Any]:
    """The result of factors packed once, and of factors packed in each task."""
    trace = wf.trace(function, *map(wf.tensor, arrays))
    usual = Native(trace)
    assert kernels_of(usual) == 2
    with using_path("packed"):
        other = Native(trace)
    assert kernels_of(other) == 1
    return usual.run(list(arrays), threads)[0], other.run(list(arrays), 1)[0]


@pytest.mark.parametrize("turned", ["", "left", "right", "both"])
def test_edges_and_turned_factors_have_the_bits_of_factors_packed_in_each_task(turned: str) -> None:
    x = normal(277, 259) if turned in ("left", "both") else normal(259, 277)
    y = normal(263, 277) if turned in ("right", "both") else normal(277, 263)

    def product(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        x = wf.permute_dims(x, (1, 0)) if turned in ("left", "both") else x
        return x @ (wf.permute_dims(y, (1, 0)) if turned in ("right", "both") else y)

    once, each = both_ways(product, x, y, threads=2)
    assert once.tobytes() == each.tobytes()


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_other_dtypes_and_pieces_of_the_depth_have_the_same_bits(dtype: str) -> None:
    x, y = (normal(*shape) * 50 for shape in ((70, 3100), (3100, 90)))
    once, each = both_ways(lambda x, y: x @ y, x.astype(dtype), y.astype(dtype))
    assert once.tobytes() == each.tobytes()


def test_what_follows_a_product_is_computed_for_every_result() -> None:
    x, y, b = normal(264, 260), normal(260, 301), normal(301)
    once, each = both_ways(lambda x, y, b: wf.maximum(x @ y + b, 0), x, y, b)
    assert once.tobytes() == each.tobytes()


def test_one_form_serves_large_products_of_all_sizes() -> None:
    for rows in (300, 317, 340):
        x, y = normal(rows, 280), normal(280, 290)
        once, each = both_ways(lambda x, y: x @ y, x, y)
        assert once.tobytes() == each.tobytes()


@pytest.mark.parametrize("vector_bytes, registers", [(16, 32), (32, 16), (64, 32)])
@pytest.mark.parametrize("shared", [(True, False), (False, True)])
@pytest.mark.parametrize("turned", [False, True])
def test_tasks_that_pack_one_factor_themselves_give_the_bits_of_plain_loops(
    vector_bytes: int, registers: int, shared: tuple[bool, bool], turned: bool
) -> None:
    case = Case(15, 17, 9).transposed(turned, not turned)
    kernel = product(case)
    packs, sums = contract_shared(kernel, vector_bytes, registers, packing=Packing(shared))
    dtype, count = packs.notes["partials"]
    packed = np.full(evaluate(count, ()), np.nan, dtype)
    *_, packed = run_kernel(verify(packs, True), [*arrays(case), packed], ())
    *got, _ = run_kernel(verify(sums, True), [*arrays(case), packed], ())
    for x, y in zip(run_kernel(kernel, arrays(case), ()), got, strict=True):
        assert x.tobytes() == y.tobytes()


@pytest.mark.parametrize("rows, columns", [(2048, 128), (128, 1024), (100_000, 64), (64, 100_000)])
def test_a_small_factor_is_packed_once_and_tiles_are_strips(rows: int, columns: int) -> None:
    found = packing_of(product(Case(rows, columns, 300)), 64)
    assert found is not None and found.shared == (columns > rows, columns <= rows)
    _, sums = contract_shared(product(Case(rows, columns, 300)), 64, 32, packing=found)
    block: Block = sums.notes["contract"]
    whole = block.tile_rows >= rows if columns > rows else block.tile_columns >= columns
    assert whole and block.tile_rows * block.tile_columns <= 1 << 17  # sums that wait in a task


def test_small_products_pack_as_they_go() -> None:
    arrays = normal(64, 64), normal(64, 64)
    assert kernels_of(Native(wf.trace(lambda x, y: x @ y, *map(wf.tensor, arrays)))) == 1


@pytest.mark.parametrize("vector_bytes, registers", [(16, 32), (32, 16), (64, 32)])
@pytest.mark.parametrize("backward", [False, True])
def test_every_vector_width_and_order_of_tasks_gives_the_bits_of_plain_loops(
    vector_bytes: int, registers: int, backward: bool
) -> None:
    case = Case(15, 17, 9, lifted=backward).transposed(backward, not backward)
    kernel, numbers = product(case), case.parameters
    with using_path("shared"):
        native = {"lane"} if backward else set()
        packs, sums = contract_shared(kernel, vector_bytes, registers, native=native)
    dtype, count = packs.notes["partials"]
    packed = np.full(evaluate(count, numbers), np.nan, dtype)
    between = run_kernel(verify(packs, True), [*arrays(case), packed], numbers, backward)
    given = [*arrays(case), between[-1]]
    *got, _ = run_kernel(verify(sums, True), given, numbers, backward)
    for x, y in zip(run_kernel(kernel, arrays(case), numbers), got, strict=True):
        assert x.tobytes() == y.tobytes()


# A block takes two points in a turn; one at the edge, which has a loop of its own, takes one.
@pytest.mark.parametrize("depth, near", [(512, 3), (256, 0)])
def test_the_longest_vectors_have_panels_fetched_as_they_take_products(
    depth: int, near: int
) -> None:
    _, sums = contract_shared(product(Case(300, 300, depth)), 64, 32)
    target = Target("x86_64-unknown-linux-gnu", "x86-64-v4", "+avx512f")
    text = emit_assembly(emit([sums], target), target.triple, target.cpu, target.features)
    assert text.count("prefetcht0") == near, "from the second cache, where pieces are read again"
    assert text.count("prefetcht1") == 1, "into the second cache"


def test_the_second_cache_fetches_all_panels_but_the_first() -> None:
    panels, wide, pieces, deep = 8, 4, 3, 8
    case = Case(panels * 14, wide * 32, pieces * deep)
    packs, sums = contract_shared(product(case), 64, 32, Choice(deep=deep))
    size = evaluate(packs.notes["partials"][1], ())
    rows, columns = panels * 16 * pieces * deep, wide * 32 * pieces * deep  # elements packed
    assert known(sums.notes["tasks"]) == 1 and size == rows + columns

    seen = fetched(sums, 3, size)
    assert seen[16 * deep : rows].all(), "panels of rows, but the first of the first piece"
    assert seen[rows + columns // pieces : size].all(), "those of columns, but the first piece's"


def assert_plain_bits(kernel: Kernel, case: Case, keeps: Kernel, sums: Kernel) -> None:
    """What sums over a kept factor has the bits of the kernel's definition."""
    dtype, size = keeps.notes["kept"]
    given = [*arrays(case), np.full(evaluate(size, ()), np.nan, dtype)]
    for made in (keeps, sums):
        Compiled([made])(made.name, given, end=evaluate(made.notes["tasks"], ()))
    for x, y in zip(run_kernel(kernel, arrays(case)), given[:-1], strict=True):
        assert x.tobytes() == y.tobytes()


@pytest.mark.parametrize("rows, columns, depth", [(56, 100, 2), (42, 70, 3), (28, 66, 10)])
def test_few_rows_meet_one_packed_panel_of_columns_after_another(
    rows: int, columns: int, depth: int
) -> None:
    case = Case(rows, columns, depth)
    kernel, right = product(case), Packing((False, False), frozenset({1}))
    sums, keeps = contract_shared(kernel, 64, 32, Choice(deep=8), right, tall=28)
    assert sums.notes["contract"].rows_inside == (depth <= 8)
    assert show(sums).count("ahead in the second cache b3[") == 1  # next columns, or next piece
    assert_plain_bits(kernel, case, keeps, sums)


def test_few_rows_are_finished_whatever_their_epilogue_reads() -> None:
    case = Case(42, 70, 3, scaled=True)

    def heavier(statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """The same statements, but what is stored takes more work."""
        made: list[Statement] = []
        for s in statements:
            if isinstance(s, Store):
                x = s.value
                for _ in range(9):
                    x = value("mul", (value("add", (x, s.value), x.dtype), s.value), x.dtype)
                s = replace(s, value=x)
            made.append(with_body(s, heavier(s.body)) if isinstance(s, Loop) else s)
        return tuple(made)

    kernel = product(case)
    kernel = replace(kernel, body=heavier(kernel.body))
    right = Packing((False, False), frozenset({1}))
    sums, keeps = contract_shared(kernel, 64, 32, packing=right, tall=28)
    assert sums.notes["contract"].rows_inside
    assert_plain_bits(kernel, case, keeps, sums)


def test_narrower_vectors_have_no_panels_fetched() -> None:
    _, sums = contract_shared(product(Case(300, 300, 256)), 32, 16)
    target = Target("x86_64-unknown-linux-gnu", "x86-64-v3", "+avx2,+fma")
    text = emit_assembly(emit([sums], target), target.triple, target.cpu, target.features)
    assert "prefetch" not in text


def test_every_other_row_of_a_block_is_read_from_memory_by_the_multiplication() -> None:
    _, sums = contract_shared(product(Case(280, 320, 256)), 64, 32)
    target = Target("x86_64-unknown-linux-gnu", "x86-64-v4", "+avx512f")
    text = emit_assembly(emit([sums], target), target.triple, target.cpu, target.features)
    loop = max(text.split("\n.LBB"), key=lambda part: part.count("vfmadd"))
    rows, points = 14, 2
    assert loop.count("vfmadd") == 2 * rows * points
    assert loop.count("{1to16}") == 2 * (rows // 2) * points
    assert loop.count("vbroadcastss") == rows // 2 * points
    read = [line for line in loop.splitlines() if "{1to16}" in line]
    assert not any(",%r" in line.partition(")")[0].replace(" ", "") for line in read), "an index"


@pytest.mark.parametrize(
    "rows, columns, depth, block",
    [
        (2048, 2048, 2048, (8, 3)),
        (1024, 4096, 1024, (8, 3)),
        (4096, 4096, 64, (14, 2)),
        (2048, 128, 512, (14, 2)),
    ],
)
def test_large_deep_products_take_the_block_that_reads_least(
    rows: int, columns: int, depth: int, block: tuple[int, int]
) -> None:
    kernel = product(Case(rows, columns, depth))
    packing = packing_of(kernel, 64)
    assert packing is not None
    *_, sums = contract_shared(kernel, 64, 32, packing=packing)
    found: Block = sums.notes["contract"]
    assert (found.rows, found.vectors) == block


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", [64, 80, 96, 112, 128, 160, 256, 512])
def test_blocks_of_deep_products_leave_room_for_a_whole_piece_of_the_depth(
    columns: int, dtype: str
) -> None:
    kernel = product(Case(512, columns, 2048, dtype=np.dtype(dtype)))
    *_, sums = contract_shared(kernel, 64, 32)
    assert sums.notes["contract"].depth == PIECE


def test_a_cache_too_small_for_any_block_has_no_larger_ones_than_the_usual() -> None:
    for columns in (64, 80, 96, 512):
        kernel = product(Case(512, columns, 2048))
        *_, sums = contract_shared(kernel, 64, 32, Choice(panels=1 << 13))
        found: Block = sums.notes["contract"]
        assert found.rows + found.columns <= 8 + 48


@pytest.mark.parametrize("depth, fetches", [(256, False), (600, True)])
def test_sums_that_wait_for_products_of_the_next_piece_are_fetched_before_they_are_read(
    depth: int, fetches: bool
) -> None:
    _, sums = contract_shared(product(Case(300, 300, depth)), 16, 32)
    assert ("ahead" in show(sums)) == fetches


@pytest.mark.parametrize(
    "rows, columns, products",
    [(1024, 1020, {48}), (1024, 1024, {48, 8}), (1026, 1020, {48, 6})],
)
def test_blocks_at_the_edge_leave_out_most_of_the_products_that_go_nowhere(
    rows: int, columns: int, products: set[int]
) -> None:
    _, sums = contract_shared(product(Case(rows, columns, 256)), 16, 32)
    loops = [s for s in every(sums.body) if isinstance(s, Loop)]
    taken = [
        sum(isinstance(s, Assign) and s.value.op == "fma" for s in loop.body) for loop in loops
    ]
    assert set(taken) - {0} == products
