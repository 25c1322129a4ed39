"""Few rows by a large factor: pieces are summed by one kernel, added up by another, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from tests.compiler.native_kernels import Compiled
from tests.compiler.test_contract import Case, arrays, product
from tests.compiler.test_contract_shared import kernels_of, normal
from weft.compiler.choice import USUAL
from weft.compiler.kernels import evaluate
from weft.compiler.native import Native
from weft.compiler.passes.contract_blocks import using_path
from weft.compiler.passes.contract_parted import contract_parted, is_parted
from weft.compiler.passes.contract_registers import Registers
from weft.compiler.pipeline import schedule
from weft.compiler.show import show
from weft.compiler.verify import verify
from weft.testing.ir import run_kernel


def both_ways(function: Any, *arrays: Any) -> None:
    """Pieces added up on their own have the bits of sums of one kernel."""
    trace = wf.trace(function, *map(wf.tensor, arrays))
    with using_path("parted"):
        parted = Native(trace)
    with using_path("packed"):
        other = Native(trace)
    assert (kernels_of(parted), kernels_of(other)) == (2, 1)
    want = other.run(list(arrays), 1)[0]
    for threads in (1, 2):
        assert parted.run(list(arrays), threads)[0].tobytes() == want.tobytes()


@pytest.mark.parametrize("rows", [1, 2, 5, 7, 32])
@pytest.mark.parametrize("columns", [33, 37, 128])
def test_pieces_added_up_on_their_own_have_the_bits_of_one_kernel(rows: int, columns: int) -> None:
    both_ways(lambda x, y: x @ y, normal(rows, 1024), normal(1024, columns))


def test_a_transposed_matrix_by_a_vector_is_a_row_by_a_matrix() -> None:
    both_ways(lambda x, y: x.T @ y, normal(1280, 50, dtype=np.float64), normal(1280).astype(float))


def test_what_follows_the_sum_is_computed_once_for_every_result() -> None:
    x, y, b = normal(3, 2048), normal(2048, 70), normal(70)
    both_ways(lambda x, y, b: wf.maximum(x @ y + b, 0), x, y, b)


@pytest.mark.slow
@pytest.mark.parametrize("vector_bytes, registers", [(16, 32), (32, 16), (64, 32)])
def test_both_kernels_mean_the_plain_loops(vector_bytes: int, registers: int) -> None:
    case = Case(1, 5, 1024, fused=True)
    kernel = product(case)
    with using_path("parted"):
        assert is_parted(kernel)
        first, last = contract_parted(kernel, vector_bytes, registers)
    dtype, size = first.notes["partials"]
    given = [*arrays(case), np.full(size, np.nan, dtype)]
    for made in (first, *schedule(last, vector_bytes=vector_bytes)):
        given = list(run_kernel(verify(made, True), given, (), True))
    for x, y in zip(run_kernel(kernel, arrays(case), ()), given[:-1], strict=True):
        assert x.tobytes() == y.tobytes()


@pytest.mark.parametrize("rows", [7, 9, 16, 32])
@pytest.mark.parametrize("columns", [5, 32, 45, 4700])
def test_every_width_of_vectors_gives_the_same_sums_of_pieces(rows: int, columns: int) -> None:
    case = Case(rows, columns, 1024)
    kernel = product(case)
    sums = {}
    with using_path("parted"):
        for vector_bytes, registers in ((16, 32), (32, 16), (64, 32)):
            first, _ = contract_parted(kernel, vector_bytes, registers)
            dtype, size = first.notes["partials"]
            given = [*arrays(case), np.full(size, np.nan, dtype)]
            Compiled([first])(first.name, given, end=evaluate(first.notes["tasks"], ()))
            sums[vector_bytes] = given[-1].tobytes()
    assert len(set(sums.values())) == 1


def test_a_small_factor_or_an_uneven_depth_takes_one_kernel() -> None:
    assert is_parted(product(Case(1, 512, 1024)))
    for case in (Case(1, 64, 1024), Case(1, 512, 1025), Case(33, 512, 1024), Case(1, 4096, 512)):
        assert not is_parted(product(case))


@pytest.mark.parametrize("vector_bytes, registers", [(16, 32), (32, 16)])
def test_the_next_points_of_a_factor_to_pack_are_fetched_while_products_are_taken(
    vector_bytes: int, registers: int
) -> None:
    kernel = product(Case(16, 512, 1024))
    native = {"lane"} if vector_bytes == 16 else set()
    first, _ = contract_parted(kernel, vector_bytes, registers, native=native)
    block = first.notes["contract"]
    aheads = [line for line in show(first).splitlines() if "ahead" in line]
    assert len(aheads) == block.ahead == 1
    assert block.depth * block.tile_columns * 4 <= 1 << (20 if vector_bytes == 16 else 18)


@pytest.mark.parametrize("rows", [8, 16, 2048])
def test_few_registers_hold_blocks_of_several_vectors(rows: int) -> None:
    """An element of the left factor that is read for one vector alone would be read too often."""
    fits = Registers(8, 16, 32, USUAL, 0)
    assert all(fits.block(rows, columns)[1] > 1 for columns in (16, 24, 128, 4096))
    assert fits.block(rows, 8)[1] == 1


def test_the_widest_vectors_read_a_large_factor_where_it_lies() -> None:
    first, _ = contract_parted(product(Case(16, 512, 1024)), 64, 32)
    block = first.notes["contract"]
    assert block.rows_inside and not block.pack_right
    assert block.columns * 4 == 128  # of a row: whole lines
