"""Reductions under masks of positions: hidden steps compute nothing, and no bit changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from tests.compiler.bits import assert_same
from weft.compiler.executable import Interpreted
from weft.compiler.fuse import Fusion
from weft.compiler.loops import LANES, UNREAD, WRITTEN, Loop, Store, every, walk
from weft.compiler.loops import expressions as values_in
from weft.compiler.masks import behind_masks
from weft.compiler.narrow import widened
from weft.compiler.native import Native
from weft.compiler.passes.contract_hidden import mask_of_sums, masks
from weft.compiler.passes.contract_match import match
from weft.compiler.rebuild import Scope, values_of
from weft.compiler.rewrite import rewrite
from weft.compiler.scatter import lower as lowered
from weft.runtime.cpu.jit import host_target


def upper(row: Any, column: Any) -> Any:
    return column <= row


def lower(row: Any, column: Any) -> Any:
    return column > row - 7


def window(row: Any, column: Any) -> Any:
    behind = row - column
    return (behind >= 0) & (behind < 100)


def nothing(row: Any, column: Any) -> Any:
    behind = row - column
    return (behind >= 50) & (behind < 20)


def weights(mask: Any) -> Any:
    def function(x: Any) -> Any:
        rows, columns = x.shape
        row, column = wf.arange(rows)[:, None], wf.arange(columns)
        parts = wf.where(mask(row, column), wf.exp(x), 0.5)
        return wf.sum(parts, -1), parts

    return function


def random(*shape: int) -> np.ndarray:
    x = np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)
    x[0, -1], x[-1, 0] = np.nan, np.inf
    return x


@pytest.mark.parametrize("mask", [upper, lower, window, nothing])
@pytest.mark.parametrize("shape", [(40, 33), (700, 530), (64, 1100), (33, 512)], ids=str)
def test_masked_sums_have_the_bits_of_whole_ones(mask, shape):
    x = random(*shape)
    trace = wf.trace(weights(mask), wf.zeros(shape))
    assert_same(Native(trace).run([x], threads=2), Interpreted(trace).run([x]))


def late(row: Any, column: Any) -> Any:
    return column <= row + 600


def extremes(mask: Any, fill: float) -> Any:
    """Of products, which their kernel stores under a mask; one that rises, and one that falls."""

    def function(x: Any, y: Any) -> Any:
        row, column = wf.arange(x.shape[0])[:, None], wf.arange(y.shape[1])
        found = wf.where(mask(row, column), x @ y, fill)
        return wf.max(found, -1), wf.min(found, -1)

    return function


@pytest.mark.parametrize("fill", [-np.inf, 2.5, np.nan])
@pytest.mark.parametrize("mask", [upper, lower, window, nothing, late])
@pytest.mark.parametrize("columns", [33, 512, 530, 1024, 1100, 2048, 4110])
def test_masked_extremes_have_the_bits_of_whole_ones(mask, columns, fill):
    x, y = random(90, 7), random(7, columns)
    trace = wf.trace(extremes(mask, fill), wf.zeros(x.shape), wf.zeros(y.shape))
    native = Native(trace)
    expected = Interpreted(trace).run([x, y])
    for threads in (1, 2):
        assert_same(native.run([x, y], threads=threads), expected)


def of_elements(x: Any, mask: Any) -> Any:
    return wf.max(wf.where(mask, wf.sin(x) * 3, x), -1)


def of_columns(x: Any, mask: Any) -> Any:
    return wf.min(wf.where(mask, wf.exp(x), wf.arange(x.shape[1], dtype=wf.float32)), -1)


def of_what_is_shown(x: Any, mask: Any) -> Any:
    return wf.max(wf.where(mask, wf.exp(x), -1) * x, -1)


def of_products(x: Any, mask: Any) -> Any:
    return wf.max(wf.where(mask, x[:, :7] @ wf.ones((7, x.shape[1])), x), -1)


def of_products_and_rows(x: Any, mask: Any) -> Any:
    found = wf.where(mask, x[:, :7] @ wf.ones((7, x.shape[1])), x[3])
    return wf.max(found, -1), wf.max(wf.reshape(found, (-1, 2 * x.shape[1])), -1)


@pytest.mark.parametrize(
    "function", [of_elements, of_columns, of_what_is_shown, of_products, of_products_and_rows]
)
@pytest.mark.parametrize("mask", [upper, lower, late])
@pytest.mark.parametrize("columns", [300, 600, 2048])
def test_what_is_hidden_may_differ_from_place_to_place(mask, columns, function):
    def extreme(x: Any) -> Any:
        return function(x, mask(wf.arange(90)[:, None], wf.arange(columns)))

    x = np.random.default_rng(columns).normal(size=(90, columns)).astype(np.float32)
    trace = wf.trace(extreme, wf.zeros(x.shape))
    assert_same(Native(trace).run([x]), Interpreted(trace).run([x]))


def test_a_chain_of_kernels_keeps_what_a_mask_is_filled_with():
    n = 2048

    def function(a: Any, b: Any, x: Any, y: Any) -> Any:
        filling = a @ b
        found = wf.where(upper(wf.arange(n)[:, None], wf.arange(n)), x @ y, filling)
        return wf.max(filling, -1), wf.max(wf.reshape(found, (n // 2, 2 * n)), -1)

    shapes = (n, 8), (8, n), (n, 8), (8, n)
    given = [
        np.random.default_rng(k).normal(size=s).astype(np.float32) for k, s in enumerate(shapes)
    ]
    trace = wf.trace(function, *map(wf.zeros, shapes))
    assert_same(Native(trace).run(given), Interpreted(trace).run(given))


def kernels_of(native: Native) -> list[Any]:
    return [k for call in native.calls.values() for k in call.request.compiled.kernels]


@pytest.mark.parametrize(("columns", "is_left_out"), [(500, False), (1030, True)])
def test_what_nobody_reads_is_not_stored_for_long_rows(columns, is_left_out):
    shapes = (90, 7), (7, columns)
    native = Native(wf.trace(extremes(upper, -np.inf), *map(wf.zeros, shapes)))
    product, *rows = kernels_of(native)
    assert is_left_out == any(x.data == UNREAD for x in values_of(product.body))
    assert all(is_left_out == any(x.data == WRITTEN for x in values_of(k.body)) for k in rows)
    hidden = [s for s in every(product.body) if isinstance(s, Store) and s.value.op == "load"]
    assert is_left_out == (not hidden)


def test_what_a_mask_hides_is_stored_for_whoever_reads_it():
    """Of two products that are alike, one is a result."""

    def function(x: Any, y: Any, z: Any) -> Any:
        seen = upper(wf.arange(90)[:, None], wf.arange(1030))
        here, there = (wf.where(seen, each @ z, -1.0) for each in (x, y))
        return wf.max(here, -1), wf.max(there, -1), there

    given = [np.full(shape, 2, np.float32) for shape in ((90, 7), (90, 7), (7, 1030))]
    trace = wf.trace(function, *(wf.zeros(x.shape) for x in given))
    native = Native(trace)
    unread = [any(v.data == UNREAD for v in values_of(k.body)) for k in kernels_of(native)]
    assert sum(unread) == 1
    assert_same(native.run(given), Interpreted(trace).run(given))


@pytest.mark.parametrize(("mask", "loops"), [(upper, 3), (lower, 3), (window, 5)])
def test_steps_that_a_mask_hides_are_loops_of_their_own(mask, loops):
    native = Native(wf.trace(weights(mask), wf.zeros((600, 2048))))
    kernels = [k for call in native.calls.values() for k in call.request.compiled.kernels]
    vectors = [
        s
        for kernel in kernels
        for s in every(kernel.body)
        if isinstance(s, Loop) and s.kind == "vector" and str(s.variable.data).startswith("i")
    ]
    steps = [s for s in vectors if s.step == LANES]
    assert len(steps) == loops
    at_once = host_target().vector_bytes == 64  # several steps of what is shown, and then the rest
    assert len(vectors) - len(steps) == at_once
    inside = [{x.op for s in step.body for x in walk(*values_in(s))} for step in steps]
    assert sum("fma" in ops for ops in inside) == loops - (mask is window) - 1


def test_what_only_a_mask_reads_reads_what_the_mask_shows():
    def function(x: Any, y: Any) -> Any:
        seen = wf.arange(8)[:, None] >= wf.arange(8)
        e = wf.exp(x)
        return wf.where(seen, e, 0), wf.where(seen, e * y, 0)

    trace = wf.trace(function, wf.zeros((8, 8)), wf.zeros((8, 8)))
    (product,) = (node for node in behind_masks(trace).nodes if node.name == "multiply")
    assert product.inputs[0][0].name == "where"
    x, y = random(8, 8), random(8, 8)
    for found, wanted in zip(
        Interpreted(behind_masks(trace)).run([x, y]), Interpreted(trace).run([x, y]), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


def test_what_is_read_behind_a_mask_reads_what_the_mask_shows():
    def function(x: Any) -> Any:
        seen = wf.arange(8)[:, None] >= wf.arange(8)
        scores = x * 3
        top = wf.max(wf.where(seen, scores, -np.inf), axis=-1, keepdims=True)
        return wf.where(seen, wf.exp(scores - top), 0)

    trace = wf.trace(function, wf.zeros((8, 8)))
    (difference,) = (node for node in behind_masks(trace).nodes if node.name == "subtract")
    assert difference.inputs[0][0].name == "where"
    (found,), (wanted,) = (
        Interpreted(each).run([random(8, 8)]) for each in (behind_masks(trace), trace)
    )
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("backward", [False, True])
def test_products_leave_out_what_narrow_weights_hide(backward):
    def function(q: Any, k: Any, v: Any) -> Any:
        found = wf.scaled_dot_product_attention(q, k, v, is_causal=True)
        return wf.sum(wf.astype(found, np.float32)) if backward else found

    function = wf.grad(function, argnums=(0, 1, 2)) if backward else function
    given = [wf.zeros((2, 64, 32), dtype=wf.bfloat16)] * 3
    graph = behind_masks(rewrite(wf.trace(function, *given))[0])
    fusion = Fusion(graph.nodes, graph.outputs)
    kernels = [
        each.kernel
        for group in fusion.groups
        if group.kind == "dot"
        for each in lowered(fusion, group, {})
    ]
    products = [match(Scope(widened(kernel))) for kernel in kernels]
    assert len(products) == (6 if backward else 2)
    assert all(mask_of_sums(each) is not None or any(masks(each)) for each in products)
