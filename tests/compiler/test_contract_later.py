"""Blocks of matrix products have fetched what comes later, where it is theirs to read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft as wf
from tests.compiler.fetching import fetched
from tests.compiler.native_kernels import Compiled
from tests.compiler.test_contract import Case, arrays, product
from weft.compiler.kernels import chosen_target, evaluate
from weft.compiler.loops import Ahead, Kernel, every
from weft.compiler.native import Native
from weft.compiler.passes import contract_later
from weft.compiler.passes.contract import contract
from weft.compiler.passes.contract_blocks import using_path
from weft.compiler.passes.contract_shared import Packing, contract_shared
from weft.compiler.steps import Call, Panels
from weft.compiler.verify import verify
from weft.testing.ir import run_kernel

RIGHT_LASTS = Packing((False, False), frozenset({1}))


def assert_plain_bits(case: Case, made: Kernel) -> None:
    """A scheduled kernel has the bits of the kernel's definition, interpreted and compiled."""
    expected = run_kernel(product(case), arrays(case))
    natively = arrays(case)
    Compiled([made])(made.name, natively, end=evaluate(made.notes["tasks"], ()))
    for got in (run_kernel(verify(made, True), arrays(case)), natively):
        for x, y in zip(expected, got, strict=True):
            assert x.tobytes() == y.tobytes()


@pytest.mark.parametrize("rows, columns, depth", [(28, 32, 32), (15, 33, 36), (16, 32, 16)])
def test_what_the_epilogue_reads_row_by_row_is_fetched_while_products_are_taken(
    rows: int, columns: int, depth: int
) -> None:
    case = Case(rows, columns, depth, scaled=True)
    made = contract(product(case), 64)
    assert fetched(made, 3, rows * columns).all()
    assert_plain_bits(case, made)


def test_few_rows_of_a_panel_have_what_they_are_finished_with_fetched() -> None:
    case = Case(56, 512, 128, scaled=True)
    sums, _ = contract_shared(product(case), 64, 32, packing=RIGHT_LASTS, tall=56)
    assert sums.notes["contract"].rows_inside
    assert fetched(sums, 3, 56 * 512).all()


def test_sums_in_pieces_leave_what_they_are_finished_with_alone() -> None:
    made = contract(product(Case(16, 32, 1024, scaled=True)), 64)
    assert not fetched(made, 3, 16 * 32).any()


@pytest.mark.parametrize("depth", [16, 512])
def test_rows_that_the_next_panel_packs_are_fetched(depth: int) -> None:
    case = Case(56, 64, depth)
    with using_path("packed"):
        made = contract(product(case), 64)
    block = made.notes["contract"]
    assert block.pack_left and block.tile_rows >= 2 * block.rows
    seen = fetched(made, 0, case.rows * depth).reshape(case.rows, depth)
    first = np.arange(case.rows) % block.tile_rows < block.rows  # of a tile: nobody knows of them
    assert seen[~first].all()


BATCHES = Case(16, 32, 16, batch=((3, 16 * 16, 16 * 32, 16 * 32),), scaled=True)


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors of any size are far."""
    monkeypatch.setattr(contract_later, "FAR", 0)


@pytest.mark.parametrize("turned", [False, True])
def test_the_next_of_many_products_is_fetched_while_one_is_computed(
    turned: bool, far: None
) -> None:
    case = replace(BATCHES, left=(1, BATCHES.rows)) if turned else BATCHES
    made = contract(product(case), 64, goes_on=True)
    for number, each in ((0, 16 * 16), (1, 16 * 32), (3, 16 * 32)):
        seen = fetched(made, number, 3 * each)
        assert seen[each:].all() and not seen[:each].any(), number
    assert_plain_bits(case, made)


def test_products_that_may_not_follow_each_other_fetch_nothing_of_others(far: None) -> None:
    made = contract(product(BATCHES), 64)
    assert not fetched(made, 1, 3 * 16 * 32).any()
    assert fetched(made, 3, 3 * 16 * 32).all(), "but what each is finished with"


def test_near_batches_are_not_fetched() -> None:
    made = contract(product(replace(BATCHES, scaled=False)), 64, goes_on=True)
    assert not any(isinstance(s, Ahead) for s in every(made.body))


def test_narrower_vectors_fetch_nothing(far: None) -> None:
    made = contract(product(BATCHES), 32, goes_on=True)
    assert not any(isinstance(s, Ahead) for s in every(made.body))


def attention(q: Any, k: Any, v: Any) -> Any:
    return wf.softmax(q @ k.mT) @ v


def test_batches_in_panels_do_not_follow_each_other_in_memory() -> None:
    q, k, v = (wf.ones((16, 4, 128, 32)) for _ in range(3))
    program = Native(wf.trace(attention, q, k, v))
    (panels,) = (s for s in program.steps if isinstance(s, Panels))
    blocks = [c.request.compiled.kernels[0].notes.get("contract") for c in panels.calls]
    assert sum(b is not None for b in blocks) == 2
    assert not any(b.goes_on for b in blocks if b is not None)


@pytest.mark.skipif(chosen_target().vector_bytes < 64, reason="narrower vectors fetch nothing")
def test_a_product_of_many_outside_of_panels_goes_on() -> None:
    x, y = wf.ones((64, 128, 128)), wf.ones((64, 128, 32))
    program = Native(wf.trace(lambda x, y: x.mT @ y, x, y))
    (call,) = (s for s in program.steps if isinstance(s, Call))
    assert call.request.compiled.kernels[0].notes["contract"].goes_on
