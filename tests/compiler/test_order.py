"""Sorting and selection as kernels: the bits of the references, for every size and thread count."""

import numpy as np
import pytest

import weft as wf
from weft.compiler.native import Native
from weft.compiler.order import merge, shared
from weft.compiler.order.lower import lower_order
from weft.compiler.order.network import LONGEST
from weft.compiler.order.rows import SAMPLED, SHORT
from weft.compiler.order.shared import SHARED
from weft.compiler.steps import Memory
from weft.compiler.verify import verify
from weft.core.common import dtypes
from weft.core.common.types import TensorType
from weft.core.graph.node import OutputRefs
from weft.core.tensor.tracing import trace
from weft.ops.sorting import argsort_op, sort_op, top_positions_op
from weft.runtime.cpu.jit import chosen_target, using_target
from weft.testing.ir import run_kernel

pytestmark = pytest.mark.slow

NAMES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
]
FEW = ["int8", "float16", "float32", "int64"]


def drawn(name, shape, seed=0, few=False):
    """Numbers with everything an order may stumble on; `few` makes most of them equal."""
    rng = np.random.default_rng(seed)
    dtype = dtypes.as_dtype(name)
    size = int(np.prod(shape))
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        low, high = (max(limits.min, -2), 3) if few else (limits.min, limits.max)
        found = rng.integers(low, high, size, dtype=dtype, endpoint=True)
    elif dtype.kind == "b":
        found = rng.random(size) < 0.5
    else:
        found = rng.standard_normal(size) * (1 if few else 100)
        found = (np.round(found) if few else found).astype(dtype)
        special = np.array([np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf]).astype(dtype)
        if size:
            places = rng.integers(0, size, max(size // 5, 1))
            found[places] = rng.choice(special, places.size)
    return found.reshape(shape)


def native(op, x, **params):
    """A call compiled alone."""
    return Native(trace(lambda t: op(t, **params), wf.asarray(x)), (False,))


def same_bits(ours, theirs):
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    assert np.ascontiguousarray(ours).tobytes() == np.ascontiguousarray(theirs).tobytes()


def check(op, x, threads=2, **params):
    made = native(op, x, **params)
    assert not made.hosts, "a call of Python is left"
    (ours,) = made.run([x], threads)
    same_bits(ours, op.eval(x, **params))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 2, 17, SHORT, SHORT + 1, 1000, 3001])
def test_rows_of_every_dtype_are_sorted_as_the_reference_does(name, size):
    x = drawn(name, (5, size), size)
    check(sort_op, x, descending=False)
    check(argsort_op, x, descending=False)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("rows", "size"), [(33, 2), (50, 16), (70, 17), (100, 100), (9, 2000), (17, LONGEST)]
)
def test_many_short_rows_of_every_dtype_are_sorted_as_the_reference_does(name, rows, size):
    x = drawn(name, (rows, size), size)
    check(sort_op, x, descending=False)
    check(argsort_op, x, descending=True)
    check(top_positions_op, x, k=2, largest=True)


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("size", [3, 70, 2000])
def test_rows_sorted_downward_keep_equal_elements_in_order_and_nan_last(name, size):
    x = drawn(name, (4, size), size, few=True)
    check(sort_op, x, descending=True)
    check(argsort_op, x, descending=True)


@pytest.mark.parametrize("name", ["uint8", "int16", "bfloat16", "float32", "float64", "int64"])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_that_share_a_row_change_nothing(name, threads):
    for few in (False, True):
        x = drawn(name, (1, SHARED + 12_345), few, few)
        check(sort_op, x, threads, descending=few)
        check(argsort_op, x, threads, descending=few)
        check(top_positions_op, x, threads, k=100, largest=few)


@pytest.fixture
def merging(monkeypatch):
    """Long rows are merged, as they are where vectors are wide."""
    fits = lambda order: len(order.record) == 1 and order.width >= 32  # noqa: E731
    monkeypatch.setattr(shared, "merges", fits)


@pytest.mark.parametrize("name", ["int32", "float32", "uint64"])
@pytest.mark.parametrize(("rows", "size"), [(1, SHARED), (3, SHARED + 12_345)])
def test_long_rows_that_are_merged_are_those_of_the_reference(merging, name, rows, size):
    for few in (False, True):
        x = drawn(name, (rows, size), size, few)
        check(sort_op, x, 2, descending=few)
        check(argsort_op, x, 3, descending=few)
    check(top_positions_op, x, k=size // 2, largest=True)


@pytest.mark.parametrize("number", [0, -0.0, np.nan, np.inf, 7])
def test_rows_that_are_merged_may_have_one_number_or_be_sorted(merging, number):
    x = np.full((1, SHARED + 1), number, np.float32)
    check(sort_op, x, descending=False)
    check(argsort_op, x, descending=True)
    x = np.arange(SHARED + 77, dtype=np.uint32)[None] + np.uint32(2**32 - SHARED - 77)
    for each in (x, x[:, ::-1].copy()):
        check(sort_op, each, descending=False)
        check(argsort_op, each, descending=False)


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("size", [5, 70, 1000, SAMPLED + 3, 9000])
def test_the_first_few_of_each_row_are_those_of_the_reference(name, size):
    x = drawn(name, (3, size), size)
    for k in {1, 3, size // 20, size // 2, size} - {0}:
        check(top_positions_op, x, k=k, largest=True)
    check(top_positions_op, x, k=min(4, size), largest=False)


@pytest.mark.parametrize("size", [3, 70, 2500, SHARED])
@pytest.mark.parametrize("number", [0, -0.0, np.nan, 7])
def test_rows_of_one_number_stay_as_they_are(size, number):
    x = np.full((2, size), number, np.float32)
    check(sort_op, x, descending=False)
    check(argsort_op, x, descending=True)
    check(top_positions_op, x, k=2, largest=True)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("size", [40, 5000, SHARED + 1])
def test_sorted_rows_and_rows_the_other_way_round_are_no_special_case(size, turned):
    x = np.arange(size, dtype=np.int64)[None] - size // 3
    x = np.ascontiguousarray(x[:, ::-1]) if turned else x
    check(sort_op, x, descending=False)
    check(argsort_op, x, descending=False)
    check(top_positions_op, x, k=10, largest=True)


def test_zeros_and_nans_keep_their_bits_and_their_order():
    bits = np.array([0x7FC00001, 0, 0x80000000, 0xFFC00002, 0x80000000, 0, 0x3F800000], np.uint32)
    for size in (7, 70, 7000, 70_000):
        x = np.resize(bits, (2, size)).view(np.float32)
        check(sort_op, x, descending=False)
        check(sort_op, x, descending=True)


def test_an_empty_axis_and_no_rows_give_empty_results():
    for shape in ((0,), (3, 0), (0, 5)):
        f = wf.compile(lambda t: (wf.sort(t), wf.argsort(t), wf.top_k(t, 0)[1]))
        ours = f(wf.zeros(shape))
        assert [each.shape for each in ours] == [shape, shape, (*shape[:-1], 0)]


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_any_axis_of_a_tensor_that_lies_anyhow_is_sorted(axis):
    x = drawn("float32", (30, 70, 11))[::-2, :, ::-1].transpose(1, 0, 2)
    f = wf.compile(lambda t: (wf.sort(t, axis=axis), wf.argsort(t, axis=axis, descending=True)))
    ours = f(wf.asarray(x))
    same_bits(ours[0].numpy(), np.sort(x, axis=axis, kind="stable"))
    same_bits(ours[1].numpy(), wf.argsort(wf.asarray(x), axis=axis, descending=True).numpy())


def test_a_compiled_sort_between_other_calls_makes_no_call_of_python():
    def f(x):
        y = wf.sort(x * 2 + 1, axis=0)
        values, places = wf.top_k(y, 3)
        return values.sum(), places, wf.argsort(-y), wf.median(y, axis=-1), wf.quantile(y, 0.3)

    x = wf.asarray(drawn("float32", (90, 40), few=True))
    made = Native(trace(f, x), (False,))
    assert not made.hosts
    for ours, theirs in zip(made.run([x.numpy()]), f(x), strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())


def test_searches_sets_and_counts_of_fixed_shape_make_no_call_of_python():
    def f(x, edges):
        rising = wf.sort(edges)
        found = wf.searchsorted(rising, x), wf.isin(x, edges), wf.digitize(x, rising)
        return *found, wf.histogram(x, bins=7)[0], wf.bincount(found[0], length=6)

    x, edges = wf.asarray(drawn("float32", (500,), few=True)), wf.asarray([3.0, -1.0, 0.0, 2.0])
    x = wf.nan_to_num(x, posinf=9.0, neginf=-9.0)
    made = Native(trace(f, x, edges), (False, False))
    assert not made.hosts
    for ours, theirs in zip(made.run([x.numpy(), edges.numpy()]), f(x, edges), strict=True):
        same_bits(ours, theirs.numpy())


def test_derivatives_of_a_sort_go_back_to_where_elements_came_from():
    x = np.random.default_rng(0).permutation(5000).reshape(2, 2500).astype(np.float32)
    weights = np.linspace(-1, 1, 2500, dtype=np.float32)
    f = wf.grad(lambda t: (wf.sort(t) * weights).sum())
    expected = weights[np.argsort(np.argsort(x, axis=-1), axis=-1)]
    np.testing.assert_array_equal(f(wf.asarray(x)).numpy(), expected)
    np.testing.assert_array_equal(wf.compile(f)(wf.asarray(x)).numpy(), expected)


def test_sorting_inside_vmap_and_scan_is_sorting_each_one():
    x = drawn("float32", (6, 9, 80))
    expected = np.sort(x, axis=1)
    mapped = wf.compile(wf.vmap(lambda t: wf.sort(t, axis=0)))
    np.testing.assert_array_equal(mapped(wf.asarray(x)).numpy(), expected)

    def step(carry, row):
        return wf.sort(carry + row), wf.top_k(row, 2)[1]

    run = lambda t: wf.scan(step, wf.zeros((80,)), t)  # noqa: E731
    rows = wf.asarray(np.nan_to_num(x[0], posinf=1.0, neginf=-1.0))
    made = Native(trace(run, rows), (False,))
    assert not made.hosts
    for ours, theirs in zip(made.run([rows.numpy()]), run(rows), strict=True):
        same_bits(ours, theirs.numpy())


def interpreted(op, x, **params):
    """A call whose kernels are walked statement by statement, their last tasks first."""
    kind = TensorType(x.shape, x.dtype)
    leaf = OutputRefs.leaf(None, kind, wf.asarray(x).device)
    node = OutputRefs(op, ((leaf, 0),), params, (op.infer(kind, **params),), leaf.device)
    source, target = Memory(kind), Memory(node.types[0])
    arrays = {source: x.reshape(-1).view(np.uint8), target: np.zeros(target.nbytes, np.uint8)}
    for each in lower_order(node, source, target):
        verify(each.kernel, scheduled=True)
        for m in each.memory:
            start = np.zeros(m.nbytes, np.uint8) if m.data is None else m.data.view(np.uint8)
            arrays.setdefault(m, start)
        pairs = list(zip(each.memory, each.kernel.buffers, strict=True))
        made = run_kernel(each.kernel, [arrays[m].view(b.dtype) for m, b in pairs], backward=True)
        for m, array in zip(each.memory, made, strict=True):
            arrays[m] = array.view(np.uint8)
    return arrays[target].view(node.types[0].dtype).reshape(node.types[0].shape)


@pytest.mark.parametrize(("rows", "size"), [(1, 5), (1, 66), (17, 5)])
@pytest.mark.parametrize("name", ["float32", "int64", "bfloat16"])
def test_kernels_mean_the_same_to_the_interpreter_of_loops(name, rows, size):
    x = drawn(name, (rows, size), 3)
    for op, params in (
        (sort_op, {"descending": True}),
        (argsort_op, {"descending": False}),
        (top_positions_op, {"k": 3, "largest": True}),
    ):
        same_bits(interpreted(op, x, **params), op.eval(x, **params))


def test_merges_mean_the_same_to_the_interpreter_of_loops(merging, monkeypatch):
    monkeypatch.setattr(merge, "SHORTEST_RUN", 32)
    monkeypatch.setattr(shared, "SHARED", 100)
    x = drawn("float32", (1, 300), 3)
    with using_target(chosen_target().baseline()):
        ours = interpreted(sort_op, x, descending=False)
    same_bits(ours, np.sort(x, kind="stable"))
