"""Kernels for blocks and threads that order rows: the bits of the references, in any tile."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.test_order import NAMES, drawn
from weft.compiler.emit_ptx import emit_ptx, gpu_target
from weft.compiler.emit_wgsl import emit_wgsl
from weft.compiler.loops import INDEX, Assign, Kernel, Local, Loop, get, integer, variable
from weft.compiler.order.gpu import lower_order_gpu
from weft.compiler.passes.items import Limits
from weft.compiler.pipeline_gpu import CUDA
from weft.compiler.steps import Memory
from weft.compiler.verify import verify
from weft.core.common.device import CPU
from weft.core.common.types import TensorType
from weft.core.graph.node import OutputRefs
from weft.ops.sorting import argsort_op, sort_op, top_positions_op
from weft.testing.ir import run_kernel

pytestmark = pytest.mark.slow  # the interpreter runs every thread of every block

TIGHT = Limits(threads=4, shared=128)  # a tile is 12 elements of four bytes, or 4 records of eight
WIDER = Limits(threads=8, shared=1024)


def launches(op, x, limits, **params):
    """The launches of a call, and the memory of its operand and its result."""
    leaf = OutputRefs.leaf(None, TensorType(x.shape, x.dtype), CPU)
    made = TensorType(*(getattr(op.eval(x, **params), name) for name in ("shape", "dtype")))
    source, target = Memory(leaf.types[0]), Memory(made)
    node = OutputRefs(op, ((leaf, 0),), params, (made,), CPU)
    return lower_order_gpu(node, source, target, limits), source, target


def ordered(op, x, limits, backward, **params):
    """What the launches of a call leave, one after another, in the memory of its result."""
    made, source, target = launches(op, x, limits, **params)
    held = {source: x.reshape(-1)}
    for each in made:
        verify(each.kernel, scheduled=True)
        pairs = list(zip(each.memory, each.kernel.buffers, strict=True))
        for memory, _ in pairs:
            held.setdefault(memory, memory.data)
            if held[memory] is None:
                held[memory] = np.zeros(memory.kind.size, memory.kind.dtype)
        given = [held[memory].view(buffer.dtype) for memory, buffer in pairs]
        for (memory, _), array in zip(
            pairs, run_kernel(each.kernel, given, (), backward), strict=True
        ):
            held[memory] = array.view(memory.kind.dtype)
    return held[target].reshape(target.kind.shape)


def check(op, x, limits, **params):
    expected = op.eval(x, **params)
    for backward in (False, True):
        found = ordered(op, x, limits, backward, **params)
        assert found.dtype == expected.dtype and found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("name", "shape"), [*((name, (9, 3)) for name in NAMES), ("float32", (2, 19))]
)
def test_rows_of_every_dtype_are_ordered_as_the_reference_does(name, shape):
    x = drawn(name, shape, shape[-1])
    check(sort_op, x, TIGHT, descending=True)
    check(argsort_op, x, TIGHT, descending=False)
    check(top_positions_op, x, TIGHT, k=1, largest=True)


@pytest.mark.parametrize(("name", "size"), [("float32", 45), ("float64", 17), ("int8", 17)])
def test_equal_elements_keep_their_order_in_one_tile_and_in_many(name, size):
    x = drawn(name, (2, size), size, few=True)
    for limits in (TIGHT, WIDER):
        check(argsort_op, x, limits, descending=True)
        check(sort_op, x, limits, descending=False)


@pytest.mark.parametrize("k", [1, 40])
def test_the_first_of_a_row_are_selected_or_sorted(k):
    x = drawn("float32", (2, 60), k, few=True)
    for largest in (False, True):
        check(top_positions_op, x, TIGHT, k=k, largest=largest)


def test_what_fills_a_tile_comes_after_the_last_elements():
    for number in (np.nan, np.inf):
        x = np.full((2, 14), number, np.float32)
        check(argsort_op, x, TIGHT, descending=False)
        check(top_positions_op, x, TIGHT, k=2, largest=False)
    check(argsort_op, np.full((2, 14), 2**64 - 1, np.uint64), TIGHT, descending=False)


def test_each_merge_makes_runs_twice_as_long_and_all_are_one_kernel():
    x = np.zeros((1, 1 << 20), np.float32)
    made, *_ = launches(sort_op, x, CUDA, descending=False)
    names = [each.kernel.name for each in made]
    assert names == ["sort", *["merge"] * 8]
    assert len({each.kernel.body for each in made}) == 2


def test_few_of_a_long_row_take_few_launches():
    x = np.zeros((1, 50_257), np.float32)
    made, *_ = launches(top_positions_op, x, CUDA, k=100, largest=True)
    assert [each.kernel.name for each in made] == ["select", "select"]


def test_many_short_rows_lie_in_one_block():
    x = np.zeros((10_000, 3), np.float32)
    (made,), *_ = launches(sort_op, x, CUDA, descending=False)
    assert made.kernel.notes["threads"] >= 32 and made.kernel.notes["blocks"] < 320


def test_threads_wait_for_each_other_in_every_turn_of_a_loop():
    (turn, thread, block), zero = map(variable, ("i", "t", "b")), integer(0)
    held = get(0, INDEX, thread)
    inner = Loop(thread, zero, integer(32), (Assign(0, held, thread),), "thread")
    outer = Loop(block, zero, integer(1), (Loop(turn, zero, integer(9), (inner,)),), "block")
    shared = (Local("s", INDEX, 1, 32, shared=True),)
    kernel = Kernel("k", (), shared, (outer,), notes={"blocks": 1, "threads": 32})
    assert "bar.sync" in emit_ptx([kernel], gpu_target())
    assert "workgroupBarrier" in emit_wgsl(kernel)
