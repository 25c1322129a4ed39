"""Small products whose factors are read where they lie have the bits of plain loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.compiler.native_kernels import Compiled
from tests.compiler.test_contract import Case, agree, product
from weft.compiler.loops import Kernel, value
from weft.compiler.passes.contract import contract, plain
from weft.compiler.passes.contract_blocks import Block, using_path
from weft.compiler.passes.contract_shared import packing_of
from weft.compiler.rebuild import rebuild, revise
from weft.compiler.verify import verify

LONGEST = 64  # bytes of a vector


def block_of(kernel: Kernel, vector_bytes: int = LONGEST) -> Block:
    """How a product is cut."""
    block = contract(kernel, vector_bytes).notes["contract"]
    assert isinstance(block, Block)
    return block


def packs(kernel: Kernel, vector_bytes: int = LONGEST) -> tuple[bool, bool]:
    """Whether the tasks of a product pack its left factor, and whether the right one."""
    block = block_of(kernel, vector_bytes)
    return block.pack_left, block.pack_right


def computed(case: Case) -> Kernel:
    """The product whose left factor is not only read: the larger one of each element and itself."""
    kernel = product(case)

    def change(x: Any) -> Any:
        return value("max", (x, x), x.dtype) if x.op == "load" and x.data == 0 else x

    return replace(kernel, body=revise(kernel.body, lambda x: rebuild(x, change, {})))


def same(kernel: Kernel, case: Case) -> None:
    """A product cut for the longest vectors, which any host can do, has the bits of plain loops."""
    before = replace(plain(kernel), name="plain")
    after = verify(contract(kernel, LONGEST), True)
    agree(Compiled([before, after]), case, before, after)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rows, columns, depth", [(16, 32, 256), (40, 32, 259), (60, 96, 600)])
def test_nothing_is_packed_and_every_bit_is_that_of_plain_loops(
    rows: int, columns: int, depth: int, turned: bool
) -> None:
    case = Case(rows, columns, depth).transposed(turned, False)
    assert packs(product(case)) == (False, False)
    same(product(case), case)


def test_doubles_and_batches_and_what_follows_have_the_same_bits() -> None:
    double = Case(16, 16, 258, dtype=np.dtype(np.float64))
    many = Case(8, 32, 256, batch=((2, 8 * 256, 256 * 32, 8 * 32),))
    for case in (double, many, Case(16, 32, 257, fused=True), Case(16, 32, 257, scaled=True)):
        assert packs(product(case)) == (False, False)
        same(product(case), case)


def test_a_left_factor_that_is_computed_is_packed_by_the_task_that_needs_it() -> None:
    for turned in (False, True):
        case = Case(24, 32, 256).transposed(turned, False)
        assert packs(computed(case)) == (True, False)
        assert block_of(computed(case)).tile_columns == 32
        same(computed(case), case)


@pytest.mark.parametrize(
    "case",
    [
        Case(64, 64, 255),  # not deep enough
        Case(67, 64, 500),  # rows that no block goes into
        Case(64, 60, 500),  # columns that are not whole vectors
        Case(64, 1024, 256),  # rows of memory that lie far apart
        Case(256, 256, 512).transposed(False, True),  # columns that lie across
        Case(256, 256, 768),  # more than the cache holds
        Case(64, 64, 500, source=np.dtype(np.float16)),  # a factor that is not what lies there
        Case(64, 64, 500, dtype=np.dtype(np.int32)),
    ],
)
def test_other_products_are_packed(case: Case) -> None:
    assert packs(product(case)) != (False, False)


def test_products_that_would_be_packed_for_all_tasks_are_not() -> None:
    case = Case(256, 256, 256)
    assert packing_of(product(case), LONGEST) is None
    assert packing_of(product(case), 16) is not None  # shorter vectors gain by it
    with using_path("shared"):
        assert packing_of(product(case), LONGEST) is not None
    with using_path("packed"):
        assert packs(product(case)) == (True, True)


@pytest.mark.parametrize("rows, width", [(64, 8), (1, 1), (5, 5), (62, 16), (60, 16)])
def test_panels_of_rows_are_packed_as_vectors(rows: int, width: int) -> None:
    """Eight rows make shorter vectors; fewer than a vector are copied one by one, and no more."""
    case = Case(rows, 64, 30).transposed(True, False)
    kernel = contract(computed(case), LONGEST)
    (left,) = (x for x in kernel.locals if x.name == "left")
    assert left.length == width * kernel.notes["contract"].depth
    same(computed(case), case)
